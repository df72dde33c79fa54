"""Environment variables of a run's pods.

Only the controller gets secrets, from Secrets. No pod of a run has a password of the database or of MLflow: the gateway
gives access to both, with the run's own token.
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
from trialplane.wire.costs import Prices

TMP = "/tmp"

_RAY = {  # variables for Ray in all pods; `controller/__main__.py` sets the same ones on a laptop
    # Trials and pods have limits of their own. Ray's monitor would kill the slot or the controller instead.
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}
# Seconds until a worker that cannot reach its head ends and is recreated. Ray's default is 60. With less than this value, a
# short pause of the head would end all slots.
_RECONNECT_TIMEOUT = 20


def head(site: Site) -> list[dict[str, Any]]:
    """Return the variables of Ray's container and KubeRay's autoscaler in the head pod. They have no secrets."""
    return _env_list(_common_variables(site))


def controller(plan: Plan, site: Site, saving: Saving | None = None) -> list[dict[str, Any]]:
    """Return the variables of the controller's container, with the addresses of ledger and MLflow and with Ray's token.

    Args:
        plan: Plan of the run.
        site: Description of the chart.
        saving: Location of the checkpoints of its trials. None if they save none.
    """
    ledger_path = ledger.namespace_path(site.namespace)
    values = {
        # A sampler's matrices are small. torch would use as many threads as the node has cores, and wait for them.
        "OMP_NUM_THREADS": "1",
        **_common_variables(site),
        env.HOME: cluster.HOME,
        env.STATUS: f"0.0.0.0:{cluster.STATUS_PORT}",
        env.LEDGER: f"{site.gateway_url}{ledger_path}",
        env.TOKEN_FILE: f"{cluster.TOKEN_MOUNT}/{cluster.TOKEN_KEY}",
        env.MLFLOW_TRACKING_URI: f"{site.gateway_url}{mlflow.path(ledger_path, plan.run)}",
        env.RAY_ADDRESS: f"127.0.0.1:{cluster.GCS_PORT}",
        "RAY_AUTH_MODE": "token",  # KubeRay sets this and the token only for its own containers
        # Ray's driver would write a file into a folder of Ray's head, which has another uid, and abort.
        "RAY_event_log_reporter_enabled": "0",
        **_authority_variables(site),
        **_saving_variables(saving),
        **_price_variables(site.prices.plain),
    }
    values.pop(env.RAY_AUTH_TOKEN, None)  # a container must not have a variable twice
    token = {"secretKeyRef": {"name": cluster.ray_secret(plan.run), "key": cluster.RAY_TOKEN_KEY}}
    return [*_env_list(values), {"name": env.RAY_AUTH_TOKEN, "valueFrom": token}]


def trial(site: Site, saving: Saving | None = None, gpu_memory: float | None = None) -> list[dict[str, Any]]:
    """Return the variables of a worker pod: those of all policies, and no secrets.

    Args:
        site: Description of the chart.
        saving: Location of the checkpoints of its trials. None if they save none.
        gpu_memory: Share of the device's memory that a trial may use. None with whole GPUs, and without any.
    """
    # When Kueue preempts a run, its head ends at once, but its trials have the whole grace period to save a checkpoint. So a
    # worker must not end earlier. As a drawback, after the loss of a head it waits this long before it is recreated.
    timeout = _RECONNECT_TIMEOUT if saving is None else max(_RECONNECT_TIMEOUT, math.ceil(saving.grace) + MARGIN)
    ray = {
        **_RAY,
        "RAY_gcs_rpc_server_reconnect_timeout_s": str(timeout),
        # Ray must not kill the template of a slot. It ends by itself, after a trial that still saves a checkpoint.
        "RAY_kill_child_processes_on_worker_exit": "false",
        # Ray must not hide the GPUs of a pod from a slot that requests none, because a job may use them nevertheless.
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }
    values = {"HOME": TMP, env.HOME: cluster.HOME, **_authority_variables(site), **_saving_variables(saving), **ray}
    if gpu_memory is not None:  # 1 is set too, because otherwise a trial would limit itself to the share in the job
        values[env.GPU_MEMORY] = f"{gpu_memory:g}"
    return _env_list({**site.env, **values, **policies.trial_env()})


def _authority_variables(site: Site) -> dict[str, str]:
    """Return the variable with the file of the authority that signs the gateway's certificate. Empty without TLS.

    The clients of MLflow and of the ledger check the certificate with it.
    """
    return {env.MLFLOW_CA: f"{cluster.GATEWAY_CA_MOUNT}/{cluster.GATEWAY_CA}"} if site.gateway.tls else {}


def _saving_variables(saving: Saving | None) -> dict[str, str]:
    """Return the variables with the location of checkpoints and the grace period. Empty if trials save no checkpoints."""
    return {} if saving is None else {env.CHECKPOINTS: saving.location, env.GRACE: f"{saving.grace:g}"}


def _common_variables(site: Site) -> dict[str, str]:
    """Return the variables of all containers of the head pod: the chart's, and all policies but protobuf's.

    The pure Python form of protobuf is only for trials, because it is slow.
    """
    site_variables = {name: value for name, value in site.env.items() if name != protobuf.VARIABLE}
    return {**site_variables, "HOME": TMP, **_RAY, **protobuf.controller_env(policies.trial_env())}


def _env_list(variables: dict[str, str]) -> list[dict[str, Any]]:
    """Return variables in the form of a container's `env`."""
    return [{"name": name, "value": value} for name, value in variables.items()]


def _price_variables(prices: Prices) -> dict[str, str]:
    """Return the variables with the prices. An unknown price, which is 0, has none."""
    price_by_variable = {env.GPU_PRICE: prices.gpu_hour, env.CPU_PRICE: prices.cpu_hour}
    return {name: repr(price) for name, price in price_by_variable.items() if price}
