"""Types of the values in a job file, such as durations and amounts of memory.

Each is an annotated type for pydantic, whose validator also accepts short forms and whose errors say what to write.
"""

from __future__ import annotations

import math
import re
from collections.abc import Container
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, FiniteFloat, PlainValidator, WithJsonSchema

from trialplane.errors import FieldPath, Issue
from trialplane.job import models, program
from trialplane.job.numeric import is_number

FUNCTION = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*"
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_LONGEST_FOREIGN = 200  # characters of another tool's name that are kept; MLflow allows 250 in a name
_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)([smhd]))")  # one part of it: a number and a unit
_CORES = re.compile(r"0*[1-9]\d*(?:\.\d+)?m?|0+\.\d{0,2}[1-9]\d*")  # at least a thousandth of a core
_QUANTITY = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,20})?)([kMGT]i?|Ki)?")


def _parse_duration(value: Any) -> Any:
    """Return the seconds of a duration that is a text such as 1h30m. Numbers are returned unchanged.

    Raises:
        ValueError: The value is a text that is not a duration, or a boolean.
    """
    if isinstance(value, str):
        text = value.replace(" ", "")
        parts = _DURATION.findall(text)
        if not parts or "".join(number + unit for number, unit in parts) != text:
            raise ValueError(f"{value!r} is not a duration; write seconds (90) or 90s, 30m, 2h, 1h30m")
        return sum(float(number) * _UNITS[unit] for number, unit in parts)
    if isinstance(value, bool):
        raise ValueError("write seconds (90) or 90s, 30m, 2h, 1h30m")
    return value


def _parse_quantity(value: Any) -> str:
    """Return an amount of memory, a text or a number of bytes, as text.

    Raises:
        ValueError: The value is not an amount of memory, or is 0.
    """
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(text, str) or not _QUANTITY.fullmatch(text):
        raise ValueError(f"{repr(value)[:40]} is not an amount of memory; write 512Mi, 2Gi or bytes")
    if bytes_of(text) < 1:
        raise ValueError("must be more than 0")
    return text


def cores(value: Any) -> int | float | None:
    """Return the number of cores for an amount of CPU in Kubernetes' syntax: 2, 0.5, "500m". None if it is not an amount."""
    if isinstance(value, str) and _CORES.fullmatch(value):
        amount = float(value.removesuffix("m")) / (1000 if value.endswith("m") else 1)
    elif is_number(value):
        amount = value
    else:
        return None
    if not 0.001 <= amount <= LARGEST:  # Kubernetes counts CPU in thousandths of a core
        return None
    return int(amount) if amount == int(amount) else round(amount, 3)


def _parse_gpus(value: Any) -> int | float:
    """Return a number of GPUs: a whole number as `int`, a share of one GPU unchanged.

    Raises:
        ValueError: The value is neither.
    """
    if not is_number(value):
        raise ValueError(f"{repr(value)[:40]} is not a number of GPUs; write 1, or a share of one: 0.5")
    is_whole = isinstance(value, int) or value.is_integer()
    if not is_whole and not 0.01 <= value < 1:
        raise ValueError(f"{value} is neither a whole number nor a share of one GPU; write 1, 2 or 0.5")
    return int(value) if is_whole else value


def leads_outside(path: str) -> bool:
    """Whether a path that should be relative to a folder is absolute, or could lead out of the folder."""
    return path.startswith("/") or ".." in path.split("/")


def expand_user(path: str) -> Path:
    """Return a path with the user's folder in place of `~`. Unchanged if it begins with the name of no user: `~nobody`."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def _parse_requirements_path(value: Any) -> Any:
    """Return the path of a requirements file without ./ at its start. A value that is not a text is returned unchanged.

    Raises:
        ValueError: It is not the path of a file in the job's folder, or begins with -.
    """
    if not isinstance(value, str):
        return value
    name = value.removeprefix("./")
    if leads_outside(value) or not name:
        raise ValueError(f"{value!r} is not a file of the job's folder; write requirements: requirements.txt")
    if name.startswith("-"):
        raise ValueError(f"{value!r} begins with -, as options do; give the file another name")
    return name


def _parse_cores(value: Any) -> int | float:
    """Return the number of cores for an amount of CPU, as `cores` does.

    Raises:
        ValueError: The value is not an amount of CPU.
    """
    amount = cores(value)
    if amount is None:
        raise ValueError(f"{repr(value)[:40]} is not an amount of CPU; write 2, 0.5 or 500m")
    return amount


def bytes_of(quantity: str) -> int:
    """Return the number of bytes in a Kubernetes quantity such as 2Gi.

    Raises:
        ValueError: The text is not a quantity.
    """
    match = _QUANTITY.fullmatch(quantity)
    if match is None:
        raise ValueError(f"{quantity!r} is not an amount of memory; write 512Mi, 2Gi or bytes")
    return int(float(match[1]) * _BYTES[match[2] or ""])


def multiply(quantity: Any, factor: float) -> str | None:
    """Return a Kubernetes quantity times a factor, in the same unit. None if it is not a quantity."""
    match = _QUANTITY.fullmatch(str(quantity))
    return None if match is None else f"{float(match[1]) * factor:.3f}".rstrip("0").rstrip(".") + (match[2] or "")


def parameter_name(foreign_name: str, taken: Container[str]) -> str:
    """Return a valid name for a parameter that has another name in another tool.

    Args:
        foreign_name: Name in that tool. Characters that a job does not allow are replaced by _.
        taken: Names that are in use. _ is added to the name until it is not one of them.
    """
    name = foreign_name[:_LONGEST_FOREIGN]
    if not re.fullmatch(NAME, name):
        name = re.sub(r"[^A-Za-z0-9_-]", "_", name)
    name = name if re.fullmatch(NAME, name) else f"_{name}"  # it may begin with a digit, or be empty
    while name in taken:
        name += "_"
    return name


def _check_json(value: Any) -> Any:
    """Return a value unchanged if JSON can represent it.

    Raises:
        PydanticCustomError: A part of it is a date, a set, NaN or an infinity, a key that is not a string, or an integer
            with more than 64 bits.
    """
    issues: list[Issue] = []

    def walk(item: Any, path: FieldPath) -> None:
        """Add the issues of a part of the value, and of all parts of this part."""
        if isinstance(item, dict):
            for key, child in item.items():
                if isinstance(key, str):
                    walk(child, (*path, key))
                else:
                    issues.append(Issue(path, f"the key {key!r} must be a string; put it in quotes"))
        elif isinstance(item, (list, tuple)):
            for index, child in enumerate(item):
                walk(child, (*path, index))
        elif isinstance(item, float) and not math.isfinite(item):
            issues.append(Issue(path, f"{item} is not a number that can be written down"))
        elif isinstance(item, int) and not -_INT64_LIMIT <= item < _INT64_LIMIT:
            issues.append(Issue(path, "has more than 64 bits, which no array or database takes; put it in quotes"))
        elif item is not None and not isinstance(item, (str, int, float, bool)):
            issues.append(Issue(path, f"a {type(item).__name__} is not allowed in a job; put it in quotes"))

    walk(value, ())
    models.refuse(issues)
    return value


def _without_tuples(value: Any) -> Any:
    """Return a value with lists instead of tuples, so that it equals its JSON round trip."""
    if isinstance(value, dict):
        return {key: _without_tuples(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_tuples(item) for item in value]
    return value


def _parse_interval(value: Any) -> Any:
    """Return `true` as the default interval and `false` as none. Other values are returned unchanged, for pydantic."""
    if isinstance(value, bool):
        return _DEFAULT_INTERVAL if value else None
    return value


_DEFAULT_INTERVAL = 10.0  # seconds between samples of system metrics, as in MLflow
_SHORTEST_INTERVAL = 0.1  # because a sample reads the files of all processes of the machine
_INT64_LIMIT = 2**63  # the smallest positive number that does not fit into 64 bits with a sign
LARGEST = 2**53  # Optuna keeps whole numbers as floats, which are exact up to here
# An integer without a lower bound, because a field could not set a lower one than that of the type.
Integer = Annotated[int, Field(strict=True, le=LARGEST)]
Bound = Annotated[int, Field(strict=True, ge=-LARGEST, le=LARGEST)]
Number = Annotated[FiniteFloat, Field(strict=True)]
_DURATION_TEXT = {"type": "string", "pattern": r"^\s*(\d+(\.\d+)?\s*[smhd]\s*)+$"}
Duration = Annotated[
    float,
    BeforeValidator(_parse_duration),
    Field(gt=0, allow_inf_nan=False),
    WithJsonSchema({"anyOf": [{"type": "number", "exclusiveMinimum": 0}, _DURATION_TEXT]}),
]
# Time between two samples of system metrics: a duration, true for the default, or false for no samples.
SamplingInterval = Annotated[
    Annotated[Duration, Field(ge=_SHORTEST_INTERVAL)] | None,
    BeforeValidator(_parse_interval),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "boolean"},
                {"type": "number", "minimum": _SHORTEST_INTERVAL},
                _DURATION_TEXT,
                {"type": "null"},
            ]
        }
    ),
]
RequirementsFile = Annotated[
    str, BeforeValidator(_parse_requirements_path), WithJsonSchema({"type": "string", "pattern": "^[^/-]"})
]
# Number of CPU cores. Whole numbers are of type `int`.
Cores = Annotated[
    int | float,
    PlainValidator(_parse_cores),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "minimum": 0.001, "maximum": LARGEST},
                {"type": "string", "pattern": rf"^(?:{_CORES.pattern})$"},
            ]
        }
    ),
]
# Number of GPUs, or a share of one. Whole numbers are of type `int`.
Gpus = Annotated[
    int | float,
    BeforeValidator(_parse_gpus),
    Field(le=LARGEST),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 0, "maximum": LARGEST},
                {"type": "number", "minimum": 0.01, "exclusiveMaximum": 1},
            ]
        }
    ),
]
Quantity = Annotated[
    str,
    BeforeValidator(_parse_quantity),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1},
                {"type": "string", "pattern": rf"^{_QUANTITY.pattern}$"},
            ]
        }
    ),
]
Plain = Annotated[Any, BeforeValidator(lambda value: _without_tuples(_check_json(value)))]
# Name of a parameter. Keys of a configuration have dots, slashes and colons. + and ++ add a key in Hydra's grammar.
NAME = r"\+{0,2}[A-Za-z_][A-Za-z0-9_-]*(?:[./:][A-Za-z0-9_-]+)*"
Name = Annotated[str, Field(pattern=f"^{NAME}$")]
Function = Annotated[str, Field(pattern=f"^{FUNCTION}$")]
Entrypoint = Annotated[str, Field(pattern=f"^(?:(?:{'|'.join(program.STYLES)}):)?{FUNCTION}$")]
