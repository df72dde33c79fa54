"""The command `platform`: a table of verbs, and the handling of errors.

The module of a verb is imported only if the verb is used, and this module imports only click and the standard library. So
`platform --help` and completion are fast.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO, cast

import click
from click import shell_completion
from click.shell_completion import CompletionItem

# Verb → module that holds its command, and its summary.
VERBS = {
    "submit": ("trialplane.cli.submit", "Start a run of a job."),
    "list": ("trialplane.cli.status", "List runs, newest first."),
    "status": ("trialplane.cli.status", "Show the state of a run."),
    "logs": ("trialplane.cli.logs", "Show the log of a run or a trial."),
    "results": ("trialplane.cli.results", "Show the trials of a run, best first."),
    "best": ("trialplane.cli.results", "Print the best parameters, for `submit --params`."),
    "report": ("trialplane.cli.report", "Write a run as a page for the browser."),
    "compare": ("trialplane.cli.report", "Compare runs: settings, best values, time to a value."),
    "export": ("trialplane.cli.results", "Export a run as an Optuna study."),
    "cancel": ("trialplane.cli.lifecycle", "End a run and keep its results."),
    "pause": ("trialplane.cli.lifecycle", "Stop a run, for `resume` to continue it later."),
    "resume": ("trialplane.cli.lifecycle", "Continue a paused or ended run."),
    "edit": ("trialplane.cli.changing", "Change fields of a run, also while it runs."),
    "retry": ("trialplane.cli.changing", "Try the failed trials of a study again."),
    "refit": ("trialplane.cli.refit", "Train the best trials again with new seeds, and compare them."),
    "diff": ("trialplane.cli.changing", "Compare a job with a run: what can change, and when."),
    "scale": ("trialplane.cli.lifecycle", "Change the number of parallel trials or workers of a run."),
    "delete": ("trialplane.cli.lifecycle", "Delete a run with its ledger, logs and checkpoints."),
    "ui": ("trialplane.cli.ui", "Show results in a browser (MLflow)."),
    "mcp": ("trialplane.cli.mcp", "Serve runs to an assistant or an editor (MCP)."),
    "validate": ("trialplane.cli.job", "Check a job without starting anything."),
    "doctor": ("trialplane.cli.doctor", "Check this machine and the cluster, and suggest fixes."),
    "image": ("trialplane.cli.image", "Build, push or load the images for a cluster."),
    "init": ("trialplane.cli.job", "Create a job that runs as it is."),
    "import": ("trialplane.cli.importing", "Create a job from the search file of another tool."),
    "examples": ("trialplane.cli.examples", "Show the smallest job of each feature."),
    "explain": ("trialplane.cli.explain", "Explain a field of job.yaml."),
    "schema": ("trialplane.cli.job", "Print the JSON schema of job.yaml."),
    "docs": ("trialplane.cli.docs", "Show a page of the documentation."),
    "completion": ("trialplane.cli.main", "Print the completion script of a shell."),
}

ENVIRONMENT = [
    ("TRIALPLANE_HOME", "folder of runs, results and caches on this machine; default: ~/.trialplane"),
    ("TRIALPLANE_CONTEXT", "cluster, as a context of the kubeconfig; --context wins"),
    ("TRIALPLANE_NAMESPACE", "namespace of the cluster; --namespace wins"),
    ("MLFLOW_TRACKING_URI", "MLflow server that local runs log to; default: a database in TRIALPLANE_HOME"),
    ("TRIALPLANE_GPU_PRICE", "price of an hour of one GPU, for budget.cost of local runs"),
    ("TRIALPLANE_CPU_PRICE", "price of an hour of one CPU core, for the same"),
    ("NO_COLOR", "set to any value for output without colors"),
]

# The variable by which a shell requests completions, set by the script of `platform completion`.
_COMPLETE = "_PLATFORM_COMPLETE"


class _Verbs(click.Group):
    """A group that imports a verb's module when the verb is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of a verb, and return its command. None for an unknown verb. See click."""
        if cmd_name not in VERBS:
            return None
        command: click.Command = getattr(importlib.import_module(VERBS[cmd_name][0]), f"{cmd_name}_command")
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command of the arguments, or fail with a similar verb for an unknown one. See click."""
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            from trialplane import errors

            ctx.fail(f"there is no verb {args[0]!r}; {errors.nearest(args[0], VERBS) or 'see platform --help'}")
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete verbs from the table, because click's own method would import all of their modules."""
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        return [CompletionItem(name, help=text) for name, (_, text) in VERBS.items() if name.startswith(incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl([(name, text) for name, (_, text) in VERBS.items()])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the exit codes and the environment variables at the end of the help. See click."""
        from trialplane import errors

        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), text) for code, text in errors.EXIT_CODES.items()])
        with formatter.section("Environment"):
            formatter.write_dl(ENVIRONMENT)


def _print_version(ctx: click.Context, _: click.Parameter, requested: bool) -> None:
    """Print the version and end the command, if `--version` is set."""
    if requested:
        import trialplane

        click.echo(f"platform {trialplane.__version__}")
        ctx.exit()


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_print_version, help="Show the version."
)
def platform() -> None:
    """Hyperparameter studies, trainings on many GPUs, and self-play, in isolated processes, here or on a cluster.

    \b
    platform init demo                         a job that runs in seconds
    platform submit hpo demo --local           run it here
    platform results                           its trials, the best first
    platform submit hpo demo -n team           run it on a cluster
    platform submit train big --gpus 8         one training with a process for each GPU
    platform submit collect selfplay           workers that play, and one process that learns from their games
    """  # noqa: D301  \b is click's mark
    _check_folders()


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion_command(shell: str) -> None:
    """Print the completion script of a shell.

    \b
    bash   eval "$(platform completion bash)"      in ~/.bashrc
    zsh    eval "$(platform completion zsh)"       in ~/.zshrc
    fish   platform completion fish | source       in ~/.config/fish/config.fish
    """  # noqa: D301  \b is click's mark
    completion = shell_completion.get_completion_class(shell)
    assert completion is not None  # click has these shells
    click.echo(completion(platform, {}, "platform", _COMPLETE).source())


def _check_folders() -> None:
    """Check the working directory and the home folder, which every verb needs.

    Raises:
        InputError: One of them cannot be used.
    """
    from trialplane.errors import InputError
    from trialplane.wire import env, paths

    try:
        Path.cwd()
    except OSError as error:
        raise InputError(f"the current directory no longer exists ({error.strerror}); change to another: cd ~") from error
    try:
        paths.home().exists()
    except PermissionError:  # the verbs that need the home report it
        return
    except (OSError, RuntimeError) as error:  # the path is too long, or ~ names a user who does not exist
        path = os.environ.get(env.HOME, "~")
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{env.HOME} is {path}, which cannot be used: {reason}; set it to a folder of your own") from error


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and end the process with one of the exit codes in `errors`."""
    _open_streams()
    try:
        code = _run(sys.argv[1:] if argv is None else list(argv))
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of the output has closed the pipe
        code = 0
    except _OutputError as error:
        from trialplane.cli import failure

        code = failure.report_unwritable_output(error)
    _discard_unwritable_output()
    sys.exit(code)


def _run(argv: list[str]) -> int:
    """Run the command line and return its exit code.

    Raises:
        BrokenPipeError: The reader of the output has closed it.
        _OutputError: The output cannot be written.
    """
    try:
        instruction = os.environ.get(_COMPLETE)
        if instruction:
            return shell_completion.shell_complete(platform, {}, "platform", _COMPLETE, instruction)
        with platform.make_context(
            "platform", list(argv), obj=argv
        ) as ctx:  # not `platform.main`, which exits with 1 on a broken pipe
            result: Any = platform.invoke(ctx)
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as ending:
        return ending.exit_code
    except click.ClickException as error:
        with contextlib.suppress(OSError):  # if stderr is closed, the exit code still reports the error
            error.show()
        return 2  # `errors.EXIT_BAD_INPUT`; importing `errors` would delay completion
    except (KeyboardInterrupt, click.Abort):
        return 130  # `errors.EXIT_INTERRUPTED`
    except (BrokenPipeError, _OutputError):
        raise
    except Exception as error:  # noqa: BLE001  the last handler: every error must become a message
        from trialplane.cli import failure

        return failure.show(error)


def _open_streams() -> None:
    """Open the null device as each standard stream that is closed, and wrap stdout in `_Output`.

    Otherwise the first file that is opened would get the descriptor of stdout, and the output would be written to it.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            # `os.open` returns the lowest free descriptor, which is `number`. Child processes must inherit it.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    for name, number in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w", closefd=False))  # noqa: SIM115  must stay open until the process ends
    if not isinstance(sys.stdout, _Output):
        sys.stdout = cast(TextIO, _Output(sys.stdout))


class _OutputError(OSError):
    """The error for output that cannot be written, to distinguish it from errors of other files."""


class _Output:
    """A wrapper of stdout that accepts any text, as stderr does, and raises `_OutputError`."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")

    def write(self, text: str) -> int:
        """Write a text, and return its length."""
        with _map_output_errors():
            return int(self._stream.write(text))

    def flush(self) -> None:
        """Write what is buffered."""
        with _map_output_errors():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def _map_output_errors() -> Iterator[None]:
    """Map an error of writing the output to `_OutputError`. A broken pipe keeps its own class."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise _OutputError(error.errno, error.strerror) from error


def _discard_unwritable_output() -> None:
    """Replace a stream that cannot be flushed by the null device, so that Python does not fail again at exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
