"""The names that a script gives to the items of `sys.argv`.

Not checked: the job of a command with such arguments (tests/cli/test_programs.py).
"""

from __future__ import annotations

import ast

import pytest

from trialplane.importing import positions


def named(text: str, *requested: str) -> list[tuple[str, str]]:
    return [(option.name, option.kind) for option in positions.options(ast.parse(f"import sys\n{text}"), requested)]


@pytest.mark.parametrize(
    "text",
    [
        "path = sys.argv[1]\nrate = float(sys.argv[2])\ndepth = int(sys.argv[3])",
        "def main():\n    path, rate, depth = sys.argv[1], np.float64(sys.argv[2]), int(str(sys.argv[3]))",
        "def fit(path, rate, depth): ...\nfit(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))",
        "Fit(path=sys.argv[1], rate=float(sys.argv[2]), depth=int(sys.argv[3]))",
        "path: str = sys.argv[1]\nif len(sys.argv) > 2: rate = float(sys.argv[2])\ndepth = int(sys.argv[3]) if ok else 2",
        "from sys import argv\npath, rate, depth = argv[1], float(argv[2]), int(argv[3])",
        "words = sys.argv[1:]\npath = words[0]\nrate, depth = float(words[1]), int(words[2])",
        "def main(words):\n    path, rate, depth = words[1], float(words[2]), int(words[3])\nmain(sys.argv)",
        "path = os.path.join('data', sys.argv[1])\nrate, depth = float(sys.argv[1:][1]), int(sys.argv[3])",
    ],
)
def test_an_item_has_the_name_that_gets_it(text: str) -> None:
    assert named(text) == [("path", "str"), ("rate", "float"), ("depth", "int")]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("_, rate, size = sys.argv", "str"),
        ("rate, size, *others = sys.argv[1:]", "str"),
        ("rate, size = map(float, sys.argv[1:3])", "float"),
        ("rate, size = [float(text) for text in sys.argv[1:]]", "float"),
        ("def fit(rate, size): ...\nfit(*map(float, sys.argv[1:]))", "float"),
    ],
)
def test_items_have_the_names_that_get_all_of_them(text: str, kind: str) -> None:
    assert named(text) == [("rate", kind), ("size", kind)]


@pytest.mark.parametrize(
    "text",
    [
        "rate = 10 ** -float(sys.argv[2])",  # another value than the item's
        "loss = fit(float(sys.argv[2]))",
        "rate = float(sys.argv[1])\nif ok: rate = float(sys.argv[2])\nsize = sys.argv[2] + sys.argv[1]",
        "others = sys.argv[2:]\nrate = float(others[-1])\nprint(sys.argv[2])",
        "*others, rate = sys.argv",
        "words = sys.argv\nif ok: words = words[1:]\nrate = words[2]",
    ],
)
def test_a_name_is_not_guessed(text: str) -> None:
    assert all(name.startswith("argument_") for name, _ in named(text))


@pytest.mark.parametrize("change", ["sys.argv.pop(1)", "del sys.argv[1]", "sys.argv = read()", "w = sys.argv\nw.pop(0)"])
def test_items_that_a_script_moves_have_no_names(change: str) -> None:
    assert named(f"{change}\nrate = float(sys.argv[2])") == []


def test_of_several_names_a_requested_one_counts() -> None:
    text = "if ok: limit = float(sys.argv[2])\nelse: rate = float(sys.argv[2])"
    assert named(text) == [("argument_1", "str"), ("limit", "float")]
    assert named(text, "rate") == [("argument_1", "str"), ("rate", "float")]
