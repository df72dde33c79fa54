"""Bad input ends with exit code 2 and all issues, and nothing is made below home.

One row for each kind. Not checked here: what else can be wrong in a job file (tests/job), what the controller finds
(tests/study), and machines without room (tests/client/test_machine.py).
"""

from __future__ import annotations

import random
import shutil
from collections import namedtuple
from pathlib import Path

import pytest

JOB = Path("jobs/demo/job.yaml")
TRAIN = Path("jobs/demo/train.py")


def edit(old, new):
    def do():
        text = JOB.read_text()
        assert old in text
        JOB.write_text(text.replace(old, new))

    return do


def nothing():
    pass


LONG = "a" * 300  # more than a file's name may have
SUBMIT = ("submit", "hpo", "demo", "--local")


@pytest.mark.parametrize(
    ("prepare", "words", "said"),
    [
        (nothing, ("submit", "hpo", "dmo", "--local"), ["no job 'dmo'", "did you mean demo?"]),
        (nothing, ("submit", "hpo", "demo"), ["--local"]),
        (nothing, ("submit", "tarin", "demo"), ["No such command 'tarin'"]),
        (nothing, ("submit", "train", "demo", "--local"), ["job.yaml:1: kind: is hpo", "`platform submit hpo demo`"]),
        (nothing, ("sbmit",), ["did you mean submit"]),
        (nothing, (*SUBMIT, "--trails", "3"), ["No such option", "--trials"]),
        (nothing, (*SUBMIT, "--trials", "many"), ["'many' is not a valid integer"]),
        (nothing, (*SUBMIT, "--trials", "0"), ["--trials: trials"]),
        (nothing, (*SUBMIT, "--name", "My_Run"), ["--name", "my-run"]),
        (nothing, (*SUBMIT, "--profile", "max"), ["no profile 'max'"]),
        (nothing, (*SUBMIT, "--sampler", "tpee"), ["--sampler", "tpe"]),
        (nothing, (*SUBMIT, "--timeout", "soon"), ["--timeout", "30m"]),
        (nothing, (*SUBMIT, "--set", "trial"), ["--set", "field=value"]),
        (nothing, (*SUBMIT, "--set", "resources.gpus=99"), ["resources.gpus", "requests 99"]),
        (nothing, (*SUBMIT, "--params", "no.yaml"), ["no.yaml", "does not exist"]),
        (lambda: Path("p.yaml").write_text("l: 1\n"), (*SUBMIT, "--params", "p.yaml"), ["no such parameter"]),
        (lambda: Path("p.yaml").write_text("a: 1\n---\nb: 2\n"), (*SUBMIT, "--params", "p.yaml"), ["p.yaml", "YAML"]),
        (edit("trials: 6", "trails: 6"), SUBMIT, ["job.yaml:7: trails", "did you mean trials"]),
        (edit("low: 0.0", "low: 2.0"), SUBMIT, ["job.yaml:3: space.lr"]),
        (edit("high: 1.0", "high: 1.0, log: true"), SUBMIT, ["space.lr", "log"]),
        (edit('["1e-5", "on", plain]', "[]"), SUBMIT, ["space.name.choices"]),
        (edit("high: 1.0", "high: 1.0, when: {nme: x}"), SUBMIT, ["nme", "did you mean name?"]),
        (edit("sampler: random", "inputs: {data: {columns: [x]}}\nparams: {data: no.csv}"), SUBMIT, ["no.csv"]),
        (lambda: TRAIN.write_text("def run(:\n"), SUBMIT, ["train.py:1", "is not Python"]),
        (lambda: TRAIN.write_text("def rum(ctx): ...\n"), SUBMIT, ["defines no run", "did you mean rum?"]),
        (TRAIN.unlink, SUBMIT, ["there is no train.py"]),
        (lambda: JOB.write_text("kind: [\n"), SUBMIT, ["job.yaml", "is not YAML"]),
        (lambda: JOB.write_text(""), SUBMIT, ["is empty"]),
        (lambda: Path("jobs/demo/big.bin").write_bytes(random_bytes()), SUBMIT, ["MiB", ".jobignore", "big.bin"]),
        (lambda: Path("jobs/demo/out").symlink_to("/etc"), SUBMIT, ["is a link that leads out of the folder"]),
        (lambda: shutil.rmtree("jobs"), SUBMIT, ["platform init demo"]),
        (nothing, ("validate", "dmo"), ["did you mean demo?"]),
        (nothing, ("validate", LONG), ["no job 'aaa"]),
        (nothing, ("validate", "~nosuchuser/demo"), ["no job '~nosuchuser/demo'"]),
        (nothing, ("validate", "\udcff"), ["no job '\\udcff'"]),
        (nothing, ("validate", "demo", "--set", "\udcff=1"), ["is not UTF-8 text"]),
        (nothing, ("status", LONG), ["there is no run"]),
        (nothing, ("results", "\udcff"), ["there is no run"]),
        (nothing, (*SUBMIT, "--name", LONG), ["characters"]),
        (nothing, (*SUBMIT, "--params", "/dev/zero"), ["more than 16 MiB"]),
        (nothing, (*SUBMIT, "--params", "/dev/null"), ["--params /dev/null", "is empty; it must hold `name: value` lines"]),
        (nothing, (*SUBMIT, "--params", "/dev"), ["Is a directory"]),
        (lambda: Path("jobs/demo/.jobignore").write_bytes(b"\xff"), SUBMIT, [".jobignore is not UTF-8 text (byte 0)"]),
        (lambda: Path("jobs/demo/a").symlink_to("a"), SUBMIT, ["is a link that leads nowhere (a); copy the file"]),
        (edit("kind: hpo", "kind: hpo\nentrypoint: " + "a" * 300 + ":run"), SUBMIT, ["entrypoint: there is no aaa"]),
        (lambda: TRAIN.write_text("x = " + "(" * 30_000), SUBMIT, ["train.py:1: train: is not Python"]),
        (lambda: TRAIN.write_text("x = " + "-" * 60_000 + "1\n"), SUBMIT, ["train.py"]),
        (lambda: JOB.write_text("kind: " + "[" * 30_000), SUBMIT, ["is nested more than 50 levels deep"]),
        (lambda: shutil.rmtree(Path.cwd()), SUBMIT, ["the current directory no longer exists"]),
        (lambda: shutil.rmtree(Path.cwd()), ("list",), ["the current directory no longer exists"]),
        (edit("low: 0.0", "low: 2.0"), ("validate", "demo"), ["space.lr"]),
        (nothing, ("status",), ["there are no runs yet"]),
        (nothing, ("status", "x"), ["there is no run 'x'"]),
        (nothing, ("results", "x"), ["there is no run 'x'"]),
        (nothing, ("logs", "x"), ["there is no run 'x'"]),
        (nothing, ("logs", "3", "--controller"), ["--controller takes no TRIAL"]),
        (nothing, ("logs", "9" * 5000), ["there is no run"]),
        (nothing, ("logs", "--controller", "--attempt", "2"), ["--controller takes no --attempt"]),
        (nothing, ("best", "x"), ["there is no run 'x'"]),
        (nothing, ("cancel", "x"), ["there is no run 'x'"]),
        (nothing, ("resume", "x"), ["there is no run 'x'"]),
        (nothing, ("ui",), ["nothing is recorded"]),
        (nothing, ("init", "Bad Name"), ["not a valid job name"]),
        (nothing, ("init", "demo"), ["already exists"]),
        (nothing, ("completion", "tcsh"), ["'tcsh' is not one of"]),
    ],
)
def test_bad_input(platform, home, prepare, words, said):
    prepare()
    result = platform(*words)
    assert result.exit_code == 2, result.output
    for text in said:
        assert text in result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert not home.exists()


@pytest.mark.parametrize("words", [("validate", "demo"), SUBMIT], ids=["validate", "submit"])
@pytest.mark.parametrize(
    ("value", "said"),
    [
        (
            "[{url: 'https://bob:hidden@example.org/hook'}]",
            "notify.0.url: is no URL of apprise (https:…); for a webhook write",
        ),
        ("[{url: hidden-token}]", "notify.0.url: is no URL of apprise; for a webhook write"),
        ("[{url: ['json://bob:hidden@example.org']}]", "notify.0.url: must be a string; write notify: [{url: "),
        ("['json://bob:hidden@example.org']", "notify.0: must be a mapping; write notify: [{url: "),
        ("'json://bob:hidden@example.org'", "notify: must be a list; write notify: [{url: "),
        ("{url: 'json://bob:hidden@example.org'}", "notify: must be a list; write notify: [{url: "),
    ],
)
def test_an_invalid_notification_is_refused_without_its_password(platform, home, words, value, said):
    JOB.write_text(f"{JOB.read_text()}notify: {value}\n")
    result = platform(*words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert f": {said}" in result.stderr
    assert "nothing was started" in result.stderr
    assert "hidden" not in result.stderr
    assert not home.exists()


def test_an_invalid_notification_of_an_option_is_refused_without_its_password(platform, home):
    result = platform(*SUBMIT, "--set", "notify=[{url: 'https://bob:hidden@example.org/hook'}]")
    assert (result.exit_code, "is no URL of apprise (https:…)" in result.stderr) == (2, True)
    assert "hidden" not in result.output
    assert not home.exists()


def test_all_complaints_together(platform, home):
    edit("low: 0.0", "low: 2.0")()
    edit("trials: 6", "trails: 6")()
    result = platform("submit", "hpo", "demo", "--name", "My_Run", "--parallel", "0", "--params", "no.yaml")
    assert result.exit_code == 2
    for text in ("space.lr", "trails", "my-run", "--parallel", "no.yaml", "--local", "problems; nothing was started"):
        assert text in result.stderr
    assert not home.exists()


def test_a_home_that_cannot_be_made(platform, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TRIALPLANE_HOME", str(tmp_path / "file" / "home"))
    result = platform(*SUBMIT)
    assert result.exit_code == 2
    assert "TRIALPLANE_HOME" in result.stderr


@pytest.mark.parametrize("name", [LONG, "a" * 5000, "x/y", ".", "..", "", "\udcff"])
def test_a_name_that_no_run_has(platform, home, name):
    (home / "runs").mkdir(parents=True)
    for verb in ("status", "results", "logs", "best", "cancel", "resume", "delete"):
        result = platform(verb, name, "--local", *(["--yes"] if verb == "delete" else []))
        assert result.exit_code == 2, verb
        assert "there is no run" in result.stderr


@pytest.mark.parametrize("chosen", ["~nosuchuser/home", LONG])
def test_a_home_that_cannot_be(platform, home, monkeypatch, chosen):
    monkeypatch.setenv("TRIALPLANE_HOME", chosen)
    result = platform("list")
    assert result.exit_code == 2
    assert "TRIALPLANE_HOME is" in result.stderr and "which cannot be used" in result.stderr


@pytest.mark.parametrize("words", [SUBMIT, ("list",), ("status",), ("status", "x"), ("ui",), (*SUBMIT, "--name", "x")])
def test_a_home_in_a_closed_folder(platform, closed, words):
    result = platform(*words)
    assert result.exit_code == 2, result.stderr
    assert "you may not read" in result.stderr
    assert "set TRIALPLANE_HOME" in result.stderr


def test_a_full_disk(platform, home, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage(2**40, 2**40, 2**20))
    result = platform(*SUBMIT)
    assert result.exit_code == 2
    assert "1 MiB are left" in result.stderr
    assert not home.exists()


def test_libraries_that_are_not_installed(platform, home, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = platform(*SUBMIT)
    assert result.exit_code == 2
    assert "pip install 'trialplane[local]'" in result.stderr
    assert not home.exists()


def test_a_dry_run_checks_the_same(platform, home):
    result = platform(*SUBMIT, "--dry-run", "--trials", "0")
    assert result.exit_code == 2
    assert not home.exists()


def random_bytes():
    return random.Random(0).randbytes(9 * 2**20)
