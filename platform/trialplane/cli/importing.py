"""`platform import`: a job's folder from the search file of another tool, and notes on parts that are not converted."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path

import click

from trialplane import errors
from trialplane.cli import output
from trialplane.errors import EXIT_BAD_INPUT, EXIT_OK, EXIT_RUN_FAILED, InputError, SpecError
from trialplane.importing import script, script_folder
from trialplane.importing.source import ImportResult
from trialplane.job import credentials, document, load, requirements
from trialplane.job.kinds import base
from trialplane.plan import pack as packing
from trialplane.plan import plan as planning
from trialplane.wire import escapes

# Tool → module that converts its files; it has a function `read(text, name, scripts)`.
SOURCES: Mapping[str, str] = {
    "katib": "trialplane.importing.katib",
    "wandb": "trialplane.importing.wandb",
    "ray": "trialplane.importing.ray",
    "sagemaker": "trialplane.importing.sagemaker",
    "hydra": "trialplane.importing.hydra",
}
_MAX_SCRIPTS = 200  # Python files in the folder of FILE that are read
_MAX_CONFIGS = 1000  # YAML files of a folder that are copied
_MAX_NAME = 63


class _Tool(click.Choice[str]):
    """Name of a tool. The message for another one names the command for searches in Python scripts."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name, or fail if it is none of the tools. See click."""
        if value not in self.choices:
            self.fail(
                f"{value!r} is none of {', '.join(self.choices)}; a search in a Python script, by Optuna, hyperopt, "
                "scikit-learn or another library, becomes a job by `platform init --from FILE`",
                param,
                ctx,
            )
        return value


@click.command("import")
@click.argument("source", type=_Tool(list(SOURCES)))
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
    names is copied, with the other files beside FILE, and the modules that it imports from folders above.
    """  # noqa: D301  \b is click's mark
    return create_job(source, file, into or Path(load.FOLDER, job_name(file)))


def is_tune(script: Path) -> bool:
    """Return whether a file is a Python script that starts a search of Ray Tune."""
    try:
        return bool(importlib.import_module(SOURCES["ray"]).is_search(_read_text(script, script.name)))
    except InputError:  # the caller reports it when it reads the script
        return False


def source_of(file: Path) -> str:
    """Return the tool whose search a YAML or JSON file is, a name of `SOURCES`; "" for any other file."""
    is_search_format = file.suffix in (".yaml", ".yml", ".json")
    if not is_search_format or not script_folder.exists(file) or not file.is_file():
        return ""
    for source, module in SOURCES.items():
        if source != "ray":  # whose searches are Python files
            with contextlib.suppress(InputError):  # it is not a search of this tool
                importlib.import_module(module).read(_read_text(file, file.name), str(file), _scripts(file))
                return source
    return ""


def create_job(source: str, file: Path, folder: Path) -> int:
    """Create a job's folder from a file of a tool in `SOURCES`, and print it. Return the exit code.

    Raises:
        InputError: The file cannot be read, or the folder cannot be created.
        SpecError: The file is not a search of this tool.
    """
    name = str(file)
    text = _read_text(file, name)
    imported: ImportResult = importlib.import_module(SOURCES[source]).read(text, name, _scripts(file))
    if not re.fullmatch(base.NAME, folder.absolute().name):
        raise InputError(
            f"{folder.name!r} is not a valid job name; write --into jobs/NAME with lower-case letters, digits, - and _"
        )
    missing_files = _create_folder(folder, imported, file, source)
    click.echo(folder)
    for note in imported.notes:
        output.note(f"{name}: {note}")
    for missing_file in missing_files:
        output.note(f"{missing_file} does not lie beside {file.name}: copy it to {folder / missing_file}")
    return report_readiness(folder, errors.counted(len(imported.notes), "note"))


def report_readiness(folder: Path, summary: str, options: str = "", failure: str = "") -> int:
    """Print whether a new job passes the checks of `submit`, and return the exit code.

    Args:
        folder: Folder of the job.
        summary: Beginning of the printed line.
        options: Options that `submit` needs.
        failure: Why its trials will fail, with what to do and the condition on which it can run; "" if they should not.
    """
    try:
        job, required = planning.check_job(folder)
    except InputError as error:
        output.note(f"{summary}; the job cannot run yet:")
        for issue in error.issues[: errors.MOST_ISSUES] if isinstance(error, SpecError) else [error]:
            output.note(f"  {issue}")
        return EXIT_BAD_INPUT
    for issue in requirements.unmet_issues(required):
        output.note(str(issue))
    command = f"platform submit {job.kind} {shell_path(folder)}{options} --local"
    output.note(f"{summary}; {f'{failure}, ' if failure else ''}`{command}` runs the job")
    return EXIT_RUN_FAILED if failure else EXIT_OK


def shell_path(folder: Path) -> str:
    """Return a folder as a word of a shell command: relative to the working directory if it is below that."""
    relative = os.path.relpath(folder)
    return shlex.quote(str(folder.absolute()) if relative.startswith("..") else relative)


def _read_text(file: Path, name: str) -> str:
    """Return the text of a file.

    Args:
        file: File in UTF-8, or a Python file in its declared encoding.
        name: Name of the file in messages.

    Raises:
        InputError: The file cannot be read, is too large, or is not text.
    """
    try:
        return document.decode(document.content(file), file.name)
    except UnicodeDecodeError as error:
        raise InputError(f"{name} is not {error.encoding.upper()} text (byte {error.start}); nothing was changed") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{name} cannot be read: {reason}; nothing was changed") from error


def _scripts(file: Path) -> dict[str, str]:
    """Return the texts of the Python files in a file's folder, by name, and of those in its parent, by `../NAME`."""
    texts: dict[str, str] = {}
    source_folder = file.absolute().parent
    for prefix, folder in (("", source_folder), ("../", source_folder.parent)):
        for script_file in sorted(folder.glob("*.py"))[:_MAX_SCRIPTS]:
            try:
                texts[f"{prefix}{script_file.name}"] = document.decode(document.content(script_file), script_file.name)
            except (OSError, ValueError):
                continue
    return texts


def job_name(file: Path) -> str:
    """Return the name of the new job for a file, such as my-sweep-2 for `My Sweep (2).yaml`."""
    return re.sub(r"[^a-z0-9_-]+", "-", file.stem.lower())[:_MAX_NAME].strip("-_") or "imported"


def _create_folder(folder: Path, imported: ImportResult, file: Path, source: str) -> list[str]:
    """Create the job's folder. Return the names of files that the job needs, and that the imported file's folder lacks.

    Raises:
        InputError: The folder exists already, or cannot be written.
    """
    missing_files = []
    search_folder = file.absolute().parent
    code_folder = search_folder.parent if imported.is_in_parent else search_folder
    try:
        folder.mkdir(parents=True)
        (folder / load.FILE).write_text(_job_yaml(imported, file, source), encoding="utf-8")
        for name, text in imported.files.items():
            (folder / name).write_text(text, encoding="utf-8")
        if imported.is_in_parent:
            _copy_configurations(search_folder, folder / search_folder.name)
        for name in imported.copies:
            original = code_folder / name
            is_outside = os.pardir in Path(name).parts  # such as ../train.py, which would be copied beside the job
            if is_outside or not original.is_file():
                missing_files.append(name)
                continue
            for path, source_file in _script_and_modules(original).items():
                copy = (folder / name).parent / path
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source_file, copy)
        if any(name.endswith(".py") and name not in missing_files for name in imported.copies):
            _copy_data(code_folder, folder, file)
    except FileExistsError:
        raise InputError(f"{folder} already exists; nothing was changed, choose another: --into jobs/NAME") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{folder} cannot be written: {reason}") from error
    return missing_files


def _script_and_modules(file: Path) -> dict[Path, Path]:
    """Return a file and, for a script, the modules that it imports: path relative to the copy's folder → file to copy.

    A module from a folder above is copied into the folder of the script, from which the copy imports it.
    """
    if file.suffix != ".py":
        return {Path(file.name): file}
    try:
        modules = script_folder.modules(file)
        text = modules[Path(file.name)]
        start = script_folder.start(file.resolve(), script.read(text, str(file)), text)
        # Folders above the script's from which it imports modules where its user starts it.
        roots = [root for root in (start.folder, start.folder / "src", *start.roots) if root != file.resolve().parent]
        names_above = sorted(script_folder.missing_modules(file))
        source_files = {path: file.parent / path for path in modules}
        for root in dict.fromkeys(roots):
            for path in script_folder.modules_of(root, names_above):
                source_files.setdefault(path, root / path)  # of several files, that of the first folder counts
    except InputError:  # `report_readiness` reports it
        return {Path(file.name): file}
    return source_files


def _copy_data(source: Path, target: Path, search_file: Path) -> None:
    """Copy the other files of a folder into a job's folder, for scripts that read them by relative paths.

    Nothing is copied from a folder with unrelated files, or with so many that a job could not have them. Files that may
    have secrets by their names are left out, and so is the file of the search.
    """
    if script_folder.has_unrelated_files(source):
        return
    jobs = target.absolute().parent  # with the folders of other jobs
    try:
        files = packing.files(source)
    except InputError as error:  # for example a link that leads out of the folder
        output.note(f"the other files beside {search_file.name} are not copied: {error}")
        return
    secret_names = sorted(name for name in files if credentials.is_secret_file(name))
    if secret_names:
        output.note(f"not copied, because they may have secrets: {', '.join(secret_names[: errors.MOST_ISSUES])}")
    for name, file in files.items():
        copy = target / name
        is_of_job = file.is_relative_to(target.absolute()) or (file.is_relative_to(jobs) and jobs != source)
        is_needed = name not in secret_names and file != search_file.absolute()
        if is_needed and not is_of_job and not os.path.lexists(copy):
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, copy)


def _copy_configurations(source: Path, target: Path) -> None:
    """Copy the YAML files of a folder and its subfolders."""
    for file in sorted([*source.rglob("*.yaml"), *source.rglob("*.yml")])[:_MAX_CONFIGS]:
        copied_file = target / file.relative_to(source)
        copied_file.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copied_file)


def _job_yaml(imported: ImportResult, file: Path, source: str) -> str:
    """Return the text of job.yaml, which begins with comments about the parts that were not converted."""
    lines = [f"Imported from {file.name} ({source})."]
    if imported.notes:
        lines.append("Not converted as in the source:")
        lines += [f"  {note}" for note in imported.notes]
    # Each line must be one comment, because any of YAML's line breaks ends a comment.
    comments = "".join(f"# {escapes.escape_controls(' '.join(line.splitlines()))}\n" for line in lines)
    return comments + output.as_yaml(dict(imported.job))
