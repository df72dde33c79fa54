"""Credentials of a context, and connections with them, from the `kubernetes` package. No other module imports the package.

It is imported when the first `Cluster` is created, because the import takes longer than a command that needs no cluster.
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
    """Return the package's settings for a context, or with None for the cluster of this pod.

    Raises:
        TargetError: The kubeconfig is invalid, or its credential plugin gives no credentials.
    """
    from kubernetes import client, config  # slow: a quarter of a second

    configuration, files = client.Configuration(), kubeconfig.names()
    try:
        if context is None:
            config.load_incluster_config(client_configuration=configuration)
            return configuration
        config.load_kube_config_from_dict(context.as_kubeconfig(), client_configuration=configuration, persist_config=False)
    except (config.ConfigException, OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        # The package raises the last three for an entry with an unexpected structure.
        raise TargetError(f"the kubeconfig {files} cannot be used: {type(error).__name__}: {error}") from error
    if "tokenFile" in context.user:  # the package would read the file only once, but the token in it is renewed

        def read_token(current: Any) -> None:
            """Set the token of the package's settings to the one that the file has now."""
            header = f"Bearer {context.token()}"
            current.api_key = dict.fromkeys(current.api_key, header)

        configuration.refresh_api_key_hook = read_token
    # If a credential plugin fails, the package only logs the reason, and continues without credentials.
    if "exec" in context.user and not configuration.api_key and not configuration.cert_file:
        raise TargetError(
            f"the credential plugin of {context.name} in the kubeconfig {files} gave no credentials (the log line above "
            f"has its reason); log in again as for kubectl: `kubectl --context {context.name} auth whoami` runs it too"
        )
    return configuration


def pool(configuration: Any) -> urllib3.PoolManager:
    """Return a pool of connections with the package's settings, through the proxy that they name.

    Args:
        configuration: Result of `settings`.

    Raises:
        ssl.SSLError: A certificate or a key is invalid.
        ImportError: A SOCKS proxy needs a package that is not installed.
    """
    from kubernetes.client import rest  # slow, see `settings`

    proxy_login = urllib3.util.parse_url(configuration.proxy or "").auth  # user:password in the URL of the proxy
    configuration.proxy_headers = urllib3.util.make_headers(proxy_basic_auth=proxy_login) if proxy_login else None
    connections: urllib3.PoolManager = rest.RESTClientObject(configuration).pool_manager
    if configuration.host.startswith("https:"):
        connections.connection_pool_kw["ssl_context"] = _tls_context(configuration)
        for key in ("cert_file", "key_file"):  # the TLS context has loaded them; see `_FrozenContext`
            connections.connection_pool_kw.pop(key, None)
    return connections


class _FrozenContext(ssl.SSLContext):
    """TLS context that ignores changes once it is frozen.

    For each connection, urllib3 again loads the certificate authorities and sets the protocols of its context. If another
    thread opens a connection with the same context at that time, OpenSSL reads freed memory, and the process ends by SIGSEGV
    or SIGABRT. (urllib3 would also load a client certificate again, but `pool` removes it.)
    """

    is_frozen = False

    def load_verify_locations(self, *args: Any, **options: Any) -> None:
        """Load certificate authorities, unless the context is frozen."""
        if not self.is_frozen:
            super().load_verify_locations(*args, **options)

    def set_alpn_protocols(self, alpn_protocols: Iterable[str]) -> None:
        """Set the protocols, unless the context is frozen."""
        if not self.is_frozen:
            super().set_alpn_protocols(alpn_protocols)


def _tls_context(configuration: Any) -> ssl.SSLContext:
    """Return the frozen TLS context for the package's settings.

    It is as strict as kubectl. Since Python 3.13, the default context refuses the certificate authorities of some clusters.
    """
    context = _FrozenContext(ssl.PROTOCOL_TLS_CLIENT)
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)  # the user has disabled it in the kubeconfig
    elif configuration.ssl_ca_cert:
        context.load_verify_locations(configuration.ssl_ca_cert)
    else:
        context.load_default_certs()
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, configuration.key_file)
    context.set_alpn_protocols(["http/1.1"])
    context.is_frozen = True
    return context
