"""What a trial pod installs before its first trial: from one index, wheels alone, within limits, beside what must stay.

The index is an HTTP server of the test on loopback, and uv is the real one; what is already installed here is the image. Not
checked: the pod's manifest (tests/plan/test_installing.py), and that a NetworkPolicy lets the container reach an index.
"""

from __future__ import annotations

import functools
import http.server
import sys
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path

import pytest

from trialplane.errors import EntrypointError
from trialplane.plan import pack
from trialplane.wire import cluster
from trialplane.wire.records import SlotConfig
from trialplane.worker import install, usage


class Index:
    """A package index (PEP 503) with wheels that are made here, which counts and can refuse."""

    def __init__(self, root: Path) -> None:
        self.asked: list[str] = []
        self.reached: Callable[[], None] = lambda: None  # called before an answer that is no 503
        self.answers = threading.Event()
        self.answers.set()
        self.failures = 0  # how many of the next requests are answered with 503
        self._root = root
        index = self

        class Handler(http.server.SimpleHTTPRequestHandler):
            def do_GET(self) -> None:
                index.asked.append(self.path)
                if index.failures > 0:
                    index.failures -= 1
                    self.send_error(503)
                    return
                index.reached()
                index.answers.wait()
                super().do_GET()

            def log_message(self, *said: object) -> None: ...

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(root)))
        self.url = f"http://127.0.0.1:{self._server.server_port}/simple"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.answers.set()
        self._server.shutdown()
        self._server.server_close()

    def add(self, name: str, version: str, *needs: str, size: int = 0, files: Sequence[str] = ()) -> None:
        folder = self._root / "simple" / name
        folder.mkdir(parents=True, exist_ok=True)
        info = f"{name}-{version}.dist-info"
        held = {
            f"{name}/__init__.py": f"VERSION = {version!r}\n",
            f"{name}/data.bin": "x" * size,
            **dict.fromkeys(files, ""),
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
            + "".join(f"Requires-Dist: {one}\n" for one in needs),
            f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        held[f"{info}/RECORD"] = "".join(f"{one},,\n" for one in [*held, f"{info}/RECORD"])
        with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
            for file, text in held.items():
                wheel.writestr(file, text)
        self._list(folder)

    def add_source(self, name: str, version: str) -> None:
        folder = self._root / "simple" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "setup.py").write_text("raise SystemExit('was run')\n")
        with tarfile.open(folder / f"{name}-{version}.tar.gz", "w:gz") as made:
            made.add(folder / "setup.py", f"{name}-{version}/setup.py")
        self._list(folder)

    @staticmethod
    def _list(folder: Path) -> None:
        found = [one.name for one in folder.iterdir() if one.suffix in (".whl", ".gz")]
        (folder / "index.html").write_text("".join(f'<a href="{name}">{name}</a>' for name in found))


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    made = Index(tmp_path / "index")
    yield made
    made.close()


class Pod:
    """The container's folders and limits."""

    def __init__(self, folder: Path, url: str) -> None:
        self.code = folder / "job"
        self.packages = folder / "packages"
        self.log = folder / "termination-log"
        self.url = url
        self.size = "100Mi"
        self.seconds = 120.0
        self.code.mkdir(parents=True)
        self.packages.mkdir()
        self.log.touch()

    def install(self, text: str, name: str = "requirements.txt") -> int:
        (self.code / name).write_text(text)
        archive = self.code.with_name("code.tar.gz")
        archive.write_bytes(pack.pack(self.code).data)
        said = [name, "--index", self.url, "--max-size", self.size, "--timeout", str(self.seconds)]
        return install.main(said, archive, self.packages, self.log)

    @property
    def there(self) -> set[str]:
        return {one.name for one in self.packages.iterdir()} - {".lock"}  # which is uv's

    @property
    def refusal(self) -> str:
        file = cluster.refusal(self.packages)
        return file.read_text() if file.exists() else ""


@pytest.fixture
def pod(tmp_path: Path, index: Index) -> Pod:
    return Pod(tmp_path / "pod", index.url)


def test_only_what_the_image_lacks_is_installed_with_what_that_needs(pod: Pod, index: Index) -> None:
    index.add("spam", "1.5", "eggs>=2", "packaging")
    index.add("spam", "2.0")
    index.add("eggs", "2.1")
    assert pod.install("spam<2\npackaging>=20  # is in the image\n") == 0
    assert (pod.refusal, pod.log.read_text()) == ("", "")
    assert pod.there == {"spam", "spam-1.5.dist-info", "eggs", "eggs-2.1.dist-info"}, "nothing of the work is left"


def test_a_script_says_by_its_metadata_what_it_needs(pod: Pod, index: Index) -> None:
    index.add("spam", "1.0")
    assert pod.install('# /// script\n# dependencies = ["spam"]\n# ///\n', "train.py") == 0
    assert "spam" in pod.there


def test_what_the_image_has_is_not_asked_for_at_the_index(pod: Pod, index: Index) -> None:
    assert pod.install("packaging\n") == 0
    assert (pod.there, index.asked, pod.refusal) == (set(), [], "")


def test_variables_of_uv_and_pip_lead_to_no_other_index(
    pod: Pod, index: Index, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    index.add("spam", "1.0")
    other = Index(tmp_path / "other")
    other.add("spam", "9.0")
    (tmp_path / "uv.toml").write_text(f'extra-index-url = ["{other.url}"]\n')
    for name in ("UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_INDEX_URL"):
        monkeypatch.setenv(name, other.url)
    monkeypatch.setenv("UV_CONFIG_FILE", str(tmp_path / "uv.toml"))
    try:
        assert pod.install("spam\n") == 0
        assert "spam-1.0.dist-info" in pod.there
        assert other.asked == []
    finally:
        other.close()


def test_a_source_distribution_is_not_built(pod: Pod, index: Index) -> None:
    index.add_source("spam", "1.0")
    assert pod.install("spam\n") == 0
    assert "spam" in pod.refusal and "no usable wheels" in pod.refusal
    assert pod.there == {".refused"}


def test_another_version_of_what_ray_stands_on_is_refused_before_the_index_is_asked(pod: Pod, index: Index) -> None:
    version = metadata.version("ray")
    assert pod.install("spam\nray==1.0\n") == 0
    assert f"requirements.txt:2: ray==1.0: {version} is in the image and stays" in pod.refusal
    assert index.asked == []


def test_what_a_package_needs_in_turn_replaces_nothing_of_ray_either(pod: Pod, index: Index) -> None:
    index.add("spam", "1.0", "ray<2")
    index.add("ray", "1.0")
    assert pod.install("spam\n") == 0
    assert f"ray=={metadata.version('ray')}" in pod.refusal and "spam" in pod.refusal
    assert pod.there == {".refused"}


def test_the_bounds_of_trialplane_hold_for_the_rest(pod: Pod, index: Index) -> None:
    index.add("scikit_learn", "99.0")
    assert pod.install("scikit-learn>=99\n") == 0
    assert "scikit-learn" in pod.refusal and "1.6" in pod.refusal
    assert "torch" not in install.kept() and {"ray", "trialplane", "pydantic"} <= set(install.kept())


@pytest.mark.parametrize(
    "line",
    [
        "spam @ https://example.org/spam-1.0-py3-none-any.whl",
        "./spam-1.0-py3-none-any.whl",
        "-e .",
        "--index-url https://example.org/simple",
        "--extra-index-url=https://example.org/simple",
        "--find-links wheels",
        "-f wheels",
        "-r more.txt",
        "--require-hashes",
        "spam==1.0 --hash=sha256:" + "0" * 64,
        "spam==1.0 ; python_version > '3' --hash=sha256:" + "0" * 64,
    ],
)
def test_a_line_that_is_no_name_with_versions_is_refused(pod: Pod, index: Index, line: str) -> None:
    (pod.code / "more.txt").write_text("eggs\n")
    index.add("spam", "1.0")
    assert pod.install(f"spam\n{line}\n") == 0
    assert "requirements.txt:2: " in pod.refusal and "`platform image build --job NAME`" in pod.refusal
    assert index.asked == []


@pytest.mark.parametrize("file", ["ray/__init__.py", "trialplane/__init__.py", "typing.py", "sitecustomize.py"])
def test_a_package_with_files_of_what_must_stay_is_refused_and_nothing_of_it_is_left(
    pod: Pod, index: Index, file: str
) -> None:
    index.add("spam", "1.0", files=[file])
    assert pod.install("spam\n") == 0
    assert f"spam==1.0 brings {file}" in pod.refusal
    assert pod.there == {".refused"}


def test_what_packages_leave_beside_themselves_is_no_reason(pod: Pod, index: Index) -> None:
    index.add("spam", "1.0", files=["tests/__init__.py", "google/spam.py"])
    assert pod.install("spam\n") == 0
    assert (pod.refusal, "spam" in pod.there) == ("", True)


def test_a_version_that_the_index_lacks_is_named(pod: Pod, index: Index) -> None:
    index.add("spam", "1.0")
    assert pod.install("spam>3\n") == 0
    assert "only spam==1.0 is available and you require spam>3" in pod.refusal
    assert pod.log.read_text() == pod.refusal, "`kubectl describe pod` has it too"


def test_more_than_the_chart_allows_is_stopped(pod: Pod, index: Index) -> None:
    index.add("spam", "1.0", size=3 << 20)
    pod.size = "2Mi"
    assert pod.install("spam\n") == 0
    assert "the chart allows 2 MiB (studies.install.maxSize)" in pod.refusal


def test_an_index_that_fails_is_asked_again(pod: Pod, index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "_PAUSES", (0.0,))
    index.add("spam", "1.0")
    index.failures = 3
    assert pod.install("spam\n") == 0
    assert "spam" in pod.there and pod.refusal == ""


def test_an_index_that_does_not_answer_ends_the_container_and_not_the_run(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "_PAUSES", (1000.0,))  # longer than there is time
    pod.url = "http://127.0.0.1:1/simple"
    assert pod.install("spam\n") == 1
    text = pod.log.read_text()
    assert "http://127.0.0.1:1/simple could not be reached within 120 s" in text
    assert "studies.install.egress" in text and pod.refusal == ""


class Clock:
    """In place of the module `time`: stands still until it is told otherwise."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None: ...

    def run_out(self) -> None:
        self.now = 1e6


@pytest.mark.parametrize(("failures", "code"), [(0, 0), (1, 1)])
def test_an_installation_that_takes_too_long_is_stopped(
    pod: Pod, index: Index, monkeypatch: pytest.MonkeyPatch, failures: int, code: int
) -> None:
    """It ends the run, unless the index could not be reached before: another pod tries again then."""
    clock = Clock()
    monkeypatch.setattr(install, "time", clock)
    index.add("spam", "1.0")
    index.failures, index.reached = failures, clock.run_out
    index.answers.clear()
    assert pod.install("spam\n") == code
    assert "(studies.install.timeout)" in pod.log.read_text()
    assert bool(pod.refusal) is (code == 0)


def test_an_image_without_uv_says_so(pod: Pod, index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install.util, "find_spec", lambda name: None)
    assert pod.install("spam\n") == 0
    assert "the image has no uv" in pod.refusal


def test_a_refusal_ends_the_run_before_its_first_trial(pod: Pod, index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    index.add("spam", "1.0")
    pod.install("spam>3\n")
    monkeypatch.setattr(cluster, "PACKAGES", str(pod.packages))
    plain = {"run": "toy", "code": str(pod.code), "entrypoint": "train:run", "requirements": "requirements.txt"}
    config = SlotConfig(**plain, root="/elsewhere", cache="/elsewhere", ship=True)
    with pytest.raises(EntrypointError, match=r"only spam==1\.0 is available"):
        usage.check_installed(config)


def test_what_was_installed_is_found_by_the_slot(pod: Pod, index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    index.add("spam", "1.0")
    pod.install("spam==1.0\n")
    monkeypatch.setattr(sys, "path", [str(pod.packages), *sys.path])
    plain = {"run": "toy", "code": str(pod.code), "entrypoint": "train:run", "requirements": "requirements.txt"}
    usage.check_installed(SlotConfig(**plain, root="/elsewhere", cache="/elsewhere", ship=True))
