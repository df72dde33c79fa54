"""Workers and a learner in real slots, without Ray: how results, weights and state go, and how each may fail.

Not checked here: who hands units out again (tests/controller); the files that results lie in (test_segments.py); shards.
"""

from __future__ import annotations

import queue
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.worker.collecting import RUN, SHARED, Collecting, Place, shared_memory
from tests.worker.conftest import Event, alive, wait_until

from trialplane.wire.states import FailureClass, TrialState
from trialplane.wire.units import BATCH_BYTES, BATCH_RESULTS, Unit
from trialplane.worker.collect.exchange import Exchange


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collecting]:
    """One warm run for all tests of this module: that they do not disturb each other is the point."""
    with Collecting(tmp_path_factory.mktemp("run"), workers=2) as run:
        assert run.learner.ready.unclean == ()
        assert run.workers[0].ready.unclean == ()
        yield run
    assert shared_memory() == [], "nothing is left in this node's memory"


@pytest.fixture(autouse=True)
def _undisturbed(run: Collecting) -> Iterator[None]:
    run.failures, run.results, run.timeout = [], {}, 300.0
    run.on_event = lambda place, event: None
    run.limit, run.giant = 4, None
    shutil.rmtree(run.root / "checkpoints", ignore_errors=True)
    try:
        yield
        assert not [path for path in (run.root / "scratch").glob("*") if path.name != "memory"]
    finally:
        run.stop()  # what a test that failed has left running


def test_every_result_arrives_once_and_as_it_was(run: Collecting) -> None:
    outcome = run.run(0, units=12)
    assert (outcome.state, outcome.message) == (TrialState.COMPLETE, "")
    assert sorted(run.taken) == list(range(12))
    assert sorted(int(name) for name in run.results["seen"]) == list(range(12))
    for name, value in run.results["seen"].items():
        expected = np.random.default_rng(1000 + int(name)).random((5, 3), dtype=np.float32)
        np.testing.assert_array_equal(value["states"], expected)
        assert value["end"] == "mate"
    assert run.failures == []
    assert [worker.outcome.state for worker in run.workers if worker.outcome] == [TrialState.COMPLETE] * 2


def test_weights_and_state_go_to_the_next_iteration(run: Collecting) -> None:
    first = run.run(0)
    assert first.metrics["before"] == -1.0
    second = run.run(1)
    assert second.metrics["before"] == 6.0
    value = run.results["seen"]["6"]["states"]
    np.testing.assert_allclose(value, np.random.default_rng(1000).random((5, 3), dtype=np.float32) + 10.0)
    steps = sorted(path.name for path in (run.root / f"checkpoints/{RUN}/trial-0").iterdir())
    assert steps == ["step-0000000001", "step-0000000002"]
    assert run.run(2).metrics["iteration"] == 2.0
    steps = sorted(path.name for path in (run.root / f"checkpoints/{RUN}/trial-0").iterdir())
    assert steps == ["step-0000000002", "step-0000000003"], "the last two"


def test_an_iteration_that_is_done_again_starts_where_it_did(run: Collecting) -> None:
    run.run(0)
    run.run(1, units=4)
    again = run.run(1, units=4, attempt=2)
    assert again.metrics["before"] == 6.0, "what iteration 0 left, not what the first attempt at this one did"
    found = sorted(path.name for path in (run.root / f"checkpoints/{RUN}/trial-0").iterdir())
    assert found == ["step-0000000001", "step-0000000002.1"]


def test_what_is_not_returned_stays(run: Collecting) -> None:
    run.run(0)
    assert run.run(1, learn="nothing").state is TrialState.COMPLETE
    assert run.run(2).metrics["before"] == 6.0


def test_an_iteration_without_its_checkpoint_says_so(run: Collecting) -> None:
    outcome = run.run(3)
    assert outcome.failure is FailureClass.ERROR
    assert "the checkpoint for iteration 3 is missing from" in outcome.message
    assert "trial-0" in outcome.message


def test_a_damaged_checkpoint_is_named(run: Collecting) -> None:
    run.run(0)
    file = run.root / f"checkpoints/{RUN}/trial-0/step-0000000001/weights.packed"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    outcome = run.run(1)
    assert outcome.failure is FailureClass.ERROR
    assert f"{file} is cut or changed" in outcome.message


def test_a_run_resumes_from_another_one(run: Collecting) -> None:
    run.run(0)
    other = run.root.parent / "before/checkpoints/before/trial-0"
    shutil.copytree(run.root / f"checkpoints/{RUN}/trial-0", other)
    shutil.rmtree(run.root / "checkpoints")
    (other / "step-0000000009").mkdir()  # not complete
    outcome = run.run(0, resume="before")
    assert outcome.metrics["before"] == 6.0
    np.testing.assert_array_less(9.9, run.results["seen"]["0"]["states"])


def test_weights_are_one_file_for_all_workers_of_a_node(run: Collecting) -> None:
    run.run(0)
    assert run.run(1, play="looks_at_weights", units=8).state is TrialState.COMPLETE
    seen = run.results["seen"].values()
    assert {value["file"].startswith("/dev/shm/") for value in seen} == {True}
    assert len({value["file"] for value in seen}) == 1
    assert {value["writable"] for value in seen} == {False}
    assert not Path(next(iter(seen))["file"]).exists(), "gone with the last one who needs it"


def test_weights_that_have_been_fetched_take_no_memory_of_their_learner(run: Collecting) -> None:
    run.run(0)
    outcome = run.run(1, learn="lists_own_files")
    assert outcome.state is TrialState.COMPLETE, outcome.message
    assert outcome.metrics["files"] == 0.0


def test_units_are_taken_in_batches(run: Collecting) -> None:
    asked: list[int] = []
    run.on_event = lambda place, event: asked.append(event.wants)
    assert run.run(0, play="batches", units=30).state is TrialState.COMPLETE
    assert sorted(run.taken) == list(range(30))
    assert sum(asked) <= 30 + 2 * (8 + BATCH_RESULTS), "asking again without waiting does not multiply"


def test_generators_are_seeded_by_the_unit(run: Collecting) -> None:
    run.run(0, play="seeded", units=6)
    for name, value in run.results["seen"].items():
        np.random.seed(1000 + int(name))
        np.testing.assert_array_equal(value["drawn"], np.random.random(3))


def test_a_worker_killed_in_the_middle_of_a_result(run: Collecting) -> None:
    outcome = run.run(0, play="killed", at=3, units=8)
    assert outcome.state is TrialState.COMPLETE
    (failure,) = run.failures
    assert (failure.failure, failure.exit_code) == (FailureClass.CRASHED, -signal.SIGKILL)
    assert sorted(run.taken) == [0, 1, 2, 4, 5, 6, 7], "the other one went on"
    assert outcome.metrics["failed"] == 1.0


def test_a_worker_that_raises_loses_nothing_that_it_gave(run: Collecting) -> None:
    run.limit = 1
    outcome = run.run(0, play="raises", at=5, units=8)
    assert outcome.state is TrialState.COMPLETE
    (failure,) = run.failures
    assert (failure.failure, failure.message.partition(" (")[0]) == (FailureClass.ERROR, "ValueError: no legal move")
    assert "no legal move" in failure.traceback
    assert sorted(run.taken) == [0, 1, 2, 3, 4, 6, 7]
    worker = next(index for index, worker in enumerate(run.workers) if worker.outcome is failure)
    assert failure.log == f"trials/0000/worker-{worker}.log"
    assert "no legal move" in run.log(f"0000/worker-{worker}.log")


def test_a_worker_stays_until_its_results_are_fetched(run: Collecting) -> None:
    """Its process holds them: one that ended first would lose what it has given."""
    (place,) = run.workers[:1]
    place.start(run.request(0, 1, 9, 0, play="raises", at=1))
    handed = 0
    while handed < 2:
        _, event = run.events.get(timeout=300)
        if event.wants:
            place.slot.hand([Unit(handed, 1)], False)
            handed += 1
    while not event.offers:
        _, event = run.events.get(timeout=300)
        assert event.outcome is None
    held = place.slot.exchange
    assert held is not None
    wait_until(lambda: held.deadline is None, "it has said that its function has ended")
    with pytest.raises(queue.Empty):
        run.events.get(timeout=0.5)
    assert place.slot.fetch([0, 1])[0].nbytes > 60
    place.slot.release([0])
    outcome = run.events.get(timeout=300)[1].outcome
    assert outcome is not None
    assert outcome.failure is FailureClass.ERROR
    assert not place.slot.fetch([0])


def test_garbage_is_invalid_and_says_where_it_is(run: Collecting) -> None:
    run.run(0, play="garbage", at=2)
    (failure,) = run.failures
    assert failure.failure is FailureClass.INVALID
    assert "unit 2: result['states'][1]['model'] is a builtins.object" in failure.message
    assert "(train.py:" in failure.message


def test_one_giant_result(run: Collecting) -> None:
    """2 GB of zeros: offered as any other, and refused without a copy of it; the next ones come through."""
    run.giant = 1 << 30
    outcome = run.run(0, play="giant", at=1, bytes=2_000_000_000)
    assert (outcome.state, outcome.metrics["failed"]) == (TrialState.COMPLETE, 1.0)
    assert sorted(run.taken) == [0, 2, 3, 4, 5]


def test_a_jobs_own_checkpoints_are_those_of_all_iterations(run: Collecting) -> None:
    run.run(0, learn="saves")
    assert run.run(1, learn="saves").metrics["found"] == 1.0
    assert (run.root / f"checkpoints/{RUN}/trial-0/own/0").exists()


def test_units_that_are_kept_and_given_twice(run: Collecting) -> None:
    run.run(0, play="keeps")
    assert {failure.failure for failure in run.failures} == {FailureClass.INVALID}
    assert any("returned without giving 1 unit that it had taken (0)" in failure.message for failure in run.failures)
    run.failures = []
    run.run(0, play="twice")
    assert {failure.failure for failure in run.failures} == {FailureClass.ERROR}
    assert "has given it already" in run.failures[0].message


def test_a_worker_that_hangs(run: Collecting, monkeypatch: pytest.MonkeyPatch) -> None:
    all_hang = threading.Event()
    deadline = Exchange.deadline.fget  # type: ignore[attr-defined]
    monkeypatch.setattr(Exchange, "deadline", property(lambda held: deadline(held) if all_hang.is_set() else None))
    monkeypatch.setattr("trialplane.worker.running.ABORT_GRACE", 60.0)
    run.timeout = 0.5
    run.begin(0, play="hangs", units=2)
    while not (run.open[0] and run.open[1]):
        run.step()
    for index in range(2):
        wait_until(lambda index=index: "hanging in unit" in run.log(f"0000/worker-{index}.log"), "it hangs")
    all_hang.set()
    outcome = run.rest()
    assert outcome.state is TrialState.COMPLETE
    assert [failure.failure for failure in run.failures] == [FailureClass.TIMEOUT] * 2
    assert "had no result within its limit of 0.5 s" in run.failures[0].message
    for failure in run.failures:
        assert "most recent call first" in run.log(Path(failure.log).relative_to("trials").as_posix())


def test_who_has_given_all_it_had_is_not_late(run: Collecting, tmp_path: Path) -> None:
    """Its function has returned, and it stays until its result is fetched."""
    run.timeout = 300.0
    (place,) = run.workers[:1]
    run.iteration = 0
    place.start(run.request(0, 1, 9, 0, play="once"))
    offered = False
    while not offered:
        _, event = run.events.get(timeout=300)
        if event.wants:
            place.slot.hand([Unit(0, 1)], False)
        offered = bool(event.offers)
    held = place.slot.exchange
    assert held is not None
    wait_until(lambda: held.deadline is None, "it has said that its function has returned")
    place.slot.release([0])
    outcome = None
    while outcome is None:
        outcome = run.events.get(timeout=300)[1].outcome
    assert outcome.state is TrialState.COMPLETE


@pytest.mark.parametrize(("size", "most"), [(BATCH_BYTES // 2, 2), (8, BATCH_RESULTS)])
def test_who_waits_for_others_is_not_late(run: Collecting, tmp_path: Path, size: int, most: int) -> None:
    """It has as much on offer that nobody fetches as it may, or no unit to do."""
    run.timeout = 300.0
    (place,) = run.workers[:1]
    first, idle = run.request(0, 1, 9, 0, play="many", file=str(tmp_path / "given"), bytes=size), run.request(0, 1, 9, 1)
    run.iteration = 0
    place.start(first)
    run.workers[1].start(idle)
    said = set()
    while said != set(run.workers):
        source, _ = run.events.get(timeout=300)  # that it wants some
        said.add(source)
    # Those that it offers, and one that it cannot give.
    place.slot.hand([Unit(number, 1) for number in range(most + 1)], False)
    held = place.slot.exchange
    assert held is not None
    other = run.workers[1].slot.exchange
    assert other is not None
    given = tmp_path / "given"
    wait_until(lambda: given.exists() and given.read_text() in (str(most - 2), str(most - 1)), "it has offered what it may")
    wait_until(lambda: held.deadline is None, "it waits")
    wait_until(lambda: other.deadline is None, "the other one waits for a unit")
    place.slot.release([0])
    wait_until(lambda: given.read_text() == str(most), "there is room for the next")
    run.stop()


def test_a_learner_that_is_killed_leaves_the_iteration_to_another_attempt(run: Collecting) -> None:
    run.run(0)
    outcome = run.run(1, learn="killed")
    assert (outcome.failure, outcome.exit_code) == (FailureClass.CRASHED, -signal.SIGKILL)
    again = run.run(1, attempt=2)
    assert (again.state, again.metrics["before"]) == (TrialState.COMPLETE, 6.0)


@pytest.mark.parametrize(
    ("learn", "failure", "said"),
    [
        ("wrong", FailureClass.INVALID, "learn(ctx, results) returned a float"),
        ("unpackable", FailureClass.ERROR, "weights['net'] is a builtins.object"),
    ],
)
def test_what_a_learner_may_return(run: Collecting, learn: str, failure: FailureClass, said: str) -> None:
    outcome = run.run(0, learn=learn)
    assert outcome.failure is failure
    assert said in outcome.message
    assert not list((run.root / "checkpoints").rglob("COMPLETE"))


def test_views_that_are_kept_stay_as_they_were(run: Collecting) -> None:
    outcome = run.run(0, learn="keeps", units=20)
    assert outcome.message == ""
    assert (outcome.metrics["equal"], outcome.metrics["count"]) == (1.0, 20.0)


def test_files_are_used_again_when_nobody_looks_at_them(run: Collecting) -> None:
    outcome = run.run(0, learn="drops", units=40)
    assert outcome.state is TrialState.COMPLETE, outcome.message
    assert outcome.metrics["files"] < 12


def test_a_worker_may_listen_to_sigterm_and_leave(run: Collecting, tmp_path: Path) -> None:
    file = tmp_path / "seen"
    run.begin(0, play="listens", file=str(file), units=2)
    while not file.exists() or run.waiting:
        run.step()
    run.workers[0].slot.stop("paused")
    run.workers[1].slot.stop("paused")
    while run.learner.outcome is None or any(worker.outcome is None for worker in run.workers):
        run.step()
    for worker in run.workers:
        assert worker.outcome is not None
        assert worker.outcome.failure in (FailureClass.LOST, None)


def test_a_learner_that_waits_hears_sigterm(run: Collecting, tmp_path: Path) -> None:
    file = tmp_path / "seen"
    run.limit = 1

    def stop(place: Place, event: Event) -> None:
        if place is run.learner and event.took:
            run.limit = 0
            run.learner.slot.stop("paused")

    run.on_event = stop
    outcome = run.run(0, learn="listens", file=str(file))
    assert (outcome.failure, outcome.message) == (FailureClass.LOST, "paused: stopped by SIGTERM while it waited")
    assert not list((run.root / "checkpoints").rglob("COMPLETE"))


def test_a_slot_that_is_gone_ends_its_process(tmp_path: Path) -> None:
    with Collecting(tmp_path) as run:
        run.begin(0, play="hangs", units=1)
        while not run.open[0]:
            run.step()
        (worker,) = run.workers
        template = worker.slot.template
        assert template is not None
        pid = worker.slot.running.pid  # type: ignore[union-attr]
        template.kill()
        while worker.outcome is None:
            run.step()
        assert worker.outcome.failure is FailureClass.LOST
        wait_until(lambda: not alive(pid), "its process has ended")
        while run.learner.outcome is None:
            run.step()


def test_what_a_killed_slot_left_in_memory_is_swept(run: Collecting) -> None:
    """A lock ends with its process, however that dies."""
    left = Path(SHARED, f"{RUN}-77-left")
    left.mkdir(parents=True)
    (left / "1-0").write_bytes(b"x" * 100)
    weights = left.with_name(f"{RUN}-77-1-100.weights")
    weights.write_bytes(b"x" * 100)
    run.run(0)
    assert not left.exists()
    assert not weights.exists()
