"""Values of the search spaces of other libraries, drawn by a trial with the interface of `optuna.Trial`."""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from trialplane.job.numeric import is_number

_SIGMAS = 3  # half the width of the range that replaces a normal distribution, in standard deviations: 99.7 % of its values
_TAIL = 0.001  # share of a distribution without bounds that is left out at each end
_LONGEST_LABEL = 60  # characters of a choice that is not a plain value
# Left out of the text of an object, which must be the same in each process: `<object at 0x7f1c>`.
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def draw_settings(trial: Any, space: Any) -> dict[str, Any]:
    """Draw a value for each name in a search space, a mapping from names to domains; return the values by name.

    Of a list of such mappings, the trial first draws one.
    """
    if isinstance(space, Mapping):
        return {str(name): draw_value(trial, str(name), domain) for name, domain in space.items()}
    has_several = len(space) > 1
    index = trial.suggest_categorical("space", list(range(len(space)))) if has_several else 0
    chosen = space[index]
    if isinstance(chosen, tuple):  # scikit-optimize: a space and its number of trials
        chosen = chosen[0]
    prefix = f"{index}." if has_several else ""  # the spaces may have different domains of the same name
    return {str(name): draw_value(trial, f"{prefix}{name}", domain) for name, domain in chosen.items()}


def draw_value(trial: Any, name: str, domain: Any) -> Any:
    """Draw a value from a domain, as the parameter `name` of the trial.

    A domain is a distribution of Optuna, scikit-optimize or scipy; a tuple with two bounds, and perhaps the name of their
    prior, such as "log-uniform"; another sequence of choices; or a fixed value.
    """
    choices = getattr(domain, "choices", None) or getattr(domain, "categories", None)  # of Optuna, or scikit-optimize
    if choices is not None:
        return draw_choice(trial, name, choices)
    if hasattr(domain, "low") and hasattr(domain, "high"):  # numbers of these two libraries
        is_integer = type(domain).__name__.startswith("Int")
        is_log = bool(getattr(domain, "log", False)) or getattr(domain, "prior", "") == "log-uniform"
        return draw_number(
            trial, name, domain.low, domain.high, is_integer=is_integer, log=is_log, step=getattr(domain, "step", None)
        )
    if hasattr(domain, "ppf"):  # of scipy
        return _draw_scipy_value(trial, name, domain)
    if _is_bounds(domain):
        low, high, *prior = domain
        is_integer = isinstance(low, int) and isinstance(high, int)
        return draw_number(trial, name, low, high, is_integer=is_integer, log=prior == ["log-uniform"])
    if isinstance(domain, (str, bytes)) or not hasattr(domain, "__len__"):
        return domain
    return draw_choice(trial, name, domain)


def _is_bounds(domain: Any) -> bool:
    """Return whether a domain is a tuple with two bounds, and perhaps the name of their prior."""
    if not isinstance(domain, tuple) or not all(is_number(bound) for bound in domain[:2]):
        return False
    return len(domain) == 2 or (len(domain) == 3 and isinstance(domain[2], str))


def draw_choice(trial: Any, name: str, options: Sequence[Any]) -> Any:
    """Draw one of several values. Values that are not numbers or texts, such as models, are drawn by their text."""
    # Scalars of NumPy become numbers of Python.
    values = [option.item() if getattr(option, "ndim", None) == 0 else option for option in options]
    if len(values) == 1:
        return values[0]
    if all(option is None or isinstance(option, (str, int, float)) for option in values):
        return trial.suggest_categorical(name, values)
    labels = [_ADDRESS.sub("", str(getattr(option, "__name__", option)))[:_LONGEST_LABEL] for option in values]
    if len(set(labels)) < len(labels):  # two objects of the same class
        labels = [f"{index}: {label}" for index, label in enumerate(labels)]
    return values[labels.index(trial.suggest_categorical(name, labels))]


def draw_number(
    trial: Any, name: str, low: float, high: float, *, is_integer: bool = False, log: bool = False, step: float | None = None
) -> Any:
    """Draw a number from `low` to `high`, both included. If both are equal, it is not a parameter of the trial."""
    if low == high:
        return low
    if is_integer:  # Optuna refuses a step other than the default on a logarithmic scale
        return trial.suggest_int(name, int(low), int(high), step=1 if log else int(step or 1), log=log)
    return trial.suggest_float(name, float(low), float(high), step=None if log else step, log=log)


def _draw_scipy_value(trial: Any, name: str, distribution: Any) -> Any:
    """Draw a value from a frozen distribution of scipy.

    The parameter of an integer, uniform or log-uniform one is the value itself; of any other, the quantile of the value.
    """
    family = getattr(getattr(distribution, "dist", None), "name", "")
    low, high = distribution.support()
    if family == "randint":
        return draw_number(trial, name, low, high, is_integer=True)
    if family in ("uniform", "loguniform", "reciprocal"):
        return draw_number(trial, name, low, high, log=family != "uniform")
    lowest_quantile = 0.0 if math.isfinite(low) else _TAIL
    highest_quantile = 1.0 if math.isfinite(high) else 1 - _TAIL
    drawn = distribution.ppf(trial.suggest_float(f"{name}_quantile", lowest_quantile, highest_quantile))
    return drawn.item() if hasattr(drawn, "item") else drawn


def draw_hyperopt_value(trial: Any, space: Any) -> Any:
    """Draw a value from a space of hyperopt: an expression of `hp`, or a dict, list or tuple of such spaces.

    Of a choice among spaces, only the chosen one is drawn from.
    """
    if isinstance(space, Mapping):
        return {key: draw_hyperopt_value(trial, part) for key, part in space.items()}
    if isinstance(space, (list, tuple)):
        return type(space)(draw_hyperopt_value(trial, part) for part in space)
    if not hasattr(space, "pos_args"):  # a constant
        return space
    # The rest are nodes of hyperopt's expressions, each with the name of an operation and its arguments.
    if space.name == "literal":
        return space.obj
    if space.name == "hyperopt_param":
        label, distribution = space.pos_args
        return _draw_hyperopt_number(trial, label.obj, distribution)
    if space.name == "switch":  # of `hp.choice`: a number, and the options that it selects from
        selector, *options = space.pos_args
        if selector.name == "hyperopt_param" and all(option.name == "literal" for option in options):
            return draw_choice(trial, selector.pos_args[0].obj, [option.obj for option in options])
        return draw_hyperopt_value(trial, options[int(draw_hyperopt_value(trial, selector))])
    positional = [draw_hyperopt_value(trial, argument) for argument in space.pos_args]
    named = {name: draw_hyperopt_value(trial, argument) for name, argument in space.named_args}
    if space.name == "dict":
        return dict(*positional, **named)
    if space.name == "pos_args":  # a list or a tuple
        return positional if space.o_len is None else tuple(positional)
    # Another operation, such as a sum, by the function that hyperopt has for it.
    return importlib.import_module("hyperopt.pyll.base").scope._impls[space.name](*positional, **named)


def _draw_hyperopt_number(trial: Any, name: str, distribution: Any) -> Any:
    """Draw a number from a distribution of hyperopt, such as `quniform` and `loguniform`.

    Its `q` is the step between possible numbers. The bounds of a distribution with `log` are those of the logarithm. The
    parameter of the trial has the number itself.
    """
    family = distribution.name
    if family == "categorical":  # of `hp.pchoice`: probabilities of the options, which are equally likely at first here
        probabilities = distribution.pos_args[0].pos_args
        return trial.suggest_int(name, 0, len(probabilities) - 1)
    positional = [argument.obj for argument in distribution.pos_args]
    names = ("mu", "sigma", "q") if family.endswith("normal") else ("low", "high", "q")
    if family == "randint" and len(positional) == 1:  # the upper bound alone
        positional = [0, *positional]
    arguments = dict(zip(names, positional, strict=False))
    arguments |= {key: argument.obj for key, argument in distribution.named_args}
    if family == "randint":
        return draw_number(trial, name, arguments["low"], arguments["high"] - 1, is_integer=True)
    step = arguments.get("q")
    if family.endswith("normal"):
        half_width = _SIGMAS * arguments["sigma"]
        low, high = arguments["mu"] - half_width, arguments["mu"] + half_width
    else:
        low, high = arguments["low"], arguments["high"]
    if "log" in family:
        drawn = draw_number(trial, name, math.exp(low), math.exp(high), log=True)
        return drawn if step is None else round(drawn / step) * step
    if step is not None:  # hyperopt rounds the drawn number to a multiple of the step
        low, high = round(low / step) * step, round(high / step) * step
    return draw_number(trial, name, low, high, step=step)


def keras_hyperparameters(trial: Any) -> Any:
    """Return hyperparameters of keras-tuner whose values a trial draws."""
    library = importlib.import_module("keras_tuner")

    class Drawn(library.HyperParameters):  # type: ignore[misc, name-defined]  # the library has no types
        """Hyperparameters that are drawn when a model declares them."""

        def _register(self, hyperparameter: Any, overwrite: bool = False) -> Any:
            """Register a hyperparameter, and return its value; None if it is not active."""
            super()._register(hyperparameter, overwrite)
            if not self.is_active(hyperparameter):
                return None
            value = self.values[hyperparameter.name] = _draw_keras_value(trial, hyperparameter)
            return value

    return Drawn()


def _draw_keras_value(trial: Any, hyperparameter: Any) -> Any:
    """Draw a value of a hyperparameter of keras-tuner."""
    kind, name = type(hyperparameter).__name__, hyperparameter.name
    if kind == "Fixed":
        return hyperparameter.value
    if kind == "Boolean":
        return draw_choice(trial, name, [False, True])
    if kind == "Choice":
        return draw_choice(trial, name, hyperparameter.values)
    is_log = hyperparameter.sampling in ("log", "reverse_log")
    low, high, step = hyperparameter.min_value, hyperparameter.max_value, hyperparameter.step
    return draw_number(trial, name, low, high, is_integer=kind == "Int", log=is_log, step=None if is_log else step)
