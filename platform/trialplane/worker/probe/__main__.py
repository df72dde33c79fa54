"""Run checks and print their findings: as text in an image's build, otherwise as one JSON line for each.

    python -m trialplane.worker.probe --image trial            in a build: fails unless the image keeps the policies
    python -m trialplane.worker.probe --gpus 1 --mlflow URL    in a pod: prints findings, and ends with 0

Must not import torch itself: CUDA is tested in separate processes, which may hang or die.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence

from trialplane.wire import env, records
from trialplane.wire.findings import Finding, Verdict
from trialplane.worker.probe import devices, pod


def main(argv: Sequence[str] | None = None) -> int:
    """Run the requested checks; return the exit code: 1 if an image fails a check, otherwise 0."""
    parser = argparse.ArgumentParser(description="Check what a trial relies on.")
    parser.add_argument("--image", choices=["controller", "trial"], help="check this image's policies, and nothing else")
    parser.add_argument("--gpus", type=int, default=0, help="GPUs that the pod requested")
    parser.add_argument("--shm", type=int, default=0, metavar="BYTES", help="size that /dev/shm should have")
    parser.add_argument("--data", default="", metavar="FOLDER", help="a data volume that should be readable")
    parser.add_argument("--mlflow", default="", metavar="URL", help="should be reachable")
    parser.add_argument(
        "--closed", action="append", default=[], metavar="NAME=HOST:PORT", help="must not be reachable; repeatable"
    )
    arguments = parser.parse_args(argv)
    if arguments.image:
        findings = list(pod.check_image_policies(arguments.image))
        for finding in findings:
            print(f"{finding.verdict}  {finding.check}: {finding.message}", file=sys.stderr)  # noqa: T201  the build's log
        return int(any(finding.verdict is Verdict.FAIL for finding in findings))
    for finding in _findings(arguments):
        print(records.to_json(finding), flush=True)  # noqa: T201  read by `platform doctor`
    return 0


def _findings(arguments: argparse.Namespace) -> Iterator[Finding]:
    """Run the checks of a trial's pod one after the other, and yield their findings."""
    yield from pod.check_trial_policies()
    yield pod.check_user(os.geteuid())
    yield pod.check_privileges(pod.PROC_STATUS.read_text())
    yield pod.check_read_only_root(os.statvfs("/").f_flag)
    yield pod.check_no_token(pod.TOKEN.exists())
    folders = [os.environ[name] for name in ("HOME", env.HOME) if os.environ.get(name)]
    yield pod.check_writable(folders)
    shm = os.statvfs("/dev/shm")
    yield pod.check_shared_memory(shm.f_frsize * shm.f_blocks, arguments.shm)
    if arguments.data:
        yield pod.check_data_volume(arguments.data)
    yield from devices.check_devices(arguments.gpus)
    if arguments.mlflow:
        yield pod.check_mlflow(arguments.mlflow, *pod.query(arguments.mlflow))
    for target in arguments.closed:
        name, _, address = target.partition("=")
        host, _, port = address.rpartition(":")
        yield pod.check_unreachable(name, address, pod.reachability(host, int(port)))


if __name__ == "__main__":
    sys.exit(main())
