"""Reads the values of a program's settings file, and replaces some of them in its text.

A settings file is YAML, JSON, TOML, INI or gin; a Python module with the values at its top level; a shell script with
values in assignments and in the options of its commands; or a program in R or C with numbers in assignments. The suffix of
its name says which, or else its text: YAML, JSON, TOML, or lines such as `lr=0.1`, as in INI. `spans` returns the position
of each value in the text. So `replace_values` changes only the values, and comments and everything else stay as they are.
Pure.
"""

from __future__ import annotations

import ast
import contextlib
import io
import itertools
import json
import math
import re
import shlex
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import yaml

from trialplane.job import arguments, notebook

SHELLS = (".sh", ".bash")
_PROGRAMS = (".R", ".r", ".c", ".cc", ".cpp")
CODE = (*SHELLS, *_PROGRAMS)
_PYTHON = ".py"
_LINE_SUFFIXES = (".toml", ".ini", ".cfg", ".conf", ".gin")  # formats with sections in brackets and a value in a line
SUFFIXES = (".yaml", ".yml", ".json", *_LINE_SUFFIXES, _PYTHON, *CODE)
NUMBER = r"[-+]?+(?:\d++\.?+\d*+|\.\d++)(?:[eE][-+]?+\d++)?+"
_FILES = "py|sh|csv|tsv|txt|dat|jsonl?|ya?ml|toml|xml|np[yz]|pkl|pickle|h5|hdf5|parquet|arff|gz|zip|pth?"  # of ratings.csv 3
# LR=0.1 at the beginning of a line, and --lr 0.1, --lr=0.1, -l 0.1, train.lr=0.1, "lr=0.1,n=2", SOLVER.LR 0.1, {"lr": 0.1}
# anywhere.
_NUMBER_OF_NAME = re.compile(
    rf"""(?:^[ \t]*(?:export[ \t]+)?(?P<variable>[A-Za-z_]\w*)=(?P<quote>["']?)"""
    rf"""|(?<!\S)(?:--?(?P<flag>[A-Za-z][\w.-]*)[ \t=]+|"""
    rf"""(?P<dotted>(?!\S+\.(?:{_FILES})\s)[A-Za-z_]\w*(?:\.\w+)+)[ \t]+)"""
    rf"""|(?<![^\s"'=,])(?P<key>[A-Za-z_][\w./]*+)="""
    rf"""|\\?["'](?P<json>[A-Za-z_]\w*)\\?["']\s*:\s*)"""
    rf"""(?P<value>{NUMBER})(?(json)(?=\s*[,}}])|(?(variable)(?=(?P=quote)(?:[\s;]|$))|"""
    rf"""(?=["']?(?:[\s;]|$)|(?(key),[A-Za-z_][\w.]*+=|(?!)))))""",
    re.MULTILINE,
)
# A word in place of the number, or several: OPT=adam, OPT="adam", --opt adam, LAYERS="64 128".
_WORD_OF_NAME = re.compile(
    r"""(?<!\S)(?:--(?P<flag>[A-Za-z][\w.-]*)[ \t=]+|(?P<key>[A-Za-z_]\w*)=)"""
    r"""(?P<value>(?P<quote>["'])\w[\w+. -]*(?P=quote)|[A-Za-z][\w+-]*)(?=[\s;]|$)"""
)
_ECHO = re.compile(r"\s*+(?:echo|printf)\s[^;&|>]*+")  # words that a shell script prints
_REDIRECTED = re.compile(r"[^;&\n]*?[|>]")  # to a file or another program
# What sets a value in a command: --lr, lr=0.1, SOLVER.LR 0.1, and after a number or --opts also lr 0.1. In `--out runs/lr=1`
# and `timeout 60 python`, nothing does.
_SETS = re.compile(
    rf"(?<!\S)(?P<flag>--[A-Za-z][\w.-]*+)(?=[\s=]|$)|(?<![^\s\x22'=,+({{\[;])"
    r"(?P<key>[A-Za-z_][\w.]*+(?==)"
    rf"|(?:[A-Za-z_]\w*+\.|(?<=\d )|(?<=--opts )|(?<=--overrides ))[\w.]++(?= +{NUMBER}(?!\S)))=?"
)
_OF_CONFIG = re.compile(r"^(?:config|cfg|conf|settings|h?params|args)\.")  # --config.lr, which is lr of the file
# eta <- 0.1, params$eta = 0.1, const float lr = 0.1f; and #define LR 0.1 at the beginning of a line; f(x, eta = 0.1)
# anywhere.
_NUMBER_IN_PROGRAM = re.compile(
    rf"""(?:^[ \t]*+(?:\#define[ \t]++(?P<macro>[A-Za-z_]\w*+)[ \t]++"""
    rf"""|(?:(?:static|const|unsigned|long|short|int|float|double|size_t)[ \t]++)*+"""
    rf"""(?:[A-Za-z_.][\w.]*+\$|\.(?=[\w.]++[ \t]*+=[^=]))?+(?P<variable>[A-Za-z_]\w*+(?:\.\w++)*+)[ \t]*+(?:<-|=)[ \t]*+)"""
    rf"""|[(,][ \t]*+(?P<key>[A-Za-z_]\w*+(?:\.\w++)*+)[ \t]*+=[ \t]*+)"""
    rf"""(?P<value>{NUMBER})(?=[fFLuU]?+[ \t]*+(?:[,;)\r]|$))""",
    re.MULTILINE,
)
# What is not read there: comments, texts, and the defaults of R's functions: function(eta = 0.1) {.
_NO_CODE = re.compile(
    r"""//[^\n]*+|\#(?!define\b)[^\n]*+|/\*(?s:.*?)(?:\*/|\Z)|"(?:[^"\\\n]|\\.)*+"?|(?<!\d)'(?:[^'\\\n]|\\.)*+'?"""
    r"""|\bfunction[ \t]*+\((?:[^()]|\((?:[^()]|\([^()]*+\))*+\))*+\)|\bfunction\s*+\([^{]*+"""
)
# What may give numbers of such a program other values: arguments, environment variables, and gcc -DLR=0.1. The first argv is
# that of `main`.
_READS_ARGUMENTS = re.compile(
    r"commandArgs|optparse|argparse|docopt|getopt|\bargv\b(?s:.*)\bargv\b|getenv|#[ \t]*ifndef", re.IGNORECASE
)
# Sections of which a file often has several, each with a setting of the same name: actor.lr and critic.lr.
_ONE_OF_SEVERAL = re.compile(
    r"(?:^|[._])(?:actor|critic|policy|value|generator|discriminator|encoder|decoder|backbone|head|teacher|student|source|target|"
    r"val|valid|validation|test|eval|evaluation|pretrain|pretraining|finetune|finetuning|warmup|scheduler|ema)[._]",
    re.IGNORECASE,
)
# All lines of a file whose suffix is unknown: [section], lr=0.1, comments and empty ones.
_INI = re.compile(r"(?:[ \t]*(?:[#;].*|\[[^\[\]\n]+\][ \t]*|[\w.-]+[ \t]*=.*)?\r?(?:\n|\Z))*")
_ANCHOR = re.compile(r"&\S+\s+")
# A string, or what YAML does not allow in JSON: a comment and a tab. Many programs drop comments before they parse a file.
_OF_JSON = re.compile(r'"(?:[^"\\\n]|\\.)*"|(?P<blank>//[^\n]*|/\*.*?(?:\*/|\Z)|\t)', re.DOTALL)
_MERGE = "tag:yaml.org,2002:merge"
_EXPONENT = re.compile(r"[-+]?\d+(?:\.\d*)?[eE][-+]?\d+")
# A section or a value in TOML, INI or gin: [[runs]], [model], lr = 0.1  # comment
_LINE = re.compile(
    r"^[ \t]*(?:(?P<array>\[\[).*|\[(?P<section>[^\[\]\n]+)\].*|(?P<name>[\w.\"'-][^=:#;\n\[]*?)[ \t]*[=:][ \t]*"
    r"(?P<value>\"(?:[^\"\\\n]|\\.)*\"|'[^'\n]*'|\[[^\[\]\n]*\]|[^\s#;\[{\"'](?:[^#;\n]*[^#;\s])?)[ \t]*(?:[#;].*)?)\r?$",
    re.MULTILINE,
)


Span = tuple[int, int]  # indices in a text: of the first character of a value, and of the one after its last


def spans(text: str, name: str) -> dict[str, Span]:
    """Return the position of each value that is not a mapping, by its dotted name: `model.lr`.

    The format is that of the file's `name`, see `_suffix`.

    Raises:
        ValueError: The text is not one document of its format, has none, or is nested too deeply.
    """
    return dict(named_spans(text, name))  # of several positions of one name, the last one counts


def named_spans(text: str, name: str) -> list[tuple[str, Span]]:
    """Return the name and the position of each value, as `spans` does. In code, a name may have several positions.

    Raises:
        ValueError: See `spans`.
    """
    return _named_spans(text, _suffix(text, name))


def _suffix(text: str, name: str) -> str:
    """Return the suffix of a file's name if it says a format, or else that of the format in which its text has values.

    Raises:
        ValueError: The suffix says no format, and the text has no values in one.
    """
    if suffix := next(filter(name.endswith, SUFFIXES), ""):
        return suffix
    candidates = [".toml", ".json" if text.lstrip().startswith("{") else ".yaml"]
    if _INI.fullmatch(text):
        candidates.insert(1, ".ini")
    for suffix in candidates:
        with contextlib.suppress(ValueError):  # the text is not of this format
            if _named_spans(text, suffix):
                return suffix
    raise ValueError("it is neither YAML, JSON nor TOML, and its lines are not all NAME = VALUE")


def _named_spans(text: str, suffix: str) -> list[tuple[str, Span]]:
    """Return the name and the position of each value in the format of a suffix, see `spans`.

    In code, a name may have several positions.

    Raises:
        ValueError: See `spans`.
    """
    try:
        if suffix == _PYTHON:
            return list(_python_spans(text))
        if suffix in SHELLS:
            numbers = _matches_by_name(_NUMBER_OF_NAME, text)
            words = _matches_by_name(_WORD_OF_NAME, text)
            words_without_number = {key: matches for key, matches in words.items() if key not in numbers}
            return [*_unambiguous(numbers), *_unambiguous(words_without_number)]
        if suffix in _PROGRAMS:
            code = "" if _READS_ARGUMENTS.search(text) else _NO_CODE.sub(lambda match: _blank(match[0]), text)
            return _unambiguous(_matches_by_name(_NUMBER_IN_PROGRAM, code))
        if suffix == ".toml":
            data = tomllib.loads(text)
            # A line of a multi-line string may look like a value, but the file has no such key.
            return [(key, span) for key, span in _line_spans(text).items() if _has_key(data, key)]
        if suffix in _LINE_SUFFIXES:
            return list(_line_spans(text).items())
        text = _as_yaml(text, suffix)
        node = yaml.compose(text, yaml.SafeLoader)
        if not isinstance(node, yaml.MappingNode):
            return []
        span_by_name = dict(_yaml_spans(node, prefix="", text=text, visited=set()))  # the last of equal keys counts
        return list(span_by_name.items())
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error
    except SyntaxError as error:
        raise ValueError(f"it is not Python: {error.msg}") from error
    except (RecursionError, MemoryError) as error:
        raise ValueError("it is nested too deeply") from error


def _as_yaml(text: str, suffix: str) -> str:
    """Return a text with spaces in place of comments and tabs of JSON, which YAML refuses. Positions stay the same."""
    if suffix != ".json":
        return text
    # `_OF_JSON` also matches strings, which stay as they are: "http://…" has no comment.
    return _OF_JSON.sub(lambda match: _blank(match[0]) if match["blank"] else match[0], text)


def _blank(text: str) -> str:
    """Return spaces in place of a text, with its line breaks."""
    return re.sub(r"[^\n]", " ", text)


def named_numbers(text: str) -> Iterator[tuple[str, Span]]:
    """Yield the name and the position of each number in a command line or a shell script, except in comments.

    The name is that of the option (`--lr 0.1`), the variable (`LR=0.1`) or the key (`train.lr=0.1`, `{"lr": 0.1}`) before
    the number. A name with several different numbers is left out, as no single value can replace them. One that has the
    same number several times is yielded for each position.
    """
    yield from _unambiguous(_matches_by_name(_NUMBER_OF_NAME, text))


def _matches_by_name(pattern: re.Pattern[str], text: str) -> dict[str, list[re.Match[str]]]:
    """Return each name that a pattern finds in a shell script, with its matches, except in comments."""
    matches_by_name: dict[str, list[re.Match[str]]] = {}
    for match in pattern.finditer(text):
        before_value = text[: match.start("value")].rpartition("\n")[2]  # in its line
        is_comment = before_value.lstrip().startswith("#") and not match.groupdict().get("macro")  # of #define
        is_echoed = _ECHO.fullmatch(before_value) and not _REDIRECTED.match(text, match.end())  # echo "lr=0.1"
        if not (is_comment or (is_echoed and match.groupdict().get("key"))):
            # Each notation, such as --lr 0.1 and LR=0.1, has its own group for the name.
            name = next(part for group, part in match.groupdict().items() if part and group not in ("value", "quote"))
            matches_by_name.setdefault(name, []).append(match)
    return matches_by_name


def _unambiguous(matches_by_name: Mapping[str, Sequence[re.Match[str]]]) -> list[tuple[str, Span]]:
    """Return the name and the position of each value whose name has no other value, in the order of the text."""
    unambiguous: list[tuple[str, Span]] = []
    for name, matches in matches_by_name.items():
        is_same_everywhere = len({match["value"] for match in matches}) == 1
        if is_same_everywhere:
            unambiguous += [(name, match.span("value")) for match in matches]
    return sorted(unambiguous, key=lambda name_and_span: name_and_span[1])


def overriding_flags(words: Iterable[str], keys: Collection[str]) -> dict[str, str]:
    """Return the keys of a settings file that the words of a command override, each with its flag, or `lr=` of lr=0.1."""
    flag_by_key: dict[str, str] = {}
    for match in _SETS.finditer(" ".join(words)):
        if key := overridden_key((match["flag"] or match["key"]).lstrip("-"), keys):
            flag_by_key[key] = match[0]
    return flag_by_key


def overridden_key(name: str, keys: Collection[str]) -> str:
    """Return the key of a settings file that an argument of a command overrides; "" if there is none.

    `--lr` overrides `train.lr`, unless another section has an `lr`, too, or the section is usually one of several, as in
    `actor.lr`. Only `--actor-lr` overrides that. `_`, `-` and `.` in a name are the same. `--config.lr` is like `--lr`.
    """
    without_config = _OF_CONFIG.sub("", name)
    if without_config != name and name not in keys:
        return overridden_key(without_config, keys)
    name = name.replace("-", "_").replace(".", "_")
    parts_by_key = {key: key.replace("-", "_").split(".") for key in keys}
    for key, parts in parts_by_key.items():
        # The whole key, or two or more of its last parts, which are hardly ambiguous: `optim.adam.lr` by --adam-lr.
        longer_endings = ["_".join(parts[index:]) for index in range(1, len(parts) - 1)]
        if name in ("_".join(parts), *longer_endings):
            return key
    same_last_part = [key for key, parts in parts_by_key.items() if parts[-1] == name]
    if len(same_last_part) != 1:
        return ""
    section = same_last_part[0].rpartition(".")[0]
    return "" if _ONE_OF_SEVERAL.search(f"{section}.") else same_last_part[0]


def may_mean(name: str, key: str) -> bool:
    """Return whether a name may mean a key, in another spelling or without the beginning of it: `LR` for `train.lr`."""
    return f".{normalized(key)}".endswith(f".{normalized(name)}")


def normalized(name: str) -> str:
    """Return what all spellings of a name share.

    `learning_rate` for `learning-rate`, as tyro does, `model` for `MODEL`, and `width` for `self.width`.
    """
    return name.replace("-", "_").lower().removeprefix("self.")


def values(text: str, name: str) -> dict[str, Any]:
    """Return the values of a file that are not mappings, by their dotted names.

    The format is that of the file's `name`, see `_suffix`.

    Raises:
        ValueError: The text is not one document of its format, has none, or is nested too deeply.
    """
    value_by_name: dict[str, Any] = {}
    suffix = _suffix(text, name)
    text = _as_yaml(text, suffix)
    for key, (start, end) in spans(text, suffix).items():
        value_text = text[start:end]
        try:
            # In parentheses, a text may continue in further lines, as it does between those of the file.
            value = ast.literal_eval(f"({value_text})") if suffix == _PYTHON else yaml.safe_load(value_text)
        except (yaml.YAMLError, ValueError):  # INI allows any text
            value = value_text
        if isinstance(value, str) and _EXPONENT.fullmatch(value_text):
            value = float(value)  # PyYAML, which follows YAML 1.1, reads 1e-3 as a text
        if suffix in SHELLS and not re.fullmatch(NUMBER, value_text):
            value = value_text.strip("\"'")  # in a shell, words such as yes and null are texts
        value_by_name[key] = value
    return value_by_name


def replace_values(text: str, params: Mapping[str, Any], name: str) -> str:
    """Return the text of a file with new values, by dotted names. Names that the file does not have are ignored.

    The format is that of the file's `name`, see `_suffix`.

    Raises:
        ValueError: The text is not one document of its format, has none, or is nested too deeply.
    """
    suffix = _suffix(text, name)
    # From the end, so that a replaced value does not move the positions of the others.
    from_end = sorted(((span, key) for key, span in _named_spans(text, suffix) if key in params), reverse=True)
    for (start, end), key in from_end:
        space = " " if text[:start].endswith(":") else ""  # for YAML, where a list below its key becomes `sizes: [1, 2]`
        new_text = _new_text(params[key], suffix, old=text[start:end], before=text[:start])
        text = f"{text[:start]}{space}{new_text}{text[end:]}"
    return text


def _new_text(value: Any, suffix: str, old: str, before: str) -> str:
    """Return a value in the notation of a settings file.

    Args:
        value: The value.
        suffix: Suffix of `SUFFIXES`, which says the format.
        old: Text of the value that it replaces.
        before: Text of the file before that.
    """
    if suffix in SHELLS:
        return _shell_text(value, old, before)
    if suffix in (".ini", ".cfg", ".conf"):
        return _quoted_as(old, _ini_text(value))
    if suffix in (_PYTHON, ".gin", *_PROGRAMS):
        return repr(value)
    return _toml_text(value) if suffix == ".toml" else _yaml_text(value)


def _has_key(data: Any, key: str) -> bool:
    """Whether nested mappings have a value with this dotted name."""
    name, _, rest = key.partition(".")
    return isinstance(data, dict) and name in data and (not rest or _has_key(data[name], rest))


def _line_spans(text: str) -> dict[str, Span]:
    """Return the position of each value in TOML, INI or gin, except in arrays of tables, by its dotted name.

    Of several values with the same name, the last one counts.
    """
    span_by_name: dict[str, Span] = {}
    section: str | None = ""  # with a dot at its end; None in an array of tables
    for match in _LINE.finditer(text):
        if match["name"] is None:  # the line of a section
            section = None if match["array"] else f"{match['section'].strip()}."
        elif section is not None:
            span_by_name[section + match["name"].strip("\"'")] = match.span("value")
    return span_by_name


def _python_spans(text: str) -> Iterator[tuple[str, Span]]:
    """Yield the name and the position of each value of a Python module that is written as a literal; see `arguments.spots`.

    The other positions of a name come before that of its value.
    """
    lines = list(io.StringIO(text, newline=""))  # as Python's: without those that only `splitlines` ends, as at a form feed
    starts = [0, *itertools.accumulate(map(len, lines))]  # index of the first character of each line

    def position(line: int, column: int) -> int:
        """Return the index of a character in the text, from its line and column in ast, which counts columns in bytes."""
        return starts[line - 1] + len(lines[line - 1].encode()[:column].decode())

    for name, spot in arguments.spots(notebook.parse(text)).items():
        positions = (*spot.others, spot)
        if any(position.is_chained for position in positions):  # the text of width = depth = 3 has one value for both
            continue
        for node in (position.value for position in positions):
            is_literal = isinstance(node, (ast.Constant, ast.UnaryOp, ast.List, ast.Tuple))
            if is_literal and node is not None and node.end_lineno and node.end_col_offset:
                yield name, (position(node.lineno, node.col_offset), position(node.end_lineno, node.end_col_offset))


def _yaml_spans(node: yaml.MappingNode, prefix: str, text: str, visited: set[int]) -> Iterator[tuple[str, Span]]:
    """Yield the dotted name and the position of each value in YAML or JSON that is not a mapping.

    In a list of mappings, these have their index as name: `layers.0.dropout`. Other lists are values.

    An alias (`*name`) is left out: it refers to a value elsewhere, and has no text that could be replaced.

    Args:
        node: A mapping.
        prefix: Dotted name of the mapping, with a dot at its end. "" for the whole file.
        text: Text of the whole file.
        visited: Ids of the nodes that were yielded so far, which is changed. The node of an alias is among them.
    """
    for key, value in node.value:
        is_alias = id(value) in visited
        if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE or is_alias:  # a merge (`<<`) refers elsewhere, too
            continue
        visited.add(id(value))
        name = f"{prefix}{key.value}"
        if _has_items(value):  # an empty mapping, {}, is a value
            yield from _yaml_spans(value, prefix=f"{name}.", text=text, visited=visited)
            continue
        if isinstance(value, yaml.SequenceNode) and value.value and all(map(_has_items, value.value)):
            for index, item in enumerate(value.value):
                yield from _yaml_spans(item, prefix=f"{name}.{index}.", text=text, visited=visited)
            continue
        start, end = value.start_mark.index, value.end_mark.index
        if isinstance(value, yaml.SequenceNode) and not value.flow_style:
            # A list below its key, which may have the same indentation, is replaced by one in brackets after the colon.
            start = text.index(":", key.end_mark.index) + 1
        elif (anchor := _ANCHOR.match(text, start)) is not None:
            start = anchor.end()  # keep the anchor, which aliases need
        # PyYAML's end of a list below its key or of a text in several lines includes the line breaks after it.
        yield name, (start, start + len(text[start:end].rstrip()))


def _has_items(node: yaml.Node) -> bool:
    """Return whether a node is a mapping that is not empty."""
    return isinstance(node, yaml.MappingNode) and bool(node.value)


def _yaml_text(value: Any) -> str:
    """Return a value in a notation that is valid in YAML 1.1 and JSON."""
    if isinstance(value, float):
        if math.isnan(value):
            return ".nan"
        if math.isinf(value):
            return ".inf" if value > 0 else "-.inf"
        # YAML 1.1 reads 1e-05 as a text, and 1.0e-05 as a number.
        mantissa, exponent, power = repr(value).partition("e")
        return f"{mantissa}.0e{power}" if exponent and "." not in mantissa else repr(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_yaml_text, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(str(name))}: {_yaml_text(item)}' for name, item in value.items())}}}"
    return json.dumps(value, ensure_ascii=False)


def _toml_text(value: Any) -> str:
    """Return a value in the notation of TOML, which differs from `_yaml_text` in infinity and NaN."""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_toml_text, value))}]"
    text = _yaml_text(value)
    return text.replace(".inf", "inf").replace(".nan", "nan") if isinstance(value, float) else text


def _ini_text(value: Any) -> str:
    """Return a value as text for configparser. The items of a list are separated by commas."""
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _quoted_as(old: str, new: str) -> str:
    """Return a new value of INI in the old one's quotes, which some programs evaluate; unchanged if it has them itself."""
    quote = old[0] if len(old) > 1 and old[0] == old[-1] and old[0] in "\"'" else ""
    return new if quote and quote in new else f"{quote}{new}{quote}"


def _shell_text(value: Any, old: str, before: str) -> str:
    """Return a value for a shell script, as one word, with quotes if it needs them.

    Args:
        value: The new value.
        old: Text of the old one. A new boolean is written as True, TRUE or true, as the old text is.
        before: Text before it. If it ends with a quote, the value is between quotes that stay.
    """
    if before.rstrip().endswith(":"):  # "lr": 0.1 in JSON
        return _yaml_text(value)
    text = _ini_text(value)
    if isinstance(value, bool) and not old.strip("\"'").istitle():
        text = text.upper() if old.isupper() else text.lower()
    if before.endswith("'"):
        return text.replace("'", "'\\''")
    if before.endswith('"'):
        return re.sub(r'(["$`\\])', r"\\\1", text)  # with a backslash before what is special in double quotes
    return shlex.quote(text)
