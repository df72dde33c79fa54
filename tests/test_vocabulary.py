"""Names and docstrings of the platform: words that say nothing about a value do not come back.

The glossary (`platform/docs/reference/glossary.md`) has the terms to use.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PLATFORM = Path(__file__).parents[1] / "platform"
NAMES = {
    *(
        "found",
        "made",
        "given",
        "known",
        "kept",
        "seen",
        "asked",
        "there",
        "mine",
        "own",
        "left",
        "one",
        "what",
        "why",
        "cure",
    ),
    *("door", "desk", "parcel", "told", "laid", "lent"),
}
SUMMARY = re.compile(r"(What|Whose|Who|Whatever|How|Why|Where|Has|Have|Of)\b")  # a summary is an imperative or a noun phrase


def names(nodes: list[ast.AST]) -> Iterator[tuple[str, int]]:
    for node in nodes:
        if isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, node.lineno
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name, node.lineno


def summaries(nodes: list[ast.AST]) -> Iterator[tuple[str, int]]:
    for node in nodes:
        is_documented = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module))
        if is_documented and (docstring := ast.get_docstring(node)):
            yield docstring.splitlines()[0], getattr(node, "lineno", 1)


def problems(source: str) -> list[str]:
    nodes = list(ast.walk(ast.parse(source)))
    found_names = [f"{line}: {name}" for name, line in names(nodes) if name.strip("_") in NAMES]
    return [*found_names, *(f"{line}: {text}" for text, line in summaries(nodes) if SUMMARY.match(text))]


def test_removed_words_do_not_come_back() -> None:
    files = sorted(PLATFORM.rglob("*.py"))
    assert files
    assert {str(file): lines for file in files if (lines := problems(file.read_text(encoding="utf-8")))} == {}


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("found = 1", "1: found"),
        ("def f(given): ...", "1: given"),
        ("class A:\n    def f(self):\n        self._known = 1", "3: _known"),
        ('"""What it does."""', "1: What it does."),
        ('def f():\n    """Has the body wait."""', "1: Has the body wait."),
    ],
)
def test_what_is_a_problem(source: str, problem: str) -> None:
    assert problems(source) == [problem]
