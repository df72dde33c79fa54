"""A search of Ray Tune, from the Python file with `tune.Tuner(…)` or `tune.run(…)`: its text is parsed and never run.

The call becomes data like that of a YAML file: calls are mappings with the function's name under "()", and arguments have
their names. Names stand for what the file assigns to them, arguments of the function around the call for their defaults, and
`args.x` for the default of `--x`. So what nothing has read is noted as for other sources.
"""

from __future__ import annotations

import ast
import keyword
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from trialplane import errors
from trialplane.errors import Issue, Place, SpecError
from trialplane.importing import folding, search
from trialplane.importing.source import CALL, Imported, Source
from trialplane.job.document import Document

_MOST_NODES = 50_000  # of the call with what its names stand for, which may be endlessly more than the file
_DEEPEST = 50
_PRUNERS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "ASHAScheduler": ("successive_halving", {"grace_period": "min_resource", "reduction_factor": "reduction_factor"}),
    "AsyncHyperBandScheduler": (
        "successive_halving",
        {"grace_period": "min_resource", "reduction_factor": "reduction_factor"},
    ),
    "HyperBandScheduler": ("hyperband", {"max_t": "max_resource", "reduction_factor": "reduction_factor"}),
    "HyperBandForBOHB": ("hyperband", {"max_t": "max_resource", "reduction_factor": "reduction_factor"}),
    "MedianStoppingRule": ("median", {"grace_period": "n_warmup_steps", "min_samples_required": "n_startup_trials"}),
}
# Function → the names of its arguments, in their order.
_ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "Tuner": ("trainable",),
    "run": ("run_or_experiment",),
    "with_resources": ("trainable", "resources"),
    "with_parameters": ("trainable",),
    "ConcurrencyLimiter": ("searcher", "max_concurrent"),
    "choice": ("categories",),
    "grid_search": ("values",),
    "randn": ("mean", "sd"),
    "qrandn": ("mean", "sd", "q"),
    **{f"q{name}": ("lower", "upper", "q", "base") for name in ("uniform", "loguniform", "randint", "lograndint")},
    **dict.fromkeys(("uniform", "loguniform", "randint", "lograndint"), ("lower", "upper", "base")),
}
_UNREADABLE = "only running the file would show what it is"
_MAX_T = {"ASHAScheduler": 100, "AsyncHyperBandScheduler": 100, "HyperBandScheduler": 81, "HyperBandForBOHB": 81}  # Ray's
_LONGEST_TRIAL = "1h"  # of a trial whose end is not in the file
_ITERATIONS = "training_iteration"  # what schedulers count unless they are told otherwise, MedianStoppingRule excepted
_REASONS = {
    "run_config": "a run's name and target are set when the job is submitted; `budget` and `retries` limit failures",
    "name": "is given when the job is submitted: --name",
    "storage_path": "runs are kept in TRIALPLANE_HOME, and on a cluster in the chart's volume",
    "local_dir": "runs are kept in TRIALPLANE_HOME, and on a cluster in the chart's volume",
    "callbacks": "results are in MLflow",
    "verbose": "`platform status --watch` shows a run",
    "resume": "`platform resume` continues a run",
}


def read(text: str, name: str, scripts: Mapping[str, str]) -> Imported:
    """The job of a search.

    Args:
        text: of the Python file.
        name: of the file, for messages.
        scripts: Python files beside it, name → text; not needed.

    Raises:
        SpecError: it is not Python, has no search, or has values of the wrong kind.
    """
    tree = _tree(text, name)
    call = next(_searches(tree), None)
    if call is None:
        raise SpecError([Issue(("file",), "has no tune.Tuner(…) and no tune.run(…)", name)])
    reader = _Reader(tree, name, call, folding.fold(tree))
    source = Source(Document(reader.data(call, ()), reader.lines, name))
    for noted_field, text in reader.assumed:
        source.note(f"{text} is taken, as only running the file would show whether another value is used", *noted_field)
    for noted_field, text in reader.changed:
        source.note(f"{text}, and only running the file would show how: write that into job.yaml", *noted_field)
    for other_search in list(_searches(tree))[1:]:
        source.note(f"only the first search in the file is taken; that of line {other_search.lineno} is not")
    source.take(CALL)
    tuner = _tail(call.func) == "Tuner"
    config = ("tune_config",) if tuner else ()
    for noted_field in (config, ("run_config",)):
        source.take(*noted_field, CALL)
    space: dict[str, Any] = {}
    params: dict[str, Any] = {}
    space_field = ("param_space",) if tuner else ("config",)
    defined = {name for node in tree.body for name in _defined(node)}
    sampler, parallel, drawn = _sampler(source, (*config, "search_alg"))
    grids = _parameters(source, space_field, (), space, params) if source.look(*space_field) is not None else []
    function, resources = _trainable(source, ("trainable" if tuner else "run_or_experiment",))
    if grids and len(grids) == len(space) and source.look(*config, "search_alg") is None:
        sampler = {"name": "grid"}
    elif grids:
        for noted_field in grids:
            source.note("every value is tried num_samples times there; here values are drawn", *noted_field)
    pruner = _pruner(source, (*config, "scheduler"))
    stop, budget = _ends(source, (*config, "scheduler"), ("run_config", "stop") if tuner else ("stop",))
    if (limit := source.number(*config, "time_budget_s")) is not None:
        budget["time"] = limit
    objectives, samples = _objectives(source, config), source.whole(*config, "num_samples")
    points = math.prod(len(space[source.name(".".join(path))]["choices"]) for path in map(_path, grids)) if grids else 1
    is_open = source.look(*config, "num_samples") is not None and (samples is None or samples < 1)
    trials = search.trials(None if is_open and not grids else max(1, samples or 1) * points, sampler, space)
    if is_open:
        source.note(f"is unlimited there, or not known, but a study must end: trials is {trials}", *config, "num_samples")
    job = {
        "kind": "hpo",
        "params": params,
        "space": space,
        "objective": None if objectives[1:] else objectives[0],
        "objectives": objectives if objectives[1:] else None,
        "sampler": search.short(sampler),
        "pruner": pruner,
        "trials": trials,
        "parallel": source.whole(*config, "max_concurrent_trials") or parallel,
        "stop": stop,
        "budget": budget,
        "resources": resources,
        "ranks": 1 if resources.get("gpus", 0) > 1 else None,  # the function is called in one process
    }
    stem = re.sub(r"\W", "_", PurePath(name).stem, flags=re.ASCII)
    stem = stem if stem.isidentifier() and not keyword.iskeyword(stem) else f"search_{stem}"
    if _imported(tree).get(function, "").startswith("ray."):
        source.refuse(f"{function} is a class of Ray's, and a trial calls a function: write a function(config) that uses it")
    elif function and function not in defined:
        source.note(f"{function} is not defined at the top level of the file, where a trial finds it: move it there", CALL)
    if not space and drawn in defined:  # a function that draws with Optuna's trial
        job["space"] = f"{stem}:{drawn}"
    checkpoints = {}
    if _saves(tree):
        source.note(
            "saves checkpoints: with `checkpoints`, a paused, killed or lost trial continues from its newest one", CALL
        )
        checkpoints = {"grace": "30s"}
    file_name = PurePath(name).name
    fields = {**job, "entrypoint": f"ray:{stem}:{function or 'run'}", "checkpoints": checkpoints}
    return source.imported(fields, _REASONS, {} if f"{stem}.py" == file_name else {f"{stem}.py": text}, copies=[file_name])


def _saves(tree: ast.Module) -> bool:
    """Whether the file reports checkpoints, or asks for one."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return any(
        _tail(call.func) == "get_checkpoint"
        or (_tail(call.func) == "report" and any(word.arg == "checkpoint" for word in call.keywords))
        for call in calls
    )


def is_search(text: str) -> bool:
    """Whether a script that is run starts a search of Ray Tune: not in a function that it does not call."""
    try:
        tree = _tree(text, "")
    except SpecError:
        return False
    names = _imported(tree)
    called_names = (_full(node.func, names) for node in _executed(tree) if isinstance(node, ast.Call))
    return any(name.startswith("ray.") and _is_search(name) for name in called_names)


def _executed(tree: ast.Module) -> Iterator[ast.AST]:
    """The nodes that are executed when the file is run, with the functions that are called by their names."""
    functions = {node.name: node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}
    todo: list[ast.AST] = list(tree.body)
    while todo:
        node = todo.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        yield node
        todo += ast.iter_child_nodes(node)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in functions:
            todo += functions.pop(node.func.id).body


def _imported(tree: ast.AST) -> dict[str, str]:
    """The names that the file imports → the full names that they stand for."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name: f"{node.module or ''}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {
                alias.asname or alias.name.partition(".")[0]: alias.name if alias.asname else alias.name.partition(".")[0]
                for alias in node.names
            }
    return names


def _full(node: ast.expr, names: Mapping[str, str]) -> str:
    """The dotted name of an expression, as the module has it that the name is imported from."""
    root, dot, tail = _dotted(node).partition(".")
    return names.get(root, root) + dot + tail


def _is_search(name: str) -> bool:
    return name in ("tune.run", "ray.tune.run") or name.rpartition(".")[2] == "Tuner"


def _path(field: Place) -> tuple[str, ...]:
    return tuple(map(str, field[1:]))


def _tree(text: str, name: str) -> ast.Module:
    try:
        return ast.parse(text)
    except SyntaxError as error:
        raise SpecError([Issue(("file",), f"is not Python: {error.msg}", name, error.lineno or 0)]) from None
    except (ValueError, RecursionError, MemoryError):
        raise SpecError([Issue(("file",), "is not Python: it contains null bytes, or is nested too deeply", name)]) from None


def _searches(tree: ast.AST) -> Iterator[ast.Call]:
    """The calls of Tuner and of tune.run, in the order of the file."""
    names = _imported(tree)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    for node in sorted(calls, key=lambda call: (call.lineno, call.col_offset)):
        name = _full(node.func, names)
        if _is_search(name) and (name.startswith("ray.") or name.partition(".")[0] in ("tune", "Tuner")):
            yield node


def _dotted(node: ast.expr) -> str:
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def _tail(node: ast.expr) -> str:
    return _dotted(node).rpartition(".")[2]


class _Reader:
    """Makes data of expressions.

    Args:
        tree: of the file.
        file_name: of the file, for messages.
        call: that is read; the function around it has arguments.
        changes: the names of dicts that are changed by code that cannot be read → a line of it.
    """

    def __init__(self, tree: ast.Module, file_name: str, call: ast.Call, changes: Mapping[str, int]) -> None:
        self.changed: list[tuple[Place, str]] = []  # places where such a dict is read, with what is said of it
        self._changes = changes
        self.lines: dict[Place, int] = {}
        self.assumed: list[tuple[Place, str]] = []  # places where one of two values was chosen, with its text
        self._file_name = file_name
        self._count = 0
        self._values: dict[str, list[tuple[int, int, ast.expr]]] = {}  # by name: the block, the line, and the value
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        self._flags = dict(_flags(calls))
        blocks = [getattr(node, field, None) for node in ast.walk(tree) for field in ("body", "orelse", "finalbody")]
        for index, block in enumerate(blocks):
            for node in block if isinstance(block, list) else ():
                if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                    self._values.setdefault(node.targets[0].id, []).append((index, node.lineno, node.value))
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and any(descendant is call for descendant in ast.walk(node)):
                for name, value in _called_with(node, calls).items():
                    self._values.setdefault(name, [(-1, node.lineno, value)])

    def data(self, node: ast.expr, field: Place, depth: int = 0) -> Any:
        """The value of an expression; for one that only running it would show, its text in a mapping."""
        self.lines.setdefault(field, node.lineno)
        self._count += 1
        if self._count > _MOST_NODES or depth > _DEEPEST:
            reason = f"has more than {_MOST_NODES:,} values, or is nested more than {_DEEPEST} levels deep"
            raise SpecError([Issue(("file",), reason, self._file_name, node.lineno)])
        if isinstance(node, ast.Name) and (value := self._assigned(node)) is not None:
            if node.id in self._changes:
                self.changed.append((field, f"{node.id} is changed in line {self._changes[node.id]}"))
            return self.data(value, field, depth + 1)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr in self._flags:
            return self.data(self._flags[node.attr], field, depth + 1)
        if isinstance(node, ast.Constant) and isinstance(node.value, (str, int, float, type(None))):
            return node.value
        if isinstance(node, (ast.List, ast.Tuple)):
            return [self.data(element, (*field, index), depth + 1) for index, element in enumerate(node.elts)]
        if isinstance(node, ast.Dict) and all(isinstance(key, ast.Constant) for key in node.keys):
            pairs = [
                (str(key.value), element)
                for key, element in zip(node.keys, node.values, strict=True)
                if isinstance(key, ast.Constant)
            ]
            return {key: self.data(element, (*field, key), depth + 1) for key, element in pairs}
        if isinstance(node, ast.IfExp):
            holds = self._holds(node.test, field, depth)
            if holds is None:
                self.assumed.append((field, errors.shortened(ast.unparse(node.orelse), 60)))
            return self.data(node.body if holds else node.orelse, field, depth + 1)
        if isinstance(node, ast.Call) and _tail(node.func) in ("int", "float") and len(node.args) == 1:
            value = self.data(node.args[0], field, depth + 1)
            if isinstance(value, (int, float)):
                return int(value) if _tail(node.func) == "int" and math.isfinite(value) else float(value)
        elif isinstance(node, ast.Call) and not any(word.arg is None for word in node.keywords):
            names = [*_ARGUMENTS.get(_tail(node.func), ()), *(f"argument {index + 1}" for index in range(len(node.args)))]
            arguments = [*zip(names, node.args, strict=False)]
            arguments += [(word.arg, word.value) for word in node.keywords if word.arg]
            values = {key: self.data(element, (*field, key), depth + 1) for key, element in arguments}
            return {CALL: _tail(node.func), **values}
        number = _number(node)
        return {CALL: "", "text": ast.unparse(node)[:200]} if number is None else number

    def _assigned(self, name: ast.Name) -> ast.expr | None:
        """The value that a name stands for; None where it may be one of several."""
        assignments = self._values.get(name.id, [])
        before = [value for _, line, value in assignments if line < name.lineno]
        if len(assignments) == 1:
            return assignments[0][2]
        return before[-1] if before and len({block for block, _, _ in assignments}) == 1 else None

    def _holds(self, test: ast.expr, field: Place, depth: int) -> bool | None:
        """Whether a test holds; None where only running it would show."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            inner = self._holds(test.operand, field, depth)
            return None if inner is None else not inner
        value = self.data(test, field, depth + 1)
        return None if isinstance(value, dict) else bool(value)


def _flags(calls: Sequence[ast.Call]) -> Iterator[tuple[str, ast.expr]]:
    """The arguments of the file's parsers, with their defaults."""
    for call in calls:
        if _tail(call.func) == "add_argument" and call.args and isinstance(call.args[0], ast.Constant):
            keywords = {word.arg: word.value for word in call.keywords}
            action = ast.unparse(keywords["action"]).strip("'") if "action" in keywords else ""
            switch = ast.Constant(action == "store_false") if action in ("store_true", "store_false") else None
            flags = [str(argument.value) for argument in call.args if isinstance(argument, ast.Constant)]
            flag = (
                next((argument for argument in flags if argument.startswith("--")), flags[0]).lstrip("-").replace("-", "_")
            )
            if default := keywords.get("default", switch):
                yield flag, ast.copy_location(default, call)


def _called_with(function: ast.FunctionDef, calls: Sequence[ast.Call]) -> dict[str, ast.expr]:
    """The arguments of a function: those of the one call of it, over their defaults."""
    names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
    values: dict[str, ast.expr | None] = dict(zip(reversed(names), reversed(function.args.defaults), strict=False))
    values |= {
        argument.arg: value for argument, value in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
    }
    own_calls = [call for call in calls if _dotted(call.func) == function.name]
    if len(own_calls) == 1:
        values |= dict(zip(names, own_calls[0].args, strict=False)) | {
            word.arg: word.value for word in own_calls[0].keywords if word.arg
        }
    return {name: value for name, value in values.items() if value is not None}


def _number(node: ast.expr) -> int | float | None:
    """The value of a sum or product of numbers, or None."""
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return node.value if isinstance(node.value, (int, float)) else None
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _number(node.operand)
        return None if value is None else -value
    if not isinstance(node, ast.BinOp):
        return None
    first, second = _number(node.left), _number(node.right)
    if first is None or second is None or max(abs(first), abs(second)) > 1e15:
        return None
    try:
        if isinstance(node.op, ast.Pow) and abs(second) <= 64:
            power = first**second
            return power if isinstance(power, (int, float)) else None
        operations = {ast.Add: first + second, ast.Sub: first - second, ast.Mult: first * second}
        return first / second if isinstance(node.op, ast.Div) else operations.get(type(node.op))
    except (ZeroDivisionError, OverflowError):
        return None


def _parameters(
    source: Source,
    field: Place,
    prefix: tuple[str, ...],
    space: dict[str, Any],
    params: dict[str, Any],
) -> list[Place]:
    """Sort the values of a configuration into searched and fixed ones; give the places of those of a grid."""
    grids: list[Place] = []
    if not isinstance(source.look(*field), dict) or CALL in source.keys(*field):
        source.refuse("is not a dict that can be read: write out its keys and values in the file", *field)
        return []
    for key in source.keys(*field):
        key_field, path = (*field, key), (*prefix, key)
        value = source.look(*key_field)
        if isinstance(value, dict) and CALL not in value:
            grids += _parameters(source, key_field, path, space, params)
            continue
        name = source.name(".".join(path), *key_field)
        if tuple(name.split(".")) != path:
            source.note(
                f"the function gets it as {_subscripts(name.split('.'))}, not as {_subscripts(path)}; change that",
                *key_field,
            )
        if isinstance(value, list) and any(_is_drawn(element) for element in value):
            source.skip(
                "values are drawn in a list here; give each a key of its own, or a parameter in job.yaml", *key_field
            )
            continue
        if not isinstance(value, dict):
            params[name] = source.take(*key_field)
        elif (parameter := _domain(source, key_field)) is not None:
            space[name] = parameter
            grids += [key_field] if value[CALL] == "grid_search" else []
    return grids


def _subscripts(keys: Sequence[str]) -> str:
    return "config" + "".join(f"[{key!r}]" for key in keys)


def _is_drawn(value: Any) -> bool:
    """Whether a value is not plain: a call, or has one in it."""
    elements = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return (isinstance(value, dict) and CALL in value) or any(_is_drawn(element) for element in elements)


def _domain(source: Source, field: Place) -> dict[str, Any] | None:
    """The parameter that a function of `tune` draws; None with a note."""
    word = source.text(*field, CALL)
    if word in ("choice", "grid_search"):
        key = "categories" if word == "choice" else "values"
        if not isinstance(source.look(*field, key), list):
            source.refuse("needs a list of values that can be read", *field)
            return None
        return search.categorical(source.take(*field, key))
    if word == "sample_from":
        reason = (
            "a function of the other values cannot be read; compute it in the trainable, or write space: module:function"
        )
        source.skip(reason, *field)
        return None
    integer = word.endswith("randint")
    if word.removeprefix("q") not in ("uniform", "loguniform", "randint", "lograndint", "randn"):
        source.skip(f"{_UNREADABLE}; write the parameter into job.yaml", *field)
        return None
    step = source.number(*field, "q") if word.startswith("q") else None
    if word.endswith("randn"):
        mean, deviation = source.number(*field, "mean"), source.number(*field, "sd")
        if step is not None:
            source.note(f"becomes a range of {search.SIGMAS} standard deviations on both sides, drawn uniformly", *field)
        return search.normal(mean or 0.0, 1.0 if deviation is None else deviation, step=step)
    lower, upper = source.number(*field, "lower"), source.number(*field, "upper")
    if lower is None or upper is None:
        source.refuse("needs two bounds that can be read", *field)
        return None
    log = "log" in word
    source.take(*field, "base")  # of the scale: the same values are drawn
    is_open = integer and (step is None or step == 1)  # Ray leaves out the upper bound, unless there is a larger step
    low, high = lower, upper - 1 if is_open else upper
    if step is not None and log:
        source.note("a logarithmic range has no step here, so it is left out", *field)
    elif step is not None:
        low, high = search.multiples(lower, high, step, inward=True)
        if (low, high) != (lower, upper - is_open):
            source.note(f"values are multiples of {step:g}, so the range is {low:g} to {high:g}", *field)
    return search.span("int" if integer else "float", low, high, log=log, step=step)


def _objectives(source: Source, config: Place) -> list[dict[str, str]]:
    places = (config, (*config, "scheduler"), (*config, "search_alg"), (*config, "search_alg", "searcher"))
    words_by_key: dict[str, list[str]] = {}
    for key in ("metric", "mode"):
        for field in places:
            words = source.texts(*field, key) if isinstance(source.look(*field, key), list) else [source.text(*field, key)]
            words_by_key[key] = words_by_key.get(key) or [word for word in words if word]
    if not words_by_key["metric"]:
        source.note("names no metric: write the objective into job.yaml", *(config or (CALL,)))
    metrics, modes = words_by_key["metric"] or ["loss"], words_by_key["mode"] or ["min"]
    modes = modes if len(modes) == len(metrics) else modes[:1] * len(metrics)
    return [
        {"metric": metric, "direction": "maximize" if mode == "max" else "minimize"}
        for metric, mode in zip(metrics, modes, strict=True)
    ]


def _sampler(source: Source, field: Place) -> tuple[dict[str, Any], int | None, str]:
    """The sampler, how many trials run at the same time where the file limits them, and the name of the sampler's space."""
    parallel = None
    word = source.text(*field, CALL) if isinstance(source.look(*field), dict) else source.text(*field)
    if word == "ConcurrencyLimiter":
        parallel = source.whole(*field, "max_concurrent")
        field = (*field, "searcher")
        word = source.text(*field, CALL)
    sampler = search.sampler(word) if word else {"name": "random"}
    if sampler is None:
        source.note(f"{word} has no counterpart; tpe is used", *field)
    space = source.look(*field, "space")
    drawn = space.get("text", "") if isinstance(space, dict) else ""
    if drawn.isidentifier():
        source.take(*field, "space")
    return sampler or {"name": "tpe"}, parallel, drawn


def _pruner(source: Source, field: Place) -> Any:
    if not isinstance(source.look(*field), dict):
        source.skip(_UNREADABLE, *field)
        return None
    word = source.text(*field, CALL)
    if word == "FIFOScheduler":
        return None
    if word not in _PRUNERS:
        reason = (
            "population based training is not a pruner" if word.startswith(("Population", "PB")) else "has no counterpart"
        )
        source.note(f"{word}: {reason}; trials run to their end", *field)
        return None
    name, options = _PRUNERS[word]
    pruner: dict[str, Any] = {"name": name}
    if name == "successive_halving":
        pruner |= {"min_resource": 1, "reduction_factor": 4}  # Ray's
    progress_unit = _progress_unit(source, field)
    for key, option in options.items():
        if key in ("grace_period", "max_t") and progress_unit != _ITERATIONS:
            unit = "seconds" if progress_unit.startswith("time_") and progress_unit.endswith("_s") else progress_unit
            source.skip(
                f"is in {unit} there, and steps are counted here: write {option} of the pruner into job.yaml", *field, key
            )
        elif (value := source.whole(*field, key)) is not None:
            pruner[option] = value
    return search.short(pruner)


def _progress_unit(source: Source, scheduler: Place) -> str:
    """The unit in which a scheduler counts progress."""
    is_median = source.look(*scheduler, CALL) == "MedianStoppingRule"
    return source.text(*scheduler, "time_attr") or ("time_total_s" if is_median else _ITERATIONS)


def _ends(source: Source, scheduler: Place, field: Place) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The rules that end a trial, as `stop` and `budget` of the job."""
    rules: list[dict[str, Any]] = []
    budget: dict[str, Any] = {}
    limits = source.look(*field)
    if isinstance(limits, dict) and CALL not in limits:
        for metric in limits:
            if isinstance(source.look(*field, metric), bool):
                source.skip("is not a number: have the trainable return there", *field, metric)
                continue
            bound = source.number(*field, metric)
            if bound is None:
                continue
            if metric == _ITERATIONS:
                rules.append({"step": max(0, math.ceil(bound))})
            elif metric == "time_total_s":
                budget["timeout"] = bound
                source.note("ends a trial as complete there, and as failed here: see `budget.timeout`", *field, metric)
            else:
                rules.append({"metric": metric, "above": bound})
    elif limits is not None:
        source.skip(f"{_UNREADABLE}: a trial ends when its code returns, or after {_LONGEST_TRIAL}", *field)
        budget["timeout"] = _LONGEST_TRIAL
    default = _MAX_T.get(str(source.look(*scheduler, CALL)))
    if default and _progress_unit(source, scheduler) == _ITERATIONS:
        rules.append({"step": source.whole(*scheduler, "max_t") or default})
    steps = [rule["step"] for rule in rules if "step" in rule]
    return [*(rule for rule in rules if "step" not in rule), *([{"step": min(steps)}] if steps else [])], budget


def _trainable(source: Source, field: Place) -> tuple[str, dict[str, Any]]:
    """The name of the function, or "", and the resources of one call."""
    resources = _resources(source, ("resources_per_trial",))
    while isinstance(source.look(*field), dict) and source.look(*field, CALL) in ("with_resources", "with_parameters"):
        if source.text(*field, CALL) == "with_resources":
            resources |= _resources(source, (*field, "resources"))
        else:
            advice = "at the top level of the file, and name that in the entrypoint"
            source.note(f"passes further arguments: write NAME = tune.with_parameters(…) {advice}", *field)
        field = (*field, "trainable")
    value = source.take(*field)
    text = value.get("text", "") if isinstance(value, dict) else ""
    if not text.isidentifier():
        description = f"{errors.shortened(text, 60)} is" if text else "the trainable is"
        source.note(
            f"{description} not a function of this file by its name: define one, and name it in the entrypoint", *field
        )
        return "", resources
    return text, resources


def _resources(source: Source, field: Place) -> dict[str, Any]:
    if source.look(*field) is None:
        return {}
    if not isinstance(source.look(*field), dict) or source.look(*field, CALL):
        source.skip(f"{_UNREADABLE}; write `resources` into job.yaml", *field)
        return {}
    resources: dict[str, Any] = {}
    for key, option in (("cpu", "cpus"), ("CPU", "cpus"), ("gpu", "gpus"), ("GPU", "gpus")):
        amount = source.number(*field, key)
        if amount and option == "gpus" and amount != int(amount):
            source.note(f"{amount:g} of a GPU becomes a whole one here", *field, key)
            amount = math.ceil(amount)
        if amount:
            resources[option] = int(amount) if amount == int(amount) else amount
    return resources


def _defined(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        yield node.name
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from (alias.asname or alias.name for alias in node.names)
    elif isinstance(node, ast.Assign):
        yield from (target.id for target in node.targets if isinstance(target, ast.Name))
