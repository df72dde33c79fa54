"""Runs whose ledgers the controller's code has written: fixtures of tests/client."""

from __future__ import annotations

from tests.client.conftest import home, runs, workplace

__all__ = ["home", "runs", "workplace"]
