"""A namespace of a Kubernetes cluster as a target: a run is a RayJob while it lives, and a study in the ledger for good.

Two witnesses are asked about a run: the API server knows the RayJob and its pods, the gateway knows the ledger, where
`submit` writes a run down before it makes a RayJob. What each may not know, and how the two make one status, is `standing`.

Over 400 lines: the methods of a target, each short, over the same two witnesses.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trialplane import errors
from trialplane.client import changes as changing
from trialplane.client import ending, kinds, phases, preflight, remote_log, results, standing
from trialplane.client.cluster import Cluster
from trialplane.client.gateway import Gateway
from trialplane.client.objects import Objects
from trialplane.client.standing import View
from trialplane.client.target import Place, Submitted
from trialplane.errors import Complaint, InputError, RunDamaged, RunExists, RunNotFound, TargetError
from trialplane.plan import saving
from trialplane.plan.pack import Pack
from trialplane.plan.plan import Plan, Provenance
from trialplane.spec import jobs
from trialplane.spec.jobs import Job
from trialplane.wire import cluster as names
from trialplane.wire import rows
from trialplane.wire.attempts import Attempt
from trialplane.wire.records import RunStatus, TrialRow
from trialplane.wire.states import RunState

_EXIT_CODES = {
    RunState.SUCCEEDED: errors.EXIT_OK,
    RunState.FAILED: errors.EXIT_RUN_FAILED,
    RunState.CANCELLED: errors.EXIT_CANCELLED,
    RunState.PAUSED: errors.EXIT_INTERRUPTED,
}


class KubernetesTarget:
    """Runs in one namespace of a cluster; see `target.Target` for what each method promises.

    Nothing is read, not even the kubeconfig, before it is needed.

    Args:
        context: of the kubeconfig, its current one when None.
        namespace: the context's when None.
    """

    name = "kubernetes"
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
        """See `Target`: what the kubeconfig says may change, a run stays where it is."""
        return Place(context=self.cluster.context, namespace=self.cluster.namespace)

    @property
    def flags(self) -> str:
        """See `Target`."""
        return f"--context {self.cluster.context} --namespace {self.cluster.namespace}"

    @functools.cached_property
    def gateway(self) -> Gateway:
        """The chart's gateway there."""
        return Gateway(self.cluster, self.objects.site)

    def check(self, job: Job | None) -> tuple[list[Complaint], list[str]]:
        """See `Target`."""
        site = self.objects.site
        if job is None:
            return [], []
        plan = Plan("check", job, Pack(b"", "", ()), Provenance("", "", ""))
        ray_job = next(thing for thing in self.objects.manifests(plan, 0.0) if thing["kind"] == "RayJob")
        # What a plain user of a namespace may not read is not looked at; the run says later why it waits.
        read = self._allowed
        named = job.cluster.priority_class or site.priority_class
        queue = job.cluster.queue or site.queue
        seen = preflight.Seen(
            nodes=read(kinds.NODE),
            quotas=read(kinds.QUOTA),
            priority_classes=_names(read(kinds.PRIORITY_CLASS)) if named else None,
            queues=_names(read(kinds.LOCAL_QUEUE)) if queue else None,
        )
        complaints, warnings = preflight.check(job, ray_job, seen)
        complaints += [*preflight.data(job, site.data.claim), *preflight.shards(job, bool(site.checkpoints.claim))]
        return complaints, [*warnings, *saving.warnings(job, site)]

    def describe(self, plan: Plan) -> dict[str, Any]:
        """See `Target`."""
        things = self.objects.manifests(plan, time.time())
        return {"apiVersion": "v1", "kind": "List", "items": things}

    def submit(self, plan: Plan) -> Submitted:
        """See `Target`."""
        became = self._join(plan)
        if became in (Submitted.NEW, Submitted.REPLACED):
            self._start(plan, time.time())
        return became

    def _start(self, plan: Plan, submitted: float) -> None:
        """Writes a new run down, and makes its objects; what cannot be made is not written down either."""
        is_new = self.gateway.record(plan, submitted, new=True)
        if not is_new:
            self._check_same(plan)  # it was interrupted, or another one of this moment was quicker
        try:
            self.objects.apply(plan, submitted)
        except BaseException:
            if is_new:
                with contextlib.suppress(TargetError):  # what stopped it is the news
                    self.gateway.forget(plan.run)
            raise

    def _join(self, plan: Plan) -> Submitted:
        """Goes on with the run of that name, or says that one is to be made, and removes what ended without any trial."""
        name = plan.run
        view = self._view(name)
        if view.away:
            raise TargetError(f"{view.away}\nWhether there is a run {name} already is not known; nothing was started")
        if view.ray_job is None and view.status is None:
            return Submitted.NEW
        if view.ray_job is None and not view.has_begun and view.status and view.status.state is RunState.PENDING:
            return Submitted.NEW  # it is being submitted, or that was interrupted: as below
        if not view.is_active and not (view.status and self.gateway.attempts(name)):
            self.delete(name)
            return Submitted.REPLACED
        if view.ray_job is not None and not view.has_begun and self.objects.submission(name) is None:
            return Submitted.NEW  # who submitted it was interrupted: the same submission completes it, another is refused
        self._check_same(plan)
        if view.is_active:
            return Submitted.RUNNING
        state = standing.status(self.objects, view).state
        if state is RunState.SUCCEEDED:
            return Submitted.FINISHED
        if state in (RunState.FAILED, RunState.CANCELLED):
            word = "failed" if state is RunState.FAILED else "was cancelled"
            raise RunExists(f"the run {name} {word}; `platform resume {name}` goes on with it, {changing.other_name(name)}")
        self.resume(name, {}, ())
        return Submitted.RESUMED

    def _check_same(self, plan: Plan) -> None:
        """Raises RunExists when the run of that name was submitted with something else."""
        job, facts, code = self._submission(plan.run)
        lines = changing.differences(job, str(facts.get("code_hash", "")), changing.contents(code), plan)
        if lines:
            raise RunExists(changing.refusal(plan.run, lines))

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

    def job(self, run: str) -> Job:
        """See `Target`."""
        return self._submission(run)[0]

    def status(self, run: str) -> RunStatus:
        """See `Target`."""
        return standing.status(self.objects, self._known(run))

    def is_active(self, run: str) -> bool:
        """See `Target`."""
        return self._known(run).is_active

    def look(self, run: str) -> tuple[RunStatus, bool]:
        """See `Target`."""
        view = self._known(run)
        return standing.status(self.objects, view), view.is_active

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
            return f"the checkpoints of {run} went with its pods, as the chart has no place for any"
        try:
            return saving.none_of(run) if self.gateway.is_saved(run) is False else ""
        except TargetError:
            return ""

    def attempts(self, run: str) -> list[TrialRow]:
        """See `Target`."""
        found = self.gateway.attempts(run)
        if found is None:
            self._known(run)
        return found or []

    def ends(self, run: str, after: int) -> tuple[int, list[TrialRow]]:
        """See `Target`."""
        return self.gateway.ends(run, after) or (after, [])

    def whole(self, run: str, after: int) -> tuple[list[Attempt], bool]:
        """See `Target`."""
        found = self.gateway.whole(run, after)
        if found is None:
            self._known(run)
            raise TargetError(
                f"the gateway in {self.cluster.place} is too old for that; `helm upgrade` brings the one of now"
            )
        return found

    def log(
        self, run: str, trial: int | None, attempt: int | None, follow: bool, worker: int | None = None
    ) -> Iterator[str]:
        """See `Target`."""
        self._known(run)
        found = remote_log.kept(self.gateway, run, trial, attempt, worker)
        if follow and (not isinstance(found, str) or self.is_active(run)):
            return remote_log.followed(self.gateway, run, trial, attempt, lambda: self.is_active(run), worker=worker)
        if isinstance(found, str) and trial is None:  # no volume keeps it, or it never came to write one
            found = self._said_in_pods(run, follow) or found
        if isinstance(found, str):
            raise self._no_log(run, trial, found)
        return found

    def _said_in_pods(self, run: str, follow: bool) -> Iterator[str] | None:
        """What Ray's submitter passed on of the controller, or else what the head pod itself said."""
        for role in (names.SUBMITTER, names.CONTROLLER):
            found = remote_log.of_pod(self.objects, run, role, follow)
            if found is not None:
                return found
        return None

    def submitter_log(self, run: str, follow: bool) -> Iterator[str]:
        """See `Target`."""
        self._known(run)
        return remote_log.of_submitter(self.objects, run, follow)

    def log_place(self, run: str) -> str:
        """See `Target`."""
        return self.cluster.place

    def stop(self, run: str, *, now: bool = False) -> None:
        """See `Target`."""
        view = self._known(run)
        if not view.is_active:
            return
        known = self.gateway.wish(run, state=RunState.PAUSED) or self._written_down(run, RunState.PAUSED)
        if now or not known or not view.alive:  # nobody is there who could end in order
            self.objects.remove(run, wait=False)

    def cancel(self, run: str, *, now: bool = False) -> None:
        """See `Target`."""
        view = self._known(run)
        status = standing.status(self.objects, view)
        if status.state.is_ended and not view.is_active:
            raise InputError(f"the run {run} has ended already ({status.state}); nothing was changed")
        known = self.gateway.wish(run, state=RunState.CANCELLED) or self._written_down(run, RunState.CANCELLED)
        if now or not known or not view.alive:
            self.objects.remove(run)

    def release(self, run: str) -> None:
        """See `Target`."""
        self.objects.remove(run)

    def scale(self, run: str, parallel: int, *, now: bool = False) -> bool:
        """See `Target`."""
        view, ray_job, job = self._scalable(run, parallel)
        if not view.has_begun or not self.gateway.wish(run, parallel=parallel):
            raise InputError(
                f"the controller of {run} has not started yet; `platform status {run}` shows why, try again then"
            )
        return self._fit(view, ray_job, job, parallel, now)

    def scaled(self, run: str, parallel: int, *, now: bool = False) -> bool:
        """See `Target`."""
        view, ray_job, job = self._scalable(run, parallel)
        newest = self.gateway.wished(run).parallel
        if newest not in (None, parallel):
            raise InputError(f"{run} was scaled to {newest} in the meantime, so that it does not come to {parallel}")
        return self._fit(view, ray_job, job, parallel, now)

    def _fit(self, view: View, ray_job: Mapping[str, Any], job: Job, parallel: int, now: bool) -> bool:
        """Has as many pods as a controller that was seen so needs; whether that is done."""
        seen = view.status is not None and view.alive and view.status.parallel == parallel
        role = job.widened(parallel).roles()[0]
        pods = self.objects.trial_pods(ray_job["metadata"]["name"], role.name)
        if len(pods) > role.pods and not seen and not now:
            return False  # until the controller has said which pods it keeps, none may go
        keep = None if now or view.status is None else frozenset(view.status.nodes)
        return self.objects.scale(ray_job, job, parallel, keep)

    def _scalable(self, run: str, parallel: int) -> tuple[View, dict[str, Any], Job]:
        """A run that somebody works on, its RayJob and its job."""
        view, job = self._known(run), self.job(run)
        if not view.is_active or view.ray_job is None:
            raise InputError(
                f"nobody works on {run}; `platform resume {run} {job.width_option} {parallel}` goes on with so many"
            )
        groups = [group["groupName"] for group in view.ray_job["spec"]["rayClusterSpec"]["workerGroupSpecs"]]
        if names.group(job.roles()[0].name) not in groups:  # its workers and its learner are one group
            cure = f"`platform pause {run}`, then `platform resume {run} {job.width_option} {parallel}`"
            raise InputError(f"{run} was started by an earlier version of trialplane, whose pods cannot be scaled; {cure}")
        return view, view.ray_job, job

    def delete(self, run: str) -> None:
        """See `Target`."""
        if self._known(run).is_active:
            raise InputError(f"the run {run} is active; `platform cancel {run}` ends it first")
        self.objects.remove(run)
        self.gateway.forget(run)

    def resume(self, run: str, changes: Mapping[str, Any], sets: Sequence[str]) -> None:
        """See `Target`."""
        view = self._known(run)
        if view.is_active:
            raise InputError(f"the run {run} is running; `platform status {run}` shows it, `platform cancel {run}` ends it")
        old, facts, code = self._submission(run)
        started = len({row.trial for row in self.attempts(run)})
        width = self.gateway.wished(run).parallel or (view.status.parallel if view.status else 0)
        if width:  # as it was scaled
            old = old.widened(width)
        job = changing.changed(old, changes, sets, started)
        found, _ = self.check(job)
        if found:
            raise errors.SpecError(found)
        status = standing.status(self.objects, view)
        why = "" if status.unrecorded else ending.nothing_to_do(status, old, job)
        if why:
            raise InputError(why)
        self.objects.remove(run)
        plan, submitted = _plan(run, job, facts, code), float(facts.get("submitted") or time.time())
        self.gateway.record(plan, submitted, new=False)
        # Of the wish to stop nothing may be left when the new controller asks, and how wide it goes is the job's to say now.
        self.gateway.wish(run, state=RunState.RUNNING, parallel=None)
        self.objects.apply(plan, submitted)

    def exit_code(self, run: str) -> int:
        """See `Target`."""
        return _EXIT_CODES.get(self.status(run).state, errors.EXIT_PLATFORM)

    def _view(self, run: str) -> View:
        ray_job = self.objects.ray_job(run)
        try:
            found = self.gateway.status(run)
        except TargetError as error:
            if ray_job is None and isinstance(error, RunDamaged):  # which says more than that it does not live
                raise
            return View(ray_job, None, False, str(error))
        status, alive = found or (None, False)
        if status is not None and not alive and status.started is not None and status.ended is None:
            status = self._recounted(status)
        return View(ray_job, status, alive, "")

    def _recounted(self, status: RunStatus) -> RunStatus:
        """The status of a controller that was killed, with what the ledger counts."""
        found, job = self.gateway.attempts(status.run), self.gateway.job(status.run)
        if found is None or job is None:
            return status
        best = rows.best(jobs.read(job), rows.newest(found))
        return dataclasses.replace(status, **results.counts(found), best=best)

    def _known(self, run: str) -> View:
        view = self._view(run)
        if view.ray_job is not None or view.status is not None:
            return view
        if view.away:
            raise TargetError(f"{view.away}\nWithout it only runs that live are known, and {run} is none of them")
        known = self.runs()
        nearest = errors.nearest(run, known) or "`platform list` shows all"
        hint = nearest if known else "there are none yet; `platform submit hpo NAME` starts one"
        raise RunNotFound(f"there is no run {run!r} in {self.cluster.place}; {hint}")

    def _written_down(self, run: str, state: RunState) -> bool:
        """Records a run that `submit` did not make, with this wish, before its objects go; False when they are not whole."""
        found = self.objects.submission(run)
        if found is None:
            return False
        submitted = float(found.facts.get("submitted") or time.time())
        self.gateway.record(_plan(run, found.job, found.facts, found.code), submitted, new=False)
        return self.gateway.wish(run, state=state)

    def _submission(self, run: str) -> tuple[Job, Mapping[str, Any], bytes]:
        """The job, the facts and the code of a run: of its living objects, else of the ledger."""
        found = self.objects.submission(run)
        if found is not None:
            return found.job, found.facts, found.code
        job, facts, code = self.gateway.job(run), self.gateway.submission(run), self.gateway.code(run)
        if job is None or facts is None or code is None:
            self._known(run)
            raise TargetError(f"the ledger does not know what {run} was submitted with; submit it again under another name")
        return jobs.read(job), facts, code

    def _allowed(self, kind: kinds.Kind) -> list[dict[str, Any]] | None:
        try:
            return self.cluster.list(kind)
        except TargetError:
            return None

    def _no_log(self, run: str, trial: int | None, why: str) -> InputError:
        if trial is not None:
            what = self.job(run).noun
            return InputError(
                f"there is no log of {what} {trial} of {run} (yet): {why}; `platform results {run}` shows the {what}s"
            )
        status = self.status(run)
        return InputError(f"the controller of {run} has said nothing yet: {status.reason or why}")


def _plan(run: str, job: Job, facts: Mapping[str, Any], code: bytes) -> Plan:
    """The plan that a run was submitted with, with its job of now."""
    known = {field.name for field in dataclasses.fields(Provenance)}
    origin = Provenance(**{key: value for key, value in facts.items() if key in known})
    return Plan(run, job, Pack(code, str(facts.get("code_hash", "")), tuple(changing.contents(code))), origin)


def _names(things: list[dict[str, Any]] | None) -> frozenset[str] | None:
    return None if things is None else preflight.names(things)
