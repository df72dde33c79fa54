"""What a trial pod installs before its first trial: from one index, wheels alone, within limits, beside what must stay.

The index is an HTTP server of the test on loopback (package_index.py), and uv is the real one; what is already installed is
the image. Not checked: the pod's manifest (tests/plan/test_installing.py), how trials find what was installed
(test_environment.py), and that a NetworkPolicy lets the container reach an index.
"""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from tests.worker.package_index import Index

from trialplane.errors import EntrypointError
from trialplane.plan import pack
from trialplane.wire import cluster, env
from trialplane.wire.records import SlotConfig
from trialplane.worker import environment
from trialplane.worker.setup import install, usage


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
        said = ["--index", self.url, "--max-size", self.size, "--timeout", str(self.seconds), "--", name]
        return install.main(said, archive, self.packages, self.log)

    @property
    def there(self) -> set[str]:
        return {one.name for one in self.packages.iterdir()} - {".lock"}  # which is uv's

    @property
    def refusal(self) -> str:
        file = cluster.refusal_file(self.packages)
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
    assert "torch" not in install.pinned_packages() and {"ray", "trialplane", "pydantic"} <= set(install.pinned_packages())


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


def test_uv_reads_no_marker(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[bytes]:
        read.append(Path(command[command.index("-r") + 1]).read_text())
        return subprocess.CompletedProcess(command, 0, b"")

    monkeypatch.setattr(subprocess, "run", run)
    assert pod.install("spam [more,eggs] <2,>=1; python_version > '3'\nspam<1; python_version < '3'\n") == 0
    assert read == ["spam[eggs,more]<2,>=1"]


@pytest.mark.parametrize(
    "file",
    [
        "ray/__init__.py",
        "trialplane/__init__.py",
        "trialplane.py",
        "typing.py",
        "sitecustomize.py",
        "six/__init__.py",
        "yaml.abi3.so",
        "google/__init__.py",
        "google.py",
        "google/protobuf/message/__init__.py",
    ],
)
def test_a_package_with_files_of_what_must_stay_is_refused_and_nothing_of_it_is_left(
    pod: Pod, index: Index, file: str
) -> None:
    index.add("spam", "1.0", files=[file])
    assert pod.install("spam\n") == 0
    assert f"spam==1.0 brings {file}" in pod.refusal
    assert pod.there == {".refused"}


def test_what_packages_leave_beside_themselves_is_no_reason(pod: Pod, index: Index) -> None:
    index.add("spam", "1.0", files=["tests/__init__.py", "google/spam.py", "LICENSE", "six/data.txt"])
    assert pod.install("spam\n") == 0
    assert (pod.refusal, "spam" in pod.there) == ("", True)


def test_a_version_that_the_index_lacks_is_named(pod: Pod, index: Index) -> None:
    index.add("spam", "1.0")
    assert pod.install("spam>3\n") == 0
    assert "only spam==1.0 is available and you require spam>3" in pod.refusal
    assert pod.log.read_text() == pod.refusal, "`kubectl describe pod` has it too"


def test_a_package_that_is_called_like_a_fault_of_the_network_is_none(pod: Pod, index: Index) -> None:
    index.add("spam-timeout", "1.0")
    assert pod.install("spam-timeout>3\n") == 0
    assert "you require spam-timeout>3" in pod.refusal


def says(monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    """Let uv fail with a message."""
    monkeypatch.setattr(subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 2, said.encode()))


@pytest.mark.parametrize(
    "said",
    [
        "error: Failed to fetch: `http://index/spam`\n  cause: operation timed out",
        "error: Failed to download distribution due to network timeout. Try increasing UV_HTTP_TIMEOUT",
    ],
)
def test_a_request_that_takes_too_long_is_a_fault_of_the_network(
    pod: Pod, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    says(monkeypatch, said)
    assert pod.install("spam\n") == 1
    assert pod.refusal == ""


def test_a_fault_of_the_node_ends_the_container_and_not_the_run(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    full = "error: Failed to install: spam.whl\n  cause: failed to write: No space left on device (os error 28)"
    says(monkeypatch, full)
    assert pod.install("spam\n") == 1
    assert "No space left on device" in pod.log.read_text()

    def fails(code: Path, *given: object) -> list[str]:
        raise OSError(errno.EIO, "Input/output error", str(code))

    monkeypatch.setattr(install, "install", fails)
    assert pod.install("spam\n") == 1
    assert "Input/output error" in pod.log.read_text() and pod.refusal == ""


def test_the_log_has_all_that_uv_said_and_the_message_of_the_end_its_beginning(
    pod: Pod, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = f"error: No solution found: {'because ' * 100}spam is not there"
    says(monkeypatch, said)
    assert pod.install("spam\n") == 0
    assert "spam is not there" in capsys.readouterr().err and "spam is not there" in pod.refusal
    assert len(pod.log.read_text()) == 390


def test_a_file_may_be_called_like_an_option(pod: Pod) -> None:
    assert pod.install("packaging\n", "-more.txt") == 0
    assert pod.refusal == ""


def test_more_than_the_chart_allows_is_stopped(pod: Pod, index: Index) -> None:
    index.add("spam", "1.0", size=3 << 20)
    pod.size = "2Mi"
    assert pod.install("spam\n") == 0
    assert "the chart allows 2 MiB (studies.install.maxSize)" in pod.refusal


def test_an_index_that_fails_is_asked_again(pod: Pod, index: Index) -> None:
    index.add("spam", "1.0")
    index.failures = 1
    assert pod.install("spam\n") == 0
    assert "spam" in pod.there and pod.refusal == ""


def test_an_index_that_does_not_answer_ends_the_container_and_not_the_run(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "HTTP_RETRIES", "0")
    pod.url = "http://127.0.0.1:1/simple"
    assert pod.install("spam\n") == 1
    text = pod.log.read_text()
    assert "http://127.0.0.1:1/simple could not be reached" in text
    assert "studies.install.egress" in text and pod.refusal == ""


def test_an_installation_that_takes_too_long_ends_the_run(pod: Pod, index: Index) -> None:
    index.add("spam", "1.0")
    index.answers.clear()
    pod.seconds = 1.0
    assert pod.install("spam\n") == 0
    assert "(studies.install.timeout)" in pod.refusal


def test_an_image_without_uv_says_so(pod: Pod, index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install.util, "find_spec", lambda name: None)
    assert pod.install("spam\n") == 0
    assert "the image has no uv" in pod.refusal


def test_a_refusal_ends_the_run_before_its_first_trial(pod: Pod, index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    index.add("spam", "1.0")
    pod.install("spam>3\n")
    monkeypatch.setenv(env.PACKAGES, str(pod.packages))
    plain = {"run": "toy", "code": str(pod.code), "entrypoint": "train:run", "requirements": "requirements.txt"}
    config = SlotConfig(**plain, root="/elsewhere", cache="/elsewhere", ship=True)
    with pytest.raises(EntrypointError, match=r"only spam==1\.0 is available"):
        usage.check_installed(config)


def test_what_was_installed_is_found_by_the_slot(pod: Pod, index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    index.add("spam", "1.0")
    pod.install("spam==1.0\n")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv(env.PACKAGES, str(pod.packages))
    environment.add_packages_to_path()
    plain = {"run": "toy", "code": str(pod.code), "entrypoint": "train:run", "requirements": "requirements.txt"}
    usage.check_installed(SlotConfig(**plain, root="/elsewhere", cache="/elsewhere", ship=True))
