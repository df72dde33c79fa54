"""A namespace of a Kubernetes cluster as a target: a run is a RayJob while it lives, and a study in the ledger for good.

A run has two sources: the API server has the RayJob and its pods, the gateway has the ledger, where `apply` records a run
before it creates a RayJob. `standing` combines both into one status.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Iterator
from typing import Any

from trialplane.client import changes as changing
from trialplane.client import kinds, phases, preflight, remote_log, results, standing, target
from trialplane.client.cluster import Cluster
from trialplane.client.gateway import Gateway
from trialplane.client.objects import Objects, Submission
from trialplane.client.standing import View
from trialplane.client.target import Log, Observed, Place
from trialplane.errors import InputError, Issue, RunDamaged, RunExists, TargetError
from trialplane.plan import saving
from trialplane.plan.pack import Pack
from trialplane.plan.plan import Plan, Provenance
from trialplane.spec import jobs
from trialplane.spec.jobs import Job
from trialplane.wire import cluster as names
from trialplane.wire import rows
from trialplane.wire.attempts import Attempt
from trialplane.wire.records import Desired, RunStatus, TrialRow
from trialplane.wire.states import RunState


class KubernetesTarget:
    """Runs in one namespace of a cluster; see `target.Target` for the contract of each method.

    Nothing is read, not even the kubeconfig, before it is needed.

    Args:
        context: of the kubeconfig, its current one when None.
        namespace: the context's when None.
    """

    remote = True
    poll = 1.0

    def __init__(self, context: str | None = None, namespace: str | None = None) -> None:
        self._context = context
        self._namespace = namespace

    @functools.cached_property
    def cluster(self) -> Cluster:
        """The cluster's namespace; errors as of `Cluster`."""
        return Cluster(self._context, self._namespace)

    @functools.cached_property
    def objects(self) -> Objects:
        """The objects of runs there."""
        return Objects(self.cluster)

    @property
    def place(self) -> Place:
        """See `Target`; resolved, as the kubeconfig may change while a run stays where it is."""
        return Place(context=self.cluster.context, namespace=self.cluster.namespace)

    @functools.cached_property
    def gateway(self) -> Gateway:
        """The chart's gateway there."""
        return Gateway(self.cluster, self.objects.site)

    def where(self, run: str = "") -> str:
        """See `Target`."""
        return self.cluster.place

    def check(self, job: Job | None) -> tuple[list[Issue], list[str]]:
        """See `Target`."""
        site = self.objects.site
        if job is None:
            return [], []
        plan = Plan("check", job, Pack(b"", "", ()), Provenance("", "", ""))
        ray_job = next(thing for thing in self.objects.manifests(plan, 0.0) if thing["kind"] == "RayJob")
        # What an ordinary user of a namespace may not read is not checked; the run's status shows later why it waits.
        read = self._allowed
        named = job.cluster.priority_class or site.priority_class
        queue = job.cluster.queue or site.queue
        seen = preflight.Seen(
            nodes=read(kinds.NODE),
            quotas=read(kinds.QUOTA),
            priority_classes=_names(read(kinds.PRIORITY_CLASS)) if named else None,
            queues=_names(read(kinds.LOCAL_QUEUE)) if queue else None,
        )
        issues, warnings = preflight.check(job, ray_job, seen)
        issues += [*preflight.data(job, site.data.claim), *preflight.shards(job, bool(site.checkpoints.claim))]
        return issues, [*warnings, *saving.warnings(job, site)]

    def missing_checkpoint(self, run: str, job: Job) -> str:
        """See `Target`."""
        site, old = self.objects.site, self.job(run)
        there, here = (saving.Saving.of(one, site) for one in (old, job))
        if there is None or here is None:
            return saving.none_of(run)
        if there.place != here.place:
            return saving.elsewhere(run, there.place, here.place, old.checkpoints.url)
        if not here.is_volume:
            return ""
        if not here.claim:
            return f"the checkpoints of {run} were lost with its pods, as the chart has no volume for them"
        try:
            return saving.none_of(run) if self.gateway.is_saved(run) is False else ""
        except TargetError:
            return ""

    def describe(self, plan: Plan) -> dict[str, Any]:
        """See `Target`."""
        things = self.objects.manifests(plan, time.time())
        return {"apiVersion": "v1", "kind": "List", "items": things}

    def runs(self) -> list[str]:
        """See `Target`."""
        found = {one["metadata"]["name"]: phases.created(one) for one in self.objects.ray_jobs()}
        try:
            # The ledger's time is when it was submitted, a RayJob's when it was last resumed.
            found.update({one["run"]: float(one["submitted"] or 0.0) for one in self.gateway.runs()})
        except TargetError:
            if not found:
                raise
        return sorted(found, key=lambda name: (found[name], name), reverse=True)

    def observe(self, run: str) -> Observed | None:
        """See `Target`."""
        view = self._view(run)
        return None if view is None else Observed(standing.status(self.objects, view), view.is_active, view.desired)

    def is_active(self, run: str) -> bool:
        """See `Target`."""
        return self._known(run).is_active

    def job(self, run: str) -> Job:
        """See `Target`."""
        return self._submission(run).job

    def differences(self, plan: Plan) -> list[str] | None:
        """See `Target`."""
        view = self._known(plan.run)
        if not view.has_begun:
            if view.ray_job is None and view.status and view.status.state is RunState.PENDING:
                return None
            if view.ray_job is not None and view.is_active and self.objects.submission(plan.run) is None:
                return None
        return self._differences(plan)

    def _differences(self, plan: Plan) -> list[str]:
        found = self._submission(plan.run)
        return changing.differences(found.job, str(found.facts.get("code_hash", "")), changing.contents(found.code), plan)

    def rows(self, run: str, after: int | None = None) -> tuple[int, list[TrialRow]]:
        """See `Target`."""
        if after is not None:
            return self.gateway.ends(run, after) or (after, [])
        found = self.gateway.attempts(run)
        if found is None:
            self._known(run)
        return 0, found or []

    def attempts(self, run: str, after: int) -> tuple[list[Attempt], bool]:
        """See `Target`."""
        found = self.gateway.whole(run, after)
        if found is None:
            self._known(run)
            raise TargetError(f"the gateway in {self.cluster.place} is too old for that; `helm upgrade` updates it")
        return found

    def log(self, run: str, which: Log, follow: bool) -> Iterator[str]:
        """See `Target`."""
        self._known(run)
        if which.submitter:
            return remote_log.of_submitter(self.objects, run, follow)
        found = remote_log.kept(self.gateway, run, which)
        if follow and (not isinstance(found, str) or self.is_active(run)):
            return remote_log.followed(self.gateway, run, which, lambda: self.is_active(run))
        if not isinstance(found, str):
            return found
        if which.trial is not None:
            what = self.job(run).noun
            shows = f"`platform results {run}` shows the {what}s"
            raise InputError(f"there is no log of {what} {which.trial} of {run} (yet): {found}; {shows}")
        # No volume keeps it, or there never was one: use the submitter's copy, or else the head pod's output.
        for role in (names.SUBMITTER, names.CONTROLLER):
            lines = remote_log.of_pod(self.objects, run, role, follow)
            if lines is not None:
                return lines
        reason = standing.status(self.objects, self._known(run)).reason
        raise InputError(f"the controller of {run} has no log yet: {reason or found}")

    def apply(self, plan: Plan) -> None:
        """See `Target`; if the objects cannot be created, the ledger's record is removed too."""
        submitted = time.time()
        is_new = self.gateway.record(plan, submitted, new=True)
        if not is_new and (lines := self._differences(plan)):  # it was interrupted, or a concurrent one was quicker
            raise RunExists(changing.refusal(plan.run, lines))
        try:
            self.objects.apply(plan, submitted)
        except BaseException:
            if is_new:
                with contextlib.suppress(TargetError):  # the original error matters
                    self.gateway.forget(plan.run)
            raise

    def restart(self, run: str, job: Job, status: RunStatus) -> None:
        """See `Target`."""
        found = self._submission(run)
        self.objects.remove(run)
        plan, submitted = _plan(run, job, found)
        self.gateway.record(plan, submitted, new=False)
        # Reset the desired state, so that the new controller neither stops nor overrides the job's width.
        self.gateway.desire(run, state=RunState.RUNNING, parallel=None)
        self.objects.apply(plan, submitted)

    def desire(self, run: str, state: RunState | None = None, *, parallel: int | None = None, now: bool = False) -> None:
        """See `Target`."""
        view = self._known(run)
        if parallel is not None:
            self._scalable(view, run, parallel)
            if not view.has_begun or not self.gateway.desire(run, parallel=parallel):
                raise InputError(
                    f"the controller of {run} has not started yet; `platform status {run}` shows why; try again later"
                )
        if state is not None:
            known = self.gateway.desire(run, state=state) or self._recorded(run, state)
            if now or not known or not view.alive:  # there is no controller that could end cleanly
                self.objects.remove(run)

    def fit(self, run: str, parallel: int, *, now: bool = False) -> bool:
        """See `Target`."""
        view = self._known(run)
        ray_job, job = self._scalable(view, run, parallel)
        seen = view.status is not None and view.alive and view.status.parallel == parallel
        role = job.widened(parallel).roles()[0]
        pods = self.objects.trial_pods(ray_job["metadata"]["name"], role.name)
        if len(pods) > role.pods and not seen and not now:
            return False  # no pod may be removed before the controller has reported which it keeps
        keep = None if now or view.status is None else frozenset(view.status.nodes)
        return self.objects.scale(ray_job, job, parallel, keep)

    def _scalable(self, view: View, run: str, parallel: int) -> tuple[dict[str, Any], Job]:
        """The RayJob and the job of a run that can be scaled."""
        job = self.job(run)
        if view.ray_job is None:
            raise InputError(f"the RayJob of {run} is gone, with its pods; `platform status {run}` shows its state")
        groups = [group["groupName"] for group in view.ray_job["spec"]["rayClusterSpec"]["workerGroupSpecs"]]
        if names.group(job.roles()[0].name) not in groups:  # its workers and its learner share one group
            cure = f"`platform pause {run}`, then `platform resume {run} {job.width_option} {parallel}`"
            raise InputError(f"{run} was started by an earlier version of trialplane, whose pods cannot be scaled; {cure}")
        return view.ray_job, job

    def remove(self, run: str, *, forget: bool) -> None:
        """See `Target`."""
        if forget and self._known(run).is_active:
            raise target.active(run)
        self.objects.remove(run)
        if forget:
            self.gateway.forget(run)

    def _view(self, run: str) -> View | None:
        """What both sources have of a run; None when neither knows it."""
        ray_job = self.objects.ray_job(run)
        try:
            found = self.gateway.status(run)
        except TargetError as error:
            if ray_job is None:
                if isinstance(error, RunDamaged):  # which is more specific
                    raise
                more = f"Without it only active runs are known, and {run} is not one of them"
                raise TargetError(f"{error}\n{more}") from error
            return View(ray_job, None, False, str(error), Desired())
        if found is None:
            return None if ray_job is None else View(ray_job, None, False, "", Desired())
        status, alive, desired = found
        killed = not alive and status.started is not None and status.ended is None
        return View(ray_job, self._recounted(status) if killed else status, alive, "", desired)

    def _recounted(self, status: RunStatus) -> RunStatus:
        """The status of a controller that was killed, with the counts of the ledger."""
        found, job = self.gateway.attempts(status.run), self.gateway.job(status.run)
        if found is None or job is None:
            return status
        best = rows.best(jobs.read(job), rows.newest(found))
        return dataclasses.replace(status, **results.counts(found), best=best)

    def _known(self, run: str) -> View:
        view = self._view(run)
        if view is None:
            raise target.unknown(self, run)
        return view

    def _recorded(self, run: str, state: RunState) -> bool:
        """Records a run that `apply` did not create, with this desired state; False when its objects are incomplete."""
        found = self.objects.submission(run)
        if found is None:
            return False
        self.gateway.record(*_plan(run, found.job, found), new=False)
        return self.gateway.desire(run, state=state)

    def _submission(self, run: str) -> Submission:
        """What a run was submitted with, from its objects, else from the ledger."""
        found = self.objects.submission(run)
        if found is not None:
            return found
        job, facts, code = self.gateway.job(run), self.gateway.submission(run), self.gateway.code(run)
        if job is None or facts is None or code is None:
            self._known(run)
            raise TargetError(f"the ledger has no submission of {run}; submit it again under another name")
        return Submission(jobs.read(job), facts, code)

    def _allowed(self, kind: kinds.Kind) -> list[dict[str, Any]] | None:
        try:
            return self.cluster.list(kind)
        except TargetError:
            return None


def _plan(run: str, job: Job, found: Submission) -> tuple[Plan, float]:
    """The plan that a run was submitted with, with its current job, and the time of submission."""
    known = {field.name for field in dataclasses.fields(Provenance)}
    origin = Provenance(**{key: value for key, value in found.facts.items() if key in known})
    pack = Pack(found.code, str(found.facts.get("code_hash", "")), tuple(changing.contents(found.code)))
    return Plan(run, job, pack, origin), float(found.facts.get("submitted") or time.time())


def _names(things: list[dict[str, Any]] | None) -> frozenset[str] | None:
    return None if things is None else preflight.names(things)
