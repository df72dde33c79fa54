"""`platform doctor`: checks of this machine, the cluster and a trial's pod, with fixes."""

from __future__ import annotations

import collections
import dataclasses
import os
from pathlib import Path

import click

from trialplane import errors
from trialplane.cli import names, output
from trialplane.client import doctor
from trialplane.client.doctor import AreaFinding
from trialplane.client.target import TargetName
from trialplane.job import load
from trialplane.job.kinds import Job
from trialplane.wire.findings import Verdict

_COLORS = {Verdict.PASS: "green", Verdict.WARN: "yellow", Verdict.FAIL: "red"}


@click.command("doctor")
@names.target_options(default_target=TargetName())
@click.option("--gpus", type=click.IntRange(min=0), help="Number of GPUs of the test pod. Default: that of the job, or 0.")
@click.option("--job", metavar="NAME", help="Job whose nodes, GPUs and image the test pod uses.")
@click.option(
    "--wait",
    type=click.FloatRange(min=1),
    default=180.0,
    show_default=True,
    help="Maximum time for the test pod to start, in seconds.",
)
@output.option("table", "json")
def doctor_command(target_name: TargetName, gpus: int | None, job: str | None, wait: float, output_format: str) -> int:
    """Check this machine and the cluster. A test pod, set up like a trial pod, checks everything that a trial needs.

    With --local, or after a local submission, check only this machine. Each failed check comes with a fix, and the exit code
    is 3. The test pod is deleted at the end.
    """
    area_findings = []
    for area_finding in doctor.examine(target_name, _job(job, gpus), wait):
        area_findings.append(area_finding)
        if output_format == "table":
            click.echo(_line_text(area_finding))
    if output_format == "json":
        findings = [{"area": item.area, **dataclasses.asdict(item.finding)} for item in area_findings]
        output.emit(output_format, findings, str)
    counts = collections.Counter(item.finding.verdict for item in area_findings)
    warnings = errors.counted(counts[Verdict.WARN], "warning")
    hint = "; see `platform docs troubleshooting`" if counts[Verdict.FAIL] else ""
    output.note(f"{counts[Verdict.PASS]} passed, {warnings}, {counts[Verdict.FAIL]} failed{hint}")
    return doctor.exit_code(area_findings)


def _job(name: str | None, gpus: int | None) -> Job:
    """Return the job for the test pod: a named one, or a minimal one, with a number of GPUs if it is set."""
    if name is None:
        return doctor.default_job(gpus or 0)
    sets = () if gpus is None else (f"resources.gpus={gpus}",)
    return load.load_job(load.find_job(name, Path.cwd()), sets=sets, environ=os.environ)


def _line_text(area_finding: AreaFinding) -> str:
    """Return a finding as a line, and its fix as a second line."""
    finding = area_finding.finding
    verdict = output.paint(finding.verdict.value, fg=_COLORS[finding.verdict], bold=finding.verdict is Verdict.FAIL)
    head = f"{verdict}  {area_finding.area:9}  {finding.check:24}  {' '.join(finding.message.split())}"
    return head if not finding.fix else f"{head}\n      {'':9}  fix: {' '.join(finding.fix.split())}"
