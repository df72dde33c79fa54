"""All paths of a run. No other module formats file names.

```
<home>/                    TRIALPLANE_HOME, else ~/.trialplane
  mlflow.db, artifacts/    MLflow's local store
  target.json              the target of the last submission
  cache/                   shared by all trials of all runs: tokenizers, prepared data
  runs/<run>/
    job.json               the job as resolved: profile, flags and `--set` applied
    submission.json        when, by whom, git revision, code hash, versions
    code/                  the job's folder as submitted
    ledger.db              its attempts (SQLite; `platform export` makes an Optuna study of them)
    controller.lock        held while a controller works on the run; names the controller
    controller.json        that controller, its port and start
    controller.log
    cancelled              exists if the user cancelled the run rather than paused it
    changes.jsonl          each resume, and the end or pause before it
    status.json            the newest RunStatus
    report.html            page that is exported with the run; only in a pod, and in a copy of the folder
    exporter               tracking URI of the MLflow that the run is exported to; locked by its exporter
    stores/                MLflow stores of trials that started while MLflow was away
    trials/0007/attempt-1.log
    trials/0007/worker-2.log  of a collection's worker
    slots/0-1.log          output of a slot's template
    arrays/                arrays to log to MLflow
    scratch/               work folders of running trials; emptied when they end
    checkpoints/<run>/trial-0/  checkpoints of a trial
    checkpoints/<run>/trial-0-step-4/  of a population's member: those at a step, from which other members continue as well
```
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import stat
from pathlib import Path

from trialplane.wire import env

_LONGEST_FOLDER = 70  # bytes; multiprocessing adds 32 for the address of a socket, which has 107 at most


def home() -> Path:
    """Return the folder with all files of trialplane on this machine."""
    chosen = os.environ.get(env.HOME)
    return Path(chosen).expanduser().absolute() if chosen else Path.home() / ".trialplane"


def make_home(root: Path) -> None:
    """Create the folder `root` with access for its owner only: it contains data, logs and tokens."""
    root.mkdir(mode=0o700, parents=True, exist_ok=True)


def local_folder(location: str) -> Path | None:
    """Return the folder of a location that is a path or a file:// URL. None for other URLs, such as an object store's."""
    if "://" in location and not location.startswith("file://"):
        return None
    return Path(location.removeprefix("file://"))


def mlflow_db(root: Path) -> Path:
    """Return the database of the local MLflow store."""
    return root / "mlflow.db"


def mlflow_artifacts(root: Path) -> Path:
    """Return the artifacts folder of the local MLflow store."""
    return root / "artifacts"


def mlflow_uri(root: Path) -> str:
    """Return the tracking URI of the local MLflow store."""
    return f"sqlite:///{mlflow_db(root)}"


def target_file(root: Path) -> Path:
    """Return the JSON file with the target of the last submission: a context and a namespace, or this machine."""
    return root / "target.json"


def cache(root: Path) -> Path:
    """Return the folder that all trials of all runs share."""
    return root / "cache"


def runs(root: Path) -> Path:
    """Return the folder of all runs."""
    return root / "runs"


def trial_log(trial: int, attempt: int, worker: int | None = None) -> str:
    """Return the log of an attempt, or of a collection's worker, relative to the run's folder."""
    return f"trials/{trial:04d}/{f'attempt-{attempt}' if worker is None else f'worker-{worker}'}.log"


def short_path(folder: Path) -> Path:
    """Return a path of a folder in which multiprocessing can make sockets: the folder, or a link if its path is too long.

    The links are in a folder of this user in /tmp. If that cannot be used, the folder itself is returned.
    """
    if len(os.fsencode(folder)) <= _LONGEST_FOLDER:
        return folder
    link = _short_link(folder)
    try:
        link.parent.mkdir(mode=0o700, exist_ok=True)
        status = link.parent.lstat()
        # Another user could have made it, to lead files to another folder.
        is_private = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077
        if not is_private:
            return folder
        if not link.is_symlink():
            link.symlink_to(folder)
    except OSError:
        return folder
    return link


def remove_short_path(folder: Path) -> None:
    """Remove the link that `short_path` has made, if any."""
    with contextlib.suppress(OSError):
        _short_link(folder).unlink()


def _short_link(folder: Path) -> Path:
    """Return the path of the link to a folder."""
    return Path("/tmp", f"trialplane-{os.getuid()}", hashlib.sha256(os.fsencode(folder)).hexdigest()[:16])


def trial_arrays(workdir: Path) -> Path:
    """Return the folder for the packed arrays of a result, beside the trial's scratch folder."""
    return workdir.with_suffix(".arrays")


@dataclasses.dataclass(frozen=True, order=True)
class TrialFolder:
    """Folder of a trial's checkpoints, or of those at a step, which are for other trials as well.

    Attributes:
        trial: Number of the trial.
        step: Number of steps. 0 for the trial's own folder.
    """

    trial: int
    step: int = 0

    @property
    def name(self) -> str:
        """Name of the folder."""
        return f"trial-{self.trial}-step-{self.step}" if self.step else f"trial-{self.trial}"


def trial_checkpoints(location: str, run: str, trial: int, step: int = 0) -> str:
    """Return the location of a trial's checkpoints, see `TrialFolder`, within `location`, a folder or an fsspec URL."""
    return f"{location.rstrip('/')}/{run}/{TrialFolder(trial, step).name}"


def shards(location: str, run: str, iteration: int) -> str:
    """Return the location of the result files of an iteration within `location`, a folder or an fsspec URL."""
    return f"{location.rstrip('/')}/{run}/iteration-{iteration:04d}"


def has_checkpoint(folder: Path) -> bool:
    """Whether a folder of checkpoints contains a complete one. Names of incomplete ones start with a dot."""
    return folder.is_dir() and any(not path.name.startswith(".") for path in folder.iterdir())


class RunPaths:
    """Files and folders of one run. The module's docstring explains them.

    Args:
        root: Folder of the run.

    Attributes:
        exporter: File with the tracking URI of the MLflow that the run is exported to. Its exporter locks the file.
        report: Page that is exported with the run. It exists only in a copy of the folder.
        stores: Folder with the MLflow stores of trials that started while MLflow was unavailable.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.job = root / "job.json"
        self.submission = root / "submission.json"
        self.report = root / "report.html"
        self.code = root / "code"
        self.ledger = root / "ledger.db"
        self.lock = root / "controller.lock"
        self.controller = root / "controller.json"
        self.controller_log = root / "controller.log"
        self.cancelled = root / "cancelled"
        self.changes = root / "changes.jsonl"
        self.status = root / "status.json"
        self.exporter = root / "exporter"
        self.stores = root / "stores"
        self.arrays = root / "arrays"
        self.scratch = root / "scratch"
        self.checkpoints = root / "checkpoints"

    @property
    def home(self) -> Path:
        """Folder with all files of trialplane on the machine: that of the run is HOME/runs/RUN."""
        return self.root.parent.parent

    @classmethod
    def of(cls, home_folder: Path, run: str) -> RunPaths:
        """Return the paths of the run named `run`, whose folder is in `home_folder`."""
        return cls(runs(home_folder) / run)

    def trial_store(self, number: int, worker: int | None = None) -> Path:
        """Return the MLflow store of an attempt that starts while MLflow is unavailable. The exporter copies it later.

        A worker of a collection gets its own store if slots share no folder with the controller. That store is not copied.
        """
        return self.stores / (f"attempt-{number}.db" if worker is None else f"attempt-{number}-worker-{worker}.db")

    def packed(self, number: int) -> Path:
        """Return the file with the packed arrays of an attempt's result."""
        return self.arrays / f"{number}.packed"

    def slot_log(self, slot: str) -> Path:
        """Return the log of a slot's template."""
        return self.root / "slots" / f"{slot}.log"

    def trial_log(self, trial: int, attempt: int, worker: int | None = None) -> Path:
        """Return the log of an attempt, or of a collection's worker."""
        return self.root / trial_log(trial, attempt, worker)
