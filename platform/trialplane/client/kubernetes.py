"""A namespace of a Kubernetes cluster as a target: a run is a Run object, and permanently a study in the ledger.

The desired state is written into the Run's spec, which the operator follows. A run has two sources: the API server has the
Run object, and the gateway has the ledger. `sources` combines both into one status.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Iterator, Mapping
from typing import Any

from trialplane.client import remote_log, sources, target
from trialplane.client.gateway import Gateway
from trialplane.client.sources import RunSources
from trialplane.client.target import AttemptsRead, EndedRows, Log, Observation, TargetName
from trialplane.errors import CheckResult, InputError, LedgerLocked, RunDamaged, TargetError
from trialplane.job import kinds as job_kinds
from trialplane.job.kinds import Job
from trialplane.kube import kinds, metadata, preflight, waiting
from trialplane.kube.cluster import Cluster
from trialplane.kube.objects import Objects, Run, Submission
from trialplane.ledger.attempts import NO_LIMIT
from trialplane.plan import changes as changing
from trialplane.plan import raycluster, saving
from trialplane.plan import run as runs
from trialplane.plan.pack import Pack
from trialplane.plan.plan import Plan, Provenance
from trialplane.wire import cluster as names
from trialplane.wire.records import Change, Desired, ReportRow, RunStatus, TrialRow
from trialplane.wire.states import RunState

REMOVAL = 120.0  # seconds for the operator to remove the files of a deleted run


class KubernetesTarget:
    """A namespace of a cluster; see `target.Target` for the contract of each method.

    Nothing is read before it is needed, not even the kubeconfig.

    Args:
        context: Context of the kubeconfig. Default: the current one.
        namespace: Namespace. Default: the context's.
    """

    remote = True
    poll = 1.0

    def __init__(self, context: str | None = None, namespace: str | None = None) -> None:
        self._context = context
        self._namespace = namespace

    @functools.cached_property
    def cluster(self) -> Cluster:
        """The namespace of the cluster.

        Raises:
            TrialplaneError: The kubeconfig cannot be used; see `Cluster`.
        """
        return Cluster(self._context, self._namespace)

    @functools.cached_property
    def objects(self) -> Objects:
        """The objects of runs in the namespace."""
        return Objects(self.cluster)

    @property
    def name(self) -> TargetName:
        """Name of the target.

        Context and namespace are set even if they are defaults, because the kubeconfig may change.
        """
        return TargetName(context=self.cluster.context, namespace=self.cluster.namespace)

    @functools.cached_property
    def gateway(self) -> Gateway:
        """The gateway of the chart."""
        return Gateway(self.cluster, self.objects.site)

    def location(self, run: str = "") -> str:
        """Return the location of runs, or of a run's logs, for messages."""
        return self.cluster.location

    def check(self, job: Job | None) -> CheckResult:
        """Return issues that prevent a run here, and warnings. Start and write nothing."""
        site = self.objects.site
        if job is None:
            return CheckResult(issues=[], warnings=[])
        ray_cluster = raycluster.raycluster(Plan.without_code("check", job), site)  # whose pods need the same resources
        # Objects that this user may not list are not checked. The status of a waiting run shows the reason later.
        has_queue = job.cluster.queue or site.queue
        queues = self.cluster.list_if_allowed(kinds.LOCAL_QUEUE) if has_queue else None
        queue_names = None if queues is None else frozenset(queue["metadata"]["name"] for queue in queues)
        snapshot = preflight.ClusterSnapshot(nodes=self.cluster.list_if_allowed(kinds.NODE), queues=queue_names)
        issues, warnings = preflight.check(job, ray_cluster, snapshot)
        issues += [*preflight.chart_issues(job, site), *preflight.notify_issues(job)]
        return CheckResult(issues, [*warnings, *saving.warnings(job, site.checkpoints)])

    def missing_checkpoint(self, run: str, job: Job) -> str:
        """Return the reason why a training of `job` would find no checkpoint of the training `run`."""
        defaults = self.objects.site.checkpoints
        if obstacle := saving.obstacle(run, self.job(run), job, defaults):
            return obstacle
        new_saving = saving.Saving.of(job, defaults)
        if new_saving is None or not new_saving.is_volume:  # the content of an object store is not checked
            return ""
        if not new_saving.claim:
            return f"the checkpoints of {run} were lost with its pods, because the chart has no volume for them"
        if job.kind == "hpo":
            return ""  # the gateway checks only the first trial
        try:
            has_checkpoint = self.gateway.has_checkpoint(run)
        except TargetError:
            return ""
        return saving.no_checkpoint_message(run) if has_checkpoint is False else ""  # None: unknown

    def checkpoint_obstacle(self, run: str, old_job: Job, job: Job) -> str:
        """Return the reason why trials of a new run cannot read checkpoints of an earlier one; "" if they can."""
        defaults = self.objects.site.checkpoints
        new_saving = saving.Saving.of(job, defaults)
        if new_saving is not None and new_saving.is_volume:
            # A pod mounts the folder of its own run, and of the run that it resumes, but not those of other earlier runs.
            return "a pod sees only its own run on a volume; with checkpoints.url, runs keep them in an object store"
        return saving.obstacle(run, old_job, job, defaults)

    def checkpoint_users(self, run: str) -> list[str]:
        """Return the active runs whose trials start from checkpoints that are deleted with a run."""
        return []

    def describe(self, plan: Plan) -> dict[str, Any]:
        """Return the objects that `apply` would write and start, as plain values to print."""
        manifests = runs.manifests(plan, self.cluster.namespace, submitted=time.time(), owner=self.objects.user)
        return {"apiVersion": "v1", "kind": "List", "items": manifests}

    def runs(self) -> list[str]:
        """Return the names of all runs, newest first."""
        submitted_by_name = {item.name: item.submitted for item in self.objects.runs()}
        try:
            submitted_by_name.update({item["run"]: float(item["submitted"] or 0.0) for item in self.gateway.runs()})
        except TargetError:
            if not submitted_by_name:
                raise
        return sorted(submitted_by_name, key=lambda name: (submitted_by_name[name], name), reverse=True)

    def observe(self, run: str) -> Observation | None:
        """Return the state of a run. None if there is no run with this name."""
        run_sources = self._sources(run)
        if run_sources is None:
            return None
        return Observation(self._status(run_sources), run_sources.is_active, run_sources.desired)

    def is_active(self, run: str) -> bool:
        """Return whether a controller is running or starting. Faster than `observe`, and works with a damaged status."""
        return self._known_sources(run).is_active

    def job(self, run: str) -> Job:
        """Return the job of a run, as submitted or changed since."""
        return self._submission(run).job

    def submission(self, run: str) -> Mapping[str, Any]:
        """Return the facts of a run's submission."""
        return self._submission(run).facts

    def code(self, run: str) -> bytes:
        """Return the packed code of a run."""
        return self._submission(run).code

    def differences(self, plan: Plan) -> list[str] | None:
        """Return the differences between a plan and the run with its name."""
        existing = self._known_sources(plan.run)
        is_starting = existing.is_active and not existing.has_begun
        if existing.run is not None and is_starting and self.objects.submission(existing.run) is None:
            return None  # a part is missing, such as a ConfigMap with its code
        submission = self._submission(plan.run)
        return changing.differences(submission.job, submission.facts, changing.contents(submission.code), plan)

    def rows(self, run: str) -> list[TrialRow]:
        """Return all attempts, in the order of their starts."""
        ledger_rows = self.gateway.attempts(run)
        if ledger_rows is None:
            self._known_sources(run)  # raises if the run is unknown
        return ledger_rows or []

    def ended_rows(self, run: str, after: int) -> EndedRows:
        """Return the attempts that ended after the position `after` (0 at first)."""
        return self.gateway.ends(run, after) or EndedRows(position=after, rows=[])  # None: the run is not in the ledger yet

    def attempts(self, run: str, after: int) -> AttemptsRead:
        """Return running attempts and those that ended after the position `after`, with Optuna's view of them."""
        ledger_attempts = self.gateway.attempts_since(run, after)
        if ledger_attempts is None:
            self._known_sources(run)  # raises if the run is unknown
        return ledger_attempts or AttemptsRead([], is_active=False)

    def curves(self, run: str, after: int = 0, limit: int = NO_LIMIT) -> list[ReportRow]:
        """Return at most `limit` reports of all attempts, also of running ones, in the order of their arrival."""
        reports = self.gateway.curves(run, after, limit)
        if reports is None:
            self._known_sources(run)  # raises if the run is unknown
        return reports or []

    def changes(self, run: str) -> list[Change]:
        """Return the changes of the run's desired state and their users, in order. Empty if they are not recorded."""
        return self.gateway.changes(run)

    def log(self, run: str, which: Log, follow: bool) -> Iterator[str]:
        """Return the lines of a log, with line ends. With `follow`, wait for more until the run or the attempt has ended."""
        self._known_sources(run)  # raises if the run is unknown
        piece_or_reason = self.gateway.log(run, which, offset=0)
        has_log = not isinstance(piece_or_reason, str)
        if has_log or (follow and self.is_active(run)):  # the lines of a log that does not exist yet are awaited
            return remote_log.gateway_lines(self.gateway, run, which, lambda: follow and self.is_active(run))
        if which.trial is not None:
            noun = self.job(run).noun
            shows = f"`platform results {run}` shows the {noun}s"
            yet = " yet" if self.is_active(run) else ""
            raise InputError(f"there is no log of {noun} {which.trial} of {run}{yet}: {piece_or_reason}; {shows}")
        # The gateway has no log of the controller, and the caller waits for none: read the output of its container instead.
        lines = remote_log.controller_lines(self.objects, run, follow)
        if lines is not None:
            return lines
        reason = self._status(self._known_sources(run)).reason
        raise InputError(f"the controller of {run} has no log yet: {reason or piece_or_reason}")

    def apply(self, plan: Plan) -> None:
        """Create a run and start its controller, or do neither. The run outlives the caller."""
        self.objects.apply(plan, time.time())

    def resume(self, run: str, job: Job, status: RunStatus) -> None:
        """Start a controller that continues an inactive run from its ledger, with a changed job.

        If the Run object was removed since, it is created again from the ledger.
        """
        existing = self._known_sources(run)
        plan, submitted = _plan_and_submission_time(run, job, self._submission(run))
        if existing.run is None:
            if existing.alive:
                raise self._removed_error(run)
            self.objects.apply(plan, submitted, resumes=1)
            return
        # `parallel` is removed, because the job already has the width to which the run was scaled.
        fields = {**runs.job_fields(job), "submission": plan.submission(submitted), "parallel": None}
        old_spec = existing.run.parsed.spec  # None if it cannot be read
        resumes = 1 if old_spec is None else old_spec.resumes + 1
        self._change(existing.run, **fields, state="Running", now=None, resumes=resumes)

    def desire(self, run: str, state: RunState | None = None, *, parallel: int | None = None, now: bool = False) -> None:
        """Record the desired state of an active run; omitted fields stay as they are."""
        existing = self._known_sources(run)
        if existing.run is None:  # the Run object was removed after the end of the run
            if existing.alive:
                raise self._removed_error(run)
            if state is not RunState.CANCELLED:
                raise InputError(f"{run} is not active; `platform resume {run}` continues it")
            # The run is cancelled by a new Run object with this state.
            plan, submitted = _plan_and_submission_time(run, self.job(run), self._submission(run))
            self.objects.apply(plan, submitted, state=state, resumes=1)
            return
        fields: dict[str, Any] = {"now": now or None}  # None removes the field
        if parallel is not None:
            fields["parallel"] = parallel
        would_revoke_cancel = state is RunState.PAUSED and existing.desired.state is RunState.CANCELLED
        if state is not None and not would_revoke_cancel:  # a cancel is final
            fields["state"] = runs.state_name(state)
        self._change(existing.run, **fields)

    def fit(self, run: str, parallel: int, *, now: bool = False) -> bool:
        """Allocate resources for the desired number of trials, and return whether this is done.

        The operator creates and removes the pods; this only checks whether it has done so.
        """
        current = self._known_sources(run)
        if current.run is None:
            raise self._removed_error(run)
        role = self.job(run).widened(parallel).roles()[0]  # that of trials or workers, with the new number of pods
        pods = self.objects.trial_pods(run, role.name)
        if not current.run.is_observed:  # the operator has not handled the new number yet
            return False
        if len(pods) <= role.pods:
            return True
        if now:  # the pods that are too many end at once
            return False
        # The operator, or Ray's autoscaler, removes pods without a slot later. So it is enough that the controller has
        # reported the new number, and no longer has slots in too many pods.
        status = current.status if current.alive else None
        if status is None or status.parallel != parallel:
            return False
        pods_with_slots = set(pods) & set(status.nodes)
        return len(pods_with_slots) <= role.pods

    def remove(self, run: str, *, forget: bool) -> None:
        """Wait until the operator has removed the pods of a run; with `forget`, delete the run.

        Raises:
            InputError: `forget` is set, and a controller is running.
            TargetError: The operator has not removed the pods or the files in time.
        """
        existing = self._known_sources(run)
        if not forget:
            is_resumed = existing.desired.state is RunState.RUNNING  # in the meantime, by another user
            if existing.run is not None and not is_resumed:
                self.objects.wait_until_pods_terminate(run)
            return
        if existing.is_active:
            raise target.active_run_error(run)
        self.objects.remove(run)
        self._wait_until_forgotten(run)

    def _wait_until_forgotten(self, run: str) -> None:
        """Remove a run whose Run object is deleted from the ledger, and wait until the operator has removed its files.

        Raises:
            TargetError: It has not within `REMOVAL`.
        """
        deadline = time.monotonic() + REMOVAL
        while True:
            try:
                if not self.gateway.forget(run):  # the ledger does not know the run any more
                    return
                is_locked = False
            except LedgerLocked:
                # A controller may have started just before its pod ended. The database notices a lost controller only after
                # half a minute.
                is_locked = True
            if time.monotonic() > deadline:
                raise TargetError(self._locked_message(run) if is_locked else self._removal_message(run))
            time.sleep(self.poll)

    def _locked_message(self, run: str) -> str:
        """Return the message for a deleted run on which a controller still works."""
        return (
            f"the Run {run} in {self.cluster.location} is deleted, but its controller still works on it; repeat "
            f"`platform delete {run}` once `kubectl --context {self.cluster.context} -n {self.cluster.namespace} "
            f"get pods -l {names.RUN}={run}` shows none"
        )

    def _removal_message(self, run: str) -> str:
        """Return why the files of a deleted run still exist."""
        pods = self.cluster.list(kinds.POD, selector=f"{names.REMOVES}={run}")
        kubectl = f"kubectl --context {self.cluster.context} -n {self.cluster.namespace}"
        text = f"{run} is deleted and no longer runs, but its files in {self.cluster.location} are not removed yet"
        for pod in pods:
            name, phase = pod["metadata"]["name"], metadata.status_of(pod).get("phase")
            if phase == "Failed":
                last_words = f"{waiting.last_message(pod)}; `{kubectl} logs {name}` has the rest"
                return f"{text}: {last_words}. Another pod tries in a minute"
            if phase != "Succeeded":
                return f"{text}: the pod {name} is {phase}; `{kubectl} describe pod {name}` shows why. The removal continues"
        return f"{text}; is the operator running? `{self._operator_command}`"

    def _change(self, run: Run, **fields: Any) -> None:
        """Change a Run's spec, and wait until the operator follows it.

        Raises:
            TargetError: The Run is being removed, was changed concurrently, or the operator does not follow the change. In
                the last case, the change remains in the spec.
        """
        if run.is_deleted:
            raise TargetError(f"the Run {run.name} in {self.cluster.location} is being removed; try again in a moment")
        self.objects.change(run, **fields)
        deadline = time.monotonic() + sources.PATIENCE
        while (current := self.objects.run(run.name)) is not None and not current.is_observed:
            if time.monotonic() > deadline:
                raise TargetError(
                    f"the change is written into the Run {run.name} in {self.cluster.location}, but the operator has not "
                    f"followed it for {sources.PATIENCE:.0f} s: is it running? `{self._operator_command}`"
                )
            time.sleep(self.poll / 5)

    @property
    def _operator_command(self) -> str:
        """Command that shows whether the operator runs."""
        kubectl = f"kubectl --context {self.cluster.context} -n {self.objects.site.home}"
        return f"{kubectl} get pods -l {names.ROLE}={names.OPERATOR}"

    def _removed_error(self, run: str) -> InputError:
        return InputError(
            f"the Run {run} in {self.cluster.location} was removed, and its pods are ending; try again in a moment"
        )

    def _status(self, run_sources: RunSources) -> RunStatus:
        return sources.status(run_sources, self._operator_command)

    def _sources(self, run: str) -> RunSources | None:
        """Return a snapshot of a run from both sources. None if neither has the run.

        Raises:
            TargetError: The gateway does not answer, and there is no Run. Or this is not a team's namespace.
        """
        gateway = self.gateway  # raises outside of a team's namespace
        run_object = self.objects.run(run)
        spec = None if run_object is None else run_object.parsed.spec
        desired = Desired() if spec is None else Desired(spec.desired, spec.parallel)
        try:
            ledger_status = gateway.status(run)
        except TargetError as error:
            if run_object is not None:
                return RunSources(run_object, desired, gateway_problem=str(error))
            if isinstance(error, RunDamaged):  # its message is more specific
                raise
            explanation = f"Without the gateway, only runs with a Run object can be read, and {run} has none"
            raise TargetError(f"{error}\n{explanation}") from error
        if ledger_status is None:
            return None if run_object is None else RunSources(run_object, desired)
        if run_object is None:
            desired = ledger_status.desired
        return RunSources(run_object, desired, ledger_status.status, alive=ledger_status.alive)

    def _known_sources(self, run: str) -> RunSources:
        """Return a snapshot of a run from both sources. Raise RunNotFound for an unknown run."""
        run_sources = self._sources(run)
        if run_sources is None:
            raise target.unknown_run_error(self, run)
        return run_sources

    def _submission(self, run: str) -> Submission:
        """Return the submission of a run, from its objects, or else from the ledger."""
        run_object = self.objects.run(run)
        submission = None if run_object is None else self.objects.submission(run_object)
        if submission is not None:
            return submission
        job, facts, code = self.gateway.job(run), self.gateway.submission(run), self.gateway.code(run)
        if job is None or facts is None or code is None:
            self._known_sources(run)  # raises if the run is unknown
            raise TargetError(f"the ledger has no submission of {run}; submit it again under another name")
        return Submission(job=job_kinds.read(job), facts=facts, code=code)


def _plan_and_submission_time(run: str, job: Job, submission: Submission) -> tuple[Plan, float]:
    """Return the plan of a submitted run with its current job, and the time of its submission."""
    code, facts = submission.code, submission.facts
    field_names = {field.name for field in dataclasses.fields(Provenance)}
    provenance = Provenance(**{key: value for key, value in facts.items() if key in field_names})
    pack = Pack(data=code, sha256=str(facts.get("code_hash", "")), files=tuple(changing.contents(code)))
    return Plan(run, job, pack, provenance), float(facts.get("submitted") or time.time())
