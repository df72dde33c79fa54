"""Read the scalars in TensorBoard's event files as they grow.

A file is a series of records, each with one event as a protocol buffer. They are read without TensorBoard's package, which
may not be installed. The numbers of the fields and the layout of a record come from TensorFlow's
`core/lib/io/record_writer.h`, `core/util/event.proto` and `core/framework/{summary,tensor}.proto`.
"""

from __future__ import annotations

import contextlib
import math
import struct
from collections.abc import Iterator

from trialplane.worker.metrics.names import LineMetrics, Names

_MAX_RECORD = 16 << 20  # bytes; at a larger one, which has no scalars, the reading of its file ends
_BEFORE_RECORD, _AFTER_RECORD = 12, 4  # bytes: the record's length and the length's checksum; the record's checksum
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types
_FLOAT, _DOUBLE = 1, 2  # types of a tensor
# Numbers of fields, by message.
_EVENT_STEP, _EVENT_SUMMARY = 2, 5
_SUMMARY_VALUE = 1
_VALUE_TAG, _VALUE_SIMPLE, _VALUE_TENSOR = 1, 2, 8
_TENSOR_DTYPE, _TENSOR_SHAPE, _TENSOR_CONTENT, _TENSOR_FLOATS, _TENSOR_DOUBLES = 1, 2, 4, 5, 6


class TensorBoard:
    """A decoder of an event file (see `tails.Decoder`).

    Args:
        names: Meanings of the tags.
    """

    def __init__(self, names: Names) -> None:
        self._names = names
        self._is_damaged = False  # whether the length of a record is impossible, as in a file that is not an event file
        self._rest = b""  # the beginning of a record that is not complete yet

    def read(self, data: bytes, ended: bool) -> Iterator[LineMetrics]:
        """Yield the metrics of each complete record with scalars. An incomplete record waits for more data."""
        if self._is_damaged:
            return
        self._rest += data
        offset = 0
        while offset + _BEFORE_RECORD <= len(self._rest):
            (size,) = struct.unpack_from("<Q", self._rest, offset)
            if size > _MAX_RECORD:
                self._rest, self._is_damaged = b"", True
                return
            begin = offset + _BEFORE_RECORD
            end = begin + size
            if end + _AFTER_RECORD > len(self._rest):
                break
            with contextlib.suppress(ValueError, struct.error, IndexError):  # a damaged record
                yield from self._event_metrics(self._rest[begin:end])
            offset = end + _AFTER_RECORD
        self._rest = self._rest[offset:]

    def _event_metrics(self, record: bytes) -> Iterator[LineMetrics]:
        """Yield the step and the metrics of an event, or nothing if it has no scalars."""
        step = 0  # an event of step 0 lacks the field
        values: dict[str, float] = {}  # by tag
        for field, value in _fields(record):
            if field == _EVENT_STEP and isinstance(value, int):
                step = value
            elif field == _EVENT_SUMMARY and isinstance(value, bytes):
                values.update(_summary_scalars(value))
        if values:
            metrics = {self._names.lookup(tag).metric: number for tag, number in values.items()}
            metrics.pop("", None)  # of tags that stand for no metric
            yield LineMetrics(step, metrics)


def _summary_scalars(summary: bytes) -> Iterator[tuple[str, float]]:
    """Yield the tag and the number of each scalar in a summary."""
    for field, value in _fields(summary):
        if field == _SUMMARY_VALUE and isinstance(value, bytes) and (scalar := _scalar(value)) is not None:
            yield scalar


def _fields(message: bytes) -> Iterator[tuple[int, int | float | bytes]]:
    """Yield the number and the value of each field of a message, up to the first field of an obsolete type (a group).

    A value is an integer, a float, or the bytes of a string or a nested message, as the field's wire type says.

    Raises:
        IndexError: The message is cut off.
        struct.error: The message is cut off in a number.
        ValueError: A number has too many bytes.
    """
    position = 0
    while position < len(message):
        key, position = _varint(message, position)
        field, wire_type = key >> 3, key & 7
        if wire_type == _VARINT:
            number, position = _varint(message, position)
            yield field, number
        elif wire_type == _FIXED64:
            yield field, struct.unpack_from("<d", message, position)[0]
            position += 8
        elif wire_type == _FIXED32:
            yield field, struct.unpack_from("<f", message, position)[0]
            position += 4
        elif wire_type == _BYTES:
            size, position = _varint(message, position)
            if position + size > len(message):
                raise IndexError("a field is cut off")
            yield field, message[position : position + size]
            position += size
        else:
            return


def _varint(message: bytes, position: int) -> tuple[int, int]:
    """Return the variable-length number at a position of a message, and the position after it.

    Each byte has seven bits of the number, the lowest first; its eighth bit is set if another byte follows.

    Raises:
        IndexError: The message ends in the number.
        ValueError: The number has more bytes than one of 64 bits.
    """
    value = shift = 0
    while True:
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, position
        if shift > 63:
            raise ValueError("a number has too many bytes")


def _scalar(value: bytes) -> tuple[str, float] | None:
    """Return the tag and the number of a summary's value; None if the value is not a scalar, or is NaN."""
    tag, number = "", None
    for field, content in _fields(value):
        if field == _VALUE_TAG and isinstance(content, bytes):
            tag = content.decode(errors="replace")
        elif field == _VALUE_SIMPLE and isinstance(content, float):
            number = content
        elif field == _VALUE_TENSOR and isinstance(content, bytes):
            number = _tensor_number(content)
    return (tag, number) if tag and number is not None and not math.isnan(number) else None


def _tensor_number(tensor: bytes) -> float | None:
    """Return the number of a tensor without dimensions; None for other tensors.

    A tensor has its number either as bytes, whose type it names, or in a list for its type.
    """
    dtype, content = 0, b""
    listed: float | None = None
    list_types = {_TENSOR_FLOATS: _FLOAT, _TENSOR_DOUBLES: _DOUBLE}
    for field, value in _fields(tensor):
        if field == _TENSOR_DTYPE and isinstance(value, int):
            dtype = value
        elif field == _TENSOR_SHAPE and value:  # it has a dimension
            return None
        elif field == _TENSOR_CONTENT and isinstance(value, bytes):
            content = value
        elif field in list_types and isinstance(value, float):
            listed = value
        elif field in list_types and isinstance(value, bytes):  # a packed list
            listed = _unpacked(value, list_types[field])
    return _unpacked(content, dtype) if content and dtype in (_FLOAT, _DOUBLE) else listed


def _unpacked(data: bytes, dtype: int) -> float | None:
    """Return the number that bytes hold, of type `_FLOAT` or `_DOUBLE`; None unless they hold exactly one."""
    number_format = "<f" if dtype == _FLOAT else "<d"
    return float(struct.unpack(number_format, data)[0]) if len(data) == struct.calcsize(number_format) else None
