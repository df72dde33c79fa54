"""A route of the gateway, with its path, authority and handler, and the OpenAPI document of all routes."""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Callable, Iterable
from typing import Any

from starlette.responses import Response

import trialplane
from trialplane.wire import cluster

ANY = "*"  # all methods of MLflow's protocol


class Authority(enum.Enum):
    """The callers that a route admits."""

    ANYONE = "Anyone."
    VIEWER = "A user or viewer of the namespace, by a token of its service account."
    USER = "A user of the namespace, by a token of its service account."
    CONTROLLER = "The controller of the run, by the run's token."
    TRIAL = "The controller and the trials of the run, by the token that is derived from the run's."


# Security schemes of OpenAPI, by authority.
_SCHEMES = {
    Authority.VIEWER: "serviceAccount",
    Authority.USER: "serviceAccount",
    Authority.CONTROLLER: "run",
    Authority.TRIAL: "trial",
}
_HEADER = {"type": "apiKey", "in": "header", "name": cluster.TOKEN_HEADER}
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


@dataclasses.dataclass(frozen=True)
class Route:
    """A route of the gateway.

    Attributes:
        method: HTTP method. `ANY` for all methods and all paths below `path`.
        path: Path, with `{namespace}` and `{run}` as placeholders.
        authority: Callers that the route admits.
        summary: One line for the OpenAPI document.
        answer: Function that returns the response. None if `ledgers` or `mlflow` answers.
        options: Names of the query's optional integers.
    """

    method: str
    path: str
    authority: Authority
    summary: str
    answer: Callable[..., Response] | None = None
    options: tuple[str, ...] = ()

    @property
    def methods(self) -> tuple[str, ...]:
        """HTTP methods of the route."""
        return _METHODS if self.method == ANY else (self.method,)


def document(routes: Iterable[Route]) -> dict[str, Any]:
    """Return the OpenAPI document of routes."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        path = f"{route.path}/{{target}}" if route.method == ANY else route.path
        entry = paths.setdefault(path, {})
        for method in route.methods:
            entry[method.lower()] = _operation(route, path)
    return {
        "openapi": "3.1.0",
        "info": {"title": "The gateway of trialplane", "version": trialplane.__version__},
        "paths": paths,
        "components": {
            "securitySchemes": {
                "serviceAccount": {**_HEADER, "description": "A token of the API server, see `platform docs security`."},
                "run": {**_HEADER, "description": "The token that the operator created for this start of the run."},
                "trial": {"type": "http", "scheme": "bearer"},
            }
        },
    }


def _operation(route: Route, path: str) -> dict[str, Any]:
    """Return OpenAPI's operation object of a route, whose parameters are the placeholders of the path and the options."""
    required = [_parameter("path", name, "string") for name in re.findall(r"{(\w+)}", path)]
    optional = [_parameter("query", name, "integer") for name in route.options]
    scheme = _SCHEMES.get(route.authority)
    return {
        "summary": route.summary,
        "description": route.authority.value,
        "parameters": required + optional,
        "security": [] if scheme is None else [{scheme: []}],
        "responses": {"200": {"description": "Done."}, "default": {"description": "JSON with the reason in `error`."}},
    }


def _parameter(location: str, name: str, kind: str) -> dict[str, Any]:
    return {"name": name, "in": location, "required": location == "path", "schema": {"type": kind}}
