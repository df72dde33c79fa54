"""jobs/Dockerfile and what it is made with: the layers' lists, the policies' variables, and what makes a torch CPU-only.

The last is tried on small libraries made here with gcc. One test builds the controller's image with docker, where the
images of a cluster are built anyway (marker e2e; .ci/cluster).
Not checked here: what is in a finished trial image (the build itself runs its checks; tests/e2e).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from tests.images.programs import load

from trialplane import policies
from trialplane.policies import protobuf

ROOT = Path(__file__).parent.parent.parent
DOCKERFILE = (ROOT / "jobs" / "Dockerfile").read_text()
needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")


@pytest.fixture(scope="module")
def cpu_only() -> ModuleType:
    return load("cpu_only")


def variables(text: str) -> dict[str, str]:
    """What ENV instructions set."""
    joined = re.sub(r"\\\n", " ", text)
    found = [pair for line in re.findall(r"^ENV (.*)$", joined, re.M) for pair in line.split()]
    return dict(pair.split("=", 1) for pair in found)


def test_it_is_plain_enough_for_the_builder_of_docker_20() -> None:
    assert "syntax=" not in DOCKERFILE
    assert "<<" not in DOCKERFILE
    assert "--mount" not in DOCKERFILE


def test_the_images_set_the_policies_variables() -> None:
    before, trial = DOCKERFILE.split("FROM ${DEVICE} AS trial")
    everywhere = variables(before)
    for name, value in policies.trial_env().items():
        if name in protobuf.ENV:
            assert name not in everywhere
            assert variables(trial)[name] == value
        else:
            assert everywhere[name] == value


def test_both_images_check_their_policies_as_the_user_they_run_as() -> None:
    for target in ("controller", "trial"):
        stage = DOCKERFILE.split(f" AS {target}\n")[1].split("\nFROM ")[0]
        assert stage.index("USER 1000:1000") < stage.index(f"trialplane.worker.probe --image {target}")


def test_the_controllers_image_has_a_torch_without_cuda() -> None:
    """Optuna's `gp` sampler computes with it."""
    assert "\nFROM cpu AS controller\n" in DOCKERFILE
    for target in ("cpu", "controller"):
        stage = DOCKERFILE.split(f" AS {target}\n")[1].split("\nFROM ")[0]
        assert re.search(r"pip install .*-r /tmp/torch.txt", stage), target


def test_the_layers_hold_what_pyproject_says_once() -> None:
    requirements = load("requirements")
    lists = requirements.lists((ROOT / "pyproject.toml").read_text())
    names = {part: {requirements.name(line) for line in lines} for part, lines in lists.items()}
    assert names["torch"] == {"torch"}
    assert {"ray", "mlflow", "optuna", "pydantic"} <= names["shared"], "what a trial imports of Optuna is the controller's"
    assert any(line.startswith("ray[default,tune]") for line in lists["shared"]), "a function of Ray Tune imports ray.tune"
    assert {"sqlalchemy", "psycopg2-binary"} <= names["controller"]
    assert {"transformers", "accelerate", "protobuf", "nvidia-ml-py"} <= names["trial"]
    assert "torch" not in names["controller"] | names["shared"]
    assert [part for part in names if "kubernetes" in names[part]] == ["controller"]  # the operator is of that image
    assert sum(len(part) for part in names.values()) == len(set().union(*names.values()))


def test_a_requirement_is_known_by_its_normalized_name() -> None:
    requirements = load("requirements")
    assert requirements.name("ray[default]>=2.60,<2.61") == "ray"
    assert requirements.name("prometheus_client>=0.22") == "prometheus-client"


@needs_gcc
class TestCpuOnly:
    """A program's library that needs another, which is taken away and replaced."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        """libtorch.so, which needs the versioned libcublas.so.13 and the unversioned libnccl.so.2 and holds GPU code."""
        (tmp_path / "cublas.c").write_text("int cublasCreate(void) { return 0; }\n")
        (tmp_path / "cublas.map").write_text("libcublas.so.13 { global: cublasCreate; };\n")
        (tmp_path / "nccl.c").write_text("int ncclSend(void) { return 0; }\n")
        (tmp_path / "torch.c").write_text(
            "int cublasCreate(void); int ncclSend(void);\n"
            'static const char code[1 << 20] __attribute__((section(".nv_fatbin"), used)) = {1};\n'
            "__attribute__((noinline, used)) static int hidden(int x) { return x * 2; }\n"
            "const void *gpu_code(void) { return code; }\n"
            "int add(int a, int b) { return hidden(a) / 2 + b; }\n"
            "int multiply_on_gpu(void) { return cublasCreate(); }\n"
            "int send(void) { return ncclSend(); }\n"
        )
        compile_(tmp_path, "libcublas.so.13", "cublas.c", "-Wl,--version-script=cublas.map")
        compile_(tmp_path, "libnccl.so.2", "nccl.c")
        rpath = ["-Wl,-rpath,$ORIGIN", "-Wl,-z,now"]
        compile_(tmp_path, "libtorch.so", "torch.c", "libcublas.so.13", "libnccl.so.2", *rpath)
        return tmp_path

    def test_without_the_gpus_code_and_its_symbol_table_it_works(self, folder, cpu_only) -> None:
        file = folder / "libtorch.so"
        before = file.read_bytes()
        assert b"\1" + bytes(1 << 19) in before
        cpu_only.remove_gpu_code(file)
        assert b"hidden" in before
        assert b"hidden" not in file.read_bytes(), "a static function is in the symbol table alone"
        code = (
            "import ctypes; t = ctypes.CDLL('./libtorch.so'); t.gpu_code.restype = ctypes.c_void_p\n"
            "assert t.add(2, 3) == 5 and t.multiply_on_gpu() == 0\n"
            "assert ctypes.string_at(t.gpu_code(), 1 << 20) == bytes(1 << 20)\n"  # zeros, not a crash
        )
        subprocess.run([sys.executable, "-c", code], cwd=folder, check=True)

    def test_a_library_that_is_there_is_kept(self, folder, cpu_only) -> None:
        kept = (folder / "libcublas.so.13").read_bytes()
        (folder / "libnccl.so.2").unlink()
        cpu_only.build_stand_in([folder / "libtorch.so"], {"libcublas.so.13"}, folder)
        assert (folder / "libcublas.so.13").read_bytes() == kept
        assert run(folder, "assert t.multiply_on_gpu() == 0 and t.add(2, 3) == 5").returncode == 0

    def test_a_stand_in_loads_and_says_what_it_is_when_it_is_called(self, folder, cpu_only) -> None:
        (folder / "libcublas.so.13").unlink()
        (folder / "libnccl.so.2").unlink()
        cpu_only.build_stand_in([folder / "libtorch.so"], set(), folder)
        done = run(folder, "assert t.add(2, 3) == 5")
        assert (done.returncode, done.stderr) == (0, ""), "with the versions that the loader looks for"
        for function, name in (("multiply_on_gpu", "cublasCreate"), ("send", "ncclSend")):
            done = run(folder, f"t.{function}()")
            assert done.returncode == -6, "no C++ catches it here"
            assert f"{name}: this image was built with DEVICE=cpu" in done.stderr


def run(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    """A Python with libtorch.so as `t`, and with the C++ library that torch brings along."""
    before = "import ctypes; ctypes.CDLL('libstdc++.so.6', ctypes.RTLD_GLOBAL); t = ctypes.CDLL('./libtorch.so'); "
    return subprocess.run([sys.executable, "-c", before + code], cwd=folder, capture_output=True, text=True, check=False)


def compile_(folder: Path, name: str, *words: str) -> None:
    command = ["gcc", "-shared", "-fPIC", "-O1", f"-Wl,-soname,{name}", "-o", name, *words]
    subprocess.run(command, cwd=folder, check=True)


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif("TRIALPLANE_E2E_CONTEXT" not in os.environ, reason="for who makes the images of a cluster: .ci/cluster")
def test_the_controllers_image_builds_and_runs_as_nobody_special() -> None:
    """With docker's default builder, whichever that is; layers that are there are used."""
    name = "trialplane/controller:test"
    command = ["docker", "build", "--file", "jobs/Dockerfile", "--target", "controller", "--tag", name, "."]
    subprocess.run(command, cwd=ROOT, check=True)
    locked = ["--rm", "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--network", "none"]
    program = "import optuna, mlflow, ray, psycopg2, torch; print(torch.cuda.is_available())"
    said = subprocess.run(
        ["docker", "run", *locked, name, "bash", "-c", f"id -u; python -c '{program}'"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert said.stdout.split() == ["1000", "False"]
