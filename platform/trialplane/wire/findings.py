"""A line of `platform doctor`: the check, its verdict, and the fix. Pods print them as JSON."""

from __future__ import annotations

import dataclasses
import enum


class Verdict(enum.StrEnum):
    """The result of one check."""

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
        fix: what to do; "" when nothing is wrong.
    """

    check: str
    verdict: Verdict
    message: str
    fix: str = ""


def passed(check: str, message: str) -> Finding:
    """A finding that nothing is wrong."""
    return Finding(check, Verdict.PASS, message)


def warned(check: str, message: str, fix: str) -> Finding:
    """A finding that something is not as it should be."""
    return Finding(check, Verdict.WARN, message, fix)


def failed(check: str, message: str, fix: str) -> Finding:
    """A finding that runs will not work, or not safely."""
    return Finding(check, Verdict.FAIL, message, fix)
