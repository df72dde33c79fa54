"""`platform init --from train.py`: a job.yaml for the unmodified script, with a space guessed from its parameters.

The parameters are found (`script_probe`), become a job (`script_job`), and the script runs once, to show its metrics.
Nothing is written before all of that has succeeded.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import json
import os
import re
import shlex
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from trialplane import errors
from trialplane.cli import data_links, importing, output, script_folder, script_job, script_probe, settings_file, smoke
from trialplane.cli.script_job import ScriptJob
from trialplane.cli.script_probe import ScriptCopy
from trialplane.errors import InputError, SpecError
from trialplane.importing import dvc, guess, hydra, launcher, ray, script, wandb, wrapper
from trialplane.importing.script import Script, Style
from trialplane.job import arguments, credentials, document, entrypoint, load, notebook, settings
from trialplane.plan import pack as packing
from trialplane.plan import plan as planning
from trialplane.wire import escapes
from trialplane.wire.declared import Declared, Option
from trialplane.worker import shipping

# Styles of scripts that may have a settings file, too.
_WITH_SETTINGS = (Style.UNKNOWN, Style.GLOBALS, Style.ENVIRONMENT, Style.PARSED)
_INIT = "platform init --from"
_SOURCES = "src"  # folder with the packages of a project, whose modules a command finds only if they are installed
_INCLUDE = re.compile(r"^-?include[ \t]+([\w./-]+)[ \t]*$", re.MULTILINE)  # of a Makefile
_LONGEST_TITLE = 50  # characters of a command in a message
_UPWARD = re.compile(r"(?<![\w./])\.\./[\w./-]+")  # ../config/args.json
# Variables that torchrun sets, in the failure of a script that lacks them.
_RANK = re.compile(r"\b(?:LOCAL_RANK|RANK|WORLD_SIZE|MASTER_ADDR)\b")
_PYTHONPATH = re.compile(r"""\bPYTHONPATH=((?:"[^"]*"|'[^']*'|[^\s"';&|])*)""")  # with its value
_MISSING_MODULE = re.compile(r"ModuleNotFoundError: No module named '(\w{1,99}(?:\.\w{1,99})*)'", re.ASCII)
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
_OBJECTIVE = '''"""The objective of the search that {name} starts."""

{variables}from trialplane.integrations.searches import objective_of

objective = objective_of({arguments})
'''
_USES_REPOSITORY = re.compile(r"\bdvc\.api\b|^\s*from dvc import", re.MULTILINE)
# Name of a hidden file in the text of a script: "./.vocabulary.txt"
_HIDDEN_NAME = re.compile(r"""["'](?:\./)?(\.[A-Za-z][\w-]*(?:\.\w+)*)["']""")


@dataclasses.dataclass(frozen=True)
class Request:
    """The options of `platform init --from`.

    Attributes:
        with_smoke: Whether to run the script once, to find its metrics.
        space: Parameters to search in place of guessed ones, as fields of job.yaml by name; empty to guess.
        secrets: Secrets that the user's command had, by the environment variable that stands for each one in the job.
        smoke_seconds: Maximum duration of that run; None for `smoke.LONGEST`.
        objective: Metric to optimize in place of a guessed one, with its direction; None to guess.
        typed: The options as the user types them, for messages.
        switched_on: Searched parameters that are on in the user's command, without their flags.
    """

    with_smoke: bool = True
    space: Mapping[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    secrets: Mapping[str, str] = dataclasses.field(default_factory=dict)
    smoke_seconds: float | None = None
    objective: Mapping[str, str] | None = None
    typed: str = ""
    switched_on: tuple[str, ...] = ()

    @property
    def typed_options(self) -> str:
        """The options that a search of the script's own replaces, as the user types them."""
        return " and ".join(["--space"] * bool(self.space) + ["--objective"] * (self.objective is not None))


@dataclasses.dataclass(frozen=True)
class _NewFile:
    """A file beside the script that the job needs.

    Attributes:
        path: Path of the file.
        text: Content of the file.
        remark: Meaning of the file, for messages.
    """

    path: Path
    text: str
    remark: str


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
        return _make_of_pipeline(dvc.Command(str(file)), request)
    new_files: tuple[_NewFile, ...] = ()
    started_commands: Callable[[], Sequence[str]] = tuple
    if file.is_file() and file.suffix == ".ipynb":
        new_files = (_notebook_code(file),)
        file = new_files[0].path
    elif not file.is_file() or not (file.suffix == ".py" or launcher.is_launcher(file)):
        raise _unusable_error(file)
    real = file.resolve()  # Python imports from the folder of a link's target
    if file.suffix == ".py":
        notebook_code = new_files[0].text if new_files else None
        text, parsed_script = _read_python(file, notebook_code, request.space, call.arguments if call else ())
        if parsed_script.style is Style.TUNE:
            return _import_tune(file, request, is_notebook=bool(new_files))
    else:
        text, parsed_script, started_commands = _read_launcher(file, request)
    options = _options_with_dotenv(parsed_script, real.parent / ".env")
    parsed_script = dataclasses.replace(parsed_script, options=options)
    return _write_job(_Origin(file, real, text, file.name, new_files, call, started_commands), parsed_script, request)


def _make_of_pipeline(command: dvc.Command, request: Request) -> int:
    """Write a job.yaml beside a pipeline of DVC; return the exit code.

    Args:
        command: Command of DVC that runs stages of the pipeline.
        request: Options of the user.

    Raises:
        InputError, SpecError: See `make`.
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
    parsed_script = dvc.read(text, str(file), files, command, request.space)
    if any(_USES_REPOSITORY.search(python_text) for python_text in smoke.python_texts(file.parent)):
        parsed_script = dvc.with_repository(parsed_script)
    return _write_job(_Origin(file, file.resolve(), text, file.name), parsed_script, request)


def _unusable_error(file: Path) -> InputError:
    """Return the error for a file of which no job can be made, with the command to type in its place."""
    if file.suffix.lower() in _DATA_SUFFIXES:
        return InputError(
            f"{file} is no search that can be read, which are those of {', '.join(importing.SOURCES)}; give the "
            f"command that you type today, in quotes, with its numbers: `{_INIT} 'python train.py --lr 0.1'`; nothing "
            "was changed"
        )
    runner = _RUNNERS.get(file.suffix.lower(), "./{name}").format(name=file.name)
    return InputError(
        f"{file} is not a Python script, a notebook, a shell script, a Makefile, an MLproject or a {dvc.FILE}; for "
        "another program, give the command that you type today, in quotes, with its numbers, in its folder: "
        f"`{_INIT} '{runner} --lr 0.1'`, or with names for those without: `{_INIT} '{runner} {{lr=0.1}}'`; "
        "nothing was changed"
    )


def _read_launcher(file: Path, request: Request) -> tuple[str, Script, Callable[[], Sequence[str]]]:
    """Return the text of a shell script, a Makefile or an MLproject, the command that starts it, and `started_commands`.

    The last one is that of `_Origin`.
    """
    real = file.resolve()
    text = script_folder.source(real)
    if launcher.is_makefile(real):
        text = _INCLUDE.sub(lambda match: _included_text(real.parent / match[1]), text)
    shell_call = script.Call(file.name, os.path.relpath(file.parent), "", (), 0)
    is_shell_below = real.suffix in settings.SHELLS and os.pardir not in shell_call.folder  # below the working directory
    started_commands = functools.partial(_started_commands, text, shell_call, request) if is_shell_below else tuple
    return text, launcher.read(text, str(file), started_commands), started_commands


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

    Args:
        file: The script, or the file for the code of a notebook.
        request: Options of the user.
        is_notebook: Whether it is that of a notebook.

    Raises:
        InputError: There is a space or an objective, or the script is the code of a notebook.
        SpecError: The search cannot be read.
    """
    if options := request.typed_options:
        reason = f"{file} is a search of Ray Tune, whose space and objective become the job's"
        raise InputError(f"{reason}; drop {options}; nothing was changed")
    if is_notebook:
        command = f"platform import ray {importing.shell_path(file)}"
        remedy = f"write its code, without magics and shell commands, into {file}, and type `{command}`"
        raise InputError(f"the notebook has a search of Ray Tune: {remedy}; nothing was changed")
    if not request.with_smoke:
        output.note("--no-smoke changes nothing: a search of Ray Tune is read, and never run")
    for path, (text, _) in script_folder.modules(file.resolve()).items():  # the script first
        if ray.has_search(text):
            if path.name != file.name:
                output.note(f"the search that {file.name} starts is in {path}")
            file = file.parent / path
            break
    return importing.create_job("ray", file, Path(load.FOLDER, importing.job_name(file)))


def _included_text(file: Path) -> str:
    """Return the text of a file that a Makefile includes; "" if there is no such file."""
    return script_folder.source(file) if file.is_file() else ""


def _notebook_code(file: Path) -> _NewFile:
    """Return a new file with the code of a notebook.

    Raises:
        InputError: The notebook cannot be read, or a file of that name exists.
    """
    target = file.with_name(f"{re.sub(r'[^A-Za-z0-9_-]+', '_', file.stem)}.py")
    if target.is_symlink() or target.exists():
        raise InputError(
            f"{target} already exists, and would be the code of {file.name}: `{_INIT} {importing.shell_path(target)}`"
        )
    try:
        text = notebook.exported_source(script_folder.source(file))
    except ValueError as error:
        raise InputError(f"{file} cannot be read: {error}; nothing was changed") from error
    return _NewFile(target, text, f"the code of {file.name}, without its magics and shell commands")


def make_of_command(text: str, request: Request) -> int:
    """Write a job.yaml for a command line into the working directory, without the secrets in it.

    Args:
        text: Command line as the user types it.
        request: Options of the user.

    Returns:
        The exit code.

    Raises:
        InputError, SpecError: See `make`.
    """
    text, secrets = credentials.extract(re.sub(r"\s*\\\n\s*", " ", text))  # lines that are continued
    request = dataclasses.replace(request, secrets=secrets)
    if secrets:
        output.note(_secrets_message(list(secrets)))
    switches = [
        name
        for name, fields in request.space.items()
        if all(isinstance(choice, bool) for choice in fields.get("choices", [None]))
    ]
    text, removed_switches = launcher.without_switches(text, switches)
    if removed_switches:
        request = dataclasses.replace(request, switched_on=tuple(removed_switches))
        flags = ", ".join(removed_switches.values())
        output.note(f"{flags}: taken out of the command, because it is searched")
    if (dvc_command := dvc.find_command(text)) is not None:
        return _make_of_pipeline(dvc_command, request)
    call = launcher.find_call(text)
    existing_call = _existing_call(call) if call is not None else None
    exit_code = _make_of_other_form(text, existing_call, request)
    if exit_code is not None:
        return exit_code
    if call is None and (shell_call := _existing_shell_call(text)) is not None:
        return _make_of_shell_command(text, shell_call, request)
    if existing_call is not None and not request.space and _starts_study(existing_call):
        return make(Path(existing_call.folder, existing_call.script), request, existing_call)
    if call is None and request.space:  # whose names the program may declare
        existing_call = launcher.find_console_call(text)
    return _write_command_job(text, existing_call, text, ".", tuple, request)


def _make_of_shell_command(text: str, shell_call: script.Call, request: Request) -> int:
    """Write the job of a command that calls a shell script, and return the exit code.

    Args:
        text: Command line.
        shell_call: Its call of the shell script.
        request: Options of the user.

    Raises:
        InputError, SpecError: See `make`.
    """
    shell_text = script_folder.source(Path(shell_call.folder, shell_call.script))
    call = wrapper.wrapped_call(shell_text, shell_call)  # of a Python script, to which the shell script passes its arguments
    if call is None and not shell_call.arguments and not shell_call.variables:  # the same as its script
        with contextlib.suppress(SpecError):  # it has no parameters; the message is then about the command
            return make(Path(shell_call.folder, shell_call.script), request)
    call = None if call is None else _existing_call(call)
    words = shlex.join([shell_call.script, *shell_call.arguments])
    started_commands = functools.partial(_started_commands, shell_text, shell_call, request)
    return _write_command_job(text, call, words, shell_call.folder, started_commands, request)


def _write_command_job(
    text: str,
    call: script.Call | None,
    words: str,
    folder: str,
    started_commands: Callable[[], Sequence[str]],
    request: Request,
) -> int:
    """Write the job of a command line, and return the exit code.

    Args:
        text: Command line.
        call: Call of a Python script in it; None without one.
        words: Words of the command that may name files, if it calls no Python script. Otherwise these are its arguments.
        folder: Folder to which these words are relative.
        started_commands: Function that returns the commands of a shell script that the command calls, for a message.
        request: Options of the user.

    Raises:
        InputError, SpecError: See `make`.
    """
    if call is not None:
        words, folder = shlex.join(call.arguments), call.folder
    _refuse_files_above(text, words, folder, call, request)
    config, values = _named_settings(words, folder, call, request.space)
    parsed_script = launcher.parse_command_line(text, config, values, call, started_commands)
    started_commands = started_commands if call is None else tuple  # further arguments reach the Python script
    origin = _Origin(Path(text), Path.cwd() / "command", text="", title=text, started_commands=started_commands)
    return _write_job(origin, parsed_script, request)


def _make_of_other_form(text: str, existing_call: script.Call | None, request: Request) -> int | None:
    """Write the job of a command by what it means, such as its script, notebook or Makefile; return the exit code.

    None, and nothing is written, for a command that is taken as it is.

    Args:
        text: Command line.
        existing_call: Its call of a Python script; None without one that exists.
        request: Options of the user.

    Raises:
        InputError, SpecError: See `make`.
    """
    if script_file := launcher.script_without_arguments(text):  # a command without arguments is the same as its script
        script_file = existing_call.script if existing_call is not None else script_file
        return make(Path(script_file), request, script.Call(script_file, ".", "", (), 0))
    if existing_call is not None and (path := _python_path(text, existing_call, request)):
        is_simple = text.startswith("python") and not set(text) & set("&|;")
        return make_of_command(f"PYTHONPATH={path} {text}" if is_simple else f"export PYTHONPATH={path} && {text}", request)
    if notebook_file := launcher.executed_notebook(text):
        return make(Path(notebook_file), request)
    makefile_text = next((script_folder.source(Path(name)) for name in launcher.MAKEFILES if Path(name).is_file()), "")
    made_command, remark = launcher.made_command(text, makefile_text)
    if not made_command:
        return None
    output.note(f"`{text}` runs `{credentials.extract(made_command)[0]}`, which is the command of the job")
    if remark:
        output.note(remark)
    return make_of_command(made_command, request)


def _named_settings(
    words: str, folder: str, call: script.Call | None, requested: Collection[str]
) -> tuple[str, list[Option]]:
    """Return the settings file that a command or its script names, relative to the working directory, and its values.

    The name is "" without such a file.

    Args:
        words: Words of the command that may name files.
        folder: Folder to which they are relative.
        call: Call of a Python script in the command; None without one.
        requested: Names of the parameters that the user wants to search.
    """
    # A script of Hydra has groups of configurations, whose options name no files.
    by_stem = call is not None and "hydra" not in script_folder.source(Path(call.folder, call.script))
    config, values = settings_file.named(words, Path(folder), requested, by_stem=by_stem)
    if not config and by_stem and call is not None:
        config, values = settings_file.named_in_script(Path(folder, call.script), Path(folder), requested)
    return (os.path.normpath(Path(folder, config)) if config else ""), values


def _starts_study(call: script.Call) -> bool:
    """Return whether a command starts the search of a Python script, by Optuna or another library of that kind."""
    file = Path(call.folder, call.script)
    parsed_script = script.read(script_folder.source(file), str(file))
    subcommand = script_probe.subcommand(call.arguments)
    return parsed_script.style is Style.STUDY and subcommand in ("", parsed_script.searching)


def _started_commands(text: str, shell_call: script.Call, request: Request) -> list[str]:
    """Return the command that makes the job of each Python command of a shell script, with the options that the user typed.

    Args:
        text: Text of the shell script.
        shell_call: Its call in the command line.
        request: Options of the user.
    """
    commands = wrapper.python_commands(text, shell_call)
    path = os.path.normpath(Path(shell_call.folder, shell_call.script))
    started_here = wrapper.python_commands(text, dataclasses.replace(shell_call, script=path, folder="."))
    calls = map(launcher.find_call, started_here)
    if any(call is not None and _existing_call(call) for call in calls):  # it is for this folder, and not for its own
        commands = started_here
    return [" ".join(filter(None, (_INIT, shlex.quote(command), request.typed))) for command in commands]


def _refuse_files_above(text: str, words: str, folder: str, call: script.Call | None, request: Request) -> None:
    """Check that a command or its script names no file above the working directory, of which trials get a copy.

    Folders above are only printed, as trials may write to them.

    Args:
        text: Command line.
        words: Words of it that may be files.
        folder: Folder to which the words are relative, itself relative to the working directory.
        call: Call of a Python script in the command; None without one.
        request: Options of the user.

    Raises:
        InputError: It names one. The message has the command for the folder that has all files.
    """
    names = dict.fromkeys(os.path.normpath(Path(folder, name)) for name in _UPWARD.findall(words))
    paths_above = [Path(name) for name in names if name.startswith(os.pardir)]
    if file := next((path for path in paths_above if path.is_file()), None):
        raise _path_above_error(text, f"the command reads {file}", Path.cwd() / file, request)
    if call is not None:
        script_file = Path(call.folder, call.script).resolve()
        for path_above in script.paths_above(script_folder.source(script_file)):
            target = Path(os.path.realpath(script_file.parent / path_above))
            common_folder = Path(os.path.commonpath([Path.cwd(), target]))
            is_above = common_folder != Path.cwd() and not script_folder.has_other_files(common_folder)
            has_data = target.is_file() or (target.is_dir() and any(target.iterdir()))
            if is_above and has_data and not data_links.names_output(path_above):
                raise _path_above_error(text, f"{call.script} names {target}", target, request)
    for path in paths_above:
        if path.is_dir():
            output.note(
                f"the command names {path}, above this folder, and trials get a copy of this folder only; to read files "
                "there, give its absolute path, or give the command in the folder that has both, as `cd FOLDER && …`"
            )


def _path_above_error(text: str, reason: str, path: Path, request: Request) -> InputError:
    """Return the error for a command that reads a path above the working directory, with the command that works.

    Args:
        text: Command line.
        reason: Beginning of the message.
        path: The path.
        request: Options of the user.
    """
    common_folder = Path(os.path.commonpath([Path.cwd(), os.path.normpath(path)]))
    words = f"cd {shlex.quote(Path.cwd().relative_to(common_folder).as_posix())} && {text}"
    command = " ".join(filter(None, (_INIT, shlex.quote(words), request.typed)))
    return InputError(
        f"{reason}, above this folder, and trials get a copy of this folder only; give the command in the folder that has "
        f"both: `cd {shlex.quote(str(common_folder))} && {command}`; nothing was changed"
    )


def _python_path(text: str, call: script.Call, request: Request) -> str:
    """Return the PYTHONPATH that the script of a command needs for its modules; "" if it needs none, or the command sets it.

    Raises:
        InputError: It imports a module of a folder that the working directory lacks, see `_module_above_error`.
    """
    file, call_folder = Path(call.folder, call.script).resolve(), Path(call.folder).resolve()
    if not file.is_relative_to(Path.cwd()):
        return ""
    text_of_script = script_folder.source(file)
    parsed_script = script.read(text_of_script, call.script)
    start = script_folder.start(file, parsed_script, text="")  # also with the folders that the script itself finds
    _refuse_modules_above(text, call, start.roots, text_of_script, request)
    if "PYTHONPATH" in call.variables:
        return ""
    roots = [] if script_folder.finds_own_modules(text_of_script) and not start.module else start.roots
    if call.module and call.script.startswith(f"{_SOURCES}/"):
        roots.append(Path(call.folder, _SOURCES).resolve())
    roots = [root for root in roots if not _is_installed_instead(root, parsed_script)]
    # Python imports from the folder of a script, or from the working directory for a module.
    known_root = call_folder if call.module else file.parent
    paths = dict.fromkeys(os.path.relpath(root, call_folder) for root in roots if root != known_root)
    return os.pathsep.join(map(shlex.quote, paths))


def _is_installed_instead(root: Path, parsed_script: Script) -> bool:
    """Return whether all modules that a script imports from a folder are also installed, and so imported by its command."""
    names = {module.partition(".")[0] for module in (*parsed_script.top, *parsed_script.late)}
    names_in_root = [name for name in names if script_folder.has_module(root, name)]
    return bool(names_in_root) and all(script_folder.is_installed_outside(Path.cwd(), name) for name in names_in_root)


def _refuse_modules_above(
    text: str, call: script.Call, roots: Sequence[Path], text_of_script: str, request: Request
) -> None:
    """Check that the script of a command imports no module of a folder that the working directory lacks.

    Args:
        text: Command line.
        call: Its call of the script. Its PYTHONPATH may name such folders, too.
        roots: Folders with modules that the script imports, also those that it adds to `sys.path` by itself.
        text_of_script: Text of the script.
        request: Options of the user.

    Raises:
        InputError: It imports one, see `_module_above_error`.
    """
    file = Path(call.folder, call.script)
    entries = list(filter(None, call.variables.get("PYTHONPATH", "").split(os.pathsep)))
    typed_roots = [Path(os.path.realpath(Path(call.folder, entry))) for entry in entries if not entry.startswith("/")]
    missing_modules = script_folder.missing_modules(file) if typed_roots else ()
    typed_roots = [root for root in typed_roots if any(script_folder.has_module(root, name) for name in missing_modules)]
    absolute_roots = {os.path.realpath(entry) for entry in entries if entry.startswith("/")}
    for root in (*roots, *typed_roots):
        # A folder that the command or the script names by its absolute path is found in the copy, too.
        is_named = str(root) in absolute_roots or re.search(rf"""(["']){re.escape(str(root))}/?\1""", text_of_script)
        if not root.is_relative_to(Path.cwd()) and not is_named:
            raise _module_above_error(text, call, root, Path.cwd(), f"{call.script} imports modules of {root}", request)


def _refuse_missing_module(
    failure: str, origin: _Origin, parsed_script: Script, start: script_folder.Start, request: Request
) -> None:
    """Check that a script did not fail because the job's folder lacks a module that a folder above has.

    Args:
        failure: Cause of the failure; "" without one.
        origin: File from which the job is made.
        parsed_script: Content of the script.
        start: Its start in the job's folder.
        request: Options of the user.

    Raises:
        InputError: It failed so, see `_module_above_error`.
    """
    missing = _MISSING_MODULE.search(failure)
    root = script_folder.root_above(start.folder, missing[1]) if missing is not None else None
    if missing is None or root is None:
        return
    text, call, folder = origin.title, parsed_script.call, start.folder / start.cwd
    if origin.text:
        name = os.path.relpath(origin.real, folder)
        is_script = origin.real.suffix == ".py" and not start.path and not start.module
        program = "python" if is_script else "bash" if origin.real.suffix in settings.SHELLS else ""
        text = shlex.join([program, name]) if program else "COMMAND"
        call = script.Call(name, ".", "", (), 0) if is_script else None
    reason = f"{origin.short_title} imports {missing[1]}, which is in {root}"
    raise _module_above_error(text, call, root, folder, reason, request)


def _module_above_error(
    text: str, call: script.Call | None, root: Path, folder: Path, reason: str, request: Request
) -> InputError:
    """Return the error for a command that imports modules of a folder that the job's folder lacks.

    The message has the command for the folder that has both.

    Args:
        text: Command line, or COMMAND for one that is not known.
        call: Its call of a Python script; None without one.
        root: Folder with the modules.
        folder: Folder of the job without them, in which the command runs.
        reason: Beginning of the message.
        request: Options of the user.
    """
    common_folder = Path(os.path.commonpath([root, folder]))
    call_folder = folder / call.folder if call is not None else folder
    path = shlex.quote(os.path.relpath(root, call_folder))
    entries = call.variables.get("PYTHONPATH", "").split(os.pathsep) if call is not None else []
    words = [f"cd {shlex.quote(folder.relative_to(common_folder).as_posix())}"]
    values = _PYTHONPATH.findall(text) if call is None or any(entries) else []
    if str(root) in [os.path.realpath(call_folder / entry) for entry in entries]:
        words += [text]
    elif values:  # an export before it would have no effect
        words += [_PYTHONPATH.sub(lambda match: f"PYTHONPATH={path}{os.pathsep}{match[1]}", text)]
    else:
        words += [f"export PYTHONPATH={path}", text]
    command = " ".join(filter(None, (_INIT, shlex.quote(" && ".join(words)), request.typed)))
    absolute_path = os.pathsep.join([shlex.quote(str(root)), *values[-1:]])
    remedies = [f"set `PYTHONPATH={absolute_path}` in the command, for trials on this machine only"]
    if not script_folder.has_other_files(common_folder):
        remedy = f"give the command in the folder that has both: `cd {shlex.quote(str(common_folder))} && {command}`"
        remedies.insert(0, remedy)
    return InputError(
        f"{reason}, outside of this folder, and trials get a copy of this folder only; {'; or '.join(remedies)}; "
        "nothing was changed"
    )


def _existing_shell_call(text: str) -> script.Call | None:
    """Return the call of a shell script in a command line; None without one, or if there is no such file."""
    shell_call = wrapper.find_call(text)
    return shell_call if shell_call is not None and Path(shell_call.folder, shell_call.script).is_file() else None


def _secrets_message(variables: Sequence[str]) -> str:
    """Return the message that job.yaml has environment variables in place of secrets."""
    names = " and ".join(variables)
    exports = "; ".join(f"export {name}=…" for name in variables)
    return (
        f"{names}: the value looks like a secret, and is not written into {load.FILE}, which everyone who may see the run "
        f"can read. Trials on this machine read the environment variable: type `{exports}` before `platform submit`. For a "
        "cluster see `platform docs scripts`"
    )


def _existing_call(call: script.Call) -> script.Call | None:
    """Return a call with the path at which its script exists; None if it is not at or below the working directory.

    For a module, this may be the `__main__.py` of a package, in a folder of PYTHONPATH or in `src`.
    """
    names = [call.script]
    if call.module:
        roots = [".", *call.variables.get("PYTHONPATH", "").split(os.pathsep), _SOURCES]
        files = (call.script, f"{call.script.removesuffix('.py')}/__main__.py")
        names = [os.path.normpath(Path(root, file)) for root in filter(None, roots) for file in files]
    for name in names:
        path = Path(os.path.normpath(Path(call.folder, name)))
        if not path.is_absolute() and os.pardir not in path.parts and script_folder.exists(path) and path.is_file():
            return dataclasses.replace(call, script=name)
    return None


@dataclasses.dataclass(frozen=True)
class _Origin:
    """The file or the command line from which a job is made.

    Attributes:
        file: Path of the script or launcher as the user names it, or the command line.
        real: The path without links; for a command line, a path in the working directory.
        text: Text of the file; "" for a command line.
        title: Name for messages.
        new_files: Files to write beside the job's.
        call: Call of the script in a command that the user types; None without one.
        started_commands: Function that returns the commands of a shell script, for a message, see `_started_commands`.
    """

    file: Path
    real: Path
    text: str
    title: str
    new_files: tuple[_NewFile, ...] = ()
    call: script.Call | None = None
    started_commands: Callable[[], Sequence[str]] = tuple

    @property
    def short_title(self) -> str:
        """The title, without the end of a long command, for messages that would repeat it."""
        return errors.shortened(self.title, _LONGEST_TITLE)


def _write_job(origin: _Origin, parsed_script: Script, request: Request) -> int:
    """Write the job of a script, a launcher or a command line; return the exit code.

    Raises:
        InputError, SpecError: See `make`.
    """
    title, real = origin.short_title, origin.real
    start, file_with_values = _find_start(origin, parsed_script, request.space)
    folder = start.folder
    call = parsed_script.call
    if call is not None and (start.cwd != "." or not (folder / call.folder / call.script).is_file()):
        # The call is not relative to the job's folder, so its arguments cannot be found from there.
        parsed_script = dataclasses.replace(parsed_script, call=None)
    parsed_script = _with_paths_from(folder, parsed_script, real)
    job_file = folder / load.FILE
    if job_file.is_symlink() or job_file.exists():
        raise InputError(f"{job_file} already exists; nothing was changed; remove it, or move {title} to another folder")
    _print_missing_libraries(origin.file, parsed_script, roots=[real.parent, folder, folder / "src", *start.roots])
    if notebook.is_notebook(origin.text):
        output.note(f"{title} is an exported notebook: trials leave out its magics and shell commands")
    for remark in parsed_script.notes:
        output.note(f"{origin.file}: {remark}")
    ignored = packing.ignored_lines(parsed_script.outputs)
    start = dataclasses.replace(start, links=data_links.find(folder, ignored))
    if start.links:
        shown_links = errors.shortened(", ".join(start.links), 300)
        output.note(
            f"not uploaded, but linked in the folder of each trial, also below: {shown_links}; what the script writes "
            "there, it writes into your folder; on a cluster, name a path on the data volume (`platform explain links`)"
        )
    exit_code = _write_own_search(origin, parsed_script, start, request)
    if exit_code is not None:
        return exit_code
    hidden_files = _hidden_files(title, origin.text, start)
    additions = {hidden: (folder / hidden).read_bytes() for hidden in hidden_files}
    packed = packing.pack(folder, additions=additions, ignored=[*ignored, *packing.ignored_lines(start.links)])
    origin = dataclasses.replace(origin, new_files=(*origin.new_files, *_ignore_file(folder, hidden_files, ignored)))
    job, result, summary, options = _make_job(origin, parsed_script, start, file_with_values, packed.data, request)
    exit_code = _write_files(folder, script_job.yaml_text(job, result), summary, origin.new_files, options)
    if message := script_job.pruner_message(job, result):
        output.note(message)
    if job.searchable:
        command = f"platform submit hpo {importing.shell_path(folder)} --space {job.searchable[0]}=LOW..HIGH --local"
        output.note(f"to search another option ({', '.join(job.searchable)}): `{command}`")
    return exit_code


def _make_job(
    origin: _Origin,
    parsed_script: Script,
    start: script_folder.Start,
    file_with_values: settings_file.SettingsFile | None,
    packed: bytes,
    request: Request,
) -> tuple[ScriptJob, smoke.Smoke | None, str, str]:
    """Find the parameters of a script in a copy of its folder, run the copy once, and print remarks.

    Args:
        origin: File from which the job is made.
        parsed_script: Content of the script.
        start: Its start in the job's folder.
        file_with_values: Its settings file; None without one.
        packed: Packed folder of the job.
        request: Options of the user.

    Returns:
        The job; the result of the run, or of an earlier one that wrote the metrics, None without either; a sentence that
        says what the job searches and optimizes; and the options that `submit` needs.

    Raises:
        InputError, SpecError: See `make`.
    """
    title, job_file = origin.short_title, start.folder / load.FILE
    with tempfile.TemporaryDirectory(prefix="trialplane-") as scratch:
        name = origin.real.relative_to(start.folder).as_posix()
        copy = ScriptCopy(origin.file, Path(scratch, "code"), name, start, Path(scratch), request.secrets)
        smoke_folder = Path(scratch, "smoke")
        for target in (copy.folder, smoke_folder):  # two copies, because a probe may change its own
            _unpack(packed, target, origin, copy)
        parsed_script, declared, file_with_values = _find_parameters(copy, parsed_script, file_with_values, request)
        _refuse_missing_module(declared.failure, origin, parsed_script, start, request)
        request = dataclasses.replace(request, space=script_probe.declared_space(request.space, declared))
        script_probe.refuse_unknown(request.space, copy, parsed_script, declared, title, origin.started_commands)
        if file_with_values is None:
            job = script_job.build(name, parsed_script, declared, start, request.space)
        else:
            job = script_job.build_with_file(name, parsed_script, file_with_values, start, request.space)
        switched_on = {name.replace("_", "-") for name in request.switched_on}
        defaults = {**job.defaults, **{name: True for name in job.space if name.replace("_", "-") in switched_on}}
        job = dataclasses.replace(job, objective=request.objective, defaults=defaults, links=start.links)
        if not origin.text:
            job = dataclasses.replace(job, comments=[f"Made from {origin.title} by `platform init --from`."])
        result = None
        if request.with_smoke and not job.missing:
            job, result = _run_smoke(origin, job, parsed_script, copy, smoke_folder, request)
            _refuse_missing_module(result.failure, origin, parsed_script, start, request)
    seen_sources = result.metrics if result is not None else ()
    if request.objective is None and not any(source.path in parsed_script.metric_files for source in seen_sources):
        result = _with_earlier_metrics(result, start.folder, parsed_script.metric_files)
    _print_remarks(title, job, declared, file_with_values, job_file)
    _print_missing_values(title, job, job_file)
    config = parsed_script.config if job.in_file else ""
    if file_with_values is not None:
        config = file_with_values.name
    if parsed_script.style is Style.GLOBALS:
        _print_repeated(name, origin.text, job)
    elif config.endswith(".py"):
        _print_repeated(config, script_folder.source(start.folder / config), job)
    return job, result, *_summary(title, job, parsed_script, result, job_file, request)


def _print_remarks(
    title: str,
    job: ScriptJob,
    declared: Declared,
    file_with_values: settings_file.SettingsFile | None,
    job_file: Path,
) -> None:
    """Print the facts about the job of a script that its job.yaml does not show.

    Args:
        title: Name of the script.
        job: The job.
        declared: Arguments of the script.
        file_with_values: Settings file whose values are the parameters; None if they are the script's own.
        job_file: File of the job.
    """
    if declared.failure:
        output.note(f"{title}: {script_probe.not_asked(declared)}")
    for argument in declared.left_out:
        output.note(f"not a parameter: {argument}")
    if file_with_values is not None and file_with_values.others:
        used, others = file_with_values.name, ", ".join(file_with_values.others)
        output.note(f"the values are those of {used}; for those of another ({others}) change its name in {job_file}")
    if job.shared_paths:
        output.note(
            f"{title} uses {', '.join(job.shared_paths)}, which all trials share, so `parallel` is 1; for more, let it "
            "write below its working directory, of which each trial has its own, and give torchrun --standalone, not a port"
        )


def _print_repeated(name: str, text: str, job: ScriptJob) -> None:
    """Print which searched values a Python file sets several times, and add that to the comments of the job.

    Args:
        name: Path of the file.
        text: Its text.
        job: The job, whose parameters replace values in the file.
    """
    first_trial = script_job.first_trial(job)
    for key, lines in script.repeated_lines(text).items():
        if key in job.space:
            shown_lines = errors.shortened(f"{', '.join(map(str, lines[:-1]))} and {lines[-1]}", 100)
            quantity = "both" if len(lines) == 2 else "all"
            first = f", {first_trial[key]} in the first trial" if key in first_trial else ""
            note = f"{key} is set in lines {shown_lines} of {name}; {quantity} get the trial's value{first}"
            output.note(note)
            job.comments.append(escapes.escape_controls(note))


def _with_paths_from(folder: Path, parsed_script: Script, file: Path) -> Script:
    """Return a script whose declared paths are relative to a folder, which is that of its file or one above."""
    home = file.parent.relative_to(folder)
    metric_files, outputs = (
        tuple(path for path in (os.path.normpath(home / name) for name in names) if not path.startswith((os.pardir, "/")))
        for names in (parsed_script.metric_files, parsed_script.outputs)
    )
    return dataclasses.replace(parsed_script, metric_files=metric_files, outputs=outputs)


def _find_start(
    origin: _Origin, parsed_script: Script, requested: Collection[str]
) -> tuple[script_folder.Start, settings_file.SettingsFile | None]:
    """Return the start of a script in its job's folder, and its settings file, or None without one.

    The job's folder contains the script, its modules, its settings file and its Hydra configuration.

    Args:
        origin: File from which the job is made.
        parsed_script: Content of the script.
        requested: Names of the parameters that the user wants to search.
    """
    real = origin.real
    has_file = parsed_script.style in _WITH_SETTINGS
    file_with_values = settings_file.find(real, parsed_script, requested) if has_file else None
    is_shell = bool(origin.text) and parsed_script.style is Style.COMMAND and real.suffix in settings.SHELLS
    find_start = script_folder.shell_start if is_shell else script_folder.start
    if origin.call is not None and parsed_script.style is not Style.WANDB:  # whose job has a script in its own folder
        find_start = functools.partial(script_folder.typed_start, working_directory=Path(origin.call.folder).resolve())
    start = find_start(real, parsed_script, origin.text)
    folders = [start.folder]
    if not is_shell:
        folders.append(_hydra_folder(real, parsed_script))
    if file_with_values is not None:
        folders.append(file_with_values.folder)
    start = start.within(Path(os.path.commonpath(folders)))
    return start, file_with_values.below(start.folder) if file_with_values else None


def _unpack(packed: bytes, target: Path, origin: _Origin, copy: ScriptCopy) -> None:
    """Unpack a job's folder as a run gets it, with the files that the job adds, and with a notebook as plain Python.

    Args:
        packed: Packed folder of the job.
        target: Folder to unpack into.
        origin: File from which the job is made.
        copy: Name and start of the script.
    """
    packing.unpack(packed, target)
    shipping.add_links(target, {link: str(copy.start.folder / link) for link in copy.start.links})
    for new_file in origin.new_files:
        path = new_file.path.resolve().relative_to(copy.start.folder)
        (target / path).write_text(new_file.text, encoding="utf-8")
    if notebook.is_notebook(origin.text):
        (target / copy.name).write_text(ast.unparse(notebook.parse(origin.text)), encoding="utf-8")


def _find_parameters(
    copy: ScriptCopy, parsed_script: Script, file_with_values: settings_file.SettingsFile | None, request: Request
) -> tuple[Script, Declared, settings_file.SettingsFile | None]:
    """Choose between the parameters of a settings file and those of the script itself.

    Returns:
        The script, with the style that its parameters need; the parameters; and the settings file, None if the parameters
        are not its values.

    Raises:
        InputError, SpecError: See `script_probe.script_parameters`.
    """
    file_options = () if file_with_values is None else file_with_values.options
    if script_probe.searches_only_constants(parsed_script, request.space, [option.name for option in file_options]):
        return script_probe.as_globals(parsed_script), Declared(parsed_script.values), None
    # A script without a parser gets the values of its file, and one with a parser as well if the file is known to be read.
    if file_with_values is not None and (parsed_script.style is not Style.PARSED or file_with_values.arguments is not None):
        return parsed_script, Declared(file_with_values.options), file_with_values
    if parsed_script.call is not None:
        parsed_script, declared = script_probe.command_parameters(copy, parsed_script, request.space)
    else:
        parsed_script, declared = script_probe.script_parameters(copy, parsed_script, request.space)
    is_imported = file_with_values is not None and file_with_values.name in parsed_script.config_modules
    if not is_imported:
        file_with_values, declared = _pass_by_argument(file_with_values, declared)
    # The values in the text replace arguments of no use, but those of a script that searches are often settings of that.
    needs_arguments = _has_searchable(declared) or _has_required(declared)
    searches_itself = parsed_script.style is Style.SEARCHES and not request.space
    if file_with_values is None and not (needs_arguments or searches_itself) and guess.space(parsed_script.values):
        parsed_script = script_probe.as_globals(parsed_script)
        declared = Declared(parsed_script.values, declared.left_out, subcommands=declared.subcommands)
    # Numbers that the script declares are better than those of the file, and required arguments need a value.
    if file_with_values is None or _has_searchable_numbers(declared.options) or _has_required(declared):
        return parsed_script, declared, None
    if file_with_values.arguments is None and not any(arguments.placeholders(declared.subcommands)):
        file_with_values = dataclasses.replace(file_with_values, arguments=declared.subcommands)
    options = (*file_with_values.options, *file_with_values.required)
    return parsed_script, Declared(options), file_with_values


def _run_smoke(
    origin: _Origin, job: ScriptJob, parsed_script: Script, copy: ScriptCopy, folder: Path, request: Request
) -> tuple[ScriptJob, smoke.Smoke]:
    """Run a script once with its defaults, and print the metrics that it has.

    A script that needs the variables of torchrun gets a command with torchrun, and runs again.

    Args:
        origin: File from which the job is made.
        job: The job.
        parsed_script: Content of the script.
        copy: Copy of the job's folder for probes.
        folder: Another copy, in which the script runs.
        request: Options of the user.

    Returns:
        The job, perhaps with another command, and the result of the last run.
    """
    title, job_folder = origin.short_title, importing.shell_path(copy.start.folder)
    limit = request.smoke_seconds or smoke.LONGEST
    requested = [request.objective["metric"]] if request.objective else []

    def run(job: ScriptJob) -> smoke.Smoke:
        command, options = job.command_line(), list(job.default_values)
        name, secrets = origin.real.stem, request.secrets
        printed, files = parsed_script.printed, parsed_script.metric_files
        return smoke.run(command, name, folder, copy.scratch, printed, secrets, options, limit, requested, files)

    shown_command = f", as `{escapes.escape_controls(shlex.join(job.command_line()))}`" if job.command else ""
    output.note(
        f"{title} runs once with its defaults{shown_command}, in a copy of {job_folder}, for {limit:.0f} seconds at "
        "most, to find its metrics; --no-smoke skips this"
    )
    result = run(job)
    needs_torchrun = _RANK.search(result.failure) is not None and not job.command
    if needs_torchrun:
        output.note(f"{title} needs the variables of torchrun ({result.failure}), which starts it then")
        torchrun = ["python", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1", copy.name]
        job = dataclasses.replace(job, command=torchrun, arguments=job.arguments or arguments.FLAGS)
        result = run(job)
    if job.command and (logged := result.metrics.get(smoke.MLFLOW)):
        result = dataclasses.replace(
            result, metrics={source: values for source, values in result.metrics.items() if source != smoke.MLFLOW}
        )
        output.note(
            f"{title} logs {', '.join(smoke.shown_names([logged]))} to MLflow, which is not read from a command, a process "
            "of its own: print the metric, or write it to a file"
        )
    _print_result(title, result, job_folder, requested)
    return job, result


def _with_earlier_metrics(result: smoke.Smoke | None, folder: Path, declared: Sequence[str]) -> smoke.Smoke | None:
    """Return the result of a smoke run with the metrics that an earlier run has written into the declared files, if any.

    Args:
        result: The result; None without a run.
        folder: Folder of the job.
        declared: Paths of the files.
    """
    metrics = smoke.declared_metrics(folder, declared) if declared else {}
    if not metrics:
        return result
    output.note(f"the metrics are those of an earlier run, in {', '.join(source.path for source in metrics)}")
    return dataclasses.replace(result or smoke.Smoke({}, 0.0, "", ended=True), metrics=metrics)


def _print_missing_values(title: str, job: ScriptJob, job_file: Path) -> None:
    """Print the parameters that need a value from the user, and the ways to give one."""
    secrets = [name for name in job.missing if credentials.is_secret(name, "VALUE")]
    for name in job.missing:
        remedy = f"write it into {job_file}"
        if name in secrets:
            remedy = f"it looks like a secret, which no job may have: let {title} read an environment variable in its place"
        output.note(f"{title} needs a value for {name}: {remedy}")
    if job.missing and not secrets:
        flags = " ".join(f"--param {name}=VALUE" for name in job.missing)
        command = f"platform submit hpo {importing.shell_path(job_file.parent)} {flags} --objective METRIC:min --local"
        output.note(f"or give it when the job is submitted: `{command}`")


def _summary(
    title: str, job: ScriptJob, parsed_script: Script, result: smoke.Smoke | None, job_file: Path, request: Request
) -> tuple[str, str]:
    """Return the sentence that says what the job searches and optimizes, and the options that `submit` needs."""
    options = ""
    if job.space:
        summary = f"{errors.counted(len(job.space), 'parameter')} to search"
        summary += "" if request.space else ", in ranges that are guessed"
    elif parsed_script.style is Style.SEARCHES and parsed_script.searcher:
        summary = (
            f"{title} searches by itself, by {parsed_script.searcher}, and runs unmodified, as one trial; to search here, "
            'fit one model with `params().get("NAME", VALUE)` after `from trialplane import params`, and write '
            "`space: {NAME: …}`"
        )
    else:
        summary = f"found no parameter to search: write `space: {{NAME: …}}` into {importing.shell_path(job_file)}"
    if (chosen := script_job.best_objective(job, result)) is not None:
        _, objective, reason = chosen
        summary += f"; objective: {objective['metric']}, {objective['direction']}d ({reason})"
        names = {name for metrics in result.metrics.values() for name in metrics} if result is not None else set()
        if len(names) > 1 and request.objective is None:
            summary += "; `--objective METRIC:min` or `:max` at submit picks another metric"
    elif job.returned:
        summary += "; the function's return value is the objective"
    else:
        message, options = script_job.placeholder_message(job, result, os.path.relpath(job_file))
        summary += f"; {message}"
    if result is not None and result.failure:
        summary += f"; if it needs other arguments, {script_probe.BY_COMMAND}"
    return summary, options


def _write_own_search(origin: _Origin, parsed_script: Script, start: script_folder.Start, request: Request) -> int | None:
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
        search_command = f"{_INIT} '{command} {subcommand}'"
        is_study = parsed_script.style is Style.STUDY
        remedy = f"for the job of that, type `{search_command}`; " if is_study else "and no job can be made of that; "
        raise InputError(
            f"{title} has a search in its subcommand {subcommand}: {remedy}for another subcommand, "
            f"`{_INIT} '{command} SUBCOMMAND' --space NAME=LOW..HIGH`; nothing was changed"
        )
    if options := request.typed_options:
        reason = f"{title} has a search of its own, whose space and objective become the job's"
        remedy = f"drop {options}, and change them there or in {load.FILE}"
        if request.space and parsed_script.style is Style.STUDY and ".suggest_" in origin.text:
            remedy += f"; {entrypoint.fixing_advice(notebook.parse(origin.text), request.space)}"
        raise InputError(f"{reason}; {remedy}; nothing was changed")
    if parsed_script.style is Style.STUDY:
        return _write_study_job(origin, parsed_script, start)
    if sweep is not None:
        summary = "the sweep in the configuration is the job"
        return _write_files(
            folder, _heading(title) + output.as_yaml({**sweep, **start.job_fields}), summary, origin.new_files
        )
    return _write_wandb_job(origin, parsed_script, start)


def _write_wandb_job(origin: _Origin, parsed_script: Script, start: script_folder.Start) -> int:
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
    return _write_files(start.folder, _heading(title) + output.as_yaml(fields), summary, origin.new_files)


def _write_study_job(origin: _Origin, parsed_script: Script, start: script_folder.Start) -> int:
    """Write the job of a script with a search by Optuna or a library of that kind; return the exit code.

    If trials cannot import the objective from the script, a new module gets it by running the script up to its search.

    Raises:
        InputError: A file with the name of that module exists.
        SpecError: Trials cannot import that module either.
    """
    file, heading, folder = origin.file, _heading(origin.file.name), start.folder
    fields = {**parsed_script.search, **start.job_fields}
    call = origin.call or script.Call(file.name, ".", "", (), 0)
    name = origin.real.relative_to(folder).as_posix()
    objectives = fields.get("objectives") or [fields["objective"]]
    shown = ", ".join(f"{objective['metric']} {objective['direction']}d" for objective in objectives)
    summary = f"the search of {file.name} is the job: {shown}, {errors.counted(fields['trials'], 'trial')}"
    needs_start = call.arguments or call.variables or start.cwd != "." or start.path
    if fields["entrypoint"] and not needs_start and not _entrypoint_issues(folder, fields, origin.new_files):
        return _write_files(folder, heading + output.as_yaml(fields), summary, origin.new_files)
    stem = f"_{file.stem}" if file.stem[:1].isdigit() else file.stem  # no module begins with a digit
    module = f"{re.sub(r'[^a-zA-Z0-9]+', '_', stem)}_objective"
    target = folder / f"{module}.py"
    if target.is_symlink() or target.exists():
        raise InputError(f"{target} already exists; nothing was changed; remove it")
    text = _objective_text(name, call, start)
    new_files = [*origin.new_files, _NewFile(target, text, f"it runs {file.name} up to its search, for the function there")]
    fields["entrypoint"] = f"optuna:{module}:objective"
    if issues := _entrypoint_issues(folder, fields, new_files):
        raise SpecError(issues)
    return _write_files(folder, heading + output.as_yaml(fields), summary, new_files)


def _objective_text(name: str, call: script.Call, start: script_folder.Start) -> str:
    """Return the text of the module with the objective of a script's search, see `_OBJECTIVE`.

    Args:
        name: Path of the script in the job's folder.
        call: Call of the script, with its arguments and environment variables.
        start: Its start.
    """
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


def _hidden_files(title: str, text: str, start: script_folder.Start) -> list[str]:
    """Return the hidden files of a job's folder that its script names, and that need a rule in `.jobignore` to be packed.

    Files that may have secrets are left out, and printed.

    Args:
        title: Name of the script for messages.
        text: Text of the script.
        start: Its start in the job's folder.
    """
    folder = start.folder
    names = [*_HIDDEN_NAME.findall(text), *([".env"] if "load_dotenv" in text else [])]
    names = [name for name in dict.fromkeys(names) if (folder / name).is_file()]
    packed_names = packing.pack(folder, ignored=packing.ignored_lines(start.links)).files if names else ()
    missing_names = [name for name in names if name not in packed_names]
    secret_names = [
        name
        for name in missing_names
        if credentials.is_secret_file(name) or credentials.has_secret((folder / name).read_text(errors="replace"))
    ]
    for name in secret_names:
        output.note(
            f"{title} reads {name}, which is not uploaded, as it may have secrets: set its variables before "
            f"`platform submit`; or a line `!{name}` in {packing.IGNORE_FILE} uploads it"
        )
    return [name for name in missing_names if name not in secret_names]


def _ignore_file(folder: Path, names: Sequence[str], ignored: Sequence[str]) -> list[_NewFile]:
    """Return a list with a new `.jobignore`; [] if the job needs none.

    If a `.jobignore` exists, it is not changed: the lines to add are printed, and the list is empty.

    Args:
        folder: Folder of the job.
        names: Hidden files to include in the job.
        ignored: Lines for files that the stages of a pipeline write, and that the job does not need.
    """
    file = folder / packing.IGNORE_FILE
    if not names and not ignored:
        return []
    if os.path.lexists(file):
        for name in names:
            output.note(f"the script names {name}: add a line `!/{name}` to {importing.shell_path(file)}, which includes it")
        missing_lines = [line for line in ignored if line not in script_folder.source(file).splitlines()]
        if missing_lines:
            lines = errors.shortened(", ".join(missing_lines), 300)
            output.note(f"trials write these files anew: add the lines to {importing.shell_path(file)}: {lines}")
        return []
    remarks = [f"it includes {', '.join(names)}, which the script names, in the job"] if names else []
    remarks += ["it leaves out of the job what the stages write, as each trial does"] if ignored else []
    text = "".join(f"{line}\n" for line in (*(f"!/{name}" for name in names), *ignored))
    return [_NewFile(file, text, "; ".join(remarks))]


def _entrypoint_issues(folder: Path, fields: Mapping[str, Any], new_files: Sequence[_NewFile]) -> list[errors.Issue]:
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
    pairs = (line.removeprefix("export ").partition("=") for line in lines)
    values = {name.strip(): value.strip().strip("\"'") for name, _, value in pairs}
    return tuple(
        script.with_default(option, values.get(option.name)) if option.kind in ("float", "int") else option
        for option in parsed_script.options
    )


def _pass_by_argument(
    file: settings_file.SettingsFile | None, declared: Declared
) -> tuple[settings_file.SettingsFile | None, Declared]:
    """Let a script's argument for a settings file, such as `--config`, name the file, if it has no default.

    If some of the other arguments are numbers that are worth a search, these are the parameters: the argument gets the name
    of the file as its default. Otherwise the values in the file are: the file gets the argument, and the required ones.

    Returns:
        The settings file, None if the arguments are the parameters, and the script's arguments. Both are unchanged without
        a file or such an argument.
    """
    candidates = (option for option in declared.options if option.default is None and script.CONFIG.fullmatch(option.name))
    file_option = next(candidates, None)
    if file is None or file_option is None:
        return file, declared
    others = tuple(option for option in declared.options if option is not file_option)
    if _has_searchable_numbers(others):
        file_option = dataclasses.replace(file_option, default=file.name, required=True)
        return None, dataclasses.replace(declared, options=(file_option, *others))
    words = (file_option.flag, file.name) if file_option.flag else (file.name,)
    if declared.overrides:  # config=FILE
        words = ("=".join(words),)
    required = tuple(option for option in others if option.required)
    return dataclasses.replace(file, arguments=words, required=required), dataclasses.replace(declared, options=())


def _has_searchable(declared: Declared) -> bool:
    """Return whether some arguments of a script may be worth a search."""
    return bool(guess.space(declared.options) or guess.any_float(declared.options))


def _has_required(declared: Declared) -> bool:
    """Return whether a script refuses to run without some of its arguments."""
    return any(option.required for option in declared.options)


def _has_searchable_numbers(options: Sequence[Option]) -> bool:
    """Return whether some options that may be worth a search have a range, and not only choices."""
    return any("choices" not in parameter for parameter, _ in guess.space(options).values())


def _hydra_sweep(file: Path, parsed_script: Script, folder: Path) -> dict[str, Any] | None:
    """Return the fields of the job for the sweep in a Hydra script's configuration; None without a readable one.

    Remarks on values of the sweep that the job lacks are printed.
    """
    if parsed_script.style is not Style.HYDRA or not parsed_script.returned:
        return None  # a study needs an objective
    config = script_probe.hydra_config(file, parsed_script)
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


def _write_files(folder: Path, text: str, summary: str, new_files: Sequence[_NewFile] = (), submit_options: str = "") -> int:
    """Write job.yaml and the files that the job needs, and print whether the job can run.

    Args:
        folder: Folder of the job.
        text: Text of job.yaml.
        summary: Sentence about the job.
        new_files: The other files.
        submit_options: Options that `platform submit` needs for the job.

    Returns:
        The exit code.

    Raises:
        InputError: A file exists, or cannot be written. Then no file is left.
    """
    with contextlib.ExitStack() as undo:
        for path, content in [*((file.path, file.text) for file in new_files), (folder / load.FILE, text)]:
            try:
                with path.open("x", encoding="utf-8") as stream:  # also refuses a link, whatever it leads to
                    undo.callback(path.unlink, missing_ok=True)
                    stream.write(content)
            except OSError as error:
                raise InputError(f"{path} cannot be written: {error.strerror or error}; nothing was changed") from error
        undo.pop_all()  # all files are written, and stay
    for file in new_files:
        output.note(f"{importing.shell_path(file.path)} is written: {file.remark}")
    output.note(
        f"{importing.shell_path(folder / load.FILE)} is written; "
        f"`platform validate {importing.shell_path(folder)}` checks it"
    )
    return importing.report_readiness(folder, summary, submit_options)


def _heading(name: str) -> str:
    """Return the first line of job.yaml for a script with a search of its own."""
    return f"# Made from {name} by `platform init --from`.\n"


def _hydra_folder(file: Path, parsed_script: Script) -> Path:
    """Return the folder of a script, or one above that also has its Hydra configuration, for `config_path="../conf"`."""
    config = Path(os.path.normpath(file.parent / parsed_script.config)).parent if parsed_script.config else file.parent
    return Path(os.path.commonpath([file.parent, config])) if config.is_dir() else file.parent


def _print_missing_libraries(file: Path, parsed_script: Script, roots: Sequence[Path]) -> None:
    """Print the libraries that a script imports, and that are neither installed here nor its own modules.

    Args:
        file: Path of the script, for messages.
        parsed_script: Content of the script.
        roots: Folders with its own modules.
    """
    for name in dict.fromkeys(module.partition(".")[0] for module in (*parsed_script.top, *parsed_script.late)):
        if not any(script_folder.has_module(root, name) for root in roots) and not script_folder.is_installed(name):
            output.note(
                f"{file.name} imports {name}, which is not installed here; on a cluster the trial image needs it too"
            )


def _print_result(name: str, result: smoke.Smoke, folder: str, requested: Sequence[str]) -> None:
    """Print the end of a smoke run and the names of its metrics, and the way to name others if it was stopped.

    Args:
        name: Name of the script.
        result: Result of the run.
        folder: Folder of the job as a word of a shell.
        requested: Metrics that the user wants to optimize.
    """
    duration = f"{result.seconds:.0f} s"
    names = smoke.shown_names(result.metrics.values())
    shown = f"its metrics: {', '.join(names)}" if names else "no metrics were found"
    if result.failure:
        output.note(f"{name} failed after {duration}: {result.failure}; {shown}")
        return
    output.note(f"{name} {'ended' if result.ended else 'was stopped'} after {duration}; {shown}")
    is_seen = bool(requested) and set(map(smoke.spelling, requested)) <= set(map(smoke.spelling, names))
    if not result.ended and not is_seen:
        output.note(
            "metrics that it prints later are missing here, such as those of a test at its end: name yours, as in "
            f"`platform submit hpo {folder} --objective METRIC:max --local`, or run init with --smoke-seconds 600"
        )
