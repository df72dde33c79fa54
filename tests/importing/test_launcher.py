"""Options from the text of a shell script.

Not checked here: how launchers become jobs (tests/cli/test_programs.py).
"""

from __future__ import annotations

from typing import Any

import pytest

from trialplane.importing import launcher


@pytest.mark.parametrize(
    "text",
    [
        'if [ -z "$LR" ]; then LR=0.1; fi\nOPT=adam\npython a.py --lr $LR --opt $OPT --name x\n',
        "if [[ -z ${LR} ]]\nthen\n  export LR=0.1\nfi\n[ -z $OPT ] && OPT='adam'\npython a.py\n",
        ": ${LR:=0.1}\nOPT=${OPT:-adam}\npython a.py --lr $LR --opt $OPT\n",
        "LR=${LR:-0.1}\npython a.py --lr $LR --opt adam --name x\n",
        "python a.py --lr 0.1 --opt=adam --name x \\\n  --width 3\n",
    ],
)
def test_words_of_a_shell_script_are_searched_on_request(text: str) -> None:
    script = launcher.read(text, "run.sh", requested=("lr", "OPT"))
    assert {option.name.lower(): option.default for option in script.options if option.name != "width"} == {
        "lr": 0.1,
        "opt": "adam",
    }
    assert "x" not in {option.default for option in launcher.read(text, "run.sh").options}


@pytest.mark.parametrize(("word", "default"), [("true", True), ("'false'", False), ("yes", "yes"), ("off", "off")])
def test_words_of_a_shell_script_have_the_value_that_they_have_as_choices(word: str, default: Any) -> None:
    script = launcher.read(f"LR=0.1\nAMP={word}\npython a.py --amp $AMP --lr $LR\n", "run.sh", requested=("AMP",))
    assert {option.name: option.default for option in script.options}["AMP"] == default


@pytest.mark.parametrize("requested", ["LR", "lr"])
def test_a_number_of_a_shell_script_named_like_a_variable_with_a_default_is_no_further_parameter(requested: str) -> None:
    text = "LR=${LR:-0.1}\npython a.py --lr $LR\npython b.py --lr 0.2\n"
    script = launcher.read(text, "run.sh", requested=(requested,))
    assert [(option.name, option.default) for option in script.options] == [("LR", 0.1)]
