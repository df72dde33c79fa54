"""Escapes that make untrusted text safe to store and to display: a job chooses what it prints, raises and names.

A lone surrogate is not a character, and no file, database or terminal accepts it. A control character can move a terminal's
cursor, hide text or change the title.
"""

from __future__ import annotations

import re

_SURROGATE = re.compile(r"[\ud800-\udfff]")
# Control characters (C0, DEL and C1) except tab and newline, and lone surrogates.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
# A sequence that sets colors (SGR), which is the first group; or one of these characters.
_CONTROL_OR_COLOR = re.compile(rf"(\x1b\[[0-9;:]{{0,40}}m)|{_CONTROL.pattern}")
# Complete sequences: CSI (colors, cursor), OSC (title, links), and the short ones.
_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]+[0-~]|[0-Z\\^-~])")
# user:password@ in a URL.
_PASSWORD = re.compile(r"(://[^/?#\s:@]*:)[^/?#\s@]+(?=@)")


def escape_surrogates(text: str) -> str:
    r"""Return a text that can be encoded as UTF-8, with lone surrogates escaped as `\ud800`."""
    return text if text.isascii() else _SURROGATE.sub(_escape, text)


def escape_controls(text: str, *, colors: bool = False) -> str:
    r"""Return a text that a terminal only displays: control characters except tab and newline are escaped as `\u001b`.

    Args:
        text: Untrusted text.
        colors: Leave sequences that set colors unchanged.
    """
    if text.isascii() and text.isprintable():
        return text
    if not colors:
        return _CONTROL.sub(_escape, text)
    return _CONTROL_OR_COLOR.sub(lambda match: match[1] or _escape(match), text)  # group 1 is a sequence that sets colors


def strip_sequences(text: str) -> str:
    """Return a text without the sequences that set a terminal's colors, cursor or title."""
    return _SEQUENCE.sub("", text)


def mask_passwords(text: str) -> str:
    """Return a text with `***` in place of the passwords in its URLs, because every reader of a run may see the text."""
    return _PASSWORD.sub(r"\1***", text)


def _escape(match: re.Match[str]) -> str:
    """Return the escape of one character, in JSON's form."""
    return f"\\u{ord(match[0]):04x}"
