"""`platform examples`: the smallest job of each feature, from the sections of a page of the documentation."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Mapping
from pathlib import Path

import click

from trialplane.cli import docs, output
from trialplane.errors import EXIT_OK, InputError, nearest

_PAGE = "examples"
# A block of Markdown with a file, such as ```yaml title="jobs/demo/job.yaml", and one with a command.
_FILE = re.compile(r'^```\w+ title="jobs/[^/"]+/([^"]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^```sh\n(.*?)\n```$", re.MULTILINE | re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Example:
    """An example.

    Attributes:
        text: Description of the feature.
        files: Text of each file of the job, by name.
        command: Shell command that runs the job.
    """

    text: str
    files: Mapping[str, str]
    command: str


def examples() -> dict[str, Example]:
    """Return the examples of the documentation, by name."""
    page = docs.pages()[_PAGE].read_text(encoding="utf-8")
    _, *sections = re.split(r"^## ", page, flags=re.MULTILINE)  # without the introduction
    by_name = {}
    for section in sections:
        name, _, content = section.partition("\n")
        first_paragraph, _, _ = content.strip().partition("\n\n")
        (command,) = _COMMAND.findall(content)
        by_name[name] = Example(text=first_paragraph, files=dict(_FILE.findall(content)), command=command)
    return by_name


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of examples that begin with the typed text, for the completion of a shell."""
    return [name for name in examples() if name.startswith(incomplete)]


@click.command("examples")
@click.argument("name", required=False, shell_complete=_complete)
@click.option(
    "--write", "folder", type=click.Path(path_type=Path), metavar="FOLDER", help="New folder to write the files of NAME to."
)
def examples_command(name: str | None, folder: Path | None) -> int:
    """Print the files of example NAME, the smallest job of a feature, or list all examples.

    \b
    platform examples
    platform examples promotion
    platform examples promotion --write jobs/promotion
    """  # noqa: D301  \b is click's mark
    jobs = examples()
    if name is None:
        if folder is not None:
            raise click.UsageError("--write needs the name of an example")
        click.echo(output.as_table(("example", "shows"), [[title, example.text] for title, example in jobs.items()]))
        return EXIT_OK
    if name not in jobs:
        raise InputError(f"there is no example {name!r}; {nearest(name, jobs) or '`platform examples` lists them'}")
    example = jobs[name]
    if folder is None:
        parts = [f"# {file}\n{text}" for file, text in example.files.items()]
        click.echo("\n".join([*parts, f"# {example.command}"]))
        return EXIT_OK
    if folder.exists():
        raise InputError(f"{folder} already exists; nothing was changed, choose another folder")
    try:
        folder.mkdir(parents=True)
        for file, text in example.files.items():
            (folder / file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror}") from error
    click.echo(folder)
    is_in_jobs = folder.parent.resolve() == Path("jobs").resolve()  # where a job is found by its name
    job = folder.name if is_in_jobs else shlex.quote(str(folder))
    command = re.sub(rf"(submit \w+) {name} ", lambda match: f"{match[1]} {job} ", example.command)
    output.note(f"`{command}` runs it")
    return EXIT_OK
