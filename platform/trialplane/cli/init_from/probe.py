"""The probe of a script for `platform init --from`: a run of a copy of it in another process until it reads its arguments.

The rest of the script does not run. For Hydra, the script prints its configuration instead.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from trialplane.cli.init_from import bounded
from trialplane.importing import script_folder
from trialplane.wire import records
from trialplane.wire.declared import Declared

_LONGEST_PROBE = 120.0  # seconds until a script reads its arguments, with its imports
_MISSING_LIBRARY = ("ModuleNotFoundError", "ImportError")  # start of a failure
_LONGEST_REASON = 400  # characters at the end of Hydra's output in a message


@dataclasses.dataclass(frozen=True)
class ScriptCopy:
    """A copy of a job's folder, in which its script is probed.

    Attributes:
        file: Path of the script as the user names it, for messages; for a command, the command line.
        folder: The copy. A probe may change files in it.
        name: Path of the script in the copy.
        start: How the script is started: its working directory, folders for PYTHONPATH, and its name as a module.
        scratch: Folder for the output of probes.
        secrets: Secrets of the user's command, by environment variable.
    """

    file: Path
    folder: Path
    name: str
    start: script_folder.Start
    scratch: Path
    secrets: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def path(self) -> Path:
        """Path of the script's copy."""
        return self.folder / self.name


def run(
    copy: ScriptCopy, typed: Sequence[str] = (), typed_variables: Mapping[str, str] = MappingProxyType({})
) -> tuple[Declared, str]:
    """Run a script in another process until it reads its arguments.

    Args:
        copy: Copy of the script.
        typed: Arguments of the script in the user's command.
        typed_variables: Environment variables that the command sets.

    Returns:
        The arguments that the script declares, and a clause of a message that names the log of a failure; "" without one.
    """
    declared_file = copy.scratch / "declared.json"
    variables = {**typed_variables, **copy.secrets, **_environment(copy.scratch)}
    exported = os.environ.get("PYTHONPATH", "")
    python_path = [typed_variables.get("PYTHONPATH", exported), *(str(copy.folder / entry) for entry in copy.start.path)]
    if any(python_path):
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, python_path))
    command = [sys.executable, "-P", "-m", "trialplane.worker.setup.declaring", str(copy.path), str(declared_file)]
    command += [copy.start.module, *typed]
    log = copy.scratch / "declaring.log"
    process_end = bounded.run(command, copy.folder / copy.start.cwd, variables, log, _LONGEST_PROBE)
    try:
        declared = records.from_json(Declared, declared_file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        is_timeout = process_end.code is None
        reason = f"it took more than {_LONGEST_PROBE:.0f} seconds" if is_timeout else process_end.cause
        declared = Declared(failure=reason)
    log_clause = process_end.keep_log(copy.file.stem) if declared.failure else ""
    return declared, f"; {log_clause}" if log_clause else ""


def lacks_library(declared: Declared) -> bool:
    """Return whether a script has ended before it read its arguments because a library is missing here."""
    return declared.failure.startswith(_MISSING_LIBRARY)


def hydra_configuration(copy: ScriptCopy, variables: Mapping[str, str]) -> str:
    """Return what a Hydra script prints as its configuration; "" if it fails.

    Args:
        copy: Copy of the script.
        variables: Environment variables that the user's command sets.
    """
    log = copy.scratch / "composed.yaml"
    command = [*copy.start.words(copy.name), "--cfg", "job"]  # prints the configuration and ends
    environ = {**variables, **_environment(copy.scratch), "PYTHONWARNINGS": "ignore"}  # the log has stderr too
    process_end = bounded.run(command, copy.folder, environ, log, _LONGEST_PROBE)
    return log.read_text(encoding="utf-8", errors="replace") if process_end.code == 0 else ""


def override_error(names: Collection[str], copy: ScriptCopy) -> str | None:
    """Return the end of Hydra's message if a script does not accept overrides of parameters; None if it does."""
    command = [*copy.start.words(copy.name), "--cfg", "job", *(f"{name}=1" for name in names)]
    log = copy.scratch / "composed.log"
    process_end = bounded.run(command, copy.folder, _environment(copy.scratch), log, _LONGEST_PROBE)
    if process_end.code == 0:
        return None
    text = log.read_text(errors="replace").partition("Set the environment variable HYDRA_FULL_ERROR")[0]
    return " ".join(text.split())[-_LONGEST_REASON:]


def _environment(scratch: Path) -> dict[str, str]:
    """Return additional environment variables for a process that only reads a script's arguments or configuration.

    With them, the process writes no bytecode into the copy, and nothing to W&B or the user's MLflow.
    """
    return {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),  # as for a trial
        "PYTHONDONTWRITEBYTECODE": "1",
        "WANDB_MODE": "disabled",
        "MLFLOW_TRACKING_URI": f"sqlite:///{scratch}/unused.db",
    }
