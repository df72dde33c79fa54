"""The environment of a slot's template, and so of all trials in it: threads, policies, and what the pod has installed.

The packages that a trial pod installs come on both paths here and not in its manifest, which would replace an image's own
PYTHONPATH, and would have Ray start with them.
"""

from __future__ import annotations

import os
import sys

from trialplane import policies
from trialplane.wire import env
from trialplane.wire.records import SlotConfig

_OPENBLAS = "OPENBLAS_NUM_THREADS"


def of_template(config: SlotConfig) -> dict[str, str]:
    """The variables of a template.

    Args:
        config: of its slot.
    """
    threads = str(config.cpus)
    made = {
        "PYTHONHASHSEED": "0",
        **os.environ,
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "JE_ARROW_MALLOC_CONF": "background_thread:false",  # pyarrow's thread likewise
        "MLFLOW_DISABLE_TELEMETRY": "true",  # another thread, and network calls
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
        # A user's own value of a policy's variable wins; the policy warns.
        **{name: value for name, value in policies.trial_env().items() if name not in os.environ},
        **config.env,
    }
    made[env.BLAS_THREADS] = made.get(_OPENBLAS, "")
    made[_OPENBLAS] = "1"  # numpy's threads start at import, and would make forks unsafe; a trial has its own: `use_cores`
    if packages := os.environ.get(env.PACKAGES):
        for name, first in (("PYTHONPATH", packages), ("PATH", f"{packages}/bin")):
            made[name] = os.pathsep.join(filter(None, (first, made.get(name))))
    return made


def use_cores(count: int) -> None:
    """Has numpy and torch use so many threads in this process, the trial's or a rank's, unless the user asked for others.

    The template's one thread is fit for a fork, and this is behind it. What is loaded later reads the variable.
    """
    asked = os.environ.get(env.BLAS_THREADS) or str(count)
    if asked != os.environ.get(_OPENBLAS):
        os.environ[_OPENBLAS] = asked
        if "numpy" in sys.modules and asked.isdecimal():
            import threadpoolctl  # the template has imported it, where it has numpy

            threadpoolctl.ThreadpoolController().select(internal_api="openblas").limit(limits=int(asked))
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(count)


def enter() -> None:
    """Has this process find the installed packages too: it checks that they are there, and sends files to URLs with them."""
    packages = os.environ.get(env.PACKAGES)
    if packages and packages not in sys.path:
        sys.path.insert(0, packages)
