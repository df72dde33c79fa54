"""HTTPS of the gateway: clients check its certificate, a renewed one is used, and a damaged one changes nothing."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import requests
from tests.gateway.certificates import Authority
from tests.gateway.gateway_site import Http

from trialplane import errors
from trialplane.gateway import __main__ as program
from trialplane.gateway import server
from trialplane.gateway.tls import Certificate
from trialplane.ledger.remote import Reader
from trialplane.wire import env


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Authority().write(tmp_path / "tls", "127.0.0.1")
    return tmp_path / "tls"


@pytest.fixture
def certificate(folder: Path) -> Certificate:
    return Certificate(folder)


@pytest.fixture
def http(certificate: Certificate) -> Iterator[Http]:
    serving = Http(
        server.server(SimpleNamespace(), SimpleNamespace(max_runs=1), None, certificate=certificate)  # type: ignore[arg-type]
    )
    yield serving
    serving.close()


def _fingerprint(http: Http) -> str:
    return ssl.get_server_certificate(("127.0.0.1", http.port), timeout=60)


def test_a_client_with_the_authority_is_answered_and_one_without_refuses(http: Http, folder: Path) -> None:
    url = f"https://127.0.0.1:{http.port}/health"
    assert requests.get(url, verify=str(folder / "ca.crt"), timeout=60).status_code == 200
    with pytest.raises(requests.exceptions.SSLError):
        requests.get(url, timeout=60)
    with pytest.raises(requests.exceptions.ConnectionError):
        requests.get(url.replace("https", "http"), timeout=60)


def test_a_ledgers_reader_checks_the_certificate(http: Http, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"https://:token@127.0.0.1:{http.port}/namespaces/studies"
    monkeypatch.setenv(env.MLFLOW_CA, str(folder / "ca.crt"))
    with contextlib.closing(Reader(url, "toy")) as reader, pytest.raises(errors.LedgerError, match="HTTP status 500"):
        reader.reports(0)  # an answer: this server has no ledgers
    Authority().write(folder, "127.0.0.1")  # another authority
    with (
        contextlib.closing(Reader(url, "toy")) as reader,
        pytest.raises(errors.LedgerUnavailable, match="CERTIFICATE_VERIFY"),
    ):
        reader.reports(0)


def test_a_renewed_certificate_is_used(http: Http, folder: Path, certificate: Certificate) -> None:
    former = _fingerprint(http)
    Authority().write(folder, "127.0.0.1")

    async def renew() -> None:
        async with asyncio.timeout(60):
            renewal = asyncio.create_task(certificate.keep_current(pause=0.01))
            while _fingerprint(http) == former:
                await asyncio.sleep(0.01)
            renewal.cancel()

    asyncio.run(renew())
    assert _fingerprint(http) == (folder / "tls.crt").read_text()


@pytest.mark.parametrize("is_certificate", [False, True], ids=["damaged", "of another key"])
def test_a_wrong_renewal_leaves_the_former_certificate(
    http: Http, folder: Path, certificate: Certificate, is_certificate: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    former, key = _fingerprint(http), (folder / "tls.key").read_text()
    (folder / "tls.crt").write_text("damaged")
    if is_certificate:
        Authority().write(folder, "127.0.0.1")
        (folder / "tls.key").write_text(key)

    async def renew() -> None:
        async with asyncio.timeout(60):
            renewal = asyncio.create_task(certificate.keep_current(pause=0.01))
            while "tls.crt is not used" not in capsys.readouterr().err:
                await asyncio.sleep(0.01)
            renewal.cancel()

    asyncio.run(renew())
    assert _fingerprint(http) == former


def test_a_gateway_without_a_usable_certificate_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(env.LEDGER, "postgresql+psycopg2://nobody@127.0.0.1:9/none")
    arguments = ["gateway", "--control=a", "--namespaces=b", f"--tls={tmp_path}"]
    monkeypatch.setattr("sys.argv", arguments)
    assert program.main() == errors.EXIT_BAD_INPUT
    assert "gateway.tls" in capsys.readouterr().err
