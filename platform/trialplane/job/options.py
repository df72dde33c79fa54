"""Every option of Optuna's samplers, pruners, crossovers and mutations, as data.

The laptop has no Optuna, so `optuna.json` holds the signatures of its classes; tests/job/test_options.py writes it and
compares it with the installed Optuna. This module adds what signatures do not contain: our names, bounds, and the arguments
that the platform sets. The controller uses the same tables to create objects from a name and options. `FOREIGN_NAMES`
has the names in other tools.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class ValueKind(enum.StrEnum):
    """Type of an option's value in the job file."""

    BOOL = "true or false"
    INT = "a whole number"
    NUMBER = "a number"
    TEXT = "one of"
    INT_OR_AUTO = 'a whole number or "auto"'
    AMOUNT = "a whole number, or the name of a parameter in params that is one"
    POINT = "a mapping of parameter names to values"
    POINTS = "a list of lists of numbers"  # the controller converts it to an array
    FUNCTION = "module:function of the job's code"  # the function itself is Optuna's argument
    FACTORY = "module:function of the job's code that returns the value"  # called without arguments
    SAMPLER = "a sampler"
    PRUNER = "a pruner"
    CROSSOVER = "a crossover"
    MUTATION = "a mutation"


@dataclasses.dataclass(frozen=True)
class Option:
    """One option.

    Attributes:
        kind: Type of the value.
        nullable: Whether the value may be null.
        required: Whether a job must set it.
        default: Optuna's default of an option that is not required.
        minimum, maximum: Bounds of a number, both included. None without a bound.
        above: Bound that a number must exceed. None without one.
        allowed: Values of an option of the type TEXT.
        text: Description of an option of the platform's own. "" for Optuna's.
    """

    kind: ValueKind
    nullable: bool = False
    required: bool = False
    default: Any = None
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    allowed: tuple[str, ...] = ()
    text: str = ""


@dataclasses.dataclass(frozen=True)
class Choice:
    """One sampler, pruner, crossover or mutation.

    Attributes:
        cls: Name of Optuna's class.
        options: Options that a job may set, by Optuna's names.
        platform: Arguments that the platform sets itself, each with the field of the job from which it takes the value.
        objectives: Maximum number of objectives. None for any number.
        parents: Number of points from which a crossover makes a new one.
        is_independent: Whether a sampler can draw a single parameter, and so be another's `independent_sampler`.
        libraries: Packages that Optuna imports for it, but not before it draws or prunes.
    """

    cls: str
    options: Mapping[str, Option]
    platform: Mapping[str, str]
    objectives: int | None = None
    parents: int = 2
    is_independent: bool = True
    libraries: tuple[str, ...] = ()


SIGNATURES = Path(__file__).with_name("optuna.json")
# Optuna's type of an argument, without None → type of the option.
_KINDS: Mapping[str, ValueKind] = {
    "bool": ValueKind.BOOL,
    "int": ValueKind.INT,
    "float": ValueKind.NUMBER,
    "str": ValueKind.TEXT,
    "str | int": ValueKind.INT_OR_AUTO,
    "dict[str, Any]": ValueKind.POINT,
    "np.ndarray": ValueKind.POINTS,
    "list[FrozenTrial]": ValueKind.FACTORY,
    "BaseSampler": ValueKind.SAMPLER,
    "BasePruner": ValueKind.PRUNER,
    "BaseCrossover": ValueKind.CROSSOVER,
    "BaseMutation": ValueKind.MUTATION,
}
_NAMES = {"NopPruner": "none", "SuccessiveHalvingPruner": "successive_halving"}  # others: the class without its suffix
_PLATFORM = {"seed": "seed", "constraints_func": "constraints", "search_space": "space"}
_IGNORED = ("restart_strategy", "inc_popsize")  # Optuna warns that they do nothing
# Optuna allocates this many rows for each trial, or multiplies this many factors. More would fill the memory, and no search
# needs it.
MOST_ROWS = 10_000
_MOST_POWERS = 100
_MOST_BRACKETS = 10
# Optuna raises an error for a value outside of these bounds, but only in the controller's pod, and often not before the
# first trial.
_BOUNDS: Mapping[str, Mapping[str, float]] = {
    name: bounds
    for names, bounds in (
        ("n_startup_trials n_startup_steps n_warmup_steps bootstrap_count patience", {"minimum": 0}),
        ("min_delta alpha eta sigma_xi sigma_eta", {"minimum": 0}),
        ("interval_steps n_min_trials min_resource max_resource", {"minimum": 1}),
        ("population_size reduction_factor", {"minimum": 2}),
        ("mutation_prob crossover_prob swapping_prob p_threshold", {"minimum": 0, "maximum": 1}),
        ("uniform_crossover_prob use_child_gene_prob", {"minimum": 0, "maximum": 1}),
        ("percentile", {"minimum": 0, "maximum": 100}),
        ("min_early_stopping_rate", {"minimum": 0, "maximum": _MOST_POWERS}),
        ("n_ei_candidates dividing_parameter", {"minimum": 1, "maximum": MOST_ROWS}),
        ("popsize", {"minimum": 2, "maximum": MOST_ROWS}),
        ("prior_weight sigma0", {"above": 0}),
    )
    for name in names.split()
}
_ALLOWED = {"qmc_type": ("sobol", "halton")}
_TRAITS: Mapping[str, Mapping[str, Any]] = {  # name of an algorithm → fields of its `Choice` that differ from the default
    "cmaes": {"objectives": 1, "libraries": ("cmaes",)},
    "gp": {"libraries": ("torch", "scipy")},
    "qmc": {"libraries": ("scipy",)},
    "wilcoxon": {"libraries": ("scipy",)},
    "grid": {"is_independent": False},
    "bruteforce": {"is_independent": False},
    "spx": {"parents": 3},
    "undx": {"parents": 3},
    "none": {"objectives": None},  # the pruner that ends no trial
}


def _option(name: str, signature: str) -> Option:
    """Return the option for an argument of an Optuna class.

    Args:
        name: Name of the argument.
        signature: Its annotation and default: `int | None = None`, or `float` without a default.
    """
    annotation, equals, default = signature.partition(" = ")
    type_name = annotation.removesuffix(" | None")
    bounds = _BOUNDS.get(name, {})
    return Option(
        kind=ValueKind.FUNCTION if type_name.startswith("Callable[") else _KINDS[type_name],
        nullable=type_name != annotation,
        required=not equals,
        default=ast.literal_eval(default) if equals else None,
        allowed=_ALLOWED.get(name, ()),
        minimum=bounds.get("minimum"),
        maximum=bounds.get("maximum"),
        above=bounds.get("above"),
    )


def _choice(kind: ValueKind, name: str, cls: str, arguments: Mapping[str, str]) -> Choice:
    """Return the sampler, pruner, crossover or mutation of an Optuna class.

    Args:
        kind: Kind of algorithm.
        name: Its name in the job file.
        cls: Name of the class.
        arguments: Signatures of the class's arguments, by name.
    """
    job_options = {key: text for key, text in arguments.items() if key not in (*_PLATFORM, *_IGNORED)}
    # By default, a pruner compares reports of one metric, and a sampler takes any number of objectives.
    traits = {"objectives": 1 if kind is ValueKind.PRUNER else None, **_TRAITS.get(name, {})}
    return Choice(
        cls,
        options={key: _option(key, text) for key, text in job_options.items()},
        platform={key: field for key, field in _PLATFORM.items() if key in arguments},
        **traits,
    )


def _algorithm_table(kind: ValueKind, classes: Mapping[str, Mapping[str, str]]) -> dict[str, Choice]:
    """Return Optuna's algorithms of one kind, by their names in the job file.

    Args:
        kind: Kind of algorithm, which is also the suffix of the classes' names.
        classes: Signatures of the arguments, by class and argument.
    """
    table: dict[str, Choice] = {}
    for cls, arguments in classes.items():
        name = _NAMES.get(cls, cls.lower().removesuffix(kind.name.lower()))  # TPESampler: tpe
        table[name] = _choice(kind, name, cls, arguments)
    return table


_OPTUNA_TABLES: Mapping[ValueKind, Mapping[str, Choice]] = {
    ValueKind[suffix.upper()]: _algorithm_table(ValueKind[suffix.upper()], classes)
    for suffix, classes in json.loads(SIGNATURES.read_text(encoding="utf-8")).items()
}
SAMPLERS = _OPTUNA_TABLES[ValueKind.SAMPLER]
PRUNERS = {
    **_OPTUNA_TABLES[ValueKind.PRUNER],
    # Optuna's successive halving with defaults that suit reports of epochs, or with `promote` the platform's own.
    "asha": Choice(
        cls="AshaPruner",
        options={
            "promote": Option(
                ValueKind.BOOL,
                default=False,
                text="Whether to pause trials at rungs and to continue the best of each, instead of pruning the others.",
            ),
            "min_resource": Option(ValueKind.INT, default=1, minimum=1, text="Number of steps of the first rung."),
            "max_resource": Option(
                ValueKind.AMOUNT,
                nullable=True,
                minimum=1,
                text="Number of steps of a whole trial; for promote: true.",
            ),
            "max": Option(
                ValueKind.TEXT,
                nullable=True,
                allowed=("auto",),
                text="auto: promote beyond the second rung only while rankings change; for promote: true.",
            ),
            "reduction_factor": Option(ValueKind.INT, default=4, minimum=2, text="Ratio between successive rungs."),
            "brackets": Option(
                ValueKind.INT,
                default=1,
                minimum=1,
                maximum=_MOST_BRACKETS,
                text="Number of groups of trials; those of later groups are first paused one rung later. For promote: true.",
            ),
        },
        platform={},
        objectives=1,
    ),
}
# Algorithms by kind and name; also those that are values of options.
TABLES: Mapping[ValueKind, Mapping[str, Choice]] = {**_OPTUNA_TABLES, ValueKind.PRUNER: PRUNERS}


_NO_EVOLUTION = "it is a field of its own here: population: {interval: 4, steps: epochs}, with sampler: random and no pruner"
_NO_BOHB = "there is none here; sampler: tpe with pruner: hyperband is the nearest"
_NO_ARCHITECTURE_SEARCH = (
    "there is none here: it searches an architecture while it trains one model, and not parameters of trials"
)
_NO_OTHER_LIBRARY = "there is none here: the samplers are Optuna's, of which tpe and gp learn from earlier trials as well"

# Hint with the name to write instead → names in Katib, Ray Tune, W&B, SageMaker, Determined and Vizier, in lower case and
# with letters and digits only. Optuna's own class names need no entry.
FOREIGN_NAMES: Mapping[ValueKind, Mapping[str, str]] = {
    ValueKind.SAMPLER: {
        "it is called random here": "randomsearch basicvariant basicvariantgenerator",
        "it is called grid here": "gridsearch",
        "it is called bruteforce here, or grid without conditions": "exhaustive exhaustivesearch",
        "it is called qmc here: {name: qmc, qmc_type: sobol}": "sobol sobolsearch quasirandom quasirandomsearch",
        "it is called qmc here: {name: qmc, qmc_type: halton}": "halton",
        "there is none here; qmc spreads its points evenly as well": "latinhypercube lhs",
        "tpe is Bayesian, and so is gp, a Gaussian process": (
            "bayes bayesian bayesianoptimization bayesianoptimisation bayesopt bayesoptsearch "
            "gaussianprocess gaussianprocessbandit skopt"
        ),
        "it is called tpe here": "hyperopt hyperoptsearch optuna optunasearch",
        "it is called tpe here: {name: tpe, multivariate: true}": "multivariatetpe",
        "it is called cmaes here": "cma cmaevolutionstrategy",
        "it is called nsgaii here": "nsga2 genetic evolutionary",
        "it is called nsgaiii here": "nsga3",
        _NO_BOHB: "bohb tunebohb",
        "it is a pruner here: write pruner: hyperband, beside the sampler": "hyperband",
        "it is a pruner here: write pruner: asha, beside the sampler": (
            "asha adaptiveasha asynchyperband successivehalving"
        ),
        "it is a pruner here: write pruner: median, beside the sampler": "medianstop medianstopping",
        _NO_EVOLUTION: "pbt pb2 populationbasedtraining",
        _NO_ARCHITECTURE_SEARCH: "enas darts",
        _NO_OTHER_LIBRARY: "ax axsearch hebo hebosearch nevergrad nevergradsearch zoopt blendsearch cfo dragonfly vizier",
    },
    ValueKind.PRUNER: {
        "it is called asha here": "adaptiveasha ashascheduler sha asynchyperband asynchyperbandscheduler",
        "it is called hyperband here": "hyperbandscheduler",
        _NO_BOHB: "bohb hbbohb hyperbandforbohb",
        "it is called median here": "medianstop medianstopping medianstoppingrule auto",
        "it is called patient here": "earlystopping plateau trialplateaustopper",
        "to end no trial early, write none": "fifo fifoscheduler off no",
        _NO_EVOLUTION: "pbt pb2 populationbasedtraining",
    },
}
