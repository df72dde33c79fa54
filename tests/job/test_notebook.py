"""The Python in an exported notebook: cells below magics that run it, and nothing else that only IPython reads."""

from __future__ import annotations

import ast
import json

import pytest

from trialplane.job import notebook

TEXT = r"""
get_ipython().run_line_magic('matplotlib', 'inline')
get_ipython().system('pip install x')
get_ipython().run_cell_magic('time', '', "lr = 0.1\nif lr:\n    get_ipython().system('ls')\n")
get_ipython().run_cell_magic('bash', '', 'exit 3\n')
get_ipython().run_cell_magic('time', '', 'no python\n')
get_ipython().run_line_magic('time', 'depth = 3')
files = get_ipython().getoutput('ls')
if lr:
    get_ipython().magic('reset -f')
1 / 0
"""


def test_what_runs_is_the_python_alone() -> None:
    tree = notebook.parse(TEXT, "a.py")
    assert ast.unparse(tree).split("\n") == [
        *("pass", "pass", "lr = 0.1", "if lr:", "    pass", "pass", "pass", "depth = 3"),
        *("files = get_ipython().getoutput('ls')", "if lr:", "    pass", "1 / 0"),
    ]
    assert compile(tree, "a.py", "exec")
    assert [node.lineno for node in tree.body] == [2, 3, 4, 4, 5, 6, 7, 8, 9, 11], "errors name the lines of the file"


def test_other_files_stay_as_they_are() -> None:
    assert ast.dump(notebook.parse(b"# -*- coding: latin-1 -*-\nx = '\xe9'\n")) == ast.dump(ast.parse("x = 'é'"))


def exported(*sources: str) -> str:
    return notebook.exported_source(json.dumps({"cells": [{"cell_type": "code", "source": source} for source in sources]}))


@pytest.mark.parametrize(
    "source",
    [
        "lr = 0.01  # too high?",
        'print("""\n!important\n%d of them?\nwhat?\n""" % 3)',
        "x = (7\n  %a)",
        "text = 'is it?' \\\n    '!no'  # why?",
    ],
)
def test_python_that_looks_like_lines_for_ipython_stays_as_it_is(source: str) -> None:
    assert exported(source) == f"{source}\n"
    assert exported(f"%time 3\n{source}\n!ls") == f"pass  # %time 3\n{source}\npass  # !ls\n", "beside such lines, too"


@pytest.mark.parametrize(
    "line",
    ["%matplotlib inline", "%%time", "!echo it's $HOME", "    !cd (", "df.head?", "df??", "?df", "!pip install \\\n  x"],
)
def test_lines_for_ipython_are_left_out(line: str) -> None:
    code = exported(f"lr = 1\nif lr:\n{line}" if line[:1] == " " else f"lr = 1\n{line}\nx = '?'")
    namespace: dict[str, int] = {}
    exec(code, namespace)
    assert namespace["lr"] == 1 and line.splitlines()[0].strip() in code


def test_a_line_that_is_neither_stays() -> None:
    assert exported("files = !ls\n%time 3") == "files = !ls\n%time 3\n"
