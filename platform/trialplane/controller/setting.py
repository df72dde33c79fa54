"""The setting of a controller: the machine of a user, or the head pod of a run's Ray cluster."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from trialplane import errors
from trialplane.wire import cluster, env, ledger, mlflow


@dataclasses.dataclass(frozen=True)
class Setting:
    """The differences between a laptop and a cluster.

    Attributes:
        submitted: the folder that the submission is mounted in; None on a laptop, where it is in the run's folder already.
        ray: address of the Ray cluster to join, or "" to start one.
        ledger: URL of the database, or of the gateway with the run's token, or "" for a file in the run's folder.
        mlflow_token: opens MLflow at the gateway for this run, and not its ledger, so trials get it; "" without a gateway.
        status: host and port of /status and /metrics; port 0 is a free one.
        key: the hash of the run's token, by which the gateway may read logs; "" without one.
        checkpoints: folder or URL for trials' checkpoints, from their point of view; "" for the run's folder.
        grace: seconds a trial gets to save itself, or None for the default.
        secrets: folder with a file for each secret of notifications; None for environment variables.
    """

    submitted: Path | None = None
    ray: str = ""
    ledger: str = ""
    mlflow_token: str = ""
    status: tuple[str, int] = ("127.0.0.1", 0)
    key: str = ""
    checkpoints: str = ""
    grace: float | None = None
    secrets: Path | None = None

    @classmethod
    def of(cls, environ: Mapping[str, str], submitted: Path | None) -> Setting:
        """The setting from the environment. On a laptop RAY_ADDRESS is ignored: it does not concern the run.

        Raises:
            InputError: the status' address, the grace, or the run's token cannot be read.
        """
        host, colon, port = environ.get(env.STATUS, "").rpartition(":")
        if colon and not port.isdigit():
            raise errors.InputError(f"{env.STATUS} must be host:port, for example 0.0.0.0:8090")
        try:
            grace = float(environ[env.GRACE]) if environ.get(env.GRACE) else None
        except ValueError:
            raise errors.InputError(f"{env.GRACE} must be seconds, not {environ[env.GRACE]!r}") from None
        token = _token(environ.get(env.TOKEN_FILE, ""))
        return cls(
            submitted=submitted,
            ray=environ.get(env.RAY_ADDRESS, "") if submitted is not None else "",
            ledger=_ledger(environ.get(env.LEDGER, ""), token),
            key=ledger.token_digest(token) if token else "",
            mlflow_token=mlflow.token(token) if token else "",
            status=(host, int(port)) if colon else cls.status,
            checkpoints=environ.get(env.CHECKPOINTS, "") if submitted is not None else "",
            grace=grace,
            secrets=Path(cluster.NOTIFY_MOUNT) if submitted is not None else None,
        )

    @property
    def in_cluster(self) -> bool:
        """Whether slots are pods, which share no folder with this process."""
        return bool(self.ray)


def _token(file: str) -> str:
    """The run's token where there is one: a file, so that it is in no process's environment."""
    try:
        return Path(file).read_text().strip() if file else ""
    except (OSError, ValueError) as error:
        raise errors.InputError(f"the run's token in {file} ({env.TOKEN_FILE}) cannot be read: {error}") from error


def _ledger(url: str, token: str) -> str:
    """The ledger's URL, with the run's token where there is one."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://:{token}@{rest}" if token else url
