"""The platform as a Python object: `Platform().submit(objective, space={…}, trials=24).wait()`.

The command line and the MCP server are thin layers over this.
"""

from __future__ import annotations

import dataclasses
import getpass
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import trialplane
from trialplane import errors
from trialplane.client import earlier_runs, functions, git
from trialplane.client import run as running
from trialplane.client import target as targets
from trialplane.client.local import LocalTarget
from trialplane.client.run import RunHandle, SubmissionOutcome
from trialplane.client.target import Target
from trialplane.errors import InputError, Issue, RunNotFound, SpecError
from trialplane.importing import script_folder
from trialplane.job import arguments, inputs, load, requirements, short_forms
from trialplane.job.kinds import Job, Study
from trialplane.job.load import Flag
from trialplane.plan import pack as packing
from trialplane.plan import plan as planning
from trialplane.plan.plan import Plan, Provenance
from trialplane.wire import cluster

_UNCHECKED = "no cluster was contacted; after `kubectl apply`, `kubectl get runs` shows whether it can run there"


@dataclasses.dataclass(frozen=True)
class _Request:
    """Arguments of `Platform.prepare` other than the job and the command, and the name of the script if the job is one."""

    name: str | None
    profile: str | None
    sets: Sequence[str]
    overrides: Mapping[str, Any]
    params: Mapping[str, Any]
    issues: Sequence[Issue]
    kind: str | None
    offline: bool
    script: str = ""


@dataclasses.dataclass
class _Findings:
    """Findings about a job: issues, which prevent its submission, and notes for the user."""

    issues: list[Issue]
    notes: list[str]


@dataclasses.dataclass(frozen=True)
class PreparedRun:
    """A checked plan, ready to be started, and warnings for the user."""

    plan: Plan
    warnings: tuple[str, ...]


class Platform:
    """Submits runs to a target, and finds them again.

    Args:
        target: Where runs are. Default: this machine. For a cluster, give a `KubernetesTarget`.
    """

    def __init__(self, target: Target | None = None) -> None:
        self.target: Target = target or LocalTarget()

    def prepare(
        self,
        job: str | Path | Callable[..., Any],
        *,
        name: str | None = None,
        profile: str | None = None,
        sets: Sequence[str] = (),
        overrides: Mapping[str, Any] | None = None,
        params: Mapping[str, Any] | None = None,
        command: Sequence[str] = (),
        issues: Sequence[Issue] = (),
        kind: str | None = None,
        offline: bool = False,
    ) -> PreparedRun:
        """Check a job and pack its code, without starting or writing anything.

        Args:
            job: Name of a job, path of its folder or of a script, or a function; see `submit`.
            name: Name of the run. Default: the job's name and the time.
            profile: Name of one of the job's profiles.
            sets: Fields to set, as `field=value`.
            overrides: Fields to set: dotted field → value or `load.Flag`. None stands for a flag that was not given.
            params: Parameters to fix. They are removed from the space. For a function, values of its arguments.
            command: Command that the user typed, for the record.
            issues: Issues that the caller found, to report with the others.
            kind: Required kind of the job. Default: any; of a script, hpo.
            offline: Whether the run is for a cluster that is not contacted.

        Returns:
            The plan, to give to `start`, and warnings.

        Raises:
            JobNotFound: No job has this name.
            SpecError: The job, its data, the run's name or the target has issues, or a function cannot be sent.
            InputError: The code cannot be packed.
        """
        request = _Request(
            name, profile, sets, overrides=overrides or {}, params=params or {}, issues=issues, kind=kind, offline=offline
        )
        if isinstance(job, (str, Path)):
            if (script := _script_path(Path(job))) is not None:
                folder, script_name = script_folder.code_of(script)
                request = dataclasses.replace(request, kind=kind or "hpo", script=script_name)
            else:
                folder = load.find_job(str(job), Path.cwd())
            return self._prepare_folder(folder, request, _provenance(folder, command))
        if callable(job):
            return self._prepare_function(functions.function_job(job, request.params), request, command)
        problem = f"is a {type(job).__name__}; give the name of a job, the path of its folder, or a function"
        raise SpecError([*issues, Issue(("job",), problem, "submit(…)")])

    def _prepare_function(
        self, function_job: functions.FunctionJob, request: _Request, command: Sequence[str]
    ) -> PreparedRun:
        """Prepare the job of a function; see `prepare`."""
        space = request.overrides.get("space")
        if isinstance(space, Flag):
            space = space.value
        if not isinstance(space, Mapping):  # missing, or invalid, which gets its issue when the job is loaded
            space = {}
        # Values of arguments become the job's field `params`, and are not parameters to remove from the space of a job.
        params_field = Flag(dict(request.params) or None, "submit(params=…)")
        request = dataclasses.replace(
            request,
            overrides={**request.overrides, "params": params_field},
            params={},
            issues=[*request.issues, *function_job.check(space, request.params)],
        )
        with tempfile.TemporaryDirectory(prefix="trialplane-") as scratch:
            folder = Path(scratch, function_job.name)
            function_job.write(folder)
            return self._prepare_folder(folder, request, _provenance(function_job.origin, command))

    def _prepare_folder(self, folder: Path, request: _Request, provenance: Provenance) -> PreparedRun:
        """Prepare a job in a folder; see `prepare`."""
        findings = _Findings(issues=list(request.issues), notes=[])
        job = self._check_job(folder, request, findings)
        if request.name is not None:
            findings.issues += planning.check_name(request.name)
        if request.offline:
            findings.notes.append(_UNCHECKED)
        else:
            self._check_target(job, request.name, findings)
        if findings.issues or job is None:
            raise SpecError(findings.issues)
        existing_runs = () if request.offline else self.target.runs()
        run = request.name or planning.default_name(job.name, existing_runs, time.localtime())
        plan = planning.plan(job, folder, run, provenance)
        if not request.offline:
            gathered = earlier_runs.gather(self.target, plan)
            if gathered.issues:
                raise SpecError(gathered.issues)
            plan = planning.add_earlier_trials(plan, folder, gathered.earlier)
            findings.notes += gathered.notes
        return PreparedRun(plan, (*findings.notes, *job.advice()))

    def _check_job(self, folder: Path, request: _Request, findings: _Findings) -> Job | None:
        """Return the resolved job of a folder, and add findings about it, its data and its requirements.

        The job is None if it is invalid.
        """
        try:
            job = load.load_job(
                folder,
                profile=request.profile,
                sets=request.sets,
                overrides=request.overrides,
                params=request.params,
                environ=os.environ,
                kind=request.kind,
                script=request.script,
            )
        except SpecError as error:
            findings.issues += error.issues
            return None
        are_set = "arguments" in request.overrides or any(text.startswith("arguments") for text in request.sets)
        job_arguments = getattr(job, "arguments", None)
        places = ["its text"] * (arguments.GLOBALS in str(job_arguments)) + list(getattr(job_arguments, "files", ()))
        place = " and ".join(filter(None, places))
        if request.script and place and not are_set:
            names = ", ".join([*job.params, *job.search.names])
            findings.notes.append(f"{request.script} reads no arguments: each trial sets {names} in a copy of {place}")
        is_remote = request.offline or self.target.remote
        data_folder = cluster.DATA if is_remote else ""
        findings.issues += inputs.check_inputs(job, folder, data_folder, is_remote=is_remote)
        try:
            _check_requirements(folder, job, findings, is_remote=is_remote)
        except SpecError as error:
            findings.issues += error.issues
        return job

    def _check_target(self, job: Job | None, name: str | None, findings: _Findings) -> None:
        """Add findings about the target, and about the checkpoint from which the run is to start.

        `job` is None if it is invalid, and `name` for a default name.
        """
        try:
            target_issues, warnings = self.target.check(job)
            findings.issues += [*target_issues, *self._resume_issues(job, name)]
            findings.notes += warnings
        except InputError as error:  # the target itself cannot be used: there is no such context, or no kubeconfig
            findings.issues.append(Issue(("--context",), str(error)))

    def _resume_issues(self, job: Job | None, name: str | None) -> list[Issue]:
        """Return the issue if a run cannot start from the checkpoint that its job names. Empty if it can, or names none."""
        if job is None or job.origin is None:
            return []
        field, option = ("start", "--from") if job.kind == "hpo" else ("resume", "--resume")
        if job.origin == name:
            return [Issue((field,), f"is this run itself; `platform resume {name}` continues it", option)]
        try:
            reason = self._resume_obstacle(self.target.job(job.origin), job, job.origin)
        except RunNotFound as error:
            reason = str(error)
        return [Issue((field,), reason, option)] if reason else []

    def _resume_obstacle(self, old: Job, new: Job, run: str) -> str:
        """Return why a run of the job `new` cannot start from a checkpoint of `run`, whose job is `old`; "" if it can."""
        if old.title != new.title:
            hint = f"; `platform best {run}` has its parameters" if old.search.space else ""
            return f"{run} is a {old.title}, and a {new.title} starts from another {new.title}{hint}"
        if old.name != new.name:
            return f"{run} is a {new.title} of the job {old.name}, whose checkpoints {new.name} cannot read; `platform list`"
        if isinstance(old, Study) and old.population is not None:
            return f"{run} has a population, whose checkpoints are not those of one trial; start from a run without one"
        return self.target.missing_checkpoint(run, new)

    def start(self, plan: Plan) -> tuple[RunHandle, SubmissionOutcome]:
        """Start a prepared plan.

        Args:
            plan: Plan of `prepare`.

        Returns:
            The run, and the outcome of its submission: for example new, or resumed because it existed.

        Raises:
            RunExists: A run with this name exists and has another spec.
        """
        outcome = running.submit(self.target, plan)
        return RunHandle(plan.run, self.target), outcome

    def submit(
        self,
        job: str | Path | Callable[..., Any],
        *,
        space: Mapping[str, Mapping[str, Any] | list[Any] | str] | None = None,
        objective: str | Sequence[str] | None = None,
        direction: str | Sequence[str] | None = None,
        trials: int | None = None,
        parallel: int | None = None,
        seed: int | None = None,
        params: Mapping[str, Any] | None = None,
        name: str | None = None,
        profile: str | None = None,
        overrides: Mapping[str, Any] | None = None,
    ) -> RunHandle:
        """Start a run of a job, a script or a function. The run continues after this process ends.

        A function can be defined in a notebook: its source is sent, with the imports, constants, functions and classes that
        it uses. Its arguments are parameters; an argument named `ctx` is the trial's `Context`. It returns a number or a
        dict of metrics.

        Args:
            job: Name of a job, path of its folder or of a Python script, or a function.
            space: Parameters to search, in addition to the job's. Each is a string as for `--space`, a list of choices, or a
                mapping as in job.yaml:
                `{"lr": "1e-5..1e-2:log", "penalty": ["l1", "l2"], "layers": {"type": "int", "low": 1, "high": 6}}`.
                A function without a space is called once.
            objective: Metric to optimize, or several. Default for a function: `value`, the number that it returns.
            direction: "minimize" or "maximize", or one for each objective. Default: "minimize".
            trials: Number of trials.
            parallel: Number of trials that run at the same time.
            seed: Seed of the run's random numbers.
            params: Parameters to fix, by name.
            name: Name of the run. Default: the job's name and the time.
            profile: Name of one of the job's profiles.
            overrides: Other fields of job.yaml: `{"pruner": "median", "resources.cpus": 2, "budget.timeout": "10m"}`.

        Returns:
            The run.

        Raises:
            JobNotFound: No job has this name.
            SpecError: The job has issues, or a function uses something that cannot be sent. Nothing was started.
            RunExists: A run with this name exists and has another spec.
        """
        fields: dict[str, Any] = dict(overrides or {})
        if callable(job) and not space and not {"space", "trials"} & set(fields):
            fields["trials"] = 1  # without a space, a function is called once
        space_fields = None if space is None else short_forms.space(space, "submit(space=…)")
        arguments = {"space": space_fields, "trials": trials, "parallel": parallel, "seed": seed}
        fields |= {field: Flag(value, f"submit({field}=…)") for field, value in arguments.items() if value is not None}
        fields |= _objectives(objective, direction, is_function=callable(job))
        issues = [
            Issue(("params", parameter), "is searched as well; leave it out of one", "submit(space=…)")
            for parameter in sorted(set(space or ()) & set(params or ()))
        ]
        prepared = self.prepare(job, name=name, profile=profile, overrides=fields, params=params, issues=issues)
        return self.start(prepared.plan)[0]

    def list(self) -> list[RunHandle]:
        """List all runs, newest first."""
        return [RunHandle(name, self.target) for name in self.target.runs()]

    def get(self, run: str | None = None) -> RunHandle:
        """Find a run.

        Args:
            run: Name of the run. Default: the newest run.

        Raises:
            RunNotFound: No run has this name, or there are no runs.
        """
        if run is None:
            names = self.target.runs()
            if not names:
                raise RunNotFound(targets.no_runs_message(self.target))
            return RunHandle(names[0], self.target)
        self.target.is_active(run)  # raises for an unknown name
        return RunHandle(run, self.target)


def _check_requirements(folder: Path, job: Job, findings: _Findings, *, is_remote: bool) -> None:
    """Add issues of a job's requirements, and notes about those that cannot be checked. On a cluster, `is_remote` is set.

    Raises:
        SpecError: The requirements are invalid.
    """
    required = requirements.job_requirements(job, folder, requirements.source_prefix(folder))
    file_names = (name for name, _ in required.files)
    findings.issues += packing.excluded_issues(folder, file_names, packing.ignored_lines(job.links))
    if not is_remote:  # on a cluster, the slot checks this before its first trial, because only it has the image
        findings.issues += requirements.unmet_issues(required)
    if job.install and is_remote:
        findings.issues += requirements.install_issues(required)
    else:  # an installation would check these lines
        findings.notes += map(str, required.unchecked)


def _objectives(
    objective: str | Sequence[str] | None, direction: str | Sequence[str] | None, *, is_function: bool
) -> dict[str, Flag]:
    """Return the fields of a job that the arguments `objective` and `direction` of `submit` set.

    Without an objective, a function has the objective `value`, and any other job keeps its own objectives.

    Raises:
        SpecError: There are several directions, but not one for each objective.
    """
    if objective is None and not is_function:
        return {} if direction is None else {"objective.direction": Flag(direction, "submit(direction=…)")}
    objectives = functions.METRIC if objective is None else objective
    metrics = [objectives] if isinstance(objectives, str) else list(objectives)
    # A single direction, or None for the default, is that of every objective.
    directions = [direction] * len(metrics) if direction is None or isinstance(direction, str) else list(direction)
    if len(directions) != len(metrics):
        counts = f"{errors.counted(len(metrics), 'objective')} and {errors.counted(len(directions), 'direction')}"
        raise SpecError([Issue(("objectives",), f"{counts}; give one direction for each", "submit(direction=…)")])
    pairs = zip(metrics, directions, strict=True)
    fields = [{"metric": name, "direction": metric_direction or "minimize"} for name, metric_direction in pairs]
    return {"objectives": Flag(fields, "submit(objective=…)")}


def _script_path(path: Path) -> Path | None:
    """Return the absolute path of a Python script; None if the path is not one."""
    try:
        path = path.expanduser().absolute()
        return path if path.suffix == ".py" and path.is_file() else None
    except (OSError, RuntimeError):  # the path is too long, or ~ names a user who does not exist
        return None


def _provenance(folder: Path, command: Sequence[str]) -> Provenance:
    """Return the origin of a run: the folder of its job with its git revision, the user and the command."""
    revision = git.output(folder, "rev-parse", "HEAD")
    return Provenance(
        job_folder=str(folder.absolute()),
        user=_user(),
        version=trialplane.__version__,
        command=tuple(command or sys.argv),
        git_revision=revision,
        git_dirty=bool(revision and git.output(folder, "status", "--porcelain", "--", ".")),
    )


def _user() -> str:
    """Return the name of this user, or the user's number if the system has no name for it."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container may run under a number without a name
        return str(os.getuid())
