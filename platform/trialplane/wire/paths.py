"""Every path of a run, as properties of one class; file names are formatted nowhere else.

```
<home>/                    TRIALPLANE_HOME, else ~/.trialplane
  mlflow.db, artifacts/    MLflow's local store
  place.json               where the last submission went
  cache/                   shared by all trials of all runs: tokenizers, prepared data
  runs/<run>/
    job.json               the job as resolved: profile, flags and `--set` applied
    submission.json        when, by whom, git revision, code hash, versions
    code/                  the job's folder as submitted
    ledger.db              its attempts (SQLite; `platform export` makes an Optuna study of them)
    controller.lock        held while a controller works on the study, which is named in it
    controller.json        that controller, its port and start
    controller.log
    cancelled              there when the user cancelled the run, so that its end is no pause
    status.json            the newest RunStatus
    spool/                 what the recorder has yet to write to MLflow; damaged.jsonl: lines of it that cannot be read
    trials/0007/attempt-1.log
    trials/0007/worker-2.log  of a collection's worker
    slots/0-1.log          output of a slot's template
    arrays/                arrays on their way to MLflow
    scratch/               work folders of running trials; emptied when they end
    checkpoints/<run>/trial-0/  checkpoints of a trial
```
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from trialplane.wire import env


def home() -> Path:
    """The folder that holds everything trialplane keeps on this machine."""
    chosen = os.environ.get(env.HOME)
    return Path(chosen).expanduser().absolute() if chosen else Path.home() / ".trialplane"


def mlflow_db(root: Path) -> Path:
    """The local MLflow store's database."""
    return root / "mlflow.db"


def mlflow_artifacts(root: Path) -> Path:
    """The local MLflow store's artifacts."""
    return root / "artifacts"


def mlflow_uri(root: Path) -> str:
    """The tracking URI of the local MLflow store."""
    return f"sqlite:///{mlflow_db(root)}"


def place(root: Path) -> Path:
    """Where the last submission went, JSON."""
    return root / "place.json"


def cache(root: Path) -> Path:
    """The folder shared by all trials of all runs."""
    return root / "cache"


def runs(root: Path) -> Path:
    """The folder of all runs."""
    return root / "runs"


def trial_log(trial: int, attempt: int, worker: int | None = None) -> str:
    """The log of one attempt, relative to the run's folder; or of a worker, to which all its processes add."""
    return f"trials/{trial:04d}/{f'attempt-{attempt}' if worker is None else f'worker-{worker}'}.log"


def trial_arrays(workdir: Path) -> Path:
    """The packed arrays of a result, beside the scratch folder of its trial."""
    return workdir.with_suffix(".arrays")


def trial_checkpoints(place: str, run: str, trial: int) -> str:
    """The folder of one trial's checkpoints, below `place`: a folder or an fsspec URL."""
    return f"{place.rstrip('/')}/{run}/trial-{trial}"


def shards(place: str, run: str, iteration: int) -> str:
    """The folder of one iteration's results as files, below `place`: a folder or an fsspec URL."""
    return f"{place.rstrip('/')}/{run}/iteration-{iteration:04d}"


def is_saved(folder: Path) -> bool:
    """Whether a job has saved anything in a folder of checkpoints; what begins with a dot is not complete."""
    return folder.is_dir() and any(not path.name.startswith(".") for path in folder.iterdir())


@dataclasses.dataclass(frozen=True)
class RunPaths:
    """The files of one run below its folder `root`."""

    root: Path

    @classmethod
    def of(cls, home_: Path, run: str) -> RunPaths:
        """The paths of the run named `run`."""
        return cls(runs(home_) / run)

    @property
    def job(self) -> Path:
        """The job as resolved, JSON."""
        return self.root / "job.json"

    @property
    def submission(self) -> Path:
        """When, by whom and from what it was submitted, JSON."""
        return self.root / "submission.json"

    @property
    def code(self) -> Path:
        """The job's folder as submitted."""
        return self.root / "code"

    @property
    def ledger(self) -> Path:
        """The study's SQLite file."""
        return self.root / "ledger.db"

    @property
    def lock(self) -> Path:
        """Locked while a controller works on the study."""
        return self.root / "controller.lock"

    @property
    def controller(self) -> Path:
        """The newest controller, its port and start, JSON."""
        return self.root / "controller.json"

    @property
    def controller_log(self) -> Path:
        """The controller's log."""
        return self.root / "controller.log"

    @property
    def cancelled(self) -> Path:
        """There when the user cancelled the run."""
        return self.root / "cancelled"

    @property
    def status(self) -> Path:
        """The newest RunStatus, JSON."""
        return self.root / "status.json"

    @property
    def spool(self) -> Path:
        """What the recorder has yet to write."""
        return self.root / "spool"

    @property
    def events(self) -> Path:
        """The recorder's events, JSON lines."""
        return self.spool / "events.jsonl"

    @property
    def damaged_events(self) -> Path:
        """Lines of `events` that could not be read."""
        return self.spool / "damaged.jsonl"

    @property
    def written(self) -> Path:
        """How far the MLflow writer came, JSON lines."""
        return self.spool / "written.jsonl"

    def trial_store(self, number: int, worker: int | None = None) -> Path:
        """An MLflow store for one attempt that starts while MLflow is away, which the recorder takes over.

        A worker of a collection's iteration has its own, which is not kept.
        """
        return self.spool / (f"attempt-{number}.db" if worker is None else f"attempt-{number}-worker-{worker}.db")

    @property
    def arrays(self) -> Path:
        """Arrays on their way to MLflow."""
        return self.root / "arrays"

    def packed(self, number: int) -> Path:
        """The packed arrays of one attempt's result."""
        return self.arrays / f"{number}.packed"

    def slot_log(self, slot: str) -> Path:
        """The output of a slot's template."""
        return self.root / "slots" / f"{slot}.log"

    @property
    def scratch(self) -> Path:
        """Work folders of running trials."""
        return self.root / "scratch"

    @property
    def checkpoints(self) -> Path:
        """The checkpoints of trials."""
        return self.root / "checkpoints"

    def trial_log(self, trial: int, attempt: int, worker: int | None = None) -> Path:
        """The log of one attempt, or of a collection's worker in that iteration."""
        return self.root / trial_log(trial, attempt, worker)
