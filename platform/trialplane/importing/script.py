"""The facts that the text of a Python script shows: its imports, the files that it names, and how it gets its parameters.

`read` returns them all as a `Script`. The script is only parsed, never run. The functions whose names end in `_options`, and
`with_default`, return parameters as the `Option`s that `platform init --from` writes into a job.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from trialplane.errors import Issue, SpecError
from trialplane.importing import constants, folding, guess, naming, own_folder, positions, ray, study
from trialplane.job import arguments, document, module_files, notebook, settings
from trialplane.wire.declared import Option


class Style(enum.StrEnum):
    """The way in which a script gets its parameters."""

    UNKNOWN = ""
    STUDY = "study"  # from a search by Optuna or another library, of which trials take the objective; see `study`
    TUNE = "tune"  # from Ray Tune: the script calls `tune.run` or `tune.Tuner`
    WANDB = "wandb"  # from `wandb.config`, with a sweep in the script
    HYDRA = arguments.HYDRA  # from Hydra's configuration
    CONFIGURATOR = "configurator"  # by assignments that a file run with `exec` overwrites, as in nanoGPT
    ATTRIBUTES = "attributes"  # by assignments like `config.trainer.lr = 0.1`, which the script overwrites from `sys.argv`
    SACRED = "sacred"  # from arguments like `with lr=0.1`
    POSITIONS = "positions"  # from `sys.argv[1]`, `sys.argv[2]`, …
    ENVIRONMENT = "environment"  # from `os.environ["LR"]`
    SETTINGS = "settings"  # from a file of settings
    COMMAND = "command"  # from a command line: the script is a shell script, a Makefile or an MLproject
    PROMPTS = "prompts"  # from standard input, by `input("lr: ")`
    PARSED = "parsed"  # from argparse, click or a library based on these: the script itself declares its arguments
    GLOBALS = arguments.GLOBALS  # not at all: it has values in its text, which parameters can replace
    SEARCHES = "searches"  # not at all: it searches by itself


OWN_SEARCHES = (Style.TUNE, Style.STUDY, Style.WANDB)  # those of scripts whose search becomes the job

_PARSERS = re.compile(
    r"\b(parse_args|parse_known_args|parse_args_into_dataclasses|simple_parsing|tyro|jsonargparse|LightningCLI|from_cli|"
    r"pyrallis|draccus|click\.(command|group)|typer\.(run|Typer)|@command|@\w+\.command|plac\.call|docopt|cli_parse_args|"
    r"CliApp|Fire|DEFINE_\w+|automain|run_commandline)\b"
)
# Text that shows that a script reads arguments, also by a parser that is none of these.
ARGUMENTS = re.compile(
    r"argparse|ArgumentParser|\bargv\b|\bclick\b|\bfire\b|absl|hydra|tyro|typer|simple_parsing|pyrallis|draccus|docopt|"
    r"getopt|sacred|\bplac\b"
)
# --master_port=29500, MASTER_PORT=29500. 0 is any free port.
_MASTER_PORT = re.compile(r"(?<![\w-])(?:--(?:master|main_process)[_-]port[ =]|MASTER_PORT=)([1-9]\d*)")
_PACKAGE = re.compile(r"#\s*@package\s+(?!_group_\s)")  # # @package _global_; `_group_` is the default
_SETTINGS_NAME = re.compile(r"(?<![\w./*-])[\w./*-]+\.(?:yaml|yml|json|toml|ini|cfg|conf|gin)\b")  # conf/base.yaml
# Text before a name that starts with a slash, if the name is only the rest of a path: f"{root}/a.yaml", root + "/a.yaml".
_JOINED = re.compile(r"""\}|\+\s*f?["']$""")
_PART_OF_STARS = re.compile(r"\*\*+(?!/)|(?<=[^/])\*\*+")  # `a**.yaml`; pathlib refuses two stars with anything beside them
_LONGEST_FILE_NAME = 255  # bytes
_ABSOLUTE = re.compile(r"/[\w.-][\w./ {}:-]*")  # /data/out
# Names of functions that write, and of arguments that name what is written: save_pretrained, output_dir.
_WRITES = re.compile(
    r"save|write|dump|makedirs|mkdir|checkpoint|filehandler|^to_(?:csv|json|parquet|pickle)$", re.IGNORECASE
)
# Names of such functions that read, and of arguments that are read: load_from_checkpoint, fit(model, ckpt_path="…").
_READS, _IS_READ = re.compile(r"load|read|restore", re.IGNORECASE), re.compile(r"checkpoint|ckpt|load|resume")
_WRITING_MODE = re.compile(r"[rbt]*[wax][bt+]*")  # of open
_JOINS = ("Path", "join", "joinpath", "abspath", "str")  # functions whose result is a path
_OUTPUT = re.compile(
    r"(?:\w+_)?(?:out|output|save|log|logging|checkpoint|ckpt|work|result|results)_?(?:dir|path|file|folder)"
)
_PATH = re.compile(r"(?!/)[\w./ -]{1,200}[/.][\w./ -]*")  # data/train.csv, ../data
# Calls that read a file of settings.
_LOADS = re.compile(
    r"\b(?:safe_load|full_load|yaml\.load|tomllib\.load|toml\.load|OmegaConf\.load|json\.load|ConfigParser)\("
)
_SHORT_TEXT = re.compile(r"""["']([\w-]{1,40})["']""")  # "base"
_FILE_TEXT = re.compile(r"""["'](?!/)([\w./-]{1,200})["']""")  # "config-feedforward"
_HYDRA_NAME = re.compile(r"""config_name=["'](\w+)["']""")  # in a call of Hydra's `compose`
# A module with the values of a script: `config`, `hparams`, `constants`.
_CONFIG_MODULE = re.compile(
    r"(?:\w+_)?(?:config|configs|configuration|cfg|conf|params|parameters|settings|hparams|hyperparameters|hyperparams|"
    r"constants|defaults|opts|options|globals)(?:_\w+)?"
)
# Searches that a script carries out by itself: calls of scikit-learn, and libraries that have no other use.
_OWN_SEARCH = re.compile(r"\b(?:Grid|Randomized|HalvingGrid|HalvingRandom|Bayes|Optuna)SearchCV\b")
_SEARCHERS = frozenset(
    ("hyperopt", "skopt", "bayes_opt", "nevergrad", "ax", "keras_tuner", "kerastuner", "smac", "optuna", "hebo", "flaml")
) | {"tpot", "talos", "openbox", "syne_tune", "mango", "dehb", "autosklearn", "deap", "ConfigSpace"}
_ANY_SETTINGS = ("*.yaml", "*.yml", "*.toml", "*.ini", "*.json", "*.py")
# An argument that names a settings file: `--config`, `params_file`.
CONFIG = re.compile(r"(?:config|cfg|conf|params|settings|hparams|opt)(?:[_-]?(?:file|path|name|yaml|yml|json))?")
# add_argument("config"), add_argument("-c", "--config", required=True)
_NEEDED_CONFIG = re.compile(
    rf"""add_argument\((?:\s*["']-\w["'],)?\s*["'](?:{CONFIG.pattern}["']|--{CONFIG.pattern}["'][^)]*required\s*=\s*True)"""
)
_CONFIG_ARGUMENT = re.compile(rf"""["'](?:--)?{CONFIG.pattern}["']""")  # "--config"
# Parts of names of files that have no settings.
_RESULTS = re.compile(r"metric|result|score|output|report|history|package|vocab|tokenizer", re.IGNORECASE)
_COMPARISON = re.compile(r"""\b(\w+)(?:\.lower\(\))?\s*==\s*["']([\w.+-]{1,40})["']""")  # args.optimizer == "adam"
_MOST_UNNAMED = 12  # numbers without a name of their own that a job lists without a request
_KINDS = ("int", "float", "bool", "str")  # of options, named as Python's types
_HYDRA_KEYS = ("hydra", "defaults")  # keys of a configuration that Hydra itself reads


@dataclasses.dataclass(frozen=True)
class Call:
    """The call of a script in a command line.

    Attributes:
        script: Path of the script, relative to `folder`.
        folder: Folder in which the command starts the script, relative to the one in which the command is typed.
        module: Name of the module, if the command starts the script by `python -m`; otherwise "".
        arguments: Arguments of the script.
        start: Position of the call in the command line, from the assignments before its program on.
        end: Position behind the last argument, where further ones can stand.
        variables: Environment variables that the command line sets for the script: assignments before the program, and
            those of `env` and `export`.
    """

    script: str
    folder: str = "."
    module: str = ""
    arguments: tuple[str, ...] = ()
    start: int = 0
    end: int = 0
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Script:
    """The facts that the text of a script shows.

    Attributes:
        style: Way in which it gets its parameters.
        options: Its parameters; none for TUNE, STUDY, WANDB, PARSED and HYDRA, whose parameters are not in its text.
        config: With HYDRA, path of its configuration without the suffix, relative to the script. With SETTINGS, or with a
            COMMAND whose values are in a file, name of the file. Otherwise "".
        further_configs: With COMMAND, names of further files whose values trials replace.
        top_modules: Modules that it imports at its top level, in their order.
        late_modules: Modules that it imports only in other places, such as functions, in their order.
        objects: Full names of the objects that it imports, such as `src.nets` for `from src import nets`.
        search: With STUDY, fields of the job. With WANDB, the sweep. Otherwise empty.
        notes: With STUDY, remarks on settings of the search that the job lacks. With COMMAND, remarks on secrets.
        returned: With HYDRA and SACRED, expression that the decorated function returns, or "".
        is_module: Whether it imports from its own package, as in `from .model import Model`.
        settings: Names in its text, or patterns of names, of settings files that may have its parameters.
        texts: Texts in it that may be relative paths of files, such as `config-feedforward`.
        config_modules: Those of `settings` that are modules which it imports.
        takes_file: Whether `sys.argv[1]` may name such a file.
        command: With COMMAND, words of the command line that starts it, with {NAME} for the values of its options.
        values: Values in its text that parameters can replace, with any style.
        searcher: Library or class that it may use to search, whatever the style; "" for none.
        paths: Texts in it that may be paths of files.
        printed: Name of a metric for a number that it prints without a name.
        needs_file: Whether its parser has an argument that must name a settings file.
        call: With COMMAND, the Python script that the command line starts, if it is one.
        appended: With COMMAND, form of the arguments that can be appended to the command: FLAGS, HYDRA, or "" for none.
        in_file: With COMMAND, options that the settings file `config` or one of `further_configs` has.
        compared: Attribute or variable → the texts to which the script compares it: `if args.optimizer == "adam"`.
        shared_paths: Absolute paths to which it writes, and its fixed port, which trials at the same time would share.
        variables: Environment variables that it reads.
        metric_files: Paths of the files with its metrics, with wildcards, if it declares them.
        outputs: Paths that it writes, if it declares them.
        fixed: With COMMAND, names of options whose defaults the user has typed.
        unknown: With COMMAND, names of options to which a shell script gives values that only the shell knows.
        searching: With TUNE, STUDY and WANDB, subcommand of click or typer that has the search; "" if no subcommand has it.
    """

    style: Style
    options: tuple[Option, ...]
    config: str = ""
    further_configs: tuple[str, ...] = ()
    top_modules: tuple[str, ...] = ()
    late_modules: tuple[str, ...] = ()
    objects: tuple[str, ...] = ()
    search: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()
    returned: str = ""
    is_module: bool = False
    settings: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    config_modules: tuple[str, ...] = ()
    takes_file: bool = False
    command: tuple[str, ...] = ()
    values: tuple[Option, ...] = ()
    searcher: str = ""
    paths: tuple[str, ...] = ()
    printed: str = "cost"
    needs_file: bool = False
    call: Call | None = None
    appended: str = ""
    in_file: tuple[str, ...] = ()
    compared: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    shared_paths: tuple[str, ...] = ()
    searching: str = ""
    variables: tuple[Option, ...] = ()
    metric_files: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    fixed: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    @property
    def modules(self) -> tuple[str, ...]:
        """All modules that it imports, those of its top level first."""
        return (*self.top_modules, *self.late_modules)


class _Form(NamedTuple):
    """The way in which a script gets its parameters, and what belongs to it. See `Script` for the attributes."""

    style: Style
    options: tuple[Option, ...] = ()
    config: str = ""
    returned: str = ""
    search: Mapping[str, Any] = MappingProxyType({})


def read(
    text: str,
    name: str,
    module_text: str = "",
    *,
    with_search: bool = True,
    requested: Collection[str] = (),
    given_arguments: Sequence[str] = (),
) -> Script:
    """Return the facts that the text of a script shows.

    Args:
        text: Text of the script.
        name: Name of the script, for messages.
        module_text: Text of the modules that it imports from its own folder, in which its parser may be.
        with_search: Whether a search of its own, by Ray Tune, Optuna or W&B, counts as the way in which it gets its
            parameters. Otherwise the style is that of its other parameters.
        requested: Names of the parameters that the user wants to search.
        given_arguments: Arguments of the script in the user's command.

    Raises:
        SpecError: The text is not Python.
    """
    tree = parse(text, name)
    values = tuple(_text_options(tree, requested))  # before `fold` changes the tree: a trial replaces values in the text
    changed_dicts = folding.fold(tree)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    all_text = f"{text}\n{module_text}"
    top_modules = tuple(dict.fromkeys(_imported_modules(tree.body)))
    all_modules = dict.fromkeys(_imported_modules(ast.walk(tree)))
    searcher = _searcher(text, all_modules)
    variables = tuple(_environment_options(tree))
    # The form is the first one of which the text has signs.
    notes: list[str] = []
    form = _search_form(tree, calls, changed_dicts, name, notes, given_arguments) if with_search else None
    if form is None:
        form = _argument_form(tree, calls, text, all_text, requested)
    if form is None and with_search:
        form = _module_search_form(tree, module_text, name, notes)
    if form is None:
        has_unknown_parser = bool(ARGUMENTS.search(all_text))
        form = _other_form(tree, values, variables, searcher, has_unknown_parser=has_unknown_parser)
    # Its files.
    takes_file = form.style is Style.UNKNOWN and "sys.argv[1]" in text
    has_config_argument = form.style is Style.PARSED and bool(_CONFIG_ARGUMENT.search(all_text))
    settings_files = _settings_files(all_text, by_argument=takes_file or has_config_argument)
    config_modules = tuple(config_module_files(tree))
    paths = dict.fromkeys((*path_texts(tree), *paths_above(tree)))
    return Script(
        form.style,
        form.options,
        config=form.config,
        top_modules=top_modules,
        late_modules=tuple(module for module in all_modules if module not in top_modules),
        objects=tuple(naming.imported(tree).values()),
        search=dict(form.search),
        notes=tuple(notes),
        returned=form.returned,
        is_module=any(isinstance(node, ast.ImportFrom) and node.level > 0 for node in ast.walk(tree)),
        settings=(*settings_files, *config_modules),
        texts=tuple(dict.fromkeys(_FILE_TEXT.findall(all_text))),
        config_modules=config_modules,
        takes_file=takes_file,
        values=values,
        searcher=searcher,
        paths=tuple(path for path in paths if "\0" not in path),
        printed=_printed_metric(tree, calls),
        needs_file=bool(_NEEDED_CONFIG.search(all_text)),
        compared=_compared_texts(all_text),
        shared_paths=tuple(dict.fromkeys(_shared_paths(tree, calls))),
        searching=_searching_command(tree, calls) if form.style in OWN_SEARCHES else "",
        variables=variables,
    )


def _search_form(
    tree: ast.Module,
    calls: Sequence[ast.Call],
    changed_dicts: Collection[str],
    name: str,
    notes: list[str],
    given_arguments: Sequence[str],
) -> _Form | None:
    """Return the form of a script that starts a search by Ray Tune, Optuna, W&B or another library; None without one.

    Remarks for the user are appended to `notes`, see `study.read`. For `changed_dicts`, see `_sweep_fields`.
    """
    if ray.starts_search(tree, tree.body):
        return _Form(Style.TUNE)
    if job_fields := study.read(tree, calls, name, notes, given_arguments):
        return _Form(Style.STUDY, search=job_fields)
    if sweep := _sweep_fields(tree, calls, changed_dicts):
        return _Form(Style.WANDB, search=sweep)
    return None


def _argument_form(
    tree: ast.Module, calls: Sequence[ast.Call], text: str, all_text: str, requested: Collection[str]
) -> _Form | None:
    """Return the form of a script that takes arguments, or has a configuration of Hydra or Sacred; None for others.

    Its parser may also be in one of its modules, which `all_text` has, too. For `requested` see `read`.
    """
    imported = naming.imported(tree)
    hydra_main = next((call for call in calls if naming.full(call.func, imported) == "hydra.main"), None)
    if hydra_main is not None:
        return _Form(Style.HYDRA, config=_config_path(hydra_main), returned=_returned_expression(tree, hydra_main))
    if any(map(_executes_file, calls)):
        return _Form(Style.CONFIGURATOR, tuple(_configurator_options(tree)))
    sacred_options = tuple(_sacred_options(tree)) if "sacred" in text else ()
    if sacred_options:
        return _Form(Style.SACRED, sacred_options, returned=_sacred_return(tree))
    if _PARSERS.search(all_text):
        return _Form(Style.PARSED)
    if "sys.argv" not in all_text and "sys.argv" not in imported.values():
        return None
    position_options = tuple(positions.options(tree, requested))
    has_numbers = any(option.kind in ("float", "int") for option in position_options)
    if guess.space(position_options) or has_numbers or any(option.name in requested for option in position_options):
        return _Form(Style.POSITIONS, position_options)
    attribute_options = tuple(_attribute_options(tree))
    return _Form(Style.ATTRIBUTES, attribute_options) if attribute_options else None


def _other_form(
    tree: ast.Module,
    values: tuple[Option, ...],
    variables: tuple[Option, ...],
    searcher: str,
    *,
    has_unknown_parser: bool,
) -> _Form:
    """Return the form of a script without a known search or parser.

    Args:
        tree: Tree of the script.
        values: Values in its text that parameters can replace.
        variables: Environment variables that it reads.
        searcher: Library or class by which it may search by itself; "" for none.
        has_unknown_parser: Whether it may read arguments by a parser that is not known. Then its values stay.
    """
    if searcher:
        return _Form(Style.SEARCHES)
    prompt_options = tuple(_prompt_options(tree))
    if prompt_options:
        return _Form(Style.PROMPTS, prompt_options)
    value_options = () if has_unknown_parser else values
    needs_variables = any(option.required for option in variables)
    if guess.space(variables) or (needs_variables and not guess.space(value_options)):
        return _Form(Style.ENVIRONMENT, variables)
    return _Form(Style.UNKNOWN if has_unknown_parser else Style.GLOBALS, value_options)


def parse(text: str, name: str) -> ast.Module:
    """Return the tree of a script.

    Raises:
        SpecError: The text is not Python.
    """
    try:
        return notebook.parse(text)
    except SyntaxError as error:
        issue = Issue(("script",), f"is not Python: {error.msg}", source=name, line=error.lineno or 0)
    except ValueError as error:
        issue = Issue(("script",), f"is not Python: {error}", source=name)
    except (RecursionError, MemoryError):
        issue = Issue(("script",), "is not Python: it is nested too deeply for Python's parser", source=name)
    raise SpecError([issue])


def _searcher(text: str, modules: Iterable[str]) -> str:
    """Return the library or the class of scikit-learn by which a script may search by itself; "" for none."""
    library = next((module for module in modules if module.partition(".")[0] in _SEARCHERS), "")
    search_class = _OWN_SEARCH.search(text)
    return library or (search_class[0] if search_class else "")


def _shared_paths(tree: ast.Module, calls: Sequence[ast.Call]) -> Iterator[str]:
    """Yield the absolute paths to which a script writes, and which trials at the same time would share.

    These are arguments of calls that write, and arguments of any call with a name like `output_dir`. An argument may also
    be a variable to which the path is assigned.
    """
    assigned = naming.first_values(tree)
    for call in calls:
        for node in _written(call):
            path = constants.literal(assigned.get(ast.unparse(node), node))
            if isinstance(path, str) and _ABSOLUTE.fullmatch(path) and not path.startswith("/dev/"):
                yield path


def _written(call: ast.Call) -> list[ast.expr]:
    """Return the arguments of a call that may be paths to which it writes; [] for a call that writes nothing."""
    function = naming.last(call.func)
    mode = constants.literal(naming.arguments_by_name(call, "file", "mode").get("mode"))
    opens_for_writing = function == "open" and isinstance(mode, str) and not set("wax+").isdisjoint(mode)
    writes = opens_for_writing or _WRITES.search(function) is not None
    keywords = [word.value for word in call.keywords if writes or (word.arg and _OUTPUT.fullmatch(word.arg))]  # output_dir=…
    return [*(call.args if writes else ()), *keywords]


def _written_nodes(tree: ast.Module) -> set[ast.AST]:
    """Return the nodes of the paths to which a script writes: of a path that is joined, or of a text with a path above."""
    assigned, written = naming.first_values(tree), set[ast.AST]()
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        reads = _READS.search(naming.last(call.func)) or any(_IS_READ.search(word.arg or "") for word in call.keywords)
        nodes = [] if reads else _written(call)
        match call:
            case ast.Call(func=ast.Attribute(attr="open", value=path), args=[ast.Constant(value=str(mode)), *_]):
                nodes += [path] if _WRITING_MODE.fullmatch(mode) else []  # Path("../model.txt").open("w")
            case ast.Call(func=ast.Attribute(attr="write_text" | "write_bytes" | "mkdir" | "touch", value=path)):
                nodes.append(path)
        for node in nodes:
            value = assigned.get(ast.unparse(node), node)
            if _is_path(value):
                written |= set(ast.walk(value))
    return written


def _is_path(node: ast.expr) -> bool:
    """Return whether an expression joins a path, or is the text of one above.

    The text of one below is left out, as it shows the folder in which its user starts the script.
    """
    match node:
        case ast.Constant(value=str(text)):
            return text.startswith("../")
        case ast.BinOp(left=left, op=ast.Div() | ast.Add(), right=right):  # FOLDER / "model.pt"
            return any(isinstance(part, ast.JoinedStr) or isinstance(constants.literal(part), str) for part in (left, right))
        case ast.Call(func=function):
            return naming.last(function) in _JOINS
    return isinstance(node, ast.JoinedStr)


def shared_outputs(words: Sequence[str]) -> Iterator[str]:
    """Yield the absolute paths to which the arguments of a command, as `--output_dir /data/out`, let it write."""
    for flag, path in re.findall(r"(?<!\S)--?([A-Za-z][\w-]*)[ =](/[^\s]+)", " ".join(words)):
        if _OUTPUT.fullmatch(flag.replace("-", "_")) and not path.startswith("/dev/"):
            yield path


def shared_ports(command: str) -> Iterator[str]:
    """Yield each fixed port at which a command line lets the ranks of torch meet, as `--master_port=29500`."""
    return (f"port {port}" for port in _MASTER_PORT.findall(command))


def _searching_command(tree: ast.Module, calls: Sequence[ast.Call]) -> str:
    """Return the subcommand of click or typer whose function starts a search of Ray Tune, Optuna or W&B; "" if none does."""
    imported = naming.imported(tree)
    searches = {call for call in calls if study.is_search(call, imported) or naming.dotted(call.func) == "wandb.agent"}
    searches |= set(ray.searches(tree))
    for function in (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.decorator_list):
        if searches.isdisjoint(naming.executed_nodes(tree, function.body)):
            continue
        for decorator in function.decorator_list:
            if isinstance(decorator, ast.Call) and _is_subcommand(tree, calls, function, decorator):
                name = constants.literal(naming.arguments_by_name(decorator, "name").get("name"))  # @app.command("tune")
                return name if isinstance(name, str) else function.name.replace("_", "-")
    return ""


def _is_subcommand(tree: ast.Module, calls: Sequence[ast.Call], function: ast.FunctionDef, decorator: ast.Call) -> bool:
    """Return whether a decorator makes a function a subcommand, which must be named on the command line.

    The only command of a script of click or typer needs no name.
    """
    group, _, attribute = naming.dotted(decorator.func).rpartition(".")  # `cli` and `command` for @cli.command()
    if attribute != "command" or not group:
        return False
    if group == "click":  # a function with @click.command() becomes a subcommand only by `cli.add_command(tune)`
        adding_calls = [call for call in calls if naming.last(call.func) == "add_command"]
        return any(ast.unparse(argument) == function.name for call in adding_calls for argument in call.args)
    # A group of click, which may be of another file, always makes subcommands. An app of typer does so if it has several
    # commands, or a callback.
    assignments = [node for node in ast.walk(tree) if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == group]
    is_typer = any(isinstance(node.value, ast.Call) and naming.last(node.value.func) == "Typer" for node in assignments)
    commands = [call for call in calls if naming.dotted(call.func) in (f"{group}.command", f"{group}.callback")]
    return not is_typer or len(commands) > 1


def _compared_texts(text: str) -> dict[str, tuple[str, ...]]:
    """Return the texts to which a script compares each name, as `adam` for `args.optimizer == "adam"`, by name."""
    texts: dict[str, dict[str, None]] = {}  # the inner dicts are ordered sets
    for name, compared_text in _COMPARISON.findall(text):
        texts.setdefault(name, {})[compared_text] = None
    return {name: tuple(different_texts) for name, different_texts in texts.items()}


def _printed_metric(tree: ast.Module, calls: Sequence[ast.Call]) -> str:
    """Return a name for the number that a script prints without one.

    It is the first name of a loss or a score in the last value of the last `print` without words, or else in the expressions
    that are assigned to the printed variables, the last assignment first; otherwise "cost".
    """
    values_by_print = [_wordless_values(call.args) for call in calls if naming.dotted(call.func) == "print"]
    last_values = [values[-1] for values in values_by_print if values]
    printed = max(last_values, key=lambda value: value.lineno, default=None)
    if printed is None:
        return "cost"
    variables = {node.id for node in ast.walk(printed) if isinstance(node, ast.Name)}
    assignments = [node for node in ast.walk(tree) if isinstance(node, ast.Assign)]
    assigned = [node.value for node in reversed(assignments) if ast.unparse(node.targets[0]) in variables]
    names = (name for expression in (printed, *assigned) for name in guess.candidates(ast.unparse(expression)))
    return next((name for name in names if name.isidentifier()), "cost")


def _wordless_values(printed: Sequence[ast.expr]) -> list[ast.expr]:
    """Return the values that the arguments of a `print` show without words: step and loss of `f"{step}: {loss}"`.

    Of a formatted text, what follows a parenthesis is ignored: of `f"{loss} (best: {best})"`. [] if it prints words, too.
    """
    values: list[ast.expr] = []
    texts: list[str] = []
    for node in printed:
        parts = node.values if isinstance(node, ast.JoinedStr) else [node]
        for part in parts:
            if isinstance(part, ast.Constant):
                text, parenthesis, _ = str(part.value).partition("(")
                texts.append(text)
                if parenthesis:
                    break
            else:
                values.append(part.value if isinstance(part, ast.FormattedValue) else part)
    prints_words = any(character.isalpha() for character in "".join(texts))
    return [] if prints_words else values


def paths_above(tree: ast.Module) -> Iterator[str]:
    """Yield the paths above a script's folder that it derives from its own path, without those to which it writes."""
    return own_folder.upward_paths(tree, _written_nodes(tree))


def path_texts(tree: ast.Module) -> Iterator[str]:
    """Yield the texts of a Python file that may be relative paths, without those of paths above to which it writes."""
    written = _written_nodes(tree)
    for node in (node for node in ast.walk(tree) if node not in written):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _PATH.fullmatch(node.value):
            yield node.value


def config_module_files(tree: ast.Module) -> Iterator[str]:
    """Yield the files that imported modules may be, if their names suggest parameters: `config.py` for `import config`."""
    for module in module_files.paths(tree):
        if _CONFIG_MODULE.fullmatch(module.path.rpartition("/")[2]):
            yield from (f"{module.path}.py", f"{module.path}/__init__.py")


def _settings_names(text: str) -> Iterator[str]:
    """Yield the relative names in a text that settings files could have, and patterns of such names."""
    for match in _SETTINGS_NAME.finditer(text):
        name = match[0]
        if name.startswith("/") and _JOINED.search(text[max(0, match.start() - 20) : match.start()]):
            name = name.lstrip("/")
        is_short = all(len(part.encode()) <= _LONGEST_FILE_NAME for part in name.split("/"))
        if is_short and not name.startswith("/"):
            yield _PART_OF_STARS.sub("*", name)


def _settings_files(text: str, *, by_argument: bool) -> tuple[str, ...]:
    """Return the names of settings files in the text of a script and its modules: DVC's first, then in order.

    They include patterns such as `*.yaml` if any file may be the settings file, for example because an argument names it.
    """
    names = ["params.yaml"] if "params_show(" in text else []
    names += [name for name in _settings_names(text) if not _RESULTS.search(name)]
    names += [f"{name}.yaml" for name in _HYDRA_NAME.findall(text)]
    loads_unnamed_file = not names and bool(_LOADS.search(text))
    if by_argument or loads_unnamed_file:  # perhaps one that its text names without a suffix
        stems = dict.fromkeys(_SHORT_TEXT.findall(text))
        names += [f"{stem}.{suffix}" for stem in stems for suffix in ("yaml", "yml", "json", "toml")]
        names += _ANY_SETTINGS
    return tuple(dict.fromkeys(name.removeprefix("./") for name in names))


def settings_options(text: str, name: str, requested: Collection[str] = ()) -> list[Option]:
    """Return the values of a settings file, whose suffix shows its format, as options; none if it cannot be read.

    Texts without a name of their own are left out, except requested ones.
    """
    try:
        values = settings.values(text, name)
    except ValueError:
        return []
    spots = arguments.spots(notebook.parse(text)) if name.endswith(".py") else {}
    unnamed = {key for key, spot in spots.items() if spot.is_unnamed_text}.difference(requested)
    options = [option for option in _leaves(values) if option.name not in unnamed]
    for index, option in enumerate(options):
        if (spot := spots.get(option.name)) is not None:
            aliases = spot.longer_names(option.name)
            # Only a number tells some from others.
            options[index] = dataclasses.replace(option, aliases=aliases, on_request=spot.is_numbered)
    return options


def _sacred_return(tree: ast.Module) -> str:
    """Return the expression that the main function of a Sacred experiment returns last, or ""."""
    decorators = [
        node for function in ast.walk(tree) if isinstance(function, ast.FunctionDef) for node in function.decorator_list
    ]
    main = next((node for node in decorators if naming.last(node) in ("automain", "main")), None)
    return "" if main is None else _returned_expression(tree, main)


def _returned_expression(tree: ast.Module, decorator: ast.expr) -> str:
    """Return the expression that the function below a decorator returns last, or "" if it returns only None."""
    returned = ""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef) and decorator in function.decorator_list:
            for node in ast.walk(function):
                if isinstance(node, ast.Return) and node.value is not None and ast.unparse(node.value) != "None":
                    returned = ast.unparse(node.value)
    return returned


def _config_path(call: ast.Call) -> str:
    """Return the path of the configuration that `hydra.main(…)` names, without the extension, or ""."""
    by_name = naming.arguments_by_name(call, "config_path", "config_name")
    folder, name = constants.literal(by_name.get("config_path")), constants.literal(by_name.get("config_name"))
    if not isinstance(name, str) or not name:
        return ""
    prefix = f"{folder}/" if isinstance(folder, str) else ""
    return f"{prefix}{name.removesuffix('.yaml')}".lstrip("/")


def _module_search_form(tree: ast.Module, module_text: str, name: str, notes: list[str]) -> _Form | None:
    """Return the form of a script that starts a search by a function of its modules; None without such a search.

    Remarks for the user are appended to `notes`, see `study.read`.
    """
    modules = notebook.parse_or_empty(module_text)
    if ray.starts_search(modules, tree.body):
        return _Form(Style.TUNE)
    imported = naming.imported(modules)
    # Those that the statements of the script may execute, by functions of the modules.
    calls = [node for node in naming.executed_nodes(modules, tree.body) if isinstance(node, ast.Call)]
    if not any(study.is_search(call, imported) for call in calls):
        return None
    job_fields = study.read(modules, calls, name, notes)
    # A trial imports the function of a search from the script itself, and not from its modules.
    return _Form(Style.STUDY, search={**job_fields, "entrypoint": ""}) if job_fields else None


def _sweep_fields(tree: ast.Module, calls: Sequence[ast.Call], changed_dicts: Collection[str]) -> dict[str, Any]:
    """Return the sweep that a script starts with `wandb.sweep` and runs with `wandb.agent`; {} without one.

    One that is not in the text, such as that of a YAML file, has no parameters. Neither has one from a dict among
    `changed_dicts`, which other statements change, so that its content is unknown.
    """
    sweep_calls = [call for call in calls if naming.dotted(call.func) == "wandb.sweep"]
    agent_calls = [call for call in calls if naming.dotted(call.func) == "wandb.agent"]
    sweep = naming.arguments_by_name(sweep_calls[0], "sweep").get("sweep") if sweep_calls else None
    agent_arguments = naming.arguments_by_name(agent_calls[0]) if agent_calls else {}
    if sweep is None or not agent_arguments:
        return {}
    known_values = {name: value for name, value in naming.first_values(tree).items() if name not in changed_dicts}
    count = constants.literal(agent_arguments.get("count"))
    cap = {"run_cap": count} if isinstance(count, int) else {}
    try:
        sweep_fields = constants.evaluated(sweep, known_values)
    except constants.NotConstant:
        return {"parameters": {}, **cap}
    return {**sweep_fields, **cap} if isinstance(sweep_fields, dict) else {}


def _attribute_options(tree: ast.Module) -> Iterator[Option]:
    """Yield the plain values that a script assigns to attributes: `config.trainer.lr = 0.1` has the flag `--trainer.lr`."""
    options: dict[str, Option] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Attribute):
            root, _, name = naming.dotted(node.targets[0]).partition(".")
            value = constants.literal(node.value)
            if root not in ("", "self", "cls") and value is not None:
                options.setdefault(name, _flag_option(name, value))
    yield from options.values()


def _configurator_options(tree: ast.Module) -> Iterator[Option]:
    """Yield the values that a script assigns at its top level before the call that lets arguments overwrite them."""
    calls = [node.value for node in tree.body if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)]
    call_line = next((call.lineno for call in calls if _executes_file(call)), 0)
    for name, spot in arguments.first_assignments(tree).items():
        value = constants.literal(spot.value)
        is_single_value = value is not None and not isinstance(value, list)
        if is_single_value and _lines(spot)[0] < call_line and not name.startswith("_"):
            yield _flag_option(name, value)


def _text_options(tree: ast.Module, requested: Collection[str]) -> Iterator[Option]:
    """Yield the numbers, texts and booleans in a script that parameters can replace.

    These are all values that it assigns at its top level, and values elsewhere that are requested or named like a parameter.
    Those without a name of their own, as the rate in `Dropout(0.5)`, are included if they are few, or if a requested one is
    missing, whose name may be unknown.
    """
    assigned, spots = arguments.first_assignments(tree), arguments.spots(tree)
    requested_keys = {key.lower() for key in requested}
    first_arguments = arguments.first_argument_spots(tree)
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    includes_unnamed = len(first_arguments) <= _MOST_UNNAMED or not spots.keys() >= set(requested)
    for name, spot in spots.items():
        value = constants.literal(spot.value)
        if value is None or isinstance(value, list) or name.startswith("_"):
            continue
        aliases = spot.longer_names(name)
        is_unnamed = spot.is_numbered or name in first_arguments
        place = _place(functions, spot) if is_unnamed or spot.is_unnamed_text else ""
        option = Option(name, value, _kind(value), aliases=aliases, place=place, shared=spot.is_shared)
        is_likely = guess.parameter(option) is not None
        is_requested = name.lower() in requested_keys
        if name in assigned or is_requested or is_likely or (is_unnamed and includes_unnamed):
            yield dataclasses.replace(option, on_request=spot.is_numbered or (is_unnamed and not is_likely))


def _place(functions: Sequence[ast.FunctionDef | ast.AsyncFunctionDef], spot: arguments.Spot) -> str:
    """Return the lines of a value and the innermost function around it: `line 9, in main()`."""
    lines = _lines(spot)
    around = [function for function in functions if function.lineno <= lines[0] <= (function.end_lineno or 0)]
    innermost = max(around, key=lambda function: function.lineno, default=None)
    suffix = f", in {innermost.name}()" if innermost else ""
    return f"line{'s' if len(lines) > 1 else ''} {' and '.join(map(str, lines))}{suffix}"


def _lines(spot: arguments.Spot) -> list[int]:
    """Return the lines in which a name has its value."""
    return sorted({position.value.lineno for position in (spot, *spot.others) if position.value is not None})


def value_lines(text: str) -> dict[str, list[int]]:
    """Return the lines of a Python file that set a value that a parameter replaces in all of them, by name.

    Numbers that two layers share are left out.
    """
    return {name: _lines(spot) for name, spot in arguments.spots(notebook.parse(text)).items() if not spot.is_shared}


def with_default(option: Option, text: str | None) -> Option:
    """Return an option whose default is the value that a text stands for.

    The option is returned unchanged if the text is None, or does not stand for a value of the option's kind.
    """
    if text is None:
        return option
    convert: Callable[[str], Any] = {"float": float, "int": int}.get(option.kind, str)
    try:
        return dataclasses.replace(option, default=convert(text), required=False)
    except ValueError:
        return option


def _environment_options(tree: ast.Module) -> Iterator[Option]:
    """Yield the environment variables that a script reads, by `os.environ["LR"]`, `os.environ.get(…)` or `os.getenv(…)`."""
    variables: dict[str, Option] = {}
    converted: dict[ast.AST, str] = {}  # argument of `float(…)` or `int(…)` → name of the function
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name("float" | "int" as function), args=[argument, *_]):
                converted[argument] = function
    for node in ast.walk(tree):
        by_name: dict[str, ast.expr] = {}
        match node:
            case ast.Call(func=function_node) if naming.dotted(function_node).endswith(("environ.get", "getenv")):
                by_name = naming.arguments_by_name(node, "key", "default")
            case ast.Subscript(value=mapping, slice=key, ctx=ast.Load()) if naming.dotted(mapping).endswith("environ"):
                by_name = {"key": key}
        name, default = constants.literal(by_name.get("key")), constants.literal(by_name.get("default"))
        if not isinstance(name, str):  # it reads no variable, or one whose name is not in the text
            continue
        kind = converted.get(node) or _kind(default)
        if kind in ("float", "int"):
            option = Option(name, kind=kind, flag=name, required="default" not in by_name)
            variables.setdefault(name, with_default(option, None if default is None else str(default)))
        else:  # such as HOME, which the system may set
            variables.setdefault(name, Option(name, default=default, kind=kind, flag=name))
    yield from variables.values()


def _sacred_options(tree: ast.Module) -> Iterator[Option]:
    """Yield the variables with plain values that the functions decorated with `@ex.config` assign."""
    for function in (node for node in tree.body if isinstance(node, ast.FunctionDef)):
        if any(naming.dotted(decorator).endswith(".config") for decorator in function.decorator_list):
            for name, spot in arguments.first_assignments(ast.Module(function.body, [])).items():
                if (value := constants.literal(spot.value)) is not None:
                    yield Option(name, default=value, kind=_kind(value), flag=name)


def _prompt_options(tree: ast.Module) -> Iterator[Option]:
    """Yield the variables assigned from `input(…)`, in order. A number in the prompt, or after `or`, is the default."""
    assigned = [node for node in ast.walk(tree) if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)]
    for node in sorted(assigned, key=lambda node: node.lineno):
        expression = ast.unparse(node.value)  # int(input('width of layer2 [64]: '))
        if re.search(r"(?<!\w)input\(", expression):
            kind = next((kind for kind in ("float", "int") if f"{kind}(input(" in expression), "str")
            without_words = re.sub(r"\w*[A-Za-z_]\w*", "", expression)
            number = re.search(settings.NUMBER, without_words)
            option = Option(ast.unparse(node.targets[0]), kind=kind, required=number is None)
            yield with_default(option, number[0] if number else None)


def _flag_option(name: str, value: Any) -> Option:
    """Return an option that is set by `--NAME=VALUE`, also if it is a boolean or a list."""
    kind = _kind(value)
    return Option(
        name,
        default=value,
        kind=kind,
        flag=f"--{name}",
        style="value" if kind == "bool" else "",
        lists="literal" if isinstance(value, list) else "",
    )


def _kind(value: Any) -> str:
    """Return the kind of an option with this default: the type of the value, or of the first element of a list."""
    type_name = type(value[0] if isinstance(value, list) else value).__name__
    return type_name if type_name in _KINDS else "str"


def _executes_file(call: ast.Call) -> bool:
    """Return whether a call executes the text of a file, as `exec(open("configurator.py").read())` does."""
    return naming.dotted(call.func) == "exec" and bool(call.args) and ast.unparse(call.args[0]).startswith("open('")


def _imported_modules(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the names of the modules that statements import, also in the body of a `try` or an `if`; no relative imports."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module
        elif isinstance(node, (ast.Try, ast.If)):
            yield from _imported_modules(node.body)


def hydra_options(
    text: str,
    name: str,
    *,
    groups: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
    overrides: Mapping[str, str] = MappingProxyType({}),
    requested: Collection[str] = (),
) -> list[Option]:
    """Return the options of a Hydra configuration: those of the groups in its defaults list, and its own values.

    A value that is not a mapping is called a leaf. There are no options if the text is not a mapping.

    Args:
        text: Text of the configuration.
        name: Name of the configuration, for messages.
        groups: Group (folder beside the configuration) → name of a file in it, without extension → text of the file.
        overrides: Values in the user's command, by name. They choose the file of a group for all trials.
        requested: Names of the parameters that the user wants to search.

    Raises:
        SpecError: The configuration is not YAML.
    """
    data = document.parse(text, name).data
    if not isinstance(data, dict):
        return []
    options: list[Option] = []
    for entry in data.get("defaults") or ():
        if not isinstance(entry, dict):  # `_self_`, or another configuration
            continue
        for key, default_file in entry.items():  # optimizer: adam
            group = key.removeprefix("optional ")
            chosen = overrides.get(group, default_file)
            if isinstance(chosen, str) and chosen in groups.get(group, {}):
                options += _group_options(group, chosen, groups[group], requested, is_fixed=group in overrides)
    options += _leaves({key: value for key, value in data.items() if key not in _HYDRA_KEYS})
    return list({option.name: option for option in options}.values())  # its own value replaces that of a group


def _group_options(
    group: str, chosen: str, file_texts: Mapping[str, str], requested: Collection[str], *, is_fixed: bool
) -> Iterator[Option]:
    """Yield the options of a group of Hydra: the choice of its file, and leaves of this file.

    Args:
        group: Name of the group.
        chosen: Name of the file that is chosen.
        file_texts: Texts of the files of the group, by name.
        requested: Names of the parameters that the user wants to search.
        is_fixed: Whether all trials have the chosen file. Otherwise the leaves are those that all files have, and the
            requested ones.
    """
    choices = tuple(file_texts) if len(file_texts) > 1 else ()
    yield Option(group, default=chosen, choices=choices, flag=group)
    leaves_by_file = {file: _group_leaves(group, text) for file, text in file_texts.items()}
    # Hydra refuses to set a leaf that the chosen file lacks, and a search may choose any file of the group.
    for name, leaf in leaves_by_file[chosen].items():
        is_requested = any(name == other or name.endswith(f".{other}") for other in requested)
        if is_fixed or is_requested or all(name in leaves for leaves in leaves_by_file.values()):
            yield leaf


def _group_leaves(group: str, text: str) -> dict[str, Option]:
    """Return the leaves of a group's file, by name; none if it is not YAML, or if `@package` moves them to another place."""
    try:
        data = {} if _PACKAGE.search(text) else document.parse(text, group).data
    except SpecError:
        return {}
    leaves = _leaves(data, f"{group.replace('/', '.')}.") if isinstance(data, dict) else ()
    # A class, which `_target_` names, and a value that is missing are no parameters.
    return {leaf.name: leaf for leaf in leaves if not leaf.required and not leaf.name.endswith("_target_")}


def _leaves(data: Mapping[str, Any], prefix: str = "") -> Iterator[Option]:
    """Yield the values of nested mappings as options with dotted names. "???" stands for a missing value.

    Lists, None and texts with an interpolation such as `${lr}` are left out.
    """
    for key, value in data.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _leaves(value, f"{name}.")
        elif value == "???":
            yield Option(name, flag=name, required=True)
        elif type(value) in (int, float, bool) or (isinstance(value, str) and "${" not in value):
            kind = _kind(value)
            yield Option(name, default=value, kind=kind, flag=name, style="value" if kind == "bool" else "")
