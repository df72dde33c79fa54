"""Whether the code that a job names is there, told from the text of the files: nothing is imported or run."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from trialplane import errors
from trialplane.errors import Complaint
from trialplane.spec import sampling
from trialplane.spec.document import Place
from trialplane.spec.job import Job
from trialplane.spec.options import Kind


def check(job: Job, folder: Path) -> Iterator[tuple[Place, str, Complaint | None]]:
    """What is wrong with the functions that a job names.

    Yields:
        The field, the message, and the complaint itself when it concerns a line of the code and not of the job file.
    """
    wanted: list[tuple[Place, str]] = [(("entrypoint",), job.entrypoint)]
    if job.collect is not None and job.collect.consumer is not None:
        wanted.append((("collect", "consumer"), job.collect.consumer))
    if job.space_function:
        wanted.append((("space",), job.space_function))
    for field, kind, given in (("sampler", Kind.SAMPLER, job.sampler), ("pruner", Kind.PRUNER, job.pruner)):
        short = {"name": given.name, **given.options}
        wanted += [((field, *place), text) for place, text in sampling.functions(kind, short)]
    broken: set[Path] = set()
    for place, text in wanted:
        for message, complaint in _look(text, folder, broken):
            yield place, message, complaint


def _look(text: str, folder: Path, broken: set[Path]) -> Iterator[tuple[str, Complaint | None]]:
    module, function = text.split(":")
    base = folder.joinpath(*module.split("."))
    file = next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)
    if file is None:
        there = [path.stem for path in folder.glob("*.py")] if folder.is_dir() else []
        yield (
            f"there is no {module.replace('.', '/')}.py in {folder}; {errors.nearest(module, there)}".rstrip("; "),
            None,
        )
        return
    if file in broken:
        return
    try:
        tree = ast.parse(file.read_bytes(), filename=str(file))
    except SyntaxError as error:
        broken.add(file)
        line = (error.text or "").strip()
        said = f"{error.msg}: {line}" if line else str(error.msg)
        yield said, Complaint(module, f"is not Python: {said}", str(file), error.lineno or 0)
        return
    except (OSError, ValueError) as error:  # ValueError: the file holds null bytes
        broken.add(file)
        yield f"{file} cannot be read: {error}", None
        return
    names, open_ended = _names(tree)
    if function not in names and not open_ended:
        yield f"{file.name} defines no {function}; {errors.nearest(function, names)}".rstrip("; "), None


def _names(tree: ast.Module) -> tuple[list[str], bool]:
    """What a module defines or imports at its top level, and whether `import *` or `__getattr__` may hide more."""
    names: list[str] = []
    open_ended = False
    todo: list[ast.stmt] = list(tree.body)
    while todo:
        node = todo.pop(0)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.append(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names += [(alias.asname or alias.name).split(".")[0] for alias in node.names]
            open_ended = open_ended or any(alias.name == "*" for alias in node.names)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names += [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
        elif isinstance(node, (ast.If, ast.Try, ast.With)):
            todo += [below for below in ast.walk(node) if isinstance(below, ast.stmt) and below is not node]
    return names, open_ended or "__getattr__" in names
