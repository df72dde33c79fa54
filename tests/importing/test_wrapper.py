"""The call to which a shell script passes its arguments on: the branch that is read, folders, and words."""

from __future__ import annotations

import pytest

from trialplane.importing import wrapper
from trialplane.importing.script import Call

BRANCHES = """
if [[ $1 == 'train' ]]; then
    echo 'Run training...'
    python train.py \\
        --lr 0.1 \\
        ${@:2}
elif [ "$1" = "eval" ]; then
    python eval.py --size 3 ${@:2}
else
    echo 'unknown'
fi
"""
CASES = """
MODE=$1
shift
case "$MODE" in
  train|fit) python train.py --lr 0.1 "$@" ;;
  eval)
    python eval.py --size 3 "$@"
    ;;
  *) python other.py --size 4 "$@" ;;
esac
"""
DISTRIBUTED = """
CONFIG=$1
GPUS=$2
PORT=${PORT:-29500}
PYTHONPATH="$(dirname $0)/..":$PYTHONPATH \\
python -m torch.distributed.launch --nproc_per_node=$GPUS --master_port=$PORT \\
    $(dirname "$0")/train.py $CONFIG --launcher pytorch ${@:3}
"""


def call(text: str, command_line: str) -> Call | None:
    shell_call = wrapper.find_call(command_line)
    return None if shell_call is None else wrapper.wrapped_call(text, shell_call)


@pytest.mark.parametrize(
    ("text", "command_line", "script", "arguments"),
    [
        (BRANCHES, "bash run.sh train --out a", "train.py", ("--lr", "0.1", "--out", "a")),
        (BRANCHES, "bash run.sh eval --out a", "eval.py", ("--size", "3", "--out", "a")),
        (CASES, "./run.sh fit --out 'a b'", "train.py", ("--lr", "0.1", "--out", "a b")),
        (CASES, "bash -e run.sh eval", None, ()),
        (CASES, "sh run.sh eval", "eval.py", ("--size", "3")),
        (CASES, "sh run.sh test", "other.py", ("--size", "4")),
        (DISTRIBUTED, "bash tools/run.sh a.py 8 --x 1", "tools/train.py", ("a.py", "--launcher", "pytorch", "--x", "1")),
        ("python train.py $*", "bash run.sh --out a", "train.py", ("--out", "a")),
        (f"OUT=/{'x' * 99}/$(date)\npython train.py $*", "bash run.sh --out a", "train.py", ("--out", "a")),
        ("if [ -z $X ]; then python train.py $@; fi", "bash run.sh --out a", "train.py", ("--out", "a")),
        ("if [ $1 = a ]\nthen python a.py $@\nelse python b.py $@\nfi", "bash run.sh b", "b.py", ("b",)),
        ("python train.py --lr 0.1", "bash run.sh --out a", None, ()),
        ("python train.py $1", "bash run.sh a", None, ()),
        (
            "python train.py --lr ${10} ${11} ${12} $@",
            "bash run.sh a b c d e f g h i 0.1 -x",
            "train.py",
            ("--lr", "0.1", "-x", *"abcdefghi", "0.1", "-x"),
        ),
    ],
)
def test_the_call_is_that_of_the_branch_that_the_arguments_take(
    text: str, command_line: str, script: str | None, arguments: tuple[str, ...]
) -> None:
    python_call = call(text, command_line)
    assert (None if python_call is None else python_call.script) == script
    assert python_call is None or python_call.arguments == arguments


SEVERAL = """#!/bin/sh
export SEED=3
echo "GCN"
python gcn.py --dataset=$1 > log.txt 2>&1
cd src
CUDA_VISIBLE_DEVICES=0 torchrun gat.py "$@" | tee out.log
"""


@pytest.mark.parametrize(
    ("command_line", "commands"),
    [
        (
            "bash run.sh Cora",
            ["SEED=3 python gcn.py --dataset=Cora", "cd src && SEED=3 CUDA_VISIBLE_DEVICES=0 torchrun gat.py Cora"],
        ),
        (
            "cd a && PYTHONPATH=.. sh run.sh Cora",
            [
                "cd a && PYTHONPATH=.. SEED=3 python gcn.py --dataset=Cora",
                "cd a/src && PYTHONPATH=.. SEED=3 CUDA_VISIBLE_DEVICES=0 torchrun gat.py Cora",
            ],
        ),
    ],
)
def test_the_python_commands_are_those_to_type_where_the_shell_script_is_called(
    command_line: str, commands: list[str]
) -> None:
    shell_call = wrapper.find_call(command_line)
    assert shell_call is not None and wrapper.python_commands(SEVERAL, shell_call) == commands


@pytest.mark.parametrize(
    ("text", "commands"),
    [
        ('echo a; python train.py --tag "v1;v2" > log', ['python train.py --tag "v1;v2"']),
        ("python a.py --tag 'a|b' && python b.py", ["python a.py --tag 'a|b'", "python b.py"]),
        (
            "(cd sub && python train.py --lr 0.1)\npython b.py",
            ["cd sub && python train.py --lr 0.1", "python b.py"],
        ),
        (
            "( export A=1; python a.py --x $(cat x) )\n(cd c; python c.py > log)\npython b.py",
            ["A=1 python a.py --x $(cat x)", "cd c && python c.py", "python b.py"],
        ),
        ("(cd a && (cd b && python c.py))\npython d.py", ["cd a/b && python c.py", "python d.py"]),
        (
            "(cd a; (cd b; python c.py); python d.py)\npython e.py",
            ["cd a/b && python c.py", "cd a && python d.py", "python e.py"],
        ),
        ("(\n  python a.py --tag '(' --lr 0.1\n)\n", ["python a.py --tag '(' --lr 0.1"]),
        ("(python a.py --tag '(' --lr 0.1)", ["python a.py --tag '(' --lr 0.1"]),
        ("a)\npython b.py", ["python b.py"]),
        (r"find c -exec python a.py --config {} \;", [r"find c -exec python a.py --config {} \;"]),
        ("out=$(python a.py --lr 0.1)", []),
    ],
)
def test_the_python_commands_are_whole_with_separators_in_quotation_marks_and_in_subshells(
    text: str, commands: list[str]
) -> None:
    assert wrapper.python_commands(text, Call("run.sh")) == commands


def test_further_arguments_of_a_command_line_in_a_subshell_go_to_its_script() -> None:
    command_line = "(cd sub && bash run.sh --x 1)"
    python_call = call('python train.py "$@"', command_line)
    assert python_call is not None
    assert (python_call.folder, python_call.arguments) == ("sub", ("--x", "1"))
    assert command_line[: python_call.end] == "(cd sub && bash run.sh --x 1"


def test_the_python_script_gets_the_variables_before_the_shell_script() -> None:
    python_call = call('B=2 python train.py "$@"', "A=1 B=1 sh run.sh")
    assert python_call is not None and python_call.variables == {"A": "1", "B": "2"}


def test_the_folders_of_the_command_line_and_the_script_are_joined() -> None:
    command_line = "cd a && bash bin/run.sh && echo done"
    python_call = call('cd "$(dirname "$0")/../src"\npython train.py "$@"\n', command_line)
    assert python_call is not None
    assert (python_call.folder, python_call.script) == ("a/src", "train.py")
    assert command_line[: python_call.end] == "cd a && bash bin/run.sh"
