"""The command line of a script or command, made from the parameters of a trial. Pure, and imports nothing heavy.

An argument may hold placeholders: `{lr}` is the value of a parameter, `{checkpoints}` a fact about the trial (`FACTS`), and
`{{` a brace. An argument that is `{flags}` or `{hydra}` alone becomes one argument or more for each parameter that no other
placeholder names: `--lr=0.1`, and `lr=0.1` in Hydra's grammar. `{globals}` is no argument: the parameters replace what the
script assigns to their names.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, TypeGuard

# What a trial knows beside its parameters → what it is. A parameter of the same name wins.
FACTS: Mapping[str, str] = {
    "run": "name of the run",
    "trial": "number of the trial, from 0",
    "attempt": "1, or more for a retry",
    "seed": "of the trial, a whole number below 2**32",
    "checkpoints": "folder or URL that outlives the attempt and is shared with the next one",
    "workdir": "scratch folder of the trial",
    "code": "folder of the job's code",
    "cache": "folder shared by all trials",
    "cpus": "cores of the trial",
    "gpus": "GPUs of the trial",
}
FLAGS, HYDRA, GLOBALS = "flags", "hydra", "globals"
_ALL = (FLAGS, HYDRA, GLOBALS)
BOOLEANS = ("switch", "value", "negated")
LISTS = ("spread", "repeat", "comma", "literal")
_PLACEHOLDER = re.compile(r"\{\{|\}\}|\{([^{}]*)\}")
# Hydra reads these as plain text; anything else it is given in quotes.
_PLAIN = re.compile(r"[A-Za-z_./][\w./:@%+-]*")
_WORDS = ("true", "false", "null", "nan", "inf", "none", "yes", "no", "on", "off")  # not the text, when unquoted


def placeholders(arguments: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Each placeholder with the index of its argument."""
    for index, text in enumerate(arguments):
        for match in _PLACEHOLDER.finditer(text):
            if match[1] is not None:
                yield index, match[1]


def is_known(name: str, argument: str, parameters: Collection[str]) -> bool:
    """Whether a placeholder of an argument has a value: a parameter, a fact, or all parameters where it stands alone."""
    return name in parameters or name in FACTS or (name in _ALL and argument == f"{{{name}}}")


def build(
    arguments: Sequence[str],
    params: Mapping[str, Any],
    facts: Mapping[str, Any],
    booleans: str = "switch",
    lists: str = "spread",
) -> list[str]:
    """The arguments of one trial.

    Args:
        arguments: with placeholders.
        params: of the trial, by name.
        facts: by the names of `FACTS`.
        booleans: of flags. switch: `--amp` or nothing; negated: `--amp` or `--no-amp`; value: `--amp=True`, `--amp=False`.
        lists: of flags. spread: `--sizes 64 32`; repeat: `--sizes=64 --sizes=32`; comma: `--sizes=64,32`; literal:
            `--sizes=[64, 32]`.

    An argument whose parameter does not exist in this trial, for its condition does not hold, is left out, together with an
    option just before it: both of `--momentum {momentum}`.
    """
    named = {name for _, name in placeholders(arguments)}
    others = {name: value for name, value in params.items() if name not in named}
    known = {**facts, **params}
    made: list[str] = []
    before = ""
    for text in arguments:
        alone = _PLACEHOLDER.fullmatch(text)
        lacks = any(not is_known(name, text, known) for _, name in placeholders([text]))
        if lacks and made and before == made[-1] and before.startswith("-"):
            made.pop()
        before = "" if lacks or "{" in text else text
        if lacks:
            continue
        if alone and alone[1] == FLAGS and FLAGS not in params:
            made += _flags(_flat(others), booleans, lists)
        elif alone and alone[1] == HYDRA and HYDRA not in params:
            made += [f"{name}={_hydra(value)}" for name, value in others.items()]
        elif alone and alone[1] == GLOBALS and GLOBALS not in params:
            continue
        elif alone and alone[1] is not None and isinstance(known[alone[1]], (list, tuple)):
            made += [_text(one) for one in known[alone[1]]]
        else:
            made.append(_PLACEHOLDER.sub(lambda match: _filled(match, known), text))
    return made


def assigned(tree: ast.Module) -> dict[str, ast.Assign | ast.AnnAssign]:
    """The first assignment of each name at the top level of a script, also below `if __name__ == "__main__":`."""
    made: dict[str, ast.Assign | ast.AnnAssign] = {}
    for node in [*tree.body, *(below for one in tree.body if is_main(one) for below in one.body)]:
        target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
        target = node.target if isinstance(node, ast.AnnAssign) and node.value else target
        if isinstance(target, ast.Name) and isinstance(node, (ast.Assign, ast.AnnAssign)):
            made.setdefault(target.id, node)
    return made


def is_main(node: ast.stmt) -> TypeGuard[ast.If]:
    """Whether a statement is `if __name__ == "__main__":`."""
    return isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)


def replaced(tree: ast.Module, params: Mapping[str, Any]) -> ast.Module:
    """A script whose first assignments of the parameters' names have the parameters' values."""
    for name, node in assigned(tree).items():
        if name in params:
            node.value = ast.copy_location(_tree(params[name]), node)
    return ast.fix_missing_locations(tree)


def _tree(value: Any) -> ast.expr:
    """A JSON value as an expression; infinity and NaN have no literal."""
    if isinstance(value, dict):
        return ast.Dict([ast.Constant(key) for key in value], [_tree(item) for item in value.values()])
    if isinstance(value, (list, tuple)):
        return ast.List([_tree(item) for item in value], ast.Load())
    return ast.Constant(value)


def _filled(match: re.Match[str], known: Mapping[str, Any]) -> str:
    if match[1] is None:
        return match[0][0]
    value = known[match[1]]
    return ",".join(map(_text, value)) if isinstance(value, (list, tuple)) else _text(value)


def _text(value: Any) -> str:
    """A value as Python writes it; null is empty."""
    return "" if value is None else str(value)


def _flat(params: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Mappings as dotted names."""
    made: dict[str, Any] = {}
    for name, value in params.items():
        made |= _flat(value, f"{above}{name}.") if isinstance(value, dict) and value else {above + name: value}
    return made


def _flags(params: Mapping[str, Any], booleans: str, lists: str) -> Iterator[str]:
    """Options of argparse, click, fire and their like; a parameter that is null is left out."""
    for name, value in params.items():
        flag = f"--{name}"
        if isinstance(value, bool) and booleans != "value":
            if value:
                yield flag
            elif booleans == "negated":
                yield f"--no-{name}"
        elif isinstance(value, (list, tuple)):
            yield from _list(flag, value, lists)
        elif value is not None:
            yield f"{flag}={value}"  # with "=", so that a negative number is not taken for another option


def _list(flag: str, value: Sequence[Any], lists: str) -> Iterator[str]:
    if lists == "spread":
        yield from (flag, *map(_text, value))
    elif lists == "repeat":
        yield from (f"{flag}={_text(one)}" for one in value)
    elif lists == "comma":
        yield f"{flag}={','.join(map(_text, value))}"
    else:
        yield f"{flag}={list(value)!r}"


def _hydra(value: Any) -> str:
    """A value in the grammar of Hydra's overrides: https://hydra.cc/docs/advanced/override_grammar/basic/."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(_hydra, value))}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{name}:{_hydra(below)}" for name, below in value.items()) + "}"
    text = str(value)
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        return text
    # A quote is escaped by a backslash, and so are the backslashes just before one.
    return "'" + re.sub(r"(\\*)('|$)", lambda match: match[1] * 2 + ("\\'" if match[2] else ""), text) + "'"
