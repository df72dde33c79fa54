"""Jobs before submission: `platform init` creates one, `validate` checks it, `schema` is for editors."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import click

from trialplane.cli import importing, kinds, names, output
from trialplane.cli.init_from import from_command, from_file
from trialplane.cli.init_from.request import Request
from trialplane.errors import EXIT_OK, InputError, OtherFolderError, SpecError
from trialplane.importing import dvc, makefile, script_folder
from trialplane.job import load, mlflow_names, requirements, schema, short_forms, verdict
from trialplane.job.kinds import base
from trialplane.plan import plan as planning

_SCHEMA = "job.schema.json"


@click.command("init")
@click.argument("name", required=False, metavar="NAME | --from SCRIPT")
@click.option(
    "--from",
    "source",
    metavar="SCRIPT",
    help="Script to create a job for, or the command that starts a program, in quotes.",
)
@click.option(
    "--space",
    "spaces",
    multiple=True,
    metavar="NAME=RANGE",
    help="With --from: parameter to search, in place of guesses: lr=1e-5..1e-2:log, layers=2..6, "
    "width=32..256:32 (in steps), opt=adam,sgd. Repeatable.",
)
@click.option(
    "--objective",
    metavar="METRIC:max",
    help="With --from: metric to optimize, in place of a guess: accuracy:max, loss:min, F1:max:best (the best of all "
    "reports, not the last).",
)
@click.option("--trials", type=click.IntRange(1), metavar="N", help="With --from: number of trials. Default: 20.")
@click.option(
    "--smoke-seconds", type=click.FloatRange(min=1), help="With --from: limit of the run of the script. Default: 60."
)
@click.option("--no-smoke", is_flag=True, help="With --from: do not run the script to find its metrics.")
@click.option(
    "--kind",
    type=click.Choice(list(kinds.PRESENTERS)),
    default="hpo",
    show_default=True,
    help="Kind of job. hpo: a study, without libraries. train: a training with two ranks, with torch. collect: workers and "
    "a learner, with numpy.",
)
def init_command(
    name: str | None,
    source: str | None,
    spaces: tuple[str, ...],
    objective: str | None,
    trials: int | None,
    smoke_seconds: float | None,
    no_smoke: bool,
    kind: str,
) -> int:
    """Create jobs/NAME with a job.yaml and a train.py that run as they are, and jobs/job.schema.json for editors.

    With --from SCRIPT in place of NAME, create a job.yaml beside the script. The script's arguments are found by starting it
    until it parses them (argparse, click, typer, tyro, LightningCLI), or in its source (Hydra, fire, and the configurators
    of nanoGPT and minGPT). The space is guessed from them, and marked as a guess. Then the script runs once with its
    defaults, for at most a minute, to find its metrics. If that run fails, or ends with other metrics than --objective, the
    job.yaml is still written, and the exit code is 1.

    A shell script, a Makefile, an MLproject or a command line is started as it is: its numbers are the parameters,
    and a value of a command that is written as {NAME=VALUE}, also as a part: `--layers 1,1,{width=64}`. Of a notebook, or a
    command that executes one by jupyter or papermill, the code is written beside it, as a script. Of a dvc.yaml, or of a
    command such as `dvc repro`, the stages up to the metrics are run.

    A search in the script becomes the job's: of Optuna, hyperopt, scikit-learn, scikit-optimize, bayesian-optimization or
    keras-tuner its objective, of a script that calls wandb.agent its sweep. A Ray Tune search is converted as by
    `platform import ray`.

    \b
    platform init --from train.py
    platform init --from examples/train.py --no-smoke
    platform init --from train.py --space lr=1e-4..1e-1:log --space layers=2..6 --objective accuracy:max
    platform init --from "Rscript train.R --lr 0.1 --depth 3"
    """  # noqa: D301  \b is click's mark
    if source is None:
        for option, is_set, reason in (
            ("--space", bool(spaces), "write the space of a new job into its job.yaml"),
            ("--objective", objective is not None, "write the objective of a new job into its job.yaml"),
            ("--trials", trials is not None, "write trials of a new job into its job.yaml"),
            ("--no-smoke", no_smoke, "a job created without it is not run"),
            ("--smoke-seconds", smoke_seconds is not None, "a job created without it is not run"),
        ):
            if is_set:
                raise click.UsageError(f"{option} needs --from: {reason}")
        if name is None:
            raise click.UsageError("name the job, or the script to create it from: --from train.py")
        return _create_new(name, kind)
    if kind != "hpo":
        raise click.UsageError("--from makes a study; drop --kind")
    request = _request(spaces, objective, trials, smoke_seconds, with_smoke=not no_smoke)
    if name is not None:
        raise click.UsageError(f"--from writes a job.yaml beside the script; drop {name}: `{request.command(source)}`")
    try:
        return _create_from(source, request)
    except OtherFolderError as error:
        return _create_above(error)


def _request(
    spaces: Sequence[str], objective: str | None, trials: int | None, smoke_seconds: float | None, *, with_smoke: bool
) -> Request:
    """Return the options of `platform init --from`.

    Raises:
        SpecError: A parameter of the space, or the objective, is not valid.
    """
    space = dict(short_forms.parameter(text, "--space") for text in spaces)
    if space_issues := verdict.space_issues(space, "--space"):
        raise SpecError(space_issues)
    typed_options = [word for text in spaces for word in ("--space", text)]
    objective_fields = None
    if objective is not None:
        objective_fields = short_forms.objective(objective, "--objective")
        objective_fields["metric"] = mlflow_names.program_metric(objective_fields["metric"])
        typed_options += ["--objective", objective]
    if trials is not None:
        typed_options += ["--trials", str(trials)]
    if not with_smoke:
        typed_options.append("--no-smoke")
    return Request(
        with_smoke=with_smoke,
        space=space,
        smoke_seconds=smoke_seconds,
        objective=objective_fields,
        trials=trials,
        typed=shlex.join(typed_options),
    )


def _create_from(source: str, request: Request) -> int:
    """Create the job of a script, a command line, or the search of another tool. Return the exit code.

    Raises:
        click.UsageError: There is a space or an objective, and the file is a search.
    """
    file = Path(source)
    if script_folder.exists(file / dvc.FILE):  # the folder of a pipeline
        file = file / dvc.FILE
    is_command = len(source.split()) > 1 or source == "make"  # a command of one word would be a file
    if is_command and not script_folder.exists(file):  # the name of a file may have spaces, too
        return from_command.make_of_command(source, request)
    if makefile.is_makefile(file) and file.is_file():
        return from_command.make_of_makefile(file, request)
    tool = importing.source_of(file)
    if not tool:
        return from_file.make(file, request)
    if request.typed_options:
        raise click.UsageError(
            f"{file} is a search, whose space, objective and trials become the job's; drop {request.typed_options}"
        )
    return importing.create_job(tool, file, Path(load.FOLDER, importing.job_name(file)))


def _create_above(error: OtherFolderError) -> int:
    """Create the job of a command in the folder above that has all of its files, see the error. Return the exit code.

    Raises:
        InputError: The command is not accepted there either.
    """
    inner_folders = [folder for folder in (Path.cwd(), *Path.cwd().parents) if error.folder in folder.parents]
    if any((folder / ".git").exists() for folder in inner_folders):
        raise error  # the folder is outside of the repository, and may have other projects
    output.note(f"{error.reason}; the job is made in {error.folder}, which has both, of `{error.command}`")
    with contextlib.chdir(error.folder):
        try:
            exit_code = _create_from(error.command, error.options)
        except OtherFolderError as other_error:  # it needs a folder above that one
            return _create_above(other_error)
    output.note(f"type `cd {shlex.quote(str(error.folder))}` before these commands")
    return exit_code


def _create_new(name: str, kind: str) -> int:
    """Create jobs/NAME for an example of a kind, and the schema for editors. Return the exit code.

    Raises:
        InputError: The name is not valid, or the folder exists or cannot be written.
    """
    if not re.fullmatch(base.NAME, name):
        raise InputError(f"{name!r} is not a valid job name: use lower-case letters, digits, - and _, at most 63 characters")
    folder = Path(load.FOLDER, name).absolute()
    if folder.exists():
        raise InputError(f"{folder} already exists; nothing was changed, choose another name")
    try:
        folder.mkdir(parents=True)
        for file, text in zip((load.FILE, "train.py"), kinds.PRESENTERS[kind].starter, strict=True):
            (folder / file).write_text(text.format(name=name), encoding="utf-8")
        if not (folder.parent / _SCHEMA).exists():
            text = json.dumps(schema.json_schema(), indent=2, ensure_ascii=False)
            (folder.parent / _SCHEMA).write_text(f"{text}\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror}") from error
    click.echo(folder)
    ranks = " --ranks 2" if kind == "train" else ""
    output.note(f"`platform submit {kind} {name} --local{ranks}` runs it")
    return EXIT_OK


@click.command("validate")
@names.job_argument
@click.option("--profile", metavar="NAME", help="Profile in job.yaml to check.")
@click.option("--set", "sets", multiple=True, metavar="FIELD=VALUE", help="Field to set: budget.time=2h. Repeatable.")
@output.option("table", "json", "yaml")
def validate_command(job: str, profile: str | None, sets: tuple[str, ...], output_format: str) -> None:
    """Check the fields, profiles, code, packages and data files of NAME, a job in jobs/NAME or a job's folder.

    The output for a valid job is a one-line summary; with json or yaml, it is the resolved job. Required packages are
    compared with those on this machine. On a cluster, they are compared with those of the image before the first trial.
    """
    resolved_job, required = planning.check_job(load.find_job(job, Path.cwd()), profile, sets)
    for issue in [*required.unchecked, *requirements.unmet_issues(required)]:
        output.note(str(issue))
    for remark in resolved_job.advice():
        output.note(f"note: {remark}")
    summary = kinds.of(resolved_job).job_summary(resolved_job)
    output.emit(output_format, resolved_job.model_dump(mode="json"), lambda: f"{resolved_job.name} is valid: {summary}")


@click.command("schema")
@output.option("json", "yaml")
def schema_command(output_format: str) -> None:
    """Print the JSON schema of job.yaml.

    \b
    platform schema > jobs/job.schema.json
    First line of job.yaml, for editors with a YAML language server:
    # yaml-language-server: $schema=../job.schema.json
    """  # noqa: D301  \b is click's mark
    output.emit(output_format, schema.json_schema(), str)
