"""The command line that a trial's parameters become, and that the parsers people use read it back as it was meant.

Not checked here: that a script gets it (tests/worker/test_programs.py), what a job file may say (test_program.py).
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
from typing import Any

import click
import fire
import hypothesis
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import strategies as given

from trialplane.job import arguments

PARAMS: dict[str, Any] = {
    "lr": 1e-05,
    "shift": -2.5,
    "layers": 3,
    "amp": True,
    "compile": False,
    "sizes": [64, 32],
    "note": None,
}


@pytest.mark.parametrize(
    ("items", "made"),
    [
        (["--lr", "{lr}"], ["--lr", "1e-05"]),
        (["lr_{lr}_of_{run}"], ["lr_1e-05_of_demo"]),
        (["{{lr}}", "{{{layers}}}"], ["{lr}", "{3}"]),
        (["{sizes}", "s={sizes}"], ["64", "32", "s=64,32"]),
        (["--out", "{checkpoints}/best", "{seed}"], ["--out", "/kept/best", "7"]),
        (["{note}"], [""]),
        ([], []),
    ],
)
def test_placeholders(items: list[str], made: list[str]) -> None:
    assert arguments.build(items, PARAMS, {"run": "demo", "checkpoints": "/kept", "seed": 7}) == made


def test_flags_are_made_of_what_nothing_else_names() -> None:
    made = arguments.build(["config.py", "{lr}", "{flags}"], PARAMS, {})
    assert made == ["config.py", "1e-05", "--shift=-2.5", "--layers=3", "--amp", "--sizes", "64", "32"]


@pytest.mark.parametrize(
    ("booleans", "lists", "made"),
    [
        ("switch", "repeat", ["--amp", "--sizes=64", "--sizes=32"]),
        ("negated", "comma", ["--amp", "--no-compile", "--sizes=64,32"]),
        ("value", "literal", ["--amp=True", "--compile=False", "--sizes=[64, 32]"]),
    ],
)
def test_styles_of_flags(booleans: str, lists: str, made: list[str]) -> None:
    params = {name: PARAMS[name] for name in ("amp", "compile", "sizes")}
    assert arguments.build(["{flags}"], params, {}, booleans, lists) == made


def test_mappings_are_dotted_flags() -> None:
    assert arguments.build(["{flags}"], {"model": {"dim": 3, "act": {"kind": "relu"}}}, {}) == [
        "--model.dim=3",
        "--model.act.kind=relu",
    ]


def test_a_parameter_wins_over_a_fact() -> None:
    assert arguments.build(["{seed}"], {"seed": 1}, {"seed": 2}) == ["1"]


def test_what_does_not_exist_in_a_trial_is_left_out_with_its_option() -> None:
    assert arguments.build(["--lr", "{lr}", "--momentum", "{momentum}", "-v"], {"lr": 1}, {}) == ["--lr", "1", "-v"]
    assert arguments.build(["go", "{momentum}", "-v"], {}, {}) == ["go", "-v"], "what is not an option stays"


def test_argparse_reads_flags_as_they_were_meant() -> None:
    parser = argparse.ArgumentParser()
    for name, kind in (("lr", float), ("shift", float), ("layers", int)):
        parser.add_argument(f"--{name}", type=kind)
    parser.add_argument("--amp", action="store_true")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--sizes", type=int, nargs="+")
    read = parser.parse_args(arguments.build(["{flags}"], PARAMS, {}, "negated"))
    assert vars(read) == {name: PARAMS[name] for name in PARAMS if name != "note"}


def test_click_reads_flags_as_they_were_meant() -> None:
    seen: dict[str, Any] = {}

    @click.command()
    @click.option("--lr", type=float)
    @click.option("--shift", type=float)
    @click.option("--layers", type=int)
    @click.option("--amp/--no-amp")
    @click.option("--compile/--no-compile", default=True)
    @click.option("--sizes", type=int, multiple=True)
    def command(**read: Any) -> None:
        seen.update(read)

    command.main(arguments.build(["{flags}"], PARAMS, {}, "negated", "repeat"), standalone_mode=False)
    assert seen == {**{name: PARAMS[name] for name in PARAMS if name != "note"}, "sizes": (64, 32)}


def test_fire_reads_flags_as_they_were_meant() -> None:
    read = fire.Fire(lambda **read: dict(read), arguments.build(["{flags}"], PARAMS, {}, "value", "literal"))
    assert read == {name: PARAMS[name] for name in PARAMS if name != "note"}


@dataclasses.dataclass
class Options:
    lr: float = 0.1
    amp: bool = False
    compile: bool = True
    sizes: list[int] = dataclasses.field(default_factory=list)


def test_parsers_of_dataclasses_read_flags_as_they_were_meant() -> None:
    import simple_parsing
    import transformers

    made = arguments.build(["{flags}"], {name: PARAMS[name] for name in ("lr", "amp", "compile", "sizes")}, {}, "value")
    assert simple_parsing.parse(Options, args=made) == Options(1e-05, True, False, [64, 32])
    (read,) = transformers.HfArgumentParser(Options).parse_args_into_dataclasses(args=made)
    assert read == Options(1e-05, True, False, [64, 32])


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("lr = 1\nfit(lr=2)", "lr = 5\nfit(lr=2)"),
        ("lr = 1\nfit(lr=2)\nlr: float = -3", "lr = 5\nfit(lr=2)\nlr: float = 5"),
        (
            "lr = 1\nlr = lr * 2\nlr = True\nif __name__ == '__main__':\n    lr = 3",
            "lr = 5\nlr = lr * 2\nlr = True\nif __name__ == '__main__':\n    lr = 5",
        ),
        ("lr = one\nlr = 2", "lr = 5\nlr = 2"),
        ("fit(lr=2)", "fit(lr=5)"),
        ("fit(lr=2)\nfit(lr=3)", "fit(lr=5)\nfit(lr=3)"),
        ("fit(lr=other)", "fit(lr=other)"),
        ("config = {'lr': 2, **more}", "config = {'lr': 5, **more}"),
        ("config = {}\nconfig['lr'] = 2", "config = {}\nconfig['lr'] = 5"),
        ("class Config:\n    lr: float = 2\n    size: int", "class Config:\n    lr: float = 5\n    size: int"),
        ("def fit(data, lr=2, *, size, decay=0):\n    pass", "def fit(data, lr=5, *, size, decay=7):\n    pass"),
        ("def fit():\n    lr = 2", "def fit():\n    lr = 5"),
        ("n, (lr, size) = 3, (2, 4)", "n, (lr, size) = (3, (2, 4))"),
        ("size, lr = 3, -2", "size, lr = (9, 5)"),
        ("lr, *rest = *more, 2", "lr, *rest = (*more, 2)"),
        ("def fit():\n    a.lr, b['size'] = 2, 3", "def fit():\n    a.lr, b['size'] = (5, 9)"),
        ("lr = n = 2\nfit(lr=2)", "lr, n = (5, 2)\nfit(lr=2)"),
        ("n = lr = size = 2", "n, lr, size = (2, 5, 9)"),
        ("lr = np.float32(2)\nfit(size=jnp.int64(3), decay=f(4))", "lr = np.float32(5)\nfit(size=jnp.int64(9), decay=f(4))"),
        ("def fit(data, lr, n=1):\n    pass\nfit([1], 2, 3)", "def fit(data, lr, n=1):\n    pass\nfit([1], 5, 3)"),
        ("def fit(lr, size=1):\n    pass\nfit(2, 3)", "def fit(lr, size=1):\n    pass\nfit(5, 9)"),
        ("def fit(lr):\n    pass\nfit(2)\nAdam(lr=3)", "def fit(lr):\n    pass\nfit(2)\nAdam(lr=5)"),
        ("def fit(lr):\n    pass\nfit(2)\nfit(3)", "def fit(lr):\n    pass\nfit(2)\nfit(3)"),
        ("def fit(n, lr):\n    pass\nfit(*data, 2)", "def fit(n, lr):\n    pass\nfit(*data, 2)"),
        ("def fit(lr):\n    pass\nmodel.fit(2)", "def fit(lr):\n    pass\nmodel.fit(2)"),
        ("def fit(lr='a'):\n    pass\nfit('b')", "def fit(lr='a'):\n    pass\nfit(5)"),
        (
            "def fit(lr):\n    pass\n\ndef fit(n):\n    pass\nfit(2)",
            "def fit(lr):\n    pass\n\ndef fit(n):\n    pass\nfit(2)",
        ),
        (  # the default of one function and the number in a call of another are two values
            "def Net(size=3):\n    pass\n\ndef top(size):\n    pass\ntop(1)",
            "def Net(size=3):\n    pass\n\ndef top(size):\n    pass\ntop(1)",
        ),
        ("def Net(lr, size):\n    pass\nNet(2, 3)", "def Net(lr, size):\n    pass\nNet(2, 9)"),
        (
            "class Net:\n\n    def __init__(self, n, size):\n        pass\n\n    def fit(self, lr):\n        pass\n"
            "net = Net(1, 2)\nnet.fit(3)\nother.fit(4)",
            "class Net:\n\n    def __init__(self, n, size):\n        pass\n\n    def fit(self, lr):\n        pass\n"
            "net = Net(1, 9)\nnet.fit(5)\nother.fit(4)",
        ),
    ],
)
def test_globals_replace_the_one_value_of_a_name(text: str, made: str) -> None:
    tree = arguments.replace_values(ast.parse(text), {"lr": 5, "decay": 7, "size": 9})
    assert ast.unparse(tree) == made


def test_pairs_are_a_key_and_a_value_each() -> None:
    params = {"epochs": 3, "SOLVER.LR": 0.1, "INPUT.FLIP": True, "MODEL.NAME": None, "SIZES": [1, 2]}
    built = arguments.build(["--epochs", "{epochs}", "{pairs}"], params, {})
    assert built == ["--epochs", "3", "SOLVER.LR", "0.1", "INPUT.FLIP", "True", "SIZES", "[1, 2]"]


_TEXTS = given.text(given.characters(min_codepoint=32, max_codepoint=0x2FF), max_size=12)
_NUMBERS = given.one_of(given.integers(-(2**53), 2**53), given.floats(allow_nan=False, allow_infinity=False))
_SCALARS = given.one_of(given.booleans(), _NUMBERS, _TEXTS, given.none())


@hypothesis.given(value=given.one_of(_SCALARS, given.lists(_SCALARS, max_size=3)))
@hypothesis.example(value="it's")
@hypothesis.example(value="ends in \\")
@hypothesis.example(value="\\'")
@hypothesis.example(value="null")
@hypothesis.example(value="1e3")
@hypothesis.example(value="")
def test_hydra_reads_back_every_value(value: Any) -> None:
    [text] = arguments.build(["{hydra}"], {"model.dim": value}, {})
    [read] = OverridesParser.create().parse_overrides([text])
    assert read.key_or_group == "model.dim"
    found = read.value()
    assert found == value and type(found) is type(value)


def test_the_same_number_at_several_places_is_replaced_at_all_of_them() -> None:
    text = "f(lr=0.1, size=3, p=0.5)\ng(lr=0.1, size=3, p=0.6)\nparser.add_argument('-b', '--beta', default=0.9)\n"
    tree = arguments.replace_values(ast.parse(text), {"lr": 0.5, "size": 4, "p": 0.1, "beta": 0.8})
    assert (
        ast.unparse(tree)
        == "f(lr=0.5, size=3, p=0.5)\ng(lr=0.5, size=3, p=0.6)\nparser.add_argument('-b', '--beta', default=0.8)"
    )


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("class A:\n    x: float = 2\nclass B:\n    x: float = 3", "A.x"),
        ("class A:\n    def __init__(self, x=2): ...\nclass B:\n    def __init__(self, x=3): ...", "A.x"),
        ("class A:\n    def f(self):\n        self.x = 2\nx_of.b.x = 3", "f.x"),
        ("def f(x=2): ...\ndef g(x=3): ...", "f.x"),
        ("optim.Adam(x=2)\noptim.SGD(x=3)", "Adam.x"),
        ("a = {'x': 2, 'b': {'x': 3}}", "a.x"),
        ("a = dict(x=3, b=dict(x=2))", "b.x"),
        ("a.b.x = 2\na.c.x = 3", "b.x"),
        ("a['x'] = 2\nb['x'] = 3", "a.x"),
        ("a['b'] = {'x': 2}\na['c'] = {'x': 3}", "b.x"),
        ("def a():\n    b, c = ({'x': 2}, {'y': 1})\nd(x=3)", "a.x"),
    ],
)
def test_one_of_several_values_has_the_name_of_what_it_belongs_to(text: str, name: str) -> None:
    tree = ast.parse(text)
    assert "x" not in arguments.spots(tree)
    assert ast.unparse(arguments.replace_values(tree, {name: 7})) == ast.unparse(ast.parse(text.replace("2", "7")))


def test_the_first_argument_of_a_class_has_its_name() -> None:
    text = "m = f(Conv2D(32, 3), nn.Dropout(0.5), conv(5), Dense(n), x.Conv2D(64, a=B(-1)))"
    tree = ast.parse(text)
    assert set(arguments.spots(tree)) == {"m", "Conv2D", "Conv2D_2", "Dropout", "B"}
    arguments.replace_values(tree, {"Conv2D_2": 8, "Dropout": 0.1, "B": 2})
    assert ast.unparse(tree) == text.replace("64", "8").replace("0.5", "0.1").replace("-1", "2")
    assert "Adam" not in arguments.first_argument_spots(ast.parse("Adam = 3\nlr = 0.1\noptim.Adam(lr)"))


def test_numbers_of_keywords_without_another_name_are_numbered() -> None:
    text = "f(x=2, y=1.5)\ng(y=1.5, z=f(x=3), t='a')\nf(x=True, t='b')\nf(x=-5)"
    tree = ast.parse(
        text + "\na = dict(w=1)\nb = dict(w=2)\np.add_argument('--n', default=4)\np.add_argument('--m', default=6)"
    )
    assert {name for name, spot in arguments.spots(tree).items() if spot.is_numbered} == {"x", "x_2", "x_3"}
    arguments.replace_values(tree, {"x_2": 7, "x_3": 8})
    assert ast.unparse(tree).startswith(text.replace("3", "7").replace("-5", "8"))


def test_a_text_in_a_call_has_the_name_of_its_place() -> None:
    text = "def fit(kind): ...\nfit('a')\nm.compile('adam', n, 'mse', by='x')\nnn.Act('relu')\nf(nn.Act('tanh'))(1)('b')"
    tree = ast.parse(text)
    spots = arguments.spots(tree)
    names = ["compile.0", "compile.2", "Act.0", "Act.0_2"]
    assert [name for name, spot in spots.items() if spot.is_unnamed_text] == names
    assert arguments.shown_names(spots) == ["kind", "by"]
    arguments.replace_values(tree, {"compile.2": "mae", "Act.0_2": "elu"})
    assert ast.unparse(tree) == ast.unparse(ast.parse(text.replace("mse", "mae").replace("tanh", "elu")))


@pytest.mark.parametrize(
    ("text", "name", "changed"),
    [
        ("f(L(n_in=8, n_out=50), L(n_in=50, n_out=4))", "n_out", "f(L(n_in=8, n_out=7), L(n_in=7, n_out=4))"),
        ("f(L(n_in=8, n_out=50), L(n_in=50))", "n_out", "f(L(n_in=8, n_out=7), L(n_in=7))"),
        ("f(nn.Linear(8, 50), nn.Linear(50, 4))", "Linear_2", "f(nn.Linear(8, 7), nn.Linear(7, 4))"),
        ("f(L(n_in=8, n_out=50), L(n_in=60, n_out=4))", "n_out", "f(L(n_in=8, n_out=7), L(n_in=60, n_out=4))"),
        ("f(L(n_in=8, n_out=50), M(n_in=50))", "n_out", "f(L(n_in=8, n_out=7), M(n_in=50))"),
        ("f(MaxPool2d(2, 3), MaxPool2d(3, 3))", "MaxPool2d_2", "f(MaxPool2d(2, 3), MaxPool2d(7, 3))"),
    ],
)
def test_a_number_that_one_layer_puts_out_and_the_next_takes_in_has_one_name(text: str, name: str, changed: str) -> None:
    assert ast.unparse(arguments.replace_values(ast.parse(text), {name: 7})) == changed


def test_a_longer_name_of_several_values_or_of_a_single_one_is_none() -> None:
    assert not arguments.spots(ast.parse("f(x='a')\nf(x='b')")), "both are f.x"
    assert set(arguments.spots(ast.parse("class A:\n    x: float = 2"))) == {"x"}
