"""The process that writes a run's events to MLflow, which in this room only it, `batch`, `artifacts` and `adoption` use.

`python -m trialplane.controller.mlflow_writer RUN_DIR [--look]` is started by the recorder, with the tracking URI in
MLFLOW_TRACKING_URI. It reads events from the spool, and writes `{"done": bytes, "left": files, "trouble": message}` and
`{"away": message}` to stdout.
Every operation is idempotent: metrics carry the time of the event, parameters and tags do not change, a run's id is looked
up before a run is created. The process ends on request when it has written everything, and at once when stdin is closed or
the controller is killed.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import json
import os
import select
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import mlflow
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from trialplane import errors
from trialplane.controller import adoption, journal
from trialplane.controller.artifacts import Artifacts
from trialplane.controller.batch import Artifact, Batch, Sender, describe, milliseconds, write_log
from trialplane.job import values
from trialplane.job.kinds import collection
from trialplane.training import mlflow_runs, process
from trialplane.wire import env, escapes, labels, paths, records, rows
from trialplane.wire.paths import RunPaths
from trialplane.wire.records import TrialOutcome, TrialReport, TrialRequest
from trialplane.wire.states import FailureClass, RunState, TrialState

MAX_LINES = 400  # events written together
END = b"end"  # on the input: no event will follow
NICENESS = 10  # trials and the controller have priority; the rest is written when they are done
IDLE = 0.1  # seconds between reads of the spool
MOST_PARAMS = (
    500  # of a trial; MLflow reads all that a run has for each hundred that it gets, so 5,000 would take 10 seconds
)
_NOUNS = {"train": "training", "collect": "iteration"}  # what a trial is called in runs of these kinds
# A pruned trial has done its work; MLflow shows KILLED like FAILED.
_STATUS = {
    TrialState.COMPLETE: "FINISHED",
    TrialState.PRUNED: "FINISHED",
    TrialState.PAUSED: "KILLED",
    TrialState.LOST: "FAILED",
    TrialState.FAILED: "FAILED",
}
_RUN_STATUS = {RunState.SUCCEEDED: "FINISHED", RunState.FAILED: "FAILED", RunState.CANCELLED: "KILLED"}


class Writer:
    """Writes the events of one run.

    Args:
        run: the run's files.
        uri: MLflow's tracking URI; for a run that was written before, the same place, perhaps with another login.
        look: whether a former writer's journal may be lost, so that MLflow is searched for its runs.
    """

    def __init__(self, run: RunPaths, uri: str, look: bool = False) -> None:
        self._run = run
        self._submission: dict[str, Any] = {"submitted": time.time(), **json.loads(run.submission.read_text())}
        self._submitted = float(self._submission["submitted"])
        self._journal = journal.Journal(run.written)
        notes = self._journal.notes
        self._marks = look  # mark complete runs in MLflow, for a successor without this journal
        self._look = look and not notes["uri"]
        self._new = not notes["uri"] and not look  # else a crash may have left runs that are not in the journal
        self.is_behind = True  # at first, and after MLflow was away: then trials may have been faster
        self._whole: set[int] = set()  # attempts that a former writer has completed, according to MLflow
        self._runs: dict[int, str] = {int(number): run_id for number, run_id in notes["run"].items()}
        self.offset, mark = notes["written"].get("", (0, ""))
        if journal.mark(run.events, self.offset) != mark:
            write_log(f"{run.events} does not match {run.written}, as after a power cut: all of it is written again")
            self.offset = 0
        self._parent: str | None = notes["parent"].get("")
        self._experiment: str | None = notes["experiment"].get("")
        if notes["uri"].get("") != uri:
            self._journal.note("uri", "", uri)
        mlflow.set_tracking_uri(uri)
        self._client = MlflowClient(uri)
        self._sender = Sender(self._client)
        self.artifacts = Artifacts(self._client, self._journal)
        self._local = uri.startswith("sqlite:")

    @property
    def progress(self) -> dict[str, Any]:
        """How far the writer is, for the controller."""
        return {"done": self.offset, "left": self.artifacts.left, "trouble": self.artifacts.trouble}

    def write(self) -> bool:
        """Write the next events of the spool; False when there are none."""
        lines, size = self._next_lines()
        if not lines:
            self.is_behind = False
            return False
        batches: dict[str, Batch] = collections.defaultdict(Batch)
        for line in lines:
            if line.isspace():  # the recorder has moved a damaged line away
                continue
            with _skipping(f"an event is left out of MLflow: {line[:300].decode(errors='replace').strip()}"):
                self._take(json.loads(line), batches)
        for run_id, batch in batches.items():
            with _skipping(f"entries for MLflow's run {run_id} are left out"):
                if self._sender.send(run_id, batch):
                    self.artifacts.add(run_id, batch.artifacts, is_last=batch.is_last)
        self.offset += size
        self._journal.note("written", "", [self.offset, journal.mark(self._run.events, self.offset)])
        return True

    def close(self) -> None:
        """Put runs that trials have created outside of their own below these, and delete duplicates."""
        if self._parent is None:
            return
        strays = self._tagged(f"tags.`{labels.LOGGED_BY}` != ''")
        strays += self._tagged(f"tags.`{labels.STATE}` = '{labels.LOGGED}'")
        for run in strays:
            with _skipping(f"MLflow's run {run.info.run_id} stays where it is"):
                self._adopt(run)
        # MLflow made these although its answers were lost, or late.
        duplicates = self._tagged(f"tags.`{labels.STATE}` = '{journal.CREATED}'")
        duplicates += [study for study in self._studies() if labels.STATE not in study.data.tags]
        for run in duplicates:
            if run.info.run_id not in (self._parent, *self._runs.values()):
                self._client.delete_run(run.info.run_id)

    def _tagged(self, condition: str) -> list[Any]:
        """Return all MLflow runs of this run that meet a condition."""
        condition = f"tags.`{labels.RUN}` = '{self._run.root.name}' and {condition}"
        runs = journal.search(self._client, self._experiment or "", condition)
        return [run for run in runs if self._identity.items() <= run.data.tags.items()]

    def _adopt(self, run: Any) -> None:
        """Put a run that a trial's process has created below the trial's run, unless it is that."""
        tags, run_id = run.data.tags, run.info.run_id
        number = journal.number(tags.get(labels.NUMBER, tags.get(labels.LOGGED_BY, "")))
        own = None if number is None else self._runs.get(number)
        if own is not None and own != run_id:
            if labels.PARENT not in tags:
                self._client.set_tag(run_id, labels.PARENT, own)
            if run.info.status == "RUNNING":
                self._client.set_terminated(run_id, "KILLED")
        for tag in (labels.LOGGED_BY,) if own == run_id else (labels.NUMBER, labels.STATE, labels.LOGGED_BY):
            if tag in tags:
                self._client.delete_tag(run_id, tag)  # last: all of this is repeated until then

    def _take(self, event: Mapping[str, Any], batches: dict[str, Batch]) -> None:
        """Adds one event to the batch of the MLflow run it belongs to."""
        match event["kind"]:
            case "study":
                self._study(event["facts"], batches)
            case "started" | "report" | "ended" if _number(event) in self._whole:
                return
            case "started":
                self._started(records.from_dict(TrialRequest, event["request"]), event["uses_mlflow"], batches)
            case "report":
                report = records.from_dict(TrialReport, event["report"])
                batches[self._runs[report.number]].add_metrics(report.metrics, report.time, report.step)
            case "ended":
                self._ended(event, batches)
            case "best":
                value = {f"best_{event['metric']}": float(event["value"]), "best_trial": event["trial"]}
                batches[self._require_parent()].add_metrics(value, event["time"], event["ended"])
            case "study_ended":
                state = RunState(event["state"])
                batch = batches[self._require_parent()]
                batch.add_tags({labels.STATE: state.value, labels.MESSAGE: event["reason"]})
                batch.status = _RUN_STATUS.get(state, "SCHEDULED")
                batch.end = milliseconds(event["time"]) if state in _RUN_STATUS else None
                if event.get("keep_log"):
                    batch.artifacts.append(Artifact("logs", str(self._run.controller_log), "log"))

    def _study(self, facts: Mapping[str, Any], batches: dict[str, Batch]) -> None:
        self._ensure_parent()
        batch = batches[self._require_parent()]
        batch.add_tags(facts["tags"])
        batch.add_params(facts["params"])
        batch.status = "RUNNING"
        batch.artifacts.append(Artifact("", str(self._run.job)))

    def _started(self, request: TrialRequest, uses_mlflow: bool, batches: dict[str, Batch]) -> None:
        noun = _NOUNS.get(self._job.get("kind", ""), "trial")
        name = f"{noun}-{request.trial:04d}" + (f"-attempt-{request.attempt}" if request.attempt > 1 else "")
        parent = self._require_parent()
        if request.number not in self._runs:
            # A crash may have left a run that is not in the journal, and the trial may have been faster.
            known = self._find(request.number) if uses_mlflow or self.is_behind or not self._new else ""
            self._runs[request.number] = known or self._create_trial(request.number, name)
            self._journal.note("run", str(request.number), self._runs[request.number])
        batch = batches[self._runs[request.number]]
        batch.add_tags(
            {
                "mlflow.runName": name,
                labels.PARENT: parent,
                labels.KIND: "trial",
                labels.NUMBER: request.number,
                labels.TRIAL: request.trial,
                labels.ATTEMPT: request.attempt,
                labels.SEED: request.seed,
                labels.STATE: TrialState.RUNNING.value,
                labels.GIT_REVISION: self._submission.get("git_revision", ""),
                labels.CODE_HASH: self._submission.get("code_hash", ""),
                **({} if request.retry_of is None else {labels.RETRY_OF: request.retry_of}),
            }
        )
        # MLflow never changes a parameter: with ours it would refuse the job's own of the same name, which fails the trial,
        # or a whole batch of them. So they are tags while the trial runs, and parameters once it has ended.
        batch.add_tags({labels.PARAM + values.key(name): value for name, value in sorted(_shown(request.params).items())})

    def _ended(self, event: Mapping[str, Any], batches: dict[str, Batch]) -> None:
        outcome = records.from_dict(TrialOutcome, event["outcome"])
        batch = batches[self._runs[outcome.number]]
        # A parameter that the job has logged with another value stays the job's.
        params = event["params"]
        batch.add_params(dict(sorted(_shown(params).items())))
        seconds = {"trial_seconds": outcome.ended - outcome.started} if outcome.started else {}
        steps = {f"best_step_{name}": float(step) for name, step in outcome.best_steps.items()}
        # Of an attempt without a result they are those of its last report, which MLflow has.
        is_result = outcome.failure in (None, FailureClass.INVALID) and outcome.state is not TrialState.PRUNED
        result = outcome.metrics if is_result else {}
        batch.add_metrics({**result, **steps, **seconds}, outcome.ended, event["step"])
        state = rows.state_of(outcome)
        batch.status = _STATUS[state]
        batch.is_last = self._marks
        batch.end = milliseconds(outcome.ended)
        batch.add_tags(
            {
                labels.STATE: state.value,
                labels.NODE: outcome.node,
                labels.START_METHOD: outcome.start_method,
                **({labels.CLASS: outcome.failure.value} if outcome.failure else {}),
                **({labels.MESSAGE: outcome.message} if outcome.message else {}),
            }
        )
        log = self._run.trial_log(event["trial"], event["attempt"])
        failed = outcome.state is TrialState.FAILED or outcome.metrics.get(collection.FAILED_UNITS)
        if (failed or event.get("keep_log")) and log.exists():
            # For a collection also its workers' logs; each continues through all attempts at the iteration.
            logs = [log, *sorted(log.parent.glob("worker-*.log"))]
            batch.artifacts += [Artifact("logs", str(file), "log") for file in logs]
        if len(params) > MOST_PARAMS:
            file = log.with_name("params.json")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(params))
            batch.artifacts.append(Artifact("", str(file)))
        if event["arrays"] is not None:
            batch.artifacts.append(Artifact("arrays", event["arrays"], "arrays"))
        adoption.take_over(self._run.trial_store(outcome.number), self._client, self._runs[outcome.number], batches)

    @functools.cached_property
    def _job(self) -> dict[str, Any]:
        job: dict[str, Any] = json.loads(self._run.job.read_text())
        return job

    def _ensure_parent(self) -> None:
        """Finds or makes the experiment and the study's parent run."""
        if self._parent is not None:
            return
        job = self._job["name"]
        if self._experiment is None:
            known = self._client.get_experiment_by_name(job)
            self._experiment = known.experiment_id if known else self._create_experiment(job)
            self._journal.note("experiment", "", self._experiment)
        runs = [] if self._new else self._studies()
        parent = runs[0].info.run_id if runs else self._create_study(job)
        if self._look and runs:
            before = journal.attempts(self._client, self._experiment, parent)
            self._runs, self._whole = before.runs, before.whole
            for number, run_id in before.runs.items():
                self._journal.note("run", str(number), run_id)
        self._parent = parent  # only when all of the above succeeded: otherwise it is repeated
        self._journal.note("parent", "", parent)

    def _studies(self) -> list[Any]:
        return journal.studies(self._client, self._experiment or "", self._run.root.name, self._submission)

    def _create_study(self, job: str) -> str:
        tags = {labels.KIND: "study", labels.SUBMITTED: journal.moment(self._submitted), **self._identity}
        return self._create_run(milliseconds(self._submitted), {**tags, labels.JOB: job}, self._run.root.name)

    def _create_run(self, start: int | None, tags: dict[str, str], name: str) -> str:
        try:
            return str(self._client.create_run(self._experiment or "", start, tags, name).info.run_id)
        except Exception:
            self._new = False  # MLflow may have created it nevertheless: the next try searches for it
            raise

    def _create_experiment(self, name: str) -> str:
        # A store in a file of this machine gets its artifacts beside it, not below wherever this process was started.
        home = self._run.root.parent.parent
        location = (paths.mlflow_artifacts(home) / name).as_uri() if self._local else None
        try:
            created: str = self._client.create_experiment(name, artifact_location=location)
        except MlflowException:  # another run of the same job was faster
            experiment = self._client.get_experiment_by_name(name)
            if experiment is None:
                raise
            created = experiment.experiment_id
        return created

    def _create_trial(self, number: int, name: str) -> str:
        """Create the run of an attempt; return its id."""
        tags = {**self._identity, labels.PARENT: self._require_parent(), labels.NUMBER: str(number)}
        tags[labels.STATE] = journal.CREATED
        return self._create_run(None, tags, name)

    def _find(self, number: int) -> str:
        """Return the id of an attempt's run in MLflow, "" for none."""
        return mlflow_runs.find(self._client, self._experiment or "", {**self._identity, labels.NUMBER: str(number)})

    @property
    def _identity(self) -> dict[str, str]:
        """Tags of each run in MLflow that belongs to this run."""
        return journal.identity(self._run.root.name, self._submission)

    def _require_parent(self) -> str:
        self._ensure_parent()
        assert self._parent is not None
        return self._parent

    def _next_lines(self) -> tuple[list[bytes], int]:
        if not self._run.events.exists():
            return [], 0
        lines: list[bytes] = []
        size = 0
        with self._run.events.open("rb") as spool:
            spool.seek(self.offset)
            for line in spool:
                if not line.endswith(b"\n") or len(lines) >= MAX_LINES:
                    break
                lines.append(line)
                size += len(line)
        return lines, size


def _shown(params: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that MLflow shows: those that are searched come last, and count first."""
    return dict(list(params.items())[-MOST_PARAMS:])


def _number(event: Mapping[str, Any]) -> int:
    """The ledger's number of the attempt that an event is about."""
    record = {"started": "request", "report": "report", "ended": "outcome"}[event["kind"]]
    return int(event[record]["number"])


@contextlib.contextmanager
def _skipping(what: str) -> Iterator[None]:
    """Logs an unexpected error and continues; otherwise every further writer would fail at the same event.

    Errors of MLflow and of disks may be temporary, so they are raised and retried.
    """
    try:
        yield
    except (MlflowException, OSError):
        raise
    except Exception as error:  # noqa: BLE001 - the border of the process
        write_log(f"{what}; {describe(error)}")


class _Input:
    """The controller's end of the pipe to stdin."""

    def __init__(self) -> None:
        self.ending = False
        self.closed = False
        self._partial = b""

    def receive(self, timeout: float) -> None:
        """Reads requests, waiting at most `timeout` seconds."""
        if not select.select([sys.stdin], [], [], timeout)[0]:
            return
        data = os.read(sys.stdin.fileno(), 4096)
        self.closed = not data
        *lines, self._partial = (self._partial + data).split(b"\n")
        self.ending = self.ending or END in lines


def main() -> None:
    """Write events until the end is requested."""
    # MLflow may print to stdout at any time: answers keep the pipe, and stdout is redirected to the log.
    answers = os.dup(1)
    os.dup2(2, 1)
    os.nice(NICENESS)
    process.end_with_parent()
    run, uri, look = RunPaths(Path(sys.argv[1])), os.environ[env.MLFLOW_TRACKING_URI], "--look" in sys.argv[2:]
    requests = _Input()
    pause = IDLE
    writer: Writer | None = None

    def answer(message: Mapping[str, Any]) -> None:
        with contextlib.suppress(BrokenPipeError):  # the controller is gone, and stdin with it: the loop ends
            os.write(answers, json.dumps(message).encode() + b"\n")

    while True:
        requests.receive(pause)
        if requests.closed:  # the controller is gone; the next one's writer continues
            return
        try:
            if writer is None:
                writer = Writer(run, uri, look)
                answer(writer.progress)
            wrote = writer.write()
            sent = writer.artifacts.send()
            pause = 0.0 if wrote or sent else IDLE
            if pause == 0.0:
                answer(writer.progress)
            elif requests.ending and not writer.artifacts.left:
                writer.close()
                return
        except Exception as error:  # noqa: BLE001 - the border of the process: the next one would do no better
            if not isinstance(error, (MlflowException, OSError)):
                write_log(f"the MLflow writer failed and retries; {describe(error)}")
            if writer is not None:
                writer.is_behind = True
            why = f"MLflow at {uri} cannot be written to: {errors.first_line(error)[:300]}"
            if isinstance(error, BlockingIOError):  # the journal's lock: waiting for it would delay each trial that starts
                why = f"the MLflow writer of this run's former controller has not ended and still holds {run.written}"
            answer({"away": escapes.without_passwords(why)})
            pause = min(max(2 * pause, 1.0), 10.0)


if __name__ == "__main__":
    main()
