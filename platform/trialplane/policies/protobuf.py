"""Trial processes use protobuf's pure Python implementation, and the controller uses the fast one.

Rule: `PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION=python` is in a trial's environment before its interpreter starts, and never
in the controller's.
Why: sentencepiece and transformers both register `sentencepiece_model.proto`. The C implementation (upb) has one pool
per process and refuses the second: "duplicate file name sentencepiece_model.proto". The Python implementation allows it,
but parses a large Optuna or MLflow reply a hundred times slower, which only a trial can afford.
Enforced where: the slot puts `ENV` into the template's environment; images and manifests set the same; the controller is
started without it.
Test: tests/worker/test_protobuf_failure.py, tests/study/test_tokenizers.py.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping

from trialplane import errors

VARIABLE = "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"
ENV = {VARIABLE: "python"}


def apply() -> None:
    """Set the variable, unless the user has set it. Warn if the user's value differs."""
    value = os.environ.setdefault(VARIABLE, ENV[VARIABLE])
    if value != ENV[VARIABLE]:
        warnings.warn(
            f"{VARIABLE}={value} is set by you and kept: sentencepiece tokenizers may fail in this trial", stacklevel=2
        )


def check() -> None:
    """Raise PolicyError if the variable is not set, or if protobuf was imported with another implementation."""
    value = os.environ.get(VARIABLE)
    if value is None:
        raise errors.PolicyError(
            f"{VARIABLE} is not set in this process, so sentencepiece tokenizers fail in it; "
            f"set {VARIABLE}=python before Python starts (trialplane's images and slots do)"
        )
    loaded_implementation = implementation()
    if loaded_implementation is not None and loaded_implementation != value:
        raise errors.PolicyError(
            f"protobuf was imported as {loaded_implementation} before {VARIABLE}={value} was set; "
            "set the variable before Python starts, or apply the policies before any other import"
        )


def implementation() -> str | None:
    """Return the loaded implementation ("python" or "upb"). None if protobuf is not imported."""
    module = sys.modules.get("google.protobuf.internal.api_implementation")
    return str(module.Type()) if module is not None else None


def controller_env(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables for the controller: without the variable if it selects the slow implementation."""
    return {name: value for name, value in environ.items() if (name, value) != (VARIABLE, ENV[VARIABLE])}
