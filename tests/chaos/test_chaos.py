"""What `python -m tests.chaos` kills and when, and that it calls a lost or doubled trial by its name.

Not checked here: a cluster, on which tests/e2e/test_chaos.py runs it.
"""

from __future__ import annotations

import itertools
import math
import signal
from collections import Counter
from collections.abc import Callable
from typing import Any, cast

import pytest
from tests.chaos import __main__ as chaos
from tests.chaos.kills import DARK, NODE, Kill, Kills, Role, Rules, Victim, roles

from trialplane.wire.records import RunStatus
from trialplane.wire.states import RunState

RUN = "some"
MENDED = 10.0  # seconds until a pod or a node is ready again
NAMES = [role.name for role in roles(RUN)]


class ClusterDouble:
    """Pods that are replaced, and nodes that come back when they are started; both after MENDED seconds.

    Attributes:
        now: seconds; the test moves it.
        pods: role → pods, with the moment from which each is ready.
    """

    def __init__(self, **counts: int) -> None:
        self.now = 0.0
        self.made = 0
        self.pods: dict[str, dict[Victim, float]] = {name: {} for name in NAMES}
        self.cuts: dict[Victim, float] = {}
        self.dark: dict[str, float | None] = {"one": 0.0, "two": 0.0}
        for name in NAMES:
            for _ in range(counts.get(name, 1)):
                self._make(name, 0.0)

    def _make(self, role: str, ready: float) -> None:
        self.made += 1
        self.pods[role][Victim(f"{role}-{self.made}", str(self.made))] = ready

    def ready(self, role: Role) -> list[Victim]:
        return [pod for pod, moment in self.pods[role.name].items() if moment <= self.now]

    def kill(self, pod: Victim) -> None:
        role = pod.name.rpartition("-")[0]
        del self.pods[role][pod]
        self._make(role, self.now + MENDED)

    def cut(self, pod: Victim) -> None:
        self.cuts[pod] = self.now

    def reconnect(self, pod: Victim) -> None:
        assert self.now - self.cuts.pop(pod) >= 30

    def nodes(self) -> list[Victim]:
        return [Victim(name, name) for name, moment in self.dark.items() if moment is not None and moment <= self.now]

    def stop(self, node: Victim) -> None:
        self.dark[node.name] = None

    def start(self, node: Victim) -> None:
        self.dark[node.name] = self.now + MENDED


def killed(there: ClusterDouble, seconds: int, every: float = 5.0, **rules: Any) -> Kills:
    kills = Kills(there, roles(RUN), Rules(every, 7, **rules), lambda text: None)
    for now in range(seconds):
        there.now = float(now)
        kills.look(there.now)
    return kills


def test_every_role_is_killed_in_time_and_none_before_it_is_back() -> None:
    kills = killed(ClusterDouble(trial=2), 600)
    assert set(Counter(kill.role for kill in kills.done)) == set(NAMES)
    assert all(after.at - before.at >= 5 for before, after in itertools.pairwise(kills.done))
    assert len(kills.done) > 100
    for name in set(NAMES) - {"trial"}:
        of_role = [kill for kill in kills.done if kill.role == name]
        for before, after in itertools.pairwise(of_role):
            assert before.back == before.at + MENDED
            assert after.at >= before.back


def test_a_role_of_two_is_back_when_both_are() -> None:
    kills = killed(ClusterDouble(gateway=2), 600)
    assert {kill.back - kill.at for kill in kills.done if kill.role == "gateway" and kill.back} == {MENDED}


def test_a_second_trial_pod_goes_while_the_first_is_replaced() -> None:
    kills = killed(ClusterDouble(trial=2, **dict.fromkeys(set(NAMES) - {"trial"}, 0)), 60, every=3.0)
    gaps = [after.at - before.at for before, after in itertools.pairwise(kills.done)]
    assert min(gaps) < MENDED


def test_each_role_is_cut_off_for_its_time_and_has_its_network_again() -> None:
    there = ClusterDouble(trial=2)
    kills = killed(there, 600, once=True, cut=30.0)
    assert sorted(kill.role for kill in kills.done) == sorted(NAMES)
    assert not there.cuts
    assert all(kill.back is not None and kill.back - kill.at >= 30 for kill in kills.done)
    assert there.made == len(NAMES) + 1, "a pod was killed"


def test_an_interrupted_chaos_run_leaves_no_pod_cut_off() -> None:
    there = ClusterDouble()
    there.now = 0.0
    kills = killed(there, 10, cut=30.0)
    assert there.cuts
    there.now = 60.0
    kills.restore()
    assert not there.cuts


def test_a_role_without_pods_is_skipped() -> None:
    kills = killed(ClusterDouble(mlflow=0, kuberay=0), 300)
    assert sorted(kills.left) == ["kuberay", "mlflow"]


def test_once_is_once() -> None:
    kills = killed(ClusterDouble(), 300, once=True)
    assert sorted(kill.role for kill in kills.done) == sorted(NAMES)


def test_the_seed_is_the_order() -> None:
    first, second = (killed(ClusterDouble(trial=2), 100).done for _ in range(2))
    assert [(kill.at, kill.victim) for kill in first] == [(kill.at, kill.victim) for kill in second]


def test_a_node_stays_away_until_kubernetes_noticed_and_nothing_else_is_killed_meanwhile() -> None:
    kills = killed(ClusterDouble(), 2000, nodes=True)
    stopped = [kill for kill in kills.done if kill.role == NODE and kill.back is not None]
    assert stopped
    for node in stopped:
        assert node.back is not None
        assert node.back - node.at >= DARK + MENDED
        assert not [kill for kill in kills.done if node.at < kill.at < node.back]


class StudyDouble:
    """A run whose state is a function of the time, which moves with each sleep.

    Args:
        state: seconds → the run's state, or None while the gateway is away.
        there: its cluster, whose time is the same.
    """

    name = RUN

    def __init__(self, state: Callable[[float], RunState | None], there: ClusterDouble) -> None:
        self.state, self.there = state, there

    def status(self) -> RunStatus | None:
        state = self.state(self.there.now)
        trials = 1 if self.there.now >= 30 else 0
        return state and RunStatus(run=RUN, job="job", state=state, trials=9, complete=trials)

    def monotonic(self) -> float:
        return self.there.now

    def sleep(self, seconds: float) -> None:
        self.there.now += seconds


@pytest.fixture
def storm(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[RunStatus, Kills, ClusterDouble]]:
    def run(
        state: Callable[[float], RunState | None],
        there: ClusterDouble | None = None,
        *,
        nodes: bool = False,
        once: bool = False,
        bound: float = 500.0,
    ) -> tuple[RunStatus, Kills, ClusterDouble]:
        there = there or ClusterDouble()
        study = StudyDouble(state, there)
        monkeypatch.setattr(chaos, "time", study)
        kills = Kills(there, roles(RUN), Rules(5.0, 7, nodes, once), lambda text: None)
        return chaos.storm(cast(chaos.Study, study), kills, bound, lambda text: None), kills, there

    return run


def until(end: float, then: RunState) -> Callable[[float], RunState | None]:
    return lambda now: RunState.RUNNING if now < end else then


def test_the_killing_ends_with_the_run_and_all_but_its_own_pods_are_awaited(storm: Any) -> None:
    status, kills, there = storm(until(100.0, RunState.SUCCEEDED))
    assert status.state is RunState.SUCCEEDED
    assert max(kill.at for kill in kills.done) < 100
    assert not kills.missing
    assert there.now < 100 + MENDED + 2


def test_the_killing_ends_in_time_and_the_run_is_awaited(storm: Any) -> None:
    _, kills, there = storm(until(800.0, RunState.SUCCEEDED), bound=200.0)
    assert 190 < max(kill.at for kill in kills.done) <= 200
    assert there.now >= 800


def test_a_run_that_does_not_end_is_said(storm: Any) -> None:
    with pytest.raises(TimeoutError, match="some has not ended"):
        storm(until(math.inf, RunState.SUCCEEDED), bound=50.0)


def test_a_paused_run_is_over_unless_it_goes_on(storm: Any) -> None:
    assert storm(until(100.0, RunState.PAUSED))[0].state is RunState.PAUSED
    moment = until(150.0, RunState.SUCCEEDED)
    status, _, _ = storm(lambda now: RunState.PAUSED if 100 <= now < 130 else moment(now))
    assert status.state is RunState.SUCCEEDED


def test_a_gateway_that_is_away_is_not_the_end(storm: Any) -> None:
    moment = until(150.0, RunState.SUCCEEDED)
    status, kills, _ = storm(lambda now: None if 0 <= now < 60 else moment(now))
    assert status.state is RunState.SUCCEEDED
    assert [kill for kill in kills.done if kill.at < 60]


def test_once_begins_with_the_first_ended_trial_and_is_over_when_each_was_killed(storm: Any) -> None:
    _, kills, _ = storm(until(300.0, RunState.SUCCEEDED), once=True)
    assert min(kill.at for kill in kills.done) == 30
    assert sorted(kill.role for kill in kills.done) == sorted(NAMES)


def test_a_node_that_is_away_at_the_end_is_awaited(storm: Any) -> None:
    there = ClusterDouble(**dict.fromkeys(NAMES, 0))
    _, kills, _ = storm(until(20.0, RunState.SUCCEEDED), there, nodes=True)
    assert [kill.role for kill in kills.done] == [NODE]
    assert len(there.nodes()) == 2


def test_ctrl_c_leaves_the_run_and_brings_the_node_back(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    there = ClusterDouble(**dict.fromkeys(NAMES, 0))

    def interrupted(study: chaos.Study, kills: Kills, *_: Any) -> RunStatus:
        kills.look(0.0)
        assert len(there.nodes()) == 1
        raise KeyboardInterrupt

    monkeypatch.setattr(chaos, "KindCluster", lambda context, namespace: there)
    monkeypatch.setattr(chaos, "storm", interrupted)
    monkeypatch.setattr(chaos.Study, "status", lambda self: None)
    before = signal.getsignal(signal.SIGTERM)
    try:
        code = chaos.main(["--context", "kind", "--namespace", "team", "--run", RUN, "--nodes"])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert code == 130
    said = capsys.readouterr()
    assert "kills so far: 1; nothing was counted. some is left as it is" in said.err
    assert f"python -m tests.chaos --run {RUN} --context kind --namespace team" in said.err
    assert not said.out
    there.now = MENDED
    assert len(there.nodes()) == 2


def run_of(trial: int, state: str = "COMPLETE", status: str = "FINISHED") -> dict[str, Any]:
    return {"tags": {"trialplane.trial": str(trial), "trialplane.state": state}, "status": status}


ATTEMPTS = [
    {"trial": trial, "state": state} for trial, state in ((0, "COMPLETE"), (1, "LOST"), (1, "PRUNED"), (2, "COMPLETE"))
]
RUNS = [run_of(0), run_of(1, "LOST", "KILLED"), run_of(1, "PRUNED"), run_of(2)]


def test_retries_are_neither_lost_nor_doubled() -> None:
    found = chaos.count(3, ATTEMPTS, RUNS)
    assert found.is_exact
    assert (found.ended, found.lost, found.again) == (3, 0, 1)


@pytest.mark.parametrize(
    ("attempts", "runs", "wrong"),
    [
        (ATTEMPTS[:-1], RUNS, {"lost": 1}),
        ([*ATTEMPTS[:-1], {"trial": 2, "state": "FAILED"}], RUNS, {"lost": 1, "failed": 1}),
        ([*ATTEMPTS, ATTEMPTS[0]], RUNS, {"doubled": 1}),
        ([*ATTEMPTS, {"trial": 3, "state": "COMPLETE"}], RUNS, {"doubled": 1}),
        (ATTEMPTS, RUNS[:-1], {"recorded": 2}),
        (ATTEMPTS, [*RUNS, run_of(2)], {"recorded_twice": 1}),
        (ATTEMPTS, [*RUNS, run_of(2, "RUNNING", "RUNNING")], {"open": 1}),
    ],
)
def test_what_is_lost_or_doubled_is_not_exact(
    attempts: list[dict[str, Any]], runs: list[dict[str, Any]], wrong: dict[str, int]
) -> None:
    found = chaos.count(3, attempts, runs)
    assert not found.is_exact
    assert {name: getattr(found, name) for name in wrong} == wrong


def test_the_table_has_kills_by_role() -> None:
    kills = Kills(ClusterDouble(), roles(RUN), Rules(5.0, 0), lambda text: None)
    kills.done = [Kill("mlflow", Victim("a", "a"), 10.0, back=22.0), Kill("mlflow", Victim("b", "b"), 50.0, back=90.0)]
    text = chaos.table(chaos.count(3, ATTEMPTS, RUNS), kills, 61.4)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    assert ["asked", "3", ""] in rows
    assert ["kills: mlflow", "2", "ready again after 26 s (median), 40 s at most"] in rows
    assert ["kills: gateway", "0", ""] in rows
    assert ["attempts tried again", "1", ""] in rows
    assert rows[-1][:2] == ["seconds", "61"]
