"""The components of Chinese characters, as ids for an embedding.

A table has the direct parts of each character (`湖` is `水` and `胡`). This module follows it breadth first, so that a
character has the components of every level (`水 胡 古 月 十 口`), the large ones first. A character that is part of others
is its own first component: what is learned about `水` in `江` then also holds for `水` itself.

Ids do not depend on the tokenizer: 0 is an empty place, and the components follow, most frequent first. This module does not
import torch.
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
        parts: Direct parts of each character.
        ids: Id of each component that has one; ids begin at 1.
    """

    parts: Mapping[str, str]
    ids: Mapping[str, int]

    @property
    def count(self) -> int:
        """The number of ids, with that of an empty place."""
        return len(self.ids) + 1

    def of(self, token: str, most: int) -> list[str]:
        """Return the components of a token, large ones first; none if it is not a single character.

        Args:
            token: Token of the tokenizer's vocabulary. `##` in front is ignored.
            most: Maximum number of components.
        """
        char = token.removeprefix("##")
        if len(char) != 1:
            return []
        components: list[str] = []
        visited, queue = {char}, deque([char])
        while queue and len(components) < most:
            part = queue.popleft()
            if part in self.ids:
                components.append(part)
            for component in self.parts.get(part, ""):
                if component not in visited:
                    visited.add(component)
                    queue.append(component)
        return components

    def of_vocabulary(self, tokens: Sequence[str], most: int) -> npt.NDArray[np.int32]:
        """Return the component ids of all tokens, of shape (tokens, most), padded with `EMPTY`."""
        table = np.full((len(tokens), most), EMPTY, dtype=np.int32)
        for row, token in enumerate(tokens):
            ids = [self.ids[part] for part in self.of(token, most)]
            table[row, : len(ids)] = ids
        return table


def read(path: Path, *, min_uses: int = 2) -> Components:
    """Read a table. It has a line for each character, with its parts after a tab. Lines that begin with `#` are comments.

    Args:
        path: UTF-8 text.
        min_uses: Minimum number of characters with a component, for it to get an id. A component of a single character tells
            nothing that the character itself does not.

    Raises:
        InputError: The file cannot be read, or is not such a table.
    """
    parts: dict[str, str] = {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise errors.InputError(f"component table {path}: {error}; jobs/make_components.py makes one") from error
    for number, line in enumerate(lines, start=1):
        if line.startswith("#"):
            continue
        char, tab, char_parts = line.partition("\t")
        if not tab or len(char) != 1 or not char_parts:
            raise errors.InputError(
                f"component table {path}, line {number}: {line[:40]!r} is not a character, a tab and its parts"
            )
        parts[char] = char_parts
    uses = Counter(part for char_parts in parts.values() for part in set(char_parts))
    ranked_parts = sorted((-count, part) for part, count in uses.items() if count >= min_uses)
    if not ranked_parts:
        raise errors.InputError(f"component table {path} holds no component that {min_uses} characters share")
    return Components(parts, {part: number for number, (_, part) in enumerate(ranked_parts, start=EMPTY + 1)})
