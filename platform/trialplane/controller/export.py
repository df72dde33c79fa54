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
from trialplane.ledger.attempts import Attempt, Order, Range
from trialplane.wire import escapes, records, rows

Curves = dict[int, dict[int, float]]  # number of an attempt → step → the first value that was reported

_STORAGE_ERRORS = (tables.DATABASE_ERRORS, optuna.exceptions.StorageInternalError)  # Optuna wraps some of the former


def create(storage: BaseStorage, order: Order) -> optuna.Study:
    """A study without trials.

    Raises:
        optuna.exceptions.DuplicatedStudyError: the storage has one of that name.
    """
    directions = [StudyDirection[direction.upper()] for direction in order.directions]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study = optuna.create_study(storage=storage, study_name=order.run, directions=directions)
        study.set_metric_names(list(order.metrics))
    for name, value in order.attributes.items():
        study.set_user_attr(name, value)
    return study


def add(
    storage: BaseStorage,
    study: optuna.Study,
    attempts: Iterable[Attempt],
    alive: bool,
    ranges: Mapping[str, Range],
    curves: Curves | None = None,
) -> None:
    """Add attempts to a study, and the reports and the ends of those that were running in it.

    Args:
        storage: the study's.
        study: has the attempts with the numbers 0 to n - 1 as trials.
        attempts: in order of their numbers, from n on without a gap.
        alive: whether a controller works on the run; otherwise no attempt runs.
        ranges: those of the order.
        curves: the reports that have come so far.
    """
    trials, curves = study.get_trials(deepcopy=False), curves or {}
    for trial in trials:
        if not trial.state.is_finished():
            for step, value in curves.get(trial.number, {}).items():
                if step not in trial.intermediate_values:
                    storage.set_trial_intermediate_value(trial._trial_id, step, value)
    for attempt in attempts:
        trial = _trial(attempt, alive)
        trial.intermediate_values = curves.get(trial.number, {})
        for name in ranges.keys() & trial.params.keys():
            bounds = ranges[name]
            trial.distributions[name] = FloatDistribution(bounds.low, bounds.high, log=bounds.log)
            trial.params[name] = attempt.request.params[name]
        if trial.number >= len(trials):
            study.add_trial(trial)
        elif not trials[trial.number].state.is_finished() and trial.state.is_finished():
            _end(storage, trials[trial.number], trial)


def _trial(attempt: Attempt, alive: bool) -> FrozenTrial:
    """An attempt with its true state: with several objectives Optuna's memory has pruned trials as failed."""
    trial = history.trial(attempt.request.number, attempt.optuna)
    if attempt.outcome is not None:
        trial.state = samplers.STATES[attempt.outcome.state]
    elif alive:  # it may have ended while others were read; the next look has its outcome
        trial.state, trial.datetime_complete = TrialState.RUNNING, None
    else:
        trial.state = TrialState.FAIL
        trial.datetime_complete = trial.datetime_start  # when it was lost is not known
    trial.user_attrs |= _attributes(attempt)
    return trial


def _attributes(attempt: Attempt) -> dict[str, Any]:
    """User attributes for what Optuna has no field for: plain values that tables and plots can show, without empty ones."""
    request, outcome = attempt.request, attempt.outcome
    attributes: dict[str, Any] = {
        "trial": request.trial,
        "attempt": request.attempt,
        "seed": request.seed,
        "retry_of": request.retry_of,
    }
    if outcome is not None:
        fields = ("failure", "message", "exit_code", "node", "log", "start_method", "peak_memory")
        attributes |= {name: getattr(outcome, name) for name in fields}
        attributes |= {f"metrics.{name}": value for name, value in outcome.metrics.items()}
        returned = outcome.returned if request.objectives else rows.cells(outcome.returned)
        attributes |= {name if request.objectives else f"returned.{name}": value for name, value in returned.items()}
    return {name: records.to_dict(value) for name, value in attributes.items() if value not in (None, "")}


def _end(storage: BaseStorage, running: FrozenTrial, trial: FrozenTrial) -> None:
    trial_id = running._trial_id
    for name, distribution in trial.distributions.items():
        if name not in running.params:  # drawn since, for an objective of Optuna
            storage.set_trial_param(trial_id, name, distribution.to_internal_repr(trial.params[name]), distribution)
    for name, value in trial.system_attrs.items():
        storage.set_trial_system_attr(trial_id, name, value)
    for name, value in trial.user_attrs.items():
        storage.set_trial_user_attr(trial_id, name, value)
    storage.set_trial_state_values(trial_id, trial.state, trial.values)


def write(order: Order, lines: Iterable[str]) -> None:
    """Write a study into the database of the order's URL, completely or not at all.

    Raises:
        InputError: the URL is invalid, or the database has a study of that name.
        TargetError: the database cannot be written.
    """
    storage = optuna.storages.InMemoryStorage()
    study, curves = create(storage, order), Curves()
    for line in lines:
        add(storage, study, *_read(line, curves), order.ranges, curves)
    try:
        database_name = tables.redacted_url(order.url)
    except tables.DATABASE_ERRORS as error:
        url = escapes.without_passwords(order.url)
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
            _store(session, study)
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
    study, curves = create(storage, order), Curves()
    remaining_lines = iter(lines)
    first_line = next(remaining_lines, None)
    if first_line is None:  # the command has ended
        return
    add(storage, study, *_read(first_line, curves), order.ranges, curves)
    server = _Server(socket.socket(fileno=order.listener))
    server.set_app(optuna_dashboard.wsgi(storage))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for line in remaining_lines:
        if not storage.get_all_studies():
            raise errors.InputError(f"the copy of {order.run} was deleted in the dashboard; the run itself is as it was")
        if line.strip():  # an empty one only tests whether this process still reads
            add(storage, study, *_read(line, curves), order.ranges, curves)
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


def _read(line: str, curves: Curves) -> tuple[list[Attempt], bool]:
    """The attempts of a line, and whether a controller works on the run; its reports are added to the others."""
    data: Mapping[str, Any] = json.loads(line)
    for number, step, value in data["reports"]:
        curves.setdefault(number, {}).setdefault(step, float(value))
    return [records.from_dict(Attempt, attempt) for attempt in data["attempts"]], bool(data["alive"])


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
