"""The tables of option names against the installed Optuna, so that a new version's changes show.

Checks names, required ones, what accepts None, and that nothing of Optuna's is unreachable. Does not check how the
controller builds the objects.
"""

from __future__ import annotations

import inspect
import json
import subprocess
import sys

import pytest

from trialplane.spec import options
from trialplane.spec.options import Kind

optuna = pytest.importorskip("optuna")

# Not for choosing: `PartialFixedSampler` is what `--params` does, the others are abstract.
_NOT_OFFERED = {"BaseSampler", "BaseGASampler", "PartialFixedSampler", "BasePruner", "BaseCrossover", "BaseMutation"}
_MODULES = {
    Kind.SAMPLER: optuna.samplers,
    Kind.PRUNER: optuna.pruners,
    Kind.CROSSOVER: optuna.samplers.nsgaii,
    Kind.MUTATION: optuna.samplers.nsgaii,
}
_SUFFIX = {Kind.SAMPLER: "Sampler", Kind.PRUNER: "Pruner", Kind.CROSSOVER: "Crossover", Kind.MUTATION: "Mutation"}
_EVERY = [(kind, name) for kind, table in options.TABLES.items() for name in table]


@pytest.mark.parametrize(("kind", "name"), _EVERY)
def test_options_are_those_of_the_constructor(kind: Kind, name: str) -> None:
    choice = options.TABLES[kind][name]
    signature = inspect.signature(getattr(_MODULES[kind], choice.cls)).parameters
    ours = {option.argument or key for key, option in choice.options.items()}
    assert ours | set(choice.platform) == set(signature)
    assert not ours & set(choice.platform)
    required = {option.argument or key for key, option in choice.options.items() if option.required}
    needed = {key for key, parameter in signature.items() if parameter.default is parameter.empty}
    assert required == needed - set(choice.platform)


@pytest.mark.parametrize(("kind", "name"), _EVERY)
def test_types_agree_with_the_defaults(kind: Kind, name: str) -> None:
    choice = options.TABLES[kind][name]
    signature = inspect.signature(getattr(_MODULES[kind], choice.cls)).parameters
    for key, option in choice.options.items():
        default = signature[option.argument or key].default
        if default is None:
            assert option.nullable, key
        elif isinstance(default, bool):
            assert option.kind is Kind.BOOL, key
        elif isinstance(default, int):
            assert option.kind in (Kind.INT, Kind.INT_OR_AUTO), key
        elif isinstance(default, float):
            assert option.kind is Kind.NUMBER, key
        elif default == "auto":
            assert option.kind is Kind.INT_OR_AUTO, key


@pytest.mark.parametrize("kind", list(_MODULES))
def test_nothing_of_optuna_is_left_out(kind: Kind) -> None:
    theirs = {name for name in dir(_MODULES[kind]) if name.endswith(_SUFFIX[kind])} - _NOT_OFFERED
    assert theirs == {choice.cls for choice in options.TABLES[kind].values()}


_WITHOUT = """
import json, sys, warnings
import optuna
from trialplane.spec import options
from trialplane.spec.options import Kind

class Lacking:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Lacking())
optuna.logging.set_verbosity(optuna.logging.ERROR)
warnings.simplefilter("ignore")
RANGE = {"x": [0.0, 0.5, 1.0], "y": [float(n) for n in range(9)]}
NEEDED = {"percentile": {"percentile": 50.0}, "patient": {"wrapped_pruner": None, "patience": 1}, "threshold": {"lower": 0}}

def objective(trial):
    for step in range(3):
        trial.report(trial.suggest_float("x", 0, 1, step=0.5), step)
        trial.should_prune()
    return trial.suggest_float("y", 0, 8, step=1)

failed = []
for kind, module in ((Kind.SAMPLER, optuna.samplers), (Kind.PRUNER, optuna.pruners)):
    for name, choice in options.TABLES[kind].items():
        given = {"search_space": RANGE} if "search_space" in choice.platform else NEEDED.get(name, {})
        try:
            made = getattr(module, choice.cls)(**given)
            optuna.create_study(**{kind.name.lower(): made}).optimize(objective, n_trials=12)
        except ImportError:
            failed.append(name)
print(json.dumps(failed))
"""


@pytest.mark.parametrize("library", ["torch", "scipy", "cmaes"])
def test_the_libraries_of_a_sampler_or_pruner_are_those_without_which_it_fails(library: str) -> None:
    shown = subprocess.run([sys.executable, "-c", _WITHOUT, library], capture_output=True, text=True, check=True)
    tables = (options.TABLES[Kind.SAMPLER], options.TABLES[Kind.PRUNER])
    assert json.loads(shown.stdout) == [
        name for table in tables for name, choice in table.items() if library in choice.libraries
    ]


def test_the_spec_loads_nothing_heavy() -> None:
    heavy = "{'optuna', 'numpy', 'torch', 'ray', 'mlflow', 'sqlalchemy'}"
    code = f"import sys, trialplane.spec.load, trialplane.spec.schema; print(sorted({heavy} & set(sys.modules)))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
