"""Parameters that do not reach a program, so that all trials would be the same. Reads the code, and runs nothing."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import itertools
import re
import shlex
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trialplane import errors
from trialplane.errors import Issue, Place
from trialplane.job import arguments, notebook
from trialplane.job.kinds import Job

# A program whose text has none of these reads its parameters from nowhere but its arguments.
_READS_PARAMETERS = re.compile(r"trialplane|wandb\.(?:config|sweep|agent)\b", re.IGNORECASE)
# Together, in any files: logger = WandbLogger(); logger.experiment.config.lr
_WANDB, _CONFIG = re.compile("wandb", re.IGNORECASE), re.compile(r"\.config\b")
# Libraries that read the arguments of a script that imports them, also as a part of a name: rich_click, hydra_zen.
_PARSERS = re.compile(
    r"(?:^|_)(?:absl|argh|argparse|asyncclick|cappa|chz|click|clize|configargparse|confz|cyclopts|defopt|docopt|draccus|fire|"
    r"getopt|gflags|hydra|invoke|jsonargparse|luigi|metaflow|optparse|plac|pydantic_settings|pyrallis|sacred|simple_parsing|"
    r"spock|strictfire|tap|typer|tyro)(?:_|$)"
)
# Libraries that read no arguments by themselves. Any other, such as a company's own launcher, may read them.
_COMPUTING = re.compile(
    r"PIL|albumentations|catboost|cv2|datasets|einops|flax|gym|gymnasium|h5py|haiku|imageio|jax|joblib|"
    r"keras|lightgbm|lightning|matplotlib|mlflow|networkx|nltk|numba|numpy|optax|optuna|pandas|peft|"
    r"plotly|polars|psutil|pyarrow|pytorch_lightning|ray|requests|scipy|seaborn|sentence_transformers|"
    r"skimage|sklearn|spacy|statsmodels|tensorboard|tensorboardX|tensorflow|tensorflow_datasets|timm|"
    r"tokenizers|torch|torchaudio|torchmetrics|torchtext|torchvision|tqdm|transformers|wandb|xgboost|yaml"
)
# Names in code that reads arguments: sys.argv, HfArgumentParser, parse_args, OmegaConf.from_cli, LightningCLI, tf.flags.
_READS_ARGUMENTS = re.compile(
    r".*(?:argv|(?i:arg(?:ument)?s?_?pars)|parse_(?:known_)?arg).*|(?:\w+_)?cli(?:_\w+)?|\w*CLI|flags|FLAGS"
)
_TRAINS = re.compile("train|fit")  # in the name of a subcommand
_RUNS_OTHERS = frozenset(("exec", "import_module", "run_module", "run_path", "__import__"))  # of files with any name
_LARGEST_TEXT = 1 << 20  # bytes of a file that is searched


def issues(job: Job, folder: Path, roots: Sequence[Path], broken: Collection[Place]) -> Iterator[Issue]:
    """Yield an issue for each parameter that does not reach the program.

    A command must name its parameters. A script has an issue only if it certainly reads no arguments: neither itself, nor in
    a file of the job that it imports, nor by a library. A job with `arguments` is not checked: `none` says that the program
    reads `$TRIALPLANE_PARAMS`.

    Args:
        job: The job.
        folder: The job's folder.
        roots: Folders of the job's packages.
        broken: Fields with issues of their own.
    """
    command, script = getattr(job, "command", None), getattr(job, "script", None)
    has_arguments = getattr(job, "arguments", None) is not None
    is_invalid = bool({("space",), ("params",), ("command",), ("script",)} & set(broken)) or (command and script)
    if has_arguments or is_invalid or job.search.function:  # a function defines the parameters, so their names are unknown
        return
    if script and (subcommands := _fire_subcommands(folder / script)):
        option = shlex.quote(f'arguments=["{subcommands[0]}", "{{flags}}"]')
        others = f" (or {', '.join(subcommands[1:])} in its place)"
        yield Issue(
            ("script",), f"{script} needs one of its subcommands before the parameters: type `--set {option}`{others}"
        )
        return
    fields = dict.fromkeys(job.params, "params") | dict.fromkeys(job.search.names, "space")  # parameter → its field
    # Fields such as pruner.max_resource name a parameter that need not reach the program.
    for text in _texts_in(job.model_dump(exclude={"params", "space"})):
        if fields.get(text) == "params":
            del fields[text]
    remedies: dict[str, str] = {}
    if command:
        remedies = _command_remedies(command, (folder, *roots), fields)
    elif fields and script and (folder / script).is_file():
        spots = _unread_spots(folder / script, (folder, *roots), fields)
        if spots is not None:
            remedies = {name: _script_remedy(name, script, spots) for name in fields}
    for name, remedy in remedies.items():
        yield Issue((fields[name], name), f"has no effect, because it does not reach the program: {remedy}")


def _fire_subcommands(script: Path) -> list[str]:
    """Return the subcommands of a script that calls fire with a dict of several, one that trains first; [] for others."""
    with contextlib.suppress(OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        data = script.read_bytes()
        for node in ast.walk(notebook.parse(data)) if b"fire" in data else ():
            match node:
                case ast.Call(
                    func=ast.Name(id="Fire") | ast.Attribute(attr="Fire"), args=[ast.Dict(keys=[_, _, *_] as keys), *_]
                ):
                    names = [key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]
                    return sorted(names, key=lambda name: not _TRAINS.search(name))
    return []


def are_constants(job: Job, folder: Path) -> bool:
    """Return whether all parameters of a script are constants at its top level or in its main block, and no arguments.

    Args:
        job: The job, without packages.
        folder: The job's folder.
    """
    names, script = {*job.params, *job.search.names}, getattr(job, "script", None)
    if not names or job.search.function or not script or not (folder / script).is_file():
        return False
    file = next(_files(folder / script, (folder,)))
    assignments = {} if file is None else arguments.first_assignments(file.tree)
    has_constants = all(name in assignments and isinstance(assignments[name].value, ast.Constant) for name in names)
    return has_constants and names <= set(_unread_spots(folder / script, (folder,), names) or ())


def _command_remedies(command: Sequence[str], roots: Sequence[Path], names: Collection[str]) -> dict[str, str]:
    """Return the ways to give parameters to a command, by their names. Empty if it may read them in another way.

    Args:
        command: The command.
        roots: Folders with the job's files.
        names: Names of the parameters.
    """
    placeholder_names = {name for _, name in arguments.placeholders(command)}
    unnamed = [name for name in names if name not in placeholder_names]
    texts = itertools.chain([" ".join(command)], *(_texts(root) for root in roots))
    if not unnamed or _reads_parameters(texts):
        return {}
    return {name: f"write {{{name}}} into command, or `arguments: flags` for --{name}=VALUE at its end" for name in unnamed}


def _script_remedy(name: str, script: str, spots: Mapping[str, arguments.Spot]) -> str:
    """Return the ways to give a parameter to a script that reads no arguments.

    Args:
        name: Name of the parameter.
        script: Path of the script.
        spots: Values in the script's text that a parameter can replace, by name.
    """
    if name in spots:
        globals_remedy = f"to replace the value of {name} in its text, or type `--set arguments=globals`"
        return f"{script} reads no --{name}; write `arguments: globals` {globals_remedy}"
    shared = arguments.similar_size(name, (key for key, spot in spots.items() if spot.is_shared))
    hint = f"did you mean {shared}?" if shared else errors.nearest(name, spots)
    hint = f"{hint.removesuffix('?')} in its text, with `--set arguments=globals`? Or " if hint.endswith("?") else ""
    advice = f"{hint}let it read --{name}, for example by argparse; if it does, unseen here, type `--set arguments=flags`"
    return f"{script} reads no --{name}; {advice}"


def _unread_spots(script: Path, roots: Sequence[Path], names: Collection[str]) -> Mapping[str, arguments.Spot] | None:
    """Return the values, by name, in a script's text, if it certainly reads no parameters; None otherwise.

    Args:
        script: The script.
        roots: Folders with files that it may import.
        names: Names of the parameters.
    """
    files = []
    for file in _files(script, roots):
        if file is None or _reads_arguments(file.tree):
            return None
        files.append(file)
    if _reads_parameters(file.text for file in files):
        return None
    spots = arguments.spots(files[0].tree)
    has_unknown_library = not all(_COMPUTING.fullmatch(library) for file in files for library in file.libraries)
    # A value in the text would stay the same in all trials, whatever an unknown library reads.
    return None if has_unknown_library and not spots.keys() & set(names) else spots


def _reads_parameters(texts: Iterable[str]) -> bool:
    """Return whether texts read parameters from trialplane, or from the configuration of W&B."""
    has_wandb = has_config = False
    for text in texts:
        if _READS_PARAMETERS.search(text):
            return True
        has_wandb |= bool(_WANDB.search(text))
        has_config |= bool(_CONFIG.search(text))
    return has_wandb and has_config


def _texts_in(value: Any) -> Iterator[str]:
    """Yield the texts in a value of a job."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from itertools.chain.from_iterable(map(_texts_in, value.values()))
    elif isinstance(value, (list, tuple)):
        yield from itertools.chain.from_iterable(map(_texts_in, value))


def _texts(folder: Path) -> Iterator[str]:
    """Yield the text of each file in a folder or below, except job.yaml."""
    for file in folder.rglob("*"):
        with contextlib.suppress(OSError):
            if file.is_file() and file.name != "job.yaml" and file.stat().st_size <= _LARGEST_TEXT:
                yield file.read_text(encoding="utf-8", errors="replace")


@dataclasses.dataclass(frozen=True)
class _File:
    """A file of a script's code.

    Attributes:
        text: Its text.
        tree: Its syntax tree.
        libraries: Libraries that it imports, without those of Python.
    """

    text: str
    tree: ast.Module
    libraries: frozenset[str]


def _files(script: Path, roots: Sequence[Path]) -> Iterator[_File | None]:
    """Yield a script and all files that it may import, itself or by others. None for one that cannot be parsed.

    A file is imported if code names it in an import, or in a text, as in `exec(open("configurator.py").read())`.

    Args:
        script: The script, which is the first.
        roots: Folders with the files.
    """
    files_by_name = _files_by_name(roots)
    # Folders are packages also without __init__.py.
    own_names = files_by_name.keys() | {file.parent.name for files in files_by_name.values() for file in files}
    pending, visited = [script], {script}
    while pending:
        try:
            data = pending.pop(0).read_bytes()
            tree = notebook.parse(data)
            names = {name for node in ast.walk(tree) for name in _names(node)}
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
            yield None
            return
        libraries = _top_imports(tree) - own_names - sys.stdlib_module_names
        yield _File(text=data.decode(errors="replace"), tree=tree, libraries=frozenset(libraries))
        may_run_any = bool(names & _RUNS_OTHERS)
        for name, files in files_by_name.items():
            if may_run_any or name in names:
                new_files = [file for file in files if file not in visited]
                pending += new_files
                visited.update(new_files)


def _files_by_name(roots: Sequence[Path]) -> dict[str, list[Path]]:
    """Return the Python files in some folders by the last part of their module's name: `b` for a/b.py and a/b/__init__.py.

    Hidden files and folders are left out, and installed packages.
    """
    files_by_name: dict[str, list[Path]] = {}
    for root in roots:
        for file in root.rglob("*.py"):
            if any(part.startswith(".") or part == "site-packages" for part in file.relative_to(root).parts):
                continue  # for example the files of a virtual environment
            name = file.parent.name if file.name == "__init__.py" else file.stem
            files_by_name.setdefault(name, []).append(file)
    return files_by_name


def _top_imports(tree: ast.Module) -> set[str]:
    """Return the top-level names of all absolute imports."""
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                names.update(alias.name.partition(".")[0] for alias in aliases)
            case ast.ImportFrom(module=str(module), level=0):
                names.add(module.partition(".")[0])
    return names


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
            if (is_import and any(map(_PARSERS.search, names))) or any(map(_READS_ARGUMENTS.fullmatch, names)):
                return True
    return False
