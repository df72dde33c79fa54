"""Stragglers are named once, and again when they have caught up; noise is not named. Not checked: who feeds it."""

from __future__ import annotations

import pytest

from trialplane.worker.ranks import stragglers
from trialplane.worker.ranks.stragglers import Straggler, Stragglers


def feed(watch: Stragglers, seconds: dict[int, float], rounds: int, start: int = 0) -> list[Straggler]:
    """What is said while each rank reports its seconds `rounds` times."""
    said = [watch.pulse(rank, step, own) for step in range(start, start + rounds) for rank, own in seconds.items()]
    return [one for one in said if one is not None]


def test_a_slow_rank_is_named_once_and_when_it_has_caught_up() -> None:
    watch = Stragglers(4, window=4)
    (slow,) = feed(watch, {0: 0.1, 1: 0.11, 2: 0.1, 3: 0.4}, 20)
    assert (slow.rank, slow.seconds, slow.median, slow.is_slow) == (3, 0.4, 0.1, True)
    assert slow.text().startswith("rank 3 holds the others up: 400 ms of its own per step, 4.0 times the 100 ms of")
    assert watch.slow == {3}
    (again,) = feed(watch, {0: 0.1, 1: 0.11, 2: 0.1, 3: 0.1}, 20, start=20)
    assert (again.rank, again.is_slow) == (3, False)
    assert "rank 3 has caught up" in again.text()
    assert watch.slow == frozenset()


def test_a_slow_rank_is_named_also_when_it_was_the_first_to_report() -> None:
    watch = Stragglers(3, window=4)
    said = [watch.pulse(2, step, 0.5) for step in range(9)]
    said += [watch.pulse(rank, step, 0.1) for rank in (0, 1) for step in range(4)]
    assert [(one.rank, one.step, one.is_slow) for one in said if one is not None] == [(2, 8, True)]


def test_one_slow_step_is_nothing() -> None:
    watch = Stragglers(2)
    assert feed(watch, {0: 0.1, 1: 0.1}, 10) == []
    assert feed(watch, {0: 0.1, 1: 9.0}, 1) == []
    assert feed(watch, {0: 0.1, 1: 0.1}, 10) == []


def test_nobody_is_named_before_every_rank_has_filled_its_window() -> None:
    watch = Stragglers(3, window=3)
    assert feed(watch, {0: 0.1, 1: 5.0}, 50) == []
    assert feed(watch, {0: 0.1, 1: 5.0, 2: 0.1}, 2) == []
    assert [one.rank for one in feed(watch, {0: 0.1, 1: 5.0, 2: 0.1}, 3)] == [1]


def test_the_slowest_is_the_slowest_of_those_that_are_slow_now() -> None:
    watch = Stragglers(6, window=4)
    usual = dict.fromkeys((0, 1, 2, 4), 0.1)
    seen = []
    for number, (third, fifth) in enumerate([(0.8, 0.1), (0.8, 0.5), (0.4, 0.5), (0.4, 0.1), (0.2, 0.1), (0.1, 0.1)]):
        feed(watch, {**usual, 3: third, 5: fifth}, 10, start=10 * number)
        worst = watch.slowest
        seen.append(None if worst is None else (worst.rank, worst.step, round(worst.factor, 3)))
    assert seen == [(3, 9, 8.0), (3, 19, 8.0), (5, 29, 5.0), (3, 39, 4.0), (3, 49, 2.0), None]


def test_a_job_may_say_that_steps_take_no_time() -> None:
    said = feed(Stragglers(2, window=2), {0: 0.0, 1: 0.5}, 4)
    assert [(one.rank, one.factor > 1000) for one in said] == [(1, True)]
    assert "rank 1 holds the others up" in said[0].text()


@pytest.mark.parametrize(
    ("seconds", "slow"),
    [
        ({0: 0.1}, {}),
        ({0: 0.1, 1: 0.149}, {}),
        ({0: 0.1, 1: 0.151}, {1: 0.1}),
        ({0: 0.001, 1: 0.010}, {}),  # ten times slower, and nobody's business
        ({0: 1.0, 1: 1.0, 2: 2.0, 3: 2.0}, {2: 1.0, 3: 1.0}),
        ({0: 0.0, 1: 0.5}, {1: 0.0}),
    ],
)
def test_slow_is_over_a_factor_of_the_others_median(seconds: dict[int, float], slow: dict[int, float]) -> None:
    assert stragglers.slow_ranks(seconds, factor=1.5, min_difference=0.01) == slow


def test_times_are_medians_of_what_is_new() -> None:
    watch = Stragglers(2, window=3)
    feed(watch, {0: 0.1, 1: 0.3}, 2)
    watch.pulse(1, 2, 9.0)
    assert watch.has_all_times
    assert watch.take_times() == {0: 0.1, 1: 0.3}
    assert (watch.has_all_times, watch.take_times()) == (False, {})
    watch.pulse(1, 3, 9.0)
    assert (watch.has_all_times, watch.take_times()) == (False, {1: 9.0})


def test_a_rank_alone_is_never_slow() -> None:
    assert feed(Stragglers(1), {0: 100.0}, 50) == []
