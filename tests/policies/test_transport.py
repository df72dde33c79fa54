"""Packing and unpacking results: every numeric dtype and shape comes back equal, as read-only views without a copy.

Not checked here: the way through Ray's object store (tests/study).
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from trialplane import errors
from trialplane.policies import transport

DTYPES = st.one_of(
    npst.boolean_dtypes(),
    npst.integer_dtypes(endianness="="),
    npst.unsigned_integer_dtypes(endianness="="),
    npst.floating_dtypes(endianness="=", sizes=(16, 32, 64)),
    npst.complex_number_dtypes(endianness="=", sizes=(64, 128)),
    npst.integer_dtypes(endianness=">"),
    npst.unicode_string_dtypes(endianness="=", min_len=1, max_len=5),
    npst.byte_string_dtypes(min_len=1, max_len=5),
    npst.datetime64_dtypes(endianness="="),
)
ARRAYS = npst.arrays(DTYPES, npst.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
KEYS = st.text(max_size=8).filter(lambda key: key != "$array")
PLAIN = st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(allow_nan=False), st.text(max_size=10))
TREES = st.recursive(
    PLAIN | ARRAYS,
    lambda below: st.lists(below, max_size=4) | st.dictionaries(KEYS, below, max_size=4) | st.tuples(below, below),
    max_leaves=12,
)


def assert_same(one: Any, other: Any) -> None:
    if isinstance(one, np.ndarray):
        assert isinstance(other, np.ndarray)
        assert (other.dtype, other.shape) == (one.dtype, one.shape)
        np.testing.assert_array_equal(one, other)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key, value in one.items():
            assert_same(value, other[key])
    elif isinstance(one, (list, tuple)):
        assert isinstance(other, list)
        assert len(one) == len(other)
        for mine, theirs in zip(one, other, strict=True):
            assert_same(mine, theirs)
    else:
        assert type(one) is type(other)
        assert one == other


@settings(deadline=None, max_examples=200)
@given(TREES)
def test_every_tree_comes_back(tree: Any) -> None:
    packed = transport.pack(tree)
    assert packed.dtype == np.uint8
    assert packed.ndim == 1
    assert_same(tree, transport.unpack(packed))
    assert_same(tree, transport.unpack(packed, copy=True))


def arrays_in(tree: Any) -> list[Any]:
    if isinstance(tree, np.ndarray):
        return [tree]
    below = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else []
    return [array for node in below for array in arrays_in(node)]


@settings(deadline=None, max_examples=100)
@given(st.lists(ARRAYS, min_size=1, max_size=4))
def test_views_are_read_only_aligned_and_no_copies(arrays: list[Any]) -> None:
    packed = transport.pack(arrays)
    base = packed.__array_interface__["data"][0]
    for array in transport.unpack(packed):
        assert not array.flags.writeable
        if array.size:
            assert np.shares_memory(array, packed)
            assert (array.__array_interface__["data"][0] - base) % transport.ALIGNMENT == 0
    for array in transport.unpack(packed, copy=True):
        assert array.flags.writeable
        assert not np.shares_memory(array, packed)


def test_a_read_only_buffer_is_enough() -> None:
    """As Ray's object store gives it."""
    packed = transport.pack({"x": np.arange(10)})
    packed.flags.writeable = False
    np.testing.assert_array_equal(transport.unpack(packed)["x"], np.arange(10))


@pytest.mark.parametrize(
    "array",
    [
        np.arange(24).reshape(2, 3, 4).transpose(2, 0, 1),
        np.arange(20)[::-3],
        np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        np.broadcast_to(np.float32(3), (2, 5)),
        np.array(7.5),
        np.empty((0, 5), dtype=np.int16),
        np.array(["", "ä", "longer"]),
        np.array([math.nan, math.inf, -0.0]),
    ],
    ids=["transposed", "strided", "fortran", "broadcast", "0-d", "empty", "strings", "nan"],
)
def test_odd_arrays(array: Any) -> None:
    (back,) = transport.unpack(transport.pack([array]))
    assert_same(array, back)
    assert back.flags.c_contiguous


def test_floats_that_are_no_numbers() -> None:
    back = transport.unpack(transport.pack([math.nan, math.inf, -math.inf]))
    assert math.isnan(back[0])
    assert back[1:] == [math.inf, -math.inf]


def test_numpy_scalars_become_0_d_arrays() -> None:
    back = transport.unpack(transport.pack({"n": np.float32(1.5), "b": np.bool_(True)}))
    assert (back["n"].shape, back["n"].dtype, float(back["n"])) == ((), np.float32, 1.5)
    assert back["b"].dtype == bool


class Odd:
    """Neither array nor plain."""


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        ({"a": [1, {"b": Odd()}]}, r"result\['a'\]\[1\]\['b'\] is a .*Odd, which may not cross"),
        ({"a": {1: 2}}, r"result\['a'\] has the key 1"),
        ({"$array": 0}, r"result has the key '\$array'"),
        ([np.array([object()])], r"result\[0\] is an array of Python objects"),
        ({"r": np.zeros(2, dtype=[("x", "f4")])}, r"result\['r'\] is a structured array"),
        ({"s": {1, 2}}, r"result\['s'\] is a builtins\.set"),
        (lambda: None, "result is a builtins.function"),
    ],
)
def test_what_may_not_cross_is_refused_with_its_path(tree: Any, said: str) -> None:
    with pytest.raises(errors.TransportError, match=said):
        transport.pack(tree)


def test_many_small_arrays_make_one_buffer() -> None:
    """The shape of a self-play result: hundreds of arrays, one buffer, little waste."""
    arrays = [np.full((8, 8), index, dtype=np.float32) for index in range(500)]
    packed = transport.pack(arrays)
    assert packed.nbytes < 1.5 * sum(array.nbytes for array in arrays)
    assert_same(arrays, transport.unpack(packed))


def test_the_layout_is_the_documented_one() -> None:
    packed = transport.pack({"x": np.arange(3, dtype=np.int16), "y": 1}).tobytes()
    length = int.from_bytes(packed[:8], "little")
    header = json.loads(packed[8 : 8 + length])
    assert header == {
        "tree": {"x": {"$array": 0}, "y": 1},
        "arrays": [{"dtype": "<i2", "shape": [3], "offset": 0}],
    }
    start = -(-(8 + length) // 64) * 64
    assert packed[start : start + 6] == np.arange(3, dtype=np.int16).tobytes()


class TestTorch:
    """Tensors become arrays at the border."""

    def test_tensors_of_all_kinds(self) -> None:
        import torch

        tree = {
            "plain": torch.arange(6).reshape(2, 3),
            "with gradient": torch.ones(2, requires_grad=True),
            "transposed": torch.arange(6.0).reshape(2, 3).T,
            "flags": torch.tensor([True, False]),
            "half": torch.ones(3, dtype=torch.float16),
            "scalar": torch.tensor(2.5),
            "parameter": torch.nn.Parameter(torch.zeros(2)),
            "conjugated": torch.tensor([1 + 2j]).conj(),
        }
        back = transport.unpack(transport.pack(tree))
        for name, tensor in tree.items():
            assert_same(tensor.detach().resolve_conj().numpy(), back[name])

    @settings(deadline=None, max_examples=50)
    @given(npst.arrays(np.float32, npst.array_shapes(min_dims=0, max_dims=3, min_side=0)))
    def test_bfloat16_keeps_its_bits(self, array: Any) -> None:
        import torch

        tensor = torch.from_numpy(array.copy()).to(torch.bfloat16)
        (bits,) = transport.unpack(transport.pack([tensor]), copy=True)
        assert (bits.dtype, bits.shape) == (np.uint16, array.shape)
        back = torch.from_numpy(bits).view(torch.bfloat16)
        assert torch.equal(torch.nan_to_num(back), torch.nan_to_num(tensor))

    def test_a_sparse_tensor_is_refused(self) -> None:
        import torch

        with pytest.raises(errors.TransportError, match=r"result\['s'\] is a sparse tensor"):
            transport.pack({"s": torch.eye(3).to_sparse()})
