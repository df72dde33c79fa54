"""Statements of a script that merge `sys.argv[1:]` into a configuration by a function of the script's own."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import inspect
import itertools
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any

from trialplane.wire.declared import Option
from trialplane.worker.setup.declaring.configurations import MOST_LEAVES, is_own_file, object_leaves
from trialplane.worker.setup.declaring.declarations import Declarations, key_option

# Text of a function that reads words of the command line: as `LR 0.1`, as `--lr=0.1`, or as `lr=0.1`.
_READS_PAIRS = re.compile(r"merge_from_list|\[[01]?::2\]")
_READS_FLAGS = re.compile(r"""["']--?["']""")
_READS_ASSIGNMENTS = re.compile(r"""(?:split|partition)\(["']=["']""")


class CommandLine(list[str]):
    """`sys.argv`, which calls a function with the frame that takes a slice of it."""

    def __init__(self, words: Iterable[str], on_slice: Callable[[FrameType], None]) -> None:
        super().__init__(words)
        self._on_slice = on_slice

    def __reduce__(self) -> Any:
        """Pickle as a list: a process that the script spawns gets it, and has another `__main__`."""
        return list, (list(self),)

    def __getitem__(self, index: Any) -> Any:
        """Return a word or several."""
        if isinstance(index, slice):
            self._on_slice(sys._getframe(1))
        return super().__getitem__(index)


def watch_merge(declarations: Declarations, frame: FrameType) -> None:
    """If a statement of the script passes `sys.argv[1:]` to a function, end after it with the configuration it fills.

    The configuration is the function's result, one of its arguments, or the object that has it as a method. Without
    one, or if the form of the words is unknown, the script continues.

    Args:
        declarations: Declarations to add to.
        frame: Frame that takes the slice `sys.argv[1:]`.
    """
    merge = _merge_at(frame)
    if merge is None:
        return

    def trace_to_end(traced: FrameType, event: str, result: Any) -> Any:
        """End after the statement. Python calls this for each line and event of the frame, see `sys.settrace`."""
        is_in_statement = merge.first_line <= traced.f_lineno <= merge.last_line
        has_ended = event == "return" or not is_in_statement
        if event == "exception" or not has_ended:
            return trace_to_end  # for the next event
        sys.settrace(None)
        traced.f_trace = None
        configs = [_value_of(node, traced) for node in merge.configs]
        if merge.is_returned and event == "return":
            configs.append(result)
        _end_at_merge(declarations, merge, configs)
        return None

    sys.settrace(lambda *event: None)  # without a global function, that of the frame is not called
    frame.f_trace = trace_to_end


def _end_at_merge(declarations: Declarations, merge: _Merge, configs: Iterable[Any]) -> None:
    """Add an option for each plain value of the largest configuration, and end. Return if there is none."""
    leaves_of_each = [list(itertools.islice(object_leaves(config), MOST_LEAVES)) for config in configs]
    for name, value in max(leaves_of_each, key=len, default=[]):
        default = declarations.plain_default(value, None)
        if default is not None:
            declarations.options.append(merge.option(name, default))
    if declarations.options:
        declarations.takes_pairs = merge.form == "pairs"
        declarations.takes_overrides = merge.form == "assignments"
        declarations.end()


@dataclasses.dataclass(frozen=True)
class _Merge:
    """A statement of a script that merges words of the command line into a configuration.

    Attributes:
        first_line: First line of the statement.
        last_line: Last line of the statement.
        configs: Expressions that may be the configuration after the statement.
        is_returned: Whether the statement returns the configuration.
        form: Form of the words: "pairs" (`LR 0.1`), "flags" (`--lr=0.1`) or "assignments" (`lr=0.1`).
    """

    first_line: int
    last_line: int
    configs: tuple[ast.expr, ...]
    is_returned: bool
    form: str

    def option(self, name: str, value: Any) -> Option:
        """Return the option for a value of the configuration."""
        option = key_option(name, value)
        lists = "literal" if isinstance(value, list) else ""
        return dataclasses.replace(option, flag=f"--{name}" if self.form == "flags" else name, lists=lists)


def _merge_at(frame: FrameType) -> _Merge | None:
    """Return the statement that a frame runs, if it is the script's own and passes a slice of `sys.argv` to a function.

    Return None for another statement, and if it is unknown in which form the function reads words.
    """
    file = Path(frame.f_code.co_filename)
    if not is_own_file(file):
        return None
    slice_position = list(frame.f_code.co_positions())[frame.f_lasti // 2]  # one position for each instruction of 2 bytes
    text = file.read_text(encoding="utf-8", errors="replace")
    for statement in ast.walk(ast.parse(text)):
        if not isinstance(statement, (ast.Expr, ast.Assign, ast.AnnAssign, ast.Return)):
            continue
        for call in ast.walk(statement):
            if isinstance(call, ast.Call) and slice_position in map(_position, _call_arguments(call)):
                form = _form_of_words(_value_of(call.func, frame), text)
                return _merge_of(statement, call, form) if form else None
    return None


def _merge_of(statement: ast.stmt, call: ast.Call, form: str) -> _Merge:
    """Return the description of a statement that merges words of the command line into a configuration.

    The configuration may be what the statement assigns to, the object whose method is called, or an argument.
    """
    configs = _call_arguments(call)
    if isinstance(call.func, ast.Attribute):
        configs.insert(0, call.func.value)
    if isinstance(statement, ast.Assign):
        configs = [*statement.targets, *configs]
    elif isinstance(statement, ast.AnnAssign):
        configs = [statement.target, *configs]
    last_line = statement.end_lineno or statement.lineno
    return _Merge(statement.lineno, last_line, tuple(configs), is_returned=isinstance(statement, ast.Return), form=form)


def _call_arguments(call: ast.Call) -> list[ast.expr]:
    """Return the arguments of a call, with and without names."""
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def _position(node: ast.expr) -> tuple[int | None, int | None, int | None, int | None]:
    """Return the position of an expression in its file, in the form of `co_positions`."""
    return node.lineno, node.end_lineno, node.col_offset, node.end_col_offset


def _form_of_words(function: Any, text: str) -> str:
    """Return the form of words that a function reads (`_Merge.form`), by what its text splits; "" if it is unknown.

    Args:
        function: The function, or a class; None if it is unknown.
        text: Text of the script, which decides if the function is unknown.
    """
    with contextlib.suppress(OSError, TypeError):
        text = inspect.getsource(function)
    if _READS_PAIRS.search(text):
        return "pairs"
    if not _READS_ASSIGNMENTS.search(text):
        return ""
    return "flags" if _READS_FLAGS.search(text) else "assignments"


def _value_of(node: ast.expr, frame: FrameType) -> Any:
    """Return the value of a name with attributes in a frame; None for another expression, or without such a value."""
    if isinstance(node, ast.Name):
        return frame.f_locals.get(node.id, frame.f_globals.get(node.id))
    return getattr(_value_of(node.value, frame), node.attr, None) if isinstance(node, ast.Attribute) else None
