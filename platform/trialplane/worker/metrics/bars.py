"""Find the position of a progress bar in a line, and count the positions of successive bars as steps.

Pure: text in, numbers out. The bars are those of tqdm: `45%|████▌     | 45/100 [00:05<00:06, 9.1it/s, loss=0.3]`, and
without a total `45it [00:05, 9.1it/s, loss=0.3]`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_BAR = re.compile(
    r"(?:\| {1,9}(\d{1,15})/(\d{1,15})|(?<![\w.])(\d{1,15}) ?[a-z]{1,20}) \[\d{1,4}:\d\d[^\[\]]*\]?\s*((?:\x1b\[A)*)\s*$"
)


class Bar(NamedTuple):
    """A state of a progress bar.

    Attributes:
        position: Number of items so far.
        total: Number of all items; 0 if the bar does not name it.
        is_last: Whether it is the last state of the bar, because the next line does not overwrite it.
    """

    position: int
    total: int
    is_last: bool


def bar_of(line: str) -> Bar | None:
    """Return the state of the progress bar that ends a line; None without one.

    A bar below another one ends each state with codes that move the cursor up, so that the next state overwrites it.
    """
    match = _BAR.search(line)
    if match is None:
        return None
    position, total, only_position, cursor_moves = match.groups(default="")
    return Bar(int(position or only_position), int(total or 0), is_last=not cursor_moves)


class Bars:
    """A count of steps through all bars, for programs with one bar per epoch.

    Of several bars that are drawn in turn, as those of the epochs and of the batches, the longer one counts.
    """

    def __init__(self) -> None:
        self._newest: Bar | None = None  # the newest state of a bar that counts
        self._before = 0  # steps in the bars before it

    def step(self, bar: Bar) -> int | None:
        """Return the step of a state, counted from the first bar on; None if its bar is much shorter than another one."""
        newest = self._newest
        if newest is not None:
            if 2 * bar.total < newest.total:
                return None
            is_same_place = bar.position == newest.position
            if bar.total != newest.total or bar.position < newest.position or (is_same_place and newest.is_last):
                self._before += newest.total or newest.position
        self._newest = bar
        return self._before + bar.position
