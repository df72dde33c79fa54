"""How long the page of a report takes to open in Chromium, and to use; beside optuna-dashboard on the same study. And how
long it takes until a live page shows a trial's end.

Both show the study of `histories`: ten parameters, one value, and learning curves of ten reports; two thirds of the trials
are pruned after four. Where the peer does not draw a study in time, its samples are missing, and the row's note says so.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.benchmarks import histories
from tests.benchmarks.rows import Goal, Row
from tests.benchmarks.workplace import Workplace

PEER = "optuna-dashboard"
_PATIENCE = 60.0  # seconds for a page of the peer


def measure(place: Workplace) -> Iterator[Row]:
    """Writes the report of each study, then opens it and the peer's page in turn, in a new browser context each."""
    for count, goal in [(20, 1000.0)] if place.quick else [(10_000, 1000.0), (50_000, 3000.0)]:
        folder, exported = histories.of(place, count, True), histories.exported(place, count, True)
        place.say(f"report: pages of {count:,} trials, in turn")
        arguments = {
            "folder": str(folder),
            "exported": str(exported),
            "scratch": str(place.scratch / f"report-{count}"),
            "rounds": place.repeats(3),
            "warm_up": not place.quick,
            "patience": _PATIENCE,
        }
        taken = place.call("pages", arguments, timeout=600 + 2 * place.repeats(3) * _PATIENCE)
        note = "" if taken["theirs"] else f"{PEER} had not drawn it after {_PATIENCE:.0f} s"
        theirs = tuple(taken["theirs"])
        of = f"{count:,} trials"
        yield Row("report", f"first content, {of}", "ms", tuple(taken["content"]))
        yield Row(
            "report", f"first chart drawn, {of}", "ms", tuple(taken["chart"]), PEER, theirs, Goal(value=goal), note=note
        )
        for name, what in (
            ("scroll", "scrolling the table"),
            ("sort", "sorting the table"),
            ("filter", "filtering the table"),
            ("brush", "choosing a range of parallel coordinates"),
        ):
            yield Row("report", f"{what}, {of}", "ms", tuple(taken[name]), goal=Goal(value=100))
        yield Row("report", f"from the jump to the learning curves until they are drawn, {of}", "ms", tuple(taken["curves"]))
        yield Row("report", f"writing the file, {of}", "s", tuple(taken["writing"]))
    trials, ends = (20, 2) if place.quick else (800, 30)
    place.say(f"report: the live page of {trials:,} trials")
    arguments = {
        "folder": str(histories.of(place, trials, True)),
        "scratch": str(place.scratch / "live"),
        "trials": trials,
        "ends": ends,
    }
    seconds = place.call("live_page", arguments, timeout=300)
    yield Row(
        "report", f"live page of {trials:,} trials, from an end until it is shown", "s", tuple(seconds), goal=Goal(value=2)
    )
