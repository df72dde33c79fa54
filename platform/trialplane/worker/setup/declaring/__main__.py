"""Entry point: runs a script up to the parser that reads its arguments; see the package."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from trialplane.training import process
from trialplane.worker.setup.declaring import argparse_parsers, click_commands, merges, other_parsers
from trialplane.worker.setup.declaring.declarations import Declarations

_FUNCTIONS = ("main", "cli", "app", "run", "train")  # entry points of packages


def main() -> None:
    """Run the script up to its parser, and write the declared arguments."""
    script, file = Path(sys.argv[1]).resolve(), Path(sys.argv[2])
    module = sys.argv[3] if len(sys.argv) > 3 else ""
    process.end_with_parent()
    words = [str(script), *sys.argv[4:]]
    sys.argv = words
    sys.path.insert(0, str(Path.cwd() if module else script.parent))
    declarations = Declarations(script, file)
    argparse_parsers.watch(declarations, calls_parse_args="parse_args(" in script.read_text(errors="replace"))
    click_commands.watch(declarations)
    other_parsers.watch(declarations)
    sys.argv = merges.CommandLine(words, lambda frame: merges.watch_merge(declarations, frame))
    try:
        _run(script, module, declarations)
    except SystemExit as error:
        declarations.fail(f"it exited with {error.code!r} before that")
    except BaseException as error:  # noqa: BLE001  the script's error is the result
        declarations.fail(f"{type(error).__name__}: {error}")
    declarations.end("it ended without reading any")


def _run(script: Path, module: str, declarations: Declarations) -> None:
    """Run the script, and then the first of `_FUNCTIONS` that it defines, if it has ended without reading arguments.

    It is run as `module`, or as a file if that is "".
    """
    if module:
        script_globals = runpy.run_module(module, run_name="__main__", alter_sys=True)
    else:
        script_globals = runpy.run_path(str(script), run_name="__main__")
    for name in _FUNCTIONS:
        if callable(script_globals.get(name)):
            declarations.function = name
            script_globals[name]()
            return


if __name__ == "__main__":
    main()
