"""The container `install` of a trial pod: before the first trial, uv installs the requirements that the image lacks.

Only wheels of the chart's index are installed, and no dependency of Ray or trialplane is replaced. The packages are in a
folder of their own, which precedes the image's packages on the path of trials (`worker.environment`).

Requirements that cannot be installed end the run and not the container: the slot reads the reason (`usage`). If the index
cannot be reached in time, or the node is at fault, the container fails, and Kubernetes starts the pod again.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import errno
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from importlib import machinery, metadata, util
from pathlib import Path, PurePath

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from trialplane import errors
from trialplane.errors import EntrypointError, InputError, Issue, SlotError, SpecError
from trialplane.job import requirements, values
from trialplane.job.requirements import RequirementLine
from trialplane.plan import pack
from trialplane.wire import cluster

HTTP_RETRIES = "6"  # with uv's pauses, which double, a minute
_PINNED = ("ray[default]", "trialplane")  # these and their dependencies keep their versions
_BOUNDED_EXTRA = "worker"  # extra of trialplane whose bounds hold for other packages of the image
# Variables of the container that uv gets. Those of uv and pip are left out, as they may name another index or credentials.
_PASSED_VARIABLES = re.compile(r"PATH|LANG|LC_ALL|SSL_CERT_(?:FILE|DIR)|(?:https?|all|no)_proxy", re.IGNORECASE)
_NETWORK_ERROR = re.compile(
    r"error sending request|dns error|[Cc]onnection (?:refused|reset|closed)|timed out|network timeout"
    r"|error decoding response body|error \((?:429|5\d\d)\b|status: (?:429|5\d\d)\b"
)
_UNSOLVABLE = "No solution found"
_NODE_FAULTS = (errno.EAGAIN, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC)
_NODE_ERROR = re.compile("|".join(os.strerror(code) for code in _NODE_FAULTS))
_ADDED = re.compile(r"^ \+ ([\w.-]+==\S+)$", re.MULTILINE)  # uv's line ` + numpy==2.1.0` about a package to install
_COMMON = frozenset({"bin", "test", "tests", "docs", "examples"})  # installed beside packages by mistake
_LAYER = "`platform image build --job NAME` builds an image that has them"
_LONGEST = 390  # characters of a message that `platform status` does not shorten
_TERMINATION_LOG = Path("/dev/termination-log")  # the kubelet's


@dataclasses.dataclass(frozen=True)
class Limits:
    """The limits that the chart sets.

    Attributes:
        index: URL of the one package index.
        size: Largest size of the packages on the node's disk, in bytes.
        seconds: Time limit for the whole installation.
    """

    index: str
    size: int
    seconds: float


def install(code: Path, name: str, target: Path, limits: Limits) -> list[str]:
    """Install the requirements of a job that this Python lacks into a folder `target`; return them as `name==version`.

    `name` is the requirements file, or the script, in the job's folder `code`.

    Raises:
        EntrypointError: The requirements cannot be installed in any pod, or not within the time limit.
        SlotError: The index did not answer, or the node is at fault.
        OSError: The node is at fault.
    """
    is_script = name.endswith(".py")  # which may have no requirements
    listed = requirements.read(code, name, is_named=not is_script)
    unsupported = [*listed.issues, *requirements.install_issues(listed)]
    if unsupported:
        raise EntrypointError(str(SpecError(unsupported)))
    applicable = [line for line in listed.lines if line.applies]
    packages_alone = dataclasses.replace(listed, python=None)  # another version of Python cannot be installed
    if not requirements.unmet_issues(packages_alone):
        return []
    pins = pinned_packages()
    conflicts = list(_pin_conflicts(applicable, pins))
    if conflicts:
        raise EntrypointError(str(SpecError(conflicts)))
    deadline = time.monotonic() + limits.seconds
    work = target / ".work"  # on the volume of the packages, so that uv can link files from its cache
    work.mkdir(parents=True, exist_ok=True)
    try:
        missing = _missing_packages(applicable, pins, work, limits, deadline)
        if missing:
            _run_uv(work, limits, deadline, "--no-deps", "--target", str(target), *missing)
            _check_packages(target, missing, pins, limits)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return missing


def _missing_packages(
    lines: Sequence[RequirementLine], pins: dict[str, str], work: Path, limits: Limits, deadline: float
) -> list[str]:
    """Return the packages that this Python lacks for some requirements, as `name==version`; uv writes files to `work`.

    Raises:
        EntrypointError, SlotError: As in `install`.
    """
    constraints, wanted = work / "constraints.txt", work / "wanted.txt"
    pinned_versions = [f"{package}=={version}" for package, version in pins.items()]
    constraints.write_text("\n".join([*pinned_versions, *_version_bounds(pins)]))
    wanted.write_text("\n".join(_requirement_text(line.requirement) for line in lines))
    # The dry run compares with this Python and lists the missing packages; with --target it would list all packages.
    output = _run_uv(work, limits, deadline, "--dry-run", "-r", str(wanted), "-c", str(constraints))
    missing: list[str] = _ADDED.findall(output)
    return missing


def _check_packages(target: Path, packages: Sequence[str], pins: dict[str, str], limits: Limits) -> None:
    """Check the size of installed packages, and that they hide no module that Ray or trialplane needs.

    Raises:
        EntrypointError: They are too large, or hide such a module.
    """
    size = size_on_disk(target)  # the kubelet also limits it, and restarts the pod
    if size > limits.size:
        raise EntrypointError(
            f"the packages take {_mebibytes(size)}, and the chart allows {_mebibytes(limits.size)} "
            f"(studies.install.maxSize); {_LAYER}"
        )
    hiding_file = _hiding_file(target, pins)
    if hiding_file:
        hidden = "a module of Python, or of a dependency of Ray or trialplane"
        raise EntrypointError(f"one of {', '.join(packages)} brings {hiding_file}, which would hide {hidden}; do without it")


def pinned_packages() -> dict[str, str]:
    """Return the installed versions of Ray, trialplane and their dependencies, by canonical name."""
    versions: dict[str, str] = {}
    visited: set[str] = set()
    pending = [Requirement(requirement) for requirement in _PINNED]
    while pending:
        requirement = pending.pop()
        name = canonicalize_name(requirement.name)
        name_with_extras = f"{name}[{','.join(sorted(requirement.extras))}]"
        if name_with_extras in visited:
            continue
        visited.add(name_with_extras)
        with contextlib.suppress(metadata.PackageNotFoundError):  # not needed by this kind of image
            distribution = metadata.distribution(name)
            versions[name] = distribution.version
            pending += _dependencies(distribution, requirement.extras)
    return versions


def _dependencies(distribution: metadata.Distribution, extras: set[str]) -> Iterator[Requirement]:
    """Yield the requirements of an installed package that apply here with some of its extras."""
    for text in distribution.requires or ():
        with contextlib.suppress(InvalidRequirement):  # from an old package
            requirement = Requirement(text)
            # A marker without an extra needs a value for it too.
            environments = [{"extra": extra} for extra in extras or {""}]
            if requirement.marker is None or any(map(requirement.marker.evaluate, environments)):
                yield requirement


def _version_bounds(pins: dict[str, str]) -> Iterator[str]:
    """Yield trialplane's version bounds for packages of a trial's pod, except for packages in `pins`."""
    for text in metadata.requires("trialplane") or ():
        needed = Requirement(text)
        is_for_trials = needed.marker is not None and needed.marker.evaluate({"extra": _BOUNDED_EXTRA})
        is_pinned = canonicalize_name(needed.name) in {*pins, "trialplane"}
        if is_for_trials and not is_pinned and needed.specifier:
            yield f"{needed.name}{needed.specifier}"


def _pin_conflicts(lines: Sequence[RequirementLine], pins: dict[str, str]) -> Iterator[Issue]:
    """Yield an issue for each line that requires another version of a pinned package. uv checks the lines' dependencies."""
    for line in lines:
        name = canonicalize_name(line.requirement.name)
        if name in pins and not line.requirement.specifier.contains(pins[name], prereleases=True):
            reason = f"{pins[name]} is in the image and stays, as Ray or trialplane depends on it"
            remedy = "change the line, or `platform image build` an image of another version"
            yield Issue((str(line.requirement),), f"{reason}; {remedy}", line.source, line.line)


def _requirement_text(requirement: Requirement) -> str:
    """Return the text of a requirement without its marker, which applies; uv may evaluate it in another way."""
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    return f"{requirement.name}{extras}{requirement.specifier}"


def _hiding_file(target: Path, pins: dict[str, str]) -> str:
    """Return the first installed file that would hide a module of Python or of a pinned package; "" if none would."""
    needed_modules = {*sys.stdlib_module_names, "sitecustomize", "usercustomize", "trialplane"}
    for name in pins:
        for file in metadata.files(name) or ():
            parts = _module_name(file).split(".")  # for a.b.c also the packages a and a.b
            needed_modules |= {".".join(parts[:end]) for end in range(1, len(parts) + 1)}
    needed_modules.discard("")  # of files that are not modules
    for path in sorted(target.glob("**/*")):
        path_in_target = path.relative_to(target)
        is_needed = _module_name(path_in_target) in needed_modules
        if is_needed and path_in_target.parts[0] not in _COMMON and path.is_file():
            return str(path_in_target)
    return ""


def _module_name(file: PurePath) -> str:
    """Return the name by which a file is imported: a.b for a/b.py, a/b/__init__.py and a/b.abi3.so; "" for other files."""
    stem, dot, suffix = file.name.partition(".")
    parts = [*file.parent.parts, *([stem] if stem != "__init__" else [])]
    is_module = dot + suffix in machinery.all_suffixes() and all(part.isidentifier() for part in parts)
    return ".".join(parts) if is_module else ""


def _empty_folder(folder: Path) -> None:
    """Remove what a failed installation has left in a folder, because the folder is on the slot's path of modules."""
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)


def _run_uv(work: Path, limits: Limits, deadline: float, *arguments: str) -> str:
    """Run `uv pip install`, which repeats requests after errors of the network; return its output.

    Raises:
        EntrypointError: The installation would fail in any pod.
        SlotError: The network or the node is at fault.
    """
    if util.find_spec("uv") is None:
        raise EntrypointError(
            "the image has no uv; `platform image build` builds one with it, of this version of trialplane"
        )
    command = [
        sys.executable, "-P", "-m", "uv", "pip", "install", "--no-config", "--color", "never", "--no-progress",
        "--python", sys.executable, "--no-python-downloads", "--break-system-packages",
        "--default-index", limits.index, "--only-binary", ":all:", *arguments,
    ]  # fmt: skip
    timeout = max(0.0, deadline - time.monotonic())
    try:
        process = subprocess.run(
            command, env=_uv_variables(work), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise EntrypointError(
            f"the packages were not installed within {limits.seconds:g} s (studies.install.timeout); {_LAYER}"
        ) from error
    output = process.stdout.decode(errors="replace")
    if process.returncode:
        raise _uv_error(output, limits.index)
    return output


def _uv_variables(work: Path) -> dict[str, str]:
    """Return the environment variables of uv, which writes all of its files into the folder `work`."""
    passed = {name: value for name, value in os.environ.items() if _PASSED_VARIABLES.fullmatch(name)}
    return {
        **passed,
        "HOME": str(work),
        "TMPDIR": str(work),
        "UV_CACHE_DIR": str(work / "cache"),
        "UV_HTTP_RETRIES": HTTP_RETRIES,
    }


def _uv_error(output: str, index: str) -> EntrypointError | SlotError:
    """Return the error for a failure of uv, by its output: a SlotError if the network or the node is at fault."""
    _, marker, error_text = output.partition("error: ")
    reason = " ".join((error_text if marker else output).split())
    if _UNSOLVABLE in output:  # the index was reached; names of packages in the message may contain any word
        return EntrypointError(reason)
    if _NETWORK_ERROR.search(output):
        return SlotError(
            f"the package index {index} could not be reached; is it up, and does studies.install.egress of the chart "
            f"lead there? {reason}"
        )
    return SlotError(reason) if _NODE_ERROR.search(output) else EntrypointError(reason)


def size_on_disk(folder: Path) -> int:
    """Return the bytes that a folder takes on disk, as the kubelet counts them: a file with several names once."""
    sizes: dict[tuple[int, int], int] = {}  # device and inode → bytes
    for root, folders, files in os.walk(folder):
        for name in (*folders, *files):
            status = os.lstat(f"{root}/{name}")
            sizes[status.st_dev, status.st_ino] = status.st_blocks * 512  # a block of `stat` has 512 bytes
    return sum(sizes.values())


def _mebibytes(size: int) -> str:
    return f"{size / 2**20:.0f} MiB"


def main(argv: Sequence[str], code_archive: Path, target: Path, log: Path = _TERMINATION_LOG) -> int:
    """Run the container; return its exit code.

    It is 1 if another pod may succeed; 0 if the packages are installed, or if the slot must report why they cannot be.

    Args:
        argv: Command line.
        code_archive: Job's packed code.
        target: Folder for packages.
        log: File for the message of a failure; it must exist to be written.
    """
    parser = argparse.ArgumentParser(prog="python -m trialplane.worker.setup.install")
    parser.add_argument("requirements", help="file of the job's folder, or its script")
    parser.add_argument("--index", required=True)
    parser.add_argument("--max-size", required=True, type=values.bytes_of)
    parser.add_argument("--timeout", required=True, type=float)
    options = parser.parse_args(argv)
    code = target / ".code"
    try:
        pack.unpack(pack.read(code_archive), code)
        limits = Limits(options.index, options.max_size, seconds=options.timeout)
        installed = install(code, options.requirements, target, limits)
    except (SlotError, OSError) as error:
        return _report_failure(str(error), log, 1)
    except InputError as error:
        text = f"install: true cannot be done: {error}"
        _empty_folder(target)
        cluster.refusal_file(target).write_text(text)
        return _report_failure(text, log, 0)
    finally:
        shutil.rmtree(code, ignore_errors=True)
    summary = f"installed {', '.join(installed)}: {_mebibytes(size_on_disk(target))}" if installed else "nothing to install"
    print(f"{summary}; the image has the rest", flush=True)  # noqa: T201
    return 0


def _report_failure(text: str, log: Path, code: int) -> int:
    """Print a failure and write it to the container's termination log; return the exit code."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201
    if log.exists():
        log.write_text(errors.shortened(text, _LONGEST))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Path(cluster.CODE_MOUNT, cluster.CODE_KEY), Path(cluster.PACKAGES)))
