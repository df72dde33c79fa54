"""The common part of studies and trainings: trials with several processes, and scripts and commands as trials."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Literal

from pydantic import Field

from trialplane import errors
from trialplane.errors import FieldPath, Issue
from trialplane.job import credentials, values
from trialplane.job.kinds import program
from trialplane.job.kinds.base import Base, Function, ProgramFile
from trialplane.job.search import Stop, Stops

# Bytes of /dev/shm for each rank: for NCCL's buffers between GPUs of a node, and for the batches of a DataLoader's workers.
_SHM_OF_GPU_RANK = 2**30
SHM_OF_CPU_RANK = 2**28
_MOST_RANKS = 64  # limit of the numbers of ranks in a message


class Ranked(Base):
    """A job whose trials may have several processes on several machines."""

    divided: tuple[str, ...] = Field(
        default=(),
        description="Parameters that all ranks share evenly, such as a global batch size: [batch]. They must be multiples "
        "of the world size.",
    )
    ranks: values.Integer | None = Field(
        default=None,
        gt=0,
        description="Number of processes of a trial on each node. Default: one per GPU, or one without GPUs.",
    )
    nodes: values.Integer = Field(default=1, gt=0, description="Number of nodes (pods) of a trial.")
    stop: Stops = Field(
        default=(),
        description="Rule, or list of rules, that end a trial early. The trial counts as complete, with the metrics it "
        "reported.",
    )
    script: program.ScriptFile | None = Field(
        default=None, description="Python script that a trial runs instead of an entrypoint: train.py."
    )
    command: program.Command | None = Field(
        default=None,
        description="Program that a trial runs instead of an entrypoint, with its first arguments: [./train, "
        '"--lr={lr}"]. {lr} is a parameter.',
    )
    arguments: program.ArgumentsField | None = Field(
        default=None,
        description="Arguments of the script or command: flags (--lr 0.1), hydra (lr=0.1), pairs (SOLVER.LR 0.1), "
        "globals (parameters replace what the script assigns to their names), a settings file (params.yaml: parameters "
        "replace its values), none, or a list. Default: flags for a script, none for a command.",
    )
    cwd: Literal["code", "workdir"] | None = Field(
        default=None,
        description="Working directory of the script or command. code: a copy of the job's folder for each trial. "
        "workdir: an empty folder.",
    )
    metrics: program.MetricSources | None = Field(
        default=None,
        description="Sources of the metrics of the script or command. Default: its output and its MLflow calls, and at the "
        "end TensorBoard files for a metric that these lack.",
    )
    system_metrics: values.SamplingInterval = Field(
        default=None,
        description="Record the processor time, memory and GPU use of each trial's processes in MLflow, as system metrics. "
        "true: every 10 s. Or an interval: 1m. Of several nodes, only the first one is recorded.",
    )

    @property
    def stops(self) -> tuple[Stop, ...]:
        """Rules that end a trial early, as complete."""
        return (self.stop,) if isinstance(self.stop, Stop) else self.stop

    @property
    def requires(self) -> str:
        """Path of the requirements file, or else of the script, whose metadata may list packages. "" without either."""
        return self.requirements or self.script or ""

    def functions(self) -> Iterator[Function]:
        """Yield the functions that the job names. A job with a script or a command names none."""
        return iter(()) if self.script or self.command else super().functions()

    def programs(self) -> Iterator[ProgramFile]:
        """Yield the script, or the program of the command if it is a file of the job's folder."""
        if self.script:
            yield ProgramFile(field=("script",), path=self.script, is_python=True)
        elif self.command:
            executable = self.command[0]
            is_in_folder = "/" in executable and not executable.startswith("/")  # other names are searched in PATH
            if is_in_folder and "{" not in executable:  # a placeholder has another value in each trial
                yield ProgramFile(field=("command", 0), path=executable, is_python=False)

    @property
    def ranks_per_node(self) -> int:
        """Number of processes of a trial on each of its nodes."""
        return self.ranks or max(1, self.resources.gpu_count)

    @property
    def world_size(self) -> int:
        """Number of processes of one trial."""
        return self.ranks_per_node * self.nodes

    @property
    def shm_of_ranks(self) -> int:
        """Bytes of /dev/shm on each node: set by the job, or else a number for each rank."""
        bytes_per_rank = _SHM_OF_GPU_RANK if self.resources.gpus else SHM_OF_CPU_RANK
        return self.resources.shm_bytes or self.ranks_per_node * bytes_per_rank

    def advice(self) -> Iterator[str]:
        """Yield remarks for the user about secrets, and about ranks that do not match the resources of a node."""
        yield from super().advice()
        if self.command and credentials.mask(self.command) != list(self.command):
            yield (
                "everyone who may see the run sees the secret in command: drop it, and let the program read an environment "
                "variable; see `platform docs scripts`"
            )
        ranks, resources = self.ranks_per_node, self.resources
        if resources.gpus > ranks:
            yield (
                f"{errors.counted(ranks, 'rank')} for {resources.gpus} GPUs on a node: a rank uses one, unless its code "
                f"takes more; --ranks {resources.gpus} uses all"
            )
        if ranks > 1 and ranks > resources.cpus:
            yield f"{ranks} ranks share {resources.cores} (resources.cpus) and wait for each other"

    def check(self, broken: Collection[FieldPath]) -> Iterator[Issue]:
        """Yield the issues of all jobs, of ranks and GPUs, and of scripts and commands."""
        yield from super().check(broken)
        yield from program.check(self, broken)
        if ("params",) not in broken and ("space",) not in broken:
            yield from _divided_issues(self, broken)
        gpus = self.resources.gpu_count
        if self.resources.gpu_share < 1 and self.nodes > 1:
            yield Issue(("resources", "gpus"), f"is a share of one GPU, and a trial of {self.nodes} nodes needs whole ones")
        if self.ranks is not None and 0 < gpus < self.ranks:
            message = f"{self.ranks} is more than the GPUs of a node ({gpus}), and ranks cannot share one"
            advice_text = f"write ranks: {gpus}, or leave it out for one per GPU, or resources.gpus: 0"
            yield Issue(("ranks",), f"{message}; {advice_text}")


def _divided_issues(job: Ranked, broken: Collection[FieldPath]) -> Iterator[Issue]:
    """Yield issues of the parameters in `divided`, such as a global batch size: they must be multiples of the world size.

    With an uneven division, one rank would have a larger batch than another. But their gradients are averaged with equal
    weights, so samples of the larger batch would count less.
    """
    # Names in `at_least`, and numbers. `Base.check` has checked that the values of these parameters are positive integers.
    checked_names = {term for input_ in job.inputs.values() for term in input_.terms}
    for index, name in enumerate(job.divided):
        value = job.params.get(name)
        if name in job.search.names:
            continue  # its values are drawn later, so only the code of a trial can check them
        if name not in job.params:
            hint = errors.nearest(name, job.params)
            yield Issue(("divided", index), f"there is no {name!r} in params; {hint}".rstrip("; "))
        elif type(value) is not int or value < 1:
            if name not in checked_names:
                yield Issue(("params", name), f"must be a whole number over 0, not {value!r}: divided names it")
        elif value % job.world_size and not {("ranks",), ("nodes",), ("resources",)} & set(broken):
            yield Issue(("params", name), _division_problem(value, job.world_size))


def _division_problem(value: int, ranks: int) -> str:
    """Return the message for a number that is not a multiple of the number of ranks, with numbers that would fit."""
    lower = value - value % ranks  # of 10 among 4 ranks: 8, which is 0 for a value below 4
    multiples = " or ".join(str(multiple) for multiple in (lower, lower + ranks) if multiple)
    possible_ranks = [str(count) for count in range(1, min(value, _MOST_RANKS) + 1) if value % count == 0]
    message = f"{value} cannot be divided evenly among {ranks} ranks: make it {multiples}"
    return f"{message}, or change the number of ranks, which can be {', '.join(possible_ranks)}"
