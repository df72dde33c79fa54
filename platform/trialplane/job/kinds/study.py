"""A study: a search for good parameters among many trials."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag

from trialplane import errors
from trialplane.errors import FieldPath, Issue
from trialplane.job import mlflow_names, models, options, sampling, space, values
from trialplane.job.kinds import base, program
from trialplane.job.kinds.ranked import Ranked
from trialplane.job.kinds.roles import Role
from trialplane.job.options import ValueKind
from trialplane.job.population import MOST_DECISIONS, Intervals, Population
from trialplane.job.program import nested_config, split_style
from trialplane.job.resources import Checkpoints, Keep
from trialplane.job.sampling import Pruner, Sampler
from trialplane.job.search import Constraint, Ladder, Search

# Limit of the points of a grid. A larger grid would take years, and each draw iterates over all remaining points.
_MOST_POINTS = 100_000
_NOT_LEARNING = ("random", "qmc", "grid", "bruteforce")  # samplers that do not learn from trials
# Fields of a population that say how its members are compared and changed, and so have no effect beside a schedule.
_SEARCHING = ("exploit", "share", "factors", "resample", "explore", "fixed", "quorum", "growth", "patience")
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
            suggests=self._style == "optuna",
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
    def _style(self) -> str:
        """Style of the entrypoint, see `job.program`. "" if it gets the trial's context, or for a script or command."""
        return "" if self.script or self.command else split_style(self.entrypoint)[0]

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
        advice = "submit another study, with history: [RUN]"
        if old.population is not None and self.trials != old.trials:
            yield Issue(("trials",), "is the size of the population, which does not change; submit another study")
        # The rungs of a population cannot change: `population` is not in `changeable`, so a change of it is refused anyway.
        if self.population is None and old.population is None:
            has_other_rungs = old.search.ladder != self.search.ladder
            promotes_by_other_rule = self.pruner.promotes and self.pruner != old.pruner
            if has_other_rungs or promotes_by_other_rule:
                yield Issue(("pruner",), f"changes the rungs at which trials are paused, or who is promoted there; {advice}")
        has_other_space, has_other_sampler = self.space != old.space, self.sampler != old.sampler
        if has_other_space and (self.search.is_code or old.search.is_code):
            yield Issue(("space",), f"is or was code, and cannot change when a study is resumed; {advice}")
        enumerating_samplers = sorted({self.sampler.name, old.sampler.name} & {"grid", "bruteforce"})
        if enumerating_samplers and (has_other_space or has_other_sampler):
            field = "space" if has_other_space else "sampler"
            yield Issue((field,), f"changes the points that {enumerating_samplers[0]} counts; {advice}")
        elif has_other_space and not has_other_sampler and self.sampler.name == "cmaes":
            yield Issue(("space",), f"changes the scales of cmaes; set another sampler as well, or {advice}")

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
        if self.sampler.class_path:
            yield base.Function(
                field=("sampler", "tune" if self.sampler.is_tune_searcher else "class"),
                text=self.sampler.class_path,
                arguments=(),
                style="class",
            )
        for field, kind, algorithm in (
            ("sampler", ValueKind.SAMPLER, self.sampler),
            ("pruner", ValueKind.PRUNER, self.pruner),
        ):
            flat = {"name": algorithm.name, **algorithm.options}
            yield from (base.Function((field, *option_path), text) for option_path, text in sampling.functions(kind, flat))

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
        broken_params = {field_path[1] for field_path in broken if field_path[0] == "space" and len(field_path) > 1}
        is_space_valid = ("space",) not in broken and ("entrypoint",) not in broken  # an objective of Optuna is a space too
        if is_space_valid:
            yield from _style_issues(self, self._style)
        if is_space_valid and not self.search.is_code:
            yield from _condition_issues(self, broken_params)
            yield from _enqueue_issues(self, broken_params)
        yield from super().check(broken)
        yield from base.metric_name_issues(("constraints",), [constraint.metric for constraint in self.constraints])
        for name in self.search.names:
            if problem := mlflow_names.problem(mlflow_names.parameter(name)):
                yield Issue(("space", name), problem)
        if ("pruner",) not in broken:
            yield from _watched_metric_issues(self)
            yield from _promotion_issues(self)
        if not {("pruner",), ("sampler",), ("objectives",)} & set(broken):
            yield from _pruned_value_issues(self)
        yield from _multi_objective_issues(self, broken)
        if is_space_valid and not broken_params and ("sampler",) not in broken:
            yield from _enumeration_issues(self, checks_trials=("trials",) not in broken)
            yield from _start_point_issues(self)
            yield from _value_count_issues(self)
            yield from _searcher_issues(self)
        yield from _history_issues(self)
        yield from _duplicates_issues(self)
        if is_space_valid and not broken_params:
            yield from _memory_issues(self)
        if self.start is not None and (self.population is not None or self.pruner.promotes):
            other = "pruner: {promote: true}" if self.population is None else "population"
            problem = f"begins after step 0, from which {other} counts the steps of trials; drop one of the two"
            yield Issue(("start",), problem)
        if self.population is not None and not {("population",), ("params",)} & set(broken):
            yield from _population_issues(self, self.population, broken)
        if not {("sampler",), ("objectives",)} & set(broken):
            yield from _reference_point_issues(self)
        if self.keep is not None and len(self.objectives) > 1:
            problem = "with several objectives there is a front, which may hold any number of trials, and no best ones"
            yield Issue(("keep",), f"{problem}; drop it")
        if self.cluster.autoscale and self.nodes > 1:
            yield Issue(("cluster", "autoscale"), "the nodes of a trial must all be there before it starts; drop it")


def _style_issues(job: Study, style: str) -> Iterator[Issue]:
    """Yield issues of fields, except `space`, that an objective of Optuna or a trainable of Ray Tune does not allow.

    A space beside an objective is an issue of `trialplane.job.entrypoint`, which reads the code for the parameters there.

    Args:
        job: The job.
        style: "optuna" or "ray"; "" for any other program.
    """
    if not style:
        return
    if job.world_size > 1:
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
        job: The job, whose space is not code.
        broken_params: Names of invalid parameters, which are missing in the space.
    """
    assert not isinstance(job.space, str)
    for name, parameter in job.space.items():
        for other, allowed in parameter.when.items():
            field_path = ("space", name, "when", other)
            if other in broken_params:
                continue
            if other not in job.space:
                yield Issue(field_path, _unknown_parameter(job, other))
                continue
            # A list is read as several allowed values, but the author may have meant one value that is a list.
            is_one_value = job.space[other].contains(list(allowed))
            advice = f"; for that list write {other}: [{list(allowed)}]" if is_one_value else ""
            for value in allowed:
                if not job.space[other].contains(value):
                    yield Issue(field_path, f"{other} is never {value!r}; it is {space.describe(job.space[other])}{advice}")
    if cycle := space.cycle(job.space):
        yield Issue(("space", cycle[0], "when"), f"the conditions go round in a circle: {' → '.join(cycle)}")


def _unknown_parameter(job: Study, name: str) -> str:
    """Return the message for a name that is not a parameter of the space, with a similar one."""
    return f"there is no parameter {name!r} in the space; {errors.nearest(name, job.space)}".rstrip("; ")


def _enqueue_issues(job: Study, broken_params: Collection[Any]) -> Iterator[Issue]:
    """Yield issues of the points to try first: unknown parameters, values outside of the space, and repeated points.

    Args:
        job: The job, whose space is not code.
        broken_params: Names of invalid parameters, which are missing in the space.
    """
    assert not isinstance(job.space, str)
    first_indices: dict[str, int] = {}  # a point as JSON → index of the first such point
    for index, point in enumerate(job.enqueue):
        first_index = first_indices.setdefault(json.dumps(point, sort_keys=True), index)
        if first_index != index and job.sampler.name in ("grid", "bruteforce"):
            message = f"repeats enqueue.{first_index}, and {job.sampler.name} tries every point once; drop it"
            yield Issue(("enqueue", index), message)
        checked = {name: value for name, value in point.items() if name not in broken_params}
        yield from _value_issues(job, ("enqueue", index), checked)
        for name in checked:
            conditions = job.space[name].when if name in job.space else {}
            for other, allowed in conditions.items():
                if other in point and not any(space.is_same(point[other], allowed_value) for allowed_value in allowed):
                    yield Issue(("enqueue", index, name), f"does not exist with {other}: {point[other]!r}")
        missing = [name for name in job.space if name not in point]
        if missing and job.sampler.name == "grid" and not broken_params:
            yield Issue(("enqueue", index), f"with the grid sampler a point must be whole; {', '.join(missing)} missing")


def _watched_metric_issues(job: Study) -> Iterator[Issue]:
    """Yield issues of the metric that the pruner compares, and of its direction."""
    pruner = job.pruner
    for field in ("metric", "direction"):
        if getattr(pruner, field) is not None and pruner.name == "none":
            yield Issue(("pruner", field), "is what a pruner watches, and none is named; write name: median, or drop it")
    if pruner.metric is None:
        if pruner.direction is not None:
            yield Issue(
                ("pruner", "direction"),
                "applies only to pruner.metric, which is not set; the objective has a direction of its own",
            )
        return
    if problem := mlflow_names.problem(pruner.metric):
        yield Issue(("pruner", "metric"), problem)
    for objective in job.objectives:
        if objective.metric == pruner.metric and pruner.direction not in (None, objective.direction):
            yield Issue(
                ("pruner", "direction"), f"{objective.metric} is an objective to {objective.direction}; drop this line"
            )


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


def _population_issues(job: Study, population: Population, broken: Collection[Any]) -> Iterator[Issue]:
    """Yield issues of fields that a population excludes or requires.

    Args:
        job: The job.
        population: Its population.
        broken: Paths of invalid fields, which have their defaults and get no further issue; see `Base.check`.
    """
    is_replay = bool(population.schedule)  # members repeat the printed schedule of an earlier run, and are not compared
    if is_replay:
        yield from _replay_issues(job, population)
    if job.constraints:
        problem = "bound the result of a whole trial, and members are compared at every interval, by their losses; drop them"
        yield Issue(("constraints",), problem)
    yield from _interval_issues(job, population)
    if ("pruner",) not in broken and job.pruner.name != "none":
        yield Issue(("pruner",), "ends trials, and the members of a population take over from others instead; drop it")
    if ("trials",) not in broken and job.trials < 2 and not is_replay:
        yield Issue(("trials",), "a population needs at least 2 members; 8 is a good start")
    if len(job.objectives) > 1:
        yield Issue(("population",), "compares members by one objective, and there are several; drop one of the two")
    if ("sampler",) not in broken and job.sampler.class_path:
        field = "tune" if job.sampler.is_tune_searcher else "class"
        yield Issue(("sampler", field), "expects one result for each point, and members change their parameters; use random")
    if job.reuse or job.duplicates != "allow":
        field = "reuse" if job.reuse else "duplicates"
        yield Issue((field,), "takes results of whole trials, and members change their parameters; drop it")
    if job.search.is_code:
        yield Issue(
            ("population",), "needs the space in the job file, from which parameters are changed; drop one of the two"
        )
    elif ("space",) not in broken:
        for name in population.explore:
            if name not in job.search.names:
                yield Issue(("population", "explore", name), _unknown_parameter(job, name))
        for index, name in enumerate(population.fixed):
            if name not in job.search.names:
                yield Issue(("population", "fixed", index), _unknown_parameter(job, name))
        for index, entry in enumerate(population.schedule):
            yield from _schedule_issues(job, ("population", "schedule", index, "params"), entry.params)


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


def _schedule_issues(job: Study, field: FieldPath, params: Mapping[str, Any]) -> Iterator[Issue]:
    """Yield issues of the parameters of one entry of a schedule, which must be a complete point of the space.

    Args:
        job: The job, whose space is not code.
        field: Path of the parameters.
        params: The parameters, by name.
    """
    assert not isinstance(job.space, str)
    yield from _value_issues(job, field, params)
    if not space.cycle(job.space):  # `parameters` raises an error for circular conditions, which `check` reports
        for name, parameter in job.search.parameters.items():
            if name not in params and space.is_active(parameter, params):
                yield Issue(field, f"lacks {name}")


def _value_issues(job: Study, field: FieldPath, params: Mapping[str, Any]) -> Iterator[Issue]:
    """Yield issues of values of parameters in a field: unknown parameters, and values outside of the space.

    Args:
        job: The job, whose space is not code.
        field: Path of the field.
        params: Values of the parameters, by name.
    """
    assert not isinstance(job.space, str)
    for name, value in params.items():
        if name not in job.space:
            yield Issue((*field, name), _unknown_parameter(job, name))
        elif not job.space[name].contains(value):
            problem = f"{value!r} is outside of the space: {name} is {space.describe(job.space[name])}"
            yield Issue((*field, name), problem)


def _pruned_value_issues(job: Study) -> Iterator[Issue]:
    """Yield an issue if CMA-ES would take reports of the pruner's metric for values of the objective."""
    metric = job.pruner.metric
    if job.sampler.options.get("consider_pruned_trials") and metric not in (None, job.objectives[0].metric):
        reason = (
            f"takes the last report of a pruned trial for its {job.objectives[0].metric}, and the pruner watches {metric}"
        )
        yield Issue(("sampler", "consider_pruned_trials"), f"{reason}; drop this line, or pruner.metric")


def _multi_objective_issues(job: Study, broken: Collection[Any]) -> Iterator[Issue]:
    """Yield issues of a target, a pruner and a sampler that cannot handle several objectives. None with one objective."""
    count = len(job.objectives)
    if count < 2 or ("objectives",) in broken:
        return
    yield from base.target_issues(job)
    if ("pruner",) not in broken and job.pruner.choice.objectives == 1 and not job.pruner.promotes:
        advice = "write pruner: none, or {name: asha, promote: true, max_resource: …}"
        yield Issue(("pruner",), f"trials cannot be pruned with {count} objectives; {advice}")
    if ("sampler",) not in broken and job.sampler.choice.objectives == 1:
        names = ", ".join(name for name, choice in options.SAMPLERS.items() if choice.objectives is None)
        yield Issue(("sampler",), f"{job.sampler.name} cannot handle {count} objectives; these can: {names}")


def _enumeration_issues(job: Study, *, checks_trials: bool) -> Iterator[Issue]:
    """Yield issues of the samplers grid and bruteforce, which try every point of the space once.

    Args:
        job: The job.
        checks_trials: Whether to compare the number of trials, which must be valid, with the number of points.
    """
    name = job.sampler.name
    if name not in ("grid", "bruteforce"):
        return
    if job.search.is_code:
        if name == "grid":
            yield Issue(("sampler",), "grid needs the space in the job file, not in code; use bruteforce")
        return
    assert not isinstance(job.space, str)
    infinite = [key for key, parameter in job.space.items() if parameter.count is None]
    for key in infinite:
        if isinstance(job.space[key], space.NormalParameter):
            yield Issue(("space", key), f"has no steps, and the {name} sampler tries every value; take another sampler")
        else:
            yield Issue(("space", key, "step"), f"is missing; the {name} sampler needs a step or choices")
    conditional = [key for key, parameter in job.space.items() if parameter.when] if name == "grid" else []
    for key in conditional:
        yield Issue(("space", key, "when"), "the grid sampler does not support conditions; use bruteforce")
    too_many = [(key, parameter.count) for key, parameter in job.space.items() if (parameter.count or 0) > _MOST_POINTS]
    for key, count in too_many:
        reason = f"has {count} values, and the {name} sampler takes {_MOST_POINTS} points at most"
        yield Issue(("space", key), f"{reason}; narrow it, raise the step or take another sampler")
    if infinite or conditional or too_many or space.cycle(job.space):
        return
    points = space.count_points(job.search.parameters)
    if points is not None and points > _MOST_POINTS:
        reason = f"{name} takes {_MOST_POINTS} points at most, and the space has {_count_text(points)}"
        yield Issue(("sampler",), f"{reason}; raise the steps, or take another, for example random")
    elif points is not None and points < job.trials and checks_trials:
        message = f"{job.trials} is more than the space has points ({points}); write trials: {points} or less"
        yield Issue(("trials",), message)


def _start_point_issues(job: Study) -> Iterator[Issue]:
    """Yield issues of the start point `x0` of CMA-ES. Optuna would only raise a KeyError, in the first trial."""
    start = job.sampler.options.get("x0") if job.sampler.name == "cmaes" else None
    if start is None or job.search.is_code:
        return
    assert not isinstance(job.space, str)
    yield from _value_issues(job, ("sampler", "x0"), start)
    if not set(start) <= set(job.space):
        return  # a parameter that seems to be missing may only be misspelled
    for name, parameter in job.space.items():
        is_varied_number = not isinstance(parameter, space.CategoricalParameter) and parameter.count != 1
        if name not in start and is_varied_number:
            yield Issue(("sampler", "x0"), f"lacks {name}; cmaes starts from a value for each parameter that is a number")


def _value_count_issues(job: Study) -> Iterator[Issue]:
    """Yield issues of parameters with too many values for the gp sampler, which evaluates all of them."""
    if job.sampler.name != "gp" or isinstance(job.space, str):
        return
    for name, parameter in job.space.items():
        if (parameter.count or 0) > _MOST_VALUES:
            advice = "raise the step" if isinstance(parameter, space.IntParameter) else "raise the step or drop it"
            reason = f"has {parameter.count} values, and the gp sampler takes {_MOST_VALUES} at most"
            yield Issue(("space", name), f"{reason}; {advice}, or take another sampler")


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


def _duplicates_issues(job: Study) -> Iterator[Issue]:
    """Yield issues of the treatment of repeated parameters, `duplicates` and `reuse`, that the search does not support."""
    name = job.sampler.name
    if isinstance(job.reuse, Reuse):
        steps = job.reuse.steps
        if steps not in job.params:
            yield Issue(("reuse", "steps"), _missing_steps_problem(job, steps))
        elif type(job.params[steps]) is not int:
            yield Issue(("params", steps), f"must be a whole number, not {job.params[steps]!r}: reuse.steps needs it")
        elif job.pruner.promotes:
            problem = "continues trials, and rungs count from step 0; write reuse: true, or drop promote"
            yield Issue(("reuse", "steps"), problem)
    if job.duplicates == "redraw" and (name in ("grid", "bruteforce") or job.sampler.is_tune_searcher):
        reason = "draws by itself" if job.sampler.is_tune_searcher else "draws no point twice"
        yield Issue(("duplicates",), f"cannot be redraw: {name} {reason}; drop it")
    if job.search.suggests and (job.reuse or job.duplicates != "allow"):
        field = "reuse" if job.reuse else "duplicates"
        yield Issue((field,), "needs the space in the job file: an objective's parameters are known once it runs; drop it")


def _memory_issues(job: Study) -> Iterator[Issue]:
    """Yield issues of the parameters in `avoid_oom`: ones that are not numbers, and searches that cannot draw again."""
    name = job.sampler.name
    if not job.avoid_oom:
        return
    if isinstance(job.space, str) or job.search.is_code:
        yield Issue(("avoid_oom",), "needs the space in the job file, which says what is a number; drop it")
        return
    if name in ("grid", "bruteforce") or job.sampler.is_tune_searcher:
        yield Issue(("avoid_oom",), f"draws points again, and {name} tries each point once; drop it")
    if job.population is not None:
        yield Issue(("avoid_oom",), "draws points again, and members change their parameters; drop it")
    for index, listed in enumerate(job.avoid_oom):
        parameter = job.space.get(listed)
        choices = parameter.choices if isinstance(parameter, space.CategoricalParameter) else ()
        if parameter is None:
            yield Issue(("avoid_oom", index), _unknown_parameter(job, listed))
        elif not all(type(choice) in (int, float) for choice in choices):
            problem = f"{listed} has choices that are not numbers; drop it, as choices must be the same anyway"
            yield Issue(("avoid_oom", index), problem)


def _searcher_issues(job: Study) -> Iterator[Issue]:
    """Yield issues of a searcher of Ray Tune, which needs the space before the first trial, and each result only once."""
    if not job.sampler.is_tune_searcher:
        return
    if job.search.is_code or not job.space:
        yield Issue(("sampler", "tune"), "needs the space in the job file; take a sampler of Optuna")
    if job.pruner.promotes:
        reason = "is told each result once, and a paused trial has none yet"
        yield Issue(("sampler", "tune"), f"{reason}; drop promote of the pruner, or take a sampler of Optuna")


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


def _count_text(number: int) -> str:
    """Return a count for a message. Python does not print numbers of more than 4,300 digits."""
    return str(number) if number < 10**18 else f"over 10^{math.floor(math.log10(number))}"
