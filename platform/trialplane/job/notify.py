"""Notifications about a run."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, field_validator

from trialplane.job import models

Occasion = Literal["ended", "failed", "best", "stuck"]
_SECRET = re.compile(r"secret:([A-Za-z0-9][A-Za-z0-9._-]{0,252})")


class Notify(models.Model):
    """A service to notify, and the occasions."""

    url: str = Field(
        min_length=1,
        max_length=2000,
        description="URL of apprise: ntfy://topic, json://host/path. secret:NAME is the URL in a key NAME of the Secret "
        "trialplane-notify on a cluster, and in the environment variable NAME on a laptop.",
    )
    on: tuple[Occasion, ...] = Field(
        default=("ended", "stuck"),
        min_length=1,
        description="ended: the run has ended or was paused. failed: it has failed. best: there is a new best trial, at most"
        " once a minute. stuck: no trial has run for 10 minutes.",
    )

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        """Check that apprise supports the URL, or that it names a secret."""
        if url.startswith("secret:"):
            if _SECRET.fullmatch(url) is None:
                raise ValueError("must name a secret by letters, digits, `.`, `_` and `-`: secret:SLACK")
            return url
        import apprise  # only jobs with notifications need it

        if apprise.Apprise.instantiate(url) is None:
            scheme, separator, _ = url.partition("://")  # without a scheme, the text may be a password or a token
            shown = f" ({scheme[:20]}:…)" if separator else ""
            raise ValueError(
                f"is no URL of apprise{shown}; for a webhook write json://HOST/PATH, else see `python -m apprise --details`"
            )
        return url

    @property
    def secret(self) -> str | None:
        """Name of the secret with the URL. None for a URL in the job itself."""
        match = _SECRET.fullmatch(self.url)
        return None if match is None else match[1]
