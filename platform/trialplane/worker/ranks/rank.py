"""One rank of a trial: its placement among the ranks, and its process from start to end.

`run_and_end` is called in a fork of the supervisor (supervisor.py); `python -m trialplane.worker.ranks.rank FD PARENT` is
the same by spawn. Its environment has torchrun's variables, so `init_process_group()` and Accelerate work unchanged.
"""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from trialplane import policies
from trialplane.training import process
from trialplane.wire import messages, records
from trialplane.worker import context, environment, trial
from trialplane.worker.channel import Channel
from trialplane.worker.ranks import meeting


@dataclasses.dataclass(frozen=True)
class Placement:
    """The placement of one rank.

    Attributes:
        local: its number on this node.
        ranks: number of ranks on each node.
        node: number of this node.
        nodes: number of nodes.
        address: host:port of the rendezvous; rank 0 listens there.
        cpus: cores of this node's ranks together.
        restarts: attempts before this one.
    """

    local: int
    ranks: int
    node: int
    nodes: int
    address: str
    cpus: int
    restarts: int

    @property
    def rank(self) -> int:
        """The global number of the rank."""
        return self.node * self.ranks + self.local

    @property
    def threads(self) -> int:
        """The number of threads for computing."""
        return max(1, self.cpus // self.ranks)

    def workdir(self, of_trial: Path) -> Path:
        """The scratch folder of the rank, so that ranks can write files of the same name."""
        return of_trial if self.local == 0 else of_trial / f"rank-{self.rank}"

    def env(self, of_trial: Path) -> dict[str, str]:
        """Torchrun's variables, and its share of the cores; `of_trial` is the trial's scratch folder."""
        host, _, port = self.address.rpartition(":")
        local = {"GLOO_SOCKET_IFNAME": "lo"} if host == meeting.LOOPBACK and "GLOO_SOCKET_IFNAME" not in os.environ else {}
        return {
            "RANK": str(self.rank),
            "LOCAL_RANK": str(self.local),
            "WORLD_SIZE": str(self.ranks * self.nodes),
            "LOCAL_WORLD_SIZE": str(self.ranks),
            "GROUP_RANK": str(self.node),
            "GROUP_WORLD_SIZE": str(self.nodes),
            "MASTER_ADDR": host,
            "MASTER_PORT": port,
            "TORCHELASTIC_RESTART_COUNT": str(self.restarts),
            "OMP_NUM_THREADS": str(self.threads),
            "MKL_NUM_THREADS": str(self.threads),
            "TMPDIR": str(self.workdir(of_trial)),
            **local,  # gloo would resolve this machine's name by DNS, and may then use another interface
        }


@dataclasses.dataclass(frozen=True)
class Job:
    """The work that all ranks of a trial share.

    Attributes:
        run: the job's function; None where it is yet to be imported.
        config: of the slot.
        request: the trial's.
        workdir: its scratch folder.
    """

    run: context.Run | None
    config: records.SlotConfig
    request: records.TrialRequest
    workdir: Path


def placement_of(job: Job, local: int, address: str) -> Placement:
    """Return the placement of rank number `local` of this node; `address` is the rendezvous."""
    config, request = job.config, job.request
    return Placement(local, config.ranks, request.node, config.nodes, address, config.cpus, restarts=request.attempt - 1)


# The channel to the supervisor, from the rank's side.
RankChannel = Channel[messages.FromRank, messages.ToRank]


class _Silent(trial.Reporter):
    """Drop the reports of ranks other than 0."""

    def __call__(self, step: int, metrics: Mapping[str, float], *, waits: bool = True) -> bool:
        return False


def run_and_end(job: Job, placement: Placement, channel: RankChannel, parent: int) -> None:
    """Run the job as one rank and end the process.

    Args:
        job: the trial's.
        placement: of this rank.
        channel: to the supervisor.
        parent: the supervisor's pid.
    """

    def serve() -> int:
        _enter(job, placement)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # the supervisor blocked it until here

        def pulse(step: int, seconds: float) -> None:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                channel.send(messages.Pulsed(step, seconds))

        outcome = trial.run_job(
            job.run,
            job.config,
            job.request,
            placement.workdir(job.workdir),
            (_Silent if placement.rank else trial.Reporter)(job.request, channel),
            rank=placement.rank,
            local_rank=placement.local,
            world_size=placement.ranks * placement.nodes,
            _pulse=pulse,
        )
        process.flush()
        outcome = dataclasses.replace(outcome, ended=time.time(), pid=os.getpid())
        trial.send_end(channel, job.request, outcome)
        return 0

    trial.end_after(serve, parent)


def _enter(job: Job, placement: Placement) -> None:
    """Turn a process with the trial's log and environment into the rank's."""
    signal.signal(signal.SIGABRT, signal.SIG_DFL)
    faulthandler.disable()  # enabled already in a fork, where its handler of SIGABRT was replaced
    faulthandler.enable()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, write_through=False)  # type: ignore[union-attr]  # a TextIOWrapper here
    # The same in all attempts, as torchrun's; torch recognizes torchrun by it.
    os.environ.update({**placement.env(job.workdir), "TORCHELASTIC_RUN_ID": f"{job.request.run}-{job.request.trial}"})
    trial.enter_mlflow(job.config, job.request)
    tempfile.tempdir = None  # read TMPDIR again
    workdir = placement.workdir(job.workdir)
    workdir.mkdir(exist_ok=True)
    os.chdir(workdir)
    policies.apply_all()
    environment.use_cores(placement.threads)
    process.seed_everything(job.request.seed)


def _main() -> None:
    channel: RankChannel = Channel(socket.socket(fileno=int(sys.argv[1])), messages.TO_RANK)
    message = channel.receive()
    assert isinstance(message, messages.RunRank), "what a supervisor sends first"
    job = Job(None, message.config, message.request, Path(message.workdir))
    run_and_end(job, placement_of(job, message.local, message.address), channel, int(sys.argv[2]))


if __name__ == "__main__":
    policies.apply_all()
    _main()
