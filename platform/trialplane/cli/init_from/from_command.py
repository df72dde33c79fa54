"""`platform init --from 'python train.py --lr 0.1'`: a job.yaml for a command line."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
from collections.abc import Collection, Sequence
from pathlib import Path

from trialplane.cli import output
from trialplane.cli.init_from import advice, calls, files_above, from_file, settings_file, writing
from trialplane.cli.init_from.request import Origin, Request
from trialplane.errors import InputError, SpecError
from trialplane.importing import command_text, dvc, launcher, makefile, placeholders, script, script_folder, shell, wrapper
from trialplane.importing.makefile import RecipeCommand
from trialplane.job import credentials, load


def make_of_command(command_line: str, request: Request) -> int:
    """Write a job.yaml for a command line into the working directory, without the secrets in it.

    Returns:
        The exit code.

    Raises:
        InputError, SpecError: See `from_file.make`.
    """
    if not command_text.on_one_line(command_line):
        raise InputError(f"{command_line} is only a comment; give a command; nothing was changed")
    command_line, secrets = credentials.extract(command_text.on_one_line(command_line))
    request = dataclasses.replace(request, secrets={**request.secrets, **secrets})
    if secrets:
        output.note(_secrets_message(list(secrets)))
    command_line, removed_parts = command_text.without_own_log(command_line)
    if removed_parts:
        parts = " and ".join(f"`{part}`" for part in removed_parts)
        output.note(f"{parts}: left out of the command, because a trial waits for its end, and has a log of its own")
    switches = [
        name
        for name, fields in request.space.items()
        if (choices := fields.get("choices")) and all(isinstance(choice, bool) for choice in choices)
    ]
    command_line, removed_switches = command_text.without_switches(command_line, switches)
    if removed_switches:
        request = dataclasses.replace(request, switched_on=tuple(removed_switches))
        flags = ", ".join(removed_switches.values())
        output.note(f"{flags}: taken out of the command, because it is searched")
    command_line = command_text.with_code_values(command_line, request.space)
    command_line = command_text.with_texts(command_line, request.space, shell.find_call(command_line))
    if (dvc_command := dvc.find_command(command_line)) is not None:
        return from_file.make_of_pipeline(dvc_command, request)
    call = shell.find_call(command_line)
    existing_call = calls.existing_call(call) if call is not None else None
    exit_code = _make_of_other_form(command_line, existing_call, request)
    if exit_code is not None:
        return exit_code
    if call is None and (shell_call := calls.existing_shell_call(command_line)) is not None:
        return _make_of_shell_command(command_line, shell_call, request)
    if existing_call is not None and not request.space and calls.starts_study(existing_call):
        return from_file.make(Path(existing_call.folder, existing_call.script), request, existing_call)
    if call is None and request.space:  # whose names the program may declare
        existing_call = shell.find_console_call(command_line)
    return _write_command_job(command_line, existing_call, request)


def _make_of_shell_command(command_line: str, shell_call: script.Call, request: Request) -> int:
    """Write the job of a command that calls a shell script, and return the exit code.

    Raises:
        InputError, SpecError: See `from_file.make`.
    """
    shell_text = script_folder.source(Path(shell_call.folder, shell_call.script))
    call = wrapper.wrapped_call(shell_text, shell_call)  # of a Python script, to which the shell script passes its arguments
    lines = calls.started_lines(shell_text, shell_call) if call is None else []
    takes_line = len(lines) == 1 and wrapper.only_sets_up(shell_text, shell_call)
    is_plain = not shell_call.arguments and not shell_call.variables
    # The job of the script runs it in the working directory, and not in the folder of `cd src && bash fit.sh`.
    if call is None and is_plain and not (takes_line and shell_call.folder != "."):  # the same as its script
        with contextlib.suppress(SpecError):  # it has no parameters; the message is then about the command
            return from_file.make(Path(shell_call.folder, shell_call.script), request)
    if takes_line and not placeholders.has_parameters(command_line):
        output.note(f"`{command_line}` runs `{lines[0]}`, which is the command of the job")
        return make_of_command(lines[0], request)
    call = None if call is None else calls.existing_call(call)
    started_commands = calls.started_commands(shell_text, shell_call, request)
    return _write_command_job(command_line, call, request, shell_call, lines, started_commands)


def _write_command_job(
    command_line: str,
    call: script.Call | None,
    request: Request,
    shell_call: script.Call | None = None,
    shell_lines: Sequence[str] = (),
    started_commands: tuple[str, ...] = (),
) -> int:
    """Write the job of a command line, and return the exit code.

    Args:
        command_line: Command line.
        call: Call of a Python script in it, perhaps by a shell script; None without one.
        request: Options of the user.
        shell_call: Call of a shell script in it; None without one.
        shell_lines: Python commands of the shell script.
        started_commands: Commands that make the jobs of the shell script's Python commands, for a message.

    Raises:
        InputError, SpecError: See `from_file.make`.
    """
    words, folder = command_line, "."  # words that may name files, and the folder to which they are relative
    if call is not None:
        words, folder = shlex.join(call.arguments), call.folder
        started_commands = ()  # further arguments reach the Python script
    elif shell_call is not None:
        words = " ".join([shlex.join([shell_call.script, *shell_call.arguments]), calls.words_here(shell_lines)])
        folder = shell_call.folder
    files_above.refuse_files_above(command_line, words, folder, call, request)
    files = _named_settings(words, folder, call, request.space)
    parsed_script = placeholders.parse(
        command_line, configs=files.names, values=files.options, call=call, started_commands=started_commands
    )
    return writing.write_job(
        Origin(
            Path(command_line),
            Path.cwd() / "command",
            text="",
            title=command_line,
            started_commands=started_commands,
        ),
        parsed_script,
        request,
    )


def _make_of_other_form(command_line: str, existing_call: script.Call | None, request: Request) -> int | None:
    """Write the job of a command by what it means, such as its script, notebook or Makefile; return the exit code.

    None, and nothing is written, for a command that is taken as it is.

    Args:
        command_line: Command line.
        existing_call: Its call of a Python script; None without one that exists.
        request: Options of the user.

    Raises:
        InputError, SpecError: See `from_file.make`.
    """
    makefile_path = next(filter(Path.is_file, map(Path, makefile.possible_paths(command_line))), None)
    makefile_text = "" if makefile_path is None else script_folder.source(makefile_path)
    _refuse_unmade_file(command_line, makefile_text, request)
    script_file = command_text.script_without_arguments(command_line)
    if script_file:  # such a command is the same as its script
        script_file = existing_call.script if existing_call is not None else script_file
        return from_file.make(Path(script_file), request, script.Call(script_file))
    if existing_call is not None and (path := files_above.missing_python_path(command_line, existing_call, request)):
        is_simple = command_line.startswith("python") and not set(command_line) & set("&|;")
        assignment = f"PYTHONPATH={path}" if is_simple else f"export PYTHONPATH={path} &&"
        return make_of_command(f"{assignment} {command_line}", request)
    if notebook_file := command_text.executed_notebook(command_line):
        return from_file.make(Path(notebook_file), request)
    recipe_command = makefile.made_command(command_line, makefile_text)
    if recipe_command.text:
        return _make_of_recipe(command_line, recipe_command, request)
    if existing_call is not None:  # whose arguments may have the same names
        return None
    with_variables = makefile.with_variables(command_line, makefile_text, request.space)
    return make_of_command(with_variables, request) if with_variables != command_line else None


def _refuse_unmade_file(command_line: str, makefile_text: str, request: Request) -> None:
    """Check that a command does not make an existing file without a rule, which would run nothing.

    Raises:
        InputError: It does. The message has the command for the file if it is a script, or else for a target.
    """
    names = makefile.unmade_names(command_line, makefile_text)
    file = next((Path(name) for name in names if script_folder.exists(Path(name))), None)
    if file is None:
        return
    target = makefile.training_target(makefile_text)
    if file.suffix == ".py" or launcher.is_launcher(file):
        remedy = f"type `{request.command(str(file))}`"
    elif target:
        remedy = f"name a target, as in `{request.command(f'make {target}')}`"
    else:
        remedy = advice.by_command()
    raise InputError(f"make has no rule for {file}, and would run nothing; {remedy}; nothing was changed")


def make_of_makefile(file: Path, request: Request) -> int:
    """Write the job of a Makefile: of the command in its recipe, or of make with its variables. Return the exit code.

    Raises:
        InputError, SpecError: See `from_file.make`.
    """
    recipe_command = makefile.training_command(script_folder.source(file))
    if not recipe_command.text or file.resolve().parent != Path.cwd():  # a recipe's command runs beside the Makefile
        return from_file.make(file, request)
    return _make_of_recipe(str(file), recipe_command, request)


def _make_of_recipe(title: str, recipe_command: RecipeCommand, request: Request) -> int:
    """Write the job of the command in a recipe of a Makefile; return the exit code.

    Raises:
        InputError, SpecError: See `from_file.make`.
    """
    output.note(f"`{title}` runs `{credentials.extract(recipe_command.text)[0]}`, which is the command of the job")
    if recipe_command.remark:
        output.note(recipe_command.remark)
    return make_of_command(recipe_command.text, request)


def _named_settings(
    words: str, folder: str, call: script.Call | None, requested: Collection[str]
) -> settings_file.NamedFiles:
    """Return the settings files that a command or its script names, by their paths in the working directory.

    Args:
        words: Words of the command that may name files.
        folder: Folder to which they are relative.
        call: Call of a Python script in the command; None without one.
        requested: Names of the parameters that the user wants to search.
    """
    # A script of Hydra has groups of configurations, whose options name no files.
    by_stem = call is not None and "hydra" not in script_folder.source(Path(call.folder, call.script))
    files = settings_file.named(words, Path(folder), requested, by_stem=by_stem)
    if not files.names and by_stem and call is not None:
        script_file = Path(folder, call.script)
        files = settings_file.named_in_script(words, script_file, Path(folder), requested)
        if not files.names:
            files = settings_file.named_in_part(words, script_file, Path(folder), requested)
    return files._replace(names=tuple(os.path.normpath(Path(folder, name)) for name in files.names))


def _secrets_message(variables: Sequence[str]) -> str:
    """Return the message that job.yaml has environment variables in place of secrets."""
    names = " and ".join(variables)
    exports = "; ".join(f"export {name}=…" for name in variables)
    return (
        f"{names}: the value looks like a secret, and is not written into {load.FILE}, which everyone who may see the run "
        f"can read. Trials on this machine read the environment variable: type `{exports}` before `platform submit`. For a "
        "cluster see `platform docs scripts`"
    )
