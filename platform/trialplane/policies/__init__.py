"""The four policies, one file each, one shape.

Each documents Rule, Why, Enforced where and Test. `ENV` holds the variables of a trial's process and pod, `apply()` enforces
the policy in this process (call it before other imports), and `check()` raises `errors.PolicyError` with what to do. Their
import needs only the standard library.
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
