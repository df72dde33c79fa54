"""Results as files: what is in them, that an iteration's are complete or known not to be, and what another attempt keeps.

Not checked here: how results come (test_collect.py).
"""

from __future__ import annotations

import hashlib
import json
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import parquet
from tests.worker.collecting import Collecting

from trialplane import errors
from trialplane.job.kinds.collection import Write
from trialplane.wire.states import FailureClass, TrialState
from trialplane.worker import context
from trialplane.worker.collect import shards
from trialplane.worker.collect.learner import Result, Results


class Given:
    """Results that are there already."""

    failed = 1

    def __init__(self, results: Sequence[Result]) -> None:
        self._results = iter(results)

    def next(self) -> Result | None:
        return next(self._results, None)


def game(number: int, **more: Any) -> Result:
    states = np.full((number + 1, 2, 2), number, dtype=np.float32)
    value = {"states": states, "moves": {"from": np.arange(number + 1)}, "end": "mate", "score": 0.5, **more}
    return Result(number, 3, number + 1, value)


def written(place: str, results: Sequence[Result], **options: Any) -> shards.Shards:
    files = shards.Shards(Write(**options), place, "games", 2)
    files.write(Results(len(results) + 1, Given(results)))
    return files


def manifest(folder: Path) -> dict[str, Any]:
    said: dict[str, Any] = json.loads((folder / "MANIFEST.json").read_text())
    return said


def test_npz(tmp_path: Path) -> None:
    files = written(str(tmp_path), [game(0), game(1), game(2)])
    folder = tmp_path / "games/iteration-0002"
    assert files.location == str(folder)
    said = manifest(folder)
    (shard,) = said["shards"]
    assert (said["expected"], said["units"], said["failed"], said["rows"]) == (4, 3, 1, 3)
    assert (shard["file"], shard["units"], shard["items"]) == ("shard-00000.npz", [0, 1, 2], 6)
    data = (folder / shard["file"]).read_bytes()
    assert (shard["bytes"], shard["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())
    with np.load(folder / shard["file"]) as found:
        np.testing.assert_array_equal(found["2/states"], np.full((3, 2, 2), 2, dtype=np.float32))
        np.testing.assert_array_equal(found["2/moves/from"], [0, 1, 2])
        assert (str(found["1/end"]), float(found["1/score"])) == ("mate", 0.5)


def test_parquet(tmp_path: Path) -> None:
    written(str(tmp_path), [game(0), game(1), game(2)], format="parquet")
    folder = tmp_path / "games/iteration-0002"
    assert manifest(folder)["rows"] == 6
    table = parquet.read_table(folder / "shard-00000.parquet")
    assert table.column_names == ["unit", "worker", "states", "moves/from", "end", "score"]
    assert table["unit"].to_pylist() == [0, 1, 1, 2, 2, 2]
    assert table["states"].to_pylist()[5] == [2.0] * 4
    assert table.schema.field("states").metadata[b"shape"] == b"2,2"
    assert table["end"].to_pylist() == ["mate"] * 6


def test_shards_end_when_they_are_full(tmp_path: Path) -> None:
    results = [game(number, more=np.zeros(1000)) for number in range(5)]
    files = written(str(tmp_path), results, shard="10k")
    assert [shard.units for shard in files.shards] == [(0, 1), (2, 3), (4,)]


@pytest.mark.parametrize(
    ("second", "said"),
    [
        (game(1, more=np.zeros(2)), "more is double and was missing"),
        (Result(1, 0, 3, game(1).value), "unit 1 has 3 items, and states has the shape (2, 2, 2)"),
    ],
)
def test_a_table_says_what_does_not_fit(tmp_path: Path, second: Result, said: str) -> None:
    with pytest.raises(context.Invalid) as caught:
        written(str(tmp_path), [game(0), second], format="parquet")
    assert said in str(caught.value)
    assert not list((tmp_path / "games/iteration-0002").iterdir()), "no half of a shard"


def test_another_attempt_keeps_what_is_complete(tmp_path: Path) -> None:
    def fails() -> Iterator[Result]:
        yield game(0, more=np.zeros(1000))
        yield game(1, more=np.zeros(1000))
        yield game(2)
        raise KeyboardInterrupt

    first = shards.Shards(Write(shard="10k"), str(tmp_path), "games", 2)
    with pytest.raises(KeyboardInterrupt):
        first.write(Results(4, Given(fails())))  # type: ignore[arg-type]
    folder = tmp_path / "games/iteration-0002"
    assert not (folder / "MANIFEST.json").exists()
    before = (folder / "shard-00000.npz").stat().st_mtime_ns
    (folder / "shard-00001.npz").write_bytes(b"whole, but nobody has said so")
    second = shards.Shards(Write(shard="10k"), str(tmp_path), "games", 2)
    assert second.units == {0, 1}
    second.write(Results(4, Given([game(1), game(3), game(2)])))
    assert (folder / "shard-00000.npz").stat().st_mtime_ns == before
    assert [shard["units"] for shard in manifest(folder)["shards"]] == [[0, 1], [3, 2]], "unit 1 is not there twice"


def test_a_url(tmp_path: Path) -> None:
    place = f"local://{tmp_path}"  # fsspec's own name for a folder, so a URL like any other
    written(place, [game(0), game(1)], format="parquet")
    assert parquet.read_table(tmp_path / "games/iteration-0002/shard-00000.parquet").num_rows == 3
    again = shards.Shards(Write(format="parquet"), place, "games", 2)
    assert again.units == {0, 1}


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "games").write_text("no folder")
    with pytest.raises(errors.CacheError, match=r"could not be written to .*iteration-0002.*platform resume"):
        written(str(tmp_path), [game(0)])


def test_the_learner_of_a_crew_writes(tmp_path: Path) -> None:
    learner = "trialplane.worker.collect.shards:write"
    to = tmp_path / "data"
    write = {"format": "npz", "shard": "1k", "to": str(to)}
    with Collecting(tmp_path, workers=2, run="shards", learner=learner, write=write) as run:

        def kill(place: Any, event: Any) -> None:
            if place is run.learner and len(run.taken) > 20:
                run.learner.slot.kill(FailureClass.CRASHED, "killed by the test")

        run.on_event = kill
        outcome = run.run(0, units=40)
        assert (outcome.failure, outcome.exit_code) == (FailureClass.CRASHED, -signal.SIGKILL)
        folder = to / "shards/iteration-0000"
        complete = len(list(folder.glob("*.json")))
        assert complete > 0
        run.on_event = lambda place, event: None
        again = run.run(0, attempt=2, units=40)
        assert (again.state, again.message) == (TrialState.COMPLETE, "")
        units = [unit for shard in manifest(folder)["shards"] for unit in shard["units"]]
        assert sorted(units) == list(range(40))
        assert sorted(set(run.taken)) == list(range(40))
        assert "of an earlier attempt are in" in run.log("0000/attempt-2.log")
        assert not list(folder.glob("*.part"))
