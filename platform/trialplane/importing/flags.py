"""The defaults of the arguments that a Python file declares with argparse, from its text."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence


def defaults(calls: Sequence[ast.Call]) -> Iterator[tuple[str, ast.expr]]:
    """Yield the name and the default of each argument with a default, in the order of the calls that declare them."""
    for call in calls:
        is_declaration = ast.unparse(call.func).rpartition(".")[2] == "add_argument"
        if is_declaration and call.args and isinstance(call.args[0], ast.Constant):
            keywords = {word.arg: word.value for word in call.keywords}
            action = ast.unparse(keywords["action"]).strip("'") if "action" in keywords else ""
            switch_default = ast.Constant(action == "store_false") if action in ("store_true", "store_false") else None
            names = [str(argument.value) for argument in call.args if isinstance(argument, ast.Constant)]
            long_name = next((name for name in names if name.startswith("--")), names[0])
            if default := keywords.get("default", switch_default):
                yield long_name.lstrip("-").replace("-", "_"), ast.copy_location(default, call)
