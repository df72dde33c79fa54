"""Explains an API server's refusal, and what to do about it. Pure; every such message is made here.

Kubernetes answers with a `Status` object: a message for people, a reason for programs.
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
# All that an API server says of a JSON patch whose test failed.
_UNTESTED = "the server rejected our request due to an error in our request"
_WHO = re.compile(r'User "([^"]+)"')
_POLICY = re.compile(
    r"(?:ValidatingAdmissionPolicy '[^']*' with binding '[^']*' denied request: |denied the request: )(.*)", re.S
)


def is_about_an_object(data: bytes) -> bool:
    """Whether a 404 means that one object is missing, not that its kind is unknown to the server."""
    return bool(_status(data).get("details", {}).get("name"))


def explain(status: int, data: bytes, verb: str, resource: str, namespace: str, context: str) -> TrialplaneError:
    """The error for an unsuccessful response.

    Args:
        status: of HTTP.
        data: the body.
        verb: the attempted verb of RBAC: get, list, patch, …
        resource: rayclusters.ray.io, pods/log, …
        namespace: where.
        context: of the kubeconfig.
    """
    answer = _status(data)
    message = str(answer.get("message") or data[:300].decode(errors="replace").strip() or f"HTTP {status}")
    place = f"namespace {namespace} of {context}"
    if status == 401:
        return TargetError(
            f"the cluster {context} does not accept your credentials, which may have expired; log in again as for kubectl: "
            f"`kubectl --context {context} auth whoami` shows who you are ({message})"
        )
    if status == 403 and "cannot" in message and "denied" not in message:
        return TargetError(_forbidden(message, verb, resource, namespace, context))
    if status == 403 or (status == 422 and _POLICY.search(message)):
        return InputError(f"{place} refuses the request: {denial(message)}")
    if status == 404 and resource == _RAY and not is_about_an_object(data):
        return TargetError(
            f"the cluster {context} does not know {resource}: the KubeRay operator (1.6 or newer) is not installed; a "
            "cluster administrator installs it, see `platform docs cluster`"
        )
    if status == 404 and resource == _RUNS and not is_about_an_object(data):
        return TargetError(
            f"the cluster {context} does not know {resource}: trialplane is not installed there, or its chart is older than "
            "this `platform`; a cluster administrator runs `kubectl apply --server-side -f charts/platform/crds/`, then "
            "`helm upgrade`, see `platform docs upgrades`"
        )
    if status == 404 and answer.get("details", {}).get("kind") == "namespaces":
        return InputError(f"there is no namespace {namespace} in {context}; choose another with --namespace")
    if status == 409 or (status == 422 and message.startswith(_UNTESTED)):
        return TargetError(f"{place}: {message}; it was changed concurrently: try again")
    if status == 422:
        return InputError(f"{place} rejects the request: {_invalid(message)}")
    if status in (429, 500, 502, 503, 504):
        return TargetError(f"the cluster {context} could not answer ({status}: {message}); try again in a moment")
    return TargetError(f"{place}: {verb} {resource} failed ({status}): {message}")


def denial(message: str) -> str:
    """The message of an admission policy, a webhook or a quota, without the API server's wrapping."""
    match = _POLICY.search(message)
    if match:
        return match.group(1).strip()
    if "exceeded quota" in message:
        quota = message[message.index("exceeded quota") :].strip()
        remedy = (
            "`platform list` shows runs, `platform delete RUN` makes room, and an administrator raises `counts` of the team"
        )
        return f"{quota}; {remedy} in the chart's values, see `platform docs teams`" if "count/" in quota else quota
    if "violates PodSecurity" in message:
        return message[message.index("violates PodSecurity") :].strip()
    return message


def _invalid(message: str) -> str:
    """The API server's complaints about an object, without its wrapping: `spec.parallel: Invalid value: …`."""
    return message.partition(" is invalid: ")[2] or message


def unreachable(error: Exception, host: str, context: str) -> str:
    """The message for a cluster that does not answer at all."""
    cause = getattr(error, "reason", None) or error
    text = errors.first_line(cause if isinstance(cause, Exception) else error)
    text = re.sub(r"^<?[\w.]*(?:HTTPS?Connection|object)[^>]*>: ?", "", text)
    if "alert certificate" in text or "alert unknown ca" in text:  # sent by the server
        return f"the cluster {context} ({host}) rejects the certificate of your kubeconfig ({text}); get a new kubeconfig"
    if "CERTIFICATE_VERIFY_FAILED" in text or "certificate" in text.lower():
        return (
            f"the cluster {context} ({host}) has a certificate that your kubeconfig does not trust ({text}); "
            "get a new kubeconfig"
        )
    return (
        f"the cluster {context} ({host}) cannot be reached: {text}; check the network and the VPN, "
        f"`kubectl --context {context} get --raw /readyz` tests it too"
    )


def no_team(namespace: str, context: str, namespaces: Sequence[str] = (), *, installed: bool = True) -> str:
    """The message for a namespace that is no team's.

    Args:
        namespace: the one.
        context: of the kubeconfig.
        namespaces: visible namespaces of teams.
        installed: whether the platform may be there; whoever sees no team of it may not be allowed to.
    """
    listed = f" ({', '.join(namespaces)})" if namespaces else ""
    text = (
        f"namespace {namespace} of {context} is not that of a team, and runs are in those; choose your team's with "
        f"--namespace{listed}, or have an administrator add `- namespace: {namespace}` to `teams` in the chart's values and "
        "run `helm upgrade`, see `platform docs teams`"
    )
    return (
        text
        if namespaces or installed
        else f"{text}, or install the platform: `{INSTALL} --set 'teams[0].namespace={namespace}'`"
    )


def no_context(context: str, contexts: Sequence[str], files: str) -> str:
    """The message for a context that the kubeconfig does not have."""
    return f"there is no context {context!r} in {files}; {errors.nearest(context, contexts) or 'it has none'}"


def _forbidden(message: str, verb: str, resource: str, namespace: str, context: str) -> str:
    who = _WHO.search(message)
    name = who.group(1) if who else "you"
    text = (
        f"{name} may not {verb} {resource} in namespace {namespace} of {context}; an administrator grants it by "
        f"adding {name} to `users` of your team in the chart's values, and `helm upgrade`, see `platform docs teams`"
    )
    return text if resource == "services/proxy" else f"{text}. If it is not your team's, choose that with --namespace"


def _status(data: bytes) -> dict[str, Any]:
    try:
        body = json.loads(data)
    except ValueError:
        return {}
    return body if isinstance(body, dict) and body.get("kind") == "Status" else {}
