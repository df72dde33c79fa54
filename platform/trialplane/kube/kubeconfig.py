"""Reads and merges the files of the kubeconfig as kubectl does, and returns one context. Without access to the network.

The `kubernetes` package could do this too, and provides the credentials of the context (see `connections`). But it uses
the current context of the last file, looks for a user's files in the folder of the cluster's file, and ignores a missing
user or server. So this module reads and merges the files, and the package gets one context.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from trialplane.errors import InputError, TargetError
from trialplane.kube import refusal

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # CSafeLoader is ten times faster, if PyYAML has it
_FILE_KEYS = {"certificate-authority", "client-certificate", "client-key", "tokenFile"}  # fields whose values are paths


@dataclasses.dataclass(frozen=True)
class KubeContext:
    """A context of the kubeconfig with its cluster and its user.

    Attributes:
        name: Name of the context.
        namespace: Namespace of the context, or "".
        cluster, user: Fields of the cluster and the user. Empty fields are left out, and paths are absolute.
    """

    name: str
    namespace: str
    cluster: Mapping[str, Any]
    user: Mapping[str, Any]

    def as_kubeconfig(self) -> dict[str, Any]:
        """Return a kubeconfig that contains only this context. Its cluster and its user get the name of the context.

        Raises:
            TargetError: The file with the token cannot be read.
        """
        user = {**self.user, "token": self.token()} if "tokenFile" in self.user else self.user
        return {
            "current-context": self.name,
            "contexts": [{"name": self.name, "context": {"cluster": self.name, "user": self.name}}],
            "clusters": [{"name": self.name, "cluster": self.cluster}],
            "users": [{"name": self.name, "user": user}],
        }

    def token(self) -> str:
        """Return the current token from the user's `tokenFile`, which another program renews.

        Raises:
            TargetError: The file cannot be read.
        """
        try:
            return Path(self.user["tokenFile"]).read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            raise TargetError(f"the kubeconfig {names()} cannot be used: tokenFile: {_in_one_line(error)}") from error


def names() -> str:
    """Return the names of the kubeconfig's files, separated as in KUBECONFIG."""
    return os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")


def read(context: str | None) -> KubeContext | None:
    """Return a context of the kubeconfig.

    If several files have entries of the same name, or a current context, the first one counts.

    Args:
        context: Name of the context. None for the current context.

    Returns:
        The context. None if there is no kubeconfig.

    Raises:
        InputError: There is no such context, or no current one.
        TargetError: A file is invalid or cannot be read, or the cluster or the user of the context is missing.
    """
    documents = {file: _parsed_file(file) for file in _files()}
    if not documents:
        return None
    current_contexts = [fields["current-context"] for fields in documents.values() if fields.get("current-context")]
    name = context or (str(current_contexts[0]) if current_contexts else "")
    if not name:
        raise InputError(
            f"the kubeconfig {names()} has no current context; choose one with --context, or run here with --local"
        )
    contexts, clusters, users = (_fields_by_name(documents, section) for section in ("contexts", "clusters", "users"))
    if name not in contexts:
        raise InputError(refusal.no_context_message(name, list(contexts), names()))
    cluster_name, user_name = contexts[name].get("cluster", ""), contexts[name].get("user", "")
    missing = ""
    if cluster_name not in clusters:
        missing = f"cluster {cluster_name!r}"
    elif user_name and user_name not in users:  # a context may name no user, but must name a cluster
        missing = f"user {user_name!r}"
    if missing:
        raise TargetError(f"the kubeconfig {names()} cannot be used: the {missing} of the context {name} is not in it")
    cluster = clusters[cluster_name]
    if not str(cluster.get("server", "")).startswith(("http://", "https://")):
        raise TargetError(f"the kubeconfig {names()} cannot be used: the cluster of {name} has no server")
    user = users[user_name] if user_name else {}
    return KubeContext(name=name, namespace=contexts[name].get("namespace", ""), cluster=cluster, user=user)


def _files() -> list[Path]:
    """Return the kubeconfig's files that exist.

    Raises:
        TargetError: It cannot be determined whether a file exists.
    """
    try:
        files = [Path(name).expanduser() for name in names().split(os.pathsep) if name]
        return [file for file in files if file.exists()]
    except (OSError, RuntimeError) as error:  # a folder is closed, or the user of ~ is unknown
        raise TargetError(f"the kubeconfig {names()} cannot be read: {_in_one_line(error)}") from error


def _parsed_file(file: Path) -> Mapping[str, Any]:
    """Return the fields in a file. An empty file has none.

    Raises:
        TargetError: The file cannot be read, is not YAML, or is not a mapping.
    """
    try:
        document = yaml.load(file.read_bytes(), _LOADER)
    except (OSError, yaml.YAMLError) as error:
        raise TargetError(f"the kubeconfig {file} cannot be read: {_in_one_line(error)}") from error
    if document is not None and not isinstance(document, dict):
        raise TargetError(f"the kubeconfig {file} cannot be used: it is not a mapping")
    return document or {}


def _fields_by_name(documents: Mapping[Path, Mapping[str, Any]], section: str) -> dict[str, dict[str, Any]]:
    """Return the fields of the contexts, clusters or users in all files, by name. Of equal names, the first counts.

    Args:
        documents: Contents of the files.
        section: "contexts", "clusters" or "users": a list of entries such as `{"name": "lab", "cluster": {…}}`.

    Raises:
        TargetError: An entry has another form.
    """
    by_name: dict[str, dict[str, Any]] = {}
    for file, document in documents.items():
        try:
            for entry in document.get(section) or []:
                fields = dict(entry.get(section.removesuffix("s")) or {})
                by_name.setdefault(entry["name"], _with_absolute_paths(file, fields))
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise TargetError(f"the kubeconfig {file} cannot be used: {section} is not a list of named {section}") from error
    return by_name


def _with_absolute_paths(file: Path, entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an entry that are not empty, with absolute paths.

    Args:
        file: File that contains the entry. Paths in the entry are relative to its folder.
        entry: Fields of a context, a cluster or a user.
    """
    fields = {key: value for key, value in entry.items() if value not in (None, "")}
    folder = file.parent.absolute()
    for key in fields.keys() & _FILE_KEYS:
        fields[key] = str(folder / str(fields[key]))  # an absolute path replaces the folder
    plugin = fields.get("exec")
    if isinstance(plugin, dict) and os.sep in str(plugin.get("command")):  # a path; other commands are searched in PATH
        fields["exec"] = {**plugin, "command": str(folder / plugin["command"])}
    return fields


def _in_one_line(error: Exception) -> str:
    """Return the message of an error in one line."""
    return " ".join(str(error).split()) or type(error).__name__
