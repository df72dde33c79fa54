"""Hydra's sweep syntax as parameters of a study. Not checked here: what a trial makes of them (test_task.py)."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.utils import create_config_search_path
from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.errors import HydraException

from hydra_plugins.trialplane_sweeper import _space as space

SWEPT: list[tuple[str, dict[str, Any]]] = [
    ("lr=interval(1e-5,1e-1)", {"type": "float", "low": 1e-5, "high": 1e-1, "log": False}),
    ("lr=tag(log, interval(1e-5,1e-1))", {"type": "float", "low": 1e-5, "high": 1e-1, "log": True}),
    ("n=int(interval(1,8))", {"type": "int", "low": 1, "high": 8, "log": False}),
    ("n=range(1,5)", {"type": "int", "low": 1, "high": 4, "step": 1}),
    ("n=range(0,10,step=4)", {"type": "int", "low": 0, "high": 8, "step": 4}),
    ("x=range(0,1,0.25)", {"type": "float", "low": 0.0, "high": 0.75, "step": 0.25}),
    ("model=small,large", {"type": "categorical", "choices": ["small", "large"]}),
    ("x=choice(1,2.5,true,abc)", {"type": "categorical", "choices": [1, 2.5, True, "abc"]}),
    ("x='a b','c,d'", {"type": "categorical", "choices": ["'a b'", "'c,d'"]}),
    ("x=[1,2],[3]", {"type": "categorical", "choices": ["[1,2]", "[3]"]}),
]


@pytest.fixture
def loader() -> ConfigLoader:
    Plugins.instance()
    return ConfigLoaderImpl(create_config_search_path(None))


@pytest.mark.parametrize(("override", "expected"), SWEPT)
def test_what_is_drawn(loader: ConfigLoader, override: str, expected: dict[str, Any]) -> None:
    found = space.parse([override], loader)
    assert list(found.parameters.values()) == [expected] and not found.fixed


@pytest.mark.parametrize(("override", "expected"), SWEPT)
def test_every_choice_comes_out_as_it_went_in(loader: ConfigLoader, override: str, expected: dict[str, Any]) -> None:
    texts = override.partition("=")[2].removeprefix("choice(").removesuffix(")")
    for value in expected.get("choices", ()):
        [key] = space.parse([override], loader).keys.values()
        assert space.override_text(key, value).partition("=")[2] in texts
        parsed = OverridesParser.create().parse_override(space.override_text(key, value))
        assert not parsed.is_sweep_override()


def test_names_and_what_is_fixed(loader: ConfigLoader) -> None:
    given = ["a.b=1,2", "+a_b=1,2", "model/opt=x,y", "db@src=x,y", "db_src=1,2"]
    given += ["seed=3", "~old", "one=choice(7)", "lr=1,2", "lr=interval(0,1)"]
    found = space.parse(given, loader)
    kept = {key: key for key in ("a.b", "model/opt", "lr")}
    assert found.keys == {**kept, "a_b": "+a_b", "db_src": "db@src", "db_src_": "db_src"}
    assert list(found.fixed) == ["seed=3", "~old", "one=7"]
    assert found.parameters["lr"]["type"] == "float", "the last one of a key counts"
    assert not found.is_finite and space.parse(["a=1,2", "b=range(3)"], loader).is_finite


def test_what_is_no_override(loader: ConfigLoader) -> None:
    with pytest.raises(HydraException):
        space.parse(["lr=interval(1"], cast(ConfigLoader, loader))
