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


def test_the_spec_loads_nothing_heavy() -> None:
    heavy = "{'optuna', 'numpy', 'torch', 'ray', 'mlflow', 'sqlalchemy'}"
    code = f"import sys, trialplane.job.load, trialplane.job.schema; print(sorted({heavy} & set(sys.modules)))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
