"""Checks that end a run before its first trial: missing packages, and arguments that its script refuses."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from trialplane import errors
from trialplane.job import requirements
from trialplane.training import mlflow_runs, process
from trialplane.wire import cluster, env, records
from trialplane.worker import context

ERROR = 2  # the exit code of argparse, click and the like for arguments that they refuse
_PARSERS = r"\b(?:parse_args|parse_known_args|HfArgumentParser|simple_parsing|LightningCLI|click)\b"
# Of an argument that is unknown or missing; other errors are about a value, which may be that of one trial alone.
_ALWAYS = re.compile(
    r"unrecognized arguments|arguments are required|no such option|missing (?:option|argument|parameter)|unexpected extra",
    re.I,
)
_PATIENCE = 10.0  # seconds for a script to read its arguments
TAIL = 4096  # bytes of the output that are searched for the cause of an end
LONGEST = 300  # characters of it in a message
_HELP = "see `platform docs scripts`"


def refused(script: str, text: str) -> context.Refused:
    """Return the error for a script's message about its arguments, at the end of its output."""
    usage = text.rfind("usage:") if "usage:" in text else text.rfind("Usage:")
    words = " ".join(text[usage if usage >= 0 else 0 :].split())
    error = re.search(r"(?:error|Error):.*", words)
    reason = error[0] if error else words
    unknown = re.search(r"(?:unrecognized arguments|[Nn]o such option):? '?(--[\w.-]+)", reason)
    synopsis = re.sub(r" ?\S+: ?$", "", words.partition(reason)[0])  # without `train.py: `, which begins the error
    near = errors.nearest(unknown[1], re.findall(r"--[\w.-]+", synopsis)) if unknown else ""
    shown = near if near.startswith("did") else synopsis[:LONGEST].strip()
    message = "; ".join(filter(None, [f"{script} does not take its arguments: {reason[:LONGEST]}", shown, _HELP]))
    return context.Refused(message, certain=_ALWAYS.search(reason) is not None)


def check_installed(config: records.SlotConfig) -> None:
    """Compare a job's requirements with the installed packages: on a cluster, those in the image of its trials.

    Args:
        config: of the slot, whose code is unpacked.

    Raises:
        EntrypointError: something is missing or has another version, with all of it.
    """
    if not (name := config.requirements):
        return
    packages = os.environ.get(env.PACKAGES)
    if packages and (refusal := cluster.refusal(Path(packages))).is_file():
        raise errors.EntrypointError(refusal.read_text())  # the message of the pod's container `install`
    listed = requirements.read(Path(config.code), name, is_named=not name.endswith(".py"))
    remedy = "`platform image build --job NAME` builds an image that has them" if config.ship else ""
    if issues := [*listed.issues, *requirements.unmet(listed, remedy)]:
        raise errors.EntrypointError(str(errors.SpecError(issues)))


def check_arguments(run: context.Run, config: records.SlotConfig) -> None:
    """Run a script in a fork of this process, up to the point where it has read its arguments.

    That point is recognized for argparse, libraries based on it, and click. A script that uses neither is not started for
    this, and one that takes too long to get there counts as correct.

    Args:
        run: the function returned by `load`.
        config: of the slot; its process is fit for a fork.

    Raises:
        Invalid: the script refused the arguments; the message has its output.
    """
    program = config.program
    if program is None or program.sample is None or not program.script or not _parses(Path(config.code, program.script)):
        return
    with tempfile.TemporaryDirectory(prefix="trialplane-") as folder, tempfile.TemporaryFile() as output:
        pid = os.fork()
        if pid == 0:
            _parse_and_end(run, config, program.sample, Path(folder), output.fileno())
        handle = os.pidfd_open(pid)
        select.select([handle], [], [], _PATIENCE)
        os.close(handle)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # and the processes that it has started
        _, status = os.waitpid(pid, 0)
        output.seek(0)
        text = output.read()[-TAIL:].decode(errors="replace")
        if os.waitstatus_to_exitcode(status) == ERROR and "usage:" in text.lower():
            sys.stderr.write(text)
            raise refused(program.script, text)


def _parses(script: Path) -> bool:
    """Whether a script's arguments are read by a library in which the end of that can be recognized."""
    try:
        return bool(re.search(_PARSERS, script.read_text()))
    except (OSError, UnicodeDecodeError):
        return False


def _parse_and_end(
    run: context.Run, config: records.SlotConfig, sample: Mapping[str, Any], folder: Path, output: int
) -> NoReturn:
    """Run the script in this process, which ends with `ERROR` if it refuses its arguments."""
    code = 0
    try:
        os.setsid()
        process.end_with_parent()
        for stream in (1, 2):
            os.dup2(output, stream)
        # Effects before it reads its arguments leave no trace.
        os.environ |= {"WANDB_MODE": "disabled", env.MLFLOW_TRACKING_URI: f"sqlite:///{folder}/mlflow.db"}
        mlflow_runs.enter({env.MLFLOW_TRACKING_URI: os.environ[env.MLFLOW_TRACKING_URI]})
        _end_when_parsed()
        run(
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
        code = ERROR if error.code == ERROR else 0
    except BaseException:  # noqa: BLE001  other errors are reported when it runs as a trial
        code = 0
    finally:
        process.flush()
        os._exit(code)


def _end_when_parsed() -> None:
    """End this process once argparse or click has read the arguments, regardless of what the script catches."""
    under_way: list[object] = []
    for library in ("argparse", "jsonargparse"):  # LightningCLI's parser is argparse's with another parse_args
        if (module := sys.modules.get(library)) is not None:
            for name in (
                "parse_args",
                "parse_known_args",
            ):  # parse_args calls parse_known_args, which calls itself for subcommands
                setattr(module.ArgumentParser, name, _to_the_end(getattr(module.ArgumentParser, name), under_way))
    if (click := sys.modules.get("click.core")) is not None:
        click.Command.invoke = lambda self, ctx: os._exit(0)


def _to_the_end(parse: Callable[..., Any], under_way: list[object]) -> Callable[..., Any]:
    """The function, with the end of this process after its outermost call; `under_way` has the unfinished calls."""

    def parse_and_end(self: object, *args: Any, **kwargs: Any) -> Any:
        under_way.append(self)
        parsed = parse(self, *args, **kwargs)
        under_way.pop()
        if not under_way:
            os._exit(0)
        return parsed

    return parse_and_end
