"""The four policies, one file each, one shape.

Each documents Rule, Why, Enforced where and Test, and has `ENV` (what a trial's process and pod get), `apply()` (takes
effect in this process; call it before any other import) and `check()` (raises `errors.PolicyError`, which explains what to
do). Standard library only at import.
"""

from __future__ import annotations

from trialplane.policies import pickling, protobuf, spawn, transport

ALL = (protobuf, spawn, pickling, transport)


def trial_env() -> dict[str, str]:
    """The variables of all policies, as a trial's process gets them."""
    return {name: value for policy in ALL for name, value in policy.ENV.items()}


def apply_all() -> None:
    """Puts every policy into effect in this process."""
    for policy in ALL:
        policy.apply()
