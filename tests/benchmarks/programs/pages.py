"""Opens the report of a run, and optuna-dashboard on its export, in Chromium; in turn, with a new context for each.

Chromium is asked over its DevTools protocol with no part of it enabled, which playwright cannot: with `Runtime` enabled,
each error that a script throws and catches costs a second parse of the functions around it, 0.5 s for plotly.js.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import websocket
from tests.benchmarks import studies
from tests.pages import browsers
from tests.ports import free_port

from trialplane.client import folder
from trialplane.ledger import results
from trialplane.ledger.attempts import NO_LIMIT
from trialplane.pages import content, page
from trialplane.pages.content import PageContext, RunRecord
from trialplane.plan import plan as planning
from trialplane.wire.paths import RunPaths

ACTIONS = {
    "scroll": "() => { document.querySelector('#trials .grid').scrollTop += 5000; }",
    "sort": "() => document.querySelectorAll('#trials .header button')[2].click()",
    "filter": """() => {
        const box = document.querySelector('#trials input');
        box.value = `loss < ${100 + Math.random()}`;
        box.dispatchEvent(new Event('input'));
    }""",
    # Drags along an axis of the parallel coordinates. The first move of a drag draws in the next frame, as each further one.
    "brush": """() => {
        const grip = document.querySelector('#parallel .grip'), box = grip.getBoundingClientRect();
        const send = (type, part) => grip.dispatchEvent(
            new PointerEvent(type, {bubbles: true, clientX: box.left, clientY: box.top + part * box.height}));
        send('pointerdown', 0.2);
        send('pointermove', 0.7);
        send('pointerup', 0.7);
    }""",
}
_SECTIONS = {"brush": "parallel"}  # in which an action is, if not in the table of trials
# Milliseconds in the page until an action and the frame after it are done, with what the action leaves to this frame.
_TIMED = """async () => {
    const begun = performance.now();
    (%s)();
    await new Promise(requestAnimationFrame);
    await new Promise((done) => setTimeout(done));
    return performance.now() - begun;
}"""

# Milliseconds from the jump to the learning curves until they are drawn.
_CURVES = """(async () => {
    const begun = performance.now(), section = document.getElementById('curves');
    section.scrollIntoView({behavior: 'instant'});
    while (!section.querySelector('.chart .plot-container')) await new Promise(requestAnimationFrame);
    return performance.now() - begun;
})()"""


def main() -> None:
    """Answers with milliseconds of each opening and action, and seconds of each writing."""
    arguments = json.loads(sys.argv[1])
    scratch, rounds, patience = Path(arguments["scratch"]), arguments["rounds"], arguments["patience"]
    scratch.mkdir(parents=True)
    file = scratch / "report.html"
    taken: dict[str, list[float]] = {name: [] for name in ("content", "chart", *ACTIONS, "curves", "theirs", "writing")}
    with chromium(scratch) as browser:
        for number in range(0 if arguments["warm_up"] else 1, rounds + 1):
            begun = time.perf_counter()
            _write(RunPaths(Path(arguments["folder"])), file)
            samples = {"writing": time.perf_counter() - begun, **_ours(browser, file)}
            # A server of its own for each round: one that is asked for a large study works on after its page has closed.
            with _dashboard(Path(arguments["exported"]), scratch) as address:
                theirs = _theirs(browser, address, patience)
            if theirs is not None:
                samples["theirs"] = theirs
            for name, sample in samples.items() if number else ():  # round 0 warms the page cache
                taken[name].append(sample)
    print(json.dumps(taken))  # noqa: T201  this is the answer


def _write(run: RunPaths, file: Path) -> None:
    """Write the report of a run that has no status, as the benchmark's histories have none."""
    job = folder.load_job(run)
    attempts = results.attempts(run.ledger, studies.NAME, job, alive=False)
    reports = results.reports(run.ledger, studies.NAME, alive=False, after=0, limit=NO_LIMIT)
    recorded = RunRecord(job, planning.pending_status(run.root.name, job, 0.0), attempts, reports)
    around = PageContext("--local", False, None, time.time())
    file.write_text(page.page("benchmark", [content.content(recorded, around)]), encoding="utf-8")


class Tab:
    """A page in a browser context of its own.

    Args:
        port: Port of the browser's DevTools.
        context: ID of the browser context.
        target: ID of the page.
    """

    def __init__(self, port: int, context: str, target: str) -> None:
        self.context = context
        self._connection = _Connection(f"ws://127.0.0.1:{port}/devtools/page/{target}")

    def value(self, expression: str) -> Any:
        """Return the value of an expression in the page; await it if it is a promise."""
        answer = self._connection.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"]["exception"].get("description", "an error in the page"))
        return answer["result"].get("value")

    def wait_for(self, expression: str, patience: float) -> bool:
        """Wait until an expression is true in the page; False if it is not after `patience` seconds."""
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            with contextlib.suppress(RuntimeError):  # the page has not loaded
                if self.value(expression):
                    return True
            time.sleep(0.05)
        return False

    def close(self) -> None:
        """Close the connection to the page."""
        self._connection.close()


class Browser:
    """Chromium without a window.

    Args:
        port: Port of its DevTools.
        path: Path of the browser itself at that port.
    """

    def __init__(self, port: int, path: str) -> None:
        self._port = port
        self._connection = _Connection(f"ws://127.0.0.1:{port}{path}")

    @contextlib.contextmanager
    def open(self, address: str) -> Iterator[Tab]:
        """Open an address in a new context, without cookies and cache of the former ones."""
        context = self._connection.call("Target.createBrowserContext")["browserContextId"]
        target = self._connection.call("Target.createTarget", url=address, browserContextId=context, width=1280, height=900)
        with contextlib.closing(Tab(self._port, context, target["targetId"])) as tab:
            yield tab
        self._connection.call("Target.disposeBrowserContext", browserContextId=context)


class _Connection:
    """A connection of the DevTools protocol."""

    def __init__(self, address: str) -> None:
        self._socket = websocket.create_connection(address, suppress_origin=True, timeout=browsers.PATIENCE / 1000)
        self._numbers = itertools.count(1)

    def call(self, method: str, **arguments: Any) -> dict[str, Any]:
        """Return the result of a method of the protocol."""
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": arguments}))
        while True:
            answer = json.loads(self._socket.recv())
            if answer.get("id") == number:
                break
        if "error" in answer:
            raise RuntimeError(answer["error"]["message"])
        return dict(answer["result"])

    def close(self) -> None:
        self._socket.close()


@contextlib.contextmanager
def chromium(scratch: Path) -> Iterator[Browser]:
    profile = scratch / "profile"
    options = (
        *browsers.FLAGS,
        "--headless=new",
        "--no-first-run",
        "--remote-debugging-port=0",
        f"--user-data-dir={profile}",
    )
    with (
        (scratch / "chromium.log").open("wb") as log,
        subprocess.Popen([browsers.PROGRAM or "chromium", *options], stdout=log, stderr=log) as process,
    ):
        try:
            port, path = _devtools(profile / "DevToolsActivePort", process)
            yield Browser(port, path)
        finally:
            process.terminate()


def _devtools(file: Path, process: subprocess.Popen[bytes]) -> tuple[int, str]:
    """Return port and path of the DevTools of a browser, once it has written both."""
    deadline = time.monotonic() + browsers.PATIENCE / 1000
    while time.monotonic() < deadline and process.poll() is None:
        lines = file.read_text().split() if file.exists() else []
        if len(lines) == 2:
            return int(lines[0]), lines[1]
        time.sleep(0.05)
    raise SystemExit(f"Chromium does not start: {file.parent.with_name('chromium.log')}")


@contextlib.contextmanager
def _dashboard(exported: Path, scratch: Path) -> Iterator[str]:
    """Start optuna-dashboard, as its users do; gives its address."""
    port = free_port()
    command = [Path(sys.executable).with_name("optuna-dashboard"), f"sqlite:///{exported}", "--port", str(port), "--quiet"]
    with (
        (scratch / "dashboard.log").open("wb") as log,
        subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True) as server,
    ):
        address = f"http://127.0.0.1:{port}"
        try:
            deadline = time.monotonic() + 60
            while not _answers(address):
                if time.monotonic() > deadline or server.poll() is not None:
                    raise SystemExit(f"optuna-dashboard does not answer: {log.name}")
                time.sleep(0.1)
            yield address
        finally:
            os.killpg(server.pid, signal.SIGKILL)  # it has a process below it, and ends no answer that is under way


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False


def _ours(browser: Browser, file: Path) -> dict[str, float]:
    with browser.open(file.absolute().as_uri()) as tab:
        if not tab.wait_for("performance.getEntriesByName('chart').length > 0", browsers.PATIENCE / 1000):
            raise SystemExit(f"the page draws no chart: {file}")
        taken = {
            name: float(tab.value(f"performance.getEntriesByName('{name}')[0].startTime")) for name in ("content", "chart")
        }
        for name, action in ACTIONS.items():
            section = _SECTIONS.get(name, "trials")
            tab.value(f"document.getElementById('{section}').scrollIntoView({{behavior: 'instant'}})")
            time.sleep(1)  # until the charts on the way are drawn
            taken[name] = float(tab.value(f"({_TIMED % action})()"))
        taken["curves"] = float(tab.value(_CURVES))
        return taken


def _theirs(browser: Browser, address: str, patience: float) -> float | None:
    """Milliseconds until the history of the study has points in optuna-dashboard; None if that takes too long."""
    try:
        with browser.open(f"{address}/dashboard/studies/1") as tab:
            drawn = tab.wait_for("document.querySelector('.scatterlayer .trace') !== null", patience)
            return float(tab.value("performance.now()")) if drawn else None
    except websocket.WebSocketException:  # the page has crashed
        return None


if __name__ == "__main__":
    main()
