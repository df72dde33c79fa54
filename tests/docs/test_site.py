"""The site builds without a warning, its links lead somewhere, and `platform docs` has every page."""

from __future__ import annotations

import re
import urllib.parse
from html import parser
from pathlib import Path

import pytest
import yaml
from tests.docs import pages

from trialplane.cli import docs


class _Page(parser.HTMLParser):
    def __init__(self, page: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.ids |= {value for key in ("id", "name") if (value := found.get(key))}
        self.links += [value for key in ("href", "src") if (value := found.get(key))]


@pytest.mark.slow
def test_every_link_of_the_site_leads_somewhere(site: Path) -> None:
    read = {page: _Page(page) for page in site.rglob("*.html") if page.name != "404.html"}
    assert len(read) > 40
    for page, content in read.items():
        for link in content.links:
            url = urllib.parse.urlsplit(link)
            if url.scheme or url.netloc:
                assert url.scheme == "https", f"{page.name}: {link}"
                continue
            target = (page.parent / urllib.parse.unquote(url.path)).resolve() if url.path else page
            target = target / "index.html" if target.is_dir() else target
            assert target.exists(), f"{page.name}: {link}"
            if url.fragment and target in read and not url.fragment.startswith("__"):
                assert urllib.parse.unquote(url.fragment) in read[target].ids, f"{page.name}: {link}"


@pytest.mark.slow
def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    """But for diagrams: where a page has one, the theme's script loads mermaid."""
    for page in site.rglob("*.html"):
        assert not re.findall(r"<(?:script|img|link rel=.?stylesheet)[^>]*=.?https?://[^>]*>", page.read_text()), page


def test_every_page_is_in_the_navigation() -> None:
    listed: list[str] = []

    def collect(entry: object) -> None:
        if isinstance(entry, str):
            listed.append(entry)
        for part in entry.values() if isinstance(entry, dict) else entry if isinstance(entry, list) else ():
            collect(part)

    text = (pages.ROOT / "platform" / "mkdocs.yml").read_text().replace("!!python/name:", "")
    collect(yaml.safe_load(text)["nav"])
    assert sorted(listed) == sorted(str(page.relative_to(pages.FOLDER)) for page in pages.FOLDER.rglob("*.md"))


def test_links_of_the_readmes_lead_somewhere() -> None:
    for page in [pages.README, pages.ROOT / "platform/README.md", pages.ROOT / "charts/platform/README.md"]:
        for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            file, _, heading = link.partition("#")
            if "://" in file:
                continue
            target = page.parent / file if file else page
            assert target.exists(), f"{page}: {link}"
            if heading:
                titles = re.findall(r"^#+ (.*)$", target.read_text(), re.M)
                assert heading in {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}, link


def test_every_page_has_a_short_address_of_its_own() -> None:
    files = sorted(pages.FOLDER.rglob("*.md"))
    assert sorted(docs.pages().values()) == files
    assert len(docs.pages()) == len(files) > 40


def test_messages_name_pages_that_exist() -> None:
    named = {
        (file.name, page)
        for file in (pages.ROOT / "platform" / "trialplane").rglob("*.py")
        for page in re.findall(r"platform docs ([a-z][a-z-]*)", file.read_text())
    }
    assert len(named) >= 10
    assert {page for _, page in named} <= set(docs.pages())


def test_the_readme_compares_as_the_page_does() -> None:
    """The table has one text: that of the page, with links from the top of the repository."""
    page = (pages.FOLDER / "coming-from" / "comparison.md").read_text()
    rows = [line.replace("](../", "](platform/docs/") for line in page.splitlines() if line.startswith("| ")]
    assert len(rows) == 9
    assert all(row in pages.README.read_text() for row in rows)


def test_the_names_behind_a_path_are_in_that_file() -> None:
    """Pages for contributors write `controller/samplers.py` (`_OWN_CLASSES`): the file exists and has the name."""
    package = pages.FOLDER.parent / "trialplane"
    wrong = []
    for page in (pages.FOLDER / "contribute").glob("*.md"):
        for path, names in re.findall(r"`([\w/]+\.py)`\s+\(((?:`\w+`(?:,\s+)?)+)\)", page.read_text()):
            folders = (package, pages.FOLDER.parent, pages.FOLDER.parent.parent)
            file = next((folder / path for folder in folders if (folder / path).is_file()), None)
            text = "" if file is None else file.read_text()
            wrong += [
                f"{page.name}: {path} ({name})" for name in re.findall(r"\w+", names) if not re.search(rf"\b{name}\b", text)
            ]
    assert not wrong
