"""Writes to MLflow what it lacks of the ledger of one run.

The ledger defines the content of MLflow. The exporter stores its position in the ledger as a tag of the parent run. Each
write may be repeated: a run is searched before it is created, tags and parameters follow from the ledger, and MLflow stores
only one of several metrics that are equal in name, value, step and time. So the result is the same if an exporter is killed,
slow or started twice.

Two exporters at the same time may create a run twice. Each writes its id into a tag of the parent run. At its end an
exporter that finds another id there deletes the duplicates and writes the whole run again.
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
from trialplane.wire.records import ReportRow, TrialOutcome, TrialRequest
from trialplane.wire.states import RunState, TrialState

_SEARCH_INTERVAL = 0.2  # seconds between two searches for runs that trials have created
_SAVE_INTERVAL = 1.0  # seconds between two writes of the position
_PAGE = 1000  # runs on a page of a search


@dataclasses.dataclass(frozen=True)
class Position:
    """The position of an exporter in the ledger.

    Attributes:
        reports: Mark of the last report that is in MLflow.
        ends: Ends that are in MLflow with their files.
    """

    reports: int = 0
    ends: Ends = dataclasses.field(default_factory=Ends)


class Exporter:
    """The exporter of one run.

    Args:
        run: Paths of the run: its job, its submission, and the files that go to MLflow.
        source: Ledger of the run.
        uri: Tracking URI of MLflow.
        keeps_folder: Whether the run's folder outlives this process. If not, all logs go to MLflow.
        end: State of the run after its end; None while it continues.

    Attributes:
        client: Client of MLflow.
        sender: Sender of batches.
        files: Files to be uploaded.
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
        self._last_started = -1  # largest number of an attempt that was running and got a run in MLflow
        self._runs: dict[int, str] = {}  # series whose last end is not in MLflow → id of its run
        # The same for runs that earlier exporters have created; None if they must be searched again.
        self._earlier_runs: dict[int | None, str] | None = {}
        # The same for runs that trials have created and that are not in `_runs` yet.
        self._trial_runs: dict[int | None, str] = {}
        self._last_search = 0.0  # for runs that trials have created, by the monotonic clock; 0.0 before the first
        self._position = Position()
        self._saved_position = Position()
        self._last_save = 0.0  # by the monotonic clock

    @property
    def progress(self) -> Progress:
        """The exporter's progress."""
        ends = self._position.ends
        return Progress(ends.place, ends.trials, self.files.pending, self.files.trouble)

    def end(self, end: End) -> None:
        """Set the end of the run, which is written after everything else."""
        self._end = end

    def advance(self) -> bool:
        """Write new starts, reports and ends of attempts to MLflow, at most one page of ends.

        Returns:
            Whether there was anything new.

        Raises:
            Exception: MLflow or the ledger does not answer; the next call continues.
        """
        try:
            self._ensure_parent()
            # Read before the ends: if one of these attempts continues a segment, the end of that segment is among the ends.
            running = self._source.running_attempts(self._last_started)
            # Read before the reports: all reports of an attempt are in the ledger when its end is.
            ends = self._source.ended_attempts(self._position.ends.place)
            self._last_search = 0.0
            has_grown = self._write_reports()
            if ends:
                self._finish_attempts(ends)
            if len(ends) < PAGE:  # otherwise more ends follow, and come first
                has_grown |= self._start_attempts(running, {attempt.request.number for attempt in ends})
            self._save(now=not ends and not has_grown)
        except Exception:
            self._earlier_runs = None  # MLflow may have created a run although its answer was lost
            raise
        return bool(ends) or has_grown

    def close(self) -> bool:
        """Write the end of the run, if it is set. Call this after `advance` has written everything else.

        Returns:
            Whether nothing is left to do.
        """
        try:
            if not self._has_ended and self._end is not None:
                self._write(self._parent, projection.parent_end(self._end))
                if not self._keeps_folder:
                    self.files.add([(self._parent, Artifact("logs", str(self._run.controller_log), "log"))])
                self._has_ended = True
            if self.files.pending:
                return False
            self._save(now=True)
            return self._clean_up()
        except Exception:
            self._earlier_runs = None
            raise

    # The parent run

    def _ensure_parent(self) -> None:
        """Find or create the experiment and the parent run."""
        if self._parent:
            return
        if not self._experiment:
            experiment = self.client.get_experiment_by_name(self._job.name)
            self._experiment = experiment.experiment_id if experiment else self._create_experiment()
        batch = projection.parent_start(self._job, self._submission)
        studies = self._studies()
        if not studies:
            submitted = float(self._submission.get("submitted", 0.0))
            tags = {**batch.tags, labels.SUBMITTED: labels.moment(submitted), **self._identity}
            tags[labels.STATE] = RunState.RUNNING.value
            self.client.create_run(self._experiment, milliseconds(submitted), tags, self._run.root.name)
            studies = self._studies()
            self._earlier_runs = {}
        else:
            self._earlier_runs = None
        parent = studies[0]
        self._restore_position(_position(parent.data.tags.get(labels.EXPORTED, "")))
        batch.add_tags({labels.EXPORTER: self._id})
        if self._end is None:
            batch.add_tags({labels.STATE: RunState.RUNNING.value})
            batch.status = "RUNNING"
        self._write(parent.info.run_id, batch)
        files = [self._run.job, *([self._run.report] if self._run.report.exists() else [])]
        self.files.add([(parent.info.run_id, Artifact("", str(file))) for file in files])
        self._parent = parent.info.run_id  # last, so that everything above is repeated if it fails

    def _studies(self) -> list[Any]:
        """Return the parent runs of the run, the one that counts first.

        There are several if an answer of MLflow was lost, or if two exporters were at work.
        """
        parents = self._search(f"tags.`{labels.RUN}` = '{self._run.root.name}' and tags.`{labels.KIND}` = 'study'")
        return sorted(parents, key=lambda run: (labels.EXPORTED not in run.data.tags, run.info.run_id))

    def _create_experiment(self) -> str:
        """Create the experiment of the job; return its id."""
        # If MLflow's store is a local file, artifacts go beside it. MLflow would put them below the current folder.
        store = Path(self._uri.removeprefix("sqlite:///")).absolute()
        is_file = self._uri.startswith("sqlite:///")
        location = (paths.mlflow_artifacts(store.parent) / self._job.name).as_uri() if is_file else None
        try:
            experiment_id: str = self.client.create_experiment(self._job.name, artifact_location=location)
        except MlflowException:  # another run of the same job may have created it
            experiment = self.client.get_experiment_by_name(self._job.name)
            if experiment is None:
                raise
            experiment_id = experiment.experiment_id
        return experiment_id

    # Attempts

    def _start_attempts(self, running: Sequence[Attempt], ended: Collection[int]) -> bool:
        """Create runs for running attempts, except those that have ended meanwhile; return whether there were any."""
        for attempt in running:
            request = attempt.request
            if request.number not in ended:
                run_id = self._ensure_run(attempt)
                if request.number != request.series:
                    self._write(run_id, projection.segment_start(self._job, request))
            self._last_started = request.number
        return bool(running)

    def _write_reports(self) -> bool:
        """Write new reports; return whether there were any."""
        previous, has_more = self._position.reports, True
        while has_more:
            page = self._source.reports(self._position.reports)
            by_attempt: dict[int, list[ReportRow]] = {}
            for row in page.rows:
                by_attempt.setdefault(row.number, []).append(row)
            for number, rows in by_attempt.items():
                with _log_and_skip(f"reports of attempt {number} are left out of MLflow"):
                    run_id = self._runs.get(number) or self._ensure_run(self._source.attempt(number))
                    batch = Batch()
                    for row in rows:
                        batch.add_metrics(row.metrics, row.time, row.step)
                    self._write(run_id, batch)
            if page.rows:
                self._position = dataclasses.replace(self._position, reports=page.rows[-1].mark)
                self._save()
            has_more = page.more
        return self._position.reports > previous

    def _finish_attempts(self, ends: Iterable[Attempt]) -> None:
        """Write the ends of attempts, in the order in which they ended."""
        parent = Batch()
        if not self._last_search:
            self._search_runs()  # after the ends were read, as attempts that have ended create no more runs
        for attempt in ends:
            assert attempt.place is not None
            best, trials = self._position.ends.best, self._position.ends.trials + self._ended_trials(attempt)
            with _log_and_skip(f"the end of attempt {attempt.request.number} is left out of MLflow"):
                if (better := projection.new_best(self._job, best, attempt)) is not None:
                    if best is None or best.trial != better.trial:
                        parent.add(projection.improvement(self._job, better, attempt, trials))
                    best = better
                self._finish_attempt(attempt)
            self._position = dataclasses.replace(self._position, ends=Ends(attempt.place, trials, best))
            self.files.mark(self._position.ends)
        self._write(self._parent, parent)

    def _ended_trials(self, attempt: Attempt) -> int:
        """Return the change in the number of ended trials by the end of an attempt: 1, 0 or -1.

        The change is one less if the attempt repeats one that had failed for good: the user has reopened that trial.
        """
        change = int(projection.is_last(attempt.outcome))
        retry_of = attempt.request.retry_of
        if retry_of is None or attempt.request.series != attempt.request.number:
            return change
        previous = self._source.attempt(retry_of).outcome
        return change if previous is None or previous.failure is None or previous.retried else change - 1

    def _finish_attempt(self, attempt: Attempt) -> None:
        """Write the end of one attempt, and queue its files."""
        request, outcome = attempt.request, attempt.outcome
        assert outcome is not None
        run_id = self._ensure_run(attempt)
        if (created := self._trial_runs.pop(request.series, run_id)) != run_id:
            run_id = self._runs[request.series] = self._merge_runs(attempt, run_id, created)
        batches: dict[str, Batch] = collections.defaultdict(Batch)
        batches[run_id] = projection.attempt_end(self._job, request, outcome)
        batches[run_id].artifacts += self._artifacts(request, outcome)
        adoption.copy_store(self._run.trial_store(request.number), self.client, run_id, batches)
        for target_run, batch in batches.items():
            if self._write(target_run, batch):
                self.files.add([(target_run, artifact) for artifact in batch.artifacts])
        self._finish_replaced_run(attempt)
        if outcome.state is not TrialState.PAUSED:  # a paused trial ends once more, after it was promoted or dropped
            del self._runs[request.series]

    def _artifacts(self, request: TrialRequest, outcome: TrialOutcome) -> list[Artifact]:
        """Return the files of an ended attempt: logs, parameters beyond MLflow's limit, and arrays."""
        artifacts: list[Artifact] = []
        log = self._run.trial_log(request.trial, request.attempt)
        has_failures = outcome.state is TrialState.FAILED or outcome.metrics.get(collection.FAILED_UNITS)
        if (has_failures or not self._keeps_folder) and log.exists():
            logs = [log, *sorted(log.parent.glob("worker-*.log"))]  # workers' logs, which only a collection has
            artifacts += [Artifact("logs", str(file), "log") for file in logs]
        if projection.has_more_params(self._job, request):
            file = log.with_name("params.json")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps({**self._job.params, **request.params}))
            artifacts.append(Artifact("", str(file)))
        if outcome.arrays and (packed := self._run.packed(request.number)).exists():
            artifacts.append(Artifact("arrays", str(packed), "arrays"))
        return artifacts

    def _ensure_run(self, attempt: Attempt) -> str:
        """Find or create the run of an attempt; return its id."""
        series = attempt.request.series
        if series not in self._runs:
            first = self._first_attempt(attempt)
            batch = self._attempt_start(first)
            run_id, is_by_trial = self._find_run(series)
            if is_by_trial:
                batch.add_tags({labels.OWN: labels.TAKEN})
            if run_id:
                self._write(run_id, batch)
            self._runs[series] = run_id or self._create_run(first, batch)
        return self._runs[series]

    def _first_attempt(self, attempt: Attempt) -> Attempt:
        """Return the attempt that began the series of another one."""
        series = attempt.request.series
        return attempt if attempt.request.number == series else self._source.attempt(series)

    def _attempt_start(self, first: Attempt) -> Batch:
        """Return the tags of the run of a series, given its first attempt."""
        batch = projection.attempt_start(self._job, first.request, self._submission, self._parent)
        parent = None if first.request.segment is None else first.request.segment.parent
        if parent is not None and parent.number is not None and parent.trial != first.request.trial:
            batch.add_tags(projection.parent_tags(parent, self._source.attempt(parent.number).request.series))
        return batch

    def _finish_replaced_run(self, attempt: Attempt) -> None:
        """End the run of a paused trial that has continued with other parameters, and so with a run of its own."""
        request = attempt.request
        if request.retry_of is None or request.number != request.series:
            return
        before = self._source.attempt(request.retry_of)
        if before.outcome is not None and before.outcome.state is TrialState.PAUSED:
            self._write(self._ensure_run(before), projection.replacement_end(self._job, before, request))
            del self._runs[before.request.series]

    def _merge_runs(self, attempt: Attempt, own_id: str, trials_id: str) -> str:
        """Merge two runs of an ended attempt into one; return its id.

        The exporter and the attempt's process may each have created a run at the same moment. The run of the process stays,
        as it may have models and child runs.

        Args:
            attempt: The attempt.
            own_id: Id of the run that the exporter has created.
            trials_id: Id of the run that the process has created.
        """
        own_run = self.client.get_run(own_id)
        batch = self._attempt_start(self._first_attempt(attempt))
        batch.add_tags({labels.OWN: labels.TAKEN})
        for name in own_run.data.metrics:
            batch.metrics += self.client.get_metric_history(own_id, name)
        if not self._write(trials_id, batch):  # the job has deleted its run
            return own_id
        self._delete(own_run)
        return trials_id

    def _create_run(self, attempt: Attempt, batch: Batch) -> str:
        """Create the run of an attempt; return its id."""
        outcome = attempt.outcome
        start = milliseconds(outcome.started) if outcome is not None and outcome.started else None
        state = {labels.STATE: TrialState.RUNNING.value}
        tags = {**batch.tags, **state} if len(batch.tags) < MAX_TAGS else {}
        run_tags = tags or {**self._identity, labels.NUMBER: str(attempt.request.number), **state}
        name = projection.name(self._job, attempt.request)
        run_id = str(self.client.create_run(self._experiment, start, run_tags, name).info.run_id)
        if not tags:
            self._write(run_id, batch)
        return run_id

    def _find_run(self, series: int) -> tuple[str, bool]:
        """Return the id of the run of a series, "" if there is none, and whether the trial has created it.

        Runs of earlier exporters are searched once. Trials create runs at any time, so these are searched repeatedly.
        """
        if self._earlier_runs is None or time.monotonic() > self._last_search + _SEARCH_INTERVAL:
            self._search_runs()
        assert self._earlier_runs is not None
        if series in self._earlier_runs:
            return self._earlier_runs.pop(series), False
        return self._trial_runs.get(series, ""), series in self._trial_runs

    def _search_runs(self) -> None:
        """Search runs that trials have created, and if necessary those of earlier exporters."""
        search_all, self._last_search = self._earlier_runs is None, time.monotonic()
        runs = self._attempt_runs() if search_all else self._in_order(self._search(f"tags.`{labels.OWN}` = '{labels.NEW}'"))
        self._earlier_runs = self._earlier_runs or {}
        self._trial_runs = {}
        for run in runs:
            is_by_trial = run.data.tags.get(labels.OWN) == labels.NEW
            (self._trial_runs if is_by_trial else self._earlier_runs).setdefault(_number(run), run.info.run_id)

    def _attempt_runs(self) -> list[Any]:
        """Return all runs of attempts, for each attempt the one that counts before its duplicates."""
        return self._in_order(
            self._search(f"tags.`{labels.RUN}` = '{self._run.root.name}' and tags.`{labels.NUMBER}` != ''")
        )

    def _in_order(self, runs: Iterable[Any]) -> list[Any]:
        """Sort runs of attempts so that, of several for one attempt, the one that counts comes first.

        That is a run which the trial has created and the exporter uses, then the earliest run of an exporter, then any other
        run of the trial.
        """
        rank = {labels.TAKEN: 0, labels.NEW: 2}
        order = lambda run: (rank.get(run.data.tags.get(labels.OWN), 1), run.info.start_time, run.info.run_id)  # noqa: E731
        return sorted((run for run in runs if _number(run) is not None), key=order)

    # Position

    def _restore_position(self, position: Position) -> None:
        """Continue at a position of an earlier exporter."""
        self._position = self._saved_position = position
        self._last_started = -1
        self.files.mark(position.ends)

    def _save(self, *, now: bool = False) -> None:
        """Write the position to MLflow, at most once per `_SAVE_INTERVAL` seconds unless it is due `now`."""
        if not now and time.monotonic() < self._last_save + _SAVE_INTERVAL:
            return
        position = dataclasses.replace(self._position, ends=self.files.done or self._saved_position.ends)
        if position != self._saved_position:
            self.client.set_tag(self._parent, labels.EXPORTED, records.to_json(position))
            self._saved_position = position
        self._last_save = time.monotonic()

    # Cleaning up

    def _clean_up(self) -> bool:
        """Make runs that trials have created children of their trials' runs, and delete duplicates.

        Returns:
            False if the whole run has to be written again, as another exporter was at work.
        """
        strays = self._search(f"tags.`{labels.LOGGED_BY}` != ''") + self._search(f"tags.`{labels.OWN}` = '{labels.NEW}'")
        attempts = reversed(self._attempt_runs()) if strays else ()
        runs_of_attempts = {_number(run): run.info.run_id for run in attempts if run.data.tags.get(labels.OWN) != labels.NEW}
        for run in strays:
            with _log_and_skip(f"MLflow's run {run.info.run_id} stays where it is"):
                self._make_child(run, runs_of_attempts)
        studies = self._studies()
        is_alone = len(studies) == 1 and studies[0].data.tags.get(labels.EXPORTER) == self._id
        condition = f"tags.`{labels.RUN}` = '{self._run.root.name}' and tags.`{labels.STATE}` = 'RUNNING'"
        # MLflow has created these although its answers were lost.
        for run in self._search(f"{condition} and tags.`{labels.KIND}` = 'trial'"):
            if self._is_superfluous(run):
                self._delete(run)
        if not is_alone:
            self._restart(studies)
            return False
        self.client.delete_tag(self._parent, labels.EXPORTER)
        return True

    def _is_superfluous(self, run: Any) -> bool:
        """Return whether a run is not that of an attempt which has still to end."""
        number = _number(run)
        was_promoted = run.data.tags.get(labels.PROMOTIONS, "0") != "0"  # then the exporter has used it before
        return not was_promoted and (number is None or run.info.run_id != self._runs.get(number))

    def _restart(self, studies: list[Any]) -> None:
        """Delete duplicate runs, and let `advance` write the whole run again, into the remaining ones."""
        for study in studies[1:]:
            self._delete(study)
        seen_numbers: set[int | None] = set()
        for run in self._attempt_runs():
            if _number(run) in seen_numbers:
                self._delete(run)
            seen_numbers.add(_number(run))
        self._runs.clear()
        self._parent, self._earlier_runs, self._has_ended = "", None, False
        if studies and labels.EXPORTED in studies[0].data.tags:
            self.client.delete_tag(studies[0].info.run_id, labels.EXPORTED)

    def _make_child(self, run: Any, runs_of_attempts: dict[int | None, str]) -> None:
        """Make a run that a trial's process has created a child of the trial's run."""
        tags, run_id = run.data.tags, run.info.run_id
        # The trial's process tags its runs with the number of the attempt; programs that it starts use another tag.
        number = _number(run, labels.NUMBER if labels.OWN in tags else labels.LOGGED_BY)
        parent = runs_of_attempts.get(number)
        if parent is not None and parent != run_id:
            if labels.PARENT not in tags:
                self.client.set_tag(run_id, labels.PARENT, parent)
            if run.info.status == "RUNNING":
                self.client.set_terminated(run_id, "KILLED")
        for tag in (labels.NUMBER, labels.STATE, labels.OWN, labels.LOGGED_BY):
            if tag in tags:
                self.client.delete_tag(run_id, tag)  # last, so that everything above is repeated if it fails

    def _delete(self, run: Any) -> None:
        """Delete a run of MLflow, unless it was deleted already."""
        try:
            self.client.delete_run(run.info.run_id)
        except MlflowException as error:
            if not is_refusal(error):
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
        """Send a batch; return whether MLflow accepts entries for this run."""
        return self.sender.send(run_id, batch)


def _number(run: Any, tag: str = labels.NUMBER) -> int | None:
    """Return the number of an attempt in a tag of a run; None if it has no valid one, as a trial may set any text."""
    text = run.data.tags.get(tag, "")
    return int(text) if text.isdecimal() and len(text) < 20 else None


def _position(text: str) -> Position:
    """Return the position in the text of its tag; that of the beginning if the text is empty or invalid."""
    try:
        return records.from_json(Position, text) if text else Position()
    except (ValueError, TypeError, KeyError) as error:
        write_log(f"MLflow's tag {labels.EXPORTED} cannot be read, so all is written again: {describe(error)}")
        return Position()


@contextlib.contextmanager
def _log_and_skip(consequence: str) -> Iterator[None]:
    """Log an unexpected error and continue, as every further exporter would fail at the same attempt.

    Errors of MLflow, of the ledger and of disks are raised: they may be temporary, so the write is repeated.

    Args:
        consequence: First part of the line in the log.
    """
    try:
        yield
    except (MlflowException, OSError, errors.LedgerError):
        raise
    except Exception as error:  # noqa: BLE001 - one attempt must not stop the export of the others
        write_log(f"{consequence}; {describe(error)}")
