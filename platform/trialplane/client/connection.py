"""How to reach an API server, and the pool of connections to it. Independent of Kubernetes."""

from __future__ import annotations

import dataclasses
import ssl
import tempfile
from collections.abc import Callable
from typing import Any

import urllib3

_CONNECTIONS = 4  # kept open; requests of threads at the same time


@dataclasses.dataclass(frozen=True)
class Access:
    """How to reach one API server, and with which credentials.

    Attributes:
        server: its URL.
        authority: the CA of its certificate, PEM; empty for those that this machine trusts.
        certificate, key: the user's own, PEM, or empty.
        verify: whether the server's certificate is verified.
        server_name: the name in its certificate, if not the one in the URL.
        proxy: URL, or "".
        authorization: returns the header of that name, or ""; called for each request, as tokens are renewed.
    """

    server: str
    authority: bytes = b""
    certificate: bytes = b""
    key: bytes = b""
    verify: bool = True
    server_name: str = ""
    proxy: str = ""
    authorization: Callable[[], str] = str


def pool(access: Access) -> urllib3.PoolManager:
    """Connections to that server.

    Raises:
        ssl.SSLError: a certificate or a key is invalid.
        ImportError: a SOCKS proxy needs a package that is not installed.
    """
    options: dict[str, Any] = {"maxsize": _CONNECTIONS}
    if access.server.startswith("https:"):
        options["ssl_context"] = _tls(access)
    if access.server_name:
        options["server_hostname"] = access.server_name
    if not access.proxy:
        return urllib3.PoolManager(**options)
    if access.proxy.startswith("socks"):
        from urllib3.contrib.socks import SOCKSProxyManager  # needs PySocks, which few users have

        return SOCKSProxyManager(access.proxy, **options)
    login = urllib3.util.parse_url(access.proxy).auth
    headers = urllib3.util.make_headers(proxy_basic_auth=login) if login else None
    return urllib3.ProxyManager(access.proxy, proxy_headers=headers, **options)


def _tls(access: Access) -> ssl.SSLContext:
    # As strict as kubectl and no stricter: `ssl.create_default_context` refuses the authorities of some clusters since 3.13.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if not access.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)  # the kubeconfig asks for it
    elif access.authority:
        context.load_verify_locations(cadata=access.authority.decode("ascii", "ignore"))
    else:
        context.load_default_certs()
    if access.certificate:
        with tempfile.NamedTemporaryFile() as both:  # OpenSSL reads them only from a file; it is private and deleted at once
            both.write(access.certificate + b"\n" + access.key)
            both.flush()
            context.load_cert_chain(both.name)
    return context
