"""Every option of Optuna's samplers, pruners, crossovers and mutations, as data.

The laptop has no Optuna, so the names and types are listed here; a test compares them with the installed Optuna. The
controller reads the same tables to turn (name, options) into objects: `Choice.cls` is the class, `Option.argument` its
keyword. Not listed are the arguments that the platform sets itself, see `Choice.platform`. `ELSEWHERE` holds the names that
other tools have for them.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib.util
from collections.abc import Mapping


class Kind(enum.StrEnum):
    """What an option's value is, as written in the job file."""

    BOOL = "true or false"
    INT = "a whole number"
    NUMBER = "a number"
    TEXT = "one of"
    INT_OR_AUTO = 'a whole number or "auto"'
    POINT = "a mapping of parameter names to values"
    POINTS = "a list of lists of numbers"  # the controller makes an array of it
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
        kind: what its value is.
        nullable: whether null is a value too.
        minimum, maximum: bounds of a number, both included.
        above: bound that a number must exceed.
        allowed: the values of a TEXT.
        argument: Optuna's keyword where it differs from our name.
        required: whether it must be given.
    """

    kind: Kind
    nullable: bool = False
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    allowed: tuple[str, ...] = ()
    argument: str = ""
    required: bool = False


@dataclasses.dataclass(frozen=True)
class Choice:
    """One sampler, pruner, crossover or mutation.

    Attributes:
        cls: name of Optuna's class.
        options: what a job may set.
        platform: arguments that the platform sets itself, each with the field of the job that it is taken from.
        objectives: how many objectives it can handle at most, or None for any number.
        parents: of a crossover, how many points it makes a new one from.
        alone: whether a sampler can draw one parameter by itself, and so can be another's `independent_sampler`.
        libraries: what Optuna imports for it, and only when it draws.
    """

    cls: str
    options: Mapping[str, Option] = dataclasses.field(default_factory=dict)
    platform: Mapping[str, str] = dataclasses.field(default_factory=dict)
    objectives: int | None = None
    parents: int = 2
    alone: bool = True
    libraries: tuple[str, ...] = ()


_FLAG = Option(Kind.BOOL)
_COUNT = Option(Kind.INT, minimum=0)
_POSITIVE = Option(Kind.INT, minimum=1)
_PROBABILITY = Option(Kind.NUMBER, minimum=0, maximum=1)
_FUNCTION = Option(Kind.FUNCTION, nullable=True)
_INDEPENDENT = Option(Kind.SAMPLER, nullable=True)
_SEED = {"seed": "seed"}
_SEED_CONSTRAINTS = {"seed": "seed", "constraints_func": "constraints"}

# Optuna makes arrays of so many rows with each trial, or powers of so many factors; far beyond use, and what memory holds.
MOST_ROWS = 10_000
_MOST_POWERS = 100

POPULATION = 50  # where a job names none
_GENETIC = {
    "population_size": Option(Kind.INT, minimum=2),
    "mutation": Option(Kind.MUTATION, nullable=True),
    "mutation_prob": Option(Kind.NUMBER, nullable=True, minimum=0, maximum=1),
    "crossover": Option(Kind.CROSSOVER, nullable=True),
    "crossover_prob": _PROBABILITY,
    "swapping_prob": _PROBABILITY,
    "elite_population_selection_strategy": _FUNCTION,
    "child_generation_strategy": _FUNCTION,
    "after_trial_strategy": _FUNCTION,
}

_DIVISIONS = Option(Kind.INT, minimum=1, maximum=MOST_ROWS)

SAMPLERS: Mapping[str, Choice] = {
    "tpe": Choice(
        "TPESampler",
        {
            "consider_prior": Option(Kind.BOOL, nullable=True),
            "prior_weight": Option(Kind.NUMBER, nullable=True, above=0),
            "consider_magic_clip": Option(Kind.BOOL, nullable=True),
            "consider_endpoints": Option(Kind.BOOL, nullable=True),
            "n_startup_trials": _COUNT,
            "n_ei_candidates": Option(Kind.INT, minimum=1, maximum=MOST_ROWS),
            "gamma": _FUNCTION,
            "weights": _FUNCTION,
            "multivariate": Option(Kind.BOOL, nullable=True),
            "group": _FLAG,
            "warn_independent_sampling": Option(Kind.BOOL, nullable=True),
            "constant_liar": _FLAG,
        },
        _SEED_CONSTRAINTS,
    ),
    "gp": Choice(
        "GPSampler",
        {
            "independent_sampler": _INDEPENDENT,
            "n_startup_trials": _COUNT,
            "deterministic_objective": _FLAG,
            "warn_independent_sampling": _FLAG,
        },
        _SEED_CONSTRAINTS,
        libraries=("torch", "scipy"),
    ),
    "cmaes": Choice(
        "CmaEsSampler",
        {
            "x0": Option(Kind.POINT, nullable=True),
            "sigma0": Option(Kind.NUMBER, nullable=True, above=0),
            "n_startup_trials": _COUNT,
            "independent_sampler": _INDEPENDENT,
            "warn_independent_sampling": _FLAG,
            "consider_pruned_trials": _FLAG,
            "restart_strategy": Option(Kind.TEXT, nullable=True, allowed=("ipop", "bipop")),
            "popsize": Option(Kind.INT, nullable=True, minimum=2, maximum=MOST_ROWS),
            "inc_popsize": Option(Kind.INT),
            "use_separable_cma": _FLAG,
            "with_margin": _FLAG,
            "lr_adapt": _FLAG,
            "source_trials": Option(Kind.FACTORY, nullable=True),
        },
        _SEED,
        objectives=1,
        libraries=("cmaes",),
    ),
    "nsgaii": Choice("NSGAIISampler", _GENETIC, _SEED_CONSTRAINTS),
    "nsgaiii": Choice(
        "NSGAIIISampler",
        {**_GENETIC, "reference_points": Option(Kind.POINTS, nullable=True), "dividing_parameter": _DIVISIONS},
        _SEED_CONSTRAINTS,
    ),
    "qmc": Choice(
        "QMCSampler",
        {
            "qmc_type": Option(Kind.TEXT, allowed=("sobol", "halton")),
            "scramble": _FLAG,
            "independent_sampler": _INDEPENDENT,
            "warn_asynchronous_seeding": _FLAG,
            "warn_independent_sampling": _FLAG,
        },
        _SEED,
        libraries=("scipy",),
    ),
    "random": Choice("RandomSampler", {}, _SEED),
    "grid": Choice("GridSampler", {}, {"seed": "seed", "search_space": "space"}, alone=False),
    "bruteforce": Choice("BruteForceSampler", {"avoid_premature_stop": _FLAG}, _SEED, alone=False),
}

_STEPS = {
    "n_startup_trials": _COUNT,
    "n_warmup_steps": _COUNT,
    "interval_steps": _POSITIVE,
    "n_min_trials": _POSITIVE,
}

PRUNERS: Mapping[str, Choice] = {
    "none": Choice("NopPruner"),
    "median": Choice("MedianPruner", _STEPS, objectives=1),
    "percentile": Choice(
        "PercentilePruner",
        {"percentile": Option(Kind.NUMBER, minimum=0, maximum=100, required=True), **_STEPS},
        objectives=1,
    ),
    "hyperband": Choice(
        "HyperbandPruner",
        {
            "min_resource": _POSITIVE,
            "max_resource": Option(Kind.INT_OR_AUTO, minimum=1),
            "reduction_factor": Option(Kind.INT, minimum=2),
            "bootstrap_count": _COUNT,
        },
        objectives=1,
    ),
    "successive_halving": Choice(
        "SuccessiveHalvingPruner",
        {
            "min_resource": Option(Kind.INT_OR_AUTO, minimum=1),
            "reduction_factor": Option(Kind.INT, minimum=2),
            "min_early_stopping_rate": Option(Kind.INT, minimum=0, maximum=_MOST_POWERS),
            "bootstrap_count": _COUNT,
        },
        objectives=1,
    ),
    "patient": Choice(
        "PatientPruner",
        {
            "wrapped": Option(Kind.PRUNER, nullable=True, argument="wrapped_pruner", required=True),
            "patience": Option(Kind.INT, minimum=0, required=True),
            "min_delta": Option(Kind.NUMBER, minimum=0),
        },
        objectives=1,
    ),
    "wilcoxon": Choice(
        "WilcoxonPruner",
        {"p_threshold": _PROBABILITY, "n_startup_steps": _COUNT},
        objectives=1,
        libraries=("scipy",),
    ),
    "threshold": Choice(
        "ThresholdPruner",
        {
            "lower": Option(Kind.NUMBER, nullable=True),
            "upper": Option(Kind.NUMBER, nullable=True),
            "n_warmup_steps": _COUNT,
            "interval_steps": _POSITIVE,
        },
        objectives=1,
    ),
}

_ETA = {
    "eta": Option(Kind.NUMBER, nullable=True, minimum=0),
    "uniform_crossover_prob": _PROBABILITY,
    "use_child_gene_prob": _PROBABILITY,
}

CROSSOVERS: Mapping[str, Choice] = {
    "uniform": Choice("UniformCrossover", {"swapping_prob": _PROBABILITY}),
    "blxalpha": Choice("BLXAlphaCrossover", {"alpha": Option(Kind.NUMBER, minimum=0)}),
    "sbx": Choice("SBXCrossover", _ETA),
    "vsbx": Choice("VSBXCrossover", _ETA),
    "spx": Choice("SPXCrossover", {"epsilon": Option(Kind.NUMBER, nullable=True)}, parents=3),
    "undx": Choice(
        "UNDXCrossover",
        {"sigma_xi": Option(Kind.NUMBER, minimum=0), "sigma_eta": Option(Kind.NUMBER, nullable=True, minimum=0)},
        parents=3,
    ),
}

MUTATIONS: Mapping[str, Choice] = {
    "polynomial": Choice("PolynomialMutation", {"eta": Option(Kind.NUMBER, minimum=0)}),
}

# The table that a nested value is looked up in.
TABLES: Mapping[Kind, Mapping[str, Choice]] = {
    Kind.SAMPLER: SAMPLERS,
    Kind.PRUNER: PRUNERS,
    Kind.CROSSOVER: CROSSOVERS,
    Kind.MUTATION: MUTATIONS,
}


def missing() -> frozenset[str]:
    """Libraries of samplers and pruners that this Python lacks."""
    every = {library for table in TABLES.values() for choice in table.values() for library in choice.libraries}
    return frozenset(library for library in every if importlib.util.find_spec(library) is None)


_SOBOL = "it is called qmc here: {name: qmc, qmc_type: sobol}"
_ASHA = "it is called successive_halving here"
_BAYESIAN = "tpe is Bayesian; gp, a Gaussian process, needs torch where the controller runs"
_BOHB = "there is none here; sampler: tpe with pruner: hyperband is the nearest"
_EVOLVES = "there is none here: it changes the parameters of trials that run, and here a trial keeps those it started with"
_ARCHITECTURE = "there is none here: it searches an architecture while it trains one model, and not parameters of trials"
_LIBRARY = "there is none here: the samplers are Optuna's, of which tpe and gp learn from earlier trials as well"

# Names of Katib, Ray Tune, W&B, SageMaker, Determined and Vizier, in lower case with letters and digits only → what to write
# instead, or that there is none. Optuna's own class names need no entry.
ELSEWHERE: Mapping[Kind, Mapping[str, str]] = {
    Kind.SAMPLER: {
        **dict.fromkeys(("randomsearch", "basicvariant", "basicvariantgenerator"), "it is called random here"),
        "gridsearch": "it is called grid here",
        **dict.fromkeys(("exhaustive", "exhaustivesearch"), "it is called bruteforce here, or grid without conditions"),
        **dict.fromkeys(("sobol", "sobolsearch", "quasirandom", "quasirandomsearch"), _SOBOL),
        "halton": "it is called qmc here: {name: qmc, qmc_type: halton}",
        **dict.fromkeys(("latinhypercube", "lhs"), "there is none here; qmc spreads its points evenly as well"),
        **dict.fromkeys(
            (
                *("bayes", "bayesian", "bayesianoptimization", "bayesianoptimisation", "bayesopt", "bayesoptsearch"),
                *("gaussianprocess", "gaussianprocessbandit", "skopt"),
            ),
            _BAYESIAN,
        ),
        **dict.fromkeys(("hyperopt", "hyperoptsearch", "optuna", "optunasearch"), "it is called tpe here"),
        "multivariatetpe": "it is called tpe here: {name: tpe, multivariate: true}",
        **dict.fromkeys(("cma", "cmaevolutionstrategy"), "it is called cmaes here"),
        **dict.fromkeys(("nsga2", "genetic", "evolutionary"), "it is called nsgaii here"),
        "nsga3": "it is called nsgaiii here",
        **dict.fromkeys(("bohb", "tunebohb"), _BOHB),
        "hyperband": "it is a pruner here: write pruner: hyperband, beside the sampler",
        **dict.fromkeys(
            ("asha", "adaptiveasha", "asynchyperband", "successivehalving"),
            "it is a pruner here: write pruner: successive_halving, beside the sampler",
        ),
        **dict.fromkeys(("medianstop", "medianstopping"), "it is a pruner here: write pruner: median, beside the sampler"),
        **dict.fromkeys(("pbt", "pb2", "populationbasedtraining"), _EVOLVES),
        **dict.fromkeys(("enas", "darts"), _ARCHITECTURE),
        **dict.fromkeys(("ax", "axsearch", "hebo", "hebosearch", "nevergrad", "nevergradsearch", "zoopt"), _LIBRARY),
        **dict.fromkeys(("blendsearch", "cfo", "dragonfly", "vizier"), _LIBRARY),
    },
    Kind.PRUNER: {
        **dict.fromkeys(("asha", "adaptiveasha", "ashascheduler", "sha"), _ASHA),
        **dict.fromkeys(("asynchyperband", "asynchyperbandscheduler"), _ASHA),
        "hyperbandscheduler": "it is called hyperband here",
        **dict.fromkeys(("bohb", "hbbohb", "hyperbandforbohb"), _BOHB),
        **dict.fromkeys(("medianstop", "medianstopping", "medianstoppingrule", "auto"), "it is called median here"),
        **dict.fromkeys(("earlystopping", "plateau", "trialplateaustopper"), "it is called patient here"),
        **dict.fromkeys(("fifo", "fifoscheduler", "off", "no"), "to end no trial early, write none"),
        **dict.fromkeys(("pbt", "pb2", "populationbasedtraining"), _EVOLVES),
    },
}
