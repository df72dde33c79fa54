"""Looks at everything a run relies on, from the laptop to a trial's pod, and says what is wrong and how to cure it.

`examine` yields findings as they are made. What to think of what was seen is decided by pure functions in
`doctor_laptop`, `doctor_verdicts` and `worker.probe`; a pod of the trial image runs the last (`doctor_pod`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

from trialplane.client import doctor_cluster, doctor_laptop, doctor_pod, doctor_verdicts, kinds
from trialplane.client.cluster import Cluster
from trialplane.client.target import Place
from trialplane.errors import EXIT_OK, EXIT_PLATFORM, TrialplaneError
from trialplane.plan.site import Site
from trialplane.spec import jobs
from trialplane.spec.jobs import Job
from trialplane.wire import cluster as names
from trialplane.wire import findings, paths
from trialplane.wire.findings import Finding, Verdict

LAPTOP, CLUSTER, POD = "laptop", "cluster", "trial pod"


@dataclasses.dataclass(frozen=True)
class Line:
    """A finding and where it was made: on the laptop, of the cluster, in a trial's pod."""

    area: str
    finding: Finding


def examine(place: Place, job: Job, patience: float) -> Iterator[Line]:
    """Everything, in the order in which a run needs it; stops where nothing more can be seen.

    Args:
        place: this machine, or a namespace of a cluster.
        job: whose trials the pod stands for; `default_job` when the user named none.
        patience: seconds for the pod to start.
    """
    yield from _lines(LAPTOP, doctor_laptop.everywhere())
    if place.local:
        yield from _lines(LAPTOP, doctor_laptop.alone(paths.home()))
        return
    try:
        cluster = Cluster(place.context, place.namespace)
    except TrialplaneError as error:
        cure = "choose a cluster with --context, or check this machine alone: `platform doctor --local`"
        yield Line(LAPTOP, findings.failed("kubeconfig", str(error), cure))
        return
    yield Line(LAPTOP, findings.passed("kubeconfig", cluster.place))
    site: Site | None = None
    for finding in doctor_cluster.reach(cluster):
        yield Line(CLUSTER, finding)
        if finding.verdict is Verdict.FAIL and finding.check == doctor_verdicts.SERVER:
            return
    try:
        found = cluster.read(kinds.CONFIG_MAP, names.SITE)
        site = None if found is None else Site.read(found["data"][names.SITE_KEY], cluster.namespace)
        yield Line(CLUSTER, doctor_verdicts.chart(site, cluster.namespace, cluster.context))
    except TrialplaneError as error:
        yield Line(CLUSTER, findings.failed(doctor_verdicts.CHART, str(error), "see the message"))
    if site is None:
        return
    plan = doctor_pod.plan(job)
    yield from _lines(CLUSTER, doctor_cluster.look(cluster, site, plan))
    obstacle = doctor_cluster.may_make_pods(cluster)
    if obstacle is not None:
        yield Line(POD, obstacle)
        return
    yield from _lines(POD, doctor_pod.look(cluster, site, plan, patience))


def default_job(gpus: int) -> Job:
    """A job as simple as can be, whose trials have so many GPUs."""
    return jobs.read(
        {
            "name": "doctor",
            "kind": "hpo",
            "objectives": [{"metric": "loss", "direction": "minimize"}],
            "resources": {"gpus": gpus},
        }
    )


def exit_code(lines: Iterable[Line]) -> int:
    """What the command ends with."""
    return EXIT_PLATFORM if any(line.finding.verdict is Verdict.FAIL for line in lines) else EXIT_OK


def _lines(area: str, found: Iterable[Finding]) -> Iterator[Line]:
    for finding in found:
        yield Line(area, finding)
