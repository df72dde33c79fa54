"""Requirements that a trial pod may install: only names and versions, from the chart's package index."""

from __future__ import annotations

import dataclasses
import re

from trialplane import errors
from trialplane.errors import Issue
from trialplane.job import requirements
from trialplane.job.requirements import Requirements

_OPTION = re.compile(r"(?:^|\s)(-[a-zA-Z]|--[a-z][a-z-]*)")
_ADVICE = "with install: true a line is a name and versions; `platform image build --job NAME` installs whatever pip does"


def install_issues(needs: Requirements) -> list[Issue]:
    """Return issues of the lines that a pod does not install: URLs, paths, and options."""
    issues = [dataclasses.replace(issue, message=f"is not installed in a pod; {_ADVICE}") for issue in needs.unchecked]
    reported = {(issue.source, issue.line) for issue in issues}
    prefix = needs.source.removesuffix(needs.main)  # of the names of files in messages
    for name, text in needs.files:
        if name.endswith(".py"):  # the dependencies of a script have no options
            continue
        for line, content in requirements.logical_lines(text):
            option = _OPTION.search(content)
            if option is None or (f"{prefix}{name}", line) in reported:
                continue
            reason = "hashes are not compared in a pod" if "hash" in content else "options are not followed in a pod"
            field_path = (errors.shortened(option[1], longest=100),)
            issues.append(Issue(field_path, f"{reason}; {_ADVICE}", source=f"{prefix}{name}", line=line))
    return sorted(issues, key=lambda issue: (issue.source, issue.line))
