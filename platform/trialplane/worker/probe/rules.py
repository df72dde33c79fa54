"""Whether the four policies hold in this process, and whether its environment was made to keep them."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from types import ModuleType

from trialplane import errors, policies
from trialplane.policies import protobuf
from trialplane.wire import findings
from trialplane.wire.findings import Finding

_CURE = "use an image built from jobs/Dockerfile, and leave the variable out of `env` in the chart's values"


def of_trial() -> Iterator[Finding]:
    """The policies as a trial's pod must keep them."""
    for policy in policies.ALL:
        yield _finding(policy)


def of_image(role: str) -> Iterator[Finding]:
    """The policies as an image must keep them.

    Args:
        role: "trial", or "controller", which keeps protobuf's fast implementation.
    """
    if role == "trial":
        yield from of_trial()
        return
    for policy in policies.ALL:
        if policy is not protobuf:
            yield _finding(policy)
    yield _protobuf_of_controller()


def _finding(policy: ModuleType) -> Finding:
    """One policy: its variables must be there before it is applied, and then it must hold."""
    check = f"policy {policy.__name__.rpartition('.')[2]}"
    for variable, value in policy.ENV.items():
        if os.environ.get(variable) != value:
            return findings.failed(check, f"{variable} is {os.environ.get(variable)!r} and not {value!r}", _CURE)
    policy.apply()
    if policy is protobuf:
        _import_protobuf()  # check() looks at what is loaded
    try:
        policy.check()
    except errors.PolicyError as error:
        return findings.failed(check, str(error), _CURE)
    held = [f"{variable}={value}" for variable, value in policy.ENV.items()]
    if policy is protobuf:
        held.append(f"protobuf runs as {protobuf.implementation()}")
    return findings.passed(check, ", ".join(held))


def _protobuf_of_controller() -> Finding:
    if protobuf.VARIABLE in os.environ:
        message = f"{protobuf.VARIABLE} is set, which makes the controller two orders of magnitude slower"
        return findings.failed("policy protobuf", message, "leave it out of the controller's image and variables")
    _import_protobuf()
    kind = protobuf.implementation()
    if kind == "python":
        cure = "install a protobuf wheel that was made for this platform"
        return findings.failed("policy protobuf", "protobuf has no fast implementation here", cure)
    return findings.passed("policy protobuf", f"protobuf runs as {kind}, the fast one")


def _import_protobuf() -> None:
    importlib.import_module("google.protobuf.internal.api_implementation")
