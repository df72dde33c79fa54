"""`python -m trialplane.controller.export`: writes attempts as an Optuna study to a database, or serves optuna-dashboard.

The client, which does not import Optuna, starts this program and sends the content of a ledger to its stdin. The first line
is a `StudyOrder`. The second line has all attempts and reports of the study so far, and each further line has those that are
new or have changed. The database's URL comes in the order, because other users of the machine can see the arguments of a
program. The program ends when its stdin is closed.
"""

from __future__ import annotations

import json
import socket
import socketserver
import sys
import threading
import warnings
import wsgiref.simple_server
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import optuna
from optuna.distributions import FloatDistribution
from optuna.storages import BaseStorage
from optuna.storages._rdb import models
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial
from optuna.trial import TrialState as OptunaState

from trialplane import errors
from trialplane.controller import history, samplers
from trialplane.ledger import tables
from trialplane.ledger.attempts import Attempt, StudyOrder
from trialplane.wire import escapes, records, rows
from trialplane.wire.states import TrialState

_STORAGE_ERRORS = (tables.DATABASE_ERRORS, optuna.exceptions.StorageInternalError)  # Optuna wraps some errors of databases


class Copy:
    """A copy of a run as a study of Optuna, with a trial for each series of attempts.

    Args:
        storage: Storage of the study.
        order: Order that names and describes the study.

    Raises:
        optuna.exceptions.DuplicatedStudyError: The storage already has a study of that name.
    """

    def __init__(self, storage: BaseStorage, order: StudyOrder) -> None:
        directions = [StudyDirection[direction.upper()] for direction in order.directions]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            self.study = optuna.create_study(storage=storage, study_name=order.run, directions=directions)
            self.study.set_metric_names(list(order.metrics))
        for name, value in order.attributes.items():
            self.study.set_user_attr(name, value)
        self._storage = storage
        self._normal_ranges = order.ranges  # of the parameters with a normal distribution
        # A series is named by the number of the attempt that began it.
        self._series: dict[int, int] = {}  # number of an attempt → its series
        self._trials: dict[int, int] = {}  # series → number of its trial in Optuna
        self._unfinished: dict[int, tuple[Attempt, Attempt]] = {}  # series → its first and newest attempt, until it ends
        self._curves: dict[int, dict[int, float]] = {}  # series → step → the first value that was reported
        self._early_reports: list[tuple[int, int, float]] = []  # reports that were read before their attempts

    def add_line(self, line: str) -> None:
        """Add the attempts and reports of a line from the client; `alive` says whether a controller works on the run."""
        content: Mapping[str, Any] = json.loads(line)
        attempts = [records.from_dict(Attempt, attempt) for attempt in content["attempts"]]
        self.add(attempts, content["reports"], is_active=bool(content["alive"]))

    def add(self, attempts: Iterable[Attempt], reports: Iterable[tuple[int, int, float]] = (), *, is_active: bool) -> None:
        """Add new attempts to the study, and new reports and ends of attempts that the study has already.

        Args:
            attempts: Attempts in the order of their numbers, including those that were running or paused before.
            reports: Number of the attempt, step and value of each new report.
            is_active: Whether a controller works on the run; otherwise no attempt runs.
        """
        for attempt in attempts:
            self._add_attempt(attempt)
        still_early: list[tuple[int, int, float]] = []  # reports whose attempts have not been read yet
        for number, step, value in (*self._early_reports, *reports):
            if number in self._series:
                self._curves.setdefault(self._series[number], {}).setdefault(step, float(value))
            else:
                still_early.append((number, step, value))
        self._early_reports = still_early
        self._update_study(is_active)

    def _add_attempt(self, attempt: Attempt) -> None:
        """Make an attempt the newest one of its series, or the first one of a new series."""
        series = attempt.request.series
        self._series[attempt.request.number] = series
        if series not in self._trials:
            self._trials[series] = len(self._trials)  # Optuna numbers its trials from 0
            self._unfinished[series] = attempt, attempt
        elif series in self._unfinished:  # a trial that has ended in Optuna cannot be reopened
            first_attempt, _ = self._unfinished[series]
            self._unfinished[series] = first_attempt, attempt

    def _update_study(self, is_active: bool) -> None:
        """Add the trials of new series to the study, and the new reports and the ends of the others.

        Args:
            is_active: Whether a controller works on the run.
        """
        stored = self.study.get_trials(deepcopy=False)
        for series in sorted(self._unfinished):
            first, newest = self._unfinished[series]
            trial = self._build_trial(first, newest, is_active=is_active)
            if trial.number >= len(stored):  # it is new
                self.study.add_trial(trial)
            elif trial.state.is_finished():
                self._end_trial(stored[trial.number], trial)
            else:
                self._add_reports(stored[trial.number], trial)
            if trial.state.is_finished():
                del self._unfinished[series]

    def _build_trial(self, first: Attempt, newest: Attempt, is_active: bool) -> FrozenTrial:
        """Return the trial of a series.

        The trial has the state in the ledger. That differs from the controller's Optuna, in which a pruned trial has failed
        if there are several objectives.

        Args:
            first: First attempt of the series.
            newest: Newest attempt of the series.
            is_active: Whether a controller works on the run.
        """
        request, outcome = newest.request, newest.outcome
        trial = history.restore_trial(self._trials[request.series], newest.optuna)
        trial.datetime_start = history.start_time(first.optuna)
        if is_active and (outcome is None or outcome.state is TrialState.PAUSED):
            # A paused trial may still be promoted, so it counts as running. If it has ended since, the next line from the
            # client says so.
            trial.state, trial.datetime_complete = OptunaState.RUNNING, None
        elif outcome is not None:
            trial.state = samplers.OPTUNA_STATES[outcome.state]
        else:
            trial.state = OptunaState.FAIL
            trial.datetime_complete = trial.datetime_start  # the time of the loss is not stored, and Optuna needs one
        trial.user_attrs |= _attributes(newest, first.request.retry_of, trial.params)
        trial.intermediate_values = self._curves.get(request.series, {})
        # In the controller's Optuna, a normal parameter is a share of its distribution, 0 to 1. The copy has the value.
        for name in self._normal_ranges.keys() & trial.params.keys():
            bounds = self._normal_ranges[name]
            trial.distributions[name] = FloatDistribution(bounds.low, bounds.high, log=bounds.log)
            trial.params[name] = request.params[name]
        return trial

    def _add_reports(self, stored: FrozenTrial, trial: FrozenTrial) -> None:
        """Add those reports of `trial` to the stored trial that it lacks."""
        for step, value in trial.intermediate_values.items():
            if step not in stored.intermediate_values:
                self._storage.set_trial_intermediate_value(stored._trial_id, step, value)

    def _end_trial(self, stored: FrozenTrial, trial: FrozenTrial) -> None:
        """End the stored trial with the values, reports and attributes of `trial`."""
        self._add_reports(stored, trial)
        trial_id = stored._trial_id
        for name, distribution in trial.distributions.items():
            if name not in stored.params:  # the objective has requested this parameter since the trial was added
                internal = distribution.to_internal_repr(trial.params[name])
                self._storage.set_trial_param(trial_id, name, internal, distribution)
        for name, value in trial.system_attrs.items():
            self._storage.set_trial_system_attr(trial_id, name, value)
        for name, value in trial.user_attrs.items():
            self._storage.set_trial_user_attr(trial_id, name, value)
        self._storage.set_trial_state_values(trial_id, trial.state, trial.values)


def _attributes(attempt: Attempt, retry_of: int | None, optuna_names: Collection[str]) -> dict[str, Any]:
    """Return user attributes for the values of an attempt that Optuna has no field for. Empty values are left out.

    Args:
        attempt: Newest attempt of a series.
        retry_of: Number of the attempt that the first attempt of the series repeats; None if it repeats none.
        optuna_names: Names of the parameters of the trial in Optuna. It lacks fixed ones without a distribution.
    """
    request, outcome = attempt.request, attempt.outcome
    attributes: dict[str, Any] = {
        "trial": request.trial,
        "attempt": request.attempt,
        "seed": request.seed,
        "retry_of": retry_of,
        **{f"params.{name}": value for name, value in request.params.items() if name not in optuna_names},
    }
    if request.segment is not None:
        attributes["rung"] = request.segment.rung
    if outcome is not None:
        for name in ("failure", "message", "exit_code", "node", "log", "start_method", "peak_memory"):
            attributes[name] = getattr(outcome, name)
        attributes |= {f"metrics.{name}": value for name, value in outcome.metrics.items()}
        if request.directions:  # an objective of Optuna returns its values, and these are the user attributes that it set
            attributes |= outcome.returned
        else:
            attributes |= {f"returned.{name}": rows.table_cell(value) for name, value in outcome.returned.items()}
    return {name: records.to_dict(value) for name, value in attributes.items() if value not in (None, "")}


def write(order: StudyOrder, lines: Iterable[str]) -> None:
    """Write a study into the database of the order's URL, completely or not at all.

    Args:
        order: Order that names the study and the database.
        lines: Lines from the client.

    Raises:
        InputError: The URL is invalid, or the database has a study of that name.
        TargetError: The database cannot be written.
    """
    copy = Copy(optuna.storages.InMemoryStorage(), order)
    for line in lines:
        copy.add_line(line)
    try:
        database_name = tables.redacted_url(order.url)
    except tables.DATABASE_ERRORS as error:
        masked_url = escapes.mask_passwords(order.url)
        raise errors.InputError(f"{masked_url} is not the URL of a database; for a file it is sqlite:///study.db") from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            database = optuna.storages.RDBStorage(order.url)  # creates the tables
        with database.scoped_session() as session:
            if session.query(models.StudyModel).filter_by(study_name=order.run).first() is not None:
                raise errors.InputError(
                    f"there is a study {order.run} in {database_name} already; nothing was written. Export into another "
                    f"database, or delete that study: optuna delete-study --study-name {order.run} --storage URL"
                )
            _store(session, copy.study)
            session.commit()
    except ImportError as error:  # the driver of the database is missing
        raise errors.InputError(
            f"{database_name} cannot be opened: {errors.first_line(error.__cause__ or error)}"
        ) from error
    except (*_STORAGE_ERRORS, RuntimeError) as error:  # RuntimeError: the tables are of another version of Optuna
        problem = errors.first_line(_unwrapped(error))
        raise errors.TargetError(f"{database_name} cannot be written: {problem}; nothing of the study is in it") from error


def _unwrapped(error: BaseException) -> BaseException:
    """Return the error of a database's driver that Optuna or SQLAlchemy has wrapped; another error itself."""
    if isinstance(error, optuna.exceptions.StorageInternalError) and error.__cause__ is not None:
        error = error.__cause__
    return getattr(error, "orig", None) or error


def _store(session: Any, study: optuna.Study) -> None:
    """Add a study in memory to a database, in the transaction of the session.

    The rows of Optuna's tables are written directly, because Optuna's storage would commit each trial separately and query
    the database twice for each value.
    """
    storage, study_id = study._storage, study._study_id
    study_row: Any = models.StudyModel(study_name=study.study_name)
    session.add(study_row)
    trials = study.get_trials(deepcopy=False)
    trial_rows = [
        models.TrialModel(
            number=trial.number,
            study=study_row,
            state=trial.state,
            datetime_start=trial.datetime_start,
            datetime_complete=trial.datetime_complete,
        )
        for trial in trials
    ]
    session.add_all(trial_rows)
    session.flush()  # assigns their ids
    study_key = {"study_id": study_row.study_id}
    rows_by_table: dict[Any, list[dict[str, Any]]] = {
        models.StudyDirectionModel: [
            study_key | {"direction": direction, "objective": objective}
            for objective, direction in enumerate(study.directions)
        ],
        models.StudyUserAttributeModel: _attribute_rows(study_key, storage.get_study_user_attrs(study_id)),
        models.StudySystemAttributeModel: _attribute_rows(study_key, storage.get_study_system_attrs(study_id)),
        models.TrialUserAttributeModel: [],
        models.TrialSystemAttributeModel: [],
        models.TrialParamModel: [],
        models.TrialValueModel: [],
        models.TrialIntermediateValueModel: [],
    }
    for trial, trial_row in zip(trials, trial_rows, strict=True):
        _add_trial_rows(rows_by_table, {"trial_id": trial_row.trial_id}, trial)
    for table, table_rows in rows_by_table.items():
        if table_rows:
            session.execute(table.__table__.insert(), table_rows)


def _add_trial_rows(rows_by_table: dict[Any, list[dict[str, Any]]], key: dict[str, Any], trial: FrozenTrial) -> None:
    """Add the rows of a trial to the rows of each table.

    Args:
        rows_by_table: Rows that will be inserted, by table.
        key: Column `trial_id`, with the id of the trial in the database.
        trial: The trial.
    """
    rows_by_table[models.TrialUserAttributeModel] += _attribute_rows(key, trial.user_attrs)
    rows_by_table[models.TrialSystemAttributeModel] += _attribute_rows(key, trial.system_attrs)
    for name, value in trial.params.items():
        distribution = trial.distributions[name]
        text = optuna.distributions.distribution_to_json(distribution)
        param = {"param_name": name, "param_value": distribution.to_internal_repr(value), "distribution_json": text}
        rows_by_table[models.TrialParamModel].append(key | param)
    # For infinity and NaN, Optuna stores NULL with a type that says which it is.
    for objective, value in enumerate(trial.values or ()):
        number, value_type = models.TrialValueModel.value_to_stored_repr(value)
        value_row = {"objective": objective, "value": number, "value_type": value_type}
        rows_by_table[models.TrialValueModel].append(key | value_row)
    for step, report in trial.intermediate_values.items():
        number, report_type = models.TrialIntermediateValueModel.intermediate_value_to_stored_repr(report)
        report_row = {"step": step, "intermediate_value": number, "intermediate_value_type": report_type}
        rows_by_table[models.TrialIntermediateValueModel].append(key | report_row)


def _attribute_rows(key: dict[str, int], attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of attributes. `key` is the column that refers to their study or trial, such as {"trial_id": 7}."""
    return [key | {"key": name, "value_json": json.dumps(value)} for name, value in attributes.items()]


def show(order: StudyOrder, lines: Iterable[str]) -> None:
    """Serve optuna-dashboard on a copy in memory until the lines end.

    The server starts after the first line was added, so that the study has its trials.

    Args:
        order: Order that names the study and the listening socket.
        lines: Lines from the client, which update the copy.

    Raises:
        InputError: The copy was deleted in the dashboard.
    """
    import optuna_dashboard  # the controller's images do not have it

    storage = optuna.storages.InMemoryStorage()
    copy = Copy(storage, order)
    remaining_lines = iter(lines)
    first_line = next(remaining_lines, None)
    if first_line is None:  # the client has ended
        return
    copy.add_line(first_line)
    server = _Server(socket.socket(fileno=order.listener))
    server.set_app(optuna_dashboard.wsgi(storage))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for line in remaining_lines:
        if not storage.get_all_studies():
            raise errors.InputError(f"the copy of {order.run} was deleted in the dashboard; the run itself is as it was")
        if line.strip():  # the client sends empty lines to test whether this process still reads
            copy.add_line(line)
    server.shutdown()  # before the socket is closed, on which the server's thread would otherwise wait forever
    server.server_close()


class _Server(socketserver.ThreadingMixIn, wsgiref.simple_server.WSGIServer):
    """A server at a Unix socket. Each connection has a thread, because browsers keep idle connections open.

    Args:
        listener: Listening socket.
    """

    daemon_threads = True

    def __init__(self, listener: socket.socket) -> None:
        super().__init__(("localhost", 0), _Handler, bind_and_activate=False)
        self.socket.close()  # of the base class, which would listen at a port
        self.socket = listener
        self.server_name, self.server_port = "localhost", 80  # `setup_environ` needs them
        self.setup_environ()

    def get_request(self) -> tuple[socket.socket, tuple[str, int]]:
        """Return a connection, and an invented address: handlers need one, but a Unix socket has none."""
        return self.socket.accept()[0], ("localhost", 0)


class _Handler(wsgiref.simple_server.WSGIRequestHandler):
    """A handler of requests that logs nothing."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the name is the base class's
        """Print nothing, as the terminal is the user's."""


def main() -> int:
    """Carry out the order on stdin; return an exit code of `errors`."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    order = records.from_json(StudyOrder, sys.stdin.readline())
    try:
        if order.url:
            write(order, lines=sys.stdin)
        else:
            show(order, lines=sys.stdin)
    except errors.TrialplaneError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return errors.EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
