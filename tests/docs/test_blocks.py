"""The blocks of all pages and of the README: jobs load, commands exist with these options, values fit the chart, Python and
JSON parse.

Nothing is run here: tests/docs/test_pages.py follows the pages, tests/e2e and .ci/cluster what needs a cluster.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
from pathlib import Path

import click
import jsonschema
import pytest
import yaml
from tests.docs import pages
from tests.docs.pages import Block

from trialplane.cli import main
from trialplane.job import load

LANGUAGES = {"sh", "bash", "yaml", "python", "json", "csv", "text", "toml", "ini", "mermaid", "dockerfile", "promql"}
FUNCTIONS = "def play(ctx): ...\ndef learn(ctx, results): ...\n"
BLOCKS = [block for page in pages.PAGES for block in pages.blocks(page)]


def shown(block: Block) -> str:
    """An id for a test."""
    return f"{pages.name(block.page)}-{block.title or block.text.strip().splitlines()[0][:30]}"


def of(language: str) -> list[Block]:
    """The blocks in a language."""
    return [block for block in BLOCKS if block.language == language]


def test_every_fence_closes_and_has_a_known_language() -> None:
    for page in pages.PAGES:
        fences = re.findall(r"^```.*$", page.read_text(), re.M)
        assert len(fences) == 2 * len(pages.blocks(page)), page
    assert {block.language for block in BLOCKS} <= LANGUAGES


@pytest.mark.parametrize("block", of("yaml"), ids=shown)
def test_yaml_is_a_job_that_loads_or_values_that_fit(block: Block, tmp_path: Path) -> None:
    for document in yaml.safe_load_all(block.text):
        if block.title.rpartition("/")[2].startswith("values"):
            jsonschema.validate(document, json.loads((pages.ROOT / "charts/platform/values.schema.json").read_text()))
    if not re.search(r"^kind: (hpo|train|collect)\b", block.text, re.M):
        return
    folder = tmp_path / "mine"
    folder.mkdir()
    for other in pages.blocks(block.page):
        if other.title and other is not block and Path(other.title).parent == Path(block.title).parent:
            (folder / Path(other.title).name).write_text(other.text)
    (folder / "job.yaml").write_text(block.text)
    job = yaml.safe_load(block.text)
    module, _, function = re.sub("^(optuna|ray):", "", job.get("entrypoint", "train:run")).partition(":")
    for file in (job.get("script") or f"{module}.py", *filter(None, [job.get("requirements")])):
        if not (folder / file).exists():  # the reader's own, which saves where trials are promoted
            (folder / file).write_text(f"def {function}(ctx): ctx.restored\n{FUNCTIONS}" if file.endswith(".py") else "")
    load.load_job(folder)
    for profile in job.get("profiles", {}):
        load.load_job(folder, profile=profile)


@pytest.mark.parametrize("block", of("sh") + of("bash"), ids=shown)
def test_commands_have_these_options(block: Block) -> None:
    for command in pages.commands(block.text):
        words = shlex.split(command)[1:]
        found: click.Command = main.platform
        context = click.Context(found, info_name="platform")
        while isinstance(found, click.Group) and words and not words[0].startswith("-"):
            below = found.get_command(context, words.pop(0))
            assert below is not None, command
            found = below
            context = click.Context(found, info_name=below.name, parent=context)
        if "--help" not in words and not isinstance(found, click.Group):
            try:
                found.parse_args(context, words)
            except click.UsageError as error:
                pytest.fail(f"{command}: {error.format_message()}")


def test_python_parses_and_json_is_json() -> None:
    for block in of("python"):
        ast.parse(block.text, f"{block.page}: {block.title}")
    for block in of("json"):
        json.loads(block.text)


def test_the_readme_is_one_page() -> None:
    assert len(pages.README.read_text().splitlines()) <= 150
