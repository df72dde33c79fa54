"""Errors at the outermost border: ours as one message, others with the place of the traceback, both with an exit code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trialplane import errors
from trialplane.cli import failure
from trialplane.job import load


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.JobNotFound("no job"), 2),
        (errors.LedgerCorrupt("damaged"), 2),
        (errors.LedgerLocked("locked"), 3),
        (errors.TargetError("refused"), 3),
        (errors.SpecError([errors.Issue(("a",), "b"), errors.Issue(("c",), "d")]), 2),
    ],
)
def test_our_errors_are_messages(error, code, capsys):
    assert failure.show(error) == code
    assert capsys.readouterr().err == f"platform: {error}\n"


def test_a_line_that_nobody_would_read_is_cut(capsys):
    failure.show(errors.JobNotFound(f"no job {'a' * 5000}\nlook there"))
    first, second = capsys.readouterr().err.splitlines()
    assert len(first) == failure.MAX_LINE and first.endswith("a…")
    assert second == "look there"


def test_other_errors_leave_their_traceback_in_a_file(platform, monkeypatch):
    def broken(*_):
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(load, "find_job", broken)
    result = platform("validate", "demo")
    assert result.exit_code == 3
    assert "ZeroDivisionError: by zero" in result.stderr
    assert "Traceback" not in result.stderr
    file = Path(re.search(r"The traceback is in (\S+);", result.stderr)[1])
    assert "in broken" in file.read_text()
    file.unlink()


def test_where_no_file_can_be_written_the_traceback_is_shown(platform, monkeypatch, tmp_path):
    def broken(*_):
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(load, "find_job", broken)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "not there"))
    result = platform("validate", "demo")
    assert result.exit_code == 3
    assert "in broken" in result.stderr


def test_ctrl_c_in_a_verb_is_130(platform, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(load, "find_job", interrupted)
    assert platform("validate", "demo").exit_code == 130


def test_every_exit_code_is_in_the_help(platform):
    text = platform("--help").stdout
    assert all(meaning.split(";")[0][:30] in text for meaning in errors.EXIT_CODES.values())
