"""The generated references are up to date, and the site documents every command, option, job field, public function and
value of the chart.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import sys
from html import parser
from pathlib import Path
from types import ModuleType

import click
import pytest
from tests.docs import pages

import trialplane
from trialplane import integrations, training
from trialplane.job import schema

VALUES = pages.ROOT / "charts" / "platform" / "values.schema.json"


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    """platform/docs/generate.py, which is a script and in no package."""
    spec = importlib.util.spec_from_file_location("docs_generate", pages.FOLDER / "generate.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("stem", ["commands", "job-yaml", "chart", "operator"])
def test_a_generated_page_is_current(generator: ModuleType, stem: str) -> None:
    assert set(generator.PAGES) == {"commands", "job-yaml", "chart", "operator"}
    current = (pages.FOLDER / "reference" / f"{stem}.md").read_text()
    assert current == generator.PAGES[stem](), "renew it: python platform/docs/generate.py"


def test_every_command_and_option_is_in_the_reference(generator: ModuleType) -> None:
    text = (pages.FOLDER / "reference" / "commands.md").read_text()
    sections = {part.splitlines()[0]: part for part in re.split("\n##+ ", text)}
    for path, command in generator.walk():
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                for flag in parameter.opts:
                    assert flag in sections[path], f"{path} {flag}"


def test_every_field_of_a_job_is_in_the_reference() -> None:
    text = (pages.FOLDER / "reference" / "job-yaml.md").read_text()
    for name, definition in schema.json_schema()["$defs"].items():
        if not name.startswith("Partial") and not name.endswith("Profile"):
            for field in definition.get("properties", {}):
                assert f"| `{field}` |" in text, f"{name}.{field}"


def test_every_value_of_the_chart_is_in_the_reference() -> None:
    text = (pages.FOLDER / "reference" / "chart.md").read_text()
    for name, value in json.loads(VALUES.read_text())["properties"].items():
        if not value.get("description", "").startswith(("Ignored", "Refused")):
            assert f"`{name}" in text, name


class _Ids(parser.HTMLParser):
    def __init__(self, page: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.ids |= {value for key, value in attrs if key == "id" and value}


@pytest.mark.slow
@pytest.mark.slow
def test_every_public_function_is_in_the_reference(site: Path) -> None:
    """By the anchors of the site: `trialplane.training.lines.Lines.open`."""
    ids = {page: _Ids(site / "reference" / f"{page}.html").ids for page in ("sdk", "training", "integrations")}
    for name in trialplane.__all__:
        value = getattr(trialplane, name)
        assert f"{value.__module__}.{value.__qualname__}" in ids["sdk"], name
    shared = {"__init__", "reports", "saves", "drawing"}  # parts of the integrations
    libraries = {file.stem for file in Path(integrations.__path__[0]).glob("*.py")} - shared
    for page, package, modules in (("training", training, training.__all__), ("integrations", integrations, libraries)):
        for name in modules:
            for function in _public(Path(package.__path__[0], name)):
                assert f"{package.__name__}.{name}.{function}" in ids[page], f"{name}.{function}"


def _public(module: Path) -> list[str]:
    """The public functions and classes of a module or package, from its source: importing it takes its library."""
    file = module / "__init__.py" if module.is_dir() else module.with_suffix(".py")
    tree = ast.parse(file.read_text())
    found = [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(one, ast.Name) and one.id == "__all__" for one in node.targets):
            found += ast.literal_eval(node.value)
    return [name for name in found if not name.startswith("_")]
