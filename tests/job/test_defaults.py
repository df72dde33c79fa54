"""The defaults in a module that a script uses, as no call passes another value.

Not checked: how a job gets them (tests/cli/test_project_forms.py).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from trialplane.job import module_files

NET = "class Net:\n    def __init__(self, size, hidden=64):\n        self.size = size\n"


def found(script: str, **modules: str) -> dict[str, list[str]]:
    for name, text in {"fit": script, **modules}.items():
        Path(f"{name}.py").write_text(text)
    values = module_files.with_values(["hidden"], Path("fit.py"), Path(), [Path()])
    return {} if values is None else {values.module: values.keys}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("script", "module"),
    [
        ("from model import Net\nNet(8)\n", NET),
        ("import model\ndef fit(net: model.Net): ...\nfit(model.Net(size=8))\n", NET),
        ("from model import build\nbuild()\n", "def build(*, hidden=64): ...\n"),
        ("from model import Net\nNet(8)\n", f"{NET}        super(Net, self).__init__()\n"),
        ("from model import Net\nNet(8)\n", f"{NET}        self.rnn = LSTM(size, hidden=hidden)\n"),
        ("from model import Net\nNet(8)\n", f"{NET}if __name__ == '__main__':\n    Net(8, SIZE)\n"),
    ],
)
def test_a_default_that_no_call_replaces_is_a_value(script: str, module: str) -> None:
    assert found(script, model=module) == {"model.py": ["hidden"]}


@pytest.mark.parametrize(
    ("script", "module"),
    [
        ("from model import Net\n", NET),
        ("from model import Net\nNet(8, 32)\n", NET),
        ("from model import Net\nNet(8)\nNet(8, hidden=32)\n", NET),
        ("from model import Net\nNet(*sizes)\n", NET),
        ("from model import Net\nNet(8, **sizes)\n", NET),
        ("from model import Net as Model\nModel(8)\n", NET),
        ("from model import Net\nNet(8)\nfit(Net)\n", NET),
        ("from model import Net\nclass Wide(Net): ...\nNet(8)\n", NET),
        ("from model import Net\nNet(8)\n", f"@register\n{NET}"),
        ("from model import Net\nNet(8)\n", f"{NET}    def copy(self): return self.__class__(8, 32)\n"),
        ("import model\nmodel.fit()\n", "class Net:\n    def fit(self, hidden=64): ...\n"),
    ],
)
def test_a_default_that_a_call_may_replace_is_none(script: str, module: str) -> None:
    assert found(script, model=module) == {}


def test_a_value_that_is_set_comes_before_a_default() -> None:
    script = "import config\nfrom model import Net\nNet(8)\n"
    assert found(script, model=NET, config="hidden = 32\n") == {"config.py": ["hidden"]}
    assert found("import model, other\nmodel.Net(8)\nother.wide()\n", model=NET, other="def wide(hidden=8): ...\n") == {}
