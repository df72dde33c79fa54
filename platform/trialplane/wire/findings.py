"""One line of `platform doctor`: what was looked at, whether it is well, and the cure. Pods print them as JSON."""

from __future__ import annotations

import dataclasses
import enum


class Verdict(enum.StrEnum):
    """How one check ended."""

    PASS = "pass"
    WARN = "warn"  # runs will work, but something is not as it should be, or could not be looked at
    FAIL = "fail"  # runs will not work, or not safely


@dataclasses.dataclass(frozen=True)
class Finding:
    """The outcome of one check.

    Attributes:
        check: what was looked at, in a few words.
        verdict: how it is.
        message: what was seen.
        cure: what to do; "" when nothing is wrong.
    """

    check: str
    verdict: Verdict
    message: str
    cure: str = ""


def passed(check: str, message: str) -> Finding:
    """All is well."""
    return Finding(check, Verdict.PASS, message)


def warned(check: str, message: str, cure: str) -> Finding:
    """Something is not as it should be."""
    return Finding(check, Verdict.WARN, message, cure)


def failed(check: str, message: str, cure: str) -> Finding:
    """Runs will not work, or not safely."""
    return Finding(check, Verdict.FAIL, message, cure)
