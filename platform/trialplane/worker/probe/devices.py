"""Check that torch computes on the pod's devices, and that processes on them can communicate.

Each check runs in separate processes, as an incompatible driver may abort or hang:

    python -m trialplane.worker.probe.devices matmul GPUS
    python -m trialplane.worker.probe.devices reduce BACKEND RANK RANKS FILE
"""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from trialplane import policies
from trialplane.wire import findings
from trialplane.wire.findings import Finding

LIMIT = 180.0  # seconds for one check; the first import of torch from a cold disk takes half a minute
_MODULE = "trialplane.worker.probe.devices"  # this module, whose own name may be `__main__`
_SIDE = 1024  # rows and columns of the matrix that is multiplied
_BYTES = {"nccl": 64 * 2**20, "gloo": 2**20}  # size of the tensor that is summed
_PATIENCE = datetime.timedelta(seconds=90)  # time limit of a collective


def check_devices(gpus: int) -> Iterator[Finding]:
    """Compute on each device, then sum over all of them.

    Args:
        gpus: Number of GPUs that the pod requested; with 0, two processes communicate over the network.
    """
    outputs, problem = run_processes([["matmul", str(gpus)]])
    finding = judge_matmul(gpus, outputs[0] if outputs else None, problem)
    yield finding
    if finding.verdict is findings.Verdict.FAIL:
        return
    backend, ranks = ("nccl", gpus) if gpus else ("gloo", 2)
    with tempfile.TemporaryDirectory() as folder:
        rendezvous = str(Path(folder, "rendezvous"))
        outputs, problem = run_processes([["reduce", backend, str(rank), str(ranks), rendezvous] for rank in range(ranks)])
    yield judge_reduce(backend, ranks, outputs, problem)


def judge_matmul(gpus: int, output: dict[str, Any] | None, problem: str) -> Finding:
    """Return the finding about the multiplication on each device.

    Args:
        gpus: Number of GPUs that the pod requested.
        output: Output of the process: torch, cuda, devices (their names). None after a failure.
        problem: Reason of a failure, or "".
    """
    check = "torch and CUDA" if gpus else "torch"
    if output is None:
        remedy = (
            "the node's driver must be as new as the CUDA of the image's torch, and the image be built with DEVICE=cuda"
            if gpus
            else "build the image anew from jobs/Dockerfile"
        )
        return findings.failed(check, problem, remedy)
    devices = output["devices"]
    if len(devices) < gpus:
        remedy = (
            "check the device plugin of the node; the image must be built with DEVICE=cuda and the node's driver be as "
            "new as its CUDA; the fake GPUs of a kind cluster do not compute"
        )
        return findings.failed(check, f"torch {output['torch']} sees {len(devices)} of {gpus} GPUs", remedy)
    if not gpus:
        return findings.passed(check, f"torch {output['torch']} computes on the CPU; no GPU was requested")
    names = ", ".join(sorted(set(devices)))
    return findings.passed(check, f"torch {output['torch']} computes on {len(devices)} GPU(s): {names}")


def judge_reduce(backend: str, ranks: int, outputs: Sequence[dict[str, Any]], problem: str) -> Finding:
    """Return the finding about the sum over processes.

    Args:
        backend: "nccl" or "gloo".
        ranks: Number of processes.
        outputs: Outputs of the processes: seconds, bytes.
        problem: Reason of a failure, or "".
    """
    check = "all-reduce"
    if problem:
        remedy = (
            "NCCL_DEBUG=INFO in the job's environment logs more; GPUs of one pod need enough /dev/shm (resources.shm)"
            if backend == "nccl"
            else "processes of a pod must reach each other by the pod's address: check for a service mesh's sidecar"
        )
        return findings.failed(check, f"{ranks} processes, {backend}: {problem}", remedy)
    slowest = max(output["seconds"] for output in outputs)
    size = outputs[0]["bytes"] / 2**20
    return findings.passed(check, f"{ranks} process(es), {backend}: {size:.0f} MiB in {slowest * 1000:.1f} ms")


def run_processes(commands: Sequence[Sequence[str]]) -> tuple[list[dict[str, Any]], str]:
    """Run processes of this module at the same time; return their outputs and "", or no outputs and the first failure.

    Args:
        commands: Arguments of each process. It prints its output as a line of JSON.
    """
    with tempfile.TemporaryDirectory() as folder:
        logs = [Path(folder, str(index)) for index in range(len(commands))]
        children = [_start(command, log) for command, log in zip(commands, logs, strict=True)]
        deadline = time.monotonic() + LIMIT
        try:
            outputs = [child.communicate(timeout=max(0.1, deadline - time.monotonic()))[0] for child in children]
        except subprocess.TimeoutExpired:
            return [], f"did not end within {LIMIT:.0f} s"
        finally:
            for child in children:
                with child:  # closes the pipe, and waits for the process
                    child.kill()
        for child, log in zip(children, logs, strict=True):
            if child.returncode:
                return [], _failure(child.returncode, log.read_text(errors="replace"))
        return [json.loads(output.splitlines()[-1]) for output in outputs], ""


def _start(command: Sequence[str], log: Path) -> subprocess.Popen[str]:
    """Start a process of this module with these arguments; its errors go to a log."""
    arguments = [sys.executable, "-P", "-m", _MODULE, *command]
    with log.open("w") as stderr:
        return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=stderr, text=True)


def _failure(code: int, output: str) -> str:
    """Describe the end of a process, with its last line of output."""
    lines = [line for line in output.splitlines() if line.strip()]
    ended = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
    return f"{ended}: {lines[-1].strip()}" if lines else ended


def main(argv: Sequence[str]) -> None:
    """Run one process of a check with the arguments that the module's docstring shows; print its output as JSON."""
    policies.apply_all()
    if argv[0] == "matmul":
        measured = matmul(int(argv[1]))
    else:
        backend, rank, ranks, file = argv[1:]
        measured = reduce(backend, int(rank), int(ranks), file)
    print(json.dumps(measured), flush=True)  # noqa: T201  read by `run_processes`


def matmul(gpus: int) -> dict[str, Any]:
    """Multiply on the CPU or on each GPU, check the product, and return versions and names of devices.

    Args:
        gpus: Number of GPUs that the pod requested; if there are fewer, nothing is computed.
    """
    import torch

    devices = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())] if gpus else []
    if not gpus:
        _multiply("cpu")
    elif len(devices) >= gpus:
        for index in range(gpus):
            _multiply(f"cuda:{index}")
    return {"torch": torch.__version__, "cuda": torch.version.cuda or "", "devices": devices}


def reduce(backend: str, rank: int, ranks: int, file: str) -> dict[str, Any]:
    """Sum a tensor over all processes, and return its bytes and the seconds of the last sum.

    Args:
        backend: "nccl" or "gloo".
        rank: Rank of this process, and index of its GPU.
        ranks: Number of processes.
        file: File for the rendezvous.
    """
    import torch
    import torch.distributed as group

    device = torch.device(f"cuda:{rank}" if backend == "nccl" else "cpu")
    if backend == "nccl":
        torch.cuda.set_device(device)
    group.init_process_group(backend, init_method=f"file://{file}", rank=rank, world_size=ranks, timeout=_PATIENCE)
    size = _BYTES[backend]
    seconds = 0.0
    for _ in range(3):  # the first round includes the connections
        tensor = torch.full((size // 4,), float(rank + 1), device=device)  # numbers of 4 bytes
        group.barrier()
        begin = time.perf_counter()
        group.all_reduce(tensor)
        expected = ranks * (ranks + 1) / 2
        if not bool((tensor == expected).all()):
            raise SystemExit(f"the sum over {ranks} processes is {tensor[0].item()} and not {expected}")
        seconds = time.perf_counter() - begin
    group.destroy_process_group()
    return {"seconds": seconds, "bytes": size}


def _multiply(device: str) -> None:
    """Multiply matrices on a device; end the process with a message if the product is wrong."""
    import torch

    matrix = torch.full((_SIDE, _SIDE), 0.5, device=device)
    if not bool((matrix @ matrix == 0.25 * _SIDE).all()):
        raise SystemExit(f"{device} multiplies wrongly")


if __name__ == "__main__":
    main(sys.argv[1:])
