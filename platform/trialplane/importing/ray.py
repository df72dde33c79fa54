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
    "run_config": "a run's name and place are given when the job is submitted; `budget` and `retries` say what failures do",
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
    given = Source(Document(reader.data(call, ()), reader.lines, name))
    for at, text in reader.assumed:
        given.note(f"{text} is taken, as only running the file would show whether another value is used", *at)
    for at, text in reader.changed:
        given.note(f"{text}, and only running the file would show how: write that into job.yaml", *at)
    for other in list(_searches(tree))[1:]:
        given.note(f"only the first search in the file is taken; that of line {other.lineno} is not")
    given.take(CALL)
    tuner = _tail(call.func) == "Tuner"
    config = ("tune_config",) if tuner else ()
    for at in (config, ("run_config",)):
        given.take(*at, CALL)
    space: dict[str, Any] = {}
    params: dict[str, Any] = {}
    place = ("param_space",) if tuner else ("config",)
    defined = {name for node in tree.body for name in _defined(node)}
    sampler, parallel, drawn = _sampler(given, (*config, "search_alg"))
    grids = _parameters(given, place, (), space, params) if given.look(*place) is not None else []
    function, resources = _trainable(given, ("trainable" if tuner else "run_or_experiment",))
    if grids and len(grids) == len(space) and given.look(*config, "search_alg") is None:
        sampler = {"name": "grid"}
    elif grids:
        for at in grids:
            given.note("every value is tried num_samples times there; here values are drawn", *at)
    pruner = _pruner(given, (*config, "scheduler"))
    stop, budget = _ends(given, (*config, "scheduler"), ("run_config", "stop") if tuner else ("stop",))
    if (limit := given.number(*config, "time_budget_s")) is not None:
        budget["time"] = limit
    objectives, samples = _objectives(given, config), given.whole(*config, "num_samples")
    points = math.prod(len(space[given.name(".".join(path))]["choices"]) for path in map(_path, grids)) if grids else 1
    is_open = given.look(*config, "num_samples") is not None and (samples is None or samples < 1)
    trials = search.trials(None if is_open and not grids else max(1, samples or 1) * points, sampler, space)
    if is_open:
        given.note(f"is unlimited there, or not known, but a study must end: trials is {trials}", *config, "num_samples")
    job = {
        "kind": "hpo",
        "params": params,
        "space": space,
        "objective": None if objectives[1:] else objectives[0],
        "objectives": objectives if objectives[1:] else None,
        "sampler": search.short(sampler),
        "pruner": pruner,
        "trials": trials,
        "parallel": given.whole(*config, "max_concurrent_trials") or parallel,
        "stop": stop,
        "budget": budget,
        "resources": resources,
        "ranks": 1 if resources.get("gpus", 0) > 1 else None,  # the function is called in one process
    }
    stem = re.sub(r"\W", "_", PurePath(name).stem, flags=re.ASCII)
    stem = stem if stem.isidentifier() and not keyword.iskeyword(stem) else f"search_{stem}"
    if _imported(tree).get(function, "").startswith("ray."):
        given.refuse(f"{function} is a class of Ray's, and a trial calls a function: write a function(config) that uses it")
    elif function and function not in defined:
        given.note(f"{function} is not defined at the top level of the file, where a trial finds it: move it there", CALL)
    if not space and drawn in defined:  # a function that draws with Optuna's trial
        job["space"] = f"{stem}:{drawn}"
    checkpoints = {}
    if _saves(tree):
        given.note("saves checkpoints: `checkpoints` has one that is paused, killed or lost go on from its newest", CALL)
        checkpoints = {"grace": "30s"}
    own = PurePath(name).name
    made = {**job, "entrypoint": f"ray:{stem}:{function or 'run'}", "checkpoints": checkpoints}
    return given.imported(made, _REASONS, {} if f"{stem}.py" == own else {f"{stem}.py": text}, copies=[own])


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
    called = (_full(node.func, names) for node in _executed(tree) if isinstance(node, ast.Call))
    return any(name.startswith("ray.") and _is_search(name) for name in called)


def _executed(tree: ast.Module) -> Iterator[ast.AST]:
    """What is executed when the file is run, with the functions that are called by their names."""
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
    """What names of the file stand for that it imports, with the module before it."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name: f"{node.module or ''}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {
                alias.asname or alias.name.partition(".")[0]: alias.name if alias.asname else alias.name.partition(".")[0]
                for alias in node.names
            }
    return found


def _full(node: ast.expr, names: Mapping[str, str]) -> str:
    """The dotted name of an expression, as the module has it that the name is imported from."""
    first, dot, rest = _dotted(node).partition(".")
    return names.get(first, first) + dot + rest


def _is_search(name: str) -> bool:
    return name in ("tune.run", "ray.tune.run") or name.rpartition(".")[2] == "Tuner"


def _path(place: Place) -> tuple[str, ...]:
    return tuple(map(str, place[1:]))


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
    for node in sorted(calls, key=lambda one: (one.lineno, one.col_offset)):
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
        source: its name, for messages.
        call: that is read; the function around it has arguments.
        changes: the names of dicts that are changed by code that cannot be read → a line of it.
    """

    def __init__(self, tree: ast.Module, source: str, call: ast.Call, changes: Mapping[str, int]) -> None:
        self.changed: list[tuple[Place, str]] = []  # places where such a dict is read, with what is said of it
        self._changes = changes
        self.lines: dict[Place, int] = {}
        self.assumed: list[tuple[Place, str]] = []  # places where one of two values was chosen, with its text
        self._source = source
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
            if isinstance(node, ast.FunctionDef) and any(one is call for one in ast.walk(node)):
                for name, value in _called_with(node, calls).items():
                    self._values.setdefault(name, [(-1, node.lineno, value)])

    def data(self, node: ast.expr, place: Place, depth: int = 0) -> Any:
        """The value of an expression; of one that only running it would tell, its text in a mapping."""
        self.lines.setdefault(place, node.lineno)
        self._count += 1
        if self._count > _MOST_NODES or depth > _DEEPEST:
            why = f"has more than {_MOST_NODES:,} values, or is nested more than {_DEEPEST} levels deep"
            raise SpecError([Issue(("file",), why, self._source, node.lineno)])
        if isinstance(node, ast.Name) and (value := self._assigned(node)) is not None:
            if node.id in self._changes:
                self.changed.append((place, f"{node.id} is changed in line {self._changes[node.id]}"))
            return self.data(value, place, depth + 1)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr in self._flags:
            return self.data(self._flags[node.attr], place, depth + 1)
        if isinstance(node, ast.Constant) and isinstance(node.value, (str, int, float, type(None))):
            return node.value
        if isinstance(node, (ast.List, ast.Tuple)):
            return [self.data(one, (*place, index), depth + 1) for index, one in enumerate(node.elts)]
        if isinstance(node, ast.Dict) and all(isinstance(key, ast.Constant) for key in node.keys):
            pairs = [
                (str(key.value), one)
                for key, one in zip(node.keys, node.values, strict=True)
                if isinstance(key, ast.Constant)
            ]
            return {key: self.data(one, (*place, key), depth + 1) for key, one in pairs}
        if isinstance(node, ast.IfExp):
            holds = self._holds(node.test, place, depth)
            if holds is None:
                self.assumed.append((place, errors.shortened(ast.unparse(node.orelse), 60)))
            return self.data(node.body if holds else node.orelse, place, depth + 1)
        if isinstance(node, ast.Call) and _tail(node.func) in ("int", "float") and len(node.args) == 1:
            value = self.data(node.args[0], place, depth + 1)
            if isinstance(value, (int, float)):
                return int(value) if _tail(node.func) == "int" and math.isfinite(value) else float(value)
        elif isinstance(node, ast.Call) and not any(word.arg is None for word in node.keywords):
            names = [*_ARGUMENTS.get(_tail(node.func), ()), *(f"argument {index + 1}" for index in range(len(node.args)))]
            arguments = [*zip(names, node.args, strict=False)]
            arguments += [(word.arg, word.value) for word in node.keywords if word.arg]
            made = {key: self.data(one, (*place, key), depth + 1) for key, one in arguments}
            return {CALL: _tail(node.func), **made}
        number = _number(node)
        return {CALL: "", "text": ast.unparse(node)[:200]} if number is None else number

    def _assigned(self, name: ast.Name) -> ast.expr | None:
        """What a name stands for; None where it may be one of several values."""
        found = self._values.get(name.id, [])
        before = [value for _, line, value in found if line < name.lineno]
        if len(found) == 1:
            return found[0][2]
        return before[-1] if before and len({block for block, _, _ in found}) == 1 else None

    def _holds(self, test: ast.expr, place: Place, depth: int) -> bool | None:
        """Whether a test holds; None where only running it would tell."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            inner = self._holds(test.operand, place, depth)
            return None if inner is None else not inner
        value = self.data(test, place, depth + 1)
        return None if isinstance(value, dict) else bool(value)


def _flags(calls: Sequence[ast.Call]) -> Iterator[tuple[str, ast.expr]]:
    """The arguments of the file's parsers, with their defaults."""
    for call in calls:
        if _tail(call.func) == "add_argument" and call.args and isinstance(call.args[0], ast.Constant):
            named = {word.arg: word.value for word in call.keywords}
            action = ast.unparse(named["action"]).strip("'") if "action" in named else ""
            switch = ast.Constant(action == "store_false") if action in ("store_true", "store_false") else None
            flags = [str(one.value) for one in call.args if isinstance(one, ast.Constant)]
            flag = next((one for one in flags if one.startswith("--")), flags[0]).lstrip("-").replace("-", "_")
            if default := named.get("default", switch):
                yield flag, ast.copy_location(default, call)


def _called_with(function: ast.FunctionDef, calls: Sequence[ast.Call]) -> dict[str, ast.expr]:
    """The arguments of a function: those of the one call of it, over their defaults."""
    names = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
    found: dict[str, ast.expr | None] = dict(zip(reversed(names), reversed(function.args.defaults), strict=False))
    found |= {one.arg: value for one, value in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)}
    own = [call for call in calls if _dotted(call.func) == function.name]
    if len(own) == 1:
        found |= dict(zip(names, own[0].args, strict=False)) | {word.arg: word.value for word in own[0].keywords if word.arg}
    return {name: value for name, value in found.items() if value is not None}


def _number(node: ast.expr) -> int | float | None:
    """The value of a sum or product of numbers, or None."""
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return node.value if isinstance(node.value, (int, float)) else None
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _number(node.operand)
        return None if value is None else -value
    if not isinstance(node, ast.BinOp):
        return None
    left, right = _number(node.left), _number(node.right)
    if left is None or right is None or max(abs(left), abs(right)) > 1e15:
        return None
    try:
        if isinstance(node.op, ast.Pow) and abs(right) <= 64:
            made = left**right
            return made if isinstance(made, (int, float)) else None
        operations = {ast.Add: left + right, ast.Sub: left - right, ast.Mult: left * right}
        return left / right if isinstance(node.op, ast.Div) else operations.get(type(node.op))
    except (ZeroDivisionError, OverflowError):
        return None


def _parameters(
    given: Source,
    place: Place,
    above: tuple[str, ...],
    space: dict[str, Any],
    params: dict[str, Any],
) -> list[Place]:
    """Sort the values of a configuration into searched and fixed ones; give the places of those of a grid."""
    grids: list[Place] = []
    if not isinstance(given.look(*place), dict) or CALL in given.keys(*place):
        given.refuse("is not a dict that can be read: write out its keys and values in the file", *place)
        return []
    for key in given.keys(*place):
        at, path = (*place, key), (*above, key)
        value = given.look(*at)
        if isinstance(value, dict) and CALL not in value:
            grids += _parameters(given, at, path, space, params)
            continue
        name = given.name(".".join(path), *at)
        if tuple(name.split(".")) != path:
            given.note(
                f"the function gets it as {_subscripts(name.split('.'))}, not as {_subscripts(path)}; change that", *at
            )
        if isinstance(value, list) and any(_is_drawn(one) for one in value):
            given.skip("values are drawn in a list here; give each a key of its own, or a parameter in job.yaml", *at)
            continue
        if not isinstance(value, dict):
            params[name] = given.take(*at)
        elif (made := _domain(given, at)) is not None:
            space[name] = made
            grids += [at] if value[CALL] == "grid_search" else []
    return grids


def _subscripts(keys: Sequence[str]) -> str:
    return "config" + "".join(f"[{key!r}]" for key in keys)


def _is_drawn(value: Any) -> bool:
    """Whether a value is not plain: a call, or has one in it."""
    below = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return (isinstance(value, dict) and CALL in value) or any(_is_drawn(one) for one in below)


def _domain(given: Source, place: Place) -> dict[str, Any] | None:
    """What a function of `tune` draws, as a parameter; None with a note."""
    word = given.text(*place, CALL)
    if word in ("choice", "grid_search"):
        key = "categories" if word == "choice" else "values"
        if not isinstance(given.look(*place, key), list):
            given.refuse("needs a list of values that can be read", *place)
            return None
        return search.categorical(given.take(*place, key))
    if word == "sample_from":
        why = "a function of the other values cannot be read; compute it in the trainable, or write space: module:function"
        given.skip(why, *place)
        return None
    integer = word.endswith("randint")
    if word.removeprefix("q") not in ("uniform", "loguniform", "randint", "lograndint", "randn"):
        given.skip(f"{_UNREADABLE}; write the parameter into job.yaml", *place)
        return None
    step = given.number(*place, "q") if word.startswith("q") else None
    if word.endswith("randn"):
        mean, deviation = given.number(*place, "mean"), given.number(*place, "sd")
        if step is not None:
            given.note(f"becomes a range of {search.SIGMAS} standard deviations on both sides, drawn uniformly", *place)
        return search.normal(mean or 0.0, 1.0 if deviation is None else deviation, step=step)
    first, second = given.number(*place, "lower"), given.number(*place, "upper")
    if first is None or second is None:
        given.refuse("needs two bounds that can be read", *place)
        return None
    log = "log" in word
    given.take(*place, "base")  # of the scale: the same values are drawn
    is_open = integer and (step is None or step == 1)  # Ray leaves out the upper bound, unless there is a larger step
    low, high = first, second - 1 if is_open else second
    if step is not None and log:
        given.note("a logarithmic range has no step here, so it is left out", *place)
    elif step is not None:
        low, high = search.multiples(first, high, step, inward=True)
        if (low, high) != (first, second - is_open):
            given.note(f"values are multiples of {step:g}, so the range is {low:g} to {high:g}", *place)
    return search.span("int" if integer else "float", low, high, log=log, step=step)


def _objectives(given: Source, config: Place) -> list[dict[str, str]]:
    places = (config, (*config, "scheduler"), (*config, "search_alg"), (*config, "search_alg", "searcher"))
    found: dict[str, list[str]] = {}
    for key in ("metric", "mode"):
        for at in places:
            words = given.texts(*at, key) if isinstance(given.look(*at, key), list) else [given.text(*at, key)]
            found[key] = found.get(key) or [word for word in words if word]
    if not found["metric"]:
        given.note("names no metric: write the objective into job.yaml", *(config or (CALL,)))
    metrics, modes = found["metric"] or ["loss"], found["mode"] or ["min"]
    modes = modes if len(modes) == len(metrics) else modes[:1] * len(metrics)
    return [
        {"metric": metric, "direction": "maximize" if mode == "max" else "minimize"}
        for metric, mode in zip(metrics, modes, strict=True)
    ]


def _sampler(given: Source, place: Place) -> tuple[dict[str, Any], int | None, str]:
    """The sampler, how many trials run at the same time where the file limits them, and the name of the sampler's space."""
    parallel = None
    word = given.text(*place, CALL) if isinstance(given.look(*place), dict) else given.text(*place)
    if word == "ConcurrencyLimiter":
        parallel = given.whole(*place, "max_concurrent")
        place = (*place, "searcher")
        word = given.text(*place, CALL)
    sampler = search.sampler(word) if word else {"name": "random"}
    if sampler is None:
        given.note(f"{word} has no counterpart; tpe is used", *place)
    space = given.look(*place, "space")
    drawn = space.get("text", "") if isinstance(space, dict) else ""
    if drawn.isidentifier():
        given.take(*place, "space")
    return sampler or {"name": "tpe"}, parallel, drawn


def _pruner(given: Source, place: Place) -> Any:
    if not isinstance(given.look(*place), dict):
        given.skip(_UNREADABLE, *place)
        return None
    word = given.text(*place, CALL)
    if word == "FIFOScheduler":
        return None
    if word not in _PRUNERS:
        why = "population based training is not a pruner" if word.startswith(("Population", "PB")) else "has no counterpart"
        given.note(f"{word}: {why}; trials run to their end", *place)
        return None
    name, options = _PRUNERS[word]
    made: dict[str, Any] = {"name": name}
    if name == "successive_halving":
        made |= {"min_resource": 1, "reduction_factor": 4}  # Ray's
    counted = _counted(given, place)
    for key, option in options.items():
        if key in ("grace_period", "max_t") and counted != _ITERATIONS:
            what = "seconds" if counted.startswith("time_") and counted.endswith("_s") else counted
            given.skip(
                f"is in {what} there, and steps are counted here: write {option} of the pruner into job.yaml", *place, key
            )
        elif (value := given.whole(*place, key)) is not None:
            made[option] = value
    return search.short(made)


def _counted(given: Source, scheduler: Place) -> str:
    """What a scheduler counts as progress."""
    is_median = given.look(*scheduler, CALL) == "MedianStoppingRule"
    return given.text(*scheduler, "time_attr") or ("time_total_s" if is_median else _ITERATIONS)


def _ends(given: Source, scheduler: Place, place: Place) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The rules that end a trial, as `stop` and `budget` of the job."""
    rules: list[dict[str, Any]] = []
    budget: dict[str, Any] = {}
    limits = given.look(*place)
    if isinstance(limits, dict) and CALL not in limits:
        for metric in limits:
            if isinstance(given.look(*place, metric), bool):
                given.skip("is not a number: have the trainable return there", *place, metric)
                continue
            bound = given.number(*place, metric)
            if bound is None:
                continue
            if metric == _ITERATIONS:
                rules.append({"step": max(0, math.ceil(bound))})
            elif metric == "time_total_s":
                budget["timeout"] = bound
                given.note("ends a trial as complete there, and as failed here: see `budget.timeout`", *place, metric)
            else:
                rules.append({"metric": metric, "above": bound})
    elif limits is not None:
        given.skip(f"{_UNREADABLE}: a trial ends when its code returns, or after {_LONGEST_TRIAL}", *place)
        budget["timeout"] = _LONGEST_TRIAL
    default = _MAX_T.get(str(given.look(*scheduler, CALL)))
    if default and _counted(given, scheduler) == _ITERATIONS:
        rules.append({"step": given.whole(*scheduler, "max_t") or default})
    steps = [rule["step"] for rule in rules if "step" in rule]
    return [*(rule for rule in rules if "step" not in rule), *([{"step": min(steps)}] if steps else [])], budget


def _trainable(given: Source, place: Place) -> tuple[str, dict[str, Any]]:
    """The name of the function, or "", and what one call of it may use."""
    resources = _resources(given, ("resources_per_trial",))
    while isinstance(given.look(*place), dict) and given.look(*place, CALL) in ("with_resources", "with_parameters"):
        if given.text(*place, CALL) == "with_resources":
            resources |= _resources(given, (*place, "resources"))
        else:
            cure = "at the top level of the file, and name that in the entrypoint"
            given.note(f"passes further arguments: write NAME = tune.with_parameters(…) {cure}", *place)
        place = (*place, "trainable")
    value = given.take(*place)
    text = value.get("text", "") if isinstance(value, dict) else ""
    if not text.isidentifier():
        what = f"{errors.shortened(text, 60)} is" if text else "the trainable is"
        given.note(f"{what} not a function of this file by its name: define one, and name it in the entrypoint", *place)
        return "", resources
    return text, resources


def _resources(given: Source, place: Place) -> dict[str, Any]:
    if given.look(*place) is None:
        return {}
    if not isinstance(given.look(*place), dict) or given.look(*place, CALL):
        given.skip(f"{_UNREADABLE}; write `resources` into job.yaml", *place)
        return {}
    made: dict[str, Any] = {}
    for key, field in (("cpu", "cpus"), ("CPU", "cpus"), ("gpu", "gpus"), ("GPU", "gpus")):
        amount = given.number(*place, key)
        if amount and field == "gpus" and amount != int(amount):
            given.note(f"{amount:g} of a GPU becomes a whole one here", *place, key)
            amount = math.ceil(amount)
        if amount:
            made[field] = int(amount) if amount == int(amount) else amount
    return made


def _defined(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        yield node.name
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from (alias.asname or alias.name for alias in node.names)
    elif isinstance(node, ast.Assign):
        yield from (target.id for target in node.targets if isinstance(target, ast.Name))
