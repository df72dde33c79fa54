"""Which components a token's character is put together from, as ids for an embedding.

A table says of each character what it is made of, one level deep (`湖` is `水` and `胡`); this module follows it down,
breadth first, so that a character is known by its components of every level (`水 胡 古 月 十 口`), the large ones first.
A character that others are made of is its own first component: what is learned of `水` in `江` holds for `水` itself.

Ids are those of the table alone, whatever the tokenizer: 0 for an empty place, then the components by how many characters
hold them. Knows nothing of torch.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy import typing as npt

from trialplane import errors

EMPTY = 0


@dataclasses.dataclass(frozen=True)
class Components:
    """The components of characters.

    Attributes:
        parts: what each character is made of, one level deep.
        ids: of the components that count; 0 is none's.
    """

    parts: Mapping[str, str]
    ids: Mapping[str, int]

    @property
    def count(self) -> int:
        """The number of ids, with that of padding."""
        return len(self.ids) + 1

    def of(self, token: str, most: int) -> list[str]:
        """The components of a token, at most `most`, large ones first; none when it is not one character.

        Args:
            token: as the tokenizer's vocabulary has it; `##` in front is passed over.
            most: how many to give.
        """
        char = token.removeprefix("##")
        if len(char) != 1:
            return []
        components: list[str] = []
        visited, ahead = {char}, deque([char])
        while ahead and len(components) < most:
            part = ahead.popleft()
            if part in self.ids:
                components.append(part)
            for component in self.parts.get(part, ""):
                if component not in visited:
                    visited.add(component)
                    ahead.append(component)
        return components

    def of_vocabulary(self, tokens: Sequence[str], most: int) -> npt.NDArray[np.int32]:
        """Ids of shape (tokens, most), filled up with `EMPTY`."""
        table = np.full((len(tokens), most), EMPTY, dtype=np.int32)
        for row, token in enumerate(tokens):
            ids = [self.ids[part] for part in self.of(token, most)]
            table[row, : len(ids)] = ids
        return table


def read(path: Path, *, min_uses: int = 2) -> Components:
    """Read a table: a line per character, its parts after a tab; lines that begin with `#` are comments.

    Args:
        path: UTF-8 text.
        min_uses: a component that fewer characters hold directly tells nothing that its character does not, and gets no id.

    Raises:
        InputError: the file is not there or is no such table.
    """
    parts: dict[str, str] = {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise errors.InputError(f"component table {path}: {error}; jobs/make_components.py makes one") from error
    for number, line in enumerate(lines, start=1):
        if line.startswith("#"):
            continue
        char, tab, made_of = line.partition("\t")
        if not tab or len(char) != 1 or not made_of:
            raise errors.InputError(
                f"component table {path}, line {number}: {line[:40]!r} is not a character, a tab and its parts"
            )
        parts[char] = made_of
    uses = Counter(part for made_of in parts.values() for part in set(made_of))
    counted = sorted((-count, part) for part, count in uses.items() if count >= min_uses)
    if not counted:
        raise errors.InputError(f"component table {path} holds no component that {min_uses} characters share")
    return Components(parts, {part: number for number, (_, part) in enumerate(counted, start=EMPTY + 1)})
