"""Numbers in text: expressions that find them, and their conversion."""

from __future__ import annotations

NUMBER = r"[-+]?(?:(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|[nN][aA][nN]|[iI][nN][fF](?:inity)?)"
# A number with separators of thousands, as 1,234.5 and not 0,123, 1,234,5 or 1,234/5.
THOUSANDS = r"[-+]?[1-9]\d{0,2}(?:,\d{3})++(?!,?\d)(?:\.\d*)?(?!\s?/\s?\d)"
# The end of a number, so that 3fa9, 1.2.3, 10:31, 2024-01-02, 11/s and 1,234 have none.
NUMBER_END = r"(?![\w:]|[.-]\d|/\s*+[^\W\d]|,\d{3})"
# The call around a number in the text of an object, as in `tensor(0.3)` and `np.float64(0.3)`, or a sign before a price of
# two or more digits, as in $12.
CALL_PREFIX = r"(?:(?:(?:tf\.T|t)ensor|[aA]rray|np\.\w+)\(|\$(?=\d[\d.,]))?"
# The bracket before the only number of a list, as in `[4.1e-02]`. A whole number there is a step or an index: `Epoch: [3]`.
LIST_PREFIX = rf"(?:\[\s*+(?!\d+\s*+\])(?={NUMBER}\s*+\]))?"


def number(text: str) -> float | None:
    """Return the number that a text is; None if it is not a number."""
    try:
        return float(text)
    except ValueError:
        return None
