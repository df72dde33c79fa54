"""Collections on this machine: as many results as were asked for, each once, and the same whatever is killed.

The job is a small one without torch. Not checked here: the book of units and the workload (tests/controller), what a worker
and a learner see (tests/worker), how fast results move (tests/benchmarks), pods (tests/e2e).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.study.conftest import Study, alive, kill, wait_until

from trialplane.client.run import RunHandle
from trialplane.wire.records import RunStatus
from trialplane.wire.states import RunState
from trialplane.wire.units import unit_seed

UNITS = 8
SEED = 5

# At the units in `hold` workers wait until the test lets them go on, with `waits` the learner does, before it reads.
# `flaws` says what workers do at which units: once, or always. What the learner has read is written down by iteration.
JOB = """
import hashlib
import json
import os
import threading
import time
from pathlib import Path

import numpy as np


def play(ctx):
    notes = Path(ctx.params["notes"])
    weights = 0.0 if ctx.weights is None else float(ctx.weights["w"].sum())
    if ctx.params["flaws"].get("start"):
        raise ValueError("these weights do not fit")
    for unit in ctx.units():
        partial = notes / f"partial-{ctx.worker}"
        partial.write_text(f"{unit.number} {os.getpid()}")
        partial.rename(notes / f"playing-{ctx.worker}")
        while unit.number in ctx.params["hold"] and not (notes / f"go-{unit.number}").exists():
            time.sleep(0.01)
        random = np.random.default_rng(unit.seed)
        value = {"board": random.random((4, 8, 8)), "moves": random.integers(0, 99, 20), "of": weights}
        value["ballast"] = np.zeros(ctx.params["size"], dtype=np.uint8)
        flaw = ctx.params["flaws"].get(str(unit.number), "")
        if flaw.startswith("once "):
            try:
                (notes / f"flawed-{unit.number}").touch(exist_ok=False)
            except FileExistsError:
                flaw = ""
        if flaw.endswith("raise"):
            raise ValueError("no legal move")
        if flaw.endswith("hang"):
            threading.Event().wait()
        if flaw.endswith("garbage"):
            value["board"] = object()
        if flaw.endswith("large"):
            value["ballast"] = np.zeros(70 << 20, dtype=np.uint8)
        if flaw.endswith("die"):
            os.kill(os.getpid(), 9)
        ctx.give(unit, value, items=len(value["moves"]))


def learn(ctx, results):
    notes = Path(ctx.params["notes"])
    (notes / "learner").write_text(str(os.getpid()))
    while ctx.params["waits"] and not (notes / "go-learner").exists():
        time.sleep(0.01)
    seen = {}
    for result in results:
        value = result.value
        assert not value["board"].flags.writeable
        assert result.unit not in seen
        content = hashlib.sha256(value["board"].tobytes() + value["moves"].tobytes()).hexdigest()
        seen[result.unit] = [float(value["board"].sum()), content, value["of"]]
        time.sleep(ctx.params["read"])
    assert len(seen) + results.failed == results.expected
    (notes / f"seen-{ctx.iteration}.json").write_text(json.dumps(seen))
    total = sum(seen[unit][0] for unit in sorted(seen))
    weights = np.zeros(1000) if ctx.weights is None else ctx.weights["w"]
    games = 0 if ctx.state is None else ctx.state["games"]
    assert games == ctx.iteration * (results.expected - ctx.params["fails"])
    return {"loss": total, "weights": {"w": weights + total}, "state": {"games": games + len(seen)}}
"""

SPEC = f"""
kind: collect
preload: [numpy]
params: {{notes: NOTES, hold: [], waits: false, read: 0.0, size: 0, fails: 0, flaws: {{}}}}
collect: {{units: {UNITS}, iterations: 2, workers: 2, learner: "train:learn", in_flight: 64Mi}}
resources: {{memory: 1Gi}}
seed: {SEED}
"""


def content_of(unit: int) -> str:
    """The hash of what `play` makes of a unit."""
    random = np.random.default_rng(unit_seed(SEED, unit))
    board, moves = random.random((4, 8, 8)), random.integers(0, 99, 20)
    return hashlib.sha256(board.tobytes() + moves.tobytes()).hexdigest()


class Collection(Study):
    """A study that is a collection."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.notes = root / "notes"
        self.notes.mkdir()
        self.write(JOB, SPEC.replace("NOTES", str(self.notes)))

    def begin(self, changes: Mapping[str, Any] | None = None, name: str = "toy") -> RunHandle:
        """Submits it with changes of its fields."""
        return self.submit(name, **(changes or {}))

    def seen(self, iteration: int) -> dict[str, tuple[float, str, float]]:
        """What the learner of an iteration has read: unit → sum of its board, hash of its arrays, sum of its weights."""
        content: dict[str, tuple[float, str, float]] = json.loads((self.notes / f"seen-{iteration}.json").read_text())
        return content

    def all_seen(self, iterations: int = 2) -> list[dict[str, tuple[float, str, float]]]:
        return [dict(sorted(self.seen(iteration).items())) for iteration in range(iterations)]

    def playing(self, worker: int = 0) -> tuple[int, int] | None:
        """The unit that a worker is at, and its pid."""
        try:
            unit, pid = (self.notes / f"playing-{worker}").read_text().split()
        except (OSError, ValueError):
            return None
        return int(unit), int(pid)

    def at_unit(self, unit: int) -> int:
        """Waits until a living worker is at that unit; gives its pid."""

        def there() -> int | None:
            found = [playing for worker in (0, 1) if (playing := self.playing(worker)) is not None]
            return next((pid for at, pid in found if at == unit and alive(pid)), None)

        return int(wait_until(there, f"unit {unit} is played"))

    def check(self, status: RunStatus, iterations: int = 2, units: int = UNITS) -> None:
        """It succeeded, and each iteration's learner has read each of its units once, bit for bit what its seed gives."""
        assert status.state is RunState.SUCCEEDED, status.reason
        assert (status.complete, status.failed) == (iterations, 0)
        for iteration in range(iterations):
            seen = {int(unit): content for unit, (_, content, _) in self.seen(iteration).items()}
            assert seen == {unit: content_of(unit) for unit in range(iteration * units, (iteration + 1) * units)}

    def let_go(self, who: int | str) -> None:
        """The worker that waits at a unit, or the "learner", goes on."""
        (self.notes / f"go-{who}").touch()

    def log(self) -> str:
        return self.files().controller_log.read_text()

    def learner(self) -> int:
        """Waits until a living learner reads; gives its pid."""

        def there() -> int | None:
            try:
                pid = int((self.notes / "learner").read_text())
            except (OSError, ValueError):
                return None
            return pid if alive(pid) else None

        return int(wait_until(there, "the learner reads"))


@pytest.fixture
def collection(study: Study, tmp_path: Path) -> Collection:
    made = Collection(tmp_path)
    made.handles = study.handles  # so that the fixture ends them
    return made


def failures(collection: Collection) -> list[tuple[int, str | None, bool]]:
    """Of each attempt: the iteration, its failure's class, and whether it is tried again."""
    return [(trial, failure, retried) for _, _, trial, _, failure, retried in collection.attempts()]


@pytest.mark.slow
def test_as_many_results_as_were_asked_for_and_the_same_for_the_same_seed(collection: Collection) -> None:
    run = collection.begin({"params.hold": [UNITS]})
    for worker in (0, 1):
        wait_until(lambda worker=worker: (collection.playing(worker) or (0, 0))[0] >= UNITS, f"worker {worker} has a unit")
    collection.let_go(UNITS)
    status = run.wait(600)
    collection.check(status)
    first = collection.all_seen()
    boards = [board for seen in first for board, _, _ in seen.values()]
    assert len(set(boards)) == 2 * UNITS, "no two units are alike"
    assert {of for _, _, of in first[0].values()} == {0.0}, "there are no weights before the first iteration has ended"
    (weights,) = {of for _, _, of in first[1].values()}
    assert weights == pytest.approx(1000 * sum(board for board, _, _ in first[0].values()))
    assert {
        name: status.progress.numbers[name] for name in ("iteration", "units", "units_total", "units_failed", "items")
    } == {
        "iteration": 1,
        "units": UNITS,
        "units_total": UNITS,
        "units_failed": 0,
        "items": 20 * UNITS,
    }
    assert (status.progress.spilled_bytes, status.progress.in_flight_bytes) == (0, 0)
    assert sum(worker.units for worker in status.progress.workers) == UNITS
    runs = collection.mlflow_runs()
    assert sorted(one["metrics"]["units"] for one in runs) == [UNITS] * 2
    assert all(one["metrics"]["units_per_second"] > 0 and one["metrics"]["loss"] > 0 for one in runs)
    assert all((collection.files().trial_log(1, 1, worker)).exists() for worker in (0, 1))


@pytest.mark.slow
def test_as_many_results_are_read_as_were_asked_for_whatever_is_killed_or_paused(collection: Collection) -> None:
    victims = ["worker", "worker's slot", "learner", "learner's slot", "controller", "nobody, it is paused"]
    units = 40
    holds = [iteration * units + 15 for iteration in range(len(victims))]
    run = collection.begin({"collect.units": units, "params.hold": holds, "collect.iterations": len(victims)})
    for victim, unit in zip(victims, holds, strict=True):
        pid = collection.at_unit(unit)
        if victim.startswith("learner"):
            pid = collection.learner()
        if victim.endswith("slot"):  # the actor above the template above the process
            parent = {process.pid: process.parent for process in collection.processes()}
            pid = parent[parent[pid]]
            assert pid in {process.pid for process in collection.slot_workers()}
        everyone = collection.pids()
        controller = collection.controller()
        assert controller
        if victim == "controller":
            kill(controller)
        elif victim.startswith("nobody"):
            run.stop()
            status = run.wait(600)
            assert status.state is RunState.PAUSED, status.reason
        else:
            kill(pid)
        if victim not in victims[:4]:
            wait_until(lambda pids=everyone: not any(alive(each) for each in pids), "nothing of the run is left")
            assert run.status().state is RunState.PAUSED
            run.resume()
        collection.let_go(unit)
    status = run.wait(600)
    collection.check(status, len(victims), units)
    again = [(2, "crashed"), (3, "lost"), (4, "lost"), (5, "stopped")]
    ended = [(iteration, None, False) for iteration in range(len(victims))]
    assert failures(collection) == sorted(
        [*((one, failure, True) for one, failure in again), *ended], key=lambda told: told[0]
    )
    for iteration, said in enumerate(("crashed", "lost")):
        assert re.search(
            rf"iteration {iteration}: worker \d at units? [\d, ]+: {said}: .*; "
            rf"its log is trials/000{iteration}/worker-\d.log",
            collection.log(),
        )
    assert status.progress.units_failed == 0


@pytest.mark.slow
def test_each_flaw_of_a_worker_has_its_outcome_and_too_many_end_the_run_which_a_resume_goes_on_with(
    collection: Collection,
) -> None:
    units, most = 40, 5
    flaws = {"3": "raise", "7": "hang", "11": "garbage", "15": "large", "19": "once die", "22": "die"}
    flaws |= {str(units + number): "once raise" for number in range(2, 2 + most + 1)}
    changes = {"collect.units": units, "collect.timeout": 20, "collect.max_failed": most}
    run = collection.begin({**changes, "params.flaws": flaws, "params.fails": most})
    status = run.wait(600)
    failed = {3, 7, 11, 15, 22}
    assert set(map(int, collection.seen(0))) == set(range(units)) - failed
    log = collection.log()
    assert "the learner is warm after" in log
    for unit, said in {
        3: "error: ValueError: no legal move",
        7: "timeout: ",
        11: "garbage",
        15: "the result of unit 15 is 73.4 MB",
        22: "crashed: ",
    }.items():
        lines = [line for line in log.splitlines() if f"unit {unit}" in line]
        assert lines, (unit, log)
        assert unit == 11 or any(said in line for line in lines), lines
    assert "raise it (`--set collect.in_flight=2Gi`)" in log

    assert status.state is RunState.FAILED
    match = re.fullmatch(
        r"iteration 1 failed \(error\): unit \d+, by worker (\d): ValueError: no legal move.*; "
        r"`platform logs toy 1 --worker \d` shows its log \(trials/0001/worker-\d\.log\); "
        rf"{most + 1} units of {units} failed, more than collect.max_failed = {most}; `platform resume toy` retries it",
        status.reason,
    )
    assert match, status.reason
    worker = int(match[1])
    assert "ValueError: no legal move" in collection.files().trial_log(1, 1, worker).read_text()
    assert not (collection.notes / "seen-1.json").exists()

    run.resume()
    status = run.wait(600)
    assert status.state is RunState.SUCCEEDED, status.reason
    assert set(map(int, collection.seen(1))) == set(range(units, 2 * units))
    assert failures(collection) == [(0, None, False), (1, "error", False), (1, None, False)]


@pytest.mark.slow
def test_back_pressure_holds_and_the_controller_does_not_grow(collection: Collection) -> None:
    """A worker is much faster than the learner; ten iterations of results that the controller must not hold."""
    limit, size = 8 << 20, 3 << 20
    changes = {"collect.in_flight": "8Mi", "collect.iterations": 10, "collect.workers": 1}
    run = collection.begin({**changes, "params.read": 0.02, "params.waits": True, "params.size": size})
    wait_until(lambda: run.status().progress.in_flight_bytes >= 2 * size, "workers are held")
    collection.let_go("learner")
    flights: list[float] = []
    sizes: dict[int, int] = {}

    def watched() -> bool:
        status = run.status()
        if status.progress.iteration is not None:
            flights.append(status.progress.in_flight_bytes)
            pid = collection.controller()
            if pid is not None and status.state is RunState.RUNNING:
                pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
                sizes[status.progress.iteration] = pages * os.sysconf("SC_PAGE_SIZE")
        return status.state.is_ended

    wait_until(watched, "the collection has ended")
    collection.check(run.status(), 10)
    assert max(flights) <= limit
    assert run.status().progress.spilled_bytes == 0
    last, first = sizes[max(sizes)], sizes[2 if 2 in sizes else min(sizes)]
    assert last - first < UNITS * size / 2, f"{(last - first) / 1e6:.1f} MB more: less than half of one iteration's results"


@pytest.mark.slow
def test_a_writer_of_files_that_is_killed_goes_on_with_those_it_has(collection: Collection, tmp_path: Path) -> None:
    files = tmp_path / "games"
    spec = SPEC.replace("NOTES", str(collection.notes))
    collection.write(JOB, spec.replace('learner: "train:learn"', f"write: {{format: npz, shard: 64Ki, to: {files}}}"))
    run = collection.begin({"collect.units": 40, "collect.iterations": 1, "params.hold": [30], "params.size": 20_000})
    collection.at_unit(30)
    wait_until(lambda: len(list(files.rglob("shard-*.json"))) >= 3, "three files are complete")
    # A slot's name is that of the folder its trials work in.
    (writer,) = [
        each.pid for each in collection.trials() if Path(f"/proc/{each.pid}/cwd").readlink().name.startswith("learner")
    ]
    kill(writer)
    before = {file: file.stat().st_mtime_ns for file in files.rglob("shard-*.npz") if file.with_suffix(".json").exists()}
    collection.let_go(30)
    status = run.wait(600)
    assert status.state is RunState.SUCCEEDED, status.reason
    (manifest,) = files.rglob("MANIFEST.json")
    assert json.loads(manifest.read_text())["expected"] == 40
    units = [unit for file in files.rglob("shard-*.json") for unit in json.loads(file.read_text())["units"]]
    assert sorted(units) == list(range(40))
    assert {file: file.stat().st_mtime_ns for file in before} == before
    assert status.progress.units == 40
    assert 0 < status.progress.items < 40 * 20, "what is on disk was not played again"
