"""Makes the torch of a Python that has just installed it alone (`pip install --no-deps torch`) fit for CPUs only.

The wheels of PyPI for Linux are made for CUDA and bring 4 GB of libraries. A CPU's process maps some of them because
torch's own libraries name them, and calls none. So that an image for CPUs can be without them:

1. torch's metadata no longer asks for them; only the CUDA runtime and the profiler's library, which torch calls when it
   is imported, are installed (8 MB).
2. Each other library that torch's name is replaced by one made here, with the same functions and versions, which say
   what they are and abort. `torch.cuda.is_available()` is False in such an image and nothing gets as far as to call them.
3. The GPU's machine code within torch's libraries, symbol tables and C++ headers are removed.

A torch without CUDA is left as it is. Needs gcc.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from elf import Elf

_CUDA = re.compile(r"Requires-Dist: (nvidia-|cuda-|triton)")
_TOOLKIT = re.compile(r"Requires-Dist: cuda-toolkit\[[^]]*\]==([0-9.]+)")
_NVIDIA = re.compile(r"lib(cu|nccl|nv)")
# Below torch/: for building extensions, for GPUs' linear algebra and for run-time compilation on GPUs.
_UNUSED = ("include", "share", "lib/libtorch_cuda_linalg.so", "lib/libcaffe2_nvrtc.so")
_FATBIN = ("__nv_relfatbin", ".nv_fatbin")  # sections with the GPU's machine code

_STUB = """\
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static void refuse(const char *name) {
  static const char text[] = ": this image was built with DEVICE=cpu and has no CUDA libraries; "
                             "use a trial image built with DEVICE=cuda on nodes with GPUs\\n";
  if (write(2, name, strlen(name)) >= 0 && write(2, text, sizeof text - 1) >= 0) abort();
  abort();
}
"""
# Asked by code that only prints versions: version 0, which makes torch raise an error that can be caught.
_ANSWERED = {
    "cudnnGetVersion": "long cudnnGetVersion(void) { return 0; }",
    "cudnnGetCudartVersion": "long cudnnGetCudartVersion(void) { return 0; }",
    "cudnnGetProperty": "int cudnnGetProperty(int part, int *value) { *value = 0; return 0; }",
    "ncclGetVersion": "int ncclGetVersion(int *version) { *version = 0; return 0; }",
}


def main() -> None:
    """Does all three steps and prints what it saved."""
    distribution = importlib.metadata.distribution("torch")
    metadata = Path(str(distribution.locate_file(f"torch-{distribution.version}.dist-info/METADATA")))
    torch = Path(str(distribution.locate_file("torch")))
    lines = metadata.read_text().splitlines(keepends=True)
    if not any(_CUDA.match(line) for line in lines):
        print(f"torch {distribution.version} has no CUDA")
        return
    toolkit = next((found[1] for line in lines if (found := _TOOLKIT.match(line))), None)
    if toolkit is None:
        sys.exit(f"torch {distribution.version} does not name its cuda-toolkit as expected; build with DEVICE=cuda")
    metadata.write_text("".join(line for line in lines if not _CUDA.match(line)))
    pip = [sys.executable, "-m", "pip", "install", f"cuda-toolkit[cudart,cupti]=={toolkit}"]
    subprocess.run(pip, check=True)

    before = _size(torch.parent)
    for name in _UNUSED:
        path = torch / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    nvidia = torch.parent / "nvidia"
    for path in [*nvidia.rglob("include"), *nvidia.rglob("*.a"), *nvidia.rglob("libnvperf*"), *nvidia.rglob("libpcsamp*")]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    libraries = {path.name: Elf(path) for path in sorted((torch / "lib").glob("*.so*"))}
    present = {path.name for path in nvidia.rglob("*.so*")}
    for library, functions in missing(libraries, present).items():
        build(library, functions, torch / "lib" / library)
    for name, library in libraries.items():
        ranges = [(s.address, s.size) for s in library.sections.values() if s.name in _FATBIN]
        try:
            (torch / "lib" / name).write_bytes(library.without(ranges))
        except ValueError as error:
            print(f"{name} is left as it is: {error}")
    print(f"{before / 1e6:.0f} MB are now {_size(torch.parent) / 1e6:.0f} MB")


def missing(libraries: dict[str, Elf], present: set[str]) -> dict[str, dict[str, str]]:
    """Libraries that are needed but not there → the functions to be found in them, each with its version or "".

    Args:
        libraries: torch's own, by file name.
        present: file names of others that are there.
    """
    needed = {name for library in libraries.values() for name in library.needed() if _NVIDIA.match(name)}
    absent = needed - libraries.keys() - present
    symbols = [symbol for library in libraries.values() for symbol in library.symbols()]
    defined = {symbol.name for symbol in symbols if symbol.defined}
    found: dict[str, dict[str, str]] = defaultdict(dict, {name: {} for name in sorted(absent)})
    for symbol in symbols:
        if symbol.defined or symbol.weak:
            continue
        if symbol.library in absent:
            found[symbol.library][symbol.name] = symbol.version
        # Without a version it may be in any library; what the interpreter itself has is Python's and the system's.
        elif not symbol.version and symbol.name not in defined and not hasattr(ctypes.pythonapi, symbol.name):
            found[min(absent)][symbol.name] = ""
    return dict(found)


def build(library: str, functions: dict[str, str], path: Path) -> None:
    """Compiles the library that stands in for an absent one.

    Args:
        library: its name, by which others need it.
        functions: name → version, or "".
        path: where it goes.
    """
    refusals = [_ANSWERED.get(name, f'void {name}(void) {{ refuse("{name}"); }}') for name in sorted(functions)]
    versions = defaultdict(list)
    for name, version in sorted(functions.items()):
        if version:
            versions[version].append(name)
    with tempfile.TemporaryDirectory() as folder:
        source, script = Path(folder, "stub.c"), Path(folder, "versions")
        source.write_text(_STUB + "\n".join(refusals))
        script.write_text("".join(f"{version} {{ global: {'; '.join(names)}; }};\n" for version, names in versions.items()))
        options = [f"-Wl,--version-script={script}"] if versions else []
        command = ["gcc", "-shared", "-fPIC", "-O1", "-s", "-fno-builtin", "-w", f"-Wl,-soname,{library}", *options]
        subprocess.run([*command, "-o", str(path), str(source)], check=True)
    print(f"{library}: {len(functions)} functions stand in")


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


if __name__ == "__main__":
    main()
