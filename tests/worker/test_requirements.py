"""A slot compares what its job needs with what is installed where the trials will run, before it imports anything.

Not checked: how requirements are read and compared (tests/job/test_requirements.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.worker.conftest import Slot

from trialplane import errors
from trialplane.plan import pack
from trialplane.wire.records import SlotConfig


def make(tmp_path: Path, text: str, **config: Any) -> Slot:
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text("open(__file__ + '.imported', 'w')\ndef run(ctx): ...\n")
    (code / "requirements.txt").write_text(text)
    plain = {"run": "toy", "code": str(code), "entrypoint": "train:run", "requirements": "requirements.txt"}
    return Slot(SlotConfig(**plain, root=str(tmp_path / "run"), cache=str(tmp_path / "cache"), **config), "0-1")


def test_nothing_is_imported_when_a_package_is_missing(tmp_path: Path) -> None:
    slot = make(tmp_path, "packaging\nnever-heard-of\npackaging>=999\n")
    with pytest.raises(errors.EntrypointError) as caught:
        slot.start()
    text = str(caught.value)
    assert "requirements.txt:2: never-heard-of: is not installed" in text
    assert "requirements.txt:3: packaging>=999: " in text and "`pip install -r requirements.txt`" in text
    assert not list((tmp_path / "code").glob("*.imported"))


def test_in_a_pod_the_packed_code_says_it_and_the_cure_is_an_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIALPLANE_HOME", str(tmp_path / "home"))
    make(tmp_path, "never-heard-of\n")
    archive = tmp_path / "code.tar.gz"
    archive.write_bytes(pack.pack(tmp_path / "code").data)
    plain = {"run": "toy", "code": "/elsewhere", "entrypoint": "train:run", "requirements": "requirements.txt"}
    slot = Slot(SlotConfig(**plain, root="/elsewhere", cache="/elsewhere", pack=str(archive), ship=True), "0-1")
    with pytest.raises(errors.EntrypointError, match="`platform image build --job NAME` builds an image"):
        slot.start()


def test_a_script_without_metadata_starts(tmp_path: Path) -> None:
    slot = make(tmp_path, "packaging\n")
    try:
        slot.start()
        assert list((tmp_path / "code").glob("*.imported"))
    finally:
        slot.close()
