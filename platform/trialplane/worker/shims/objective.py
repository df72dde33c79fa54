"""An objective of Optuna as a trial's function: its argument behaves as `optuna.Trial`, and Optuna runs in the controller.

Each parameter that is new in this trial is a request to the controller; repeated ones are answered here. Optuna's errors and
warnings are raised here with the same text. Imports no Optuna, which a job may not have.
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

Objective = Callable[..., Any]  # of a Trial
_HERE = 3  # frames from `warnings.warn` in `_suggest` to the objective's own line


class Controller(Protocol):
    """The controller, seen from a trial's process; reports go through the trial's context.

    Attributes:
        attributes: set by the objective, for the trial's outcome.
    """

    attributes: dict[str, Any]

    def suggest(self, request: messages.Suggest) -> messages.Suggested:
        """Request the value of a parameter."""


class Trial:
    """One trial, with the interface of `optuna.Trial`.

    Attributes:
        number: of the trial, from 0; a retry has the same.
        datetime_start: when this attempt started, in local time.

    Args:
        ctx: of the trial; receives the reports.
        metrics: the job's objectives, and after them its constraints.
        objectives: how many objectives there are.
        controller: draws the parameters.
    """

    def __init__(self, ctx: context.Context, metrics: Sequence[str], objectives: int, controller: Controller) -> None:
        self.number = ctx.trial
        self.datetime_start = datetime.datetime.now()
        self._ctx = ctx
        self._objectives = tuple(metrics[:objectives])
        self._constrained = tuple(metrics[objectives:])
        self._controller = controller
        self._requests: dict[str, messages.Suggest] = {}
        self._inside: dict[str, float] = {}
        self._params: dict[str, Any] = {}
        self._prune = False
        self._reported: set[int] = set()
        self._constraints: dict[str, float] = {}

    def suggest_float(self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False) -> float:
        """A number from `low` to `high`, both included.

        Raises:
            ValueError: Optuna refuses the range, or `name` is another kind of parameter already.
        """
        low, high = _finite(name, low), _finite(name, high)
        step = None if step is None else _finite(name, step)
        value = float(self._suggest(messages.Suggest(name, "float", low, high, step, bool(log))))
        return float(self._keep(name, value, value))

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> int:
        """A whole number from `low` to `high`, both included. Raises as `suggest_float`."""
        low, high, step = int(low), int(high), int(step)
        value = int(self._suggest(messages.Suggest(name, "int", low, high, step, bool(log))))
        return int(self._keep(name, value, value))

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        """One of `choices`.

        Raises:
            TypeError: a choice has no JSON form: choose among names, and look the objects up.
            ValueError: as of `suggest_float`.
        """
        plain_choices = tuple(_plain(name, choice) for choice in choices)
        index = int(self._suggest(messages.Suggest(name, "categorical", choices=plain_choices)))
        return self._keep(name, choices[index], plain_choices[index])

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
        """Report the objective at a step; of a step that is reported twice the first value counts.

        Raises:
            NotImplementedError: there are several objectives, for which Optuna has no reports either.
            TypeError: the value is no number, or the step no whole one.
            ValueError: the step is negative or too large.
        """
        if len(self._objectives) > 1:
            raise NotImplementedError("Trial.report is not supported for multi-objective optimization.")
        try:
            metric, at = float(value), int(step)
        except (TypeError, ValueError):
            text = f"report({value!r}, {step!r}): the value must be a number, and the step a whole one"
            raise TypeError(text) from None
        if not 0 <= at < records.STEPS:
            raise ValueError(f"report(…, step={at}): steps go from 0 to {records.STEPS - 1}")
        if at in self._reported:
            warnings.warn(f"step {at} is reported already; this value is ignored", stacklevel=2)
            return
        self._reported.add(at)
        self._prune = False
        try:
            self._ctx.note("", at, {self._objectives[0]: metric}, waits=True)
        except context.Pruned:  # the objective reads it by `should_prune`
            self._prune = True

    def should_prune(self) -> bool:
        """Whether the pruner ends this trial: then raise `optuna.TrialPruned`."""
        if len(self._objectives) > 1:
            raise NotImplementedError("Trial.should_prune is not supported for multi-objective optimization.")
        return self._prune

    def set_user_attr(self, key: str, value: Any) -> None:
        """Keep a JSON value with the trial's result.

        Raises:
            TypeError: the value has no JSON form.
        """
        self._controller.attributes[str(key)] = _plain(key, value)

    def set_constraint(self, key: str, value: float) -> None:
        """Set a constraint; the trial is feasible where none is over the bounds that the job gives them.

        Raises:
            TypeError: the value is no number.
            ValueError: it is NaN, or the job has no such constraint.
        """
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise TypeError(f"set_constraint({key!r}, {value!r}): the value must be a number") from None
        if math.isnan(number):
            raise ValueError(f"set_constraint({key!r}, {value!r}): NaN is neither feasible nor infeasible")
        if key not in self._constrained:
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
        # By name: only an objective that reads this property needs Optuna here.
        classes = importlib.import_module("optuna.distributions")
        distributions = {}
        for name, request in self._requests.items():
            if request.kind == "categorical":
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # on lists, which Optuna's databases do not keep
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
        raise AttributeError(
            f"trial.{name} does not exist: the study is in the controller. A trial's process has suggest_float, "
            "suggest_int, suggest_categorical, report, should_prune, set_user_attr, set_constraint, number, params, "
            "distributions, user_attrs, constraints and datetime_start"
        )

    def _result(self, returned: Any) -> context.Result:
        """Return the objective's result, by name if it has set constraints too."""
        if not self._constraints:
            return returned  # type: ignore[no-any-return]  # `outcomes.complete` checks it
        values = returned if isinstance(returned, (list, tuple)) else [returned]
        return {**dict(zip(self._objectives, values, strict=False)), **self._constraints}

    def _suggest(self, request: messages.Suggest) -> float:
        """Return the value of a parameter as Optuna stores it; for a repeated request, from memory."""
        name = request.name
        if not isinstance(name, str):
            raise TypeError(f"the name of a parameter is a text, not {name!r}")
        with self._ctx.alone():
            if self._requests.get(name) != request:
                answer = self._controller.suggest(request)
                for text in answer.warnings:
                    warnings.warn(text, stacklevel=_HERE)
                if answer.value is None:
                    raise ValueError(answer.error)
                self._requests.setdefault(name, request)
                self._inside.setdefault(name, answer.value)
            return self._inside[name]

    def _keep(self, name: str, value: Any, plain: Any) -> Any:
        """Store the value of a parameter, in its plain form for code that reads the trial's parameters without `trial`."""
        self._ctx.suggested(name, plain)
        return self._params.setdefault(name, value)


def of(objective: Objective, metrics: Sequence[str], objectives: int, controller: Controller) -> context.Run:
    """The function of a trial that calls an objective; its arguments are those of `Trial`."""

    def run(ctx: context.Context) -> context.Result:
        trial = Trial(ctx, metrics, objectives, controller)
        return trial._result(objective(trial))

    return run


def _finite(name: str, value: float) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{name}: {value!r} is no bound or step; they are finite numbers")
    return number


def _plain(name: str, value: Any) -> Any:
    """A JSON value; the scalars of numpy as numbers."""
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        value = value.item()
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        remedy = "give its name, and look the object up in the objective"
        raise TypeError(f"{name}: {value!r:.80} has no JSON form ({error}); {remedy}") from None
