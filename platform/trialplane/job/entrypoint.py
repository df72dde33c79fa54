"""Checks that the code that a job names exists, its packages too, from the source text: nothing is imported or run."""

from __future__ import annotations

import ast
import builtins
import os
import symtable
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

from trialplane import errors
from trialplane.errors import Issue, Place
from trialplane.job import arguments
from trialplane.job.kinds import Job
from trialplane.job.kinds.base import Function


def packages(job: Job, folder: Path) -> list[Path]:
    """The folders of a job's packages.

    Args:
        job: that names them.
        folder: of the job, where relative paths start.
    """
    return [Path(os.path.normpath(folder.absolute() / text)) for text in job.packages]


def check(job: Job, folder: Path, broken: Collection[Place]) -> Iterator[Issue]:
    """Issues of the functions that a job names.

    Args:
        job: that names them.
        folder: with its code.
        broken: fields that have issues of their own, whose functions are not looked at.

    Yields:
        Issues of the job's fields, without a source; one of a line of the code with that file.
    """
    unread: set[Path] = set()
    roots: dict[str, Path] = {}
    if ("packages",) not in broken:
        yield from _look_at_packages(job, folder)
        found_there = [path for path in packages(job, folder) if not os.path.lexists(folder / f"{path.name}.py")]
        roots = {path.name: path.parent for path in found_there}
    for one in job.functions():
        if one.field[:1] not in broken:
            root = roots.get(one.text.partition(":")[0].partition(".")[0], folder)
            for found in _look(one, root, unread):
                yield found if isinstance(found, Issue) else Issue(one.field, found)
    for place, text, is_python in job.programs():
        if place[:1] not in broken:
            yield from _look_at_file(place, text, folder, is_python)
            if is_python:
                yield from _look_at_globals(job, folder / text, broken)


def _look_at_packages(job: Job, folder: Path) -> Iterator[Issue]:
    """Issues of the folders that travel with a job's own: what cannot be there, or not under its name."""
    names: dict[str, str] = {}
    for index, path in enumerate(packages(job, folder)):
        place = ("packages", index)
        try:
            why = _unpackable(path, folder)
        except (OSError, ValueError) as error:  # no access, a name too long, or one with a zero byte
            why = f"{path} cannot be read: {getattr(error, 'strerror', error)}"
        if not why and path.name in names:
            why = f"{job.packages[index]} and {names[path.name]} are both called {path.name}; rename one of them"
        if why:
            yield Issue(place, why)
        names.setdefault(path.name, job.packages[index])


def _unpackable(path: Path, folder: Path) -> str:
    """Why a folder cannot travel as a package with the job in `folder`, or ""."""
    name, here, real = path.name, os.path.realpath(folder), os.path.realpath(path)
    if not path.is_dir():
        if path.exists():
            return f"{path} is a file; name the folder of a package"
        there = [one.name for one in path.parent.iterdir() if one.is_dir()] if path.parent.is_dir() else []
        return f"there is no folder {path}; {errors.nearest(name, there)}".rstrip("; ")
    if f"{real}/".startswith(f"{here}/"):
        return f"{path} lies in the job's folder, which travels anyway; drop it"
    if f"{here}/".startswith(f"{real}/"):
        return f"{path} holds the job's folder; name the folder that is imported"
    if not name.isidentifier():
        return f"{name!r} is no name that can be imported; name the folder that is: {path}/src/NAME"
    if name in sys.stdlib_module_names or name == "trialplane":
        return f"{name} would hide the module of that name, which trials need; rename the package"
    clash = next((one.name for one in (folder / name, folder / f"{name}.py") if os.path.lexists(one)), "")
    return f"the job's folder has {clash} of its own, which is imported under the same name" if clash else ""


def _look_at_file(place: Place, text: str, folder: Path, is_python: bool) -> Iterator[Issue]:
    """Issues of a script, or of a command's file, in the job's folder."""
    file = folder / text
    if not file.is_file():
        there = [path.relative_to(folder).as_posix() for path in folder.glob("**/*.py" if is_python else "*")]
        yield Issue(place, f"there is no {text} in {folder}; {errors.nearest(text, there)}".rstrip("; "))
    elif is_python:
        tree = _parsed(file, text)
        if isinstance(tree, str):
            yield Issue(place, tree)
        elif isinstance(tree, Issue):
            yield tree
    elif not os.access(file, os.X_OK):
        yield Issue(place, f"{text} is not executable; `chmod +x {file}`, or write command: [bash, {text}]")


def _look_at_globals(job: Job, file: Path, broken: Collection[Place]) -> Iterator[Issue]:
    """Parameters that replace no assignment of a script, whose arguments are its globals."""
    tree = _parsed(file, file.name) if file.is_file() else None
    given = getattr(job, "arguments", None)
    if given is None or f"{{{arguments.GLOBALS}}}" not in given.items or not isinstance(tree, ast.Module):
        return
    there = arguments.assigned(tree)
    placed = {name for _, name in arguments.placeholders(given.items)}
    for field, names in (("params", job.params), ("space", job.search.names)):
        for name in names:
            if (field,) not in broken and name not in there and name not in placed:
                text = f"{file.name} assigns no {name} at its top level; {errors.nearest(name, there)}".rstrip("; ")
                yield Issue((field, name), text)


def _look(named: Function, folder: Path, unread: set[Path]) -> Iterator[str | Issue]:
    """Issues of one function.

    Args:
        named: by the job.
        folder: with the code.
        unread: files that could not be read, and have their issue.
    """
    module, function = named.text.split(":")
    base = folder.joinpath(*module.split("."))
    try:
        file = next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)
    except OSError:  # a name too long for a file, or no access
        file = None
    if file is None:
        there = [path.stem for path in folder.glob("*.py")] if folder.is_dir() else []
        yield f"there is no {module.replace('.', '/')}.py in {folder}; {errors.nearest(module, there)}".rstrip("; ")
        return
    if file in unread:
        return
    tree = _parsed(file, module)
    if not isinstance(tree, ast.Module):
        unread.add(file)
        yield tree
        return
    if named.style == "optuna" and (line := _starts(tree)):
        cure = 'put it below `if __name__ == "__main__":`'
        yield f"line {line} would start a search of its own when {file.name} is imported; {cure}"
    names, open_ended = _names(tree)
    if function not in names and not open_ended:
        yield f"{file.name} defines no {function}; {errors.nearest(function, names)}".rstrip("; ")
    elif not open_ended and (lacks := _lacks(tree, function)):
        name, line = lacks
        cure = f'set it above `if __name__ == "__main__":`, which no trial runs ({file.name}:{line})'
        yield f"{function} reads {name}, which {file.name} sets only when it is run itself; {cure}"
    found = names.get(function, [])
    wrong = [why for node in found if (why := _unfit(node, named))]
    if wrong and len(wrong) == len(found):  # of several definitions one may be meant for this machine
        yield f"{function} {wrong[-1]} ({file.name}:{found[-1].lineno})"


def _parsed(file: Path, name: str) -> ast.Module | Issue | str:
    """The syntax tree of a file, or what is wrong with it: in one of its lines, where it has `name`, or as a whole."""
    try:
        return ast.parse(file.read_bytes(), filename=str(file))
    except SyntaxError as error:
        line = errors.shortened((error.text or "").strip(), 100)
        reason = f"{error.msg}: {line}" if line else str(error.msg)
        return Issue((name,), f"is not Python: {reason}", str(file), error.lineno or 0)
    except (OSError, ValueError) as error:  # ValueError: the file holds null bytes
        return f"{file} cannot be read: {error}"
    except (RecursionError, MemoryError):  # Python's own parser gives up like this
        return f"{file} is nested too deeply for Python"


def _starts(tree: ast.Module) -> int:
    """The line of a module that starts a search when it is imported; 0 when none does."""
    todo: list[ast.AST] = list(tree.body)
    while todo:
        node = todo.pop(0)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            continue
        if isinstance(node, ast.stmt) and arguments.is_main(node):
            continue
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "optimize":
            return node.lineno
        todo += ast.iter_child_nodes(node)
    return 0


def _lacks(tree: ast.Module, function: str) -> tuple[str, int] | None:
    """A name that a function reads, or one that it names, and that only `if __name__ == "__main__":` sets; with its line."""
    run = [below for node in tree.body if arguments.is_main(node) for below in node.body]
    imported = [node for node in tree.body if not arguments.is_main(node)]
    here = _names(ast.Module(imported, []))[0]
    lacking = set(_names(ast.Module(run, []))[0]) - set(here) - set(dir(builtins))
    todo, done = [function], set[str]()
    while todo:
        name = todo.pop()
        done.add(name)
        for made in (node for node in here.get(name, []) if isinstance(node, ast.FunctionDef)):
            read = _globals(symtable.symtable(ast.unparse(made), function, "exec")) - _guarded(made)
            if lacks := sorted(lacking & read):
                lines = [one.lineno for one in ast.walk(made) if isinstance(one, ast.Name) and one.id == lacks[0]]
                return lacks[0], lines[0]
            todo += read - done
    return None


def _globals(table: symtable.SymbolTable) -> set[str]:
    """The global names that functions read."""
    found = {one.get_name() for one in table.get_symbols() if one.is_global() and one.is_referenced()}
    return found.union(*map(_globals, table.get_children()))


def _guarded(made: ast.AST) -> set[str]:
    """The names in a `try` that catches their absence."""
    guards = [one for one in ast.walk(made) if isinstance(one, ast.Try) and "NameError" in ast.unparse(one)]
    return {one.id for guard in guards for one in ast.walk(guard) if isinstance(one, ast.Name)}


def _unfit(node: ast.stmt, function: Function) -> str:
    """Why what a statement defines cannot be called as the job's function is, or "" where that is not certain."""
    given = function.arguments
    made: ast.AST | None = node
    if function.style == "ray" and isinstance(node, ast.ClassDef):
        return "is a class, and a trial calls a function; write a function(config) that runs its loop and calls tune.report"
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        made = node.value
        if isinstance(made, ast.Constant) and made.value is None:
            return ""  # it may be replaced when the module runs
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if not all(isinstance(target, ast.Name) for target in targets):
            return ""  # of several names at once, what each gets is known when the module runs
        if isinstance(made, (ast.Constant, ast.JoinedStr, ast.List, ast.Tuple, ast.Dict, ast.Set)):
            return f"is {ast.unparse(made)[:40]} and no function"
    if isinstance(made, ast.AsyncFunctionDef):
        return "is async, but it is called synchronously; drop async"
    if not given or not isinstance(made, (ast.FunctionDef, ast.Lambda)) or getattr(made, "decorator_list", []):
        return ""
    arguments = made.args
    places = [one.arg for one in (*arguments.posonlyargs, *arguments.args)]
    needed = places[: len(places) - len(arguments.defaults)]
    named = [one.arg for one, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if value is None]
    too_few = len(places) < len(given) and not arguments.vararg
    if not too_few and len(needed) <= len(given) and not named:
        return ""
    takes = ", ".join([*places, *named]) or "no arguments"
    return f"takes {takes}, but is called with {' and '.join(given)}"


def _names(tree: ast.Module) -> tuple[dict[str, list[ast.stmt]], bool]:
    """What a module defines or imports at its top level, and whether `import *` or `__getattr__` may hide more."""
    names: dict[str, list[ast.stmt]] = {}
    open_ended = False
    todo: list[ast.stmt] = list(tree.body)
    while todo:
        node = todo.pop(0)
        made: list[str] = []
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            made = [node.name]
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            made = [(alias.asname or alias.name).split(".")[0] for alias in node.names]
            open_ended = open_ended or any(alias.name == "*" for alias in node.names)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            below = [name for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
            made = [name.id for name in below if isinstance(name.ctx, ast.Store)]  # not `run` of `run.limit = 3`
        elif isinstance(node, (ast.If, ast.Try, ast.With)):
            todo += [below for below in ast.walk(node) if isinstance(below, ast.stmt) and below is not node]
        for name in made:
            names.setdefault(name, []).append(node)
    return names, open_ended or "__getattr__" in names
