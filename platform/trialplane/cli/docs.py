"""`platform docs`: the pages of the documentation, which are part of the package."""

from __future__ import annotations

import sys
from pathlib import Path

import click

import trialplane
from trialplane.cli import output
from trialplane.errors import EXIT_OK, InputError, nearest

# Folders of pages, in the order of the site.
_FOLDERS = ("get-started", "guides", "coming-from", "reference", "how-it-works", "contribute", ".")


def pages() -> dict[str, Path]:
    """Return the Markdown file of each page, by its short address."""
    package = Path(trialplane.__file__).parent
    folders = [package / "_docs", package.parent / "docs"]  # of an installed package, and of a checkout
    folder = next((folder for folder in folders if (folder / "index.md").exists()), folders[-1])
    files: list[Path] = []
    for name in _FOLDERS:
        pattern = "*.md" if name == "." else "**/*.md"  # "." contains the other folders
        files += sorted((folder / name).glob(pattern))
    return {file.stem: file for file in files}


@click.command("docs")
@click.argument("page", required=False)
def docs_command(page: str | None) -> int:
    """Show PAGE of the documentation, or a list of all pages. Works offline.

    \b
    platform docs
    platform docs scripts
    platform docs scripts | less
    """  # noqa: D301  \b is click's mark
    files = pages()
    if page is None:
        rows = [[address, _title(file)] for address, file in files.items()]
        click.echo(output.as_table(("page", "title"), rows))
        return EXIT_OK
    if page not in files:
        raise InputError(f"there is no page {page!r}; {nearest(page, files) or '`platform docs` lists them'}")
    text = files[page].read_text(encoding="utf-8")
    if sys.stdout.isatty():
        from trialplane.cli import display  # imported here: only a terminal needs rich

        click.echo_via_pager(display.markdown(text))
    else:
        click.echo(text, nl=False)
    return EXIT_OK


def _title(file: Path) -> str:
    """Return the title of a page, or the name of its file if it has no title."""
    lines = file.read_text(encoding="utf-8").splitlines()
    return next((line.removeprefix("# ") for line in lines if line.startswith("# ")), file.stem)
