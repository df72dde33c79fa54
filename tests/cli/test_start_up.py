"""What a laptop verb imports, in processes of its own: nothing heavy ever, and for `--help` and completion next to nothing.

Not checked here: how long that takes, which tests/benchmarks measures.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from tests.client.conftest import complete

from trialplane.client.run import submit
from trialplane.wire.states import RunState

HEAVY = {"torch", "ray", "numpy", "optuna", "mlflow", "transformers", "sqlalchemy", "kubernetes", "pandas", "scipy"}
SHOW_MODULES = """
import json, sys
from trialplane.cli import main
for words in json.loads(sys.argv[1]):
    try:
        main.main(words)
    except SystemExit as ending:
        print(json.dumps([ending.code, sorted(sys.modules)]), file=sys.stderr)
"""


def loaded(*commands: tuple[str, ...], **environ: str) -> list[set[str]]:
    """The modules that a process has loaded after each of several commands `platform …`, which must succeed."""
    done = subprocess.run(
        [sys.executable, "-c", SHOW_MODULES, json.dumps(commands)],
        capture_output=True,
        text=True,
        env={**os.environ, **environ},
        check=False,
    )
    ended = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("[")]
    assert [code for code, _ in ended] == [0] * len(commands), done.stderr
    return [set(modules) for _, modules in ended]


@pytest.fixture
def one_run(runs):
    run = runs.make("a", tell=complete)
    runs.say(run, RunState.SUCCEEDED)
    run.controller_log.write_text("hello\n")
    return run


def test_laptop_verbs_load_nothing_heavy(one_run):
    commands = [
        ("--help",),
        ("list",),
        ("status",),
        ("results",),
        ("best",),
        ("logs",),
        ("validate", "demo"),
        ("schema",),
        ("submit", "hpo", "demo", "--local", "--dry-run"),
        ("submit", "hpo", "demo", "--local", "--name", "a"),
    ]
    loaded_after = [{name.partition(".")[0] for name in modules} & HEAVY for modules in loaded(*commands)]
    assert dict(zip(commands, loaded_after, strict=True)) == {command: set() for command in commands}


def test_a_status_on_a_cluster_loads_nothing_heavy(target, planned):
    """But the `kubernetes` package, which reads the credentials; rich and the checks of a submission are not needed."""
    submit(target, planned("x"))
    found = {name.partition(".")[0] for name in loaded(("status", "x", "--context", "lab"))[0]}
    assert found & {*HEAVY, "rich"} == {"kubernetes"}


def test_help_loads_no_verb_and_no_library_but_click():
    (modules,) = loaded(("--help",))
    assert not {"pydantic", "yaml", "rich"} & modules
    assert {name for name in modules if name.startswith("trialplane")} == {
        "trialplane",
        "trialplane.cli",
        "trialplane.cli.main",
        "trialplane.errors",
    }


def test_rich_is_for_the_live_display_only(one_run):
    assert "rich" not in loaded(("submit", "hpo", "demo", "--local", "--dry-run"))[0]


@pytest.mark.parametrize(
    ("typed", "word", "wanted"),
    [("platform ", "1", "submit"), ("platform status ", "2", "a"), ("platform submit hpo ", "3", "demo")],
)
def test_completion_completes_verbs_runs_and_jobs(one_run, typed, word, wanted):
    done = subprocess.run(
        [sys.executable, "-c", "from trialplane.cli import main; main.main()"],
        capture_output=True,
        text=True,
        env={**os.environ, "_PLATFORM_COMPLETE": "bash_complete", "COMP_WORDS": typed, "COMP_CWORD": word},
        check=False,
    )
    assert f"plain,{wanted}" in done.stdout.splitlines()


def test_completing_verbs_imports_none(one_run):
    script = (
        "import sys, atexit\n"
        "atexit.register(lambda: print(sorted(m for m in sys.modules if m.startswith('trialplane.')), file=sys.stderr))\n"
        "from trialplane.cli import main; main.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env={**os.environ, "_PLATFORM_COMPLETE": "bash_complete", "COMP_WORDS": "platform s", "COMP_CWORD": "1"},
        check=False,
    )
    assert "plain,status" in done.stdout
    assert done.stderr.strip() == "['trialplane.cli', 'trialplane.cli.main']"


def test_a_reader_that_has_seen_enough_is_no_error(one_run):
    command = (
        f'{sys.executable} -c "from trialplane.cli import main; main.main()" schema | head -c 20; echo ${{PIPESTATUS[0]}}'
    )
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.endswith("0\n")
