"""Which requirements may be installed in a trial pod: names and versions alone, from the one index that the chart names."""

from __future__ import annotations

import dataclasses
import re

from trialplane import errors
from trialplane.errors import Issue
from trialplane.job import requirements
from trialplane.job.requirements import Requirements

_OPTION = re.compile(r"(?:^|\s)(-[a-zA-Z]|--[a-z][a-z-]*)")
_CURE = "with install: true a line is a name and versions; `platform image build --job NAME` installs whatever pip does"


def refused(found: Requirements) -> list[Issue]:
    """Issues of the lines that an installation in a pod does not follow: URLs, paths, and options with all they name.

    Args:
        found: what the job needs.
    """
    issues = [dataclasses.replace(one, message=f"is not installed in a pod; {_CURE}") for one in found.unchecked]
    seen = {(one.source, one.line) for one in issues}
    prefix = found.source.removesuffix(found.main)
    for name, text in found.files:
        if name.endswith(".py"):  # whose dependencies have no options
            continue
        for line, said in requirements.joined(text):
            option = _OPTION.search(said)
            if option is None or (f"{prefix}{name}", line) in seen:
                continue
            why = "hashes are not compared in a pod" if "hash" in said else "options are not followed in a pod"
            issues.append(Issue((errors.shortened(option[1], 100),), f"{why}; {_CURE}", f"{prefix}{name}", line))
    return sorted(issues, key=lambda one: (one.source, one.line))
