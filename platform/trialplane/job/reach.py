"""Parameters that do not reach a program, so that all trials would be the same. Reads the code, and runs nothing."""

from __future__ import annotations

import ast
import contextlib
import itertools
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from trialplane import errors
from trialplane.errors import Issue, Place
from trialplane.job import arguments, notebook
from trialplane.job.kinds import Job

# A program whose text has none of these reads its parameters from nowhere but its arguments.
_READS_PARAMETERS = re.compile(r"trialplane|wandb\.(?:config|sweep|agent)\b", re.IGNORECASE)
_READS_WANDB_CONFIG = re.compile(r"\bwandb\b(?s:.*)\.config\b")  # run = wandb.init(); run.config.lr
# Libraries that read the arguments of a script that imports them.
_PARSERS = re.compile(
    r"absl|argh|argparse|cappa|chz|click|clize|configargparse|confz|cyclopts|defopt|docopt|draccus|fire|getopt|gflags|hydra|"
    r"invoke|jsonargparse|luigi|metaflow|optparse|plac|pydantic_settings|pyrallis|sacred|simple_parsing|strictfire|tap|"
    r"typed_argparse|typer|tyro"
)
# Names in code that reads arguments: sys.argv, HfArgumentParser, parse_args, OmegaConf.from_cli, LightningCLI, tf.flags.
_READS_ARGUMENTS = re.compile(
    r".*(?:argv|(?i:arg(?:ument)?s?_?pars)|parse_(?:known_)?arg).*|(?:\w+_)?cli(?:_\w+)?|\w*CLI|flags|FLAGS"
)
_RUNS_OTHERS = frozenset(("exec", "import_module", "run_module", "run_path", "__import__"))  # of files with any name
_LARGEST_TEXT = 1 << 20  # bytes of a file that is searched


def issues(job: Job, folder: Path, roots: Sequence[Path], broken: Collection[Place]) -> Iterator[Issue]:
    """Yield an issue for each parameter that does not reach the program.

    A command must name its parameters. A script must read arguments, itself or in a file of the job that it imports. A job
    with `arguments` is not checked: `none` says that the program reads `$TRIALPLANE_PARAMS`.

    Args:
        job: The job.
        folder: The job's folder.
        roots: Folders of the job's packages.
        broken: Fields with issues of their own.
    """
    command, script = getattr(job, "command", None), getattr(job, "script", None)
    fields = {("space",), ("params",), ("command",), ("script",)}
    if getattr(job, "arguments", None) is not None or job.search.function or fields & set(broken) or (command and script):
        return
    names = dict.fromkeys(job.params, "params") | dict.fromkeys(job.search.names, "space")
    if command:
        named = {name for _, name in arguments.placeholders(command)}
        texts = itertools.chain([" ".join(command)], *(_texts(root) for root in (folder, *roots)))
        remedies = {
            name: f"write {{{name}}} into command, or `arguments: flags` for --{name}=VALUE at its end"
            for name in names
            if name not in named
        }
        if not remedies or any(map(_reads_parameters, texts)):
            return
    elif script and (folder / script).is_file():
        trees = _trees(folder / script, (folder, *roots))
        if (
            not names
            or trees is None
            or any(_reads_arguments(tree) or _reads_parameters(ast.unparse(tree)) for tree in trees)
        ):
            return
        remedies = {name: _script_remedy(name, script, arguments.spots(trees[0])) for name in names}
    else:
        return
    for name, remedy in remedies.items():
        yield Issue((names[name], name), f"has no effect, because it does not reach the program: {remedy}")


def _script_remedy(name: str, script: str, spots: Collection[str]) -> str:
    """Return the ways to give a parameter to a script that reads no arguments.

    Args:
        name: Name of the parameter.
        script: Path of the script.
        spots: Names with a value in the script's text that a parameter can replace.
    """
    if name in spots:
        globals_remedy = f"to replace the value of {name} in its text, or type `--set arguments=globals`"
        return f"{script} reads no --{name}; write `arguments: globals` {globals_remedy}"
    hint = errors.nearest(name, spots)
    hint = f"{hint.removesuffix('?')} in its text, with `--set arguments=globals`? Or " if hint.endswith("?") else ""
    advice = f"{hint}let it read --{name}, for example by argparse; if it does, unseen here, type `--set arguments=flags`"
    return f"{script} reads no --{name}; {advice}"


def _reads_parameters(text: str) -> bool:
    """Return whether a text reads parameters from trialplane, or from the configuration of W&B."""
    return bool(_READS_PARAMETERS.search(text) or _READS_WANDB_CONFIG.search(text))


def _texts(folder: Path) -> Iterator[str]:
    """Yield the text of each file in a folder or below, except job.yaml."""
    for file in folder.rglob("*"):
        with contextlib.suppress(OSError):
            if file.is_file() and file.name != "job.yaml" and file.stat().st_size <= _LARGEST_TEXT:
                yield file.read_text(encoding="utf-8", errors="replace")


def _trees(script: Path, roots: Sequence[Path]) -> list[ast.Module] | None:
    """Return the syntax trees of a script and of all files that it may import, itself or by others; None if one has none.

    A file is imported if code names it in an import, or in a text, as in `exec(open("configurator.py").read())`.

    Args:
        script: The script, whose tree is the first.
        roots: Folders with the files.
    """
    files_by_name: dict[str, list[Path]] = {}
    for folder, file in ((root, file) for root in roots for file in root.rglob("*.py")):
        if any(part.startswith(".") or part == "site-packages" for part in file.relative_to(folder).parts):
            continue  # of a virtual environment, for example
        name = file.parent.name if file.name == "__init__.py" else file.stem
        files_by_name.setdefault(name, []).append(file)
    trees: list[ast.Module] = []
    pending, visited = [script], {script}
    while pending:
        try:
            tree = notebook.parse(pending.pop(0).read_bytes())
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
            return None
        trees.append(tree)
        names = {name for node in ast.walk(tree) for name in _names(node)}
        named = itertools.chain.from_iterable(
            files for name, files in files_by_name.items() if name in names or names & _RUNS_OTHERS
        )
        new_files = [file for file in named if file not in visited]
        pending += new_files
        visited.update(new_files)
    return trees


def _names(node: ast.AST) -> Iterator[str]:
    """Yield the identifiers in a node, and the words of a text that may be a path or a module."""
    match node:
        case ast.Import(names=aliases):
            yield from (part for alias in aliases for part in alias.name.split("."))
        case ast.ImportFrom(module=module, names=aliases):
            yield from (module or "").split(".")
            yield from (alias.name for alias in aliases)
        case ast.Name(id=name) | ast.Attribute(attr=name):
            yield name
        case ast.Constant(value=str(text)) if re.fullmatch(r"[\w./-]+", text):
            yield from re.split(r"[./]", text)


def _reads_arguments(tree: ast.Module) -> bool:
    """Return whether code reads the arguments of a script, itself or by a library."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom, ast.Name, ast.Attribute)):
            names = list(_names(node))
            is_import = isinstance(node, (ast.Import, ast.ImportFrom))
            if (is_import and any(map(_PARSERS.fullmatch, names))) or any(map(_READS_ARGUMENTS.fullmatch, names)):
                return True
    return False
