"""The flags of scripts that read their arguments only by argparse, and scripts that may take others.

Not checked: what is said of a parameter that such a script refuses (tests/cli/test_scripts.py).
"""

from __future__ import annotations

import ast

import pytest

from trialplane.job import strict_flags

PARSER = "import argparse\np = argparse.ArgumentParser()\np.add_argument('-r', '--rate')\np.add_argument('data')\n"
CLASS = """
class Options:
    def __init__(self):
        self.p = ArgumentParser()
        self.p.add_argument("--rate")
        self.args = self.p.parse_args()
"""
READS = "args = p.parse_args()\n"


@pytest.mark.parametrize(
    "texts",
    [
        (PARSER + READS,),
        (
            "from opts import read\nargs = read()\n",
            "def read():\n    p = ArgumentParser()\n    p.add_argument('--rate')\n    return p.parse_args()\n",
        ),
        (
            "p = make()\nadd(p)\nargs = p.parse_args()\n",
            "def make(): return ArgumentParser()\ndef add(q): q.add_argument('--rate')\n",
        ),
        (PARSER.replace("p.add_argument('-r'", "g = p.add_argument_group('x')\ng.add_argument('-r'") + READS,),
        (CLASS,),
        (PARSER + "def main(args): ...\nif __name__ == '__main__':\n    main(p.parse_args())\n",),
    ],
)
def test_the_flags_of_a_parser_are_all(texts: tuple[str, ...]) -> None:
    flags = strict_flags.names([ast.parse(text) for text in texts])
    assert flags == {"rate"}
    assert strict_flags.takes("rat", flags) and not strict_flags.takes("rates", flags)


@pytest.mark.parametrize(
    "text",
    [
        PARSER + "args = p.parse_known_args()\n",
        PARSER + "import sys\nargs = p.parse_args(sys.argv[2:])\n",
        PARSER + "from sys import argv\n" + READS,
        PARSER + "Trainer.add_argparse_args(p)\n" + READS,
        PARSER + "for name in names: p.add_argument('--' + name)\n" + READS,
        PARSER + "p.add_argument(*flags)\n" + READS,
        PARSER + "add = p.add_argument\nadd('--depth')\n" + READS,
        PARSER + "add = functools.partial(p.add_argument, type=int)\nadd('--depth')\n" + READS,
        PARSER + "p.add_argument('rest', nargs=argparse.REMAINDER)\n" + READS,
        PARSER + "library.extend(p.add_argument_group('x'))\n" + READS,
        PARSER + "g = p.add_argument_group('x')\nlibrary.extend(g)\n" + READS,
        PARSER + "library.extend({'parser': p})\n" + READS,
        PARSER + "sub = p.add_subparsers()\n" + READS,
        PARSER + "p = library.parser()\n" + READS,
        PARSER.replace("Parser()", "Parser(parents=[base])") + READS,
        PARSER.replace("argparse.ArgumentParser()", "HfArgumentParser(Options)") + READS,
        PARSER + "class Parser(argparse.ArgumentParser): ...\n" + READS,
        "args = library.parse_args()\n",
        "from library import parse_args\nargs = parse_args()\n",
        "p = make_parser()\n" + READS,
        "def read(args):\n    return args.rate\n",
    ],
)
def test_a_script_that_may_take_other_flags_has_none(text: str) -> None:
    assert strict_flags.names([ast.parse(text)]) is None
