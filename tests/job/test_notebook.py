"""The Python in an exported notebook: cells below magics that run it, and nothing else that only IPython reads."""

from __future__ import annotations

import ast

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
