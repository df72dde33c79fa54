"""The page of a run that its exporter stores in MLflow at the end: its content, its limits, and the run after a failure.

Not checked here: the way through the gateway (tests/gateway/test_exporter.py), and what a page shows (tests/pages).
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from tests.controller.conftest import request
from tests.exporter.conftest import DONE, Place, bring

from trialplane import errors
from trialplane.exporter import run_page
from trialplane.exporter.exporter import Exporter
from trialplane.job import kinds
from trialplane.ledger import attempts
from trialplane.ledger.attempts import Attempt
from trialplane.ledger.study import Reader
from trialplane.plan import plan as planning
from trialplane.wire import labels, records
from trialplane.wire.exports import End
from trialplane.wire.states import RunState

pytestmark = pytest.mark.slow


def end(place: Place, state: RunState = RunState.SUCCEEDED) -> End:
    """The end of a run whose page is stored."""
    pending = planning.pending_status("toy-1", kinds.read(place.run.job.read_text()), 1000.0)
    return dataclasses.replace(DONE, state=state, status=dataclasses.replace(pending, state=state))


def stored(place: Place) -> list[str]:
    """Names of the files of the run that stands for the whole study."""
    (study,) = place.runs("study")
    return [item.path for item in place.client.list_artifacts(study.info.run_id)]


def page(place: Place) -> str:
    (study,) = place.runs("study")
    return Path(place.client.download_artifacts(study.info.run_id, "report.html", str(place.home))).read_text()


def test_an_end_with_its_status_is_read_from_a_message_as_it_was(place: Place) -> None:
    sent = end(place)
    assert records.from_json(End, records.to_json(sent)) == sent


def test_all_attempts_and_reports_are_on_the_page(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "SOURCE_PAGE", 2)  # several pages of the ledger
    for number in range(5):
        place.play(number)
    place.begin(request(5))  # a pause ends it without an outcome
    place.export(end(place, RunState.PAUSED))
    text = page(place)
    assert "<title>toy-1</title>" in text
    assert '"name":"trial","category":"","type":"u1","offset":0,"length":6' in text
    assert '"state":"PAUSED"' in text


def test_samples_of_system_metrics_do_not_count_for_the_page(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "_PAGE", 2)  # some pages of the ledger have samples only
    monkeypatch.setattr(run_page, "MAX_REPORTS", 3)
    monkeypatch.setattr(run_page, "MAX_VALUES", 6)
    for sample in range(5):
        place.report(0, sample, **{"system/cpu_utilization_percentage": 9.0})
    place.play(0)
    place.report(0, 5, **{"system/cpu_utilization_percentage": 9.0})
    place.export(end(place))
    assert re.search(r'"table":"points 0","name":"step","category":"","type":"f4","offset":\d+,"length":3\b', page(place))


def tag(place: Place) -> str:
    """What the run that stands for the whole study says of its page."""
    (study,) = place.runs("study")
    text: str = study.data.tags[labels.PAGE]
    return text


def test_the_page_and_the_run_in_mlflow_lead_to_each_other(place: Place) -> None:
    place.play(0)
    exporter = place.exporter()
    bring(exporter, closes=False)
    assert tag(place) == "`platform ui toy-1` shows it live"
    exporter.set_end(end(place))
    bring(exporter, closes=True)
    assert tag(place) == "the artifact report.html; `platform ui toy-1` shows it live"
    assert '["Open it in MLflow","platform ui toy-1"]' in page(place)


def test_a_run_on_a_laptop_stores_no_page(place: Place) -> None:
    place.play(0)
    place.export(DONE)
    assert stored(place) == ["job.json"]
    assert tag(place) == "`platform ui toy-1` shows it live"


class _Ledger(Reader):
    """A ledger that does not answer while `is_lost` is set."""

    is_lost = False

    def ended_attempts(self, after: int) -> list[Attempt]:
        if self.is_lost:
            raise errors.LedgerUnavailable("the ledger does not answer")
        return super().ended_attempts(after)


def test_a_ledger_that_does_not_answer_is_asked_again_for_the_page(place: Place) -> None:
    place.play(0)
    ledger = _Ledger(place.ledger, "toy-1")
    exporter = Exporter(place.run, ledger, place.uri)
    exporter.set_end(end(place))
    bring(exporter, closes=False)
    ledger.is_lost = True
    with pytest.raises(errors.LedgerUnavailable):
        exporter.close()
    ledger.is_lost = False
    bring(exporter, closes=True)
    assert "report.html" in stored(place)


@pytest.mark.parametrize("limit", ["MAX_ATTEMPTS", "MAX_REPORTS", "MAX_VALUES", "MAX_BYTES"])
def test_a_page_beyond_a_limit_is_left_out_and_everything_else_is_stored(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], limit: str
) -> None:
    monkeypatch.setattr(run_page, limit, 1)
    for number in range(2):
        place.play(number)
    place.export(end(place))
    assert stored(place) == ["job.json"]
    assert "report.html" not in tag(place)
    (study,) = place.runs("study")
    assert study.info.status == "FINISHED"
    assert len(place.runs()) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "page" in line]
    assert "PageTooLarge" in line
    assert line.endswith("`platform report toy-1` writes it to a file")
