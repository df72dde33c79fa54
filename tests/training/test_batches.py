"""The order of batches: each sample once per epoch, the same global batches for any number of ranks, a step as position.

Not checked: how random the permutation is beyond that it mixes and differs; and how fast it is (tests/benchmarks).
"""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trialplane import errors
from trialplane.training import batches
from trialplane.training.batches import BatchOrder, ResumableSampler

# Across the border between the sorted permutation and the network, and squares and their neighbours.
LENGTHS = st.one_of(st.integers(1, 400), st.integers(65_500, 66_200), st.sampled_from([250_000, 250_001, 263_168, 263_169]))
BIG = 14_800_000


@settings(deadline=None, max_examples=60)
@given(length=LENGTHS, seed=st.integers(-(2**70), 2**70), epoch=st.integers(0, 2**40))
def test_a_permutation_has_every_index_once(length: int, seed: int, epoch: int) -> None:
    found = batches.permute(np.arange(length), length, seed, epoch)
    assert np.array_equal(np.sort(found), np.arange(length))


@settings(deadline=None, max_examples=60)
@given(
    length=st.integers(1, 300), batch=st.integers(1, 40), seed=st.integers(), shuffle=st.booleans(), drop_last=st.booleans()
)
def test_an_epoch_has_every_sample_at_most_once_and_only_the_rest_is_dropped(
    length: int, batch: int, seed: int, shuffle: bool, drop_last: bool
) -> None:
    if drop_last and batch > length:
        batch = length
    order = BatchOrder(length, batch, seed=seed, shuffle=shuffle, drop_last=drop_last)
    for epoch in range(2):
        steps = range(epoch * order.steps_per_epoch, (epoch + 1) * order.steps_per_epoch)
        seen = np.concatenate([order.indices(step) for step in steps])
        assert len(np.unique(seen)) == len(seen) == (length - length % batch if drop_last else length)
        assert seen.min() >= 0
        assert seen.max() < length


@settings(deadline=None, max_examples=60)
@given(
    length=st.integers(64, 100_000),
    share=st.integers(1, 2),
    worlds=st.sampled_from([(1, 2), (2, 4), (3, 8), (4, 6), (8, 1)]),
    step=st.integers(0, 10_000),
    drop_last=st.booleans(),
)
def test_the_global_batch_is_the_same_for_every_number_of_ranks(
    length: int, share: int, worlds: tuple[int, int], step: int, drop_last: bool
) -> None:
    order = BatchOrder(length, worlds[0] * worlds[1] * share, seed=3, drop_last=drop_last)
    whole = order.indices(step)
    for world in worlds:
        shares = [order.indices(step, rank, world) for rank in range(world)]
        assert np.array_equal(np.concatenate(shares), whole)
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_epochs_and_seeds_have_orders_of_their_own_and_an_order_is_the_same_again() -> None:
    def first(seed: int, epoch: int, length: int = BIG) -> list[int]:
        return batches.permute(np.arange(1000), length, seed, epoch).tolist()

    assert first(1, 0) == first(1, 0)
    assert len({tuple(first(seed, epoch, length)) for seed in (1, 2) for epoch in (0, 1) for length in (BIG, 5000)}) == 8


def test_the_orders_are_those_that_older_checkpoints_were_made_with() -> None:
    """A change here makes every interrupted training go on with other samples."""
    assert BatchOrder(1000, 4, seed=7).indices(250).tolist() == [818, 517, 665, 960]
    assert BatchOrder(BIG, 4, seed=7).indices(3_700_000).tolist() == [13074337, 14229094, 9406976, 12308132]


@pytest.mark.parametrize("length", [50_000, BIG])
def test_a_batch_is_spread_over_the_data(length: int) -> None:
    """Uniform by a chi-squared test over 100 bins, and neighbours do not stay neighbours."""
    found = batches.permute(np.arange(20_000), length, 5, 0)
    counts = np.bincount(found * 100 // length, minlength=100)
    assert ((counts - 200) ** 2 / 200).sum() < 149  # 99.9th percentile of 99 degrees of freedom
    assert abs(np.corrcoef(found[:-1], found[1:])[0, 1]) < 0.03


def test_data_in_order_stay_in_order() -> None:
    order = BatchOrder(10, 4, shuffle=False, drop_last=False)
    assert [order.indices(step).tolist() for step in range(4)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9], [0, 1, 2, 3]]
    assert order.epoch(3) == 1.0


def test_a_sampler_goes_on_where_another_stopped_with_any_number_of_ranks_and_micro_batches() -> None:
    order = BatchOrder(100, 24, seed=1)
    whole = [sorted(order.indices(step).tolist()) for step in range(9)]
    before = [list(ResumableSampler(order, rank, 4, 0, 5, micro=3)) for rank in range(4)]
    after = [list(ResumableSampler(order, rank, 2, 5, 9)) for rank in range(2)]
    assert [len(part) for part in before] == [10] * 4
    seen = [sorted(i for part in before for micro in part[2 * step : 2 * step + 2] for i in micro) for step in range(5)]
    seen += [sorted(i for part in after for i in part[step]) for step in range(4)]
    assert seen == whole


def test_a_sampler_is_a_dataloaders_batch_sampler_and_small_to_send() -> None:
    from torch.utils.data import DataLoader

    sampler = ResumableSampler(BatchOrder(BIG, 256), 3, 8, 1000, 1003, micro=16)
    loader = DataLoader(range(BIG), batch_sampler=sampler)  # type: ignore[arg-type]
    assert len(loader) == 6
    assert [batch.tolist() for batch in loader] == list(sampler)
    assert len(pickle.dumps(sampler)) < 1024


def test_a_checkpoints_position_is_taken_back_and_one_of_another_order_is_refused() -> None:
    order = BatchOrder(1000, 32, seed=5)
    assert order.start(order.state_dict(17)) == 17
    with pytest.raises(errors.CheckpointMismatch, match=r"step 17.*batch was 32 and is 64; seed was 5 and is 6"):
        BatchOrder(1000, 64, seed=6).start(order.state_dict(17))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: BatchOrder(31, 32), "31 samples do not fill one global batch of 32"),
        (lambda: BatchOrder(0, 1, drop_last=False), "0 samples"),
        (lambda: BatchOrder(10, 0), "a global batch of 0 samples"),
        (
            lambda: BatchOrder(100, 12).indices(0, 0, 5),
            "cannot be divided evenly among 5 ranks; possible numbers of ranks are 1, 2, 3, 4, 6, 12;",
        ),
        (lambda: ResumableSampler(BatchOrder(100, 12), 0, 2, 0, 1, micro=4), "6 samples per rank .* micro-batches of 4"),
    ],
)
def test_what_cannot_be_dealt_is_refused(make: object, says: str) -> None:
    with pytest.raises(errors.InputError, match=says):
        make()  # type: ignore[operator]


def test_counting_starts_at_zero() -> None:
    with pytest.raises(ValueError, match="counted from 0"):
        BatchOrder(10, 2).indices(0, 2, 2)
