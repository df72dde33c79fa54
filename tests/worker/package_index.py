"""A package index on loopback, with wheels that are made here."""

from __future__ import annotations

import functools
import http.server
import tarfile
import threading
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path


class Index:
    """A package index (PEP 503) with wheels that are made here, which counts and can refuse."""

    def __init__(self, root: Path) -> None:
        self.asked: list[str] = []
        self.reached: Callable[[], None] = lambda: None  # called before an answer that is no 503
        self.answers = threading.Event()
        self.answers.set()
        self.failures = 0  # how many of the next requests are answered with 503
        self._root = root
        index = self

        class Handler(http.server.SimpleHTTPRequestHandler):
            def do_GET(self) -> None:
                index.asked.append(self.path)
                if index.failures > 0:
                    index.failures -= 1
                    self.send_error(503)
                    return
                index.reached()
                index.answers.wait()
                super().do_GET()

            def log_message(self, *said: object) -> None: ...

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(root)))
        self.url = f"http://127.0.0.1:{self._server.server_port}/simple"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.answers.set()
        self._server.shutdown()
        self._server.server_close()

    def add(self, name: str, version: str, *needs: str, size: int = 0, files: Sequence[str] = ()) -> None:
        folder = self._root / "simple" / name
        folder.mkdir(parents=True, exist_ok=True)
        info = f"{name}-{version}.dist-info"
        held = {
            f"{name}/__init__.py": f"VERSION = {version!r}\n",
            f"{name}/data.bin": "x" * size,
            **dict.fromkeys(files, ""),
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
            + "".join(f"Requires-Dist: {line}\n" for line in needs),
            f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        held[f"{info}/RECORD"] = "".join(f"{line},,\n" for line in [*held, f"{info}/RECORD"])
        with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
            for file, text in held.items():
                wheel.writestr(file, text)
        self._list(folder)

    def add_source(self, name: str, version: str) -> None:
        folder = self._root / "simple" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "setup.py").write_text("raise SystemExit('was run')\n")
        with tarfile.open(folder / f"{name}-{version}.tar.gz", "w:gz") as archive:
            archive.add(folder / "setup.py", f"{name}-{version}/setup.py")
        self._list(folder)

    @staticmethod
    def _list(folder: Path) -> None:
        archives = [file.name for file in folder.iterdir() if file.suffix in (".whl", ".gz")]
        (folder / "index.html").write_text("".join(f'<a href="{name}">{name}</a>' for name in archives))
