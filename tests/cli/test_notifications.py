"""Notifications of a run on this machine, from its submission to a web service that receives them.

Not checked here: which status gives rise to which message (tests/controller/test_notifications.py), and an invalid `notify`
(test_bad_input.py).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from tests.webhook import webhook

from trialplane.wire import paths


@pytest.mark.services
def test_a_service_whose_url_is_in_the_environment_hears_of_the_best_and_the_end(
    platform: Callable[..., Result], home: Path, mlflow_tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.mkdir()
    shutil.copy(mlflow_tables, paths.mlflow_db(home))
    rules = "[{url: 'secret:HOOK', on: [best, ended]}, {url: 'json://127.0.0.1:1/', on: [ended]}]"
    words = ("--local", "--name", "x", "--trials", "1", "--set", f"notify={rules}")
    with webhook() as (port, received):
        url = f"json://127.0.0.1:{port}/hook"
        monkeypatch.setenv("HOOK", url)
        result = platform("submit", "hpo", "demo", *words)
    assert result.exit_code == 0, result.output
    assert received.get(timeout=0)["title"] == "x: new best trial"
    message = received.get(timeout=0)
    assert message["title"] == "x SUCCEEDED"
    lines = message["message"].splitlines()
    assert lines[1] == "1 complete, 0 pruned, 0 failed"
    assert lines[2].startswith("best loss ")
    assert lines[-1] == "platform results x"
    assert received.empty()
    log = (home / "runs" / "x" / "controller.log").read_text()
    assert log.count("'x SUCCEEDED' was not sent to json: the service refused it or did not answer") == 1
    texts = [file.read_bytes() for file in (home / "runs" / "x").rglob("*") if file.is_file()]
    assert texts and not any(url.encode() in text for text in texts), "only the name of the secret is recorded"


@pytest.mark.services
def test_a_service_hears_of_a_run_that_fails(platform: Callable[..., Result], home: Path, mlflow_tables: Path) -> None:
    home.mkdir()
    shutil.copy(mlflow_tables, paths.mlflow_db(home))
    train = Path("jobs", "demo", "train.py")
    train.write_text(f"{train.read_text()}\n\ndef run(ctx):\n    raise ValueError('no data')\n")
    with webhook() as (port, received):
        rules = f"[{{url: 'json://127.0.0.1:{port}/', on: [best, failed]}}]"
        words = ("--local", "--name", "x", "--trials", "2", "--set", "budget.max_failed=0", "--set", f"notify={rules}")
        result = platform("submit", "hpo", "demo", *words)
    assert result.exit_code == 1, result.output
    message = received.get(timeout=0)
    assert (message["title"], message["message"].splitlines()[-1]) == ("x FAILED", "platform logs x")
    assert received.empty()
