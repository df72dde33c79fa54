"""What reaches a terminal of what trials say, and verbs whose output nobody reads, or that cannot be written.

Not checked here: what is escaped (tests/wire/test_escapes.py).
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from tests.client.conftest import complete, failed

from trialplane.cli import kinds, main, progress
from trialplane.client.run import RunHandle
from trialplane.wire import escapes, records
from trialplane.wire.states import RunState

PLATFORM = Path(sysconfig.get_path("scripts")) / "platform"
NASTY = "\x1b]0;owned\x07\x9b2J \ud800 red \x1b[31mred"


def nasty(request):
    return failed(request, message=NASTY) if request.trial else complete(request)


@pytest.fixture
def told(runs, monkeypatch):
    """A run whose trials have failed with a message that would steer a terminal, as no record of ours has it."""
    with monkeypatch.context() as loose:
        loose.setattr(escapes, "escape_surrogates", str)
        run = runs.make("a", tell=nasty)
        status = runs.say(run, RunState.FAILED, failed=5, complete=1, started=1.0, ended=2.0, failures={"error": 5})
        run.status.write_text(records.to_json(dataclasses.replace(status, reason=NASTY)))
    log = run.trial_log(1, 1)
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(b"50%\r100%\r\n\x1b[31mred\x1b[0m \x1b[2J\x07\xff\n")
    return run


SHOWING = [
    ("results", "a"),
    ("results", "a", "-o", "json"),
    ("results", "a", "-o", "yaml"),
    ("results", "a", "-o", "csv"),
    ("results", "a", "--all-attempts"),
    ("status", "a"),
    ("status", "a", "-o", "json"),
    ("status", "a", "--watch"),
    ("list",),
    ("list", "-o", "json"),
    ("logs", "a", "1"),
    ("best", "a"),
]


def test_what_trials_say_steers_no_terminal(platform, told):
    for words in SHOWING:
        shown = platform(*words)
        assert shown.exit_code == 0, (words, shown.stderr)
        for text in (shown.stdout, shown.stderr):
            bad = [char for char in text if char not in "\n\t" and (ord(char) < 32 or 127 <= ord(char) < 160)]
            assert not bad, words
            text.encode()
        if "json" in words:
            assert json.loads(shown.stdout)


def test_a_log_keeps_its_colours_and_each_state_of_a_progress_bar(told, monkeypatch, capsys):
    monkeypatch.setattr("click.utils.should_strip_ansi", lambda *_: False)  # as on a terminal
    with pytest.raises(SystemExit):
        main.main(["logs", "a", "1"])
    shown = "50%\n100%\n\x1b[31mred\x1b[0m \\u001b[2J\\u0007\N{REPLACEMENT CHARACTER}\n"
    assert capsys.readouterr().out == shown


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_live_display_shows_what_trials_say_and_is_not_steered_by_it(told, runs, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    stream = Terminal()
    with progress.view(stream) as shown:
        shown.message(NASTY + " [/no markup]")
        shown.update(RunHandle("a", runs.target).status())
    assert not [text for text in ("\x1b]0", "\x07", "\x9b", "\ud800") if text in stream.getvalue()]
    assert "[/no markup]" in stream.getvalue()


def test_a_failure_that_is_no_text_does_not_end_who_follows_the_run(told, runs):
    row = next(row for row in RunHandle("a", runs.target).attempts() if "\ud800" in row.message)
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    progress.PlainView(stream).message(kinds.PRESENTERS["hpo"].failure("a", row))
    assert b"\\u001b]0;owned" in stream.buffer.getvalue()


def test_the_advice_at_the_end_of_a_long_failure_is_shown(told, runs, monkeypatch):
    """A missing metric is told with what was found in its place, and that may be much."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "60")
    found = ", ".join(f"metric_{number} (0.{number})" for number in range(20))
    advice = "write metrics: tensorboard"
    row = next(row for row in RunHandle("a", runs.target).attempts() if row.failure is not None)
    row = dataclasses.replace(row, message=f"no acc in its output; found were {found}; {advice}")
    text = kinds.PRESENTERS["hpo"].failure("a", row)
    assert f"{advice}; `platform logs a {row.trial}`" in text
    stream = Terminal()
    with progress.view(stream) as shown:
        shown.message(text)
    assert advice in " ".join(stream.getvalue().split())


VERBS = [
    ("--help",),
    ("--version",),
    ("list",),
    ("list", "-o", "json"),
    ("status", "a"),
    ("status", "a", "--watch"),
    ("logs", "a"),
    ("logs", "a", "1"),
    ("results", "a"),
    ("results", "a", "-o", "csv"),
    ("best", "a"),
    ("validate", "demo"),
    ("submit", "hpo", "demo", "--local", "--dry-run"),
    ("schema",),
    ("completion", "bash"),
    ("init", "other"),
]


def typed(words, stdout, monkeypatch):
    """The exit code of a verb with that stdout."""
    monkeypatch.setattr(sys, "stdout", stdout)
    with pytest.raises(SystemExit) as ended:
        main.main(words)
    stdout.close()
    return ended.value.code


def test_a_pipe_that_nobody_reads_ends_a_verb_quietly(told, monkeypatch, capfd):
    told.controller_log.write_text("said\n")
    for words in VERBS:
        read, write = os.pipe()
        os.close(read)
        assert typed(words, os.fdopen(write, "w"), monkeypatch) == 0, words
        assert not [line for line in capfd.readouterr().err.splitlines() if "rror" in line or "should not" in line], words


def test_output_that_cannot_be_written_is_said_in_one_line(told, monkeypatch, capfd):
    told.controller_log.write_text("said\n")
    for words in VERBS:
        assert typed(words, open("/dev/full", "w"), monkeypatch) == 3, words  # noqa: PTH123, SIM115
        said = capfd.readouterr().err.splitlines()[-1]
        assert said.startswith("platform: the output cannot be written: No space left on device"), words


@pytest.mark.parametrize(
    ("streams", "code"), [(">&-", 0), (">&- 2>&- <&-", 0), ("2>/dev/full", 0), ("| true", 0), (">/dev/full 2>/dev/full", 3)]
)
def test_a_process_ends_with_its_own_code_whatever_its_streams_are(workplace, streams, code):
    script = f"set -o pipefail; {PLATFORM} validate demo {streams}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (code, "")


def test_a_file_never_gets_the_number_of_a_closed_stream(workplace):
    program = "import os; from trialplane.cli import main; main._open_streams(); print(os.open('.', os.O_RDONLY))"
    script = f'{sys.executable} -c "{program}" <&- 2>&-'
    assert int(subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout) > 2


def test_nor_does_a_file_of_a_program_that_is_started(workplace):
    starts = "import subprocess, sys; from trialplane.cli import main; main._open_streams(); subprocess.run(sys.argv[1:])"
    opens = "import os, sys; print(os.open('.', os.O_RDONLY), file=sys.stderr)"
    script = f'{sys.executable} -c "{starts}" {sys.executable} -c "{opens}" <&- >&-'
    assert int(subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stderr) > 2


def test_an_error_that_cannot_be_printed_is_told_nevertheless(platform, monkeypatch):
    class Broken(Exception):
        def __str__(self):
            raise ZeroDivisionError

    def broken(*_):
        raise Broken

    monkeypatch.setattr("trialplane.job.load.find_job", broken)
    monkeypatch.setattr(sys, "argv", ["platform", "validate", "\udcff"])
    result = platform("validate", "\udcff")
    assert result.exit_code == 3
    assert "internal error" in result.stderr


def test_many_complaints_are_counted_and_not_all_shown(platform, workplace):
    file = workplace / "jobs" / "demo" / "job.yaml"
    file.write_text(file.read_text() + "".join(f"x{number}: 1\n" for number in range(3000)))
    result = platform("validate", "demo")
    assert result.exit_code == 2
    lines = result.stderr.splitlines()
    assert len(lines) == 52
    assert lines[0] == "platform: 3000 problems; nothing was started"
    assert lines[-1] == "  and 2950 more"
