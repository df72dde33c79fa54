"""The container `install` of a trial pod: uv installs, before the first trial, what the image lacks of the requirements.

What comes is a wheel of the chart's index, and nothing that Ray or trialplane stands on is replaced. The packages lie in a
folder of their own, which is on the path of trials before the image's (`worker.environment`); so only what is in it hides a
package of the image.

What cannot be installed ends the run and not the container: its slot reads why (`usage`). An index that cannot be reached
in time, or a fault of the node, ends the container, and its pod is made anew.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import errno
import itertools
import os
import re
import shutil
import signal
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
from trialplane.job import installable, requirements, values
from trialplane.job.requirements import Wanted
from trialplane.plan import pack
from trialplane.wire import backoff, cluster

_LOOKS = 0.2  # seconds between two looks at size and time
_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 16.0  # seconds before another attempt
_KEPT = ("ray[default]", "trialplane")  # with all they stand on, what may not have another version
_BOUNDED = "worker"  # the extra of trialplane whose bounds hold for the rest of the image
# Of this container's variables uv gets these, none of its own or pip's: no other index, no configuration, no credentials.
_PASSED = re.compile(r"PATH|LANG|LC_ALL|SSL_CERT_(?:FILE|DIR)|(?:https?|all|no)_proxy", re.IGNORECASE)
_NETWORK = re.compile(
    r"error sending request|dns error|[Cc]onnection (?:refused|reset|closed)|timed out|network timeout"
    r"|error decoding response body|error \((?:429|5\d\d)\b|status: (?:429|5\d\d)\b"
)
_UNSOLVED = "No solution found"  # of an index that was reached; what follows names packages, whatever they are called
_AILS = (errno.EAGAIN, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC)  # a node
_NODE = re.compile("|".join(os.strerror(one) for one in _AILS))
_ADDED = re.compile(r"^ \+ ([\w.-]+==\S+)$", re.MULTILINE)
_COMMON = frozenset({"bin", "test", "tests", "docs", "examples"})  # what packages leave beside themselves by mistake
_LAYER = "`platform image build --job NAME` builds an image that has them"
_LONGEST = 390  # characters of a message that `platform status` shows whole
_TERMINATION_LOG = Path("/dev/termination-log")  # the kubelet's


@dataclasses.dataclass(frozen=True)
class Limits:
    """What the chart allows.

    Attributes:
        index: URL of the one package index.
        size: bytes on the node's disk.
        seconds: for all of it.
    """

    index: str
    size: int
    seconds: float


def install(code: Path, name: str, target: Path, limits: Limits) -> list[str]:
    """Installs what this Python lacks of what a job needs; gives what was installed, as `name==version`.

    Args:
        code: the job's folder.
        name: of its requirements file or script in it.
        target: the folder for packages.
        limits: that hold for it.

    Raises:
        EntrypointError: they cannot be installed, however often it is tried.
        SlotError: the index could not be reached in time, or the node is at fault.
        OSError: of the node.
    """
    found = requirements.read(code, name, is_named=not name.endswith(".py"))
    if issues := [*found.issues, *installable.refused(found)]:
        raise EntrypointError(str(SpecError(issues)))
    wanted = [one for one in found.wanted if one.applies]
    if not requirements.unmet(dataclasses.replace(found, python=None)):
        return []
    pins = kept()
    if issues := list(_conflicts(wanted, pins)):
        raise EntrypointError(str(SpecError(issues)))
    uv = _Uv(target, limits)
    uv.work.mkdir(parents=True, exist_ok=True)
    try:
        (uv.work / "constraints.txt").write_text(
            "\n".join([*(f"{one}=={pin}" for one, pin in pins.items()), *_bounds(pins)])
        )
        (uv.work / "wanted.txt").write_text("\n".join(_plain(one.requirement) for one in wanted))
        # uv takes for there what this Python has, and so says what is missing; a --target has nothing of it.
        told = uv.run("--dry-run", "-r", str(uv.work / "wanted.txt"), "-c", str(uv.work / "constraints.txt"))
        missing = _ADDED.findall(told)
        if missing:
            uv.run("--no-deps", "--target", str(target), *missing)
            if hidden := _hidden(target, pins):
                what = "a module of Python, or of what Ray or trialplane stands on"
                raise EntrypointError(f"one of {', '.join(missing)} brings {hidden}, which would hide {what}; do without it")
    finally:
        shutil.rmtree(uv.work, ignore_errors=True)
    return missing


def kept() -> dict[str, str]:
    """The packages that Ray and trialplane stand on, with themselves: canonical name → version that is installed."""
    there: dict[str, str] = {}
    seen: set[str] = set()
    todo = [Requirement(one) for one in _KEPT]
    while todo:
        one = todo.pop()
        name = canonicalize_name(one.name)
        if (key := f"{name}[{','.join(sorted(one.extras))}]") in seen:
            continue
        seen.add(key)
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:  # what no image of this kind needs
            continue
        there[name] = found.version
        for text in found.requires or ():
            try:
                needed = Requirement(text)
            except InvalidRequirement:  # of a package made long ago; pip has taken it
                continue
            extras = one.extras or {""}
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras):
                todo.append(needed)
    return there


def _bounds(pins: dict[str, str]) -> Iterator[str]:
    """The bounds of what trialplane needs in a trial pod, but for what has a version of its own in `pins`."""
    for text in metadata.requires("trialplane") or ():
        needed = Requirement(text)
        if needed.marker is None or not needed.marker.evaluate({"extra": _BOUNDED}):
            continue
        if canonicalize_name(needed.name) not in {*pins, "trialplane"} and needed.specifier:
            yield f"{needed.name}{needed.specifier}"


def _conflicts(wanted: Sequence[Wanted], pins: dict[str, str]) -> Iterator[Issue]:
    """Issues of the lines that want another version of what stays; uv finds the conflicts of what these need in turn."""
    for one in wanted:
        name = canonicalize_name(one.requirement.name)
        if name in pins and not one.requirement.specifier.contains(pins[name], prereleases=True):
            why = f"{pins[name]} is in the image and stays, as Ray or trialplane stands on it"
            cure = "change the line, or `platform image build` an image of another version"
            yield Issue((str(one.requirement),), f"{why}; {cure}", one.source, one.line)


def _plain(one: Requirement) -> str:
    """A requirement without its marker, which is known to apply, and in which uv may read something else than packaging."""
    extras = f"[{','.join(sorted(one.extras))}]" if one.extras else ""
    return f"{one.name}{extras}{one.specifier}"


def _hidden(target: Path, pins: dict[str, str]) -> str:
    """The first file of the installed packages that would be imported in place of what must stay, or ""."""
    stays = {*sys.stdlib_module_names, "sitecustomize", "usercustomize", "trialplane"}
    for name in pins:
        for file in metadata.files(name) or ():
            parts = _module(file).split(".")
            stays |= {".".join(parts[:end]) for end in range(1, len(parts) + 1)}  # packages without __init__.py too
    stays.discard("")  # of what is no module
    for path in sorted(target.glob("**/*")):
        place = path.relative_to(target)
        if place.parts[0] not in _COMMON and _module(place) in stays and path.is_file():
            return str(place)
    return ""


def _module(file: PurePath) -> str:
    """The name by which a file is imported, or "": a/b.py, a/b/__init__.py and a/b.abi3.so are all a.b."""
    stem, dot, suffix = file.name.partition(".")
    parts = [*file.parent.parts, *([stem] if stem != "__init__" else [])]
    is_module = dot + suffix in machinery.all_suffixes() and all(one.isidentifier() for one in parts)
    return ".".join(parts) if is_module else ""


def _emptied(folder: Path) -> None:
    """Leaves nothing of an installation that failed: the folder is on the path of the slot that says why."""
    for one in folder.iterdir():
        if one.is_dir() and not one.is_symlink():
            shutil.rmtree(one, ignore_errors=True)
        else:
            one.unlink(missing_ok=True)


class _Uv:
    """Runs uv within limits.

    Args:
        target: the folder for packages.
        limits: that hold for all calls together, from now on.
    """

    def __init__(self, target: Path, limits: Limits) -> None:
        self._target = target
        self._limits = limits
        self._ends = time.monotonic() + limits.seconds
        self._unreached = ""  # why the index was not reached the last time
        # On the volume of the packages: uv links from its cache, so nothing is there twice, and one bound holds for all.
        self.work = target / ".work"

    def run(self, *said: str) -> str:
        """One `uv pip install`, again for as long as the network is to blame; gives what uv printed.

        Raises:
            EntrypointError: it fails wherever it is tried.
            SlotError: the network, or the node, is to blame.
        """
        failures = itertools.count(1)
        while True:
            code, told = self._once(said)
            if code == 0:
                self._unreached = ""
                return told
            reason, is_unsolved = _reason(told), _UNSOLVED in told
            if not is_unsolved and _NODE.search(told):
                raise SlotError(reason)
            if is_unsolved or not _NETWORK.search(told):
                raise EntrypointError(reason)
            self._unreached = reason
            pause = backoff.pause(next(failures), _LONGEST_PAUSE, first=_FIRST_PAUSE)
            if time.monotonic() + pause >= self._ends:
                raise self._late()
            print(f"the package index does not answer, again in {pause:g} s: {self._unreached}", flush=True)  # noqa: T201
            time.sleep(pause)

    def _once(self, said: Sequence[str]) -> tuple[int, str]:
        passed = {name: value for name, value in os.environ.items() if _PASSED.fullmatch(name)}
        own = {
            "HOME": str(self.work),
            "TMPDIR": str(self.work),
            "UV_CACHE_DIR": str(self.work / "cache"),
            "UV_HTTP_RETRIES": "0",
        }
        if util.find_spec("uv") is None:
            raise EntrypointError(
                "the image has no uv; `platform image build` builds one with it, of this version of trialplane"
            )
        command = [
            sys.executable, "-P", "-m", "uv", "pip", "install", "--no-config", "--color", "never", "--no-progress",
            "--python", sys.executable, "--no-python-downloads", "--break-system-packages",
            "--default-index", self._limits.index, "--only-binary", ":all:", *said,
        ]  # fmt: skip
        log = self.work / "uv.log"
        with log.open("wb") as output:
            # A session of its own, for `python -m uv` may start uv beside itself.
            process = subprocess.Popen(command, env={**passed, **own}, stdout=output, stderr=output, start_new_session=True)
            try:
                self._watch(process)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        return process.returncode, log.read_text(errors="replace")

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        """Waits for its end, and after that looks once more."""
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=_LOOKS)
            if (size := size_on_disk(self._target)) > self._limits.size:
                raise EntrypointError(
                    f"the packages take {_mib(size)} so far, and the chart allows {_mib(self._limits.size)} "
                    f"(studies.install.maxSize); {_LAYER}"
                )
            if process.returncode is not None:
                return
            if time.monotonic() > self._ends:
                raise self._late()

    def _late(self) -> EntrypointError | SlotError:
        """What the end of the time means: for another pod to try again if the network was to blame before."""
        seconds = f"{self._limits.seconds:g} s"
        if not self._unreached:
            return EntrypointError(
                f"the packages were not installed within {seconds}, as the chart wants (studies.install.timeout); {_LAYER}"
            )
        return SlotError(
            f"the package index {self._limits.index} could not be reached within {seconds} (studies.install.timeout); "
            f"is it up, and does studies.install.egress of the chart lead there? {self._unreached}"
        )


def size_on_disk(folder: Path) -> int:
    """Bytes that a folder takes on disk, as the kubelet counts them: a file with several names once."""
    sizes: dict[tuple[int, int], int] = {}
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            try:
                found = os.lstat(f"{place}/{name}")
            except FileNotFoundError:  # uv renames as it goes
                continue
            sizes[found.st_dev, found.st_ino] = found.st_blocks * 512
    return sum(sizes.values())


def _reason(told: str) -> str:
    """What uv says is wrong, in one line."""
    text = told[found:] if (found := told.find("error: ")) >= 0 else told
    return " ".join(text.removeprefix("error: ").split())


def _mib(size: int) -> str:
    return f"{size / 2**20:.0f} MiB"


def main(said: Sequence[str], code_archive: Path, target: Path, log: Path = _TERMINATION_LOG) -> int:
    """The container's exit code: 1 if another pod may fare better.

    Args:
        said: the command line.
        code_archive: the job's packed code.
        target: the folder for packages.
        log: takes the message of a failure, where there is one.
    """
    parser = argparse.ArgumentParser(prog="python -m trialplane.worker.setup.install")
    parser.add_argument("requirements", help="file of the job's folder, or its script")
    parser.add_argument("--index", required=True)
    parser.add_argument("--max-size", required=True, type=values.bytes_of)
    parser.add_argument("--timeout", required=True, type=float)
    given = parser.parse_args(said)
    code = target / ".code"
    try:
        pack.unpack(pack.read(code_archive), code)
        limits = Limits(given.index, given.max_size, given.timeout)
        installed = install(code, given.requirements, target, limits)
    except (SlotError, OSError) as error:
        return _failed(str(error), log, 1)
    except InputError as error:
        text = f"install: true cannot be done: {error}"
        _emptied(target)
        cluster.refusal(target).write_text(text)
        return _failed(text, log, 0)
    finally:
        shutil.rmtree(code, ignore_errors=True)
    what = f"installed {', '.join(installed)}: {_mib(size_on_disk(target))}" if installed else "nothing to install"
    print(f"{what}; the image has the rest", flush=True)  # noqa: T201
    return 0


def _failed(text: str, log: Path, code: int) -> int:
    print(text, file=sys.stderr, flush=True)  # noqa: T201
    if log.exists():
        log.write_text(errors.shortened(text, _LONGEST))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Path(cluster.CODE_MOUNT, cluster.CODE_KEY), Path(cluster.PACKAGES)))
