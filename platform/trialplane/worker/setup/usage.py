"""Check before a run's first trial that its packages are installed and that its script accepts its arguments."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import sys
import tempfile
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

from trialplane import errors
from trialplane.job import arguments, notebook, requirements
from trialplane.training import mlflow_runs, process
from trialplane.wire import cluster, env, records
from trialplane.worker import context

USAGE_ERROR = 2  # exit code of argparse, click and similar libraries for wrong arguments
_PARSERS = r"\b(?:parse_args|parse_known_args|HfArgumentParser|simple_parsing|LightningCLI|click|typer|absl)\b"
# Messages about unknown or missing arguments, which all trials have; others may be about the value of one trial.
_CERTAIN = re.compile(
    r"unrecognized arguments|arguments are required|no such option|missing (?:option|argument|parameter)|unexpected extra",
    re.I,
)
_LACKS_VALUE = re.compile(r"argument (?:-\w/)?(--[\w.-]+)[^:]*: expected one argument")  # argparse's
_BOX = re.compile(r"[\u2500-\u257f]+")  # characters of boxes, which rich draws around typer's messages
_PATIENCE = 10.0  # seconds for a script to read its arguments
TAIL = 4096  # bytes of the output that are searched for the cause of an end
LONGEST = 300  # characters of such output in a message
_HELP = "see `platform docs scripts`"


def refusal_error(
    script: str, text: str, replacing_options: Mapping[str, str] = MappingProxyType({})
) -> context.ArgumentsRefused:
    """Return the error for a script that refused its arguments.

    Args:
        script: Name of the script, for the message.
        text: End of its output, with the usage message.
        replacing_options: Name of a value in the script's text that a parameter can replace → the option of `submit` that
            does so.
    """
    synopsis, reason = _split_usage(_BOX.sub(" ", text))
    hint = textwrap.shorten(synopsis, LONGEST, placeholder=" …")
    unknown = re.search(r"(?:unrecognized arguments|[Nn]o such option):? '?(--[\w.-]+)", reason)  # `No such option: --lrr`
    if unknown:
        flag = unknown[1]
        proposals = re.search(r"(?:[Pp]ossible options|[Dd]id you mean).*", reason)  # click's `Did you mean --lr?`
        known_flags = re.findall(r"--[\w.-]+", synopsis + (proposals[0] if proposals else ""))
        suggestion = errors.nearest(flag, known_flags)
        if suggestion.startswith("did"):  # "did you mean …"; otherwise it lists all options
            hint = suggestion
        replacing_option = replacing_options.get(flag.removeprefix("--"))
        if replacing_option:
            hint = f"its text has a value of that name, which `{replacing_option}` replaces"
    elif switch := _LACKS_VALUE.search(reason):  # of all parameters, only booleans are options without a value
        hint = f"`--set 'arguments={{items: flags, booleans: value}}'` writes {switch[1]}=True and {switch[1]}=False"
    message = "; ".join(filter(None, [f"{script} {errors.ARGUMENTS_REFUSED}: {reason[:LONGEST]}", hint, _HELP]))
    return context.ArgumentsRefused(message, certain=_CERTAIN.search(reason) is not None)


def _split_usage(text: str) -> tuple[str, str]:
    """Return the synopsis and the error of a usage message at the end of a text.

    `usage: train.py [--lr LR] train.py: error: …` has the synopsis `usage: train.py [--lr LR]` and the error `error: …`.
    """
    begin = max(0, text.rfind("usage:") if "usage:" in text else text.rfind("Usage:"))
    words = " ".join(text[begin:].split())
    error = re.search(r"(?:error:|Error:|Error (?=[A-Z])).*", words)
    reason = error[0] if error else words
    synopsis = re.sub(r" ?\S+: ?$", "", words.partition(reason)[0])  # without `train.py: ` before the error
    return synopsis, errors.nested_reason(text) or reason


def check_installed(config: records.SlotConfig) -> None:
    """Check that the packages that a job requires are installed; on a cluster, in the image of its trials or the pod.

    Args:
        config: Configuration of the slot; the code must be unpacked.

    Raises:
        EntrypointError: Packages are missing or have another version. The message names all of them.
    """
    name = config.requirements
    if not name:
        return
    packages = os.environ.get(env.PACKAGES)
    if packages:
        refusal = cluster.refusal_file(Path(packages))
        if refusal.is_file():
            raise errors.EntrypointError(refusal.read_text())  # the message of the pod's container `install`
    is_script = name.endswith(".py")  # which may have no requirements
    listed = requirements.read(Path(config.code), name, is_named=not is_script)
    remedy = "`platform image build --job NAME` builds an image that has them" if config.ship else ""
    issues = [*listed.issues, *requirements.unmet_issues(listed, remedy)]
    if issues:
        raise errors.EntrypointError(str(errors.SpecError(issues)))


def check_arguments(job_function: context.JobFunction, config: records.SlotConfig) -> None:
    """Check a script's arguments: run it in a fork of this process up to the point where it has read them.

    That point is recognized for argparse, libraries based on it, click and absl. A script without these is not checked. A
    script that takes too long counts as correct.

    Args:
        job_function: Function that runs the script, from `programs.load`.
        config: Configuration of the slot. This process must be clean enough for a fork.

    Raises:
        Invalid: The script refused the arguments; the message has its output.
    """
    program = config.program
    if program is None or program.sample is None or not program.script:  # without example parameters it cannot be run
        return
    script = Path(config.code, program.script)
    if not _has_known_parser(script):
        return
    with tempfile.TemporaryDirectory(prefix="trialplane-") as folder, tempfile.TemporaryFile() as output:
        pid = os.fork()
        if pid == 0:
            _parse_and_end(job_function, config, program.sample, Path(folder), output.fileno())
        pidfd = os.pidfd_open(pid)
        select.select([pidfd], [], [], _PATIENCE)
        os.close(pidfd)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # the group includes processes that the script has started
        _, status = os.waitpid(pid, 0)
        output.seek(0)
        text = output.read()[-TAIL:].decode(errors="replace")
        if os.waitstatus_to_exitcode(status) == USAGE_ERROR and "usage:" in text.lower():
            sys.stderr.write(text)
            raise refusal_error(program.script, text, _replacing_options(script, program.sample))


def _replacing_options(script: Path, sample: Mapping[str, Any]) -> dict[str, str]:
    """Return the parameters that could replace values in a script's text, each with the option of `submit` that does so.

    A parameter can replace the value of the same name, such as `lr = 0.1`. One option does so for all parameters:
    `--set 'arguments=["--epochs={epochs}", "{globals}"]'`, where `epochs` is one of the sample without such a value.
    """
    names = set(arguments.spots(notebook.parse(script.read_bytes()))) & set(sample)
    items = [*(f"--{name}={{{name}}}" for name in sample if name not in names), f"{{{arguments.GLOBALS}}}"]
    return dict.fromkeys(names, f"--set 'arguments={json.dumps(items)}'")


def _has_known_parser(script: Path) -> bool:
    """Return whether a script names a library for which the end of parsing is recognized."""
    try:
        return bool(re.search(_PARSERS, script.read_text()))
    except (OSError, UnicodeDecodeError):
        return False


def _parse_and_end(
    job_function: context.JobFunction, config: records.SlotConfig, sample: Mapping[str, Any], folder: Path, output: int
) -> NoReturn:
    """Run the script in this process up to its parser; exit with `USAGE_ERROR` if it refuses its arguments, else with 0."""
    code = 0
    try:
        os.setsid()
        process.end_with_parent()
        for stream in (1, 2):
            os.dup2(output, stream)
        # Calls of W&B and MLflow before the parser must not log to a server.
        os.environ |= {"WANDB_MODE": "disabled", env.MLFLOW_TRACKING_URI: f"sqlite:///{folder}/mlflow.db"}
        mlflow_runs.enter({env.MLFLOW_TRACKING_URI: os.environ[env.MLFLOW_TRACKING_URI]})
        _end_when_parsed()
        job_function(
            context.Context(
                params=sample,
                seed=0,
                run=config.run,
                trial=0,
                attempt=1,
                cpus=config.cpus,
                gpus=config.gpus,
                code=Path(config.code),
                cache=Path(config.cache),
                workdir=folder,
                _reporter=lambda step, metrics, *, waits=True: False,
                checkpoints=str(folder / "checkpoints"),
            )
        )
    except SystemExit as error:
        code = USAGE_ERROR if error.code == USAGE_ERROR else 0
    except BaseException:  # noqa: BLE001  other errors are reported when the script runs as a trial
        code = 0
    finally:
        process.flush()
        os._exit(code)


def _end_when_parsed() -> None:
    """End this process once argparse, click or absl has read the arguments, regardless of what the script catches."""
    unfinished_calls: list[object] = []
    for library in ("argparse", "jsonargparse"):  # LightningCLI's parser replaces argparse's parse_args
        if (module := sys.modules.get(library)) is not None:
            # `parse_args` calls `parse_known_args`, which calls itself for subcommands.
            for name in ("parse_args", "parse_known_args"):
                parse_and_end = _end_after_parse(getattr(module.ArgumentParser, name), unfinished_calls)
                setattr(module.ArgumentParser, name, parse_and_end)
    if (click := sys.modules.get("click.core")) is not None:
        click.Command.invoke = lambda self, ctx: os._exit(0)
    if (flags := sys.modules.get("absl.flags")) is not None:
        parse_flags = flags.FlagValues.__call__

        def parse_flags_and_end(values: Any, argv: Sequence[str], known_only: bool = False) -> Any:
            """Read the arguments; end the process unless the script reads only some of them here."""
            if known_only:
                return parse_flags(values, argv, known_only)
            return _end_at_absl(flags, parse_flags, values, argv)

        flags.FlagValues.__call__ = parse_flags_and_end


def _end_at_absl(flags: Any, parse: Callable[..., Any], values: Any, argv: Sequence[str]) -> NoReturn:
    """Let absl read the arguments, and end this process; if it refuses them, with a message like that of argparse.

    Args:
        flags: absl's module `absl.flags`.
        parse: Its function that parses the command line.
        values: The flags.
        argv: The command line.
    """
    code, reason = 0, ""
    try:
        parse(values, argv)
    except flags.UnrecognizedFlagError as error:
        code, reason = USAGE_ERROR, f"unrecognized arguments: --{error.flagname}"
    except flags.Error as error:
        code, reason = USAGE_ERROR, str(error)
    if code:
        groups = [group for module, group in values.flags_by_module_dict().items() if not module.startswith("absl.")]
        synopsis = " ".join(f"[--{flag.name}=VALUE]" for group in groups for flag in group)
        script = Path(argv[0]).name
        sys.stderr.write(f"usage: {script} {synopsis}\n{script}: error: {reason}\n")
    process.flush()
    os._exit(code)


def _end_after_parse(parse: Callable[..., Any], unfinished_calls: list[object]) -> Callable[..., Any]:
    """Return a parse function whose outermost call ends this process with code 0 once it has read the arguments.

    Args:
        parse: Method of a parser.
        unfinished_calls: List of the calls that have not returned, shared by all methods.
    """

    def parse_and_end(self: object, *args: Any, **kwargs: Any) -> Any:
        """Read the arguments as `parse`; end the process unless another call has called this one."""
        unfinished_calls.append(self)
        parsed = parse(self, *args, **kwargs)
        unfinished_calls.pop()
        if not unfinished_calls:
            os._exit(0)
        return parsed

    return parse_and_end
