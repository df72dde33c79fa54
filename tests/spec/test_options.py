"""The tables of option names against the installed Optuna, so that a new version's changes show.

Checks names, required ones, what accepts None, and that nothing of Optuna's is unreachable. Does not check how the
controller builds the objects.
"""

from __future__ import annotations

import inspect
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


def test_the_spec_loads_nothing_heavy() -> None:
    heavy = "{'optuna', 'numpy', 'torch', 'ray', 'mlflow', 'sqlalchemy'}"
    code = f"import sys, trialplane.spec.load, trialplane.spec.schema; print(sorted({heavy} & set(sys.modules)))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
