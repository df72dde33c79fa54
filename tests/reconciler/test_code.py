"""The code of a Run in several ConfigMaps: all are there, joined they are what the Run says, and they go with it.

Code in one of them that is not as the Run says is in test_reconciler; what a pod makes of them, in
tests/controller/test_places.py.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from trialplane.reconciler.reconciler import ARRIVING, LIVING
from trialplane.wire import cluster as names

from .conftest import Team

MAPS = ["a-code", "a-code-1", "a-code-2"]
Maps = dict[str, dict[str, Any]]


@pytest.fixture(name="large")
def _large(team: Team) -> Team:
    """A namespace with a Run whose packed code takes three ConfigMaps."""
    (team.folder / "table.bin").write_bytes(random.Random(0).randbytes(2 * 2**20))
    team.apply()
    assert team.cluster.objects["runs"]["a"]["spec"]["code"]["configMaps"] == MAPS
    return team


def test_all_parts_are_recorded_mounted_and_owned(large: Team) -> None:
    assert large.settle()["state"] == "Running"
    assert large.namespace.studies["a"].code == large.plan().pack.data
    uid = large.cluster.objects["runs"]["a"]["metadata"]["uid"]
    for name in MAPS:
        (owner,) = large.cluster.objects["configmaps"][name]["metadata"]["ownerReferences"]
        assert owner["uid"] == uid, name
    spec = large.ray_clusters["a"]["spec"]
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        (volume,) = [one for one in group["template"]["spec"]["volumes"] if one["name"] == "code"]
        assert volume["projected"]["sources"] == [{"configMap": {"name": name}} for name in MAPS]
    large.cluster.remove("runs", "a")
    assert not set(MAPS) & set(large.cluster.objects["configmaps"])


def _swapped(maps: Maps) -> None:
    first, second = (next(iter(maps[name]["binaryData"].values())) for name in MAPS[:2])
    maps[MAPS[0]]["binaryData"], maps[MAPS[1]]["binaryData"] = {names.CODE_KEY: second}, {f"{names.CODE_KEY}.1": first}


def _under_another_key(maps: Maps) -> None:
    maps[MAPS[1]]["binaryData"] = {names.CODE_KEY: maps[MAPS[1]]["binaryData"][f"{names.CODE_KEY}.1"]}


@pytest.mark.parametrize(
    ("spoil", "reason", "part"),
    [
        (lambda maps: maps.pop(MAPS[1]), "CodeMissing", "the ConfigMap a-code-1 with code.tar.gz.1 is not there yet"),
        (lambda maps: [maps.pop(name) for name in MAPS[1:]], "CodeMissing", "a-code-1 with code.tar.gz.1, a-code-2 with"),
        (_under_another_key, "CodeMissing", "the ConfigMap a-code-1 with code.tar.gz.1 is not there yet"),
        (_swapped, "CodeMismatch", "in the ConfigMaps a-code, a-code-1, a-code-2: the packed code is damaged"),
    ],
)
def test_code_that_is_not_all_there_starts_nothing(
    large: Team, spoil: Callable[[Maps], Any], reason: str, part: str
) -> None:
    spoil(large.cluster.objects["configmaps"])
    assert large.settle()["state"] == ("Pending" if reason == "CodeMissing" else "Invalid")
    held, why, message = large.condition("Accepted")
    assert (held, why) == ("False", reason)
    assert part in message
    assert not large.ray_clusters and not large.namespace.studies
    there = set(MAPS) & set(large.cluster.objects["configmaps"])
    large.cluster.remove("runs", "a")
    assert there and not there & set(large.cluster.objects["configmaps"]), "the parts that were there go with the Run"


def test_a_cut_that_the_pods_would_not_mount_is_refused(large: Team) -> None:
    """They mount one ConfigMap for each MiB: an empty fourth would be left out, or would be a part too few."""
    maps = large.cluster.objects["configmaps"]
    large.cluster.put(
        "configmaps",
        {
            **maps[MAPS[2]],
            "metadata": {**maps[MAPS[2]]["metadata"], "name": "a-code-3"},
            "binaryData": {"code.tar.gz.3": ""},
        },
    )
    digest = large.plan().pack.sha256
    large.change(code={"configMaps": [*MAPS, "a-code-3"], "sha256": digest})
    large.settle()
    assert large.condition("Accepted")[1:] == (
        "CodeMismatch",
        "spec.code.configMaps names 4, but the code needs 3 of 1 MiB; submit the run again",
    )


def test_code_that_unpacks_without_end_is_not_read_to_its_end(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    from trialplane.plan import pack

    team.apply()
    monkeypatch.setattr(pack, "MAX_UNPACKED", 1024)
    team.settle()
    assert team.condition("Accepted")[1] == "CodeMismatch"
    assert "it is larger than 0 MiB" in team.condition("Accepted")[2]


def test_code_that_was_never_run_goes_with_its_run(team: Team) -> None:
    team.apply()
    team.change(code={"configMaps": ["a-code"], "sha256": "0" * 64})
    team.settle()
    team.cluster.remove("runs", "a")
    assert "a-code" not in team.cluster.objects["configmaps"]


def test_a_run_starts_once_what_was_wrong_with_it_is_right(team: Team) -> None:
    team.apply()
    code = team.cluster.objects["configmaps"].pop("a-code")
    assert team.settle()["state"] == "Pending"
    assert team.reconciler.reconcile("a") == ARRIVING, "its code is being applied"
    team.later += 60
    assert team.reconciler.reconcile("a") == LIVING
    team.cluster.put("configmaps", code)
    assert team.settle()["state"] == "Running"
    assert team.condition("Accepted")[0] == "True"
