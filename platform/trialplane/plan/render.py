"""From a plan and a site to the objects of a run, as Kubernetes takes them; `submit` sends what `--dry-run` prints.

The RayJob owns the ConfigMaps, so that one delete removes everything; as it has no uid before it is created, `owned` adds
it afterwards.
"""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from trialplane.plan import pack as packing
from trialplane.plan import pods, rayjob
from trialplane.plan.plan import Plan
from trialplane.plan.site import Site
from trialplane.wire import cluster
from trialplane.wire.paths import RunPaths

_FILES = RunPaths(Path())  # for the names of files only: in the pods they are again what they are in a run's folder


def manifests(plan: Plan, site: Site, submitted: float) -> list[dict[str, Any]]:
    """The RayJob, then the ConfigMaps with its spec and its code, of which there is one for each MiB.

    Args:
        plan: of the run.
        site: what the chart installed there.
        submitted: seconds since the epoch.
    """
    facts = json.dumps(plan.submission(submitted), ensure_ascii=False)
    spec = {_FILES.job.name: plan.job.model_dump_json(), _FILES.submission.name: facts}
    made = [
        rayjob.rayjob(plan, site),
        _config_map(plan, plan.run, {"data": spec}),
        *_code_maps(plan),
    ]
    if site.namespace:
        for one in made:
            one["metadata"]["namespace"] = site.namespace
    return made


def owned(made: Sequence[dict[str, Any]], uid: str) -> list[dict[str, Any]]:
    """The manifests with the RayJob as owner of the others.

    Args:
        made: by `manifests`.
        uid: of the RayJob in the cluster.
    """
    (owner,) = (one for one in made if one["kind"] == "RayJob")
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": uid,
    }
    result = copy.deepcopy(list(made))
    for one in result:
        if one["kind"] != "RayJob":
            one["metadata"]["ownerReferences"] = [dict(reference)]
    return result


def as_yaml(made: Sequence[dict[str, Any]]) -> str:
    """The manifests as one stream for `kubectl apply --server-side -f -`."""
    return yaml.dump_all(made, Dumper=_Dumper, sort_keys=False, allow_unicode=True, explicit_start=True, width=120)


def _code_maps(plan: Plan) -> Iterator[dict[str, Any]]:
    parts = plan.pack.parts
    for number, part in enumerate(parts):
        code = {packing.part_name(cluster.CODE_KEY, number): base64.b64encode(part).decode("ascii")}
        made = _config_map(plan, cluster.code_map(plan.run, number), {"binaryData": code})
        if len(parts) > 1 and number == 0:
            made["metadata"]["annotations"] = {cluster.CODE_PARTS: str(len(parts))}
        yield made


def _config_map(plan: Plan, name: str, content: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "labels": pods.labels(plan)},
        **content,
    }


class _Dumper(yaml.SafeDumper):
    """Writes repeated values in full: no anchors, which would confuse readers."""

    def ignore_aliases(self, data: Any) -> bool:
        return True
