"""Brings MLflow up to date with the ledger of one run, from wherever MLflow is.

The ledger defines what MLflow has to hold. The position of the exporter is a tag of the parent run. Each effect may be
repeated: a run is looked up before it is created, tags and parameters follow from the ledger, and MLflow keeps one of
several metrics that are equal in name, value, step and time. So an exporter that is killed, late or started twice leaves the
same.

Two exporters at the same time may create a run twice. Each enters itself in the parent run, so the last of them to end sees
the other one there, deletes duplicates and writes all of the run again.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import mlflow
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from trialplane import errors
from trialplane.exporter import adoption, projection
from trialplane.exporter.batch import MAX_TAGS, Artifact, Batch, Sender, describe, is_refusal, milliseconds, write_log
from trialplane.exporter.files import Files
from trialplane.exporter.projection import Ends
from trialplane.exporter.source import PAGE, Source
from trialplane.job import kinds
from trialplane.job.kinds import collection
from trialplane.ledger.attempts import Attempt
from trialplane.wire import labels, paths, records
from trialplane.wire.exports import End, Progress
from trialplane.wire.paths import RunPaths
from trialplane.wire.records import ReportRow
from trialplane.wire.states import RunState, TrialState

_LOOK = 0.2  # seconds between two searches for runs that trials have created
_SAVE = 1.0  # seconds between two notes of the position
_PAGE = 1000  # runs that are searched together


@dataclasses.dataclass(frozen=True)
class Position:
    """The position of an exporter in the ledger.

    Attributes:
        reports: mark of the last report.
        ends: the ends, with their files.
    """

    reports: int = 0
    ends: Ends = dataclasses.field(default_factory=Ends)


class Exporter:
    """Exports one run.

    Args:
        run: the run's files: its job, its submission, and what goes to MLflow beside the ledger.
        source: the run's ledger.
        uri: MLflow's tracking URI.
        keeps_folder: whether the run's folder outlives this process. If not, all logs go to MLflow.
        end: state of a run that does not go on; None for one that does.
    """

    def __init__(
        self, run: RunPaths, source: Source, uri: str, *, keeps_folder: bool = True, end: End | None = None
    ) -> None:
        self._run = run
        self._source = source
        self._keeps_folder = keeps_folder
        self._end = end
        self._has_ended = False  # whether the end is in MLflow
        self._job = kinds.read(run.job.read_text())
        self._submission: dict[str, Any] = json.loads(run.submission.read_text())
        self._identity = labels.identity(run.root.name, self._submission)
        self._uri = uri
        mlflow.set_tracking_uri(uri)
        self.client = MlflowClient(uri)
        self.sender = Sender(self.client)
        self.files = Files(self.client)
        self._id = uuid.uuid4().hex[:8]
        self._experiment = ""
        self._parent = ""
        self._begun = -1  # number of the last attempt that has a run in MLflow, if it was running
        self._runs: dict[int, str] = {}  # series → id of its run, unless all of its ends are in MLflow
        self._former_runs: (
            dict[int | None, str] | None
        ) = {}  # the same of runs of former exporters; None when they must be listed
        self._created: dict[int | None, str] = {}  # the same of runs that trials have created and that are not used here yet
        self._looked = 0.0  # when runs that trials have created were last searched; 0.0 before that
        self._position = Position()
        self._saved = Position()
        self._saved_at = 0.0

    @property
    def progress(self) -> Progress:
        """The exporter's progress."""
        ends = self._position.ends
        return Progress(ends.place, ends.trials, self.files.pending, self.files.trouble)

    def end(self, end: End) -> None:
        """Take the end of the run, which is written after everything else."""
        self._end = end

    def advance(self) -> bool:
        """Write what the ledger has in addition, a page of ends at most. False when there was nothing.

        Raises:
            Exception: MLflow or the ledger is away; the next call continues.
        """
        try:
            self._ensure_parent()
            # Before the ends, among which is then that of the segment that one of these continues.
            running = self._source.running(self._begun)
            # Before the reports: once an attempt has ended, all of its reports are in the ledger.
            ends = self._source.ended(self._position.ends.place)
            self._looked = 0.0
            has_grown = self._report()
            if ends:
                self._finish_attempts(ends)
            if len(ends) < PAGE:  # else there are more of them
                has_grown |= self._begin(running, {attempt.request.number for attempt in ends})
            self._save(now=not ends and not has_grown)
        except Exception:
            self._former_runs = None  # an answer may be lost although its run was created
            raise
        return bool(ends) or has_grown

    def close(self) -> bool:
        """Write the end of the run, if it has one, once `advance` has written the rest; False if something is left to do."""
        try:
            if not self._has_ended and self._end is not None:
                self._write(self._parent, projection.parent_end(self._end))
                if not self._keeps_folder:
                    self.files.add([(self._parent, Artifact("logs", str(self._run.controller_log), "log"))])
                self._has_ended = True
            if self.files.pending:
                return False
            self._save(now=True)
            return self._settle()
        except Exception:
            self._former_runs = None
            raise

    # The parent run

    def _ensure_parent(self) -> None:
        """Find or create the experiment and the parent run."""
        if self._parent:
            return
        if not self._experiment:
            experiment = self.client.get_experiment_by_name(self._job.name)
            self._experiment = experiment.experiment_id if experiment else self._create_experiment()
        batch = projection.parent(self._job, self._submission)
        studies = self._studies()
        if not studies:
            submitted = float(self._submission.get("submitted", 0.0))
            tags = {**batch.tags, labels.SUBMITTED: labels.moment(submitted), **self._identity}
            tags[labels.STATE] = RunState.RUNNING.value
            self.client.create_run(self._experiment, milliseconds(submitted), tags, self._run.root.name)
            studies = self._studies()
            self._former_runs = {}
        else:
            self._former_runs = None
        parent = studies[0]
        self._go_to(_position(parent.data.tags.get(labels.EXPORTED, "")))
        batch.add_tags({labels.EXPORTER: self._id})
        if self._end is None:
            batch.add_tags({labels.STATE: RunState.RUNNING.value})
            batch.status = "RUNNING"
        self._write(parent.info.run_id, batch)
        files = [self._run.job, *([self._run.report] if self._run.report.exists() else [])]
        self.files.add([(parent.info.run_id, Artifact("", str(file))) for file in files])
        self._parent = parent.info.run_id  # only when all of the above succeeded: otherwise it is repeated

    def _studies(self) -> list[Any]:
        """Return the parent runs of the run: several if an answer of MLflow was lost, or if there were two exporters."""
        parents = self._search(f"tags.`{labels.RUN}` = '{self._run.root.name}' and tags.`{labels.KIND}` = 'study'")
        return sorted(parents, key=lambda run: (labels.EXPORTED not in run.data.tags, run.info.run_id))

    def _create_experiment(self) -> str:
        # A store in a file of this machine gets its artifacts beside it, not below wherever this process was started.
        store = Path(self._uri.removeprefix("sqlite:///")).absolute()
        is_file = self._uri.startswith("sqlite:///")
        location = (paths.mlflow_artifacts(store.parent) / self._job.name).as_uri() if is_file else None
        try:
            created: str = self.client.create_experiment(self._job.name, artifact_location=location)
        except MlflowException:  # another run of the same job was faster
            experiment = self.client.get_experiment_by_name(self._job.name)
            if experiment is None:
                raise
            created = experiment.experiment_id
        return created

    # Attempts

    def _begin(self, running: Sequence[Attempt], ended: Collection[int]) -> bool:
        """Create runs for attempts that run, except those that have ended meanwhile; whether there were any."""
        for attempt in running:
            request = attempt.request
            if request.number not in ended:
                run_id = self._run_of(attempt)
                if request.number != request.series:
                    self._write(run_id, projection.promoted(self._job, request))
            self._begun = request.number
        return bool(running)

    def _report(self) -> bool:
        """Write the reports that have come since; whether there were any."""
        before, has_more = self._position.reports, True
        while has_more:
            page = self._source.reports(self._position.reports)
            by_attempt: dict[int, list[ReportRow]] = {}
            for row in page.rows:
                by_attempt.setdefault(row.number, []).append(row)
            for number, rows in by_attempt.items():
                with _skipping(f"reports of attempt {number} are left out of MLflow"):
                    run_id = self._runs.get(number) or self._run_of(self._source.attempt(number))
                    batch = Batch()
                    for row in rows:
                        batch.add_metrics(row.metrics, row.time, row.step)
                    self._write(run_id, batch)
            if page.rows:
                self._position = dataclasses.replace(self._position, reports=page.rows[-1].mark)
                self._save()
            has_more = page.more
        return self._position.reports > before

    def _finish_attempts(self, ends: Iterable[Attempt]) -> None:
        """Write the ends of attempts, in the order in which they ended."""
        parent = Batch()
        if not self._looked:
            self._look()  # after the ends: an attempt that has ended creates no run any more
        for attempt in ends:
            assert attempt.place is not None
            best, trials = self._position.ends.best, self._position.ends.trials + self._ended_trials(attempt)
            with _skipping(f"the end of attempt {attempt.request.number} is left out of MLflow"):
                if (better := projection.better(self._job, best, attempt)) is not None:
                    if best is None or best.trial != better.trial:
                        parent.add(projection.improvement(self._job, better, attempt, trials))
                    best = better
                self._finish(attempt)
            self._position = dataclasses.replace(self._position, ends=Ends(attempt.place, trials, best))
            self.files.mark(self._position.ends)
        self._write(self._parent, parent)

    def _ended_trials(self, attempt: Attempt) -> int:
        """Return the number of trials that have ended with an attempt; the user may have had one tried again."""
        number = int(projection.is_last(attempt.outcome))
        before = attempt.request.retry_of
        if before is None or attempt.request.series != attempt.request.number:
            return number
        failed = self._source.attempt(before).outcome
        return number if failed is None or failed.failure is None or failed.retried else number - 1

    def _finish(self, attempt: Attempt) -> None:
        """Write the end of one attempt, and send its files."""
        request, outcome = attempt.request, attempt.outcome
        assert outcome is not None
        run_id = self._run_of(attempt)
        if (created := self._created.pop(request.series, run_id)) != run_id:
            run_id = self._runs[request.series] = self._merge(attempt, run_id, created)
        batches: dict[str, Batch] = collections.defaultdict(Batch)
        batches[run_id] = projection.ended(self._job, request, outcome)
        log = self._run.trial_log(request.trial, request.attempt)
        failed = outcome.state is TrialState.FAILED or outcome.metrics.get(collection.FAILED_UNITS)
        artifacts = batches[run_id].artifacts
        if (failed or not self._keeps_folder) and log.exists():
            # For a collection also its workers' logs; each continues through all attempts at the iteration.
            logs = [log, *sorted(log.parent.glob("worker-*.log"))]
            artifacts += [Artifact("logs", str(file), "log") for file in logs]
        if projection.has_more_params(self._job, request):
            file = log.with_name("params.json")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps({**self._job.params, **request.params}))
            artifacts.append(Artifact("", str(file)))
        if outcome.arrays and (packed := self._run.packed(request.number)).exists():
            artifacts.append(Artifact("arrays", str(packed), "arrays"))
        adoption.take_over(self._run.trial_store(request.number), self.client, run_id, batches)
        for target_run, batch in batches.items():
            if self._write(target_run, batch):
                self.files.add([(target_run, artifact) for artifact in batch.artifacts])
        if outcome.state is not TrialState.PAUSED:  # one that is promoted, or dropped, ends once more
            del self._runs[request.series]

    def _run_of(self, attempt: Attempt) -> str:
        """Find or create the run of an attempt; return its id."""
        series = attempt.request.series
        if series not in self._runs:
            first = self._first(attempt)
            batch = projection.started(self._job, first.request, self._submission, self._parent)
            run_id, is_trials = self._find(series)
            if is_trials:
                batch.add_tags({labels.OWN: labels.TAKEN})
            if run_id:
                self._write(run_id, batch)
            self._runs[series] = run_id or self._create(first, batch)
        return self._runs[series]

    def _first(self, attempt: Attempt) -> Attempt:
        """Return the attempt that began the series of another one."""
        series = attempt.request.series
        return attempt if attempt.request.number == series else self._source.attempt(series)

    def _merge(self, attempt: Attempt, run_id: str, created: str) -> str:
        """Move what was written of an ended attempt to the run that its process created; return the id of what is left.

        Both were created at the same moment. The process has logged to its own, which may have models and runs below it.
        """
        written = self.client.get_run(run_id)
        batch = projection.started(self._job, self._first(attempt).request, self._submission, self._parent)
        batch.add_tags({labels.OWN: labels.TAKEN})
        for name in written.data.metrics:
            batch.metrics += self.client.get_metric_history(run_id, name)
        if not self._write(created, batch):  # the job has deleted it
            return run_id
        self._delete(written)
        return created

    def _create(self, attempt: Attempt, batch: Batch) -> str:
        """Create the run of an attempt; return its id."""
        outcome = attempt.outcome
        start = milliseconds(outcome.started) if outcome is not None and outcome.started else None
        state = {labels.STATE: TrialState.RUNNING.value}
        tags = {**batch.tags, **state} if len(batch.tags) < MAX_TAGS else {}
        run_tags = tags or {**self._identity, labels.NUMBER: str(attempt.request.number), **state}
        name = projection.name(self._job, attempt.request)
        created = str(self.client.create_run(self._experiment, start, run_tags, name).info.run_id)
        if not tags:
            self._write(created, batch)
        return created

    def _find(self, number: int) -> tuple[str, bool]:
        """Return the id of a run that exists for a series, or "", and whether its trial has created it.

        Former exporters are looked for once: there is none beside this one. Trials create runs at any time.
        """
        if self._former_runs is None or time.monotonic() > self._looked + _LOOK:
            self._look()
        assert self._former_runs is not None
        if number in self._former_runs:
            return self._former_runs.pop(number), False
        return self._created.get(number, ""), number in self._created

    def _look(self) -> None:
        """Search runs that trials have created, and once those of former exporters."""
        is_first, self._looked = self._former_runs is None, time.monotonic()
        runs = self._attempts() if is_first else self._in_order(self._search(f"tags.`{labels.OWN}` = '{labels.NEW}'"))
        self._former_runs = self._former_runs or {}
        self._created = {}
        for run in runs:
            is_trials = run.data.tags.get(labels.OWN) == labels.NEW
            (self._created if is_trials else self._former_runs).setdefault(_number(run), run.info.run_id)

    def _attempts(self) -> list[Any]:
        """Return all runs of attempts, the one that counts before its duplicates."""
        return self._in_order(
            self._search(f"tags.`{labels.RUN}` = '{self._run.root.name}' and tags.`{labels.NUMBER}` != ''")
        )

    def _in_order(self, runs: Iterable[Any]) -> list[Any]:
        """Sort runs of attempts: one that a trial has created counts first once it was taken over, then the earliest."""
        rank = {labels.TAKEN: 0, labels.NEW: 2}
        order = lambda run: (rank.get(run.data.tags.get(labels.OWN), 1), run.info.start_time, run.info.run_id)  # noqa: E731
        return sorted((run for run in runs if _number(run) is not None), key=order)

    # Position

    def _go_to(self, position: Position) -> None:
        self._position = self._saved = position
        self._begun = -1
        self.files.mark(position.ends)

    def _save(self, *, now: bool = False) -> None:
        """Note the position in MLflow, unless that was a moment ago."""
        if not now and time.monotonic() < self._saved_at + _SAVE:
            return
        position = dataclasses.replace(self._position, ends=self.files.done or self._saved.ends)
        if position != self._saved:
            self.client.set_tag(self._parent, labels.EXPORTED, records.to_json(position))
            self._saved = position
        self._saved_at = time.monotonic()

    # Order

    def _settle(self) -> bool:
        """Put runs that trials have created below theirs, and delete duplicates; False if all is to be written again."""
        strays = self._search(f"tags.`{labels.LOGGED_BY}` != ''") + self._search(f"tags.`{labels.OWN}` = '{labels.NEW}'")
        attempts = reversed(self._attempts()) if strays else ()
        runs_of_attempts = {_number(run): run.info.run_id for run in attempts if run.data.tags.get(labels.OWN) != labels.NEW}
        for run in strays:
            with _skipping(f"MLflow's run {run.info.run_id} stays where it is"):
                self._adopt(run, runs_of_attempts)
        studies = self._studies()
        is_alone = len(studies) == 1 and studies[0].data.tags.get(labels.EXPORTER) == self._id
        condition = f"tags.`{labels.RUN}` = '{self._run.root.name}' and tags.`{labels.STATE}` = 'RUNNING'"
        # MLflow made these although its answers were lost, or late.
        late = [run for run in self._search(f"{condition} and tags.`{labels.KIND}` = 'trial'") if self._is_superfluous(run)]
        for run in late:
            self._delete(run)
        if not is_alone:
            return self._start_again(studies)
        self.client.delete_tag(self._parent, labels.EXPORTER)
        return True

    def _is_superfluous(self, run: Any) -> bool:
        """Whether a run is not that of an attempt which is still to end."""
        number = _number(run)
        was_promoted = run.data.tags.get(labels.PROMOTIONS, "0") != "0"  # so it is none that was created late
        return not was_promoted and (number is None or run.info.run_id != self._runs.get(number))

    def _start_again(self, studies: list[Any]) -> bool:
        """Delete duplicates; write all of the run again, into what is left."""
        for study in studies[1:]:
            self._delete(study)
        seen_numbers: set[int | None] = set()
        for run in self._attempts():
            if _number(run) in seen_numbers:
                self._delete(run)
            seen_numbers.add(_number(run))
        self._runs.clear()
        self._parent, self._former_runs, self._has_ended = "", None, False
        if studies and labels.EXPORTED in studies[0].data.tags:
            self.client.delete_tag(studies[0].info.run_id, labels.EXPORTED)
        return False

    def _adopt(self, run: Any, runs_of_attempts: dict[int | None, str]) -> None:
        """Put a run that a trial's process has created below the trial's run."""
        tags, run_id = run.data.tags, run.info.run_id
        parent = runs_of_attempts.get(_number(run, labels.NUMBER if labels.OWN in tags else labels.LOGGED_BY))
        if parent is not None and parent != run_id:
            if labels.PARENT not in tags:
                self.client.set_tag(run_id, labels.PARENT, parent)
            if run.info.status == "RUNNING":
                self.client.set_terminated(run_id, "KILLED")
        for tag in (labels.NUMBER, labels.STATE, labels.OWN, labels.LOGGED_BY):
            if tag in tags:
                self.client.delete_tag(run_id, tag)  # last: all of this is repeated until then

    def _delete(self, run: Any) -> None:
        try:
            self.client.delete_run(run.info.run_id)
        except MlflowException as error:
            if not is_refusal(error):  # else another exporter has deleted it
                raise

    def _search(self, condition: str) -> list[Any]:
        """Return all MLflow runs of this run that meet a condition."""
        runs: list[Any] = []
        token: str | None = ""
        while token is not None:
            page = self.client.search_runs([self._experiment], condition, max_results=_PAGE, page_token=token or None)
            runs += [run for run in page if self._identity.items() <= run.data.tags.items()]
            token = page.token or None
        return runs

    def _write(self, run_id: str, batch: Batch) -> bool:
        """Send a batch; whether MLflow accepts entries for this run."""
        return self.sender.send(run_id, batch)


def _number(run: Any, tag: str = labels.NUMBER) -> int | None:
    """Return the number of an attempt from a run's tag, or None: a trial may set any."""
    text = run.data.tags.get(tag, "")
    return int(text) if text.isdecimal() and len(text) < 20 else None


def _position(text: str) -> Position:
    """Return a position from its tag; the beginning if there is none, or none that can be read."""
    try:
        return records.from_json(Position, text) if text else Position()
    except (ValueError, TypeError, KeyError) as error:
        write_log(f"MLflow's tag {labels.EXPORTED} cannot be read, so all is written again: {describe(error)}")
        return Position()


@contextlib.contextmanager
def _skipping(consequence: str) -> Iterator[None]:
    """Log an unexpected error and continue; otherwise every further exporter would fail at the same attempt.

    Errors of MLflow, of the ledger and of disks may be temporary, so they are raised and retried.
    """
    try:
        yield
    except (MlflowException, OSError, errors.LedgerError):
        raise
    except Exception as error:  # noqa: BLE001 - the border of the process
        write_log(f"{consequence}; {describe(error)}")
