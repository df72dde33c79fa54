"""A Python file that may be an exported notebook: without the calls of IPython, which only a notebook has.

`jupyter nbconvert --to script` writes `%matplotlib inline` as `get_ipython().run_line_magic('matplotlib', 'inline')`, and a
cell below `%%time` as a text. Such a cell runs as any other; shell commands and other magics are left out. Pure.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Sequence

_PYTHON_MAGICS = ("time", "timeit", "capture", "prun")  # magics whose text is Python
# A line that only IPython can run: `%cd x`, `!pip install x`, `df.head?`.
_FOR_IPYTHON = re.compile(r"\s*(?:%{1,2}[A-Za-z].*|!.*|[\w.]+\?{1,2}\s*|\?{1,2}[\w.]+\s*)")


def is_notebook(text: str | bytes) -> bool:
    """Whether a text calls IPython, as an exported notebook does."""
    return "get_ipython" in (text.decode(errors="replace") if isinstance(text, bytes) else text)


def parse(text: str | bytes, name: str = "<unknown>") -> ast.Module:
    """Return the tree of a Python file, without calls of IPython that are statements.

    Args:
        text: Text of the file.
        name: Name of the file, for errors.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: `ast.parse` raises them for a text that is no Python.
    """
    tree = ast.parse(text, name)
    return _CallRemover().visit(tree) if is_notebook(text) else tree


def parse_or_empty(text: str) -> ast.Module:
    """Return the tree of a Python file as `parse` does, or an empty one if the text is not Python."""
    try:
        return parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two: it is nested too deeply
        return ast.Module([], [])


def exported_source(text: str) -> str:
    """Return the code of a notebook's file as a Python file. Magics and shell commands become comments.

    Args:
        text: Text of the file, which is JSON.

    Raises:
        ValueError: The text is not a notebook.
    """
    try:
        cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
        sources = [cell["source"] if isinstance(cell["source"], str) else "".join(cell["source"]) for cell in cells]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError("it is not a notebook") from error
    return "\n\n".join(map(_cell_code, sources)) + "\n"


def _cell_code(source: str) -> str:
    """Return the code of a cell. A cell with a magic that does not run Python becomes a comment.

    In other cells, each line for IPython becomes `pass` with a comment. Such a line matches `_FOR_IPYTHON`, and Python
    refuses it. The match alone is not enough, because a line of a string or of an expression may look the same.
    """
    first_line, _, rest = source.lstrip().partition("\n")
    if first_line.startswith("%%") and first_line[2:].partition(" ")[0] not in _PYTHON_MAGICS:
        return "".join(f"# {line}\n" for line in source.splitlines())
    lines = [f"# {first_line}", *rest.split("\n")] if first_line.startswith("%%") else source.split("\n")
    # Replace one line at a time, until Python refuses none of them or one that is not for IPython either.
    while (index := _refused_index(lines)) is not None and _FOR_IPYTHON.fullmatch(lines[index]):
        code = lines[index].lstrip()
        indentation = lines[index][: -len(code)]
        lines[index] = f"{indentation}pass  # {code}"  # a comment alone could not be the body of an `if`
        while lines[index].endswith("\\") and index + 1 < len(lines):  # the next line continues this one
            index += 1
            lines[index] = f"# {lines[index]}"
    return "\n".join(lines)


def _refused_index(lines: Sequence[str]) -> int | None:
    """Return the index of the first line with a syntax error. None if there is none, or if its line is unknown."""
    try:
        ast.parse("\n".join(lines))
    except SyntaxError as error:
        return None if error.lineno is None else min(error.lineno, len(lines)) - 1
    except (ValueError, RecursionError, MemoryError):  # a null byte, or too deep nesting, without a line
        pass
    return None


class _CallRemover(ast.NodeTransformer):
    """Transformer that removes the statements that only call IPython, as a notebook's export writes them."""

    def visit_Expr(self, node: ast.Expr) -> ast.stmt | list[ast.stmt]:
        """Return the Python in a call of IPython, or `pass` if there is none. Return other expressions unchanged."""
        match node.value:
            case ast.Call(func=ast.Attribute(value=ast.Call(func=ast.Name("get_ipython")), attr=method), args=args):
                # get_ipython().run_line_magic("time", "train()"): the name of the magic, and the text in its line or cell.
                texts = [argument.value for argument in args if isinstance(argument, ast.Constant)]
                is_python = method in ("run_line_magic", "run_cell_magic") and texts and texts[0] in _PYTHON_MAGICS
                return _statements(str(texts[-1]), node) if is_python else ast.copy_location(ast.Pass(), node)
        return node


def _statements(code: str, call: ast.stmt) -> ast.stmt | list[ast.stmt]:
    """Return the statements that a magic of IPython runs: `fit()` of `%time fit()`, or `pass` if they are not Python.

    They get the line of the magic, because their own lines are not those of the file.
    """
    try:
        tree = _CallRemover().visit(ast.parse(code))  # a magic may run another one
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # a notebook would not run it either
        return ast.copy_location(ast.Pass(), call)
    for node in ast.walk(tree):
        if hasattr(node, "lineno"):
            ast.copy_location(node, call)
    return tree.body or ast.copy_location(ast.Pass(), call)
