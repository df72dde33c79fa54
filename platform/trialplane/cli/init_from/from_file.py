"""`platform init --from train.py`: a job.yaml for a script, a notebook, a launcher or a pipeline, which stays as it is."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Collection, Sequence
from pathlib import Path

from trialplane import errors
from trialplane.cli import importing, output
from trialplane.cli.init_from import calls, settings_file, smoke, writing
from trialplane.cli.init_from.request import INIT, NewFile, Origin, Request
from trialplane.errors import InputError
from trialplane.importing import dvc, launcher, makefile, ray, script, script_folder
from trialplane.importing.script import Script, Style
from trialplane.job import document, load, notebook, settings
from trialplane.wire.declared import Option

_INCLUDE = re.compile(r"^-?include[ \t]+([\w./-]+)[ \t]*$", re.MULTILINE)  # include config.mk, in a Makefile
_DATA_SUFFIXES = (".yaml", ".yml", ".json", ".toml", ".ini", ".cfg")
_RUNNERS = {
    ".r": "Rscript {name}",
    ".jl": "julia {name}",
    ".m": "octave {name}",
    ".js": "node {name}",
    ".pl": "perl {name}",
    ".rb": "ruby {name}",
    ".lua": "lua {name}",
    ".cpp": "g++ -O2 {name} -o program && ./program",
    ".cc": "g++ -O2 {name} -o program && ./program",
    ".c": "gcc -O2 {name} -lm -o program && ./program",
    ".rs": "rustc {name} -o program && ./program",
    ".go": "go run {name}",
}
_USES_REPOSITORY = re.compile(r"\bdvc\.api\b|^\s*from dvc import", re.MULTILINE)


def make(file: Path, request: Request, call: script.Call | None = None) -> int:
    """Write a job.yaml beside a script, or nothing at all, and say whether the job can run.

    Args:
        file: The script.
        request: Options of the user.
        call: Call of the script in a command that the user gives, such as `python bin/fit.py`; None without a command.

    Returns:
        The exit code.

    Raises:
        InputError: The script cannot be read, or ends before it reads its arguments.
        SpecError: It is not Python, or its configuration is not YAML.
    """
    if not script_folder.exists(file):
        siblings = file.parent.glob("*.py") if script_folder.exists(file.parent) else ()
        hint = errors.nearest(file.name, [sibling.name for sibling in siblings])
        raise InputError(f"there is no {file}; {hint or 'give the path of a Python script'}; nothing was changed")
    if file.name == dvc.FILE and file.is_file():
        return make_of_pipeline(dvc.Command(file=str(file)), request)
    exported: NewFile | None = None
    notebook_file: Path | None = None
    started_commands: tuple[str, ...] = ()
    if file.is_file() and file.suffix == ".ipynb":
        notebook_file, exported = file, _notebook_code(file)
        file = exported.path
    elif not file.is_file() or not (file.suffix == ".py" or launcher.is_launcher(file)):
        raise _unusable_error(file)
    real = file.resolve()  # Python imports from the folder of a link's target
    if file.suffix == ".py":
        text, parsed_script = _read_python(
            file, exported.text if exported else None, request.space, call.arguments if call else ()
        )
        if parsed_script.style is Style.TUNE:
            return _import_tune(file, request, is_notebook=exported is not None)
    else:
        text, parsed_script, started_commands = _read_launcher(file, request)
    options = _options_with_dotenv(parsed_script, real.parent / ".env")
    parsed_script = dataclasses.replace(parsed_script, options=options)
    new_files = () if exported is None else (exported,)
    origin = Origin(file, real, text, file.name, new_files, call, started_commands, notebook_file)
    return writing.write_job(origin, parsed_script, request)


def make_of_pipeline(command: dvc.Command, request: Request) -> int:
    """Write a job.yaml beside a pipeline of DVC; return the exit code.

    Raises:
        InputError: The file is missing, or cannot be read.
        SpecError: Its pipeline cannot be read; see `dvc.read`.
    """
    file = Path(command.file)
    if not file.is_file():
        raise InputError(f"there is no {file}; give the command in the folder of the pipeline; nothing was changed")
    text = script_folder.source(file)
    files = dvc.Files(
        lambda name: document.decode(document.content(file.parent / name), name),
        lambda name: script_folder.exists(file.parent / name),
    )
    request = dataclasses.replace(request, space={**command.space, **request.space})
    parsed_pipeline = dvc.read(text, str(file), files, command=command, requested=request.space)
    # `dvc.api` reads files only in a repository, and trials get a copy of the folder without one.
    if any(_USES_REPOSITORY.search(python_text) for python_text in smoke.python_texts(file.parent)):
        parsed_pipeline = dvc.with_repository(parsed_pipeline)
    return writing.write_job(Origin(file, file.resolve(), text, file.name), parsed_pipeline, request)


def _unusable_error(file: Path) -> InputError:
    """Return the error for a file of which no job can be made, with the command to type in its place."""
    if file.suffix.lower() in _DATA_SUFFIXES:
        return InputError(
            f"{file} is not a search that can be read, which are those of {', '.join(importing.SOURCES)}; give the "
            f"command that you type today, in quotes, with its numbers: `{INIT} 'python train.py --lr 0.1'`; nothing "
            "was changed"
        )
    runner = _RUNNERS.get(file.suffix.lower(), "./{name}").format(name=file.name)
    if file.suffix.lower() in _RUNNERS and script.settings_options(script_folder.source(file), file.name):
        return InputError(
            f"{file} has numbers that could be parameters; give the command that you type today, in quotes, in its folder: "
            f"`{INIT} '{runner}'`; nothing was changed"
        )
    return InputError(
        f"{file} is not a Python script, a notebook, a shell script, a Makefile, an MLproject or a {dvc.FILE}; for "
        "another program, give the command that you type today, in quotes, with its numbers, in its folder: "
        f"`{INIT} '{runner} --lr 0.1'`, or with names for those without: `{INIT} '{runner} {{lr=0.1}}'`; "
        "nothing was changed"
    )


def _read_launcher(file: Path, request: Request) -> tuple[str, Script, tuple[str, ...]]:
    """Return the text of a shell script, a Makefile or an MLproject, the command that starts it, and `started_commands`.

    The last one is that of `Origin`.
    """
    real = file.resolve()
    text = script_folder.source(real)
    if makefile.is_makefile(real):
        text = _INCLUDE.sub(lambda match: _included_text(real.parent / match[1]), text)
    started_commands: tuple[str, ...] = ()
    folder = os.path.relpath(file.parent)
    files = settings_file.NamedFiles()
    if real.suffix in settings.SHELLS and os.pardir not in folder:  # below the working directory, where the user types
        shell_call = script.Call(file.name, folder=folder)
        started_commands = calls.started_commands(text, shell_call, request)
        lines = calls.words_here(calls.started_lines(text, shell_call))
        files = settings_file.named(lines, real.parent, request.space, by_stem=False, only_requested=bool(request.space))
    parsed_script = launcher.read(
        text,
        str(file),
        started_commands=started_commands,
        requested=request.space,
        configs=files.names,
        values=files.options,
    )
    return text, parsed_script, started_commands


def _read_python(
    file: Path, notebook_code: str | None, requested: Collection[str], given_arguments: Sequence[str]
) -> tuple[str, Script]:
    """Return the text of a Python script and the facts that it shows.

    Args:
        file: The script.
        notebook_code: Text of the script if it is the code of a notebook and not written yet; None to read the file.
        requested: Names of the parameters that the user wants to search, which a search of the script's own may not have.
        given_arguments: Arguments of the script in the user's command.
    """
    real = file.resolve()
    text = script_folder.source(real) if notebook_code is None else notebook_code
    module_text = script_folder.module_text(real, notebook_code)
    parsed_script = script.read(text, str(file), module_text, requested=requested, given_arguments=given_arguments)
    if requested and parsed_script.style in (Style.STUDY, Style.WANDB):
        without_search = script.read(text, str(file), module_text, with_search=False, requested=requested)
        if without_search.style in (Style.PARSED, Style.HYDRA):  # it has parameters besides those of its search
            output.note(f"{file.name} has a search of its own; if it starts, each trial of this job is a whole search")
            return text, without_search
    return text, parsed_script


def _import_tune(file: Path, request: Request, *, is_notebook: bool) -> int:
    """Write the job of a script with a search of Ray Tune, as `platform import ray` does; return the exit code.

    Raises:
        InputError: The user has typed a space, an objective or a number of trials, or the script is the code of a notebook.
        SpecError: The search cannot be read.
    """
    if options := request.typed_options:
        reason = f"{file} is a search of Ray Tune, whose space, objective and trials become the job's"
        raise InputError(f"{reason}; drop {options}; nothing was changed")
    if is_notebook:
        command = f"platform import ray {importing.shell_path(file)}"
        remedy = f"write its code, without magics and shell commands, into {file}, and type `{command}`"
        raise InputError(f"the notebook has a search of Ray Tune: {remedy}; nothing was changed")
    if not request.with_smoke:
        output.note("--no-smoke changes nothing: a search of Ray Tune is read, and never run")
    for path, text in script_folder.modules(file.resolve()).items():  # the script first
        if ray.has_search(text):
            if path.name != file.name:
                output.note(f"the search that {file.name} starts is in {path}")
            file = file.parent / path
            break
    return importing.create_job("ray", file, Path(load.FOLDER, importing.job_name(file)))


def _included_text(file: Path) -> str:
    """Return the text of a file that a Makefile includes; "" if there is none, as `-include` allows."""
    return script_folder.source(file) if file.is_file() else ""


def _notebook_code(file: Path) -> NewFile:
    """Return a new file with the code of a notebook.

    Raises:
        InputError: The notebook cannot be read, or a file of that name exists.
    """
    target = file.with_name(f"{re.sub(r'[^A-Za-z0-9_-]+', '_', file.stem)}.py")
    if target.is_symlink() or target.exists():
        raise InputError(
            f"{target} already exists, and would be the code of {file.name}: `{INIT} {importing.shell_path(target)}`"
        )
    try:
        text = notebook.exported_source(script_folder.source(file))
    except ValueError as error:
        raise InputError(f"{file} cannot be read: {error}; nothing was changed") from error
    return NewFile(target, text, f"the code of {file.name}, without its magics and shell commands")


def _options_with_dotenv(parsed_script: Script, file: Path) -> tuple[Option, ...]:
    """Return the options of a script. Environment variables get the numbers in a .env file as their defaults.

    Texts in that file are not used. They may be secrets, and job.yaml is committed and uploaded.
    """
    if parsed_script.style is not Style.ENVIRONMENT:
        return parsed_script.options
    try:
        lines = document.decode(document.content(file), file.name).splitlines()
    except (OSError, ValueError):
        return parsed_script.options
    pairs = (line.removeprefix("export ").partition("=") for line in lines)  # export LR="0.1"
    values = {name.strip(): value.strip().strip("\"'") for name, _, value in pairs}
    return tuple(
        script.with_default(option, values.get(option.name)) if option.kind in ("float", "int") else option
        for option in parsed_script.options
    )
