"""`python -m trialplane.controller.export`: writes attempts as an Optuna study to a database, or serves optuna-dashboard.

The client, which does not import Optuna, starts it and sends what it has read of a ledger. On stdin the first line is an
`Order`, and each further line has attempts and reports: those of the study so far, then what has changed since. The URL is
not an argument, as other users of the machine could see it. The process ends with its stdin.
"""

from __future__ import annotations

import json
import socket
import socketserver
import sys
import threading
import warnings
import wsgiref.simple_server
from collections.abc import Iterable, Mapping
from typing import Any, TextIO

import optuna
from optuna.distributions import FloatDistribution
from optuna.storages import BaseStorage
from optuna.storages._rdb import models
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from trialplane import errors
from trialplane.controller import history, samplers
from trialplane.ledger import tables
from trialplane.ledger.attempts import Attempt, Order
from trialplane.wire import escapes, records, rows
from trialplane.wire.states import TrialState as State

_STORAGE_ERRORS = (tables.DATABASE_ERRORS, optuna.exceptions.StorageInternalError)  # Optuna wraps some of the former


class Copy:
    """A study in Optuna with what was read of a run so far: a trial for each attempt, or series of attempts.

    Args:
        storage: of the study.
        order: describes it.

    Raises:
        optuna.exceptions.DuplicatedStudyError: the storage has a study of that name.
    """

    def __init__(self, storage: BaseStorage, order: Order) -> None:
        directions = [StudyDirection[direction.upper()] for direction in order.directions]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            self.study = optuna.create_study(storage=storage, study_name=order.run, directions=directions)
            self.study.set_metric_names(list(order.metrics))
        for name, value in order.attributes.items():
            self.study.set_user_attr(name, value)
        self._storage = storage
        self._ranges = order.ranges
        self._series: dict[int, int] = {}  # number of an attempt → of the one that began its series
        self._trials: dict[int, int] = {}  # series → number of its trial in Optuna
        self._open: dict[int, tuple[Attempt, Attempt]] = {}  # series → its first attempt and its newest, until its end
        self._curves: dict[int, dict[int, float]] = {}  # series → step → the first value that was reported

    def read(self, line: str) -> None:
        """Add what a line has: attempts and reports."""
        data: Mapping[str, Any] = json.loads(line)
        attempts = [records.from_dict(Attempt, attempt) for attempt in data["attempts"]]
        self.add(attempts, data["reports"], alive=bool(data["alive"]))

    def add(self, attempts: Iterable[Attempt], reports: Iterable[tuple[int, int, float]] = (), *, alive: bool) -> None:
        """Add attempts to the study, and the reports and the ends of those that were running in it.

        Args:
            attempts: by number; those that were running, or paused, may come again.
            reports: number of the attempt, step and value of each.
            alive: whether a controller works on the run; otherwise no attempt runs.
        """
        for attempt in attempts:
            request = attempt.request
            self._series[request.number] = request.series
            if request.series not in self._trials:
                self._trials[request.series] = len(self._trials)
                self._open[request.series] = attempt, attempt
            elif request.series in self._open:  # else its trial has ended in Optuna, where that cannot be taken back
                self._open[request.series] = self._open[request.series][0], attempt
        for number, step, value in reports:
            self._curves.setdefault(self._series.get(number, number), {}).setdefault(step, float(value))
        stored = self.study.get_trials(deepcopy=False)
        for series in sorted(self._open):
            trial = self._trial(*self._open[series], alive)
            if trial.number >= len(stored):
                self.study.add_trial(trial)
            elif trial.state.is_finished():
                self._end(stored[trial.number], trial)
            else:
                self._report(stored[trial.number], trial)
            if trial.state.is_finished():
                del self._open[series]

    def _trial(self, first: Attempt, attempt: Attempt, alive: bool) -> FrozenTrial:
        """A trial with its true state: with several objectives Optuna's memory has pruned trials as failed."""
        request, outcome = attempt.request, attempt.outcome
        trial = history.trial(self._trials[request.series], attempt.optuna)
        trial.datetime_start = history.start(first.optuna)
        if alive and (outcome is None or outcome.state is State.PAUSED):
            # It may have ended, or been promoted, while others were read; the next look has that.
            trial.state, trial.datetime_complete = TrialState.RUNNING, None
        elif outcome is not None:
            trial.state = samplers.STATES[outcome.state]
        else:
            trial.state = TrialState.FAIL
            trial.datetime_complete = trial.datetime_start  # when it was lost is not stored
        trial.user_attrs |= _attributes(attempt, first.request.retry_of)
        trial.intermediate_values = self._curves.get(request.series, {})
        for name in self._ranges.keys() & trial.params.keys():
            bounds = self._ranges[name]
            trial.distributions[name] = FloatDistribution(bounds.low, bounds.high, log=bounds.log)
            trial.params[name] = request.params[name]
        return trial

    def _report(self, stored: FrozenTrial, trial: FrozenTrial) -> None:
        """Add reports to a trial that runs."""
        for step, value in trial.intermediate_values.items():
            if step not in stored.intermediate_values:
                self._storage.set_trial_intermediate_value(stored._trial_id, step, value)

    def _end(self, stored: FrozenTrial, trial: FrozenTrial) -> None:
        """End a trial that ran."""
        self._report(stored, trial)
        trial_id = stored._trial_id
        for name, distribution in trial.distributions.items():
            if name not in stored.params:  # drawn since, for an objective of Optuna
                value = distribution.to_internal_repr(trial.params[name])
                self._storage.set_trial_param(trial_id, name, value, distribution)
        for name, value in trial.system_attrs.items():
            self._storage.set_trial_system_attr(trial_id, name, value)
        for name, value in trial.user_attrs.items():
            self._storage.set_trial_user_attr(trial_id, name, value)
        self._storage.set_trial_state_values(trial_id, trial.state, trial.values)


def _attributes(attempt: Attempt, retry_of: int | None) -> dict[str, Any]:
    """User attributes for what Optuna has no field for: plain values that tables and plots can show, without empty ones."""
    request, outcome = attempt.request, attempt.outcome
    attributes: dict[str, Any] = {
        "trial": request.trial,
        "attempt": request.attempt,
        "seed": request.seed,
        "retry_of": retry_of,
    }
    if request.segment is not None:
        attributes["rung"] = request.segment.rung
    if outcome is not None:
        fields = ("failure", "message", "exit_code", "node", "log", "start_method", "peak_memory")
        attributes |= {name: getattr(outcome, name) for name in fields}
        attributes |= {f"metrics.{name}": value for name, value in outcome.metrics.items()}
        returned = outcome.returned if request.objectives else rows.cells(outcome.returned)
        attributes |= {name if request.objectives else f"returned.{name}": value for name, value in returned.items()}
    return {name: records.to_dict(value) for name, value in attributes.items() if value not in (None, "")}


def write(order: Order, lines: Iterable[str]) -> None:
    """Write a study into the database of the order's URL, completely or not at all.

    Raises:
        InputError: the URL is invalid, or the database has a study of that name.
        TargetError: the database cannot be written.
    """
    copy = Copy(optuna.storages.InMemoryStorage(), order)
    for line in lines:
        copy.read(line)
    try:
        database_name = tables.redacted_url(order.url)
    except tables.DATABASE_ERRORS as error:
        url = escapes.mask_passwords(order.url)
        raise errors.InputError(f"{url} is not the URL of a database; for a file it is sqlite:///study.db") from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            database = optuna.storages.RDBStorage(order.url)  # makes its tables
        with database.scoped_session() as session:
            if session.query(models.StudyModel).filter_by(study_name=order.run).first() is not None:
                raise errors.InputError(
                    f"there is a study {order.run} in {database_name} already; nothing was written. Export into another "
                    f"database, or delete that study: optuna delete-study --study-name {order.run} --storage URL"
                )
            _store(session, copy.study)
            session.commit()
    except ImportError as error:  # no driver for it
        raise errors.InputError(
            f"{database_name} cannot be opened: {errors.first_line(error.__cause__ or error)}"
        ) from error
    except (*_STORAGE_ERRORS, RuntimeError) as error:  # the last: tables of another version of Optuna
        cause = error.__cause__ if isinstance(error, optuna.exceptions.StorageInternalError) else None
        foreign = getattr(cause or error, "orig", None) or cause or error
        raise errors.TargetError(
            f"{database_name} cannot be written: {errors.first_line(foreign)}; nothing of the study is in it"
        ) from error


def _store(session: Any, study: optuna.Study) -> None:
    """Add a study in memory to a database, in the transaction of the session.

    By Optuna's own tables: its storage commits once per trial, and asks the database twice about each value.
    """
    storage, study_id = study._storage, study._study_id
    row: Any = models.StudyModel(study_name=study.study_name)
    session.add(row)
    trials = study.get_trials(deepcopy=False)
    stored = [
        models.TrialModel(
            number=trial.number,
            study=row,
            state=trial.state,
            datetime_start=trial.datetime_start,
            datetime_complete=trial.datetime_complete,
        )
        for trial in trials
    ]
    session.add_all(stored)
    session.flush()  # which gives them their ids
    study_key = {"study_id": row.study_id}
    rows_by_table: dict[Any, list[dict[str, Any]]] = {
        models.StudyDirectionModel: [
            study_key | {"direction": direction, "objective": index} for index, direction in enumerate(study.directions)
        ],
        models.StudyUserAttributeModel: _attribute_rows(study_key, storage.get_study_user_attrs(study_id)),
        models.StudySystemAttributeModel: _attribute_rows(study_key, storage.get_study_system_attrs(study_id)),
        models.TrialUserAttributeModel: [],
        models.TrialSystemAttributeModel: [],
        models.TrialParamModel: [],
        models.TrialValueModel: [],
        models.TrialIntermediateValueModel: [],
    }
    for trial, trial_row in zip(trials, stored, strict=True):
        trial_key: dict[str, Any] = {"trial_id": trial_row.trial_id}
        rows_by_table[models.TrialUserAttributeModel] += _attribute_rows(trial_key, trial.user_attrs)
        rows_by_table[models.TrialSystemAttributeModel] += _attribute_rows(trial_key, trial.system_attrs)
        for name, value in trial.params.items():
            distribution = trial.distributions[name]
            text = optuna.distributions.distribution_to_json(distribution)
            param = {"param_name": name, "param_value": distribution.to_internal_repr(value), "distribution_json": text}
            rows_by_table[models.TrialParamModel].append(trial_key | param)
        for index, value in enumerate(trial.values or ()):
            number, kind = models.TrialValueModel.value_to_stored_repr(value)
            rows_by_table[models.TrialValueModel].append(
                trial_key | {"objective": index, "value": number, "value_type": kind}
            )
        for step, value in trial.intermediate_values.items():
            report, report_type = models.TrialIntermediateValueModel.intermediate_value_to_stored_repr(value)
            reported = {"step": step, "intermediate_value": report, "intermediate_value_type": report_type}
            rows_by_table[models.TrialIntermediateValueModel].append(trial_key | reported)
    for table, table_rows in rows_by_table.items():
        if table_rows:
            session.execute(table.__table__.insert(), table_rows)


def _attribute_rows(owner: dict[str, int], attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [owner | {"key": name, "value_json": json.dumps(value)} for name, value in attributes.items()]


def show(order: Order, lines: Iterable[str]) -> None:
    """Serve optuna-dashboard on a copy in memory, which each line brings up to date; end with the lines.

    It answers once the first line is in the copy: nobody sees a study without its trials.

    Raises:
        InputError: the copy was deleted in the dashboard.
    """
    import optuna_dashboard  # not part of the controller's images

    storage = optuna.storages.InMemoryStorage()
    copy = Copy(storage, order)
    remaining_lines = iter(lines)
    first_line = next(remaining_lines, None)
    if first_line is None:  # the command has ended
        return
    copy.read(first_line)
    server = _Server(socket.socket(fileno=order.listener))
    server.set_app(optuna_dashboard.wsgi(storage))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for line in remaining_lines:
        if not storage.get_all_studies():
            raise errors.InputError(f"the copy of {order.run} was deleted in the dashboard; the run itself is as it was")
        if line.strip():  # an empty one only tests whether this process still reads
            copy.read(line)
    server.shutdown()  # its thread would wait on a closed socket
    server.server_close()


class _Server(socketserver.ThreadingMixIn, wsgiref.simple_server.WSGIServer):
    """At a Unix socket, with a thread per connection: browsers open some before they need them."""

    daemon_threads = True

    def __init__(self, listener: socket.socket) -> None:
        super().__init__(("localhost", 0), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.server_name, self.server_port = "localhost", 80
        self.setup_environ()

    def get_request(self) -> tuple[socket.socket, tuple[str, int]]:
        """A connection; the other end of a Unix socket has no address, which the handlers need."""
        return self.socket.accept()[0], ("localhost", 0)


class _Handler(wsgiref.simple_server.WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the name is the base class's
        """Print nothing: the terminal is the user's."""


def main(stdin: TextIO = sys.stdin) -> int:
    """Carry out the order; an error is a message on stderr and an exit code of `errors`."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    order = records.from_json(Order, stdin.readline())
    try:
        (write if order.url else show)(order, stdin)
    except errors.TrialplaneError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return errors.EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
