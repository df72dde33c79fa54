"""The gateway's certificate, which is renewed while the gateway runs."""

from __future__ import annotations

import asyncio
import ssl
import sys
from pathlib import Path

CHECK_SECONDS = 60.0  # between checks for a renewed certificate; Kubernetes itself needs as long to update it in the pod


class Certificate:
    """A certificate and its key in a folder, as Kubernetes mounts a Secret of the type kubernetes.io/tls.

    Args:
        folder: Folder with `tls.crt` and `tls.key`.

    Raises:
        OSError: A file is missing, or is not a certificate or key (`ssl.SSLError`).
    """

    def __init__(self, folder: Path) -> None:
        self._chain = folder / "tls.crt"
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._loaded = b""
        self.reload()

    def reload(self) -> None:
        """If the files have changed, use them for new connections.

        Raises:
            OSError: A file is missing, or they are not a certificate with its key. The context has not changed.
        """
        chain = self._chain.resolve()  # Kubernetes replaces both files at once, by a link to another folder
        key = chain.with_name("tls.key")
        content = chain.read_bytes() + key.read_bytes()
        if content != self._loaded:
            # First in another context, which checks both files: a context that refuses the key has already replaced its
            # certificate, and could not be used any more.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(chain, key)
            self.context.load_cert_chain(chain, key)
            self._loaded = content

    async def keep_current(self, pause: float = CHECK_SECONDS) -> None:
        """Reload the files when they change, until canceled. Keep the loaded ones while the new ones cannot be read."""
        while True:
            await asyncio.sleep(pause)
            try:
                self.reload()
            except OSError as error:
                sys.stderr.write(f"the renewed certificate {self._chain} is not used: {error}\n")
