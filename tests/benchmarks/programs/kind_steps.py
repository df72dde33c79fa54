"""Seconds from `kind create cluster` to a study that SUCCEEDED, step by step. Creates a cluster and deletes it.

    python -m tests.benchmarks.programs.kind_steps --kuberay 'helm install kuberay-operator kuberay/kuberay-operator --wait'

Run it from the repository's root, with both images built (`platform image build --device cpu`). The steps are those of the
README's kind section. Ends with 1 when a step failed, and then says what it printed; the cluster goes in either case unless
it shall be kept.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import yaml
from rich.console import Console
from rich.table import Table
from tests.benchmarks import machine
from tests.benchmarks.workplace import ROOT

from trialplane.wire import env

PLATFORM = Path(sys.executable).with_name("platform")
RELEASE = "platform"
PATIENCE = 1800.0  # seconds for one step


class StepFailed(Exception):
    """A command did not do its work; says what it printed."""


@dataclasses.dataclass
class Steps:
    """Commands run one after the other, with the seconds that each took.

    Attributes:
        environment: of all of them.
        taken: what was done → seconds, in order.
    """

    environment: dict[str, str]
    taken: dict[str, float] = dataclasses.field(default_factory=dict)

    def run(self, what: str, command: Sequence[str] | str) -> None:
        """Runs a command, a string by the shell; its output is shown when it fails.

        Raises:
            StepFailed: it did.
        """
        shown = command if isinstance(command, str) else " ".join(command)
        sys.stderr.write(f"{what}: {shown}\n")
        before = time.perf_counter()
        try:
            done = subprocess.run(
                command,
                shell=isinstance(command, str),
                cwd=ROOT,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=PATIENCE,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise StepFailed(f"{what}: not done after {PATIENCE:g} s: {shown}\n{_text(error.stdout)}") from error
        except OSError as error:
            raise StepFailed(f"{what}: {shown}: {error.strerror}") from error
        self.taken[what] = time.perf_counter() - before
        if done.returncode:
            raise StepFailed(f"{what}: {shown} ended with {done.returncode}:\n{done.stdout}")


def main() -> int:
    """Goes the way once and prints the table."""
    parser = argparse.ArgumentParser(prog="kind_steps", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kuberay", required=True, metavar="CMD", help="installs KubeRay in the current context and waits")
    parser.add_argument("--name", default="trialplane-steps", help="of the cluster, which must not exist")
    parser.add_argument("--namespace", default="trialplane", help="of the chart")
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--parallel", type=int, default=2)
    parser.add_argument("--keep", action="store_true", help="leave the cluster")
    options = parser.parse_args()
    facts = machine.facts()
    with tempfile.TemporaryDirectory(prefix="trialplane-kind-") as scratch:
        folder = Path(scratch)
        # A kubeconfig of its own: neither the user's contexts nor the current one change.
        environment = {**os.environ, "KUBECONFIG": str(folder / "kubeconfig"), env.HOME: str(folder / "home")}
        steps = Steps(environment)
        error = ""
        try:
            if options.name in _clusters(environment):
                raise StepFailed(f"there is a cluster {options.name} already; choose another with --name")
            try:
                _go(steps, folder, options)
            finally:
                if not options.keep:
                    steps.run("delete the cluster", ["kind", "delete", "cluster", "--name", options.name])
        except StepFailed as failed:
            error = str(failed)
    _print(steps, facts)
    if error:
        sys.stderr.write(f"{error}\n")
    if options.keep:
        sys.stderr.write(f"the cluster is kept: `kind export kubeconfig --name {options.name}` makes its context\n")
    return 1 if error else 0


def _go(steps: Steps, folder: Path, options: argparse.Namespace) -> None:
    """From nothing to the end of the study."""
    config = yaml.safe_load((ROOT / "kind-config.yaml").read_text())
    config["name"] = options.name
    file = folder / "kind-config.yaml"
    file.write_text(yaml.safe_dump(config))
    context = f"kind-{options.name}"
    where = ["--context", context, "--namespace", options.namespace]
    steps.run("create the cluster", ["kind", "create", "cluster", "--config", str(file), "--wait", "300s"])
    steps.run("install KubeRay", options.kuberay)
    steps.run(
        "load the images",
        [str(PLATFORM), "image", "load", "--cluster", options.name, "--nodes", f"{options.name}-worker"],
    )
    steps.run(
        "install the chart",
        [
            *("helm", "install", RELEASE, "charts/platform", "--kube-context", context, "--wait", "--timeout", "15m"),
            *("--namespace", options.namespace, "--create-namespace", "--values", "charts/platform/values-kind.yaml"),
        ],
    )
    study = [str(PLATFORM), "submit", "hpo", "criteria", *where]
    study += ["--trials", str(options.trials), "--parallel", str(options.parallel)]
    steps.run(f"{options.trials} trials, {options.parallel} at a time, to SUCCEEDED", study)


def _clusters(environment: dict[str, str]) -> list[str]:
    try:
        done = subprocess.run(
            ["kind", "get", "clusters"], env=environment, capture_output=True, text=True, timeout=60, check=False
        )
    except OSError as error:
        raise StepFailed(f"kind: {error.strerror}; install it, and Docker and Helm") from error
    if done.returncode:
        raise StepFailed(f"kind get clusters ended with {done.returncode}: {done.stderr}")
    return done.stdout.split()


def _print(steps: Steps, facts: dict[str, object]) -> None:
    made = Table(title="from `kind create cluster` to SUCCEEDED", title_justify="left")
    made.add_column("step")
    made.add_column("seconds", justify="right")
    made.add_column("since the beginning", justify="right")
    total = 0.0
    for what, seconds in steps.taken.items():
        total += seconds
        made.add_row(what, f"{seconds:,.0f}", f"{total:,.0f}")
    Console(width=None if sys.stdout.isatty() else 120).print(made, machine.line(facts), highlight=False)


def _text(printed: str | bytes | None) -> str:
    return printed.decode(errors="replace") if isinstance(printed, bytes) else printed or ""


if __name__ == "__main__":
    sys.exit(main())
