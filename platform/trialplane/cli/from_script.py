"""The job that `platform init --from train.py` makes: the script as it is, and a space guessed from its arguments."""

from __future__ import annotations

import dataclasses
import importlib.util
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trialplane import errors
from trialplane.cli import bounded, output, script_folder, smoke
from trialplane.cli.script_folder import ScriptFolder
from trialplane.errors import InputError
from trialplane.importing import guess, script
from trialplane.spec import arguments, load
from trialplane.wire import escapes, records
from trialplane.wire.declared import Declared, Option

_PATIENCE = 60.0  # seconds for a script's imports, and what else it does before it reads its arguments
_MOST_PARAMS = 40  # of a script with more arguments the job has those that are searched or must be given
_TRIALS, _PARALLEL = 20, 2


@dataclasses.dataclass(frozen=True)
class _Job:
    """What of a job is known before a smoke run.

    Attributes:
        script: its path in the job's folder.
        arguments: the field of job.yaml; None for the default.
        params: those given to every trial, with a comment each.
        space: those searched, with the reason for the guess.
        start: the arguments' values by default, where a job gives them.
        comments: what the file says about itself at its top.
        preload: modules to import that the template would not find by itself.
    """

    script: str
    arguments: Any
    params: dict[str, tuple[Any, str]]
    space: dict[str, tuple[dict[str, Any], str]]
    start: dict[str, Any]
    comments: list[str]
    preload: list[str]

    @property
    def missing(self) -> list[str]:
        """Parameters that the user must give a value."""
        return [name for name, (value, _) in self.params.items() if value is None]


def make(file: Path, folder: Path, *, with_smoke: bool) -> None:
    """Makes a job's folder from a script, or nothing at all.

    Args:
        file: the script.
        folder: of the job; it does not exist.
        with_smoke: whether to run the script once, to see its metrics.

    Raises:
        InputError: the script cannot be read, or does not come to the point where it reads its arguments.
        SpecError: it is not Python, or its configuration is not YAML.
    """
    if not file.exists():
        near = errors.nearest(file.name, [one.name for one in file.parent.glob("*.py")])
        raise InputError(f"there is no {file}; {near or 'give the path of a Python script'}; nothing was changed")
    if not file.is_file() or file.suffix != ".py":
        raise InputError(f"{file} is not a Python script; nothing was changed")
    with tempfile.TemporaryDirectory(prefix="trialplane-") as scratch:
        code = Path(scratch, "code")
        copied = script_folder.copy(file, code)
        read = copied.read
        _tell_missing(file, [*read.top, *read.late], (code / copied.script).parent)
        declared = _declared(file, copied, code, Path(scratch))
        job = _job(copied, declared)
        found = None
        shutil.copytree(code, used := Path(scratch, "smoke"))
        if with_smoke and not job.missing:
            limit = f"{smoke.LONGEST:.0f} seconds at most"
            output.note(f"{file.name} runs once with its defaults, for {limit}, to find its metrics; --no-smoke skips this")
            found = smoke.run(job.script, _line(job), used, Path(scratch))
            _tell(file.name, found)
        (code / load.FILE).write_text(_text(job, found), encoding="utf-8")
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(code, folder)
        except OSError as error:
            raise InputError(f"{folder} cannot be written: {error.strerror or error}") from error
    for text in copied.left:
        output.note(text)
    for text in declared.left_out:
        output.note(f"not in the job: {text}")
    for name in job.missing:
        output.note(f"{file.name} needs a value for {name}: write it into {folder / load.FILE}")
    guessed = f"{errors.counted(len(job.space), 'parameter')} to search, in ranges that are guessed"
    output.note(f"{folder / load.FILE} has {guessed}" if job.space else f"write what to search into {folder / load.FILE}")


def _tell_missing(file: Path, modules: Sequence[str], code: Path) -> None:
    """Names the libraries that the script imports and this interpreter has not."""
    for name in dict.fromkeys(module.partition(".")[0] for module in modules):
        if not (code / name).exists() and not (code / f"{name}.py").exists() and not _is_installed(name):
            output.note(
                f"{file.name} imports {name}, which is not installed here; on a cluster the trial image needs it too"
            )


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _declared(file: Path, copied: ScriptFolder, code: Path, scratch: Path) -> Declared:
    """The arguments of a script.

    Raises:
        InputError: it takes none, or ends before it reads them.
        SpecError: its configuration is not YAML.
    """
    read = copied.read
    if read.style == script.PARSED:
        return _dry(file, code, scratch)
    if read.style == arguments.HYDRA:
        if not copied.config:
            raise InputError(
                f"{file.name} names no Hydra configuration that is there; `platform import hydra FILE` reads one with a "
                f"sweep, and `python {file.name} -m hydra/sweeper=trialplane` needs no job at all"
            )
        config = code / copied.config
        groups: dict[str, tuple[str, ...]] = {}
        for one in sorted(config.parent.rglob("*.y*ml")):
            group = one.parent.relative_to(config.parent).as_posix()
            groups[group] = (*groups.get(group, ()), one.stem)
        return Declared(tuple(script.of_hydra(script_folder.source(config), config.name, groups)))
    if read.style == script.LIGHTNING:
        raise InputError(
            f"{file.name} takes the arguments of LightningCLI, which are too many to choose from; write a job.yaml with "
            f'`script: {file.name}`, `arguments: {{items: [fit, "{{flags}}"], booleans: value}}` and a space, as of '
            "model.lr: see Arguments in platform/docs/scripts.md; nothing was changed"
        )
    if not read.style:
        raise InputError(
            f"{file.name} does not read arguments with argparse, click, typer, fire or Hydra, so nothing in it can be set "
            "from outside; `platform init NAME` makes a job whose code gets its parameters in `ctx`"
        )
    return Declared(read.options)


def _dry(file: Path, code: Path, scratch: Path) -> Declared:
    """Has the script's parser made in a process of its own, which ends there.

    Raises:
        InputError: it ends before it reads its arguments.
    """
    answer = scratch / "declared.json"
    own = {"PYTHONDONTWRITEBYTECODE": "1", "WANDB_MODE": "disabled", "MLFLOW_TRACKING_URI": f"sqlite:///{scratch}/unused.db"}
    command = [sys.executable, "-m", "trialplane.worker.declaring", file.name, str(answer)]
    ended = bounded.run(command, code, own, scratch / "declaring.log", _PATIENCE)
    try:
        declared = records.from_json(Declared, answer.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        why = f"it took more than {_PATIENCE:.0f} seconds" if ended.code is None else ended.cause
        declared = Declared(failure=why)
    if declared.failure:
        why = errors.shortened(declared.failure, 300)
        where = f"; {kept}" if (kept := ended.keep(file.stem)) else ""
        raise InputError(f"{file.name} did not get as far as reading its arguments: {why}{where}; nothing was changed")
    return declared


def _job(copied: ScriptFolder, declared: Declared) -> _Job:
    """What becomes of the arguments."""
    name, read = copied.script, copied.read
    is_hydra = read.style == arguments.HYDRA
    space: dict[str, tuple[dict[str, Any], str]] = {}
    params: dict[str, tuple[Any, str]] = {}
    start: dict[str, Any] = {}
    items: list[str] = []
    booleans = {option.style for option in declared.options if option.style}
    style = next((one for one in ("negated", "switch", "value") if one in booleans), "switch")
    for option in declared.options:
        if option.style == "switch" and style == "negated":
            continue  # off by default; a job has one style for all
        made = guess.parameter(option)
        parameter = option.name.replace(".", "_").replace("/", "_") if made else option.name
        if made is not None:
            space[parameter] = made
        elif option.required:
            params[parameter] = (option.choices[0] if option.choices else None, "required")
        elif option.default is not None and not is_hydra and len(declared.options) <= _MOST_PARAMS:
            params[parameter] = (option.default, "")
        else:
            continue
        if option.default is not None:
            start[parameter] = option.default
        lacks = parameter in params and params[parameter][0] is None and option.lists != "repeat"
        items += _item(option, parameter, is_hydra, style, lacks)
    rest = f"{{{arguments.HYDRA if is_hydra else arguments.FLAGS}}}"
    lists = {option.lists for option in declared.options if option.lists and option.name in params}
    field: dict[str, Any] = {"items": [*items, rest] if items else rest.strip("{}")}
    if not is_hydra and booleans and style != "switch":
        field["booleans"] = style
    if lists - {"spread"}:
        field["lists"] = min(lists - {"spread"})
    given = field["items"] if len(field) == 1 else field
    comments = [f"Made from {name} by `platform init --from`."]
    if is_hydra:
        comments.append(f"{copied.config} has the other defaults; a parameter here overrides one of them.")
    late = [module for module in read.late if _is_heavy(module)]
    top = [module for module in read.top if _is_heavy(module)]
    return _Job(
        name, None if given == arguments.FLAGS else given, params, space, start, comments, [*top, *late] if late else []
    )


def _item(option: Option, parameter: str, is_hydra: bool, style: str, lacks: bool) -> list[str]:
    """How an argument is written where {flags} or {hydra} would not do; they leave out one that lacks its value."""
    if is_hydra:
        return [f"{option.name}={{{parameter}}}"] if parameter != option.name or lacks else []
    if not option.flag:
        return [f"{{{parameter}}}"]
    if option.flag != f"--{parameter}" or lacks:
        return [option.flag, f"{{{parameter}}}"] if option.style != "switch" else []
    return [f"{option.flag}={{{parameter}}}"] if option.style == "value" and style != "value" else []


def _is_heavy(module: str) -> bool:
    """Whether a module is a library that is installed, and not the standard library's or the script's own."""
    name = module.partition(".")[0]
    return name not in sys.stdlib_module_names and name != "trialplane" and _is_installed(name)


def _line(job: _Job) -> list[str]:
    """The arguments of a run with the defaults."""
    field = job.arguments
    given = field if isinstance(field, dict) else {"items": field or arguments.FLAGS}
    items = [f"{{{given['items']}}}"] if isinstance(given["items"], str) else given["items"]
    fixed = {name: value for name, (value, _) in job.params.items()}
    return arguments.build(items, {**fixed, **job.start}, {}, given.get("booleans", "switch"), given.get("lists", "spread"))


def _tell(name: str, found: smoke.Smoke) -> None:
    took = f"{found.seconds:.0f} s"
    names = sorted({metric for metrics in found.metrics.values() for metric in metrics})
    shown = f"its metrics: {', '.join(names[:20])}" if names else "no metrics were found"
    if found.failure:
        output.note(f"{name} failed after {took}: {found.failure}; {shown}")
    else:
        output.note(f"{name} {'ended' if found.ended else 'was stopped'} after {took}; {shown}")


def _text(job: _Job, found: smoke.Smoke | None) -> str:
    """The text of job.yaml."""
    lines = ["# yaml-language-server: $schema=../job.schema.json", *(f"# {comment}" for comment in job.comments)]
    if job.space:
        lines.append("# Check what is marked as guessed.")
    lines += ["kind: hpo", _field("script", job.script)]
    if job.arguments is not None:
        lines.append(_field("arguments", job.arguments))
    if job.preload:
        lines.append(_field("preload", job.preload, "imported once per slot; the script imports some of them in functions"))
    else:
        lines.append("# preload: []  # what the script imports at its top is imported once per slot anyway")
    if job.params:
        lines += ["", "params: # the script's own defaults, the same in every trial"]
        lines += [f"  {_field(name, value, comment)}" for name, (value, comment) in job.params.items()]
    if job.space:
        lines += ["", "space: # what is searched"]
        lines += [f"  {_field(name, made, f'guessed: {reason}')}" for name, (made, reason) in job.space.items()]
        lines += _enqueue(job)
    lines += ["", *_metrics(found), "sampler: tpe", "pruner: median", ""]
    lines += [f"trials: {_TRIALS if job.space else 1}", f"parallel: {_PARALLEL if job.space else 1}"]
    lines += ["budget: {max_failed: 5, timeout: 1h}", "resources: {cpus: 1, memory: 2Gi}"]
    return "\n".join(lines) + "\n"


def _enqueue(job: _Job) -> list[str]:
    """The lines that make the script's defaults the first trial, as far as they lie in the space."""
    given = {name: job.start[name] for name in job.space if name in job.start}
    start = {name: value for name, value in given.items() if _holds(job.space[name][0], value)}
    outside = "; ".join(f"{name}, by default {given[name]}, is outside of its range" for name in given if name not in start)
    if not start:
        return [f"# The script's defaults are not tried first: {escapes.visible(outside)}"] if outside else []
    return [_field("enqueue", [start], f"the script's defaults, tried first{f'; {outside}' if outside else ''}")]


def _holds(made: dict[str, Any], value: Any) -> bool:
    """Whether a value lies in a guessed parameter."""
    if value is None:
        return False
    return value in made["choices"] if "choices" in made else bool(made["low"] <= value <= made["high"])


def _metrics(found: smoke.Smoke | None) -> list[str]:
    """The objective, and where its metric is found."""
    for source, metrics in (found.metrics if found else {}).items():
        if best := guess.objective(metrics):
            others = ", ".join(sorted(name for name in metrics if name != best["metric"])[:20])
            beside = f"; the others: {others}" if others else ""
            where = "" if source in ("stdout", "mlflow") else _field("metrics", source, "where they were found")
            return [*([where] if where else []), _field("objective", best, f"guessed from the metrics of one run{beside}")]
    seen = "no metric was found in a run" if found else "the script was not run"
    return [
        _field("objective", {"metric": "loss", "direction": "minimize"}, f"guessed: {seen}; name a metric that it prints")
    ]


def _field(name: str, value: Any, comment: str = "") -> str:
    """A line of YAML."""
    text = output.as_yaml({name: value}, flow=True).strip()[1:-1] if not isinstance(value, (dict, list)) else ""
    if not text:
        text = f"{output.as_yaml([name], flow=True).strip()[1:-1]}: {output.as_yaml(value, flow=True).strip()}"
    remark = escapes.visible(" ".join(comment.split()))
    return f"{text} # {remark}" if remark else text
