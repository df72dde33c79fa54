"""The defaults of the arguments that a Python file declares with argparse, from its text."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence


def defaults(calls: Sequence[ast.Call]) -> Iterator[tuple[str, ast.expr]]:
    """Yield the name and the default of each declared argument with a default: `batch_size` for `--batch-size`.

    Args:
        calls: Calls in the file. Those of other functions than `add_argument` are ignored.
    """
    for call in calls:
        is_declaration = ast.unparse(call.func).rpartition(".")[2] == "add_argument"
        if not (is_declaration and call.args and isinstance(call.args[0], ast.Constant)):
            continue
        keywords = {word.arg: word.value for word in call.keywords}
        action = ast.unparse(keywords["action"]).strip("'") if "action" in keywords else ""
        default = keywords.get("default")
        if default is None and action in ("store_true", "store_false"):
            default = ast.Constant(action == "store_false")  # the opposite of what the switch stores
        if default is not None:
            names = [str(argument.value) for argument in call.args if isinstance(argument, ast.Constant)]
            long_name = next((name for name in names if name.startswith("--")), names[0])
            # A new constant has no line, and readers of the tree need one.
            yield long_name.lstrip("-").replace("-", "_"), ast.copy_location(default, call)
