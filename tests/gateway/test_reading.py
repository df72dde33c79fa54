"""Reads of a large ledger: they come in pages, no page is larger than it may be, and the gateway's memory stays small.

On a real PostgreSQL. How a laptop follows the pages: tests/client/test_kubernetes.py.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys

import pytest
from tests.contracts.conftest import ask, complete, report
from tests.gateway.gateway_site import Site, postgres, site

from trialplane.ledger import archive
from trialplane.ledger.attempts import Attempt
from trialplane.wire import records
from trialplane.wire.records import Change, TrialOutcome, TrialRequest
from trialplane.wire.states import TrialState

__all__ = ["postgres", "site"]  # fixtures

SIZE = 64 << 20  # bytes of the ledger
ATTEMPTS = 2048
MOST = 96  # MiB by which answering may raise the memory of the process at its peak

# Answers all pages of each read in a process of its own, which has read a small run before; prints by how many MiB the
# process has grown at its peak, the number of attempts that were answered, and the bytes of the largest answer.
PROGRAM = """
import json, pathlib, re, sys
from tests.contracts.conftest import ask, complete, report
from tests.gateway.gateway_site import NAMESPACE, TOKEN, callers
from trialplane.ledger.namespaces import Ledgers
from trialplane.gateway.logs import Controllers
from trialplane.gateway.routes import ROUTES, Gateway
ledgers = Ledgers(sys.argv[1], NAMESPACE, [NAMESPACE])
gateway = Gateway(ledgers.of(NAMESPACE), callers(), NAMESPACE, Controllers("http://127.0.0.1:9"))
routes = {route.path.rpartition("/")[2]: route for route in ROUTES}
def read(run, what):
    cursor, count, largest = {}, 0, 0
    while cursor is not None:
        options = {name: str(value) for name, value in cursor.items()}
        answer = gateway.answer(routes[what], run, options, TOKEN)
        assert answer.status_code == 200, answer.body
        page = json.loads(answer.body)
        count, largest = count + len(page.get("rows", page.get("attempts", []))), max(largest, len(answer.body))
        cursor = page.get("next")
        del page
    return count, largest
def memory(name):
    return int(re.search(rf"{name}:\\s+(\\d+)", pathlib.Path("/proc/self/status").read_text())[1]) / 1024
found = {}
for what in ("attempts", "ends", "whole", "checkpoints"):
    read("small", what)
    before = memory("VmRSS")
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    count, largest = read("large", what)
    found[what] = memory("VmHWM") - before, count, largest
print(json.dumps(found))
"""


@pytest.fixture
def large(site: Site) -> Site:
    """A run whose ledger has `SIZE` bytes, and a small one."""
    for run in ("small", "large"):
        site.ledger(run, trials=ATTEMPTS).close()
    metrics = {f"metric_{number:04}": number / 7 for number in range(SIZE // ATTEMPTS // 30)}
    outcome = records.to_json(TrialOutcome(0, TrialState.COMPLETE, metrics={"score": 1.0, **metrics}, saved=False))
    request = records.to_json(TrialRequest("large", 0, 1, 0, {"x": 0.5}, seed=0, metrics=("score",)))
    optuna = json.dumps({"state": "COMPLETE", "values": [1.0], "params": {}, "attributes": {}})
    for run, count in (("small", 1), ("large", ATTEMPTS)):
        site.postgres.execute(
            "INSERT INTO attempts (run_id, number, trial, end_number, request, outcome, optuna) "
            f"SELECT runs.id, n, n, n + 1, '{request}', '{outcome}', '{optuna}' "
            f"FROM runs, generate_series(0, {count - 1}) AS n WHERE runs.name = '{run}'",
            site.url,
        )
    return site


def test_reads_of_a_large_ledger_take_little_memory(large: Site) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, large.url], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for what, (grown, count, largest) in json.loads(done.stdout).items():
        print(f"{what}: {grown:.0f} MiB, {count} attempts, largest answer {largest:,} bytes")  # noqa: T201  figures
        assert count == (0 if what == "checkpoints" else ATTEMPTS)
        assert grown < MOST
        assert largest < 4 << 20


def test_pages_hold_each_attempt_once_and_at_least_one(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    with site.ledger("toy", trials=7) as ledger:
        for request in [ask(ledger) for _ in range(5)][::-1]:
            ledger.tell(complete(request))
        ask(ledger)
        for size in (1, 2000):
            monkeypatch.setattr(archive, "PAGE", size)
            found: dict[str, list[list[int]]] = {"attempts": [], "ends": [], "whole": []}
            for what, pages in found.items():
                query = {"after": 0} if what != "attempts" else {}
                while query is not None:
                    page = site.get(f"/runs/toy/{what}?{'&'.join(f'{name}={value}' for name, value in query.items())}")
                    entries = page.get("rows") or [one["request"] for one in page.get("attempts", [])]
                    pages.append([one["trial"] for one in entries])
                    query = None if page["next"] is None else {**query, **page["next"]}
            assert list(itertools.chain(*found["attempts"])) == list(itertools.chain(*found["whole"])) == [0, 1, 2, 3, 4, 5]
            assert list(itertools.chain(*found["ends"])) == [4, 3, 2, 1, 0]
            assert all(len(pages) > 1 for pages in found.values())
            assert size > 1 or all(len(page) <= 1 for pages in found.values() for page in pages)


def test_what_ends_between_two_pages_is_running_in_all_of_them(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next look begins after the last place of this one, so it would miss the end of one that was passed already."""
    monkeypatch.setattr(archive, "PAGE", 1)
    with site.ledger("toy") as ledger:
        first, second, third = ask(ledger), ask(ledger), ask(ledger)
        ledger.tell(complete(second))
        page = site.get("/runs/toy/whole?after=0")
        assert page["next"] == {"number": 0, "until": 1}
        ledger.tell(complete(first))
        ledger.tell(complete(third))
        found = page["attempts"]
        while page["next"] is not None:
            page = site.get(f"/runs/toy/whole?after=0&number={page['next']['number']}&until={page['next']['until']}")
            found += page["attempts"]
        seen = [records.from_dict(Attempt, one) for one in found]
        assert [(one.request.number, one.end_number, one.outcome is None) for one in seen] == [
            (0, None, True),
            (1, 1, False),
            (2, None, True),
        ]
        later = site.get("/runs/toy/whole?after=1")
        assert [one["request"]["number"] for one in later["attempts"]] == [0]


def test_of_the_changes_of_a_run_the_newest_are_kept(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "CHANGES", 3)
    site.ledger("toy").close()
    for number in range(5):
        for _ in range(2):
            site.archive.record_change("toy", Change(float(number), "ann", f"change {number}", "uid", number, {}))
    assert [change["generation"] for change in site.get("/runs/toy/changes")] == [2, 3, 4]


def test_a_limit_of_reports_holds_over_all_pages(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    with site.ledger("toy") as ledger:
        request = ask(ledger)
        for step in range(5):
            ledger.report(report(request, step, score=0.5))
        ledger.write_reports(patient=True)
        monkeypatch.setattr(archive, "PAGE", 1)  # byte: a page for each report
        marks, cursor = [], {"after": 0, "limit": 3}
        while cursor is not None:
            page = site.get("/runs/toy/curves?" + "&".join(f"{name}={value}" for name, value in cursor.items()))
            marks += [one["mark"] for one in page["reports"]]
            cursor = page["next"]
        assert marks == [1, 2, 3]
        monkeypatch.undo()
        page = site.get("/runs/toy/curves?limit=2")
        assert ([one["mark"] for one in page["reports"]], page["next"]) == ([1, 2], None)
