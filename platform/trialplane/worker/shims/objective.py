"""Run an objective of Optuna as a trial's function, with an argument that behaves like `optuna.Trial`.

Optuna itself runs in the controller, from which each new parameter is requested; repeated requests are answered here.
Optuna's errors and warnings are raised here with the same text. Optuna may not be installed for the job, and is
imported only for its own values.
"""

from __future__ import annotations

import datetime
import importlib
import json
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from trialplane.wire import messages, records
from trialplane.worker import context

Objective = Callable[..., Any]  # called with a Trial
_STACK_LEVEL = 3  # of a warning in `_suggest`: the line of the objective, which calls `suggest_…`, which calls `_suggest`


class Controller(Protocol):
    """The part of the controller that an objective's trial needs. Reports go through the trial's context instead.

    Attributes:
        attributes: Attributes that the objective has set, for the trial's outcome.
    """

    attributes: dict[str, Any]

    def suggest(self, request: messages.Suggest) -> messages.Suggested:
        """Request the value of a parameter, and return the answer."""


class Study:
    """The study of a trial, of which a trial's process has the directions alone, as "minimize" or "maximize"."""

    def __init__(self, directions: Sequence[str]) -> None:
        self._names = tuple(directions)

    @property
    def directions(self) -> list[Any]:
        """The directions as Optuna's own values, for code that has imported Optuna."""
        study = importlib.import_module("optuna.study")
        return [study.StudyDirection[name.upper()] for name in self._names]

    @property
    def direction(self) -> Any:
        """The direction of the only objective.

        Raises:
            RuntimeError: There are several objectives.
        """
        if len(self._names) > 1:
            raise RuntimeError("a study with several objectives has no direction; read study.directions")
        return self.directions[0]

    def __getattr__(self, name: str) -> Any:
        """Raise an error that says where the study is."""
        raise AttributeError(
            f"trial.study.{name} does not exist: the study is in the controller, and only its directions are here"
        )


class Trial:
    """One trial, with the interface of `optuna.Trial`.

    Attributes:
        number: Number of the trial, from 0. A retry has the same number.
        datetime_start: Start of this attempt, in local time.
        study: Directions of the study, which callbacks of libraries compare with their own metric's.

    Args:
        ctx: Context of the trial, for reports.
        metrics: Names of the job's objectives, followed by those of its constraints.
        directions: Directions of the objectives, "minimize" or "maximize".
        controller: Controller, which draws the parameters.
    """

    def __init__(
        self, ctx: context.Context, metrics: Sequence[str], directions: Sequence[str], controller: Controller
    ) -> None:
        self.number = ctx.trial
        self.datetime_start = datetime.datetime.now()
        self._ctx = ctx
        self.study = Study(directions)
        self._objective_names = tuple(metrics[: len(directions)])
        self._constraint_names = tuple(metrics[len(directions) :])
        self._controller = controller
        self._requests: dict[str, messages.Suggest] = {}  # first request for each parameter, by name
        self._stored_values: dict[str, float] = {}  # its answer, as Optuna stores it: a number, or the index of a choice
        self._params: dict[str, Any] = {}  # values of the parameters, by name
        self._is_pruned = False
        self._reported_steps: set[int] = set()
        self._constraints: dict[str, float] = {}

    def suggest_float(self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False) -> float:
        """Return a number from `low` to `high`, both included.

        Raises:
            ValueError: Optuna refuses the range, or `name` is another kind of parameter already.
        """
        low, high = _finite_number(name, low), _finite_number(name, high)
        step = None if step is None else _finite_number(name, step)
        value = float(self._suggest(messages.Suggest(name, kind="float", low=low, high=high, step=step, log=bool(log))))
        return float(self._record(name, value, value))

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> int:
        """Return a whole number from `low` to `high`, both included.

        Raises:
            ValueError: As in `suggest_float`.
        """
        low, high, step = int(low), int(high), int(step)
        value = int(self._suggest(messages.Suggest(name, kind="int", low=low, high=high, step=step, log=bool(log))))
        return int(self._record(name, value, value))

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        """Return one of `choices`.

        Raises:
            TypeError: A choice has no JSON form. Choose among names, and look the objects up.
            ValueError: As in `suggest_float`.
        """
        plain_choices = tuple(_json_value(name, choice) for choice in choices)
        index = int(self._suggest(messages.Suggest(name, "categorical", choices=plain_choices)))
        return self._record(name, choices[index], plain_choices[index])

    def suggest_uniform(self, name: str, low: float, high: float) -> float:
        """Deprecated in Optuna: `suggest_float(name, low, high)`."""
        return self.suggest_float(name, low, high)

    def suggest_loguniform(self, name: str, low: float, high: float) -> float:
        """Deprecated in Optuna: `suggest_float(name, low, high, log=True)`."""
        return self.suggest_float(name, low, high, log=True)

    def suggest_discrete_uniform(self, name: str, low: float, high: float, q: float) -> float:
        """Deprecated in Optuna: `suggest_float(name, low, high, step=q)`."""
        return self.suggest_float(name, low, high, step=q)

    def report(self, value: float, step: int) -> None:
        """Report the objective at a step. If a step is reported twice, the first value counts.

        Raises:
            NotImplementedError: There are several objectives, for which Optuna has no reports either.
            TypeError: The value is not a number, or the step is not a whole number.
            ValueError: The step is negative or too large.
        """
        if len(self._objective_names) > 1:
            raise NotImplementedError("Trial.report is not supported for multi-objective optimization.")
        try:
            number, whole_step = float(value), int(step)
        except (TypeError, ValueError):
            text = f"report({value!r}, {step!r}): the value must be a number, and the step a whole one"
            raise TypeError(text) from None
        if not 0 <= whole_step <= records.MAX_STEP:
            raise ValueError(f"report(…, step={whole_step}): steps go from 0 to {records.MAX_STEP}")
        if whole_step in self._reported_steps:
            warnings.warn(f"step {whole_step} is reported already; this value is ignored", stacklevel=2)
            return
        self._reported_steps.add(whole_step)
        self._is_pruned = False
        try:
            self._ctx.note("", whole_step, {self._objective_names[0]: number}, waits=True)
        except context.Pruned:  # `should_prune` returns it, and the objective raises Optuna's own exception
            self._is_pruned = True

    def should_prune(self) -> bool:
        """Return whether the pruner ends this trial: then raise `optuna.TrialPruned`."""
        if len(self._objective_names) > 1:
            raise NotImplementedError("Trial.should_prune is not supported for multi-objective optimization.")
        return self._is_pruned

    def set_user_attr(self, key: str, value: Any) -> None:
        """Keep a JSON value with the trial's result.

        Raises:
            TypeError: The value has no JSON form.
        """
        self._controller.attributes[str(key)] = _json_value(key, value)

    def set_constraint(self, key: str, value: float) -> None:
        """Set a constraint. The trial is feasible if all constraints are within the bounds of the job.

        Raises:
            TypeError: The value is not a number.
            ValueError: It is NaN, or the job has no such constraint.
        """
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise TypeError(f"set_constraint({key!r}, {value!r}): the value must be a number") from None
        if math.isnan(number):
            raise ValueError(f"set_constraint({key!r}, {value!r}): NaN is neither feasible nor infeasible")
        if key not in self._constraint_names:
            remedy = f"write constraints: [{{metric: {key}, max: 0}}] into job.yaml"
            raise ValueError(f"set_constraint({key!r}, …): the job has no such constraint; {remedy}")
        if key in self._constraints:
            warnings.warn(f"the constraint {key} is set already; this value is ignored", stacklevel=2)
            return
        self._constraints[key] = number

    @property
    def params(self) -> dict[str, Any]:
        """The parameters that this attempt has requested, by name."""
        return dict(self._params)

    @property
    def distributions(self) -> dict[str, Any]:
        """Optuna's distributions of these parameters; needs Optuna in the trial's environment."""
        # Imported only here, because only an objective that reads this property needs Optuna.
        classes = importlib.import_module("optuna.distributions")
        distributions = {}
        for name, request in self._requests.items():
            if request.kind == "categorical":
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # Optuna warns that its databases do not store lists
                    distributions[name] = classes.CategoricalDistribution(request.choices)
            elif request.kind == "int":
                distributions[name] = classes.IntDistribution(request.low, request.high, log=request.log, step=request.step)
            else:
                distributions[name] = classes.FloatDistribution(
                    request.low, request.high, log=request.log, step=request.step
                )
        return distributions

    @property
    def user_attrs(self) -> dict[str, Any]:
        """The attributes that `set_user_attr` has set in this attempt."""
        return dict(self._controller.attributes)

    @property
    def constraints(self) -> dict[str, float]:
        """The constraints that `set_constraint` has set in this attempt."""
        return dict(self._constraints)

    def __getattr__(self, name: str) -> Any:
        """Raise an error that lists the attributes of a trial here, which are fewer than Optuna's."""
        raise AttributeError(
            f"trial.{name} does not exist: the study is in the controller. A trial's process has suggest_float, "
            "suggest_int, suggest_categorical, report, should_prune, set_user_attr, set_constraint, number, params, "
            "distributions, user_attrs, constraints, datetime_start, study.direction and study.directions"
        )

    def _result(self, returned: Any) -> context.Result:
        """Return the value that the objective returned; with the constraints that it has set, all of them by name."""
        if not self._constraints:
            return returned  # type: ignore[no-any-return]  # `outcomes.outcome_of_result` checks it
        values = returned if isinstance(returned, (list, tuple)) else [returned]
        return {**dict(zip(self._objective_names, values, strict=False)), **self._constraints}

    def _suggest(self, request: messages.Suggest) -> float:
        """Return the value of a parameter as Optuna stores it: a number, or the index of a choice.

        A request that equals the first one for this parameter is answered without the controller. A different request goes
        to the controller, which may warn or refuse it; then the first value is returned again, as Optuna does.

        Raises:
            TypeError: The name is not a text.
            ValueError: Optuna refuses the request.
        """
        name = request.name
        if not isinstance(name, str):
            raise TypeError(f"the name of a parameter is a text, not {name!r}")
        with self._ctx.lock_reports():
            if self._requests.get(name) != request:
                answer = self._controller.suggest(request)
                for text in answer.warnings:
                    warnings.warn(text, stacklevel=_STACK_LEVEL)
                if answer.value is None:
                    raise ValueError(answer.error)
                self._requests.setdefault(name, request)
                self._stored_values.setdefault(name, answer.value)
            return self._stored_values[name]

    def _record(self, name: str, value: Any, plain: Any) -> Any:
        """Record the value of a parameter and return it. If the parameter already has a value, return that one.

        Args:
            name: Name of the parameter.
            value: Value for the objective, which may be any object among the choices.
            plain: The same as a JSON value, for code that reads the parameters of the context.
        """
        self._ctx.add_suggestion(name, plain)
        return self._params.setdefault(name, value)


def trial_function(
    objective: Objective, metrics: Sequence[str], directions: Sequence[str], controller: Controller
) -> context.JobFunction:
    """Return a function of the context that calls an objective; the arguments are those of `Trial`."""

    def run(ctx: context.Context) -> context.Result:
        trial = Trial(ctx, metrics, directions, controller)
        return trial._result(objective(trial))

    return run


def _finite_number(name: str, value: float) -> float:
    """Return a bound or step of a parameter as a number.

    Raises:
        ValueError: It is not finite.
    """
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{name}: {value!r} is not a bound or step; they are finite numbers")
    return number


def _json_value(name: str, value: Any) -> Any:
    """Return a value as a JSON value; scalars of numpy become numbers.

    Raises:
        TypeError: The value has no JSON form.
    """
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        value = value.item()
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        remedy = "give its name, and look the object up in the objective"
        raise TypeError(f"{name}: {value!r:.80} has no JSON form ({error}); {remedy}") from None
