"""Every job file of jobs/, damaged: `validate` and `submit --dry-run` end with 0, or with 2 and clear lines.

Structure-aware: what is changed are places of real jobs, to values of other types and sizes, in depth, in other scripts, and
the text itself is given YAML's odd corners. What is taken reads back to the same job, and a search is drawn from, since what
is taken must not be dead after the start. Not checked here: what the lines say (tests/job).
"""

from __future__ import annotations

import copy
import functools
import json
import math
import operator
import shutil
import subprocess
import sysconfig
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import optuna
import pytest
import yaml
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, Phase, given, settings

from trialplane import errors
from trialplane.cli import failure, main
from trialplane.controller import samplers
from trialplane.job import document, kinds, options, schema
from trialplane.job.load import load_job
from trialplane.job.options import ValueKind
from trialplane.wire import env

pytestmark = pytest.mark.slow

JOBS = Path(__file__).parents[2] / "jobs"
NAMES = sorted(file.parent.name for file in JOBS.glob("*/job.yaml"))
DATA = {name: document.read(JOBS / name / "job.yaml").data for name in NAMES}
# Of the time that a failure takes, to look for its smallest form would be minutes.
BOUNDED = settings(deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
PLATFORM = Path(sysconfig.get_path("scripts")) / "platform"


def places(data: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a document."""
    for key, below in data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ():
        yield (*above, key)
        yield from places(below, (*above, key))


def deep(levels: int) -> Any:
    return functools.reduce(lambda below, _: [below], range(levels), 1)


PLACES = {name: list(places(data)) for name, data in DATA.items()}
FIELDS = sorted({str(place[-1]) for found in PLACES.values() for place in found} | set(schema.json_schema()["properties"]))
NUMBERS = [
    0,
    -1,
    1,
    2,
    10**6,
    2**31,
    2**53,
    2**53 + 1,
    2**63 - 1,
    2**63,
    10**30,
    10**299,
    10**309,
    10**399,
    0.0,
    -0.0,
    0.5,
    5e-324,
    1e-17,
    1e16,
    1.7e308,
]
TEXTS = [
    "",
    " ",
    "x",
    "null",
    "1e-5",
    "a:b",
    "train:run",
    "train:nothing",
    "../x",
    "/dev/zero",
    "~nosuchuser/x",
    "a" * 300,
    "9" * 310,
    f"{'9' * 310}Gi",
    "objectives.².metric",
    ".".join(["a"] * 1500),
    "名",
]
ODD = [
    "\0",
    "\x1b[2J",
    "\u202e",
    "\ufeff",
    "\x85",
    "e\u0301",
    "%s {0} {x}",
    "${HOME}",
    "[/b]",
    "!!python/object:os.system x",
]
NAMED = [
    "tpe",
    "gp",
    "grid",
    "bruteforce",
    "cmaes",
    "nsgaii",
    "nsgaiii",
    "qmc",
    "median",
    "hyperband",
    "patient",
    "spx",
    "undx",
]
SCALARS = [None, True, False, math.nan, math.inf, -math.inf, *NUMBERS, *TEXTS, *ODD, *NAMED]
HOLDERS = [
    [],
    {},
    [None],
    [[]],
    [{}],
    {"": 1},
    {"name": "tpe"},
    {"type": "int", "low": 1, "high": 0},
    {"options": 3},
    {"when": 1},
]
values = st.one_of(
    st.sampled_from(SCALARS),
    st.sampled_from(HOLDERS),
    st.sampled_from([45, 60]).map(deep),
    st.integers(300, 1500).map(lambda size: list(range(size))),
    st.integers(300, 1500).map(lambda size: {f"k{number}": number for number in range(size)}),
    st.text(max_size=8),
    st.floats(),
    st.integers(),
    st.sampled_from(NAMES).flatmap(  # a part of another job
        lambda name: st.sampled_from(PLACES[name]).map(lambda place: functools.reduce(operator.getitem, place, DATA[name]))
    ),
)
CHANGES = ("replace", "remove", "rename", "add", "wrap", "double")
LINES = [
    *("a: &a [1]\nb: *a", "x: &x {y: *x}", "<<: {trials: 3}", "<<: [1]", "trials: 3\ntrials: 4", "? [a, b]\n: c", "- 1"),
    *("--- {}", "...", "%YAML 1.1", "\tx: 1", "x: !!binary aGk=", "x: !!set {a}", "x: !!float abc", "x: !unknown 1", "~: 1"),
    *(
        "x: !!timestamp 2020-01-01",
        "x: |\n  a\n b",
        "x: 'a",
        'x: "\\ud800"',
        'x: "\\x00"',
        "x: *nothing",
        "x: [1, 2",
        "1: 2",
    ),
    *("x: {a: }", "'': 1", "x: 0o777", "x: 0x" + "f" * 500, "x: " + "9" * 5000, "x: " + "[" * 3000, "\ufeffx: 1", "x: \x07"),
    *("x:\r  y: 1\r", "#" * 9999),
]


@st.composite
def damaged(draw: st.DrawFn) -> tuple[str, str]:
    """A job's name and the text of its damaged file."""
    name = draw(st.sampled_from(NAMES))
    data = copy.deepcopy(DATA[name])
    for _ in range(draw(st.integers(0, 4))):
        place = draw(st.sampled_from(list(places(data)) or [("kind",)]))
        change(data, place, draw(st.sampled_from(CHANGES)), draw(st.sampled_from(FIELDS)), copy.deepcopy(draw(values)))
    text = yaml.safe_dump(data, sort_keys=False, allow_unicode=draw(st.booleans()), default_flow_style=draw(st.booleans()))
    if draw(st.integers(0, 3)) == 0:
        lines = text.splitlines()
        lines.insert(draw(st.integers(0, len(lines))), draw(st.sampled_from(LINES)))
        text = "\n".join(lines)
    return name, text


def change(data: Any, place: tuple[Any, ...], how: str, field: str, value: Any) -> None:
    """Changes one place of a document."""
    holder = functools.reduce(operator.getitem, place[:-1], data)
    here = place[-1]
    if here not in (holder if isinstance(holder, dict) else range(len(holder))):
        return
    if how == "remove":
        del holder[here]
    elif how == "rename" and isinstance(holder, dict):
        holder[field] = holder.pop(here)
    elif how == "add" and isinstance(holder[here], dict):
        holder[here][field] = value
    elif how == "add" and isinstance(holder[here], list):
        holder[here].append(value)
    elif how == "wrap":
        holder[here] = [holder[here]]
    elif how == "double" and isinstance(holder, list):
        holder.append(copy.deepcopy(holder[here]))
    else:
        holder[here] = value


class Whole:
    """What CliRunner needs of a command, with main's own handling of errors inside."""

    name = "platform"

    def main(self, args: list[str], prog_name: str, **_: Any) -> None:
        main.main(args)


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A working directory with a copy of every job, and a home with runs."""
    place = tmp_path_factory.mktemp("work")
    (place / "home" / "runs").mkdir(parents=True)
    shutil.copytree(JOBS, place / "jobs", ignore=shutil.ignore_patterns("__pycache__"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setenv(env.HOME, str(place / "home"))
        patch.setattr(tempfile, "tempdir", str(place))  # a traceback would be put there
        yield place


def typed(*words: str) -> Result:
    return CliRunner().invoke(Whole(), list(words))  # type: ignore[arg-type]


def is_clear(code: int, said: str) -> bool:
    """Whether a verb ended as it should: well, or with lines that a person can read."""
    lines = said.splitlines()
    short = len(lines) <= errors.MOST_ISSUES + 2 and all(len(line) <= failure.MAX_LINE for line in lines)
    visible = all(char in "\n\t" or (ord(char) >= 32 and not 127 <= ord(char) < 160) for char in said)
    blamed = "Traceback" in said or "internal error" in said
    return code in (0, 2) and (code == 0 or bool(lines)) and short and visible and not blamed


@pytest.mark.timeout(900)
@settings(BOUNDED, max_examples=250)
@given(damaged())
def test_a_damaged_job_is_taken_or_refused_in_clear_lines(workplace: Path, made: tuple[str, str]) -> None:
    name, text = made
    (workplace / "jobs" / name / "job.yaml").write_text(text, encoding="utf-8", newline="")
    checked = typed("validate", name, "-o", "json")
    assert is_clear(checked.exit_code, checked.stderr), checked.stderr[:3000]
    if checked.exit_code:
        assert checked.stdout == ""
        return
    job = kinds.read(json.loads(checked.stdout))
    assert kinds.read(job.model_dump_json()) == job
    dry = typed("submit", job.kind, name, "--local", "--dry-run")
    assert is_clear(dry.exit_code, dry.stderr), dry.stderr[:3000]
    assert not list((workplace / "home" / "runs").iterdir())


@pytest.mark.timeout(900)
@settings(BOUNDED, max_examples=100)
@given(st.sampled_from(NAMES), st.sampled_from(FIELDS), values, st.booleans())
def test_a_field_of_the_command_line_is_taken_or_refused_in_clear_lines(
    workplace: Path, name: str, field: str, value: Any, below: bool
) -> None:
    shutil.copy(JOBS / name / "job.yaml", workplace / "jobs" / name / "job.yaml")
    place = f"params.{field}" if below else field
    text = yaml.safe_dump(value, default_flow_style=True, width=10**6).removesuffix("\n...\n").rstrip("\n")
    (workplace / "params.yaml").write_text(yaml.safe_dump({field: value}))
    for words in (
        ("validate", name, "--set", f"{place}={text}"),
        ("submit", DATA[name]["kind"], name, "--local", "--dry-run", "--params", "params.yaml"),
        ("validate", text.replace("\0", "")),
        ("status", "--local", text),
    ):
        done = typed(*words)
        assert is_clear(done.exit_code, done.stderr), (words, done.stderr[:3000])


def option(of: options.Option, objectives: int) -> st.SearchStrategy[Any]:
    """Values for one option, good ones and ones at its limits."""
    kind = of.kind
    if kind in options.TABLES:
        return st.sampled_from(sorted(options.TABLES[kind]))
    if kind is ValueKind.TEXT:
        return st.sampled_from(of.allowed)
    if kind is ValueKind.BOOL:
        return st.booleans()
    if kind is ValueKind.POINT:
        return st.fixed_dictionaries({}, optional={"a": st.just(0.5), "b": st.just(2), "c": st.just("x")})
    if kind is ValueKind.POINTS:
        return st.sampled_from([[[1.0] * objectives], [[0.0] * objectives] * 3, [[1.0] * (objectives + 1)]])
    if kind in (ValueKind.FUNCTION, ValueKind.FACTORY):
        return st.none()
    at = [value for value in (of.minimum, of.maximum, of.above) if value is not None]
    numbers = [3, 10, 2**53, *(int(value) for value in at)]
    if kind is ValueKind.NUMBER:
        return st.sampled_from([0.1, 1.0, 1e300, *numbers, *at])
    return st.sampled_from([*numbers, *(["auto"] if kind is ValueKind.INT_OR_AUTO else [])])


def floats() -> st.SearchStrategy[dict[str, Any]]:
    bounds = st.sampled_from(
        [(0.0, 1.0), (-1.7e308, 1.7e308), (-8e307, 8e307), (1e16, 1e16 + 64), (5e-324, 1e308), (0.5, 0.5)]
    )
    return st.builds(
        lambda edges, step, log: {"type": "float", "low": edges[0], "high": edges[1], "log": log, **step},
        bounds,
        st.sampled_from([{}, {}, {"step": 0.25}, {"step": 1e-9}, {"step": 1e-17}, {"step": 1e300}]),
        st.sampled_from([False, False, False, True]),
    )


def normals() -> st.SearchStrategy[dict[str, Any]]:
    return st.builds(
        lambda centre, log, bounds: {"type": "normal", "mean": centre[0], "std": centre[1], "log": log, **bounds},
        st.sampled_from([(0.0, 1.0), (1e16, 1e-3), (1e300, 1e306), (1e308, 1e307), (-700.0, 2.0), (0.5, 5e-324)]),
        st.booleans(),
        st.sampled_from([{}, {}, {"low": 0.5}, {"low": 0.25, "high": 0.75}, {"high": 1e-300}]),
    )


def integers() -> st.SearchStrategy[dict[str, Any]]:
    return st.builds(
        lambda edges, step: {"type": "int", "low": edges[0], "high": edges[1], "step": step},
        st.sampled_from([(1, 4), (-(2**53), 2**53), (0, 10**6), (3, 3)]),
        st.sampled_from([1, 1, 2, 10**5, 2**53]),
    )


def choices() -> st.SearchStrategy[dict[str, Any]]:
    lists = st.sampled_from(
        [
            ["x"],
            ["x", 1, 2.5, None, True],
            [2**63, "x"],
            [-(2**63), 2**63 - 1],
            list(range(300)),
            [[64, 64], {"a": [None]}, []],
        ]
    )
    return lists.map(lambda listed: {"type": "categorical", "choices": listed})


@st.composite
def searches(draw: st.DrawFn) -> dict[str, Any]:
    """A search with options, ranges and sizes at their limits."""
    objectives = draw(st.sampled_from([1, 1, 2]))
    space = {"a": draw(floats() | normals()), "b": draw(integers()), "c": draw(choices())}
    if draw(st.booleans()):
        space["b"]["when"] = {"c": [space["c"]["choices"][0]]}
    data: dict[str, Any] = {
        "kind": "hpo",
        "objectives": [{"metric": f"m{index}", "direction": "minimize"} for index in range(objectives)],
        "space": space,
        "trials": 3,
    }
    able = sorted(set(options.SAMPLERS) - {"gp"})  # which would bring torch, and 5 seconds with it
    for field, table in (("sampler", {name: options.SAMPLERS[name] for name in able}), ("pruner", options.PRUNERS)):
        name = draw(st.sampled_from(sorted(table)))
        chosen = table[name].options
        given = draw(st.lists(st.sampled_from(sorted(chosen)), max_size=3, unique=True)) if chosen else []
        needed = [key for key, one in chosen.items() if one.required]
        drawn = {key: draw(option(chosen[key], objectives)) for key in {*given, *needed}}
        data[field] = {"name": name, **{key: value for key, value in drawn.items() if value is not None}}
    return data


@pytest.mark.timeout(900)
@settings(BOUNDED, max_examples=200)
@given(searches())
def test_a_search_that_is_taken_can_be_drawn_from(workplace: Path, data: dict[str, Any]) -> None:
    folder = workplace / "jobs" / "criteria"
    (folder / "job.yaml").write_text(yaml.safe_dump(data))
    try:
        job = load_job(folder)
    except errors.SpecError:
        return
    code = samplers.JobCode(folder)
    directions = [objective.direction for objective in job.objectives]
    with warnings.catch_warnings(action="ignore"):
        study = optuna.create_study(directions=directions, pruner=samplers.build_pruner(job, code))
        study.stop = lambda: None  # called when every point is drawn; Optuna's own refuses outside of `optimize`
        for trial in range(min(job.trials, 3)):
            study.sampler = samplers.build_sampler(job, trial, code, study.sampler)
            asked = study.ask()
            drawn = samplers.draw_parameters(asked, job, None)
            assert all(job.search.parameters[name].contains(value) for name, value in drawn.items()), drawn
            if len(directions) == 1:
                for step in range(3):
                    asked.report(float(trial), step)
                    asked.should_prune()
            study.tell(asked, [float(trial)] * len(directions))


@pytest.mark.parametrize("line", ["x: " + "[" * 30_000, 'x: "\\ud800"', "x: \x07"], ids=["deep", "surrogate", "bell"])
def test_a_process_ends_as_the_verb_does(workplace: Path, line: str) -> None:
    """What ends a process outright, as the end of its stack does, would end the tests above with it."""
    (workplace / "jobs" / "share" / "job.yaml").write_text(f"{yaml.safe_dump(DATA['share'])}\n{line}\n")
    done = subprocess.run([PLATFORM, "validate", "share"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert is_clear(done.returncode, done.stderr), done.stderr[:3000]
