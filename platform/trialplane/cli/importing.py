"""`platform import`: a job folder from the search file of another tool, with notes on parts that are not converted."""

from __future__ import annotations

import importlib
import os
import re
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path

import click

from trialplane import errors
from trialplane.cli import output, script_folder
from trialplane.errors import EXIT_BAD_INPUT, EXIT_OK, InputError, SpecError
from trialplane.importing.source import Imported
from trialplane.job import document, load, requirements
from trialplane.job.kinds import base
from trialplane.plan import plan as planning
from trialplane.wire import escapes

# Kind of file → its module, which has `read(text, name, scripts)`.
SOURCES: Mapping[str, str] = {
    "katib": "trialplane.importing.katib",
    "wandb": "trialplane.importing.wandb",
    "ray": "trialplane.importing.ray",
    "sagemaker": "trialplane.importing.sagemaker",
    "hydra": "trialplane.importing.hydra",
}
_MOST_SCRIPTS = 200  # Python files beside FILE that are searched
_MOST_CONFIGS = 1000  # YAML files of a folder that is copied
_LONGEST_NAME = 63


@click.command("import")
@click.argument("source", type=click.Choice(list(SOURCES)))
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--into",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Folder of the new job. Default: jobs/ and the name of FILE.",
)
def import_command(source: str, file: Path, into: Path | None) -> int:
    """Create a job from FILE, a search of another tool. FILE is read and not run.

    \b
    katib      an Experiment
    wandb      a sweep of Weights & Biases
    ray        a Python file with tune.Tuner or tune.run
    sagemaker  JSON of a HyperParameterTuningJobConfig, or of the whole tuning job
    hydra      a configuration with hydra.sweeper, basic or Optuna

    Parts of FILE that cannot be converted are printed with the reason, and listed at the top of job.yaml. A script that FILE
    names is copied, with the modules beside FILE that it imports.
    """  # noqa: D301  \b is click's mark
    return make(source, file, into or Path(load.FOLDER, job_name(file)))


def is_tune(script: Path) -> bool:
    """Whether a file is a script that starts a search of Ray Tune."""
    try:
        is_search: bool = importlib.import_module(SOURCES["ray"]).is_search(_text(script, script.name))
        return is_search
    except InputError:  # reported when the script is read as one
        return False


def make(source: str, file: Path, folder: Path) -> int:
    """Create a job's folder from another tool's file, as `platform import` does, and print it.

    Args:
        source: a name of `SOURCES`.
        file: to read.
        folder: of the job; it does not exist.

    Returns:
        The exit code.

    Raises:
        InputError: the file cannot be read, or the folder cannot be created.
        SpecError: the file is not one of that tool.
    """
    name = str(file)
    text = _text(file, name)
    imported: Imported = importlib.import_module(SOURCES[source]).read(text, name, _scripts(file))
    if not re.fullmatch(base.NAME, folder.absolute().name):
        raise InputError(
            f"{folder.name!r} is not a valid job name; write --into jobs/NAME with lower-case letters, digits, - and _"
        )
    lacking = _write(folder, imported, file, source)
    click.echo(folder)
    for note in imported.notes:
        output.note(f"{name}: {note}")
    for script in lacking:
        output.note(f"{script} does not lie beside {file.name}: copy it to {folder / script}")
    return is_ready(folder, errors.counted(len(imported.notes), "note"))


def is_ready(folder: Path, summary: str) -> int:
    """Print whether a created job can run, by the checks of `submit`; return the exit code."""
    try:
        job, needed = planning.check_job(folder)
    except (SpecError, InputError) as error:
        output.note(f"{summary}; the job cannot run yet:")
        for issue in error.issues[: errors.MOST_ISSUES] if isinstance(error, SpecError) else [error]:
            output.note(f"  {issue}")
        return EXIT_BAD_INPUT
    for issue in requirements.unmet_issues(needed):
        output.note(str(issue))
    output.note(f"{summary}; `platform submit {job.kind} {shown(folder)} --local` runs the job")
    return EXIT_OK


def shown(folder: Path) -> str:
    """Return a path for a shell in the working directory."""
    relative = os.path.relpath(folder)
    return shlex.quote(str(folder.absolute()) if relative.startswith("..") else relative)


def _text(file: Path, name: str) -> str:
    """Return the text of any file.

    Raises:
        InputError: it cannot be read, is too large, or is no text.
    """
    try:
        return document.decode(document.content(file), file.name)
    except UnicodeDecodeError as error:
        raise InputError(f"{name} is not {error.encoding.upper()} text (byte {error.start}); nothing was changed") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{name} cannot be read: {reason}; nothing was changed") from error


def _scripts(file: Path) -> dict[str, str]:
    """Return the readable Python files beside a file, and in the folder above as `../NAME`, by name."""
    texts: dict[str, str] = {}
    beside = file.absolute().parent
    for before, folder in (("", beside), ("../", beside.parent)):
        for script in sorted(folder.glob("*.py"))[:_MOST_SCRIPTS]:
            try:
                texts[f"{before}{script.name}"] = document.decode(document.content(script), script.name)
            except (OSError, ValueError):
                continue
    return texts


def job_name(file: Path) -> str:
    """Return the name of the job for a file."""
    return re.sub(r"[^a-z0-9_-]+", "-", file.stem.lower())[:_LONGEST_NAME].strip("-_") or "imported"


def _write(folder: Path, imported: Imported, file: Path, source: str) -> list[str]:
    """Create the job's folder; return the files that it needs and that do not lie beside the imported one."""
    lacking = []
    beside = file.absolute().parent
    try:
        folder.mkdir(parents=True)
        (folder / load.FILE).write_text(_job_yaml(imported, file, source), encoding="utf-8")
        for name, text in imported.files.items():
            (folder / name).write_text(text, encoding="utf-8")
        if imported.above:
            _copy_folder(beside, folder / beside.name)
        for name in imported.copies:
            here = (beside.parent if imported.above else beside) / name
            if not here.is_file() or os.pardir in Path(name).parts:
                lacking.append(name)
                continue
            for path in _with_modules(here):
                (folder / name).parent.joinpath(path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(here.parent / path, (folder / name).parent / path)
    except FileExistsError:
        raise InputError(f"{folder} already exists; nothing was changed, choose another: --into jobs/NAME") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{folder} cannot be written: {reason}") from error
    return lacking


def _with_modules(file: Path) -> list[Path]:
    """Return a file, and the modules that a script imports, as paths below its folder."""
    try:
        return list(script_folder.modules(file)) if file.suffix == ".py" else [Path(file.name)]
    except (SpecError, InputError):  # the check of the whole job reports it
        return [Path(file.name)]


def _copy_folder(source: Path, target: Path) -> None:
    """Copy the YAML files of a folder, and of those in it."""
    for file in sorted([*source.rglob("*.yaml"), *source.rglob("*.yml")])[:_MOST_CONFIGS]:
        here = target / file.relative_to(source)
        here.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, here)


def _job_yaml(imported: Imported, file: Path, source: str) -> str:
    """Return the text of job.yaml, which begins with the parts that were not converted."""
    lines = [f"Imported from {file.name} ({source})."]
    if imported.notes:
        lines.append("Not converted as in the source:")
        lines += [f"  {note}" for note in imported.notes]
    # A comment ends at any of YAML's line breaks.
    comments = "".join(f"# {escapes.escape_controls(' '.join(line.splitlines()))}\n" for line in lines)
    return comments + output.as_yaml(dict(imported.job))
