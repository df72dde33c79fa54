"""Run one trial of a job without the platform: `python jobs/criteria/train.py --set lr=1e-4`. No controller, no ledger.

`torchrun --nproc_per_node=8 jobs/cnm-bert/train.py` runs it with 8 ranks: torchrun starts the processes, and each reads its
rank from the variables that torchrun sets. `--NAME VALUE` is short for `--set NAME=VALUE`: `--max_train_samples 1000`. A
collection runs in this one process: `python jobs/selfplay/train.py --units 4 --iterations 2`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trialplane import errors, policies
from trialplane.job import document, kinds, load, short_forms
from trialplane.job.kinds import Collection, Job, Study, Training
from trialplane.training import process, progress
from trialplane.wire import paths
from trialplane.worker import context


def standalone(file: str, run: Callable[..., Any], learn: Callable[..., Any] | None = None) -> None:
    """Run one trial without the platform. Call it at the end of a train.py, to make it a script too.

    Then `python train.py --set lr=1e-4` runs a trial, `torchrun --nproc_per_node=8 train.py` runs one with 8 ranks, and
    `python train.py --units 4 --iterations 2` runs a small collection. Parameters come from job.yaml: the fixed ones, and
    the first point of `enqueue` or the middle of each range. `--help` lists the options.

        if __name__ == "__main__":
            trialplane.standalone(__file__, run)

    Args:
        file: `__file__` of the script. job.yaml is in the same folder.
        run: Function of the job. For a collection, the function of the workers.
        learn: Function of the learner of a collection, if it has one.
    """
    main(file, run, learn=learn)


def main(
    file: str,
    run: Callable[..., Any],
    argv: Sequence[str] | None = None,
    learn: Callable[..., Any] | None = None,
) -> None:
    """Run one trial and print its result.

    Parameters come from job.yaml, with `--profile`: the fixed ones, then the first `enqueue` point or the middle of each
    range; then from the file of `--config`, then from `--set name=value` and `--name value`. An error in the user's input
    is shown as its message alone, and ends the process with its exit code.

    Args:
        file: Script's `__file__`; its folder holds job.yaml.
        run: Function of the job; for a collection, the function of the workers.
        argv: Arguments in place of those of the process.
        learn: Function of the learner of a collection, if it has one.
    """
    try:
        _run(file, run, argv, learn)
    except errors.InputError as error:
        rank = f"rank {os.environ['RANK']}: " if int(os.environ.get("WORLD_SIZE", "1")) > 1 else ""
        sys.stderr.write(f"{rank}{error}\n")
        sys.exit(error.exit_code)


def _run(file: str, run: Callable[..., Any], argv: Sequence[str] | None, learn: Callable[..., Any] | None) -> None:
    """Run one trial and print its result, as `main` does.

    Raises:
        InputError: The user's input has an error.
    """
    folder = Path(file).resolve().parent
    kind = kinds.kind_class(document.read(folder / load.FILE).data.get("kind"))
    is_collection = kind is Collection  # another kind may have parameters with the names of a collection's sizes
    arguments, unparsed = _parser(folder.name, has_sizes=is_collection).parse_known_args(argv)
    policies.apply_all()
    size_names = ("units", "iterations") if is_collection else ()
    sizes = {f"collect.{name}": load.Flag(getattr(arguments, name), f"--{name}") for name in size_names}
    job = load.load_job(folder, profile=arguments.profile, overrides=sizes, environ=os.environ)
    params = _params(job, arguments, unparsed)
    process.seed_everything(arguments.seed)
    rank = int(os.environ.get("RANK", "0"))
    with tempfile.TemporaryDirectory(prefix="trialplane-") as workdir:
        fields = {
            **_context_fields(job, folder, rank),
            "params": params,
            "seed": arguments.seed,
            "workdir": Path(workdir),
            "checkpoints": arguments.checkpoints or _checkpoints(job, Path(workdir)),
        }
        try:
            result = _call_job(job, run, learn, fields)
        except context.Stopped as stopped:
            if rank == 0:
                sys.stderr.write(f"{stopped}\n")
            sys.exit(128 + signal.SIGTERM)  # the exit code that a shell reports for a process ended by SIGTERM
    if rank == 0:
        print(json.dumps(result if isinstance(result, Mapping) else {"value": result}, default=str, indent=2))  # noqa: T201


def _call_job(job: Job, run: Callable[..., Any], learn: Callable[..., Any] | None, fields: Mapping[str, Any]) -> Any:
    """Call the job's functions with a context of these fields, and return the result."""
    if isinstance(job, Collection):
        return _run_collection(job, run, learn, fields)
    ctx = context.Context(**fields, trial=0)
    with context.activate(ctx):
        return run(ctx)


def _context_fields(job: Job, folder: Path, rank: int) -> dict[str, Any]:
    """Return the fields of the context that follow from the job, its folder and torchrun's variables."""
    return {
        "run": "standalone",
        "attempt": 1,
        # All ranks of a training share the whole machine. A study and a collection get as many threads as on the platform,
        # because the last digits of their results depend on that number.
        "cpus": process.cores() if isinstance(job, Training) else job.resources.threads,
        "gpus": job.resources.gpu_count,
        "code": folder,
        "cache": paths.cache(paths.home()),
        "_reporter": _print_report if rank == 0 else _drop_report,
        "rank": rank,
        "local_rank": int(os.environ.get("LOCAL_RANK", "0")),
        "world_size": int(os.environ.get("WORLD_SIZE", "1")),
    }


def _parser(job_name: str, *, has_sizes: bool) -> argparse.ArgumentParser:
    """Return a parser of the command line, except for the parameters of the job; with `has_sizes`, for a collection."""
    parser = argparse.ArgumentParser(
        description=f"Run one trial of {job_name} alone.",
        epilog="Any parameter of job.yaml is an argument too: --NAME VALUE.",
        allow_abbrev=False,
    )
    parser.add_argument("--profile", metavar="NAME", help="a profile of job.yaml")
    parser.add_argument("--config", type=Path, metavar="FILE", help="a YAML file of parameters")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a parameter's value")
    if has_sizes:
        parser.add_argument("--units", "--games", type=int, help="units per iteration")
        parser.add_argument("--iterations", type=int, help="number of iterations")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--checkpoints",
        metavar="FOLDER",
        help="folder or fsspec URL for checkpoints, from which the job resumes (default: ./checkpoints/<job>; for a study, "
        "a scratch folder)",
    )
    return parser


def _params(job: Job, arguments: argparse.Namespace, unparsed: Sequence[str]) -> dict[str, Any]:
    """Return the trial's parameters, from job.yaml and the command line; see `main` for their order.

    The `unparsed` arguments are in the form `--NAME VALUE` or `--NAME=VALUE`.

    Raises:
        InputError: The file of `--config` cannot be read, or an argument is unknown or has no value.
    """
    params = {**job.params, **job.search.start_point()}
    names = {*params, *job.search.parameters}  # the starting point may leave out some parameters
    assignments = [(text, f"--set {text}") for text in arguments.set]
    typed_params = dict(short_forms.value(text, source) for text, source in [*assignments, *_assignments(unparsed)])
    for name in typed_params.keys() - names:
        if not job.search.function:  # else a function of the job defines the parameters, so their names are unknown
            raise errors.InputError(f"{name}: there is no such parameter; {errors.nearest(name, names)}".rstrip("; "))
    config = document.read(arguments.config, f"--config {arguments.config}").data if arguments.config else {}
    return {**params, **config, **typed_params}


def _assignments(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield an assignment `name=value` for each `--name value` or `--name=value`, with the flag `--name` for messages.

    Raises:
        InputError: An argument has neither form.
    """
    remaining = iter(arguments)
    for argument in remaining:
        flag, equals, value = argument.partition("=")
        if not flag.startswith("--"):
            raise errors.InputError(f"{argument!r} is not an option; write --NAME VALUE")
        if not equals:
            next_argument = next(remaining, None)
            if next_argument is None:
                raise errors.InputError(f"{flag} has no value; write {flag} VALUE")
            value = next_argument
        name = flag.removeprefix("--").replace("-", "_")
        yield f"{name}={value}", flag


def _checkpoints(job: Job, workdir: Path) -> str:
    """Return the location of checkpoints; for a study a scratch folder, because the next trial may have other parameters."""
    return str(workdir / "checkpoints" if isinstance(job, Study) else Path("checkpoints", job.name).absolute())


def _run_collection(
    job: Collection, play: Callable[..., Any], learn: Callable[..., Any] | None, fields: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Run a collection and print the metrics of each iteration; return the result of the last one."""
    from trialplane.worker.collect import alone as collecting  # no other kind needs it

    _, learner_role = job.roles()
    learner_fields = {"cpus": learner_role.resources.threads, "gpus": learner_role.resources.gpu_count}
    returned: Mapping[str, Any] = {}
    for iteration, returned in enumerate(collecting.run(job.collect, play, learn, fields, learner_fields)):
        numbers = {name: value for name, value in returned.items() if isinstance(value, (int, float))}
        print(f"iteration {iteration}: " + "  ".join(f"{name} {value:.6g}" for name, value in numbers.items()), flush=True)  # noqa: T201
    return returned


def _drop_report(step: int, metrics: Mapping[str, float], *, waits: bool = True) -> bool:
    """Ignore a report, as a `context.Reporter` of other ranks than 0."""
    return False


def _print_report(step: int, metrics: Mapping[str, float], *, waits: bool = True) -> bool:
    """Print a report, as a `context.Reporter`."""
    print(progress.log_line(step, metrics), flush=True)  # noqa: T201
    return False
