"""One line of `platform doctor`: the check, its verdict, and the cure. Pods print them as JSON."""

from __future__ import annotations

import dataclasses
import enum


class Verdict(enum.StrEnum):
    """How one check ended."""

    PASS = "pass"
    WARN = "warn"  # runs will work, but something is not as it should be, or could not be checked
    FAIL = "fail"  # runs will not work, or not safely


@dataclasses.dataclass(frozen=True)
class Finding:
    """The outcome of one check.

    Attributes:
        check: a short name of the check.
        verdict: its result.
        message: what was observed.
        cure: what to do; "" when nothing is wrong.
    """

    check: str
    verdict: Verdict
    message: str
    cure: str = ""


def passed(check: str, message: str) -> Finding:
    """The check passed."""
    return Finding(check, Verdict.PASS, message)


def warned(check: str, message: str, cure: str) -> Finding:
    """Something is not as it should be."""
    return Finding(check, Verdict.WARN, message, cure)


def failed(check: str, message: str, cure: str) -> Finding:
    """Run will not work, or not safely."""
    return Finding(check, Verdict.FAIL, message, cure)
