"""The four policies. Each is a module with the same interface.

The docstring of each module has the sections Rule, Why, Enforced where and Test. `ENV` has the environment variables of a
trial's process and pod. `apply()` enforces the policy in this process; call it before other imports. `check()` raises a
PolicyError with a remedy if the policy is not enforced. The modules import only the standard library.
"""

from __future__ import annotations

from trialplane.policies import pickling, protobuf, spawn, transport

ALL = (protobuf, spawn, pickling, transport)


def trial_env() -> dict[str, str]:
    """Return the variables of all policies for a trial's process."""
    return {name: value for policy in ALL for name, value in policy.ENV.items()}


def apply_all() -> None:
    """Enforce every policy in this process."""
    for policy in ALL:
        policy.apply()
