"""Scripts and commands as trials: each is a function of the trial's context that runs the program unmodified.

A script runs in the trial's own process as `__main__`, so modules that the template has imported are loaded already. A
command is a child of that process. Their metrics are read by the slot (`metrics/`).
"""

from __future__ import annotations

import ast
import atexit
import compileall
import contextlib
import functools
import importlib.util
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trialplane import errors
from trialplane.job import arguments, notebook, settings
from trialplane.job.program import Program
from trialplane.training import mlflow_runs, process
from trialplane.wire import env, messages, records
from trialplane.worker import context, module_path
from trialplane.worker.channel import TrialChannel
from trialplane.worker.setup import usage
from trialplane.worker.shims import capture

_COPY = "code"  # copy of the job's code, in the scratch folder of a trial


class CommandFailed(Exception):
    """A command ended with an exit code over 0."""


def load(config: records.SlotConfig, program: Program) -> context.JobFunction:
    """Return the function that runs a program as one trial.

    A script is compiled here, and its third-party modules are imported, once for all trials of the template.

    Raises:
        SyntaxError: The script is not Python.
        OSError: The script cannot be read.
    """
    if not program.script:
        return Command(program).run
    code = Path(config.code)
    file = code / program.script
    text = file.read_bytes()
    source = notebook.parse(text, str(file)) if notebook.is_notebook(text) else text
    code_object = compile(source, str(file), "exec", dont_inherit=True)
    with contextlib.suppress(OSError):
        compileall.compile_dir(code, quiet=2)  # each trial copies the code, and with it the bytecode
    if not config.preload:
        preload(file, code)
    return Script(program, code_object, text).run


def preload(file: Path, code: Path) -> None:
    """Import the third-party modules that a script imports at its top, and those of the job's modules that it imports.

    An import that fails is ignored here: the script imports it again, and may handle the error. Imports after a line that
    sets an environment variable are left to the script too, because they may depend on the variable.

    Args:
        file: File of the script.
        code: Folder of the job's code.
    """
    visited: set[Path] = set()
    pending = [file]
    while pending:
        importing_file = pending.pop()
        visited.add(importing_file)
        for node in top_imports(importing_file):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            job_files = [job_file for name in names if (job_file := _job_file(name, [file.parent, code])) is not None]
            pending += [job_file for job_file in job_files if job_file not in visited]
            if not job_files:  # a third-party module: run the import statement alone
                statement = ast.Module(body=[node], type_ignores=[])
                with contextlib.suppress(BaseException):
                    statement_code = compile(statement, str(importing_file), "exec", dont_inherit=True)
                    exec(statement_code, {"__name__": "trialplane.preload"})


def top_imports(file: Path) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield the imports at the top of a file, also in `try`, up to a line that may set an environment variable."""
    try:
        statements: list[ast.stmt] = list(ast.parse(file.read_bytes()).body)
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return
    while statements:
        node = statements.pop(0)
        if isinstance(node, ast.Import):
            yield node
        elif isinstance(node, ast.ImportFrom):
            is_relative = node.level > 0
            if not is_relative and node.module != "__future__":
                yield node
        elif isinstance(node, ast.Try):
            statements = [*node.body, *statements]
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue  # its body may run later
        elif _sets_environment(node):
            return


def _sets_environment(node: ast.stmt) -> bool:
    """Return whether a statement may set an environment variable."""
    for child in ast.walk(node):
        if isinstance(child, ast.Subscript) and not isinstance(child.ctx, ast.Load):  # os.environ["X"] = "1"
            if _last_name(child.value) == "environ":
                return True
        elif isinstance(child, ast.Call):
            function = child.func
            if _last_name(function) in ("putenv", "unsetenv", "load_dotenv"):
                return True
            is_setter = _last_name(function) in ("setdefault", "update", "pop", "clear")  # os.environ.setdefault("X", "1")
            if is_setter and isinstance(function, ast.Attribute) and _last_name(function.value) == "environ":
                return True
    return False


def _last_name(node: ast.expr) -> str:
    """Return the last name of an expression: `environ` for `os.environ` and for `environ`; "" if it has none."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _job_file(name: str, folders: list[Path]) -> Path | None:
    """Return the file of a module of the job; None for other modules.

    For a package without `__init__.py` it is the package's folder, from which `top_imports` yields nothing.
    """
    for folder in folders:
        base = folder.joinpath(*name.split("."))
        for file in (base.with_suffix(".py"), base / "__init__.py"):
            if file.is_file():
                return file
        package = folder / name.partition(".")[0]
        if package.is_dir() and not _is_other_module(package):
            return package
    return None


def _is_other_module(folder: Path) -> bool:
    """Return whether the name of a folder, perhaps of data, means an installed module when it is imported: `datasets`."""
    spec = importlib.util.find_spec(folder.name)
    return spec is not None and folder not in map(Path, spec.submodule_search_locations or ())


class Script:
    """A Python file that runs as `__main__`."""

    def __init__(self, program: Program, code: types.CodeType, text: bytes) -> None:
        self._program = program
        self._code = code
        self._text = text

    def run(self, ctx: context.Context) -> context.Result:
        """Run the script in this process, and return no metrics, because the slot reads them.

        Raises:
            Invalid: The script refuses its arguments, or reads standard input.
            Any exception of the script.
        """
        _prepare(self._program, ctx)
        file = _code_folder(self._program, ctx) / self._program.script
        if any(source.source == "mlflow" for source in self._program.metrics):
            mlflow_runs.report_to(functools.partial(ctx.note, "mlflow"))
        code = self._code_with(ctx)
        main = self._enter_main(file, ctx)
        _allow_start_method()
        pid = os.getpid()
        try:
            exec(code, main.__dict__)
            _wait_for_workers(pid)
        except SystemExit as error:
            _wait_for_workers(pid)
            if error.code == usage.USAGE_ERROR and os.getpid() == pid:
                _check_arguments_accepted(self._program.script)
            raise
        except EOFError as error:
            if "reading a line" in str(error):
                raise context.Invalid(f"{self._program.script} read standard input, which is empty in a trial") from error
            raise
        finally:
            if os.getpid() != pid:  # the script has forked this process, which must not return into the trial's code
                _end_fork(sys.exc_info()[1])
        return {}

    def _code_with(self, ctx: context.Context) -> types.CodeType:
        """Return the code to run; with parameters in place of its values, as `lr = 0.1`, if the arguments have {globals}.

        The trial's copy of the script gets the same code: processes of multiprocessing with `spawn`, such as those of a
        DataLoader, import it anew.
        """
        if f"{{{arguments.GLOBALS}}}" not in self._program.arguments:
            return self._code
        tree = arguments.replace_values(notebook.parse(self._text), ctx.params)
        if self._program.cwd == "code":
            _replace_file(folder(self._program, ctx.workdir), self._program.script, self._text_of(tree, ctx))
        return compile(tree, self._code.co_filename, "exec", dont_inherit=True)

    def _text_of(self, tree: ast.Module, ctx: context.Context) -> str:
        """Return a text of the script with the trial's values: with its comments and lines, if only literals change."""
        with contextlib.suppress(ValueError):  # it is not in UTF-8
            text = settings.replace_values(self._text.decode(), ctx.params, ".py")
            if ast.dump(ast.parse(text.encode())) == ast.dump(tree):  # not if it calls IPython, or has `width = depth = 3`
                return text
        return ast.unparse(tree)

    def _enter_main(self, file: Path, ctx: context.Context) -> types.ModuleType:
        """Set the arguments and the module path as an interpreter does for a script; return its new module `__main__`."""
        main = types.ModuleType("__main__")
        main.__file__ = str(file)
        sys.argv = [self._program.script, *_arguments(self._program, ctx)]
        packages = [str(_code_folder(self._program, ctx))] if self._program.packages else []
        other_paths = (path for path in sys.path if path not in ("", str(ctx.code), *packages))
        sys.path[:] = list(dict.fromkeys([str(file.parent), *packages, *other_paths]))
        sys.modules["__main__"] = sys.modules["__mp_main__"] = main  # processes of multiprocessing use the second name
        return main


class Command:
    """A program in a process of its own."""

    def __init__(self, program: Program) -> None:
        self._program = program

    def run(self, ctx: context.Context) -> context.Result:
        """Run the command to its end, forward SIGTERM to it, and return no metrics, because the slot reads them.

        If a signal ends the command, the same signal ends this process, so that the slot sees how the command has ended.

        Raises:
            CommandFailed: The command ended with an exit code over 0.
            ArgumentsRefused: The command refuses its arguments.
            OSError: The command cannot be started.
        """
        _prepare(self._program, ctx)
        command = arguments.build(self._program.command, ctx.params, _context_values(ctx))
        argv = [*module_path.with_import_folders(command, os.environ), *_arguments(self._program, ctx)]
        # The trial's interpreter and the programs installed with it come before the system's.
        os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
        if mlflow_runs.lacks_tables(os.environ) and _names_mlflow(ctx.code):
            mlflow_runs.wait_for_tables(os.environ)
        code = _run_forwarding_sigterm(argv)
        if code < 0:  # a signal has ended the command
            _end_by_signal(-code)
        if code == usage.USAGE_ERROR:
            words = [word for word in self._program.command if word != "env" and "=" not in word]  # env LR=0.1 python fit.py
            _check_arguments_accepted(" ".join(word for word in words[:2] if not word.startswith(("-", "{"))))
        if code > 0:
            raise CommandFailed(f"{self._program.command[0]} ended with exit code {code}: {_last_line()}")
        return {}


def _names_mlflow(code: Path) -> bool:
    """Return whether a Python file of the job's code has the word mlflow."""
    for file in code.rglob("*.py"):
        with contextlib.suppress(OSError):  # of a link to a file that this user may not read, for example
            if b"mlflow" in file.read_bytes():
                return True
    return False


def _check_arguments_accepted(program_name: str) -> None:
    """Check that a program that ended with `usage.USAGE_ERROR` has printed no usage message.

    Raises:
        ArgumentsRefused: It has printed one, and so refuses its arguments.
    """
    output = _end_of_output()
    if "usage:" in output.lower():
        raise usage.refusal_error(program_name, output)


def _run_forwarding_sigterm(argv: list[str]) -> int:
    """Run a command to its end, and pass SIGTERM on to its processes; return its exit code, negative for a signal.

    After SIGTERM, also wait for the command's children, which may still save something. The slot limits the time.

    Raises:
        OSError: The command cannot be started.
    """
    is_stopped = False
    command_group: int | None = None  # process group of the command; None until it has started

    def forward(*_: object) -> None:
        """Record SIGTERM, and pass it on to the command if it has started."""
        nonlocal is_stopped
        is_stopped = True
        if command_group is not None:
            _signal_group(command_group, signal.SIGTERM)

    signal.signal(signal.SIGTERM, forward)
    # The command gets a process group of its own, which is signaled as a whole, because a shell does not pass a signal on to
    # its children.
    child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, preexec_fn=process.end_with_parent, process_group=0)
    command_group = child.pid
    if is_stopped:  # the signal may have arrived before the group was recorded
        _signal_group(command_group, signal.SIGTERM)
    code = child.wait()
    only_check = 0  # signal number that only checks that the group has processes
    while is_stopped and _signal_group(command_group, only_check):
        time.sleep(0.05)
    return code


def _end_by_signal(number: int) -> None:
    """End this process by the default action of a signal."""
    with contextlib.suppress(OSError):  # SIGKILL always has its default action
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _signal_group(group: int, number: int) -> bool:
    """Signal a group of processes; return whether it has any."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)
        return True
    return False


def folder(program: Program, workdir: Path) -> Path:
    """Return the folder in which a program runs."""
    return workdir / _COPY if program.cwd == "code" else workdir


def enter_copy(code: Path, workdir: Path) -> Path:
    """Copy the job's code into the scratch folder of a trial, enter the copy, and return it."""
    copy = workdir / _COPY
    shutil.copytree(code, copy, symlinks=True)
    os.chdir(copy)
    return copy


def _prepare(program: Program, ctx: context.Context) -> None:
    """Prepare this process for a program: enter the folder in which it runs, and set its environment variables.

    The folder gets a copy of the code if the job says so, and the settings files with the trial's parameters. The folder
    for checkpoints is created.
    """
    run_folder = enter_copy(ctx.code, ctx.workdir) if program.cwd == "code" else ctx.workdir
    for name in program.files:
        text = (ctx.code / name).read_bytes().decode()  # with its line ends, which may be those of Windows
        _replace_file(run_folder, name, settings.replace_values(text, ctx.params, Path(name).name))
    os.chdir(run_folder)
    if "://" not in ctx.checkpoints:
        with contextlib.suppress(OSError):  # the program gets the error when it writes there
            Path(ctx.checkpoints).mkdir(parents=True, exist_ok=True)
    os.environ |= {env.TRIAL_CHECKPOINTS: ctx.checkpoints, env.PARAMS: json.dumps(ctx.params)}
    if capture.is_wandb_replaced():
        capture.enter_wandb(run_folder)
    if program.packages:  # for the interpreters that the program starts
        os.environ |= module_path.import_variables(str(_code_folder(program, ctx)), os.environ)


def _replace_file(run_folder: Path, name: str, text: str) -> None:
    """Write a text into a trial's copy of a file.

    Args:
        run_folder: Folder of the trial.
        name: Path of the file in it.
        text: The text.

    Raises:
        InputError: The file is in a link out of the folder.
    """
    file = run_folder / name
    if not file.parent.resolve().is_relative_to(run_folder.resolve()):  # a field `links`; see `inputs.check_inputs`
        raise errors.InputError(f"{name} is in a link out of the trial's folder, and would not be a copy")
    file.parent.mkdir(parents=True, exist_ok=True)
    mode = file.stat().st_mode if file.exists() else None
    file.unlink(missing_ok=True)  # a link may lead to a file outside of the folder
    file.write_bytes(text.encode())
    if mode is not None:
        file.chmod(mode)  # ./train.sh stays executable
    if file.suffix == ".py":  # Python would take the bytecode of a text of this length and, in whole seconds, this age
        Path(importlib.util.cache_from_source(file)).unlink(missing_ok=True)


def _code_folder(program: Program, ctx: context.Context) -> Path:
    """Return the folder with the code that a program runs: the trial's copy, or the job's folder."""
    return folder(program, ctx.workdir) if program.cwd == "code" else ctx.code


def _context_values(ctx: context.Context) -> Mapping[str, Any]:
    """Return the values of the context that placeholders in arguments may name."""
    return {name: getattr(ctx, name) for name in arguments.FACTS}


def _arguments(program: Program, ctx: context.Context) -> list[str]:
    """Return the program's arguments, without the parameters that its command or its settings files have instead."""
    passed_elsewhere = {name for _, name in arguments.placeholders(program.command)}
    for file in program.files:
        passed_elsewhere |= settings.spans(
            (ctx.code / file).read_text(encoding="utf-8"), file
        ).keys()  # the names that it sets
    passed_elsewhere -= {name for _, name in arguments.placeholders(program.arguments)}  # these need their values too
    params = {name: value for name, value in ctx.params.items() if name not in passed_elsewhere}
    return arguments.build(program.arguments, params, _context_values(ctx), program.booleans, program.lists)


def _allow_start_method() -> None:
    """Allow a script to set the start method of multiprocessing once more, after a policy has set it in this process."""
    set_method = multiprocessing.set_start_method
    multiprocessing.set_start_method = lambda method, force=True: set_method(method, force=True)


def _wait_for_workers(pid: int) -> None:
    """Wait for pools, threads and non-daemonic workers, as an interpreter does before it ends.

    Args:
        pid: Pid of the script's own process. A process that the script has forked does not wait.
    """
    if os.getpid() != pid:
        return
    threading._shutdown()  # type: ignore[attr-defined]  # as the interpreter does: it ends idle pools first
    for worker in multiprocessing.active_children():
        if not worker.daemon:
            worker.join()


def _end_fork(error: BaseException | None) -> None:
    """End a process that the script has forked, with the exit code that the interpreter would give it.

    Args:
        error: Exception that ended the script in this process; None if it ran to its end.
    """
    code = 0
    if isinstance(error, SystemExit):
        if isinstance(error.code, int):
            code = error.code
        elif error.code is not None:  # `sys.exit("text")` is a failure, and `sys.exit()` a success
            code = 1
    elif error is not None:
        traceback.print_exception(error)
        code = 1
    process.flush()
    os._exit(code)


def report_size_at_exit(config: records.SlotConfig, channel: TrialChannel) -> None:
    """Register an exit handler that sends the size of a program's log to the slot. Do nothing for a trial of a function.

    The size separates what the program has printed from the output of processes that outlive it. Call this function before
    the program runs: the handler that is registered first runs last, after the program's own.
    """
    if config.program is None:
        return
    pid, log = os.getpid(), Path("/proc/self/fd/1").resolve()

    def report() -> None:
        """Send the size, unless this is a process that the program has forked."""
        if os.getpid() == pid:
            process.flush()
            with contextlib.suppress(OSError):  # the slot has ended, or the log was removed
                channel.send(messages.Printed(log.stat().st_size))

    atexit.register(report)


def _last_line() -> str:
    """Return the last line that this trial has printed, for a message."""
    lines = [line for line in _end_of_output().splitlines() if line.strip()]
    return lines[-1].strip()[: usage.LONGEST] if lines else "it printed nothing"


def _end_of_output() -> str:
    """Return the last `usage.TAIL` bytes that this trial has printed; "" if its output is not a file."""
    process.flush()
    with contextlib.suppress(OSError, ValueError):
        descriptor = sys.__stderr__.fileno() if sys.__stderr__ else 2  # the script may have replaced `sys.stderr`
        file = Path(f"/proc/self/fd/{descriptor}").resolve()
        if file.is_file():
            with file.open("rb") as stream:
                stream.seek(max(0, file.stat().st_size - usage.TAIL))
                return stream.read().decode(errors="replace")
    return ""
