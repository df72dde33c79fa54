"""Names of parameters and metrics that MLflow accepts.

The worker, which starts without pydantic, uses them too.
"""

from __future__ import annotations

import posixpath
import re

LONGEST = 250  # characters
_NAME = re.compile(r"[/\w.\- :]*")
_POWER = re.compile(r"(?<=[^\W\d])\^(?=\d)")  # the sign in R^2


def parameter(name: str) -> str:
    """Return the name of a parameter in MLflow: without + at its start, which MLflow refuses."""
    return name.lstrip("+")


def metric(text: str) -> str:
    """Return the name under which MLflow accepts a metric: NDCG_10 for NDCG@10, R2 for R^2.

    It is "" if no character of the text is allowed.
    """
    cleaned = re.sub(r"[^\w./ -]", "_", _POWER.sub("", text)).strip("/. ")
    return re.sub(r"/+", "/", cleaned)[:LONGEST]


def program_metric(name: str) -> str:
    """Return the name of a metric of a program: as the reader of its output writes it, if MLflow refuses the name."""
    return metric(name) if problem(name) else name


def problem(name: str) -> str:
    """Return the reason why MLflow would refuse a parameter or a metric with this name. "" if it would not.

    It is checked before a run starts, because MLflow would refuse it only when the first trial writes it. The rules are
    those of MLflow's `utils/validation.py`.
    """
    if len(name) > LONGEST:
        return f"the name has {len(name)} characters, and MLflow keeps {LONGEST} at most"
    if not _NAME.fullmatch(name):
        remedy = f"use letters, digits, _ - . : / and spaces, as in {metric(name)!r}"
        return f"{name!r} is not a valid MLflow name: {remedy}"
    # MLflow uses names as paths, and requires them to be normalized.
    if posixpath.normpath(name) != name or name == "." or name.startswith(("..", "/")):
        return f"{name!r} is not a valid MLflow name: it may not be empty, begin or end with /, or hold //, ./ or ../"
    return ""
