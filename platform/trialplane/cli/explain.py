"""`platform explain`: a field of job.yaml, with an example from the documentation."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from typing import Any

import click

from trialplane.cli import docs, output
from trialplane.errors import EXIT_OK, InputError
from trialplane.job import document, fields
from trialplane.job.fields import Field

_YAML = re.compile(r"^```yaml[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)  # a block of YAML in Markdown
_MAX_PAGES = 3  # that `explain` names for a field


@dataclasses.dataclass(frozen=True)
class Use:
    """A use of a field in the documentation.

    Attributes:
        page: Address of the page.
        example: Part of a job that has the field.
    """

    page: str
    example: Any


@click.command("explain")
@click.argument("path", metavar="[FIELD]", default="")
@output.option("table", "json", "yaml")
def explain_command(path: str, output_format: str) -> int:
    """Explain a FIELD of job.yaml: its type, its default, the fields below it, an example.

    Without FIELD, list the top-level fields.

    \b
    platform explain
    platform explain budget.time
    platform explain space.lr                  any parameter's name will do
    platform explain sampler.tpe               the options of a sampler
    """  # noqa: D301  \b is click's mark
    described_field = fields.explain(path)
    shown_path, uses = _find_uses(described_field)
    example = uses[0].example if uses else None
    data = {**_as_data(described_field), "example": example, "pages": [use.page for use in uses]}
    output.emit(output_format, data, lambda: _as_text(described_field, shown_path, uses))
    return EXIT_OK


def _as_text(field: Field, shown_path: str, uses: list[Use]) -> str:
    """Return the explanation of a field as text: its facts, the fields or choices below it, and an example.

    Args:
        field: The field.
        shown_path: Path of the field that the example shows: the field itself, or one above it.
        uses: Uses of that field in the documentation.
    """
    parts = []
    if field.path:  # "" is the job itself
        # Only a value of a mapping whose keys the user chooses, such as environment.NAME, has no description.
        facts = {"type": field.type, "default": field.default or "none", "kinds": ", ".join(field.kinds)}
        parts.append(f"{output.paint(field.path, bold=True)}: {field.text or 'A value with a name of your choice.'}")
        parts.append(output.as_fields(facts))
    if field.choices:
        rows = [[name, ", ".join(sorted(choice.options))] for name, choice in sorted(field.choices.items())]
        parts.append(output.as_table(("name", "options"), rows))
    elif field.fields:
        parts.append(_table(field))
    if uses:
        title = "Example" if shown_path == field.pattern else f"Example of {shown_path}"
        parts.append(f"{title}:\n{output.as_yaml(uses[0].example).rstrip()}")
        parts.append("More: " + ", ".join(f"`platform docs {use.page}`" for use in uses))
    return "\n\n".join(parts)


def _table(field: Field) -> str:
    """Return a table of the fields below a field, with the kinds of jobs that have them if these differ."""
    header = ["field", "type", "default", "meaning"]
    rows = [[part.path, part.type, part.default, part.text] for part in field.fields]
    if any(part.kinds != field.kinds for part in field.fields):
        header.insert(-1, "kinds")
        for row, part in zip(rows, field.fields, strict=True):
            row.insert(-1, ", ".join(part.kinds))
    return output.as_table(header, rows)


def _as_data(field: Field) -> dict[str, Any]:
    """Return the explanation of a field, and of the fields below it, as plain values."""
    return {
        "field": field.path,
        "kinds": list(field.kinds),
        "type": field.type,
        "default": field.default,
        "meaning": field.text,
        "fields": [_as_data(part) for part in field.fields],
        "names": {name: sorted(choice.options) for name, choice in field.choices.items()},
    }


def _find_uses(field: Field) -> tuple[str, list[Use]]:
    """Return the uses of a field in the documentation, or else of the nearest field above it, with the pattern of that one.

    The pattern of a field is its path, with "*" in place of names that a job chooses: space.*.low of space.lr.low.
    """
    if not field.path:
        return "", []
    if uses := list(_uses(field.path.split("."))):
        return field.pattern, uses
    pattern = field.pattern
    while pattern:
        if uses := list(_uses(pattern.split("."))):
            return pattern, uses
        pattern, _, _ = pattern.rpartition(".")  # that of the field above; "" at the top
    return "", []


def _uses(names: Sequence[str]) -> Iterator[Use]:
    """Yield the uses of a field in the first `_MAX_PAGES` pages that have it in a YAML block.

    Args:
        names: Names of the field's path; "*" for any name.
    """
    page_count = 0
    for page, file in docs.pages().items():
        for block in _YAML.findall(file.read_text(encoding="utf-8")):
            try:
                job = document.parse(block, page).data  # as job.yaml is read: by YAML 1.2, `on` is a text
            except InputError:  # it is not a job
                continue
            # Some fields are in profiles only.
            profiles = job.get("profiles") if isinstance(job, dict) else None
            parts = [job, *(profiles.values() if isinstance(profiles, dict) else ())]
            examples = [_extract_field(part, names) for part in parts]
            example = next((example for example in examples if example is not None), None)
            if example is not None:
                yield Use(page, example)
                page_count += 1
                break
        if page_count == _MAX_PAGES:
            return


def _extract_field(job: Any, names: Sequence[str]) -> Any:
    """Return a job, or a part of one, reduced to one field and the mappings around it; None if it lacks the field.

    Of `{budget: {time: 2h, cost: 9}}`, the field budget.time is `{budget: {time: 2h}}`.
    """
    if not names:
        return job
    if isinstance(job, list):
        # A whole item, because a part may make no sense alone: `metrics.pattern` is no source of metrics without `from`.
        return next(([item] for item in job if _extract_field(item, names) is not None), None)
    if not isinstance(job, dict):
        return None
    name, *rest = names
    for key, value in job.items():
        if name in ("*", key):
            part = _extract_field(value, rest)
            if part is not None:
                return {key: part}
    return None
