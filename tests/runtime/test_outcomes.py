"""The one line that an error of the job becomes. Not checked here: what a trial ends as (test_slot.py, test_verdict.py)."""

from __future__ import annotations

import pytest

from trialplane import errors
from trialplane.runtime import batches, outcomes


def test_its_place_is_in_the_jobs_code_and_not_in_what_python_made() -> None:
    """A dataclass' `__init__` is made by Python, in a file called `<string>`."""
    job = compile("length = 3\nBatchOrder(length, 4)\n", "/jobs/demo/train.py", "exec")
    with pytest.raises(errors.InputError) as caught:
        exec(job, {"BatchOrder": batches.BatchOrder})
    assert "<string>" in [entry.frame.code.raw.co_filename for entry in caught.traceback]
    said = outcomes.describe(caught.value)
    assert said.startswith("InputError: 3 samples do not fill one global batch of 4")
    assert said.endswith("(train.py:2)")
