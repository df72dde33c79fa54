"""Parameters that do not reach a program, so that all trials would be the same. Reads the code, and runs nothing."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import importlib.util
import itertools
import os
import re
import shlex
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from trialplane import errors
from trialplane.errors import FieldPath, Issue
from trialplane.job import arguments, module_files, notebook, settings, strict_flags
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
# Libraries that read no arguments by themselves. The code of any other, such as a company's own launcher, is searched.
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
_MOST_LIBRARY_FILES = 200  # of a larger library it is unknown whether it reads arguments
# Types of options that read `True` and `False` as booleans: str2bool, util.strtobool, parse_boolean, eval.
_READS_BOOLEANS = re.compile(r"(?:\w+\.)*(?:\w+[a-z2_]bool(?:ean)?|str2bool\w*|literal_eval|eval)", re.IGNORECASE)
_BOOLEAN_TEXTS = re.compile(r"['\"](?:True|False)['\"]")
_BOOLEANS = ("True", "False")
_UNSEEN = "if it does, unseen here, type `--set arguments=flags`"
_ON_AND_OFF = re.compile(r"--([\w-]+)\s*/\s*--no-\1")  # option of click
_ABSL_BOOLEANS = ("DEFINE_bool", "DEFINE_boolean")
# Library or class that makes options of functions or classes → format of their booleans. The first in the code counts.
_PARSER_STYLES = {
    "tyro": "negated",
    "typer": "negated",
    "HfArgumentParser": "value",
    "simple_parsing": "value",
    "jsonargparse": "value",
    "LightningCLI": "value",
    "pyrallis": "value",
    "draccus": "value",
    "fire": "value",
}
_PARSER_CLASSES = frozenset(("HfArgumentParser", "LightningCLI"))
_LARGEST_SETTINGS = 1 << 16  # bytes of a settings file


def issues(job: Job, folder: Path, roots: Sequence[Path], broken: Collection[FieldPath]) -> Iterator[Issue]:
    """Yield an issue for each parameter that does not reach the program.

    A command must name its parameters. A script has an issue only if it certainly reads no arguments: neither itself, nor in
    a file of the job that it imports, nor by a library; or if only a library may read some, and a settings file has the
    parameter. A job with `arguments` is not checked: `none` says that the program reads `$TRIALPLANE_PARAMS`.

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
        items = f'["{subcommands[0]}", "{{flags}}"]'
        if _boolean_names(job):  # which fire reads as --amp=False
            items = f'{{"items": {items}, "booleans": "value"}}'
        option = shlex.quote(f"arguments={items}")
        others = f" (or {', '.join(subcommands[1:])} in its place)" if subcommands[1:] else ""
        yield Issue(
            ("script",), f"{script} needs one of its subcommands before the parameters: type `--set {option}`{others}"
        )
        return
    fields = dict.fromkeys(job.params, "params") | dict.fromkeys(job.search.names, "space")  # parameter → its field
    # Fields such as pruner.max_resource name a fixed parameter, which then need not reach the program.
    for text in _texts_in(job.model_dump(exclude={"params", "space"})):
        if fields.get(text) == "params":
            del fields[text]
    remedies: dict[str, _Remedy] = {}
    if command:
        remedies = _command_remedies(command, (folder, *roots), fields)
    elif fields and script and (folder / script).is_file():
        code = _code_without_arguments(folder / script, (folder, *roots), fields)
        if code is None:
            remedies = _flag_remedies(job, folder / script, (folder, *roots), fields)
        else:
            in_files = code.file_clauses(fields.keys() - code.spots.keys())
            for name in fields:
                remedy = _Remedy(in_files[name], name) if name in in_files else _script_remedy(job, name, code)
                remedies[name] = _Remedy(f"{script} reads no --{name}; {remedy.text}", remedy.meant)
    for name, (text, meant) in remedies.items():
        message = f"has no effect, because it does not reach the program: {text}"
        yield Issue((fields[name], name), message, meant=meant)


class _Remedy(NamedTuple):
    """A way to give a parameter to a program.

    Attributes:
        text: What to do.
        meant: Name of the value that is probably meant, with which `platform init --from` makes a job; "" for none.
    """

    text: str
    meant: str = ""


def _fire_subcommands(script: Path) -> list[str]:
    """Return the subcommands of a script that calls fire, one that trains first; [] for a script without any.

    They are the keys of a dict of several, or the methods of a class that is no function.
    """
    names: list[str] = []
    with contextlib.suppress(OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        data = script.read_bytes()
        tree = notebook.parse(data) if b"fire" in data and b"argv" not in data else ast.Module([], [])
        classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
        statements = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            match node:
                case ast.Call(func=ast.Name(id="Fire") | ast.Attribute(attr="Fire"), args=[component], keywords=[]):
                    match component:
                        case ast.Dict(keys=[_, _, *_] as keys):  # Fire({"train": train, "test": test})
                            names = _texts_of(keys)
                        case ast.Name(id=name) | ast.Call(func=ast.Name(id=name)):  # Fire(Trainer)
                            is_result_used = node not in statements  # config = Fire(Config)
                            names = _methods(classes[name]) if name in classes and not is_result_used else []
    return sorted(names, key=lambda name: not _TRAINS.search(name))


def _methods(definition: ast.ClassDef) -> list[str]:
    """Return the public methods of a class that needs one of them to do something.

    [] if it has bases, which may have others, can be called as a function, or calls one of them in its constructor.
    """
    methods = [node for node in definition.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    if definition.bases or any(method.name == "__call__" for method in methods):
        return []
    methods = [method for method in methods if "property" not in map(ast.unparse, method.decorator_list)]
    names = [method.name for method in methods if not method.name.startswith("_")]
    constructors = [method for method in methods if method.name in ("__init__", "__post_init__")]
    calls = [node for method in constructors for node in ast.walk(method) if isinstance(node, ast.Call)]
    return [] if {ast.unparse(call.func) for call in calls} & {f"self.{name}" for name in names} else names


def _command_remedies(command: Sequence[str], roots: Sequence[Path], names: Collection[str]) -> dict[str, _Remedy]:
    """Return the ways to give parameters to a command, by their names. Empty if it may read them in another way."""
    placeholder_names = {name for _, name in arguments.placeholders(command)}
    unnamed = [name for name in names if name not in placeholder_names]
    texts = itertools.chain([" ".join(command)], *(_texts(root) for root in roots))
    if not unnamed or _reads_parameters(texts):
        return {}
    return {
        name: _Remedy(f"write {{{name}}} into command, or `arguments: flags` for --{name}=VALUE at its end")
        for name in unnamed
    }


def _flag_remedies(job: Job, script: Path, roots: Sequence[Path], names: Collection[str]) -> dict[str, _Remedy]:
    """Return the remedies for parameters that argparse would refuse, by their names; see `strict_flags`."""
    all_files = list(_files(script, roots))
    files = [file for file in all_files if file is not None and not _has_other_parser(file.tree)]
    flags = strict_flags.names([file.tree for file in files]) if len(files) == len(all_files) else None
    if flags is None or _reads_parameters(file.text for file in files):
        return {}
    remedies: dict[str, _Remedy] = {}
    spots = arguments.spots(files[0].tree)
    # A flag without a value is left out, and the last part of a nested one is not known.
    for name in (name for name in names if not isinstance(job.params.get(name, name), (dict, type(None)))):
        if strict_flags.takes(name, flags) or job.params.get(name) is False:
            continue
        values = module_files.with_values([name], script, roots[0], [script.parent, *roots])
        if name in spots:
            hint, meant = f"its text has {name}", name
        elif values is not None:
            hint, meant = f"{values.module}, which it imports, has {' and '.join(values.keys)}", name
        else:
            longer = [flag for flag in flags if settings.may_mean(flag, name) or settings.may_mean(name, flag)]
            meant = longer[0] if len(longer) == 1 else errors.only_similar(name, flags)
            hint = f"did you mean {meant}?" if meant else errors.nearest(name, flags)
        text = "; ".join(filter(None, (f"{script.name} takes no --{name}", hint, _UNSEEN)))
        remedies[name] = _Remedy(text, meant)
    return remedies


def _script_remedy(job: Job, name: str, code: _Code) -> _Remedy:
    """Return the ways to give a parameter to a script that reads no arguments."""
    if name in code.spots:
        replaces = f"write `arguments: globals` to replace the value of {name} in its text"
        return _Remedy(f"{replaces}, or type `--set arguments=globals`", name)
    names = arguments.shown_names(code.spots)
    meant = errors.only_similar(name, names)
    shared = arguments.similar_size(name, (key for key, spot in code.spots.items() if spot.is_shared))
    hint = f"did you mean {shared}?" if shared else errors.nearest(name, names)
    hint = f"{hint.removesuffix('?')} in its text, with `--set arguments=globals`? Or " if hint.endswith("?") else ""
    if not hint and len(texts := code.texts(_choices(job, name))) == 1:
        meant = texts[0].name
        hint = f'did you mean {meant}, the "{texts[0].text}" in {texts[0].module}:{texts[0].line}? Or '
    return _Remedy(
        f"{hint}let it read --{name}, for example by argparse; {_UNSEEN}",
        shared or meant,
    )


def _choices(job: Job, name: str) -> list[str]:
    """Return the texts among which a parameter of a job is chosen."""
    space = {} if isinstance(job.search.space, str) else job.search.space
    return [choice for choice in getattr(space.get(name), "choices", None) or () if isinstance(choice, str)]


def reads_nothing(script: Path, roots: Sequence[Path]) -> bool:
    """Return whether a script certainly reads no parameters; see `issues`."""
    return _code_without_arguments(script, roots, ()) is not None


def default_arguments(job: Job, folder: Path) -> Any:
    """Return the field `arguments` with which a script gets its parameters if the user writes none; None for `--NAME=VALUE`.

    - "globals", if all parameters are constants at the top level of a script that reads no arguments;
    - `{"file": …}`, if all are in one settings file of such a script; with "globals" as items, if some are such constants;
    - `{"items": …, "booleans": …}`, if the script's parser reads a boolean as `--amp=False` or `--no-amp`.
    """
    script, searched = getattr(job, "script", None), job.search.names
    names = {*job.params, *searched}
    if not names or not script or not (folder / script).is_file():
        return None
    code = _code_without_arguments(folder / script, (folder,), names)
    if code is None:
        return _boolean_arguments(job, folder / script, folder)
    if job.search.function:  # which has other parameters
        return None
    assignments = arguments.first_assignments(code.tree)
    in_text = {name for name in names if name in assignments and isinstance(assignments[name].value, ast.Constant)}
    if in_text == names:
        return arguments.GLOBALS
    files = [file for file, keys in code.settings.items() if any(_meant_keys(name, keys) for name in searched)]
    others, searched_in_text = set(searched) - in_text, in_text.intersection(searched)
    if len(files) != 1 or code.spots.keys() & others:  # several files, or the text, may have the value that counts
        return None
    keys = code.settings[files[0]]
    names_in_file = settings.spans((folder / files[0]).read_text(encoding="utf-8"), files[0])
    if not others or any(_meant_keys(name, names_in_file) for name in searched_in_text):
        return None
    are_in_file = all(len(_meant_keys(name, keys)) == 1 for name in others) and job.params.keys() - in_text <= set(keys)
    field = {"items": arguments.GLOBALS} if in_text else {}
    return {**field, "file": files[0]} if are_in_file else None


def unwritable_booleans(job: Job, folder: Path) -> Iterator[Issue]:
    """Yield an issue for each boolean parameter of a script whose False a job cannot write, as it has one form for all."""
    script, booleans = getattr(job, "script", None), _boolean_names(job)
    if booleans and script and (folder / script).is_file():
        yield from _unwritable(job, booleans, _option_styles(folder / script, folder))


def _unwritable(job: Job, booleans: Sequence[str], styles: Mapping[str, str]) -> Iterator[Issue]:
    """Yield what `unwritable_booleans` does, for the boolean parameters of a job and the formats of the script's options."""
    negated = [name for name in booleans if styles.get(name) == "negated"]
    for name in (name for name in booleans if not job.params.get(name)):  # a fixed true needs no False
        field, (section, _, last_part) = "params" if name in job.params else "space", name.rpartition(".")
        if section and name not in styles and styles.get(last_part) == "negated":  # as tyro nests the field of a class
            message = f"its False is --{section}.no-{last_part}, which a job does not write; leave it out"
            yield Issue((field, name), message)
        elif negated and styles.get(name) == "switch":
            reason = f"is a switch without --no-{name}, which a job would write as it writes --no-{negated[0]}"
            yield Issue((field, name), f"{reason}; leave one of them out")


def _boolean_names(job: Job) -> list[str]:
    """Return the boolean parameters of a job."""
    space = {} if isinstance(job.search.space, str) else job.search.space
    values = {name: getattr(parameter, "choices", None) or () for name, parameter in space.items()}
    values |= {name: (value,) for name, value in job.params.items()}
    return [name for name, items in values.items() if items and all(isinstance(item, bool) for item in items)]


def _option_styles(script: Path, folder: Path) -> dict[str, str]:
    """Return the format of booleans of each option of a script; see `_boolean_styles`."""
    files = [file for file in _files(script, (folder,)) if file is not None]
    names = {name for file in files for node in ast.walk(file.tree) for name in _names(node)}
    parsers = {library for file in files for library in file.libraries} | (names & _PARSER_CLASSES)
    parser_style = next((style for name, style in _PARSER_STYLES.items() if name in parsers), "")
    styles = {name: style for file in files for name, style in _boolean_styles(file.tree, parser_style)}
    # Options that the code adds by their names count more than fields and arguments with such names.
    added_options = [pair for file in files for pair in _boolean_styles(file.tree, "")]
    return styles | dict(sorted(added_options, key=lambda name_and_style: name_and_style[1] != "switch"))


def _boolean_arguments(job: Job, script: Path, folder: Path) -> dict[str, Any] | None:
    """Return the field `arguments` of a script whose parser reads a boolean as --amp=False or --no-amp; None for others.

    By default False is no argument, and so the script's own default, which may be True.
    """
    booleans = _boolean_names(job)
    styles = _option_styles(script, folder) if booleans else {}
    if _fire_subcommands(script) or any(_unwritable(job, booleans, styles)):  # it is refused
        return None
    # A library nests the field amp of a class in another as model.amp.
    by_value = [name for name in booleans if styles.get(name, styles.get(name.rpartition(".")[2])) == "value"]
    items = [f"--{name}={{{name}}}" for name in by_value]
    negated = {"booleans": "negated"} if any(styles.get(name) == "negated" for name in booleans) else {}
    return {"items": [*items, f"{{{arguments.FLAGS}}}"], **negated} if items or negated else None


def _boolean_styles(tree: ast.Module, parser_style: str) -> Iterator[tuple[str, str]]:
    """Yield each long option that code adds to a parser, with the format of its booleans, see `arguments.build`.

    The format "switch" also stands for options that refuse all texts of booleans, and those that take any text as true.

    Args:
        tree: Syntax tree of the code.
        parser_style: Format of the parser that turns the arguments of functions and the fields of classes into options; ""
            if there is no such parser.
    """
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="add_argument"), args=flags, keywords=keywords):
                yield from _argparse_styles(_texts_of(flags), _code_by_keyword(keywords))
            case ast.Call(func=ast.Attribute(attr="option") | ast.Name(id="option"), args=flags, keywords=keywords):
                yield from _click_styles(_texts_of(flags), _code_by_keyword(keywords))
            case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name), args=[ast.Constant(value=str(flag)), *_]) if (
                name in _ABSL_BOOLEANS
            ):
                yield flag, "value"
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation, value=default) if parser_style:
                yield from _boolean_field(name, annotation, default, parser_style)
            case ast.arguments() if parser_style:
                positional = [*node.posonlyargs, *node.args]
                defaults = [None] * (len(positional) - len(node.defaults)) + node.defaults + node.kw_defaults
                for argument, default in zip([*positional, *node.kwonlyargs], defaults, strict=True):
                    yield from _boolean_field(argument.arg, argument.annotation, default, parser_style)


def _code_by_keyword(keywords: Sequence[ast.keyword]) -> dict[str, str]:
    """Return the code of the values that a call gives to its keywords."""
    return {str(keyword.arg): ast.unparse(keyword.value) for keyword in keywords}


def _argparse_styles(flags: Sequence[str], code: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield what `_boolean_styles` does for `add_argument("--amp", type=str2bool)`, from its flags and keywords."""
    if code.get("action", "").endswith("BooleanOptionalAction"):
        style = "negated"
    elif "action" not in code and _reads_booleans(code):
        style = "value"
    else:
        style = "switch"
    yield from ((flag.removeprefix("--"), style) for flag in flags if flag.startswith("--"))


def _click_styles(flags: Sequence[str], code: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield what `_boolean_styles` does for `click.option("--amp/--no-amp")` and `click.option("--amp", type=bool)`."""
    takes_value = code.get("type") == "bool" or ("type" not in code and code.get("default") in _BOOLEANS)
    for flag in flags:
        if names := _ON_AND_OFF.fullmatch(flag):
            yield names[1], "negated"
        elif flag.startswith("--") and "/" not in flag:
            takes_its_value = takes_value and not {"is_flag", "flag_value", "count"} & code.keys()
            yield flag.removeprefix("--"), "value" if takes_its_value else "switch"


def _reads_booleans(code: Mapping[str, str]) -> bool:
    """Return whether an option reads `True` and `False`, by the code of the keywords with which it is added.

    A type such as `str2bool` reads each spelling. Without one, the script may compare the text with another than `True`, so
    its choices or its default must show that one.
    """
    if "type" in code:
        return _READS_BOOLEANS.fullmatch(code["type"]) is not None
    return _BOOLEAN_TEXTS.search(code.get("choices", code.get("default", ""))) is not None


def _boolean_field(
    name: str, annotation: ast.expr | None, default: ast.expr | None, style: str
) -> Iterator[tuple[str, str]]:
    """Yield the names of an option that a parser makes of a field or an argument, if it is a boolean, with a format.

    Args:
        name: Name of the field.
        annotation: Its type; None without one.
        default: Its default; None without one.
        style: Format of the parser.
    """
    parts = [node for part in (annotation, default) if part is not None for node in ast.walk(part)]
    flags = [text for text in _texts_of(parts) if text.startswith("--")]  # of typer.Option(True, "--amp/--no-amp")
    if flags:
        yield from ((names[1], "negated") for names in map(_ON_AND_OFF.fullmatch, flags) if names)
        yield from ((flag.removeprefix("--"), "switch") for flag in flags if "/" not in flag)
        return
    has_boolean_type = annotation is not None and re.match(r"(?:Annotated\[)?bool\b", ast.unparse(annotation))
    if has_boolean_type or (default is not None and ast.unparse(default) in _BOOLEANS):
        # A parser with `--amp` and `--no-amp` reads a value of a boolean that has no default.
        own_style = style if default is not None else "value"
        yield from ((spelling, own_style) for spelling in {name, name.replace("_", "-")})


def _texts_of(nodes: Iterable[ast.AST | None]) -> list[str]:
    """Return the texts among nodes of code."""
    return [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def _meant_keys(name: str, keys: Iterable[str]) -> list[str]:
    """Return the keys of a settings file that a name may mean: `lr` and `train.lr` for `lr`."""
    return [key for key in keys if settings.may_mean(name, key)]


def _settings_files(tree: ast.Module, script_folder: Path, folder: Path) -> Iterator[tuple[str, Collection[str]]]:
    """Yield the settings files whose paths are texts in a script, each with the names of its values.

    A file that the script writes, such as one of results, is none.

    Args:
        tree: Syntax tree of the script.
        script_folder: Folder of the script, to which the paths are relative.
        folder: Folder of the job, to which the yielded paths are relative.
    """
    written = {node for call in ast.walk(tree) if _writes(call) for node in ast.walk(call)}
    constants = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and node not in written)
    texts = (node.value for node in constants if isinstance(node.value, str))
    for text in dict.fromkeys(text for text in texts if re.fullmatch(r"(?!/)[\w./-]{1,200}", text)):  # relative paths
        with contextlib.suppress(OSError, ValueError):  # it is no file, or has no settings
            file = script_folder / text
            is_small = file.is_file() and file.stat().st_size <= _LARGEST_SETTINGS
            if is_small and file.suffix != ".py" and file.resolve().is_relative_to(folder.resolve()):
                name = os.path.relpath(file, folder)
                yield name, settings.spans(file.read_text(encoding="utf-8"), name).keys()


def _writes(node: ast.AST) -> bool:
    """Return whether code is a call that writes a file: `open(path, "w")`, `json.dump(…)`, `frame.to_csv(path)`."""
    if not isinstance(node, ast.Call):
        return False
    name = ast.unparse(node.func).rpartition(".")[2]
    if name != "open":
        return name.startswith(("write", "dump", "save", "to_"))
    modes = [*node.args[:2], *(keyword.value for keyword in node.keywords if keyword.arg == "mode")]
    return any(isinstance(mode, ast.Constant) and re.fullmatch(r"[rbt]*[wax+][wbt+]*", str(mode.value)) for mode in modes)


@dataclasses.dataclass(frozen=True)
class _Code:
    """The values of a script that certainly reads no arguments.

    Attributes:
        tree: Syntax tree of the script.
        spots: Values in its text that a parameter can replace, by name.
        settings: Settings file that the script names, or module that it imports → the names of its values.
        script: Path of the script.
        roots: Folders from which it imports, first that of the job.
    """

    tree: ast.Module
    spots: Mapping[str, arguments.Spot]
    settings: Mapping[str, Collection[str]]
    script: Path
    roots: Sequence[Path]

    def texts(self, choices: Collection[str]) -> list[module_files.Text]:
        """Return the texts in the script or in a module that are among some choices."""
        return module_files.texts(choices, self.script, self.roots[0], [self.script.parent, *self.roots])

    def file_clauses(self, names: Collection[str]) -> dict[str, str]:
        """Return those of some names that a settings file has, each with a clause that says so."""
        clauses: dict[str, str] = {}
        for file, keys in self.settings.items():
            for name in names:
                if meant_keys := _meant_keys(name, keys):
                    clauses.setdefault(name, f"{file}, which it reads, has {' and '.join(meant_keys)}")
        return clauses


def _code_without_arguments(script: Path, roots: Sequence[Path], names: Collection[str]) -> _Code | None:
    """Return the values of a script if it certainly reads no parameters, or None. The first root is the job's folder."""
    files: list[_File] = []
    for file in _files(script, roots):
        if file is None or _reads_arguments(file.tree):
            return None
        files.append(file)
    if _reads_parameters(file.text for file in files):
        return None
    tree = files[0].tree
    spots, settings_files = arguments.spots(tree), dict(_settings_files(tree, script.parent, roots[0]))
    in_files = [key for keys in settings_files.values() for key in keys]
    in_text = [name for name in names if any(f".{key}".endswith(f".{name}") for key in spots)]
    missing = [name for name in names if name not in in_text and not _meant_keys(name, in_files)]
    if (values := module_files.with_values(missing, script, roots[0], [script.parent, *roots])) is not None:
        settings_files[values.module] = values.keys
    code = _Code(tree, spots, settings_files, script, roots)
    # A value in the text or in a settings file would stay the same in all trials, whatever a library reads.
    if code.spots.keys() & set(names) or code.file_clauses(names):
        return code
    return None if any(map(_may_read_arguments, {library for file in files for library in file.libraries})) else code


@functools.cache
def _may_read_arguments(library: str) -> bool:
    """Return whether a library may read the arguments of a script: itself, or by another one that it imports.

    The code of an installed library shows that. Any other may.
    """
    pending, visited = [library], set(sys.stdlib_module_names)
    while pending:
        name = pending.pop()
        if name in visited or _COMPUTING.fullmatch(name):
            continue
        visited.add(name)
        files = _library_files(name)
        if not 0 < len(files) <= _MOST_LIBRARY_FILES:
            return True
        for file in files:
            try:
                data = file.read_bytes()
                tree = notebook.parse(data)
            except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
                return True
            if _reads_arguments(tree) or _READS_PARAMETERS.search(data.decode(errors="replace")):
                return True
            pending += _top_imports(tree)
    return False


def _library_files(name: str) -> list[Path]:
    """Return the Python files of an installed library, and one more than `_MOST_LIBRARY_FILES` at most; [] for any other."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return []
    if spec is None or spec.origin is None:
        return []
    files = [Path(spec.origin)] if spec.submodule_search_locations is None else Path(spec.origin).parent.rglob("*.py")
    return list(itertools.islice((file for file in files if file.suffix == ".py"), _MOST_LIBRARY_FILES + 1))


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
    """Yield the texts in a value of a job, also those in nested mappings and lists."""
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


def _has_other_parser(tree: ast.Module) -> bool:
    """Return whether code imports another library than argparse that reads arguments."""
    return any(_PARSERS.search(name) and name != "argparse" for name in _top_imports(tree))


def _reads_arguments(tree: ast.Module) -> bool:
    """Return whether code reads the arguments of a script, itself or by a library."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom, ast.Name, ast.Attribute)):
            names = list(_names(node))
            is_import = isinstance(node, (ast.Import, ast.ImportFrom))
            if (is_import and any(map(_PARSERS.search, names))) or any(map(_READS_ARGUMENTS.fullmatch, names)):
                return True
    return False
