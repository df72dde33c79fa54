"""Jobs of scripts with a search of their own: by Optuna, W&B, Hydra or a library of that kind."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trialplane import errors
from trialplane.cli import importing, output
from trialplane.cli.init_from import job_files, script_parameters
from trialplane.cli.init_from.request import INIT, NewFile, Origin, Request
from trialplane.errors import InputError, SpecError
from trialplane.importing import hydra, script, script_folder, wandb
from trialplane.importing.script import Script, Style
from trialplane.job import document, entrypoint, load, notebook
from trialplane.plan import pack as packing
from trialplane.plan import plan as planning

_OBJECTIVE = '''"""The objective of the search that {name} starts."""

{variables}from trialplane.integrations.searches import objective_of

objective = objective_of({arguments})
'''


def write_own_search(origin: Origin, parsed_script: Script, start: script_folder.Start, request: Request) -> int | None:
    """Write the job of a script with a search of its own, by Optuna, W&B, Hydra or the like; return the exit code.

    None, and nothing is written, if the script has no such search.

    Raises:
        InputError: A subcommand has the search, or the user gives a space or an objective, which would replace the search's.
    """
    title, folder = origin.title, start.folder
    sweep = _hydra_sweep(origin.real, parsed_script, folder)
    if sweep is None and parsed_script.style not in (Style.STUDY, Style.WANDB):
        return None
    subcommand = parsed_script.searching
    if subcommand and (origin.call is None or parsed_script.style is Style.WANDB):
        command = f"python {importing.shell_path(origin.file)}"
        search_command = f"{INIT} '{command} {subcommand}'"
        is_study = parsed_script.style is Style.STUDY
        remedy = f"for the job of that, type `{search_command}`; " if is_study else "and no job can be made of that; "
        raise InputError(
            f"{title} has a search in its subcommand {subcommand}: {remedy}for another subcommand, "
            f"`{INIT} '{command} SUBCOMMAND' --space NAME=LOW..HIGH`; nothing was changed"
        )
    if options := request.typed_options:
        reason = f"{title} has a search of its own, whose space, objective and trials become the job's"
        remedy = f"drop {options}, and change them there or in {load.FILE}"
        if request.space and parsed_script.style is Style.STUDY and ".suggest_" in origin.text:
            remedy += f"; {entrypoint.fixing_advice(notebook.parse(origin.text), request.space)}"
        raise InputError(f"{reason}; {remedy}; nothing was changed")
    if parsed_script.style is Style.STUDY:
        return _write_study_job(origin, parsed_script, start)
    if sweep is not None:
        summary = "the sweep in the configuration is the job"
        return job_files.write_files(
            folder, job_files.heading(title) + output.as_yaml({**sweep, **start.job_fields}), summary, origin.new_files
        )
    return _write_wandb_job(origin, parsed_script, start)


def _write_wandb_job(origin: Origin, parsed_script: Script, start: script_folder.Start) -> int:
    """Write the job of a script with a sweep of W&B, which is in its text or in a file; return the exit code.

    Raises:
        InputError: It is in neither of them.
    """
    title, name, sweep = origin.title, origin.real.name, dict(parsed_script.search)
    if not sweep.get("parameters"):
        files = [origin.real.parent / setting for setting in parsed_script.settings]
        file = next((file for file in files if importing.source_of(file) == "wandb"), None)
        if file is None:
            raise InputError(
                f"{title} starts a sweep of W&B that is neither in its text nor in a file that it names: write it into a "
                "YAML file, with `program`, and give that, as in `platform import wandb sweep.yaml`; nothing was changed"
            )
        output.note(f"the sweep is that of {importing.shell_path(file)}")
        sweep = document.parse(file.read_text(encoding="utf-8"), file.name).data | {
            key: value for key, value in sweep.items() if key != "parameters"
        }
    imported = wandb.read(json.dumps({**sweep, "program": name}), str(origin.file), {name: origin.text})
    fields = {field: value for field, value in imported.job.items() if field != "command"}
    fields |= {"script": name, "arguments": "none", "capture": "wandb", **start.job_fields}
    for note in imported.notes:
        if not note.field.startswith(("program", "command")):  # fields of the sweep that the job has replaced
            output.note(f"{title}: {note}")
    summary = "the sweep in the script is the job"
    return job_files.write_files(start.folder, job_files.heading(title) + output.as_yaml(fields), summary, origin.new_files)


def _write_study_job(origin: Origin, parsed_script: Script, start: script_folder.Start) -> int:
    """Write the job of a script with a search by Optuna or a library of that kind; return the exit code.

    If trials cannot import the objective from the script, a new module gets it by running the script up to its search.

    Raises:
        InputError: A file with the name of that module exists.
        SpecError: Trials cannot import that module either.
    """
    file, heading, folder = origin.file, job_files.heading(origin.file.name), start.folder
    fields = {**parsed_script.search, **start.job_fields}
    call = origin.call or script.Call(file.name)
    name = origin.real.relative_to(folder).as_posix()
    objectives = fields.get("objectives") or [fields["objective"]]
    shown = ", ".join(f"{objective['metric']} {objective['direction']}d" for objective in objectives)
    summary = f"the search of {file.name} is the job: {shown}, {errors.counted(fields['trials'], 'trial')}"
    # A trial that imports the script has not the arguments, variables and folders with which it is started.
    needs_start = call.arguments or call.variables or start.cwd != "." or start.path
    if fields["entrypoint"] and not needs_start and not _entrypoint_issues(folder, fields, origin.new_files):
        return job_files.write_files(folder, heading + output.as_yaml(fields), summary, origin.new_files)
    stem = f"_{file.stem}" if file.stem[:1].isdigit() else file.stem  # no module begins with a digit
    module = f"{re.sub(r'[^a-zA-Z0-9]+', '_', stem)}_objective"
    target = folder / f"{module}.py"
    if target.is_symlink() or target.exists():
        raise InputError(f"{target} already exists; nothing was changed; remove it")
    text = _objective_text(name, call, start)
    new_files = [*origin.new_files, NewFile(target, text, f"it runs {file.name} up to its search, for the function there")]
    fields["entrypoint"] = f"optuna:{module}:objective"
    if issues := _entrypoint_issues(folder, fields, new_files):
        raise SpecError(issues)
    return job_files.write_files(folder, heading + output.as_yaml(fields), summary, new_files)


def _objective_text(name: str, call: script.Call, start: script_folder.Start) -> str:
    """Return the text of the module with the objective of a script's search, see `_OBJECTIVE`."""
    arguments_text = repr(name)
    arguments_text += f", arguments={list(call.arguments)}" if call.arguments else ""
    arguments_text += f", folder={start.cwd!r}" if start.cwd != (Path(name).parent.as_posix()) else ""
    arguments_text += f", path={list(start.path)}" if start.path else ""
    variables = {key: value for key, value in call.variables.items() if key != "PYTHONPATH"}
    variables_text = ""
    if variables:  # a value may have `$NAME` of a variable that the trial has, such as a secret
        values = ", ".join(f"{key!r}: os.path.expandvars({value!r})" for key, value in variables.items())
        variables_text = f"import os\n\nos.environ |= {{{values}}}\n\n"
    return _OBJECTIVE.format(name=name, arguments=arguments_text, variables=variables_text)


def _entrypoint_issues(folder: Path, fields: Mapping[str, Any], new_files: Sequence[NewFile]) -> list[errors.Issue]:
    """Return the reasons why a trial could not import the entrypoint of a job, by a check in a copy of the job's folder."""
    with tempfile.TemporaryDirectory(prefix="trialplane-") as scratch:
        copied_folder = Path(scratch, "job")
        packing.unpack(packing.pack(folder, ignored=packing.ignored_lines(fields.get("links", ()))).data, copied_folder)
        for new_file in new_files:
            path = copied_folder / new_file.path.resolve().relative_to(folder)
            path.write_text(new_file.text, encoding="utf-8")
        (copied_folder / load.FILE).write_text(output.as_yaml(dict(fields)), encoding="utf-8")
        try:
            planning.check_job(copied_folder)
        except SpecError as error:  # for example a search starts when the script is imported
            return [issue for issue in error.issues if issue.field == "entrypoint"]
    return []


def _hydra_sweep(file: Path, parsed_script: Script, folder: Path) -> dict[str, Any] | None:
    """Return the fields of the job for the sweep in a Hydra script's configuration; None without a readable one.

    Remarks on values of the sweep that the job lacks are printed.
    """
    if parsed_script.style is not Style.HYDRA or not parsed_script.returned:
        return None  # a study needs an objective
    config = script_parameters.hydra_config(file, parsed_script)
    if config is None:
        return None
    text = config.read_text(encoding="utf-8", errors="replace")
    if not hydra.has_sweep(text, config.name):
        return None
    try:
        # The decorator is the text by which `read` finds the script of the configuration among others.
        imported = hydra.read(text, config.name, {file.name: "@hydra.main("})
    except SpecError as error:
        for issue in error.issues:
            output.note(f"not in the job: {issue}")
        return None
    for note in imported.notes:
        output.note(f"{config.name}: {note}")
    return {**imported.job, "script": file.relative_to(folder).as_posix()}
