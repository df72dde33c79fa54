"""The content of a page: what its columns hold is what the run has; odd values; savings; importances; lanes of the timeline.

Not checked here: what a browser makes of it (test_page.py).
"""

from __future__ import annotations

import base64
import dataclasses
import itertools
import json
import math
import re

import pytest
from tests.pages import studies

from trialplane.job import resources
from trialplane.pages import columns, content, curves, importances, lineage, page, savings
from trialplane.wire import rows
from trialplane.wire.costs import Busy, Prices
from trialplane.wire.records import ReportRow, TrialRow
from trialplane.wire.states import FailureClass, RunState, TrialState


def unpacked(recorded, around=studies.AROUND):
    facts, table = content.content(recorded, around)
    directory, block = columns.pack(table)
    return facts, studies.unpacked(directory, block)


def test_columns_hold_the_trials_of_the_run():
    recorded = studies.study(60)
    facts, table = unpacked(recorded)
    newest = rows.newest_attempts(recorded.attempts)
    assert table["trials", "trial"] == list(range(60))
    assert table["trials", "state"] == [row.state.value for row in newest]
    assert table["trials", "lr"] == pytest.approx([row.params["lr"] for row in newest])
    assert table["trials", "optimizer"] == [row.params["optimizer"] for row in newest]
    lost = [math.isnan(value) for value in table["trials", "momentum"]]
    assert lost == ["momentum" not in row.params for row in newest]
    assert table["trials", "message"] == [row.message or None for row in newest]
    order = sorted(range(60), key=table["trials", "rank"].__getitem__)
    assert order == [row.trial for row in rows.ranked(recorded.job, newest)]
    assert len(table["attempts", "trial"]) == len(recorded.attempts) > 60
    best = rows.best_trial(recorded.job, newest)
    assert best is not None
    assert (facts["best"][0]["trial"], dict(facts["best"][0]["params"])["lr"]) == (best.trial, str(best.params["lr"]))
    assert sum(failure["count"] for failure in facts["failures"]) == sum(
        row.failure is not None for row in recorded.attempts
    )


def test_every_limit_of_the_budget_is_among_the_settings():
    limits = {name: 10 * number for number, name in enumerate(sorted(resources.Budget.model_fields), 1)}
    del limits["exit_timeout"]  # it ends no run
    pruner = {"name": "asha", "promote": True, "max_resource": 64}
    facts, _ = unpacked(studies.study(2, pruner=pruner, budget=limits, resources={"gpus": 1}))
    shown = {name.removeprefix("budget."): text for name, text in facts["facts"] if name.startswith("budget.")}
    assert shown == {name: f"{limit} s" if name in ("time", "timeout") else str(limit) for name, limit in limits.items()}


@pytest.mark.parametrize(
    "values, type_, read",
    [
        ([1, 2.5, None], "f4", [1.0, 2.5, None]),
        ([2**31 + 1, 1], "f8", [2**31 + 1, 1]),
        ([10**400, -(10**400), 1e300], "f8", [math.inf, -math.inf, 1e300]),
        ([math.nan, math.inf], "f4", [None, math.inf]),
        ([True, False, None], "u1", ["true", "false", None]),
        (["a", 1, "\U0001f680", [1, 2]], "u1", ["a", "1", "\U0001f680", "[1, 2]"]),
        ([], "f4", []),
        ([f"t{index}" for index in range(300)], "u2", [f"t{index}" for index in range(300)]),
    ],
)
def test_any_value_of_a_job_fits_a_column(values, type_, read):
    directory, block = columns.pack([columns.from_values("t", "c", "param", values)])
    assert directory[0]["type"] == type_
    found = studies.unpacked(directory, block)["t", "c"]
    assert [None if isinstance(value, float) and math.isnan(value) else value for value in found] == read


def test_columns_begin_where_a_browser_can_read_them():
    directory, block = columns.pack(studies_columns())
    assert all(entry["offset"] % 8 == 0 for entry in directory)
    assert len(base64.b64decode(block)) == directory[-1]["offset"] + directory[-1]["length"] * 4


def studies_columns():
    return [columns.from_values("t", "a", "", ["x"] * 3), columns.from_values("t", "b", "", [1.0, 2.0, 3.0])]


def test_columns_of_many_trials_are_small():
    trials = 5000
    recorded = studies.study(trials, steps=1)
    _, table = content.content(dataclasses.replace(recorded, reports=[]), studies.AROUND)
    _, block = columns.pack(column for column in table if column.table == "trials")
    assert len(block) < trials * (6 + 14) * 4  # bytes of base64: 5 parameters and a metric, and what every trial has


def test_a_page_that_has_most_of_the_columns_gets_the_rest():
    recorded = studies.study(800)
    last = recorded.attempts[-1].number
    before = dataclasses.replace(
        recorded,
        attempts=recorded.attempts[:-1],
        reports=[report for report in recorded.reports if report.number != last],
    )
    (_, old), (_, new) = (content.content(each, studies.AROUND) for each in (before, recorded))
    whole, part = columns.pack(new), columns.pack(new, old)
    assert len(part[1]) < len(whole[1]) / 4
    assert str(studies.unpacked(*part, studies.unpacked(*columns.pack(old)))) == str(studies.unpacked(*whole))
    assert studies.unpacked(*columns.pack(new, new)) and len(columns.pack(new, new)[1]) < 10


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ([1.0, None, 3.0], [1.0, None, 3.5, None]),
        ([1.0, 2.0], [1.0, 1 << 30]),  # now of another type
        (["a", None, "b"], ["a", "c", "b"]),
        (["a", "b"], ["a"]),
        ([], ["a"]),
        (["a"], [2.0]),
    ],
)
def test_any_change_of_a_column_can_be_sent(old, new):
    before, after = ([columns.from_values("t", "c", "param", values)] for values in (old, new))
    known = studies.unpacked(*columns.pack(before))
    assert str(studies.unpacked(*columns.pack(after, before), known)) == str(studies.unpacked(*columns.pack(after)))


def test_a_curve_keeps_its_ends_and_no_more_points_than_it_may():
    points = [(step, float(step)) for step in range(10_000)]
    thinned = curves.thin(points, curves.MAX_POINTS)
    assert (len(thinned), thinned[0], thinned[-1]) == (curves.MAX_POINTS, points[0], points[-1])
    assert curves.thin(points[:5], 10) == points[:5]


def test_only_chosen_curves_of_many_have_all_points():
    names = [f"m{index}" for index in range(curves.MAX_METRICS)]
    metrics = dict.fromkeys(names, 1.0)
    reports = [ReportRow(0, trial, 1, trial, step, metrics, 0.0) for trial in range(40) for step in range(1001)]
    table = {
        column.name: list(column.numbers)
        for column in curves.curve_columns(reports, names, {0, 7})
        if column.table == "curves"
    }
    counts = list(zip(table["number"], table["count"], strict=True))
    assert {count for number, count in counts if number in {0, 7}} == {curves.MAX_POINTS}
    assert {count for number, count in counts if number not in {0, 7}} == {512}, "400,000 points for 480 curves"


def test_bands_are_quantiles_of_all_curves():
    reports = [ReportRow(0, trial, 1, trial, step, {"loss": float(trial)}, 0.0) for trial in range(101) for step in range(2)]
    table = {
        column.name: list(column.numbers)
        for column in curves.curve_columns(reports, ["loss"], ())
        if column.table == "bands"
    }
    assert (table["step"], table["q5"], table["q50"], table["q95"]) == ([0, 1], [5, 5], [50, 50], [95, 95])


def test_importances_find_the_parameter_that_decides_and_say_why_there_are_none():
    recorded = studies.study(200)
    shares, why = importances.importances(recorded.job, rows.newest_attempts(recorded.attempts))
    assert (shares[0][0], why) == ("lr", "")
    assert {name for name, _ in shares} == set(studies.SPACE)
    assert sum(share for _, share in shares) == pytest.approx(1)
    few = studies.study(5)
    assert "20 trials with a value are needed" in importances.importances(few.job, rows.newest_attempts(few.attempts))[1]
    same = [dataclasses.replace(row, params={"lr": 0.1}) for row in rows.newest_attempts(recorded.attempts)]
    assert importances.importances(recorded.job, same) == ([], "no parameter has two different values")


def test_importances_of_a_promotion_judge_all_trials_by_how_far_they_went():
    promoted = studies.promoted(200)
    trials = [entry.row for entry in lineage.lineages(promoted.job, promoted.attempts)]
    assert sum(row.state is TrialState.COMPLETE for row in trials) < importances.MIN_TRIALS
    shares, why = importances.importances(promoted.job, trials)
    assert (shares[0][0], why) == ("lr", "")


def trial(number: int, state: TrialState, seconds: float) -> TrialRow:
    return TrialRow(number, state, 1, number, seconds=seconds)


def test_savings_of_pruning_are_the_steps_that_were_not_run():
    rows_ = [trial(0, TrialState.COMPLETE, 100), trial(1, TrialState.COMPLETE, 100), trial(2, TrialState.PRUNED, 30)]
    assert savings.saved_seconds(rows_, {0: 10, 1: 10, 2: 3}) == pytest.approx(70)  # 3 of 10 steps took 30 s
    assert savings.saved_seconds(rows_, {}) == pytest.approx(70)
    assert savings.saved_seconds(rows_[2:], {2: 3}) == 0  # nothing to compare with
    assert savings.lost([trial(0, TrialState.LOST, 5), trial(0, TrialState.COMPLETE, 7)]) == Busy(5)


def test_an_attempt_that_runs_is_used_time_up_to_now():
    record = studies.study(20)
    running = TrialRow(20, TrialState.RUNNING, 1, 20, started=studies.AROUND.now - 7200)
    later = dataclasses.replace(record, attempts=[*record.attempts, running])
    used, more = (unpacked(each)[0]["costs"]["used"]["slot_hours"] for each in (record, later))
    assert more - used == pytest.approx(2)


def test_failures_whose_messages_differ_in_numbers_alone_are_of_one_kind():
    record = studies.study(0)
    lines = ["tried to allocate 2.5 GiB at 0x7f3a", "tried to allocate 30 GiB at 0x0b1c", "tried to load 2.5 GiB"]
    attempts = [
        TrialRow(trial, TrialState.FAILED, 1, trial, failure=FailureClass.ERROR, message=line)
        for trial, line in enumerate(lines)
    ]
    failures = unpacked(dataclasses.replace(record, attempts=attempts))[0]["failures"]
    assert [(each["count"], each["line"], each["trial"]) for each in failures] == [(2, lines[0], 0), (1, lines[2], 2)]


def test_failures_with_different_exit_codes_are_of_different_kinds():
    record = studies.study(0)
    attempts = [
        TrialRow(trial, TrialState.FAILED, 1, trial, failure=FailureClass.ERROR, message=f"ended with exit code {code}")
        for trial, code in enumerate((1, 137))
    ]
    assert len(unpacked(dataclasses.replace(record, attempts=attempts))[0]["failures"]) == 2


def test_costs_have_the_prices_of_the_run_unless_others_are_given():
    record = studies.study(20)
    priced = dataclasses.replace(record, status=dataclasses.replace(record.status, prices=Prices(cpu_hour=2.0)))
    used = unpacked(priced)[0]["costs"]["used"]
    assert used["cost"] == pytest.approx(2 * used["cpu_hours"]) and used["cost"] > 0
    other = dataclasses.replace(studies.AROUND, prices=Prices(cpu_hour=3.0))
    assert unpacked(priced, other)[0]["costs"]["used"]["cost"] == pytest.approx(3 * used["cpu_hours"])
    assert unpacked(record)[0]["costs"]["used"]["cost"] is None


def test_a_trial_uses_as_many_gpu_hours_as_it_has_gpus():
    record = studies.study(60, resources={"gpus": 2})
    costs = unpacked(record, dataclasses.replace(studies.AROUND, prices=Prices(gpu_hour=3.0)))[0]["costs"]
    for usage in (costs["used"], costs["saved"]):
        assert usage["slot_hours"] > 0
        assert usage["gpu_hours"] == pytest.approx(2 * usage["slot_hours"])
        assert usage["cost"] == pytest.approx(6 * usage["slot_hours"])


def test_a_promoted_trial_is_one_curve_with_the_steps_at_which_it_was_paused():
    recorded = studies.promoted(32)
    facts, table = unpacked(recorded)
    newest = {row.trial: row for row in rows.newest_attempts(recorded.attempts)}
    complete = [trial for trial, row in newest.items() if row.state is TrialState.COMPLETE]
    curve_numbers = table["curves", "number"]
    assert sorted(curve_numbers) == sorted(row.number for row in newest.values())  # one for each trial, of all segments
    for trial in complete:
        at = curve_numbers.index(newest[trial].number)
        start, count = table["curves", "start"][at], table["curves", "count"][at]
        assert table["points 0", "step"][start : start + count] == list(range(1, 65))
        pauses = zip(table["pauses", "number"], table["pauses", "step"], strict=True)
        assert [step for number, step in pauses if number == newest[trial].number] == [1, 4, 16]
        assert table["trials", "seconds"][trial] == pytest.approx(64)
        assert table["trials", "rung"][trial] == 16
    first, *_, last = facts["rungs"]
    assert (first["step"], first["reached"]) == (1, 32)
    assert (last["step"], last["reached"]) == (64, len(complete))
    for lower, higher in itertools.pairwise(facts["rungs"]):
        assert lower["reached"] == lower["promoted"] + lower["paused"] + lower["dropped"]
        assert lower["promoted"] == higher["reached"]


def test_savings_of_promotion_are_the_steps_up_to_the_end_of_a_whole_trial():
    recorded = studies.promoted(32)
    trained = sum(row.seconds for row in recorded.attempts)
    facts, _ = unpacked(recorded)
    assert facts["costs"]["saved"]["slot_hours"] * 3600 == pytest.approx(
        32 * 64 - trained, rel=0.02
    )  # a step takes a second
    assert facts["costs"]["used"]["slot_hours"] * 3600 == pytest.approx(trained)


def test_a_paused_trial_is_no_saving_while_it_may_be_promoted():
    rows_ = [trial(0, TrialState.COMPLETE, 100), trial(1, TrialState.PAUSED, 10)]
    assert savings.saved_seconds(rows_, {0: 10, 1: 1}, is_active=True) == 0
    assert savings.saved_seconds(rows_, {0: 10, 1: 1}) == pytest.approx(90)
    stopped = dataclasses.replace(rows_[1], failure=FailureClass.STOPPED)  # with its run: it is to continue
    assert savings.saved_seconds([rows_[0], stopped], {0: 10, 1: 1}) == 0


def test_attempts_at_the_same_time_have_lanes_of_their_own():
    _, table = unpacked(studies.study(200))
    lanes, starts, ends = (table["attempts", name] for name in ("lane", "start", "end"))
    assert max(lanes) < 9  # 8 slots, and half seconds that 32 bits round
    for lane in set(lanes):
        spans = sorted((starts[i], ends[i]) for i in range(len(lanes)) if lanes[i] == lane)
        assert all(before[1] <= after[0] + 0.01 for before, after in itertools.pairwise(spans))


def test_an_attempt_is_in_the_lane_of_its_slot_if_that_is_known():
    recorded = studies.study(40)
    slots = [None if row.trial % 10 == 0 else row.number % 3 for row in recorded.attempts]
    rows_ = [dataclasses.replace(row, slot=slot) for row, slot in zip(recorded.attempts, slots, strict=True)]
    _, table = unpacked(dataclasses.replace(recorded, attempts=rows_))
    found = dict(zip(table["attempts", "number"], table["attempts", "lane"], strict=True))
    assert all(found[row.number] == row.slot if row.slot is not None else found[row.number] >= 3 for row in rows_)


def test_a_slot_waits_until_it_gets_an_attempt_and_then_starts_it():
    def attempt(number: int, slot: int | None, *times: float) -> TrialRow:
        requested, started, ended = (studies.BEGAN + time for time in times)
        row = TrialRow(number, TrialState.COMPLETE, 1, number, (0.0,), slot=slot, started=started, ended=ended)
        return dataclasses.replace(row, requested=requested if requested > studies.BEGAN else None)

    attempts = [
        attempt(0, 0, 1, 3, 10),
        attempt(1, 1, 2, 2, 9),
        attempt(2, 0, 9, 12, 20),  # requested before the slot was free
        attempt(3, 1, 13, 12, 19),  # the clock of its pod is slow
        attempt(4, None, 21, 22, 25),  # its slot is unknown
        attempt(5, 0, 0, 24, 26),  # its request is unknown
    ]
    _, table = unpacked(dataclasses.replace(studies.study(6), attempts=attempts, reports=[]))
    frees, requests, starts = (table["attempts", name] for name in ("free", "requested", "start"))
    assert starts == [1, 2, 11, 11, 21, 23], "from the request of the first attempt on"
    assert requests[:5] == [1, 0, 9, 11, 20] and math.isnan(requests[5])
    assert frees[2:4] == [9, 8] and frees[5] == 19 and all(map(math.isnan, (frees[0], frees[1], frees[4])))


def test_commands_are_those_that_the_run_can_use():
    ended, _ = unpacked(studies.study(30))
    texts = [text for _, text in ended["commands"]]
    assert "platform best study-30 --local > best.yaml" in texts
    best = ended["best"][0]["trial"]
    assert f"platform submit hpo --from study-30:{best} --local" in texts
    assert "platform refit study-30 --top 3 --seeds 5 --local" in texts
    assert "platform resume study-30 --trials 60 --local" in texts
    assert "platform ui study-30 --dashboard --local" in texts
    on_cluster = dataclasses.replace(studies.AROUND, flags="--context c --namespace n")
    texts = [text for _, text in unpacked(studies.study(30, state=RunState.RUNNING), on_cluster)[0]["commands"]]
    assert "platform status study-30 --watch --context c --namespace n" in texts
    assert f"platform submit hpo --from study-30:{best} --context c --namespace n" in texts
    assert not [text for text in texts if text.startswith(("platform retry", "platform resume"))]


@pytest.mark.parametrize(
    ("record", "state", "command"),
    [
        (studies.training(1, steps=9), RunState.SUCCEEDED, "platform submit train pretrain --resume {run} --local"),
        (studies.training(1, steps=9), RunState.FAILED, "platform resume {run} --local"),
        (studies.collection(3), RunState.SUCCEEDED, "platform resume {run} --iterations 26 --local"),
    ],
)
def test_a_training_and_a_collection_can_go_on(record, state, command):
    ended = dataclasses.replace(record, status=dataclasses.replace(record.status, state=state))
    run = record.status.run
    texts = [text for _, text in unpacked(ended)[0]["commands"]]
    results = f"platform results {run} --output csv --local > {run}.csv"
    assert texts == [command.format(run=run), f"platform ui {run} --local", results]


def test_no_text_of_a_run_can_end_the_data_of_the_page():
    hostile = "</script><script>alert(1)</script><!-- \u2028 & \ud800"
    recorded = studies.study(3, run="a", description=hostile)
    text = page.page(hostile, [content.content(recorded, studies.AROUND)])
    assert "<script>alert" not in text
    document = re.search(r'id="facts">(.*?)</script>', text, re.DOTALL)
    assert document is not None
    assert "<" not in document[1]
    facts = json.loads(document[1])["runs"][0]
    assert facts["description"].startswith("</script><script>alert(1)</script><!-- \u2028 &")
    policy = re.search('Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    assert "connect-src 'none'" in policy[1] and "default-src 'none'" in policy[1] and "unsafe-inline'; img" in policy[1]
    assert "script-src 'sha256-" in policy[1]


def test_segments_of_a_population_name_their_donors_and_the_lineage_of_the_best():
    recorded = studies.population(6, top=16, interval=4)
    facts, table = unpacked(recorded)
    rows_ = {(row.trial, row.done): row for row in recorded.attempts}
    trials, starts, donors = table["segments", "trial"], table["segments", "start"], table["segments", "donor"]
    assert sorted(zip(trials, starts, strict=True)) == list(zip(trials, starts, strict=True)) == sorted(rows_)
    by_number = {row.number: row for row in recorded.attempts}
    for trial, start, donor, end, rate in zip(
        trials, starts, donors, table["segments", "end"], table["segments", "lr"], strict=True
    ):
        row = rows_[trial, start]
        assert donor == (trial if row.parent is None else by_number[row.parent].trial)
        assert (end, rate) == (row.step, pytest.approx(row.params["lr"]))
    copies = {(trial, start) for trial, start, donor in zip(trials, starts, donors, strict=True) if donor != trial}
    newest = dict(zip(table["trials", "number"], table["trials", "trial"], strict=True))
    pauses = zip(table["pauses", "number"], table["pauses", "step"], strict=True)
    assert {(newest[number], step) for number, step in pauses} == copies != set()
    best = rows.best_trial(recorded.job, rows.newest_attempts(recorded.attempts))
    line = [row.number for row in lineage.ancestors(recorded.attempts, best)]
    leading = [key for key, leads in zip(zip(trials, starts, strict=True), table["segments", "best"], strict=True) if leads]
    assert sorted(rows_[key].number for key in leading) == sorted(line) and len(line) == 4
    assert facts["rungs"] == []
    assert unpacked(studies.promoted(16))[1]["segments", "trial"] == []


def test_the_times_of_ranks_are_by_rank_and_step_and_in_no_curve():
    recorded = studies.training(3, steps=200, slow=1)
    facts, table = unpacked(recorded)
    assert table["ranks", "rank"] == [rank for rank in range(3) for _ in recorded.reports]
    assert table["ranks", "step"] == [report.step for report in recorded.reports] * 3
    times = [report.metrics[f"rank_seconds/{rank}"] for rank in range(3) for report in recorded.reports]
    assert table["ranks", "seconds"] == pytest.approx(times)
    (straggler,) = facts["stragglers"]
    assert straggler == {"rank": 1, "reports": 1, "first": 120, "last": 120, "factor": 2.5}
    assert facts["curve_metrics"] == ["loss", "lr", "grad_norm", "tokens_per_second", "seconds_per_step"]


def test_a_long_training_has_the_times_of_some_steps_and_a_repeated_step_its_newest():
    recorded = studies.training(2, steps=20_000)
    again = dataclasses.replace(recorded.reports[0], metrics={"rank_seconds/0": 9.0})
    _, table = unpacked(dataclasses.replace(recorded, reports=[*recorded.reports, again]))
    steps = table["ranks", "step"]
    assert (len(steps), steps[0], steps[399]) == (800, 0, 20_000)
    assert table["ranks", "seconds"][0] == 9.0


@pytest.mark.parametrize("make", [studies.study, studies.population])
def test_samples_of_system_metrics_change_nothing_on_the_page(make):
    recorded = make(6)
    samples = [
        ReportRow(0, row.trial, 1, row.number, 10_000, {"system/cpu_utilization_percentage": 9.0}, row.time)
        for row in recorded.reports
    ]
    assert samples
    with_samples = dataclasses.replace(recorded, reports=[*recorded.reports, *samples])
    assert repr(unpacked(with_samples)) == repr(unpacked(recorded)), "as text, because NaN differs from itself"
