"""Values of a settings file, and its text with others in their place, as PyYAML, json, tomllib and configparser read it."""

from __future__ import annotations

import configparser
import json
import tomllib
from typing import Any

import pytest
import yaml

from trialplane.job import settings

YAML = """\
# of all stages
base: &base
  seed: 1  # of Python's generators
train:
  lr: &lr 0.1 # of Adam
  name: 'a: b'
  sizes:
  - 1
  - 2 # the second

  act:
  text: |
    a
    b
  flow: [1, 2]
  empty: {}
  again: *lr
  <<: *base
other: x
"""
VALUES: dict[str, Any] = {
    "base.seed": 7,
    "train.lr": 1e-05,
    "train.name": "c\"d: 'é' #",
    "train.sizes": [3.5, 1e-7, "x"],
    "train.act": "relu",
    "train.text": "one",
    "train.flow": [True, None],
    "train.empty": {"a": 1e20},
    "other": False,
}


def test_mappings_of_a_list_are_named_by_their_index() -> None:
    text = "layers: [\n  {'dropout': 0.5},\n  {'dropout': 0.0}]\nstages:\n- lr: 1\n- lr: 2\nodd: [{}, 1]\n"
    values = settings.values(text, "a.yaml")
    assert values["layers.1.dropout"] == 0
    assert values["stages.0.lr"] == 1
    assert values["odd"] == [{}, 1]
    replaced = settings.replace_values(text, {"layers.0.dropout": 0.25, "stages.1.lr": 3}, "a.yaml")
    assert replaced == text.replace("0.5", "0.25").replace("lr: 2", "lr: 3")


def test_json_may_have_comments_and_tabs() -> None:
    text = '{\n\t"url": "a://b/*c*/", // its "lr": 2\n\t/* the\n\trate */ "lr": 1e-3,\n\t"sizes": [1, // one\n\t2]\n}\n/*'
    assert settings.values(text, "a.json") == {"url": "a://b/*c*/", "lr": 0.001, "sizes": [1, 2]}
    assert settings.replace_values(text, {"lr": 0.5}, "a.json") == text.replace("1e-3", "0.5")


def test_several_words_in_quotes_are_one_value_of_a_shell_script() -> None:
    text = "LAYERS=\"64 128\"\nSIZES='3 x'\nLR=\"0.1\"\nN='3'\na.py --dims '4 5'\n"
    assert settings.values(text, "a.sh") == {"LAYERS": "64 128", "SIZES": "3 x", "LR": 0.1, "N": 3, "dims": "4 5"}
    assert [name for name, _ in settings.named_numbers(text)] == ["LR", "N"]
    replaced = settings.replace_values(text, {"LAYERS": "32 64", "LR": 0.5, "dims": "6 7"}, "a.sh")
    assert replaced == text.replace('"64 128"', "'32 64'").replace("0.1", "0.5").replace("4 5", "6 7")


def test_each_value_is_replaced_where_it_is() -> None:
    assert set(settings.spans(YAML, "a.yaml")) == set(VALUES)
    for name, value in VALUES.items():
        text = settings.replace_values(YAML, {name: value}, "a.yaml")
        loaded = yaml.safe_load(text)
        for part in name.split("."):
            loaded = loaded[part]
        assert loaded == value and type(loaded) is type(value), text
    text = settings.replace_values(YAML, VALUES | {"unknown": 1}, "a.yaml")
    loaded = yaml.safe_load(text)
    assert loaded["train"] == {name[6:]: value for name, value in VALUES.items() if name.startswith("train.")} | {
        "again": 1e-05,
        "seed": 7,
    }
    for comment in ("# of all stages", "# of Python's generators", "# of Adam"):
        assert comment in text


def test_json_stays_json() -> None:
    text = json.dumps({"lr": 0.1, "model": {"sizes": [1, 2], "name": "a"}}, indent=1)
    replaced = settings.replace_values(text, {"lr": 1e-05, "model.sizes": [4], "model.name": 'b"'}, "a.json")
    assert json.loads(replaced) == {"lr": 1e-05, "model": {"sizes": [4], "name": 'b"'}}
    assert json.loads(settings.replace_values('{"lr":1}', {"lr": 2}, "a.json")) == {"lr": 2}


@pytest.mark.parametrize(
    ("flag", "keys", "overridden"),
    [
        ("--lr", ["optimizer.args.lr", "seed"], "optimizer.args.lr"),
        ("--learning-rate", ["train.learning_rate"], "train.learning_rate"),
        ("--lr", ["lr", "actor.lr"], "lr"),
        ("--lr", ["actor.lr", "critic.lr"], ""),
        ("--lr", ["train.lr", "other.lr"], ""),
        ("--lr", ["actor.lr"], ""),
        ("--lr", ["model.text_encoder.lr"], ""),
        ("--actor-lr", ["actor.lr", "critic.lr"], "actor.lr"),
        ("--actor.lr", ["actor.lr", "critic.lr"], "actor.lr"),
        ("--rate", ["actor.lr"], ""),
        ("--config.lr", ["lr", "seed"], "lr"),
        ("--config.lr", ["config.lr", "lr"], "config.lr"),
        ("--data.lr", ["lr"], ""),
        ("--config-lr", ["lr"], ""),
    ],
)
def test_a_flag_overrides_the_one_setting_that_it_means(flag: str, keys: list[str], overridden: str) -> None:
    expected = {overridden: flag} if overridden else {}
    assert settings.overriding_flags(["python", "fit.py", f"{flag}=0.1"], keys) == expected


@pytest.mark.parametrize(
    ("text", "overridden"),
    [
        ("--hparams name=x,lr=a", {"name": "name=", "model.lr": "lr="}),
        ("--hparams=lr=[1,2]", {"model.lr": "lr="}),
        ("--opts steps 3 lr 0.1", {"model.lr": "lr"}),
        ("--opts lr 0.1", {"model.lr": "lr"}),
        ("--opts lr adam", {}),
        ("--tag lr 4", {}),
        ("++lr=0.1", {"model.lr": "lr="}),
        ("--out runs/lr=0.1", {}),
        ("--data-lr 0.1 -lr 0.1 x.lr=0.1 name", {}),
    ],
)
def test_pairs_of_a_name_and_a_value_override_settings(text: str, overridden: dict[str, str]) -> None:
    assert settings.overriding_flags(["python", "fit.py", *text.split()], ["model.lr", "name"]) == overridden
    assert settings.overriding_flags(["bash", "-c", f"python fit.py {text}"], ["model.lr", "name"]) == overridden


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('--hparams "lr=0.1"', ["lr"]),
        ('--hparams="name=x,lr=0.1,n=2"', ["lr", "n"]),
        ("--hparams=lr=0.1,name=x --seed 3", ["lr", "seed"]),
        ('"betas=0.9,0.99" "x>=1" x==1 (i=0)', []),
        ("lr=0.1,n=2 lr=0.2", ["n"]),
    ],
)
def test_a_list_of_pairs_has_a_number_for_each_name(text: str, names: list[str]) -> None:
    assert [name for name, _ in settings.named_numbers(f"fit.py {text}")] == names


@pytest.mark.parametrize("text", ["a: [1", "a: 1\n---\nb: 2", "[" * 5000, "a: *b", "a: \t- x"])
def test_what_is_no_settings_file(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        settings.spans(text, "a.yaml")


@pytest.mark.parametrize("text", ["", "- 1", "x", "? [a]\n: 1"])
def test_a_file_without_names_has_no_values(text: str) -> None:
    assert settings.spans(text, "a.yaml") == {} and settings.replace_values(text, {"a": 1}, "a.yaml") == text


TOML = """\
title = "a # b" # the name
[train]
lr=1e-3
sizes = [1, 2]
inline = {a = 1}
on = true
notes = \"\"\"
no = 1
\"\"\"
[model.encoder] # of the text
"hidden dim" = 8
[[stages]]
lr = 2
"""


def test_toml_stays_toml() -> None:
    read = {"title": "a # b", "train.lr": 0.001, "train.sizes": [1, 2], "train.on": True, "model.encoder.hidden dim": 8}
    assert settings.values(TOML, "a.toml") == read
    others = {"title": 'b"', "train.lr": 1e-05, "train.sizes": [0.5], "train.on": False, "model.encoder.hidden dim": 9}
    text = settings.replace_values(TOML, others | {"train.no": 7, "stages.lr": 7}, "a.toml")
    assert settings.values(text, "a.toml") == others
    assert tomllib.loads(text) == tomllib.loads(TOML) | {
        "title": 'b"',
        "train": {"lr": 1e-05, "sizes": [0.5], "inline": {"a": 1}, "on": False, "notes": "no = 1\n"},
        "model": {"encoder": {"hidden dim": 9}},
    }
    assert "# the name" in text and "# of the text" in text
    with pytest.raises(ValueError, match=r"."):
        settings.spans("a = 1\nb = [\n", "a.toml")


def test_ini_stays_ini() -> None:
    ini = "; of all\n[training]\nlearning_rate = 0.1\nName: some text\nempty =\npath = %(root)s/x\n"
    assert settings.values(ini, "a.ini") == {
        "training.learning_rate": 0.1,
        "training.Name": "some text",
        "training.path": "%(root)s/x",
    }
    text = settings.replace_values(ini, {"training.learning_rate": 1e-05, "training.Name": "other"}, "a.cfg")
    read = configparser.ConfigParser(interpolation=None)
    read.read_string(text)
    assert dict(read["training"]) == {"learning_rate": "1e-05", "name": "other", "empty": "", "path": "%(root)s/x"}
    assert text.startswith("; of all\n")


@pytest.mark.parametrize("name", ["a.ini", "a.conf", "settings.txt"])
def test_ini_keeps_quotes(name: str) -> None:
    ini = "[train]\na = 'Adam'  # or SGD\nb = \"Adam\"\nc = Adam\nd = '0.1'\ne = 'x'\n"
    params = {"train.a": "SGD", "train.b": "SGD", "train.c": "SGD", "train.d": 0.2, "train.e": "'quoted by hand'"}
    assert settings.replace_values(ini, params, name) == (
        "[train]\na = 'SGD'  # or SGD\nb = \"SGD\"\nc = SGD\nd = '0.2'\ne = 'quoted by hand'\n"
    )


@pytest.mark.parametrize(
    ("text", "replaced"),
    [
        ("### use # for comments\n\nlr=0.1\nname=Adam # or SGD\n#gpu\n", "lr=0.2\nname=SGD # or SGD\n"),
        ("[train]\nlr = 0.1\nname = Adam\n", "lr = 0.2\nname = SGD\n"),
        ('[train]\nlr = 0.1\nsizes = [\n1]\nname = "Adam"\n', 'lr = 0.2\nsizes = [\n1]\nname = "SGD"\n'),
        ("train:\n  lr: 0.1\n  name: Adam\n", 'lr: 0.2\n  name: "SGD"\n'),
        ('{"lr": 0.1, // of all\n"name": "Adam"}\n', '{"lr": 0.2, // of all\n"name": "SGD"}\n'),
    ],
)
def test_the_text_of_a_file_whose_suffix_says_nothing_says_its_format(text: str, replaced: str) -> None:
    for name in ("my.train.config", "settings.txt", "plain"):
        values = settings.values(text, name)
        key = next(key for key in values if key.endswith("lr"))
        other = key.removesuffix("lr") + "name"
        assert (values[key], values[other]) == (0.1, "Adam")
        assert replaced in settings.replace_values(text, {key: 0.2, other: "SGD"}, name)


@pytest.mark.parametrize("text", ["", "a few words\n", "lr=0.1\na few words\n", "lr 0.1\n", "1,2\n3,4\n", "# lr=0.1\n"])
def test_a_text_without_settings_has_no_format(text: str) -> None:
    with pytest.raises(ValueError, match="its lines are not all NAME = VALUE"):
        settings.spans(text, "a.txt")


PYTHON = """\
TEXT = (
    "a"  # and
    "b"
)
\f
LR = 1e-3  # of Adam
NAME = 'é'; DEPTH: int = 3
class Data:
    size = (4, 8)
    path = NAME + "x"
optimizer = dict(type="SGD", momentum=0.9)
unknown = DEPTH * 2
"""


def test_a_python_module_stays_one() -> None:
    read = {"TEXT": "ab", "LR": 0.001, "NAME": "é", "DEPTH": 3, "type": "SGD", "momentum": 0.9}
    assert settings.values(PYTHON, "a.py") == read
    others = {"LR": -1e-05, "NAME": "it's", "DEPTH": 4, "type": None, "momentum": 0.5}
    text = settings.replace_values(PYTHON, others, "a.py")
    names: dict[str, Any] = {}
    exec(text, names)
    assert (names["LR"], names["NAME"], names["optimizer"]) == (-1e-05, "it's", {"type": None, "momentum": 0.5})
    assert names["unknown"] == 8 and "# of Adam" in text and "size = (4, 8)" in text
    with pytest.raises(ValueError, match="not Python"):
        settings.spans("x = (", "a.py")


def test_a_number_that_a_python_module_assigns_twice_is_replaced_at_both_positions() -> None:
    text = "size = 1\nlr = 0.1\nsize = -2  # of the second part\n"
    assert settings.values(text, "a.py") == {"size": -2, "lr": 0.1}
    assert settings.replace_values(text, {"size": 8}, "a.py") == "size = 8\nlr = 0.1\nsize = 8  # of the second part\n"


def test_a_program_in_r_stays_one() -> None:
    text = """# eta <- 0.9
eta <- 0.1  # f(gamma = 3)
params <- list(
  max_depth = 6L,
  gamma = 0.5
)
params$lambda = 1
fit(data, "a, b = 3", 'it', alpha = 0.1)
square <- function(x) x^2
.seed <- 1
rate.of.growth <- 0.2
train <- function(n = 5, m = c(1, 2)) {
  x <- 5 + 3
}
steps <- 2
steps <- 3
years <- 2020:2024
"""
    read = {"eta": 0.1, "max_depth": 6, "gamma": 0.5, "lambda": 1, "alpha": 0.1, "rate.of.growth": 0.2}
    assert settings.values(text, "a.R") == read
    replaced = settings.replace_values(text, {"eta": 1e-05, "max_depth": 8, "alpha": 2.0}, "a.R")
    changed = text.replace("eta <- 0.1", "eta <- 1e-05").replace("6L", "8L").replace("alpha = 0.1", "alpha = 2.0")
    assert replaced == changed
    for line in ("args <- commandArgs()", "library(optparse)", "Sys.getenv('eta')"):
        assert settings.values(f"eta <- 0.1\n{line}\n", "a.R") == {}, "it may have another value"


def test_a_program_in_c_stays_one() -> None:
    text = """#include <stdio.h>
#define LR 0.1f
#define BATCH 100 /* of data */
/* rate = 5;
 size = 3; */
static const float decay = 0.9f;
int main(int argc, char **argv) {
    double eta = 1e-3; // eta = 5;
    for (int j = 0; j < 10; j++) { }
    float w[2] = {1, 2};
    int steps = 10'000;
    struct P p = {
        .drop = 0.3,
    };
    printf("%d, b = 3", 3);
    if (size == 4) x += 2;
}
"""
    assert settings.values(text, "a.c") == {"LR": 0.1, "BATCH": 100, "decay": 0.9, "eta": 0.001, "drop": 0.3}
    replaced = settings.replace_values(text, {"LR": 1e-05, "BATCH": 8, "eta": 0.5}, "a.c")
    assert replaced == text.replace("0.1f", "1e-05f").replace("100", "8").replace("1e-3", "0.5")
    for line in ("#ifndef LR", "    n = atoi(argv[1]);", "    options.parse(argc, argv);"):
        assert settings.values(f"{text}{line}\n", "a.c") == {}, "it may have another value"


@pytest.mark.parametrize(
    "part", ["'", '"\\', "/*", "a$", "(a=", "argv ", "function ", "int ", "#define ", ",a=", " ", "a <- 1", "1"]
)
def test_a_long_program_takes_linear_time(part: str) -> None:
    assert not settings.spans(f"a <- {part * 16_000}+", "a.c")


def test_one_text_for_several_names_of_a_python_module_stays() -> None:
    text = "size, lr = 1, 0.1\nwidth = depth = 3\nwidth = 4\n"
    assert settings.values(text, "a.py") == {"size": 1, "lr": 0.1}
    replaced = settings.replace_values(text, {"size": 8, "lr": 0.5, "width": 7, "depth": 7}, "a.py")
    assert replaced == text.replace("0.1", "0.5").replace("1,", "8,")


def test_a_shell_script_stays_one() -> None:
    script = "# LR=9\nexport LR=0.1 # --lr 2\nN='3'\nOUT=a1\n"
    script += 'echo "LR=0.05 was too small"\necho start && python b.py depth=3\n'
    script += "python a.py --wd=1e-4 -b 8 --name x1 a.b=.5 OPT.LR 1 \\\n  --drop 0.5\n"
    read = {"depth": 3, "LR": 0.1, "N": 3, "wd": 1e-4, "b": 8, "a.b": 0.5, "OPT.LR": 1, "drop": 0.5, "lr": 2}
    words = {"OUT": "a1", "name": "x1"}
    assert settings.values(script, "a.sh") == read | words
    text = settings.replace_values(script, {"LR": 0.5, "N": 4, "wd": 1.0, "OPT.LR": 1e-5, "drop": 0.25}, "a.sh")
    assert text.splitlines()[1:3] == ["export LR=0.5 # --lr 2", "N='4'"]
    assert text.endswith("--wd=1.0 -b 8 --name x1 a.b=.5 OPT.LR 1e-05 \\\n  --drop 0.25\n")


def test_words_of_a_shell_script_are_values() -> None:
    script = '# OPT=rmsprop\n[ -z "$OPT" ] && OPT=adam\nif [ -z $N ]; then N=3; fi\nACT="relu"; DATA=a/b.csv\n'
    script += "MODE=a\npython a.py --opt $OPT --norm=layer --n 3 --n auto && MODE=b\n"
    assert settings.values(script, "a.sh") == {"N": 3, "n": 3, "OPT": "adam", "ACT": "relu", "norm": "layer"}
    text = settings.replace_values(script, {"OPT": "sgd", "N": 4, "n": 5, "ACT": "a b", "norm": "none"}, "a.sh")
    assert text.splitlines() == [
        "# OPT=rmsprop",
        '[ -z "$OPT" ] && OPT=sgd',
        "if [ -z $N ]; then N=4; fi",
        "ACT='a b'; DATA=a/b.csv",
        "MODE=a",
        "python a.py --opt $OPT --norm=none --n 5 --n auto && MODE=b",
    ]


@pytest.mark.parametrize(
    ("line", "value", "replaced"),
    [
        ('LAYERS="64"', "64 32", 'LAYERS="64 32"'),
        ("LAYERS='64'", "64 32", "LAYERS='64 32'"),
        ("LAYERS='64'", [64, 32], "LAYERS='64, 32'"),
        ('LAYERS="64"', '$a "b"', r'LAYERS="\$a \"b\""'),
        ("LAYERS='64'", "it's", r"LAYERS='it'\''s'"),
        ("LAYERS=64", "64 32", "LAYERS='64 32'"),
        ("LAYERS=relu", "64 32", "LAYERS='64 32'"),
        ("""f '{"LAYERS": 64}'""", "64 32", """f '{"LAYERS": "64 32"}'"""),
        ("""f '{"LAYERS": 64}'""", [64, 32], """f '{"LAYERS": [64, 32]}'"""),
    ],
)
def test_a_value_of_a_shell_script_has_the_quotes_that_it_needs(line: str, value: Any, replaced: str) -> None:
    assert settings.replace_values(f"{line}\n", {"LAYERS": value}, "a.sh") == f"{replaced}\n"


@pytest.mark.parametrize("word", ["true", "false", "yes", "no", "on", "off", "null", "'true'", '"None"'])
def test_words_that_are_no_texts_in_yaml_are_texts_in_a_shell(word: str) -> None:
    assert settings.values(f"AMP={word}\n", "a.sh") == {"AMP": word.strip("\"'")}


@pytest.mark.parametrize(
    ("word", "words"), [("false", "true false"), ("'yes'", "true false"), ("False", "True False"), ("TRUE", "TRUE FALSE")]
)
def test_a_boolean_in_a_shell_script_has_the_case_of_the_old_value(word: str, words: str) -> None:
    for value, expected in zip((True, False), words.split(), strict=True):
        assert settings.replace_values(f"AMP={word}\n", {"AMP": value}, "a.sh") == f"AMP={expected}\n"


def test_a_name_with_several_values_in_a_shell_script_is_no_setting() -> None:
    text = "python pre.py --steps 100\npython a.py --steps 200 --lr 1\npython e.py --steps all\n# --steps 3\n"
    assert settings.values(text, "a.sh") == {"lr": 1}
    assert settings.values("# a.py --steps 100\ne.py --steps all\n", "a.sh") == {"steps": "all"}


@pytest.mark.parametrize("name", ["a.ini", "a.toml", "a.config", "a.yaml", "a.json", "a.gin", "a.py", "a.sh"])
def test_line_ends_of_windows_stay(name: str) -> None:
    lines = ["lr = 0.1", "", "# of the model", "depth = 3", "name = 'a'"]
    if name.endswith((".yaml", ".json")):
        lines = ["{", '"lr": 0.1,', '"depth": 3,', '"name": "a"', "}"]
    elif name.endswith(".sh"):
        lines = ["lr=0.1", "depth=3", "name='a'"]
    text = "\r\n".join([*lines, ""])
    assert settings.values(text, name) == {"lr": 0.1, "depth": 3, "name": "a"}
    replaced = settings.replace_values(text, {"lr": 0.5, "depth": 4}, name)
    assert replaced == text.replace("0.1", "0.5").replace("3", "4")


def test_gin_stays_gin() -> None:
    assert settings.values("# of all\ntrain.lr = 0.1\ntrain.act = @relu\n", "a.gin")["train.lr"] == 0.1
    assert settings.replace_values(
        "train.lr = 0.1\ntrain.name = 'x'\n", {"train.lr": 1e-05, "train.name": "y"}, "a.gin"
    ) == ("train.lr = 1e-05\ntrain.name = 'y'\n")
