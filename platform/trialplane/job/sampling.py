"""The sampler and the pruner: a name and options of Optuna, checked without Optuna.

A sampler may also be a class. Its name is then `module:Class`, or `tune:module:Class` for a searcher of Ray Tune.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from trialplane import errors
from trialplane.errors import Issue
from trialplane.job import models, options, values
from trialplane.job.numeric import is_number
from trialplane.job.options import Choice, Option, ValueKind

_FUNCTION = re.compile(values.FUNCTION)
_NUMBERS = (ValueKind.INT, ValueKind.NUMBER, ValueKind.INT_OR_AUTO, ValueKind.AMOUNT)
_TUNE = "tune:"  # prefix of the name of a searcher of Ray Tune
# Key that names a class, in place of `name` → prefix of the sampler's name, which contains the class.
_CLASSES = {"class": "", "tune": _TUNE}
# Fields of a job's pruner that are not Optuna's options. A pruner that is an option of another pruner lacks these fields.
WATCHED = ("metric", "direction")


class _Algorithm(models.Model):
    """The common part of a sampler and a pruner."""

    kind: ClassVar[ValueKind]

    name: str = Field(description="Name of the algorithm.")
    options: dict[str, values.Plain] = Field(default_factory=dict, description="Options, with Optuna's names.")

    @model_validator(mode="before")
    @classmethod
    def _unfold(cls, data: Any) -> Any:
        """Return the short forms `tpe` and `{name: tpe, n_startup_trials: 8}` as a mapping of name and options."""
        return unfold(data)

    @model_validator(mode="after")
    def _check_options(self) -> Any:
        """Check the name and the options."""
        models.refuse(list(check(type(self).kind, {"name": self.name, **self.options})))
        return self

    @property
    def choice(self) -> Choice:
        """Class of the algorithm with its options. Those of a class of another package are unknown, and so empty."""
        if is_class(self.name):
            objectives = 1 if self.name.startswith(_TUNE) else None  # the platform gives a searcher of Ray Tune one metric
            return Choice(cls=self.name, options={}, platform={"seed": "seed"}, objectives=objectives)
        return options.TABLES[type(self).kind][self.name]


class Sampler(_Algorithm):
    """Algorithm that draws the parameters of the next trial."""

    kind: ClassVar[ValueKind] = ValueKind.SAMPLER

    @property
    def class_path(self) -> str:
        """Class of the sampler as module:Class. "" if the sampler has a name of `options.SAMPLERS`."""
        return self.name.removeprefix(_TUNE) if is_class(self.name) else ""

    @property
    def class_field(self) -> str:
        """Field of the job file that names the class: `tune` for a searcher of Ray Tune, `class` for any other class."""
        return "tune" if self.is_tune_searcher else "class"

    @property
    def enumerates(self) -> bool:
        """Whether it tries every point of the space once."""
        return self.name in ("grid", "bruteforce")

    @property
    def accepts_partial_trials(self) -> bool:
        """Whether it learns from trials that lack a parameter. Only TPE does, unless it draws all parameters together."""
        return self.name == "tpe" and (not self.options.get("multivariate") or self.options.get("group") is True)

    @property
    def is_tune_searcher(self) -> bool:
        """Whether it is a searcher of Ray Tune."""
        return self.name.startswith(_TUNE)


class Pruner(_Algorithm):
    """Rule that ends bad trials early, by one reported metric."""

    kind: ClassVar[ValueKind] = ValueKind.PRUNER

    metric: str | None = Field(default=None, description="Reported metric to compare. Default: the objective's.")
    direction: Literal["minimize", "maximize"] | None = Field(
        default=None, description="Direction of improvement of `metric`. Default: the objective's."
    )

    @property
    def promotes(self) -> bool:
        """Whether trials are paused at rungs, and the best of each rung continue from their checkpoints."""
        return self.name == "asha" and self.options.get("promote") is True

    @model_validator(mode="before")
    @classmethod
    def _unfold(cls, data: Any) -> Any:
        """Return the short forms as a mapping of name, options, and the fields `WATCHED`, which are not Optuna's options."""
        if not isinstance(data, Mapping):
            return unfold(data)
        watched_fields = {key: data[key] for key in WATCHED if key in data}
        unfolded = unfold({key: value for key, value in data.items() if key not in watched_fields})
        return {**unfolded, **watched_fields} if isinstance(unfolded, Mapping) else unfolded


def is_class(name: str) -> bool:
    """Whether a sampler's name is a class, as module:Class or tune:module:Class."""
    return ":" in name


def unfold(data: Any) -> Any:
    """Return a short form of a sampler or pruner as `{"name": …, "options": {…}}`.

    Short forms are a name, and a mapping with `name`, `class` or `tune` and the options beside it. `class` and `tune` become
    a name of the form module:Class or tune:module:Class. A mapping in the long form may have options beside the name as
    well. Other values are returned unchanged, for pydantic to refuse.
    """
    if isinstance(data, str):
        return {"name": data, "options": {}}
    if not isinstance(data, Mapping):
        return data
    fields = dict(data)
    class_field = next((key for key in _CLASSES if key in fields), "")
    if class_field and "name" not in fields:
        class_path = str(fields.pop(class_field))
        colon = "" if ":" in class_path else ":"  # marks the name as a class, which `_check_class` then refuses
        fields["name"] = f"{_CLASSES[class_field]}{class_path}{colon}"
    nested_options = fields.pop("options", {})
    if not isinstance(nested_options, Mapping):
        return {**fields, "options": nested_options}
    name_field = {"name": fields.pop("name")} if "name" in fields else {}
    return {**name_field, "options": {**nested_options, **fields}}


def check(kind: ValueKind, data: Any) -> Iterator[Issue]:
    """Yield issues of a sampler, pruner, crossover or mutation, in a short form or as a mapping of name and options."""
    table = options.TABLES[kind]
    algorithm = unfold(data)
    if not isinstance(algorithm, Mapping) or not isinstance(algorithm.get("name"), str):
        yield Issue((), f"must be {kind.value}: a name, or a mapping with a name; {errors.nearest('', table)}")
        return
    name, option_values = algorithm["name"], algorithm.get("options", {})
    if not isinstance(option_values, Mapping):
        yield Issue(("options",), "must be a mapping; options may as well stand beside the name")
        return
    if kind is ValueKind.SAMPLER and is_class(name):
        yield from _check_class(name, option_values)
        return
    choice = table.get(name)
    if choice is None:
        yield Issue(("name",), f"{name!r} is not {kind.value}; {_name_hint(kind, name)}")
        return
    for key, value in option_values.items():
        if kind is ValueKind.SAMPLER and key in _CLASSES:
            yield Issue((key,), "cannot stand beside name; drop one of them")
        else:
            yield from _check_option(name, choice, key, value)
    for key, option in choice.options.items():
        if option.required and key not in option_values:
            yield Issue((key,), f"is missing; {name} needs {option.kind.value}")
    yield from _check_combinations(name, choice, option_values)


def _check_option(name: str, choice: Choice, key: str, value: Any) -> Iterator[Issue]:
    """Yield issues of an option of a sampler, pruner, crossover or mutation.

    Args:
        name: Name of the sampler or pruner.
        choice: Its options in Optuna.
        key: Name of the option.
        value: Value of the option.
    """
    if key in choice.platform:
        yield Issue((key,), f"is set by the platform from the job's `{choice.platform[key]}`; set that instead")
    elif key not in choice.options:
        hint = errors.nearest(str(key), choice.options) or "it has no options"
        yield Issue((key,), f"{name} has no such option; {hint}")
    else:
        yield from (issue.below(key) for issue in _check_value(choice.options[key], value))


def _check_combinations(name: str, choice: Choice, option_values: Mapping[str, Any]) -> Iterator[Issue]:
    """Yield issues of options that exclude or require each other.

    Args:
        name: Name of the sampler or pruner.
        choice: Its options in Optuna.
        option_values: Options that the job sets.
    """
    set_options = {key for key, value in option_values.items() if value not in (None, False)}
    for key, excluded in _EXCLUSIVE.get(name, ()):
        if {key, excluded} <= set_options:
            yield Issue((key,), f"cannot stand together with {excluded}")
    if name in _COMBINATION_CHECKS:
        defaults = {key: option.default for key, option in choice.options.items()}
        yield from _COMBINATION_CHECKS[name]({**defaults, **option_values})


def _check_class(name: str, option_values: Mapping[str, Any]) -> Iterator[Issue]:
    """Yield issues of a sampler that is a class. The class itself is not checked, because only the controller imports it.

    Args:
        name: Name of the sampler, with the class: module:Class or tune:module:Class.
        option_values: Its options.
    """
    field = "tune" if name.startswith(_TUNE) else "class"
    text = name.removeprefix(_TUNE)
    if not _FUNCTION.fullmatch(text):
        example = "ray.tune.search.hyperopt:HyperOptSearch" if field == "tune" else "optuna.samplers:TPESampler"
        yield Issue((field,), f"{text.removesuffix(':')!r} must be package.module:Class, for example {example}")
    if field == "class" and text.startswith("ray.tune."):
        yield Issue((field,), f"{text} is a searcher of Ray Tune; write tune: {text}")
    for key in sorted({"name", *_CLASSES} & set(option_values)):
        yield Issue((key,), f"cannot stand beside {field}; drop one of them")
    if field == "tune":
        for key in sorted({"metric", "mode", "space"} & set(option_values)):
            yield Issue((key,), "is set by the platform from the job's objective and space; drop it")


def _name_hint(kind: ValueKind, name: str) -> str:
    """Return a hint for an unknown name, which may be an Optuna class, a name in another tool, or misspelled."""
    table = options.TABLES[kind]
    bare_name = re.sub(r"[^a-z0-9]", "", name.lower())
    for own_name, choice in table.items():
        if bare_name in (own_name.replace("_", ""), choice.cls.lower()):
            return f"it is called {own_name} here"
    for hint, foreign_names in options.FOREIGN_NAMES.get(kind, {}).items():
        if bare_name in foreign_names.split():
            return hint
    return errors.nearest(name, table)


def functions(kind: ValueKind, data: Any) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the path and the value, module:function, of each option of a valid sampler or pruner that is a function.

    Options of the samplers and pruners in its options are among them. A class of another package has none that is known.

    Args:
        kind: Kind of algorithm.
        data: The sampler or pruner, in any form; see `unfold`.
    """
    algorithm = unfold(data)
    known_options = {} if is_class(algorithm["name"]) else options.TABLES[kind][algorithm["name"]].options
    for key, option in known_options.items():
        value = algorithm["options"].get(key)
        if value is None:
            continue
        if option.kind in (ValueKind.FUNCTION, ValueKind.FACTORY):
            yield (key,), value
        elif option.kind in options.TABLES:  # a sampler, a pruner, a crossover or a mutation
            yield from (((key, *path), function) for path, function in functions(option.kind, value))


def _check_value(option: Option, value: Any) -> Iterator[Issue]:
    """Yield issues of an option's value: of its type, its bounds, or of a sampler or pruner in it."""
    if value is None and option.nullable:
        return
    if option.kind in options.TABLES:
        yield from check(option.kind, value)
        yield from _check_nested_name(option.kind, _algorithm_name(value))
    elif option.kind in _NUMBERS:
        yield from _check_number(option, value)
    elif problem := _type_problem(option, value):
        yield Issue((), problem)


def _type_problem(option: Option, value: Any) -> str:
    """Return the reason why a value has not the type of an option that is no number. "" if it has."""
    problem = f"must be {option.kind.value}"
    match option.kind:
        case ValueKind.TEXT:
            is_valid = value in option.allowed
            problem = f"{value!r} is not one of {', '.join(option.allowed)}"
        case ValueKind.POINT:
            is_valid = isinstance(value, Mapping)
        case ValueKind.POINTS:
            is_valid = isinstance(value, (list, tuple)) and bool(value) and all(map(_is_row, value))
        case ValueKind.FUNCTION | ValueKind.FACTORY:
            is_valid = isinstance(value, str) and bool(_FUNCTION.fullmatch(value))
            problem += f", for example train:{option.kind.name.lower()}"
        case _:  # BOOL
            is_valid = isinstance(value, bool)
            problem += f", not {value!r}"
    return "" if is_valid else problem


def _check_nested_name(kind: ValueKind, name: str) -> Iterator[Issue]:
    """Yield issues of the name of a sampler or pruner that is valid, but not as an option of another one."""
    if is_class(name):
        yield Issue((), "cannot be a class here; write a name")
    if kind is ValueKind.PRUNER and name == "asha":
        yield Issue((), "asha cannot be wrapped; write successive_halving")
    if kind is ValueKind.SAMPLER and name in options.SAMPLERS and not options.SAMPLERS[name].is_independent:
        yield Issue((), f"{name} cannot draw one parameter by itself; choose another, for example random")


def _check_number(option: Option, value: Any) -> Iterator[Issue]:
    """Yield issues of a value that must be a number within the bounds; a whole one unless the kind is NUMBER."""
    kind = option.kind
    is_auto = kind is ValueKind.INT_OR_AUTO and value == "auto"
    is_parameter_name = kind is ValueKind.AMOUNT and isinstance(value, str)  # `Study.check` checks the name
    if is_auto or is_parameter_name:
        return
    if not _is_finite_number(value) or (kind is not ValueKind.NUMBER and not isinstance(value, int)):
        yield Issue((), f"must be {kind.value}, not {value!r}")
    elif option.minimum is not None and value < option.minimum:
        yield Issue((), f"{value} must be at least {option.minimum:g}")
    elif option.above is not None and value <= option.above:
        yield Issue((), f"{value} must be over {option.above:g}")
    elif option.maximum is not None and value > option.maximum:
        yield Issue((), f"{value} must be at most {option.maximum:g}")


def _is_finite_number(value: Any) -> bool:
    """Whether a value is a finite number. An integer must be exact as a float, because Optuna keeps it as one."""
    if not is_number(value):
        return False
    return abs(value) <= values.LARGEST if isinstance(value, int) else math.isfinite(value)


def _is_row(value: Any) -> bool:
    """Whether a value is a list of numbers, and not empty."""
    return isinstance(value, (list, tuple)) and bool(value) and all(_is_finite_number(item) for item in value)


def _algorithm_name(data: Any) -> str:
    """Return the name of a sampler, pruner, crossover or mutation in any form. "" if it has none."""
    algorithm = unfold(data)
    name = algorithm.get("name") if isinstance(algorithm, Mapping) else None
    return name if isinstance(name, str) else ""


# Each check below gets all options of an algorithm. Those that the job leaves out have Optuna's defaults.


def _check_genetic(option_values: Mapping[str, Any]) -> Iterator[Issue]:
    """Yield an issue of a population that has fewer members than its crossover needs as parents."""
    name, size = _algorithm_name(option_values["crossover"]), option_values["population_size"]
    crossover = options.TABLES[ValueKind.CROSSOVER].get(name)
    # A size below 2, or one that is not a number, has an issue of its own.
    if crossover is not None and _is_finite_number(size) and 2 <= size < crossover.parents:
        yield Issue(("population_size",), f"{size} must be at least {crossover.parents}: {name} needs so many parents")


def _check_tpe(option_values: Mapping[str, Any]) -> Iterator[Issue]:
    """Yield an issue of `group`, which needs `multivariate`."""
    if option_values["group"] is True and option_values["multivariate"] is False:
        yield Issue(("group",), "cannot stand together with multivariate: false")


def _check_threshold(option_values: Mapping[str, Any]) -> Iterator[Issue]:
    """Yield an issue of bounds that are both missing, or in the wrong order."""
    lower, upper = option_values["lower"], option_values["upper"]
    if lower is None and upper is None:
        yield Issue(("lower",), "is missing; threshold needs lower or upper or both")
    elif _is_finite_number(lower) and _is_finite_number(upper) and lower > upper:
        yield Issue(("lower",), f"{lower} is over upper ({upper})")


def _check_halving(option_values: Mapping[str, Any]) -> Iterator[Issue]:
    """Yield an issue of `bootstrap_count` beside a resource of "auto". Optuna requires a number then."""
    key = "max_resource" if "max_resource" in option_values else "min_resource"  # of hyperband, or successive_halving
    count = option_values["bootstrap_count"]
    if _is_finite_number(count) and count > 0 and option_values[key] == "auto":
        yield Issue(("bootstrap_count",), f"needs a {key} that is a number, not auto")


def _check_asha(option_values: Mapping[str, Any]) -> Iterator[Issue]:
    """Yield issues of options that `promote: true` requires, or that have no effect without it."""
    if option_values["promote"] is True and option_values["max_resource"] is None:
        reason = "is missing: the number of steps of a whole trial, or the parameter that sets it"
        yield Issue(("max_resource",), f"{reason}; for example max_resource: epochs")
    for key in ("max_resource", "max", "brackets"):
        is_set = option_values[key] not in (None, 1)  # the defaults
        if option_values["promote"] is not True and is_set:
            yield Issue((key,), "is for promote: true; drop it, or write promote: true")
    if option_values["max"] == "auto" and option_values["brackets"] != 1:
        yield Issue(("max",), "auto compares the rungs of one bracket; drop brackets, or drop max")


# Checks of options that depend on each other.
_COMBINATION_CHECKS: Mapping[str, Any] = {
    "tpe": _check_tpe,
    "nsgaii": _check_genetic,
    "nsgaiii": _check_genetic,
    "threshold": _check_threshold,
    "hyperband": _check_halving,
    "successive_halving": _check_halving,
    "asha": _check_asha,
}
_EXCLUSIVE = {  # sampler → pairs of options that cannot both be set
    "cmaes": (
        *((key, "source_trials") for key in ("x0", "sigma0", "use_separable_cma")),
        *(("lr_adapt", other) for other in ("use_separable_cma", "with_margin")),
        ("with_margin", "use_separable_cma"),
    ),
}
