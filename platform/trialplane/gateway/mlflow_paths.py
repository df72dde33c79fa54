"""The addresses of MLflow's server that pass, and which requests to them only read."""

from __future__ import annotations

import re
import urllib.parse

# What MLflow keeps apart by workspaces, and its plugin has rules for. The rest stays out: what makes the server connect
# elsewhere (its gateway, webhooks), runs programs there (jobs, scorers, evaluations, assistants), or is shared by all
# workspaces. So do uploads past the gateway, which would count for no budget, and `get-trace-artifact`, which reads any
# path that a tag of the trace names.
_CALLS = re.compile(
    r"/(?:ajax-)?api/[23]\.0/mlflow/(?:server-info|artifacts/(?:list|presigned-download-url)"
    r"|(?:datasets|experiments|logged-models|metrics|model-versions|registered-models|runs|traces|workspaces)(?:/.+)?)"
)
_ARTIFACTS = re.compile(r"/(?:ajax-)?api/2\.0/mlflow-artifacts/artifacts(?:/.*)?")
_PAGES = re.compile(r"/|/(?:version|graphql|get-artifact|model-versions/get-artifact|static-files/.+)")
# By the last part of a path: requests with a body that only read.
_READS = re.compile(r".*/(?:graphql|metrics|(?:search|get|batch[Gg]et|calculate)[\w-]*)")
_DELETES = re.compile(r".*/delete[\w-]*")


def passing(target: str) -> str | None:
    """Return the path of a request as MLflow reads it, or None if it does not pass.

    Args:
        target: path and query, as they came.
    """
    path = urllib.parse.unquote(target.partition("?")[0])
    parts = path.split("/")
    if ".." in parts or "." in parts or "" in parts[1:-1] or not path.isprintable() or "\\" in path:
        return None
    return path if _CALLS.fullmatch(path) or _PAGES.fullmatch(path) or is_artifact(path) else None


def is_artifact(path: str) -> bool:
    """Whether it is the path of a file that the server keeps, or of a folder of such."""
    return _ARTIFACTS.fullmatch(path) is not None


def reads(method: str, target: str, body: bytes) -> bool:
    """Whether a request passes and changes nothing, on a server that asks nobody what its caller may do."""
    path = passing(target)
    if path is None or is_artifact(path) or (path == "/graphql" and b"mutation" in body.lower()):
        return False
    return method == "GET" or (method == "POST" and _READS.fullmatch(path) is not None)


def adds(method: str, path: str) -> bool:
    """Whether MLflow may keep something of a request's body."""
    return method not in ("GET", "DELETE") and not _READS.fullmatch(path) and not _DELETES.fullmatch(path)
