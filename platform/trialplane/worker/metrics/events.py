"""Read the scalars in TensorBoard's event files as they grow.

The files have records of protocol buffers, of which a few fields are needed. They are read without TensorBoard's package,
which may not be installed. Sources: TensorFlow's `core/lib/io/record_writer.h`, `core/util/event.proto` and
`core/framework/{summary,tensor}.proto`.
"""

from __future__ import annotations

import contextlib
import math
import struct
from collections.abc import Iterator

from trialplane.worker.metrics.lines import LineMetrics, Names

_LARGEST = 16 << 20  # bytes of one record; a larger one has no scalars, and its file is not read further
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types
_FLOAT, _DOUBLE = 1, 2  # types of a tensor


class TensorBoard:
    """The scalars of an event file, with the steps of its events.

    Args:
        names: Meanings of the tags.
    """

    def __init__(self, names: Names) -> None:
        self._names = names
        self._is_damaged = False  # whether a record is damaged, or the file is no event file
        self._rest = b""

    def read(self, data: bytes, ended: bool) -> Iterator[LineMetrics]:
        """Yield the scalars of complete records."""
        if self._is_damaged:
            return
        self._rest += data
        offset = 0
        while offset + 12 <= len(self._rest):
            (size,) = struct.unpack_from("<Q", self._rest, offset)
            if size > _LARGEST:
                self._rest, self._is_damaged = b"", True
                return
            end = offset + 12 + size + 4  # length, its checksum, the record, its checksum
            if end > len(self._rest):
                break
            with contextlib.suppress(ValueError, struct.error, IndexError):  # a damaged record
                yield from self._event(self._rest[offset + 12 : end - 4])
            offset = end
        self._rest = self._rest[offset:]

    def _event(self, record: bytes) -> Iterator[LineMetrics]:
        """Yield the metrics of an event, if it has scalars."""
        step, values = 0, {}
        for field, value in _fields(record):
            if field == 2 and isinstance(value, int):
                step = value
            elif field == 5 and isinstance(value, bytes):  # summary
                for nested_field, nested in _fields(value):
                    if nested_field == 1 and isinstance(nested, bytes) and (scalar := _scalar(nested)) is not None:
                        values[scalar[0]] = scalar[1]
        if values:
            yield LineMetrics(
                step, {metric: value for name, value in values.items() if (metric := self._names.lookup(name)[0])}
            )


def _fields(message: bytes) -> Iterator[tuple[int, int | float | bytes]]:
    """Yield numbers and values of a message's fields, up to the first group, a type that is not used any more.

    Raises:
        IndexError: The message is cut off.
        struct.error: The message is cut off in a number.
        ValueError: A number has too many bytes.
    """
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        field, wire = key >> 3, key & 7
        if wire == _VARINT:
            number, at = _varint(message, at)
            yield field, number
        elif wire == _FIXED64:
            yield field, struct.unpack_from("<d", message, at)[0]
            at += 8
        elif wire == _FIXED32:
            yield field, struct.unpack_from("<f", message, at)[0]
            at += 4
        elif wire == _BYTES:
            size, at = _varint(message, at)
            if at + size > len(message):
                raise IndexError("a field is cut off")
            yield field, message[at : at + size]
            at += size
        else:
            return


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Return a variable-length number of a message, and the position after it."""
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at
        if shift > 63:
            raise ValueError("a number has too many bytes")


def _scalar(value: bytes) -> tuple[str, float] | None:
    """Return tag and number of a summary's value; None if it is no scalar, or NaN."""
    tag, number = "", None
    for field, content in _fields(value):
        if field == 1 and isinstance(content, bytes):
            tag = content.decode(errors="replace")
        elif field == 2 and isinstance(content, float):  # simple_value
            number = content
        elif field == 8 and isinstance(content, bytes):  # tensor
            number = _tensor(content)
    return (tag, number) if tag and number is not None and not math.isnan(number) else None


def _tensor(tensor: bytes) -> float | None:
    """Return the number of a tensor without dimensions; None for other tensors."""
    kind, content = 0, b""
    listed: float | None = None
    for field, value in _fields(tensor):
        if field == 1 and isinstance(value, int):
            kind = value
        elif field == 2 and value:  # the shape has a dimension
            return None
        elif field == 4 and isinstance(value, bytes):
            content = value
        elif field in (5, 6):  # float_val, double_val
            form = "<f" if field == 5 else "<d"
            size = struct.calcsize(form)
            if isinstance(value, float):
                listed = value
            elif isinstance(value, bytes) and len(value) == size:
                listed = struct.unpack(form, value)[0]
    if content and kind in (_FLOAT, _DOUBLE):
        form = "<f" if kind == _FLOAT else "<d"
        return float(struct.unpack(form, content)[0]) if len(content) == struct.calcsize(form) else None
    return listed
