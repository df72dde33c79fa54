"""All runs of a namespace in PostgreSQL: the gateway reads them, and the operator records and deletes them.

The operator is the service that turns each Run object of Kubernetes into pods. The gateway is the service through which
controllers and users reach the database.

The operator records a submitted run before its controller exists, the desired states that users set, and the token with
which the controller opens the run at the gateway. The controller itself writes through `served`. Deleting a run takes the
lock that its controller holds while it works.
"""

from __future__ import annotations

import dataclasses
import functools
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
from trialplane.ledger import locking, run_status, tables
from trialplane.ledger.attempts import Attempt, AttemptTexts, Page, Reports
from trialplane.ledger.budget import Budget
from trialplane.ledger.run_status import Counts
from trialplane.ledger.tables import attempts, changes, codes, reports, runs, sizes
from trialplane.plan import plan as planning
from trialplane.wire import labels, ledger, mlflow, records
from trialplane.wire.records import Change, Desired, RunStatus, TrialRow
from trialplane.wire.states import RunState

# For callers outside of this package, which do not know SQLAlchemy.
DATABASE_ERRORS = tables.DATABASE_ERRORS  # any method may raise them
reason = tables.reason

PAGE = 1 << 20  # bytes of attempts that are read at a time; the last attempt may exceed it
COUNTS = 50  # number of runs without a controller whose counts are cached; each takes at most some 50 KB
CHANGES = 1000  # number of a run's newest changes that are kept
_NO_TOKEN = "0" * 64  # compared instead of a missing hash, so that the comparison takes equally long


def unavailable(error: BaseException) -> str:
    """Return the message for users when the database does not answer."""
    return f"the ledger's database does not answer: {reason(error)}; all records are safe"


# The number of sessions that hold an advisory lock; `high` and `low` are the two halves of its key.
_LOCK_HOLDERS = """
SELECT count(*) FROM pg_locks
WHERE locktype = 'advisory' AND granted AND objsubid = 1 AND classid = :high AND objid = :low
AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


class InvalidToken(Exception):
    """Error of a token that does not open the run."""


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
        stored: The attempts, with Optuna's view of them.
        next: Number of the last attempt of this page, after which the next page begins; None on the last page.
        until: Number of an end. In this page and the next ones, attempts that ended after it count as running.
        alive: Whether a controller works on the run.
    """

    stored: list[AttemptTexts]
    next: int | None
    until: int
    alive: bool


class Archive:
    """All runs of one namespace.

    A method raises RunNotFound if there is no run of the name that it gets, unless its docstring says what it does then.

    Args:
        connections: Share of the process's connections, which selects the namespace's schema.
        budget: Budget of the namespace; None for the default limits.
    """

    def __init__(self, connections: tables.Share, budget: Budget | None = None) -> None:
        self._connections = connections
        self._budget = budget or Budget("this namespace")
        self._spending = threading.Lock()  # held while `_reserved` changes
        # Bytes that are counted in the database, but not spent yet.
        self._reserved: dict[budgets.Category, int] = {budgets.MLFLOW: 0, budgets.ARTIFACTS: 0}
        self._has_tables = False
        # So the attempts of a killed controller are read once, and again only if there are more starts or ends.
        self._cached_counts = functools.lru_cache(COUNTS)(self._count)

    def runs(self) -> list[RunEntry]:
        """Return all runs, the newest first."""
        query = sa.select(runs.c.name, runs.c.job, runs.c.submission).where(runs.c.job.is_not(None))
        entries: list[RunEntry] = []
        with self._connections.begin() as connection:
            if not tables.has_tables(connection):
                return []  # nothing has ever been submitted here
            for run, job, submission in connection.execution_options(yield_per=10).execute(query):
                submitted = float(json.loads(submission or "{}").get("submitted", 0.0))
                entries.append(RunEntry(run, job=json.loads(job)["name"], submitted=submitted))
        return sorted(entries, key=lambda entry: (-entry.submitted, entry.run))

    def column(self, run: str, name: str) -> Any:
        """Return the value in a column of a run; None if the column is empty."""
        with self._connect(run) as (connection, this_run):
            return tables.read_column(connection, this_run, name)

    def snapshot(self, run: str) -> Snapshot | None:
        """Return the snapshot of a run; None if there is no such run.

        Raises:
            LedgerCorrupt: The records of the run cannot be read.
        """
        # This must come before the status is read. If the controller ends in between, the status that is read is its last
        # one. In the other order it could be an earlier status, and the run would look as if its controller had been
        # killed.
        alive = self.is_alive(run)
        try:
            with self._connect(run) as (connection, this_run):
                job = _job(connection, this_run)
                submission = tables.read_column(connection, this_run, labels.LEDGER_SUBMISSION) or {}
                status_fields = tables.read_column(connection, this_run, labels.LEDGER_STATUS)
                desired = _desired(connection, this_run)
                token = connection.execute(sa.select(runs.c.token).where(this_run)).scalar()
                newest_change = _changes(connection, this_run, order=changes.c.id.desc(), limit=1)
                images = _images(connection, this_run)
            if status_fields:
                status = records.from_dict(RunStatus, status_fields)
            else:  # no status was ever written
                status = planning.pending_status(run, job, submitted=0.0)
            for record in (status, desired):  # `from_dict` does not check the types
                if field := records.mistyped_field(record):
                    raise ValueError(f"{type(record).__name__}.{field} is {getattr(record, field)!r:.60}")
            change = newest_change[0] if newest_change else None
            return Snapshot(job, submission, status, desired, alive=alive, token=token, change=change, images=images)
        except errors.RunNotFound:
            return None
        except ValueError as error:
            raise errors.LedgerCorrupt(f"the ledger's records of {run} cannot be read: {error}") from error

    def code(self, run: str) -> bytes | None:
        """Return the packed code of a run; None if it has none."""
        with self._connect(run) as (connection, this_run):
            packed = sa.select(codes.c.data).join(runs, runs.c.code == codes.c.digest).where(this_run)
            return connection.execute(packed).scalar()

    def is_alive(self, run: str) -> bool:
        """Return whether a controller works on the run: it holds the run's lock as long as it works."""
        with self._connections.begin() as connection:
            key = locking.key(tables.schema(connection), run) % 2**64  # PostgreSQL shows the key as an unsigned number
            return bool(connection.execute(sa.text(_LOCK_HOLDERS), {"high": key >> 32, "low": key % 2**32}).scalar())

    def attempts(self, run: str, after: int) -> tuple[list[TrialRow], int | None]:
        """Return a page of the attempts with numbers above `after`.

        If no controller works on the run, attempts that have not ended are LOST.

        Returns:
            The attempts, and the number after which the next page begins; None on the last page.
        """
        alive = self.is_alive(run)
        with self._connect(run) as (connection, this_run):
            job = _job(connection, this_run)
            page = reading.page(tables.select(connection), run, after=after, size=PAGE)
            return [reading.trial_row(job, attempt, alive) for attempt in page.attempts], _start_of_next_page(page)

    def counts(self, run: str) -> Counts:
        """Return the counts of the attempts of a run without a controller.

        They are cached under the version of the attempts: the run's epoch, and the last numbers of an attempt and of an end.

        Raises:
            ValueError: An attempt cannot be read.
        """
        with self._connect(run) as (connection, this_run):
            # The version is read before the attempts. If a controller writes in between, counts with its attempts are cached
            # under the version before, which is never requested again. The epoch alone is not enough: a controller that has
            # lost its connection opens the run again under the same epoch.
            last_numbers = sa.select(sa.func.max(attempts.c.number), sa.func.max(attempts.c.end_number))
            run_id, epoch = connection.execute(sa.select(runs.c.id, runs.c.epoch).where(this_run)).one()
            last_attempt, last_end = connection.execute(last_numbers.where(attempts.c.run_id == run_id)).one()
        return self._cached_counts(run, (run_id, epoch, last_attempt, last_end))

    def _count(self, run: str, version: tuple[int | None, ...]) -> Counts:
        """Read the attempts of a run and count them. `version` only identifies the result in the cache, see `counts`."""
        with self._connect(run) as (connection, this_run):
            job = _job(connection, this_run)
            pages = reading.pages(tables.select(connection), run, size=PAGE)
            return run_status.recount(job, (reading.trial_row(job, attempt, alive=False) for attempt in pages))

    def attempt(self, run: str, trial: int, attempt: int | None = None) -> TrialRow | None:
        """Return an attempt at a trial; None if there is no such attempt.

        Args:
            run: Name of the run.
            trial: Number of the trial.
            attempt: Number of the attempt among those at the trial; None for the newest.
        """
        alive = self.is_alive(run)
        with self._connect(run) as (connection, this_run):
            job = _job(connection, this_run)
            at_trial = reading.pages(tables.select(connection), run, size=PAGE, where="AND trial = :trial", trial=trial)
            newest: Attempt | None = None
            for candidate in at_trial:  # only one is kept, as an attempt can have megabytes
                if attempt in (None, candidate.request.attempt):
                    newest = candidate
            return reading.trial_row(job, newest, alive) if newest else None

    def has_saved(self, run: str) -> bool | None:
        """Return whether an attempt of the run has saved a checkpoint.

        Returns:
            None if it is unknown: an attempt that still runs, or was lost with its pod, may have saved one.
        """
        with self._connect(run) as (connection, _):
            all_attempts = reading.pages(tables.select(connection), run, size=PAGE)
            # Of each attempt True, False, or None if it is unknown.
            answers = {attempt.outcome.saved if attempt.outcome else None for attempt in all_attempts}
        if True in answers:
            return True
        return None if None in answers else False

    def ended_attempts(self, run: str, after: int) -> tuple[list[TrialRow], int, bool]:
        """Return a page of the attempts whose ends have numbers above `after`.

        Returns:
            The attempts in the order of their ends; the number of the last end, or `after` if there is none; and whether
            there may be another page.
        """
        with self._connect(run) as (connection, this_run):
            job = _job(connection, this_run)
            page = reading.page(tables.select(connection), run, after=after, size=PAGE, order="end_number")
            ended = page.attempts
            rows = [reading.trial_row(job, attempt, alive=True) for attempt in ended]  # `alive` is for running ones only
            return rows, reading.newest_end_number(ended, after), page.more

    def attempts_after(self, run: str, digest: str, after: int, order: str, limit: int) -> list[Attempt]:
        """Return the first attempts after a number, or after the number of an end, if the caller has the run's token.

        Args:
            run: Name of the run.
            digest: Hash of the token.
            after: Number of an attempt, or of its end.
            order: "number", "end_number" for attempts that have ended, or "running" for the others, by number.
            limit: Maximum number of attempts. There are fewer if they do not fit into a page.

        Raises:
            InvalidToken: The token does not open the run.
        """
        column: Literal["number", "end_number"] = "end_number" if order == "end_number" else "number"
        is_running = "AND end_number IS NULL" if order == "running" else ""
        with self._connections.begin() as connection:
            _check_digest(connection, run, digest)
            page = reading.page(tables.select(connection), run, after=after, size=PAGE, order=column, where=is_running)
            return page.attempts[:limit]

    def reports_after(self, run: str, digest: str, after: int) -> Reports:
        """Return a page of the reports with marks above `after`. For `digest` and the error see `attempts_after`."""
        with self._connections.begin() as connection:
            _check_digest(connection, run, digest)
            return reading.reports(tables.select(connection), run, after=after, size=PAGE)

    def reports(self, run: str, after: int, limit: int) -> Reports:
        """Return a page of at most `limit` reports with marks above `after`, which is 0 for the first page."""
        with self._connect(run) as (connection, _):
            return reading.reports(tables.select(connection), run, after=after, size=PAGE, limit=limit)

    def attempts_since(self, run: str, after: int, number: int = -1, until: int | None = None) -> AttemptsPage:
        """Return a page of the running attempts and those whose ends have numbers above `after`.

        Attempts may end between two pages. All pages must show the same moment, so an attempt whose end has a
        number above `until` is returned as running.

        Args:
            run: Name of the run.
            after: Number of the last end that the caller has read; 0 for all attempts.
            number: Number of the last attempt of the page before; -1 for the first page.
            until: `until` of the page before; None for the first page, which takes the number of the last end.
        """
        alive = self.is_alive(run)
        with self._connect(run) as (connection, this_run):
            if until is None:
                last = sa.select(sa.func.coalesce(sa.func.max(attempts.c.end_number), 0)).join(runs).where(this_run)
                until = int(connection.execute(last).scalar_one())
            where = "AND (end_number IS NULL OR end_number > :since)"
            page = reading.page(
                tables.select(connection), run, after=number, size=PAGE, where=where, optuna=True, since=after
            )
            stored = [_as_of_end(attempt, until) for attempt in page.stored]
        # A controller may have started or ended while the attempts were read. Its running attempts must not count as lost.
        alive = alive or self.is_alive(run)
        return AttemptsPage(stored, next=_start_of_next_page(page), until=until, alive=alive)

    def spend(self, category: budgets.Category, size: int, *, may_exceed: bool) -> None:
        """Count bytes that are about to be written to MLflow.

        Most requests are small, so their bytes are added to the count in the database in larger portions, in advance.
        `_reserved` holds the rest of the last portion.

        Args:
            category: Records or artifacts.
            size: Number of bytes.
            may_exceed: Whether a tenth more than the budget is allowed, see `Budget.check`. Ignored for artifacts.

        Raises:
            LedgerFull: The namespace's budget is spent.
        """
        with self._spending:
            if size > self._reserved[category]:
                portion = max(size, budgets.AT_ONCE)
                with self._connections.begin() as connection:
                    if category == budgets.ARTIFACTS:
                        self._budget.check_artifacts(connection, size)
                    else:
                        self._budget.check(connection, size, may_exceed=may_exceed)
                    budgets.add_usage(connection, category, portion)
                self._reserved[category] += portion
            self._reserved[category] -= size

    def refund(self, category: budgets.Category, size: int) -> None:
        """Return bytes that MLflow rejected to the reserve, for the next requests."""
        with self._spending:
            self._reserved[category] += size

    def record_run(self, run: str, job: Job, submission: Mapping[str, Any], code: bytes, *, new: bool) -> None:
        """Record a submitted or resumed run, so that it is listed even if its pods never start.

        Args:
            run: Name of the run.
            job: The resolved job.
            submission: Facts about the submission.
            code: The packed code.
            new: Whether the run is submitted, so that its name must be free. A resumed run has a record already.

        Raises:
            RunExists: `new` is set, and there is a run of that name.
            LedgerLocked: A controller works on the run.
            LedgerFull: The namespace's budget is spent.
        """
        tables.create_if_missing(self._connections)
        facts: dict[str, Any] = {
            labels.LEDGER_JOB: job.model_dump(mode="json"),
            labels.LEDGER_SUBMISSION: submission,
        }
        with self._connections.begin() as connection:
            used_before = budgets.count_used(connection)
            # The code is checked before it is written, because rows that are rolled back use space in the database too.
            if not tables.has_code(connection, code):
                self._budget.check(connection, more=len(code))
            this_run = runs.c.name == run
            directions = json.dumps([objective.direction for objective in job.objectives])
            insert = postgresql.insert(runs).values(name=run, directions=directions, epoch=0, optuna="{}")
            inserted_id = connection.execute(insert.on_conflict_do_nothing().returning(runs.c.id)).scalar()
            if inserted_id is None:  # the run has a row already
                if new:
                    raise errors.RunExists(f"the ledger has a study {run} already")
                _claim(connection, run)
            status = tables.read_column(connection, this_run, labels.LEDGER_STATUS) or {}
            if status.get("started") is None:  # no controller has written a status yet
                pending = planning.pending_status(run, job, float(submission.get("submitted", 0.0)))
                facts[labels.LEDGER_STATUS] = records.to_dict(pending)
            tables.write_facts(connection, this_run, facts)
            connection.execute(sa.update(runs).where(this_run).values(code=tables.store_code(connection, code)))
            tables.delete_unused_code(connection)
            if budgets.count_used(connection) > used_before:
                # Counts all that this transaction has written. An error rolls it back.
                self._budget.check(connection, more=0)

    def change_desired(self, run: str, changed: Mapping[str, Any]) -> None:
        """Change the desired state of a run.

        A cancelled run stays cancelled if a pause is desired. A new state RUNNING retries an attempt that failed for good:
        `Desired.again` gets the number of the run's newest attempt.

        Args:
            run: Name of the run.
            changed: New values of fields of `Desired`; the others stay.
        """
        with self._connect(run) as (connection, this_run):
            # The lock on the row makes concurrent changes wait for each other, so that none is lost. `key_share` lets
            # others insert rows that refer to this one.
            connection.execute(sa.select(runs.c.id).where(this_run).with_for_update(key_share=True))
            old = _desired(connection, this_run)
            desired = dataclasses.replace(old, **changed)
            if old.state is RunState.CANCELLED and desired.state is RunState.PAUSED:
                desired = dataclasses.replace(desired, state=RunState.CANCELLED)
            if changed.get("state") is RunState.RUNNING:
                newest = sa.select(sa.func.max(attempts.c.number)).join(runs).where(this_run)
                desired = dataclasses.replace(desired, again=connection.execute(newest).scalar())
            connection.execute(sa.update(runs).where(this_run).values({labels.LEDGER_DESIRED: records.to_json(desired)}))

    def record_change(self, run: str, change: Change) -> None:
        """Record a change of the desired state of a run. Recording it again changes nothing.

        Only the newest `CHANGES` changes of a run are kept.
        """
        with self._connect(run) as (connection, this_run):
            run_id = connection.execute(sa.select(runs.c.id).where(this_run)).scalar_one()
            row = {"run_id": run_id, "uid": change.uid, "generation": change.generation, "change": records.to_json(change)}
            connection.execute(postgresql.insert(changes).values(row).on_conflict_do_nothing())
            outdated = (
                sa.select(changes.c.id).where(changes.c.run_id == run_id).order_by(changes.c.id.desc()).offset(CHANGES)
            )
            connection.execute(sa.delete(changes).where(changes.c.id.in_(outdated)))

    def add_images(self, run: str, images: Iterable[tuple[str, str]]) -> None:
        """Add image digests that a run's pods have used. Repeated ones are ignored.

        Args:
            run: Name of the run.
            images: Pairs of an image name and a digest.
        """
        with self._connect(run) as (connection, this_run):
            digests = _images(connection, this_run)
            for image, digest in images:
                digests[image] = tuple(dict.fromkeys((*digests.get(image, ()), digest)))
            tables.write_facts(connection, this_run, {labels.LEDGER_IMAGES: digests})

    def images(self, run: str) -> dict[str, tuple[str, ...]]:
        """Return the digests that a run's pods have used, by image name."""
        with self._connect(run) as (connection, this_run):
            return _images(connection, this_run)

    def changes(self, run: str) -> list[Change]:
        """Return the changes of the desired state of a run, the oldest first."""
        with self._connect(run) as (connection, this_run):
            return _changes(connection, this_run, order=changes.c.id)

    def set_token(self, run: str, token: str) -> None:
        """Set the token with which a controller opens a run at the gateway. For an unknown run, this does nothing.

        A second token, which is derived from it, lets the run use MLflow.
        """
        mlflow_digest = ledger.token_digest(mlflow.token(token))
        self._set_digests(run, digest=ledger.token_digest(token), mlflow_digest=mlflow_digest)

    def revoke_tokens(self, run: str) -> None:
        """Revoke both tokens of a run."""
        self._set_digests(run, digest=None, mlflow_digest=None)

    def _set_digests(self, run: str, digest: str | None, mlflow_digest: str | None) -> None:
        """Set the hashes of a run's two tokens; None revokes a token."""
        with self._connections.begin() as connection:
            if tables.has_tables(connection):
                values = {"token": digest, "mlflow_token": mlflow_digest}
                connection.execute(sa.update(runs).where(runs.c.name == run).values(values))

    def runs_with_token(self) -> list[str]:
        """Return the names of the runs that have a token."""
        with self._connections.begin() as connection:
            if not tables.has_tables(connection):
                return []
            return list(connection.execute(sa.select(runs.c.name).where(runs.c.token.is_not(None))).scalars())

    def is_token_valid(self, run: str, token: str) -> bool:
        """Return whether a token opens a run. For an unknown run the check takes as long as for a known one."""
        return self._is_hash_in_column(run, runs.c.token, token)

    def is_mlflow_token_valid(self, run: str, token: str) -> bool:
        """Return whether a token lets a run use MLflow. The check takes equally long for all runs, as `is_token_valid`."""
        return self._is_hash_in_column(run, runs.c.mlflow_token, token)

    def _is_hash_in_column(self, run: str, column: sa.Column[str], token: str) -> bool:
        """Return whether the hash of a token is the one in a column of the run's row."""
        with self._connections.checking() as connection:
            # Tables never vanish, so one check that they exist is enough. Each request to MLflow comes here.
            self._has_tables = self._has_tables or tables.has_tables(connection)
            digest = connection.execute(sa.select(column).where(runs.c.name == run)).scalar() if self._has_tables else None
        return is_same_digest(digest, ledger.token_digest(token))

    def token_digest(self, run: str) -> str:
        """Return the hash of the token that opens a run; "" if the run has no token."""
        with self._connect(run) as (connection, this_run):
            return connection.execute(sa.select(runs.c.token).where(this_run)).scalar() or ""

    def mark_for_removal(self, run: str) -> None:
        """Mark a run for removal by the operator, and revoke its tokens.

        The operator first removes the run's files, and then the run's record with `delete`. A run that is marked already
        keeps its mark.

        Raises:
            LedgerLocked: A controller works on the run.
        """
        with self._connect(run) as (connection, this_run):
            _claim(connection, run)
            old_mark = connection.execute(sa.select(runs.c.removal_mark).where(this_run)).scalar()
            mark = old_mark or secrets.token_hex(4)
            connection.execute(sa.update(runs).where(this_run).values(removal_mark=mark, token=None, mlflow_token=None))

    def unmark_for_removal(self, run: str, uid: str) -> bool:
        """Remove the mark of `mark_for_removal` if the run's record belongs to the Run object with this uid.

        Returns:
            Whether the record belongs to it.
        """
        with self._connect(run) as (connection, this_run):
            submission = tables.read_column(connection, this_run, labels.LEDGER_SUBMISSION) or {}
            if submission.get(labels.UID) != uid:
                return False
            connection.execute(sa.update(runs).where(this_run).values(removal_mark=None))
            return True

    def removal_marks(self) -> dict[str, str]:
        """Return the runs marked by `mark_for_removal`: name → mark.

        A mark is a random text that is part of the names of the pods that remove the run's files.
        """
        with self._connections.begin() as connection:
            if not tables.has_tables(connection):
                return {}
            query = sa.select(runs.c.name, runs.c.removal_mark).where(runs.c.removal_mark.is_not(None))
            return {name: str(mark) for name, mark in connection.execute(query)}

    def delete(self, run: str) -> None:
        """Delete a run's record: its row, and all rows that belong to it.

        Raises:
            LedgerLocked: A controller works on the run.
        """
        with self._connect(run) as (connection, this_run):
            _claim(connection, run)
            connection.execute(sa.text("SET LOCAL statement_timeout = 0"))  # a large run has millions of reports
            for table in (attempts, reports, changes, sizes):
                connection.execute(sa.delete(table).where(table.c.run_id.in_(sa.select(runs.c.id).where(this_run))))
            connection.execute(sa.delete(runs).where(this_run))
            tables.delete_unused_code(connection)

    @contextmanager
    def _connect(self, run: str) -> Iterator[tuple[sa.Connection, sa.ColumnElement[bool]]]:
        """Begin a transaction. Yield its connection, and the condition that selects the run's row of `runs`.

        Raises:
            RunNotFound: There is no such run.
            LedgerCorrupt: The tables are of another version.
        """
        this_run = (runs.c.name == run) & runs.c.job.is_not(None)
        with self._connections.begin() as connection:
            if not tables.has_tables(connection):
                raise errors.RunNotFound(f"nothing has been submitted here yet, so there is no run {run}")
            if connection.execute(sa.select(runs.c.id).where(this_run)).scalar() is None:
                raise errors.RunNotFound(f"the ledger has no run {run}")
            yield connection, this_run


def _changes(
    connection: sa.Connection, this_run: sa.ColumnElement[bool], order: sa.ColumnElement[Any], limit: int | None = None
) -> list[Change]:
    """Return the changes of the run that `this_run` selects: all, or the first `limit` ones in the given order."""
    query = sa.select(changes.c.change).join(runs).where(this_run).order_by(order).limit(limit)
    return [records.from_json(Change, text) for (text,) in connection.execute(query)]


def _images(connection: sa.Connection, this_run: sa.ColumnElement[bool]) -> dict[str, tuple[str, ...]]:
    """Return the image digests of the run that `this_run` selects."""
    digests_by_image = tables.read_column(connection, this_run, labels.LEDGER_IMAGES) or {}
    return {image: tuple(digests) for image, digests in digests_by_image.items()}


def _desired(connection: sa.Connection, this_run: sa.ColumnElement[bool]) -> Desired:
    """Return the desired state of the run that `this_run` selects; the default one if none was written."""
    return records.from_dict(Desired, tables.read_column(connection, this_run, labels.LEDGER_DESIRED) or {})


def is_same_digest(expected: str | None, digest: str) -> bool:
    """Return whether a token's hash is the one in the ledger. The comparison always takes equally long.

    Args:
        expected: Hash in the ledger; None if the run has no token, which no hash equals.
        digest: Hash of the token.
    """
    return hmac.compare_digest(expected or _NO_TOKEN, digest)


def _check_digest(connection: sa.Connection, run: str, digest: str) -> None:
    """Raise InvalidToken unless the token with this hash opens a run. The run need not exist."""
    if not is_same_digest(connection.execute(sa.select(runs.c.token).where(runs.c.name == run)).scalar(), digest):
        raise InvalidToken


def _claim(connection: sa.Connection, run: str) -> None:
    """Take the lock of a run until the end of the transaction, so that no controller can open the run.

    Raises:
        LedgerLocked: A controller works on the run.
    """
    key = locking.key(tables.schema(connection), run)
    if not connection.execute(sa.select(sa.func.pg_try_advisory_xact_lock(key))).scalar():
        raise errors.LedgerLocked(f"a controller works on {run}; `platform cancel {run}` ends it")


def _as_of_end(attempt: AttemptTexts, end_number: int) -> AttemptTexts:
    """Return an attempt as it was when the end with this number was the last one: running if it has ended later."""
    has_ended_later = attempt.end_number is not None and attempt.end_number > end_number
    return attempt._replace(end_number=None, outcome=None) if has_ended_later else attempt


def _start_of_next_page(page: Page) -> int | None:
    """Return the number of the last attempt of a page, after which the next page begins; None on the last page."""
    return page.stored[-1].number if page.more and page.stored else None


def _job(connection: sa.Connection, this_run: sa.ColumnElement[bool]) -> Job:
    """Return the job of the run that `this_run` selects."""
    return kinds.read(tables.read_column(connection, this_run, labels.LEDGER_JOB))
