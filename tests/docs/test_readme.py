"""The blocks of the README: its job files load, its commands exist with these options, its Python runs, its JSON is JSON,
its links lead somewhere.

Not run here: its commands, which take minutes, a cluster or GPUs. The first is tests/study/test_criteria.py, those for a
cluster are tests/e2e, and the lines with kind, helm and kubectl are .ci/cluster. The bodies of its `run`, `play` and `learn`
stand for code of the reader's: only their syntax is checked.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
from pathlib import Path

import click
import pytest
import yaml
from tests.docs import pages

from trialplane.cli import main
from trialplane.spec import load, schema

BLOCKS = list(pages.blocks(pages.ROOT / "README.md"))
JOBS = [one.text for one in BLOCKS if one.language == "yaml" and re.search("^kind: ", one.text, re.M)]
FUNCTIONS = "def run(ctx): ...\ndef play(ctx): ...\ndef learn(ctx, results): ...\n"


def commands() -> list[str]:
    """Each `platform …` of the blocks for a shell, without what is around it."""
    lines = [line for one in BLOCKS if one.language == "sh" for line in one.text.splitlines()]
    parts = [part.partition(" # ")[0] for line in lines for part in re.split(r"&&|;|>|`", line)]
    return list(dict.fromkeys(part.strip() for part in parts if part.strip().startswith("platform ")))


@pytest.mark.parametrize("text", JOBS, ids=lambda text: text.splitlines()[1])
def test_a_job_of_the_readme_loads(text: str, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "train.py").write_text(FUNCTIONS)
    (folder / "job.yaml").write_text(text)
    beside = text.splitlines()[0].rpartition("/")[0]
    for code in [one.text for one in BLOCKS if one.language == "python" and one.text.startswith(f"{beside}/")]:
        file = folder / Path(code.splitlines()[0]).name
        if not file.exists():  # that of FUNCTIONS, which serves all blocks, has more in it
            file.write_text(code)
    job = load.load_job(folder)
    for profile in yaml.safe_load(text).get("profiles", {}):
        load.load_job(folder, profile=profile)
    assert job.kind == yaml.safe_load(text)["kind"]


def test_the_fields_of_the_table_exist() -> None:
    table = (pages.ROOT / "README.md").read_text().partition("What most people set:")[2].partition("\n\n[")[0]
    rows = [line.split(" | ")[0] for line in table.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert len(named) > 15 and named <= set(schema.json_schema()["$defs"]["Study"]["properties"])


def test_links_lead_somewhere() -> None:
    """Those of the README and its pages to files and to headings of these."""
    for page in [pages.ROOT / "README.md", *(pages.ROOT / "platform" / "docs").glob("*.md")]:
        for link in re.findall(r"\]\(([^):]+)\)", page.read_text()):
            file, _, heading = link.partition("#")
            there = page.parent / file if file else page
            assert there.exists(), f"{page.name}: {link}"
            if heading:
                titles = re.findall(r"^#+ (.*)$", there.read_text(), re.M)
                assert heading in {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}, link


def test_no_block_is_left_out() -> None:
    assert len(JOBS) == 6 and len(commands()) > 20
    assert {one.language for one in BLOCKS} <= {"sh", "yaml", "python", "json", ""}


@pytest.mark.parametrize("command", commands())
def test_a_command_has_these_options(command: str) -> None:
    words = [word for word in shlex.split(command)[1:] if word != "…"]
    found: click.Command = main.platform
    context = click.Context(found, info_name="platform")
    while isinstance(found, click.Group):
        name = words.pop(0)
        made = found.get_command(context, name)
        assert made is not None, f"there is no {name}"
        found = made
        context = click.Context(found, info_name=name, parent=context)
    found.parse_args(context, words)


def test_every_verb_of_the_table_exists() -> None:
    table = (pages.ROOT / "README.md").read_text().partition("## Commands")[2].partition("\n\nA command uses")[0]
    verbs = re.findall(r"`platform (\w+)", table)
    assert len(verbs) > 20 and set(verbs) == set(main.VERBS)


def test_python_parses_and_the_function_of_the_notebook_runs() -> None:
    texts = [one.text for one in BLOCKS if one.language == "python"]
    for text in texts:
        ast.parse(text)
    (notebook,) = [text for text in texts if "Platform().submit(" in text]
    made: dict[str, object] = {}
    exec(notebook.partition("run = Platform")[0], made)
    assert made["objective"](lr=1e-3, layers=4) == {"loss": 0.0}  # type: ignore[operator]


def test_json_is_json() -> None:
    assert [json.loads(one.text) for one in BLOCKS if one.language == "json"]
