"""A slot that shares no folder with the controller: where it gets the job's code, and what it sends of a trial's files.

Not checked here: Ray, and the controller that gets it (tests/study/test_cluster.py).
"""

from __future__ import annotations

import dataclasses
import json
import sqlite3
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.worker.conftest import Bench, Event, Slot

from trialplane import errors
from trialplane.plan import pack
from trialplane.wire import env, labels
from trialplane.wire.paths import RunPaths
from trialplane.wire.records import SlotConfig, TrialRequest
from trialplane.worker import running, shipping

CODE = """
import time
from pathlib import Path

def run(ctx):
    print("start")
    what = ctx.params["what"]
    if what == "much":
        for _ in range(3):
            print("x" * (512 << 10))
        print("the end")
    if what == "slow":
        Path(ctx.params["said"]).touch()
        while not Path(ctx.params["go"]).exists():
            time.sleep(0.01)
    if what == "reports":
        for step in range(3):
            ctx.report(step, score=1.0)
            print("more")
            while not Path(ctx.params["heard"]).exists():  # the slot sends this by itself
                time.sleep(0.01)
    if what == "store":
        import mlflow
        mlflow.log_text("kept", "note.txt")
    return {"score": 1.0}
"""


class Pod:
    """A slot with a home of its own."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.home = root / "pod"
        source = root / "source"
        source.mkdir()
        (source / "train.py").write_text(CODE)
        self.archive = root / "code.tar.gz"
        self.archive.write_bytes(pack.pack(source).data)
        monkeypatch.setenv(env.HOME, str(self.home))
        config = SlotConfig(
            run="toy",
            code="/elsewhere/code",
            entrypoint="train:run",
            root="/elsewhere",
            cache="/elsewhere/cache",
            env={
                env.MLFLOW_TRACKING_URI: "http://127.0.0.1:9",  # nobody answers there
                env.MLFLOW_EXPERIMENT_NAME: "toy",
                env.MLFLOW_CONTEXT: json.dumps({labels.RUN: "toy"}),
            },
            pack=str(self.archive),
            ship=True,
        )
        self.slot = Slot(config, "0-1")
        self.files = RunPaths.of(self.home, "toy")
        self._count = 0

    def request(self, what: str, *, prunable: bool = False, **params: str) -> TrialRequest:
        number, self._count = self._count, self._count + 1
        values = {"what": what, **params}
        return TrialRequest("toy", number, 1, number, values, 1, ("score",), timeout=300, prunable=prunable)

    def events(self, request: TrialRequest) -> list[Event]:
        return self.slot.play(request)


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pod]:
    made = Pod(tmp_path, monkeypatch)
    made.slot.start()
    yield made
    made.slot.close()


def test_the_log_comes_with_the_events_and_is_removed(pod: Pod) -> None:
    events = pod.events(pod.request("quick"))
    assert b"".join(event.log for event in events) == b"start\n"
    assert not list(pod.files.root.glob("trials/*/*"))
    assert events[-1].store is None


def test_a_long_log_comes_in_pieces_without_its_middle(pod: Pod) -> None:
    events = pod.events(pod.request("much"))
    text = b"".join(event.log for event in events)
    assert text.startswith(b"start\nxxx")
    assert text.endswith(b"xxx\nthe end\n")
    assert text.count(b"bytes of this log are left out here") == 1
    assert len(text) <= 1 << 20
    assert max(len(event.log) for event in events) <= shipping.CHUNK + 100
    assert [event.outcome is None for event in events[:-1]] == [True] * (len(events) - 1)


@pytest.mark.services
def test_a_worker_leaves_the_store_of_its_learner_alone(pod: Pod) -> None:
    """Both work on the same attempt, and may share a home."""
    learners = pod.files.trial_store(0)
    learners.parent.mkdir(parents=True)
    learners.write_text("the learner logs here")
    last = pod.events(dataclasses.replace(pod.request("store"), worker=3))[-1]
    assert last.outcome is not None and last.outcome.message == ""
    assert last.store is not None
    with tarfile.open(last.store) as files:
        assert {name.partition(".")[0] for name in files.getnames()} == {"attempt-0-worker-3"}
    assert learners.read_text() == "the learner logs here"


def test_a_trial_that_reports_nothing_is_heard(pod: Pod, tmp_path: Path) -> None:
    said, go = tmp_path / "said", tmp_path / "go"
    first = pod.slot.run(pod.request("slow", said=str(said), go=str(go)))
    assert first.outcome is None
    assert (first.log, first.reports, first.waiting) == (b"start\n", (), False)
    assert said.exists()
    go.touch()
    last = pod.slot.answer()
    assert last.outcome is not None
    assert last.log == b""


def test_answers_go_to_reports_and_not_to_logs(pod: Pod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pruner's answer to an event without a report would be taken for that to the next report."""
    monkeypatch.setattr(running, "LOG_INTERVAL", 0.02)
    heard = tmp_path / "heard"

    def prune(event: Event) -> int | None:
        if event.waiting:
            return 1 if event.reports[-1].step == 1 else None
        heard.touch()
        return None

    *before, event = pod.slot.play(pod.request("reports", prunable=True, heard=str(heard)), prune)
    waited = [each.waiting for each in before]
    assert event.outcome is not None and event.outcome.state.value == "PRUNED"
    assert waited.count(True) == 2
    assert False in waited


@pytest.mark.services
def test_the_trials_own_mlflow_store_comes_along(pod: Pod, tmp_path: Path) -> None:
    event = pod.events(pod.request("store"))[-1]
    assert event.store is not None
    with tarfile.open(event.store) as archive:
        archive.extractall(tmp_path / "out", filter="data")
    (note,) = (tmp_path / "out" / "attempt-0.artifacts").rglob("note.txt")
    assert note.read_text() == "kept"
    assert sqlite3.connect(tmp_path / "out" / "attempt-0.db").execute("select count(*) from runs").fetchone() == (1,)
    assert not list(pod.files.stores.iterdir())


def test_a_trial_that_does_not_use_mlflow_has_no_store(pod: Pod) -> None:
    assert pod.events(pod.request("quick"))[-1].store is None
    assert not pod.files.stores.exists()


def test_code_is_unpacked_once_and_anew_when_it_changes(pod: Pod, tmp_path: Path) -> None:
    mark = pod.files.code / "mark"
    mark.touch()
    shipping.unpack_code(pod.archive, pod.files.code)
    assert mark.exists()
    (tmp_path / "source" / "more.py").write_text("x = 1\n")
    pod.archive.write_bytes(pack.pack(tmp_path / "source").data)
    shipping.unpack_code(pod.archive, pod.files.code)
    assert sorted(file.name for file in pod.files.code.iterdir()) == ["more.py", "train.py"]


def test_damaged_code_is_the_slots_fault_and_not_the_jobs(tmp_path: Path) -> None:
    with pytest.raises(errors.SlotError, match="cannot be unpacked"):
        shipping.unpack_code(tmp_path / "none.tar.gz", tmp_path / "code")
    (tmp_path / "source").mkdir()
    (tmp_path / "other.tar.gz").write_bytes(pack.pack(tmp_path / "source").data)
    with pytest.raises(errors.SlotError, match="differs from the submission"):
        shipping.unpack_code(tmp_path / "other.tar.gz", tmp_path / "code", "0" * 64)
    (tmp_path / "bad.tar.gz").write_bytes(b"no archive")
    with pytest.raises(errors.SlotError, match="damaged"):
        shipping.unpack_code(tmp_path / "bad.tar.gz", tmp_path / "code")


def test_code_that_does_not_import_says_why_without_the_pods_files(pod: Pod, tmp_path: Path) -> None:
    (tmp_path / "source" / "train.py").write_text("print('on the way')\nimport nothing_of_that_name\n")
    pod.archive.write_bytes(pack.pack(tmp_path / "source").data)
    pod.slot.close()
    with pytest.raises(errors.EntrypointError, match="nothing_of_that_name") as caught:
        pod.slot.start()
    assert "on the way" in str(caught.value), "the end of the log is in the message"


def test_a_slot_that_shares_its_folders_sends_nothing(tmp_path: Path) -> None:
    with Bench(tmp_path, {"train": CODE}) as bench:
        events = bench.events("quick")
        assert [(event.log, event.store) for event in events] == [(b"", None)] * len(events)
        assert events[-1].outcome is not None
        assert bench.log(events[-1].outcome) == "start\n"


def test_links_are_added_once(tmp_path: Path) -> None:
    code, data = tmp_path / "code", tmp_path / "data"
    data.mkdir()
    code.mkdir()
    for _ in range(2):  # by two slots
        shipping.add_links(code, {"data": str(data), "in/depth": str(data)})
    assert (code / "data").readlink() == (code / "in" / "depth").readlink() == data
    with pytest.raises(errors.SlotError, match=r"links\.in: .* cannot be made a link to /x: File exists"):
        shipping.add_links(code, {"in": "/x"})
