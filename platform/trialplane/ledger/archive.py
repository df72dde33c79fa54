"""All runs in PostgreSQL, as the gateway serves them and the operator records them.

It writes submissions, before there is a controller to do so, and desired states; it deletes only whole runs, under the lock
that a controller would need.
"""

from __future__ import annotations

import dataclasses
import hmac
import json
import secrets
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from trialplane import errors
from trialplane.job import kinds
from trialplane.job.kinds import Job
from trialplane.ledger import attempts as reading
from trialplane.ledger import budget as budgets
from trialplane.ledger import locking, tables
from trialplane.ledger.attempts import Attempt, Page, Reports
from trialplane.ledger.budget import Budget
from trialplane.ledger.tables import attempts, changes, codes, reports, runs, sizes
from trialplane.plan import plan as planning
from trialplane.wire import labels, ledger, mlflow, records
from trialplane.wire.records import Change, Desired, RunStatus, TrialRow
from trialplane.wire.states import RunState

DATABASE_ERRORS = tables.DATABASE_ERRORS  # what any method may raise
reason = tables.reason

PAGE = 1 << 20  # bytes of attempts that are read at a time, and the last of them may go beyond it
CHANGES = 1000  # changes of a run that are kept, the newest
_NO_TOKEN = "0" * 64  # in place of a hash, so that a comparison takes as long

_HELD = """
SELECT count(*) FROM pg_locks
WHERE locktype = 'advisory' AND granted AND objsubid = 1 AND classid = :high AND objid = :low
AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


@dataclasses.dataclass(frozen=True)
class Known:
    """One run in the list of all."""

    run: str
    job: str
    submitted: float


@dataclasses.dataclass(frozen=True)
class Recorded:
    """Snapshot of a run in the ledger.

    Attributes:
        job: as resolved.
        submission: the facts of it.
        status: the last one that a controller wrote, or that of a run without one.
        desired: the desired state.
        alive: whether a controller works on it.
        token: the hash of the token that opens it at the gateway; None when there is none.
        change: the last one of what it is to be; None if none was recorded.
        images: by name, the digests that its pods have run.
    """

    job: Job
    submission: Mapping[str, Any]
    status: RunStatus
    desired: Desired
    alive: bool
    token: str | None = None
    change: Change | None = None
    images: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Whole:
    """A page of attempts with Optuna's view of them.

    Attributes:
        stored: place, request, outcome and Optuna's view of each, as texts.
        next: number to go on after; None after the last page.
        until: the last place that counts.
        alive: whether a controller works on the run.
    """

    stored: list[tuple[int | None, str, str | None, str]]
    next: int | None
    until: int
    alive: bool


class Archive:
    """All runs in one database.

    Args:
        connections: its share of the process's, which chooses the schema of its tables.
        budget: of its namespace.
    """

    def __init__(self, connections: tables.Share, budget: Budget | None = None) -> None:
        self._connections = connections
        self._budget = budget or Budget("this namespace")
        self._spending = threading.Lock()
        self._reserved: dict[budgets.Category, int] = {budgets.MLFLOW: 0, budgets.ARTIFACTS: 0}
        self._is_there = False

    def runs(self) -> list[Known]:
        """All runs, the newest first."""
        query = sa.select(runs.c.name, runs.c.job, runs.c.submission).where(runs.c.job.is_not(None))
        known_runs = []
        with self._connections.begin() as connection:
            if not tables.is_there(connection):
                return []  # nothing has ever been submitted here
            for run, job, submission in connection.execution_options(yield_per=10).execute(query):
                submitted = float(json.loads(submission or "{}").get("submitted", 0.0))
                known_runs.append(Known(run, json.loads(job)["name"], submitted))
        return sorted(known_runs, key=lambda entry: (-entry.submitted, entry.run))

    def attribute(self, run: str, name: str) -> Any:
        """The value in a column of a run, or None.

        Raises:
            RunNotFound: there is no such run.
        """
        with self._connected(run) as (connection, is_run):
            return tables.document(connection, is_run, name)

    def recorded(self, run: str) -> Recorded | None:
        """Return the snapshot of a run, or None.

        Raises:
            LedgerCorrupt: it cannot be read.
        """
        # First: a controller that ends after this has its last status read, so that no run looks killed that was not.
        alive = self.is_alive(run)
        try:
            with self._connected(run) as (connection, is_run):
                described, submission, status, desired = (
                    tables.document(connection, is_run, name) or {}
                    for name in (labels.LEDGER_JOB, labels.LEDGER_SUBMISSION, labels.LEDGER_STATUS, labels.LEDGER_DESIRED)
                )
                token = connection.execute(sa.select(runs.c.token).where(is_run)).scalar()
                last = _changes(connection, is_run, changes.c.id.desc(), limit=1)
                images = _images(connection, is_run)
            job = kinds.read(described)
            last_status = records.from_dict(RunStatus, status) if status else planning.pending(run, job, 0.0)
            desired_state = records.from_dict(Desired, desired)
            record = Recorded(job, submission, last_status, desired_state, alive, token, last[0] if last else None, images)
            for part in (record.status, record.desired):
                if wrong := records.misfit(part):
                    raise ValueError(f"{type(part).__name__}.{wrong} is {getattr(part, wrong)!r:.60}")
            return record
        except errors.RunNotFound:
            return None
        except ValueError as error:
            raise errors.LedgerCorrupt(f"what the ledger has of {run} cannot be read: {error}") from error

    def code(self, run: str) -> bytes | None:
        """The packed code of a run."""
        with self._connected(run) as (connection, is_run):
            packed = sa.select(codes.c.data).join(runs, runs.c.code == codes.c.digest).where(is_run)
            return connection.execute(packed).scalar()

    def is_alive(self, run: str) -> bool:
        """Whether a controller works on the run, which means that it holds the run's lock."""
        with self._connections.begin() as connection:
            key = locking.key(tables.schema(connection), run) % 2**64
            return bool(connection.execute(sa.text(_HELD), {"high": key >> 32, "low": key % 2**32}).scalar())

    def attempts(self, run: str, after: int) -> tuple[list[TrialRow], int | None]:
        """A page of the attempts with numbers above `after`, and the number to go on after; None after the last page.

        Without a controller none of them runs.
        """
        alive = self.is_alive(run)
        with self._connected(run) as (connection, is_run):
            job = _job(connection, is_run)
            page = reading.page(tables.select(connection), run, after, PAGE)
            return [reading.row(job, attempt, alive) for attempt in page.attempts], _last(page, "number")

    def counted(self, run: str) -> tuple[Job, list[TrialRow]]:
        """Return the job and all attempts of a run without a controller."""
        with self._connected(run) as (connection, is_run):
            job = _job(connection, is_run)
            pages = reading.pages(tables.select(connection), run, PAGE)
            return job, [reading.row(job, attempt, False) for attempt in pages]

    def attempt(self, run: str, trial: int, attempt: int | None = None) -> TrialRow | None:
        """The newest attempt at one trial, or the one with that number among them; None if there is none."""
        alive = self.is_alive(run)
        with self._connected(run) as (connection, is_run):
            job, newest = _job(connection, is_run), None
            for candidate in reading.pages(tables.select(connection), run, PAGE, "AND trial = :trial", trial=trial):
                newest = candidate if attempt in (None, candidate.request.attempt) else newest
            return None if newest is None else reading.row(job, newest, alive)

    def has_saved(self, run: str) -> bool | None:
        """Whether there is a checkpoint of a training or a collection; None if no slot could see that.

        An attempt that runs, or was lost with its pod, may have saved one.
        """
        with self._connected(run) as (connection, _):
            every = reading.pages(tables.select(connection), run, PAGE)
            saved = {attempt.outcome.saved if attempt.outcome else None for attempt in every}
        return True if True in saved else None if None in saved else False

    def ends(self, run: str, after: int) -> tuple[list[TrialRow], int | None, int]:
        """A page of the attempts that ended since a place in the order of ends.

        Returns:
            The attempts; the place to go on after, None after the last page; and that of the last attempt.
        """
        with self._connected(run) as (connection, is_run):
            job = _job(connection, is_run)
            page = reading.page(tables.select(connection), run, after, PAGE, order="place")
            place = page.stored[-1][0] if page.stored else after
            return [reading.row(job, attempt, True) for attempt in page.attempts], _last(page, "place"), place

    def stored(self, run: str, digest: str, after: int, order: str, most: int) -> list[Attempt] | None:
        """The first attempts after one, for whoever has the run's token; None if its hash is not `digest`.

        Args:
            run: its name.
            digest: of the token.
            after: number, or place of an end.
            order: "number", or "place" for those that have ended.
            most: attempts that are returned, and no more than fit into a page.
        """
        by: Literal["number", "place"] = "place" if order == "place" else "number"
        with self._connections.begin() as connection:
            if not _is_opened(connection, run, digest):
                return None
            return reading.page(tables.select(connection), run, after, PAGE, order=by).attempts[:most]

    def reported(self, run: str, digest: str, after: int) -> Reports | None:
        """A page of the reports with marks above `after`, as `stored`."""
        with self._connections.begin() as connection:
            if not _is_opened(connection, run, digest):
                return None
            return reading.reports(tables.select(connection), run, after, PAGE)

    def curves(self, run: str, after: int, limit: int) -> Reports:
        """A page of at most `limit` reports with marks above `after`, 0 at first."""
        with self._connected(run) as (connection, _):
            return reading.reports(tables.select(connection), run, after, PAGE, limit)

    def whole(self, run: str, after: int, number: int = -1, until: int | None = None) -> Whole:
        """A page of the attempts that run and those that ended since the place `after`, with numbers above `number`.

        Attempts may end between two pages. So that all pages are of one moment, one that ended after the place `until` is
        given as running.

        Args:
            run: its name.
            after: place.
            number: of the last attempt of the page before.
            until: as of the page before; None at first, for the last place there is.
        """
        alive = self.is_alive(run)
        with self._connected(run) as (connection, is_run):
            if until is None:
                last = sa.select(sa.func.coalesce(sa.func.max(attempts.c.place), 0)).join(runs).where(is_run)
                until = int(connection.execute(last).scalar_one())
            where = "AND (place IS NULL OR place > :since)"
            page = reading.page(tables.select(connection), run, number, PAGE, where=where, optuna=True, since=after)
            stored = [
                (place, request, outcome, optuna) if place is None or place <= until else (None, request, None, optuna)
                for place, request, outcome, optuna, _ in page.stored
            ]
        # A controller that started or ended in between counts: attempts may still run.
        return Whole(stored, _last(page, "number"), until, alive or self.is_alive(run))

    def spend(self, category: budgets.Category, size: int, *, spare: bool) -> None:
        """Count bytes that MLflow is about to get.

        Args:
            category: records, or artifacts.
            size: bytes.
            spare: as of `Budget.check`.

        Raises:
            LedgerFull: the namespace's budget is spent.
        """
        with self._spending:
            if size > self._reserved[category]:  # as most requests are small, each takes room for some more
                with self._connections.begin() as connection:
                    if category == budgets.ARTIFACTS:
                        self._budget.check_artifacts(connection, size)
                    else:
                        self._budget.check(connection, size, may_exceed=spare)
                    taken = max(size, budgets.AT_ONCE)
                    budgets.keep(connection, category, taken)
                self._reserved[category] += taken
            self._reserved[category] -= size

    def refund(self, category: budgets.Category, size: int) -> None:
        """Give bytes back that MLflow did not take, for what it gets next."""
        with self._spending:
            self._reserved[category] += size

    def record(self, run: str, job: Job, submission: Mapping[str, Any], code: bytes, *, new: bool) -> None:
        """Record what a run is submitted or resumed with, so that it is listed even if its pods never start.

        Args:
            run: its name.
            job: as resolved.
            submission: the facts of it.
            code: packed.
            new: whether there must be no run of that name.

        Raises:
            RunExists: there is one.
            LedgerLocked: a controller works on it.
            LedgerFull: the namespace's budget is spent.
        """
        tables.prepare(self._connections)
        described: dict[str, Any] = {
            labels.LEDGER_JOB: job.model_dump(mode="json"),
            labels.LEDGER_SUBMISSION: submission,
        }
        with self._connections.begin() as connection:
            before = budgets.used(connection)
            if not tables.has_code(connection, code):  # before it is written: what is rolled back takes room too
                self._budget.check(connection, len(code))
            is_run = runs.c.name == run
            directions = json.dumps([objective.direction for objective in job.objectives])
            insert = postgresql.insert(runs).values(name=run, directions=directions, epoch=0, optuna="{}")
            if connection.execute(insert.on_conflict_do_nothing().returning(runs.c.id)).scalar() is None:
                if new:
                    raise errors.RunExists(f"the ledger has a study {run} already")
                _claim(connection, run)
            status = tables.document(connection, is_run, labels.LEDGER_STATUS) or {}
            if status.get("started") is None:  # no controller has written one
                pending = planning.pending(run, job, float(submission.get("submitted", 0.0)))
                described[labels.LEDGER_STATUS] = records.to_dict(pending)
            tables.describe(connection, is_run, described)
            connection.execute(sa.update(runs).where(is_run).values(code=tables.keep_code(connection, code)))
            tables.drop_code(connection)
            if budgets.used(connection) > before:
                self._budget.check(connection, 0)

    def desire(self, run: str, changed: Mapping[str, Any]) -> None:
        """Change the desired state of a run: only the given fields of `Desired`.

        RUNNING also records the run's newest attempt. A pause does not revoke a cancel.
        """
        with self._connected(run) as (connection, is_run):
            # Serializes concurrent changes, so that none is lost.
            connection.execute(sa.select(runs.c.id).where(is_run).with_for_update(key_share=True))
            desired = records.from_dict(Desired, tables.document(connection, is_run, labels.LEDGER_DESIRED) or {})
            before, desired = desired.state, dataclasses.replace(desired, **changed)
            if before is RunState.CANCELLED and desired.state is RunState.PAUSED:
                desired = dataclasses.replace(desired, state=before)
            if changed.get("state") is RunState.RUNNING:
                newest = sa.select(sa.func.max(attempts.c.number)).join(runs).where(is_run)
                desired = dataclasses.replace(desired, again=connection.execute(newest).scalar())
            connection.execute(sa.update(runs).where(is_run).values({labels.LEDGER_DESIRED: records.to_json(desired)}))

    def note(self, run: str, change: Change) -> None:
        """Record a change of what a run is to be, once however often it is called.

        Raises:
            RunNotFound: there is no such run.
        """
        with self._connected(run) as (connection, is_run):
            owner = connection.execute(sa.select(runs.c.id).where(is_run)).scalar_one()
            row = {"run_id": owner, "uid": change.uid, "generation": change.generation, "change": records.to_json(change)}
            connection.execute(postgresql.insert(changes).values(row).on_conflict_do_nothing())
            newest = sa.select(changes.c.id).where(changes.c.run_id == owner).order_by(changes.c.id.desc()).offset(CHANGES)
            connection.execute(sa.delete(changes).where(changes.c.id.in_(newest)))

    def keep_images(self, run: str, images: Iterable[tuple[str, str]]) -> None:
        """Add digests to those that a run's pods have run, each once.

        Args:
            run: its name.
            images: names, each with a digest.

        Raises:
            RunNotFound: there is no such run.
        """
        with self._connected(run) as (connection, is_run):
            digests = _images(connection, is_run)
            for image, digest in images:
                digests[image] = tuple(dict.fromkeys((*digests.get(image, ()), digest)))
            tables.describe(connection, is_run, {labels.LEDGER_IMAGES: digests})

    def images(self, run: str) -> dict[str, tuple[str, ...]]:
        """By name, the digests that a run's pods have run.

        Raises:
            RunNotFound: there is no such run.
        """
        with self._connected(run) as (connection, is_run):
            return _images(connection, is_run)

    def changes(self, run: str) -> list[Change]:
        """The changes of what a run was to be, in their order.

        Raises:
            RunNotFound: there is no such run.
        """
        with self._connected(run) as (connection, is_run):
            return _changes(connection, is_run, changes.c.id)

    def admit(self, run: str, token: str) -> None:
        """Set the token that opens a run at the gateway. A token derived from it opens MLflow for the run.

        An unknown run stays unknown.
        """
        self._set_tokens(run, ledger.hashed(token), ledger.hashed(mlflow.token(token)))

    def revoke(self, run: str) -> None:
        """Revoke the token of a run."""
        self._set_tokens(run, None, None)

    def _set_tokens(self, run: str, digest: str | None, derived: str | None) -> None:
        with self._connections.begin() as connection:
            if tables.is_there(connection):
                connection.execute(sa.update(runs).where(runs.c.name == run).values(token=digest, mlflow_token=derived))

    def admitted(self) -> list[str]:
        """Names of the runs that a token opens."""
        with self._connections.begin() as connection:
            if not tables.is_there(connection):
                return []
            return list(connection.execute(sa.select(runs.c.name).where(runs.c.token.is_not(None))).scalars())

    def opens(self, run: str, token: str) -> bool:
        """Whether a token opens a run; takes as long for an unknown one."""
        return self._opens(run, runs.c.token, token)

    def opens_mlflow(self, run: str, token: str) -> bool:
        """Whether a token opens MLflow's door for a run, as `opens`."""
        return self._opens(run, runs.c.mlflow_token, token)

    def _opens(self, run: str, column: sa.Column[str], token: str) -> bool:
        with self._connections.checking() as connection:
            self._is_there = self._is_there or tables.is_there(connection)  # asked at each request to MLflow
            stored = connection.execute(sa.select(column).where(runs.c.name == run)).scalar() if self._is_there else None
        return same(stored, ledger.hashed(token))

    def key(self, run: str) -> str:
        """Return the hash of the token that opens a run, or ""."""
        with self._connected(run) as (connection, is_run):
            return connection.execute(sa.select(runs.c.token).where(is_run)).scalar() or ""

    def forget(self, run: str) -> None:
        """Mark a run for removal by the operator, first of its files. Its record stays until then, without a token.

        Raises:
            LedgerLocked: a controller works on it.
        """
        with self._connected(run) as (connection, is_run):
            _claim(connection, run)
            forgotten = connection.execute(sa.select(runs.c.forgotten).where(is_run)).scalar()
            mark = forgotten or secrets.token_hex(4)
            connection.execute(sa.update(runs).where(is_run).values(forgotten=mark, token=None, mlflow_token=None))

    def remember(self, run: str, uid: str) -> bool:
        """Unmark a run if its record is that of a Run with this uid. Return whether it is."""
        with self._connected(run) as (connection, is_run):
            submission = tables.document(connection, is_run, labels.LEDGER_SUBMISSION) or {}
            if submission.get(labels.UID) != uid:
                return False
            connection.execute(sa.update(runs).where(is_run).values(forgotten=None))
            return True

    def forgotten(self) -> dict[str, str]:
        """The runs that are to be removed, each with the mark of that."""
        with self._connections.begin() as connection:
            if not tables.is_there(connection):
                return {}
            query = sa.select(runs.c.name, runs.c.forgotten).where(runs.c.forgotten.is_not(None))
            return {name: str(mark) for name, mark in connection.execute(query)}

    def delete(self, run: str) -> None:
        """Delete a run.

        Raises:
            LedgerLocked: a controller works on it.
        """
        with self._connected(run) as (connection, is_run):
            _claim(connection, run)
            connection.execute(sa.text("SET LOCAL statement_timeout = 0"))  # a large run has millions of reports
            for below in (attempts, reports, changes, sizes):
                connection.execute(sa.delete(below).where(below.c.run_id.in_(sa.select(runs.c.id).where(is_run))))
            connection.execute(sa.delete(runs).where(is_run))
            tables.drop_code(connection)

    @contextmanager
    def _connected(self, run: str) -> Iterator[tuple[sa.Connection, sa.ColumnElement[bool]]]:
        """A transaction, and which row of `runs` is the run's.

        Raises:
            RunNotFound: there is no such run.
            LedgerCorrupt: the tables are of another version.
        """
        is_run = (runs.c.name == run) & runs.c.job.is_not(None)
        with self._connections.begin() as connection:
            if not tables.is_there(connection):
                raise errors.RunNotFound(f"nothing has been submitted here yet, so there is no run {run}")
            if connection.execute(sa.select(runs.c.id).where(is_run)).scalar() is None:
                raise errors.RunNotFound(f"the ledger has no run {run}")
            yield connection, is_run


def _changes(
    connection: sa.Connection, is_run: sa.ColumnElement[bool], order: sa.ColumnElement[Any], limit: int | None = None
) -> list[Change]:
    """The changes of the run that `mine` chooses."""
    query = sa.select(changes.c.change).join(runs).where(is_run).order_by(order).limit(limit)
    return [records.from_json(Change, text) for (text,) in connection.execute(query)]


def _images(connection: sa.Connection, is_run: sa.ColumnElement[bool]) -> dict[str, tuple[str, ...]]:
    """The digests of the run that `mine` chooses."""
    return {
        image: tuple(digests) for image, digests in (tables.document(connection, is_run, labels.LEDGER_IMAGES) or {}).items()
    }


def same(expected: str | None, digest: str) -> bool:
    """Compare what the ledger keeps of a run's token with that of another, in constant time."""
    return hmac.compare_digest(expected or _NO_TOKEN, digest)


def _is_opened(connection: sa.Connection, run: str, digest: str) -> bool:
    """Whether the token with this hash opens a run."""
    return same(connection.execute(sa.select(runs.c.token).where(runs.c.name == run)).scalar(), digest)


def _is_free(connection: sa.Connection, run: str) -> bool:
    """Lock controllers out of a run until the end of the transaction, unless one works on it."""
    key = locking.key(tables.schema(connection), run)
    return bool(connection.execute(sa.select(sa.func.pg_try_advisory_xact_lock(key))).scalar())


def _claim(connection: sa.Connection, run: str) -> None:
    """Lock controllers out of a run until the end of the transaction.

    Raises:
        LedgerLocked: one works on it.
    """
    if not _is_free(connection, run):
        raise errors.LedgerLocked(f"a controller works on {run}; `platform cancel {run}` ends it")


def _last(page: Page, order: Literal["number", "place"]) -> int | None:
    """The number, or the place, after which the next page begins; None if there is none."""
    return page.stored[-1][-1 if order == "number" else 0] if page.more and page.stored else None


def _job(connection: sa.Connection, is_run: sa.ColumnElement[bool]) -> Job:
    return kinds.read(tables.document(connection, is_run, labels.LEDGER_JOB))
