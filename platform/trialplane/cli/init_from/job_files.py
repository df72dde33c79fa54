"""Files of a job that is made from a script: job.yaml, `.jobignore` and modules beside the script."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from pathlib import Path

from trialplane import errors
from trialplane.cli import importing, output
from trialplane.cli.init_from.request import NewFile
from trialplane.errors import InputError
from trialplane.importing import script_folder
from trialplane.job import credentials, load
from trialplane.plan import pack as packing

# Name of a hidden file in the text of a script: "./.vocabulary.txt"
_HIDDEN_NAME = re.compile(r"""["'](?:\./)?(\.[A-Za-z][\w-]*(?:\.\w+)*)["']""")


def write_files(
    folder: Path,
    text: str,
    summary: str,
    new_files: Sequence[NewFile] = (),
    submit_options: str = "",
    failure: str = "",
) -> int:
    """Write job.yaml and the files that the job needs, and print whether the job can run.

    Args:
        folder: Folder of the job.
        text: Text of job.yaml.
        summary: Sentence about the job.
        new_files: The other files.
        submit_options: Options that `platform submit` needs for the job.
        failure: Why its trials will fail, see `importing.report_readiness`.

    Returns:
        The exit code.

    Raises:
        InputError: A file exists, or cannot be written. Then no file is left.
    """
    with contextlib.ExitStack() as undo:
        for path, content in [*((file.path, file.text) for file in new_files), (folder / load.FILE, text)]:
            try:
                with path.open("x", encoding="utf-8") as stream:  # also refuses a link, whatever it leads to
                    undo.callback(path.unlink, missing_ok=True)
                    stream.write(content)
            except OSError as error:
                raise InputError(f"{path} cannot be written: {error.strerror or error}; nothing was changed") from error
        undo.pop_all()  # all files are written, and stay
    for file in new_files:
        output.note(f"{importing.shell_path(file.path)} is written: {file.remark}")
    output.note(
        f"{importing.shell_path(folder / load.FILE)} is written; "
        f"`platform validate {importing.shell_path(folder)}` checks it"
    )
    return importing.report_readiness(folder, summary, submit_options, failure)


def heading(name: str) -> str:
    """Return the first line of job.yaml for a script with a search of its own."""
    return f"# Made from {name} by `platform init --from`.\n"


def is_made(job_file: Path) -> bool:
    """Return whether a job.yaml, which a user may have changed, was made of a script or a command."""
    return job_file.is_file() and job_file.read_bytes().startswith(b"# Made from ")


def hidden_files(title: str, text: str, start: script_folder.Start) -> list[str]:
    """Return the hidden files of a job's folder that its script names, and that need a rule in `.jobignore` to be packed.

    Files that may have secrets are left out, and printed.
    """
    folder = start.folder
    names = [*_HIDDEN_NAME.findall(text), *([".env"] if "load_dotenv" in text else [])]
    names = [name for name in dict.fromkeys(names) if (folder / name).is_file()]
    packed_names = packing.pack(folder, ignored=packing.ignored_lines(start.links)).files if names else ()
    missing_names = [name for name in names if name not in packed_names]
    secret_names = [
        name
        for name in missing_names
        if credentials.is_secret_file(name) or credentials.has_secret((folder / name).read_text(errors="replace"))
    ]
    for name in secret_names:
        output.note(
            f"{title} reads {name}, which is not uploaded, as it may have secrets: set its variables before "
            f"`platform submit`; or a line `!{name}` in {packing.IGNORE_FILE} uploads it"
        )
    return [name for name in missing_names if name not in secret_names]


def ignore_file(folder: Path, names: Sequence[str], ignored: Sequence[str]) -> list[NewFile]:
    """Return a list with a new `.jobignore`; [] if the job needs none.

    If a `.jobignore` exists, it is not changed: the lines to add are printed, and the list is empty.

    Args:
        folder: Folder of the job.
        names: Hidden files to include in the job.
        ignored: Lines for files that the stages of a pipeline write, and that the job does not need.
    """
    file = folder / packing.IGNORE_FILE
    if not names and not ignored:
        return []
    if os.path.lexists(file):
        for name in names:
            output.note(f"the script names {name}: add a line `!/{name}` to {importing.shell_path(file)}, which includes it")
        missing_lines = [line for line in ignored if line not in script_folder.source(file).splitlines()]
        if missing_lines:
            lines = errors.shortened(", ".join(missing_lines), 300)
            output.note(f"trials write these files anew: add the lines to {importing.shell_path(file)}: {lines}")
        return []
    remarks = [f"it includes {', '.join(names)}, which the script names, in the job"] if names else []
    remarks += ["it leaves out of the job what the stages write, as each trial does"] if ignored else []
    text = "".join(f"{line}\n" for line in (*(f"!/{name}" for name in names), *ignored))
    return [NewFile(file, text, "; ".join(remarks))]
