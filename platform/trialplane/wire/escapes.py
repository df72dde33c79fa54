"""Untrusted text, made safe to store and to show: what a job prints, raises and names is data, whatever it contains.

A lone surrogate is not a character, and no file, database or terminal accepts it. A control character may do anything to
a terminal: move the cursor, hide text, change the title.
"""

from __future__ import annotations

import re

_SURROGATE = re.compile(r"[\ud800-\udfff]")
# C0 and C1 but tab and newline, DEL among them, and what is no character at all.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
# The same but colours, which are the SGR sequences.
_CONTROL_OR_COLOUR = re.compile(rf"(\x1b\[[0-9;:]{{0,40}}m)|{_CONTROL.pattern}")
# Whole sequences: CSI (colours, the cursor), OSC (the title, links), and the short ones.
_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]+[0-~]|[0-Z\\^-~])")
# user:password@ in a URL.
_PASSWORD = re.compile(r"(://[^/?#\s:@]*:)[^/?#\s@]+(?=@)")


def storable(text: str) -> str:
    r"""Text that can be written as UTF-8: lone surrogates as `\ud800`."""
    return text if text.isascii() else _SURROGATE.sub(_escape, text)


def visible(text: str, *, colours: bool = False) -> str:
    r"""Text that a terminal only shows: control characters but tab and newline as `\u001b`, as JSON writes them.

    Args:
        text: from any source.
        colours: whether sequences that only set colours stay as they are.
    """
    if text.isascii() and text.isprintable():
        return text
    if not colours:
        return _CONTROL.sub(_escape, text)
    return _CONTROL_OR_COLOUR.sub(lambda match: match[1] or _escape(match), text)


def plain(text: str) -> str:
    """Text without what sets a terminal's colours, cursor or title."""
    return _SEQUENCE.sub("", text)


def without_passwords(text: str) -> str:
    """Text that is safe for every reader of a run: URLs in it without their passwords."""
    return _PASSWORD.sub(r"\1***", text)


def _escape(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"
