"""`platform submit hpo NAME`, `train NAME`, `collect NAME`: start a study, a training or a collection as a run."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import click

from trialplane.cli import foreground, importing, kinds, names, output, watching
from trialplane.client import cloning, target_choice
from trialplane.client.run import RunHandle, SubmissionOutcome
from trialplane.client.sdk import Platform
from trialplane.client.target import TargetName
from trialplane.errors import (
    ARGUMENTS_REFUSED,
    EXIT_BAD_INPUT,
    EXIT_RUN_FAILED,
    InputError,
    Issue,
    JobNotFound,
    SpecError,
    TrialplaneError,
)
from trialplane.importing import flags, script, script_folder
from trialplane.job import document, fixed_params, load, short_forms
from trialplane.job.load import Flag
from trialplane.plan import run as runs
from trialplane.plan.plan import Plan

# `{0}` stands for the name of the run.
_NOTES = {
    SubmissionOutcome.NEW: "{0} is starting",
    SubmissionOutcome.REPLACED: "{0} is starting; it replaces an earlier run {0}, which ended before its first trial",
    SubmissionOutcome.RESUMED: "{0} was submitted before with the same spec and is not finished: it continues",
    SubmissionOutcome.RUNNING: "{0} was submitted before with the same spec and is running: it continues",
    SubmissionOutcome.FINISHED: "{0} was submitted before with the same spec and has succeeded: nothing was started. ",
}


@click.group("submit")
def submit_command() -> None:
    """Start a run of a job."""


_UNSEEN = "if the script reads its arguments in a way that is not seen, type `--set arguments=flags`"


# In the reason of a script that has an argument of this name, and refuses its value.
_REFUSED_VALUE = re.compile(
    r"expected (?:one|at least one|\d+) argument|invalid (?:choice|\S+ value|value)|is not a valid", re.I
)


_source_option = click.option(
    "--from",
    "source",
    metavar="RUN[:TRIAL]",
    help="Run whose settings and code to take; with TRIAL its parameters, in one trial. NAME can be left out.",
)
_checkpoint_option = click.option(
    "--checkpoint",
    type=click.IntRange(0),
    metavar="STEP",
    help="With --from RUN:TRIAL: start from its checkpoint of this step, not from step 0.",
)
_other_code_option = click.option(
    "--other-code", is_flag=True, help="With --from: take the code of NAME even if it differs."
)


def _options(verb: Callable[..., int]) -> Callable[..., int]:
    """Add the options of all kinds of jobs to a verb. In the help, they follow the verb's own options."""
    for option in (
        output.option("table", "json", "yaml"),
        click.option("--dry-run", is_flag=True, help="Print the resolved job and its plan. Nothing is started."),
        click.option("--offline", is_flag=True, help="With --dry-run: contact no cluster. The operator checks the Run."),
        click.option("--detach", is_flag=True, help="Return at once. The run continues in the background."),
        click.option("--timeout", metavar="TIME", help="Maximum duration of a trial or an iteration: seconds, or 30m, 2h."),
        click.option("--seed", type=int, help="Seed of random numbers. Default: seed in job.yaml, or 0."),
        click.option(
            "--set", "sets", multiple=True, metavar="FIELD=VALUE", help="Field to set: budget.time=2h. Repeatable."
        ),
        click.option(
            "--params",
            type=click.Path(path_type=Path),
            help="YAML file with parameters to fix, from `platform best`.",
        ),
        click.option(
            "--param", "param_texts", multiple=True, metavar="NAME=VALUE", help="Parameter to fix: lr=0.01. Repeatable."
        ),
        click.option("--name", metavar="RUN", help="Name of the run. Default: NAME and the time."),
        click.option("--profile", metavar="NAME", help="Profile in job.yaml to use."),
    ):
        verb = option(verb)
    return verb


@submit_command.command("hpo", short_help="Start a study: many trials with different parameters.")
@click.argument("job", metavar="[NAME]", required=False, shell_complete=names.complete_job)
@names.target_options(submits=True)
@_source_option
@_checkpoint_option
@_other_code_option
@click.option(
    "--space",
    "spaces",
    multiple=True,
    metavar="NAME=RANGE",
    help="Parameter to search: lr=1e-5..1e-2:log, layers=2..6, width=32..256:32 (in steps), opt=adam,sgd. Repeatable.",
)
@click.option(
    "--objective",
    "objectives",
    multiple=True,
    metavar="METRIC:max",
    help="Metric to optimize: accuracy:max, loss:min, F1:max:best (the best of all reports, not the last). Repeatable.",
)
@click.option("--trials", type=int, help="Number of trials.")
@click.option("--parallel", type=int, help="Number of trials that run at the same time.")
@click.option("--sampler", help="Sampler: tpe, gp, cmaes, nsgaii, qmc, random, grid, …")
@click.option("--pruner", help="Pruner: none, asha, median, percentile, …")
@click.option("--max-failed", type=int, help="Stop if more than this many trials fail.")
@click.option("--watch-code", is_flag=True, help="With --local: run one trial, and again whenever the job's folder changes.")
@_options
def hpo(
    job: str | None,
    target_name: TargetName,
    *,
    source: str | None,
    checkpoint: int | None,
    other_code: bool,
    watch_code: bool,
    **options: Any,
) -> int:
    """Start a study of NAME: a job in jobs/NAME, a job's folder, or a script.

    A script that prints its metrics needs no job.yaml. Its folder is included, or one above whose modules it imports:

    \b
    platform submit hpo ./train.py --space lr=1e-5..1e-2:log --param epochs=5 --objective accuracy:max --local
    platform submit hpo --from mine-1 --set trials=40 --local     a run again, with its code and another number of trials
    platform submit hpo --from mine-1:7 --param epochs=64 --local   its trial 7 again, for longer
    platform submit hpo --from mine-1:7 --checkpoint 15 --param epochs=64 --local   the same, from its checkpoint

    Without --local, the run is on a cluster: that of --context and --namespace, or of TRIALPLANE_CONTEXT and
    TRIALPLANE_NAMESPACE, or of the kubeconfig. Later commands use the same target.

    The command shows the progress until the run ends. With --local, Ctrl-C stops the run cleanly, and a second Ctrl-C
    kills it; `platform resume` continues it in both cases. On a cluster, Ctrl-C only ends the display: use `platform pause`
    or `cancel` to stop the run. Closing the terminal never stops a run.
    """  # noqa: D301  \b is click's mark
    if job is None and source is None:
        raise click.UsageError("say what to submit: a NAME, or --from RUN")
    if job is not None and job.endswith(".py") and importing.is_tune(Path(job)):
        remedy = f"`platform import ray {shlex.quote(job)}` creates the job that calls its function"
        raise InputError(f"{job} is a search of Ray Tune, and a trial would start all of it; {remedy}; nothing was started")
    overrides = {name: options.pop(name) for name in ("trials", "parallel", "sampler", "pruner")}
    overrides["budget.max_failed"] = Flag(options.pop("max_failed"), "--max-failed")
    trials, spaces, objectives = overrides["trials"], options.pop("spaces"), options.pop("objectives")
    issues, search_fields = _search_fields(spaces, objectives, _script_texts(job))
    overrides |= search_fields
    if watch_code:
        return _watch(job, target_name, overrides, issues, is_clone=source is not None, **options)
    if checkpoint is not None and ":" not in (source or ""):
        raise click.UsageError("--checkpoint needs the trial that saved it: --from RUN:TRIAL")
    if source is not None:
        with _cloned_job(source, target_name, checkpoint, job, allow_other_code=other_code) as (folder, params):
            return _submit("hpo", str(folder), target_name, overrides, issues, trial_params=params, **options)
    assert job is not None  # checked above
    started_runs: list[RunHandle] = []
    if job.endswith(".py"):
        with contextlib.suppress(TrialplaneError, OSError):  # the checks of the job report it
            _note_exported_modules(job, spaces, objectives, trials)
    try:
        exit_code = _submit("hpo", job, target_name, overrides, issues, **options, on_start=started_runs.append)
    except SpecError as error:
        if not job.endswith(".py"):
            raise
        raise SpecError(_with_command(error.issues, job, spaces, objectives, trials)) from error
    except JobNotFound as error:
        if not error.program or not (spaces or objectives):
            raise
        # The message has the command that makes a job of the program. Add the options that the user typed.
        plain, full = _init_command(error.program, (), (), None), _init_command(error.program, spaces, objectives, trials)
        raise InputError(str(error).replace(plain, full)) from error
    if exit_code in (EXIT_RUN_FAILED, EXIT_BAD_INPUT) and job.endswith(".py"):
        with contextlib.suppress(TrialplaneError, OSError):  # the exit code counts, not an unreadable status or folder
            reason = started_runs[0].status().reason if started_runs else ""
            _note_remedy(job, reason, options["param_texts"], spaces, objectives, trials)
    return exit_code


def _note_exported_modules(job: str, spaces: Sequence[str], objectives: Sequence[str], trials: int | None) -> None:
    """Print the command that makes a job of a script, for each module that only a folder in the user's PYTHONPATH has.

    A trial would not find the module.
    """
    if script_folder.code_of(Path(job))[0] != Path(job).parent:  # a folder above, from which the script imports
        return
    for module in sorted(script_folder.missing_modules(Path(job).resolve())):
        if (root := script_folder.exported_root(module)) is not None:
            _note_root(job, module, root, spaces, objectives, trials)


def _note_root(
    job: str, module: str, root: Path, spaces: Sequence[str], objectives: Sequence[str], trials: int | None
) -> None:
    """Print the command that makes a job of a script with a folder from which it imports a module, if there is one."""
    if program := _program_with_root(job, root):
        command = _init_command(program, spaces, objectives, trials)
        output.note(f"{module} is in {root}: `{command}` makes a job that imports it from there")


def _note_remedy(
    job: str,
    reason: str,
    param_texts: Sequence[str],
    spaces: Sequence[str],
    objectives: Sequence[str],
    trials: int | None,
) -> None:
    """Print the command that makes a job of a script, if its run has failed for a reason that such a job can avoid.

    The command has the values of --param, --space, --objective and --trials.
    """
    from trialplane.cli.init_from import files_above

    file = Path(job).resolve()
    typed_command = _init_command(_python_command(job, param_texts), spaces, objectives, trials)
    if ARGUMENTS_REFUSED in reason and not _REFUSED_VALUE.search(reason):
        output.note(f"if its settings file or its text has them, `{typed_command}` makes a job that sets them there")
    if missing := script_folder.MISSING_MODULE.search(reason):
        module = missing[1]
        root = script_folder.exported_root(module) or script_folder.root_above(file.parent, module)
        if root is not None:
            _note_root(job, module, root, spaces, objectives, trials)
    folder = script_folder.code_of(Path(job))[0].resolve()
    data = files_above.data_above(script.Call(file.name, folder=str(file.parent)), folder)
    if data is not None:
        output.note(f"{job} names {data}, and trials get a copy of {folder} only: `{typed_command}` makes a job with both")
    for name, _, value in (text.partition("=") for text in param_texts):
        if Path(value).is_file() and not (folder / value).exists():
            remedy = shlex.join(["--param", f"{name}={Path(value).resolve()}"])
            output.note(
                f"{value} is here, and trials get a copy of {folder} only: with --local, `{remedy}` gives them its path"
            )


def _program_with_root(job: str, root: Path) -> str:
    """Return the script, or the command with it, of which `platform init --from` makes a job that imports from a folder.

    "" if such a job would not have the folder, as it is outside of the working directory.
    """
    file, name = Path(job).resolve(), os.path.normpath(job)
    text = script_folder.source(file)
    if root in script_folder.start(file, script.read(text, job), text).roots:
        return name
    is_here = root.is_relative_to(Path.cwd()) and file.is_relative_to(Path.cwd())
    return f"PYTHONPATH={shlex.quote(os.path.relpath(root))} python {shlex.quote(name)}" if is_here else ""


@contextlib.contextmanager
def _cloned_job(
    source: str, target_name: TargetName, checkpoint: int | None, code_job: str | None, *, allow_other_code: bool
) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield a temporary folder with the job of a run, or of one of its trials, and the parameters to fix for the trial.

    Args:
        source: Value of --from: RUN or RUN:TRIAL.
        target_name: Target of the run.
        checkpoint: Step of the trial's checkpoint from which to start; None to start from step 0.
        code_job: Name of a job whose code replaces that of the run; None for the run's own code.
        allow_other_code: Whether that code may differ.

    Raises:
        InputError: There is no such run, trial or job, or the code differs and may not.
    """
    target = target_choice.target_of(target_name)
    run, trial = cloning.parse_source(source)
    target.is_active(run)  # raises for an unknown run
    search = target.job(run).search
    new_fields: dict[str, Any] = {}  # in place of those of the run's job; None removes a field
    params: dict[str, Any] = {}
    if trial is not None:
        params = dict(cloning.newest_attempt(target, run, trial).params)
        new_fields = {"trials": 1, "enqueue": None, "population": None}
        if search.is_code and params:  # only the code knows such parameters, so the job cannot fix them
            new_fields["enqueue"], params = [params], {}
        if checkpoint is not None:
            new_fields |= {"start": {"run": run, "trial": trial, "step": checkpoint}, "pruner": None}
        elif search.population is not None:
            output.note(
                f"trial {trial} of {run} is a member of a population. This study trains its last parameters from step 0, "
                f"without a population; `platform best {run} --trial {trial} --schedule` prints all of its parameters by "
                "step"
            )
    code = None if code_job is None else load.find_job(code_job, Path.cwd())
    with cloning.job_folder(target, run, new_fields, code, allow_other_code=allow_other_code) as folder:
        yield folder, params


def _watch(
    job: str | None,
    target_name: TargetName,
    overrides: Mapping[str, Any],
    issues: Sequence[Issue],
    *,
    is_clone: bool,
    **options: Any,
) -> int:
    """Run one trial, and another one after each change of the job's folder. Return the exit code.

    Raises:
        click.UsageError: An option does not fit --watch-code.
    """
    if not target_name.local or options["detach"] or options["dry_run"] or options["name"] or overrides["trials"]:
        raise click.UsageError("--watch-code needs --local, and takes no --trials, --name, --detach or --dry-run")
    if job is None or is_clone:
        raise click.UsageError("--watch-code needs the NAME of a job, and takes no --from")
    if job.endswith(".py"):
        folder, _ = script_folder.code_of(Path(job))
    else:
        folder = load.find_job(job, Path.cwd())
    fields = {**overrides, "trials": Flag(1, "--watch-code"), "parallel": Flag(1, "--watch-code")}
    return watching.watch(
        folder, lambda on_start: _submit("hpo", job, target_name, fields, issues, **options, on_start=on_start)
    )


def _with_command(
    issues: Sequence[Issue], job: str, spaces: Sequence[str], objectives: Sequence[str], trials: int | None
) -> list[Issue]:
    """Return issues. If all are of parameters whose meaning is known, the last one shows the command with their names.

    That is the user's command if all are flags of the script, or else the command for a job that sets searched ones.
    """
    from trialplane.cli.init_from import request

    fields = {issue.field_path[0] for issue in issues}
    if not all(issue.meant for issue in issues) or not fields <= {"space", "params"}:
        return list(issues)
    names = {str(issue.field_path[-1]): [issue.meant] for issue in issues}
    if {issue.meant for issue in issues} <= {name for text in _script_texts(job) for name in flags.names(text)}:
        typed = request.with_names(["platform", *click.get_current_context().obj], names)
        remedy = f"with that name: `{typed}`"
    elif fields == {"space"}:
        command = shlex.split(_init_command(os.path.normpath(job), spaces, objectives, trials))
        remedy = f"`{request.with_names(command, names)}` makes a job that sets it there"
    else:
        return list(issues)
    unseen = "" if "arguments=flags" in issues[-1].message else f"; {_UNSEEN}"
    message = f"{issues[-1].message}; {remedy}{unseen}"
    return [*issues[:-1], dataclasses.replace(issues[-1], message=message)]


def _init_command(program: str, spaces: Sequence[str], objectives: Sequence[str], trials: int | None) -> str:
    """Return the command that makes a job of a script or a command, with the options that the user typed."""
    words = ["platform", "init", "--from", program]
    for text in spaces:
        words += ["--space", text]
    for text in objectives[:1]:  # `init` takes one
        words += ["--objective", text]
    if trials is not None:
        words += ["--trials", str(trials)]
    return shlex.join(words)


def _python_command(job: str, param_texts: Sequence[str]) -> str:
    """Return the command that runs a script in its folder, with the values of --param as its arguments."""
    file = Path(os.path.normpath(job))
    if script.read(script_folder.source(file), job).style is script.Style.HYDRA:
        words = list(param_texts)
    else:
        pairs = (text.partition("=") for text in param_texts)
        words = [word for name, _, value in pairs for word in (f"--{name}", value)]
    change = "" if file.parent == Path() else f"cd {shlex.quote(str(file.parent))} && "
    return change + shlex.join(["python", file.name, *words])


def _script_texts(job: str | None) -> list[str]:
    """Return the text of a script that is submitted in place of a job, and those of the modules in its folder.

    [] for a job, and for a script that cannot be read, which the checks of the job report.
    """
    with contextlib.suppress(TrialplaneError):
        if job is not None and job.endswith(".py") and Path(job).is_file():
            return list(script_folder.modules(Path(job).resolve()).values())
    return []


def _search_fields(
    spaces: Sequence[str], objectives: Sequence[str], script_texts: Sequence[str]
) -> tuple[list[Issue], dict[str, Flag]]:
    """Return the issues of --space and --objective, and the fields that they set.

    Args:
        spaces: Values of --space.
        objectives: Values of --objective.
        script_texts: Texts of the script that is submitted and of its modules, for the names and types of its flags: if
            `--dropout` is a float, the range of dropout=0..1 is one of floats. [] without a script.
    """
    float_names = {name for text in script_texts[:1] for name in flags.float_names(text)}
    float_names |= {name for text in script_texts[1:] for name in flags.float_flags(text)}
    flag_names = {name for text in script_texts for name in flags.names(text)}
    issues: list[Issue] = []
    fields: dict[str, Flag] = {}
    for text in spaces:
        try:
            name, parameter = short_forms.parameter(text, "--space")
            name = fixed_params.full_name(name, flag_names, f"--space {text}", are_all_known=False)
            if name.replace("-", "_") in float_names:
                parameter = short_forms.with_float_range(parameter)
            if (field := f'space."{name}"') in fields:
                issues.append(Issue(("space", name), f"is set by {fields[field].source} too", f"--space {text}"))
            fields[field] = Flag(parameter, f"--space {text}")
        except SpecError as error:
            issues += error.issues
    parsed_objectives = []
    for text in objectives:
        try:
            parsed_objectives.append(short_forms.objective(text, "--objective"))
        except SpecError as error:
            issues += error.issues
    if parsed_objectives:
        fields["objectives"] = Flag(parsed_objectives, f"--objective {' --objective '.join(objectives)}")
    return issues, fields


@submit_command.command("train", short_help="Start a training: one trial, on one or more GPUs.")
@names.job_argument
@names.target_options(submits=True)
@click.option("--gpus", type=int, metavar="N", help="Number of GPUs per node, with one rank each. 0: train on CPUs.")
@click.option("--nodes", type=int, metavar="N", help="Number of nodes (pods).")
@click.option("--ranks", type=int, metavar="N", help="Number of ranks per node. Default: one per GPU.")
@click.option(
    "--resume", metavar="RUN", help="Run whose newest checkpoint to start from.", shell_complete=names.complete_run
)
@_options
def train(job: str, target_name: TargetName, **options: Any) -> int:
    """Start a training of NAME, a job in jobs/NAME or a job's folder, with one rank per GPU.

    If a rank, a pod, a node or the controller fails, all ranks restart from the newest checkpoint, as often as `retries`
    in job.yaml allows. If the job supports it, --resume can use a different number of ranks.

    Without --local, the run is on a cluster: that of --context and --namespace, or of TRIALPLANE_CONTEXT and
    TRIALPLANE_NAMESPACE, or of the kubeconfig. Later commands use the same target. Ctrl-C works as in `submit hpo`.

    \b
    platform submit train NAME --gpus 8                     one pod with 8 GPUs, and cores and memory for 8 ranks
    platform submit train NAME --gpus 8 --nodes 4           4 pods, 32 ranks
    platform submit train NAME --local --gpus 0 --ranks 2   here, on CPUs
    """  # noqa: D301  \b is click's mark
    overrides = {name: options.pop(name) for name in ("nodes", "ranks", "resume")}
    overrides["resources.gpus"] = Flag(options.pop("gpus"), "--gpus")
    return _submit("train", job, target_name, overrides, **options)


@submit_command.command("collect", short_help="Start a collection: workers produce data for a learner.")
@names.job_argument
@names.target_options(submits=True)
@click.option("--workers", type=int, metavar="N", help="Number of workers.")
@click.option("--units", "--games", "units", type=int, metavar="N", help="Number of units per iteration, for example games.")
@click.option("--iterations", type=int, metavar="N", help="Number of iterations.")
@click.option("--max-failed", type=int, metavar="N", help="Number of units that may fail in an iteration.")
@click.option("--in-flight", metavar="SIZE", help="Maximum size of results not yet read by the learner: 512Mi.")
@click.option("--resume", metavar="RUN", help="Run whose newest weights to start from.", shell_complete=names.complete_run)
@_options
def collect(job: str, target_name: TargetName, **options: Any) -> int:
    """Start a collection of NAME, a job in jobs/NAME or a job's folder.

    In each iteration, workers produce units, for example games. The learner reads them and returns the weights for the next
    iteration, or the units are written to files. A unit whose worker is lost is repeated and counts once. A resumed run
    continues with the first incomplete iteration.

    Without --local, the run is on a cluster: that of --context and --namespace, or of TRIALPLANE_CONTEXT and
    TRIALPLANE_NAMESPACE, or of the kubeconfig. Later commands use the same target. Ctrl-C works as in `submit hpo`.

    \b
    platform submit collect NAME --workers 8 --games 800 --iterations 10
    platform submit collect NAME --local --workers 2
    """  # noqa: D301  \b is click's mark
    overrides = {f"collect.{name}": Flag(options.pop(name), f"--{name}") for name in ("workers", "units", "iterations")}
    overrides["collect.max_failed"] = Flag(options.pop("max_failed"), "--max-failed")
    overrides["collect.in_flight"] = Flag(options.pop("in_flight"), "--in-flight")
    return _submit("collect", job, target_name, {**overrides, "resume": options.pop("resume")}, **options)


def _submit(
    kind: str,
    job: str,
    target_name: TargetName,
    overrides: Mapping[str, Any],
    option_issues: Sequence[Issue] = (),
    *,
    name: str | None,
    detach: bool,
    dry_run: bool,
    offline: bool,
    output_format: str,
    on_start: watching.StartCallback = lambda handle: None,
    trial_params: Mapping[str, Any] = MappingProxyType({}),
    **options: Any,
) -> int:
    """Check, start and show a run.

    Args:
        kind: Kind of the job: hpo, train or collect.
        job: Name of a job, path of its folder, or of a script.
        target_name: Target of the run.
        overrides: Options of this kind: dotted field → value or `Flag`. The field of an option without a value stays.
        option_issues: Issues of these options.
        name: Name of the run; None for the default.
        detach: Whether to return at once.
        dry_run: Whether only the plan is printed.
        offline: Whether no cluster is contacted; only with `dry_run`.
        output_format: Format of the output.
        on_start: Function to call with the run after its start.
        trial_params: Parameters of the trial that is run again, to fix. Those of --params and --param override them.
        **options: Other options that all kinds have, see `_options`.

    Returns:
        The exit code.

    Raises:
        click.UsageError: `offline` is used without `dry_run`, or for this machine.
    """
    if offline and (not dry_run or target_name.local):
        raise click.UsageError("--offline prints a Run for a cluster: use it with --dry-run, and without --local")
    platform = Platform(target_choice.target_of(target_name))
    issues, params = _fixed_params(options["params"], options["param_texts"], overrides)
    try:
        prepared = platform.prepare(
            job,
            name=name,
            profile=options["profile"],
            sets=options["sets"],
            overrides={**overrides, "seed": options["seed"], "budget.timeout": Flag(options["timeout"], "--timeout")},
            params={**trial_params, **params},
            command=["platform", *sys.argv[1:]],
            issues=[*option_issues, *issues],
            kind=kind,
            offline=offline,
        )
    except SpecError as error:
        raise SpecError(_with_option_names(error.issues, options["param_texts"])) from error
    for warning in prepared.warnings:
        output.note(f"note: {warning}")
    if dry_run:
        _print_dry_run(platform, prepared.plan, target_name, offline=offline, output_format=output_format)
        return 0
    with foreground.signals() as stop_signals:
        handle, outcome = platform.start(prepared.plan)
        on_start(handle)
        target_choice.remember(platform.target.name, handle.name)
        note = _NOTES[outcome]
        if outcome is SubmissionOutcome.FINISHED:
            job_hint = kinds.of(prepared.plan.job).finished_hint(prepared.plan.job)
            output.note((note + job_hint).format(handle.name))
            return handle.exit_code
        output.note(note.format(handle.name))
        return foreground.detach(handle, output_format) if detach else foreground.attend(handle, output_format, stop_signals)


def _print_dry_run(platform: Platform, plan: Plan, target_name: TargetName, *, offline: bool, output_format: str) -> None:
    """Print what a plan would start, as JSON or YAML. A cluster's YAML is the input of `kubectl apply -f -`."""
    if offline:
        description = {"items": runs.manifests(plan, target_name.namespace or "", submitted=time.time())}
    else:
        description = platform.target.describe(plan)  # for a cluster, a list of manifests under "items"
    if target_name.local or output_format == "json":
        output.emit(output_format, description, lambda: output.as_yaml(description).rstrip())
    else:
        click.echo(runs.as_yaml(description["items"]), nl=False)


def _with_option_names(issues: Sequence[Issue], param_texts: Sequence[str]) -> list[Issue]:
    """Return issues, of which those of a fixed parameter name the option --param that sets it, if there is one."""
    option_by_parameter = {text.partition("=")[0].strip(): f"--param {text}" for text in param_texts}

    def with_option_name(issue: Issue) -> Issue:
        is_about_parameter = issue.source == fixed_params.SOURCE and bool(issue.field_path)
        option = option_by_parameter.get(str(issue.field_path[-1])) if is_about_parameter else None
        return issue if option is None else dataclasses.replace(issue, source=option)

    return [with_option_name(issue) for issue in issues]


def _fixed_params(
    file: Path | None, texts: Sequence[str], overrides: Mapping[str, Any]
) -> tuple[list[Issue], dict[str, Any]]:
    """Return the issues and the values of fixed parameters.

    Args:
        file: File of --params; None without one.
        texts: Values of --param, which override those of the file.
        overrides: Options of the kind of job, among them those of --space.
    """
    issues: list[Issue] = []
    params: dict[str, Any] = {}
    sources = [flag.source for flag in overrides.values() if isinstance(flag, Flag)]
    try:
        params = document.read(file, f"--params {file}").data if file is not None else {}
    except SpecError as error:
        issues += error.issues
    for text in texts:
        try:
            name, value = short_forms.value(text, f"--param {text}")
            params[name] = value
            # --space may have completed the typed name.
            if f'space."{name}"' in overrides or any(source.startswith(f"--space {name}=") for source in sources):
                issues.append(Issue(("params", name), "is searched by --space; leave out one of them", f"--param {text}"))
        except SpecError as error:
            issues += error.issues
    return issues, params
