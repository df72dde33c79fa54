"""The kubeconfig as kubectl reads it: several files merged, and the settings of a context in it. Contacts nothing.

It is read here rather than by the `kubernetes` package, because importing that takes longer than everything else that
`platform status` does. Contexts that need more than reading are left to the package: see `Context.is_plain`.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from trialplane.client import refusal
from trialplane.client.connection import Access
from trialplane.errors import InputError, TargetError
from trialplane.spec import document

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # a tenth of the time, where PyYAML was built with it


@dataclasses.dataclass(frozen=True)
class Entry:
    """The entry of a cluster, a user or a context, and its file, to which paths in it are relative."""

    values: Mapping[str, Any]
    file: Path

    def text(self, key: str) -> str:
        """A string; "" when it is absent."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, str):
            raise TargetError(f"the kubeconfig {self.file} cannot be used: {key} must be a string, in quotes")
        return value or ""

    def content(self, key: str) -> bytes:
        """The content of `<key>-data`, or else of the file that `key` names; b"" when both are absent."""
        data, name = self.text(f"{key}-data"), self.text(key)
        try:
            if data:
                return base64.b64decode(data)
            return document.content(self.file.parent / name) if name else b""
        except binascii.Error as error:
            raise TargetError(f"the kubeconfig {self.file} cannot be used: {key}-data is not base64 ({error})") from error
        except OSError as error:
            raise TargetError(f"the kubeconfig {self.file} cannot be used: {key}: {_reason(error)}") from error


@dataclasses.dataclass(frozen=True)
class Context:
    """One context: a cluster, and who the user is there.

    Attributes:
        name: of the context.
        namespace: its default namespace, or "".
        cluster, user: the entries it names.
    """

    name: str
    namespace: str
    cluster: Entry
    user: Entry

    @property
    def is_plain(self) -> bool:
        """Whether reading is sufficient: no plugin supplies the credentials, and the environment names no proxy."""
        if any(self.user.values.get(plugin) for plugin in ("exec", "auth-provider")):
            return False
        return bool(self.cluster.text("proxy-url")) or not _has_proxy(self.cluster.text("server"))

    def access(self) -> Access:
        """How to reach it.

        Raises:
            TargetError: something in it cannot be read.
        """
        server = self.cluster.text("server")
        if not server.startswith(("http://", "https://")):
            raise TargetError(f"the kubeconfig {self.cluster.file} cannot be used: the cluster of {self.name} has no server")
        authorization = functools.partial(_authorization, self.user)
        authorization()  # report an unreadable token now
        return Access(
            server=server,
            authority=self.cluster.content("certificate-authority"),
            certificate=self.user.content("client-certificate"),
            key=self.user.content("client-key"),
            verify=not self.cluster.values.get("insecure-skip-tls-verify"),
            server_name=self.cluster.text("tls-server-name"),
            proxy=self.cluster.text("proxy-url"),
            authorization=authorization,
        )


@dataclasses.dataclass(frozen=True)
class Kubeconfig:
    """All files as one.

    Attributes:
        files: for messages, as KUBECONFIG names them.
        current: the current context, or "".
        contexts, clusters, users: by name.
    """

    files: str
    current: str
    contexts: Mapping[str, Entry]
    clusters: Mapping[str, Entry]
    users: Mapping[str, Entry]

    def context(self, name: str | None) -> Context:
        """The context of that name, the current one when None.

        Raises:
            InputError: there is none.
            TargetError: it names a missing entry.
        """
        if name is None and not self.current:
            raise InputError(
                f"the kubeconfig {self.files} has no current context; choose one with --context, or run here with --local"
            )
        name = name or self.current
        found = self.contexts.get(name)
        if found is None:
            raise InputError(refusal.no_context(name, list(self.contexts), self.files))
        cluster, user = found.text("cluster"), found.text("user")
        for kind, named, known in (("cluster", cluster, self.clusters), ("user", user, self.users)):
            if named not in known and (named or kind == "cluster"):
                raise TargetError(
                    f"the kubeconfig {self.files} cannot be used: the {kind} {named!r} of the context {name} is not in it"
                )
        return Context(name, found.text("namespace"), self.clusters[cluster], self.users.get(user) or Entry({}, found.file))


def names() -> str:
    """The files, as KUBECONFIG names them."""
    return os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")


def read() -> Kubeconfig | None:
    """The kubeconfig; None when there is none. Of two entries with one name, and two current contexts, the first counts.

    Raises:
        TargetError: a file cannot be read, or is not a kubeconfig.
    """
    files = _files()
    if not files:
        return None
    current = ""
    found: dict[str, dict[str, Entry]] = {"contexts": {}, "clusters": {}, "users": {}}
    for file in files:
        data = _document(file)
        current = current or str(data.get("current-context") or "")
        for kind, entries in found.items():
            try:
                for one in data.get(kind) or []:
                    entries.setdefault(one["name"], Entry(dict(one.get(kind[:-1]) or {}), file))
            except (TypeError, KeyError, ValueError, AttributeError) as error:
                raise TargetError(f"the kubeconfig {file} cannot be used: {kind} is not a list of named {kind}") from error
    return Kubeconfig(names(), current, **found)


def _files() -> list[Path]:
    """The existing files that KUBECONFIG names."""
    found = []
    for name in filter(None, names().split(os.pathsep)):
        try:
            file = Path(name).expanduser()
            if file.exists():
                found.append(file)
        except (OSError, RuntimeError) as error:  # a name too long, no access; ~ of a user that does not exist
            raise TargetError(f"the kubeconfig {name} cannot be read: {_reason(error)}") from error
    return found


def _document(file: Path) -> Mapping[str, Any]:
    try:
        data = yaml.load(document.content(file), _LOADER)
    except (OSError, yaml.YAMLError) as error:
        raise TargetError(f"the kubeconfig {file} cannot be read: {_reason(error)}") from error
    if data is not None and not isinstance(data, dict):
        raise TargetError(f"the kubeconfig {file} cannot be used: it is not a mapping")
    return data or {}


def _authorization(user: Entry) -> str:
    """The header; a token's file is read each time, as it may be renewed."""
    file, token, name = user.text("tokenFile"), user.text("token"), user.text("username")
    if file:
        try:
            token = document.content(user.file.parent / file).decode().strip()
        except (OSError, ValueError) as error:
            raise TargetError(f"the kubeconfig {user.file} cannot be used: tokenFile: {_reason(error)}") from error
    if token:
        return f"Bearer {token}"
    if not name:
        return ""
    return "Basic " + base64.b64encode(f"{name}:{user.text('password')}".encode()).decode()


def _has_proxy(server: str) -> bool:
    """Whether the environment may name a proxy for it; the package handles exceptions."""
    scheme = server.partition(":")[0]
    return any(os.environ.get(name) for name in (f"{scheme}_proxy", f"{scheme}_proxy".upper(), "all_proxy", "ALL_PROXY"))


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
