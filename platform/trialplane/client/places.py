"""The place that a command uses: this machine, or a context and a namespace of the kubeconfig. Standard library only.

The rule for all verbs: `--local`; else `--context` and `--namespace`; without `--context` TRIALPLANE_CONTEXT, and with
neither flag TRIALPLANE_NAMESPACE too. When none of them is set, `submit` uses the kubeconfig's current context, and every
other verb the place of the last submission from this machine, or this machine when there was none; `doctor` then uses the
current context.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path

from trialplane.client.target import HERE, Place, Target
from trialplane.errors import InputError, RunNotFound, TrialplaneError
from trialplane.wire import env, paths

_REMEMBERED = 50  # names of runs, for completion


@dataclasses.dataclass(frozen=True)
class Memory:
    """Submissions from this machine: the place of the last one, and runs on clusters, the newest first."""

    place: Place | None = None
    runs: tuple[str, ...] = ()


def target_of(place: Place) -> Target:
    """The target at a place; contacts nothing."""
    # Imported where used: one reads ledgers, the other accesses Kubernetes, and a verb needs only one of them.
    if place.local:
        from trialplane.client.local import LocalTarget

        return LocalTarget()
    from trialplane.client.kubernetes import KubernetesTarget

    return KubernetesTarget(place.context, place.namespace)


def chosen(
    local: bool,
    context: str | None,
    namespace: str | None,
    *,
    submits: bool,
    otherwise: Place = HERE,
    environ: Mapping[str, str] | None = None,
) -> Place:
    """The place that flags, environment and memory choose; see the rule above.

    Args:
        local: whether `--local` was given.
        context: of `--context`.
        namespace: of `--namespace`.
        submits: whether the verb creates a run.
        otherwise: the place of a verb that does not when nothing was submitted from here.
        environ: variables, the process's own when None.

    Raises:
        InputError: `--local` and a cluster's flag together.
    """
    if local:
        if context or namespace:
            given = "--context" if context else "--namespace"
            raise InputError(f"--local and {given} name two places; leave one out")
        return HERE
    environ = os.environ if environ is None else environ
    if not context:  # the variables belong together: a namespace in another context is another team's
        context, namespace = environ.get(env.CONTEXT), namespace or environ.get(env.NAMESPACE)
    if context or namespace:
        return Place(context=context or None, namespace=namespace or None)
    return Place() if submits else recall().place or otherwise


def recall() -> Memory:
    """The recorded submissions; empty if never written or unreadable."""
    try:
        data = json.loads(paths.place(paths.home()).read_bytes())
        place = data["place"]
        return Memory(Place(bool(place["local"]), place["context"], place["namespace"]), tuple(map(str, data["runs"])))
    except (OSError, ValueError, KeyError, TypeError, RuntimeError):  # RuntimeError: ~ of a user that does not exist
        return Memory()


def remember(place: Place, run: str) -> None:
    """Record where a run was submitted; a failure to write is ignored."""
    known = recall()
    runs = known.runs if place.local else (run, *(name for name in known.runs if name != run))[:_REMEMBERED]
    file = paths.place(paths.home())
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        paths.make_home(file.parent)
        partial.write_text(json.dumps({"place": dataclasses.asdict(place), "runs": runs}), encoding="utf-8")
        partial.replace(file)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink()


def elsewhere(run: str, place: Place) -> str:
    """The flags of another place known to have the run, or ""."""
    if not place.local:
        return HERE.flags if _is_here(run) else ""
    other = recall().place
    if other is None or other.local:
        return ""
    target = target_of(other)
    try:
        target.is_active(run)
        return target.place.flags
    except (RunNotFound, TrialplaneError):
        return ""


def _is_here(run: str) -> bool:
    if not run or Path(run).name != run:
        return False
    try:
        return paths.RunPaths.of(paths.home(), run).job.exists()
    except OSError:
        return False
