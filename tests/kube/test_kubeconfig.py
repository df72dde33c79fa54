"""The kubeconfig as kubectl reads it: several files, contexts, paths, credentials, and certificates on a real TLS server.

Not checked here: how the `kubernetes` package renews what a plugin gives.
"""

from __future__ import annotations

import base64
import contextlib
import http.server
import os
import shutil
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.kube.cluster_double import ClusterDouble

from trialplane.errors import InputError, TargetError
from trialplane.kube import kinds, kubeconfig
from trialplane.kube.cluster import Cluster

SERVER = "https://10.0.0.1:6443"


def config(
    server: str = SERVER, cluster: Mapping[str, Any] | None = None, user: Mapping[str, Any] | None = None, name: str = "lab"
) -> dict[str, Any]:
    """A kubeconfig of one context, cluster and user, all of one name."""
    return {
        "current-context": name,
        "clusters": [{"name": name, "cluster": {"server": server, **(cluster or {})}}],
        "users": [{"name": name, "user": dict(user or {})}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": f"of-{name}"}}],
    }


@pytest.fixture
def write(tmp_path, monkeypatch) -> Callable[..., list[Path]]:
    """Writes kubeconfigs, each in a folder of its own, and lets KUBECONFIG name them in this order."""
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)

    def make(*contents: dict[str, Any] | str) -> list[Path]:
        files = []
        for number, content in enumerate(contents):
            file = tmp_path / f"folder-{number}" / "config"
            file.parent.mkdir(exist_ok=True)
            file.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
            files.append(file)
        monkeypatch.setenv("KUBECONFIG", ":".join(map(str, files)))
        return files

    return make


def test_of_several_files_the_first_word_counts(write, monkeypatch, tmp_path):
    first, second = config("https://first", name="one"), config("https://second", name="one")
    second["users"] = [{"name": "two", "user": {"token": "t"}}]
    second["contexts"] += [{"name": "two", "context": {"cluster": "one", "user": "two"}}]
    second["current-context"] = "two"
    files = write({"kind": "Config"}, first, second)
    monkeypatch.setenv("KUBECONFIG", ":".join(["", str(tmp_path / "missing"), *map(str, files), ""]))
    current = kubeconfig.read(None)
    assert (current.name, current.namespace) == ("one", "of-one")
    assert kubeconfig.read("two").namespace == ""
    two = Cluster("two")
    assert (two.namespace, two.host, two.authorization()) == ("default", "https://first", {"authorization": "Bearer t"})
    with pytest.raises(InputError, match=r"there is no context 'three' .*one.*two"):
        Cluster("three")


def test_paths_are_relative_to_the_file_that_names_them(write):
    user = {"client-certificate": "u/u.crt", "client-key": "u/u.key", "tokenFile": "token", "exec": {"command": "./plugin"}}
    one, two = write(
        {**config(cluster={"certificate-authority": "ca.crt"}), "users": []},
        {"users": [{"name": "lab", "user": user}], "contexts": []},
    )
    (one.parent / "ca.crt").write_text("CA")
    (two.parent / "u").mkdir()
    for name in ("u/u.crt", "u/u.key", "token"):
        (two.parent / name).write_text("of the user")
    found = kubeconfig.read("lab")
    assert found.cluster["certificate-authority"] == str(one.parent / "ca.crt")
    assert [found.user[key] for key in ("client-certificate", "client-key", "tokenFile")] == [
        str(two.parent / name) for name in ("u/u.crt", "u/u.key", "token")
    ]
    assert found.user["exec"]["command"] == str(two.parent / "plugin")


@pytest.mark.parametrize(
    ("user", "header"),
    [
        ({}, ""),
        ({"token": "t"}, "Bearer t"),
        ({"token": "t", "username": "ann"}, "Bearer t"),
        ({"username": "ann", "password": "secret"}, "Basic YW5uOnNlY3JldA=="),
    ],
)
def test_who_the_user_is(write, user, header):
    write(config(user=user))
    assert Cluster("lab").authorization().get("authorization", "") == header


def test_a_token_that_is_renewed_in_its_file_is_seen(write):
    (file,) = write(config(user={"tokenFile": "token", "token": "old"}))
    token = file.parent / "token"
    token.write_text("first\n")
    cluster = Cluster("lab")
    assert cluster.authorization() == {"authorization": "Bearer first"}
    token.write_text("second\n")
    assert cluster.authorization() == {"authorization": "Bearer second"}
    token.unlink()
    with pytest.raises(TargetError, match=r"tokenFile: .*No such file"):
        cluster.authorization()


def test_a_context_without_a_user_is_anonymous(write):
    content = config()
    del content["contexts"][0]["context"]["user"]
    write(content)
    assert Cluster().authorization() == {}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("a: [", "cannot be read: while parsing"),
        ("- a", "it is not a mapping"),
        ({"clusters": ["a"]}, "clusters is not a list of named clusters"),
        ({"users": [{"user": {}}]}, "users is not a list of named users"),
        ({**config(), "clusters": []}, "the cluster 'lab' of the context lab is not in it"),
        ({**config(), "users": None}, "the user 'lab' of the context lab is not in it"),
        (config(server=""), "the cluster of lab has no server"),
        (config(cluster={"server": 6443}), "the cluster of lab has no server"),
        (config(cluster={"certificate-authority": "gone.crt"}), r"cannot be used: .*gone\.crt"),
        (config(user={"client-key-data": "a"}), "cannot be used: .*base64"),
        (config(user={"auth-provider": {"name": "oidc", "config": {}}}), "cannot be used: .*id-token"),
        (config(user={"auth-provider": {"name": "oidc", "config": 12}}), "cannot be used: .*int"),
        (config(cluster={"certificate-authority-data": "bm9uZQ=="}), "has an invalid certificate or key for lab"),
        (config(user={"client-certificate-data": "bm9uZQ=="}), "has an invalid certificate or key for lab"),
    ],
)
def test_what_cannot_be_used_says_what_is_wrong(write, content, said):
    write(content)
    with pytest.raises(TargetError, match=said):
        Cluster("lab")


def test_a_kubeconfig_may_come_through_a_pipe(monkeypatch):
    """`KUBECONFIG=<(pass show cluster) platform list`."""
    ours, theirs = os.pipe()
    os.write(theirs, yaml.safe_dump(config()).encode())
    os.close(theirs)
    monkeypatch.setenv("KUBECONFIG", f"/dev/fd/{ours}")
    assert Cluster().namespace == "of-lab"
    os.close(ours)


def test_no_current_context(write):
    content = config()
    del content["current-context"]
    write(content)
    with pytest.raises(InputError, match="has no current context; choose one with --context"):
        Cluster()
    assert Cluster("lab").namespace == "of-lab"


def _plugin(command: str, *args: str) -> dict[str, Any]:
    """A user whose credentials that program gives."""
    version = "client.authentication.k8s.io/v1"
    return {"exec": {"apiVersion": version, "command": command, "args": list(args), "interactiveMode": "Never"}}


@pytest.mark.parametrize(
    "plugin", [_plugin("no-such-plugin"), _plugin("false"), _plugin("echo", "{}"), {"exec": {"args": 1}}, {"exec": [1]}]
)
def test_a_plugin_that_fails_is_named(write, plugin):
    """Else requests would go out without credentials."""
    write(config(user=plugin))
    with pytest.raises(TargetError, match=r"plugin of lab .* gave no credentials .*`kubectl --context lab auth whoami`"):
        Cluster("lab")


def test_a_plugin_gives_the_token(write, tmp_path):
    """The way of the package as a whole: the plugin is run, and what it says is sent."""
    double = ClusterDouble()
    try:
        content = yaml.safe_load(double.kubeconfig(tmp_path / "plain").read_text())
        token = content["users"][0]["user"]["token"]
        said = f'{{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{{"token":"{token}"}}}}'
        content["users"][0]["user"] = _plugin("echo", said)
        write(content)
        assert Cluster().list(kinds.POD) == []
    finally:
        double.close()


# Certificates


@pytest.fixture(scope="module")
def certificates(tmp_path_factory) -> Path:
    """An authority, a server for the name `api.test` and a client of it, as files."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs openssl to make certificates")
    folder = tmp_path_factory.mktemp("certificates")

    def call(*words: str) -> None:
        subprocess.run([openssl, *words], cwd=folder, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    # Without key identifiers, as some clusters have them: OpenSSL's strict mode refuses such an authority.
    call("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=authority", "-days", "2")
    for name, extension in (("server", "subjectAltName=DNS:api.test"), ("client", "extendedKeyUsage=clientAuth")):
        (folder / "ext").write_text(extension)
        call("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        signed = ("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "ext")
        call("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.crt", *signed)
    return folder


@pytest.fixture
def tls(certificates) -> Iterator[str]:
    """A server that takes clients of that authority only and says who they are; its URL."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            subject = dict(pair for (pair,) in self.connection.getpeercert()["subject"])
            data = subject["commonName"].encode()
            self.send_response(200)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the base class's name
            return

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server.crt", certificates / "server.key")
    context.load_verify_locations(certificates / "ca.crt")
    context.verify_mode = ssl.CERT_REQUIRED
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # clients that give up are what is tested
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield f"https://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def _user(folder: Path, *, as_data: bool) -> dict[str, str]:
    files = {"client-certificate": folder / "client.crt", "client-key": folder / "client.key"}
    if not as_data:
        return {key: str(file) for key, file in files.items()}
    return {f"{key}-data": base64.b64encode(file.read_bytes()).decode() for key, file in files.items()}


def test_data_wins_over_the_file_of_the_same_name(write, certificates, tls):
    data = base64.b64encode((certificates / "ca.crt").read_bytes()).decode()
    named = {"certificate-authority": "gone", "certificate-authority-data": data, "tls-server-name": "api.test"}
    write(config(tls, named, {**_user(certificates, as_data=True), "client-key": "gone"}))
    assert Cluster().call("GET", "/").data == b"client"


def test_empty_data_leaves_the_file(write, certificates, tls):
    named = {"certificate-authority": str(certificates / "ca.crt"), "certificate-authority-data": ""}
    write(config(tls, {**named, "tls-server-name": "api.test"}, _user(certificates, as_data=False)))
    assert Cluster().call("GET", "/").data == b"client"


@pytest.mark.parametrize("as_data", [True, False], ids=["data", "files"])
def test_both_sides_show_certificates(write, certificates, tls, as_data):
    named = {"certificate-authority": str(certificates / "ca.crt"), "tls-server-name": "api.test"}
    write(config(tls, named, _user(certificates, as_data=as_data)))
    assert Cluster().call("GET", "/").data == b"client"


def test_many_threads_connect_at_once(write, certificates, tls):
    """In a process of its own, which OpenSSL ends if they change the context that they share."""
    named = {"certificate-authority": str(certificates / "ca.crt"), "tls-server-name": "api.test"}
    write(config(tls, named, _user(certificates, as_data=False)))
    program = """
from concurrent import futures
from trialplane.kube.cluster import Cluster
cluster = Cluster()
with futures.ThreadPoolExecutor(8) as pool:
    answers = pool.map(lambda _: cluster.call("GET", "/", headers={"connection": "close"}).data, range(200))
    assert set(answers) == {b"client"}
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_files_are_read_once(write, certificates, tls, tmp_path):
    named = {"certificate-authority": str(shutil.copy(certificates / "ca.crt", tmp_path)), "tls-server-name": "api.test"}
    user = {key: str(shutil.copy(file, tmp_path)) for key, file in _user(certificates, as_data=False).items()}
    write(config(tls, named, user))
    cluster = Cluster()
    for file in (named["certificate-authority"], *user.values()):
        Path(file).unlink()
    assert cluster.call("GET", "/").data == b"client"


def test_a_server_that_is_not_trusted_is_refused(write, certificates, tls):
    user = _user(certificates, as_data=True)
    authority = {"certificate-authority": str(certificates / "ca.crt")}
    for cluster in ({"tls-server-name": "api.test"}, authority, {**authority, "tls-server-name": "other.test"}):
        write(config(tls, cluster, user))
        with pytest.raises(TargetError, match="has a certificate that your kubeconfig does not trust"):
            Cluster().call("GET", "/")


def test_a_server_that_need_not_be_trusted(write, certificates, tls, recwarn):
    write(config(tls, {"insecure-skip-tls-verify": True}, _user(certificates, as_data=True)))
    assert Cluster().call("GET", "/").data == b"client"
    assert not [one for one in recwarn if "Unverified" in str(one.message)]


def test_a_user_without_a_certificate_is_refused(write, certificates, tls):
    write(config(tls, {"certificate-authority": str(certificates / "ca.crt"), "tls-server-name": "api.test"}))
    # Whether the server's reason comes through before it hangs up is a race of TLS 1.3.
    with pytest.raises(TargetError, match=r"cannot be reached|rejects the certificate"):
        Cluster().call("GET", "/")


@pytest.mark.parametrize("of", ["kubeconfig", "environment"])
def test_a_proxy_is_used(write, monkeypatch, of):
    """A proxy of HTTP servers gets whole addresses; that of the kubeconfig comes before that of the environment."""
    asked: list[tuple[str, str | None]] = []

    class Proxy(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers.get("proxy-authorization")))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the base class's name
            return

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as server, contextlib.ExitStack() as after:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        after.callback(server.shutdown)
        proxy = f"http://me:pw@127.0.0.1:{server.server_port}"
        monkeypatch.setenv("HTTP_PROXY", proxy if of == "environment" else "http://gone.test")
        write(config("http://api.test", {"proxy-url": proxy} if of == "kubeconfig" else {}))
        assert Cluster().call("GET", "/version").status == 204
    assert asked == [("http://api.test/version", "Basic bWU6cHc=")]
