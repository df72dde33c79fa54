"""Reads and rewrites 64-bit little-endian ELF shared objects, as far as `cpu_only.py` needs it. Standard library only.

`Elf` knows segments, sections, needed libraries and dynamic symbols; `Elf.without` writes a smaller file that the loader
treats alike. It keeps what is mapped and drops the rest: section headers, the static symbol table, and page ranges that
the caller says are never read, which become zero pages.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PAGE = 4096
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_PROGRAM = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_PT_LOAD, _PT_PHDR = 1, 6
_NOTES = (4, 0x6474E553)  # PT_NOTE, PT_GNU_PROPERTY: the loader does without, and holes take their place
_DT_NEEDED = 1
_STB_WEAK = 2


class Segment(NamedTuple):
    """A program header."""

    type: int
    flags: int
    offset: int
    vaddr: int
    paddr: int
    filesz: int
    memsz: int
    align: int


class Section(NamedTuple):
    """A section header, with its name."""

    name: str
    offset: int
    address: int
    size: int


class Symbol(NamedTuple):
    """A dynamic symbol; `version` and `library` are "" when it is not versioned, `library` also when it is defined."""

    name: str
    version: str
    library: str
    defined: bool
    weak: bool


class Elf:
    """A shared object as its file has it."""

    def __init__(self, path: Path) -> None:
        self.data = path.read_bytes()
        if self.data[:6] != b"\x7fELF\x02\x01":
            raise ValueError(f"{path} is not a 64-bit little-endian ELF file")
        self.header = _HEADER.unpack_from(self.data)
        start, count = self.header[5], self.header[10]
        self.segments = [Segment(*_PROGRAM.unpack_from(self.data, start + i * _PROGRAM.size)) for i in range(count)]
        self.sections = {section.name: section for section in self._sections()}

    def needed(self) -> list[str]:
        """Names of the libraries it wants loaded with it."""
        dynamic = self.sections[".dynamic"]
        entries = struct.iter_unpack("<QQ", self.data[dynamic.offset : dynamic.offset + dynamic.size])
        return [self._string(value) for tag, value in entries if tag == _DT_NEEDED]

    def symbols(self) -> Iterator[Symbol]:
        """Its dynamic symbols."""
        table, versions = self.sections[".dynsym"], self.sections.get(".gnu.version")
        wanted = dict(self._wanted_versions())
        for index in range(1, table.size // _SYMBOL.size):
            name, info, _, section, _, _ = _SYMBOL.unpack_from(self.data, table.offset + index * _SYMBOL.size)
            version, library = "", ""
            if versions is not None:
                (number,) = struct.unpack_from("<H", self.data, versions.offset + 2 * index)
                version, library = wanted.get(number & 0x7FFF, ("", ""))
            yield Symbol(self._string(name), version, library, section != 0, info >> 4 == _STB_WEAK)

    def without(self, ranges: list[tuple[int, int]]) -> bytes:
        """The file with nothing but what is mapped, and without what `ranges` holds of it.

        Args:
            ranges: (address, size) of what is never read; whole pages of it become zero pages.

        Raises:
            ValueError: there is no room for the program headers that the holes take.
        """
        loads = [piece for segment in self.segments if segment.type == _PT_LOAD for piece in _split(segment, ranges)]
        others = [segment for segment in self.segments if segment.type not in (_PT_LOAD, _PT_PHDR, *_NOTES)]
        count = len(loads) + len(others)
        start = self.header[5]
        kept = [s for s in self.sections.values() if s.size and s.offset and not s.name.startswith(".note")]
        taken = min((section.offset for section in kept), default=len(self.data))
        if start + count * _PROGRAM.size > taken:
            raise ValueError("there is no room for more program headers")

        out = bytearray()
        moved: list[tuple[Segment, Segment]] = []  # as it was, as it is
        for load in loads:
            # A segment lies at the same place within a page as in memory.
            place = len(out) + (load.offset - len(out)) % PAGE if load.filesz else 0
            moved.append((load, load._replace(offset=place)))
            if load.filesz:
                out.extend(bytes(place - len(out)))
                out.extend(self.data[load.offset : load.offset + load.filesz])
        segments = [_follow(segment, moved) for segment in others] + [new for _, new in moved]
        for index, segment in enumerate(segments):
            _PROGRAM.pack_into(out, start + index * _PROGRAM.size, *segment)
        header = list(self.header)
        header[6], header[10], header[12], header[13] = 0, count, 0, 0  # no section headers
        _HEADER.pack_into(out, 0, *header)
        return bytes(out)

    def _sections(self) -> Iterator[Section]:
        start, count, names = self.header[6], self.header[12], self.header[13]
        raw = [_SECTION.unpack_from(self.data, start + i * _SECTION.size) for i in range(count)]
        for name, _, _, address, offset, size, *_ in raw:
            begin = raw[names][4] + name
            yield Section(self.data[begin : self.data.index(b"\0", begin)].decode(), offset, address, size)

    def _string(self, place: int) -> str:
        begin = self.sections[".dynstr"].offset + place
        return self.data[begin : self.data.index(b"\0", begin)].decode()

    def _wanted_versions(self) -> Iterator[tuple[int, tuple[str, str]]]:
        """Number of a version → its name and the library that defines it."""
        section = self.sections.get(".gnu.version_r")
        place = section.offset if section is not None else 0
        while section is not None:
            _, count, library, first, step = struct.unpack_from("<HHIII", self.data, place)
            at = place + first
            for _ in range(count):
                _, _, number, name, following = struct.unpack_from("<IHHII", self.data, at)
                yield number, (self._string(name), self._string(library))
                at += following
            if not step:
                return
            place += step


def _split(load: Segment, ranges: list[tuple[int, int]]) -> Iterator[Segment]:
    """A segment as pieces: what stays, and for each range in it a hole of zero pages."""
    for address, size in sorted(ranges):
        begin, end = -(-address // PAGE) * PAGE, (address + size) // PAGE * PAGE
        if begin >= end or not (load.vaddr <= begin and end <= load.vaddr + load.filesz):
            continue
        before = begin - load.vaddr
        if before:
            yield load._replace(filesz=before, memsz=before)
        yield Segment(load.type, load.flags, 0, begin, begin, 0, end - begin, load.align)
        gone = end - load.vaddr
        load = load._replace(
            offset=load.offset + gone, vaddr=end, paddr=end, filesz=load.filesz - gone, memsz=load.memsz - gone
        )
    if load.memsz:
        yield load


def _follow(segment: Segment, moved: list[tuple[Segment, Segment]]) -> Segment:
    """A segment within a mapped one, moved with it."""
    for old, new in moved:
        if old.filesz and old.vaddr <= segment.vaddr < old.vaddr + old.memsz and segment.memsz:
            return segment._replace(offset=new.offset + segment.vaddr - old.vaddr)
    return segment
