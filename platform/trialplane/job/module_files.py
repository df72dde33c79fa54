"""The modules of a project that a script imports, and the values in them that parameters can replace. Runs nothing."""

from __future__ import annotations

import ast
import itertools
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from trialplane.job import arguments, defaults, document, notebook, settings

_MOST_FILES = 200
_IMPORTS = ("import_module", "__import__")  # functions that import a module by its name
_MODULE = re.compile(r"\w{1,99}(?:\.\w{1,99}){0,9}")
_TESTS = re.compile(r"(?:^|/)tests?(?:/|_[^/]*$)|_tests?\.py$")  # tests/layers.py, test_layers.py, layers_test.py
_NUMBERS = re.compile(r"(?:[._]\d+)+$")  # at the end of the name of an unnamed value: Dropout_2, compile.0_2


class ModulePath(NamedTuple):
    """The path of a module that a file imports.

    Attributes:
        level: 0 if it is in a folder of `sys.path`, 1 if it is in the file's own folder, as in `from . import nets`, 2 if it
            is in the folder above, and so on.
        path: Path in that folder, without suffix. `*` stands for a part that the text does not show: `models/*` for
            `import_module("models." + name)`.
    """

    level: int
    path: str


def paths(tree: ast.Module) -> list[ModulePath]:
    """Return the paths of the modules that a Python file may import."""
    all_paths: list[ModulePath] = []
    assigned = _assigned_once(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            all_paths += [ModulePath(level=0, path=alias.name.replace(".", "/")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            package = (node.module or "").replace(".", "/")
            # An imported name may also be that of a module.
            module_paths = [package, *(f"{package}/{alias.name}".lstrip("/") for alias in node.names)]
            all_paths += [ModulePath(level=node.level, path=path) for path in module_paths if path]
        elif isinstance(node, ast.Call) and (module := _called_module(node, assigned)) is not None:
            all_paths.append(module)
    return list(dict.fromkeys(all_paths))


def _called_module(call: ast.Call, assigned: Mapping[str, ast.expr]) -> ModulePath | None:
    """Return the path of the module that a call of `import_module` or `__import__` imports.

    None for other calls, and if the text shows no part of the name, or only parts of it around several others.
    """
    match call.func:
        case ast.Name(id=function) | ast.Attribute(attr=function) if function in _IMPORTS and call.args:
            name = _shown(call.args[0], assigned)
        case _:
            return None
    level = len(name) - len(name.lstrip("."))
    packages = [*call.args[1:2], *(keyword.value for keyword in call.keywords if keyword.arg == "package")]
    if level == 1 and packages and (package := _shown(packages[0], assigned)) != "*":  # import_module(".net", "models")
        level, name = 0, f"{package}{name}"
    path = name.lstrip(".").replace(".", "/")
    return ModulePath(level, path) if path.strip("*/") and path.count("*") <= 1 else None


def _shown(node: ast.expr, assigned: Mapping[str, ast.expr]) -> str:
    """Return the text that an expression stands for, with `*` for each part that the code does not show."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(_shown(part, assigned) for part in parts)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _shown(left, assigned) + _shown(right, assigned)
        case ast.BinOp(left=ast.Constant(value=str(text)), op=ast.Mod()):
            return text.replace("%s", "*")
        case ast.Call(func=ast.Attribute(value=ast.Constant(value=str(text)), attr="format")):
            return re.sub(r"\{[^{}]*\}", "*", text)
        case ast.Name(id=name) if name in assigned:
            others = {other: value for other, value in assigned.items() if other != name}  # n = n + "_net" has no end
            return _shown(assigned[name], others)
    return "*"


def _assigned_once(tree: ast.Module) -> dict[str, ast.expr]:
    """Return the values of the variables that a file binds in one place only, by an assignment."""
    nodes = list(ast.walk(tree))
    bound = Counter(node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load))
    bound.update(node.arg for node in nodes if isinstance(node, ast.arg))
    pairs = [(node.targets[0], node.value) for node in nodes if isinstance(node, ast.Assign) and len(node.targets) == 1]
    return {target.id: value for target, value in pairs if isinstance(target, ast.Name) and bound[target.id] == 1}


class ModuleValues(NamedTuple):
    """Values in a module that a script imports.

    Attributes:
        module: Path of the module, relative to the folder of the job.
        keys: Names of the values in it.
        texts: Texts that choose it, such as values of the script's arguments; none for a module that is always imported.
    """

    module: str
    keys: list[str]
    texts: frozenset[str] = frozenset()


class _Module(NamedTuple):
    """A module that a script imports, or the script.

    Attributes:
        tree: Its syntax tree.
        texts: Texts that choose it, or a module that imports it.
    """

    tree: ast.Module
    texts: frozenset[str]


def imported(file: Path, roots: Sequence[Path]) -> list[Path]:
    """Return the files of the modules that a script imports from some folders, directly or indirectly; 200 at most.

    Of a package, they are only what is imported.
    """
    return list(_program(file, roots))[1:]


def _program(file: Path, roots: Sequence[Path], texts: Collection[str] = ()) -> dict[Path, _Module]:
    """Return a script and the modules that `imported` returns, by file.

    Args:
        file: The script.
        roots: Folders from which it imports.
        texts: Texts that may be the part of a module's name which the code does not show. If several of them lead to a
            file, the module stays unknown.
    """
    texts_by_file = {file: frozenset[str]()}
    program: dict[Path, _Module] = {}
    pending = [file]
    for path in pending:  # the list grows while it is read
        program[path] = _Module(notebook.parse_or_empty(_text(path)), texts_by_file[path])
        for module in paths(program[path].tree):
            is_relative = 0 < module.level <= len(path.parents)
            folders = [path.parents[module.level - 1]] if is_relative else roots
            candidates = _files_of(module.path, folders, texts)
            if len(candidates) == 1 and len(pending) < _MOST_FILES:
                [(module_file, chosen_by)] = candidates.items()
                if module_file not in texts_by_file:
                    texts_by_file[module_file] = texts_by_file[path] | chosen_by
                    pending.append(module_file)
    return program


def _files_of(path: str, folders: Sequence[Path], texts: Collection[str]) -> dict[Path, frozenset[str]]:
    """Return the files that the module with a path in some folders may be, each with the text that chooses it."""
    parts = {"": frozenset[str]()}
    if "*" in path:  # also in lower case, as for import_module("models." + args.model.lower())
        spellings = ((spelling, text) for text in texts for spelling in (text, text.lower()))
        parts = {part.replace(".", "/"): frozenset([text]) for part, text in spellings if _MODULE.fullmatch(part)}
    files: dict[Path, frozenset[str]] = {}
    for part, chosen_by in parts.items():
        candidates = (folder / f"{path.replace('*', part)}{end}" for folder in folders for end in (".py", "/__init__.py"))
        if (module_file := next(filter(Path.is_file, candidates), None)) is not None:
            files[module_file] = chosen_by
    return files


def with_values(
    names: Collection[str], file: Path, folder: Path, roots: Sequence[Path], texts: Collection[str] = ()
) -> ModuleValues | None:
    """Return the module that a script imports and that sets some names, with these names in it: `Tree.depth` for `depth`.

    A name that no module sets may be a default of a function or a constructor; see `defaults.in_effect`. None if no module
    has them, or if several do, so that it is unknown which one is meant. A trial cannot replace values outside of its
    folder, and those of tests do nothing.

    Args:
        names: The names.
        file: The script.
        folder: Folder of the job, to which the path of the module is relative.
        roots: Folders from which the script imports.
        texts: Texts that may choose a module, such as values of the script's arguments; see `_program`.
    """
    program = _program(file, roots, texts) if names else {}
    set_keys: dict[str, dict[str, Sequence[str]]] = {}  # by module
    default_keys: dict[str, dict[str, Sequence[str]]] = {}
    trees = [module.tree for module in program.values()]
    for path in list(program)[1:]:
        module = path.relative_to(folder).as_posix() if path.is_relative_to(folder) else ""
        # Most modules of a large project do not have the names, and finding all of their values takes long.
        text = settings.normalized(_text(path)) if module and not _TESTS.search(module) else ""
        if any(_NUMBERS.sub("", settings.normalized(name)).rpartition(".")[2] in text for name in names):
            set_keys[module], default_keys[module] = _values(path, program[path].tree, trees)
    keys_by_module: dict[str, list[str]] = {}
    for name in names:
        for module, key in _meant(name, set_keys) or _meant(name, default_keys):
            keys = keys_by_module.setdefault(module, [])
            keys += [key] if key not in keys else []
    if len(keys_by_module) != 1:
        return None
    [(module, keys)] = keys_by_module.items()
    return ModuleValues(module, keys, program[folder / module].texts)


class Text(NamedTuple):
    """A text in a script, or in a module that it imports, that a parameter can replace.

    Attributes:
        module: Path of the file, relative to the folder of the job.
        name: Name of the value; see `arguments.spots`.
        text: The text.
        line: Its line.
    """

    module: str
    name: str
    text: str
    line: int


def texts(choices: Collection[str], file: Path, folder: Path, roots: Sequence[Path]) -> list[Text]:
    """Return the texts in a script that are among some choices, or else those in the only module that has any.

    For the other arguments, see `with_values`, which returns the module for the name of such a text.
    """
    texts_by_file: dict[Path, list[Text]] = {}
    for path, module in _program(file, roots).items() if choices else ():
        if path.is_relative_to(folder) and any(choice in _text(path) for choice in choices):
            module_name = path.relative_to(folder).as_posix()
            constants = [(name, spot.value) for name, spot in arguments.spots(module.tree).items()]
            matches = [
                Text(module_name, name, constant.value, constant.lineno)
                for name, constant in constants
                if isinstance(constant, ast.Constant) and isinstance(constant.value, str) and constant.value in choices
            ]
            if matches:
                texts_by_file[path] = matches
    if file in texts_by_file:
        return texts_by_file[file]
    own_names = arguments.spots(notebook.parse_or_empty(_text(file)))
    in_modules = [
        text
        for text in itertools.chain(*texts_by_file.values())
        if text.name not in own_names
        and (values := with_values([text.name], file, folder, roots)) is not None
        and (values.module, values.keys) == (text.module, [text.name])
    ]
    return in_modules if len({text.module for text in in_modules}) == 1 else []


def _meant(name: str, keys_by_module: Mapping[str, Mapping[str, Sequence[str]]]) -> list[tuple[str, str]]:
    """Return the keys that a name may mean, each after its module."""
    return [
        (module, key)
        for module, names_by_key in keys_by_module.items()
        for key, names in names_by_key.items()
        if any(settings.may_mean(name, key_name) for key_name in names)
    ]


def _values(
    file: Path, tree: ast.Module, trees: Sequence[ast.Module]
) -> tuple[dict[str, Sequence[str]], dict[str, Sequence[str]]]:
    """Return the keys of the values in a module that its import sets, and those of the defaults that a program uses.

    Each has all of its names: `depth` has `depth` and `Tree.depth`. Values below `if __name__ == "__main__":`, and defaults
    of a parser's arguments, are neither.

    Args:
        file: The module.
        tree: Its syntax tree.
        trees: Syntax trees of the script, and of the modules that it imports.
    """
    spots = arguments.spots(tree)
    in_main = {id(node) for block in tree.body if arguments.is_main(block) for node in ast.walk(block)}
    names = [
        name
        for name in (settings.spans(_text(file), file.name) if spots else ())
        if id(spots[name].value) not in in_main
        and spots[name].owner not in ("add_argument", "option")  # add_argument("--lr", default=0.1)
    ]
    default_names = [name for name in names if spots[name].is_default]
    if default_names:
        script, *modules = trees
        used = defaults.in_effect(tree, [script, *map(defaults.imported_part, modules)])
        default_names = [
            name for name in default_names if all(id(spot.value) in used for spot in (spots[name], *spots[name].others))
        ]
    set_names = [name for name in names if not spots[name].is_default]
    all_names = {name: (name, *spots[name].longer_names(name)) for name in names}
    return {name: all_names[name] for name in set_names}, {name: all_names[name] for name in default_names}


def _text(file: Path) -> str:
    """Return the text of a Python file; "" if it cannot be read."""
    try:
        return document.decode(document.content(file), file.name)
    except (OSError, ValueError):
        return ""
