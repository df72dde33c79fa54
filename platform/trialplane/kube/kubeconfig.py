"""The kubeconfig as kubectl reads it: several files merged into one, and of that one context. Contacts nothing.

The `kubernetes` package gives the credentials (see `cluster`), but it reads files without a bound, takes the current context
of the last file, looks for the files of a user beside the cluster's, and goes on without a user or a server that is missing.
So files are read, merged and checked here, and the package gets one context.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from trialplane.errors import InputError, TargetError
from trialplane.job import document
from trialplane.kube import refusal

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # a tenth of the time, where PyYAML was built with it
_FILES = ("certificate-authority", "client-certificate", "client-key", "tokenFile")
_TEXTS = {"cluster", "user", "namespace", "server", "tls-server-name", "proxy-url", "token", "username", "password"}
_TEXTS.update(_FILES, (f"{key}-data" for key in _FILES))


@dataclasses.dataclass(frozen=True)
class KubeContext:
    """One context; the paths in `cluster` and `user`, the entries that it names, are absolute.

    Attributes:
        name: of the context.
        namespace: of the context, or "".
        cluster, user: fields as in the file, without empty ones.
    """

    name: str
    namespace: str
    cluster: Mapping[str, Any]
    user: Mapping[str, Any]

    def document(self) -> dict[str, Any]:
        """A kubeconfig of this context alone.

        Raises:
            TargetError: the file of the token cannot be read.
        """
        user = {**self.user, "token": self.token()} if "tokenFile" in self.user else self.user
        entries = {"cluster": self.cluster, "user": user, "context": {"cluster": self.name, "user": self.name}}
        lists = {f"{kind}s": [{"name": self.name, kind: entry}] for kind, entry in entries.items()}
        return {"current-context": self.name, **lists}

    def token(self) -> str:
        """Return the token that its file has now. Another program renews that file.

        Raises:
            TargetError: it cannot be read.
        """
        try:
            return document.content(Path(self.user["tokenFile"])).decode().strip()
        except (OSError, ValueError) as error:
            raise TargetError(f"the kubeconfig {names()} cannot be used: tokenFile: {_line(error)}") from error


def names() -> str:
    """The files, as KUBECONFIG names them."""
    return os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")


def read(context: str | None) -> KubeContext | None:
    """The context of that name, the current one when None; None when there is no kubeconfig.

    Of two entries with one name, and two current contexts, the first counts.

    Raises:
        InputError: there is no such context.
        TargetError: a file cannot be read or is something else, or the context names what is not there.
    """
    documents = {file: _document(file) for file in _files()}
    if not documents:
        return None
    name = context or str(next(filter(None, (data.get("current-context") for data in documents.values())), ""))
    if not name:
        raise InputError(
            f"the kubeconfig {names()} has no current context; choose one with --context, or run here with --local"
        )
    contexts, clusters, users = (_entries(documents, kind) for kind in ("contexts", "clusters", "users"))
    if name not in contexts:
        raise InputError(refusal.no_context(name, list(contexts), names()))
    chosen = _usable(*contexts[name])
    entries: dict[str, dict[str, Any]] = {"user": {}}
    for kind, entry_by_name in (("cluster", clusters), ("user", users)):
        named = chosen.get(kind, "")
        if named in entry_by_name:
            entries[kind] = _usable(*entry_by_name[named])
        elif named or kind == "cluster":
            raise TargetError(
                f"the kubeconfig {names()} cannot be used: the {kind} {named!r} of the context {name} is not in it"
            )
    if not entries["cluster"].get("server", "").startswith(("http://", "https://")):
        file = clusters[chosen["cluster"]][0]
        raise TargetError(f"the kubeconfig {file} cannot be used: the cluster of {name} has no server")
    return KubeContext(name, chosen.get("namespace", ""), **entries)


def _files() -> list[Path]:
    """The existing files that KUBECONFIG names."""
    loaded = []
    for name in filter(None, names().split(os.pathsep)):
        try:
            file = Path(name).expanduser()
            if file.exists():
                loaded.append(file)
        except (OSError, RuntimeError) as error:  # a name too long, a closed folder; ~ of a user that is not there
            raise TargetError(f"the kubeconfig {name} cannot be read: {_line(error)}") from error
    return loaded


def _document(file: Path) -> Mapping[str, Any]:
    try:
        data = yaml.load(document.content(file), _LOADER)
    except (OSError, yaml.YAMLError) as error:
        raise TargetError(f"the kubeconfig {file} cannot be read: {_line(error)}") from error
    if data is not None and not isinstance(data, dict):
        raise TargetError(f"the kubeconfig {file} cannot be used: it is not a mapping")
    return data or {}


def _entries(documents: Mapping[Path, Mapping[str, Any]], kind: str) -> dict[str, tuple[Path, dict[str, Any]]]:
    """The contexts, clusters or users of all files by name, each with its file."""
    by_name: dict[str, tuple[Path, dict[str, Any]]] = {}
    for file, data in documents.items():
        try:
            for item in data.get(kind) or []:
                by_name.setdefault(item["name"], (file, dict(item.get(kind[:-1]) or {})))
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise TargetError(f"the kubeconfig {file} cannot be used: {kind} is not a list of named {kind}") from error
    return by_name


def _usable(file: Path, entry: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an entry that are not empty, with absolute paths, once what they hold or name can be read."""
    fields, folder = {key: value for key, value in entry.items() if value not in (None, "")}, file.parent.absolute()
    for key in fields.keys() & _TEXTS:
        if not isinstance(fields[key], str):
            raise TargetError(f"the kubeconfig {file} cannot be used: {key} must be a string, in quotes")
    for key in _FILES:
        try:
            if f"{key}-data" in fields:
                base64.b64decode(fields[f"{key}-data"])
            elif key in fields:
                fields[key] = str(folder / fields[key])
                document.content(Path(fields[key]))
        except binascii.Error as error:
            raise TargetError(f"the kubeconfig {file} cannot be used: {key}-data is not base64 ({error})") from error
        except (OSError, ValueError) as error:
            raise TargetError(f"the kubeconfig {file} cannot be used: {key}: {_line(error)}") from error
    plugin = fields.get("exec")
    if isinstance(plugin, dict) and os.sep in str(plugin.get("command")):
        fields["exec"] = {**plugin, "command": str(folder / plugin["command"])}
    return fields


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
