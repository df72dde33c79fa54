"""Advice on scripts whose arguments `platform init --from` does not know."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from trialplane.cli import importing
from trialplane.cli.init_from.probe import ScriptCopy
from trialplane.importing import script, script_folder
from trialplane.job import reach

_BY_PARAMS = (
    'write `from trialplane import params` at its top and `params().get("NAME", VALUE)` in place of a value, and run this '
    "with --set arguments=none"
)
# Flag of absl for bindings of gin.
GIN = re.compile(r"""DEFINE_multi_string\(\s*["'](gin_(?:param|binding)s?)["']""")


def on_script(copy: ScriptCopy) -> str:
    """Return advice to the user for a script whose arguments are not known."""
    file, text = copy.file, script_folder.source(copy.path)
    if flag := GIN.search(text):
        argument = f"--set 'arguments=[\"--{flag[1]}=FUNCTION.NAME={{FUNCTION.NAME}}\"]'"
        command = submit_command(file, argument, space="FUNCTION.NAME")
        return f"{file.name} is configured by gin; this searches a value: {command}"
    if reads_wandb_config(text):
        reason = "reads its parameters from wandb.config, and has no sweep that can be read"
        command = submit_command(file, "--set arguments=none --set capture=wandb")
        return f"{file.name} {reason}; this searches it: {command}"
    if reach.reads_nothing(copy.path, (copy.folder,)):
        command = submit_command(file, "--set arguments=globals")
        return (
            f"{file.name} reads no arguments, and assigns no single value that looks worth searching. If NAME has one "
            f"single value in its text, this searches it: {command}; if not, {_BY_PARAMS}"
        )
    return (
        f"{file.name} uses no known parser, and assigns no single value that looks worth searching. "
        f"If it takes --NAME=VALUE, this searches it: {submit_command(file)}; if it takes NAME=VALUE, with --set "
        "arguments=hydra; if it takes values alone, with --set 'arguments=[\"{NAME}\"]'; if NAME has one single value in "
        f"its text, with --set arguments=globals; or {by_command(file)}. If none of these holds, {_BY_PARAMS}"
    )


def reads_wandb_config(text: str) -> bool:
    """Return whether a script has its parameters in wandb.config only: neither arguments nor bindings of gin."""
    return "wandb.config" in text and not script.ARGUMENTS.search(text) and not GIN.search(text)


def by_command(file: Path = Path("train.py")) -> str:
    """Return the clause that says how a job is made of a script that gets arguments, or of another program."""
    command = f"python {importing.shell_path(file)} --lr 0.1"
    return (
        f"give the command that you type today, in quotes, with its numbers: `platform init --from {shlex.quote(command)}`"
    )


def submit_command(file: Path, further_options: str = "", *, space: str = "NAME") -> str:
    """Return the command, in backticks, that runs a study of a script without a job.yaml."""
    script_options = f"{importing.shell_path(file)} --space {space}=LOW..HIGH --objective METRIC:min --local"
    return f"`{f'platform submit hpo {script_options} {further_options}'.strip()}`"
