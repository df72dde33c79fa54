"""`platform mcp`: the server as a client starts it, over stdio, with the client of the package `mcp` itself.

Not checked here: what the SDK below it does (tests/client).
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.client.conftest import complete, failed

from trialplane.cli import mcp as serving
from trialplane.client import exporting, target_choice
from trialplane.client.sdk import Platform
from trialplane.client.target import HERE
from trialplane.wire.states import RunState

if TYPE_CHECKING:
    from mcp import Client

PROGRAM = "import sys; from trialplane.cli import main; main.main(sys.argv[1:])"
READING = ["list", "status", "results", "logs"]


def served(talk: Callable[[Client], Awaitable[Any]], *flags: str) -> Any:
    """What a conversation with a new server gives."""
    from mcp import Client, StdioServerParameters, stdio_client

    async def converse() -> Any:
        command = StdioServerParameters(
            command=sys.executable, args=["-c", PROGRAM, "mcp", "--local", *flags], env=dict(os.environ), cwd=Path.cwd()
        )
        with Path(os.devnull).open("w") as nowhere:
            async with Client(stdio_client(command, errlog=nowhere)) as client:
                return await talk(client)

    return asyncio.run(converse())


def ask(tool: str, *flags: str, **arguments: Any) -> Any:
    """The result of one call."""
    return served(lambda client: client.call_tool(tool, arguments), *flags)


@pytest.fixture
def run(runs):
    """A run with a log; its trial 1 failed."""
    made = runs.make("a", tell=lambda request: failed(request) if request.trial == 1 else complete(request))
    runs.say(made, RunState.FAILED, failed=1, complete=5)
    return made


def test_without_more_it_only_reads(run):
    async def talk(client: Client) -> Any:
        return (await client.list_tools()).tools, await client.call_tool("submit", {"job": "demo"})

    tools, refused = served(talk)
    assert [tool.name for tool in tools] == READING
    assert all(tool.annotations.read_only_hint and tool.description for tool in tools)
    assert refused.is_error
    assert Platform().target.runs() == ["a"]


def test_runs_their_state_and_their_results(run, runs):
    runs.make("b")

    async def talk(client: Client) -> Any:
        calls = [("list", {}), ("list", {"limit": 1}), ("status", {"run": "a"}), ("results", {"run": "a", "limit": 2})]
        return [(await client.call_tool(name, given)).structured_content for name, given in calls]

    everything, one, status, results = served(talk)
    assert sorted((made["run"], made["state"]) for made in everything["runs"]) == [("a", "FAILED"), ("b", "PAUSED")]
    assert (one["total"], len(one["runs"])) == (2, 1)
    assert (status["state"], status["job"], status["failed"]) == ("FAILED", "demo", 1)
    rows = Platform().get("a").rows()
    assert [(row["trial"], row["metrics"]) for row in results["trials"]] == [(row.trial, row.metrics) for row in rows[:2]]
    assert results["total"] == 6
    assert status["best"] == results["trials"][0]


def test_a_damaged_run_is_listed(run, runs):
    runs.make("b").job.write_text("{")
    found = ask("list").structured_content["runs"]
    assert {made["run"]: made["state"] for made in found}["b"] == "DAMAGED"


def test_the_end_of_a_log(run):
    run.controller_log.write_text("".join(f"line {index}\x1b[31m\n" for index in range(300)))

    async def talk(client: Client) -> Any:
        whole = await client.call_tool("logs", {"run": "a", "lines": 300})
        end = await client.call_tool("logs", {"run": "a", "lines": 2})
        return whole.structured_content, end.structured_content

    whole, end = served(talk)
    assert (len(whole["text"].splitlines()), whole["cut"]) == (300, False)
    assert [line[:8] for line in end["text"].splitlines()] == ["line 298", "line 299"]
    assert end["cut"]
    assert "\x1b" not in end["text"]


REFUSED = [
    ("status", {"run": "../../etc"}, "String should match pattern"),
    ("status", {"run": "a" * 1000}, "String should have at most"),
    ("status", {"run": "nosuch"}, "there is no run 'nosuch'"),
    ("status", {}, "Field required"),
    ("results", {"run": "a", "limit": 10**12}, "less than or equal to 100"),
    ("logs", {"run": "a", "trial": 77}, "has started no trial 77"),
    ("submit", {"job": "../jobs/demo"}, "String should match pattern"),
    ("submit", {"job": "demo", "name": "../x"}, "String should match pattern"),
    ("submit", {"job": "demo", "params": {"nosuch": 1}}, "nosuch: there is no such parameter"),
]


def test_what_a_client_should_not_send_is_refused(run):
    async def talk(client: Client) -> Any:
        return [await client.call_tool(tool, arguments) for tool, arguments, _ in REFUSED]

    for result, (tool, arguments, says) in zip(served(talk, "--allow-submit"), REFUSED, strict=True):
        assert result.is_error, (tool, arguments)
        assert says in result.content[0].text
    assert Platform().target.runs() == ["a"]


# The size of results, on the tools themselves: no conversation is needed to measure them.


def test_results_are_bounded_whatever_a_job_writes(run, runs):
    run.controller_log.write_text("x" * 10**6 + "\n" + ("y" * 1000 + "\n") * 400)
    job = runs.jobs / "demo" / "job.yaml"
    job.write_text(
        job.read_text() + f"params: {{long: {'z' * 10_000}, nested: [{', '.join('1' * 1 for _ in range(9000))}]}}\n"
    )

    def wordy(request):
        done = complete(request)
        return type(done)(
            **{**vars(done), "message": "m" * 10**5, "metrics": {**done.metrics, **dict.fromkeys(map(str, range(500)), 1.0)}}
        )

    runs.say(runs.make("b", tell=wordy, trials=100), RunState.SUCCEEDED, warnings=("w" * 10**5,) * 50)
    tools = serving.Tools(Platform())
    results = tools.results("b", limit=100)
    assert results["total"] == 100
    assert 0 < len(results["trials"]) < 100, "as many as fit"
    found = [results, tools.status("b"), tools.runs(100), tools.logs("a", lines=500)]
    assert all(len(json.dumps(one)) < 80_000 for one in found), [len(json.dumps(one)) for one in found]


@pytest.mark.services
@pytest.mark.slow
def test_a_real_run_from_its_submission_to_its_results(workplace):
    folder = workplace / "jobs" / "quick"
    folder.mkdir()
    spec = {
        "kind": "hpo",
        "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
        "params": {"power": 2},
        "objective": {"metric": "loss", "direction": "minimize"},
    }
    (folder / "job.yaml").write_text(json.dumps(spec))
    code = "def run(ctx):\n    print('x is', ctx.params['x'])\n    return {'loss': ctx.params['x'] ** ctx.params['power']}\n"
    (folder / "train.py").write_text(code)

    async def talk(client: Client) -> Any:
        arguments = {"job": "quick", "name": "quick", "trials": 3, "parallel": 2, "params": {"power": 3}}
        begun = await client.call_tool("submit", arguments)
        assert not begun.is_error, begun.content
        await asyncio.to_thread(Platform().get("quick").wait, 300)
        calls = [("status", {}), ("results", {}), ("logs", {"trial": 0})]
        return [begun.structured_content] + [
            (await client.call_tool(tool, {"run": "quick", **given})).structured_content for tool, given in calls
        ]

    begun, status, results, log = served(talk, "--allow-submit")
    assert (begun["run"], begun["state"]) == ("quick", "PENDING")
    assert (status["state"], status["complete"]) == ("SUCCEEDED", 3)
    assert results["trials"][0]["metrics"]["loss"] == results["trials"][0]["params"]["x"] ** 3
    assert "x is " in log["text"]
    assert target_choice.recall().last_target == HERE


def test_without_the_package_it_says_what_to_install(platform, monkeypatch):
    find = exporting.importlib.util.find_spec
    monkeypatch.setattr(exporting.importlib.util, "find_spec", lambda name: None if name == "mcp" else find(name))
    done = platform("mcp", "--local")
    assert (done.exit_code, "mcp cannot be found; pip install 'trialplane[mcp]'" in done.stderr) == (2, True)
    assert platform("mcp", "--help").exit_code == 0
