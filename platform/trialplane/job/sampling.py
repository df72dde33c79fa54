"""The sampler and the pruner: a name of Optuna's and its options, checked against the tables without Optuna."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from trialplane import errors
from trialplane.errors import Issue
from trialplane.job import models, options, values
from trialplane.job.options import Choice, Kind, Option

_FUNCTION = re.compile(values.FUNCTION)
WATCHED = ("metric", "direction")  # fields of the job's pruner beside its options; one that another pruner wraps has none


class _Named(models.Model):
    kind: ClassVar[Kind]

    name: str = Field(description="Name of the algorithm.")
    options: dict[str, values.Plain] = Field(default_factory=dict, description="Options, with Optuna's names.")

    @model_validator(mode="before")
    @classmethod
    def _inline(cls, data: Any) -> Any:
        """`tpe` and `{name: tpe, n_startup_trials: 8}` as name and options."""
        return unfold(data)

    @model_validator(mode="after")
    def _known(self) -> Any:
        models.refuse(list(check(type(self).kind, {"name": self.name, **self.options})))
        return self

    @property
    def choice(self) -> Choice:
        """Optuna's class and its options."""
        return options.TABLES[type(self).kind][self.name]


class Sampler(_Named):
    """Draws the parameters of the next trial."""

    kind: ClassVar[Kind] = Kind.SAMPLER


class Pruner(_Named):
    """Ends bad trials early, by one reported metric."""

    kind: ClassVar[Kind] = Kind.PRUNER

    metric: str | None = Field(default=None, description="Reported metric to compare. Default: the objective's.")
    direction: Literal["minimize", "maximize"] | None = Field(
        default=None, description="Direction of improvement of `metric`. Default: the objective's."
    )

    @model_validator(mode="before")
    @classmethod
    def _inline(cls, data: Any) -> Any:
        """Metric and direction are fields of ours, whatever the pruner; all else is Optuna's."""
        if not isinstance(data, Mapping):
            return unfold(data)
        own = {key: data[key] for key in WATCHED if key in data}
        unfolded = unfold({key: value for key, value in data.items() if key not in own})
        return {**unfolded, **own} if isinstance(unfolded, Mapping) else unfolded


def unfold(data: Any) -> Any:
    """The short form as `{"name": …, "options": {…}}`; what has another shape is given back for pydantic to refuse."""
    if isinstance(data, str):
        return {"name": data, "options": {}}
    if isinstance(data, Mapping) and isinstance(data.get("options", {}), Mapping):
        inline = {key: value for key, value in data.items() if key not in ("name", "options")}
        return {
            **({"name": data["name"]} if "name" in data else {}),
            "options": {**data.get("options", {}), **inline},
        }
    return data


def check(kind: Kind, data: Any) -> Iterator[Issue]:
    """What is wrong with a sampler, pruner, crossover or mutation in its short form."""
    table = options.TABLES[kind]
    flat = unfold(data)
    if not isinstance(flat, Mapping) or not isinstance(flat.get("name"), str):
        yield Issue((), f"must be {kind.value}: a name, or a mapping with a name; {errors.nearest('', table)}")
        return
    name, given = flat["name"], flat.get("options", {})
    if not isinstance(given, Mapping):
        yield Issue(("options",), "must be a mapping; options may as well stand beside the name")
        return
    choice = table.get(name)
    if choice is None:
        yield Issue(("name",), f"{name!r} is not {kind.value}; {_meant(kind, name)}")
        return
    for key, value in given.items():
        if key in choice.platform:
            yield Issue((key,), f"is set by the platform from the job's `{choice.platform[key]}`; set that instead")
        elif key not in choice.options:
            hint = errors.nearest(str(key), choice.options) or "it has no options"
            yield Issue((key,), f"{name} has no such option; {hint}")
        else:
            for issue in _check_value(choice.options[key], value):
                yield issue.below(key)
    for key, option in choice.options.items():
        if option.required and key not in given:
            yield Issue((key,), f"is missing; {name} needs {option.kind.value}")
    for key, other in _APART.get(name, ()):
        if given.get(key) not in (None, False) and given.get(other) not in (None, False):
            yield Issue((key,), f"cannot stand together with {other}")
    if name in _TOGETHER:
        yield from _TOGETHER[name]({**{key: option.default for key, option in choice.options.items()}, **given})


def _meant(kind: Kind, name: str) -> str:
    """What to write instead of a name that is none of ours: another tool's, that of Optuna's class, or a misspelt one."""
    table, bare = options.TABLES[kind], re.sub(r"[^a-z0-9]", "", name.lower())
    for ours, choice in table.items():
        if bare in (ours.replace("_", ""), choice.cls.lower()):
            return f"it is called {ours} here"
    hints = options.ELSEWHERE.get(kind, {})
    return next((hint for hint, names in hints.items() if bare in names.split()), "") or errors.nearest(name, table)


def _parts(kind: Kind, data: Any, *path: str) -> Iterator[tuple[tuple[str, ...], str, Choice, Mapping[str, Any]]]:
    """A valid sampler or pruner and those in its options: path, name, class and options that are not null."""
    flat = unfold(data)
    choice = options.TABLES[kind][flat["name"]]
    given = {key: value for key, value in flat["options"].items() if value is not None}
    yield path, flat["name"], choice, given
    for key, value in given.items():
        if choice.options[key].kind in options.TABLES:
            yield from _parts(choice.options[key].kind, value, *path, key)


def functions(kind: Kind, data: Any) -> Iterator[tuple[tuple[str, ...], str]]:
    """The `module:function` values of a valid sampler or pruner, with their paths."""
    for path, _, choice, given in _parts(kind, data):
        for key, value in given.items():
            if choice.options[key].kind in (Kind.FUNCTION, Kind.FACTORY):
                yield (*path, key), value


def _check_value(option: Option, value: Any) -> Iterator[Issue]:
    if value is None and option.nullable:
        return
    kind = option.kind
    if kind in options.TABLES:
        yield from check(kind, value)
        name = _name(value)
        if kind is Kind.SAMPLER and name in options.SAMPLERS and not options.SAMPLERS[name].alone:
            yield Issue((), f"{name} cannot draw one parameter by itself; choose another, for example random")
    elif kind is Kind.TEXT:
        if value not in option.allowed:
            yield Issue((), f"{value!r} is not one of {', '.join(option.allowed)}")
    elif kind is Kind.POINT:
        if not isinstance(value, Mapping):
            yield Issue((), f"must be {kind.value}")
    elif kind is Kind.POINTS:
        if not isinstance(value, (list, tuple)) or not value or not all(_is_row(row) for row in value):
            yield Issue((), f"must be {kind.value}")
    elif kind in (Kind.FUNCTION, Kind.FACTORY):
        if not isinstance(value, str) or not _FUNCTION.fullmatch(value):
            yield Issue((), f"must be {kind.value}, for example train:{option.kind.name.lower()}")
    elif kind is Kind.BOOL:
        if not isinstance(value, bool):
            yield Issue((), f"must be {kind.value}, not {value!r}")
    elif kind is Kind.INT_OR_AUTO and value == "auto":
        return
    elif not _is_number(value) or (kind is not Kind.NUMBER and not isinstance(value, int)):
        yield Issue((), f"must be {kind.value}, not {value!r}")
    elif option.minimum is not None and value < option.minimum:
        yield Issue((), f"{value} must be at least {option.minimum:g}")
    elif option.above is not None and value <= option.above:
        yield Issue((), f"{value} must be over {option.above:g}")
    elif option.maximum is not None and value > option.maximum:
        yield Issue((), f"{value} must be at most {option.maximum:g}")


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return abs(value) <= values.LARGEST if isinstance(value, int) else math.isfinite(value)


def _is_row(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and all(_is_number(item) for item in value)


def _name(data: Any) -> str:
    """Which sampler, pruner, crossover or mutation is meant, or ""."""
    flat = unfold(data)
    name = flat.get("name") if isinstance(flat, Mapping) else None
    return name if isinstance(name, str) else ""


def _genetic(given: Mapping[str, Any]) -> Iterator[Issue]:
    crossover, size = options.TABLES[Kind.CROSSOVER].get(_name(given["crossover"])), given["population_size"]
    if crossover is not None and _is_number(size) and 2 <= size < crossover.parents:
        name = _name(given["crossover"])
        yield Issue(("population_size",), f"{size} must be at least {crossover.parents}: {name} needs so many parents")


def _tpe(given: Mapping[str, Any]) -> Iterator[Issue]:
    if given["group"] is True and given["multivariate"] is False:
        yield Issue(("group",), "cannot stand together with multivariate: false")


def _threshold(given: Mapping[str, Any]) -> Iterator[Issue]:
    lower, upper = given["lower"], given["upper"]
    if lower is None and upper is None:
        yield Issue(("lower",), "is missing; threshold needs lower or upper or both")
    elif _is_number(lower) and _is_number(upper) and lower > upper:
        yield Issue(("lower",), f"{lower} is over upper ({upper})")


def _halving(given: Mapping[str, Any]) -> Iterator[Issue]:
    key = "max_resource" if "max_resource" in given else "min_resource"
    if _is_number(given["bootstrap_count"]) and given["bootstrap_count"] > 0 and given[key] == "auto":
        yield Issue(("bootstrap_count",), f"needs a {key} that is a number, not auto")


# What Optuna refuses about several options together; an option that is left out has Optuna's default.
_TOGETHER: Mapping[str, Any] = {
    "tpe": _tpe,
    "nsgaii": _genetic,
    "nsgaiii": _genetic,
    "threshold": _threshold,
    "hyperband": _halving,
    "successive_halving": _halving,
}
_APART = {
    "cmaes": (
        *((key, "source_trials") for key in ("x0", "sigma0", "use_separable_cma")),
        *(("lr_adapt", other) for other in ("use_separable_cma", "with_margin")),
        ("with_margin", "use_separable_cma"),
    ),
}
