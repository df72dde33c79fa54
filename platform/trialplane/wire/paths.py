"""Every path of a run, in one class; file names are formatted nowhere else.

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
    changes.jsonl          each resume, and the end or pause before it
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

import os
from pathlib import Path

from trialplane.wire import env


def home() -> Path:
    """The folder that holds everything trialplane keeps on this machine."""
    chosen = os.environ.get(env.HOME)
    return Path(chosen).expanduser().absolute() if chosen else Path.home() / ".trialplane"


def make_home(root: Path) -> None:
    """Makes the folder, which nobody else may enter: trials' data, logs and tokens lie below it."""
    root.mkdir(mode=0o700, parents=True, exist_ok=True)


def local_folder(place: str) -> Path | None:
    """The folder of a place that is a path or a file:// URL; None of any other fsspec URL, as of an object store."""
    if "://" in place and not place.startswith("file://"):
        return None
    return Path(place.removeprefix("file://"))


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


class RunPaths:
    """The files and folders of one run below its folder `root`, which the tree above explains.

    Attributes:
        spool: what the recorder has yet to write to MLflow: `events`, lines of it that cannot be read in `damaged_events`,
            and in `written` how far the writer came.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.job = root / "job.json"
        self.submission = root / "submission.json"
        self.code = root / "code"
        self.ledger = root / "ledger.db"
        self.lock = root / "controller.lock"
        self.controller = root / "controller.json"
        self.controller_log = root / "controller.log"
        self.cancelled = root / "cancelled"
        self.changes = root / "changes.jsonl"
        self.status = root / "status.json"
        self.spool = root / "spool"
        self.events = self.spool / "events.jsonl"
        self.damaged_events = self.spool / "damaged.jsonl"
        self.written = self.spool / "written.jsonl"
        self.arrays = root / "arrays"
        self.scratch = root / "scratch"
        self.checkpoints = root / "checkpoints"

    @classmethod
    def of(cls, home_: Path, run: str) -> RunPaths:
        """The paths of the run named `run`."""
        return cls(runs(home_) / run)

    def trial_store(self, number: int, worker: int | None = None) -> Path:
        """An MLflow store for one attempt that starts while MLflow is away, which the recorder takes over.

        Where slots share no folder with the controller, a worker of a collection has its own, which is not kept.
        """
        return self.spool / (f"attempt-{number}.db" if worker is None else f"attempt-{number}-worker-{worker}.db")

    def packed(self, number: int) -> Path:
        """The packed arrays of one attempt's result."""
        return self.arrays / f"{number}.packed"

    def slot_log(self, slot: str) -> Path:
        """The output of a slot's template."""
        return self.root / "slots" / f"{slot}.log"

    def trial_log(self, trial: int, attempt: int, worker: int | None = None) -> Path:
        """The log of one attempt, or of a collection's worker in that iteration."""
        return self.root / trial_log(trial, attempt, worker)
