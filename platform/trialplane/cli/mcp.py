"""`platform mcp`: the runs of a target as tools of the Model Context Protocol (MCP), for assistants and editors, over stdio.

The tools read, and with `--allow-submit` one of them starts runs. Arguments are checked by the schema that a client is
shown, and every result has a bounded size, as it is read by a language model.
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

_MOST_BYTES = 32 * 1024  # of rows, or of a log, in one result
_MOST_VALUES = 30  # parameters or metrics of a row
_MOST_WARNINGS = 5
_LONGEST_TEXT = 500  # characters of a message, or of a value
_LONGEST_SHOWN = 60  # characters of an argument that is refused
_LONGEST_LINE = 2000  # characters of a line of a log

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
        return Runs(total=len(handles), runs=_fitting(_summary_or_error(handle) for handle in handles[:limit]))

    def status(self, run: Run) -> RunSummary:
        """Show the state of a run, with the reason, the number of ended trials, the best trial so far, and warnings."""
        return _summary(self._platform.get(run).status())

    def results(self, run: Run, limit: Limit = 20, all_attempts: bool = False) -> Results:
        """Show trials of a run with parameters and metrics, best first. all_attempts includes retried attempts."""
        handle = self._platform.get(run)
        rows = handle.attempts() if all_attempts else handle.rows()
        return Results(run=run, total=len(rows), trials=_fitting(_trial(row) for row in rows[:limit]))

    def logs(self, run: Run, trial: Trial = None, attempt: Attempt = None, lines: Lines = 100) -> LogTail:
        """Show the end of the log of a run or a trial, with its output and the reason for a failure."""
        # One more line, to detect earlier ones.
        tail = collections.deque(self._platform.get(run).logs(trial, attempt), maxlen=lines + 1)
        shown = collections.deque[str]()
        size = 0
        for line in reversed(tail):
            text = escapes.escape_controls(errors.shortened(line.rstrip("\n"), _LONGEST_LINE))
            size += len(text.encode()) + 1
            if len(shown) == lines or size > _MOST_BYTES:
                break
            shown.appendleft(text)
        return LogTail(run=run, text="\n".join(shown), cut=len(shown) < len(tail))

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
        target_choice.remember(self._platform.target.place, handle.name)
        summary = _summary(handle.status())
        return summary.model_copy(update={"warnings": (*prepared.warnings, *summary.warnings)[:_MOST_WARNINGS]})


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
    exporting.check("mcp", extra="mcp")
    from mcp.server import MCPServer  # of the extra mcp, and half a second
    from mcp.server.mcpserver import Context
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp_types import ToolAnnotations

    class Server(MCPServer):
        """A server that explains errors in a tool's arguments in the platform's words."""

        async def call_tool(self, name: str, arguments: dict[str, Any], context: Context[Any, Any] | None = None) -> Any:
            try:
                return await super().call_tool(name, arguments, context)
            except ToolError as error:
                if not isinstance(error.__cause__, ValidationError):
                    raise
                raise ToolError(f"{name}: {_wrong(error.__cause__)}") from error

    def reporting_errors(method: Callable[P, R]) -> Callable[P, R]:
        """Pass on the messages of the platform's errors; the library hides those of all other errors."""

        @functools.wraps(method)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return method(*args, **kwargs)
            except TrialplaneError as error:
                raise ToolError(errors.shortened(escapes.escape_controls(str(error)), _MOST_BYTES)) from error

        return call

    platform = Platform(target_choice.target_of(target_name))
    tools = Tools(platform)
    about = "Runs of hyperparameter studies, trainings and collections: their state, results and logs."
    server = Server("trialplane", version=trialplane.__version__, instructions=about, log_level="WARNING")
    reading = ToolAnnotations(read_only_hint=True, open_world_hint=False)
    for name, method in (("list", tools.runs), ("status", tools.status), ("results", tools.results), ("logs", tools.logs)):
        server.add_tool(reporting_errors(method), name=name, annotations=reading)
    if allow_submit:
        starting = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False)
        server.add_tool(reporting_errors(tools.submit), name="submit", annotations=starting)
    access = "read-only, and submit" if allow_submit else "read-only; --allow-submit lets it start runs"
    output.note(f"MCP server for {platform.target.where()} on stdin and stdout ({access})")
    server.run("stdio")


def _wrong(error: ValidationError) -> str:
    """Describe the errors in a tool's arguments; pydantic's own text links to pages for programmers."""
    problems = []
    for entry in error.errors(include_url=False):
        location = tuple(entry["loc"])
        kind = entry["type"]
        if kind in ("string_pattern_mismatch", "string_too_long"):
            shown = errors.shortened(repr(entry["input"]), _LONGEST_SHOWN)
            text = f"{shown} is not valid; see the description of {location[0]}"
        else:
            text = wording.message(entry, location, {})
        problems.append(f"{'.'.join(map(str, location))} {text}")
    return "; ".join(problems)


def _summary_or_error(handle: RunHandle) -> RunSummary:
    """Summarize a run of the list, even if it is damaged or was deleted meanwhile."""
    try:
        return _summary(handle.status())
    except (RunDamaged, RunNotFound) as error:
        return RunSummary(
            run=handle.name, state="DAMAGED" if isinstance(error, RunDamaged) else "DELETED", reason=_text(str(error))
        )


def _summary(status: RunStatus) -> RunSummary:
    return RunSummary(
        run=status.run,
        job=status.job,
        kind=status.kind,
        state=status.state.value,
        reason=_text(status.reason),
        trials=status.trials,
        complete=status.complete,
        pruned=status.pruned,
        failed=status.failed,
        running=status.running,
        best=None if status.best is None else _trial(status.best),
        warnings=tuple(_text(warning) for warning in status.warnings[:_MOST_WARNINGS]),
    )


def _trial(row: TrialRow) -> TrialResult:
    return TrialResult(
        trial=row.trial,
        attempt=row.attempt,
        state=row.state.value,
        params={name: _value(row.params[name]) for name in list(row.params)[:_MOST_VALUES]},
        metrics={name: row.metrics[name] for name in list(row.metrics)[:_MOST_VALUES]},
        message=_text(row.message),
        seconds=row.seconds,
    )


def _fitting(rows: Iterable[M]) -> list[M]:
    """Return the first rows that fit into one result."""
    fitting: list[M] = []
    size = 0
    for row in rows:
        size += len(row.model_dump_json().encode())
        if size > _MOST_BYTES:
            break
        fitting.append(row)
    return fitting


def _value(value: Any) -> Any:
    """Return a parameter's value; of a long one the beginning of its text."""
    text = value if isinstance(value, str) else json.dumps(value)
    return value if len(text) <= _LONGEST_TEXT and not isinstance(value, str) else _text(text)


def _text(text: str) -> str:
    return errors.shortened(escapes.escape_controls(text), _LONGEST_TEXT)
