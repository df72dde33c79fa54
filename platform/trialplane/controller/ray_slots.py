"""Slots as Ray actors: each uses one slot resource, which the pods of its role provide."""

from __future__ import annotations

from typing import Any

import ray

from trialplane.controller import ray_session
from trialplane.wire import cluster
from trialplane.wire.records import SlotConfig
from trialplane.worker.ray_store import RayStore
from trialplane.worker.slot_actor import THREADS, SlotActor

_GROUPS = dict.fromkeys(THREADS.values(), 1)


class RayActor:
    """A slot in a Ray actor."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the slot, and return a reference to its answer.

        `fetch` has two answers, and so two references: to the units whose results are available, and to these results.
        """
        options: dict[str, Any] = {"num_returns": 2} if method == "fetch" else {}
        if method in THREADS:
            options["concurrency_group"] = THREADS[method]
        remote_method = getattr(self._handle, method)
        if options:
            remote_method = remote_method.options(**options)
        return remote_method.remote(*arguments)

    def kill(self) -> None:
        """End the actor's process."""
        ray.kill(self._handle)


class RayHost:
    """A `SlotHost` in the Ray session of this process, see `ray_session`."""

    wait = staticmethod(ray_session.wait)
    result = staticmethod(ray_session.result)
    read = staticmethod(ray_session.result)  # a file is an object in Ray's store, which Ray removes

    def open(self, config: SlotConfig, name: str) -> RayActor:
        """Start an actor, which waits for its pod without a time limit."""
        options: dict[str, Any] = {
            "resources": {cluster.slot(config.role): 1},
            "num_cpus": 0,  # the slot's resource already limits it to one trial per pod
            "num_gpus": config.gpus * config.gpu_share,
            "concurrency_groups": _GROUPS,
        }
        return RayActor(ray.remote(**options)(SlotActor).remote(config, name, RayStore()))
