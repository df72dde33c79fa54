"""`python -m trialplane.gateway`: the process of the gateway."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from trialplane import errors
from trialplane.gateway import server, upstream
from trialplane.gateway.callers import ApiServer, Callers
from trialplane.gateway.ledgers import MAX_RUNS, LedgerService
from trialplane.gateway.logs import Controllers, MlflowLogs
from trialplane.gateway.mlflow import MlflowProxy
from trialplane.gateway.routes import Dispatcher, Gateway
from trialplane.gateway.tls import Certificate
from trialplane.gateway.upstream import Upstream
from trialplane.ledger.namespaces import Ledgers
from trialplane.wire import cluster, env, mlflow


def main() -> int:
    """Serve until SIGTERM, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m trialplane.gateway", description=__doc__)
    parser.add_argument("--control", required=True, help="namespace of the gateway itself")
    parser.add_argument("--namespaces", required=True, help="namespaces of runs, separated by commas")
    parser.add_argument("--tls", help="folder with tls.crt and tls.key, to serve HTTPS")
    arguments = parser.parse_args()
    try:
        certificate = _certificate(arguments.tls)
        callers = _callers()
        ledgers = _ledgers(arguments.control, arguments.namespaces.split(","))
    except errors.InputError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    dispatcher = Dispatcher(_gateways(ledgers, callers))
    proxy = MlflowProxy(_upstream(), ledgers, dispatcher.user)
    ledger_service = LedgerService(ledgers, int(os.environ.get(env.MAX_RUNS) or MAX_RUNS))
    server.server(dispatcher, ledger_service, proxy, port=cluster.GATEWAY_PORT, certificate=certificate).run()
    ledgers.close()
    return errors.EXIT_OK


def _certificate(folder: str | None) -> Certificate | None:
    """Return the certificate in a folder; None without a folder.

    Raises:
        InputError: Its files cannot be used.
    """
    try:
        return Certificate(Path(folder)) if folder else None
    except OSError as error:
        text = f"tls.crt and tls.key in {folder} cannot be used: {error}; see gateway.tls of the chart"
        raise errors.InputError(text) from error


def _callers() -> Callers:
    """Return the authentication of users by the API server of this pod's cluster.

    Raises:
        InputError: This process has no API server.
    """
    try:
        return Callers(ApiServer.of_pod())
    except (KeyError, OSError) as error:
        raise errors.InputError(
            "there is no API server here to authenticate callers: the gateway runs in a pod that mounts the token of its "
            f"service account, as the chart's pod does ({type(error).__name__}: {error})"
        ) from error


def _ledgers(control: str, namespaces: list[str]) -> Ledgers:
    """Return the ledgers of all namespaces.

    Raises:
        InputError: The environment has no URL of the database, or the database cannot be used.
    """
    url = os.environ.get(env.LEDGER, "")
    if not url:
        raise errors.InputError(f"{env.LEDGER} must be the URL of the database")
    return Ledgers(url, control, namespaces, os.environ.get(env.BUDGETS, ""))


def _gateways(ledgers: Ledgers, callers: Callers) -> dict[str, Gateway]:
    """Return the gateway of each namespace."""
    mlflow_logs = MlflowLogs.of(os.environ)
    gateways = {}
    for namespace in ledgers.namespaces:
        runs = ledgers.of(namespace)
        assert runs is not None  # because the namespace is one of the ledgers' own
        host = cluster.head_service("{run}")  # `Controllers` replaces this placeholder
        controllers = Controllers(f"http://{host}.{namespace}.svc:{cluster.STATUS_PORT}")
        gateways[namespace] = Gateway(runs, users=callers, namespace=namespace, controllers=controllers, mlflow=mlflow_logs)
    return gateways


def _upstream() -> Upstream | None:
    """Return the client of MLflow's server from the environment. None if the environment names no server."""
    url = os.environ.get(env.MLFLOW_TRACKING_URI, "")
    if not url:
        return None
    return Upstream(
        url, mlflow.authorization(os.environ), max_artifact=int(os.environ.get(env.MAX_ARTIFACT) or upstream.MAX_ARTIFACT)
    )


if __name__ == "__main__":
    sys.exit(main())
