"""Checks that a job's code and packages exist. They read the source text: nothing is imported or run."""

from __future__ import annotations

import ast
import builtins
import contextlib
import json
import os
import re
import symtable
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from trialplane import errors
from trialplane.errors import FieldPath, Issue
from trialplane.job import arguments, notebook, reach, settings
from trialplane.job.kinds import Job, Study
from trialplane.job.kinds.base import Function, ProgramFile
from trialplane.job.kinds.study import Reuse

# Code with one of these words probably saves checkpoints, through the platform or a library. Gradient checkpointing saves
# memory, and nothing else.
_CHECKPOINTS = re.compile(r"(?<!gradient_)checkpoint|restored|trialplane\.integrations|ckpt", re.IGNORECASE)
_MOST_FIXED = 20  # parameters in a message
# Nodes with names of their own, which the module does not have.
_SCOPES = (
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda),
    *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
)


def packages(job: Job, folder: Path) -> list[Path]:
    """Return the folders of a job's packages.

    Args:
        job: The job.
        folder: The job's folder, to which paths are relative.
    """
    return [Path(os.path.normpath(folder.absolute() / text)) for text in job.packages]


def check(job: Job, folder: Path, broken: Collection[FieldPath]) -> Iterator[Issue]:
    """Yield issues of the code that a job names: functions, packages, settings files and programs.

    Args:
        job: The job.
        folder: Folder with its code.
        broken: Fields with issues of their own, whose code is not checked.

    Yields:
        Issues of the job's fields, without a source, and issues of lines of code, with their file.
    """
    yield from _module_issues(job, folder, broken)
    if ("arguments",) not in broken:
        yield from _settings_issues(job, folder, broken)
        yield from reach.issues(job, folder, packages(job, folder), broken)
    if not {("pruner",), ("population",), ("packages",)} & set(broken):  # on which these issues depend
        yield from _checkpoint_issues(job, folder)
    for file in job.programs():
        if file.field[:1] not in broken:
            yield from _program_file_issues(file, folder)
            if file.is_python:
                yield from _globals_issues(job, folder, file.path, broken)


def _module_issues(job: Job, folder: Path, broken: Collection[FieldPath]) -> Iterator[Issue]:
    """Yield issues of the job's packages, and of the modules in which its functions are. See `check`."""
    unreadable: set[Path] = set()  # files whose issue was yielded for one function, and is not for others
    roots: dict[str, Path] = {}  # name of a package → folder from which it is imported
    if ("packages",) not in broken:
        yield from _package_issues(job, folder)
        for path in packages(job, folder):
            is_hidden = os.path.lexists(folder / f"{path.name}.py")  # by a module of the same name in the job's folder
            if not is_hidden:
                roots[path.name] = path.parent
    for function in job.functions():
        package = function.module.partition(".")[0]
        root = roots.get(package, folder)
        is_in_folder = any(os.path.lexists(root / name) for name in (package, f"{package}.py"))
        is_installed = (
            function.style == "class" and not is_in_folder
        )  # a class of an installed package, which is not checked
        if function.field[:1] in broken or is_installed:
            continue
        yield from _function_issues(function, root, unreadable)
        if function.style == "optuna" and ("space",) not in broken:
            yield from _space_issues(job, _module_file(function, root))


def _space_issues(job: Job, file: Path | None) -> Iterator[Issue]:
    """Yield an issue of a space in the job beside an objective of Optuna, which defines the parameters itself.

    Args:
        job: The job.
        file: File of the objective's module. None if it does not exist.
    """
    if isinstance(job.search.space, Mapping) and job.search.space:
        tree = None if file is None else _parse(file, file.name, field=("space",))
        reason = "stands beside an objective of Optuna, whose suggest calls define the parameters; drop it, and "
        advice = fixing_advice(tree if isinstance(tree, ast.Module) else None, job.search.space)
        yield Issue(("space",), reason + advice)


def fixing_advice(tree: ast.Module | None, searched: Collection[str]) -> str:
    """Return how to search only some parameters of an objective of Optuna, or to change their ranges if it has no others.

    Args:
        tree: Syntax tree of its module; None if there is none.
        searched: Names of the parameters to search.
    """
    examples = _suggested_parameters(tree) if tree is not None else {}
    others = {name: example for name, example in (examples or {"NAME": "VALUE"}).items() if name not in searched}
    if not others:
        return "for other ranges, change those in the code"
    # Names may have spaces and colons, which YAML would read.
    items = [f"{name if name.isidentifier() else json.dumps(name)}: {example}" for name, example in others.items()]
    line = ", ".join(items[:_MOST_FIXED]) + (", …" if len(items) > _MOST_FIXED else "")
    return f"to search only some of them, fix the others in job.yaml, as `params: {{{line}}}`"


def _suggested_parameters(tree: ast.Module) -> dict[str, str]:
    """Return the names in calls such as `trial.suggest_float("lr", 0, 1)`, each with an example of a value as JSON.

    The example is the first choice, or "…" for a range. A name that is computed is NAME, with VALUE.
    """
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr.startswith("suggest_")
    ]
    examples: dict[str, str] = {}
    for call in sorted(calls, key=lambda call: (call.lineno, call.col_offset)):
        argument_by_name = {keyword.arg: keyword.value for keyword in call.keywords}
        argument_by_name.update(zip(("name", "choices"), call.args, strict=False))  # or the lower bound of a range
        name, choices = argument_by_name.get("name"), argument_by_name.get("choices")
        if isinstance(name, ast.Constant) and isinstance(name.value, str):
            first_choice = next(iter(choices.elts), None) if isinstance(choices, (ast.List, ast.Tuple)) else None
            value = first_choice.value if isinstance(first_choice, ast.Constant) else None
            examples.setdefault(name.value, json.dumps(value) if isinstance(value, (str, int, float)) else "…")
        else:
            examples["NAME"] = "VALUE"
    return examples


def _checkpoint_issues(job: Job, folder: Path) -> Iterator[Issue]:
    """Yield an issue if trials continue from checkpoints, but the job's code cannot do that or seems to save none.

    Such trials are those that are paused at rungs, members of a population, and trials with `reuse.steps`. The names and
    strings in the code are searched for words such as "checkpoint".

    A command, and a script that gets the folder of its checkpoints as an argument, save them in ways of their own, so their
    code is not searched. But they cannot continue from checkpoints of other trials, which a population and `reuse.steps`
    require.
    """
    continuation = _continuation(job)
    if continuation is None:
        return
    program_arguments, command = getattr(job, "arguments", None), getattr(job, "command", None)
    gets_folder = program_arguments is not None and "{checkpoints}" in str(program_arguments.items)
    if command or gets_folder:
        if continuation.is_of_other_trial:
            reason = "needs ctx.restored, or an integration, to continue from the checkpoint of another trial"
            yield Issue(continuation.field, f"{reason}; write an entrypoint, or a script without {{checkpoints}}")
    elif not any(_mentions_checkpoints(root) for root in (folder, *packages(job, folder))):
        advice = f"call ctx.save(step, state) after each ctx.report, and begin with ctx.restored; or {continuation.remedy}"
        yield Issue(
            continuation.field, f"needs checkpoints to continue trials from, and the job's code reads none: {advice}"
        )


class _Continuation(NamedTuple):
    """A field by which trials continue from checkpoints.

    Attributes:
        field: Path of the field.
        remedy: Instruction to do without.
        is_of_other_trial: Whether the checkpoints are those of other trials, and not only a trial's own.
    """

    field: FieldPath
    remedy: str
    is_of_other_trial: bool = True


def _continuation(job: Job) -> _Continuation | None:
    """Return the field of a job by which its trials continue from checkpoints. None if none does."""
    if job.search.population is not None:
        return _Continuation(("population",), "drop population")
    if isinstance(job, Study) and isinstance(job.reuse, Reuse):
        return _Continuation(("reuse", "steps"), "write reuse: true")
    if job.search.ladder is not None:
        return _Continuation(("pruner", "promote"), "write pruner: asha", is_of_other_trial=False)
    return None


def _mentions_checkpoints(root: Path) -> bool:
    """Whether a name or a string in the Python files of a folder has a word such as "checkpoint"."""
    for file in root.glob("**/*.py"):
        with contextlib.suppress(OSError):  # other checks report files that cannot be read
            text = file.read_text(encoding="utf-8", errors="replace")
            if _CHECKPOINTS.search(text) and any(map(_CHECKPOINTS.search, _names_and_strings(text))):
                return True
    return False


def _names_and_strings(text: str) -> Iterator[str]:
    """Yield the names and strings in code, without comments and docstrings; all of the text if it cannot be parsed."""
    try:
        tree = notebook.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        yield text
        return
    expression_statements = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        is_docstring = isinstance(node, ast.Constant) and node in expression_statements
        if not is_docstring:
            yield from (value for _, value in ast.iter_fields(node) if isinstance(value, str))


def _package_issues(job: Job, folder: Path) -> Iterator[Issue]:
    """Yield issues of packages: folders that do not exist or cannot be imported by their names, and equal names."""
    text_by_name: dict[str, str] = {}  # name of a package → the job's text for its folder
    for index, path in enumerate(packages(job, folder)):
        text = job.packages[index]
        try:
            problem = _package_problem(path, folder)
        except (OSError, ValueError) as error:  # no access, a name that is too long, or a zero byte in it
            problem = f"{path} cannot be read: {getattr(error, 'strerror', error)}"
        if not problem and path.name in text_by_name:
            problem = f"{text} and {text_by_name[path.name]} are both called {path.name}; rename one of them"
        if problem:
            yield Issue(("packages", index), problem)
        text_by_name.setdefault(path.name, text)


def _package_problem(path: Path, folder: Path) -> str:
    """Return the reason why a folder cannot be a package of a job. "" if it can.

    Args:
        path: Folder of the package.
        folder: The job's folder.
    """
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
        return f"{name!r} is not a name that can be imported; name the folder that is: {path}/src/NAME"
    if name in sys.stdlib_module_names or name == "trialplane":
        return f"{name} would hide the module of that name, which trials need; rename the package"
    clash = next((entry.name for entry in (folder / name, folder / f"{name}.py") if os.path.lexists(entry)), "")
    return f"the job's folder has {clash} of its own, which is imported under the same name" if clash else ""


def _program_file_issues(program: ProgramFile, folder: Path) -> Iterator[Issue]:
    """Yield issues of a script, which must be Python, or of a command's program, which must be executable.

    Args:
        program: The script or program.
        folder: The job's folder.
    """
    name, file = program.path, folder / program.path
    if not file.is_file():
        files = [path.relative_to(folder).as_posix() for path in folder.glob("**/*.py" if program.is_python else "*")]
        yield Issue(program.field, f"there is no {name} in {folder}; {errors.nearest(name, files)}".rstrip("; "))
    elif program.is_python:
        tree = _parse(file, name, program.field)
        if isinstance(tree, Issue):
            yield tree
    elif not os.access(file, os.X_OK):
        yield Issue(program.field, f"{name} is not executable; `chmod +x {file}`, or write command: [bash, {name}]")


def _globals_issues(job: Job, folder: Path, script: str, broken: Collection[FieldPath]) -> Iterator[Issue]:
    """Yield issues of parameters for which a script has no value to replace, if the job's arguments have `{globals}`.

    Another check reports a script that cannot be parsed. Parameters of placeholders are not checked, because the script
    gets them as arguments, nor are those of settings files.
    """
    file = folder / script
    tree = _parse(file, file.name, field=("script",)) if file.is_file() else None
    job_arguments = getattr(job, "arguments", None)
    if job_arguments is None or f"{{{arguments.GLOBALS}}}" not in job_arguments.items or not isinstance(tree, ast.Module):
        return
    spots = arguments.spots(tree)
    set_elsewhere = {name for _, name in arguments.placeholders(job_arguments.items)}
    with contextlib.suppress(OSError, ValueError):  # an issue of the settings file
        for settings_file in job_arguments.files:
            set_elsewhere |= settings.spans((folder / settings_file).read_text("utf-8"), settings_file).keys()
    for field_path in _parameter_fields(job, broken, {*spots, *set_elsewhere}):
        hint = errors.nearest(field_path[1], arguments.shown_names(spots))
        yield Issue(field_path, f"{file.name} gives {field_path[1]} no single value; {hint}".rstrip("; "))


def _settings_issues(job: Job, folder: Path, broken: Collection[FieldPath]) -> Iterator[Issue]:
    """Yield issues of settings files, of parameters that are neither in them nor in an argument, and of flags that win."""
    job_arguments = getattr(job, "arguments", None)
    if job_arguments is None or not job_arguments.files:
        return
    files: dict[str, str] = {}  # parameter → settings file that has it
    issues: list[Issue] = []
    for file in job_arguments.files:
        try:
            files |= dict.fromkeys(settings.spans((folder / file).read_text(encoding="utf-8"), file), file)
        except (OSError, ValueError) as error:
            issues.append(Issue(("arguments", "files"), _unreadable_settings_problem(error, folder, file)))
    if issues:
        yield from issues
        return
    words = (*job_arguments.items, *(getattr(job, "command", None) or ()))
    placeholders = {name for _, name in arguments.placeholders(words)}
    if ("space",) not in broken:
        # A program usually lets a flag win over its settings file. With `--lr 0.1` in the command, values of `lr` in the
        # file, which the platform changes, have no effect.
        for name, flag in settings.overriding_flags(words, files).items():
            if name in job.search.names and name not in placeholders:
                text = f"has no effect, because {flag} in the command overrides {name} in {files[name]}"
                yield Issue(("space", name), f"{text}; search the parameter of {flag}, or remove {flag} from the command")
    takes_all = bool(placeholders & set(arguments.FOR_ALL))  # all parameters that are not in a file
    if not takes_all:
        for field_path in _parameter_fields(job, broken, {*files, *placeholders}):
            name = field_path[1]
            message = f"is not in {' or '.join(job_arguments.files)}; {errors.nearest(name, files)}".rstrip("; ")
            yield Issue(field_path, message, meant=errors.only_similar(name, files))


def _unreadable_settings_problem(error: Exception, folder: Path, name: str) -> str:
    """Return the message for a settings file of a job's folder that cannot be read.

    Args:
        error: Error of reading it.
        folder: The job's folder.
        name: Path of the file in the folder.
    """
    if isinstance(error, FileNotFoundError):
        files = [path.relative_to(folder).as_posix() for end in settings.SUFFIXES for path in folder.glob(f"**/*{end}")]
        return f"there is no {name} in {folder}; {errors.nearest(Path(name).name, files)}".rstrip("; ")
    return f"{name} cannot be read: {getattr(error, 'strerror', None) or error}"


def _parameter_fields(job: Job, broken: Collection[FieldPath], without: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield the paths of a job's parameters in its valid fields, `params` and `space`, except those with certain names."""
    for field, names in (("params", job.params), ("space", job.search.names)):
        if (field,) not in broken:
            yield from ((field, name) for name in names if name not in without)


def _function_issues(function: Function, folder: Path, unreadable: set[Path]) -> Iterator[Issue]:
    """Yield issues of a function that a job names: its file, its definition, and the arguments of its call.

    Args:
        function: The function.
        folder: Folder from which its module is imported.
        unreadable: Files that cannot be read and have been reported. The function's file is added if it is one.
    """
    module, file = function.module, _module_file(function, folder)
    if file is None:
        modules = [path.stem for path in folder.glob("*.py")] if folder.is_dir() else []
        text = f"there is no {module.replace('.', '/')}.py in {folder}; {errors.nearest(module, modules)}"
        yield Issue(function.field, text.rstrip("; "))
    elif file not in unreadable:
        tree = _parse(file, module, function.field)
        if isinstance(tree, ast.Module):
            yield from (Issue(function.field, problem) for problem in _definition_problems(function, tree, file))
        else:
            unreadable.add(file)
            yield tree


def _module_file(function: Function, folder: Path) -> Path | None:
    """Return the file of a function's module in a folder: `a/b.py` or `a/b/__init__.py` for `a.b:run`. None without one."""
    base = folder.joinpath(*function.module.split("."))
    try:
        return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)
    except OSError:  # a name too long for a file, or no access
        return None


def _definition_problems(function: Function, tree: ast.Module, file: Path) -> Iterator[str]:
    """Yield problems with the definition of a function that a job names, as messages about the job's field.

    Args:
        function: The function.
        tree: Syntax tree of its module.
        file: File of the module.
    """
    name = function.name
    if function.style == "optuna" and (line := _line_of_optimize_call(tree)):
        advice = 'put it below `if __name__ == "__main__":`'
        yield f"line {line} would start a search of its own when {file.name} is imported; {advice}"
    definitions = _definitions(tree)
    are_all_known = not {"*", "__getattr__"} & set(definitions)  # both may define any name
    if are_all_known and name not in definitions:
        yield f"{file.name} defines no {name}; {_definition_hint(function, definitions)}".rstrip("; ")
    elif are_all_known and (missing_global := _missing_global(tree, name)):
        advice = f'set it above `if __name__ == "__main__":`, which no trial runs ({file.name}:{missing_global.line})'
        yield f"{name} reads {missing_global.name}, which {file.name} sets only when it is run itself; {advice}"
    # The name may be defined in several branches of an `if`, of which any may be the one that counts.
    nodes = definitions.get(name, [])
    problems = [_call_problem(node, function) for node in nodes]
    if problems and all(problems):
        yield f"{name} {problems[-1]} ({file.name}:{nodes[-1].lineno})"


def _definition_hint(function: Function, definitions: Mapping[str, list[ast.stmt]]) -> str:
    """Return a hint for a function that its module does not define: an objective of Optuna, or a similar name."""
    objective = next((name for name, nodes in definitions.items() if any(map(_takes_a_trial, nodes))), "")
    if objective and function.name == "run":  # the default, so the author may not know what to write
        return f"write entrypoint: optuna:{function.module}:{objective} for an objective of Optuna"
    return errors.nearest(function.name, definitions)


def _parse(file: Path, name: str, field: FieldPath) -> ast.Module | Issue:
    """Return the syntax tree of a file. If it cannot be read or is not Python, return the issue.

    Args:
        file: The file.
        name: Name of the module, which is the field in the issue of a syntax error.
        field: Path of the job's field that names the file, for an issue without a line.
    """
    try:
        return notebook.parse(file.read_bytes(), str(file))
    except SyntaxError as error:
        line = errors.shortened((error.text or "").strip(), longest=100)
        reason = f"{error.msg}: {line}" if line else str(error.msg)
        return Issue((name,), f"is not Python: {reason}", source=str(file), line=error.lineno or 0)
    except (OSError, ValueError) as error:  # ValueError: the file holds null bytes
        return Issue(field, f"{file} cannot be read: {error}")
    except (RecursionError, MemoryError):  # raised by Python's parser
        return Issue(field, f"{file} is nested too deeply for Python")


def _line_of_optimize_call(tree: ast.Module) -> int:
    """Return the number of the line with a call of a method `optimize` that an import of the module would run.

    Any method of this name is taken for that of an Optuna study. 0 if there is no such call.
    """
    pending: list[ast.AST] = list(tree.body)
    while pending:
        node = pending.pop(0)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            continue
        if isinstance(node, ast.stmt) and arguments.is_main(node):
            continue
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "optimize":
            return node.lineno
        pending += ast.iter_child_nodes(node)
    return 0


class _GlobalRead(NamedTuple):
    """A use of a global name in a function: the name, and the line that reads it."""

    name: str
    line: int


def _missing_global(tree: ast.Module, function: str) -> _GlobalRead | None:
    """Return the first use of a global name in a function that only the module's main block sets. None without one.

    A trial imports the module, which does not run `if __name__ == "__main__":`, so the name would be undefined. Functions of
    the module that this function names are searched as well.
    """
    main_block = [statement for node in tree.body if arguments.is_main(node) for statement in node.body]
    definitions = _definitions(ast.Module([node for node in tree.body if not arguments.is_main(node)], []))
    main_only = set(_definitions(ast.Module(main_block, []))) - set(definitions) - set(dir(builtins))
    pending, visited = [function], set[str]()  # names of functions
    while pending:
        name = pending.pop()
        visited.add(name)
        for function_node in (node for node in definitions.get(name, []) if isinstance(node, ast.FunctionDef)):
            table = symtable.symtable(ast.unparse(function_node), function, "exec")  # it takes source text alone
            global_names = _global_names(table) - _guarded_names(function_node)
            if undefined := sorted(main_only & global_names):
                nodes = (node for node in ast.walk(function_node) if isinstance(node, ast.Name))
                return _GlobalRead(undefined[0], next(node.lineno for node in nodes if node.id == undefined[0]))
            pending += global_names - visited  # among them, the functions that this one calls
    return None


def _global_names(table: symtable.SymbolTable) -> set[str]:
    """Return the global names that the functions in a symbol table read."""
    names = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_global() and symbol.is_referenced()}
    return names.union(*map(_global_names, table.get_children()))


def _guarded_names(function_node: ast.AST) -> set[str]:
    """Return the names in each `try` of a function that catches NameError: the function expects them to be undefined."""
    nodes = [node for node in ast.walk(function_node) if isinstance(node, ast.Try) and "NameError" in ast.unparse(node)]
    return {name.id for node in nodes for name in ast.walk(node) if isinstance(name, ast.Name)}


def _takes_a_trial(node: ast.stmt) -> bool:
    """Return whether a definition is that of a function with one argument, `trial`, like an objective of Optuna."""
    return isinstance(node, ast.FunctionDef) and [argument.arg for argument in node.args.args] == ["trial"]


def _call_problem(node: ast.stmt, function: Function) -> str:
    """Return the reason why a definition cannot be called as the job's function. "" if it can, or if that is unknown.

    Args:
        node: Statement that defines the function's name.
        function: The function, with the arguments that it is called with.
    """
    match node:
        case ast.ClassDef(bases=[]) if function.style == "ray":
            remedy = "write a function(config) that calls tune.report, or derive it from tune.Trainable"
            return f"is a class without a base; {remedy}"
        case ast.Assign() | ast.AnnAssign():
            return _value_problem(node, function.arguments)
        case ast.AsyncFunctionDef():
            return "is async, but it is called synchronously; drop async"
        case ast.FunctionDef(decorator_list=[]):  # a decorator may change the arguments
            return _signature_problem(node.args, function.arguments)
    return ""


def _value_problem(node: ast.Assign | ast.AnnAssign, call_arguments: Sequence[str]) -> str:
    """Return the reason why the value that a variable gets cannot be called; "" if it can, or if that is unknown."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    if not all(isinstance(target, ast.Name) for target in targets):
        return ""  # values of unpacked names are only known at import
    match node.value:
        case ast.Constant(value=None):
            return ""  # the module may assign another value when it is imported
        case ast.Constant() | ast.JoinedStr() | ast.List() | ast.Tuple() | ast.Dict() | ast.Set() as value:
            return f"is {ast.unparse(value)[:40]} and no function"
        case ast.Lambda(args=signature):
            return _signature_problem(signature, call_arguments)
    return ""


def _signature_problem(signature: ast.arguments, call_arguments: Sequence[str]) -> str:
    """Return the reason why a function cannot be called with positional arguments of these names; "" if it can.

    Without names it is unknown how the function is called, and the result is "".
    """
    if not call_arguments:
        return ""
    positional = [argument.arg for argument in (*signature.posonlyargs, *signature.args)]
    required = positional[: len(positional) - len(signature.defaults)]
    required_keywords = [
        argument.arg
        for argument, default in zip(signature.kwonlyargs, signature.kw_defaults, strict=True)
        if default is None
    ]
    takes_too_few = len(positional) < len(call_arguments) and not signature.vararg
    requires_more = len(required) > len(call_arguments) or bool(required_keywords)
    if not takes_too_few and not requires_more:
        return ""
    names = ", ".join([*positional, *required_keywords]) or "no arguments"
    return f"takes {names}, but is called with {' and '.join(call_arguments)}"


def _definitions(tree: ast.Module) -> dict[str, list[ast.stmt]]:
    """Return the statements that define or import a name of a module, also those in blocks such as `if` and `for`.

    Returns:
        The statements by name, in their order. `import *` has the name "*".
    """
    definitions: dict[str, list[ast.stmt]] = {}
    # Nodes with their statements. The next one is taken from the end, so the first ones of the module come last.
    pending: list[tuple[ast.AST, ast.stmt]] = [(node, node) for node in reversed(tree.body)]
    while pending:
        node, statement = pending.pop()
        for name in _bound_names(node):
            definitions.setdefault(name, []).append(statement)
        if not isinstance(node, _SCOPES):  # which have names of their own
            children = reversed(list(ast.iter_child_nodes(node)))
            pending += [(child, child if isinstance(child, ast.stmt) else statement) for child in children]
    return definitions


def _bound_names(node: ast.AST) -> list[str]:
    """Return the names that a node itself binds, without the nodes below it."""
    names: list[str | None] = []
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            names = [node.name]
        case ast.Import() | ast.ImportFrom():
            names = [(alias.asname or alias.name).split(".")[0] for alias in node.names]
        case ast.Name(ctx=ast.Store()):  # not `run.limit = 3`, which sets an attribute
            names = [node.id]
        case ast.MatchAs() | ast.MatchStar():
            names = [node.name]
        case ast.MatchMapping():
            names = [node.rest]
    return [name for name in names if name]  # a pattern may bind none
