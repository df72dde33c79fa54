"""The chart's dashboard and alerts, in a Prometheus that scrapes a controller's page; skipped where there is no Prometheus.

Not checked here: that Grafana draws the dashboard.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.charts.conftest import CHART, Render, Thing
from tests.ports import free_port

from trialplane.controller.status import StatusBoard
from trialplane.job import kinds
from trialplane.plan import plan as planning
from trialplane.wire.paths import RunPaths
from trialplane.wire.progress import CollectionProgress, TrainingProgress
from trialplane.wire.records import RunStatus, TrialRow
from trialplane.wire.states import RunState, TrialState

ALERTS = CHART / "files" / "alerts.yaml"
DASHBOARD = CHART / "files" / "dashboard.json"
PROGRAM, TOOL = shutil.which("prometheus"), shutil.which("promtool")
PATIENCE = 300.0  # seconds until a scrape has arrived

needs_prometheus = pytest.mark.skipif(PROGRAM is None or TOOL is None, reason="there is no Prometheus; apt-get install it")


def test_dashboard_and_alerts_are_made_on_request(render: Render, named: Callable[..., Thing]) -> None:
    assert not [thing for thing in render({}) if thing["kind"] in ("PrometheusRule", "PodMonitor")]
    values = {"metrics": {"alerts": True, "dashboard": True, "check": False, "labels": {"release": "prometheus"}}}
    objects = render(values)
    rule = named(objects, "PrometheusRule", "platform")
    assert rule["spec"] == yaml.safe_load(ALERTS.read_text())
    assert rule["metadata"]["labels"]["release"] == "prometheus"
    config = named(objects, "ConfigMap", "platform-dashboard")
    assert config["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(config["data"]["trialplane.json"]) == json.loads(DASHBOARD.read_text())


def test_the_dashboard_is_one_that_grafana_takes() -> None:
    """What Grafana's schema asks of a dashboard, and what it would show wrongly: panels that overlap, unknown variables."""
    dashboard = json.loads(DASHBOARD.read_text())
    assert (dashboard["schemaVersion"], dashboard["uid"]) == (39, "trialplane")
    panels, variables = dashboard["panels"], [variable["name"] for variable in dashboard["templating"]["list"]]
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    known = {"id", "type", "title", "description", "datasource", "gridPos", "targets", "fieldConfig"}
    for panel in panels:
        assert panel.keys() <= known
        assert panel["type"] in ("stat", "timeseries")
        assert panel["fieldConfig"].keys() == {"defaults", "overrides"}
        assert panel["fieldConfig"]["defaults"]["unit"] in ("short", "percentunit", "s")
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references) > 0
        for holder in (panel, *panel["targets"]):
            assert holder["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    assert set(re.findall(r"\$\{?(\w+)", DASHBOARD.read_text())) - {"__all"} == set(variables)
    places = [
        {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        for at in (panel["gridPos"] for panel in panels)
    ]
    assert all(one.isdisjoint(other) for one, other in itertools.combinations(places, 2))


@needs_prometheus
def test_the_alerts_are_valid_and_fire_when_they_should(tmp_path: Path) -> None:
    def series(name: str, values: str, **labels: str) -> dict[str, str]:
        text = ",".join(f'{label}="{value}"' for label, value in {"namespace": "a", "run": "r", **labels}.items())
        return {"series": f"{name}{{{text}}}", "values": values}

    running = series("trialplane_run_state", "1x200", trialplane_run_state="RUNNING")
    cases = {
        "TrialplaneNoSlots": [running, series("trialplane_slots_ready", "0x200")],
        "TrialplaneManyFailures": [
            running,
            series("trialplane_slots_ready", "2x200"),
            series("trialplane_trials", "7x200", state="failed"),
            series("trialplane_trials", "3x200", state="complete"),
        ],
        "TrialplaneManyRetries": [running, series("trialplane_attempts_retried", "0+1x200")],
        "TrialplaneTrainingStuck": [running, series("trialplane_training_step", "5x200")],
        "TrialplaneStraggler": [running, series("trialplane_training_slowest_rank_factor", "3x200")],
    }
    quiet = [
        running,
        series("trialplane_slots_ready", "2x200"),
        series("trialplane_trials", "1x200", state="failed"),
        series("trialplane_trials", "0+1x200", state="complete"),
        series("trialplane_attempts_retried", "3x200"),
        series("trialplane_training_step", "0+1x200"),
    ]
    rules = {rule["alert"]: rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]}
    assert rules.keys() == cases.keys()
    check = subprocess.run([str(TOOL), "check", "rules", str(ALERTS)], capture_output=True, text=True)
    assert check.returncode == 0, check.stdout + check.stderr
    tests = [
        {"interval": "1m", "input_series": input_series, "promql_expr_test": [
            {"expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})', "eval_time": "180m",
             "exp_samples": [{"labels": "{}", "value": 1}] if fires else []}
            for alert in rules for fires in [alert == expected]
        ]}
        for expected, input_series in [*cases.items(), ("", quiet)]
    ]  # fmt: skip
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": tests}))
    done = subprocess.run([str(TOOL), "test", "rules", str(file)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def boards(tmp_path: Path) -> Iterator[list[StatusBoard]]:
    """The pages of three controllers: of a study, a training and a collection."""
    study = _status("study", {"kind": "hpo", "space": {"lr": {"type": "float", "low": 0, "high": 1}}, "trials": 9})
    best = TrialRow(0, TrialState.COMPLETE, 1, 0, values=(0.5,))
    training = _status("training", {"kind": "train", "ranks": 2})
    numbers = {"slowest_rank": 1.0, "slowest_rank_factor": 3.0, "rank_seconds/0": 0.1, "rank_seconds/1": 0.3}
    collect = {"iterations": 3, "units": 2, "learner": "train:learn"}
    collection = _status("collection", {"kind": "collect", "collect": collect})
    statuses = [
        dataclasses.replace(study, best=best, complete=3, failed=1, running=2, slots_ready=2),
        dataclasses.replace(training, progress=TrainingProgress(step=5, total_steps=9, metrics=numbers), eta=60.0),
        dataclasses.replace(collection, progress=CollectionProgress(iteration=1, units=2, items_per_second=4.0)),
    ]
    with contextlib.ExitStack() as stack:
        found = []
        for status in statuses:
            run = RunPaths.of(tmp_path, status.run)
            run.root.mkdir(parents=True)
            board = StatusBoard(run)
            stack.callback(board.close)
            board.show(status, now=True)
            found.append(board)
        yield found


def _status(run: str, fields: dict[str, Any]) -> RunStatus:
    common = {"name": run, "objectives": [{"metric": "loss", "direction": "minimize"}]} if run == "study" else {"name": run}
    status = planning.pending_status(run, kinds.read({**common, **fields}), 0.0)
    return dataclasses.replace(status, state=RunState.RUNNING)


@needs_prometheus
def test_a_real_prometheus_has_data_for_each_panel(boards: list[StatusBoard], tmp_path: Path) -> None:
    targets = [{"targets": [f"127.0.0.1:{board.port}"], "labels": {"namespace": "team"}} for board in boards]
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(ALERTS)],
        "scrape_configs": [{"job_name": "runs", "static_configs": targets}],
    }
    file = tmp_path / "prometheus.yaml"
    file.write_text(yaml.safe_dump(config))
    with _prometheus(file, tmp_path) as ask:
        for panel in json.loads(DASHBOARD.read_text())["panels"]:
            for target in panel["targets"]:
                expression = target["expr"].replace("$namespace", "team").replace("$run", ".*")
                _until(lambda: ask("query", query=expression)["result"], panel["title"])  # noqa: B023
                _check_legend(target["legendFormat"], ask("query", query=expression)["result"], panel["title"])
        _until(lambda: "unknown" not in _health(ask), "the first evaluation of the rules")
        assert _health(ask) == {"ok"}
        for variable in json.loads(DASHBOARD.read_text())["templating"]["list"][1:]:
            query = variable["query"]["query"].replace("$namespace", "team")
            match = re.fullmatch(r"label_values\((.+), (\w+)\)", query)
            assert match is not None
            selector, label = match.groups()
            values = ["team"] if label == "namespace" else ["collection", "study", "training"]
            _until(lambda: ask(f"label/{label}/values", **{"match[]": selector}) == values, label)  # noqa: B023


def _health(ask: Callable[..., Any]) -> set[str]:
    """Return what Prometheus says of the evaluation of the alert rules: ok, err, or unknown before the first one."""
    (group,) = ask("rules")["groups"]
    return {rule["health"] for rule in group["rules"]}


def _check_legend(text: str, result: list[dict[str, Any]], title: str) -> None:
    """Check that each series has the labels of the legend, and that no two have the same legend."""
    labels = re.findall(r"\{\{(\w+)\}\}", text)
    for series in result:
        assert set(labels) <= series["metric"].keys(), f"a series of {title} has no value for a label of its legend"
    legends = [tuple(series["metric"][label] for label in labels) for series in result]
    assert len(set(legends)) == len(legends), f"series of {title} have the same legend"


@contextlib.contextmanager
def _prometheus(config: Path, folder: Path) -> Iterator[Callable[..., Any]]:
    """Start Prometheus; gives a function that asks its API."""
    address = f"127.0.0.1:{free_port()}"
    flags = [f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address={address}"]
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def ask(path: str, **parameters: str) -> Any:
        query = urllib.parse.urlencode(parameters)
        with opener.open(f"http://{address}/api/v1/{path}?{query}", timeout=60) as reply:
            return json.load(reply)["data"]

    def answers() -> bool:
        with contextlib.suppress(OSError):
            return bool(ask("status/buildinfo"))
        return False

    log = folder / "prometheus.log"
    with log.open("wb") as output, subprocess.Popen([str(PROGRAM), *flags], stdout=output, stderr=output) as server:
        try:
            _until(lambda: server.poll() is not None or answers(), "Prometheus")
            assert server.poll() is None, log.read_text()
            yield ask
        finally:
            server.terminate()


def _until(holds: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, f"no data: {what}"
        time.sleep(0.2)
