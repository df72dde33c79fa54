"""Choice of a command's target: this machine, or a context and a namespace of the kubeconfig.

The rule for all verbs: `--local`; else `--context` and `--namespace`; without `--context`, TRIALPLANE_CONTEXT, and without
`--namespace`, TRIALPLANE_NAMESPACE. If none of them is set, `submit` uses the kubeconfig's current context. Other verbs use
the target of the last submission from this machine, or this machine if there was none; `doctor` then uses the current
context. Standard library only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path

from trialplane.client.target import HERE, Target, TargetName
from trialplane.errors import InputError, TrialplaneError
from trialplane.wire import env, paths

_RECORDED_RUNS = 50  # names of runs that are kept for completion


@dataclasses.dataclass(frozen=True)
class Memory:
    """Record of submissions from this machine.

    Attributes:
        last_target: Target of the last submission; None if there was none.
        runs: Names of runs on clusters, newest first.
    """

    last_target: TargetName | None = None
    runs: tuple[str, ...] = ()


def target_of(name: TargetName) -> Target:
    """Return the target with a name, without contacting it."""
    # Imported late, because a command needs only one of the modules.
    if name.local:
        from trialplane.client.local import LocalTarget

        return LocalTarget()
    from trialplane.client.kubernetes import KubernetesTarget

    return KubernetesTarget(name.context, name.namespace)


def choose(
    local: bool,
    context: str | None,
    namespace: str | None,
    *,
    submits: bool,
    default_target: TargetName = HERE,
    environ: Mapping[str, str] | None = None,
) -> TargetName:
    """Return the target that flags, environment and recorded submissions choose; see the rule of this module.

    Args:
        local: Whether `--local` is set.
        context: Value of `--context`.
        namespace: Value of `--namespace`.
        submits: Whether the verb creates a run.
        default_target: Target of other verbs if nothing was submitted from this machine.
        environ: Environment; None for that of the process.

    Raises:
        InputError: `--local` and the flag of a cluster are both set.
    """
    if local:
        if context or namespace:
            flag = "--context" if context else "--namespace"
            raise InputError(f"--local and {flag} name two targets; leave one out")
        return HERE
    environ = os.environ if environ is None else environ
    if not context:  # with --context, TRIALPLANE_NAMESPACE may be of another context
        context = environ.get(env.CONTEXT)
        namespace = namespace or environ.get(env.NAMESPACE)
    if context or namespace:
        return TargetName(context=context or None, namespace=namespace or None)
    if submits:
        return TargetName()  # the kubeconfig's current context
    return recall().last_target or default_target


def recall() -> Memory:
    """Return the recorded submissions. Empty if there are none or they are unreadable."""
    try:
        data = json.loads(paths.target_file(paths.home()).read_bytes())
        name = data["target"]
        return Memory(TargetName(bool(name["local"]), name["context"], name["namespace"]), tuple(map(str, data["runs"])))
    except (OSError, ValueError, KeyError, TypeError, RuntimeError):  # RuntimeError: ~ of a user that does not exist
        return Memory()


def remember(target_name: TargetName, run: str) -> None:
    """Record a submission and its target, for `recall`. A failure to write is ignored."""
    memory = recall()
    runs = memory.runs
    if not target_name.local:  # local runs are found in their folder
        runs = (run, *(name for name in memory.runs if name != run))[:_RECORDED_RUNS]
    file = paths.target_file(paths.home())
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        paths.make_home(file.parent)
        partial.write_text(json.dumps({"target": dataclasses.asdict(target_name), "runs": runs}), encoding="utf-8")
        partial.replace(file)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink()


def flags_of_other_target(run: str, target_name: TargetName) -> str:
    """Return the flags of another target that has the run, for a hint; "" if there is none.

    The other target of a cluster is this machine, and that of this machine is the cluster of the last submission.
    """
    if not target_name.local:
        return HERE.flags if _is_here(run) else ""
    other = recall().last_target
    if other is None or other.local:
        return ""
    target = target_of(other)
    try:
        target.is_active(run)  # raises if the target does not have the run
        return target.name.flags
    except TrialplaneError:
        return ""


def _is_here(run: str) -> bool:
    """Whether this machine has a run with this name."""
    if not run or Path(run).name != run:  # a path is not a name
        return False
    try:
        return paths.RunPaths.of(paths.home(), run).job.exists()
    except OSError:
        return False
