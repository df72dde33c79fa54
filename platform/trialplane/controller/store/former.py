"""Converts runs in the layout of trialplane 0.1, which used Optuna's own tables.

There a run was a study, an attempt one of its trials, and trialplane's data were attributes. A run is converted completely,
in one transaction, and removed from those tables, so that a controller of that version can no longer write it.
"""

from __future__ import annotations

import base64
import collections
import datetime
import json
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from trialplane import errors
from trialplane.controller.store import tables
from trialplane.wire import labels

_EPOCH = "trialplane:epoch"
_CODE = "trialplane:code"
_COLUMNS = {
    "trialplane:job": labels.LEDGER_JOB,
    "trialplane:submission": labels.LEDGER_SUBMISSION,
    "trialplane:status": labels.LEDGER_STATUS,
    "trialplane:wish": labels.LEDGER_DESIRED,
}
_OF_TRIALS = (
    "trial_values",
    "trial_intermediate_values",
    "trial_params",
    "trial_user_attributes",
    "trial_system_attributes",
    "trial_heartbeats",
)
_OF_STUDY = ("trials", "study_user_attributes", "study_system_attributes", "study_directions", "studies")
_UNUSUAL = {"INF_POS": "inf", "INF_NEG": "-inf", "NAN": "nan"}


def runs(connection: sa.Connection) -> list[str]:
    """Names of the runs that are still in that layout; its tables may be missing."""
    if not sa.inspect(connection).has_table("study_user_attributes"):
        return []
    ours = "SELECT study_id FROM study_user_attributes WHERE key IN ('trialplane:epoch', 'trialplane:job')"
    return list(connection.execute(sa.text(f"SELECT study_name FROM studies WHERE study_id IN ({ours})")).scalars())


def convert(connection: sa.Connection, run: str) -> None:
    """Converts a run, if it is in that layout; the caller holds the run's lock.

    A run that also exists in the new layout was converted before and then started again by a controller of that version: it
    is left as it is.

    Raises:
        LedgerCorrupt: the study has trials that trialplane did not make.
    """
    known = sa.select(tables.runs.c.id).where(tables.runs.c.name == run)
    if run not in runs(connection) or connection.execute(known).scalar() is not None:
        return
    found = sa.MetaData()
    found.reflect(connection, only=(*_OF_TRIALS, *_OF_STUDY))
    studies = found.tables["studies"]
    study = connection.execute(sa.select(studies.c.study_id).where(studies.c.study_name == run)).scalar_one()
    described = _of_study(connection, found.tables["study_user_attributes"], study)
    kept = _of_study(connection, found.tables["study_system_attributes"], study)
    directions = found.tables["study_directions"]
    ordered = sa.select(directions.c.direction).where(directions.c.study_id == study).order_by(directions.c.objective)
    new = {
        "name": run,
        "directions": json.dumps([str(direction).lower() for direction in connection.execute(ordered).scalars()]),
        "epoch": int(described.get(_EPOCH, 0)),
        "optuna": json.dumps({key: json.loads(text) for key, text in kept.items()}),
        **{column: described.get(key) for key, column in _COLUMNS.items()},
    }
    if _CODE in described:
        new[labels.LEDGER_CODE] = tables.keep_code(connection, base64.b64decode(json.loads(described[_CODE])))
    run_id = connection.execute(sa.insert(tables.runs).values(new).returning(tables.runs.c.id)).scalar_one()
    attempts = _attempts(connection, found.tables, study, run)
    if attempts:
        connection.execute(sa.insert(tables.attempts), [{"run_id": run_id, **attempt} for attempt in attempts])
    trials = found.tables["trials"]
    mine = sa.select(trials.c.trial_id).where(trials.c.study_id == study)
    for name in _OF_TRIALS:
        table = found.tables[name]
        connection.execute(sa.delete(table).where(table.c.trial_id.in_(mine)))
    for name in _OF_STUDY:
        table = found.tables[name]
        connection.execute(sa.delete(table).where(table.c.study_id == study))


def _of_study(connection: sa.Connection, table: sa.Table, study: int) -> dict[str, str]:
    """The attributes of a study, as JSON texts."""
    query = sa.select(table.c.key, table.c.value_json).where(table.c.study_id == study)
    return {row.key: row.value_json for row in connection.execute(query)}


def _attempts(connection: sa.Connection, found: Mapping[str, sa.Table], study: int, run: str) -> list[dict[str, Any]]:
    """Rows of `tables.attempts`, with the document that `controller.history` reads."""
    trials = found["trials"]
    by_trial: dict[str, dict[int, list[sa.Row[Any]]]] = {}
    for name in _OF_TRIALS:
        table = found[name]
        query = sa.select(table).join(trials, trials.c.trial_id == table.c.trial_id).where(trials.c.study_id == study)
        of_trial: dict[int, list[sa.Row[Any]]] = collections.defaultdict(list)
        for row in connection.execute(query.order_by(next(iter(table.primary_key.columns)))):
            of_trial[row.trial_id].append(row)
        by_trial[name] = of_trial
    made, ends = [], {}
    for trial in connection.execute(sa.select(trials).where(trials.c.study_id == study).order_by(trials.c.number)):
        rows = {name: of_trial[trial.trial_id] for name, of_trial in by_trial.items()}
        ours = {row.key: row for row in rows["trial_user_attributes"]}
        request, outcome = ours.get(labels.LEDGER_REQUEST), ours.get(labels.LEDGER_OUTCOME)
        if request is None:
            raise errors.LedgerCorrupt(
                f"trial {trial.number} of the study {run} was not made by trialplane, so it cannot be counted; "
                "give the run another name"
            )
        if outcome is not None:
            ends[trial.number] = outcome.trial_user_attribute_id
        document = {
            "state": str(trial.state),
            "values": [_number(row.value, row.value_type) for row in sorted(rows["trial_values"], key=_objective)] or None,
            "params": {row.param_name: [row.param_value, row.distribution_json] for row in rows["trial_params"]},
            "attributes": {row.key: json.loads(row.value_json) for row in rows["trial_system_attributes"]},
            "reports": {
                str(row.step): _number(row.intermediate_value, row.intermediate_value_type)
                for row in rows["trial_intermediate_values"]
            },
            "started": _seconds(trial.datetime_start),
            "ended": _seconds(trial.datetime_complete),
        }
        made.append(
            {
                "number": trial.number,
                "trial": json.loads(request.value_json)["trial"],
                "request": request.value_json,
                "outcome": None if outcome is None else outcome.value_json,
                "optuna": json.dumps(document),
            }
        )
    places = {number: place for place, number in enumerate(sorted(ends, key=lambda number: ends[number]), 1)}
    return [{**attempt, "place": places.get(attempt["number"])} for attempt in made]


def _objective(row: sa.Row[Any]) -> int:
    return int(row.objective)


def _number(value: float | None, kind: str) -> float | str | None:
    return _UNUSUAL.get(str(kind), value)


def _seconds(moment: datetime.datetime | None) -> float | None:
    """Optuna stored naive UTC."""
    return None if moment is None else moment.replace(tzinfo=datetime.UTC).timestamp()
