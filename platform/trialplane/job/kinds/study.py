"""A study: a search for good parameters among many trials."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag

from trialplane import errors
from trialplane.errors import FieldPath, Issue
from trialplane.job import mlflow_names, models, options, sampling, space, values
from trialplane.job.kinds import base, program
from trialplane.job.kinds.ranked import Ranked
from trialplane.job.kinds.roles import Role
from trialplane.job.numeric import is_number
from trialplane.job.population import MOST_DECISIONS, Intervals, Population
from trialplane.job.program import nested_config, split_style
from trialplane.job.resources import Checkpoints, Keep
from trialplane.job.sampling import Pruner, Sampler
from trialplane.job.search import Constraint, Ladder, Search
from trialplane.job.space import AnyParameter

# Limit of the points of a grid. A larger grid would take years, and each draw iterates over all remaining points.
_MOST_POINTS = 100_000
_NOT_LEARNING = ("random", "qmc", "grid", "bruteforce")  # samplers that do not learn from trials
# Fields of a population that say how its members are compared and changed, and so have no effect beside a schedule.
_SEARCHING = ("exploit", "share", "factors", "resample", "explore", "fixed", "quorum", "growth", "patience")
_OTHER_STUDY = "submit another study, with history: [RUN]"
_MOST_VALUES = 1_000_000  # limit of the values of one parameter for the gp sampler, which evaluates all of them


Space = Annotated[
    Annotated[dict[values.Name, space.Parameter], Tag("parameters")] | Annotated[values.Function, Tag("function")],
    Discriminator(lambda value: "function" if isinstance(value, str) else "parameters"),
]


class Start(models.Model):
    """A checkpoint of another run's trial."""

    run: Annotated[str, Field(pattern=base.RUN)] = Field(description="Name of the run.")
    trial: values.Integer = Field(ge=0, description="Number of its trial.")
    step: values.Integer | None = Field(default=None, ge=0, description="Step of the checkpoint. Default: the newest.")


class Reuse(models.Model):
    """Reuse of earlier trials that were trained for fewer steps."""

    steps: str = Field(
        description="Parameter in `params` that sets the number of steps of a trial, and nothing else: up to its last step, "
        "a trial with a smaller number is the same. A trial starts from the checkpoint of an earlier one with a smaller "
        "number."
    )


class Study(Ranked):
    """A search for good parameters: space, sampler, pruner, and number of trials."""

    title: ClassVar[str] = "study"
    is_sequential: ClassVar[bool] = False
    width_option: ClassVar[str] = "--parallel"
    width_field: ClassVar[str] = "parallel"
    changeable: ClassVar[tuple[str, ...]] = ("trials", "parallel", "space", "sampler", "pruner", *Ranked.changeable)
    foreign_fields: ClassVar[Mapping[str, str]] = {
        "resume": "is for kind: train and kind: collect; a study is continued by `platform resume`",
    }
    lost_pod_effect: ClassVar[str] = "a lost pod starts its trial from nothing"
    resume: ClassVar[None] = None  # it never starts from another run

    kind: Literal["hpo"] = Field(description="Search for good hyperparameters.")
    space: Space = Field(
        default_factory=dict,
        description="Parameters to search, or a function that draws them from an Optuna trial: module:function.",
    )
    constraints: tuple[Constraint, ...] = Field(
        default=(), description="Bounds of metrics. A trial outside of them is never the best."
    )
    sampler: Sampler = Field(
        default_factory=lambda: Sampler(name="tpe"),
        description="Algorithm that draws the parameters of the next trial. Default: tpe.",
    )
    pruner: Pruner = Field(
        default_factory=lambda: Pruner(name="none"), description="Rule that ends bad trials early. Default: none."
    )
    population: Population | None = Field(
        default=None,
        description="Make the trials members of a population: at intervals, bad ones take over the state and the parameters "
        "of good ones, with changes. Default: trials are independent.",
    )
    trials: values.Integer = Field(
        default=20, gt=0, description="Number of trials, or of members of a population. Retries do not count."
    )
    parallel: values.Integer = Field(default=1, gt=0, description="Number of trials that run at the same time.")
    keep: Keep | None = Field(
        default=None, description="Trials whose checkpoints are kept: {best: 3}. Needs one objective. Default: all trials."
    )
    start: Start | None = Field(
        default=None,
        description="Checkpoint of another run from which every trial starts, as long as it has none of its own: "
        "{run: monday, trial: 2}. Trials read it as `ctx.restored`.",
    )
    enqueue: tuple[dict[str, values.Plain], ...] = Field(
        default=(), description="Parameters to try first: [{lr: 0.001}]. Missing parameters are drawn."
    )
    history: tuple[str, ...] = Field(
        default=(), description="Earlier studies with the same objectives, from whose trials the sampler learns: [RUN]."
    )
    reuse: Annotated[
        Annotated[bool, Tag("flag"), Field(strict=True)] | Annotated[Reuse, Tag("steps")],
        Discriminator(lambda value: "steps" if isinstance(value, (dict, Reuse)) else "flag"),
    ] = Field(
        default=False,
        description="Take the result of an earlier run for a trial with the same parameters, code, data and seed, or start "
        "from its newest checkpoint if it is not complete. {steps: epochs}: also if it had fewer epochs.",
    )
    duplicates: Literal["redraw", "allow", "answer"] = Field(
        default="allow",
        description="What happens with a trial whose parameters are those of an earlier trial of the study. redraw: others "
        "are drawn. answer: it gets the earlier result. allow: it is trained.",
    )

    avoid_oom: tuple[str, ...] = Field(
        default=(),
        description="All parameters with which the memory of a trial grows: [batch_size, width]. A point is drawn again if "
        "all of these are at least those of a trial that was out of memory, and the choices are the same.",
    )

    @property
    def search(self) -> Search:
        """Search for parameters: space, sampler, pruner and constraints."""
        schedule = () if self.population is None else self.population.schedule
        # In a replay, all trials begin with the first parameters of the schedule.
        enqueue = tuple(dict(schedule[0].params) for _ in range(self.trials)) if schedule else self.enqueue
        return Search(
            space=self.space,
            sampler=self.sampler,
            pruner=self.pruner,
            enqueue=enqueue,
            constraints=self.constraints,
            suggests=self.style == "optuna",
            ladder=self._ladder,
            duplicates=self.duplicates,
            avoid_oom=self.avoid_oom,
            population=self.population,
        )

    @property
    def _ladder(self) -> Ladder | Intervals | None:
        """Rungs, the numbers of steps at which trials are paused: of the population or of the pruner. None without any."""
        if self.population is not None:
            return Intervals(self.population.interval, self._step_count(self.population.steps))
        if not self.pruner.promotes:
            return None
        defaults = {key: option.default for key, option in self.pruner.choice.options.items()}
        option_values = {**defaults, **self.pruner.options}
        return Ladder(
            first=option_values["min_resource"],
            factor=option_values["reduction_factor"],
            top=self._step_count(option_values["max_resource"]),
            brackets=option_values["brackets"],
            is_auto=option_values["max"] == "auto",  # how high trials are promoted; a whole trial has max_resource steps
        )

    def _step_count(self, steps: Any) -> int:
        """Return the number of steps of a whole trial. 0 if it is not a whole number, which `check` reports.

        Args:
            steps: The number, or the name of the parameter in `params` that has it.
        """
        count = self.params.get(steps) if isinstance(steps, str) else steps
        return count if type(count) is int else 0

    @property
    def style(self) -> str:
        """Style of the entrypoint, see `job.program`. "" if it gets the trial's context, or for a script or command."""
        return "" if self.script or self.command else split_style(self.entrypoint)[0]

    @property
    def parameters(self) -> Mapping[str, AnyParameter]:
        """Parameters of the space in the order of the job file, also with circular conditions. Empty if code draws them."""
        return {} if isinstance(self.space, str) or self.style == "optuna" else self.space

    @property
    def width(self) -> int:
        """Number of trials at the same time, which `platform scale` changes."""
        return self.parallel

    def widened(self, width: int) -> Study:
        """Return the job with another `width`."""
        return self.model_copy(update={"parallel": width})

    @property
    def keeps_checkpoints(self) -> bool:
        """Whether its trials save checkpoints: if it has `checkpoints`, `keep`, `start`, `population` or `promote`."""
        return self.checkpoints != Checkpoints() or bool(self.keep or self.start) or self._ladder is not None

    @property
    def origin(self) -> str | None:
        """Name of the run from whose checkpoint its trials start."""
        return None if self.start is None else self.start.run

    def roles(self) -> tuple[Role, ...]:
        """Return the only role: the trials that run at the same time."""
        return (
            Role(
                name="trial",
                title="a trial",
                replicas=min(self.parallel, self.trials),
                entrypoint=self.entrypoint,
                program=program.from_job(self),
                resources=self.resources,
                cluster=self.cluster,
                nodes=self.nodes,
                ranks=self.ranks_per_node,
                shm_bytes=self.resources.shm_bytes if self.world_size == 1 else self.shm_of_ranks,
                gang=self.nodes > 1,
            ),
        )

    def resume_issues(self, old: base.Base) -> Iterator[Issue]:
        """Yield issues of changes with which a search cannot continue from its trials: see `Base.resume_issues`."""
        assert isinstance(old, Study)
        if old.population is not None and self.trials != old.trials:
            yield Issue(("trials",), "is the size of the population, which does not change; submit another study")
        has_population = self.population is not None or old.population is not None
        if not has_population:  # otherwise the rungs are the same: `population` is not in `changeable`
            yield from _changed_rung_issues(self, old)
        yield from _changed_space_issues(self, old)

    def facts(self) -> dict[str, Any]:
        """Return facts that MLflow shows for the run in addition to its objectives."""
        return {
            "trials": self.trials,
            "parallel": self.parallel,
            "sampler": self.sampler.name,
            "pruner": self.pruner.name,
        }

    def continuation_advice(self, run: str, target_flags: str) -> str:
        """Return advice on how to go on after a successful run, as a clause: "`platform resume …` runs more than 20".

        Args:
            run: Name of the run.
            target_flags: Flags for a submission to the same target: " --local".
        """
        if self.population is not None:
            return f"`platform best {run} --schedule` prints the parameters of the best member by step"
        return f"`platform resume {run} --trials N` runs more than {self.trials}"

    def functions(self) -> Iterator[base.Function]:
        """Yield the functions that the job names: as its entrypoint, its space, its sampler, and in options of Optuna."""
        yield from super().functions()
        if isinstance(self.space, str):
            yield base.Function(field=("space",), text=self.space, arguments=("trial",), style="optuna")
        if class_path := self.sampler.class_path:
            yield base.Function(("sampler", self.sampler.class_field), class_path, arguments=(), style="class")
        algorithms: dict[str, Sampler | Pruner] = {"sampler": self.sampler, "pruner": self.pruner}
        for field, algorithm in algorithms.items():
            for option_path, function in sampling.functions(algorithm.kind, algorithm.model_dump()):
                yield base.Function((field, *option_path), function)

    def advice(self) -> Iterator[str]:
        """Yield remarks for the user about secrets and ranks, and about a space with a single point."""
        yield from super().advice()
        if not self.search.is_code and self.trials > 1 and space.count_points(dict(self.search.parameters)) == 1:
            yield (
                f"nothing is searched: all {self.trials} trials have the same parameters, and differ in their seeds alone; "
                "write a range into space, or trials: 1"
            )

    def check(self, broken: Collection[FieldPath]) -> Iterator[Issue]:
        """Yield the issues of all jobs with ranks, and of the search."""
        yield from super().check(broken)
        if not {("space",), ("entrypoint",)} & set(broken):  # an objective of Optuna is a space too
            broken_params = {field_path[1] for field_path in broken if field_path[0] == "space" and len(field_path) > 1}
            yield from _style_issues(self)
            yield from _condition_issues(self, broken_params)
            yield from _enqueue_issues(self, broken_params)
        broken_fields = {str(field_path[0]) for field_path in broken}  # "space" also for one invalid parameter
        for rule, required_fields in _RULES.items():
            if not required_fields & broken_fields:
                yield from rule(self)


def _changed_rung_issues(job: Study, old: Study) -> Iterator[Issue]:
    """Yield an issue of a job of which a pruner pauses or promotes trials at other steps than in the old one."""
    has_other_rungs = old.search.ladder != job.search.ladder
    promotes_by_other_rule = job.pruner.promotes and job.pruner != old.pruner
    if has_other_rungs or promotes_by_other_rule:
        message = f"changes the rungs at which trials are paused, or who is promoted there; {_OTHER_STUDY}"
        yield Issue(("pruner",), message)


def _changed_space_issues(job: Study, old: Study) -> Iterator[Issue]:
    """Yield issues of changes of the space and the sampler with which the old trials would not fit the search."""
    has_other_space, has_other_sampler = job.space != old.space, job.sampler != old.sampler
    if has_other_space and (job.search.is_code or old.search.is_code):
        yield Issue(("space",), f"is or was code, and cannot change when a study is resumed; {_OTHER_STUDY}")
    enumerating_samplers = sorted(sampler.name for sampler in (job.sampler, old.sampler) if sampler.enumerates)
    if enumerating_samplers and (has_other_space or has_other_sampler):
        field = "space" if has_other_space else "sampler"
        yield Issue((field,), f"changes the points that {enumerating_samplers[0]} counts; {_OTHER_STUDY}")
    elif has_other_space and not has_other_sampler and job.sampler.name == "cmaes":
        yield Issue(("space",), f"changes the scales of cmaes; set another sampler as well, or {_OTHER_STUDY}")


def _style_issues(job: Study) -> Iterator[Issue]:
    """Yield issues of fields, except `space`, that an objective of Optuna or a trainable of Ray Tune does not allow.

    A space beside an objective is an issue of `trialplane.job.entrypoint`, which reads the code for the parameters there.
    """
    style = job.style
    if style and job.world_size > 1:
        advice = "write ranks: 1" if job.nodes == 1 else "write ranks: 1 and drop nodes"
        yield Issue(("entrypoint",), f"is called in one process, and a trial has {job.world_size} ranks; {advice}")
    if style == "ray":
        try:
            nested_config({**dict.fromkeys(job.search.names), **job.params})  # it raises an error for names that collide
        except ValueError as error:
            yield Issue(("entrypoint",), f"gets the parameters as one nested config, but {error}")


def _condition_issues(job: Study, broken_params: Collection[Any]) -> Iterator[Issue]:
    """Yield issues of the conditions of parameters: unknown parameters, values that a parameter never has, and cycles.

    Args:
        job: The job.
        broken_params: Names of invalid parameters, which are missing in the space.
    """
    for name, parameter in job.parameters.items():
        for other, allowed in parameter.when.items():
            field_path = ("space", name, "when", other)
            if other in job.parameters:
                yield from (
                    Issue(field_path, problem) for problem in _condition_problems(other, job.parameters[other], allowed)
                )
            elif other not in broken_params:
                yield Issue(field_path, _unknown_parameter(job, other))
    if cycle := space.cycle(job.parameters):
        yield Issue(("space", cycle[0], "when"), f"the conditions go round in a circle: {' → '.join(cycle)}")


def _condition_problems(name: str, parameter: AnyParameter, allowed: Collection[Any]) -> Iterator[str]:
    """Yield a message for each value in a condition on a parameter that the parameter never has."""
    # A list is read as several allowed values, but the author may have meant one value that is a list.
    is_one_value = parameter.contains(list(allowed))
    advice = f"; for that list write {name}: [{list(allowed)}]" if is_one_value else ""
    for value in allowed:
        if not parameter.contains(value):
            yield f"{name} is never {value!r}; it is {space.describe(parameter)}{advice}"


def _unknown_parameter(job: Study, name: str) -> str:
    """Return the message for a name that is not a parameter of the space, with a similar one."""
    return f"there is no parameter {name!r} in the space; {errors.nearest(name, job.parameters)}".rstrip("; ")


def _enqueue_issues(job: Study, broken_params: Collection[Any]) -> Iterator[Issue]:
    """Yield issues of the points to try first: unknown parameters, values outside of the space, and repeated points.

    Args:
        job: The job.
        broken_params: Names of invalid parameters, which are missing in the space.
    """
    if job.search.is_code:
        return  # which alone knows the parameters
    first_indices: dict[str, int] = {}  # a point as JSON → index of the first such point
    for index, point in enumerate(job.enqueue):
        field: FieldPath = ("enqueue", index)
        first_index = first_indices.setdefault(json.dumps(point, sort_keys=True), index)
        if first_index != index and job.sampler.enumerates:
            yield Issue(field, f"repeats enqueue.{first_index}, and {job.sampler.name} tries every point once; drop it")
        checked = {name: value for name, value in point.items() if name not in broken_params}
        yield from _value_issues(job, field, checked)
        yield from _existence_issues(job, field, checked, point)
        missing = [name for name in job.parameters if name not in point]
        if missing and job.sampler.name == "grid" and not broken_params:
            yield Issue(field, f"with the grid sampler a point must be whole; {', '.join(missing)} missing")


def _existence_issues(job: Study, field: FieldPath, names: Collection[str], point: Mapping[str, Any]) -> Iterator[Issue]:
    """Yield issues of parameters that do not exist in a point, because the point has other values than their conditions.

    Args:
        job: The job.
        field: Path of the point.
        names: Names of the parameters of the point to check.
        point: Values of all parameters of the point, by name.
    """
    for name in names:
        conditions = job.parameters[name].when if name in job.parameters else {}
        for other, allowed in conditions.items():
            if other in point and not any(space.is_same(point[other], allowed_value) for allowed_value in allowed):
                yield Issue((*field, name), f"does not exist with {other}: {point[other]!r}")


def _value_issues(job: Study, field: FieldPath, params: Mapping[str, Any]) -> Iterator[Issue]:
    """Yield issues of values of parameters in a field: unknown parameters, and values outside of the space.

    Args:
        job: The job, whose space is not code.
        field: Path of the field.
        params: Values of the parameters, by name.
    """
    for name, value in params.items():
        if name not in job.parameters:
            yield Issue((*field, name), _unknown_parameter(job, name))
        elif not job.parameters[name].contains(value):
            problem = f"{value!r} is outside of the space: {name} is {space.describe(job.parameters[name])}"
            yield Issue((*field, name), problem)


def _constraint_issues(job: Study) -> Iterator[Issue]:
    """Yield issues of the names of the metrics of constraints."""
    yield from base.metric_name_issues(("constraints",), [constraint.metric for constraint in job.constraints])


def _watched_metric_issues(job: Study) -> Iterator[Issue]:
    """Yield issues of the metric that the pruner compares, and of its direction."""
    metric, direction = job.pruner.metric, job.pruner.direction
    for field, value in (("metric", metric), ("direction", direction)):
        if value is not None and job.pruner.name == "none":
            yield Issue(("pruner", field), "is what a pruner watches, and none is named; write name: median, or drop it")
    if metric is None and direction is not None:
        problem = "applies only to pruner.metric, which is not set; the objective has a direction of its own"
        yield Issue(("pruner", "direction"), problem)
    if metric is not None and (name_problem := mlflow_names.problem(metric)):
        yield Issue(("pruner", "metric"), name_problem)
    for objective in job.objectives:
        if objective.metric == metric and direction not in (None, objective.direction):
            yield Issue(("pruner", "direction"), f"{metric} is an objective to {objective.direction}; drop this line")


def _promotion_issues(job: Study) -> Iterator[Issue]:
    """Yield issues of a pruner that promotes trials, and of a budget of steps, which needs such a pruner."""
    if not job.pruner.promotes:
        if job.budget.steps is not None:
            yield Issue(("budget", "steps"), "is for pruner: {name: asha, promote: true, max_resource: …}; drop it")
        return
    steps_or_issue = _checked_steps(job, ("pruner", "max_resource"), job.pruner.options["max_resource"])
    if isinstance(steps_or_issue, Issue):
        yield steps_or_issue
    elif job.budget.steps is not None and job.budget.steps < steps_or_issue:
        reason = f"{job.budget.steps} is not enough for one whole trial of {steps_or_issue} steps"
        yield Issue(("budget", "steps"), reason)
    if job.pruner.options.get("max") == "auto" and len(job.objectives) > 1:
        yield Issue(("pruner", "max"), "auto ranks trials by one value, and there are several objectives; drop it")


def _checked_steps(job: Study, field: tuple[str, str], steps: int | str) -> int | Issue:
    """Return the number of steps of a whole trial, or an issue if it is not a positive whole number.

    Args:
        job: The job.
        field: Path of the field that sets the number.
        steps: Value of the field: the number, or the parameter in `params` that has it.
    """
    if isinstance(steps, str) and steps not in job.params:
        return Issue(field, _missing_steps_problem(job, steps))
    count = job.params[steps] if isinstance(steps, str) else steps
    if type(count) is not int or count < 1:
        return Issue(("params", steps), f"must be a whole number over 0, not {count!r}: {'.'.join(field)} needs it")
    return count


def _missing_steps_problem(job: Study, name: str) -> str:
    """Return the message for a parameter that should set the number of steps of a whole trial, but is not in `params`."""
    if name in job.search.names:
        return f"{name} is searched, and must be the same in all trials"
    return f"{name} is not a parameter in params; {errors.nearest(name, job.params)}".rstrip("; ")


def _pruned_value_issues(job: Study) -> Iterator[Issue]:
    """Yield an issue if CMA-ES would take reports of the pruner's metric for values of the objective."""
    metric = job.pruner.metric
    if job.sampler.options.get("consider_pruned_trials") and metric not in (None, job.objectives[0].metric):
        reason = (
            f"takes the last report of a pruned trial for its {job.objectives[0].metric}, and the pruner watches {metric}"
        )
        yield Issue(("sampler", "consider_pruned_trials"), f"{reason}; drop this line, or pruner.metric")


def _multi_objective_issues(job: Study) -> Iterator[Issue]:
    """Yield issues of fields that cannot handle several objectives: a target, a pruner, a sampler and `keep`."""
    count = len(job.objectives)
    if count < 2:
        return
    yield from base.target_issues(job)
    if job.pruner.choice.objectives == 1 and not job.pruner.promotes:
        advice = "write pruner: none, or {name: asha, promote: true, max_resource: …}"
        yield Issue(("pruner",), f"trials cannot be pruned with {count} objectives; {advice}")
    if job.sampler.choice.objectives == 1:
        names = ", ".join(name for name, choice in options.SAMPLERS.items() if choice.objectives is None)
        yield Issue(("sampler",), f"{job.sampler.name} cannot handle {count} objectives; these can: {names}")
    if job.keep is not None:
        problem = "with several objectives there is a front, which may hold any number of trials, and no best ones"
        yield Issue(("keep",), f"{problem}; drop it")


def _enumeration_issues(job: Study) -> Iterator[Issue]:
    """Yield issues of a space whose points the samplers grid and bruteforce, which try all of them, cannot enumerate."""
    name = job.sampler.name
    if job.search.is_code and name == "grid":
        yield Issue(("sampler",), "grid needs the space in the job file, not in code; use bruteforce")
    if job.search.is_code or not job.sampler.enumerates:
        return
    issues = [issue for key in job.parameters for issue in _enumerated_parameter_issues(job, key)]
    yield from issues
    points = None if issues else _point_count(job)
    if points is not None and points > _MOST_POINTS:
        reason = f"{name} takes {_MOST_POINTS} points at most, and the space has {_count_text(points)}"
        yield Issue(("sampler",), f"{reason}; raise the steps, or take another, for example random")


def _enumerated_parameter_issues(job: Study, name: str) -> Iterator[Issue]:
    """Yield issues of a parameter whose values the sampler cannot try one by one."""
    parameter, sampler = job.parameters[name], job.sampler.name
    if isinstance(parameter, space.NormalParameter):
        yield Issue(("space", name), f"has no steps, and the {sampler} sampler tries every value; take another sampler")
    elif parameter.count is None:
        yield Issue(("space", name, "step"), f"is missing; the {sampler} sampler needs a step or choices")
    elif parameter.count > _MOST_POINTS:
        reason = f"has {parameter.count} values, and the {sampler} sampler takes {_MOST_POINTS} points at most"
        yield Issue(("space", name), f"{reason}; narrow it, raise the step or take another sampler")
    if parameter.when and sampler == "grid":
        yield Issue(("space", name, "when"), "the grid sampler does not support conditions; use bruteforce")


def _point_count(job: Study) -> int | None:
    """Return the number of points of the space. None if it is infinite or unknown, as with circular conditions."""
    return None if space.cycle(job.parameters) else space.count_points(job.search.parameters)


def _trial_count_issues(job: Study) -> Iterator[Issue]:
    """Yield an issue of a study with more trials than the points that its sampler, grid or bruteforce, tries."""
    if not job.sampler.enumerates or job.search.is_code or any(_enumeration_issues(job)):
        return
    points = _point_count(job)
    if points is not None and points < job.trials:
        message = f"{job.trials} is more than the space has points ({points}); write trials: {points} or less"
        yield Issue(("trials",), message)


def _start_point_issues(job: Study) -> Iterator[Issue]:
    """Yield issues of the start point `x0` of CMA-ES. Optuna would only raise a KeyError, in the first trial."""
    start = job.sampler.options.get("x0") if job.sampler.name == "cmaes" else None
    if start is None or job.search.is_code:
        return
    yield from _value_issues(job, ("sampler", "x0"), start)
    if not set(start) <= set(job.parameters):
        return  # a parameter that seems to be missing may only be misspelled
    for name, parameter in job.parameters.items():
        is_varied_number = not isinstance(parameter, space.CategoricalParameter) and parameter.count != 1
        if name not in start and is_varied_number:
            yield Issue(("sampler", "x0"), f"lacks {name}; cmaes starts from a value for each parameter that is a number")


def _value_count_issues(job: Study) -> Iterator[Issue]:
    """Yield issues of parameters with too many values for the gp sampler, which evaluates all of them."""
    if job.sampler.name != "gp":
        return
    for name, parameter in job.parameters.items():
        if (parameter.count or 0) > _MOST_VALUES:
            advice = "raise the step" if isinstance(parameter, space.IntParameter) else "raise the step or drop it"
            reason = f"has {parameter.count} values, and the gp sampler takes {_MOST_VALUES} at most"
            yield Issue(("space", name), f"{reason}; {advice}, or take another sampler")


def _searcher_issues(job: Study) -> Iterator[Issue]:
    """Yield issues of a searcher of Ray Tune, which needs the space before the first trial, and each result only once."""
    if not job.sampler.is_tune_searcher:
        return
    if job.search.is_code or not job.space:
        yield Issue(("sampler", "tune"), "needs the space in the job file; take a sampler of Optuna")
    if job.pruner.promotes:
        reason = "is told each result once, and a paused trial has none yet"
        yield Issue(("sampler", "tune"), f"{reason}; drop promote of the pruner, or take a sampler of Optuna")


def _history_issues(job: Study) -> Iterator[Issue]:
    """Yield issues of earlier studies from which the sampler cannot learn."""
    if not job.history:
        return
    name = job.sampler.name
    if name in _NOT_LEARNING:
        yield Issue(("history",), f"teaches {name} nothing, which does not learn from trials; take tpe, or drop it")
    if job.search.is_code:
        yield Issue(("history",), "needs the space in the job file, which says what the earlier values mean; drop it")
    clashes = sorted({"x0", "sigma0", "use_separable_cma", "source_trials"} & set(job.sampler.options))
    if name == "cmaes" and clashes:
        yield Issue(("sampler", clashes[0]), "cannot stand together with history, from which cmaes starts; drop one of them")


def _reused_steps_issues(job: Study) -> Iterator[Issue]:
    """Yield issues of `reuse.steps`, the parameter with the number of steps up to which an earlier trial is continued."""
    if not isinstance(job.reuse, Reuse):
        return
    steps = job.reuse.steps
    if steps not in job.params:
        yield Issue(("reuse", "steps"), _missing_steps_problem(job, steps))
    elif type(job.params[steps]) is not int:
        yield Issue(("params", steps), f"must be a whole number, not {job.params[steps]!r}: reuse.steps needs it")
    elif job.pruner.promotes:
        problem = "continues trials, and rungs count from step 0; write reuse: true, or drop promote"
        yield Issue(("reuse", "steps"), problem)


def _repetition_issues(job: Study) -> Iterator[Issue]:
    """Yield issues of a treatment of repeated parameters, `duplicates` or `reuse`, that the search does not support."""
    if job.duplicates == "redraw" and (job.sampler.enumerates or job.sampler.is_tune_searcher):
        reason = "draws by itself" if job.sampler.is_tune_searcher else "draws no point twice"
        yield Issue(("duplicates",), f"cannot be redraw: {job.sampler.name} {reason}; drop it")
    if job.search.suggests and (field := _repetition_field(job)):
        yield Issue((field,), "needs the space in the job file: an objective's parameters are known once it runs; drop it")


def _repetition_field(job: Study) -> str:
    """Return the field that says how trials with the parameters of earlier ones are treated. "" if they are trained."""
    if job.reuse:
        return "reuse"
    return "" if job.duplicates == "allow" else "duplicates"


def _memory_issues(job: Study) -> Iterator[Issue]:
    """Yield issues of the parameters in `avoid_oom`: ones that are not numbers, and searches that cannot draw again."""
    if not job.avoid_oom:
        return
    if job.search.is_code:
        yield Issue(("avoid_oom",), "needs the space in the job file, which says what is a number; drop it")
        return
    if job.sampler.enumerates or job.sampler.is_tune_searcher:
        yield Issue(("avoid_oom",), f"draws points again, and {job.sampler.name} tries each point once; drop it")
    if job.population is not None:
        yield Issue(("avoid_oom",), "draws points again, and members change their parameters; drop it")
    for index, name in enumerate(job.avoid_oom):
        parameter = job.parameters.get(name)
        choices = parameter.choices if isinstance(parameter, space.CategoricalParameter) else ()
        if parameter is None:
            yield Issue(("avoid_oom", index), _unknown_parameter(job, name))
        elif not all(map(is_number, choices)):
            problem = f"{name} has choices that are not numbers; drop it, as choices must be the same anyway"
            yield Issue(("avoid_oom", index), problem)


def _start_issues(job: Study) -> Iterator[Issue]:
    """Yield an issue of a checkpoint from which trials start, if the search counts their steps from 0."""
    if job.start is not None and job.search.ladder is not None:
        other = "pruner: {promote: true}" if job.population is None else "population"
        problem = f"begins after step 0, from which {other} counts the steps of trials; drop one of the two"
        yield Issue(("start",), problem)


def _population_issues(job: Study) -> Iterator[Issue]:
    """Yield issues of a population: its steps, its members, and parameters that it names."""
    population = job.population
    if population is None:
        return
    yield from _excluded_field_issues(job)
    yield from _interval_issues(job, population)
    if population.schedule:  # members repeat the printed schedule of an earlier run, and are not compared
        yield from _replay_issues(job, population)
    elif job.trials < 2:
        yield Issue(("trials",), "a population needs at least 2 members; 8 is a good start")
    if len(job.objectives) > 1:
        yield Issue(("population",), "compares members by one objective, and there are several; drop one of the two")
    if job.search.is_code:
        problem = "needs the space in the job file, from which parameters are changed; drop one of the two"
        yield Issue(("population",), problem)


def _excluded_field_issues(job: Study) -> Iterator[Issue]:
    """Yield issues of fields that cannot stand beside a population."""
    if job.constraints:
        problem = "bound the result of a whole trial, and members are compared at every interval, by their losses; drop them"
        yield Issue(("constraints",), problem)
    if job.pruner.name != "none":
        yield Issue(("pruner",), "ends trials, and the members of a population take over from others instead; drop it")
    if job.sampler.class_path:
        problem = "expects one result for each point, and members change their parameters; use random"
        yield Issue(("sampler", job.sampler.class_field), problem)
    if field := _repetition_field(job):
        yield Issue((field,), "takes results of whole trials, and members change their parameters; drop it")


def _interval_issues(job: Study, population: Population) -> Iterator[Issue]:
    """Yield issues of the number of steps of a whole trial, and of the interval at which its members are compared."""
    steps = _checked_steps(job, ("population", "steps"), population.steps)
    if isinstance(steps, Issue):
        yield steps
    elif not population.decisions(steps):
        yield Issue(("population", "interval"), f"{population.interval} must be under {steps}, the steps of a trial")
    elif population.decisions(steps) > MOST_DECISIONS:
        reason = f"{population.interval} makes {population.decisions(steps)} decisions of {steps} steps"
        yield Issue(("population", "interval"), f"{reason}, and {MOST_DECISIONS} are the most; raise it")


def _replay_issues(job: Study, population: Population) -> Iterator[Issue]:
    """Yield issues of a schedule: fields without an effect beside it, and steps that no trial reaches."""
    if job.enqueue:
        yield Issue(("enqueue",), "stands beside population.schedule, whose first entry has the parameters; drop it")
    for name, field in Population.model_fields.items():
        is_default = getattr(population, name) == field.get_default(call_default_factory=True)
        if name in _SEARCHING and not is_default:
            yield Issue(("population", name), "has no effect beside schedule, as members are not compared; drop it")
    assert isinstance(job.search.ladder, Intervals)
    step_count = job.search.ladder.top  # of a whole trial; 0 if the parameter that sets it is invalid
    for index, entry in enumerate(population.schedule):
        if 0 < step_count <= entry.step:
            problem = f"{entry.step} must be under {step_count}, the steps of a trial"
            yield Issue(("population", "schedule", index, "step"), problem)


def _population_parameter_issues(job: Study) -> Iterator[Issue]:
    """Yield issues of parameters that a population names: unknown ones, and entries of a schedule that are no points."""
    population = job.population
    if population is None or job.search.is_code:
        return
    names: dict[FieldPath, str] = {
        **{("population", "explore", name): name for name in population.explore},
        **{("population", "fixed", index): name for index, name in enumerate(population.fixed)},
    }
    for field, name in names.items():
        if name not in job.parameters:
            yield Issue(field, _unknown_parameter(job, name))
    for index, entry in enumerate(population.schedule):
        yield from _schedule_issues(job, ("population", "schedule", index, "params"), entry.params)


def _schedule_issues(job: Study, field: FieldPath, params: Mapping[str, Any]) -> Iterator[Issue]:
    """Yield issues of the parameters of one entry of a schedule, which must be a complete point of the space.

    Args:
        job: The job, whose space is not code.
        field: Path of the parameters.
        params: The parameters, by name.
    """
    yield from _value_issues(job, field, params)
    if not space.cycle(job.parameters):  # sorting raises an error for circular conditions, which `check` reports
        for name, parameter in job.search.parameters.items():
            if name not in params and space.is_active(parameter, params):
                yield Issue(field, f"lacks {name}")


def _reference_point_issues(job: Study) -> Iterator[Issue]:
    """Yield issues of NSGA-III's reference points: they need a coordinate for each objective, and must not be too many."""
    if job.sampler.name != "nsgaiii":
        return
    count, sampler_options = len(job.objectives), job.sampler.options
    for index, point in enumerate(sampler_options.get("reference_points") or ()):
        if len(point) != count:
            objectives = f"there {'is' if count == 1 else 'are'} {errors.counted(count, 'objective')}"
            problem = f"has {errors.counted(len(point), 'number')}, and {objectives}; write one for each"
            yield Issue(("sampler", "reference_points", index), problem)
    parts = sampler_options.get("dividing_parameter", job.sampler.choice.options["dividing_parameter"].default)
    points = math.comb(count + parts - 1, parts)  # those of a simplex whose sides are divided into this many parts
    if sampler_options.get("reference_points") is None and points > options.MOST_ROWS:
        reason = f"{parts} makes {_count_text(points)} reference points of {errors.counted(count, 'objective')}"
        yield Issue(("sampler", "dividing_parameter"), f"{reason}; {options.MOST_ROWS} are the most, so lower it")


def _node_issues(job: Study) -> Iterator[Issue]:
    """Yield an issue of autoscaling beside trials of several nodes."""
    if job.cluster.autoscale and job.nodes > 1:
        yield Issue(("cluster", "autoscale"), "the nodes of a trial must all be there before it starts; drop it")


def _count_text(number: int) -> str:
    """Return a count for a message. Python does not print numbers of more than 4,300 digits."""
    return str(number) if number < 10**18 else f"over 10^{math.floor(math.log10(number))}"


_OF_SPACE = {"space", "entrypoint"}
# Rules of a search → fields that must be valid for the rule to apply. Any other field that is invalid has its default in the
# job that is checked, about which the rule has no issue.
_RULES: Mapping[Callable[[Study], Iterator[Issue]], set[str]] = {
    _constraint_issues: set(),
    _watched_metric_issues: set(),
    _promotion_issues: {"pruner"},
    _pruned_value_issues: {"objectives"},
    _multi_objective_issues: set(),
    _enumeration_issues: _OF_SPACE,
    _trial_count_issues: {*_OF_SPACE, "trials"},
    _start_point_issues: _OF_SPACE,
    _value_count_issues: _OF_SPACE,
    _searcher_issues: _OF_SPACE,
    _history_issues: set(),
    _reused_steps_issues: set(),
    _repetition_issues: set(),
    _memory_issues: _OF_SPACE,
    _start_issues: set(),
    _population_issues: {"params"},
    _population_parameter_issues: {*_OF_SPACE, "params"},
    _reference_point_issues: {"objectives"},
    _node_issues: set(),
}
