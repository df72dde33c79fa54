"""The environment of a run's pods. What is private comes from secrets, and only the controller gets it.

No pod of a run has a password, of the database or of MLflow: it comes to both through the gateway, with the run's own token.
"""

from __future__ import annotations

import math
from typing import Any

from trialplane import policies
from trialplane.plan.plan import Plan
from trialplane.plan.saving import MARGIN, Saving
from trialplane.plan.site import Site
from trialplane.policies import protobuf
from trialplane.wire import cluster, env, ledger, mlflow

TMP = "/tmp"

# What Ray reads in all of its pods; `controller/__main__.py` sets the same on a laptop.
_RAY = {
    # Trials and the pod have limits of their own: Ray would kill the slot, or the controller, instead.
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}
# A worker whose head is gone ends after these seconds and is recreated; Ray's default is a minute. A head that only pauses
# for a moment must not cost every trial its slot.
_HEADLESS = 20


def head(site: Site) -> list[dict[str, Any]]:
    """Of Ray's container in the head pod: no policy that makes protobuf slow, and nothing private."""
    return _listed(_quick(site))


def controller(plan: Plan, site: Site, saving: Saving | None = None) -> list[dict[str, Any]]:
    """Of the controller: as of Ray's beside it, with the token of that."""
    gateway, place = f"http://{site.gateway_host}:{site.gateway.port}", ledger.place(site.namespace)
    own = {
        **_quick(site),
        env.HOME: cluster.HOME,
        env.STATUS: f"0.0.0.0:{cluster.STATUS_PORT}",
        env.LEDGER: f"{gateway}{place}",
        env.TOKEN_FILE: f"{cluster.TOKEN_MOUNT}/{cluster.TOKEN_KEY}",
        env.MLFLOW_TRACKING_URI: f"{gateway}{mlflow.path(place, plan.run)}",
        env.RAY_ADDRESS: f"127.0.0.1:{cluster.GCS_PORT}",
        "RAY_AUTH_MODE": "token",  # KubeRay sets both for its own containers only
        # Ray's driver would write a file into a folder of Ray's head, which has another uid, and abort.
        "RAY_event_log_reporter_enabled": "0",
        **_saving(saving),
    }
    own.pop(env.RAY_AUTH_TOKEN, None)  # each name occurs once
    token = {"secretKeyRef": {"name": cluster.ray_secret(plan.run), "key": cluster.RAY_TOKEN_KEY}}
    return [*_listed(own), {"name": env.RAY_AUTH_TOKEN, "valueFrom": token}]


def trial(site: Site, saving: Saving | None = None) -> list[dict[str, Any]]:
    """Of a worker pod: every policy, nothing private."""
    # When Kueue takes the place of a run, its head goes at once, and trials get the whole grace period to save themselves.
    # The price: after a lost head a worker whose pod Kubernetes does not remove may wait so long for the old one before it
    # is recreated, and its run goes on that much later.
    headless = _HEADLESS if saving is None else max(_HEADLESS, math.ceil(saving.grace) + MARGIN)
    ray = {
        **_RAY,
        "RAY_gcs_rpc_server_reconnect_timeout_s": str(headless),
        # A slot's template ends by itself when the slot does, and may have to wait for a trial that saves itself.
        "RAY_kill_child_processes_on_worker_exit": "false",
        # A trial's GPUs are all its own; a slot without GPUs must not hide those of a job that finds them itself.
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }
    own = {"HOME": TMP, env.HOME: cluster.HOME, **_saving(saving), **ray}
    return _listed({**site.env, **own, **policies.trial_env()})


def autoscaler(site: Site) -> list[dict[str, Any]]:
    """Of KubeRay's container in the head pod."""
    return _listed(_quick(site))


def _saving(saving: Saving | None) -> dict[str, str]:
    """Where trials save checkpoints, and their grace period, for the controller that creates the slots."""
    return {} if saving is None else {env.CHECKPOINTS: saving.place, env.GRACE: f"{saving.grace:g}"}


def _quick(site: Site) -> dict[str, str]:
    """The policies but for protobuf's, which is for trials only."""
    chosen = {name: value for name, value in site.env.items() if name != protobuf.VARIABLE}
    return {**chosen, "HOME": TMP, **_RAY, **protobuf.controller_env(policies.trial_env())}


def _listed(variables: dict[str, str]) -> list[dict[str, Any]]:
    return [{"name": name, "value": value} for name, value in variables.items()]
