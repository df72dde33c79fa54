"""The modules that a script imports by a name which its arguments choose, and the values in them.

Not checked: defaults of functions and constructors (test_defaults.py), and how a job gets the values
(tests/cli/test_project_forms.py).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from trialplane.job import module_files
from trialplane.job.module_files import ModuleValues

CONFIG = "class Config:\n    def __init__(self):\n        self.rate = 0.1\n"
CHOSEN = ModuleValues("models/cnn.py", ["rate"], frozenset(["cnn"]))


def found(script: str, *texts: str, name: str = "rate", **modules: str) -> ModuleValues | None:
    Path("models").mkdir(exist_ok=True)
    for path, text in {"fit": script, "models__cnn": CONFIG, **modules}.items():
        Path(f"{path.replace('__', '/')}.py").write_text(text)
    return module_files.with_values([name], Path("fit.py"), Path(), [Path()], texts)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "statement",
    [
        "import_module('models.' + args.model)",
        "importlib.import_module(f'models.{name}')",
        "importlib.import_module('models.%s' % name)",
        "importlib.import_module('models.{}'.format(args.model))",
        "import_module('.' + name, package='models')",
        "__import__('models.' + args.model, fromlist=['Config'])",
        "path = f'models.{args.model}'\nimport_module(path)",
        "def load(name): return import_module('models.' + name)\nload(args.model)",
    ],
)
@pytest.mark.parametrize("text", ["cnn", "CNN"])  # which the script may change to lower case
def test_a_text_chooses_the_module(statement: str, text: str) -> None:
    assert found(statement, "fast", text) == CHOSEN._replace(texts=frozenset([text]))


@pytest.mark.parametrize(
    ("statement", "texts"),
    [
        ("import_module('models.' + args.model)", ()),
        ("import_module('models.' + args.model)", ("cnn", "rnn")),  # of two files
        ("import_module('models.' + args.model)", ("../models/cnn", "cnn.py", "c" * 300)),
        ("import_module(f'{args.kind}.{args.model}')", ("models", "cnn")),
        ("import_module(args.model)", ("models.cnn",)),  # which may be one of any module
        ("load('models.' + args.model)", ("cnn",)),
    ],
)
def test_a_module_that_is_not_certain_has_no_values(statement: str, texts: tuple[str, ...]) -> None:
    assert found(statement, *texts, models__rnn="width = 8\n") is None


def test_a_name_that_the_code_shows_needs_no_text() -> None:
    always = CHOSEN._replace(texts=frozenset())
    assert found("import_module('models.cnn')") == always
    assert found("name = 'cnn'\nimport_module('models.' + name)", "rnn", models__rnn=CONFIG) == always
    assert found("import models.cnn\nimport_module('models.' + name)", "cnn") == always
    assert found("for name in names:\n    name = 'cnn'\nimport_module('models.' + name)") is None


def test_a_module_that_a_chosen_one_imports_is_chosen_as_well() -> None:
    base = ModuleValues("models/base.py", ["width"], frozenset(["cnn"]))
    module = {"models__cnn": "from .base import Net\n", "models__base": "width = 8\n"}
    assert found("import_module('models.' + name)", "cnn", name="width", **module) == base


@pytest.mark.parametrize("name", ["self.rate", "Config.rate", "config.RATE"])
def test_a_value_has_the_names_of_its_attribute(name: str) -> None:
    assert found("import models.cnn", name=name) == CHOSEN._replace(texts=frozenset())
    assert found("import models.cnn", name="Other.rate") is None
