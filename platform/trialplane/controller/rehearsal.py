"""Rehearses a sampler that the job names by its class, before the first trial starts.

A class may raise, hang, exit or draw invalid points. So a separate process (`main`) lets it draw three trials into a
temporary ledger: the first one succeeds, the second one runs out of memory, and the third one is drawn after these two.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from trialplane import errors
from trialplane.controller.ledger import Ledger
from trialplane.job import kinds
from trialplane.job.kinds import Job
from trialplane.wire.records import TrialOutcome
from trialplane.wire.states import FailureClass, TrialState

SECONDS = 120.0  # time limit of the process, which may import Ray Tune or torch
_LONGEST = 500  # characters of an error in a message
_LAST_LINE = "drawn\n"  # last output of a rehearsal that has succeeded


def check(job: Job, folder: Path, seconds: float = SECONDS) -> None:
    """Check that the job's sampler draws trials. The run itself is not affected.

    Args:
        job: Job that names the sampler.
        folder: Folder of the job's code.
        seconds: Time after which the sampler counts as hung.

    Raises:
        InputError: The sampler draws no trials.
    """
    name = job.search.sampler.class_path
    command = [sys.executable, "-P", "-m", "trialplane.controller.rehearsal", str(folder)]
    try:
        process = subprocess.run(
            command, input=job.model_dump_json(), capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired as error:
        text = f"the sampler {name} took over {seconds:g} s to draw three trials"
        raise errors.InputError(f"{text}; nothing was started") from error
    # The exit code is not enough: the class itself may end the process with 0.
    if process.returncode == 0 and process.stdout.endswith(_LAST_LINE):
        return
    lines = (process.stderr or process.stdout).strip().splitlines()
    problem = lines[-1] if lines else f"its process ended with {process.returncode} and said nothing"
    if process.returncode != errors.EXIT_BAD_INPUT:  # with this code, the last line is a message of `main`
        problem = f"the sampler {name} draws no trials: {problem}"
    raise errors.InputError(f"{errors.shortened(problem, _LONGEST)}; nothing was started")


def main() -> int:
    """Draw three trials of the job that is on stdin; return an exit code of `errors`.

    The only argument of the program is the folder of the job's code.
    """
    job = kinds.read(sys.stdin.read())
    with tempfile.TemporaryDirectory(prefix="trialplane-") as scratch:
        root = Path(scratch)
        url = f"sqlite:///{root / 'ledger.db'}"
        try:
            with Ledger(url, job, run="rehearsal", code=Path(sys.argv[1]), lock=root / "lock") as ledger:
                for trial in range(min(3, job.trials)):
                    request = ledger.ask()
                    if request is None:
                        break
                    if trial == 0:
                        metrics = dict.fromkeys(job.required_metrics, 1.0)
                        ledger.tell(TrialOutcome(request.number, TrialState.COMPLETE, metrics=metrics))
                    else:
                        ledger.tell(TrialOutcome(request.number, TrialState.FAILED, failure=FailureClass.OOM))
        except errors.TrialplaneError as error:
            sys.stderr.write(f"{errors.first_line(error)}\n")
            return errors.EXIT_BAD_INPUT
    sys.stdout.write(_LAST_LINE)
    return errors.EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
