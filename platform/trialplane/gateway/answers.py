"""Answers of the gateway in JSON."""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import Response

from trialplane.wire import records


def as_json(value: Any) -> Response:
    """A value, or a record."""
    return Response(json.dumps(records.to_dict(value), separators=(",", ":")), media_type="application/json")


def failed(status: int, text: str, code: str = "") -> Response:
    """The answer to a request that failed; `code` is for programs."""
    body = {"error": text, **({"code": code} if code else {})}
    return Response(json.dumps(body), status, media_type="application/json")
