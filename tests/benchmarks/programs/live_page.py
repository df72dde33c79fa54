"""How long it takes from a trial's end in the ledger until the live page of its run shows it in Chromium.

The run has ended trials already, and further ones end one after the other, with a pause between, as those of a slot do.
"""

from __future__ import annotations

import json
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.benchmarks import studies
from tests.benchmarks.programs import pages
from tests.pages import browsers

from trialplane.client.local import LocalTarget
from trialplane.client.pages import Pages
from trialplane.client.run import RunHandle
from trialplane.client.study_page import PATH, StudyPage
from trialplane.pages.content import PageContext
from trialplane.wire.paths import RunPaths

_PAUSE = 1.0  # seconds between two ends


def main() -> None:
    """Answers with the seconds of each end."""
    arguments = json.loads(sys.argv[1])
    scratch, source = Path(arguments["scratch"]), Path(arguments["folder"])
    scratch.mkdir(parents=True)
    run = RunPaths.of(scratch / "home", studies.NAME)  # as in its ledger
    shutil.copytree(source, run.root)
    ended = arguments["trials"]
    job, halving = studies.job(ended + arguments["ends"], "random"), studies.Halving()
    run.job.write_text(job.model_dump_json())
    page = StudyPage(
        RunHandle(run.root.name, LocalTarget(scratch / "home")), lambda: PageContext("--local", True, None, time.time())
    )
    seconds = []
    with (
        studies.open_ledger(run.root, job) as ledger,
        socket.create_server(("127.0.0.1", 0)) as listener,
        Pages(page.add_to(_nothing), listener, lambda: PATH, print) as server,
        pages.chromium(scratch) as browser,
        browser.open(server.page(PATH)) as tab,
    ):
        for number in range(ended, ended + arguments["ends"] + 1):
            if number > ended:
                time.sleep(_PAUSE)
                request = ledger.ask()
                assert request is not None
                halving.train(ledger, request)
            begun = time.perf_counter()
            shown = f"document.getElementById('trials').innerText.includes('{number:,} rows')"
            if not tab.wait_for(shown, browsers.PATIENCE / 1000):
                raise SystemExit(f"the page does not show trial {number}")
            if number > ended:  # before the first end, the page is opened
                seconds.append(time.perf_counter() - begun)
    print(json.dumps(seconds))  # noqa: T201  this is the answer


@contextmanager
def _nothing(method: str, target: str, body: bytes) -> Iterator[Any]:
    """Refuse what is not for the page."""
    raise OSError(f"{method} {target} is not for the page")
    yield


if __name__ == "__main__":
    main()
