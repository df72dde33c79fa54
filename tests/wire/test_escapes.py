"""Text that no file takes, or that would steer a terminal. Not checked here: where it is shown (tests/cli)."""

from __future__ import annotations

import json

import pytest

from trialplane.wire import escapes, records
from trialplane.wire.records import TrialOutcome
from trialplane.wire.states import TrialState


def test_what_is_stored_is_text_whatever_a_job_raised() -> None:
    said = TrialOutcome(1, TrialState.FAILED, metrics={"f\udc80": 1.0}, message="\ud800 ä 😀", traceback="\x1b[31mred\n")
    plain = records.to_dict(said)
    assert plain["message"] == "\\ud800 ä 😀"
    assert plain["metrics"] == {"f\\udc80": 1.0}
    assert plain["traceback"] == "\x1b[31mred\n", "a log's colours are not harm where nobody shows them"
    assert json.dumps(plain, ensure_ascii=False).encode()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, ä 中 😀\n\tx", "plain, ä 中 😀\n\tx"),
        ("\x1b]0;title\x07", "\\u001b]0;title\\u0007"),
        ("a\rb\x08\x00\x7f", "a\\u000db\\u0008\\u0000\\u007f"),
        ("\x9b2J", "\\u009b2J"),
        ("\x1b[31mred\x1b[0m", "\\u001b[31mred\\u001b[0m"),
        ("\ud800", "\\ud800"),
    ],
)
def test_what_is_shown_steers_no_terminal(text: str, shown: str) -> None:
    assert escapes.escape_controls(text) == shown


def test_colours_stay_where_they_are_allowed_and_nothing_else_does() -> None:
    said = "\x1b[1;31mred\x1b[m \x1b[38:5:1mx \x1b[2J\x1b]8;;http://x\x1b\\ \x1b[31"
    shown = "\x1b[1;31mred\x1b[m \x1b[38:5:1mx \\u001b[2J\\u001b]8;;http://x\\u001b\\ \\u001b[31"
    assert escapes.escape_controls(said, colors=True) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("at https://ann:s3:cr%40t@mlflow:5000/api: refused", "at https://ann:***@mlflow:5000/api: refused"),
        ("postgresql+psycopg2://:secret@db/mlflow", "postgresql+psycopg2://:***@db/mlflow"),
        ("sqlite:////home/ann/mlflow.db, http://mlflow:5000/a:b@c, ann@mlflow", None),
    ],
)
def test_urls_are_shown_without_their_passwords(text, shown):
    assert escapes.mask_passwords(text) == (shown or text)
