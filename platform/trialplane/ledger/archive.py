"""All runs in PostgreSQL, as the gateway serves them and the operator records them.

The archive records submissions before they have a controller, and desired states. It deletes only entire runs, under the
lock that a controller would need.
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

DATABASE_ERRORS = tables.DATABASE_ERRORS  # any method may raise them
reason = tables.reason

PAGE = 1 << 20  # bytes of attempts that are read at a time; the last attempt may exceed it
CHANGES = 1000  # number of a run's newest changes that are kept
_NO_TOKEN = "0" * 64  # compared instead of a missing hash, so that the comparison takes as long

_HELD = """
SELECT count(*) FROM pg_locks
WHERE locktype = 'advisory' AND granted AND objsubid = 1 AND classid = :high AND objid = :low
AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


@dataclasses.dataclass(frozen=True)
class RunEntry:
    """Entry of the list of all runs.

    Attributes:
        run: Name of the run.
        job: Name of its job.
        submitted: Time of the submission, in seconds since the epoch.
    """

    run: str
    job: str
    submitted: float


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """Snapshot of a run in the ledger.

    Attributes:
        job: The resolved job.
        submission: Facts about the submission.
        status: Last status that a controller wrote, or that of a run without a controller.
        desired: Desired state.
        alive: Whether a controller works on the run.
        token: Hash of the token that opens the run at the gateway; None without a token.
        change: Last change of the desired state; None if none was recorded.
        images: Digests that the run's pods have used, by image name.
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
class AttemptsPage:
    """A page of attempts with Optuna's view of them.

    Attributes:
        stored: Place, request, outcome and Optuna's view of each attempt; all but the place are JSON.
        next: Number of the last attempt of this page, to continue after; None on the last page.
        until: Last place in the order of ends that this and the next pages take into account.
        alive: Whether a controller works on the run.
    """

    stored: list[tuple[int | None, str, str | None, str]]
    next: int | None
    until: int
    alive: bool


class Archive:
    """All runs in one database.

    Args:
        connections: Share of the process's connections, which chooses the schema of the tables.
        budget: Budget of the namespace.
    """

    def __init__(self, connections: tables.Share, budget: Budget | None = None) -> None:
        self._connections = connections
        self._budget = budget or Budget("this namespace")
        self._spending = threading.Lock()
        self._reserved: dict[budgets.Category, int] = {budgets.MLFLOW: 0, budgets.ARTIFACTS: 0}
        self._is_there = False

    def runs(self) -> list[RunEntry]:
        """Return all runs, the newest first."""
        query = sa.select(runs.c.name, runs.c.job, runs.c.submission).where(runs.c.job.is_not(None))
        known_runs = []
        with self._connections.begin() as connection:
            if not tables.is_there(connection):
                return []  # nothing has ever been submitted here
            for run, job, submission in connection.execution_options(yield_per=10).execute(query):
                submitted = float(json.loads(submission or "{}").get("submitted", 0.0))
                known_runs.append(RunEntry(run, json.loads(job)["name"], submitted))
        return sorted(known_runs, key=lambda entry: (-entry.submitted, entry.run))

    def attribute(self, run: str, name: str) -> Any:
        """Return the value in a column of a run; None if the column is empty.

        Raises:
            RunNotFound: There is no such run.
        """
        with self._connected(run) as (connection, this_run):
            return tables.document(connection, this_run, name)

    def snapshot(self, run: str) -> Snapshot | None:
        """Return the snapshot of a run; None if there is no such run.

        Raises:
            LedgerCorrupt: The records of the run cannot be read.
        """
        # Before the status is read: if the controller ends in between, its last status is read. Otherwise the run would
        # look as if its controller had been killed.
        alive = self.is_alive(run)
        try:
            with self._connected(run) as (connection, this_run):
                job_document, submission, status, desired = (
                    tables.document(connection, this_run, name) or {}
                    for name in (labels.LEDGER_JOB, labels.LEDGER_SUBMISSION, labels.LEDGER_STATUS, labels.LEDGER_DESIRED)
                )
                token = connection.execute(sa.select(runs.c.token).where(this_run)).scalar()
                last = _changes(connection, this_run, changes.c.id.desc(), limit=1)
                images = _images(connection, this_run)
            job = kinds.read(job_document)
            last_status = records.from_dict(RunStatus, status) if status else planning.pending_status(run, job, 0.0)
            desired_state = records.from_dict(Desired, desired)
            for part in (last_status, desired_state):
                if wrong := records.mistyped_field(part):
                    raise ValueError(f"{type(part).__name__}.{wrong} is {getattr(part, wrong)!r:.60}")
            return Snapshot(job, submission, last_status, desired_state, alive, token, last[0] if last else None, images)
        except errors.RunNotFound:
            return None
        except ValueError as error:
            raise errors.LedgerCorrupt(f"the ledger's records of {run} cannot be read: {error}") from error

    def code(self, run: str) -> bytes | None:
        """Return the packed code of a run; None if it has none."""
        with self._connected(run) as (connection, this_run):
            packed = sa.select(codes.c.data).join(runs, runs.c.code == codes.c.digest).where(this_run)
            return connection.execute(packed).scalar()

    def is_alive(self, run: str) -> bool:
        """Whether a controller works on the run, which means that it holds the run's lock."""
        with self._connections.begin() as connection:
            key = locking.key(tables.schema(connection), run) % 2**64
            return bool(connection.execute(sa.text(_HELD), {"high": key >> 32, "low": key % 2**32}).scalar())

    def attempts(self, run: str, after: int) -> tuple[list[TrialRow], int | None]:
        """Return a page of the attempts with numbers above `after`.

        If no controller works on the run, attempts that have not ended are LOST.

        Returns:
            The attempts, and the number of the last one, to continue after; None on the last page.
        """
        alive = self.is_alive(run)
        with self._connected(run) as (connection, this_run):
            job = _job(connection, this_run)
            page = reading.page(tables.select(connection), run, after, PAGE)
            return [reading.row(job, attempt, alive) for attempt in page.attempts], _last(page, "number")

    def job_and_attempts(self, run: str) -> tuple[Job, list[TrialRow]]:
        """Return the job and all attempts of a run without a controller, to recount its status."""
        with self._connected(run) as (connection, this_run):
            job = _job(connection, this_run)
            pages = reading.pages(tables.select(connection), run, PAGE)
            return job, [reading.row(job, attempt, alive=False) for attempt in pages]

    def attempt(self, run: str, trial: int, attempt: int | None = None) -> TrialRow | None:
        """Return an attempt at a trial; None if there is no such attempt.

        Args:
            run: Name of the run.
            trial: Number of the trial.
            attempt: Number of the attempt among those at the trial; None for the newest.
        """
        alive = self.is_alive(run)
        with self._connected(run) as (connection, this_run):
            job, newest = _job(connection, this_run), None
            for candidate in reading.pages(tables.select(connection), run, PAGE, "AND trial = :trial", trial=trial):
                newest = candidate if attempt in (None, candidate.request.attempt) else newest
            return None if newest is None else reading.row(job, newest, alive)

    def has_saved(self, run: str) -> bool | None:
        """Whether a training or a collection has saved a checkpoint.

        Returns:
            None if that is unknown: an attempt that still runs, or was lost with its pod, may have saved one.
        """
        with self._connected(run) as (connection, _):
            all_attempts = reading.pages(tables.select(connection), run, PAGE)
            saved = {attempt.outcome.saved if attempt.outcome else None for attempt in all_attempts}
        return True if True in saved else None if None in saved else False

    def ends(self, run: str, after: int) -> tuple[list[TrialRow], int | None, int]:
        """Return a page of the attempts that ended after a place in the order of ends.

        Returns:
            The attempts; the place to continue after, None on the last page; and the place of the last attempt.
        """
        with self._connected(run) as (connection, this_run):
            job = _job(connection, this_run)
            page = reading.page(tables.select(connection), run, after, PAGE, order="place")
            place = page.stored[-1][0] if page.stored else after
            return [reading.row(job, attempt, alive=True) for attempt in page.attempts], _last(page, "place"), place

    def attempts_after(self, run: str, digest: str, after: int, order: str, limit: int) -> list[Attempt] | None:
        """Return the first attempts after a number or a place, for a holder of the run's token.

        Args:
            run: Name of the run.
            digest: Hash of the token.
            after: Number of an attempt, or its place in the order of ends.
            order: "number", "place" for attempts that have ended, or "running" for the others, by number.
            limit: Maximum number of attempts. There are fewer if they do not fit into a page.

        Returns:
            None if the token does not open the run.
        """
        by: Literal["number", "place"] = "place" if order == "place" else "number"
        with self._connections.begin() as connection:
            if not _is_opened(connection, run, digest):
                return None
            where = "AND place IS NULL" if order == "running" else ""
            return reading.page(tables.select(connection), run, after, PAGE, order=by, where=where).attempts[:limit]

    def reports_after(self, run: str, digest: str, after: int) -> Reports | None:
        """Return a page of the reports with marks above `after`; None if the token does not open the run."""
        with self._connections.begin() as connection:
            if not _is_opened(connection, run, digest):
                return None
            return reading.reports(tables.select(connection), run, after, PAGE)

    def curves(self, run: str, after: int, limit: int) -> Reports:
        """Return a page of at most `limit` reports with marks above `after`, which is 0 for the first page."""
        with self._connected(run) as (connection, _):
            return reading.reports(tables.select(connection), run, after, PAGE, limit)

    def attempts_since(self, run: str, after: int, number: int = -1, until: int | None = None) -> AttemptsPage:
        """Return a page of the attempts that run and of those that ended after the place `after`.

        Attempts may end between two pages. So that all pages show the same moment, an attempt that ended after the place
        `until` is returned as running.

        Args:
            run: Name of the run.
            after: Place in the order of ends.
            number: Number of the last attempt of the page before; -1 for the first page.
            until: The same as of the page before; None for the first page, which uses the last place.
        """
        alive = self.is_alive(run)
        with self._connected(run) as (connection, this_run):
            if until is None:
                last = sa.select(sa.func.coalesce(sa.func.max(attempts.c.place), 0)).join(runs).where(this_run)
                until = int(connection.execute(last).scalar_one())
            where = "AND (place IS NULL OR place > :since)"
            page = reading.page(tables.select(connection), run, number, PAGE, where=where, optuna=True, since=after)
            stored = [
                (place, request, outcome, optuna) if place is None or place <= until else (None, request, None, optuna)
                for place, request, outcome, optuna, _ in page.stored
            ]
        # Attempts may still run if a controller started or ended in between.
        return AttemptsPage(stored, _last(page, "number"), until, alive or self.is_alive(run))

    def spend(self, category: budgets.Category, size: int, *, spare: bool) -> None:
        """Count bytes that are about to be written to MLflow.

        Args:
            category: Records or artifacts.
            size: Number of bytes.
            spare: Allow a tenth more than the budget: `may_exceed` of `Budget.check`. Ignored for artifacts.

        Raises:
            LedgerFull: The namespace's budget is spent.
        """
        with self._spending:
            if size > self._reserved[category]:  # reserves more than it needs: most requests are small
                with self._connections.begin() as connection:
                    if category == budgets.ARTIFACTS:
                        self._budget.check_artifacts(connection, size)
                    else:
                        self._budget.check(connection, size, may_exceed=spare)
                    reserved = max(size, budgets.AT_ONCE)
                    budgets.add_usage(connection, category, reserved)
                self._reserved[category] += reserved
            self._reserved[category] -= size

    def refund(self, category: budgets.Category, size: int) -> None:
        """Return bytes that MLflow rejected to the reserve, for the next requests."""
        with self._spending:
            self._reserved[category] += size

    def record(self, run: str, job: Job, submission: Mapping[str, Any], code: bytes, *, new: bool) -> None:
        """Record a submitted or resumed run, so that it is listed even if its pods never start.

        Args:
            run: Name of the run.
            job: The resolved job.
            submission: Facts about the submission.
            code: The packed code.
            new: Fail if there is a run of that name.

        Raises:
            RunExists: There is a run of that name, and `new` is set.
            LedgerLocked: A controller works on the run.
            LedgerFull: The namespace's budget is spent.
        """
        tables.prepare(self._connections)
        facts: dict[str, Any] = {
            labels.LEDGER_JOB: job.model_dump(mode="json"),
            labels.LEDGER_SUBMISSION: submission,
        }
        with self._connections.begin() as connection:
            before = budgets.count_used(connection)
            if not tables.has_code(connection, code):  # before the write: rows that are rolled back use space too
                self._budget.check(connection, len(code))
            this_run = runs.c.name == run
            directions = json.dumps([objective.direction for objective in job.objectives])
            insert = postgresql.insert(runs).values(name=run, directions=directions, epoch=0, optuna="{}")
            if connection.execute(insert.on_conflict_do_nothing().returning(runs.c.id)).scalar() is None:
                if new:
                    raise errors.RunExists(f"the ledger has a study {run} already")
                _claim(connection, run)
            status = tables.document(connection, this_run, labels.LEDGER_STATUS) or {}
            if status.get("started") is None:  # no controller has written a status
                pending = planning.pending_status(run, job, float(submission.get("submitted", 0.0)))
                facts[labels.LEDGER_STATUS] = records.to_dict(pending)
            tables.describe(connection, this_run, facts)
            connection.execute(sa.update(runs).where(this_run).values(code=tables.keep_code(connection, code)))
            tables.drop_code(connection)
            if budgets.count_used(connection) > before:
                self._budget.check(connection, 0)

    def desire(self, run: str, changed: Mapping[str, Any]) -> None:
        """Change the desired state of a run.

        RUNNING also records the run's newest attempt. A pause does not revoke a cancel.

        Args:
            run: Name of the run.
            changed: New values of fields of `Desired`; the others stay.
        """
        with self._connected(run) as (connection, this_run):
            # The row lock serializes concurrent changes, so that none is lost.
            connection.execute(sa.select(runs.c.id).where(this_run).with_for_update(key_share=True))
            desired = records.from_dict(Desired, tables.document(connection, this_run, labels.LEDGER_DESIRED) or {})
            old_state, desired = desired.state, dataclasses.replace(desired, **changed)
            if old_state is RunState.CANCELLED and desired.state is RunState.PAUSED:
                desired = dataclasses.replace(desired, state=old_state)
            if changed.get("state") is RunState.RUNNING:
                newest = sa.select(sa.func.max(attempts.c.number)).join(runs).where(this_run)
                desired = dataclasses.replace(desired, again=connection.execute(newest).scalar())
            connection.execute(sa.update(runs).where(this_run).values({labels.LEDGER_DESIRED: records.to_json(desired)}))

    def note(self, run: str, change: Change) -> None:
        """Record a change of the desired state of a run. Recording it again changes nothing.

        Only the newest `CHANGES` changes of a run are kept.

        Raises:
            RunNotFound: There is no such run.
        """
        with self._connected(run) as (connection, this_run):
            owner = connection.execute(sa.select(runs.c.id).where(this_run)).scalar_one()
            row = {"run_id": owner, "uid": change.uid, "generation": change.generation, "change": records.to_json(change)}
            connection.execute(postgresql.insert(changes).values(row).on_conflict_do_nothing())
            outdated = sa.select(changes.c.id).where(changes.c.run_id == owner).order_by(changes.c.id.desc()).offset(CHANGES)
            connection.execute(sa.delete(changes).where(changes.c.id.in_(outdated)))

    def keep_images(self, run: str, images: Iterable[tuple[str, str]]) -> None:
        """Add image digests that a run's pods have used. Repeated ones are ignored.

        Args:
            run: Name of the run.
            images: Pairs of an image name and a digest.

        Raises:
            RunNotFound: There is no such run.
        """
        with self._connected(run) as (connection, this_run):
            digests = _images(connection, this_run)
            for image, digest in images:
                digests[image] = tuple(dict.fromkeys((*digests.get(image, ()), digest)))
            tables.describe(connection, this_run, {labels.LEDGER_IMAGES: digests})

    def images(self, run: str) -> dict[str, tuple[str, ...]]:
        """Return the digests that a run's pods have used, by image name.

        Raises:
            RunNotFound: There is no such run.
        """
        with self._connected(run) as (connection, this_run):
            return _images(connection, this_run)

    def changes(self, run: str) -> list[Change]:
        """Return the changes of the desired state of a run, the oldest first.

        Raises:
            RunNotFound: There is no such run.
        """
        with self._connected(run) as (connection, this_run):
            return _changes(connection, this_run, changes.c.id)

    def admit(self, run: str, token: str) -> None:
        """Set the token that opens a run at the gateway. A token derived from it opens MLflow for the run.

        For an unknown run, this does nothing.
        """
        self._set_tokens(run, ledger.token_digest(token), ledger.token_digest(mlflow.token(token)))

    def revoke(self, run: str) -> None:
        """Revoke the tokens of a run."""
        self._set_tokens(run, None, None)

    def _set_tokens(self, run: str, digest: str | None, derived: str | None) -> None:
        with self._connections.begin() as connection:
            if tables.is_there(connection):
                connection.execute(sa.update(runs).where(runs.c.name == run).values(token=digest, mlflow_token=derived))

    def admitted(self) -> list[str]:
        """Return the names of the runs with a token."""
        with self._connections.begin() as connection:
            if not tables.is_there(connection):
                return []
            return list(connection.execute(sa.select(runs.c.name).where(runs.c.token.is_not(None))).scalars())

    def opens(self, run: str, token: str) -> bool:
        """Whether a token opens a run. For an unknown run the check takes as long as for a known one."""
        return self._opens(run, runs.c.token, token)

    def opens_mlflow(self, run: str, token: str) -> bool:
        """Whether a token opens MLflow for a run, as `opens`."""
        return self._opens(run, runs.c.mlflow_token, token)

    def _opens(self, run: str, column: sa.Column[str], token: str) -> bool:
        with self._connections.checking() as connection:
            # Remembered, because each request to MLflow checks a token.
            self._is_there = self._is_there or tables.is_there(connection)
            digest = connection.execute(sa.select(column).where(runs.c.name == run)).scalar() if self._is_there else None
        return is_same_digest(digest, ledger.token_digest(token))

    def token_digest(self, run: str) -> str:
        """Return the hash of the token that opens a run; "" without a token."""
        with self._connected(run) as (connection, this_run):
            return connection.execute(sa.select(runs.c.token).where(this_run)).scalar() or ""

    def forget(self, run: str) -> None:
        """Mark a run for removal by the operator, and revoke its tokens.

        The operator removes the run's files first. The record stays until then.

        Raises:
            LedgerLocked: A controller works on the run.
        """
        with self._connected(run) as (connection, this_run):
            _claim(connection, run)
            forgotten = connection.execute(sa.select(runs.c.forgotten).where(this_run)).scalar()
            mark = forgotten or secrets.token_hex(4)
            connection.execute(sa.update(runs).where(this_run).values(forgotten=mark, token=None, mlflow_token=None))

    def remember(self, run: str, uid: str) -> bool:
        """Undo `forget` for a run, if its record is of the Run object with this uid. Return whether it is."""
        with self._connected(run) as (connection, this_run):
            submission = tables.document(connection, this_run, labels.LEDGER_SUBMISSION) or {}
            if submission.get(labels.UID) != uid:
                return False
            connection.execute(sa.update(runs).where(this_run).values(forgotten=None))
            return True

    def forgotten(self) -> dict[str, str]:
        """Return the runs that are marked for removal, each with its mark."""
        with self._connections.begin() as connection:
            if not tables.is_there(connection):
                return {}
            query = sa.select(runs.c.name, runs.c.forgotten).where(runs.c.forgotten.is_not(None))
            return {name: str(mark) for name, mark in connection.execute(query)}

    def delete(self, run: str) -> None:
        """Delete a run's record.

        Raises:
            LedgerLocked: A controller works on the run.
        """
        with self._connected(run) as (connection, this_run):
            _claim(connection, run)
            connection.execute(sa.text("SET LOCAL statement_timeout = 0"))  # a large run has millions of reports
            for table in (attempts, reports, changes, sizes):
                connection.execute(sa.delete(table).where(table.c.run_id.in_(sa.select(runs.c.id).where(this_run))))
            connection.execute(sa.delete(runs).where(this_run))
            tables.drop_code(connection)

    @contextmanager
    def _connected(self, run: str) -> Iterator[tuple[sa.Connection, sa.ColumnElement[bool]]]:
        """Begin a transaction. Yield its connection, and the condition that selects the run's row of `runs`.

        Raises:
            RunNotFound: There is no such run.
            LedgerCorrupt: The tables are of another version.
        """
        this_run = (runs.c.name == run) & runs.c.job.is_not(None)
        with self._connections.begin() as connection:
            if not tables.is_there(connection):
                raise errors.RunNotFound(f"nothing has been submitted here yet, so there is no run {run}")
            if connection.execute(sa.select(runs.c.id).where(this_run)).scalar() is None:
                raise errors.RunNotFound(f"the ledger has no run {run}")
            yield connection, this_run


def _changes(
    connection: sa.Connection, this_run: sa.ColumnElement[bool], order: sa.ColumnElement[Any], limit: int | None = None
) -> list[Change]:
    """Return the changes of the run that `this_run` selects."""
    query = sa.select(changes.c.change).join(runs).where(this_run).order_by(order).limit(limit)
    return [records.from_json(Change, text) for (text,) in connection.execute(query)]


def _images(connection: sa.Connection, this_run: sa.ColumnElement[bool]) -> dict[str, tuple[str, ...]]:
    """Return the image digests of the run that `this_run` selects."""
    return {
        image: tuple(digests)
        for image, digests in (tables.document(connection, this_run, labels.LEDGER_IMAGES) or {}).items()
    }


def is_same_digest(expected: str | None, digest: str) -> bool:
    """Whether a token's hash is the one in the ledger, compared in constant time."""
    return hmac.compare_digest(expected or _NO_TOKEN, digest)


def _is_opened(connection: sa.Connection, run: str, digest: str) -> bool:
    """Whether the token with this hash opens a run. The run need not exist."""
    return is_same_digest(connection.execute(sa.select(runs.c.token).where(runs.c.name == run)).scalar(), digest)


def _try_claim(connection: sa.Connection, run: str) -> bool:
    """Lock controllers out of a run until the end of the transaction. Return False if a controller works on it."""
    key = locking.key(tables.schema(connection), run)
    return bool(connection.execute(sa.select(sa.func.pg_try_advisory_xact_lock(key))).scalar())


def _claim(connection: sa.Connection, run: str) -> None:
    """Lock controllers out of a run until the end of the transaction.

    Raises:
        LedgerLocked: A controller works on it.
    """
    if not _try_claim(connection, run):
        raise errors.LedgerLocked(f"a controller works on {run}; `platform cancel {run}` ends it")


def _last(page: Page, order: Literal["number", "place"]) -> int | None:
    """Return the number or place after which the next page begins; None on the last page."""
    return page.stored[-1][-1 if order == "number" else 0] if page.more and page.stored else None


def _job(connection: sa.Connection, this_run: sa.ColumnElement[bool]) -> Job:
    """Return the job of the run that `this_run` selects."""
    return kinds.read(tables.document(connection, this_run, labels.LEDGER_JOB))
