"""Masks: which tokens are chosen and what becomes of them, and that nothing but seed, sample and epoch decides it.

Not checked: what a model learns from them (test_cnm_bert.py).
"""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from textjobs import characters, masking, tokenizers
from trialplane.training.batches import BatchOrder, ResumableSampler

LINES = ["鲤鱼在河里游来游去，很高兴。", "树上的鸟叫个不停", "春天", "他在2016年买了LED灯"] * 25


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return tokenizers.load_tokenizer(characters.NAME, tmp_path_factory.mktemp("cache"), LINES)


@pytest.fixture(scope="module")
def samples(tokenizer):
    return [np.array(tokenizer(line)["input_ids"], dtype=np.uint16) for line in LINES]


@pytest.fixture
def masked(tokenizer, samples):
    return masking.MaskedSamples(samples, masking.masking(tokenizer, seed=7))


def of_sample(batch, row):
    """One row as it is shown, without padding, with its chosen columns and their targets."""
    width = batch["input_ids"].shape[1]
    own = batch["positions"] // width == row
    shown = batch["input_ids"][row][batch["attention_mask"][row] == 1]
    return shown.tolist(), (batch["positions"][own] % width).tolist(), batch["targets"][own].tolist()


def test_a_sample_is_masked_alike_in_any_batch(masked):
    together = masked[[(0, number) for number in range(len(LINES))]]
    for number in (0, 1, 2, 3, 99):
        assert of_sample(masked[[(0, number)]], 0) == of_sample(together, number)
        assert of_sample(masked[[(0, 5), (0, number)]], 1) == of_sample(together, number)


def test_epoch_sample_and_seed_change_the_masks(masked, tokenizer, samples):
    keys = [(0, number) for number in range(len(LINES))]
    first = masked[keys]["positions"].tolist()
    assert masked[keys]["positions"].tolist() == first
    assert masked[[(1, number) for _, number in keys]]["positions"].tolist() != first
    assert masked[[(masking.EVALUATION, number) for _, number in keys]]["positions"].tolist() != first
    other = masking.MaskedSamples(samples, masking.masking(tokenizer, seed=8))
    assert other[keys]["positions"].tolist() != first
    chosen = {tuple(of_sample(masked[[(0, number)]], 0)[1]) for number in range(0, 100, 4)}  # one text, 25 samples
    assert len(chosen) > 10


def test_targets_are_what_was_there_and_special_tokens_stay(masked, samples, tokenizer):
    for number in range(len(LINES)):
        shown, positions, targets = of_sample(masked[[(0, number)]], 0)
        original = samples[number].tolist()
        assert [original[position] for position in positions] == targets
        untouched = set(range(len(original))) - set(positions)
        assert all(shown[position] == original[position] for position in untouched)
        assert not {0, len(original) - 1} & set(positions)  # [CLS] and [SEP]
        assert len(positions) >= 1


def test_the_number_chosen_is_exact_where_every_word_is_one_token(masked, samples):
    for number in (0, 1, 2):
        plain = len(samples[number]) - 2
        assert len(of_sample(masked[[(3, number)]], 0)[1]) == max(1, round(0.15 * plain))


def test_eighty_ten_ten(masked, tokenizer):
    counts = np.zeros(3)
    for epoch in range(60):
        batch = masked[[(epoch, number) for number in range(len(LINES))]]
        shown = batch["input_ids"].reshape(-1)[batch["positions"]]
        hidden, same = shown == tokenizer.mask_token_id, shown == batch["targets"]
        counts += [hidden.sum(), (~hidden & ~same).sum(), same.sum()]
        assert not np.isin(shown[~hidden], tokenizer.all_special_ids).any()
    assert counts / counts.sum() == pytest.approx([0.8, 0.1, 0.1], abs=0.015)


def test_the_pieces_of_a_word_are_chosen_together(tokenizer, samples, masked):
    pieces = tokenizer.convert_ids_to_tokens(samples[3].tolist())
    words, torn = {}, 0
    for position, piece in enumerate(pieces):
        words.setdefault(position if not piece.startswith("##") else max(words), []).append(position)
    single = masking.MaskedSamples(samples, masking.masking(tokenizer, seed=7, whole_words=False))
    for epoch in range(50):
        chosen = set(of_sample(masked[[(epoch, 3)]], 0)[1])
        assert all(chosen >= set(word) or not chosen & set(word) for word in words.values())
        chosen = set(of_sample(single[[(epoch, 3)]], 0)[1])
        torn += any(chosen & set(word) and not chosen >= set(word) for word in words.values())
    assert torn


def test_a_sample_without_a_word_has_no_targets(tokenizer):
    empty = masking.MaskedSamples([np.array([2, 3])], masking.masking(tokenizer, seed=7))
    batch = empty[[(0, 0)]]
    assert batch["targets"].shape == (0,)
    assert batch["input_ids"].tolist() == [[2, 3]]


@pytest.mark.parametrize("world_size", [1, 2, 8])
def test_all_ranks_together_read_what_one_rank_reads(masked, world_size):
    order = BatchOrder(len(LINES) - 10, 32, seed=1)
    whole = [key for batch in masking.KeyedBatches(ResumableSampler(order, 0, 1, 0, 6), offset=10) for key in batch]
    ranks = [
        [
            key
            for batch in masking.KeyedBatches(ResumableSampler(order, rank, world_size, 0, 6, micro=4), offset=10)
            for key in batch
        ]
        for rank in range(world_size)
    ]
    share = 32 // world_size
    dealt = [key for step in range(6) for keys in ranks for key in keys[step * share : (step + 1) * share]]
    assert dealt == whole
    assert {epoch for epoch, _ in whole} == {0, 1, 2}
    assert min(number for _, number in whole) >= 10
    assert max(number for _, number in whole) < len(LINES)
    later = masking.KeyedBatches(ResumableSampler(order, 0, 1, 4, 6), offset=10)
    assert [key for batch in later for key in batch] == whole[4 * 32 :]


def test_what_goes_to_a_worker_is_small(masked):
    assert len(pickle.dumps(masked.masking)) < 4096
