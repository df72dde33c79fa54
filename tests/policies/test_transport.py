"""Packing and unpacking results: every numeric dtype and shape comes back equal, as read-only views without a copy; what may
not cross is refused with its path, and what is not a packed result is refused too.

Not checked here: the way through Ray's object store (tests/study), and the speed (tests/benchmarks).
"""

from __future__ import annotations

import contextlib
import dataclasses
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

# Every byte order; "=" is this machine's.
ORDERS = ("=", "<", ">")
DTYPES = st.one_of(
    npst.boolean_dtypes(),
    *(
        kind(endianness=order)
        for order in ORDERS
        for kind in (
            npst.integer_dtypes,
            npst.unsigned_integer_dtypes,
            npst.floating_dtypes,
            npst.complex_number_dtypes,
            npst.datetime64_dtypes,
            npst.timedelta64_dtypes,
        )
    ),
    npst.unicode_string_dtypes(min_len=1, max_len=5),
    npst.byte_string_dtypes(min_len=1, max_len=5),
)
ARRAYS = npst.arrays(DTYPES, npst.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
KEYS = st.text(max_size=8).filter(lambda key: key not in ("$array", "$arrays"))
PLAIN = st.one_of(st.none(), st.booleans(), st.integers(-(2**200), 2**200), st.floats(), st.text(max_size=10))
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
        assert one == other or (one != one and other != other)  # NaN


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
        ({"a": [1, {"b": Odd()}]}, r"result\['a'\]\[1\]\['b'\] is a .*Odd, which cannot be sent"),
        ({"a": {1: 2}}, r"result\['a'\] has the key 1"),
        ({"$array": 0}, r"result has the key '\$array'"),
        ({"$arrays": [0, 1]}, r"result has the key '\$arrays'"),
        ({"n": 10**5000}, r"result\['n'\] is an integer of 16,610 bits"),
        ({"b": b"bytes"}, r"result\['b'\] is a builtins\.bytes"),
        ([np.ma.masked_array([1, 2], [True, False])], r"result\[0\] is a masked array"),
        ([np.array(["a"], dtype=np.dtypes.StringDType())], r"result\[0\] is an array of Python objects"),
        ([np.array([object()])], r"result\[0\] is an array of Python objects"),
        ({"r": np.zeros(2, dtype=[("x", "f4")])}, r"result\['r'\] is a structured array"),
        ({"s": {1, 2}}, r"result\['s'\] is a builtins\.set"),
        (lambda: None, "result is a builtins.function"),
    ],
)
def test_what_may_not_cross_is_refused_with_its_path(tree: Any, said: str) -> None:
    with pytest.raises(errors.TransportError, match=said):
        transport.pack(tree)


def test_the_message_calls_the_tree_by_its_name() -> None:
    with pytest.raises(errors.TransportError, match=r"weights\['a'\] is a builtins\.set"):
        transport.pack({"a": set()}, "weights")


def test_a_tree_that_contains_itself_is_refused() -> None:
    tree: list[Any] = [1]
    tree.append({"again": tree})
    with pytest.raises(errors.TransportError, match=r"result\[1\]\['again'\]\[1\].*….* is 100 levels deep"):
        transport.pack(tree)


@dataclasses.dataclass(frozen=True)
class Move:
    square: int
    mask: Any


@dataclasses.dataclass
class Game:
    """As a job may give it."""

    moves: list[Move]
    outcome: str = "draw"
    odd: Any = None


def test_dataclasses_come_back_as_dicts() -> None:
    masks = [np.array([True, False]), np.array([False, True])]
    back = transport.unpack(transport.pack(Game([Move(4, masks[0]), Move(5, masks[1])])))
    expected = {"square": 4, "mask": masks[0]}, {"square": 5, "mask": masks[1]}
    assert_same({"moves": list(expected), "outcome": "draw", "odd": None}, back)
    with pytest.raises(errors.TransportError, match=r"result\['odd'\] is a .*Odd"):
        transport.pack(Game([], odd=Odd()))
    with pytest.raises(errors.TransportError, match=r"result is a builtins\.type"):
        transport.pack(Game)


def test_many_small_arrays_make_one_buffer() -> None:
    """The shape of a self-play result: hundreds of arrays, one buffer, little waste."""
    arrays = [np.full((8, 8), index, dtype=np.float32) for index in range(500)]
    packed = transport.pack(arrays)
    assert packed.nbytes < 1.5 * sum(array.nbytes for array in arrays)
    assert_same(arrays, transport.unpack(packed))


def test_the_layout_is_the_documented_one() -> None:
    tree = {"x": np.arange(3, dtype=np.int16), "y": 1, "games": [np.full((2, 2), at, dtype=np.float32) for at in range(3)]}
    packed = transport.pack(tree).tobytes()
    size, length = (int.from_bytes(packed[at : at + 8], "little") for at in (0, 8))
    assert size == len(packed)
    assert json.loads(packed[16 : 16 + length]) == {
        "tree": {"x": {"$array": 0}, "y": 1, "games": {"$arrays": [1, 3]}},
        "arrays": [["<i2", [3], 0, 1], ["<f4", [2, 2], 64, 3]],
    }
    start = -(-(16 + length) // 64) * 64
    assert packed[start : start + 6] == np.arange(3, dtype=np.int16).tobytes()
    assert packed[start + 128 : start + 144] == np.full(4, 1, dtype=np.float32).tobytes()


def test_the_same_tree_is_the_same_bytes_wherever_it_is_written() -> None:
    tree = {"odd": np.arange(5, dtype=np.uint8), "listed": [np.full(3, at) for at in range(3)], "last": np.array(True)}
    packing = transport.Packing(tree)
    buffer = np.full(packing.nbytes + 100, 7, dtype=np.uint8)
    packing.write(buffer)
    np.testing.assert_array_equal(buffer[: packing.nbytes], transport.pack(tree))
    assert (buffer[packing.nbytes :] == 7).all()
    assert transport.size_of(buffer) == packing.nbytes
    assert_same(tree, transport.unpack(buffer))


class TestDamage:
    """What arrives damaged is said to be, whatever it is; nothing else is raised, and nothing is made up of it."""

    @settings(deadline=None, max_examples=300)
    @given(st.binary(max_size=200))
    def test_noise(self, noise: bytes) -> None:
        with pytest.raises(errors.TransportError, match="packed result"):
            transport.unpack(np.frombuffer(noise, dtype=np.uint8))

    @settings(deadline=None, max_examples=300)
    @given(TREES, st.data())
    def test_a_result_that_was_cut(self, tree: Any, data: st.DataObject) -> None:
        packed = transport.pack(tree)
        cut = packed[: data.draw(st.integers(0, packed.nbytes - 1))]
        with pytest.raises(errors.TransportError, match="packed result"):
            transport.unpack(cut)

    @settings(deadline=None, max_examples=500)
    @given(st.data())
    def test_a_header_with_changed_bytes(self, data: st.DataObject) -> None:
        """It is refused or it is another tree, but always the one or the other."""
        packed = transport.pack({"x": np.arange(3), "y": [np.ones((2, 2)), np.ones((2, 2))], "z": "text"})
        header = 16 + int.from_bytes(packed[8:16].tobytes(), "little")
        changes = st.dictionaries(st.integers(0, header - 1), st.integers(0, 255), min_size=1, max_size=4)
        for at, value in data.draw(changes).items():
            packed[at] = value
        with contextlib.suppress(errors.TransportError):
            transport.unpack(packed)

    @pytest.mark.parametrize(
        "header",
        [
            b"[]",
            b"{}",
            b'{"tree":{"$array":0},"arrays":[]}',
            b'{"tree":{"$array":"0"},"arrays":[]}',
            b'{"tree":{"$arrays":[-1,1]},"arrays":[["<i4",[1],0,1]]}',
            b'{"tree":{"$arrays":[0,9]},"arrays":[["<i4",[1],0,1]]}',
            b'{"tree":1,"arrays":[["|O8",[1],0,1]]}',
            b'{"tree":1,"arrays":[["<i4,<i4",[1],0,1]]}',
            b'{"tree":1,"arrays":[["<i4",[1],-64,1]]}',
            b'{"tree":1,"arrays":[["<i4",[-1],0,1]]}',
            b'{"tree":1,"arrays":[["<i4",[1],64,1]]}',
            b'{"tree":1,"arrays":[["<i4",[99999999999999999999],0,1]]}',
            b'{"tree":1,"arrays":[["<i4",[1],0,9]]}',
            b'{"tree":1,"arrays":[["<i4",[0],0,99999999999]]}',
            b'{"tree":1,"arrays":[["<i4",[1]]]}',
            b'{"tree":1,"arrays":7}',
            b"[" * 100_000,
        ],
    )
    def test_a_header_of_nonsense(self, header: bytes) -> None:
        start = -(-(16 + len(header)) // 64) * 64
        size = start + 64
        packed = (size.to_bytes(8, "little") + len(header).to_bytes(8, "little") + header).ljust(size, b"\0")
        with pytest.raises(errors.TransportError, match=r"header of a packed result of .* is damaged"):
            transport.unpack(np.frombuffer(packed, dtype=np.uint8))


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

    def test_a_tensor_that_numpy_cannot_hold_is_refused(self) -> None:
        import torch

        said = r"result\['w'\] is a tensor of torch\.float8_e4m3fn on cpu, which cannot become a numpy array"
        with pytest.raises(errors.TransportError, match=said):
            transport.pack({"w": torch.zeros(2, dtype=torch.float8_e4m3fn)})
        with pytest.raises(errors.TransportError, match=r"result\[0\] is a tensor of torch\.float32 on meta"):
            transport.pack([torch.zeros(2, device="meta")])

    def test_a_tensor_on_the_host_is_copied_once(self) -> None:
        """Its array is its own memory until `write`."""
        import torch

        tensor = torch.arange(4.0)
        packing = transport.Packing([tensor])
        tensor += 1
        buffer = np.empty(packing.nbytes, dtype=np.uint8)
        packing.write(buffer)
        np.testing.assert_array_equal(transport.unpack(buffer)[0], [1, 2, 3, 4])

    @pytest.mark.gpu
    def test_tensors_of_a_gpu_come_through_pinned_memory(self) -> None:
        import torch

        if not torch.cuda.is_available():
            pytest.skip("no GPU")
        base = torch.arange(1 << 20, device="cuda", dtype=torch.float32)
        tree = {
            "large": base * 2,
            "strided": base.reshape(1 << 10, -1).T[::3],
            "bfloat16": base[:5].bfloat16(),
            "flags": base[:7] > 3,
            "scalar": base[3],
            "empty": base[:0],
            "conjugated": torch.tensor([1 + 2j], device="cuda").conj(),
        }
        expected = {name: tensor.cpu() for name, tensor in tree.items()}
        expected["bfloat16"] = expected["bfloat16"].view(torch.uint16)
        back = transport.unpack(transport.pack(tree))
        for name, tensor in expected.items():
            assert_same(tensor.resolve_conj().contiguous().numpy(), back[name])
