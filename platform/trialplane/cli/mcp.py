"""`platform mcp`: the runs of a target as tools of the Model Context Protocol (MCP), for assistants and editors, over stdio.

The tools only read, except one that starts runs, with `--allow-submit`. Arguments are checked against the schema that the
client has. The size of every result is bounded, because a language model reads it.
"""

from __future__ import annotations

import collections
import functools
import json
from collections.abc import Callable, Iterable
from typing import Annotated, Any, ParamSpec, TypeVar

import click
from pydantic import BaseModel, ConfigDict, Field, ValidationError

import trialplane
from trialplane import errors
from trialplane.cli import names, output
from trialplane.client import exporting, target_choice
from trialplane.client.run import RunHandle
from trialplane.client.sdk import Platform
from trialplane.client.target import TargetName
from trialplane.errors import RunDamaged, RunNotFound, TrialplaneError
from trialplane.job import wording
from trialplane.job.kinds import base
from trialplane.plan import plan as planning
from trialplane.wire import escapes
from trialplane.wire.records import RunStatus, TrialRow

P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M", bound=BaseModel)

_MAX_BYTES = 32 * 1024  # of the rows or the log in a result
_MAX_VALUES = 30  # parameters or metrics of a row
_MAX_WARNINGS = 5
_MAX_TEXT = 500  # characters of a message, or of a value
_MAX_ARGUMENT = 60  # characters of an invalid argument in a message
_MAX_LINE = 2000  # characters of a line of a log

Run = Annotated[
    str, Field(pattern=base.RUN, max_length=planning.LONGEST_NAME, description="Name of a run, from the tool list.")
]
Limit = Annotated[int, Field(ge=1, le=100, description="Maximum number of results.")]
Trial = Annotated[int | None, Field(ge=0, lt=2**31, description="Number of a trial. Default: the run's own log.")]
Attempt = Annotated[int | None, Field(ge=1, lt=2**31, description="Attempt of the trial. Default: the newest.")]
Lines = Annotated[int, Field(ge=1, le=500, description="Maximum number of lines, from the end.")]
JobName = Annotated[str, Field(pattern=base.NAME, description="Name of a folder below jobs/.")]
Count = Annotated[int | None, Field(ge=1, le=1_000_000, description="Default: the job's.")]


class _Result(BaseModel):
    model_config = ConfigDict(frozen=True)


class TrialResult(_Result):
    """The newest attempt of a trial."""

    trial: int
    attempt: int
    state: str
    params: dict[str, Any]
    metrics: dict[str, float]
    message: str
    seconds: float | None


class RunSummary(_Result):
    """A run. `reason` explains its state."""

    run: str
    state: str
    reason: str
    job: str = ""
    kind: str = ""
    trials: int = 0
    complete: int = 0
    pruned: int = 0
    failed: int = 0
    running: int = 0
    best: TrialResult | None = None
    warnings: tuple[str, ...] = ()


class Runs(_Result):
    """Runs, newest first. `total` includes those that are not shown."""

    total: int
    runs: list[RunSummary]


class Results(_Result):
    """Trials, best first. `total` includes those that are not shown."""

    run: str
    total: int
    trials: list[TrialResult]


class LogTail(_Result):
    """End of a log. `cut` is true if there are earlier lines."""

    run: str
    text: str
    cut: bool


class Tools:
    """The tools of the server. A client's model reads the docstring of each method."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform

    def runs(self, limit: Limit = 20) -> Runs:
        """List the runs with their states, newest first: studies, trainings and collections."""
        handles = self._platform.list()
        return Runs(total=len(handles), runs=_rows_that_fit(_summary_or_error(handle) for handle in handles[:limit]))

    def status(self, run: Run) -> RunSummary:
        """Show the state of a run, with the reason, the number of ended trials, the best trial so far, and warnings."""
        return _run_summary(self._platform.get(run).status())

    def results(self, run: Run, limit: Limit = 20, all_attempts: bool = False) -> Results:
        """Show trials of a run with parameters and metrics, best first. all_attempts includes retried attempts."""
        handle = self._platform.get(run)
        rows = handle.attempts() if all_attempts else handle.rows()
        return Results(run=run, total=len(rows), trials=_rows_that_fit(_trial_result(row) for row in rows[:limit]))

    def logs(self, run: Run, trial: Trial = None, attempt: Attempt = None, lines: Lines = 100) -> LogTail:
        """Show the end of the log of a run or a trial, with its output and the reason for a failure."""
        # One line more than requested shows whether there are earlier lines.
        tail = collections.deque(self._platform.get(run).logs(trial, attempt), maxlen=lines + 1)
        shown_lines = collections.deque[str]()
        size = 0
        for line in reversed(tail):
            text = escapes.escape_controls(errors.shortened(line.rstrip("\n"), _MAX_LINE))
            size += len(text.encode()) + 1
            if len(shown_lines) == lines or size > _MAX_BYTES:
                break
            shown_lines.appendleft(text)
        return LogTail(run=run, text="\n".join(shown_lines), cut=len(shown_lines) < len(tail))

    def submit(
        self,
        job: JobName,
        name: Run | None = None,
        profile: str | None = None,
        trials: Count = None,
        parallel: Count = None,
        params: dict[str, Any] | None = None,
    ) -> RunSummary:
        """Start a run of a job. params fixes parameters. The run continues by itself; the tool status shows its progress."""
        prepared = self._platform.prepare(
            job,
            name=name,
            profile=profile,
            overrides={"trials": trials, "parallel": parallel},
            params=params,
            command=("platform", "mcp"),
        )
        handle, _ = self._platform.start(prepared.plan)
        target_choice.remember(self._platform.target.name, handle.name)
        summary = _run_summary(handle.status())
        return summary.model_copy(update={"warnings": (*prepared.warnings, *summary.warnings)[:_MAX_WARNINGS]})


@click.command("mcp")
@names.target_options()
@click.option(
    "--allow-submit", is_flag=True, help="Offer the tool `submit` too. Without it, no tool starts or changes anything."
)
def mcp_command(target_name: TargetName, allow_submit: bool) -> None:
    """Serve the runs of a target to an assistant or an editor with MCP, over stdin and stdout.

    The tools are list, status, results and logs, which only read. With --allow-submit there is also submit, which starts the
    jobs in the folder jobs/ of the working directory.

    \b
    Configuration of an MCP client:
      {"mcpServers": {"trialplane": {"command": "platform", "args": ["mcp", "--local"]}}}
    """  # noqa: D301  \b is click's mark
    exporting.check_installed("mcp", extra="mcp")
    from mcp.server import MCPServer  # part of the extra mcp, and takes half a second
    from mcp.server.mcpserver import Context
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp_types import ToolAnnotations

    class Server(MCPServer):
        """A server that explains invalid arguments in the platform's words."""

        async def call_tool(self, name: str, arguments: dict[str, Any], context: Context[Any, Any] | None = None) -> Any:
            """Return the result of a tool; see `MCPServer`. Invalid arguments are a `ToolError` with their problems."""
            try:
                return await super().call_tool(name, arguments, context)
            except ToolError as error:
                if not isinstance(error.__cause__, ValidationError):
                    raise
                raise ToolError(f"{name}: {_argument_problems(error.__cause__)}") from error

    def map_errors(method: Callable[P, R]) -> Callable[P, R]:
        """Return a method that raises the platform's errors as `ToolError`: the library hides the messages of others."""

        @functools.wraps(method)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            """Call the method; raise ToolError with the message of a platform's error."""
            try:
                return method(*args, **kwargs)
            except TrialplaneError as error:
                raise ToolError(errors.shortened(escapes.escape_controls(str(error)), _MAX_BYTES)) from error

        return call

    platform = Platform(target_choice.target_of(target_name))
    tools = Tools(platform)
    instructions = "Runs of hyperparameter studies, trainings and collections: their state, results and logs."
    server = Server("trialplane", version=trialplane.__version__, instructions=instructions, log_level="WARNING")
    read_annotations = ToolAnnotations(read_only_hint=True, open_world_hint=False)
    for name, method in (("list", tools.runs), ("status", tools.status), ("results", tools.results), ("logs", tools.logs)):
        server.add_tool(map_errors(method), name=name, annotations=read_annotations)
    if allow_submit:
        submit_annotations = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False)
        server.add_tool(map_errors(tools.submit), name="submit", annotations=submit_annotations)
    access = "read-only, and submit" if allow_submit else "read-only; --allow-submit lets it start runs"
    output.note(f"MCP server for {platform.target.location()} on stdin and stdout ({access})")
    server.run("stdio")


def _argument_problems(error: ValidationError) -> str:
    """Return the problems of a tool's arguments as text, because pydantic's text is written for programmers."""
    problems = []
    for entry in error.errors(include_url=False):
        location = tuple(entry["loc"])
        if entry["type"] in ("string_pattern_mismatch", "string_too_long"):
            argument = errors.shortened(repr(entry["input"]), _MAX_ARGUMENT)
            text = f"{argument} is not valid; see the description of {location[0]}"
        else:
            text = wording.message(entry, location, {})
        problems.append(f"{'.'.join(map(str, location))} {text}")
    return "; ".join(problems)


def _summary_or_error(handle: RunHandle) -> RunSummary:
    """Return the summary of a listed run, even if it is damaged or was deleted in the meantime."""
    try:
        return _run_summary(handle.status())
    except (RunDamaged, RunNotFound) as error:
        state = "DAMAGED" if isinstance(error, RunDamaged) else "DELETED"
        return RunSummary(run=handle.name, state=state, reason=_short_text(str(error)))


def _run_summary(status: RunStatus) -> RunSummary:
    """Return the summary of a run's status, with shortened texts."""
    return RunSummary(
        run=status.run,
        job=status.job,
        kind=status.kind,
        state=status.state.value,
        reason=_short_text(status.reason),
        trials=status.trials,
        complete=status.complete,
        pruned=status.pruned,
        failed=status.failed,
        running=status.running,
        best=None if status.best is None else _trial_result(status.best),
        warnings=tuple(_short_text(warning) for warning in status.warnings[:_MAX_WARNINGS]),
    )


def _trial_result(row: TrialRow) -> TrialResult:
    """Return an attempt as a result of a tool, with the first of its parameters and metrics, and shortened texts."""
    return TrialResult(
        trial=row.trial,
        attempt=row.attempt,
        state=row.state.value,
        params={name: _short_value(row.params[name]) for name in list(row.params)[:_MAX_VALUES]},
        metrics={name: row.metrics[name] for name in list(row.metrics)[:_MAX_VALUES]},
        message=_short_text(row.message),
        seconds=row.seconds,
    )


def _rows_that_fit(rows: Iterable[M]) -> list[M]:
    """Return the first rows whose total size fits a result."""
    first_rows: list[M] = []
    size = 0
    for row in rows:
        size += len(row.model_dump_json().encode())
        if size > _MAX_BYTES:
            break
        first_rows.append(row)
    return first_rows


def _short_value(value: Any) -> Any:
    """Return a parameter's value. A text, or a value whose JSON is long, is returned as a shortened text."""
    if isinstance(value, str):
        return _short_text(value)
    text = json.dumps(value)
    return value if len(text) <= _MAX_TEXT else _short_text(text)


def _short_text(text: str) -> str:
    return errors.shortened(escapes.escape_controls(text), _MAX_TEXT)
