"""Set the environment of a slot's template and of its trials: threads, policies, and packages that the pod has installed.

The packages that a trial's pod installs are added to PYTHONPATH and PATH here, not in the pod's manifest. There they would
replace the image's own PYTHONPATH, and Ray would start with them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from trialplane import policies
from trialplane.wire import env
from trialplane.wire.records import SlotConfig
from trialplane.worker import module_path

_ALLOCATOR, _OLD_ALLOCATOR = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"
_FRACTION = "per_process_memory_fraction"
_TORCHS_PART = 0.95  # of a share; the rest is for the CUDA context, which torch does not count
_OPENBLAS = "OPENBLAS_NUM_THREADS"


def template_variables(config: SlotConfig) -> dict[str, str]:
    """Return the environment variables of a template, which its trials inherit.

    The user's variables take precedence over defaults, and the job's `env` over these.
    """
    threads = str(config.cpus)
    variables = {
        "PYTHONHASHSEED": "0",  # the order of sets must be the same in all trials
        **os.environ,
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "JE_ARROW_MALLOC_CONF": "background_thread:false",  # a thread of pyarrow would prevent forks
        "MLFLOW_DISABLE_TELEMETRY": "true",  # telemetry starts a thread and makes network calls
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
        # If the user has set a policy's variable, that value is used, and the policy warns.
        **{name: value for name, value in policies.trial_env().items() if name not in os.environ},
        **config.env,
    }
    variables |= _gpu_memory(config, variables)
    # numpy starts its threads when it is imported, and a template with threads cannot fork safely. So it gets one thread
    # here, and a trial sets its own number by `use_cores`, which needs to know the user's.
    variables[env.BLAS_THREADS] = variables.get(_OPENBLAS, "")
    variables[_OPENBLAS] = "1"
    if packages := os.environ.get(env.PACKAGES):
        variables |= module_path.import_variables(packages, variables)
        variables["PATH"] = os.pathsep.join(filter(None, (f"{packages}/bin", variables.get("PATH"))))
    return variables


def _gpu_memory(config: SlotConfig, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the setting with which torch limits its memory on a shared GPU, as `set_per_process_memory_fraction` does.

    torch reads it before its first allocation on a GPU. So nothing is imported for it, a template does not use CUDA, and it
    holds in scripts and their processes too. Versions of torch that do not know the limit do not read this variable.
    """
    share = float(variables.get(env.GPU_MEMORY) or config.gpu_share)
    # torch ignores the older variable beside the newer one.
    user_options = variables.get(_ALLOCATOR) or variables.get(_OLD_ALLOCATOR) or ""
    if share >= 1 or _FRACTION in user_options:
        return {}
    return {_ALLOCATOR: ",".join(filter(None, (user_options, f"{_FRACTION}:{share * _TORCHS_PART:.4g}")))}


def use_cores(count: int) -> None:
    """Set the number of threads of numpy and torch in this process, a trial or a rank.

    If the user has set a number for numpy (OpenBLAS), numpy gets that one.

    Call it after the fork, because the template must have one thread only. Libraries that are loaded later read the
    variable that this sets.
    """
    threads = os.environ.get(env.BLAS_THREADS) or str(count)
    if threads != os.environ.get(_OPENBLAS):
        os.environ[_OPENBLAS] = threads
        if "numpy" in sys.modules and threads.isdecimal():
            import threadpoolctl  # the template has imported it, where it has numpy

            threadpoolctl.ThreadpoolController().select(internal_api="openblas").limit(limits=int(threads))
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(count)


def add_packages_to_path() -> None:
    """Add the pod's installed packages to the path of the slot's process, which checks them and uses some to send files."""
    packages = os.environ.get(env.PACKAGES)
    if packages and packages not in sys.path:
        sys.path.insert(0, packages)
