"""Removes the GPU part of torch, after `pip install --no-deps torch`, for images without GPUs.

The wheels of PyPI for Linux need 4 GB of CUDA's libraries. On a CPU, a process loads some of them, because torch's own
libraries name them, but calls none. This script makes them unnecessary:

1. It removes them from torch's metadata. Only the CUDA runtime and the profiler's library, which torch calls when it is
   imported, are installed (8 MB).
2. It replaces the others that torch's libraries name by one library with the same functions and versions, which raise a
   RuntimeError. In such an image, `torch.cuda.is_available()` is False, so almost nothing calls them.
3. It removes symbol tables and C++ headers, and replaces the GPU's machine code by zeros, which take no space in a registry.

A torch without CUDA, from an index of wheels for CPUs (PIP_INDEX_URL), is not changed. The script needs gcc and binutils.
"""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

_CUDA = re.compile(r"Requires-Dist: (nvidia-|cuda-|triton)")
_TOOLKIT = re.compile(r"Requires-Dist: cuda-toolkit\[[^]]*\]==([0-9.]+)")
_NEEDED = re.compile(r"\(NEEDED\).*\[(lib(?:cu|nccl|nv)[^]]*)\]")
_FATBIN = re.compile(r"(?:__nv_relfatbin|\.nv_fatbin) +\w+ +\w+ +(\w+) +(\w+)")  # offset and size of GPUs' machine code
_FUNCTION = re.compile(r"(cu|nccl|nv)[A-Za-z]\w*")  # of CUDA's libraries
# Below torch/: for building extensions, for GPUs' linear algebra and for run-time compilation on GPUs.
_UNUSED = ("include", "share", "lib/libtorch_cuda_linalg.so", "lib/libcaffe2_nvrtc.so")

_STAND_IN = """\
extern void _ZSt21__throw_runtime_errorPKc(const char *);  /* std::__throw_runtime_error */
#define FUNCTION(name) void name(void) { _ZSt21__throw_runtime_errorPKc(#name ": this image was built with DEVICE=cpu " \\
  "and has no CUDA libraries; use a trial image built with DEVICE=cuda on nodes with GPUs"); }
"""


def main() -> None:
    """Change the torch of this Python, and print what was done."""
    distribution = importlib.metadata.distribution("torch")
    metadata = Path(str(distribution.locate_file(f"torch-{distribution.version}.dist-info/METADATA")))
    torch = Path(str(distribution.locate_file("torch")))
    lines = metadata.read_text().splitlines(keepends=True)
    if not any(_CUDA.match(line) for line in lines):
        print(f"torch {distribution.version} has no CUDA")
        return
    toolkit = next((match[1] for line in lines if (match := _TOOLKIT.match(line))), None)
    if toolkit is None:
        sys.exit(f"torch {distribution.version} does not name its cuda-toolkit as expected; build with DEVICE=cuda")
    metadata.write_text("".join(line for line in lines if not _CUDA.match(line)))
    pip = [sys.executable, "-m", "pip", "install", f"cuda-toolkit[cudart,cupti]=={toolkit}"]
    subprocess.run(pip, check=True)

    nvidia = torch.parent / "nvidia"
    unused = [torch / name for name in _UNUSED]
    for pattern in ("include", "*.a", "libnvperf*", "libpcsamp*"):
        unused += nvidia.rglob(pattern)
    for path in unused:
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    libraries = sorted((torch / "lib").glob("*.so*"))
    build_stand_in(libraries, {path.name for path in nvidia.rglob("*.so*")}, torch / "lib")
    for library in libraries:
        remove_gpu_code(library)


def build_stand_in(libraries: list[Path], present: set[str], folder: Path) -> None:
    """Build a library with all missing functions of CUDA that other libraries use, and link it under each missing name.

    Args:
        libraries: Libraries of torch.
        present: Names of CUDA's libraries that are installed.
        folder: Folder of the new library.
    """
    absent = {name for library in libraries for name in _NEEDED.findall(_read("readelf", "-dW", library))} - present
    absent -= {library.name for library in libraries}
    functions: dict[str, set[str]] = defaultdict(set)  # version, most often the library's name, or "" → names
    for library in libraries:
        for line in _read("nm", "-DPu", library).splitlines():
            name, _, version = line.split()[0].partition("@")
            if _FUNCTION.fullmatch(name) and version not in present:
                functions[version].add(name)
    source = "".join(f"FUNCTION({name})\n" for names in functions.values() for name in sorted(names))
    versions = "".join(
        f"{name} {{ global: {'; '.join(sorted(functions[name]))}; }};\n" for name in sorted(functions) if name
    )
    with tempfile.TemporaryDirectory() as scratch:
        Path(scratch, "stand_in.c").write_text(_STAND_IN + source)
        Path(scratch, "versions").write_text(versions)
        options = ["-Wl,--version-script=versions"] if versions else []
        command = ["gcc", "-shared", "-fPIC", "-fexceptions", "-s", "-w", "-Wl,-soname,libno_cuda.so", *options]
        subprocess.run([*command, "-o", str(folder / "libno_cuda.so"), "stand_in.c"], cwd=scratch, check=True)
    for name in absent:
        (folder / name).symlink_to("libno_cuda.so")
    print(f"{sum(map(len, functions.values()))} functions stand in for those of {', '.join(sorted(absent))}")


def remove_gpu_code(library: Path) -> None:
    """Remove symbol tables, and replace the GPU's machine code by zeros."""
    subprocess.run(["strip", library], check=True)
    ranges = [(int(offset, 16), int(size, 16)) for offset, size in _FATBIN.findall(_read("readelf", "-SW", library))]
    with library.open("r+b") as file:
        for offset, size in ranges:
            file.seek(offset)
            file.write(bytes(size))


def _read(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main()
