"""Names that MLflow keeps: of parameters and of metrics.

MLflow refuses others when the first trial writes them, long after the submission; see its `utils/validation.py`.
"""

from __future__ import annotations

import posixpath
import re

LONGEST = 250
_ALLOWED = re.compile(r"[/\w.\- :]*")


def refusal(name: str) -> str:
    """Why MLflow would not keep something under `name`, or ""."""
    if len(name) > LONGEST:
        return f"the name has {len(name)} characters, and MLflow keeps {LONGEST} at most"
    if not _ALLOWED.fullmatch(name):
        return f"{name!r} is no name for MLflow: use letters, digits, _ - . : / and spaces"
    # It takes names for paths, and wants one name for one path.
    if posixpath.normpath(name) != name or name == "." or name.startswith(("..", "/")):
        return f"{name!r} is no name for MLflow: it may not be empty, begin or end with /, or hold //, ./ or ../"
    return ""
