"""The page of a run in a browser: sections that draw without an error or a request, for any run; its table; hostile texts.

Not checked here: how it looks, and how fast it is (`python -m tests.benchmarks --only report`).
"""

from __future__ import annotations

import csv
import dataclasses
import http.server
import itertools
import math
import random
import statistics
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.pages import studies
from tests.pages.browsers import PATIENCE, Page

from trialplane.job import kinds
from trialplane.pages import comparison, content, page
from trialplane.pages.content import RunRecord
from trialplane.wire import rows
from trialplane.wire.costs import Prices
from trialplane.wire.progress import CollectionProgress
from trialplane.wire.records import ReportRow, TrialRow
from trialplane.wire.states import FailureClass, RunState, TrialState

Opened = Callable[..., Page]
OF_A_STUDY = ["summary", "next", "history", "importances", "parallel", "slice", "contour", "curves", "timeline", "costs"]


def drawn(shown: Page) -> list[str]:
    """Shows each section, one after another, and returns their ids; there was no error and no request."""
    for section in shown.sections:
        shown.show(section)
        assert shown.contexts <= 8
    assert shown.errors == []
    assert [address for address in shown.requests if not address.startswith(("blob:", "data:"))] == []
    return shown.sections


def test_every_section_of_a_study_draws(opened: Opened) -> None:
    shown = opened(studies.study(300))
    assert drawn(shown) == [*OF_A_STUDY, "failures", "trials"]
    assert shown.text("h1") == "study-300"
    assert shown.read("document.querySelector('.subtitle a')") is None, "no MLflow is known"
    assert shown.text("nav a") == "Summary"
    assert "platform best study-300 --local > best.yaml" in shown.text("#next")


def names_of(shown: Page, section: str) -> list[str]:
    """Names in the legend of the first chart of a section."""
    script = "id => document.querySelector(`#${id} .chart`).data.filter(t => t.showlegend !== false).map(t => t.name)"
    return list(shown.read(script, section))


AXIS = "document.querySelector('#history .chart')._fullLayout.{}axis.range"


def test_the_history_of_one_trial_has_it_in_the_middle(opened: Opened) -> None:
    shown = opened(studies.study(1))
    shown.show("history")
    low, high = shown.read(AXIS.format("x"))
    assert low == -high < 0
    assert shown.read("document.querySelectorAll('#history .xtick').length") <= 3, "no part of a trial"
    assert shown.text("#trials .count") == "1 row"


def test_the_history_shows_trials_without_a_result_too(opened: Opened) -> None:
    shown = opened(studies.study(300))
    shown.show("history")
    assert names_of(shown, "history") == ["complete", "pruned, last report", "best so far", "failed"]
    failed = sum(row.state is TrialState.FAILED for row in studies.study(300).attempts)
    assert shown.read("document.querySelector('#history .chart').data.at(-1).x.length") == failed > 0
    assert shown.read(AXIS.format("x"))[0] < 0, "trial 0 is whole"
    values = [row.values[0] for row in rows.newest_attempts(studies.study(300).attempts) if row.values]
    best = shown.read("[...document.querySelector('#history .chart').data.find(t => t.name === 'best so far').y]")
    assert [value for value, _ in itertools.groupby(best)] == pytest.approx(
        [value for value, _ in itertools.groupby(itertools.accumulate(values, min))], rel=1e-6
    )
    opaque = "document.querySelector('#history .chart').data.every(t => (t.marker?.opacity ?? 1) === 1)"
    assert shown.read(opaque), "a color that is mixed with the background has less contrast to it"


@pytest.mark.parametrize(("direction", "better"), [("minimize", min), ("maximize", max)])
def test_the_best_so_far_is_that_of_the_feasible_trials(
    opened: Opened, direction: str, better: Callable[..., float]
) -> None:
    recorded = studies.study(
        300,
        objectives=[{"metric": "loss", "direction": direction}],
        constraints=[{"metric": "memory", "max": 4}],
        metrics=lambda params, value: {"loss": value, "memory": params["layers"]},
    )
    complete = [row for row in rows.newest_attempts(recorded.attempts) if row.state is TrialState.COMPLETE]
    feasible = [row for row in complete if row.feasible]
    assert better(row.values for row in feasible) != better(row.values for row in complete)
    best = list(itertools.accumulate((row.values[0] for row in feasible), better))
    improvements = [i for i in range(len(best)) if i == 0 or best[i] != best[i - 1]]
    assert len(improvements) > 3
    shown = opened(recorded)
    shown.show("history")
    line = "document.querySelector('#history .chart').data.find(t => t.name === 'best so far')"
    ends = [*improvements, -1]  # the line goes on to the last trial
    assert shown.read(f"{line}.x") == [feasible[i].trial for i in ends]
    assert shown.read(f"{line}.y") == pytest.approx([best[i] for i in ends], rel=1e-6)


def test_the_timeline_shows_waiting_and_starts_beside_the_work(opened: Opened) -> None:
    shown = opened(studies.promoted(16))
    shown.show("timeline")
    assert names_of(shown, "timeline")[:2] == ["waiting", "starting"]
    lengths = (
        "name => { const bar = document.querySelector('#timeline .chart').data.find(t => t.name === name); return bar.x; }"
    )
    attempts = studies.promoted(16).attempts
    minutes = 60 if max(row.ended for row in attempts) - studies.BEGAN > 300 else 1
    starting, waiting = ([length * minutes for length in shown.read(lengths, name)] for name in ("starting", "waiting"))
    assert starting == pytest.approx([0.2] * len(attempts), abs=0.01)
    assert waiting == pytest.approx([0.3] * (len(attempts) - 1), abs=0.01), "the slot of the first had waited for nothing"


def test_the_timeline_marks_where_attempts_were_lost(opened: Opened) -> None:
    recorded = studies.study(300)
    shown = opened(recorded)
    shown.show("timeline")
    marks = "document.querySelector('#timeline .chart').data.find(t => t.name === 'lost here')"
    lost = [row for row in recorded.attempts if row.state is TrialState.LOST]
    origin = min(row.requested for row in recorded.attempts)
    assert shown.read(f"[...{marks}.x]") == pytest.approx(sorted((row.ended - origin) / 60 for row in lost), abs=0.01)
    assert "(lost) after" in shown.read(f"{marks}.text[0]")


def test_merged_bars_of_the_timeline_tell_waiting_too(opened: Opened) -> None:
    recorded = studies.study(2000, steps=1)
    rows = [dataclasses.replace(row, slot=int(row.node.removeprefix("pod-"))) for row in recorded.attempts]
    shown = opened(dataclasses.replace(recorded, attempts=rows))
    shown.show("timeline")
    assert names_of(shown, "timeline") == ["working", "starting", "waiting", "lost here"]
    total = "document.querySelector('#timeline .chart').data.slice(0, 3).reduce((sum, t) => sum + t.y[300], 0)"
    assert shown.read(total) == pytest.approx(8, abs=0.1), "each of the slots does one of them"


def test_a_merged_timeline_is_zoomed_with_the_pointer_and_with_keys(opened: Opened) -> None:
    recorded = studies.study(2000, steps=1)
    rows = [dataclasses.replace(row, slot=int(row.node.removeprefix("pod-"))) for row in recorded.attempts]
    shown = opened(dataclasses.replace(recorded, attempts=rows))
    shown.show("timeline")
    range_ = "document.querySelector('#timeline .chart')._fullLayout.xaxis.range"
    merged = "isMerged => document.querySelector('#timeline .chart').data.some(t => t.name === 'working') === isMerged"
    assert "Zoom in to see single attempts" in shown.text("#timeline p")
    whole = shown.read(range_)
    box = shown.page.locator("#timeline .nsewdrag").first.bounding_box()
    assert box is not None
    shown.page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 20)
    shown.page.mouse.down()
    shown.page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 20, steps=3)
    shown.page.mouse.up()
    shown.page.wait_for_function(merged, arg=False)
    assert "complete" in names_of(shown, "timeline")
    low, high = shown.read(range_)
    assert (low, high) == pytest.approx((0.5 * whole[1], 0.6 * whole[1]), rel=0.02)

    def press(name: str) -> None:
        """With the keyboard."""
        shown.page.locator("#timeline .controls").get_by_text(name).press("Enter")

    press("Earlier")
    assert shown.read(range_) == pytest.approx([low - (high - low) / 2, high - (high - low) / 2])
    press("Later")
    press("Zoom in")
    assert shown.read(range_) == pytest.approx([low + (high - low) / 4, high - (high - low) / 4])
    for _ in range(7):
        press("Zoom out")
    assert shown.read(range_) == pytest.approx(whole)
    assert shown.read(merged, True)
    press("Earlier")
    assert shown.read(range_) == pytest.approx(whole), "there is nothing before it"
    assert shown.errors == []


def test_the_timeline_tells_how_long_slots_were_idle(opened: Opened) -> None:
    recorded = studies.study(30)
    busy = sum(row.seconds or 0.0 for row in recorded.attempts)
    shown = opened(dataclasses.replace(recorded, status=dataclasses.replace(recorded.status, parallel=4, worked=busy / 3)))
    assert shown.text("#timeline p").startswith("4 slots were idle for 25 % of the time that the run had them.")
    shown = opened(dataclasses.replace(recorded, status=dataclasses.replace(recorded.status, parallel=1, worked=2 * busy)))
    assert shown.text("#timeline p").startswith("1 slot was idle for 50 % of the time that the run had it.")
    shown = opened(dataclasses.replace(recorded, status=dataclasses.replace(recorded.status, worked=0.0)))
    assert "idle" not in shown.text("#timeline")


def test_a_study_with_a_pruner_says_that_pruned_trials_are_not_drawn(opened: Opened) -> None:
    hints = {
        section: opened(studies.study(60, pruner=pruner)).read(f"document.querySelector('#{section}').innerText")
        for pruner, section in (("median", "slice"), ("none", "contour"))
    }
    assert "Only complete trials are drawn" in hints["slice"]
    assert "Only complete trials are drawn" not in hints["contour"]


def test_trials_of_a_promotion_are_drawn_with_the_value_that_they_reached(opened: Opened) -> None:
    recorded = studies.promoted(64)
    shown = opened(recorded)
    assert sum(bool(row.values) for row in recorded.attempts) < 8
    for section in ("parallel", "slice", "contour"):
        shown.show(section)
        assert "value of its last report" in shown.text(f"#{section} .hint")
    assert shown.read(f"{LINES}.length") == 64
    assert shown.read("document.querySelector('#slice .chart').data[0].x.length") == 64
    assert shown.read("new Set(document.querySelector('#slice .chart').data[0].marker.symbol).size") >= 2
    assert shown.read("document.querySelector('#contour .chart').data[1].x.length") == 64
    assert "hint" not in shown.read("document.querySelector('#history').innerHTML")
    shown.show("parallel")
    drag(shown, 2, 0, 0.12)  # one or two layers of twelve
    layers = {row.trial: row.params["layers"] for row in recorded.attempts}
    wait_for_matches(shown, sum(count <= 2 for count in layers.values()))
    assert shown.errors == []


@pytest.mark.parametrize("metric", ["elo", "Elo_of_games"])
def test_a_collection_shows_its_elo_first(opened: Opened, metric: str) -> None:
    recorded = studies.collection(8)
    elos = [row.metrics["elo"] for row in recorded.attempts]
    rows = [dataclasses.replace(row, metrics={"velocity": 64.0, metric: row.metrics["elo"]}) for row in recorded.attempts]
    shown = opened(dataclasses.replace(recorded, attempts=rows))
    shown.show("iterations")
    assert shown.page.get_by_label("Metric", exact=True).input_value() == metric
    assert shown.read("[...document.querySelector('#iterations .chart').data[0].y]") == pytest.approx(elos, rel=1e-6)


def test_many_curves_are_quantiles_with_the_best_and_those_selected(opened: Opened) -> None:
    recorded = studies.study(600)
    shown = opened(recorded)
    shown.page.get_by_role("columnheader", name="loss").dblclick()  # the worst first
    shown.page.locator("#trials input").fill("state = COMPLETE, attempt = 1")
    shown.page.locator("#trials .rows .row").first.click()
    trial = shown.text("#trials .row[aria-selected=true] span")
    shown.show("curves")
    bands = ["5-95 % of all", "25-75 % of all", "median of all"]
    assert names_of(shown, "curves") == [*bands, "pruned here", "complete", f"selected trial {trial}", "pruned"]
    find = "document.querySelector('#curves .chart').data.find(t => t.name === name)"
    trace = f"name => (t => ({{x: [...t.x], y: [...t.y]}}))({find})"
    median = shown.read(trace, bands[2])
    for step, value in zip(median["x"], median["y"], strict=True):
        losses = [report.metrics["loss"] for report in recorded.reports if report.step == step]
        assert value == pytest.approx(statistics.median(losses), rel=0.02)
    best = rows.ranked(recorded.job, rows.newest_attempts(recorded.attempts))[:50]
    assert shown.read(trace, "complete")["x"].count(None) == sum(row.attempt == 1 for row in best), "one gap for each curve"
    selected = [r.metrics["loss"] for r in recorded.reports if r.trial == int(trial)]
    assert shown.read(trace, f"selected trial {trial}")["y"][:-1] == pytest.approx(selected, rel=1e-5)
    assert shown.errors == []


def test_promotions_are_marked_on_the_curves_and_counted_by_rung(opened: Opened) -> None:
    recorded = studies.promoted(64)
    shown = opened(recorded)
    assert {"rungs", "curves"} <= set(drawn(shown))
    shown.show("rungs")
    assert names_of(shown, "rungs") == ["promoted", "complete", "dropped"]
    shown.show("curves")
    assert {"promoted here", "pruned here", "complete", "pruned"} <= set(names_of(shown, "curves"))
    promotions = sum(row.state is TrialState.PAUSED for row in recorded.attempts)
    marks = "document.querySelector('#curves .chart').data.find(t => t.name === 'promoted here').x.length"
    assert shown.read(marks) == promotions > 16
    assert "Saved by promotion" in shown.text("#summary .cards")


@pytest.mark.parametrize("trials", [0, 1, 2])
def test_a_study_with_hardly_a_trial_draws(opened: Opened, trials: int) -> None:
    sections = drawn(opened(studies.study(trials)))
    assert ("history" in sections, "trials" in sections) == (trials > 0, trials > 0)


def test_webgl_draws_no_more_pixels_than_the_screen_has(opened: Opened) -> None:
    shown = opened(studies.study(4000, steps=1))
    shown.show("history")
    sizes = shown.read("[...document.querySelectorAll('#history canvas')].map(c => [c.width, Math.round(c.clientWidth)])")
    assert sizes and all(width == shown_width for width, shown_width in sizes)


@pytest.mark.slow
@pytest.mark.parametrize("trials", [4_000, 25_000])
def test_a_large_study_draws_and_keeps_its_rows_out_of_the_page(opened: Opened, trials: int) -> None:
    recorded = studies.study(trials, steps=4)
    shown = opened(recorded)
    shown.show("history")
    assert shown.contexts > 0
    drawn(shown)
    shown.show("contour")
    for axis, parameter in (("Horizontal", "lr"), ("Vertical", "dropout")):
        shown.page.get_by_label(axis, exact=True).select_option(parameter)
    types = shown.read("document.querySelector('#contour .chart').data.map(t => t.type)")
    assert types == (["heatmap"] if trials == 25_000 else ["contour", "scatter"]), "bins alone above 10,000 points"
    assert shown.read("document.querySelector('#contour .chart').data[0].z.length") == (50 if trials == 25_000 else 24)
    shown.show("slice")
    points = shown.read("document.querySelector('#slice .chart').data.map(t => [t.type, t.x.length])")
    assert points == [["scattergl", sum(row.state is TrialState.COMPLETE for row in recorded.attempts)]]
    assert f"{trials:,} rows" in shown.text("#trials .count")
    assert shown.read("document.querySelectorAll('.rows .row').length") < 60
    shown.page.locator("#trials .grid").press("End")
    assert int(shown.read("document.querySelector('.rows .row.current').getAttribute('aria-rowindex')")) == trials + 1


def test_several_objectives_and_constraints_have_sections(opened: Opened) -> None:
    chance = random.Random(0)
    recorded = studies.study(
        80,
        objectives=[{"metric": "loss", "direction": "minimize"}, {"metric": "accuracy", "direction": "maximize"}],
        constraints=[{"metric": "memory", "max": 6}, {"metric": "accuracy", "min": 0.5}],
        metrics=lambda params, value: {
            "loss": value, "accuracy": 1 - value - 0.1 * chance.random(), "memory": params["layers"] * chance.random()
        },
    )  # fmt: skip
    shown = opened(recorded)
    sections = drawn(shown)
    assert {"pareto", "constraints"} <= set(sections)
    shown.show("pareto")
    script = (
        "Object.fromEntries([...document.querySelector('#pareto .js-plotly-plot').data].map(t => [t.name, t.marker.symbol]))"
    )
    assert shown.read(script)["infeasible"] == "x-thin-open"
    complete = [row.metrics for row in recorded.attempts if row.state is TrialState.COMPLETE]
    kept = [sum(metrics["memory"] <= 6 for metrics in complete), sum(metrics["accuracy"] >= 0.5 for metrics in complete)]
    assert all(0 < count < len(complete) for count in kept)
    shown.show("constraints")
    assert shown.read("[...document.querySelectorAll('#constraints p')].map(p => p.textContent)") == [
        f"memory must be at most 6: {kept[0]} of {len(complete)} complete trials are.",
        f"accuracy must be at least 0.5: {kept[1]} of {len(complete)} complete trials are.",
    ]
    charts = "[...document.querySelectorAll('#constraints .js-plotly-plot')].map(chart => chart.data.map(t => t.x.length))"
    assert shown.read(charts) == [[count, len(complete) - count] for count in kept]


# The charts without a mark. A canvas has one if it has a pixel that is not transparent.
BLANK = """() => {
    const isDrawn = (canvas) => {
        const size = {width: canvas.width, height: canvas.height};
        const copy = Object.assign(document.createElement('canvas'), size).getContext('2d');
        copy.drawImage(canvas, 0, 0);
        return copy.getImageData(0, 0, size.width, size.height).data.some(byte => byte);
    };
    const hasMark = (chart) => chart.querySelector('.point, .js-line, .bars path, .heatmaplayer image');
    const charts = [...document.querySelectorAll('.chart')];
    const isBlank = (chart, canvases) => canvases.length ? !canvases.some(isDrawn) : !hasMark(chart);
    return charts.filter(chart => isBlank(chart, [...chart.querySelectorAll('canvas')])).map(chart => chart.ariaLabel);
}"""


@pytest.mark.slow
def test_a_large_front_is_drawn_in_webgl_and_every_chart_is_printed(opened: Opened) -> None:
    recorded = studies.study(
        7_000,
        steps=1,
        objectives=[{"metric": "loss", "direction": "minimize"}, {"metric": "gain", "direction": "maximize"}],
        constraints=[{"metric": "memory", "max": 9}, {"metric": "time", "max": 9}],
        # Trials with at most 9 layers are feasible, and all of these are on the front.
        metrics=lambda params, value: {"loss": value, "gain": value, **dict.fromkeys(("memory", "time"), params["layers"])},
    )
    shown = opened(recorded, color_scheme="dark")
    drawn(shown)
    shown.show("pareto")
    front = "document.querySelector('#pareto .js-plotly-plot').data.find(t => t.name === 'Pareto front')"
    assert shown.read(f"{front}.x.length") > 2000
    assert shown.read(f"{front}.type") == "scattergl"
    shown.page.emulate_media(media="print")
    shown.read("dispatchEvent(new Event('beforeprint'))")
    assert shown.contexts == 0, "all are pictures"
    assert shown.read(BLANK) == []
    shown.read("dispatchEvent(new Event('afterprint'))")
    assert 0 < shown.contexts <= 8
    charts = "[...document.querySelectorAll('.chart')].filter(c => c.querySelector('canvas.gl-canvas') && !c._fullLayout)"
    assert shown.read(f"{charts}.length") == 0, "no picture is left"
    shown.show("history")
    assert shown.read("document.querySelector('#history .chart').data[0].type") == "scattergl"
    assert shown.errors == []


def attempts(recorded: RunRecord, **fields) -> RunRecord:
    return dataclasses.replace(
        recorded, attempts=[dataclasses.replace(row, **fields) for row in recorded.attempts], reports=[]
    )


def test_one_value_everywhere_draws(opened: Opened) -> None:
    same = {"lr": 0.1, "layers": 1, "optimizer": "adam"}
    complete = {"state": TrialState.COMPLETE, "metrics": {"loss": 0.5}, "values": (0.5,), "failure": None}
    drawn(opened(attempts(studies.study(40), params=same, seconds=0.0, started=1.0, ended=1.0, **complete)))


def test_values_that_are_no_numbers_draw(opened: Opened) -> None:
    recorded = studies.study(40)
    values = [math.nan, math.inf, -math.inf, 1e308, 0.0]
    rows = [
        dataclasses.replace(
            row,
            params={**row.params, "odd": values[index % 5], "many": [index % 3], "huge": 10**400, "none": None},
            metrics={"loss": values[index % 5], "extra": values[(index + 1) % 5]},
            values=(values[index % 5],) if row.values else (),
        )
        for index, row in enumerate(recorded.attempts)
    ]
    reports = [
        dataclasses.replace(report, metrics={"loss": values[index % 5]}) for index, report in enumerate(recorded.reports)
    ]
    drawn(opened(dataclasses.replace(recorded, attempts=rows, reports=reports)))


ODD = [
    "",
    "__proto__",
    "constructor",
    "trial",
    "state",
    "a,b<c",
    "\U0001f680 läuft",
    "x" * 300,
    "مرحبا",
    "$\\alpha$",
    "toString",
]


def hostile(recorded: RunRecord) -> RunRecord:
    """The run with markup and scripts in all of its names and texts."""
    names = [studies.HOSTILE, *ODD]
    rows = [
        dataclasses.replace(
            row,
            params={**row.params, **{name: [studies.HOSTILE, i][i % 2] for i, name in enumerate(names, row.trial)}},
            metrics={**row.metrics, **dict.fromkeys(names, 1.5)},
            message=studies.HOSTILE,
            node=studies.HOSTILE,
            failure=row.failure and FailureClass.ERROR,
        )
        for row in recorded.attempts
    ]
    reports = [dataclasses.replace(report, metrics={**report.metrics, studies.HOSTILE: 1.0}) for report in recorded.reports]
    status = dataclasses.replace(recorded.status, reason=studies.HOSTILE, warnings=(studies.HOSTILE,))
    if isinstance(progress := status.progress, CollectionProgress):
        workers = tuple(dataclasses.replace(worker, node=studies.HOSTILE) for worker in progress.workers)
        status = dataclasses.replace(status, progress=dataclasses.replace(progress, workers=workers))
    return dataclasses.replace(recorded, attempts=rows, reports=reports, status=status)


MARKUP = "document.querySelectorAll('img, a:not(nav a):not(.modebar-btn)').length"


@pytest.mark.parametrize(
    "recorded",
    [studies.study(60), studies.population(6), studies.promoted(16), studies.training(3, steps=200), studies.collection(3)],
    ids=["study", "population", "promotion", "training", "collection"],
)
def test_what_a_run_says_is_text_and_nothing_runs(opened: Opened, recorded: RunRecord) -> None:
    shown = opened(hostile(recorded))
    drawn(shown)
    shown.page.locator("#trials .rows .row").first.click()
    assert studies.HOSTILE in shown.read("document.querySelector('#trials .details').textContent")
    assert studies.HOSTILE in shown.read("document.querySelector('.notice').textContent")
    assert shown.read(MARKUP) == 0
    assert shown.errors == []


def test_what_compared_runs_and_trials_say_is_text_too(opened: Opened, chromium, tmp_path: Path) -> None:
    name = f"{studies.HOSTILE}.sampler"
    runs = [hostile(studies.study(12, seed=seed, run=run)) for seed, run in enumerate(("a", name))]
    shown = opened(*runs)
    drawn(shown)
    shown.page.get_by_label("Run", exact=True).select_option("1")
    assert shown.read("document.querySelector('h2.run').textContent") == name
    drawn(shown)
    assert (shown.read(MARKUP), name in cells(shown, 0, "runs")) == (0, True)
    file = tmp_path / "trials.html"
    compared = comparison.trial_comparison([(runs[1], trial) for trial in range(6)])
    file.write_text(page.page(studies.HOSTILE, [], compared), encoding="utf-8")
    shown = chromium(file)
    drawn(shown)
    assert studies.HOSTILE in shown.read("document.querySelector('#trials .rows').textContent")
    assert (shown.read(MARKUP), shown.page.title()) == (0, studies.HOSTILE)


def test_the_policy_of_the_page_stops_what_would_run(opened: Opened) -> None:
    """If a text did become markup: an inline handler, a script, and a request."""
    shown = opened(studies.study(3))
    markup = "<img src='http://127.0.0.1:9/x.png' onerror='document.title = 1'><svg onload='document.title = 2'></svg>"
    shown.read("markup => document.body.insertAdjacentHTML('beforeend', markup)", markup)
    shown.read("() => document.body.append(Object.assign(document.createElement('script'), {text: 'document.title = 3'}))")
    assert shown.read("fetch('http://127.0.0.1:9/').then(() => 'sent', () => 'refused')") == "refused"
    assert shown.page.title() == "a title"
    assert [line for line in shown.errors if "Content Security Policy" in line or "violates" in line]


def cells(shown: Page, column: int, section: str = "trials") -> list[str]:
    script = "n => [...document.querySelectorAll('#SECTION .rows .row')].map(row => row.children[n].textContent)"
    return list(shown.read(script.replace("SECTION", section), column))


def test_the_table_sorts_filters_and_is_usable_by_keyboard(opened: Opened) -> None:
    recorded = studies.study(200)
    shown = opened(recorded)
    shown.show("trials")
    header = shown.read("[...document.querySelectorAll('#trials .header button')].map(b => b.textContent)")
    loss, optimizer = header.index("loss"), header.index("optimizer")
    best = min(row.metrics["loss"] for row in recorded.attempts if row.state is TrialState.COMPLETE)
    assert float(cells(shown, loss)[0]) == pytest.approx(best, rel=1e-3)
    shown.page.get_by_role("columnheader", name="loss").click()
    shown.page.get_by_role("columnheader", name="loss").click()
    falling = [float(text) for text in cells(shown, loss)]
    assert falling == sorted(falling, reverse=True)
    shown.page.locator("#trials .grid").focus()
    for _ in header[: loss + 1]:
        shown.page.keyboard.press("Tab")
    shown.page.keyboard.press("Enter")
    assert [float(text) for text in cells(shown, loss)] == sorted(map(float, cells(shown, loss))), "also by keys"
    assert shown.read("document.querySelector('#trials [aria-selected=true]')") is None, "no row was selected"
    box = shown.page.locator("#trials input")
    box.fill("loss < 0.2, optimizer = sgd")
    rows = [row for row in recorded.attempts if row.state is not TrialState.LOST]
    matching = [row for row in rows if row.metrics.get("loss", 1) < 0.2 and row.params["optimizer"] == "sgd"]
    assert f"{len(matching)} of 200 rows" in shown.text("#trials .count")
    assert set(cells(shown, optimizer)) == {"sgd"}
    box.fill("nosuch > 1")
    assert "no column nosuch" in shown.text("#trials .problem")
    box.fill("")
    shown.page.locator("#trials .grid").press("Home")
    shown.page.locator("#trials .grid").press("ArrowDown")
    shown.page.locator("#trials .grid").press("Enter")
    assert shown.read("document.querySelector('.row.current').getAttribute('aria-selected')") == "true"
    assert "platform logs study-200" in shown.text("#trials .details")
    with shown.page.expect_download() as saved:
        shown.page.get_by_role("button", name="Download CSV").click()
    with Path(saved.value.path()).open(newline="") as file:
        saved_rows = {int(row["trial"]): row for row in csv.DictReader(file)}
    assert len(saved_rows) == 200
    for row in rows:
        saved_row = saved_rows[row.trial]
        assert (saved_row["state"], saved_row["optimizer"]) == (row.state.value, row.params["optimizer"])
        assert float(saved_row["lr"]) == pytest.approx(row.params["lr"], rel=1e-6)


def test_a_command_is_copied(opened: Opened) -> None:
    shown = opened(studies.study(30))
    shown.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    button = shown.page.locator("#next .copy").nth(1)
    command = shown.text("#next .command:nth-of-type(2) code")
    assert command.startswith("platform submit hpo --from study-30:")
    button.click()
    shown.page.wait_for_function("document.querySelectorAll('#next .copy')[1].textContent === 'Copied'")
    assert shown.read("navigator.clipboard.readText()") == command
    assert shown.errors == []


def test_a_command_is_copied_where_the_page_may_not_use_the_clipboard(opened: Opened) -> None:
    shown = opened(studies.study(30))
    shown.page.context.grant_permissions(["clipboard-read"])
    shown.read("() => { navigator.clipboard.writeText = async () => { throw new DOMException('', 'NotAllowedError'); }; }")
    button = shown.page.locator("#next .copy").first
    button.click()
    shown.page.wait_for_function("document.querySelector('#next .copy').textContent === 'Copied'")
    command = shown.text("#next code")
    assert (shown.read("getSelection().toString()"), shown.read("navigator.clipboard.readText()")) == (command, command)
    assert shown.errors == []


def test_tab_reaches_every_control(opened: Opened) -> None:
    recorded = studies.study(
        30,
        objectives=[{"metric": "loss", "direction": "minimize"}, {"metric": "accuracy", "direction": "maximize"}],
        metrics=lambda params, value: {"loss": value, "accuracy": value},
    )
    shown = opened(recorded, color_scheme="dark", viewport={"width": 1280, "height": 8000})  # with all charts
    for section in shown.sections:
        shown.show(section)
    shown.read("() => { window.reached = []; addEventListener('focusin', (event) => reached.push(event.target)); }")
    controls = "[...document.querySelectorAll('a[href], button, input, select, [tabindex=\"0\"]')]"
    for _ in range(shown.read(f"{controls}.length") + 20):  # boxes that scroll are reached too
        shown.page.keyboard.press("Tab")
    assert shown.read(f"{controls}.filter(e => !reached.includes(e)).map(e => e.outerHTML.slice(0, 80))") == []
    names = "e => e.ariaLabel || e.textContent || e.parentNode.textContent"
    assert {"Download CSV", "Zoom in", "Range of lr", "Light theme"} <= set(shown.read(f"reached.map({names})"))
    order = shown.read(f"{controls}.map(e => reached.indexOf(e))")
    assert order == sorted(order), "in the order of the page"
    shown.page.locator("#history .modebar-btn").first.focus()
    outline = shown.read("getComputedStyle(document.activeElement).outlineColor")
    assert outline == "rgb(86, 180, 233)", "a color that is seen on a dark background"


def test_the_theme_follows_the_system_and_can_be_switched(opened: Opened) -> None:
    shown = opened(studies.study(30), color_scheme="dark")
    theme = "document.documentElement.dataset.theme"
    assert shown.read(theme) == "dark"
    shown.page.get_by_role("button", name="Light theme").click()
    assert shown.read(theme) == "light"
    shown.page.emulate_media(media="print")
    assert shown.read("getComputedStyle(document.querySelector('nav')).display") == "none"
    assert shown.errors == []


def drag(shown: Page, axis: int, start: float, end: float) -> None:
    """Drag along an axis of the parallel coordinates, from one part of its height to another, measured from below."""
    box = shown.page.locator("#parallel .grip").nth(axis).bounding_box()
    assert box is not None
    x = box["x"] + box["width"] / 2
    first, last = (box["y"] + (1 - part) * box["height"] for part in (start, end))
    shown.page.mouse.move(x, first)
    shown.page.mouse.down()
    shown.page.mouse.move(x, last, steps=3)
    shown.page.mouse.up()


def wait_for_matches(shown: Page, number: int) -> None:
    """Wait until the table shows a part of its rows alone, of this number. While a range moves, there are other numbers."""
    begin = "text => document.querySelector('#trials .count').textContent.startsWith(text)"
    shown.page.wait_for_function(begin, arg=f"{number:,} of ")


LINES = "document.querySelector('#parallel .chart').chart.draw().lines"


def test_a_brush_asks_all_trials_and_filters_the_table(opened: Opened) -> None:
    recorded = studies.study(6000, steps=1)
    complete = [row for row in recorded.attempts if row.state is TrialState.COMPLETE]
    shown = opened(recorded)
    assert len(shown.workers) == 1, "columns of this size are decoded beside the page"
    shown.show("parallel")
    assert shown.read(f"{LINES}.length") == 2000 < len(complete)
    drag(shown, 2, 0, 0.12)  # one or two layers of twelve
    chosen = [row for row in complete if row.params["layers"] <= 2]
    assert len(chosen) > 300
    wait_for_matches(shown, len(chosen))
    assert f"{len(chosen):,} of {len(complete):,} match" in shown.text("#parallel .count")
    assert shown.read(f"{LINES}.length") == len(chosen), "also of those that were not drawn before"
    drag(shown, 2, 0.05, 0.13)  # moves the range by one layer
    shown.page.wait_for_function("document.querySelectorAll('#parallel .range')[2].getAttribute('y') < 360")
    wait_for_matches(shown, sum(2 <= row.params["layers"] <= 3 for row in complete))
    drag(shown, 2, 0.5, 0.5)
    shown.page.wait_for_function("document.querySelector('#trials .count').textContent === '6,000 rows'")
    assert shown.errors == []


def test_a_range_of_an_axis_can_be_chosen_by_keys_and_stays_when_the_theme_changes(opened: Opened) -> None:
    recorded = studies.study(300)
    shown = opened(recorded)
    shown.show("parallel")
    axis = shown.page.get_by_role("slider", name="Range of momentum")
    moved = "old => document.querySelector('[aria-label=\"Range of momentum\"]').ariaValueText !== old"
    axis.press("ArrowDown")
    shown.page.wait_for_function(moved, arg="all")  # a range changes with the next frame
    fifth = axis.get_attribute("aria-valuetext")
    axis.press("Shift+ArrowDown")
    shown.page.wait_for_function(moved, arg=fifth)
    before = axis.get_attribute("aria-valuetext")
    upper = float(str(before).partition(" to ")[2])
    complete = [row.params for row in recorded.attempts if row.state is TrialState.COMPLETE]
    assert sum("momentum" not in params for params in complete) > 50, "the axis begins with the trials without a value"
    wait_for_matches(shown, sum(params.get("momentum", 0) <= upper for params in complete))
    shown.page.get_by_role("button", name="Dark theme").click()  # scrolls to the top, so the chart is dropped
    shown.show("parallel")
    assert axis.get_attribute("aria-valuetext") == before != "all"
    axis.press("Escape")
    shown.page.wait_for_function("document.querySelector('#trials .count').textContent === '300 rows'")


def test_a_training_and_a_collection_show_their_metrics(opened: Opened) -> None:
    job = kinds.read({"name": "big", "kind": "train", "ranks": 2})
    row = TrialRow(0, TrialState.RUNNING, 2, 1, params={})
    lost = TrialRow(0, TrialState.LOST, 1, 0, failure=FailureClass.LOST, message="gone", started=1.0, ended=9.0, seconds=8.0)
    reports = [
        ReportRow(step, 0, 1 + step // 50, step // 50, step, {"loss": 1 / step, "lr": 0.1, "grad_norm": 2.0}, 1.0 + step)
        for step in range(1, 100)
    ]
    shown = opened(studies.recorded(job, [lost, row], reports, run="big", state=RunState.RUNNING))
    assert drawn(shown) == ["summary", "next", "curves", "ranks", "timeline", "costs", "failures", "trials"]
    assert "No report names a rank" in shown.text("#ranks")
    assert shown.read("document.querySelector('#ranks .chart')") is None
    assert shown.read("[...document.querySelectorAll('#curves h3')].map(h => h.textContent)") == ["loss", "lr", "grad_norm"]

    slow = {"slowest_rank": 1.0, "slowest_rank_factor": 2.5}
    delayed = [dataclasses.replace(each, metrics={**each.metrics, **slow}) for each in reports[60:70]]
    shown = opened(studies.recorded(job, [lost, row], [*reports[:60], *delayed], run="big", state=RunState.RUNNING))
    cells_ = shown.read("[...document.querySelectorAll('#ranks td')].map(d => d.textContent)")
    assert cells_ == ["1", "10", "61 to 70", "2.5×"]
    assert shown.read("[...document.querySelectorAll('#curves h3')].map(h => h.textContent)") == ["loss", "lr", "grad_norm"]

    collected = studies.collection(3)
    shown = opened(
        dataclasses.replace(collected, attempts=[dataclasses.replace(row, workers=2.0) for row in collected.attempts])
    )
    assert {"iterations", "workers", "trials"} <= set(drawn(shown))
    shown.show("timeline")
    assert "slot of the learner" in shown.text("#timeline p")
    bars = "document.querySelector('#timeline .chart').data.find(t => t.name === 'complete').text"
    assert all(text.endswith("55 s, with 2 workers") for text in shown.read(bars))
    titles = shown.read("[...document.querySelectorAll('#workers th')].map(h => h.textContent)")
    assert titles == ["worker", "state", "node", "units", "items", "failed", "items/s"], "no worker has a message"
    body = "[...document.querySelectorAll('#workers tbody tr')].map(row => [...row.cells].map(cell => cell.textContent))"
    assert shown.read(body) == [
        ["0", "working", "pod-1", "12", "384", "0", "7.68"],
        ["1", "working", "pod-2", "9", "288", "0", "5.538"],
    ]


def test_a_collection_is_told_by_iterations(opened: Opened) -> None:
    running = studies.collection(12)
    reports = [
        ReportRow(3 * row.trial + step, row.trial, 1, row.number, step, {"loss": 1 / (step + row.trial)}, row.started or 0.0)
        for row in running.attempts
        for step in (1, 2, 3)
    ]
    assert "state" in opened(running).text("#workers thead")
    ended = dataclasses.replace(running.status, state=RunState.SUCCEEDED)
    shown = opened(dataclasses.replace(running, reports=reports, status=ended))
    shown.show("curves")
    assert names_of(shown, "curves") == ["earlier iterations", "newest iteration"]
    assert shown.text("#trials .row.header button") == "iteration"
    assert cells(shown, 0)[:3] == ["0", "1", "2"], "in their order"
    assert "state" not in shown.text("#workers thead"), "the run has ended"


def test_hours_of_a_short_run_are_seconds(opened: Opened) -> None:
    recorded = studies.study(3)
    attempts = [dataclasses.replace(row, started=1000.0, ended=1002.0, seconds=2.0) for row in recorded.attempts]
    shown = opened(dataclasses.replace(recorded, attempts=attempts))
    assert f"{2 * len(attempts)} slot-seconds" in shown.text("#summary .cards")
    assert "slot-seconds" in shown.text("#costs thead")
    assert "under 0.01" not in shown.text("#summary .cards"), "nobody knows a price"
    prices = Prices(cpu_hour=0.05)
    priced = opened(
        dataclasses.replace(recorded, attempts=attempts, status=dataclasses.replace(recorded.status, prices=prices))
    )
    assert "cost under 0.01" in priced.text("#summary .cards")
    assert priced.text("#costs tbody td:last-child") == "under 0.01"
    assert "slot-hours" in opened(studies.study(300)).text("#costs thead")


@pytest.mark.parametrize("width", [700, 1400])
def test_long_names_fit_into_the_page(opened: Opened, width: int) -> None:
    metric = "validation_loss_of_all_languages"
    recorded = studies.study(
        40, objectives=[{"metric": metric, "direction": "minimize"}], metrics=lambda params, value: {metric: value}
    )
    attempts = [
        dataclasses.replace(row, params={**row.params, "optimizer": f"{row.params['optimizer']}_with_momentum_and_more"})
        for row in recorded.attempts
    ]
    shown = opened(dataclasses.replace(recorded, attempts=attempts), viewport={"width": width, "height": 1200})
    shown.show("parallel")
    assert shown.read((Path(__file__).parent / "defects.js").read_text(), "parallel") == []
    assert shown.read("document.querySelector('#parallel .bar.title').textContent") == metric
    cut = shown.read("document.querySelector('#parallel .tick title')?.textContent ?? ''")
    assert cut.endswith("_with_momentum_and_more"), "the whole text is a tooltip"
    if width == 1400:
        assert shown.read("(nav => nav.scrollWidth <= nav.clientWidth)(document.querySelector('nav'))")


def test_no_state_is_cut_and_a_printed_table_has_all_rows_and_columns(opened: Opened) -> None:
    recorded = studies.study(120, steps=2)
    states = [state for state in TrialState if state is not TrialState.COMPLETE]
    rows = [dataclasses.replace(row, state=states[i % len(states)]) for i, row in enumerate(recorded.attempts)]
    shown = opened(dataclasses.replace(recorded, attempts=rows), viewport={"width": 800, "height": 900})
    shown.show("trials")
    badges = "[...document.querySelectorAll('#trials .rows .state')]"
    assert shown.read(f"{badges}.filter(b => b.parentNode.scrollWidth > b.parentNode.clientWidth).length") == 0
    shown.page.emulate_media(media="print")
    shown.read("dispatchEvent(new Event('beforeprint'))")
    assert shown.read("document.querySelectorAll('#trials .rows .row').length") == 120
    wide = "document.querySelector('#trials .grid').scrollWidth > document.querySelector('#trials').clientWidth"
    assert not shown.read(wide)
    lines = "[...document.querySelectorAll('#trials .rows .row')].map(r => r.getBoundingClientRect().top)"
    tops = shown.read(lines)
    assert tops == sorted(set(tops)), "no row lies on another one"
    shown.page.emulate_media(media="screen")
    shown.read("dispatchEvent(new Event('afterprint'))")
    assert shown.read("document.querySelectorAll('#trials .rows .row').length") < 60


def test_the_times_of_few_ranks_are_lines_and_those_of_many_a_map(opened: Opened) -> None:
    shown = opened(studies.training(3, steps=200))
    shown.show("ranks")
    assert names_of(shown, "ranks") == ["rank 0", "rank 1", "rank 2"]
    shown = opened(studies.training(40, steps=200))
    shown.show("ranks")
    field = "document.querySelector('#ranks .chart').data[0]"
    assert shown.read(f"[{field}.type, {field}.z.length, {field}.z[0].length]") == ["heatmap", 40, 11]
    assert shown.errors == []


def test_a_population_shows_whose_state_each_member_continues(opened: Opened) -> None:
    shown = opened(studies.population(6, top=16, interval=4))
    assert drawn(shown)[2:4] == ["history", "importances"]
    assert "rungs" not in shown.sections
    shown.show("lineage")
    assert names_of(shown, "lineage") == ["continues its own state", "takes over another state", "lineage of the best"]
    values = "document.querySelectorAll('#lineage .chart')[1].layout.yaxis.title.text"
    shown.page.get_by_label("Parameter", exact=True).last.select_option("dropout")
    assert shown.read(values) == "dropout"


def test_several_runs_are_compared_and_switched(opened: Opened) -> None:
    shown = opened(studies.study(30, seed=1, run="a"), studies.study(40, seed=2, run="b", sampler="random"))
    assert {"runs", "progress", "noise", "history"} <= set(drawn(shown))
    assert "cannot be told" in shown.text("#noise")
    assert "sampler.name" in shown.text("#runs")
    shown.page.get_by_label("Run", exact=True).select_option("1")
    assert shown.text("h2.run") == "b"
    assert shown.errors == []


def test_trials_are_compared_side_by_side(chromium, tmp_path: Path) -> None:
    recorded = studies.study(60)
    file = tmp_path / "trials.html"
    compared = comparison.trial_comparison([(recorded, trial) for trial in range(6)])
    file.write_text(page.page("trials", [], compared), encoding="utf-8")
    shown = chromium(file)
    assert drawn(shown) == ["trials", "progress", "noise"]
    assert shown.text("h1") == "Comparison of 6 trials"
    names = "[...document.querySelectorAll('#trials .header button')].map(h => h.textContent)"
    assert {"trial", "state", "loss", "lr"} <= set(shown.read(names))
    assert "message" not in shown.read(names), "no trial has one"
    assert "equal" not in shown.text("#trials"), "all parameters differ"
    assert shown.read("document.querySelector('#progress .chart').data.length") == 6


def test_hundreds_of_runs_are_a_table_that_sorts_and_few_traces(chromium, tmp_path: Path) -> None:
    runs = [
        studies.study(6, steps=2, seed=seed, run=f"r{seed}", sampler="tpe" if seed % 2 else "random") for seed in range(300)
    ]
    compared = comparison.run_comparison(runs)
    file = tmp_path / "runs.html"
    file.write_text(page.page("runs", [], compared), encoding="utf-8")
    shown = chromium(file)
    assert drawn(shown) == ["runs", "progress", "noise"]
    assert shown.text("#runs .count") == "300 rows"
    assert shown.read("document.querySelectorAll('#runs .rows .row').length") < 60
    shown.page.get_by_role("columnheader", name="best loss").click()
    best = [float(text) for text in cells(shown, 3, "runs")]
    known = [run["best"] for run in compared["runs"] if run["best"] is not None]
    assert best == sorted(best)
    assert best[0] == pytest.approx(min(known), rel=1e-3)
    shown.page.get_by_role("columnheader", name="seed", exact=True).click()
    assert cells(shown, 0, "runs")[:3] == ["r0", "r1", "r2"], "numbers, and not texts"
    shown.page.locator("#runs input[type=search]").fill("sampler.name = tpe")
    assert shown.text("#runs .count") == "150 of 300 rows"
    shown.page.locator("#runs .rows .row").first.click()
    shown.show("progress")
    shown.page.wait_for_function("document.querySelector('#progress .chart').data.length === 9")
    assert names_of(shown, "progress") == ["r1"]
    titles = "document.querySelectorAll('#runs .header button').length"
    before = shown.read(titles)
    shown.page.get_by_label("equal parameters").check()
    assert shown.read(titles) == before + len(compared["same"])
    assert shown.read("document.querySelector('#runs [aria-sort=ascending]').textContent") == "seed", "as before"
    assert shown.errors == []


def test_the_content_is_shown_before_plotlys_script_has_arrived(opened: Opened) -> None:
    whole = page.page("a", [content.content(studies.study(30), studies.AROUND)]).encode()
    beginning, separator, rest = whole.partition(b'<script type="text/plain" id="plotly">')
    is_shown = threading.Event()

    class Slow(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(beginning + separator)
            is_shown.wait(PATIENCE / 1000)
            self.wfile.write(rest)

        def log_message(self, *_: object) -> None:
            return

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Slow) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        shown = opened(studies.study(1))
        shown.page.goto(f"http://127.0.0.1:{server.server_port}/", wait_until="commit")
        shown.page.wait_for_function("document.documentElement.dataset.ready === 'content'")
        assert shown.text("#trials .count") == "30 rows"
        is_shown.set()
        shown.show("history")
        server.shutdown()
    assert shown.errors == []


def test_plotlys_script_is_one_that_engines_compile_at_once() -> None:
    assert page.page("empty", []).count(': this, (() => {\n"use strict"') == 1


def test_without_plotly_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [])
    monkeypatch.delitem(__import__("sys").modules, "plotly", raising=False)
    with pytest.raises(page.InputError, match=r"pip install 'trialplane\[notebook\]'"):
        page.page("a", [content.content(studies.study(1), studies.AROUND)])
