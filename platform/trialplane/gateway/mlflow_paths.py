"""The paths of MLflow's server to which requests are forwarded, and which of these requests only read."""

from __future__ import annotations

import re
import urllib.parse

# Paths whose data MLflow separates by workspace, and for which its plugin has rules. Other paths are refused: they make the
# server connect to other servers (its gateway, webhooks) or run programs (jobs, scorers, evaluations, assistants), or their
# data is shared by all workspaces. Also refused are uploads that bypass the gateway, because no budget would count them, and
# `get-trace-artifact`, which reads any path that a tag of the trace names.
_CALLS = re.compile(
    r"/(?:ajax-)?api/[23]\.0/mlflow/(?:server-info|artifacts/(?:list|presigned-download-url)"
    r"|(?:datasets|experiments|logged-models|metrics|model-versions|registered-models|runs|traces|workspaces)(?:/.+)?)"
)
_ARTIFACTS = re.compile(r"/(?:ajax-)?api/2\.0/mlflow-artifacts/artifacts(?:/.*)?")
_WORKSPACE = re.compile(r"/(?:ajax-)?api/[23]\.0/mlflow/workspaces/([^/]+)(?:/.*)?")  # group 1: the workspace
_PAGES = re.compile(r"/|/(?:version|graphql|get-artifact|model-versions/get-artifact|static-files/.+)")  # of MLflow's UI
# Requests with a body that only read, such as `/api/2.0/mlflow/runs/search`.
_READS = re.compile(r".*/(?:graphql|metrics|(?:search|get|batch[Gg]et|calculate)[\w-]*)")
_DELETES = re.compile(r".*/delete[\w-]*")  # such as `/api/2.0/mlflow/runs/delete-tag`


def allowed_path(target: str) -> str | None:
    """Return the decoded path of a request, or None if the request is refused.

    Args:
        target: Path and query of the request, as sent.
    """
    path = urllib.parse.unquote(target.partition("?")[0])
    parts = path.split("/")
    # MLflow's server could resolve such a path to another one than the patterns below have checked.
    has_ambiguous_part = ".." in parts or "." in parts or "" in parts[1:-1]
    if has_ambiguous_part or not path.isprintable() or "\\" in path:
        return None
    is_allowed = _CALLS.fullmatch(path) or _PAGES.fullmatch(path) or is_artifact(path)
    return path if is_allowed else None


def is_other_workspace(path: str, namespace: str) -> bool:
    """Whether a path names another workspace than a namespace's. MLflow's plugin answers it to everybody."""
    match = _WORKSPACE.fullmatch(path)
    return match is not None and match[1] != namespace


def is_artifact(path: str) -> bool:
    """Whether a path is that of an artifact, or of a folder of artifacts, in the server's artifact store."""
    return _ARTIFACTS.fullmatch(path) is not None


def is_read_only(method: str, target: str, body: bytes) -> bool:
    """Whether a request is allowed, only reads, and is not for an artifact.

    `platform ui` forwards only such requests to the MLflow server of a laptop, which has no access control.
    """
    path = allowed_path(target)
    if path is None or is_artifact(path):
        return False
    may_be_mutation = path == "/graphql" and b"mutation" in body.lower()  # of GraphQL: a request that writes
    if may_be_mutation:
        return False
    return method == "GET" or (method == "POST" and _READS.fullmatch(path) is not None)


def stores_data(method: str, path: str) -> bool:
    """Whether MLflow may store data from the body of a request, so that the body counts toward the budget."""
    return method not in ("GET", "DELETE") and not _READS.fullmatch(path) and not _DELETES.fullmatch(path)
