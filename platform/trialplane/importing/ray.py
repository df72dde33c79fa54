"""A search of Ray Tune, from the Python file with `tune.Tuner(…)` or `tune.run(…)`: its text is parsed and never run.

The call becomes data like that of a YAML file: calls are mappings with the function's name under "()" and unnamed arguments
under "0", "1"; names stand for what the file assigns to them. So what nothing has read is noted as for other sources.

Over 400 lines: what is read of a call, and what is noted of it, are two sides of one thing.
"""

from __future__ import annotations

import ast
import contextlib
import keyword
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from trialplane.errors import Issue, Place, SpecError
from trialplane.importing import search
from trialplane.importing.source import CALL, Imported, Source
from trialplane.spec.document import Document

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
_ITERATIONS = "training_iteration"  # what schedulers count unless they are told otherwise, MedianStoppingRule excepted
_REASONS = {
    "scheduler.max_t": "a trial runs until its code returns",
    "stop": "a trial runs until its code returns; `stop` in the job ends one early, and `budget.target` the study",
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
        scripts: Python files beside it, name → text, of which those that it imports are copied.

    Raises:
        SpecError: it is not Python, has no search, or has values of the wrong kind.
    """
    tree = _tree(text, name)
    call = next(_searches(tree), None)
    if call is None:
        raise SpecError([Issue(("file",), "has no tune.Tuner(…) and no tune.run(…)", name)])
    reader = _Reader(tree, name)
    given = Source(Document(reader.data(call, ()), reader.lines, name))
    for other in list(_searches(tree))[1:]:
        given.note(f"only the first search in the file is taken; that of line {other.lineno} is not")
    given.take(CALL)
    tuner = _tail(call.func) == "Tuner"
    config = ("tune_config",) if tuner else ()
    given.take(*config, CALL)
    space: dict[str, Any] = {}
    params: dict[str, Any] = {}
    place = ("param_space",) if tuner else ("config",)
    grids = _parameters(given, place, (), space, params)
    function, resources = _trainable(given, ("trainable",) if given.look("trainable") is not None else ("0",), config)
    sampler, parallel = _sampler(given, (*config, "search_alg"))
    if grids and len(grids) == len(space) and given.look(*config, "search_alg") is None:
        sampler = {"name": "grid"}
    elif grids:
        for at in grids:
            given.note("every value is tried num_samples times there; here values are drawn", *at)
    pruner = _pruner(given, (*config, "scheduler"))
    samples = given.whole(*config, "num_samples")
    points = math.prod(len(space[given.name(".".join(path))]["choices"]) for path in map(_path, grids)) if grids else 1
    if samples is not None and samples < 0:
        given.note("is unlimited there, but a study must end: see `trials`", *config, "num_samples")
        samples = None
    job = {
        "kind": "hpo",
        "params": params,
        "space": space,
        "objective": _objective(given, config),
        "sampler": search.short(sampler),
        "pruner": pruner,
        "trials": search.trials((samples or 1) * points, sampler, space),
        "parallel": given.whole(*config, "max_concurrent_trials") or parallel,
        "budget": {} if (limit := given.number(*config, "time_budget_s")) is None else {"time": limit},
        "resources": resources,
    }
    stem = re.sub(r"\W", "_", PurePath(name).stem, flags=re.ASCII)
    stem = stem if stem.isidentifier() and not keyword.iskeyword(stem) else f"search_{stem}"
    entrypoint = _entrypoint(given, tree, stem, function)
    checkpoints = {}
    if _saves(tree):
        given.note("saves checkpoints: `checkpoints` has one that is paused, killed or lost go on from its newest", CALL)
        checkpoints = {"grace": "30s"}
    files, copies = ({}, [PurePath(name).name]) if f"{stem}.py" == PurePath(name).name else ({f"{stem}.py": text}, [])
    copies += _modules(tree, scripts)
    return given.imported({**job, "entrypoint": entrypoint, "checkpoints": checkpoints}, _REASONS, files, copies=copies)


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
    """Makes data of expressions."""

    def __init__(self, tree: ast.Module, source: str) -> None:
        self.lines: dict[Place, int] = {}
        self._source = source
        self._count = 0
        self._values: dict[str, ast.expr | None] = {}  # None where a name has several
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                known = node.targets[0].id in self._values
                self._values[node.targets[0].id] = None if known else node.value

    def data(self, node: ast.expr, place: Place, depth: int = 0) -> Any:
        """The value of an expression; of one that only running it would tell, its text in a mapping."""
        self.lines.setdefault(place, node.lineno)
        self._count += 1
        if self._count > _MOST_NODES or depth > _DEEPEST:
            raise SpecError([Issue(("file",), "is too large, or nested too deeply", self._source, node.lineno)])
        if isinstance(node, ast.Name) and self._values.get(node.id) is not None:
            return self.data(self._values[node.id] or node, place, depth + 1)
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
        if isinstance(node, ast.Call) and not any(word.arg is None for word in node.keywords):
            arguments = [*((str(index), one) for index, one in enumerate(node.args))]
            arguments += [(word.arg, word.value) for word in node.keywords if word.arg]
            made = {key: self.data(one, (*place, key), depth + 1) for key, one in arguments}
            return {CALL: _tail(node.func), **made}
        number = _number(node)
        return {CALL: "", "text": ast.unparse(node)[:200]} if number is None else number


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
    """Sorts the values of a configuration into searched and fixed ones; gives the places of those of a grid."""
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
        key = next((key for key in ("0", "categories", "values") if given.look(*place, key) is not None), "0")
        if not isinstance(given.look(*place, key), list):
            given.refuse("needs a list of values that can be read", *place)
            return None
        return search.categorical(given.take(*place, key))
    if word == "sample_from":
        why = "a function of the other values cannot be read; compute it in the trainable, or write space: module:function"
        given.skip(why, *place)
        return None
    names = {"randn": ("mean", "sd", "q"), "qrandn": ("mean", "sd", "q")}.get(word, ("lower", "upper", "q"))
    integer = word.endswith("randint")
    if word.removeprefix("q") not in ("uniform", "loguniform", "randint", "lograndint", "randn"):
        given.skip("only running the file would show what it is; write the parameter into job.yaml", *place)
        return None
    # loguniform(lower, upper, base): only of what begins with q the third is a step
    places = [(*place, name if given.look(*place, name) is not None else str(index)) for index, name in enumerate(names)]
    first, second = given.number(*places[0]), given.number(*places[1])
    step = given.number(*places[2]) if word.startswith("q") else None
    if word.endswith("randn"):
        if step is not None:
            given.note(f"becomes a range of {search.SIGMAS} standard deviations on both sides, drawn uniformly", *place)
        return search.normal(first or 0.0, 1.0 if second is None else second, step=step)
    if first is None or second is None:
        given.refuse("needs two bounds that can be read", *place)
        return None
    log = "log" in word
    if log:
        given.take(*place, "base")  # of the scale: the same values are drawn
        given.take(*place, "2")
        if step is not None:
            given.note("a logarithmic range has no step here, so it is left out", *place)
    is_open = integer and (
        step is None or step == 1
    )  # the upper bound is left out: of randint, and of qrandint in steps of 1
    low, high = first, second - 1 if is_open else second
    if step is not None and not log:
        low, high = search.multiples(first, high, step, inward=True)
        if (low, high) != (first, second - is_open):
            given.note(f"values are multiples of {step:g}, so the range is {low:g} to {high:g}", *place)
    return search.span("int" if integer else "float", low, high, log=log, step=step)


def _objective(given: Source, config: Place) -> dict[str, str]:
    places = (config, (*config, "scheduler"), (*config, "search_alg"))
    found = {key: [word for at in places if (word := given.text(*at, key))] for key in ("metric", "mode")}
    if not found["metric"]:
        given.note("names no metric: write the objective into job.yaml", *(config or (CALL,)))
    mode = (found["mode"] or ["min"])[0]
    return {"metric": (found["metric"] or ["loss"])[0], "direction": "maximize" if mode == "max" else "minimize"}


def _sampler(given: Source, place: Place) -> tuple[dict[str, Any], int | None]:
    """The sampler, and how many trials run at the same time where the file limits them."""
    parallel = None
    word = given.text(*place, CALL) if isinstance(given.look(*place), dict) else given.text(*place)
    if word == "ConcurrencyLimiter":
        parallel = given.whole(*place, "max_concurrent" if given.look(*place, "max_concurrent") is not None else "1")
        place = (*place, "0" if given.look(*place, "0") is not None else "searcher")
        word = given.text(*place, CALL)
    sampler = search.sampler(word) if word else {"name": "random"}
    if sampler is None:
        given.note(f"{word} has no counterpart; tpe is used", *place)
    return sampler or {"name": "tpe"}, parallel


def _pruner(given: Source, place: Place) -> Any:
    if not isinstance(given.look(*place), dict):
        given.skip("only running the file would show what it is", *place)
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
    counted = given.text(*place, "time_attr") or ("time_total_s" if word == "MedianStoppingRule" else _ITERATIONS)
    for key, option in options.items():
        if key in ("grace_period", "max_t") and counted != _ITERATIONS:
            what = "seconds" if counted.startswith("time_") and counted.endswith("_s") else counted
            given.skip(
                f"is in {what} there, and steps are counted here: write {option} of the pruner into job.yaml", *place, key
            )
        elif (value := given.whole(*place, key)) is not None:
            made[option] = value
    return search.short(made)


def _trainable(given: Source, place: Place, config: Place) -> tuple[str, dict[str, Any]]:
    """The name of the function, or "", and what one call of it may use."""
    resources = _resources(given, ("resources_per_trial",))
    while isinstance(given.look(*place), dict) and given.look(*place, CALL) in ("with_resources", "with_parameters"):
        if given.text(*place, CALL) == "with_resources":
            second = "resources" if given.look(*place, "resources") is not None else "1"
            resources |= _resources(given, (*place, second))
        else:
            cure = "at the top level of the file, and name that in the entrypoint"
            given.note(f"passes further arguments: write NAME = tune.with_parameters(…) {cure}", *place)
        place = (*place, "trainable" if given.look(*place, "trainable") is not None else "0")
    value = given.take(*place)
    text = value.get("text", "") if isinstance(value, dict) else ""
    if not text.isidentifier():
        given.note("is not a function of this file by its name: give it one, and name that in the entrypoint", *place)
        return "", resources
    return text, resources


def _resources(given: Source, place: Place) -> dict[str, Any]:
    if given.look(*place) is None:
        return {}
    made: dict[str, Any] = {}
    for key, field in (("cpu", "cpus"), ("CPU", "cpus"), ("gpu", "gpus"), ("GPU", "gpus")):
        amount = given.number(*place, key) if isinstance(given.look(*place), dict) else None
        if amount and field == "gpus" and amount != int(amount):
            given.note(f"{amount:g} of a GPU becomes a whole one here", *place, key)
            amount = math.ceil(amount)
        if amount:
            made[field] = int(amount) if amount == int(amount) else amount
    return made


def _entrypoint(given: Source, tree: ast.Module, stem: str, function: str) -> str:
    """The function as it stands, with a note where a trial could not call it."""
    if function and not any(function in _defined(node) for node in tree.body):
        given.note(f"{function} is not defined at the top level of the file, where a trial finds it: move it there", CALL)
    return f"ray:{stem}:{function or 'run'}"


def _modules(tree: ast.Module, scripts: Mapping[str, str]) -> list[str]:
    """The files beside the search that it imports, and those that these import."""
    found: dict[str, None] = {}
    todo: list[ast.AST] = [tree]
    while todo:
        for node in ast.walk(todo.pop()):
            named = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            named += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            for file in (f"{name.partition('.')[0]}.py" for name in named):
                if file in scripts and file not in found:
                    found[file] = None
                    with contextlib.suppress(SpecError):  # a trial tells, if it comes to that
                        todo.append(_tree(scripts[file], file))
    return list(found)


def _defined(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        yield node.name
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from (alias.asname or alias.name for alias in node.names)
    elif isinstance(node, ast.Assign):
        yield from (target.id for target in node.targets if isinstance(target, ast.Name))
