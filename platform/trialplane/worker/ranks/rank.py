"""One rank of a trial: its placement among the ranks, and its process from start to end.

`run_and_end` is called in a fork of the supervisor (supervisor.py); `python -m trialplane.worker.ranks.rank FD PARENT` does
the same in a new interpreter. The environment has torchrun's variables, so `init_process_group()` and Accelerate work
unchanged.
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
from trialplane.wire import messages, paths, records
from trialplane.worker import context, environment, trial
from trialplane.worker.channel import Channel
from trialplane.worker.ranks import meeting


@dataclasses.dataclass(frozen=True)
class Placement:
    """The placement of one rank.

    Attributes:
        local_rank: Number of the rank on this node.
        ranks_per_node: Number of ranks on each node.
        node: Number of this node.
        nodes: Number of nodes.
        address: Rendezvous as host:port; rank 0 listens there.
        cpus: Number of cores for all ranks of this node together.
        restarts: Number of attempts before this one.
    """

    local_rank: int
    ranks_per_node: int
    node: int
    nodes: int
    address: str
    cpus: int
    restarts: int

    @property
    def rank(self) -> int:
        """The global number of the rank."""
        return self.node * self.ranks_per_node + self.local_rank

    @property
    def world_size(self) -> int:
        """The number of ranks on all nodes."""
        return self.nodes * self.ranks_per_node

    @property
    def threads(self) -> int:
        """The number of threads for computing."""
        return max(1, self.cpus // self.ranks_per_node)

    def workdir(self, trial_workdir: Path) -> Path:
        """Return the scratch folder of the rank, below the trial's, so that ranks can write files of the same name."""
        return trial_workdir if self.local_rank == 0 else trial_workdir / f"rank-{self.rank}"

    def env(self, trial_workdir: Path) -> dict[str, str]:
        """Return torchrun's variables, and those of threads and the scratch folder; `trial_workdir` is the trial's."""
        host, _, port = self.address.rpartition(":")
        gloo = {}
        if host == meeting.LOOPBACK and "GLOO_SOCKET_IFNAME" not in os.environ:
            # Otherwise gloo resolves this machine's name by DNS, and may use another interface.
            gloo = {"GLOO_SOCKET_IFNAME": "lo"}
        return {
            "RANK": str(self.rank),
            "LOCAL_RANK": str(self.local_rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_WORLD_SIZE": str(self.ranks_per_node),
            "GROUP_RANK": str(self.node),
            "GROUP_WORLD_SIZE": str(self.nodes),
            "MASTER_ADDR": host,
            "MASTER_PORT": port,
            "TORCHELASTIC_RESTART_COUNT": str(self.restarts),
            "OMP_NUM_THREADS": str(self.threads),
            "MKL_NUM_THREADS": str(self.threads),
            "TMPDIR": str(self.workdir(paths.short_path(trial_workdir))),
            **gloo,
        }


@dataclasses.dataclass(frozen=True)
class TrialWork:
    """The work that all ranks of a trial share.

    Attributes:
        job_function: Function of the job; None if the rank must import it.
        config: Configuration of the slot.
        request: Request of the trial.
        workdir: Scratch folder of the trial.
    """

    job_function: context.JobFunction | None
    config: records.SlotConfig
    request: records.TrialRequest
    workdir: Path


def placement_of(work: TrialWork, local_rank: int, address: str) -> Placement:
    """Return the placement of a rank of this node; `address` is the rendezvous."""
    config, request = work.config, work.request
    return Placement(
        local_rank, config.ranks, request.node, config.nodes, address, config.cpus, restarts=request.attempt - 1
    )


# The channel to the supervisor, from the rank's side.
RankChannel = Channel[messages.FromRank, messages.ToRank]


class _SilentReporter(trial.Reporter):
    """A reporter of a rank other than 0, which drops the reports."""

    def __call__(self, step: int, metrics: Mapping[str, float], *, waits: bool = True) -> bool:
        return False


def run_and_end(work: TrialWork, placement: Placement, channel: RankChannel, parent: int) -> None:
    """Run the job as one rank and end the process; `parent` is the pid of the supervisor."""

    def serve() -> int:
        """Run the job, send the outcome to the supervisor, and return the exit code."""
        _set_up_process(work, placement)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # the supervisor blocked it until here

        def pulse(step: int, seconds: float) -> None:
            """Send the duration of a step to the supervisor, if it still exists."""
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                channel.send(messages.Pulsed(step, seconds))

        make_reporter = _SilentReporter if placement.rank else trial.Reporter
        outcome = trial.run_job(
            work.job_function,
            work.config,
            work.request,
            placement.workdir(work.workdir),
            make_reporter(work.request, channel),
            rank=placement.rank,
            local_rank=placement.local_rank,
            world_size=placement.world_size,
            _pulse=pulse,
        )
        process.flush()
        outcome = dataclasses.replace(outcome, ended=time.time(), pid=os.getpid())
        trial.send_end(channel, work.request, outcome)
        return 0

    trial.end_after(serve, parent)


def _set_up_process(work: TrialWork, placement: Placement) -> None:
    """Set up this process, which has the trial's log and environment, for the rank."""
    # In a fork, faulthandler is enabled, but the supervisor has replaced its handler of SIGABRT.
    signal.signal(signal.SIGABRT, signal.SIG_DFL)
    faulthandler.disable()
    faulthandler.enable()
    for stream in (sys.stdout, sys.stderr):  # write whole lines: the supervisor adds the rank's number to each
        stream.reconfigure(line_buffering=True, write_through=False)  # type: ignore[union-attr]  # a TextIOWrapper here
    # torch recognizes torchrun by this id, which torchrun also gives to all attempts of a job.
    os.environ.update({**placement.env(work.workdir), "TORCHELASTIC_RUN_ID": f"{work.request.run}-{work.request.trial}"})
    trial.enter_mlflow(work.config, work.request)
    tempfile.tempdir = None  # read TMPDIR again
    workdir = placement.workdir(work.workdir)
    workdir.mkdir(exist_ok=True)
    os.chdir(workdir)
    policies.apply_all()
    environment.use_cores(placement.threads)
    process.seed_everything(work.request.seed)


def _main() -> None:
    """Run a spawned rank: read its work from the supervisor's channel, and run the job."""
    channel: RankChannel = Channel(socket.socket(fileno=int(sys.argv[1])), messages.TO_RANK)
    message = channel.receive()
    assert isinstance(message, messages.RunRank), "a supervisor sends RunRank first"
    work = TrialWork(job_function=None, config=message.config, request=message.request, workdir=Path(message.workdir))
    run_and_end(work, placement_of(work, message.local, message.address), channel, int(sys.argv[2]))


if __name__ == "__main__":
    policies.apply_all()
    _main()
