"""Where a controller works: on the machine of a user, or in the head pod of a run's Ray cluster."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from trialplane import errors
from trialplane.wire import env


@dataclasses.dataclass(frozen=True)
class Setting:
    """What differs between a laptop and a cluster.

    Attributes:
        submitted: the folder that the submission is mounted in; None on a laptop, where it is in the run's folder already.
        ray: address of the Ray cluster to join, or "" to start one.
        ledger: URL of the database, or "" for a file in the run's folder.
        status: host and port of /status and /metrics; port 0 is a free one.
        checkpoints: folder or URL for trials' checkpoints, from their point of view; "" for the run's folder.
        grace: seconds a trial gets to save itself, or None for the default.
        has_credentials: whether MLflow requires a password. Trials do not get it: what they log themselves goes into stores
            of their own, which are copied to MLflow.
    """

    submitted: Path | None = None
    ray: str = ""
    ledger: str = ""
    status: tuple[str, int] = ("127.0.0.1", 0)
    checkpoints: str = ""
    grace: float | None = None
    has_credentials: bool = False

    @classmethod
    def of(cls, environ: Mapping[str, str], submitted: Path | None) -> Setting:
        """The setting from the environment. On a laptop RAY_ADDRESS is ignored: it does not concern the run.

        Raises:
            InputError: the status' address, or the grace, cannot be read.
        """
        host, colon, port = environ.get(env.STATUS, "").rpartition(":")
        if colon and not port.isdigit():
            raise errors.InputError(f"{env.STATUS} must be host:port, for example 0.0.0.0:8090")
        try:
            grace = float(environ[env.GRACE]) if environ.get(env.GRACE) else None
        except ValueError:
            raise errors.InputError(f"{env.GRACE} must be seconds, not {environ[env.GRACE]!r}") from None
        return cls(
            submitted=submitted,
            ray=environ.get(env.RAY_ADDRESS, "") if submitted is not None else "",
            ledger=environ.get(env.LEDGER, ""),
            status=(host, int(port)) if colon else cls.status,
            checkpoints=environ.get(env.CHECKPOINTS, "") if submitted is not None else "",
            grace=grace,
            has_credentials=submitted is not None and any(environ.get(name) for name in env.MLFLOW_CREDENTIALS),
        )

    @property
    def in_cluster(self) -> bool:
        """Whether slots are pods, which share no folder with this process."""
        return bool(self.ray)
