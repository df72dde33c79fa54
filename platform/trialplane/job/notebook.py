"""A Python file that may be an exported notebook: without the calls of IPython, which only a notebook has.

`jupyter nbconvert --to script` writes `%matplotlib inline` as `get_ipython().run_line_magic('matplotlib', 'inline')`, and a
cell below `%%time` as a text. Such a cell runs as any other; shell commands and other magics are left out. Pure.
"""

from __future__ import annotations

import ast
import json

_CALL = "get_ipython"
_RUNS = ("time", "timeit", "capture", "prun")  # magics that run Python


def is_notebook(text: str | bytes) -> bool:
    """Whether a text calls IPython."""
    return (_CALL.encode() if isinstance(text, bytes) else _CALL) in text  # type: ignore[operator]


def parse(text: str | bytes, name: str = "<unknown>") -> ast.Module:
    """Return the tree of a Python file, without calls of IPython that are statements.

    Args:
        text: of the file.
        name: of the file, for errors.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: as `ast.parse`.
    """
    tree = ast.parse(text, name)
    return _Plain().visit(tree) if is_notebook(text) else tree


def exported(text: str) -> str:
    """Return the code of a notebook's file as a Python file. Magics and shell commands become comments.

    Raises:
        ValueError: it is no notebook.
    """
    try:
        cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
        sources = [cell["source"] if isinstance(cell["source"], str) else "".join(cell["source"]) for cell in cells]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError("it is no notebook") from error
    return "\n\n".join(map(_cell, sources)) + "\n"


def _cell(source: str) -> str:
    first_line, _, rest = source.lstrip().partition("\n")
    if first_line.startswith("%%") and first_line[2:].partition(" ")[0] not in _RUNS:
        return "".join(f"# {line}\n" for line in source.splitlines())
    lines = [f"# {first_line}", *rest.splitlines()] if first_line.startswith("%%") else source.splitlines()
    return "\n".join(_line(line) for line in lines)


def _line(line: str) -> str:
    """A line of a cell; one for IPython as a comment, below `if …:` after `pass`."""
    code = line.lstrip()
    is_ipythons = code.startswith(("%", "!", "?")) or code.endswith("?")
    return f"{line[: len(line) - len(code)]}pass  # {code}" if is_ipythons else line


class _Plain(ast.NodeTransformer):
    def visit_Expr(self, node: ast.Expr) -> ast.stmt | list[ast.stmt]:
        """Replace a call of IPython by the Python in it, or by nothing."""
        match node.value:
            case ast.Call(func=ast.Attribute(value=ast.Call(func=ast.Name(id=name)), attr=method), args=args) if (
                name == _CALL
            ):
                texts = [argument.value for argument in args if isinstance(argument, ast.Constant)]
                runs = method in ("run_line_magic", "run_cell_magic") and texts and texts[0] in _RUNS
                return _statements(str(texts[-1]), node) if runs else ast.copy_location(ast.Pass(), node)
        return node


def _statements(text: str, where: ast.stmt) -> ast.stmt | list[ast.stmt]:
    """The statements of a cell, at the line of its call."""
    try:
        tree = _Plain().visit(ast.parse(text))
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # it is no Python either in a notebook
        return ast.copy_location(ast.Pass(), where)
    for node in ast.walk(tree):
        if hasattr(node, "lineno"):
            ast.copy_location(node, where)
    return tree.body or ast.copy_location(ast.Pass(), where)
