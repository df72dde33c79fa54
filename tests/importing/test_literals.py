"""Options from the texts of a command."""

from __future__ import annotations

from typing import Any

import pytest

from trialplane.importing import literals
from trialplane.wire.declared import Option


@pytest.mark.parametrize(
    ("kind", "text", "default", "expected_kind"),
    [
        ("float", "3", 3, "float"),
        ("str", "3", 3, "int"),
        ("int", "small", "small", "str"),
        ("bool", "true", None, "str"),
        ("str", "[1]", None, "str"),
    ],
)
def test_an_argument_has_a_kind_that_fits_its_text(kind: str, text: str, default: Any, expected_kind: str) -> None:
    expected = Option("size", default, expected_kind, flag="-s")
    assert literals.with_default(Option("size", kind=kind, flag="-s", required=True), text) == expected
