"""A finding, which is a line of `platform doctor`: the check, its verdict, and the fix. Pods print findings as JSON."""

from __future__ import annotations

import dataclasses
import enum


class Verdict(enum.StrEnum):
    """The result of one check."""

    PASS = "pass"
    WARN = "warn"  # runs will work, but something is wrong, or could not be checked
    FAIL = "fail"  # runs will not work, or not safely


@dataclasses.dataclass(frozen=True)
class Finding:
    """The result of one check, with its reason.

    Attributes:
        check: Short name of the check.
        verdict: Result of the check.
        message: Observation that led to the result.
        fix: Advice for the user. "" if nothing is wrong.
    """

    check: str
    verdict: Verdict
    message: str
    fix: str = ""


def passed(check: str, message: str) -> Finding:
    """Return a finding that nothing is wrong."""
    return Finding(check, Verdict.PASS, message)


def warned(check: str, message: str, fix: str) -> Finding:
    """Return a finding that something is wrong or could not be checked, but runs will work."""
    return Finding(check, Verdict.WARN, message, fix)


def failed(check: str, message: str, fix: str) -> Finding:
    """Return a finding that runs will not work, or not safely."""
    return Finding(check, Verdict.FAIL, message, fix)
