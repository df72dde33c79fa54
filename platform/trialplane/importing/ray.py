"""A search of Ray Tune, from the Python file with `tune.Tuner(…)` or `tune.run(…)`: its text is parsed and never run.

The call becomes data like those of a YAML file: each call in it is a mapping with the function's name under "()" and the
arguments under their names. A name is replaced by the value that the file assigns to it, an argument of the function around
the call by its default, and `args.x` by the default of `--x`. So a `Source` can note each value that was not read.
"""

from __future__ import annotations

import ast
import builtins
import copy
import keyword
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple

from trialplane import errors
from trialplane.errors import Issue, Place, SpecError
from trialplane.importing import constants, flags, folding, guess, naming, search
from trialplane.importing.source import CALL, ImportResult, Source
from trialplane.job import arguments
from trialplane.job.document import Document

# Limit of the values in the data of a call. Each use of a name repeats its value, so they can be more than in the file.
_MOST_NODES = 50_000
_MAX_DEPTH = 50
_LONGEST_TEXT = 10_000  # characters of a `partial` in the module with the trainable
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
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_RANDOM = re.compile(r"(?:np\.random|numpy\.random|random)\.(?:randint|uniform|choice)")
_MOST_DRAWN = 100  # choices for a random number, and the largest exponent
_BINDERS = ("partial", "with_parameters")  # functions that bind arguments to a trainable
_SCRIPT = "script"  # name of the imported file in the module with its trainable
# Function → names of its arguments, in their order.
_ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "Tuner": ("trainable",),
    "run": ("run_or_experiment",),
    "with_resources": ("trainable", "resources"),
    **dict.fromkeys(
        ("TorchTrainer", "TensorflowTrainer", "DataParallelTrainer", "XGBoostTrainer", "LightGBMTrainer"),
        ("train_loop_per_worker",),
    ),
    "ConcurrencyLimiter": ("searcher", "max_concurrent"),
    "choice": ("categories",),
    "grid_search": ("values",),
    "randn": ("mean", "sd"),
    "qrandn": ("mean", "sd", "q"),
    **{f"q{name}": ("lower", "upper", "q", "base") for name in ("uniform", "loguniform", "randint", "lograndint")},
    **dict.fromkeys(("uniform", "loguniform", "randint", "lograndint"), ("lower", "upper", "base")),
}
# Module with a function and arguments that the search binds to it.
_TRAINABLE = '''"""The function that {name} passes to Ray Tune."""

from functools import partial

import {module} as {script}

trainable = {text}
'''.replace("{script}", _SCRIPT)
_UNREADABLE = "only running the file would show what it is"
# Scheduler of Ray → its default of `max_t`.
_DEFAULT_MAX_T = {"ASHAScheduler": 100, "AsyncHyperBandScheduler": 100, "HyperBandScheduler": 81, "HyperBandForBOHB": 81}


class _Paths(NamedTuple):
    """Paths of the parts of a search in the data of its call.

    Attributes:
        trainable: Function that a trial calls.
        space: Configuration with the values to search.
        settings: Arguments that configure the search.
        stop: Rules that end a trial.
    """

    trainable: Place
    space: Place
    settings: Place
    stop: Place


_TUNER = _Paths(("trainable",), ("param_space",), ("tune_config",), ("run_config", "stop"))  # of tune.Tuner
_RUN = _Paths(("run_or_experiment",), ("config",), (), ("stop",))  # of tune.run
_LONGEST_TRIAL = "1h"  # time limit of a trial whose end is not in the file
_ITERATIONS = "training_iteration"  # default unit of progress of each scheduler except MedianStoppingRule
_REASONS = {
    "run_config": "a run's name and target are set when the job is submitted; `budget` and `retries` limit failures",
    "name": "is given when the job is submitted: --name",
    "storage_path": "runs are kept in TRIALPLANE_HOME, and on a cluster in the chart's volume",
    "local_dir": "runs are kept in TRIALPLANE_HOME, and on a cluster in the chart's volume",
    "callbacks": "results are in MLflow",
    "verbose": "`platform status --watch` shows a run",
    "resume": "`platform resume` continues a run",
}


def read(text: str, name: str, scripts: Mapping[str, str]) -> ImportResult:
    """Return the job of a search.

    Args:
        text: Text of the Python file.
        name: Name of the file in messages.
        scripts: Ignored; other importers need the Python files in the same folder.

    Raises:
        SpecError: The file is not Python, has no search, or has values of the wrong kind.
    """
    tree = _parse(text, name)
    source, paths = _read_call(tree, name)
    for call_field in ((), paths.settings, ("run_config",)):
        source.take(*call_field, CALL)
    searcher, scheduler = (*paths.settings, "search_alg"), (*paths.settings, "scheduler")
    sampler, parallel, space_function = _sampler(source, searcher)
    space, params, grids = _configuration(source, paths)
    resources, trainable_field = _trial_resources(source, paths.trainable)
    function, partial_text = _trainable(source, trainable_field, _registered(tree))
    if grids and len(grids) == len(space) and source.look(*searcher) is None:
        sampler = {"name": "grid"}
    else:
        for grid_field in grids.values():
            source.note("every value is tried num_samples times there; here values are drawn", *grid_field)
    pruner = _pruner(source, scheduler)
    stop, budget = _stop_rules(source, scheduler, paths.stop)
    budget["time"] = source.number(*paths.settings, "time_budget_s")
    objectives = _objectives(source, paths.settings, _other_metrics(tree))
    grid_values = [space[parameter]["choices"] for parameter in grids]
    trials = _trials(source, (*paths.settings, "num_samples"), grid_values, sampler, space)
    defined_names = _module_names(tree)
    _check_function(source, function, naming.imported(tree), defined_names)
    checkpoints = {}
    if _saves_checkpoints(tree):
        source.note(
            "saves checkpoints: with `checkpoints`, a paused, killed or lost trial continues from its newest one", CALL
        )
        checkpoints = {"grace": "30s"}
    module = _module_name(name)
    job = {
        "kind": "hpo",
        "params": params,
        "space": space or (f"{module}:{space_function}" if space_function in defined_names else {}),
        "objective": None if objectives[1:] else objectives[0],
        "objectives": objectives if objectives[1:] else None,
        "sampler": search.short_form(sampler),
        "pruner": pruner,
        "trials": trials,
        "parallel": source.integer(*paths.settings, "max_concurrent_trials") or parallel,
        "stop": stop,
        "budget": budget,
        "resources": resources,
        "ranks": 1 if resources.get("gpus", 0) > 1 else None,  # the function is called in one process
        "entrypoint": f"ray:{module}_trainable:trainable" if partial_text else f"ray:{module}:{function or 'FUNCTION'}",
        "checkpoints": checkpoints,
    }
    if partial_text and _searches_on_import(tree):
        source.refuse("would start its search when a trial imports it: put that below `if __name__ == '__main__':`")
    file_name = PurePath(name).name
    files = {} if f"{module}.py" == file_name else {f"{module}.py": text}  # a copy that Python can import
    if partial_text:
        files[f"{module}_trainable.py"] = _TRAINABLE.format(name=file_name, module=module, text=partial_text)
    return source.result(job, _REASONS, files, copies=[file_name])


def _read_call(tree: ast.Module, name: str) -> tuple[Source, _Paths]:
    """Return the arguments of the first search in a file as a source, and the paths of its parts.

    Raises:
        SpecError: The file has no search.
    """
    calls = list(searches(tree))
    if not calls:
        raise SpecError([Issue(("file",), "has no tune.Tuner(…) and no tune.run(…)", name)])
    reader = _Reader(tree, name, calls[0], folding.fold(tree))
    source = Source(Document(reader.data(calls[0], ()), reader.lines, name))
    for field, value_text in reader.assumed:
        source.note(f"{value_text} is taken, as only running the file would show whether another value is used", *field)
    for field, remark in reader.changed:
        source.note(f"{remark}, and only running the file would show how: write that into job.yaml", *field)
    for call in calls[1:]:
        source.note(f"only the first search in the file is taken; that of line {call.lineno} is not")
    return source, _TUNER if naming.last(calls[0].func) == "Tuner" else _RUN


def _configuration(source: Source, paths: _Paths) -> tuple[dict[str, Any], dict[str, Any], dict[str, Place]]:
    """Return the parameters to search, the fixed ones, and the paths of those with a grid search, each by name.

    The function of a trainer, such as `TorchTrainer`, gets the `train_loop_config` of the trainer and of the space alone.
    """
    space: dict[str, Any] = {}
    params: dict[str, Any] = {}
    grids: dict[str, Place] = {}
    space_field = paths.space
    if _is_trainer(source.look(*paths.trainable)):
        space_field = (*paths.space, "train_loop_config")
        trainer_config = (*paths.trainable, "train_loop_config")
        if source.look(*trainer_config) is not None:
            _parameters(source, trainer_config, (), space, params)
    if source.look(*space_field) is not None:
        grids = _parameters(source, space_field, (), space, params)
    return space, {name: value for name, value in params.items() if name not in space}, grids


def _check_function(source: Source, function: str, imported: Mapping[str, str], defined_names: Collection[str]) -> None:
    """Refuse a trainable that is a class of Ray's, and add a note on one that a trial cannot import.

    Args:
        source: The file.
        function: Name of the trainable in the file; "" if it has none, on which there is a note already.
        imported: Full names of the objects that the file imports, by their names in it.
        defined_names: Names that the file defines at its top level.
    """
    if imported.get(function, "").startswith("ray."):
        source.refuse(f"{function} is a class of Ray's, and a trial calls a function: write a function(config) that uses it")
    elif function and function not in defined_names:
        source.note(f"{function} is not defined at the top level of the file, where a trial finds it: move it there", CALL)


def _searches_on_import(tree: ast.Module) -> bool:
    """Return whether a file starts its search also when it is imported, and not only when it is run as a script."""
    import_statements = [node for node in tree.body if not isinstance(node, _DEFINITIONS) and not arguments.is_main(node)]
    return not set(searches(tree)).isdisjoint(naming.executed_nodes(tree, import_statements))


def _trials(
    source: Source, field: Place, grids: Sequence[Sequence[Any]], sampler: Mapping[str, Any], space: Mapping[str, Any]
) -> int:
    """Return the number of trials of the job. One of Ray's samples is a trial at each point of the grids.

    Args:
        source: The file.
        field: Path of the number of samples.
        grids: Values of each parameter with a grid search.
        sampler: Sampler of the job.
        space: Space of the job.
    """
    samples = source.integer(*field)
    is_unlimited = source.look(*field) is not None and (samples is None or samples < 1)  # -1 stands for no limit
    points = math.prod(map(len, grids))
    requested = None if is_unlimited and not grids else max(1, samples or 1) * points
    trials = search.trials(requested, sampler, space)
    if is_unlimited:
        source.note(f"is unlimited there, or not known, but a study must end: trials is {trials}", *field)
    return trials


def _module_name(name: str) -> str:
    """Return a name for a file under which Python can import it as a module."""
    stem = re.sub(r"\W", "_", PurePath(name).stem, flags=re.ASCII)
    return stem if stem.isidentifier() and not keyword.iskeyword(stem) else f"search_{stem}"


def _saves_checkpoints(tree: ast.Module) -> bool:
    """Return whether a file reports checkpoints to Ray, or gets one from it."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return any(
        naming.last(call.func) == "get_checkpoint"
        or (naming.last(call.func) == "report" and any(word.arg == "checkpoint" for word in call.keywords))
        for call in calls
    )


def is_search(text: str) -> bool:
    """Return whether a text is a script that may start a search of Ray Tune, as `starts_search` does."""
    try:
        tree = _parse(text, "")
        return starts_search(tree, tree.body)
    except SpecError:
        return False


def has_search(text: str) -> bool:
    """Return whether a text is Python code with a search of Ray Tune, also in a function that it does not use."""
    try:
        return any(True for _ in searches(_parse(text, "")))
    except SpecError:
        return False


def starts_search(tree: ast.Module, statements: Sequence[ast.stmt]) -> bool:
    """Return whether statements may start a search of Ray Tune. One in a function that they do not use is ignored.

    Args:
        tree: Tree with the functions that they may use.
        statements: The statements.
    """
    names = naming.imported(tree)
    called_names = (
        naming.full(node.func, names) for node in naming.executed_nodes(tree, statements) if isinstance(node, ast.Call)
    )
    return any(name.startswith("ray.") and (_is_search(name) or name.endswith(".run_experiments")) for name in called_names)


def _is_search(name: str) -> bool:
    """Return whether a dotted name is that of a function or class that starts a search."""
    return name in ("tune.run", "ray.tune.run") or name.rpartition(".")[2] == "Tuner"


def _parse(text: str, name: str) -> ast.Module:
    """Return the tree of a Python file.

    Raises:
        SpecError: The text is not Python.
    """
    try:
        return ast.parse(text)
    except SyntaxError as error:
        raise SpecError([Issue(("file",), f"is not Python: {error.msg}", name, error.lineno or 0)]) from None
    except (ValueError, RecursionError, MemoryError):
        raise SpecError([Issue(("file",), "is not Python: it contains null bytes, or is nested too deeply", name)]) from None


def searches(tree: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls of Tuner and of tune.run, in the order of the file."""
    names = naming.imported(tree)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    for node in sorted(calls, key=lambda call: (call.lineno, call.col_offset)):
        name = naming.full(node.func, names)
        if _is_search(name) and (name.startswith("ray.") or name.partition(".")[0] in ("tune", "Tuner")):
            yield node


class _Assignment(NamedTuple):
    """An assignment to a name.

    Attributes:
        block: Number of the block of statements that has it; -1 for an argument of a function.
        line: Its line.
        value: Expression of the value.
        target: Node of the name.
    """

    block: int
    line: int
    value: ast.expr
    target: ast.expr | ast.stmt


class _Scope:
    """The file, or a function or class in it, and the names that it binds.

    Args:
        node: Its node.
        parent: Scope around it. None for the file.

    Attributes:
        node: Its node.
        parent: Scope around it.
        bindings: Name → its assignments; None in place of one by other code, such as a loop, `+=`, `import` or an argument.
    """

    def __init__(self, node: ast.AST, parent: _Scope | None) -> None:
        self.node = node
        self.bindings: dict[str, list[_Assignment | None]] = {}
        self.parent = parent

    def bind(self, name: str | None, assignment: _Assignment | None = None) -> None:
        """Add an assignment to a name, if there is a name."""
        if name:
            self.bindings.setdefault(name, []).append(assignment)

    def owner(self, name: str) -> _Scope | None:
        """Return the innermost scope that binds a name. None if no scope does."""
        scope: _Scope | None = self
        while scope is not None and name not in scope.bindings:
            scope = scope.parent
        return scope


class _Reader:
    """Reader of a call as data, with the values of names in it.

    Args:
        tree: Tree of the file.
        file_name: Name of the file in messages.
        call: The call. Names in it may be arguments of the function around it.
        changes: Names of dicts and lists that other code changes → line of that code.

    Attributes:
        lines: 1-based line of each value, by its path.
        changed: Path of each dict or list in the data that other code changes, and a remark.
        assumed: Path and text of each value that is one of two, because only a run would show which of them is used.
    """

    def __init__(self, tree: ast.Module, file_name: str, call: ast.Call, changes: Mapping[str, int]) -> None:
        self.lines: dict[Place, int] = {}
        self.changed: list[tuple[Place, str]] = []
        self.assumed: list[tuple[Place, str]] = []
        self._file_name = file_name
        self._changes = changes
        self._count = 0  # of values so far
        self._work = constants.Work()
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        self._flags = dict(flags.defaults(calls))
        self._assignments = _assignments(tree)
        self._module_names = _module_names(tree)
        self._texts: dict[int, str] = {}  # id of an expression → its text
        self._scopes = _scopes(tree)
        self._mutations = _mutations(tree, self._scopes)
        self._rebound_names = _rebound_names(tree)
        self._augmented = naming.augmented(tree) - set(changes)  # a changed list is read, with a remark
        self._function: ast.FunctionDef | None = None  # the one around the call
        self._argument_values: dict[str, ast.expr] = {}
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and any(descendant is call for descendant in ast.walk(node)):
                self._function, self._argument_values = node, naming.argument_values(node, calls)
                for name, value in self._argument_values.items():
                    self._assignments.setdefault(name, [_Assignment(-1, node.lineno, value, node)])

    def data(self, node: ast.expr, field: Place, depth: int = 0) -> Any:
        """Return the value of an expression as data. One that only a run would show becomes a mapping with its text.

        Args:
            node: The expression.
            field: Path of the value in the data.
            depth: Number of expressions around it.

        Raises:
            SpecError: The data have too many values, or are nested too deeply.
        """
        self.lines.setdefault(field, node.lineno)
        self._count += 1
        if self._count > _MOST_NODES or depth > _MAX_DEPTH:
            reason = f"has more than {_MOST_NODES:,} values, or is nested more than {_MAX_DEPTH} levels deep"
            raise SpecError([Issue(("file",), reason, self._file_name, node.lineno)])
        if isinstance(node, ast.Name) and (value := self._assigned_value(node)) is not None:
            if node.id in self._changes:
                self.changed.append((field, f"{node.id} is changed in line {self._changes[node.id]}"))
            return self.data(value, field, depth + 1)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr in self._flags:  # args.x
            return self.data(self._flags[node.attr], field, depth + 1)
        if isinstance(node, ast.Constant) and isinstance(node.value, (str, int, float, type(None))):
            return node.value
        if isinstance(node, (ast.List, ast.Tuple)):
            return [self.data(element, (*field, index), depth + 1) for index, element in enumerate(node.elts)]
        if isinstance(node, ast.Dict):
            keys = [str(key.value) for key in node.keys if isinstance(key, ast.Constant)]
            if len(keys) < len(node.keys):  # `**unknown`, or a key that is computed
                return _unknown_value(node)
            pairs = zip(keys, node.values, strict=True)
            return {key: self.data(value, (*field, key), depth + 1) for key, value in pairs}
        if isinstance(node, ast.IfExp):
            is_true = self._truth(node.test, field, depth)
            if is_true is None:  # the value after `else` is used
                self.assumed.append((field, errors.shortened(ast.unparse(node.orelse), 60)))
            return self.data(node.body if is_true else node.orelse, field, depth + 1)
        if isinstance(node, ast.Call) and not constants.is_constant_call(node, self._module_names):
            return self._call_data(node, field, depth)
        if isinstance(node, (ast.Name, ast.Attribute)):
            return _unknown_value(node)
        try:
            evaluator = constants.Evaluator(
                lambda inner: self._constant(inner, field, depth), self._work, self._module_names
            )
            return evaluator.value(node)
        except constants.NotConstant:
            return _unknown_value(node)

    def _constant(self, node: ast.expr, field: Place, depth: int) -> Any:
        """Return the value of a name or another expression in a constant expression, without calls of unknown functions.

        Raises:
            constants.NotConstant: Only a run of the file would show it.
        """
        is_readable = isinstance(node, (ast.Name, ast.Attribute))
        if not is_readable or _is_drawn(value := self.data(node, field, depth + 1)):
            raise constants.NotConstant
        return value

    def _call_data(self, node: ast.Call, field: Place, depth: int) -> Any:
        """Return a call as a mapping with the function's name and the arguments, and one of `partial` with its text."""
        function = naming.last(node.func)
        if function in _BINDERS and node.args:
            trainable = self.data(node.args[0], (*field, "function"), depth + 1)
            return {CALL: function, "function": trainable, "text": self._bound_text(node)}
        body = node.args[0].body if node.args and isinstance(node.args[0], ast.Lambda) else None
        if function == "sample_from" and body and (domain := self._sampled_domain(body, field, depth)):
            return domain
        if any(word.arg is None for word in node.keywords):  # `**unknown`
            return _unknown_value(node)
        names = [*_ARGUMENTS.get(function, ()), *(f"argument {index + 1}" for index in range(len(node.args)))]
        arguments = [*zip(names, node.args, strict=False)]
        arguments += [(word.arg, word.value) for word in node.keywords if word.arg]
        return {CALL: function, **{key: self.data(value, (*field, key), depth + 1) for key, value in arguments}}

    def _sampled_domain(self, body: ast.expr, field: Place, depth: int) -> dict[str, Any] | None:
        """Return the domain of an expression with one random number, such as `2 ** np.random.randint(2, 9)`.

        It is in the form of a call of `tune.choice`, `uniform` or `loguniform`. None for any other expression.
        """
        calls = [node for node in ast.walk(body) if isinstance(node, ast.Call)]
        calls = [call for call in calls if _RANDOM.fullmatch(naming.dotted(call.func))]
        if len(calls) != 1:
            return None
        call, function = calls[0], naming.dotted(calls[0].func)
        bounds = [self.data(argument, field, depth + 1) for argument in call.args]
        if call.keywords:  # `high`, or the `size` of an array
            return None
        if function.endswith(".uniform"):
            return self._continuous_domain(body, call, bounds, field, depth)
        values = _drawn_values(function, bounds)
        if values is None:
            return None
        categories = []
        for value in values:  # the expression's value for each value of the random number
            evaluator = constants.Evaluator(
                lambda inner, value=value: value if inner is call else self._constant(inner, field, depth),  # type: ignore[misc]
                self._work,
                self._module_names,
            )
            try:
                categories.append(evaluator.value(body))
            except constants.NotConstant:
                return None
        return {CALL: "choice", "categories": categories}

    def _continuous_domain(
        self, body: ast.expr, call: ast.Call, bounds: Sequence[Any], field: Place, depth: int
    ) -> dict[str, Any] | None:
        """Return the domain of `uniform(low, high)`, or of a power of a constant base with it; None for other expressions.

        Args:
            body: The expression.
            call: Call of `uniform` in it.
            bounds: Values of the call's arguments.
            field: Path of the expression in the data.
            depth: Number of expressions around it.
        """
        if len(bounds) != 2 or not all(type(bound) in (int, float) for bound in bounds):
            return None
        low, high = bounds
        if body is call:
            return {CALL: "uniform", "lower": low, "upper": high}
        if not isinstance(body, ast.BinOp) or not isinstance(body.op, ast.Pow) or body.right is not call:
            return None
        base = self.data(body.left, field, depth + 1)
        if type(base) not in (int, float) or base <= 1 or max(abs(low), abs(high)) >= _MOST_DRAWN:
            return None
        return {CALL: "loguniform", "lower": base**low, "upper": base**high}

    def _bound_text(self, node: ast.Call) -> str:
        """Return the text of a call that binds arguments to a function, as one of `partial`; "" if that is not possible."""
        words = [(word.arg, self._text(word.value)) for word in node.keywords]
        texts = [*map(self._text, node.args), *(f"{name}={text}" if name else f"**{text}" for name, text in words if text)]
        return f"partial({', '.join(texts)})" if all(texts) and all(text for _, text in words) else ""

    def _text(self, node: ast.expr, depth: int = 0) -> str:
        """Return the text of an expression for `_TRAINABLE`, a module that imports the file as `script`.

        Names at the file's top level become attributes of `script`, such as `script.model`. Local names are replaced by the
        expressions that are assigned to them, and `args.x` by the default of `--x`. "" if that is not possible for each of
        them, or if the text is too long.
        """
        if id(node) not in self._texts:
            self._texts[id(node)] = ""  # of an expression that contains itself
            self._texts[id(node)] = self._new_text(node, depth)
        return self._texts[id(node)]

    def _new_text(self, node: ast.expr, depth: int) -> str:
        """Return the text of an expression, as `_text` does, without looking it up in the texts so far."""
        texts: dict[str, str] = {}  # name, or dotted name of a flag → text in its place
        scope_texts: dict[tuple[int, str], str] = {}  # id of the scope and name → text; a lambda has a scope of its own
        length = 0
        todo: list[ast.AST] = [node]
        while todo:
            part = todo.pop()
            if isinstance(part, ast.Attribute) and self._is_flag(part):
                name, text = naming.dotted(part), self._text(self._flags[part.attr], depth + 1)
            elif isinstance(part, ast.Name):
                name, key = part.id, (id(self._scopes[id(part)]), part.id)
                if key not in scope_texts:
                    scope_texts[key] = self._name_text(part, depth)
                text = scope_texts[key]
            else:
                todo += ast.iter_child_nodes(part)
                continue
            texts[name] = text
            length += len(text)
            if not text or length > _LONGEST_TEXT:
                return ""
        if depth > _MAX_DEPTH or isinstance(node, ast.Starred) or any(_parses_arguments(part) for part in ast.walk(node)):
            return ""
        expressions = {name: ast.parse(text, mode="eval").body for name, text in texts.items()}
        text = ast.unparse(_Substitution(expressions).visit(copy.deepcopy(node)))
        return text if len(text) <= _LONGEST_TEXT else ""

    def _name_text(self, name: ast.Name, depth: int) -> str:
        """Return the text in place of a name. "" if it is not clear which value it has."""
        scope = self._scopes[id(name)].owner(name.id)
        if scope is None:
            return name.id if name.id in dir(builtins) else ""
        is_global = isinstance(scope.node, ast.Module) and name.id in self._module_names
        if is_global and name.id not in self._rebound_names and isinstance(name.ctx, ast.Load):
            return f"{_SCRIPT}.{name.id}"
        value = None if depth > _MAX_DEPTH else self._local_value(name)
        return self._text(value, depth + 1) if value is not None and name.id not in self._changes else ""

    def _local_value(self, name: ast.Name) -> ast.expr | None:
        """Return the expression that is assigned to a local name; None if other code may change its value.

        It is the only one, or the last one before the name if all of them are in the same block of the name's function. A
        trial evaluates it, so unlike `_assigned_value` this obeys Python's scopes, and no code may change the object.
        """
        scope = self._scopes[id(name)].owner(name.id)
        if scope is None or isinstance(scope.node, ast.ClassDef):
            return None
        bindings = scope.bindings[name.id]
        assignments = [binding for binding in bindings if binding is not None]
        value = None
        if scope.node is self._function and bindings == [None]:
            value = self._argument_values.get(name.id)  # if the name is one of an argument
        elif len(assignments) < len(bindings):  # other code, such as a loop, binds it
            value = None
        elif len(assignments) == 1:
            value = assignments[0].value
        elif len({assignment.block for assignment in assignments}) == 1 and scope is self._scopes[id(name)]:
            earlier = [assignment for assignment in assignments if assignment.line < name.lineno]
            last = max(earlier, key=lambda assignment: (assignment.line, assignment.target.col_offset), default=None)
            value = last.value if last else None
        if value is None:
            return None
        mutations = self._mutations.get((id(scope), name.id), set())
        is_dict = isinstance(value, ast.Dict)  # whose changed items are folded, or in self._changes
        if "attribute" in mutations or ("item" in mutations and not is_dict):
            return None
        is_created_by_call = any(isinstance(descendant, ast.Call) for descendant in ast.walk(value))
        return None if "method" in mutations and is_created_by_call else value

    def _is_flag(self, node: ast.Attribute) -> bool:
        """Return whether an expression is `args.x`, with parsed arguments and a flag that has a default."""
        value: ast.expr | None = node.value
        for _ in range(_MAX_DEPTH):
            if not isinstance(value, ast.Name):
                break
            value = self._local_value(value)
        return node.attr in self._flags and isinstance(node.value, ast.Name) and _is_namespace(value)

    def _assigned_value(self, name: ast.Name) -> ast.expr | None:
        """Return the expression that is assigned to a name; None if there is none, or if it is not clear which one is used.

        It is the only one in the whole file, or the last one before the name if all of them are in the same block. The user
        sees the value in job.yaml, so functions with local names of the same name are not distinguished.
        """
        assignments = self._assignments.get(name.id, []) if name.id not in self._augmented else []
        if len(assignments) == 1:
            return assignments[0].value
        earlier_values = [assignment.value for assignment in assignments if assignment.line < name.lineno]
        is_one_block = len({assignment.block for assignment in assignments}) == 1
        return earlier_values[-1] if earlier_values and is_one_block else None

    def _truth(self, test: ast.expr, field: Place, depth: int) -> bool | None:
        """Return whether the test of a conditional expression is true; None if only a run would show it."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            inner = self._truth(test.operand, field, depth)
            return None if inner is None else not inner
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], (ast.Eq, ast.NotEq)):
            first, second = (self.data(node, field, depth + 1) for node in (test.left, *test.comparators))
            is_known = not isinstance(first, (dict, list)) and not isinstance(second, (dict, list))
            return (first == second) == isinstance(test.ops[0], ast.Eq) if is_known else None
        value = self.data(test, field, depth + 1)
        return None if isinstance(value, dict) else bool(value)


class _Substitution(ast.NodeTransformer):
    """Replaces names and dotted names in an expression by other expressions.

    Args:
        expressions: Name → the expression in its place.
    """

    def __init__(self, expressions: Mapping[str, ast.expr]) -> None:
        self._expressions = expressions

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Return the expression in place of a name."""
        return self._expressions.get(node.id, node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """Return the expression in place of a dotted name, such as `args.x`, or of the names in another attribute."""
        return self._expressions.get(naming.dotted(node)) or self.generic_visit(node)


def _drawn_values(function: str, bounds: Sequence[Any]) -> Sequence[Any] | None:
    """Return the values among which `choice` or `randint` draws; None if they cannot be read, or are too many.

    Args:
        function: Dotted name of the function, such as `np.random.randint`.
        bounds: Values of its arguments.
    """
    if function.endswith(".choice"):
        return bounds[0] if len(bounds) == 1 and isinstance(bounds[0], list) else None
    if len(bounds) not in (1, 2) or not all(type(bound) is int for bound in bounds):
        return None
    low, high = bounds if len(bounds) == 2 else (0, bounds[0])
    if function.startswith("random."):  # the standard library includes the upper bound, and NumPy does not
        high += 1
    return range(low, high) if low < high <= low + _MOST_DRAWN else None


def _parses_arguments(node: ast.AST) -> bool:
    """Return whether a node is a method that parses the command line, which is another one in a trial."""
    return isinstance(node, ast.Attribute) and node.attr in ("parse_args", "parse_known_args")


def _is_namespace(node: ast.expr | None) -> bool:
    """Return whether an expression is a call of `parse_args`."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "parse_args"


def _scopes(tree: ast.Module) -> dict[int, _Scope]:
    """Return the scope in which each name of a file is used, by the id of the name's node."""
    values: dict[int, _Assignment] = {}
    for assignments in _assignments(tree).values():
        values |= {id(assignment.target): assignment for assignment in assignments}
    scopes: dict[int, _Scope] = {}
    todo: list[tuple[ast.AST, _Scope]] = [(tree, _Scope(tree, None))]
    while todo:
        node, scope = todo.pop()
        children = [*ast.iter_child_nodes(node)]
        if isinstance(node, ast.Name):
            scopes[id(node)] = scope
            if not isinstance(node.ctx, ast.Load):
                scope.bind(node.id, values.get(id(node)))
        elif isinstance(node, ast.arg):
            scope.bind(node.arg)
        elif isinstance(node, ast.alias):
            scope.bind((node.asname or node.name).partition(".")[0])
        elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)):
            scope.bind(node.name)
        elif isinstance(node, ast.MatchMapping):
            scope.bind(node.rest)
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            outer: _Scope | None = scope
            while outer is not None:  # in doubt, a name of each scope around it
                for name in node.names:
                    outer.bind(name)
                outer = outer.parent
        elif isinstance(node, (*_DEFINITIONS, ast.Lambda)):
            scope.bind(getattr(node, "name", None))
            if not isinstance(node, ast.ClassDef):
                children.remove(node.args)
                children += ast.iter_child_nodes(node.args)
            body = set(node.body) if isinstance(node.body, list) else {node.body}
            inner_scope = _Scope(node, scope)
            todo += [(child, inner_scope) for child in children if child in body or isinstance(child, ast.arg)]
            # The others are evaluated outside, such as defaults and decorators.
            children = [child for child in children if child not in body and not isinstance(child, ast.arg)]
        todo += [(child, scope) for child in children]
    return scopes


def _mutations(tree: ast.Module, scopes: Mapping[int, _Scope]) -> dict[tuple[int, str], set[str]]:
    """Return how code of a file may change the objects of names.

    Args:
        tree: Tree of the file.
        scopes: Scope of each name in it, by the id of the name's node.

    Returns:
        Id of the scope that binds a name, and the name → "attribute" if code sets an attribute of its object, "item" if it
        sets an item, "method" if it calls a method.
    """
    mutations: dict[tuple[int, str], set[str]] = {}
    for node in ast.walk(tree):
        target: ast.expr
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            mutation, target = "method", node.func
        elif isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
            mutation, target = "attribute", node
        elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            mutation, target = "item", node
        else:
            continue
        while isinstance(target, (ast.Attribute, ast.Subscript)):
            target = target.value
        if isinstance(target, ast.Name) and (scope := scopes[id(target)].owner(target.id)):
            mutations.setdefault((id(scope), target.id), set()).add(mutation)
    return mutations


def _rebound_names(tree: ast.Module) -> set[str]:
    """Return the names at the top level of a file that may have another value in a trial, which only imports the file."""
    nodes = [node for statement in tree.body if arguments.is_main(statement) for node in ast.walk(statement)]
    names = {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    return names.union(*(node.names for node in ast.walk(tree) if isinstance(node, ast.Global)))


def _module_names(tree: ast.Module) -> set[str]:
    """Return the names that a file defines at its top level."""
    return {name for node in tree.body for name in _defined_names(node)}


def _assignments(tree: ast.Module) -> dict[str, list[_Assignment]]:
    """Return the assignments in a file by the name to which they assign."""
    assignments: dict[str, list[_Assignment]] = {}
    blocks = [getattr(node, attribute, None) for node in ast.walk(tree) for attribute in ("body", "orelse", "finalbody")]
    for number, block in enumerate(blocks):
        for node in block if isinstance(block, list) else ():
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                assignment = _Assignment(number, node.lineno, node.value, node.targets[0])
                assignments.setdefault(node.targets[0].id, []).append(assignment)
    return assignments


def _unknown_value(node: ast.expr) -> dict[str, Any]:
    """Return the mapping for an expression whose value only a run would show: a call without a name, and its text."""
    return {CALL: "", "text": ast.unparse(node)[:200]}


def _parameters(
    source: Source,
    field: Place,
    prefix: tuple[str, ...],
    space: dict[str, Any],
    params: dict[str, Any],
) -> dict[str, Place]:
    """Add the values of a trial's configuration to `space` or to `params`.

    Args:
        source: The file.
        field: Path of the configuration, or of a dict in it.
        prefix: Keys of that dict.
        space: Parameters to search, by name.
        params: Fixed parameters, by name.

    Returns:
        Paths of the parameters with a grid search, by name.
    """
    grids: dict[str, Place] = {}
    if not isinstance(source.look(*field), dict) or CALL in source.keys(*field):
        source.refuse("is not a dict that can be read: write out its keys and values in the file", *field)
        return {}
    for key in source.keys(*field):
        key_field, path = (*field, key), (*prefix, key)
        value = source.look(*key_field)
        if isinstance(value, dict) and CALL not in value:
            grids |= _parameters(source, key_field, path, space, params)
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
            if value[CALL] == "grid_search":
                grids[name] = key_field
    return grids


def _subscripts(keys: Sequence[str]) -> str:
    """Return the expression that reads a value of the configuration, such as `config['opt']['lr']`, for messages."""
    return "config" + "".join(f"[{key!r}]" for key in keys)


def _is_drawn(value: Any) -> bool:
    """Return whether a value is a call, such as `tune.uniform(0, 1)`, or contains one."""
    if isinstance(value, dict):
        return CALL in value or any(map(_is_drawn, value.values()))
    return isinstance(value, list) and any(map(_is_drawn, value))


def _domain(source: Source, field: Place) -> dict[str, Any] | None:
    """Return the parameter that a function of `tune` draws. None after a note or an issue."""
    function = source.text(*field, CALL)
    if function in ("choice", "grid_search"):
        key = "categories" if function == "choice" else "values"
        categories = source.look(*field, key)
        if not isinstance(categories, list) or _is_drawn(categories):
            source.refuse("needs a list of values that can be read: write them out in the file", *field)
            return None
        return search.categorical(source.take(*field, key))
    if function == "sample_from":
        reason = (
            "a function of the other values cannot be read; compute it in the trainable, or write space: module:function"
        )
        source.skip(reason, *field)
        return None
    is_integer = function.endswith("randint")
    if function.removeprefix("q") not in ("uniform", "loguniform", "randint", "lograndint", "randn"):
        source.skip(f"{_UNREADABLE}; write the parameter into job.yaml", *field)
        return None
    step = source.number(*field, "q") if function.startswith("q") else None
    if function.endswith("randn"):
        mean, deviation = source.number(*field, "mean"), source.number(*field, "sd")
        if step is not None:
            source.note(f"becomes a range of {search.SIGMAS} standard deviations on both sides, drawn uniformly", *field)
        return search.normal(mean or 0.0, 1.0 if deviation is None else deviation, step=step)
    lower, upper = source.number(*field, "lower"), source.number(*field, "upper")
    if lower is None or upper is None:
        source.refuse("needs two bounds that can be read", *field)
        return None
    log = "log" in function
    source.take(*field, "base")  # the base of the logarithm has no effect on the values that are drawn
    excludes_upper = is_integer and (step is None or step == 1)  # in Ray, a larger step includes the upper bound
    low, high = lower, upper - 1 if excludes_upper else upper
    if step is not None and log:
        source.note("a logarithmic range has no step here, so it is left out", *field)
    elif step is not None:
        exact_range = low, high
        low, high = search.multiples(low, high, step, inward=True)
        if (low, high) != exact_range:
            source.note(f"values are multiples of {step:g}, so the range is {low:g} to {high:g}", *field)
    return search.span("int" if is_integer else "float", low, high, log=log, step=step)


def _other_metrics(tree: ast.Module) -> tuple[str, str] | None:
    """Return the metric and the mode that a file has outside of its search; None without one.

    They are those by which it takes the best result, as `get_best_trial("loss", "min")` does, or else the best objective
    among the metrics that it reports.
    """
    reported: list[Any] = []  # names of metrics, and other keys
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name = call.func.attr if isinstance(call.func, ast.Attribute) else naming.last(call.func)
        if name.startswith("get_best_"):
            by_name = naming.arguments_by_name(call, "metric", "mode")
            metric, mode = (getattr(by_name.get(key), "value", None) for key in ("metric", "mode"))
            if isinstance(metric, str) and mode in ("min", "max"):
                return metric, mode
        elif name == "report":
            by_name = naming.arguments_by_name(call, "metrics")
            metrics = by_name.get("metrics")
            if isinstance(metrics, ast.Dict) and metrics.keys:  # report({"loss": loss})
                reported += [getattr(key, "value", None) for key in metrics.keys]
            else:  # report(loss=loss)
                reported += [name for name in by_name if name != "metrics"]
    objective = guess.objective({name: 0.0 for name in reported if isinstance(name, str)})
    return (objective["metric"], objective["direction"][:3]) if objective else None  # "minimize" is "min" in Ray


def _objectives(source: Source, settings: Place, other: tuple[str, str] | None) -> list[dict[str, str]]:
    """Return the objectives. Metric and mode may be settings of the search, its scheduler or its searcher.

    Without a metric, add a note; the objective is then that of other parts of the file, or a placeholder.

    Args:
        source: The file.
        settings: Path of the settings of the search.
        other: Metric and mode in other parts of the file, or None.
    """
    searcher = (*settings, "search_alg")
    fields = (settings, (*settings, "scheduler"), searcher, (*searcher, "searcher"))  # the last one in a ConcurrencyLimiter
    metrics = _first_texts(source, [(*field, "metric") for field in fields])
    modes = _first_texts(source, [(*field, "mode") for field in fields]) or ["min"]
    if not metrics and other is not None:
        metrics, modes = [other[0]], [other[1]]
        remark = f"names no metric: {metrics[0]}, {modes[0]}, is that of other parts of the file; check both"
        source.note(remark, *(settings or (CALL,)))
    elif not metrics:
        source.note("names no metric: write the objective into job.yaml", *(settings or (CALL,)))
        metrics = ["loss"]
    if len(modes) != len(metrics):
        modes = modes[:1] * len(metrics)
    return [
        {"metric": metric, "direction": "maximize" if mode == "max" else "minimize"}
        for metric, mode in zip(metrics, modes, strict=True)
    ]


def _first_texts(source: Source, fields: Sequence[Place]) -> list[str]:
    """Read the text, or the list of texts, at each of several paths, and return the texts at the first path that has any."""
    texts: list[str] = []
    for field in fields:
        field_texts = source.texts(*field) if isinstance(source.look(*field), list) else [source.text(*field)]
        texts = texts or [text for text in field_texts if text]
    return texts


def _sampler(source: Source, field: Place) -> tuple[dict[str, Any], int | None, str]:
    """Return the sampler of a searcher, the number of trials at the same time, and the name of a function with the space.

    The number is None if the searcher does not limit it. The name is "" if the searcher gets no function that defines the
    space.
    """
    parallel = None
    class_name = source.text(*field, CALL) if isinstance(source.look(*field), dict) else source.text(*field)
    if class_name == "ConcurrencyLimiter":
        parallel = source.integer(*field, "max_concurrent")
        field = (*field, "searcher")
        class_name = source.text(*field, CALL)
    sampler = search.sampler(class_name) if class_name else {"name": "random"}
    if sampler is None:
        source.note(f"{class_name} has no counterpart; tpe is used", *field)
    space = source.look(*field, "space")
    space_function = space.get("text", "") if isinstance(space, dict) else ""
    if space_function.isidentifier():
        source.take(*field, "space")
    return sampler or {"name": "tpe"}, parallel, space_function


def _pruner(source: Source, field: Place) -> Any:
    """Return the pruner for a scheduler. None without a scheduler that ends trials, or if it has no counterpart."""
    if not isinstance(source.look(*field), dict):
        source.skip(_UNREADABLE, *field)
        return None
    class_name = source.text(*field, CALL)
    if class_name == "FIFOScheduler":
        return None
    if class_name not in _PRUNERS:
        advice = "population based training is not a pruner here; write population into job.yaml"
        reason = advice if class_name.startswith(("Population", "PB")) else "has no counterpart"
        source.note(f"{class_name}: {reason}; trials run to their end", *field)
        return None
    name, options = _PRUNERS[class_name]
    pruner: dict[str, Any] = {"name": name}
    if name == "successive_halving":
        pruner |= {"min_resource": 1, "reduction_factor": 4}  # Ray's defaults
    progress_unit = _progress_unit(source, field)
    for key, option in options.items():
        if key in ("grace_period", "max_t") and progress_unit != _ITERATIONS:
            is_time = progress_unit.startswith("time_") and progress_unit.endswith("_s")  # such as time_total_s
            unit = "seconds" if is_time else progress_unit
            source.skip(
                f"is in {unit} there, and steps are counted here: write {option} of the pruner into job.yaml", *field, key
            )
        elif (value := source.integer(*field, key)) is not None:
            pruner[option] = value
    return search.short_form(pruner)


def _progress_unit(source: Source, scheduler: Place) -> str:
    """Return the unit in which a scheduler counts progress."""
    is_median = source.look(*scheduler, CALL) == "MedianStoppingRule"
    return source.text(*scheduler, "time_attr") or ("time_total_s" if is_median else _ITERATIONS)


def _stop_rules(source: Source, scheduler: Place, field: Place) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the fields `stop` and `budget` of the job, with the rules that end a trial.

    Args:
        source: The file.
        scheduler: Path of the scheduler, which also ends a trial: at `max_t`.
        field: Path of the dict of Ray's rules: metric → value at which a trial ends.
    """
    rules: list[dict[str, Any]] = []
    step_limits: list[int] = []
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
                step_limits.append(max(0, math.ceil(bound)))
            elif metric == "time_total_s":
                budget["timeout"] = bound
                source.note("ends a trial as complete there, and as failed here: see `budget.timeout`", *field, metric)
            else:
                rules.append({"metric": metric, "above": bound})
    elif limits is not None:
        source.skip(f"{_UNREADABLE}: a trial ends when its code returns, or after {_LONGEST_TRIAL}", *field)
        budget["timeout"] = _LONGEST_TRIAL
    default_max_t = _DEFAULT_MAX_T.get(str(source.look(*scheduler, CALL)))
    if default_max_t and _progress_unit(source, scheduler) == _ITERATIONS:
        step_limits.append(source.integer(*scheduler, "max_t") or default_max_t)
    if step_limits:
        rules.append({"step": min(step_limits)})
    return rules, budget


def _is_trainer(value: Any) -> bool:
    """Return whether a trainable is a trainer of Ray Train with a function, such as `TorchTrainer(train_loop, …)`."""
    return isinstance(value, dict) and str(value.get(CALL)).endswith("Trainer") and "train_loop_per_worker" in value


def _registered(tree: ast.Module) -> dict[str, str]:
    """Return the trainables that a file registers under a name, as `tune.register_trainable("fit", fit)` does."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and len(node.args) == 2]
    calls = [call for call in calls if naming.last(call.func) == "register_trainable"]
    return {str(getattr(call.args[0], "value", "")): ast.unparse(call.args[1]) for call in calls}


def _trial_resources(source: Source, field: Place) -> tuple[dict[str, Any], Place]:
    """Return a trial's resources, and the path of the trainable without the calls of `with_resources` around it.

    Args:
        source: The file.
        field: Path of the trainable, maybe in such calls.
    """
    resources = _resources(source, ("resources_per_trial",))
    while isinstance(source.look(*field), dict) and source.look(*field, CALL) == "with_resources":
        source.take(*field, CALL)
        resources |= _resources(source, (*field, "resources"))
        field = (*field, "trainable")
    return resources, field


def _trainable(source: Source, field: Place, registered: Mapping[str, str]) -> tuple[str, str]:
    """Return the name of the function that a trial calls, and the text of a `partial` of it; "" if nothing is bound to it.

    Both are "", with a note, if the file does not name a function.

    Args:
        source: The file.
        field: Path of the trainable.
        registered: Functions that the file registers, by the names that it gives them.
    """
    value = source.take(*field)
    if _is_trainer(value):
        source.note(
            "its function runs in one process: of ray.train, it may call report, get_checkpoint and get_context", *field
        )
        value = value["train_loop_per_worker"]
    text = value.get("text", "") if isinstance(value, dict) else registered.get(str(value), "")
    partial_text = ""
    if isinstance(value, dict) and value.get(CALL) in _BINDERS:
        partial_text = text
        function = value.get("function")
        text = function.get("text", "") if isinstance(function, dict) else ""
        if not partial_text and text.isidentifier():
            definition = f"def NAME(config): return {text}(config, …)"
            source.refuse(
                f"binds values that only running the file would show: write `{definition}` at its top level, and pass NAME",
                *field,
            )
    if not text.isidentifier():
        description = f"{errors.shortened(text, 60)} is" if text else "the trainable is"
        source.note(
            f"{description} not a function of this file by its name: define one, and name it in the entrypoint", *field
        )
        return "", ""
    return text, partial_text


def _resources(source: Source, field: Place) -> dict[str, Any]:
    """Return the resources of a trial, from Ray's dict at a path; {} if there is none that can be read."""
    if source.look(*field) is None:
        return {}
    if not isinstance(source.look(*field), dict) or source.look(*field, CALL):
        source.skip(f"{_UNREADABLE}; write `resources` into job.yaml", *field)
        return {}
    resources: dict[str, Any] = {}
    for key, option in (("cpu", "cpus"), ("CPU", "cpus"), ("gpu", "gpus"), ("GPU", "gpus")):
        amount = source.number(*field, key)
        if amount and option == "gpus" and amount > 1 and amount != int(amount):
            source.note(f"{amount:g} GPUs become {math.ceil(amount)}", *field, key)
            amount = math.ceil(amount)
        if amount:
            resources[option] = int(amount) if amount == int(amount) else amount
    return resources


def _defined_names(node: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement defines."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        yield node.name
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from (alias.asname or alias.name for alias in node.names)
    elif isinstance(node, ast.Assign):
        yield from (target.id for target in node.targets if isinstance(target, ast.Name))
