"""The job demo, and a namespace on the double of a cluster: fixtures of tests/client."""

from __future__ import annotations

from tests.client.conftest import home, namespace, planned, target, workplace

__all__ = ["home", "namespace", "planned", "target", "workplace"]
