"""Checks that a job's code and packages exist. They read the source text: nothing is imported or run."""

from __future__ import annotations

import ast
import builtins
import contextlib
import os
import re
import symtable
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

from trialplane import errors
from trialplane.errors import Issue, Place
from trialplane.job import arguments, notebook, settings
from trialplane.job.kinds import Job
from trialplane.job.kinds.base import Function

# What code that saves and loads checkpoints names: ours, or a library's.
_CHECKPOINTS = re.compile(r"checkpoint|restored|trialplane\.integrations|ckpt", re.IGNORECASE)


def packages(job: Job, folder: Path) -> list[Path]:
    """Return the folders of a job's packages.

    Args:
        job: the job.
        folder: the job's folder, to which paths are relative.
    """
    return [Path(os.path.normpath(folder.absolute() / text)) for text in job.packages]


def check(job: Job, folder: Path, broken: Collection[Place]) -> Iterator[Issue]:
    """Yield issues of the functions that a job names.

    Args:
        job: the job.
        folder: folder with its code.
        broken: fields with issues of their own, whose functions are not checked.

    Yields:
        Issues of the job's fields, without a source, and issues of lines of code, with their file.
    """
    unread: set[Path] = set()
    roots: dict[str, Path] = {}
    if ("packages",) not in broken:
        yield from _look_at_packages(job, folder)
        importable = [path for path in packages(job, folder) if not os.path.lexists(folder / f"{path.name}.py")]
        roots = {path.name: path.parent for path in importable}
    for function in job.functions():
        if function.field[:1] not in broken:
            module = function.text.partition(":")[0].partition(".")[0]
            root = roots.get(module, folder)
            if function.style == "class" and not ((root / module).is_dir() or (root / f"{module}.py").is_file()):
                continue  # of an installed package
            for problem in _look(function, root, unread):
                yield problem if isinstance(problem, Issue) else Issue(function.field, problem)
    if ("arguments",) not in broken:
        yield from _look_at_settings(job, folder, broken)
    if not {("pruner",), ("packages",)} & set(broken):
        yield from _look_for_checkpoints(job, folder)
    for field_path, text, is_python in job.programs():
        if field_path[:1] not in broken:
            yield from _look_at_file(field_path, text, folder, is_python)
            if is_python:
                yield from _look_at_globals(job, folder / text, broken)


def _look_for_checkpoints(job: Job, folder: Path) -> Iterator[Issue]:
    """Yield an issue if trials are paused at rungs, and no file of the job's code can save or load a checkpoint."""
    program_arguments = getattr(job, "arguments", None)
    if job.search.ladder is None or getattr(job, "command", None):  # the program of a command may be anywhere
        return
    if program_arguments is not None and "{checkpoints}" in str(program_arguments.items):
        return
    for root in (folder, *packages(job, folder)):
        for file in root.glob("**/*.py"):
            with contextlib.suppress(OSError):
                if _CHECKPOINTS.search(file.read_text(encoding="utf-8", errors="replace")):
                    return
    advice = "call ctx.save(step, state) after each ctx.report, and begin with ctx.restored; or write pruner: asha"
    yield Issue(("pruner", "promote"), f"needs checkpoints to continue trials from, and the job's code saves none: {advice}")


def _look_at_packages(job: Job, folder: Path) -> Iterator[Issue]:
    """Yield issues of packages: folders that do not exist or cannot be imported by their names."""
    names: dict[str, str] = {}
    for index, path in enumerate(packages(job, folder)):
        field_path = ("packages", index)
        try:
            problem = _unpackable(path, folder)
        except (OSError, ValueError) as error:  # no access, a name too long, or one with a zero byte
            problem = f"{path} cannot be read: {getattr(error, 'strerror', error)}"
        if not problem and path.name in names:
            problem = f"{job.packages[index]} and {names[path.name]} are both called {path.name}; rename one of them"
        if problem:
            yield Issue(field_path, problem)
        names.setdefault(path.name, job.packages[index])


def _unpackable(path: Path, folder: Path) -> str:
    """Return why a folder cannot be uploaded as a package of the job in `folder`, or ""."""
    name, job_folder, real_path = path.name, os.path.realpath(folder), os.path.realpath(path)
    if not path.is_dir():
        if path.exists():
            return f"{path} is a file; name the folder of a package"
        siblings = [entry.name for entry in path.parent.iterdir() if entry.is_dir()] if path.parent.is_dir() else []
        return f"there is no folder {path}; {errors.nearest(name, siblings)}".rstrip("; ")
    if f"{real_path}/".startswith(f"{job_folder}/"):
        return f"{path} lies in the job's folder, which travels anyway; drop it"
    if f"{job_folder}/".startswith(f"{real_path}/"):
        return f"{path} holds the job's folder; name the folder that is imported"
    if not name.isidentifier():
        return f"{name!r} is no name that can be imported; name the folder that is: {path}/src/NAME"
    if name in sys.stdlib_module_names or name == "trialplane":
        return f"{name} would hide the module of that name, which trials need; rename the package"
    clash = next((entry.name for entry in (folder / name, folder / f"{name}.py") if os.path.lexists(entry)), "")
    return f"the job's folder has {clash} of its own, which is imported under the same name" if clash else ""


def _look_at_file(field_path: Place, text: str, folder: Path, is_python: bool) -> Iterator[Issue]:
    """Yield issues of a script, or of a command's file, in the job's folder."""
    file = folder / text
    if not file.is_file():
        files = [path.relative_to(folder).as_posix() for path in folder.glob("**/*.py" if is_python else "*")]
        yield Issue(field_path, f"there is no {text} in {folder}; {errors.nearest(text, files)}".rstrip("; "))
    elif is_python:
        tree = _parsed(file, text)
        if isinstance(tree, str):
            yield Issue(field_path, tree)
        elif isinstance(tree, Issue):
            yield tree
    elif not os.access(file, os.X_OK):
        yield Issue(field_path, f"{text} is not executable; `chmod +x {file}`, or write command: [bash, {text}]")


def _look_at_globals(job: Job, file: Path, broken: Collection[Place]) -> Iterator[Issue]:
    """Yield issues of parameters that replace no value in a script with `arguments: globals`."""
    tree = _parsed(file, file.name) if file.is_file() else None
    job_arguments = getattr(job, "arguments", None)
    if job_arguments is None or f"{{{arguments.GLOBALS}}}" not in job_arguments.items or not isinstance(tree, ast.Module):
        return
    spots = arguments.spots(tree)
    named = {name for _, name in arguments.placeholders(job_arguments.items)}
    for field, names in (("params", job.params), ("space", job.search.names)):
        for name in names:
            if (field,) not in broken and name not in spots and name not in named:
                text = f"{file.name} gives {name} no single value; {errors.nearest(name, spots)}".rstrip("; ")
                yield Issue((field, name), text)


def _look_at_settings(job: Job, folder: Path, broken: Collection[Place]) -> Iterator[Issue]:
    """Yield issues of a settings file, and of parameters that neither it nor an argument takes."""
    job_arguments = getattr(job, "arguments", None)
    if job_arguments is None or not job_arguments.file:
        return
    field_path, file = ("arguments", "file"), folder / job_arguments.file
    try:
        names = settings.spans(file.read_text(encoding="utf-8"), file.name)
    except FileNotFoundError:
        files = [path.relative_to(folder).as_posix() for end in settings.SUFFIXES for path in folder.glob(f"**/*{end}")]
        yield Issue(
            field_path, f"there is no {job_arguments.file} in {folder}; {errors.nearest(file.name, files)}".rstrip("; ")
        )
        return
    except (OSError, ValueError) as error:
        yield Issue(field_path, f"{job_arguments.file} cannot be read: {getattr(error, 'strerror', None) or error}")
        return
    placeholders = {name for _, name in arguments.placeholders(job_arguments.items)}
    if placeholders & {arguments.FLAGS, arguments.HYDRA, arguments.GLOBALS}:
        return  # which take the others
    for field, parameters in (("params", job.params), ("space", job.search.names)):
        for name in parameters:
            if (field,) not in broken and name not in names and name not in placeholders:
                yield Issue((field, name), f"is not in {job_arguments.file}; {errors.nearest(name, names)}".rstrip("; "))


def _look(named: Function, folder: Path, unread: set[Path]) -> Iterator[str | Issue]:
    """Yield issues of a function.

    Args:
        named: the function.
        folder: folder with the code.
        unread: files that could not be read and have been reported.
    """
    module, function = named.text.split(":")
    base = folder.joinpath(*module.split("."))
    try:
        file = next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)
    except OSError:  # a name too long for a file, or no access
        file = None
    if file is None:
        modules = [path.stem for path in folder.glob("*.py")] if folder.is_dir() else []
        yield f"there is no {module.replace('.', '/')}.py in {folder}; {errors.nearest(module, modules)}".rstrip("; ")
        return
    if file in unread:
        return
    tree = _parsed(file, module)
    if not isinstance(tree, ast.Module):
        unread.add(file)
        yield tree
        return
    if named.style == "optuna" and (line := _starts(tree)):
        advice = 'put it below `if __name__ == "__main__":`'
        yield f"line {line} would start a search of its own when {file.name} is imported; {advice}"
    names, open_ended = _names(tree)
    if function not in names and not open_ended:
        yield f"{file.name} defines no {function}; {errors.nearest(function, names)}".rstrip("; ")
    elif not open_ended and (missing_global := _lacks(tree, function)):
        name, line = missing_global
        advice = f'set it above `if __name__ == "__main__":`, which no trial runs ({file.name}:{line})'
        yield f"{function} reads {name}, which {file.name} sets only when it is run itself; {advice}"
    definitions = names.get(function, [])
    problems = [problem for node in definitions if (problem := _unfit(node, named))]
    if problems and len(problems) == len(definitions):  # one of several definitions may be meant for this machine
        yield f"{function} {problems[-1]} ({file.name}:{definitions[-1].lineno})"


def _parsed(file: Path, name: str) -> ast.Module | Issue | str:
    """Return the syntax tree of a file, or its problem: an issue of a line, or a message about the file."""
    try:
        return notebook.parse(file.read_bytes(), str(file))
    except SyntaxError as error:
        line = errors.shortened((error.text or "").strip(), 100)
        reason = f"{error.msg}: {line}" if line else str(error.msg)
        return Issue((name,), f"is not Python: {reason}", str(file), error.lineno or 0)
    except (OSError, ValueError) as error:  # ValueError: the file holds null bytes
        return f"{file} cannot be read: {error}"
    except (RecursionError, MemoryError):  # raised by Python's parser
        return f"{file} is nested too deeply for Python"


def _starts(tree: ast.Module) -> int:
    """Return the line of a module that starts a search at import. 0 if there is none."""
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
    """Return a name that a function uses, directly or indirectly, and that only the main block sets; with its line."""
    main_block = [statement for node in tree.body if arguments.is_main(node) for statement in node.body]
    module_level = [node for node in tree.body if not arguments.is_main(node)]
    definitions = _names(ast.Module(module_level, []))[0]
    lacking = set(_names(ast.Module(main_block, []))[0]) - set(definitions) - set(dir(builtins))
    pending, visited = [function], set[str]()
    while pending:
        name = pending.pop()
        visited.add(name)
        for function_node in (node for node in definitions.get(name, []) if isinstance(node, ast.FunctionDef)):
            read = _globals(symtable.symtable(ast.unparse(function_node), function, "exec")) - _guarded(function_node)
            if undefined := sorted(lacking & read):
                lines = [
                    name_node.lineno
                    for name_node in ast.walk(function_node)
                    if isinstance(name_node, ast.Name) and name_node.id == undefined[0]
                ]
                return undefined[0], lines[0]
            pending += read - visited
    return None


def _globals(table: symtable.SymbolTable) -> set[str]:
    """Return the global names that functions read."""
    names = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_global() and symbol.is_referenced()}
    return names.union(*map(_globals, table.get_children()))


def _guarded(function_node: ast.AST) -> set[str]:
    """Return the names in a `try` that catches NameError."""
    guards = [
        name_node
        for name_node in ast.walk(function_node)
        if isinstance(name_node, ast.Try) and "NameError" in ast.unparse(name_node)
    ]
    return {name_node.id for guard in guards for name_node in ast.walk(guard) if isinstance(name_node, ast.Name)}


def _unfit(node: ast.stmt, function: Function) -> str:
    """Return why a definition cannot be called like the job's function, or "" if unknown."""
    call_arguments = function.arguments
    definition: ast.AST | None = node
    if function.style == "ray" and isinstance(node, ast.ClassDef):
        return "is a class, and a trial calls a function; write a function(config) that runs its loop and calls tune.report"
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        definition = node.value
        if isinstance(definition, ast.Constant) and definition.value is None:
            return ""  # the module may replace it
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if not all(isinstance(target, ast.Name) for target in targets):
            return ""  # values of unpacked names are only known at import
        if isinstance(definition, (ast.Constant, ast.JoinedStr, ast.List, ast.Tuple, ast.Dict, ast.Set)):
            return f"is {ast.unparse(definition)[:40]} and no function"
    if isinstance(definition, ast.AsyncFunctionDef):
        return "is async, but it is called synchronously; drop async"
    if (
        not call_arguments
        or not isinstance(definition, (ast.FunctionDef, ast.Lambda))
        or getattr(definition, "decorator_list", [])
    ):
        return ""
    arguments = definition.args
    positional = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
    required = positional[: len(positional) - len(arguments.defaults)]
    required_keywords = [
        argument.arg for argument, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if value is None
    ]
    too_few = len(positional) < len(call_arguments) and not arguments.vararg
    if not too_few and len(required) <= len(call_arguments) and not required_keywords:
        return ""
    takes = ", ".join([*positional, *required_keywords]) or "no arguments"
    return f"takes {takes}, but is called with {' and '.join(call_arguments)}"


def _names(tree: ast.Module) -> tuple[dict[str, list[ast.stmt]], bool]:
    """Return the names that a module defines or imports at its top level, and whether there may be others."""
    names: dict[str, list[ast.stmt]] = {}
    has_hidden_names = False
    pending: list[ast.stmt] = list(tree.body)
    while pending:
        node = pending.pop(0)
        defined: list[str] = []
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            defined = [node.name]
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            defined = [(alias.asname or alias.name).split(".")[0] for alias in node.names]
            has_hidden_names = has_hidden_names or any(alias.name == "*" for alias in node.names)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            name_nodes = [name for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
            defined = [name.id for name in name_nodes if isinstance(name.ctx, ast.Store)]  # not `run` of `run.limit = 3`
        elif isinstance(node, (ast.If, ast.Try, ast.With)):
            pending += [
                name_nodes for name_nodes in ast.walk(node) if isinstance(name_nodes, ast.stmt) and name_nodes is not node
            ]
        for name in defined:
            names.setdefault(name, []).append(node)
    return names, has_hidden_names or "__getattr__" in names
