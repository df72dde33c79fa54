"""Where a reader of attempts goes on; what the queries give is checked on both databases (tests/contracts)."""

from __future__ import annotations

from trialplane.ledger import attempts
from trialplane.ledger.attempts import Attempt
from trialplane.wire.records import TrialRequest

REQUEST = TrialRequest(run="toy", trial=0, attempt=1, number=0, params={}, seed=0, metrics=("loss",))


def test_a_reader_goes_on_behind_the_newest_end_and_never_back() -> None:
    running = Attempt(REQUEST)
    assert attempts.newest_end_number([running, Attempt(REQUEST, end_number=9), Attempt(REQUEST, end_number=8)], 7) == 9
    assert attempts.newest_end_number([running], 7) == 7
    assert attempts.newest_end_number([], 7) == 7
