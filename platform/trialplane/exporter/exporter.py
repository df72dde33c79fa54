"""Brings MLflow up to date with the ledger of one run.

`projection` defines what MLflow shows of the ledger: a parent run, with a child run for each series of attempts. A series is
one attempt, or the segments of a trial that was paused and continued. This module writes the part that MLflow lacks. In its
names, a run is one of MLflow. It stores its position in the ledger as a tag of the parent run. Each write may be repeated:
a run is searched before it is created, tags and parameters depend on the ledger alone, and MLflow stores equal metrics only
once. So the result is the same if an exporter is killed, slow or started twice.

Two exporters that work at the same time may create a run twice. Each writes its own id into a tag of the parent run, and
deletes the tag at its end. An exporter that finds another id there at its end, or found one at its start and finds
duplicates at its end, deletes the duplicates and writes the whole run again.

A trial's process may create a run for its attempt in MLflow before the exporter does. The exporter then uses this run. The
tag `labels.OWN` marks it: NEW before, and TAKEN after that.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import mlflow
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from trialplane import errors
from trialplane.exporter import adoption, projection, run_page, store
from trialplane.exporter.batch import MAX_TAGS, Artifact, Batch, Sender, describe, is_refusal, milliseconds, write_log
from trialplane.exporter.files import Files
from trialplane.exporter.projection import Best, Ends
from trialplane.job import kinds
from trialplane.job.kinds import collection
from trialplane.ledger.attempts import SOURCE_PAGE, Attempt
from trialplane.ledger.storages import Source
from trialplane.wire import labels, paths, records
from trialplane.wire.exports import End, Progress
from trialplane.wire.paths import RunPaths
from trialplane.wire.records import TrialOutcome, TrialRequest
from trialplane.wire.states import RunState, TrialState

_SEARCH_INTERVAL = 0.2  # seconds between two searches for runs that trials have created
_SAVE_INTERVAL = 1.0  # seconds between two writes of the position
_PAGE = 1000  # runs of MLflow on a page of a search


@dataclasses.dataclass(frozen=True)
class Position:
    """The position of an exporter in the ledger.

    Attributes:
        reports: Mark of the last report that is in MLflow.
        ends: Ends of attempts that are in MLflow with their files.
    """

    reports: int = 0
    ends: Ends = dataclasses.field(default_factory=Ends)


class Exporter:
    """The exporter of one run.

    Args:
        run_paths: Paths of the exported run: its job, its submission, and the files that go to MLflow.
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
        self, run_paths: RunPaths, source: Source, uri: str, *, keeps_folder: bool = True, end: End | None = None
    ) -> None:
        self._run_paths = run_paths
        self._source = source
        self._keeps_folder = keeps_folder
        self._end = end
        self._has_ended = False  # whether the run's end is in MLflow
        self._job = kinds.read(run_paths.job.read_text())
        self._submission: dict[str, Any] = json.loads(run_paths.submission.read_text())
        self._identity = labels.identity(run_paths.root.name, self._submission)
        self._uri = uri
        store.ensure(uri)
        mlflow.set_tracking_uri(uri)
        self.client = MlflowClient(uri)
        self.sender = Sender(self.client)
        self.files = Files(self.client)
        self._id = uuid.uuid4().hex[:8]  # distinguishes this exporter from others
        self._experiment = ""  # id of the experiment; "" before it is known
        self._parent = ""  # id of the parent run; "" before it is known
        self._is_first = True  # whether no other exporter has left its id: none was killed, and none may be at work
        self._last_started = -1  # largest number of a running attempt that has a run in MLflow
        # Ids of runs, each by the number of its series. `_runs` has those of series whose last end is not in MLflow.
        self._runs: dict[int, str] = {}
        # Runs that earlier exporters have created, until they are in `_runs`; None if they must be searched again.
        self._earlier_runs: dict[int | None, str] | None = {}
        # Runs that processes of trials have created, until they are in `_runs`.
        self._trial_runs: dict[int | None, str] = {}
        self._last_search = 0.0  # time of the last search for `_trial_runs`, by the monotonic clock; 0.0 if one is due
        self._undeletable: set[str] = set()  # ids of superfluous runs that MLflow refused to delete, ignored from then on
        self._position = Position()
        self._saved_position = Position()  # in the tag of the parent run
        self._last_save = 0.0  # by the monotonic clock

    @property
    def progress(self) -> Progress:
        """The exporter's progress."""
        ends = self._position.ends
        return Progress(ended=ends.end_number, trials=ends.trials, files=self.files.pending, trouble=self.files.trouble)

    def set_end(self, end: End) -> None:
        """Set the end of the exported run. `close` writes it after everything else."""
        self._end = end

    def advance(self) -> bool:
        """Write new starts, reports and ends of attempts to MLflow, at most one page of ends.

        Returns:
            Whether there was anything new in the ledger.

        Raises:
            Exception: MLflow or the ledger does not answer; the next call continues.
        """
        try:
            self._ensure_parent()
            # The order of the three reads matters. Running attempts come before ends: if one of them continues a paused
            # segment, the end of that segment is then among the ends.
            running = self._source.running_attempts(self._last_started)
            # Ends come before reports: when an end is in the ledger, all reports of its attempt are.
            ends = self._source.ended_attempts(self._position.ends.end_number)
            self._last_search = 0.0  # the ended attempts may have created runs since the last search
            has_new_reports = self._write_reports()
            if ends:
                self._finish_attempts(ends)
            has_new_starts = False
            if len(ends) < SOURCE_PAGE:  # on a full page, more ends may follow, which must be written before later starts
                has_new_starts = self._start_attempts(running, {attempt.request.number for attempt in ends})
            has_new_records = bool(ends) or has_new_reports or has_new_starts
            self._save(now=not has_new_records)
        except Exception:
            self._earlier_runs = None  # MLflow may have created a run whose id was lost with the answer, so search again
            raise
        return has_new_records

    def close(self) -> bool:
        """Write the end of the run if it is set, and clean up. Call this after `advance` has written everything else.

        Returns:
            Whether everything is done. If not, `advance` and `files.send` must be called again.

        Raises:
            Exception: MLflow or the ledger does not answer; the next call continues.
        """
        try:
            if not self._has_ended and self._end is not None:
                self.sender.send(self._parent, projection.parent_end(self._end))
                self._add_page(self._end)
                if not self._keeps_folder:
                    log = Artifact(folder="logs", file=str(self._run_paths.controller_log), kind="log")
                    self.files.add([(self._parent, log)])
                self._has_ended = True
            if self.files.pending:
                return False
            self._save(now=True)
            return self._clean_up()
        except Exception:
            self._earlier_runs = None  # the runs in MLflow may have changed, so `advance` searches them again
            raise

    def _add_page(self, end: End) -> None:
        """Add the run's page to the files to be uploaded, if the end has a status. Without a page nothing else is lost.

        Raises:
            LedgerUnavailable: The ledger does not answer; the next call of `close` tries again.
        """
        if end.status is None:
            return
        try:
            self._run_paths.report.write_text(run_page.make(self._job, end.status, self._source), encoding="utf-8")
        except errors.LedgerUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not hold up the run's end
            command = f"`platform report {self._run_paths.root.name}` writes it to a file"
            write_log(f"MLflow does not get the page of the run: {describe(error)}; {command}")
        else:
            self.files.add([(self._parent, Artifact(folder="", file=str(self._run_paths.report)))])
            batch = Batch()
            batch.add_tags(projection.page_tag(self._run_paths.root.name, is_stored=True))
            self.sender.send(self._parent, batch)

    # The parent run

    def _ensure_parent(self) -> None:
        """Find or create the experiment and the parent run, and continue at the position that the parent run has."""
        if self._parent:
            return
        if not self._experiment:
            experiment = self.client.get_experiment_by_name(self._job.name)
            self._experiment = experiment.experiment_id if experiment else self._create_experiment()
        batch = projection.parent_start(self._job, self._submission)
        parents = self._parents()
        if parents:
            self._earlier_runs = None
        else:
            self._create_parent(batch.tags)
            parents = self._parents()  # not only the new one: another exporter may have created one at the same time
            self._earlier_runs = {}  # no exporter has created any run yet
        parent = parents[0]
        self._is_first = not any(labels.EXPORTER in other.data.tags for other in parents)
        self._restore_position(_position(parent.data.tags.get(labels.EXPORTED, "")))
        page = self._run_paths.report
        batch.add_tags({labels.EXPORTER: self._id})
        batch.add_tags(projection.page_tag(self._run_paths.root.name, is_stored=page.exists()))
        if self._end is None:
            batch.add_tags({labels.STATE: RunState.RUNNING.value})
            batch.status = "RUNNING"
        self.sender.send(parent.info.run_id, batch)
        files = [self._run_paths.job, page] if page.exists() else [self._run_paths.job]
        self.files.add([(parent.info.run_id, Artifact(folder="", file=str(file))) for file in files])
        self._parent = parent.info.run_id  # set last, so that everything above is repeated if any of it fails

    def _create_parent(self, start_tags: Mapping[str, str]) -> None:
        """Create the parent run, with the tags of its start and those by which it is found."""
        submitted = float(self._submission.get("submitted", 0.0))
        tags = {**start_tags, labels.SUBMITTED: labels.submitted_tag(submitted), **self._identity}
        tags[labels.STATE] = RunState.RUNNING.value
        self.client.create_run(self._experiment, milliseconds(submitted), tags, self._run_paths.root.name)

    def _parents(self) -> list[Any]:
        """Return the parent runs. The first one is used: one that an exporter has used already, if there is one.

        There are several if an answer of MLflow was lost, or if two exporters were at work.
        """
        parents = self._search(f"tags.`{labels.RUN}` = '{self._run_paths.root.name}' and tags.`{labels.KIND}` = 'study'")
        return sorted(parents, key=lambda run: (labels.EXPORTED not in run.data.tags, run.info.run_id))

    def _create_experiment(self) -> str:
        """Create the experiment of the job; return its id."""
        # If MLflow's store is a local file, its artifacts go beside it. By default MLflow would put them into the current
        # folder.
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

    def _start_attempts(self, running: Sequence[Attempt], ended_numbers: Collection[int]) -> bool:
        """Create runs for running attempts, so that MLflow shows them.

        Args:
            running: Attempts that were running when they were read.
            ended_numbers: Numbers of attempts that have ended meanwhile, whose runs exist already.

        Returns:
            Whether there were any running attempts.
        """
        for attempt in running:
            request = attempt.request
            if request.number not in ended_numbers:
                run_id = self._ensure_run(attempt)
                is_later_segment = request.number != request.series
                if is_later_segment:  # the run exists already, and has the tags of an earlier segment
                    self.sender.send(run_id, projection.segment_start(self._job, request))
            self._last_started = request.number
        return bool(running)

    def _write_reports(self) -> bool:
        """Write all new reports; return whether there were any."""
        previous_mark, has_more = self._position.reports, True
        while has_more:
            page = self._source.reports(self._position.reports)
            batches: dict[int, Batch] = {}  # by number of the attempt
            for row in page.rows:
                batches.setdefault(row.number, Batch()).add_metrics(row.metrics, moment=row.time, step=row.step)
            for number, batch in batches.items():
                with _log_and_skip(f"reports of attempt {number} are left out of MLflow"):
                    # Most attempts begin a series, so their number names it. Others must be read from the ledger.
                    run_id = self._runs.get(number) or self._ensure_run(self._source.attempt(number))
                    self.sender.send(run_id, batch)
            if page.rows:
                self._position = dataclasses.replace(self._position, reports=page.rows[-1].mark)
                self._save()
            has_more = page.more
        return self._position.reports > previous_mark

    def _finish_attempts(self, ends: Iterable[Attempt]) -> None:
        """Write the ends of attempts, in the order in which they ended, and new best trials."""
        parent_batch = Batch()
        has_searched = self._last_search > 0.0  # since `advance` has read the ends, and reset the time
        if not has_searched:
            self._search_runs()  # attempts that have ended create no more runs, so this finds all that they created
        for attempt in ends:
            assert attempt.end_number is not None
            best = self._position.ends.best
            trials = self._position.ends.trials + self._change_of_ended_trials(attempt)
            with _log_and_skip(f"the end of attempt {attempt.request.number} is left out of MLflow"):
                best = self._best_with(attempt, trials, parent_batch)
                self._finish_attempt(attempt)
            ends_so_far = Ends(end_number=attempt.end_number, trials=trials, best=best)
            self._position = dataclasses.replace(self._position, ends=ends_so_far)
            self.files.mark(self._position.ends)
        self.sender.send(self._parent, parent_batch)

    def _best_with(self, attempt: Attempt, trials: int, parent_batch: Batch) -> Best | None:
        """Return the best trial up to an attempt that has ended, and add a new best trial to the parent run's entries.

        `trials` is the number of trials that have ended.
        """
        best = self._position.ends.best
        new_best = projection.new_best(self._job, best, attempt)
        if new_best is None:
            return best
        is_same_trial = best is not None and best.trial == new_best.trial  # a later segment has a better value
        if not is_same_trial:
            parent_batch.add(projection.improvement(self._job, new_best, attempt, trials))
        return new_best

    def _change_of_ended_trials(self, attempt: Attempt) -> int:
        """Return the change in the number of ended trials by the end of an attempt: 1, 0 or -1.

        If the attempt repeats one that had failed for good, that trial was counted as ended before, and the user has
        reopened it. The change is then one less.
        """
        change = int(projection.ends_trial(attempt.outcome))
        retry_of = attempt.request.retry_of
        continues_series = attempt.request.series != attempt.request.number
        if retry_of is None or continues_series:
            return change
        previous = self._source.attempt(retry_of).outcome
        was_reopened = previous is not None and previous.failure is not None and not previous.retried
        return change - 1 if was_reopened else change

    def _finish_attempt(self, attempt: Attempt) -> None:
        """Write the end of an attempt, with the entries that its trial logged while MLflow was away, and queue its files."""
        request, outcome = attempt.request, attempt.outcome
        assert outcome is not None
        run_id = self._ensure_run(attempt)
        run_id_by_trial = self._trial_runs.pop(request.series, run_id)
        if run_id_by_trial != run_id:  # the trial's process has created a run, too
            run_id = self._runs[request.series] = self._merge_runs(attempt, run_id, run_id_by_trial)
        batches: dict[str, Batch] = collections.defaultdict(Batch)
        batches[run_id] = projection.attempt_end(self._job, request, outcome)
        batches[run_id].artifacts += self._artifacts(request, outcome)
        adoption.copy_store(self._run_paths.trial_store(request.number), self.client, run_id, batches)
        for target_run, batch in batches.items():
            if self.sender.send(target_run, batch):
                self.files.add([(target_run, artifact) for artifact in batch.artifacts])
        self._finish_replaced_run(attempt)
        if outcome.state is not TrialState.PAUSED:  # the series of a paused trial ends later: it is promoted or dropped
            del self._runs[request.series]

    def _artifacts(self, request: TrialRequest, outcome: TrialOutcome) -> list[Artifact]:
        """Return the files of an ended attempt: logs, parameters beyond MLflow's limit, and arrays."""
        artifacts: list[Artifact] = []
        log = self._run_paths.trial_log(request.trial, request.attempt)
        has_failures = outcome.state is TrialState.FAILED or outcome.metrics.get(collection.FAILED_UNITS)
        if (has_failures or not self._keeps_folder) and log.exists():
            logs = [log, *sorted(log.parent.glob("worker-*.log"))]  # only a collection has logs of workers
            artifacts += [Artifact(folder="logs", file=str(file), kind="log") for file in logs]
        if projection.has_more_params(self._job, request):
            file = log.with_name("params.json")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps({**self._job.params, **request.params}))
            artifacts.append(Artifact(folder="", file=str(file)))
        if outcome.arrays and (packed := self._run_paths.packed(request.number)).exists():
            artifacts.append(Artifact(folder="arrays", file=str(packed), kind="arrays"))
        return artifacts

    def _ensure_run(self, attempt: Attempt) -> str:
        """Find or create the run of an attempt's series; return its id."""
        series = attempt.request.series
        if series not in self._runs:
            first = self._first_attempt(attempt)
            batch = self._attempt_start(first)
            run_id = self._find_run(series)
            if run_id:
                is_by_trial = run_id == self._trial_runs.get(series)
                if is_by_trial:
                    batch.add_tags({labels.OWN: labels.TAKEN})
                self.sender.send(run_id, batch)
            else:
                run_id = self._create_run(first, batch)
            self._runs[series] = run_id
        return self._runs[series]

    def _first_attempt(self, attempt: Attempt) -> Attempt:
        """Return the attempt that began the series of another one."""
        series = attempt.request.series
        return attempt if attempt.request.number == series else self._source.attempt(series)

    def _attempt_start(self, first: Attempt) -> Batch:
        """Return the tags of the run of a series, given its first attempt."""
        batch = projection.attempt_start(self._job, first.request, self._submission, self._parent)
        checkpoint = None if first.request.segment is None else first.request.segment.parent
        if checkpoint is not None and checkpoint.number is not None and checkpoint.trial != first.request.trial:
            series = self._source.attempt(checkpoint.number).request.series
            batch.add_tags(projection.checkpoint_tags(checkpoint, series))
        return batch

    def _finish_replaced_run(self, attempt: Attempt) -> None:
        """If an attempt continues a paused trial in a new run, because its parameters have changed, end its earlier run."""
        request = attempt.request
        if request.retry_of is None or request.number != request.series:
            return
        previous = self._source.attempt(request.retry_of)
        if previous.outcome is not None and previous.outcome.state is TrialState.PAUSED:
            self.sender.send(self._ensure_run(previous), projection.replacement_end(self._job, previous, request))
            del self._runs[previous.request.series]

    def _merge_runs(self, attempt: Attempt, id_by_exporter: str, id_by_trial: str) -> str:
        """Merge two runs of an ended attempt into one; return its id.

        The exporter and the attempt's process may each have created a run at the same moment. The run of the process stays,
        because it may have models and child runs. It gets the entries of the other run, which is deleted.
        """
        exporter_run = self.client.get_run(id_by_exporter)
        batch = self._attempt_start(self._first_attempt(attempt))
        batch.add_tags({labels.OWN: labels.TAKEN})
        for name in exporter_run.data.metrics:
            batch.metrics += self.client.get_metric_history(id_by_exporter, name)
        if not self.sender.send(id_by_trial, batch):  # the job has deleted its run
            return id_by_exporter
        self._delete(exporter_run)
        return id_by_trial

    def _create_run(self, attempt: Attempt, batch: Batch) -> str:
        """Create the run of a series, given its first attempt and its tags; return the run's id."""
        outcome = attempt.outcome
        # Only the outcome has the time of the start. Without it, MLflow takes the current time.
        start = milliseconds(outcome.started) if outcome is not None and outcome.started else None
        state = {labels.STATE: TrialState.RUNNING.value}
        fits_one_call = len(batch.tags) < MAX_TAGS
        # With too many tags, the run gets first only those by which it can be found again.
        tags = batch.tags if fits_one_call else {**self._identity, labels.NUMBER: str(attempt.request.number)}
        name = projection.run_name(self._job, attempt.request)
        run_id = str(self.client.create_run(self._experiment, start, {**tags, **state}, name).info.run_id)
        if not fits_one_call:
            self.sender.send(run_id, batch)
        return run_id

    def _find_run(self, series: int) -> str:
        """Return the id of the run of a series in MLflow, created by an earlier exporter or the trial; "" if there is none.

        Runs of earlier exporters are searched once. Trials create runs at any time, so these are searched repeatedly. The
        caller records the run in `_runs`.
        """
        if self._earlier_runs is None or time.monotonic() > self._last_search + _SEARCH_INTERVAL:
            self._search_runs()
        assert self._earlier_runs is not None
        if series in self._earlier_runs:
            return self._earlier_runs.pop(series)
        return self._trial_runs.get(series, "")  # stays there, so that the run is known as one that the trial has created

    def _search_runs(self) -> None:
        """Search runs that trials have created, and if `_earlier_runs` is None also those of earlier exporters."""
        self._last_search = time.monotonic()
        if self._earlier_runs is None:
            runs = self._attempt_runs()
            self._earlier_runs = {}
        else:
            runs = self._sorted_by_use(self._search(f"tags.`{labels.OWN}` = '{labels.NEW}'"))
        self._trial_runs = {}
        for run in runs:
            is_by_trial = run.data.tags.get(labels.OWN) == labels.NEW
            target = self._trial_runs if is_by_trial else self._earlier_runs
            target.setdefault(_number(run), run.info.run_id)  # if there are several, the first one is used

    def _attempt_runs(self) -> list[Any]:
        """Return all runs of attempts. If an attempt has several, the one that is used comes before its duplicates."""
        condition = f"tags.`{labels.RUN}` = '{self._run_paths.root.name}' and tags.`{labels.NUMBER}` != ''"
        return self._sorted_by_use(self._search(condition))

    def _sorted_by_use(self, runs: Iterable[Any]) -> list[Any]:
        """Sort runs of attempts so that, of several runs of one attempt, the one that is used comes first.

        The order is: a run that the trial has created and the exporter uses already, the earliest run of an exporter, any
        other run of the trial. Runs without a valid number are left out.
        """
        rank = {labels.TAKEN: 0, labels.NEW: 2}

        def key(run: Any) -> tuple[int, Any, str]:
            return rank.get(run.data.tags.get(labels.OWN), 1), run.info.start_time, run.info.run_id

        return sorted((run for run in runs if _number(run) is not None), key=key)

    # Position

    def _restore_position(self, position: Position) -> None:
        """Continue at a position of an earlier exporter."""
        self._position = self._saved_position = position
        self._last_started = -1  # attempts that run already must be found in MLflow
        self.files.mark(position.ends)  # the files up to there are uploaded

    def _save(self, *, now: bool = False) -> None:
        """Write the position to MLflow, at most once per `_SAVE_INTERVAL` seconds, or at once with `now`.

        The ends in it are those whose files are all uploaded, so that another exporter uploads the others.
        """
        if not now and time.monotonic() < self._last_save + _SAVE_INTERVAL:
            return
        position = dataclasses.replace(self._position, ends=self.files.uploaded_ends() or self._saved_position.ends)
        if position != self._saved_position:
            self.client.set_tag(self._parent, labels.EXPORTED, records.to_json(position))
            self._saved_position = position
        self._last_save = time.monotonic()

    # Cleaning up

    def _clean_up(self) -> bool:
        """Make runs that trials' processes have created children of their trials' runs, and delete superfluous runs.

        Returns:
            False if another exporter was at work, so that the whole run must be written again.
        """
        self._make_children()
        parents = self._parents()
        is_alone = len(parents) == 1 and parents[0].data.tags.get(labels.EXPORTER) == self._id
        condition = f"tags.`{labels.RUN}` = '{self._run_paths.root.name}' and tags.`{labels.STATE}` = 'RUNNING'"
        # MLflow may have created a run of an attempt twice, because its first answer was lost.
        for run in self._search(f"{condition} and tags.`{labels.KIND}` = 'trial'"):
            if self._is_superfluous(run):
                self._delete(run)
        if not is_alone or (not self._is_first and self._has_duplicates()):
            self._restart(parents)
            return False
        self.client.delete_tag(self._parent, labels.EXPORTER)
        return True

    def _make_children(self) -> None:
        """Make runs that trials' processes and their programs have created children of the runs of their attempts."""
        strays = self._search(f"tags.`{labels.LOGGED_BY}` != ''") + self._search(f"tags.`{labels.OWN}` = '{labels.NEW}'")
        if not strays:
            return
        runs_of_attempts: dict[int | None, str] = {}
        for run in self._attempt_runs():  # of several runs of an attempt, the one that is used comes first
            if run.data.tags.get(labels.OWN) != labels.NEW:
                runs_of_attempts.setdefault(_number(run), run.info.run_id)
        for run in strays:
            with _log_and_skip(f"MLflow's run {run.info.run_id} stays where it is"):
                self._make_child(run, runs_of_attempts)

    def _has_duplicates(self) -> bool:
        """Return whether an attempt has several runs."""
        numbers = [_number(run) for run in self._attempt_runs()]
        return len(set(numbers)) < len(numbers)

    def _is_superfluous(self, run: Any) -> bool:
        """Return whether a run that counts as running is a duplicate: its attempt has ended, or uses another run."""
        was_promoted = run.data.tags.get(labels.PROMOTIONS, "0") != "0"  # so an exporter has used it
        if was_promoted:
            return False
        number = _number(run)
        return number is None or run.info.run_id != self._runs.get(number)

    def _restart(self, parents: list[Any]) -> None:
        """Delete duplicate runs, and let `advance` write everything again, into the runs that remain.

        The first of the parent runs remains.
        """
        for parent in parents[1:]:
            self._delete(parent)
        seen_numbers: set[int | None] = set()
        for run in self._attempt_runs():
            if _number(run) in seen_numbers:
                self._delete(run)
            seen_numbers.add(_number(run))
        self._runs.clear()
        self._parent, self._earlier_runs, self._has_ended = "", None, False  # so `advance` searches all again
        if parents and labels.EXPORTED in parents[0].data.tags:
            # Without the tag with the position, `advance` starts at the beginning.
            self.client.delete_tag(parents[0].info.run_id, labels.EXPORTED)

    def _make_child(self, run: Any, runs_of_attempts: dict[int | None, str]) -> None:
        """Make a run that a trial's process has created a child of the trial's run, and remove the exporter's tags from it.

        Args:
            run: The run.
            runs_of_attempts: Id of the run of each attempt, by number.
        """
        tags, run_id = run.data.tags, run.info.run_id
        # The trial's process tags its runs with the number of the attempt. Programs that it starts use another tag for that.
        number = _number(run, labels.NUMBER if labels.OWN in tags else labels.LOGGED_BY)
        parent = runs_of_attempts.get(number)
        if parent is not None and parent != run_id:
            if labels.PARENT not in tags:
                self.client.set_tag(run_id, labels.PARENT, parent)
            if run.info.status == "RUNNING":
                self.client.set_terminated(run_id, "KILLED")
        # The tags are deleted last, so that everything above is repeated if any of it fails.
        for tag in (labels.NUMBER, labels.STATE, labels.OWN, labels.LOGGED_BY):
            if tag in tags:
                self.client.delete_tag(run_id, tag)

    def _delete(self, run: Any) -> None:
        """Delete a superfluous run of MLflow. If MLflow refuses that, no search returns the run any more."""
        try:
            self.client.delete_run(run.info.run_id)
        except MlflowException as error:
            if not is_refusal(error):
                raise
            self._undeletable.add(run.info.run_id)
            write_log(f"MLflow's superfluous run {run.info.run_id} stays if it is not deleted yet; {describe(error)}")

    def _search(self, condition: str) -> list[Any]:
        """Return all runs of MLflow that belong to the exported run and meet a condition."""
        runs: list[Any] = []
        token: str | None = ""
        while token is not None:
            page = self.client.search_runs([self._experiment], condition, max_results=_PAGE, page_token=token or None)
            runs += [
                run
                for run in page
                if self._identity.items() <= run.data.tags.items() and run.info.run_id not in self._undeletable
            ]
            token = page.token or None
        return runs


def _number(run: Any, tag: str = labels.NUMBER) -> int | None:
    """Return the number of an attempt in a tag of a run; None if there is none, or if a trial has set another text."""
    text = run.data.tags.get(tag, "")
    return int(text) if text.isdecimal() and len(text) < 20 else None


def _position(text: str) -> Position:
    """Return the position in the text of a tag; if the text is empty or invalid, the beginning."""
    try:
        return records.from_json(Position, text) if text else Position()
    except (ValueError, TypeError, KeyError) as error:
        write_log(f"MLflow's tag {labels.EXPORTED} cannot be read, so all is written again: {describe(error)}")
        return Position()


@contextlib.contextmanager
def _log_and_skip(consequence: str) -> Iterator[None]:
    """Log an unexpected error and continue, because every further exporter would fail at the same attempt.

    Errors of MLflow, of the ledger and of disks are raised. They may be temporary, so the caller tries again.

    Args:
        consequence: First part of the line in the log.
    """
    try:
        yield
    except (MlflowException, OSError, errors.LedgerError):
        raise
    except Exception as error:  # noqa: BLE001 - one attempt must not stop the export of the others
        write_log(f"{consequence}; {describe(error)}")
