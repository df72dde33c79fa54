"""A search in a Python script, by Optuna or another library whose calls `integrations/searches.py` knows: its job's fields.

The trials of the job call the script's own function. The text of the script shows the direction, the number of trials and
the like.
"""

from __future__ import annotations

import ast
import dataclasses
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple

from trialplane.importing import constants, flags, guess, naming, search
from trialplane.job import options as optuna_options


@dataclasses.dataclass(frozen=True)
class _SearchCall:
    """The form of a call by which a library other than Optuna searches.

    Attributes:
        arguments: Names of the first arguments.
        trials: Argument with the number of trials; "" if there is none.
        default_trials: Its default.
        metric: Name for the value that is optimized, or the argument with the name.
        direction: Direction of the optimization; "" if it follows from the metric's name.
        sampler: Sampler of the job; "" for the default.
    """

    arguments: tuple[str, ...]
    trials: str
    default_trials: int = search.DEFAULT_TRIALS
    metric: str = "value"
    direction: str = "minimize"
    sampler: str = ""


_HYPEROPT = _SearchCall(("fn", "space", "algo", "max_evals"), trials="max_evals", metric="loss")
_SKOPT = _SearchCall(("func", "dimensions"), trials="n_calls", default_trials=100)
_SKLEARN = _SearchCall(
    ("estimator", "param_distributions"),
    trials="n_iter",
    default_trials=10,
    metric="mean_test_score",
    direction="maximize",
)
_SKLEARN_GRID = dataclasses.replace(_SKLEARN, arguments=("estimator", "param_grid"), trials="", sampler="bruteforce")
_BAYES_OPT = _SearchCall(("f", "pbounds"), trials="", default_trials=30, metric="target", direction="maximize")
_KERAS = _SearchCall(
    ("hypermodel", "objective", "max_trials"), trials="max_trials", default_trials=10, metric="objective", direction=""
)
_KERAS_HYPERBAND = dataclasses.replace(_KERAS, arguments=("hypermodel", "objective", "max_epochs"), trials="")
_KERAS_CALLS = {
    "RandomSearch": _KERAS,
    "BayesianOptimization": _KERAS,
    "GridSearch": _KERAS,
    "Hyperband": _KERAS_HYPERBAND,
}
_OPTUNA = {"OptunaSearchCV": dataclasses.replace(_SKLEARN, trials="n_trials")}
# Library → last part of a call's full name → the call.
_CALLS: Mapping[str, Mapping[str, _SearchCall]] = {
    "hyperopt": {"fmin": _HYPEROPT},
    "sklearn": {
        "RandomizedSearchCV": dataclasses.replace(_SKLEARN, sampler="random"),
        "HalvingRandomSearchCV": dataclasses.replace(_SKLEARN, trials="n_candidates", sampler="random"),
        "GridSearchCV": _SKLEARN_GRID,
        "HalvingGridSearchCV": _SKLEARN_GRID,
    },
    "skopt": {
        "BayesSearchCV": dataclasses.replace(_SKLEARN, default_trials=50),
        **dict.fromkeys(("gp_minimize", "forest_minimize", "gbrt_minimize", "dummy_minimize"), _SKOPT),
    },
    "bayes_opt": {"BayesianOptimization": _BAYES_OPT},
    "optuna": _OPTUNA,
    "optuna_integration": _OPTUNA,
    "keras_tuner": _KERAS_CALLS,
    "kerastuner": _KERAS_CALLS,
}
_MOST_ASSIGNMENTS = 10  # of one name to another that are followed, as of `n = trials` and `trials = 20`


class _Objective(NamedTuple):
    """A metric to optimize, and the direction: minimize or maximize."""

    metric: str
    direction: str


class _Script(NamedTuple):
    """A script with a search.

    Attributes:
        tree: Tree of the script.
        calls: Calls in it, in their order.
        name: Name of the script.
        values: Values of its names.
        notes: Remarks for the user, which the functions below append to.
    """

    tree: ast.Module
    calls: Sequence[ast.Call]
    name: str
    values: _Values
    notes: list[str]


def read(
    tree: ast.Module, calls: Sequence[ast.Call], name: str, notes: list[str], arguments: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the fields of a job for the search of a script; {} without one.

    The entrypoint is "" if a trial cannot import the function of the search from the script.

    Args:
        tree: Tree of the script.
        calls: Calls in it.
        name: Name of the script.
        notes: Remarks for the user. Those on settings of the search that the job lacks are appended.
        arguments: Arguments of the script, which may set what its flags have as defaults.
    """
    calls = sorted(calls, key=lambda call: (call.lineno, call.col_offset))
    imported = naming.imported(tree)
    script = _Script(tree, calls, name, _Values(tree, calls, arguments), notes)
    # Optuna.
    imports_optuna = any(full_name.partition(".")[0] == "optuna" for full_name in imported.values())
    optimize_calls = [call for call in calls if _is_method(call, "optimize") and (call.args or call.keywords)]
    if imports_optuna and optimize_calls:
        return _study_job(script, optimize_calls)
    # Another library.
    has_parser = any(_is_method(call, "parse_args") for call in calls)
    conditional = _conditional_nodes(tree, dict(flags.typed(arguments, calls))) if has_parser else set()
    forms = {call: form for call in calls if call not in conditional and (form := _known_form(call, imported))}
    if not forms:
        return {}
    first_call, form = next(iter(forms.items()))
    loops = [node for node in ast.walk(tree) if isinstance(node, (ast.For, ast.While))]
    if len(forms) > 1 or any(first_call in ast.walk(loop) for loop in loops):
        notes.append(f"only the search that starts first is taken (line {first_call.lineno}), and not further ones")
    return _library_job(script, first_call, form)


def _conditional_nodes(tree: ast.Module, options: Collection[str]) -> set[ast.AST]:
    """Return the nodes of a script that run only with an option that its arguments do not have, as in `if args.tune:`."""
    nodes: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Attribute) and node.test.attr not in options:
            for statement in node.body:
                nodes.update(ast.walk(statement))
    return nodes


def is_search(call: ast.Call, imported: Mapping[str, str]) -> bool:
    """Return whether a call may be that of a search of Optuna or another library."""
    return _is_method(call, "optimize") or _known_form(call, imported) is not None


def _known_form(call: ast.Call, imported: Mapping[str, str]) -> _SearchCall | None:
    """Return the form of a call by which a library other than Optuna searches; None for any other call."""
    full_name = naming.full(call.func, imported)
    root, last_part = full_name.partition(".")[0], full_name.rpartition(".")[2]
    return _CALLS.get(root, {}).get(last_part)


class _Values:
    """Values of the variables, arguments and flags of a script that are assigned once.

    Args:
        tree: Tree of the script.
        calls: Calls in it.
        arguments: Arguments of the script.
    """

    def __init__(self, tree: ast.Module, calls: Sequence[ast.Call], arguments: Sequence[str]) -> None:
        self._flags = dict(flags.defaults(calls)) | dict(flags.typed(arguments, calls))
        self._work = constants.Work()
        self._pending: set[str] = set()  # names whose values are being evaluated
        self._assigned = {**_search_arguments(tree, calls), **self._flags, **_variables(tree)}  # None for an unknown value

    def value(self, node: ast.expr | None) -> Any:
        """Return the number, text, boolean, list or dict that an expression stands for; None if its value is unknown."""
        try:
            return None if node is None else self._evaluate(node)
        except constants.NotConstant:
            return None

    def resolve(self, node: ast.expr) -> ast.expr:
        """Return the expression that is assigned to a name, or that a conditional expression stands for.

        Any other expression is returned unchanged.
        """
        for _ in range(_MOST_ASSIGNMENTS):
            if isinstance(node, ast.Name) and (assigned := self._assigned.get(node.id)) is not None:
                node = assigned
            elif isinstance(node, ast.IfExp) and (is_true := self.value(node.test)) is not None:
                node = node.body if is_true else node.orelse
        return node

    def _lookup(self, node: ast.expr) -> Any:
        """Return the value of a name or a flag.

        Raises:
            constants.NotConstant: It is unknown.
        """
        if isinstance(node, ast.Name):
            key, assigned = node.id, self._assigned.get(node.id)
        elif isinstance(node, ast.Attribute):  # args.n_trials
            key, assigned = node.attr, self._flags.get(node.attr)
        else:
            raise constants.NotConstant
        if assigned is None or key in self._pending:
            raise constants.NotConstant
        self._pending.add(key)
        try:
            return self._evaluate(assigned)
        finally:
            self._pending.remove(key)

    def _evaluate(self, node: ast.expr) -> Any:
        """Return the value of an expression.

        Raises:
            constants.NotConstant: It is unknown.
        """
        return constants.Evaluator(self._lookup, self._work, module_names=()).value(node)


def _search_arguments(tree: ast.Module, calls: Sequence[ast.Call]) -> dict[str, ast.expr]:
    """Return the arguments of the functions that search, by name. click and fire pass flags as such arguments."""
    imported = naming.imported(tree)
    search_calls = {call for call in calls if is_search(call, imported)}
    values: dict[str, ast.expr] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and not search_calls.isdisjoint(ast.walk(node)):
            values |= naming.argument_values(node, calls)
    return values


def _variables(tree: ast.Module) -> dict[str, ast.expr | None]:
    """Return the values of variables by name; None for one with several values.

    Those of functions are included: the user sees the values in job.yaml.
    """
    variables: dict[str, ast.expr | None] = {}
    for assignment in (node for node in ast.walk(tree) if isinstance(node, ast.Assign)):
        for target in assignment.targets:
            if isinstance(target, ast.Name):
                variables[target.id] = None if target.id in variables else assignment.value
    return variables | dict.fromkeys(naming.augmented(tree))


def _library_job(script: _Script, call: ast.Call, form: _SearchCall) -> dict[str, Any]:
    """Return the fields of the job for a search by another library than Optuna."""
    by_name = naming.arguments_by_name(call, *form.arguments)
    objective = _Objective(form.metric, form.direction)
    if not form.direction:
        objective = _keras_objective(script, by_name.get(form.metric))
    maximize_calls = [other for other in script.calls if _is_method(other, "maximize")] if form is _BAYES_OPT else []
    if maximize_calls:
        trials = _bayes_opt_trials(maximize_calls[-1], script.values)
    elif form.sampler == "bruteforce":
        trials = _grid_size(script.values.value(by_name.get("param_grid")))
    else:
        trials = script.values.value(by_name[form.trials]) if form.trials in by_name else form.default_trials
    return {
        "kind": "hpo",
        "entrypoint": "",
        "objective": objective._asdict(),
        **({"sampler": form.sampler} if form.sampler else {}),
        "trials": _trials(trials, script.notes),
    }


def _bayes_opt_trials(maximize: ast.Call, values: _Values) -> int | None:
    """Return the number of trials of a call of `maximize` of bayes_opt; None if it is unknown."""
    defaults = {"init_points": 5, "n_iter": 25}
    by_name = naming.arguments_by_name(maximize, *defaults)
    counts = [values.value(by_name[name]) if name in by_name else default for name, default in defaults.items()]
    return sum(counts) if all(isinstance(count, int) for count in counts) else None


def _trials(number: Any, notes: list[str], prefix: str = "") -> int:
    """Return the number of trials that a script shows; for None or an impossible one the default, with a note."""
    if type(number) is int and number >= 1:
        return number
    default = search.DEFAULT_TRIALS
    notes.append(f"{prefix}the text of the script shows no number of trials, so `trials` is {default}")
    return default


def _is_method(call: ast.Call, name: str) -> bool:
    """Return whether a call is that of a method with a name."""
    return isinstance(call.func, ast.Attribute) and call.func.attr == name


def _keras_objective(script: _Script, node: ast.expr | None) -> _Objective:
    """Return the objective of a tuner of keras-tuner: a text, or `Objective(name, direction)`.

    Without either, the tuner minimizes the value that the model's function returns.
    """
    values = script.values
    node = values.resolve(node) if node is not None else None
    if node is None or _is_none(node):
        return _Objective("val_loss", "minimize")
    if isinstance(node, ast.Call):
        by_name = naming.arguments_by_name(node, "name", "direction")
        metric, mode = values.value(by_name.get("name")), values.value(by_name.get("direction"))
        direction = {"min": "minimize", "max": "maximize"}.get(str(mode))
    else:
        metric = values.value(node)
        direction = guess.direction(metric) if isinstance(metric, str) else None
    objective = _Objective(metric if isinstance(metric, str) else "val_loss", direction or "minimize")
    if objective != (metric, direction):
        script.notes.append(
            f"objective: only running the script would show all of {ast.unparse(node)}, so the job has "
            f"{objective.metric}, {objective.direction}d; write `objective` into job.yaml"
        )
    return objective


def _grid_size(grid: Any) -> int | None:
    """Return the number of points of a grid of scikit-learn, or of several; None if it is unknown."""
    if isinstance(grid, list):
        sizes = [_grid_size(part) for part in grid]
        return sum(size for size in sizes if size) if all(sizes) else None
    if isinstance(grid, dict) and all(isinstance(choices, list) for choices in grid.values()):
        return math.prod(map(len, grid.values()))
    return None


def _study_job(script: _Script, optimize_calls: Sequence[ast.Call]) -> dict[str, Any]:
    """Return the fields of the job for the first function that a script passes to `study.optimize`."""
    optimize, *further_calls = optimize_calls
    values, notes = script.values, script.notes
    optimize_arguments = naming.arguments_by_name(optimize, "func", "n_trials")
    function = optimize_arguments.get("func")
    studies = _studies(script, optimize)
    study_arguments = _study_arguments(studies[-1], values) if studies else {}
    job: dict[str, Any] = {
        "kind": "hpo",
        "entrypoint": _entrypoint(script, function),
        **_objectives(script, studies),
        # A pruner matters only if trials ask it. Without one of the script's own, it is asha: Optuna's default finds less.
        **({"pruner": "asha"} if any(_is_method(call, "should_prune") for call in script.calls) else {}),
        "trials": _trials(values.value(optimize_arguments.get("n_trials")), notes, prefix="n_trials: "),
    }
    # Other settings of the study and of the call.
    for field, choices in (("sampler", optuna_options.SAMPLERS), ("pruner", optuna_options.PRUNERS)):
        if field in study_arguments:
            job |= _component(script, field, values.resolve(study_arguments[field]), choices)
    parallel = values.value(optimize_arguments.get("n_jobs"))
    if isinstance(parallel, int) and parallel > 0:  # -1 stands for all cores
        job["parallel"] = parallel
    seconds = values.value(optimize_arguments.get("timeout"))
    if isinstance(seconds, int | float) and 0 < seconds < math.inf:
        job["budget"] = {"time": f"{max(1, int(seconds))}s"}
    if points := _enqueued_points(script):
        job["enqueue"] = points
    if "storage" in study_arguments:
        notes.append("storage: a run has a ledger; `platform export` writes it as an Optuna study")
    _note_further_searches(script, function, further_calls)
    return job


def _entrypoint(script: _Script, function: ast.expr | None) -> str:
    """Return the entrypoint for a function of a search; "" if a trial cannot import it from the script by its name."""
    stem = PurePath(script.name).stem
    if not stem.isidentifier() or not isinstance(function, ast.Name):
        return ""
    return f"optuna:{stem}:{function.id}" if function.id in _importable_names(script.tree) else ""


def _note_further_searches(script: _Script, function: ast.expr | None, further_calls: Sequence[ast.Call]) -> None:
    """Add a remark on each function, other than that of the job's search, that further calls of `optimize` search."""
    taken = ast.unparse(function) if function is not None else ""
    calls_by_function = {ast.unparse(call.args[0]): call for call in further_calls if call.args}
    for other, call in calls_by_function.items():
        if other != taken:
            entrypoint = _entrypoint(script, call.args[0])
            remedy = f"; for that one: --set entrypoint={entrypoint}" if entrypoint else ""
            script.notes.append(
                f"only the first search, of {taken}, is taken, and not that of {other} (line {call.lineno}){remedy}"
            )


def _objectives(script: _Script, studies: Sequence[ast.Call]) -> dict[str, Any]:
    """Return the field `objective`, or `objectives`, of the job for the calls that may create its study."""
    alternatives = {_directions(call, script.values) for call in studies}
    directions = alternatives.pop() if len(alternatives) == 1 else (None,)
    if None in directions:
        remark = "only running the script would show it, so it is minimize; write `objective` into job.yaml"
        script.notes.append(f"direction: {remark}")
    words = [direction or "minimize" for direction in directions]
    if len(words) == 1:
        return {"objective": {"metric": "value", "direction": words[0]}}
    return {"objectives": [{"metric": f"value_{index}", "direction": word} for index, word in enumerate(words)]}


def _importable_names(tree: ast.Module) -> set[str]:
    """Return the names of the functions and variables that a script defines at its top level."""
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    for node in tree.body:
        if isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names


def _enqueued_points(script: _Script) -> list[dict[str, Any]]:
    """Return the points of the calls of `enqueue_trial` whose values are in the text. Add a remark if others are not."""
    calls = [call for call in script.calls if _is_method(call, "enqueue_trial")]
    points = [script.values.value(naming.arguments_by_name(call, "params").get("params")) for call in calls]
    known_points = [point for point in points if isinstance(point, dict) and None not in (*point, *point.values())]
    if len(known_points) < len(points):
        remark = "only running the script would show some points to try first; write `enqueue` into job.yaml"
        script.notes.append(f"enqueue_trial: {remark}")
    return known_points


def _component(script: _Script, field: str, node: ast.expr, choices: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the job for a sampler or pruner of Optuna: `sampler` or `pruner`, and `seed` if it has one.

    {} for None, and for one that has no counterpart or cannot be read.
    """
    remedy = f"write `{field}` into job.yaml"
    if _is_none(node):
        return {}
    if not isinstance(node, ast.Call):
        script.notes.append(f"{field}: {ast.unparse(node)} cannot be read; {remedy}")
        return {}
    cls = naming.last(node.func)
    name = next((name for name, choice in choices.items() if choice.cls == cls), "")
    if not name:
        script.notes.append(f"{field}: {cls} is none of {', '.join(choices)}; {remedy}")
        return {}
    known_options = choices[name].options
    keywords = naming.arguments_by_name(node)
    # None stands for the default.
    values = {key: script.values.value(value) for key, value in keywords.items() if not _is_none(value)}
    options = {key: value for key, value in values.items() if value is not None and key in {*known_options, "seed"}}
    unreadable = [*map(ast.unparse, node.args), *(key for key in values if key not in options)]
    if unreadable:
        script.notes.append(f"{field}: {', '.join(unreadable)} of {cls} cannot be read; {remedy}")
    fields = {"seed": options.pop("seed")} if "seed" in options else {}
    has_required = all(key in options for key, option in known_options.items() if option.required)
    if name != "grid" and has_required and not node.args:  # the options of a grid are the space of a job
        fields[field] = {"name": name, **options} if options else name
    return fields


def _studies(script: _Script, optimize: ast.Call) -> list[ast.Call]:
    """Return the calls that may create the study whose `optimize` is called; those that load it, if none creates it.

    There are several if the script assigns more than one study to the same variable.
    """
    study_calls = [call for call in script.calls if naming.last(call.func) in ("create_study", "load_study")]
    assert isinstance(optimize.func, ast.Attribute)
    receiver = optimize.func.value  # `study` of `study.optimize(…)`
    if len(study_calls) == 1:  # even if it is in another function, such as one that returns the study
        return study_calls
    if isinstance(receiver, ast.Call) and receiver in study_calls:  # create_study().optimize(…)
        return [receiver]
    # Those that are assigned to the receiver, in the innermost function that assigns one to it.
    functions = [node for node in ast.walk(script.tree) if isinstance(node, ast.FunctionDef) and optimize in ast.walk(node)]
    for scope in reversed([script.tree, *functions]):
        assigned = _assigned_calls(scope, ast.unparse(receiver), study_calls)
        studies = [call for call in assigned if call.lineno <= optimize.lineno] or assigned
        if studies:
            return [call for call in studies if naming.last(call.func) == "create_study"] or studies
    return []


def _assigned_calls(scope: ast.AST, target: str, calls: Sequence[ast.Call]) -> list[ast.Call]:
    """Return those of some calls that are in the values that a file or a function assigns to a variable or attribute."""
    nodes: set[ast.AST] = set()
    for value in _assigned_values(scope, target):
        nodes.update(ast.walk(value))
    return [call for call in calls if call in nodes]


def _assigned_values(scope: ast.AST, target: str) -> Iterator[ast.expr]:
    """Yield the expressions that a file or a function assigns to its variable, or to an attribute anywhere in it."""
    todo = list(ast.iter_child_nodes(scope))
    while todo:
        node = todo.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and target.isidentifier():
            continue  # its variables are others
        todo += ast.iter_child_nodes(node)
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if target in map(ast.unparse, targets):
                yield node.value


def _study_arguments(call: ast.Call, values: _Values) -> dict[str, ast.expr]:
    """Return the arguments of a call of `create_study` by name, with those of a dict that it unpacks."""
    unpacked: dict[str, ast.expr] = {}
    for word in call.keywords:
        if word.arg is None and isinstance(node := values.resolve(word.value), ast.Dict):
            keys = [values.value(key) for key in node.keys]
            unpacked |= {key: value for key, value in zip(keys, node.values, strict=True) if isinstance(key, str)}
    return unpacked | naming.arguments_by_name(call)


def _directions(call: ast.Call, values: _Values) -> tuple[str | None, ...]:
    """Return the directions of a study, with None for one that cannot be read. Optuna's default is minimize."""
    arguments = _study_arguments(call, values)
    directions = values.resolve(arguments["directions"]) if "directions" in arguments else None
    if isinstance(directions, (ast.List, ast.Tuple)):
        return tuple(_direction(element, values) for element in directions.elts)
    if directions is not None and not _is_none(directions):  # `directions=None` is Optuna's default
        return (None,)
    if "direction" in arguments:
        return (_direction(arguments["direction"], values),)
    # A dict that is unpacked may get a direction in a way that cannot be read, and a study in a storage has its own.
    is_unknown = any(word.arg is None for word in call.keywords) or naming.last(call.func) == "load_study"
    return (None if is_unknown else "minimize",)


def _direction(node: ast.expr, values: _Values) -> str | None:
    """Return the direction that a text, a member of `StudyDirection` or None stands for; None if it cannot be read."""
    node = values.resolve(node)
    if _is_none(node):
        return "minimize"
    for direction in (values.value(node), node.attr if isinstance(node, ast.Attribute) else None):
        if str(direction).lower() in ("minimize", "maximize"):
            return str(direction).lower()
    return None


def _is_none(node: ast.expr) -> bool:
    """Return whether an expression is None."""
    return isinstance(node, ast.Constant) and node.value is None
