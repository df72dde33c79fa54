"""Scripts and commands as trials of a real slot: what they get, how each of their ends is judged, pruning and stopping.

Not checked here: how arguments are made (tests/job/test_arguments.py), how metrics are found (metrics/), and the styles of
scripts in a whole run (tests/study/test_scripts.py).
"""

from __future__ import annotations

import dataclasses
import json
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.worker.conftest import Bench, Event, alive, prune_at

from trialplane import errors
from trialplane.job.program import MetricSource, Program
from trialplane.wire.records import StopRule
from trialplane.wire.states import FailureClass, TrialState
from trialplane.worker import programs

# What a trial does is its parameter `what`, as a function of this script.
SCRIPT = """
import json, multiprocessing, os, pickle, signal, sys, threading, time
from pathlib import Path

import helper

class Thing:
    pass

def facts():
    found = {
        "argv": sys.argv, "cwd": os.getcwd(), "file": __file__, "name": __name__, "path0": sys.path[0],
        "main": sys.modules["__main__"].__dict__ is globals(), "helper": helper.__file__,
        "data": Path("data.txt").read_text() if Path("data.txt").exists() else None,
        "env": {name: text for name, text in os.environ.items() if name.startswith("TRIALPLANE_")},
        "checkpoints": Path(os.environ["TRIALPLANE_TRIAL_CHECKPOINTS"]).is_dir(),
        "pickled": pickle.loads(pickle.dumps(Thing())).__class__ is Thing,
    }
    Path("written.txt").write_text("beside the code")
    Path(sys.argv[2].removeprefix("--file=")).write_text(json.dumps(found))
    print("score: 0.5")

def steps():
    for step in range(3):
        print(f"step {step} score={step / 4} loss={1 - step / 4}")

def quick():
    for step in range(5):
        print(f"step {step} score={step}")

def ambient():
    import trialplane
    trialplane.report(score=0.25)
    trialplane.report(score=0.75, loss=trialplane.params()["x"])

def prints_nothing():
    print("all is well, loss=3")

def fails():
    raise ValueError("no such colour")

def refuses():
    print("usage: train.py [-h] --lr LR\\ntrain.py: error: argument --lr: invalid float value: 'x'", file=sys.stderr)
    sys.exit(2)

def leaves_early():
    sys.exit(0)

def leaves_with_three():
    sys.exit(3)

def asks():
    input("continue? ")

def forks():
    if os.fork() == 0:
        print("child is done")
        return
    os.wait()
    print("score=1")

def forks_and_fails():
    if os.fork() == 0:
        raise RuntimeError("only in the child")
    print(f"score={os.waitstatus_to_exitcode(os.wait()[1])}")

def forks_and_leaves():
    if os.fork() == 0:
        sys.exit(7)
    print(f"score={os.waitstatus_to_exitcode(os.wait()[1])}")

def leaves_with_a_thread():
    late_thread()
    sys.exit(0)

def leaves_a_pool():
    from concurrent.futures import ThreadPoolExecutor
    print(f"score={ThreadPoolExecutor(2).submit(lambda: 0.5).result()}")

def odd():
    print('{"loss": 1' + "0" * 400 + "}")
    print("epoch " + "9" * 5000 + " loss: 3/" + "9" * 5000)
    print("score=0.5")

def ends_at_once():
    print("score=0.5")
    sys.stdout.flush()
    os._exit(0)

def ends_at_once_without_a_metric():
    os._exit(0)

def ends_at_once_with_three():
    os._exit(3)

def becomes_another_program():
    print("loss=2")
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-c", "print('score=0.75')"])

def becomes_a_program_that_fails():
    os.execv(sys.executable, [sys.executable, "-c", "raise SystemExit(3)"])

def becomes_a_program_that_goes_on():
    os.execv(sys.executable, [sys.executable, "-c", "import time; print('score=0.75', flush=True); time.sleep(600)"])

def leaves_with_two():
    sys.exit(2)

def becomes_a_daemon():
    if os.fork() == 0:
        os.setsid()
        Path(os.environ["PIDS"]).write_text(str(os.getpid()))
        time.sleep(600)
    while not Path(os.environ["PIDS"]).exists():
        time.sleep(0.01)

def late_thread():
    threading.Thread(target=lambda: (time.sleep(0.3), print("score=0.9"))).start()

def work(queue):
    queue.put(0.625)

def workers():
    multiprocessing.set_start_method("spawn")
    queue = multiprocessing.Queue()
    process = multiprocessing.Process(target=work, args=(queue,))
    process.start()
    print(f"score={queue.get()}")

def endless():
    for step in range(10_000):
        print(f"step {step} score={step}")
        time.sleep(0.01)

def deaf():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    endless()

def saves():
    def save(number, frame):
        print("saved")
        sys.exit(0)
    signal.signal(signal.SIGTERM, save)
    endless()

def writes_event_files():
    import tensorboardX
    print("epoch 1 loss=1")
    writer = tensorboardX.SummaryWriter("runs")
    for step in range(5):
        writer.add_scalar("score", step, step)
    writer.close()

def has_only_training_values():
    print("Train Epoch: 1 score: 0.5")

if __name__ == "__main__":
    globals()[sys.argv[1].removeprefix("--what=")]()
"""
STDOUT = (MetricSource("stdout"),)
FLAGS = ("{flags}",)


def bench(root: Path, program: Program, **config: Any) -> Bench:
    program = dataclasses.replace(program, names=("score",))
    return Bench(root, {"train": SCRIPT, "helper": "import colorsys\n"}, program=program, **config)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with bench(tmp_path_factory.mktemp("slot"), Program(script="train.py", arguments=FLAGS, metrics=STDOUT)) as made:
        Path(made.config.code, "data.txt").write_text("beside the script")
        assert made.ready.unclean == ()
        yield made


def test_a_script_runs_as_it_would_by_itself(shared: Bench, tmp_path: Path) -> None:
    file = tmp_path / "facts.json"
    outcome = shared.outcome("facts", file=str(file))
    assert (outcome.state, outcome.metrics, outcome.start_method) == (TrialState.COMPLETE, {"score": 0.5}, "fork")
    found = json.loads(file.read_text())
    assert found["argv"] == ["train.py", "--what=facts", f"--file={file}"]
    assert (found["name"], found["main"], found["pickled"]) == ("__main__", True, True)
    assert found["data"] == "beside the script"
    own = Path(found["cwd"])
    assert found["file"] == str(own / "train.py") and found["path0"] == str(own)
    assert found["helper"] == str(own / "helper.py"), "modules beside it are those of the copy"
    assert not own.exists() and not Path(shared.config.code, "written.txt").exists(), "what it writes is its own"
    assert json.loads(found["env"]["TRIALPLANE_PARAMS"])["what"] == "facts"
    assert found["env"]["TRIALPLANE_TRIAL_CHECKPOINTS"].endswith(f"/toy/trial-{outcome.number}") and found["checkpoints"]


def test_lines_are_reports(shared: Bench) -> None:
    events = shared.events("steps")
    reports = [(report.step, report.metrics) for event in events for report in event.reports]
    assert reports == [(step, {"score": step / 4, "loss": 1 - step / 4}) for step in range(3)]
    assert events[-1].outcome is not None and events[-1].outcome.metrics == {"score": 0.5, "loss": 0.5}


def test_what_a_script_reports_itself_is_not_reported_again(shared: Bench) -> None:
    events = shared.events("ambient", x=0.5)
    reports = [(report.step, report.metrics) for event in events for report in event.reports]
    assert reports == [(0, {"score": 0.25}), (1, {"score": 0.75, "loss": 0.5})]
    assert events[-1].outcome is not None and events[-1].outcome.metrics == {"score": 0.75, "loss": 0.5}


@pytest.mark.parametrize(
    ("what", "failure", "message"),
    [
        ("prints_nothing", FailureClass.INVALID, "no score in its output; found were loss (3)"),
        ("leaves_early", FailureClass.INVALID, "no score in its output; no metrics were found"),
        ("fails", FailureClass.ERROR, "ValueError: no such colour (train.py:"),
        ("refuses", FailureClass.INVALID, "train.py does not take its arguments: error: argument --lr: invalid float"),
        ("leaves_with_two", FailureClass.ERROR, "SystemExit: 2 (train.py:"),
        ("leaves_with_three", FailureClass.ERROR, "SystemExit: 3 (train.py:"),
        ("asks", FailureClass.INVALID, "train.py read standard input, which is empty in a trial"),
        ("ends_at_once_without_a_metric", FailureClass.INVALID, "no score in its output"),
        ("ends_at_once_with_three", FailureClass.CRASHED, "exit code 3 before it could send its result; see its log. A job"),
        ("becomes_a_program_that_fails", FailureClass.CRASHED, "or run that program with `command:`"),
    ],
)
def test_how_a_script_fails(shared: Bench, what: str, failure: FailureClass, message: str) -> None:
    outcome = shared.outcome(what)
    assert (outcome.state, outcome.failure) == (TrialState.FAILED, failure)
    assert message in outcome.message


@pytest.mark.parametrize(
    ("what", "score"),
    [
        ("forks", 1.0),
        ("forks_and_fails", 1.0),
        ("forks_and_leaves", 7.0),
        ("late_thread", 0.9),
        ("leaves_with_a_thread", 0.9),
        ("leaves_a_pool", 0.5),
        ("workers", 0.625),
        ("ends_at_once", 0.5),
    ],
)
def test_processes_and_threads_of_a_script(shared: Bench, what: str, score: float) -> None:
    outcome = shared.outcome(what)
    assert (outcome.state, outcome.metrics) == (TrialState.COMPLETE, {"score": score}), outcome.message


def test_a_script_that_becomes_another_program_has_what_that_printed(shared: Bench, tmp_path: Path) -> None:
    outcome = shared.outcome("becomes_another_program")
    assert (outcome.state, outcome.metrics) == (TrialState.COMPLETE, {"score": 0.75, "loss": 2.0}), outcome.message
    program = Program(script="train.py", arguments=FLAGS, metrics=STDOUT)
    with bench(tmp_path, program, keep=("*.txt",)) as slot:
        assert "keep.files: nothing was copied" in slot.outcome("becomes_another_program").remark


def test_a_script_that_becomes_a_daemon_ends_with_its_trial(shared: Bench, tmp_path: Path) -> None:
    pids = tmp_path / "pid"
    outcome = shared.outcome("becomes_a_daemon", env={"PIDS": str(pids)})
    assert outcome.failure is FailureClass.INVALID and not alive(int(pids.read_text()))


def test_odd_output_ends_nothing(shared: Bench) -> None:
    outcome = shared.outcome("odd")
    assert (outcome.state, outcome.metrics["score"]) == (TrialState.COMPLETE, 0.5), outcome.message


@pytest.mark.parametrize("what", ["endless", "deaf"])
def test_the_pruner_ends_a_script_that_only_prints(shared: Bench, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trialplane.worker.running.DECIDED_END_GRACE", 0.2 if what == "deaf" else 60.0)
    outcome = prune_at(shared, 3, shared.slot.run(shared.request(what, prunable=True)))
    assert (outcome.state, outcome.failure) == (TrialState.PRUNED, None)
    assert outcome.message.startswith("pruned at step ") and outcome.metrics["score"] >= 3
    assert outcome.message == f"pruned at step {outcome.metrics['score']:g}"
    assert outcome.exit_code == -(signal.SIGKILL if what == "deaf" else signal.SIGTERM)


def test_a_script_that_ends_before_the_pruner_has_decided_is_pruned_as_any_other(shared: Bench) -> None:
    event = shared.slot.run(shared.request("quick", prunable=True))
    while not any(report.step == 2 for report in event.reports):
        assert event.outcome is None, "the study is asked about the last reports, too"
        event = shared.slot.answer()
    outcome = prune_at(shared, 2, event)
    assert (outcome.state, outcome.message, outcome.metrics) == (TrialState.PRUNED, "pruned at step 2", {"score": 2.0})


@pytest.mark.parametrize(
    ("what", "watched", "state", "steps"),
    [
        ("writes_event_files", "score", TrialState.COMPLETE, [0, 1, 2, 3, 4]),
        ("writes_event_files", "loss", TrialState.PRUNED, []),
        ("has_only_training_values", "score", TrialState.COMPLETE, [1]),
    ],
)
def test_what_is_read_only_at_the_end_comes_with_the_outcome_and_prunes_no_trial(
    tmp_path: Path, what: str, watched: str, state: TrialState, steps: list[int]
) -> None:
    late = (MetricSource("tensorboard"),)
    with bench(tmp_path, Program(script="train.py", arguments=FLAGS, metrics=STDOUT, late_metrics=late)) as made:

        def prune(event: Event) -> int | None:
            return next((report.step for report in event.reports if watched in report.metrics), None)

        events = made.slot.play(made.request(what, prunable=True), prune)
    outcome = events[-1].outcome
    assert outcome is not None
    assert outcome.state is state, outcome.message
    assert [report.step for event in events for report in event.reports if "score" in report.metrics] == steps


def test_a_stop_rule_ends_a_script_as_complete(shared: Bench) -> None:
    request = shared.request("endless")
    rule = StopRule(metric="score", above=5.0, after=3)
    outcome, reports = shared.reported(dataclasses.replace(request, stop=(rule,)))
    assert outcome.state is TrialState.COMPLETE and outcome.early
    assert outcome.message == "stopped at step 6: score 6 is above 5"
    assert reports[-1].step == 6, "what it wrote after that does not count"


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("endless", "stopped by SIGTERM at once"),
        ("saves", "the run was paused: it ended after SIGTERM"),
        ("becomes_a_program_that_goes_on", "stopped by SIGTERM at once"),
    ],
)
def test_a_script_that_is_stopped_goes_on_later(shared: Bench, what: str, message: str) -> None:
    event = shared.slot.run(shared.request(what))
    stop = threading.Thread(target=shared.slot.stop, args=("the run was paused",))
    while not event.reports:
        event = shared.slot.answer()
    stop.start()
    event = shared.slot.rest(event)[-1]
    stop.join()
    assert event.outcome is not None
    assert (event.outcome.state, event.outcome.failure) == (TrialState.FAILED, FailureClass.LOST)
    assert message in event.outcome.message


def test_a_trial_that_cannot_be_forked_is_the_same(tmp_path: Path) -> None:
    (tmp_path / "busy.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
    )
    program = Program(script="train.py", arguments=FLAGS, metrics=STDOUT)
    with bench(tmp_path, program, preload=("busy",), env={"PYTHONPATH": str(tmp_path)}) as slot:
        outcome = slot.outcome("workers")
    assert (outcome.start_method, outcome.metrics) == ("spawn", {"score": 0.625}), outcome.message


def test_parameters_in_place_of_what_a_script_assigns(tmp_path: Path) -> None:
    script = (
        "lr = 0.5\nsizes: list = [1, 2]\nname, lr_name = 'a', 'lr'\nloss = 0\n"
        "if __name__ == '__main__':\n    steps = 1\n    what = None\n"
        "loss = lr * sum(sizes) * steps\nlr = 0\nprint(f'score={loss} last={lr}')\n"  # all lines that set a number are meant
    )
    program = Program(script="train.py", arguments=("{globals}",), metrics=STDOUT, names=("score", "last"))
    with Bench(tmp_path, {"train": script}, program=program) as slot:
        assert slot.outcome("", lr=0.25, sizes=[4, 4], steps=3).metrics == {"score": 6.0, "last": 0.25}
        assert slot.outcome("", lr=1.0, sizes=[1, 1], steps=1).metrics == {"score": 2.0, "last": 1.0}


@pytest.mark.parametrize(
    ("statement", "module"), [("import helper", "helper"), ("from parts import helper", "parts/helper")]
)
def test_a_module_with_new_values_is_neither_imported_by_the_template_nor_its_old_bytecode(
    tmp_path: Path, statement: str, module: str
) -> None:
    """Python compares the times of a file and of its bytecode in whole seconds, and the lengths of the texts."""
    (tmp_path / "code" / "parts").mkdir(parents=True)  # a package without __init__.py
    script = (
        "import os\nfrom pathlib import Path\nfor bytecode in Path('.').glob('**/__pycache__/helper.*'):\n"
        "    second = int.from_bytes(bytecode.read_bytes()[8:12], 'little')\n"
        f"    os.utime('{module}.py', (second, second))\n{statement}\nprint(f'score={{helper.depth}}')\n"
    )
    program = Program(script="train.py", arguments=(), files=(f"{module}.py",), metrics=STDOUT, names=("score",))
    with Bench(tmp_path, {"train": script, module: "depth = 3\n"}, program=program) as slot:
        assert slot.outcome("", depth=7).metrics == {"score": 7.0}


def test_processes_that_import_the_script_anew_have_its_replaced_values(tmp_path: Path) -> None:
    script = "import multiprocessing\nSCALE = 2  # as it is\n\ndef scaled(value):\n    return SCALE * value\n\n"
    script += "if __name__ == '__main__':\n    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
    script += "        print('score=%f' % sum(pool.map(scaled, [1, 2])))\n"
    program = Program(script="train.py", arguments=("{globals}",), metrics=STDOUT, names=("score",))
    with Bench(tmp_path, {"train": script}, program=program) as slot:
        assert slot.outcome("", SCALE=7).metrics == {"score": 21.0}
    assert (tmp_path / "code" / "train.py").read_text() == script


@pytest.mark.parametrize(
    ("head", "has_comments"),
    [
        ("#!/usr/bin/env python\nlr = 2", 1),
        ("terms = ''\nlr = 2\nif not lr:\n    terms = " + " + ".join(["terms"] * 500), 1),  # deeply nested
        ("lr = width = 2", 0),
        ("lr = 2\nget_ipython().run_line_magic('pwd', '')", 0),
        ("# -*- coding: latin-1 -*-\nlr, text = 2, '\u00e9'", 1),
    ],
)
def test_a_script_with_replaced_values_keeps_its_comments_if_possible(tmp_path: Path, head: str, has_comments: int) -> None:
    script = f"{head}\nvalues = {{}}  # as it is\ntext = open('train.py', 'rb').read()\n"
    script += "if __name__ == '__main__':\n    exec(compile(text, '', 'exec'), values)\n"
    script += "    print('score=%d' % (10 * values['lr'] + (b'# ' + b'as it is' in text)))\n"
    program = Program(script="train.py", arguments=("{globals}",), metrics=STDOUT, names=("score",))
    with Bench(tmp_path, {"train": script}, program=program) as slot:
        assert slot.outcome("", lr=7).metrics == {"score": 70.0 + has_comments}


@pytest.mark.parametrize("arguments", [(), ("{globals}",)])
def test_a_file_with_replaced_values_stays_executable(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """As the user's, which other processes may start: `subprocess.run(["./train.py"])`."""
    script = "import os\nlr = 2\nprint('score=%d' % os.access('train.py', os.X_OK))\n"
    files = () if arguments else ("train.py",)
    program = Program(script="train.py", arguments=arguments, files=files, metrics=STDOUT, names=("score",))
    with Bench(tmp_path, {"train": script}, program=program) as slot:
        (tmp_path / "code" / "train.py").chmod(0o755)
        assert slot.outcome("", lr=7).metrics == {"score": 1.0}


def test_parameters_replace_their_values_in_each_settings_file(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.json").write_text('{"lr": 1, "seed": 2}')
    (tmp_path / "code" / "model.json").write_text('{"width": 3, "seed": 4}')
    script = "import json\nvalues = [json.load(open(f'{name}.json')) for name in ('train', 'model')]\n"
    script += "print('score=' + ''.join(str(value) for file in values for value in file.values()))\n"
    program = Program(script="train.py", arguments=(), files=("train.json", "model.json"), metrics=STDOUT, names=("score",))
    with Bench(tmp_path, {"train": script}, program=program) as slot:
        assert slot.outcome("", lr=5, width=6, seed=7).metrics == {"score": 5767.0}


@pytest.mark.parametrize(
    ("printed", "value"),
    [
        ("step 1 test/accuracy=0.25\nstep 2 test/accuracy=0.5", 0.5),
        ("test/accuracy=0.25\naccuracy_of_test=0.5", 0.25),
        ("test/accuracy=0.25\nAcc/test=0.5", None),
    ],
)
def test_the_one_metric_with_the_words_of_a_missing_one_stands_for_it(
    tmp_path: Path, printed: str, value: float | None
) -> None:
    program = Program(script="train.py", metrics=STDOUT, names=("test_acc",))
    with Bench(tmp_path, {"train": f"print({printed!r})"}, program=program) as slot:
        request = dataclasses.replace(slot.request(""), metrics=("test_acc",))
        outcome, _ = slot.reported(request)
    assert outcome.metrics.get("test_acc") == value
    if value is not None:
        assert outcome.state is TrialState.COMPLETE
        assert outcome.message == "test_acc is the last test/accuracy, a similar name"


def test_the_last_value_of_a_metric_with_the_same_words_does_not_stand_for_the_best_one(tmp_path: Path) -> None:
    program = Program(script="train.py", metrics=STDOUT, names=("test_acc",))
    with Bench(tmp_path, {"train": "print('test/accuracy=0.5\\ntest/accuracy=0.25')"}, program=program) as slot:
        request = dataclasses.replace(slot.request(""), metrics=("test_acc",), reported=("test_acc",))
        outcome, _ = slot.reported(request)
    assert (outcome.failure, outcome.metrics) == (FailureClass.INVALID, {"test/accuracy": 0.25})
    assert "found were test/accuracy (0.25): name one of these" in outcome.message


@pytest.mark.parametrize("style", ["{globals}", "{flags}"])
def test_an_exported_notebook_runs_without_its_magics(tmp_path: Path, style: str) -> None:
    script = "get_ipython().system('exit 3')\nget_ipython().run_cell_magic('time', '', 'lr = 0.5')\nprint(f'score={lr}')\n"
    program = Program(script="train.py", arguments=(style,), metrics=STDOUT, names=("score",))
    with Bench(tmp_path, {"train": script}, program=program) as slot:
        assert slot.outcome("", lr=0.25).metrics == {"score": 0.25 if style == "{globals}" else 0.5}


def test_an_empty_folder_to_run_in(tmp_path: Path) -> None:
    program = Program(script="train.py", arguments=FLAGS, metrics=STDOUT, cwd="workdir")
    with bench(tmp_path, program) as slot:
        file = tmp_path / "facts.json"
        assert slot.outcome("facts", file=str(file)).state is TrialState.COMPLETE
        found = json.loads(file.read_text())
    assert found["data"] is None and found["file"] == str(Path(slot.config.code, "train.py"))


def test_arguments_that_a_script_refuses_are_known_before_the_first_trial(tmp_path: Path) -> None:
    text = (
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--lr', type=float)\np.parse_args()\nopen('ran')\n"
    )
    program = Program(script="train.py", arguments=FLAGS, metrics=STDOUT, sample={"lr": 0.1, "momentum": 0.9})
    with pytest.raises(errors.EntrypointError) as caught:
        Bench(tmp_path, {"train": text}, program=program)
    assert "train.py does not take its arguments: error: unrecognized arguments: --momentum=0.9" in str(caught.value)
    assert "script train.py" in str(caught.value)
    assert "usage: train.py [-h] [--lr LR]; see `platform docs scripts`" in str(caught.value)


def test_flags_that_absl_refuses_are_known_before_the_first_trial(tmp_path: Path) -> None:
    text = (
        "from absl import app, flags\nflags.DEFINE_string('data', None, '', required=True)\nDEPTH = 3\n"
        "def main(argv): open('ran')\nif __name__ == '__main__':\n    app.run(main)\n"
    )

    def refusal(name: str, **sample: Any) -> str:
        program = Program("train.py", arguments=FLAGS, metrics=STDOUT, sample=sample)
        (tmp_path / name).mkdir()
        with pytest.raises(errors.EntrypointError) as caught:
            Bench(tmp_path / name, {"train": text}, program=program)
        return str(caught.value)

    assert "unrecognized arguments: --dat; did you mean --data?" in refusal("misspelled", dat="x")
    option = """`--set 'arguments=["--data={data}", "{globals}"]'`"""
    assert f"its text has a value of that name, which {option} replaces" in refusal("constant", data="x", DEPTH=4)
    assert "Flag --data must have a value other than None" in refusal("missing")


def test_an_argument_that_the_script_has_is_not_named_as_another(tmp_path: Path) -> None:
    text = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--lr', type=int)\np.parse_args()\n"
    with pytest.raises(errors.EntrypointError, match=r"invalid int value: '0\.1'; usage: train\.py \[-h\] \[--lr LR\]; see"):
        Bench(tmp_path, {"train": text}, program=Program("train.py", arguments=FLAGS, metrics=STDOUT, sample={"lr": 0.1}))


def test_an_argument_that_is_spelt_otherwise_is_named(tmp_path: Path) -> None:
    text = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--l-r', type=float)\np.parse_args()\n"
    with pytest.raises(errors.EntrypointError, match=r"unrecognized arguments: --lr=0\.1; did you mean --l-r\?"):
        Bench(tmp_path, {"train": text}, program=Program("train.py", arguments=FLAGS, metrics=STDOUT, sample={"lr": 0.1}))


def test_the_imports_that_the_template_does(tmp_path: Path) -> None:
    lines = [
        "import statistics",
        "try:",
        "    import no_such_module",
        "except ImportError:",
        "    pass",
        "import os",
        "def later():",
        "    import chunk",
        "os.environ['HOME_PAGE'] = 'x'",
        "import colorsys",
    ]
    (tmp_path / "train.py").write_text("\n".join(lines))
    made = [name.name for node in programs.top_imports(tmp_path / "train.py") for name in node.names]
    assert made == ["statistics", "no_such_module", "os"], "what follows a change of the environment is the script's"


def test_what_a_script_and_its_modules_import_is_there_at_once(tmp_path: Path) -> None:
    script = "import sys\nbefore = 'colorsys' in sys.modules\nimport helper\nprint(f'score={int(before)}')\n"
    program = Program(script="train.py", metrics=STDOUT, names=("score",))
    with Bench(tmp_path, {"train": script, "helper": "import colorsys\n"}, program=program) as slot:
        assert slot.outcome("").metrics == {"score": 1.0}


@pytest.mark.parametrize("program", [Program(script="train.py"), Program(command=("python", "train.py"))])
def test_ranks(tmp_path: Path, program: Program) -> None:
    text = "import os\nprint(f\"step 1 score={int(os.environ['RANK']) + 10 * int(os.environ['WORLD_SIZE'])}\")\n"
    program = dataclasses.replace(program, metrics=STDOUT, names=("score",))
    with Bench(tmp_path, {"train": text}, program=program, ranks=2) as slot:
        outcome = slot.outcome("")
        assert (outcome.state, outcome.metrics) == (TrialState.COMPLETE, {"score": 20.0}), outcome.message
        assert "[rank 1] step 1 score=21" in slot.log(outcome)
