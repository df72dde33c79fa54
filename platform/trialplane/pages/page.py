"""Writes a page as one HTML file that contains its data and scripts, so that it needs no server.

No text of a run can become markup or a script: facts of runs are JSON, columns are base64, the scripts insert texts as text
nodes, and a content security policy allows only the scripts whose hashes it lists.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import html
import importlib.resources
import importlib.util
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trialplane.errors import InputError
from trialplane.pages import columns
from trialplane.pages.columns import Column
from trialplane.wire import escapes, records

_SCRIPTS = ("data.js", "dom.js", "charts.js", "parallel.js", "table.js", "study.js", "comparison.js", "start.js", "live.js")
_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def page(
    title: str,
    runs: Sequence[tuple[Mapping[str, Any], Sequence[Column]]],
    comparison: Mapping[str, Any] | None = None,
    *,
    live: bool = False,
) -> str:
    """Return the page of runs as HTML.

    Args:
        title: Title of the page.
        runs: Facts and columns of each run, as `content.content` returns them.
        comparison: Comparison of the runs or of trials. None for a page without a comparison.
        live: Whether a server sends newer content to the page. Only then may the page send requests, to this server.

    Raises:
        InputError: Plotly is not installed.
    """
    (plotly, plotly_hash), (script, script_hash), style = _plotly(plotly_file()), _script(), _asset("page.css")
    hashes = f"'sha256-{plotly_hash}' 'sha256-{script_hash}'"
    # plotly.js compiles the drawing code of its WebGL charts, which needs 'unsafe-eval', and sets styles while it draws,
    # which needs 'unsafe-inline' for styles. Neither lets a text of a run become a script, because only inline scripts with
    # these hashes run.
    connections = "'self'" if live else "'none'"
    policy = (
        f"default-src 'none'; script-src {hashes} 'unsafe-eval'; style-src 'unsafe-inline'; img-src data: blob:; "
        f"worker-src blob:; connect-src {connections}; base-uri 'none'; form-action 'none'"
    )
    document, block = data(runs, comparison)
    visible_title = html.escape(escapes.escape_surrogates(title), quote=False)
    return "".join(
        (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n',
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n',
            '<meta name="referrer" content="no-referrer">\n',
            f"<title>{visible_title}</title>\n<style>{style}</style>\n</head>\n<body>\n",
            '<main id="page"><p id="loading">Reading the run…</p></main>\n',
            '<noscript><p class="notice">This page draws with JavaScript, which is off.</p></noscript>\n',
            f'<script type="application/json" id="facts">{_escape_json(document)}</script>\n',
            f'<script type="text/plain" id="columns">{block}</script>\n',
            f"<script>{script}</script>\n",
            f'<script type="text/plain" id="plotly">{plotly}</script>\n</body>\n</html>\n',
        )
    )


def data(
    runs: Sequence[tuple[Mapping[str, Any], Sequence[Column]]],
    comparison: Mapping[str, Any] | None = None,
    old_columns: Iterable[Column] = (),
) -> tuple[dict[str, Any], str]:
    """Return the data of a page, which its scripts draw. For the arguments, see `page` and `columns.pack`.

    Returns:
        The facts of the runs as JSON values, each with the directory of its columns, and the comparison. The bytes of all
        columns, as base64.
    """
    directory, block = columns.pack((column for _, run_columns in runs for column in run_columns), old_columns)
    entries = iter(directory)  # in the order of the runs and of their columns
    document = {
        "runs": [
            {**records.to_dict(facts), "columns": list(itertools.islice(entries, len(run_columns)))}
            for facts, run_columns in runs
        ],
        "comparison": None if comparison is None else records.to_dict(comparison),
    }
    return document, block


def plotly_file() -> Path:
    """Return the file with plotly's JavaScript. It is found without importing plotly, which would take long.

    Raises:
        InputError: Plotly is not installed.
    """
    spec = importlib.util.find_spec("plotly")
    folders = [] if spec is None else spec.submodule_search_locations or []
    for folder in folders:
        file = Path(folder, "package_data", "plotly.min.js")
        if file.is_file():
            return file
    raise InputError("plotly cannot be found, which draws the page; pip install 'trialplane[notebook]'")


@functools.cache  # a server writes many pages, and plotly.js has 5 MB
def _plotly(file: Path) -> tuple[str, str]:
    """Return plotly.js from its file as it is embedded in a page, and its hash."""
    text = _escape_ends(_with_compile_hint(file.read_text(encoding="utf-8")))
    return text, _sha256(text)


@functools.cache
def _script() -> tuple[str, str]:
    """Return all scripts of the page as one script, in a function, so that their names are not global, and its hash."""
    text = _escape_ends("(() => {\n'use strict';\n" + "".join(map(_asset, _SCRIPTS)) + "})();\n")
    return text, _sha256(text)


@functools.cache
def _asset(name: str) -> str:
    """Return the text of a file in the folder `assets`."""
    return (importlib.resources.files("trialplane.pages") / "assets" / name).read_text(encoding="utf-8")


def _with_compile_hint(plotly: str) -> str:
    """Return plotly.js with its main function in parentheses, a hint for JavaScript engines to compile it at once.

    Without the hint, V8 parses the function twice, which takes a sixth of the time until the first chart. If the text has an
    unexpected form, it is returned unchanged.
    """
    start, end = ": this, () => {\n", "return Plotly;\n}));"
    if plotly.count(start) != 1 or plotly.count(end) != 1:
        return plotly
    return plotly.replace(start, ": this, (() => {\n").replace(end, "return Plotly;\n})));")


def _escape_ends(script: str) -> str:
    r"""Return a script that can be embedded in a page: no string in it ends the script element.

    Line ends are `\n` only, because browsers change others, and the hash would not match.
    """
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--").replace("\r", "")


def _sha256(script: str) -> str:
    """Return the hash of a script in the form of a content security policy: SHA-256 as base64."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _escape_json(document: Any) -> str:
    """Return a document as JSON without characters that could begin or end markup."""
    text = json.dumps(document, separators=(",", ":"), allow_nan=False)
    for character, escape in _ESCAPES.items():
        text = text.replace(character, escape)
    return text
