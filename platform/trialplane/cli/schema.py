"""`platform schema`: the JSON schema of job.yaml, for editors."""

from __future__ import annotations

import click

from trialplane.cli import output
from trialplane.spec import schema


@click.command("schema")
@output.option("json", "yaml")
def command(kind: str) -> None:
    """Print the JSON schema of job.yaml.

    \b
    platform schema > jobs/job.schema.json
    and as first line of job.yaml, for editors with a YAML language server:
    # yaml-language-server: $schema=../job.schema.json
    """  # noqa: D301  \b is click's mark
    output.emit(kind, schema.json_schema(), str)
