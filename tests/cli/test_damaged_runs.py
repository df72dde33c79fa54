"""Folders of runs with a file that is damaged, odd or closed: a table of what has happened to them, against every verb.

No verb fails with a traceback or waits for what never comes, each ends with a documented exit code, `delete` works, and the
run beside the damaged one is as it was. A hang shows as the time limit of a test. Not checked here: damage while a
controller works, but of its job (its own status mends itself), and damaged checkpoints (tests/worker).
"""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import stat
from pathlib import Path

import pytest
from tests.client.conftest import ORIGIN, complete

from trialplane import errors
from trialplane.cli import names
from trialplane.client import folder, process
from trialplane.client.run import submit
from trialplane.job import load
from trialplane.ledger import results
from trialplane.plan import plan as planning
from trialplane.wire.paths import RunPaths
from trialplane.wire.states import RunState

pytestmark = pytest.mark.timeout(900)


def writes(content):
    def damage(file):
        file.write_bytes(content)

    return damage


def cut(file):
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])


def missing(file):
    if file.is_dir():
        shutil.rmtree(file)
    else:
        file.unlink(missing_ok=True)


def directory(file):
    missing(file)
    file.mkdir()


def loop(file):
    missing(file)
    file.symlink_to(file.name)


def closed(file):
    """Root may open everything; see `refused`."""
    file.chmod(0)


def changed(**fields):
    def damage(file):
        file.write_text(json.dumps({**json.loads(file.read_bytes()), **fields}))

    return damage


ODD = [missing, directory, loop, closed]
TEXTS = [b"", b"null", b"[]", b'"a"', b"{}", b"{", b"\xff\xfe\x00junk"]
JSON = [*(writes(text) for text in TEXTS), cut, *ODD]
FEW = [*(writes(text) for text in (b"", b"null", b"{}")), *ODD]  # where little depends on the file
TABLE = {
    "status.json": [
        *(*JSON, changed(trials="6"), changed(state=3), changed(state="LOST"), changed(created=1e300)),
        *(changed(best=[]), changed(progress=1)),
        *(changed(progress={"kind": kind, "workers": [1]}) for kind in ("collect", "of a later version", None, [])),
    ],
    "job.json": [*JSON, changed(trials="six"), changed(space=None)],
    "submission.json": [*FEW, changed(submitted="soon"), changed(code_hash=None)],
    "controller.json": [*FEW, writes(b'{"pid": 1, "boot": "b", "started": 1e999}')],
    "controller.lock": [writes(b""), writes(b"4711\n"), writes(b"\xff\x00"), *ODD],
    "ledger.db": [writes(b""), writes(b"not a database " * 100), cut, *ODD],
    "controller.log": [writes(b"\xff\x00\x1b]0;"), *ODD],
    "trials/0000/attempt-1.log": ODD,
    "trials": ODD,
    "code": [missing, loop, closed],
    "cancelled": [directory, loop],
    ".": [loop, closed],
}
READING = [
    ("list",),
    ("status", "a"),
    ("logs", "a"),
    ("logs", "a", "0"),
    ("logs", "a", "0", "--follow"),
    ("results", "a"),
    ("best", "a"),
    ("report", "a"),
    ("compare", "a", "sound"),
    ("delete", "a"),  # nobody is there to answer
    ("scale", "a", "--parallel", "2"),
    ("pause", "a"),
]
CHANGING = [
    ("cancel", "a", "--yes"),
    ("resume", "a", "--detach"),
    ("submit", "hpo", "demo", "--local", "--name", "a", "--detach"),
    ("delete", "a", "--yes"),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Where the first test leaves its runs to the others."""
    return tmp_path_factory.mktemp("made")


@pytest.fixture
def run(runs, home, made, monkeypatch, started):
    """A run that nobody works on, yet to be copied from `made`, beside one that stays as it is; `resume` starts nothing."""
    monkeypatch.setattr(process, "PROGRAM", ("-c", ""))
    if not any(made.iterdir()):
        runs.say(runs.make("sound", tell=complete), RunState.SUCCEEDED, complete=6)
        run = runs.make("a", tell=complete, asks=3)
        runs.say(run, RunState.PAUSED, complete=1)
        log = run.trial_log(0, 1)
        log.parent.mkdir(parents=True)
        for file, text in ((log, "said\n"), (run.controller_log, "said\n"), (run.lock, ""), (run.controller, "{}")):
            file.write_text(text)
        shutil.copytree(home / "runs", made, dirs_exist_ok=True)
        shutil.rmtree(run.root)
    else:
        shutil.copytree(made / "sound", home / "runs" / "sound")
    yield RunPaths.of(home, "a")
    for child in started:
        child.wait(300)


@pytest.fixture
def refused(home, monkeypatch):
    """What the system refuses to others than root: files and folders without any permission, and what is in these."""
    opened, read, stated = os.open, io.open, Path.stat

    def check(path):
        if not str(path).startswith(str(home)):
            return
        for one in (path, *path.parents[: 1 - len(home.parts)]):  # up to the home
            try:
                mode = os.lstat(one).st_mode
            except OSError:
                continue
            if not stat.S_ISLNK(mode) and not mode & 0o777:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    def open_(path, *args, **options):
        if isinstance(path, (str, os.PathLike)):
            check(Path(path))
        return opened(path, *args, **options)

    def read_(path, *args, **options):
        if isinstance(path, (str, os.PathLike)):
            check(Path(path))
        return read(path, *args, **options)

    def stat_(self, **options):
        check(self.parent)
        return stated(self, **options)

    monkeypatch.setattr(os, "open", open_)
    monkeypatch.setattr(io, "open", read_)
    monkeypatch.setattr(Path, "stat", stat_)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        pytest.param(name, damage, id=f"{name}-{number}-{damage.__name__}")
        for name, damages in TABLE.items()
        for number, damage in enumerate(damages)
    ],
)
def test_a_damaged_run_spoils_nothing_but_itself(platform, run, made, refused, name, damage):
    beside = run.root.with_name("sound")
    before = sorted(path.name for path in beside.iterdir())
    for number, words in enumerate((*READING, *CHANGING)):
        if not number or words in CHANGING:
            _renew(made / "a", run.root)
            damage(run.root / name)
        result = platform(*words)
        said = result.stdout + result.stderr
        assert result.exit_code in errors.EXIT_CODES, (words, said)
        assert "Traceback" not in said, (words, said)
        assert "internal error" not in said, (words, said)
        if "is damaged: " in said:
            assert str(run.root) in said, (words, said)
            assert "`platform delete a` deletes it" in said, (words, said)
        if words == ("list",):
            assert result.exit_code == 0, said
            rows = {line.split()[0]: line for line in result.stdout.splitlines()[1:]}
            assert sorted(rows) == ["a", "sound"], said
            assert "SUCCEEDED" in rows["sound"]
    assert result.exit_code == 0, (words, said)
    assert [path.name for path in beside.parent.iterdir()] == ["sound"], "nothing is left of the one deleted"
    assert sorted(path.name for path in beside.iterdir()) == before
    assert platform("status", "sound").exit_code == 0


def _renew(whole, root):
    if root.is_symlink():
        root.unlink()
    elif root.exists():
        root.chmod(0o755)
        shutil.rmtree(root)
    shutil.copytree(whole, root)


# What `list` shows of each, and what a verb says that needs the file.


@pytest.mark.parametrize(
    ("name", "damage", "said"),
    [
        ("status.json", writes(b""), ["status.json", "Removing that file repairs the run"]),
        ("status.json", writes(b"null"), ["status.json", "Removing that file repairs the run"]),
        ("status.json", changed(trials="6"), ["status.json has an invalid value for `trials`. Removing"]),
        ("status.json", changed(progress={"kind": "new"}), ["another version wrote it", "Removing that file"]),
        ("job.json", writes(b""), ["job.json"]),
        ("job.json", missing, ["job.json is missing"]),
        (".", closed, ["Permission denied"]),
    ],
)
def test_it_is_listed_as_damaged_and_verbs_that_need_the_file_name_it(platform, run, made, refused, name, damage, said):
    _renew(made / "a", run.root)
    damage(run.root / name)
    listed = platform("list")
    assert "DAMAGED" in next(line for line in listed.stdout.splitlines() if line.startswith("a "))
    shown = json.loads(platform("list", "-o", "json").stdout)
    by_name = {one["run"]: one for one in shown}
    assert (by_name["a"]["state"], by_name["sound"]["state"]) == ("DAMAGED", "SUCCEEDED")
    assert set(by_name["a"]) == set(by_name["sound"])
    submit = ("submit", "hpo", "demo", "--local", "--name", "a", "--detach")
    for words in (("status", "a"), ("cancel", "a", "--yes"), ("resume", "a", "--detach"), submit):
        result = platform(*words)
        assert result.exit_code == errors.EXIT_PLATFORM, (words, result.stderr)
        for text in ("the run a is damaged", "`platform delete a` deletes it", str(run.root), *said):
            assert text in result.stderr, words
    assert by_name["a"]["reason"] in listed.stderr


DELETE = "`platform delete a` deletes it"


@pytest.mark.parametrize("words", [("report", "a"), ("report", "sound", "a"), ("compare", "a", "sound")])
@pytest.mark.parametrize(
    ("name", "damage", "said"),
    [
        ("job.json", writes(b"{"), ["the run a is damaged", DELETE, "Nothing was written"]),
        ("status.json", cut, ["the run a is damaged", "Removing that file repairs the run", "Nothing was written"]),
        ("ledger.db", writes(b"not a database " * 100), ["the ledger of a is damaged", "Nothing was changed", ".recover"]),
        ("ledger.db", missing, ["the ledger of a is not in", "`platform ui`", DELETE, "Nothing was written"]),
        (".", closed, ["the run a is damaged", "Permission denied", "Nothing was written"]),
    ],
)
def test_no_page_is_written_of_a_damaged_run(platform, run, made, refused, name, damage, said, words):
    _renew(made / "a", run.root)
    damage(run.root / name)
    result = platform(*words, "--out", "page.html")
    assert result.exit_code == 2
    for text in (str(run.root), *said):
        assert text in result.stderr
    assert not Path("page.html").exists()


def test_a_run_whose_newest_status_is_lost_has_a_page(platform, run, made):
    _renew(made / "a", run.root)
    run.status.unlink()
    assert platform("report", "a", "--out", "page.html").exit_code == 0
    assert '"trials":6' in Path("page.html").read_text()


def test_logs_are_shown_without_a_status(platform, run, made):
    _renew(made / "a", run.root)
    run.status.write_bytes(b"")
    for words in (("0",), ("--controller",)):
        result = platform("logs", "a", *words)
        assert (result.exit_code, bool(result.stdout)) == (0, True), result.stderr


def test_removing_a_damaged_status_mends_the_run(platform, run, made):
    _renew(made / "a", run.root)
    run.status.write_bytes(b"")
    assert platform("status", "a").exit_code == errors.EXIT_PLATFORM
    run.status.unlink()
    status = json.loads(platform("status", "a", "-o", "json").stdout)
    assert (status["state"], status["complete"]) == ("PAUSED", 3)


@pytest.mark.parametrize(
    ("words", "said"),
    [(("pause", "a"), "a PAUSED"), (("cancel", "a", "--yes"), "a CANCELLED"), (("delete", "a", "--yes"), "a is deleted")],
)
def test_a_living_training_whose_job_is_damaged_can_be_ended(platform, runs, double, words, said):
    (runs.jobs / "demo" / "job.yaml").write_text("kind: train\n")
    source = runs.jobs / "demo"
    submit(runs.target, planning.plan(load.load_job(source), source, "a", ORIGIN))
    run = RunPaths.of(runs.home, "a")
    double(run)
    run.job.write_text("{")
    result = platform(*words)
    assert (result.exit_code, said in result.stderr) == (0, True), result.stderr
    assert process.active_controller(run) is None


def test_folders_that_a_job_closed_are_removed_too(platform, run, made):
    _renew(made / "a", run.root)
    inner = run.checkpoints / "kept"
    inner.mkdir(parents=True)
    (inner / "file").touch()
    inner.chmod(0)
    run.checkpoints.chmod(0)
    run.root.chmod(0)
    assert platform("delete", "a", "--yes").exit_code == 0
    assert [path.name for path in run.root.parent.iterdir()] == ["sound"]


# Runs that vanish


@pytest.mark.parametrize("moment", ["job.json", "status.json", "submission.json", "controller.json", "controller.lock"])
def test_a_run_that_is_deleted_while_it_is_looked_at_is_left_out(platform, runs, run, made, monkeypatch, moment):
    """At each file that is read, in the moment before."""
    _renew(made / "a", run.root)
    opened = io.open

    def vanishing(path, *args, **options):
        if str(path) == str(run.root / moment) and run.root.exists():
            folder.discard(run)
        return opened(path, *args, **options)

    monkeypatch.setattr(io, "open", vanishing)
    result = platform("list")
    assert result.exit_code == 0, result.stderr
    assert [line.split()[0] for line in result.stdout.splitlines()[1:]] == ["sound"]
    assert result.stderr == ""


def test_one_whose_ledger_vanishes_while_it_is_counted_is_left_out(platform, run, made, monkeypatch):
    _renew(made / "a", run.root)
    attempts = results.attempts

    def vanishing(*args, **options):
        if run.root.exists():
            folder.discard(run)
        return attempts(*args, **options)

    monkeypatch.setattr(results, "attempts", vanishing)
    listed = platform("list")
    assert (listed.exit_code, [line.split()[0] for line in listed.stdout.splitlines()[1:]]) == (0, ["sound"])
    _renew(made / "a", run.root)
    shown = platform("status", "a")
    assert (shown.exit_code, "there is no run 'a'" in shown.stderr) == (2, True)


def test_completion_knows_the_others(run, made):
    _renew(made / "a", run.root)
    run.root.with_name("gone").symlink_to("nowhere")
    assert set(names.complete_run(None, None, "")) == {"a", "sound", "gone"}
