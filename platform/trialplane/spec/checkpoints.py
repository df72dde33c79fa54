"""Where a training saves itself, and how long it gets to do so at the end. A model only: `training/checkpoint/` does it.

How often it is saved and which checkpoints stay is the job's code to say, by its `params`.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from trialplane.spec import models, values

# Of fsspec. `file:///…` is left out: a folder of a pod, or of a laptop, is not what a job can know.
_URL = r"^[a-z][a-z0-9+.-]*://[^\s/]\S*$"
Url = Annotated[str, Field(pattern=_URL)]


class Checkpoints(models.Model):
    """What a job wants of the place of its checkpoints."""

    url: Url | None = Field(
        default=None,
        description="Where they lie, as fsspec names it: s3://bucket/path; else the chart's volume, or the run's folder.",
    )
    grace: values.Duration | None = Field(
        default=None,
        description="How long a trial that must leave its pod gets to save itself: 120, 5m; else the chart's.",
    )
