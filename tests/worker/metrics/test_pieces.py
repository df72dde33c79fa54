"""The metrics that a job names do not depend on when its output is read: in any pieces they are those of the whole."""

from __future__ import annotations

import tempfile
from pathlib import Path

import hypothesis
from hypothesis import strategies as given
from tests.worker.metrics.conftest import STDOUT, Trial

from trialplane.job.program import MetricSource

NAMES = ("acc", "f1")
VALUES = given.integers(0, 99).map(lambda value: value / 100)
STEPS = given.integers(0, 12)
LINES = given.one_of(
    given.builds("acc={}".format, VALUES),
    given.builds("f1: {} loss: {}".format, VALUES, VALUES),
    given.builds("step {} acc={} loss=1".format, STEPS, VALUES),
    given.builds("Epoch {}/9".format, STEPS),
    given.builds("Epoch [{}/9], Step [{}/12], f1 {}".format, STEPS, STEPS, VALUES),
    given.builds('{{"step": {}, "acc": {}}}'.format, STEPS, VALUES),
    given.builds("[rank 1] acc={}".format, VALUES),
    given.sampled_from(
        [
            "",
            "loss=3",
            "Traceback (most recent call last):",
            "  File 'acc=1'",
            "SystemExit: acc=1",
            "Arguments:",
            "  acc: 0.5",
            "Namespace(acc=1, lr=2)",
            "Net(",
            ")",
            "caf\u00e9 acc=0.125",
        ]
    ),
)


def points(trial: Trial, made: list[tuple[int, dict[str, float]]]) -> dict[str, list[tuple[int, float]]]:
    """The points of each metric that the job names."""
    return {name: [(step, metrics[name]) for step, metrics in made if name in metrics] for name in NAMES}


@hypothesis.settings(max_examples=300)
@hypothesis.given(
    text=given.lists(LINES, max_size=25), cuts=given.lists(given.integers(0, 400), max_size=12), ends=given.booleans()
)
def test_the_output_in_pieces(text: list[str], cuts: list[int], ends: bool) -> None:
    data = ("\n".join(text) + ("\n" if ends else "")).encode()
    with tempfile.TemporaryDirectory() as root:
        whole, pieces = (Trial(Path(root, name), STDOUT, names=NAMES) for name in ("whole", "pieces"))
        with whole.log.open("ab") as file:
            file.write(data)
        made, begin = [], 0
        for end in [*sorted(cuts), len(data)]:
            with pieces.log.open("ab") as file:
                file.write(data[begin:end])
            begin = max(begin, end)
            made += pieces.read()
        made += pieces.read(ended=True)
        assert points(pieces, made) == points(whole, whole.read(ended=True))
        assert {name: pieces.reader.newest.get(name) for name in NAMES} == {
            name: whole.reader.newest.get(name) for name in NAMES
        }


Row = tuple[int, float]
ROWS = given.lists(given.tuples(STEPS, VALUES), max_size=12)


@hypothesis.given(rows=ROWS, printed=ROWS, order=given.lists(given.booleans(), max_size=30))
def test_two_sources_in_any_order(
    rows: list[tuple[int, float]], printed: list[tuple[int, float]], order: list[bool]
) -> None:
    """Each has the steps that it would have alone, whatever comes in between."""
    with tempfile.TemporaryDirectory() as root:
        trial = Trial(Path(root, "both"), MetricSource("file", path="m.csv"), STDOUT, names=NAMES)
        alone = [
            Trial(Path(root, "rows"), MetricSource("file", path="m.csv"), names=NAMES),
            Trial(Path(root, "printed"), STDOUT, names=NAMES),
        ]
        table = ["step,acc\n", *(f"{step},{value}\n" for step, value in rows)]
        said = [f"step {step} f1={value}\n" for step, value in printed]
        (alone[0].folder / "m.csv").write_text("".join(table))
        alone[1].prints("".join(said))
        made = []
        for is_row in [*order, *[True] * len(table), *[False] * len(said)]:
            if is_row and table:
                with (trial.folder / "m.csv").open("a") as file:
                    file.write(table.pop(0))
            elif not is_row and said:
                trial.prints(said.pop(0))
            else:
                continue
            made += trial.read()
        made += trial.read(ended=True)
        assert points(trial, made) == points(trial, [*alone[0].read(ended=True), *alone[1].read(ended=True)])
