"""The page of `platform report` for MLflow, at the end of a run on a cluster.

A run's pod is gone after its end, and a user's machine cannot write to the MLflow of a cluster. So the exporter makes the
page. A laptop's exporter makes none: the prompt would wait for it, and `platform report --mlflow` makes one at any time.
"""

from __future__ import annotations

import time

from trialplane.job.kinds import Job
from trialplane.ledger import attempts as reading
from trialplane.ledger.attempts import Attempt
from trialplane.ledger.storages import Source
from trialplane.pages import content, page
from trialplane.pages.content import PageContext, RunRecord
from trialplane.wire import system_metrics
from trialplane.wire.records import ReportRow, RunStatus

# The run ends later by the time in which these are read and drawn: some 5 s.
MAX_ATTEMPTS = 5000
MAX_REPORTS = 50_000
MAX_VALUES = 500_000  # of metrics in reports; a million took 480 MiB of memory, and the container has 900
MAX_BYTES = 32 << 20


class PageTooLarge(Exception):
    """The run is too large for a page that its end waits for."""


def make(job: Job, status: RunStatus, source: Source) -> str:
    """Return the page of a run as HTML.

    Args:
        job: Job of the run.
        status: Status of the run after its end.
        source: Ledger of the run.

    Raises:
        PageTooLarge: The run has more than `MAX_ATTEMPTS` attempts, `MAX_REPORTS` reports or `MAX_VALUES` values, or its
            page has more than `MAX_BYTES` bytes.
        LedgerError: The ledger cannot be read.
        InputError: plotly is not installed.
    """
    page.plotly_file()  # raises if it is not installed
    attempts = _attempts(source)
    rows = [reading.trial_row(job, attempts[number], alive=False) for number in sorted(attempts)]
    record = RunRecord(job, status, rows, _reports(source))
    run_content = content.content(record, PageContext(flags="", is_named=False, prices=None, now=time.time()))
    text = page.page(status.run, [run_content])
    if len(text) > MAX_BYTES:
        raise PageTooLarge(f"it has more than {MAX_BYTES >> 20} MiB")
    return text


def _attempts(source: Source) -> dict[int, Attempt]:
    """Return all attempts by their numbers.

    Raises:
        PageTooLarge: There are too many.
    """
    attempts = {attempt.request.number: attempt for attempt in source.running_attempts(-1)}
    end = 0
    while True:
        ends = source.ended_attempts(end)
        attempts |= {attempt.request.number: attempt for attempt in ends}
        if len(attempts) > MAX_ATTEMPTS:
            raise PageTooLarge(f"the run has more than {MAX_ATTEMPTS:,} attempts")
        if len(ends) < reading.SOURCE_PAGE:
            return attempts
        end = reading.newest_end_number(ends, end)


def _reports(source: Source) -> list[ReportRow]:
    """Return all reports but samples of system metrics.

    Raises:
        PageTooLarge: There are too many.
    """
    rows: list[ReportRow] = []
    mark, value_count, has_more = 0, 0, True
    while has_more:
        part = source.reports(mark)
        mark = part.rows[-1].mark if part.rows else mark
        reports = system_metrics.without_samples(part.rows)
        rows += reports
        value_count += sum(len(row.metrics) for row in reports)
        has_more = part.more
        if len(rows) > MAX_REPORTS or value_count > MAX_VALUES:
            raise PageTooLarge(f"the run has more than {MAX_REPORTS:,} reports, or {MAX_VALUES:,} values in them")
    return rows
