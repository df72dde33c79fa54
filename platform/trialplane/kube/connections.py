"""Credentials and connections of one context, as the `kubernetes` package makes them; the only module that imports it.

The first `Cluster` imports the package, for that takes longer than a verb on this machine.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from typing import Any

import urllib3

from trialplane.errors import TargetError
from trialplane.kube import kubeconfig
from trialplane.kube.kubeconfig import KubeContext


def settings(context: KubeContext | None) -> Any:
    """The package's settings for a context, or with None for the cluster that this pod is in."""
    from kubernetes import client, config  # takes a quarter of a second, which no verb on this machine needs

    settings, files = client.Configuration(), kubeconfig.names()
    try:
        if context is None:
            config.load_incluster_config(client_configuration=settings)
            return settings
        config.load_kube_config_from_dict(context.document(), client_configuration=settings, persist_config=False)
    except (config.ConfigException, OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        # The last three are what the package raises for an entry of another shape.
        raise TargetError(f"the kubeconfig {files} cannot be used: {type(error).__name__}: {error}") from error
    if "tokenFile" in context.user:  # which the package reads only once
        settings.refresh_api_key_hook = lambda to: to.api_key.update(dict.fromkeys(to.api_key, f"Bearer {context.token()}"))
    # The package logs why, and continues without a user.
    if "exec" in context.user and not settings.api_key and not settings.cert_file:
        raise TargetError(
            f"the credential plugin of {context.name} in the kubeconfig {files} gave no credentials (the log line above "
            f"has its reason); log in again as for kubectl: `kubectl --context {context.name} auth whoami` runs it too"
        )
    return settings


def pool(settings: Any) -> urllib3.PoolManager:
    """Connections as the package makes them, through the proxy that it chooses.

    Raises:
        ssl.SSLError: a certificate or a key is none.
        ImportError: a SOCKS proxy takes a package that is not installed.
    """
    from kubernetes.client import rest  # as in `settings`

    login = urllib3.util.parse_url(settings.proxy or "").auth
    settings.proxy_headers = urllib3.util.make_headers(proxy_basic_auth=login) if login else None
    pool: urllib3.PoolManager = rest.RESTClientObject(settings).pool_manager
    if settings.host.startswith("https:"):
        pool.connection_pool_kw["ssl_context"] = _tls(settings)
        for key in ("cert_file", "key_file"):  # the context has them
            pool.connection_pool_kw.pop(key, None)
    return pool


class _Settled(ssl.SSLContext):
    """A context that keeps what it was given first.

    urllib3 loads the authorities and sets the protocols anew at each connection, while another thread may be making one with
    the same context: OpenSSL then reads what was freed, and the process ends by SIGSEGV or SIGABRT. (It would also load a
    client's certificate anew; `pool` gives it none.)
    """

    is_settled = False

    def load_verify_locations(self, *args: Any, **options: Any) -> None:
        if not self.is_settled:
            super().load_verify_locations(*args, **options)

    def set_alpn_protocols(self, alpn_protocols: Iterable[str]) -> None:
        if not self.is_settled:
            super().set_alpn_protocols(alpn_protocols)


def _tls(settings: Any) -> ssl.SSLContext:
    # As strict as kubectl and not more: the default context refuses the authorities of some clusters since Python 3.13.
    context = _Settled(ssl.PROTOCOL_TLS_CLIENT)
    if not settings.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)  # the kubeconfig chooses it
    elif settings.ssl_ca_cert:
        context.load_verify_locations(settings.ssl_ca_cert)
    else:
        context.load_default_certs()
    if settings.cert_file:
        context.load_cert_chain(settings.cert_file, settings.key_file)
    context.set_alpn_protocols(["http/1.1"])
    context.is_settled = True
    return context
