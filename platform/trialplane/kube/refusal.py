"""Errors for responses of an API server that refuses a request, with advice for the user. Pure.

The body of such a response is a `Status` object of Kubernetes, with a message for people and details for programs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from trialplane import errors
from trialplane.errors import InputError, TargetError, TrialplaneError

INSTALL = "helm install platform charts/platform --namespace trialplane --create-namespace"
_RUNS = "runs.trialplane.io"
_RAY = "rayclusters.ray.io"
# The API server's message about a JSON patch whose test operation failed.
_FAILED_TEST = "the server rejected our request due to an error in our request"
_USER = re.compile(r'User "([^"]+)"')
_POLICY = re.compile(  # the message of an admission policy or a webhook
    r"(?:ValidatingAdmissionPolicy '[^']*' with binding '[^']*' denied request: |denied the request: )(.*)", re.S
)


def is_about_an_object(data: bytes) -> bool:
    """Whether the body of a 404 response says that an object is missing, and not that the server does not know its kind."""
    return bool(_status(data).get("details", {}).get("name"))


def error(status: int, data: bytes, verb: str, resource: str, namespace: str, context: str) -> TrialplaneError:
    """Return the error for an unsuccessful response.

    Args:
        status: HTTP status.
        data: Body of the response.
        verb: RBAC verb of the request: get, list, patch, …
        resource: RBAC resource of the request: rayclusters.ray.io, pods/log, …
        namespace: Namespace of the request.
        context: Context of the kubeconfig.

    Returns:
        An InputError if another request of the user may succeed, else a TargetError.
    """
    status_object = _status(data)
    message = str(status_object.get("message") or data[:300].decode(errors="replace").strip() or f"HTTP {status}")
    target = f"namespace {namespace} of {context}"
    if status == 401:
        return TargetError(
            f"the cluster {context} does not accept your credentials, which may have expired; log in again as for kubectl: "
            f"`kubectl --context {context} auth whoami` shows who you are ({message})"
        )
    if status == 403 and "cannot" in message and "denied" not in message:  # from RBAC: `User "ann" cannot get resource …`
        return TargetError(_forbidden_message(message, verb, resource, namespace, context))
    if status == 403 or (status == 422 and _POLICY.search(message)):
        return InputError(f"{target} refuses the request: {denial_reason(message)}")
    is_kind_unknown = status == 404 and not is_about_an_object(data)
    if is_kind_unknown and resource == _RAY:
        return TargetError(
            f"the cluster {context} does not know {resource}: the KubeRay operator (1.6 or newer) is not installed; a "
            "cluster administrator installs it, see `platform docs cluster`"
        )
    if is_kind_unknown and resource == _RUNS:
        return TargetError(
            f"the cluster {context} does not know {resource}: trialplane is not installed there, or its chart is older than "
            "this `platform`; a cluster administrator runs `kubectl apply --server-side -f charts/platform/crds/`, then "
            "`helm upgrade`, see `platform docs upgrades`"
        )
    if status == 404 and status_object.get("details", {}).get("kind") == "namespaces":
        return InputError(f"there is no namespace {namespace} in {context}; choose another with --namespace")
    if status == 409 or (status == 422 and message.startswith(_FAILED_TEST)):
        return TargetError(f"{target}: {message}; it was changed concurrently: try again")
    if status == 422:
        field_errors = message.partition(" is invalid: ")[2] or message  # spec.parallel: Invalid value: …
        return InputError(f"{target} rejects the request: {field_errors}")
    if status in (429, 500, 502, 503, 504):
        return TargetError(f"the cluster {context} could not answer ({status}: {message}); try again in a moment")
    return TargetError(f"{target}: {verb} {resource} failed ({status}): {message}")


def denial_reason(message: str) -> str:
    """Return the reason why an admission policy, a webhook or a quota denied a request, from the API server's message.

    The API server's text around the reason is removed. Any other message is returned unchanged.
    """
    match = _POLICY.search(message)
    if match:
        return match.group(1).strip()
    if "exceeded quota" in message:
        quota = message[message.index("exceeded quota") :].strip()
        if "count/" not in quota:  # a quota of resources; `count/runs.trialplane.io` limits the number of Runs
            return quota
        return (
            f"{quota}; `platform list` shows runs, `platform delete RUN` makes room, and an administrator raises `counts` "
            "of the team in the chart's values, see `platform docs teams`"
        )
    if "violates PodSecurity" in message:
        return message[message.index("violates PodSecurity") :].strip()
    return message


def unreachable_message(error: Exception, host: str, context: str) -> str:
    """Return the message for a cluster that does not answer. The error is urllib3's, the host a URL."""
    cause = getattr(error, "reason", None) or error  # a MaxRetryError has its cause as `reason`, which may be a text
    text = errors.first_line(cause if isinstance(cause, Exception) else error)
    # Remove the connection: "<urllib3.connection.HTTPSConnection object at 0x…>: " or "HTTPSConnection(host='…') …>: ".
    text = re.sub(r"^<?[\w.]*(?:HTTPS?Connection|object)[^>]*>: ?", "", text)
    if "alert certificate" in text or "alert unknown ca" in text:  # TLS alerts of the server
        return f"the cluster {context} ({host}) rejects the certificate of your kubeconfig ({text}); get a new kubeconfig"
    if "certificate" in text.lower():
        return (
            f"the cluster {context} ({host}) has a certificate that your kubeconfig does not trust ({text}); "
            "get a new kubeconfig"
        )
    return (
        f"the cluster {context} ({host}) cannot be reached: {text}; check the network and the VPN, "
        f"`kubectl --context {context} get --raw /readyz` tests it too"
    )


def no_team_message(namespace: str, context: str, teams: Sequence[str], *, is_installed: bool) -> str:
    """Return the message for a namespace that does not belong to a team.

    Args:
        namespace: Namespace.
        context: Context of the kubeconfig.
        teams: Namespaces of teams that the user may see.
        is_installed: Whether the platform is installed in the cluster, perhaps with teams that the user may not see.
    """
    listed = f" ({', '.join(teams)})" if teams else ""
    text = (
        f"namespace {namespace} of {context} is not that of a team, and runs are in those; choose your team's with "
        f"--namespace{listed}, or have an administrator add `- namespace: {namespace}` to `teams` in the chart's values and "
        "run `helm upgrade`, see `platform docs teams`"
    )
    if teams or is_installed:
        return text
    return f"{text}, or install the platform: `{INSTALL} --set 'teams[0].namespace={namespace}'`"


def no_context_message(context: str, existing: Sequence[str], files: str) -> str:
    """Return the message for a context that the kubeconfig, with these files, does not have."""
    return f"there is no context {context!r} in {files}; {errors.nearest(context, existing) or 'it has none'}"


def _forbidden_message(message: str, verb: str, resource: str, namespace: str, context: str) -> str:
    """Return the message for a request that RBAC does not allow; see `error`."""
    user = _USER.search(message)
    name = user.group(1) if user else "you"
    text = (
        f"{name} may not {verb} {resource} in namespace {namespace} of {context}; an administrator grants it by "
        f"adding {name} to `users` of your team in the chart's values, and `helm upgrade`, see `platform docs teams`"
    )
    if resource == "services/proxy":  # of the gateway, in the chart's own namespace: another --namespace would not help
        return text
    return f"{text}. If {namespace} is not your team's namespace, name your team's with --namespace"


def _status(data: bytes) -> dict[str, Any]:
    """Return the `Status` object in a body. Empty for any other body."""
    try:
        body = json.loads(data)
    except ValueError:
        return {}
    return body if isinstance(body, dict) and body.get("kind") == "Status" else {}
