"""Answers of the gateway in JSON."""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import Response

from trialplane.wire import records


def json_response(value: Any) -> Response:
    """Return the response with a value or a record as JSON."""
    return Response(json.dumps(records.to_dict(value), separators=(",", ":")), media_type="application/json")


def error_response(status: int, text: str, code: str = "") -> Response:
    """Return the response to a failed request.

    Args:
        status: HTTP status.
        text: Message for people.
        code: Code for programs, or "".
    """
    body = {"error": text, **({"code": code} if code else {})}
    return Response(json.dumps(body), status, media_type="application/json")
