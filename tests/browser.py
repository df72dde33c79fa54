"""A client that opens the address that `platform ui` prints, as a browser does: it follows redirects and keeps cookies."""

from __future__ import annotations

import http.cookiejar
import json
import urllib.parse
import urllib.request
from typing import Any


class Browser:
    """A browser that has opened a page.

    Args:
        address: Address of the page.

    Attributes:
        page: Address to which the page redirects.
        cookie: Cookies of the site, as a request sends them.
    """

    def __init__(self, address: str) -> None:
        cookies = http.cookiejar.CookieJar()
        handlers = (urllib.request.ProxyHandler({}), urllib.request.HTTPCookieProcessor(cookies))
        self._opener = urllib.request.build_opener(*handlers)
        with self._opener.open(address, timeout=300) as reply:
            self.page = reply.geturl()
        self.cookie = "; ".join(f"{cookie.name}={cookie.value}" for cookie in cookies)

    def open(self, path: str) -> Any:
        """Return the reply to a request for a path of the same site."""
        return self._opener.open(urllib.parse.urljoin(self.page, path), timeout=120)

    def get(self, path: str, body: Any = None, method: str | None = None) -> Any:
        """Return the JSON at a path of the same site. With a body, the default method is POST, otherwise GET."""
        data = None if body is None else json.dumps(body).encode()
        url = urllib.parse.urljoin(self.page, path)
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
        with self._opener.open(request, timeout=120) as reply:
            return json.loads(reply.read() or b"null")
