"""The environment of a controller: the machine of a user, or the head pod of a run's Ray cluster."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from trialplane import errors
from trialplane.wire import cluster, env, ledger, mlflow
from trialplane.wire.costs import Prices


@dataclasses.dataclass(frozen=True)
class Setting:
    """The values that differ between a laptop and a cluster.

    Attributes:
        submitted: Folder in which the submission is mounted; None on a laptop, where the run's folder already has it.
        ray: Address of the Ray cluster to join; "" to start Ray if the run needs it.
        ledger: URL of the database, or of the gateway with the run's token; "" for a file in the run's folder.
        mlflow_token: Token for MLflow at the gateway, which trials get: it gives no access to the ledger. "" without a
            gateway.
        status: Host and port at which /status and /metrics are served; port 0 chooses a free one.
        key: Hash of the run's token, which a request for logs must have; "" without a token.
        checkpoints: Folder or URL of the checkpoints, as trials see it; "" for the run's folder.
        grace: Seconds in which a trial that is stopped may save a checkpoint; None for the default.
        prices: Prices of an hour of a GPU and of a core.
        secrets: Folder with a file for each secret of notifications; None for environment variables.
    """

    submitted: Path | None = None
    ray: str = ""
    ledger: str = ""
    mlflow_token: str = ""
    status: tuple[str, int] = ("127.0.0.1", 0)
    key: str = ""
    checkpoints: str = ""
    grace: float | None = None
    prices: Prices = dataclasses.field(default_factory=Prices)
    secrets: Path | None = None

    @classmethod
    def of(cls, environ: Mapping[str, str], submitted: Path | None) -> Setting:
        """Return the setting that environment variables describe. On a laptop RAY_ADDRESS is ignored.

        Args:
            environ: Environment variables.
            submitted: Folder in which the submission is mounted; None on a laptop.

        Raises:
            InputError: The address of the status, the grace, a price, or the run's token cannot be read.
        """
        status_host, colon, status_port = environ.get(env.STATUS, "").rpartition(":")  # without the variable, all are ""
        if colon and not status_port.isdigit():
            raise errors.InputError(f"{env.STATUS} must be host:port, for example 0.0.0.0:8090")
        try:
            grace = float(environ[env.GRACE]) if environ.get(env.GRACE) else None
        except ValueError:
            raise errors.InputError(f"{env.GRACE} must be seconds, not {environ[env.GRACE]!r}") from None
        token = _read_token(environ.get(env.TOKEN_FILE, ""))
        is_in_pod = submitted is not None
        return cls(
            submitted=submitted,
            ray=environ.get(env.RAY_ADDRESS, "") if is_in_pod else "",
            ledger=_ledger_url(environ.get(env.LEDGER, ""), token),
            key=ledger.token_digest(token) if token else "",
            mlflow_token=mlflow.token(token) if token else "",
            status=(status_host, int(status_port)) if colon else cls.status,
            checkpoints=environ.get(env.CHECKPOINTS, "") if is_in_pod else "",
            grace=grace,
            prices=Prices.of(environ),
            secrets=Path(cluster.NOTIFY_MOUNT) if is_in_pod else None,
        )

    @property
    def in_cluster(self) -> bool:
        """Whether slots are pods, which share no folder with this process."""
        return bool(self.ray)


def _read_token(file: str) -> str:
    """Return the run's token from a file, which keeps it out of the environment of processes; "" without a file."""
    try:
        return Path(file).read_text().strip() if file else ""
    except (OSError, ValueError) as error:
        raise errors.InputError(f"the run's token in {file} ({env.TOKEN_FILE}) cannot be read: {error}") from error


def _ledger_url(url: str, token: str) -> str:
    """Return the ledger's URL with the run's token, if it has one, as the password: https://host → https://:TOKEN@host."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://:{token}@{rest}" if token else url
