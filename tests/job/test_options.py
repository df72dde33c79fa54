"""The signatures of Optuna's classes that the platform knows, against the installed Optuna, so that a new version shows.

To write them anew, and then to read `git diff platform/trialplane/job/optuna.json`:

    REWRITE_GOLDEN=1 python -m pytest tests/job/test_options.py

Does not check how the controller builds the objects.
"""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys

import pytest

from trialplane.job import options

optuna = pytest.importorskip("optuna")

# Not for choosing: `PartialFixedSampler` is what `--params` does, the others are abstract.
_NOT_OFFERED = {"BaseSampler", "BaseGASampler", "PartialFixedSampler", "BasePruner", "BaseCrossover", "BaseMutation"}
_MODULES = {
    "Sampler": optuna.samplers,
    "Pruner": optuna.pruners,
    "Crossover": optuna.samplers.nsgaii,
    "Mutation": optuna.samplers.nsgaii,
}


def arguments(cls: type) -> dict[str, str]:
    """Name → type and default, as in the signature."""
    signature = inspect.signature(cls)
    return {name: str(argument).partition(": ")[2].replace("'", "", 2) for name, argument in signature.parameters.items()}


def signatures() -> str:
    found = {
        suffix.lower(): {
            name: arguments(getattr(module, name))
            for name in dir(module)
            if name.endswith(suffix) and name not in _NOT_OFFERED
        }
        for suffix, module in _MODULES.items()
    }
    return json.dumps(found, indent=2) + "\n"


def test_the_signatures_are_those_of_the_installed_optuna() -> None:
    if os.environ.get("REWRITE_GOLDEN"):
        options.SIGNATURES.write_text(signatures())
    assert options.SIGNATURES.read_text() == signatures(), f"{options.SIGNATURES} is out of date: see the docstring"


_WITHOUT_A_LIBRARY = """
import json, sys, warnings
import optuna
from trialplane.job import options
from trialplane.job.options import ValueKind

class Lacking:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Lacking())
optuna.logging.set_verbosity(optuna.logging.ERROR)
warnings.simplefilter("ignore")
SPACE = {"x": [0.0, 0.5, 1.0], "y": [float(n) for n in range(9)]}
NEEDED = {"percentile": {"percentile": 50.0}, "patient": {"wrapped_pruner": None, "patience": 1}, "threshold": {"lower": 0}}

def objective(trial):
    for step in range(3):
        trial.report(trial.suggest_float("x", 0, 1, step=0.5), step)
        trial.should_prune()
    return trial.suggest_float("y", 0, 8, step=1)

failed = []
for kind, module in ((ValueKind.SAMPLER, optuna.samplers), (ValueKind.PRUNER, optuna.pruners)):
    for name, choice in options.TABLES[kind].items():
        if not hasattr(module, choice.cls):
            continue  # the platform's own
        arguments = {"search_space": SPACE} if "search_space" in choice.platform else NEEDED.get(name, {})
        try:
            algorithm = getattr(module, choice.cls)(**arguments)
            optuna.create_study(**{kind.name.lower(): algorithm}).optimize(objective, n_trials=12)
        except ImportError:
            failed.append(name)
print(json.dumps(failed))
"""


@pytest.mark.slow
@pytest.mark.parametrize("library", ["torch", "scipy", "cmaes"])
def test_the_libraries_of_a_sampler_or_pruner_are_those_without_which_it_fails(library: str) -> None:
    program = [sys.executable, "-c", _WITHOUT_A_LIBRARY, library]
    shown = subprocess.run(program, capture_output=True, text=True, check=True)
    tables = (options.SAMPLERS, options.PRUNERS)
    assert json.loads(shown.stdout) == [
        name for table in tables for name, choice in table.items() if library in choice.libraries
    ]


def test_the_spec_loads_nothing_heavy() -> None:
    heavy = "{'optuna', 'numpy', 'torch', 'ray', 'mlflow', 'sqlalchemy'}"
    code = f"import sys, trialplane.job.load, trialplane.job.schema; print(sorted({heavy} & set(sys.modules)))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
