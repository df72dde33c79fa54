"""`python -m tests.chaos`: kills pods of every role at random while a study runs, and counts what that cost.

Needs the chart in a namespace, KubeRay, and rights to delete pods there and KubeRay's. Ends with 0 when every trial asked
for ended exactly once in the ledger and in MLflow, with 1 when not, and with 130 on Ctrl-C, which leaves the run as it is.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import secrets
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.chaos.kills import Kills, KindCluster, Rules, roles
from tests.e2e.conftest import Cluster
from tests.e2e.recorded import mlflow_runs

from trialplane import errors
from trialplane.client.kubernetes import KubernetesTarget
from trialplane.client.run import RunHandle
from trialplane.errors import TrialplaneError
from trialplane.wire.records import RunStatus
from trialplane.wire.states import RunState

WHAT = "Kills pods of every role at random while a study runs, and counts what that cost."
POLL = 1.0  # seconds between looks
REST = 60.0  # seconds after which a paused run will not go on by itself; one whose head is made anew is paused for a moment
PATIENCE = 3600.0  # seconds that a run may take to end once the killing is over
# A trial sleeps for two seconds and reports three times: what a run lasts is not a matter of the machine. Lost attempts are
# tried again as often as in any study.
FLAGS = ("--set", "params.pause=0.7", "--set", "retries.lost=5")
FINAL = {"COMPLETE", "PRUNED"}


@dataclasses.dataclass(frozen=True)
class Count:
    """The trials of the run, counted by how they ended.

    Attributes:
        asked: trials of the run.
        ended: those that completed or were pruned.
        failed: those that failed for good; they count as lost.
        doubled: those that ended more than once in the ledger.
        recorded: those that ended in MLflow.
        recorded_twice: those that ended more than once in MLflow.
        open: runs of trials that MLflow takes to be running.
        again: attempts that were lost and tried again.
    """

    asked: int
    ended: int
    failed: int
    doubled: int
    recorded: int
    recorded_twice: int
    open: int
    again: int

    @property
    def lost(self) -> int:
        """Trials without a result."""
        return self.asked - self.ended

    @property
    def is_exact(self) -> bool:
        """Whether each trial ended once, in both places."""
        return (self.ended, self.recorded) == (self.asked, self.asked) and not (
            self.doubled or self.recorded_twice or self.open
        )


def count(requested: int, attempts: Iterable[Mapping[str, Any]], recorded: Iterable[Mapping[str, Any]]) -> Count:
    """Counts trials; those of a number that nobody asked for are doubled ones.

    Args:
        requested: trials of the run.
        attempts: `trial` and `state` of all, those tried again too.
        recorded: `tags` and `status` of each run of a trial in MLflow.
    """
    rows_read, runs = list(attempts), list(recorded)
    ledger = Counter(int(row["trial"]) for row in rows_read if row["state"] in FINAL)
    tags = [run["tags"] for run in runs]
    mlflow = Counter(int(row["trialplane.trial"]) for row in tags if row.get("trialplane.state") in FINAL)
    return Count(
        asked=requested,
        ended=sum(trial in ledger for trial in range(requested)),
        failed=len({row["trial"] for row in rows_read if row["state"] == "FAILED"} - set(ledger)),
        doubled=_doubled(ledger, requested),
        recorded=sum(trial in mlflow for trial in range(requested)),
        recorded_twice=_doubled(mlflow, requested),
        open=sum(run["status"] == "RUNNING" for run in runs),
        again=sum(row["state"] == "LOST" for row in rows_read),
    )


def _doubled(ended: Counter[int], requested: int) -> int:
    return sum(times > 1 or trial not in range(requested) for trial, times in ended.items())


def table(count_: Count, kills: Kills, seconds: float) -> str:
    """The one table, in Markdown."""
    rows = [
        ("asked", count_.asked, ""),
        ("ended", count_.ended, ""),
        ("lost", count_.lost, f"{count_.failed} failed for good" if count_.failed else ""),
        ("doubled in the ledger", count_.doubled, ""),
        ("doubled in MLflow", count_.recorded_twice, ""),
        ("missing in MLflow", count_.asked - count_.recorded, ""),
        ("left open in MLflow", count_.open, ""),
        ("attempts tried again", count_.again, ""),
        ("kills", len(kills.done), ""),
    ]
    for role in sorted({*kills.roles, *(kill.role for kill in kills.done)}):
        of_role = [kill for kill in kills.done if kill.role == role]
        back = [kill.back - kill.at for kill in of_role if kill.back is not None]
        took = f"ready again after {statistics.median(back):.0f} s (median), {max(back):.0f} s at most" if back else ""
        rows.append((f"kills: {role}", len(of_role), took))
    rows.append(("seconds", round(seconds), "until the run's end, and that of the last outage"))
    wide = max(len(name) for name, _, _ in rows)
    lines = [f"| {name:{wide}} | {number:>6} | {note} |" for name, number, note in rows]
    return "\n".join([f"| {'':{wide}} | {'':>6} | |", f"|-{'-' * wide}-|-{'-' * 5}:|---|", *lines])


@dataclasses.dataclass(frozen=True)
class Study:
    """The run that is looked at.

    Attributes:
        cluster: its namespace as a user sees it.
        name: of the run.
    """

    cluster: Cluster
    name: str

    @functools.cached_property
    def target(self) -> KubernetesTarget:
        """The cluster that it runs in."""
        return KubernetesTarget(self.cluster.context, self.cluster.namespace)

    def status(self) -> RunStatus | None:
        """The current counts; None while the gateway or the API server is away."""
        try:
            return RunHandle(self.name, self.target).status()
        except TrialplaneError as error:
            if isinstance(error, errors.InputError):  # no such run
                raise
            return None

    def count(self) -> Count:
        """Counts its trials where a user would look."""
        status = self.cluster.until("status", self.status)
        attempts = self.cluster.said("results", self.name, "--all-attempts")
        return count(status.trials, attempts, mlflow_runs(self.cluster, self.name, status.job))


def storm(study: Study, kills: Kills, bound: float, say: Callable[[str], None]) -> RunStatus:
    """Kills until the run has ended, or for `bound` seconds; then waits for its end, and for what was killed last.

    Raises:
        TimeoutError: the run, or what the counting needs, was not there in time.
    """
    began, over, last, moving = time.monotonic(), None, None, 0.0
    while True:
        now = time.monotonic() - began
        last = study.status() or last
        if last is None or last.state is not RunState.PAUSED:
            moving = now
        is_ended = last is not None and (last.state.is_ended or now > moving + REST)
        if over is None and (is_ended or now > bound or (kills.once and not kills.left)):
            over = now
            say(f"{now:5.0f} s  the killing is over, the run is {last.state if last else 'not known'}")
        try:
            # Once is to hit a run that has something to lose.
            kills.look(now, strike=over is None and (not kills.once or (last is not None and last.ended_trials > 0)))
        except TrialplaneError as error:  # the API server of a busy machine, too
            say(f"{now:5.0f} s  {error}")
        if last is not None and is_ended and not kills.missing:
            return last
        if over is not None and now > over + PATIENCE:
            missing = ", ".join(sorted({kill.role for kill in kills.out})) or "nothing"
            raise TimeoutError(f"{study.name} has not ended {PATIENCE:g} s after the last kill; still away: {missing}")
        time.sleep(POLL)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=WHAT)
    parser.add_argument("--context", required=True, help="of the kubeconfig")
    parser.add_argument("--namespace", required=True, help="of the team that runs it")
    parser.add_argument("--trials", type=int, default=800, help="of the study that is submitted (default: 800)")
    parser.add_argument("--parallel", type=int, default=2, help="its slots (default: 2)")
    parser.add_argument("--run", default="", help="this run, in place of a new study")
    parser.add_argument("--every", type=float, default=20.0, metavar="SECONDS", help="from kill to kill (default: 20)")
    parser.add_argument(
        "--for", dest="bound", type=float, default=7200.0, metavar="SECONDS", help="kill no longer than that"
    )
    parser.add_argument("--seed", type=int, default=0, help="of what is killed when (default: 0)")
    parser.add_argument("--nodes", action="store_true", help="stop nodes of a kind cluster as well")
    parser.add_argument(
        "--once", action="store_true", help="after the first trial kill each role once, then wait for the end"
    )
    parser.add_argument(
        "--cut", type=float, default=0.0, metavar="SECONDS", help="cut pods off from the network of a kind cluster instead"
    )
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="trialplane-chaos-") as home:
        study = Study(
            Cluster(options.namespace, Path(home), options.context), options.run or f"chaos-{secrets.token_hex(2)}"
        )
        try:
            return _measure(study, options)
        except TrialplaneError as error:
            _say(f"error: {error}")
            return error.exit_code
        except (AssertionError, TimeoutError) as error:
            _say(f"error: {error}")
            return 1


def _measure(study: Study, options: argparse.Namespace) -> int:
    cluster = KindCluster(options.context, options.namespace)
    if options.run:
        study.status()  # one that nobody knows is said now
    else:
        flags = ("--trials", str(options.trials), "--parallel", str(options.parallel), "--name", study.name, "--detach")
        study.cluster.platform("submit", "hpo", study.cluster.job(study.cluster.home / "jobs" / "chaos"), *FLAGS, *flags)
    rules = Rules(options.every, options.seed, options.nodes, options.once, options.cut)
    kills = Kills(cluster, roles(study.name), rules, _say)
    _say(f"{study.name} runs; a kill every {options.every:g} s, seed {options.seed}; Ctrl-C ends the killing, not the run")
    began = time.monotonic()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C does, for a stopped node must come back
    try:
        status = storm(study, kills, options.bound, _say)
        seconds = time.monotonic() - began
        result = study.count()
    except KeyboardInterrupt:
        where = f"--context {options.context} --namespace {options.namespace}"
        _say(f"\nkills so far: {len(kills.done)}; nothing was counted. {study.name} is left as it is:")
        _say(f"  platform status {study.name} {where}                   # how it goes on")
        _say(f"  python -m tests.chaos --run {study.name} {where}   # kill again, then count")
        _say(f"  platform cancel {study.name} {where}                   # end it")
        return errors.EXIT_INTERRUPTED
    finally:
        kills.restore()
    _say("")
    print(table(result, kills, seconds))  # noqa: T201
    if absent := [name for name in kills.left if name in kills.roles]:
        _say(f"\nnot killed, for no pod of it was ready in time: {', '.join(absent)}")
    if result.is_exact:
        return 0
    _say(f"\nNOT EXACT; the run is {status.state}: {status.reason}")
    return 1


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
