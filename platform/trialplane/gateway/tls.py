"""The gateway's certificate, which is renewed while the gateway runs."""

from __future__ import annotations

import asyncio
import ssl
import sys
from pathlib import Path

CHECK_SECONDS = 60.0  # between looks for a renewed certificate; Kubernetes itself takes as long to show it in the pod


class Certificate:
    """A certificate and its key in a folder, as Kubernetes mounts a Secret of the type kubernetes.io/tls.

    Args:
        folder: Folder with `tls.crt` and `tls.key`.

    Raises:
        OSError: A file is missing, or is no certificate or key (`ssl.SSLError`).
    """

    def __init__(self, folder: Path) -> None:
        self._chain, self._key = folder / "tls.crt", folder / "tls.key"
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._loaded = b""
        self.reload()

    def reload(self) -> None:
        """Use the files as they are now for new connections, if they have changed."""
        content = self._chain.read_bytes() + self._key.read_bytes()
        if content != self._loaded:
            self.context.load_cert_chain(self._chain, self._key)
            self._loaded = content

    async def keep_current(self, pause: float = CHECK_SECONDS) -> None:
        """Reload the files when they change, until canceled. Keep the loaded ones while the new ones cannot be read."""
        while True:
            await asyncio.sleep(pause)
            try:
                self.reload()
            except OSError as error:  # a certificate and a key that do not match: the other is about to be written
                sys.stderr.write(f"the renewed certificate {self._chain} is not used: {error}\n")
