"""`platform mcp`: the runs of a target as tools of the Model Context Protocol (MCP), for assistants and editors, over stdio.

The tools only read, except one that starts runs, with `--allow-submit`. Arguments are checked against the schema that the
client has. The size of every result is bounded, because a language model reads it.
"""

from __future__ import annotations

import collections
import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, ParamSpec, TypeVar

import click
from pydantic import Field

import trialplane
from trialplane import errors
from trialplane.cli import names, output
from trialplane.client import exporting, target_choice
from trialplane.client.run import RunHandle
from trialplane.client.sdk import Platform
from trialplane.client.target import TargetName
from trialplane.errors import RunDamaged, RunNotFound, TrialplaneError
from trialplane.job.kinds import base
from trialplane.plan import plan as planning
from trialplane.wire import escapes, records
from trialplane.wire.records import RunStatus, TrialRow

P = ParamSpec("P")
R = TypeVar("R")

_MAX_BYTES = 32 * 1024  # of the rows or the log in a result
_MAX_VALUES = 30  # parameters or metrics of a row, warnings of a run, or elements of a value
_MAX_TEXT = 500  # characters of a text
_MAX_LINE = 2000  # characters of a line of a log
_STATUS_FIELDS = ("run", "state", "reason", "job", "kind", "trials", "complete", "pruned", "failed", "running", "warnings")
_ROW_FIELDS = ("trial", "attempt", "state", "params", "metrics", "message", "seconds")

Run = Annotated[
    str, Field(pattern=base.RUN, max_length=planning.LONGEST_NAME, description="Name of a run, from the tool list.")
]
Limit = Annotated[int, Field(ge=1, le=100, description="Maximum number of results.")]
Trial = Annotated[int | None, Field(ge=0, lt=2**31, description="Number of a trial. Default: the run's own log.")]
Attempt = Annotated[int | None, Field(ge=1, lt=2**31, description="Attempt of the trial. Default: the newest.")]
Lines = Annotated[int, Field(ge=1, le=500, description="Maximum number of lines, from the end.")]
JobName = Annotated[str, Field(pattern=base.NAME, description="Name of a folder below jobs/.")]
Count = Annotated[int | None, Field(ge=1, le=1_000_000, description="Default: the job's.")]


class Tools:
    """The tools of the server. A client's model reads the docstring of each method."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform

    def runs(self, limit: Limit = 20) -> dict[str, Any]:
        """List the runs with their states, newest first: studies, trainings and collections. total includes all others."""
        handles = self._platform.list()
        return {"total": len(handles), "runs": _rows_that_fit(_summary_or_error(handle) for handle in handles[:limit])}

    def status(self, run: Run) -> dict[str, Any]:
        """Show the state of a run, with the reason, the number of ended trials, the best trial so far, and warnings."""
        return _fields(self._platform.get(run).status(), _STATUS_FIELDS)

    def results(self, run: Run, limit: Limit = 20, all_attempts: bool = False) -> dict[str, Any]:
        """Show trials of a run with parameters and metrics, best first. all_attempts includes retried attempts."""
        handle = self._platform.get(run)
        rows = handle.attempts() if all_attempts else handle.rows()
        return {"run": run, "total": len(rows), "trials": _rows_that_fit(_fields(row, _ROW_FIELDS) for row in rows[:limit])}

    def logs(self, run: Run, trial: Trial = None, attempt: Attempt = None, lines: Lines = 100) -> dict[str, Any]:
        """Show the end of the log of a run or a trial, with its output and the reason for a failure. cut: there is more."""
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
        return {"run": run, "text": "\n".join(shown_lines), "cut": len(shown_lines) < len(tail)}

    def submit(
        self,
        job: JobName,
        name: Run | None = None,
        profile: str | None = None,
        trials: Count = None,
        parallel: Count = None,
        params: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
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
        return {**_fields(handle.status(), _STATUS_FIELDS), "notes": prepared.warnings}


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
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp_types import ToolAnnotations

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
    server = MCPServer("trialplane", version=trialplane.__version__, instructions=instructions, log_level="WARNING")
    read_annotations = ToolAnnotations(read_only_hint=True, open_world_hint=False)
    for name, method in (("list", tools.runs), ("status", tools.status), ("results", tools.results), ("logs", tools.logs)):
        server.add_tool(map_errors(method), name=name, annotations=read_annotations)
    if allow_submit:
        submit_annotations = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False)
        server.add_tool(map_errors(tools.submit), name="submit", annotations=submit_annotations)
    access = "read-only, and submit" if allow_submit else "read-only; --allow-submit lets it start runs"
    output.note(f"MCP server for {platform.target.location()} on stdin and stdout ({access})")
    server.run("stdio")


def _summary_or_error(handle: RunHandle) -> dict[str, Any]:
    """Return the summary of a listed run, even if it is damaged or was deleted in the meantime."""
    try:
        return _fields(handle.status(), _STATUS_FIELDS)
    except (RunDamaged, RunNotFound) as error:
        state = "DAMAGED" if isinstance(error, RunDamaged) else "DELETED"
        return {"run": handle.name, "state": state, "reason": str(error)}


def _fields(record: RunStatus | TrialRow, names: Sequence[str]) -> dict[str, Any]:
    """Return some fields of a record as plain JSON values, shortened if they are long; of a run, also its best trial."""
    fields = {name: _shortened(records.to_dict(getattr(record, name))) for name in names}
    if isinstance(record, RunStatus) and record.best is not None:
        fields["best"] = _fields(record.best, _ROW_FIELDS)
    return fields


def _shortened(value: Any) -> Any:
    """Return a JSON value with the first of its elements, and with texts of a bounded length without control characters."""
    if isinstance(value, str):
        return errors.shortened(escapes.escape_controls(value), _MAX_TEXT)
    if isinstance(value, Mapping):
        return {name: _shortened(element) for name, element in list(value.items())[:_MAX_VALUES]}
    if isinstance(value, (list, tuple)):
        return [_shortened(element) for element in value[:_MAX_VALUES]]
    return value


def _rows_that_fit(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the first rows whose total size fits a result."""
    first_rows: list[dict[str, Any]] = []
    size = 0
    for row in rows:
        size += len(json.dumps(row))
        if size > _MAX_BYTES:
            break
        first_rows.append(row)
    return first_rows
