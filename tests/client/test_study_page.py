"""The page of a run that goes on: what it answers, with the secret of its server only, and what a browser makes of it.

Not checked here: the sections (tests/pages/test_page.py), MLflow beside it (tests/cli/test_ui.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import io
import json
import socket
import urllib.error
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import urllib3
from tests.browser import Browser
from tests.client.conftest import complete, failed
from tests.pages import browsers, studies
from tests.pages.conftest import chromium

from trialplane.client import folder, study_page
from trialplane.client.pages import Pages
from trialplane.client.run import RunHandle
from trialplane.client.study_page import StudyPage
from trialplane.controller.ledger import Ledger
from trialplane.wire.records import TrialOutcome, TrialReport, TrialRequest, TrialRow
from trialplane.wire.states import RunState, TrialState

__all__ = ["chromium"]  # fixture


@contextlib.contextmanager
def other(method: str, target: str, body: bytes) -> Iterator[Any]:
    """Answers in place of MLflow."""
    yield urllib3.HTTPResponse(io.BytesIO(b'"other"'), status=200, preload_content=False)


@pytest.fixture
def opened(chromium) -> Iterator[Callable[..., browsers.Page]]:
    """Opens a page, which asks its server for news until the test ends."""
    pages: list[browsers.Page] = []
    yield lambda *values, **options: pages.append(chromium(*values, **options)) or pages[-1]
    for page in pages:
        page.leave()


@pytest.fixture
def served(runs, monkeypatch) -> Iterator[Any]:
    """Serves the page of a run."""
    monkeypatch.setattr(study_page, "MIN_PAUSE", 0.0)
    monkeypatch.setattr(study_page, "MAX_SHARE", 1.0)
    with contextlib.ExitStack() as stack:

        def serve(run: str, target: Any = None, start: str = "/", **options: Any) -> Pages:
            page = StudyPage(RunHandle(run, target or runs.target), lambda: studies.AROUND, **options)
            listener = socket.create_server(("127.0.0.1", 0))
            return stack.enter_context(Pages(page.add_to(other), listener, lambda: start, print))

        yield serve


def content(
    browser: Browser, after: int, known: dict[tuple[str, str], list[Any]] | None = None
) -> tuple[dict[str, Any], dict[tuple[str, str], list[Any]]] | None:
    answer = browser.get(f"/-/report/data?after={after}")
    if answer is None:
        return None
    (facts,) = answer["runs"]
    return facts, studies.unpacked(facts["columns"], answer["block"], known)


def test_what_is_newer_is_sent_and_nothing_twice(runs, served):
    run = runs.make("a", tell=complete, asks=2)
    runs.say(run, RunState.RUNNING)
    browser = Browser(served("a").page("/-/report"))
    assert browser.page.endswith("/-/report")
    assert "token" not in browser.page
    facts, table = content(browser, 0) or ({}, {})
    assert table["trials", "trial"] == [0, 1]
    assert content(browser, facts["version"]) is None
    runs.drive(run, failed, 1)
    facts, table = content(browser, facts["version"], table) or ({}, {})
    assert table["trials", "state"] == ["COMPLETE", "COMPLETE", "FAILED"]
    assert {entry["kept"] for entry in facts["columns"] if entry["name"] == "state"} == {2}, (
        "the first two are not sent again"
    )
    runs.report(run, 3)
    facts, table = content(browser, facts["version"], table) or ({}, {})
    assert (table["points 0", "step"], table["points 1", "step"], facts["curve_metrics"]) == (
        [0, 1, 2],
        [0, 1, 2],
        ["loss", "lr"],
    )
    assert str(content(browser, 0)[1]) == str(table), "a page that is further behind gets all"  # type: ignore[index]
    assert content(browser, facts["version"]) is None
    for odd in ("", "x", "-1", "9" * 40, "%00"):
        assert content(browser, odd) is not None  # type: ignore[arg-type]
    assert browser.get("/other") == "other"


def test_samples_of_system_metrics_are_not_sent(runs, served):
    run = runs.make("a", tell=complete, asks=1)
    runs.say(run, RunState.RUNNING)
    browser = Browser(served("a").page("/-/report"))
    with Ledger(f"sqlite:///{run.ledger}", folder.load_job(run), "a", run.code, run.lock) as ledger:
        request = ledger.ask()
        assert request is not None

        def report(step: int, **metrics: float) -> None:
            ledger.report(TrialReport(request.number, step, metrics, 100.0))
            ledger.write_reports(patient=True)

        report(1, loss=0.5)
        facts, table = content(browser, 0) or ({}, {})
        for sample in range(3):
            report(sample, **{"system/cpu_utilization_percentage": 9.0})
            assert content(browser, facts["version"]) is None, "nothing is computed again"
        report(2, loss=0.4)
        _, table = content(browser, facts["version"], table) or ({}, {})
        assert table["points 0", "step"] == [1, 2]


def test_the_log_of_an_attempt_is_text_that_no_browser_runs(runs, served):
    run = runs.make("a", tell=lambda request: complete(request) if request.trial else failed(request), asks=2)
    file = run.trial_log(1, 1)
    file.parent.mkdir(parents=True)
    file.write_text("<script>alert(1)</script>\n\x1b]0;title\x07\n" + "long\n" * 50_000)
    browser = Browser(served("a").page("/-/report"))
    with browser.open("/-/report/log?trial=1&attempt=1") as reply:
        assert reply.headers["Content-Type"] == "text/plain; charset=utf-8"
        assert reply.headers["X-Content-Type-Options"] == "nosniff"
        text = reply.read().decode()
    assert text.startswith("<script>alert(1)</script>\n\\u001b]0;title\\u0007\n")
    assert text.count("long\n") == 50_000
    for query in ("trial=7", "trial=0&attempt=9"):
        with pytest.raises(urllib.error.HTTPError) as refused:
            browser.open(f"/-/report/log?{query}")
        with refused.value as reply:
            assert reply.code == 404


def asked(pages: Pages, path: str, cookie: str = "") -> tuple[int, str | None]:
    """The status of an answer, and where it leads."""
    connection = http.client.HTTPConnection(pages.address.partition("//")[2].partition("/")[0])
    with contextlib.closing(connection):
        connection.request("GET", path, headers={"Cookie": cookie})
        answer = connection.getresponse()
        answer.read()
        return answer.status, answer.headers["Location"]


def test_nobody_without_the_secret_gets_it(runs, served):
    runs.make("a", tell=complete, asks=1)
    pages = served("a")
    for path in (
        "/-/report",
        "/-/report/data?after=0",
        "/-/report/log?trial=0",
        "/-/report?token=",
        "/-/report?token=0",
        "/?token=0",
    ):
        assert asked(pages, path) == (403, None)


def test_the_secret_of_another_start_opens_nothing(runs, served):
    runs.make("a", tell=complete, asks=1)
    earlier, pages = served("a"), served("a")
    assert asked(pages, f"/-/report?token={earlier.secret}") == (403, None)
    cookie = Browser(pages.page("/-/report")).cookie
    assert asked(pages, "/-/report", cookie) == (200, None)
    assert asked(pages, "/-/report", cookie.replace(pages.secret, earlier.secret)) == (403, None)


def test_an_address_with_the_secret_leads_to_this_site_alone(runs, served):
    runs.make("a", tell=complete, asks=1)
    pages = served("a")
    secret = pages.address.partition("?")[2]
    for path, leads in (
        ("//evil.example", "/evil.example"),
        ("/-/report", "/-/report"),
        ("/", "/"),
        ("/-/start", "/-/start"),
    ):
        assert asked(pages, f"{path}?{secret}") == (303, leads)


@pytest.mark.parametrize("options", [{}, {"server": "optuna-dashboard"}])
def test_its_link_leads_to_the_start_page_of_the_server_beside_it(runs, served, opened, options):
    runs.make("a", tell=complete, asks=1)
    shown = opened(served("a", start="/-/report?started", **options).page("/-/report"))
    shown.page.get_by_role("link", name=options.get("server", "MLflow"), exact=True).click()
    shown.page.wait_for_url("**/-/report?started")


def test_a_copy_of_the_page_has_no_links_to_its_server(runs, opened, tmp_path):
    run = runs.make("a", tell=failed, asks=1)
    runs.say(run, RunState.SUCCEEDED)
    file = tmp_path / "a.html"
    file.write_text(StudyPage(RunHandle("a", runs.target), lambda: studies.AROUND).html())
    shown = opened(file)
    assert shown.read("document.querySelectorAll('a[href]:not(nav a)').length") == 0


def test_a_run_on_a_cluster_is_read_through_the_gateway(runs, served, target, namespace, planned):
    from tests.client.conftest import submitted

    submitted(target, planned())
    browser = Browser(served("a", target).page("/-/report"))
    facts, _ = content(browser, 0) or ({}, {})
    assert (facts["run"], facts["state"]) == ("a", "RUNNING")
    namespace.tell("a", [TrialRow(0, TrialState.COMPLETE, 1, 0, values=(0.5,), metrics={"loss": 0.5})])
    with browser.open(f"{facts['logs']}?trial=0&attempt=0") as reply:
        assert reply.read() == b"trial 0\n"


def test_a_failure_on_the_page_links_to_its_log(runs, served, opened, tmp_path_factory):
    folder = browsers.pictures(tmp_path_factory)
    run = runs.make("a", tell=failed, asks=1)
    runs.say(run, RunState.RUNNING)
    file = run.trial_log(0, 1)
    file.parent.mkdir(parents=True)
    file.write_text("it went wrong here\n")
    shown = opened(served("a").page("/-/report"))
    assert "platform logs a 0" in shown.text("#failures")
    shown.page.screenshot(path=folder / "live-page.png", full_page=True)
    shown.page.locator("#failures").screenshot(path=folder / "live-failures.png")
    with shown.page.expect_popup() as popup:
        shown.page.locator("#failures a").click()
    popup.value.get_by_text("it went wrong here").wait_for(timeout=browsers.PATIENCE)
    popup.value.screenshot(path=folder / "live-log.png")
    assert shown.errors == []


def test_a_browser_runs_nothing_of_a_log_or_of_what_is_newer(runs, served, opened):
    text = studies.HOSTILE

    def tell(request: TrialRequest) -> TrialOutcome:
        return dataclasses.replace(complete(request), metrics={"loss": 1.0, text: 1.0})

    run = runs.make("a", tell=tell, asks=2, trials=12, space={"name": {"type": "categorical", "choices": [text, "plain"]}})
    runs.say(run, RunState.RUNNING)
    shown = opened(served("a").page("/-/report"))
    runs.drive(run, lambda request: failed(request, message=text), 1)
    runs.drive(run, tell, 4)
    runs.say(run, RunState.RUNNING, reason=text, warnings=(text,))
    file = run.trial_log(2, 1)
    file.parent.mkdir(parents=True)
    file.write_text(f"{text}\n" * 3)
    shown.page.wait_for_function("document.querySelector('#summary').textContent.includes('7 of 12')")
    shown.page.wait_for_function("document.querySelector('.notice')?.textContent.includes('onerror')")
    for section in shown.sections:
        shown.show(section)
    assert text in shown.read("document.querySelector('#failures pre').textContent")
    assert text in shown.read("document.querySelector('#trials .header').textContent")
    assert shown.read("document.querySelectorAll('img, section a:not(.modebar-btn)').length") == 1, "the log's link"
    with shown.page.expect_popup() as popup:
        shown.page.locator("#failures a").click()
    log = popup.value
    log.on("dialog", lambda dialog: (shown.errors.append(dialog.message), dialog.dismiss()))
    log.on("pageerror", lambda error: shown.errors.append(error.message))
    log.on("console", lambda line: shown.errors.append(line.text))
    log.reload()
    assert log.evaluate("document.body.textContent") == f"{text}\n" * 3
    assert log.evaluate("document.body.querySelectorAll('*').length") == 1, "one block of text"
    assert shown.errors == []


def test_a_browser_shows_what_is_newer_and_keeps_what_was_chosen(runs, served, opened):
    run = runs.make("a", tell=complete, asks=5, trials=12)
    runs.say(run, RunState.RUNNING)
    shown = opened(served("a").page("/-/report"))
    shown.show("trials")
    shown.page.locator("#trials .rows .row").first.click()
    best = shown.text("#trials .rows .row")
    shown.page.locator("#trials input").fill("loss < 10")
    runs.drive(run, complete, 3)
    shown.page.wait_for_function("document.querySelector('#trials .count').textContent.startsWith('8 ')")
    shown.page.wait_for_function("document.querySelector('#summary').textContent.includes('8 of 12')")
    assert shown.page.locator("#trials input").input_value() == "loss < 10"
    chosen = shown.page.locator("#trials .row[aria-selected=true]")
    assert chosen.inner_text() == best
    runs.drive(run, lambda request: dataclasses.replace(complete(request), metrics={"loss": -1.0}), 1)
    shown.page.wait_for_function("document.querySelector('#summary').textContent.includes('loss -1')")
    drawn = "document.querySelector('#history .chart')?.data?.[0].x.length"
    shown.show("history")
    assert shown.read(drawn) == 9
    assert shown.errors == []
    assert json.dumps(shown.requests).count("/-/report/data?after=") >= 2


def test_a_browser_keeps_what_was_chosen_when_the_run_ends_and_sections_come(runs, served, opened):
    run = runs.make("a", tell=complete, asks=5, trials=12)
    runs.say(run, RunState.RUNNING)
    shown = opened(served("a").page("/-/report"), viewport={"width": 1280, "height": 500})
    page = shown.page
    page.locator("#trials .header").get_by_role("columnheader", name="lr", exact=True).click()
    page.locator("#trials .rows .row").nth(2).click()
    selected = shown.text("#trials .row[aria-selected=true]")
    page.locator("#trials input").fill("loss < 10")
    page.get_by_label("Axis", exact=True).select_option("time")
    page.locator("#slice").get_by_label("Logarithmic value", exact=True).check()
    page.get_by_label("Horizontal", exact=True).select_option("name")
    shown.show("trials")
    kept = {name: page.locator(f"#{name}").element_handle() for name in ("history", "slice", "contour", "trials")}
    top = "document.querySelector('#trials .grid').getBoundingClientRect().top"
    before = shown.read(top)

    runs.say(run, RunState.SUCCEEDED)
    page.wait_for_function("document.querySelector('#summary .state').textContent === 'SUCCEEDED'")
    page.wait_for_function(f"before => Math.abs({top} - before) <= 1", arg=before)  # browsers scroll with the next frame
    runs.drive(run, failed, 1)
    runs.report(run, 3)
    page.wait_for_function("document.querySelector('#failures') && document.querySelector('#curves')")
    page.wait_for_function("document.querySelector('#trials .count').textContent.includes(' of 7 ')")
    assert shown.sections.index("curves") == shown.sections.index("contour") + 1
    assert "Failures" in shown.text("nav")

    for name, element in kept.items():
        assert element.evaluate("(old, id) => old === document.getElementById(id)", name), name
    assert page.locator("#trials input").input_value() == "loss < 10"
    assert page.locator("#trials [aria-sort=ascending]").all_inner_texts() == ["lr"]
    assert "failure" in page.locator("#trials .header button").all_inner_texts(), "a column that was empty before"
    assert shown.text("#trials .row[aria-selected=true]").startswith(selected)
    assert selected.split("\n")[0] in shown.text("#trials .details h3")
    assert page.get_by_label("Axis", exact=True).input_value() == "time"
    assert page.locator("#slice").get_by_label("Logarithmic value", exact=True).is_checked()
    assert page.get_by_label("Horizontal", exact=True).input_value() == "name"
    assert shown.errors == []


def shown_in(shown: browsers.Page, section: str) -> tuple[str, list]:
    """The text of a section, and the sizes of what its charts draw; the pixels of parallel coordinates."""
    shown.show(section)
    traces = "chart.data.map(t => [t.name, t.x?.length, t.z?.length])"
    pixels = "[...chart.querySelectorAll('canvas')].map(canvas => canvas.toDataURL())"
    return shown.text(f"#{section}"), shown.read(
        f"id => [...document.querySelectorAll(`#${{id}} .chart`)].map(chart => chart.data ? {traces} : {pixels})", section
    )


@pytest.mark.parametrize("objectives", [1, 2])
def test_a_page_that_followed_a_run_is_the_page_of_its_end(runs, served, opened, objectives):
    both = [{"metric": "loss", "direction": "minimize"}, {"metric": "size", "direction": "maximize"}]
    constraints = [{"metric": "memory", "max": 0.5}]

    def tell(request: TrialRequest) -> TrialOutcome:
        loss = request.params["lr"]
        return dataclasses.replace(complete(request), metrics={"loss": loss, "size": 7 * loss % 1, "memory": 3 * loss % 1})

    run = runs.make("a", tell=tell, asks=4, trials=12, objectives=both[:objectives], constraints=constraints)
    runs.say(run, RunState.RUNNING)
    pages = served("a")
    followed = opened(pages.page("/-/report"))
    followed.page.locator("#next .copy").first.focus()  # a section is not replaced while it has the focus
    runs.drive(run, failed, 1)
    runs.drive(run, tell, 6)
    runs.report(run, 3)
    runs.say(run, RunState.SUCCEEDED)
    state = "document.querySelector('#summary .state').textContent"
    followed.page.wait_for_function(f"{state} === 'SUCCEEDED'")
    ended = opened(pages.page("/-/report"), tab=1)
    commands = ended.text("#next")
    assert followed.text("#next") != commands
    followed.page.locator("#trials input").focus()
    taken = "text => document.querySelector('#next').innerText === text"
    followed.page.wait_for_function(taken, arg=commands)
    assert followed.sections == ended.sections
    for section in ended.sections:
        assert shown_in(followed, section) == shown_in(ended, section), section
    assert followed.errors == ended.errors == []


class Clock:
    """A clock that a test advances.

    Attributes:
        monotonic_now: Time that has passed.
        processor: Time that this thread has worked.
    """

    def __init__(self) -> None:
        self.monotonic_now = self.processor = 0.0

    def monotonic(self) -> float:
        return self.monotonic_now

    def thread_time(self) -> float:
        return self.processor


class SlowTarget:
    """A target whose attempts arrive after a wait, and cost processor time.

    Args:
        target: Target that is asked.
        clock: Clock that is advanced.
        processor: Processor time of each request, in seconds.
    """

    def __init__(self, target: Any, clock: Clock, processor: float) -> None:
        self._target, self._clock, self._processor = target, clock, processor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def attempts(self, *arguments: Any) -> Any:
        self._clock.monotonic_now += 30.0
        self._clock.processor += self._processor
        return self._target.attempts(*arguments)


@pytest.mark.parametrize(("processor", "pause"), [(0.0, 0.5), (1.0, 4.0)], ids=["waits", "works"])
def test_a_page_is_read_again_after_a_pause_for_work_but_not_for_waiting(runs, monkeypatch, processor: float, pause: float):
    clock = Clock()
    monkeypatch.setattr(study_page, "time", clock)
    run = runs.make("a", tell=complete, asks=2)
    runs.say(run, RunState.RUNNING)
    page = StudyPage(RunHandle("a", SlowTarget(runs.target, clock, processor)), lambda: studies.AROUND)
    assert page.content_after(0) is not None
    runs.drive(run, failed, 1)
    clock.monotonic_now += pause - 0.1
    assert page.content_after(1) is None
    clock.monotonic_now += 0.1
    assert page.content_after(1) is not None
