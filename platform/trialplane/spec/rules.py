"""What must hold between the fields of a job; what one model can tell of itself stands in the models."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from typing import Any

from trialplane import errors
from trialplane.spec import collecting, naming, options, space, training
from trialplane.spec.faults import Fault
from trialplane.spec.job import Job

# With more combinations than this in the parameters that conditions ask for, points are not counted.
_MOST_BRANCHES = 10_000
# More points are no grid that anybody waits for, and each trial that is drawn looks at all that are left.
_MOST_POINTS = 100_000
_MOST_STEPS = 1_000_000  # of one parameter, which the gp sampler looks at one by one
_MOST_RANKS = 64  # that are proposed
_MOST_CHOICES = 20  # that a message lists


def check(job: Job, broken: Collection[tuple[str | int, ...]] = ()) -> Iterator[Fault]:
    """Every fault between fields.

    Args:
        job: the job, with stand-ins for the parts that are broken.
        broken: the fields (`("trials",)`) and parameters (`("space", "lr")`) that have complaints of their own; what
            depends on them is not judged.
    """
    known = {place[1] for place in broken if place[0] == "space" and len(place) > 1}
    sound = ("space",) not in broken
    if sound and not isinstance(job.space, str):
        yield from _conditions(job, known)
        if not (job.is_training or job.is_collection):  # they have no points at all, and say so
            yield from _enqueue(job, known)
    yield from _metrics(job)
    for field, names in (("params", job.params), ("space", () if isinstance(job.space, str) else job.space)):
        yield from (Fault((field, name), why) for name in names if (why := naming.complaint(name)))
    if ("pruner",) not in broken:
        yield from _watched(job)
    yield from _several(job, broken)
    if sound and not known and ("sampler",) not in broken:
        yield from _finite(job, ("trials",) in broken)
        yield from _start_point(job)
        yield from _enumerable(job)
    if not {("sampler",), ("objectives",)} & set(broken):
        yield from _reference_points(job)
    yield from _names(job, broken, known)
    if ("kind",) not in broken:
        yield from training.check(job)
        yield from collecting.check(job, ("collect",) in broken)


def _conditions(job: Job, known: Collection[Any]) -> Iterator[Fault]:
    assert not isinstance(job.space, str)
    for name, parameter in job.space.items():
        for other, allowed in parameter.when.items():
            place = ("space", name, "when", other)
            if other in known:
                continue
            if other not in job.space:
                yield Fault(place, _no_parameter(job, other))
                continue
            for value in allowed:
                if not job.space[other].holds(value):
                    yield Fault(place, f"{other} is never {value!r}; it is {describe(job.space[other])}")
    circle = space.cycle(job.space)
    if circle:
        yield Fault(("space", circle[0], "when"), f"the conditions go round in a circle: {' → '.join(circle)}")


def _no_parameter(job: Job, name: str) -> str:
    return f"there is no parameter {name!r} in the space; {errors.nearest(name, job.space)}".rstrip("; ")


def _enqueue(job: Job, known: Collection[Any]) -> Iterator[Fault]:
    assert not isinstance(job.space, str)
    for index, point in enumerate(job.enqueue):
        for name, value in point.items():
            place = ("enqueue", index, name)
            if name in known:
                continue
            if name not in job.space:
                yield Fault(place, _no_parameter(job, name))
                continue
            parameter = job.space[name]
            if not parameter.holds(value):
                yield Fault(place, f"{value!r} is outside of the space: {name} is {describe(parameter)}")
            for other, allowed in parameter.when.items():
                if other in point and not any(space.same(point[other], wanted) for wanted in allowed):
                    yield Fault(place, f"does not exist with {other}: {point[other]!r}")
        missing = [name for name in job.space if name not in point]
        if missing and job.sampler.name == "grid" and not known:
            yield Fault(("enqueue", index), f"with the grid sampler a point must be whole; {', '.join(missing)} missing")


def _metrics(job: Job) -> Iterator[Fault]:
    for field, metrics in (
        ("objectives", [objective.metric for objective in job.objectives]),
        ("constraints", [constraint.metric for constraint in job.constraints]),
    ):
        for index, metric in enumerate(metrics):
            why = naming.complaint(metric)
            if why:
                yield Fault((field, index, "metric"), why)
            elif metric in metrics[:index]:
                yield Fault((field, index, "metric"), f"{metric!r} is listed twice")


def _watched(job: Job) -> Iterator[Fault]:
    """What the pruner watches."""
    pruner = job.pruner
    for field in ("metric", "direction"):
        if getattr(pruner, field) is not None and pruner.name == "none":
            yield Fault(("pruner", field), "is what a pruner watches, and none is named; write name: median, or drop it")
    if pruner.metric is None:
        if pruner.direction is not None:
            yield Fault(
                ("pruner", "direction"),
                "applies only to pruner.metric, which is not set; the objective has a direction of its own",
            )
        return
    if why := naming.complaint(pruner.metric):
        yield Fault(("pruner", "metric"), why)
    for objective in job.objectives:
        if objective.metric == pruner.metric and pruner.direction not in (None, objective.direction):
            yield Fault(
                ("pruner", "direction"), f"{objective.metric} is an objective to {objective.direction}; drop this line"
            )


def _several(job: Job, broken: Collection[Any]) -> Iterator[Fault]:
    count = len(job.objectives)
    if count < 2 or ("objectives",) in broken:
        return
    if job.budget.target is not None:
        yield Fault(("budget", "target"), f"needs one objective, and there are {count}; drop the target")
    if ("pruner",) not in broken and job.pruner.choice.objectives == 1:
        yield Fault(("pruner",), f"trials cannot be pruned with {count} objectives; write pruner: none")
    if ("sampler",) not in broken and job.sampler.choice.objectives == 1:
        able = ", ".join(name for name, choice in options.SAMPLERS.items() if choice.objectives is None)
        yield Fault(("sampler",), f"{job.sampler.name} cannot handle {count} objectives; these can: {able}")


def _finite(job: Job, any_trials: bool) -> Iterator[Fault]:
    """Grid and brute force try every point once, so there must be an end of points, and enough of them."""
    name = job.sampler.name
    if name not in ("grid", "bruteforce"):
        return
    if isinstance(job.space, str):
        if name == "grid":
            yield Fault(("sampler",), "grid needs the space in the job file, not in code; use bruteforce")
        return
    endless = [key for key, parameter in job.space.items() if parameter.count is None]
    for key in endless:
        yield Fault(("space", key, "step"), f"is missing; the {name} sampler needs a step or choices")
    conditional = [key for key, parameter in job.space.items() if parameter.when] if name == "grid" else []
    for key in conditional:
        yield Fault(("space", key, "when"), "the grid sampler knows no conditions; use bruteforce")
    too_many = [(key, parameter.count) for key, parameter in job.space.items() if (parameter.count or 0) > _MOST_POINTS]
    for key, count in too_many:
        why = f"has {count} values, and the {name} sampler takes {_MOST_POINTS} points at most"
        yield Fault(("space", key), f"{why}; narrow it, raise the step or take another sampler")
    if endless or conditional or too_many or space.cycle(job.space):
        return
    points = count_points(job.parameters)
    if points is not None and points > _MOST_POINTS:
        why = f"{name} takes {_MOST_POINTS} points at most, and the space has {_shown(points)}"
        yield Fault(("sampler",), f"{why}; raise the steps, or take another, for example random")
    elif points is not None and points < job.trials and not any_trials:
        message = f"{job.trials} is more than the space has points ({points}); write trials: {points} or less"
        yield Fault(("trials",), message)


def _start_point(job: Job) -> Iterator[Fault]:
    """CMA-ES starts from `x0`; Optuna would fail with a KeyError in the first trial."""
    start = job.sampler.options.get("x0") if job.sampler.name == "cmaes" else None
    if start is None or isinstance(job.space, str):
        return
    for name, value in start.items():
        if name not in job.space:
            yield Fault(("sampler", "x0", name), _no_parameter(job, name))
        elif not job.space[name].holds(value):
            yield Fault(("sampler", "x0", name), f"{value!r} is outside: {name} is {describe(job.space[name])}")
    if not set(start) <= set(job.space):
        return  # one that is lacking was misspelt
    for name, parameter in job.space.items():
        if name not in start and not isinstance(parameter, space.CategoricalParameter) and parameter.low < parameter.high:
            yield Fault(("sampler", "x0"), f"lacks {name}; cmaes starts from a value for each parameter that is a number")


def _enumerable(job: Job) -> Iterator[Fault]:
    """The Gaussian process tries each value of a parameter that has steps."""
    if job.sampler.name != "gp" or isinstance(job.space, str):
        return
    for name, parameter in job.space.items():
        if (parameter.count or 0) > _MOST_STEPS:
            cure = "raise the step" if isinstance(parameter, space.IntParameter) else "raise the step or drop it"
            why = f"has {parameter.count} values, and the gp sampler takes {_MOST_STEPS} at most"
            yield Fault(("space", name), f"{why}; {cure}, or take another sampler")


def _reference_points(job: Job) -> Iterator[Fault]:
    """NSGA-III spreads its trials over points with a number for each objective, its own or the job's."""
    if job.sampler.name != "nsgaiii":
        return
    count, given = len(job.objectives), job.sampler.options
    for index, row in enumerate(given.get("reference_points") or ()):
        if len(row) != count:
            why = f"has {errors.counted(len(row), 'number')}, and there {'is' if count == 1 else 'are'} "
            yield Fault(
                ("sampler", "reference_points", index), f"{why}{errors.counted(count, 'objective')}; write one for each"
            )
    parts = given.get("dividing_parameter", 3)
    points = math.comb(count + parts - 1, parts)
    if given.get("reference_points") is None and points > options.MOST_ROWS:
        why = f"{parts} makes {_shown(points)} reference points of {errors.counted(count, 'objective')}"
        yield Fault(("sampler", "dividing_parameter"), f"{why}; {options.MOST_ROWS} are the most, so lower it")


def _shown(number: int) -> str:
    """A count that fits a message; Python writes no number of more than 4,300 digits."""
    return str(number) if number < 10**18 else f"over 10^{math.floor(math.log10(number))}"


def _names(job: Job, broken: Collection[Any], known: Collection[Any]) -> Iterator[Fault]:
    if ("params",) not in broken and ("space",) not in broken:
        names = [*job.params, *(() if isinstance(job.space, str) else job.space), *known]
        for name in job.inputs:
            if name not in names:
                yield Fault(("inputs", name), f"there is no such name in params; {errors.nearest(name, names)}")
        yield from _amounts(job)
        yield from _divided(job, broken)
    for variable, field in job.environment.items():
        first = field.split(".")[0]
        if (first,) in broken or any(place[0] == first for place in broken):
            continue
        complaint = unknown(job, field)
        if complaint:
            yield Fault(("environment", variable), complaint)


def _amounts(job: Job) -> Iterator[Fault]:
    """Parameters that say how many lines a file must have, or which columns."""
    for file, wanted in job.inputs.items():
        for index, name in enumerate(wanted.columns_of):
            if name not in job.params:
                hint = errors.nearest(name, job.params)
                yield Fault(("inputs", file, "columns_of", index), f"there is no {name!r} in params; {hint}".rstrip("; "))
            elif job.params[name] is not None and not isinstance(job.params[name], str):
                why = f"inputs.{file}.columns_of needs it"
                yield Fault(("params", name), f"must be the name of a column, not {job.params[name]!r}: {why}")
    every = [(file, key, terms) for file, wanted in job.inputs.items() for key, terms in wanted.amounts.items()]
    for file, key, terms in every:
        for name in dict.fromkeys(term for term in terms if isinstance(term, str)):
            value = job.params.get(name)
            if name not in job.params:
                hint = errors.nearest(name, job.params)
                yield Fault(("inputs", file, key), f"there is no {name!r} in params; {hint}".rstrip("; "))
            elif type(value) is not int or value < 1:
                why = f"inputs.{file}.{key} needs it"
                yield Fault(("params", name), f"must be a whole number over 0, not {value!r}: {why}")


def _divided(job: Job, broken: Collection[Any]) -> Iterator[Fault]:
    """Parameters that the ranks share evenly; else the mean gradients of some would count more than those of others."""
    searched: Collection[str] = () if isinstance(job.space, str) else job.space
    counted = {term for wanted in job.inputs.values() for terms in wanted.amounts.values() for term in terms}
    for index, name in enumerate(job.divided):
        value = job.params.get(name)
        if name in searched:
            continue  # its values are the job's to judge
        if name not in job.params:
            hint = errors.nearest(name, job.params)
            yield Fault(("divided", index), f"there is no {name!r} in params; {hint}".rstrip("; "))
        elif type(value) is not int or value < 1:
            if name not in counted:  # else that was said
                yield Fault(("params", name), f"must be a whole number over 0, not {value!r}: divided names it")
        elif value % job.world_size and not {("ranks",), ("nodes",), ("resources",)} & set(broken):
            below = value - value % job.world_size
            near = " or ".join(str(one) for one in (below, below + job.world_size) if one)
            fits = ", ".join(str(ranks) for ranks in range(1, min(value, _MOST_RANKS) + 1) if value % ranks == 0)
            message = f"{value} cannot be divided evenly among {job.world_size} ranks: make it {near}"
            yield Fault(("params", name), f"{message}, or change the ranks; it can be among {fits}")


def unknown(job: Job, field: str) -> str:
    """Why `field` is no dotted path of a field that an override could set, or nothing."""
    steps = field.split(".")
    here: Any = job
    for depth, step in enumerate(steps):
        if isinstance(here, (str, tuple)) and step.isdigit():
            names: Collection[str] = [str(index) for index in range(len(here))]
            below = here[int(step)] if isinstance(here, tuple) and int(step) < len(here) else None
        elif hasattr(here, "choice"):
            own = [name for name in type(here).model_fields if name != "options"]
            names = [*own, *here.choice.options]
            below = None if step in own else here.options.get(step)
        elif hasattr(type(here), "model_fields"):
            names = [name for name in type(here).model_fields if not (depth == 0 and name == "name")]
            below = getattr(here, step, None) if step in names else None
        elif isinstance(here, dict):
            # A parameter may hold anything, so what lies below it is not known before.
            names = here if depth < 2 else [step]
            below = here.get(step)
        elif depth > 2 and steps[0] == "params":
            return ""
        else:
            return f"{'.'.join(steps[:depth])} has no fields"
        if step not in names:
            return f"there is no field {field!r}: {step!r} is unknown; {errors.nearest(step, names)}"
        here = below
    return ""


def count_points(parameters: dict[str, space.AnyParameter]) -> int | None:
    """How many points the space has, following conditions, or None when it has no end or is too large to count.

    Args:
        parameters: in an order in which conditions come after what they name.
    """
    asked = {other for parameter in parameters.values() for other in parameter.when}
    if any(parameter.count is None for parameter in parameters.values()):
        return None
    if math.prod(parameters[name].count or 0 for name in asked if name in parameters) > _MOST_BRANCHES:
        return None
    order = list(parameters.items())

    def below(index: int, drawn: dict[str, Any]) -> int:
        if index == len(order):
            return 1
        name, parameter = order[index]
        if not space.is_active(parameter, drawn):
            return below(index + 1, drawn)
        if name in asked:
            return sum(below(index + 1, {**drawn, name: value}) for value in parameter.points())
        return (parameter.count or 0) * below(index + 1, drawn)

    return below(0, {})


def describe(parameter: space.AnyParameter) -> str:
    """The range in words."""
    if isinstance(parameter, space.CategoricalParameter):
        if len(parameter.choices) > _MOST_CHOICES:
            return f"one of {len(parameter.choices)} choices"
        return f"one of {', '.join(map(repr, parameter.choices))}"
    kind = "a whole number" if isinstance(parameter, space.IntParameter) else "a number"
    step = f" in steps of {parameter.step}" if parameter.step not in (None, 1) else ""
    return f"{kind} from {parameter.low} to {parameter.high}{step}"
