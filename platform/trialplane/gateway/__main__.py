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
    url = os.environ.get(env.LEDGER, "")
    if not url:
        sys.stderr.write(f"{env.LEDGER} must be the URL of the database\n")
        return errors.EXIT_BAD_INPUT
    try:
        certificate = Certificate(Path(arguments.tls)) if arguments.tls else None
    except OSError as error:
        sys.stderr.write(f"tls.crt and tls.key in {arguments.tls} cannot be used: {error}; see gateway.tls of the chart\n")
        return errors.EXIT_BAD_INPUT
    try:
        callers = Callers(ApiServer.of_pod())
    except (KeyError, OSError) as error:
        sys.stderr.write(
            "there is no API server here to authenticate callers: the gateway runs in a pod that mounts the token of its "
            f"service account, as the chart's pod does ({type(error).__name__}: {error})\n"
        )
        return errors.EXIT_BAD_INPUT
    try:
        ledgers = Ledgers(url, arguments.control, arguments.namespaces.split(","), os.environ.get(env.BUDGETS, ""))
    except errors.InputError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    mlflow_logs = MlflowLogs.of(os.environ)
    gateways = {}
    for namespace in ledgers.namespaces:
        runs = ledgers.of(namespace)
        assert runs is not None  # because the namespace is one of the ledgers' own
        host = cluster.head_service("{run}")  # `Controllers` replaces this placeholder
        controllers = Controllers(f"http://{host}.{namespace}.svc:{cluster.STATUS_PORT}")
        gateways[namespace] = Gateway(runs, callers, namespace, controllers, mlflow_logs)
    dispatcher = Dispatcher(gateways)
    proxy = MlflowProxy(_upstream(), ledgers, dispatcher.user)
    ledger_service = LedgerService(ledgers, int(os.environ.get(env.MAX_RUNS) or MAX_RUNS))
    server.server(dispatcher, ledger_service, proxy, port=cluster.GATEWAY_PORT, certificate=certificate).run()
    ledgers.close()
    return errors.EXIT_OK


def _upstream() -> Upstream | None:
    """Return the client of MLflow's server from the environment. None if the environment names no server."""
    url = os.environ.get(env.MLFLOW_TRACKING_URI, "")
    if not url:
        return None
    return Upstream(url, mlflow.authorization(os.environ), int(os.environ.get(env.MAX_ARTIFACT) or upstream.MAX_ARTIFACT))


if __name__ == "__main__":
    sys.exit(main())
