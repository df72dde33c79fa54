"""A Python script, read and never run: its imports, the files that it names, and how it gets its parameters."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import enum
import operator
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from trialplane.errors import Issue, SpecError
from trialplane.importing import folding, guess
from trialplane.job import arguments, document, notebook, settings
from trialplane.job import options as optuna_options
from trialplane.wire.declared import Option


class Style(enum.StrEnum):
    """The way in which a script gets its parameters."""

    UNKNOWN = ""
    OPTUNA = "optuna"  # from Optuna: the script passes a function to `study.optimize`
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


_WITHOUT_ARGUMENTS = (Style.UNKNOWN, Style.GLOBALS)
_PARSERS = re.compile(
    r"\b(parse_args|parse_known_args|parse_args_into_dataclasses|simple_parsing|tyro|jsonargparse|LightningCLI|from_cli|"
    r"click\.(command|group)|typer\.(run|Typer)|@command|@\w+\.command|plac\.call|docopt|cli_parse_args|CliApp|Fire|"
    r"DEFINE_\w+)\b"
)
# Text that shows that a script reads arguments, also by a parser that is none of these.
ARGUMENTS = re.compile(
    r"argparse|ArgumentParser|sys\.argv|\bclick\b|\bfire\b|absl|hydra|tyro|typer|simple_parsing|docopt|getopt|sacred|\bplac\b"
)
_SETTINGS = re.compile(r"(?<![\w./*-])[\w./*-]+\.(?:yaml|yml|json|toml|ini|cfg|conf|gin)\b")
_JOINED = re.compile(r"""\}|\+\s*f?["']$""")  # before the rest of a name: f"{root}/a.yaml", root + "/a.yaml"
_PART_OF_STARS = re.compile(r"\*\*+(?!/)|(?<=[^/])\*\*+")  # `a**.yaml`; pathlib refuses two stars with anything beside them
_LONGEST_FILE_NAME = 255  # bytes
_PATH = re.compile(r"(?!/)[\w./ -]{1,200}[/.][\w./ -]*")
_LOADS = re.compile(
    r"\b(?:safe_load|full_load|yaml\.load|tomllib\.load|toml\.load|OmegaConf\.load|json\.load|ConfigParser)\("
)
_LITERAL = re.compile(r"""["']([\w-]{1,40})["']""")
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
_NEEDED_CONFIG = re.compile(
    rf"""add_argument\((?:\s*["']-\w["'],)?\s*["'](?:{CONFIG.pattern}["']|--{CONFIG.pattern}["'][^)]*required\s*=\s*True)"""
)
_CONFIG_ARGUMENT = re.compile(rf"""["'](?:--)?{CONFIG.pattern}["']""")
_RESULTS = re.compile(r"metric|result|score|output|report|history|package|vocab|tokenizer", re.IGNORECASE)
_OPERATORS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
_COMPARISON = re.compile(r"""\b(\w+)(?:\.lower\(\))?\s*==\s*["']([\w.+-]{1,40})["']""")
_TYPES = {"int": "int", "float": "float", "bool": "bool", "str": "str"}
_HYDRA_KEYS = ("hydra", "defaults")  # keys of a configuration that Hydra itself reads


@dataclasses.dataclass(frozen=True)
class Call:
    """The call of a Python script in a command line.

    Attributes:
        script: Path of the script, relative to `folder`.
        folder: Folder in which the command starts the script, relative to the one in which the command is typed.
        module: Name of the module, if the command starts the script by `python -m`; otherwise "".
        arguments: Arguments of the script.
        end: Position in the command line behind the last argument, where further ones can stand.
    """

    script: str
    folder: str
    module: str
    arguments: tuple[str, ...]
    end: int


@dataclasses.dataclass(frozen=True)
class Script:
    """The facts that the text of a script shows.

    Attributes:
        style: Way in which it gets its parameters.
        options: Its parameters; none for OPTUNA, WANDB, PARSED and HYDRA, whose parameters are not in its text.
        config: With HYDRA, path of its configuration without the suffix, relative to the script. With SETTINGS, or with a
            COMMAND whose values are in a file, name of the file. Otherwise "".
        top: Modules that it imports at its top level, in their order.
        late: Modules that it imports only in other places, such as functions, in their order.
        search: With OPTUNA, fields of the job. With WANDB, the sweep. Otherwise empty.
        notes: With OPTUNA, remarks on settings of the search that the job lacks. With COMMAND, remarks on secrets.
        returned: With HYDRA and SACRED, expression that the decorated function returns, or "".
        is_module: Whether it imports from its own package, as in `from .model import Model`.
        settings: Names in its text, or patterns of names, of settings files that may have its parameters.
        takes_file: Whether `sys.argv[1]` may name such a file.
        command: With COMMAND, words of the command line that starts it, with {NAME} for the values of its options.
        values: Values in its text that parameters can replace, with any style.
        searcher: Library or class that it may use to search, whatever the style; "" for none.
        paths: Texts in it that may be paths of files.
        printed: Name for a number that it prints without a name.
        needs_file: Whether its parser has an argument that must name a settings file.
        call: With COMMAND, the Python script that the command line starts, if it is one.
        appended: With COMMAND, form of the arguments that can be appended to the command: FLAGS, HYDRA, or "" for none.
        in_file: With COMMAND, options that the settings file `config` has.
        compared: Attribute or variable → the texts to which the script compares it: `if args.optimizer == "adam"`.
    """

    style: Style
    options: tuple[Option, ...]
    config: str = ""
    top: tuple[str, ...] = ()
    late: tuple[str, ...] = ()
    search: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()
    returned: str = ""
    is_module: bool = False
    settings: tuple[str, ...] = ()
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


def read(text: str, name: str, module_text: str = "") -> Script:
    """Read a script.

    Args:
        text: Text of the script.
        name: Name of the script, for messages.
        module_text: Text of its own modules, in which its parser may be.

    Raises:
        SpecError: It is not Python.
    """
    try:
        tree = notebook.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None) or 0
        too_deep = isinstance(error, (RecursionError, MemoryError))  # with no text: Python's own parser gives up like this
        reason = "it is nested too deeply for Python's parser" if too_deep else getattr(error, "msg", error)
        raise SpecError([Issue(("script",), f"is not Python: {reason}", name, line)]) from error
    changed_dicts = folding.fold(tree)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    hydra_mains = _hydra_mains(tree)
    style, options, config, returned = Style.UNKNOWN, tuple[Option, ...](), "", ""
    notes: list[str] = []
    both = f"{text}\n{module_text}"
    if search := _study(tree, calls, name, notes):
        style = Style.OPTUNA
    elif search := _sweep(tree, calls, changed_dicts):
        style = Style.WANDB
    elif hydra := next((call for call in calls if _called(call.func) in hydra_mains), None):
        style, config, returned = Style.HYDRA, _config(hydra), _returned(tree, hydra)
    elif any(_runs_a_file(call) for call in calls):
        style, options = Style.CONFIGURATOR, tuple(_before_the_configurator(tree))
    elif "sacred" in text and (options := tuple(_of_sacred(tree))):
        style, returned = Style.SACRED, _returned_by_sacred(tree)
    elif _PARSERS.search(both):
        style = Style.PARSED
    elif "sys.argv" in both and guess.space(options := tuple(_positions(tree))):
        style = Style.POSITIONS
    elif "sys.argv" in both and (options := tuple(_attributes(tree))):
        style = Style.ATTRIBUTES
    values = tuple(_replaceable_values(tree))
    if not style and not ARGUMENTS.search(both):
        style, options = Style.GLOBALS, values
    top = list(dict.fromkeys(_imported(tree.body)))
    late = [module for module in dict.fromkeys(_imported(list(ast.walk(tree)))) if module not in top]
    searcher = next((module for module in (*top, *late) if module.partition(".")[0] in _SEARCHERS), "")
    if (call := _OWN_SEARCH.search(text)) and not searcher:
        searcher = call[0]
    if searcher and style in _WITHOUT_ARGUMENTS:
        style, options = Style.SEARCHES, ()
    if style in _WITHOUT_ARGUMENTS and (answers := tuple(_prompted(tree))):
        style, options = Style.PROMPTS, answers
    variables = tuple(_of_environment(tree))
    if style in _WITHOUT_ARGUMENTS and (
        guess.space(variables) or (any(option.required for option in variables) and not guess.space(options))
    ):
        style, options = Style.ENVIRONMENT, variables
    is_module = any(isinstance(node, ast.ImportFrom) and node.level > 0 for node in ast.walk(tree))
    takes_file = not style and "sys.argv[1]" in text
    names = _settings(both, by_argument=takes_file or (style is Style.PARSED and bool(_CONFIG_ARGUMENT.search(both))))
    names += tuple(_config_modules(tree))
    return Script(
        style,
        options,
        config=config,
        top=tuple(top),
        late=tuple(late),
        search=search,
        notes=tuple(notes),
        returned=returned,
        is_module=is_module,
        settings=names,
        takes_file=takes_file,
        values=values,
        searcher=searcher,
        paths=tuple(dict.fromkeys(_paths(tree))),
        printed=_printed(tree, calls),
        needs_file=bool(_NEEDED_CONFIG.search(both)),
        compared=_compared(both),
    )


def _compared(text: str) -> dict[str, tuple[str, ...]]:
    """Return the texts to which a script compares each of its names."""
    values: dict[str, dict[str, None]] = {}
    for name, value in _COMPARISON.findall(text):
        values.setdefault(name, {})[value] = None
    return {name: tuple(texts) for name, texts in values.items()}


def _printed(tree: ast.Module, calls: Sequence[ast.Call]) -> str:
    """Return the name of what the last `print` of one value prints, if it is named like an objective; otherwise "cost"."""
    values = [call.args[0] for call in calls if _called(call.func) == "print" and len(call.args) == 1]
    values = [value for value in values if not isinstance(value, (ast.Constant, ast.JoinedStr))]
    last = max(values, key=lambda value: value.lineno, default=None)
    if last is None:
        return "cost"
    names = {node.id for node in ast.walk(last) if isinstance(node, ast.Name)}
    assigned = [node for node in ast.walk(tree) if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in names]
    texts = [ast.unparse(last), *(ast.unparse(node.value) for node in reversed(assigned))]
    return next((name for text in texts for name in guess.candidates(text) if name.isidentifier()), "cost")


def _paths(tree: ast.Module) -> Iterator[str]:
    """Yield the texts of a script that may be relative paths."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _PATH.fullmatch(node.value):
            yield node.value


def _config_modules(tree: ast.Module) -> Iterator[str]:
    """Yield the files of imported modules whose names suggest that they have the parameters of a script."""
    for node in ast.walk(tree):
        pairs: list[str] = []
        if isinstance(node, ast.Import):
            pairs = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            pairs = [module, *(f"{module}.{alias.name}".lstrip(".") for alias in node.names)]
        for name in pairs:
            if _CONFIG_MODULE.fullmatch(name.rpartition(".")[2]):
                yield from (f"{name.replace('.', '/')}.py", f"{name.replace('.', '/')}/__init__.py")


def _settings_names(text: str) -> Iterator[str]:
    """Yield the relative names in a text that settings files could have, and patterns of such names."""
    for match in _SETTINGS.finditer(text):
        name = match[0]
        if name.startswith("/") and _JOINED.search(text[max(0, match.start() - 20) : match.start()]):
            name = name.lstrip("/")
        is_short = all(len(part.encode()) <= _LONGEST_FILE_NAME for part in name.split("/"))
        if is_short and not name.startswith("/"):
            yield _PART_OF_STARS.sub("*", name)


def _settings(text: str, *, by_argument: bool) -> tuple[str, ...]:
    """Return the names of settings files in the text of a script and its modules: DVC's first, then in order.

    Args:
        text: Text of the script and its modules.
        by_argument: Whether any file may be the settings file, as an argument names it.
    """
    names = ["params.yaml"] if "params_show(" in text else []
    names += [name for name in _settings_names(text) if not _RESULTS.search(name)]
    names += [f"{name}.yaml" for name in _HYDRA_NAME.findall(text)]
    # The script may load any file, perhaps one that its text names without a suffix.
    if by_argument := by_argument or (not names and bool(_LOADS.search(text))):
        names += [
            f"{name}.{end}" for name in dict.fromkeys(_LITERAL.findall(text)) for end in ("yaml", "yml", "json", "toml")
        ]
    names += _ANY_SETTINGS if by_argument else ()
    return tuple(dict.fromkeys(name.removeprefix("./") for name in names))


def of_settings(text: str, name: str) -> list[Option]:
    """Return the values of a settings file as options; none if it cannot be read.

    Args:
        text: Text of the file.
        name: Name of the file.
    """
    try:
        values = settings.values(text, name)
    except ValueError:
        return []
    return list(_leaves(values))


def _called(function: ast.expr) -> str:
    """Return the dotted name of a called function, or ""."""
    if isinstance(function, ast.Attribute):
        return f"{_called(function.value)}.{function.attr}"
    return function.id if isinstance(function, ast.Name) else ""


def _hydra_mains(tree: ast.Module) -> set[str]:
    """Return the names of `hydra.main` in a module."""
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "hydra"]
    names = {alias.asname or alias.name for node in imports for alias in node.names if alias.name == "main"}
    return {"hydra.main"} | names


def _returned_by_sacred(tree: ast.Module) -> str:
    """Return the expression that the main function of a Sacred experiment returns last, or ""."""
    decorators = [
        node for function in ast.walk(tree) if isinstance(function, ast.FunctionDef) for node in function.decorator_list
    ]
    main = next((node for node in decorators if _called(node).rpartition(".")[2] in ("automain", "main")), None)
    return "" if main is None else _returned(tree, main)


def _returned(tree: ast.Module, decorator: ast.expr) -> str:
    """Return the expression that the function below a decorator returns last, or ""."""
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and decorator in node.decorator_list)
    for function in functions:
        returns = [node.value for node in ast.walk(function) if isinstance(node, ast.Return) and node.value is not None]
        values = [value for value in returns if not (isinstance(value, ast.Constant) and value.value is None)]
        return ast.unparse(values[-1]) if values else ""
    return ""


def _config(call: ast.Call) -> str:
    """Return the path of the configuration that `hydra.main(…)` names, or ""."""
    options = dict(zip(("config_path", "config_name"), call.args, strict=False))
    options |= {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
    folder, name = (
        value.value if isinstance(value := options.get(key), ast.Constant) and isinstance(value.value, str) else ""
        for key in ("config_path", "config_name")
    )
    return f"{folder}/{name.removesuffix('.yaml')}".lstrip("/") if name else ""


def _study(tree: ast.Module, calls: Sequence[ast.Call], name: str, notes: list[str]) -> dict[str, Any]:
    """Return the fields of a job that calls the function that the script passes to `study.optimize`; {} without one.

    Remarks on settings of the study that the job lacks are appended to `notes`. The entrypoint is "" if a trial cannot
    import the function.
    """
    if "optuna" not in _imported(list(ast.walk(tree))):
        return {}
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    targets = [target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
    functions |= {target.id for target in targets if isinstance(target, ast.Name)}
    optimized = [call for call in calls if _called(call.func).endswith(".optimize") and (call.args or call.keywords)]
    if not optimized:
        return {}
    optimize_arguments = _arguments(optimized[0], "func", "n_trials")
    objective = optimize_arguments.get("func")
    study_arguments = next(
        (_arguments(candidate) for candidate in calls if _called(candidate.func).rpartition(".")[2] == "create_study"), {}
    )
    directions = _literal(study_arguments.get("directions")) or [_direction(study_arguments.get("direction"))]
    names = ["value"] if len(directions) == 1 else [f"value_{index}" for index in range(len(directions))]
    objectives = [
        {"metric": candidate, "direction": direction} for candidate, direction in zip(names, directions, strict=True)
    ]
    trials = _literal(optimize_arguments.get("n_trials"))
    stem = PurePath(name).stem
    is_importable = stem.isidentifier() and isinstance(objective, ast.Name) and objective.id in functions
    job: dict[str, Any] = {
        "kind": "hpo",
        "entrypoint": f"optuna:{stem}:{ast.unparse(objective)}" if is_importable and objective else "",
        **({"objective": objectives[0]} if len(objectives) == 1 else {"objectives": objectives}),
        # Optuna's default pruner
        **({"pruner": "median"} if any(_called(candidate.func).endswith(".should_prune") for candidate in calls) else {}),
        "trials": trials if isinstance(trials, int) and trials > 0 else 20,
    }
    assigned = {
        target.id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for field, choices in (("sampler", optuna_options.SAMPLERS), ("pruner", optuna_options.PRUNERS)):
        if field in study_arguments:
            job |= _component(field, study_arguments[field], assigned, choices, notes)
    if isinstance(jobs := _literal(optimize_arguments.get("n_jobs")), int) and jobs > 0:
        job["parallel"] = jobs
    if isinstance(seconds := _literal(optimize_arguments.get("timeout")), int | float) and seconds > 0:
        job["budget"] = {"time": f"{max(1, int(seconds))}s"}
    if "storage" in study_arguments:
        notes.append("storage: a run has a ledger; `platform export` writes it as an Optuna study")
    return job


def _component(
    field: str, node: ast.expr, assigned: Mapping[str, ast.expr], choices: Mapping[str, Any], notes: list[str]
) -> dict[str, Any]:
    """Return the job's sampler or pruner, and its seed, from the call that creates Optuna's; append remarks to `notes`."""
    node = assigned.get(node.id, node) if isinstance(node, ast.Name) else node
    if isinstance(node, ast.Constant) and node.value is None:
        return {}
    if not isinstance(node, ast.Call):
        notes.append(f"{field}: {ast.unparse(node)} cannot be read; write `{field}` into job.yaml")
        return {}
    cls = _called(node.func).rpartition(".")[2]
    name = next((name for name, choice in choices.items() if choice.cls == cls), "")
    if not name:
        notes.append(f"{field}: {cls} is none of {', '.join(choices)}; write `{field}` into job.yaml")
        return {}
    options_given = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
    options_given = {
        key: value for key, value in options_given.items() if not (isinstance(value, ast.Constant) and value.value is None)
    }
    options = {key: _literal(value) for key, value in options_given.items() if key in choices[name].options}
    unreadable = [ast.unparse(argument) for argument in node.args]
    unreadable += [key for key in options_given if key not in options and key != "seed"]
    unreadable += [key for key, value in options.items() if value is None]
    options = {key: value for key, value in options.items() if value is not None}
    seed = _literal(options_given.get("seed"))
    has_seed = isinstance(seed, int) and not isinstance(seed, bool) and seed >= 0
    if "seed" in options_given and not has_seed:
        unreadable.append("seed")
    if unreadable:
        notes.append(f"{field}: {', '.join(unreadable)} of {cls} cannot be read; write `{field}` into job.yaml")
    is_whole = name != "grid" and all(key in options for key, option in choices[name].options.items() if option.required)
    fields = {field: {"name": name, **options} if options else name} if is_whole and not node.args else {}
    return {**fields, **({"seed": seed} if has_seed else {})}


def _direction(node: ast.expr | None) -> str:
    """Return the direction of a study from a text or a member of `StudyDirection`. Optuna's default is minimize."""
    direction = node.attr if isinstance(node, ast.Attribute) else _literal(node)
    return "maximize" if str(direction).lower() == "maximize" else "minimize"


def _sweep(tree: ast.Module, calls: Sequence[ast.Call], changed: Collection[str]) -> dict[str, Any]:
    """Return the sweep that a script starts with `wandb.sweep` and runs with `wandb.agent`; {} without one."""
    sweep = next((_arguments(call, "sweep") for call in calls if _called(call.func) == "wandb.sweep"), {}).get("sweep")
    agent = next((_arguments(call) for call in calls if _called(call.func) == "wandb.agent"), {})
    assigned = [node for node in ast.walk(tree) if isinstance(node, ast.Assign)]
    values = {name: node.value for node in reversed(assigned) if (name := ast.unparse(node.targets[0])) not in changed}
    try:
        sweep_fields = _value(sweep, values) if sweep and agent else {}
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return {}
    if not isinstance(sweep_fields, dict):
        return {}
    count = _literal(agent.get("count"))
    return {**sweep_fields, "run_cap": count} if isinstance(count, int) else sweep_fields


def _value(node: ast.expr | None, values: Mapping[str, ast.expr]) -> Any:
    """Return the value of a literal expression, in which each name has the value that is assigned to it.

    Raises:
        ValueError, TypeError, SyntaxError, MemoryError, RecursionError: The expression is not literal.
    """
    if isinstance(node, ast.Name):
        return _value(values.get(node.id), values)
    if isinstance(node, ast.Dict):
        return {_value(key, values): _value(value, values) for key, value in zip(node.keys, node.values, strict=True)}
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_value(element, values) for element in node.elts]
    if node is None:
        raise ValueError
    return ast.literal_eval(node)


def _arguments(call: ast.Call, *names: str) -> dict[str, ast.expr]:
    """Return the arguments of a call by name. `names` are the names of the first ones, which may be positional."""
    return dict(zip(names, call.args, strict=False)) | {word.arg: word.value for word in call.keywords if word.arg}


def _attributes(tree: ast.Module) -> Iterator[Option]:
    """Yield the plain values that a script assigns to attributes: `config.trainer.lr = 0.1` has the flag `--trainer.lr`."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Attribute):
            root, _, name = _called(node.targets[0]).partition(".")
            value = _literal(node.value)
            if root not in ("", "self", "cls") and value is not None and name not in names:
                names.add(name)
                yield _option(name, value, _kind(value))


def _before_the_configurator(tree: ast.Module) -> Iterator[Option]:
    """Yield the values that a script assigns at its top level before the call that lets arguments overwrite them."""
    calls = (node for node in tree.body if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call))
    end = next((call.lineno for call in calls if isinstance(call.value, ast.Call) and _runs_a_file(call.value)), 0)
    for name, node in arguments.first_assignments(tree).items():
        value = _literal(node.value)
        if node.lineno < end and value is not None and not isinstance(value, list) and not name.startswith("_"):
            yield _option(name, value, _kind(value))


def _replaceable_values(tree: ast.Module) -> Iterator[Option]:
    """Yield the numbers, texts and booleans in a script that parameters can replace.

    These are all values that it assigns at its top level, and values elsewhere that are named like a parameter.
    """
    assigned = arguments.first_assignments(tree)
    for name, spot in arguments.spots(tree).items():
        value = _literal(spot.value)
        if value is not None and not isinstance(value, list) and not name.startswith("_"):
            option = Option(name, value, _kind(value), f"--{name}")
            if name in assigned or guess.parameter(option):
                yield option


def with_default(option: Option, text: str | None) -> Option:
    """Return an option with another default, as a text; the same one without a text or with one of another type."""
    try:
        value = None if text is None else {"float": float, "int": int}.get(option.kind, str)(text)
    except ValueError:
        return option
    return option if value is None else dataclasses.replace(option, default=value, required=False)


def _of_environment(tree: ast.Module) -> Iterator[Option]:
    """Yield the environment variables that a script reads, by `os.environ["LR"]`, `os.environ.get(…)` or `os.getenv(…)`."""
    variables: dict[str, Option] = {}
    kinds: dict[ast.expr, str] = {}  # argument of `float(…)` or `int(…)` → the function
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            if _called(node.func) in ("float", "int") and node.args:
                kinds[node.args[0]] = _called(node.func)
            called_name, call_arguments = _called(node.func), _arguments(node, "key", "default")
            is_read = called_name.endswith(("environ.get", "getenv"))
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            is_read, call_arguments = _called(node.value).endswith("environ"), {"key": node.slice}
        else:
            continue
        name, value = _literal(call_arguments.get("key")), _literal(call_arguments.get("default"))
        if is_read and isinstance(name, str):
            kind = kinds.get(node) or _kind(value)
            try:
                value = {"float": float, "int": int}.get(kind, lambda value: value)(value)
            except (TypeError, ValueError):  # there is no default, or the script does not convert it
                value = None
            # Variables that are not converted to numbers may be the machine's, such as HOME.
            is_needed = "default" not in call_arguments and kind in ("float", "int")
            variables.setdefault(name, Option(name, value, kind, name, required=is_needed))
    yield from variables.values()


def _of_sacred(tree: ast.Module) -> Iterator[Option]:
    """Yield the variables that the functions below `@ex.config` assign."""
    for function in (node for node in tree.body if isinstance(node, ast.FunctionDef)):
        if any(_called(decorator).endswith(".config") for decorator in function.decorator_list):
            for name, node in arguments.first_assignments(ast.Module(function.body, [])).items():
                if (value := _literal(node.value)) is not None:
                    yield Option(name, value, _kind(value), name)


def _prompted(tree: ast.Module) -> Iterator[Option]:
    """Yield the variables assigned from `input(…)`, in order. A number in the prompt, or after `or`, is the default."""
    assigned = [node for node in ast.walk(tree) if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)]
    for node in sorted(assigned, key=lambda node: node.lineno):
        text = ast.unparse(node.value)
        if re.search(r"(?<!\w)input\(", text):
            kind = next((kind for kind in ("float", "int") if f"{kind}(input(" in text), "str")
            number = re.search(settings.NUMBER, re.sub(r"\w*[A-Za-z_]\w*", "", text))
            option = Option(ast.unparse(node.targets[0]), None, kind, required=number is None)
            yield with_default(option, number[0] if number else None)


def _positions(tree: ast.Module) -> Iterator[Option]:
    """Yield the variables assigned from `sys.argv[1]`, `sys.argv[2]`, … A value assigned in another place is the default."""
    by_position: dict[int, Option] = {}
    assigned = [node for node in ast.walk(tree) if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)]
    defaults = {ast.unparse(node.targets[0]): value for node in assigned if (value := _literal(node.value)) is not None}
    for node in assigned:
        match = re.search(r"\bsys\.argv\[(\d+)\]", text := ast.unparse(node.value))
        name = ast.unparse(node.targets[0])
        default = _literal(node.value.orelse) if isinstance(node.value, ast.IfExp) else defaults.get(name)
        kind = next((kind for kind in ("float", "int") if f"{kind}(sys.argv[" in text), "str")
        if match and int(match[1]) > 0:
            by_position.setdefault(int(match[1]), Option(name, default, kind, required=default is None))
    for position in range(1, max(by_position, default=0) + 1):
        yield by_position.get(position, Option(f"argument_{position}", required=True))


def _option(name: str, value: Any, kind: str, required: bool = False) -> Option:
    lists = "literal" if isinstance(value, list) else ""
    return Option(name, value, kind, f"--{name}", (), "value" if kind == "bool" else "", required, lists)


def _computed(node: ast.expr | None) -> Any:
    """Return the result of a short calculation, such as `2 ** 6` or `float("1e-3")`; None for any other expression."""
    match node:
        case ast.Call(
            func=ast.Name(id="int" | "float" as name), args=[ast.Constant(value=str() | int() | float() as number)]
        ):
            with contextlib.suppress(ValueError):
                return int(number) if name == "int" else float(number)
        case ast.BinOp(left=ast.Constant(value=int() | float() as left), op=operation, right=right_node):
            right = _literal(right_node)
            calculate = _OPERATORS.get(type(operation))
            if (
                calculate
                and type(left) in (int, float)
                and type(right) in (int, float)
                and abs(left) < 1e9
                and abs(right) < 64
            ):
                with contextlib.suppress(ArithmeticError):
                    return calculate(left, right)
    return None


def _literal(node: ast.expr | None) -> Any:
    """Return the number, text or boolean that an expression stands for, or a list of these; otherwise None."""
    try:
        value = None if node is None else ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        value = _computed(node)
    value = list(value) if isinstance(value, tuple) else value
    items = value if isinstance(value, list) else [value]
    return value if items and all(type(item) in (int, float, str, bool) for item in items) else None


def _kind(value: Any) -> str:
    first_value = value[0] if isinstance(value, list) else value
    return _TYPES.get(type(first_value).__name__, "str")


def _runs_a_file(call: ast.Call) -> bool:
    """Return whether a call runs a file, as `exec(open("configurator.py").read())`."""
    return _called(call.func) == "exec" and bool(call.args) and ast.unparse(call.args[0]).startswith("open('")


def _imported(nodes: list[Any]) -> Iterator[str]:
    """Yield the modules that statements import, also in a `try` or an `if`."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module
        elif isinstance(node, (ast.Try, ast.If)):
            yield from _imported(node.body)


def of_hydra(text: str, name: str, groups: Mapping[str, Mapping[str, str]]) -> list[Option]:
    """Return the options of a Hydra configuration: its leaves, and the groups of its defaults list, with their leaves.

    Args:
        text: Text of the configuration.
        name: Name of the configuration, for messages.
        groups: Folder beside the configuration → name of a file in it → text of the file.

    Raises:
        SpecError: The configuration is not YAML.
    """
    data = document.parse(text, name).data
    if not isinstance(data, dict):
        return []
    group_options = []
    for entry in data.get("defaults") or ():
        for key, chosen in entry.items() if isinstance(entry, dict) else ():
            group = key.removeprefix("optional ")
            options = groups.get(group, {})
            if isinstance(chosen, str) and chosen in options:
                group_options.append(Option(group, chosen, choices=tuple(options) if len(options) > 1 else (), flag=group))
                siblings = [set(_of_group(group, text)) for text in options.values()]
                group_options += [
                    option
                    for key, option in _of_group(group, options[chosen]).items()
                    if all(key in leaves for leaves in siblings)
                ]
    return group_options + list(_leaves({key: value for key, value in data.items() if key not in _HYDRA_KEYS}))


def _of_group(group: str, text: str) -> dict[str, Option]:
    """Return the leaves of a group's file, by name; none if it is not YAML, or if `@package` moves them to another place."""
    try:
        data = {} if "# @package" in text else document.parse(text, group).data
    except SpecError:
        return {}
    leaves = _leaves(data, f"{group.replace('/', '.')}.") if isinstance(data, dict) else ()
    return {leaf.name: leaf for leaf in leaves if not leaf.required and not leaf.name.endswith("_target_")}


def _leaves(data: Mapping[str, Any], prefix: str = "") -> Iterator[Option]:
    """Yield the values of nested mappings as options, with dotted names. "???" is a required value without a default."""
    for key, value in data.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _leaves(value, f"{name}.")
        elif value == "???":
            yield Option(name, flag=name, required=True)
        elif type(value) in (int, float, bool) or (isinstance(value, str) and "${" not in value):
            kind = _kind(value)
            yield Option(name, value, kind, name, (), "value" if kind == "bool" else "")
