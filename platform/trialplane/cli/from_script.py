"""The job of `platform init --from train.py`: the unmodified script, and a space guessed from its arguments."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import json
import math
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from trialplane import errors
from trialplane.cli import bounded, importing, output, script_folder, settings_file, smoke
from trialplane.errors import InputError, SpecError
from trialplane.importing import guess, hydra, launcher, script, wandb
from trialplane.importing.script import Script, Style
from trialplane.job import arguments, credentials, document, load, notebook, settings
from trialplane.job.program import MetricSource
from trialplane.plan import pack as packing
from trialplane.plan import plan as planning
from trialplane.wire import declared as declared_arguments
from trialplane.wire import escapes, records
from trialplane.wire.declared import Declared, Option

_PATIENCE = 60.0  # seconds until a script reads its arguments, with its imports
_MOST_PARAMS = 40  # a script with more arguments has those as comments that are neither searched nor required
_LONGEST_REASON = 400  # characters at the end of Hydra's output in a message
_MOST_SHOWN = 4  # options in a message that could be searched
_MOST_SEARCHED = 6  # searched parameters; other likely ones are comments
_SHORTEST_SECRET = 8  # characters of a secret that is recognized by its value alone
_TRIALS, _PARALLEL = 20, 2
_REST: dict[Style, str] = {
    Style.HYDRA: arguments.HYDRA,
    Style.SACRED: arguments.HYDRA,
    Style.GLOBALS: arguments.GLOBALS,
    Style.SETTINGS: arguments.HYDRA,
    Style.ENVIRONMENT: Style.ENVIRONMENT,
    Style.COMMAND: Style.COMMAND,
    Style.SEARCHES: Style.SEARCHES,
    Style.PROMPTS: Style.PROMPTS,
}
# Styles of scripts that may have a settings file, too.
_WITH_SETTINGS = (Style.UNKNOWN, Style.GLOBALS, Style.ENVIRONMENT, Style.PARSED)
_INIT = "platform init --from"
_BY_COMMAND = (
    "give the command that you type today, in quotes, with its numbers: `platform init --from 'python train.py --lr 0.1'`"
)
_DATA = (".csv", ".tsv", ".parquet", ".npz", ".npy", ".jsonl", ".txt", ".json")
_DATA_FOLDERS = ("data", "input", "dataset", "datasets")
_INCLUDE = re.compile(r"^-?include[ \t]+([\w./-]+)[ \t]*$", re.MULTILINE)  # of a Makefile
_RANK = re.compile(r"\b(?:LOCAL_RANK|RANK|WORLD_SIZE|MASTER_ADDR)\b")
_RUNNERS = {
    ".r": "Rscript {name}",
    ".jl": "julia {name}",
    ".m": "octave {name}",
    ".js": "node {name}",
    ".pl": "perl {name}",
    ".rb": "ruby {name}",
    ".lua": "lua {name}",
    ".cpp": "g++ -O2 {name} -o program && ./program",
    ".cc": "g++ -O2 {name} -o program && ./program",
    ".c": "gcc -O2 {name} -lm -o program && ./program",
    ".rs": "rustc {name} -o program && ./program",
    ".go": "go run {name}",
}
_OBJECTIVE = '''"""The objective that {name} passes to `study.optimize`."""

from trialplane.integrations.optuna import objective_of

objective = objective_of("{name}")
'''
_HIDDEN_NAME = re.compile(r"""["'](?:\./)?(\.[A-Za-z][\w-]*(?:\.\w+)*)["']""")
_SECRET_FILE = re.compile(
    r"\.(?:env|netrc|pypirc|npmrc|pgpass|s3cfg|boto|git-credentials|.*(?:token|secret|credential|password))"
)
_GIN = re.compile(r"""DEFINE_multi_string\(\s*["'](gin_(?:param|binding)s?)["']""")


@dataclasses.dataclass(frozen=True)
class Request:
    """The options of `platform init --from`.

    Attributes:
        with_smoke: Whether to run the script once, to find its metrics.
        space: Parameters to search in place of guessed ones, as fields of job.yaml by name; empty to guess.
        secrets: Secrets that the user's command had, by the environment variable that stands for each one in the job.
    """

    with_smoke: bool = True
    space: Mapping[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    secrets: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class _Job:
    """The parts of a job that do not need a smoke run.

    Attributes:
        script: Its path in the job's folder.
        arguments: The field of job.yaml; None for the default.
        command: To start the script, if it needs one.
        params: Parameters of every trial, with a comment each.
        space: Parameters to search, with the reason for the guess.
        further: Lines of further parameters, as comments, of the space and of the params.
        searchable: Names of numbers that could be searched, too, the likeliest first.
        start: Default values of arguments that the job sets.
        comments: At the top of the file.
        preload: Modules that the template would not find by itself.
        uses_wandb: Whether the script imports W&B.
        returned: The expression that the script's function returns to Hydra, or "".
        in_file: Parameters that replace values in a settings file, and are no arguments unless `arguments` names them.
    """

    script: str
    arguments: Any
    command: list[str]
    params: dict[str, tuple[Any, str]]
    space: dict[str, tuple[dict[str, Any], str]]
    further: tuple[list[str], list[str]]
    searchable: list[str]
    start: dict[str, Any]
    comments: list[str]
    preload: list[str]
    uses_wandb: bool
    returned: str
    in_file: tuple[str, ...] = ()

    @property
    def missing(self) -> list[str]:
        """The parameters that need a value from the user."""
        return [name for name, (value, _) in self.params.items() if value is None]


@dataclasses.dataclass(frozen=True)
class _NewFile:
    """A file beside the script that the job needs.

    Attributes:
        path: Path of the file.
        text: Content of the file.
        remark: Meaning of the file, for messages.
    """

    path: Path
    text: str
    remark: str


def make(file: Path, request: Request) -> int:
    """Write a job.yaml beside a script, or nothing at all, and say whether the job can run.

    Args:
        file: The script.
        request: Options of the user.

    Returns:
        The exit code.

    Raises:
        InputError: The script cannot be read, or ends before it reads its arguments.
        SpecError: It is not Python, or its configuration is not YAML.
    """
    if not script_folder.exists(file):
        siblings = file.parent.glob("*.py") if script_folder.exists(file.parent) else ()
        near = errors.nearest(file.name, [sibling.name for sibling in siblings])
        raise InputError(f"there is no {file}; {near or 'give the path of a Python script'}; nothing was changed")
    new_files: tuple[_NewFile, ...] = ()
    if file.is_file() and file.suffix == ".ipynb":
        new_files = (_exported(file),)
        file = new_files[0].path
    elif not file.is_file() or not (file.suffix == ".py" or launcher.is_launcher(file)):
        runner = _RUNNERS.get(file.suffix.lower(), "./{name}").format(name=file.name)
        raise InputError(
            f"{file} is not a Python script, a notebook, a shell script, a Makefile or an MLproject; for another program, "
            "give the command that you type today, in quotes, with its numbers, in its folder: "
            f"`{_INIT} '{runner} --lr 0.1'`, or with names for those without: `{_INIT} '{runner} {{lr=0.1}}'`; "
            "nothing was changed"
        )
    real = file.resolve()  # Python imports from the folder of a link's target
    if file.suffix == ".py":
        modules = script_folder.modules(real, new_files[0].text if new_files else None)
        text = modules[Path(real.name)][0]
        module_texts = [*(text for text, _ in modules.values()), script_folder.package_text(real)]
        read = script.read(text, str(file), "\n".join(module_texts))
    else:
        text = script_folder.source(real)
        if launcher.is_makefile(real):
            text = _INCLUDE.sub(lambda match: _included(real.parent / match[1]), text)
        read = launcher.read(text, str(file))
    read = dataclasses.replace(read, options=_with_dotenv(read, real.parent / ".env"))
    return _make(file, real, text, read, request, new_files=new_files)


def _included(file: Path) -> str:
    return script_folder.source(file) if file.is_file() else ""


def _exported(file: Path) -> _NewFile:
    """Return the file with the code of a notebook.

    Raises:
        InputError: The notebook cannot be read, or a file of that name exists.
    """
    target = file.with_name(f"{re.sub(r'[^A-Za-z0-9_-]+', '_', file.stem)}.py")
    if target.is_symlink() or target.exists():
        raise InputError(
            f"{target} already exists, and would be the code of {file.name}: `{_INIT} {importing.shell_path(target)}`"
        )
    try:
        text = notebook.exported(script_folder.source(file))
    except ValueError as error:
        raise InputError(f"{file} cannot be read: {error}; nothing was changed") from error
    return _NewFile(target, text, f"the code of {file.name}, without its magics and shell commands")


def make_of_command(text: str, request: Request) -> int:
    """Write a job.yaml for a command line into the working directory, without the secrets in it.

    Args:
        text: Command line as the user types it.
        request: Options of the user.

    Returns:
        The exit code.

    Raises:
        InputError, SpecError: See `make`.
    """
    text, secrets = credentials.extract(text)
    request = dataclasses.replace(request, secrets=secrets)
    if secrets:
        output.note(_without_secrets(list(secrets)))
    if script_file := launcher.script_of(text):  # without any arguments
        return make(Path(script_file), request)
    call = launcher.call_of(text)
    if call is not None and not (call := _existing_call(call)):
        call = None
    words, folder = (text, ".") if call is None else (shlex.join(call.arguments), call.folder)
    config, values = settings_file.named(words, Path(folder))
    config = os.path.normpath(Path(folder, config)) if config else ""
    read = launcher.of_command_line(text, config, values, call)
    return _make(Path(text), Path.cwd() / "command", "", read, request, title=text)


def _without_secrets(variables: Sequence[str]) -> str:
    """Return the message that job.yaml has environment variables in place of secrets."""
    names = " and ".join(variables)
    exports = "; ".join(f"export {name}=…" for name in variables)
    return (
        f"{names}: the value looks like a secret, and is not written into {load.FILE}, which everyone who may see the run "
        f"can read. Trials on this machine read the environment variable: type `{exports}` before `platform submit`. For a "
        "cluster see `platform docs scripts`"
    )


def _existing_call(call: script.Call) -> script.Call | None:
    """Return a call with the path of its script as it is in the working directory; None if it is not below that."""
    names = [call.script, f"{call.script.removesuffix('.py')}/__main__.py"] if call.module else [call.script]
    for name in names:
        path = Path(os.path.normpath(Path(call.folder, name)))
        if not path.is_absolute() and os.pardir not in path.parts and path.is_file():
            return dataclasses.replace(call, script=name)
    return None


def _make(
    file: Path, real: Path, text: str, read: Script, request: Request, *, title: str = "", new_files: Sequence[_NewFile] = ()
) -> int:
    """Write the job of a script or a launcher.

    Args:
        file: Path of the script or launcher as the user names it, or a command line.
        real: The path without links.
        text: Text of the file; "" for a command line.
        read: Content of the file.
        request: Options of the user.
        title: Name for messages. Default: the name of the file.
        new_files: Files to write beside the job's.
    """
    title = title or file.name
    in_file = settings_file.find(real, read) if read.style in _WITH_SETTINGS else None
    is_shell = bool(text) and read.style is Style.COMMAND and real.suffix in settings.SHELLS
    start = (script_folder.shell_start if is_shell else script_folder.start)(real, read, text)
    folders = [start.folder, *([] if is_shell else [_folder(real, read)]), *([in_file.folder] if in_file else [])]
    start = start.within(_common(folders))
    in_file = in_file.below(start.folder) if in_file else None
    folder = start.folder
    call = read.call
    if call is not None and (start.cwd != "." or not (folder / call.folder / call.script).is_file()):
        read = dataclasses.replace(read, call=None)
    job_file = folder / load.FILE
    if job_file.is_symlink() or job_file.exists():
        raise InputError(f"{job_file} already exists; nothing was changed; remove it, or move {title} to another folder")
    _tell_missing(file, [*read.top, *read.late], [real.parent, folder, folder / "src", *start.roots])
    if notebook.is_notebook(text):
        output.note(f"{title} is an exported notebook: trials leave out its magics and shell commands")
    for lost in read.notes:
        output.note(f"{file}: {lost}")
    sweep = _hydra_sweep(real, read, folder)
    if request.space and (sweep is not None or read.style in (Style.OPTUNA, Style.WANDB)):
        reason = f"{title} has a search of its own, whose space becomes the job's"
        raise InputError(f"{reason}; drop --space, and change the space there or in {load.FILE}; nothing was changed")
    if read.style is Style.OPTUNA:
        return _of_optuna(file, real, read, folder, new_files)
    if read.style is Style.WANDB:
        imported = wandb.read(json.dumps({**read.search, "program": real.name}), str(file), {real.name: text})
        fields = {name: value for name, value in imported.job.items() if name != "command"}
        job = fields | {"script": real.name, "arguments": "none", "capture": "wandb"}
        for note in imported.notes:
            if not note.field.startswith(("program", "command")):
                output.note(f"{title}: {note}")
        return _written(folder, _heading(title) + output.as_yaml(job), "the sweep in the script is the job", new_files)
    if sweep is not None:
        summary = "the sweep in the configuration is the job"
        return _written(folder, _heading(title) + output.as_yaml(sweep), summary, new_files)
    hidden_files = _hidden_files(title, text, folder)
    packed = packing.pack(
        folder, additions={hidden_name: (folder / hidden_name).read_bytes() for hidden_name in hidden_files}
    )
    new_files = [*new_files, *_ignore_file(folder, hidden_files)]
    name = real.relative_to(folder).as_posix()
    with tempfile.TemporaryDirectory(prefix="trialplane-") as scratch:
        code, used = Path(scratch, "code"), Path(scratch, "smoke")
        for target in (code, used):
            packing.unpack(packed.data, target)
            for new_file in new_files:
                (target / new_file.path.resolve().relative_to(folder)).write_text(new_file.text, encoding="utf-8")
            if notebook.is_notebook(text):
                (target / name).write_text(ast.unparse(notebook.parse(text)), encoding="utf-8")
        declared = Declared(in_file.options) if in_file else Declared()
        if in_file is None or (read.style is Style.PARSED and in_file.arguments is None):
            declare = _declared_by_call if read.call is not None else _declared
            read, from_parser = declare(file, read, code, name, start, Path(scratch))
            in_file, from_parser = _by_argument(in_file, from_parser)
            if in_file is None and not _is_of_use(from_parser) and guess.space(read.values):
                read = dataclasses.replace(read, style=Style.GLOBALS)
                from_parser = Declared(read.values, from_parser.left_out, subcommands=from_parser.subcommands)
            if (
                in_file is None
                or _has_numbers(from_parser.options)
                or any(option.required for option in from_parser.options)
            ):
                in_file, declared = None, from_parser
        _refuse_unknown(request.space, read, declared, title, [*start.words(name), "--cfg", "job"], code, Path(scratch))
        if in_file is None:
            new_job = _job(name, read, declared, start, request.space)
        else:
            new_job = _of_settings(name, read, in_file, start, request.space)
        if not text:
            new_job = dataclasses.replace(new_job, comments=[f"Made from {title} by `platform init --from`."])
        result = None
        if request.with_smoke and not new_job.missing:
            limit = f"{smoke.LONGEST:.0f} seconds at most"
            program = _command_line(new_job) if new_job.command else [sys.executable, "-u", name]
            command = [*program, *_line(new_job)]
            shown = f", as `{escapes.escape_controls(shlex.join(command))}`" if new_job.command else ""
            output.note(
                f"{title} runs once with its defaults{shown}, in a copy of {importing.shell_path(folder)}, for {limit}, "
                "to find its metrics; --no-smoke skips this"
            )
            result = smoke.run(command, real.stem, used, Path(scratch), read.printed, request.secrets)
            if _RANK.search(result.failure) and not new_job.command:
                output.note(f"{title} needs the variables of torchrun ({result.failure}), which starts it then")
                torchrun = ["python", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1", name]
                new_job = dataclasses.replace(new_job, command=torchrun, arguments=new_job.arguments or arguments.FLAGS)
                command = [*torchrun, *_line(new_job)]
                result = smoke.run(command, real.stem, used, Path(scratch), read.printed, request.secrets)
            _print_result(title, result)
    for text in declared.left_out:
        output.note(f"not in the job: {text}")
    if in_file is not None and in_file.others:
        others = ", ".join(in_file.others)
        output.note(f"the values are those of {in_file.name}; for those of another ({others}) change its name in {job_file}")
    for missing in new_job.missing:
        remedy = f"write it into {job_file}"
        if credentials.is_secret(missing, "VALUE"):
            remedy = f"it looks like a secret, which no job may have: let {title} read an environment variable in its place"
        output.note(f"{title} needs a value for {missing}: {remedy}")
    if new_job.missing and not any(credentials.is_secret(missing, "VALUE") for missing in new_job.missing):
        flags = " ".join(f"--param {missing}=VALUE" for missing in new_job.missing)
        words = f"platform submit hpo {importing.shell_path(folder)} {flags} --objective METRIC:min --local"
        output.note(f"or give it when the job is submitted: `{words}`")
    guessed = f"{errors.counted(len(new_job.space), 'parameter')} to search"
    guessed += "" if request.space else ", in ranges that are guessed"
    needed = f"found no parameter to search: write `space: {{NAME: …}}` into {importing.shell_path(job_file)}"
    if read.style is Style.SEARCHES and read.searcher:
        needed = (
            f"{title} searches by itself, by {read.searcher}, and runs unmodified, as one trial; to search here, fit one "
            'model with `params().get("NAME", VALUE)` after `from trialplane import params`, and write `space: {NAME: …}`'
        )
    summary = guessed if new_job.space else needed
    if _objective(result) is None and new_job.returned:
        summary += "; the function's return value is the objective"
    elif _objective(result) is None:
        summary += f"; {_without_objective(new_job, result, os.path.relpath(job_file))}"
    if result is not None and result.failure:
        summary += f"; if it needs other arguments, {_BY_COMMAND}"
    exit_code = _written(folder, _text(new_job, result), summary, new_files)
    if new_job.searchable:
        words = f"platform submit hpo {importing.shell_path(folder)} --space {new_job.searchable[0]}=LOW..HIGH --local"
        output.note(f"to search another option ({', '.join(new_job.searchable)}): `{words}`")
    return exit_code


def _refuse_unknown(
    names: Collection[str],
    read: Script,
    declared: Declared,
    title: str,
    compose: Sequence[str],
    code: Path,
    scratch: Path,
) -> None:
    """Check that a script has the parameters that the user wants to search.

    Args:
        names: Names of the parameters.
        read: Content of the script.
        declared: Its arguments.
        title: Name of the script for messages.
        compose: With HYDRA, the command that composes the configuration.
        code: Copy of the job's folder.
        scratch: Folder for output.

    Raises:
        InputError: It lacks one. The message has similar names, or for Hydra the reason that Hydra gives.
    """
    known_names = {option.name for option in declared.options}
    unknown_names = [name for name in names if name not in known_names]
    if not unknown_names or declared_arguments.LIGHTNING_CALLBACK in declared.subcommands:
        return  # arguments of the Trainer are not among the options of a LightningCLI
    reason = ""
    if read.style is Style.HYDRA and read.config:
        values = [f"{name}=1" for name in unknown_names]
        ended = bounded.run([*compose, *values], code, _variables(scratch), scratch / "composed.log", _PATIENCE)
        if ended.code == 0:
            return
        text = ended.log.read_text(errors="replace").partition("Set the environment variable HYDRA_FULL_ERROR")[0]
        reason = f" ({' '.join(text.split())[-_LONGEST_REASON:]})"
    hints = [f"{name}; {errors.nearest(name, known_names)}".rstrip("; ") for name in unknown_names]
    raise InputError(f"{title} has no parameter {'; and no '.join(hints)}{reason}; nothing was changed")


def _of_optuna(file: Path, real: Path, read: Script, folder: Path, new_files: Sequence[_NewFile]) -> int:
    """Write the job of a script with an Optuna objective, by a module of its own if a trial cannot import the objective."""
    summary, fields = "the objective of Optuna is the job", dict(read.search)
    if fields["entrypoint"] and _is_importable(folder, fields, new_files):
        return _written(folder, _heading(file.name) + output.as_yaml(fields), summary, new_files)
    module = f"{re.sub(r'[^a-zA-Z0-9]+', '_', f'_{file.stem}' if file.stem[:1].isdigit() else file.stem)}_objective"
    target = real.parent / f"{module}.py"
    if target.is_symlink() or target.exists():
        raise InputError(f"{target} already exists; nothing was changed; remove it")
    remark = f"it runs {file.name} up to study.optimize, for the function there"
    new_file = _NewFile(target, _OBJECTIVE.format(name=real.name), remark)
    fields["entrypoint"] = f"optuna:{module}:objective"
    return _written(folder, _heading(file.name) + output.as_yaml(fields), summary, [*new_files, new_file])


def _hidden_files(title: str, text: str, folder: Path) -> list[str]:
    """Return the hidden files of a job's folder that its script names and that are not packed; print those with secrets.

    Args:
        title: Name of the script for messages.
        text: Text of the script.
        folder: Folder of the job.
    """
    names = [*_HIDDEN_NAME.findall(text), *([".env"] if "load_dotenv" in text else [])]
    names = [name for name in dict.fromkeys(names) if (folder / name).is_file()]
    packed_names = packing.pack(folder).files if names else ()
    missing_names = [name for name in names if name not in packed_names]
    secret_names = [name for name in missing_names if _has_secrets(folder / name)]
    for name in secret_names:
        output.note(
            f"{title} reads {name}, which is not uploaded, as it may have secrets: set its variables before "
            f"`platform submit`; or a line `!{name}` in {packing.IGNORE_FILE} uploads it"
        )
    return [name for name in missing_names if name not in secret_names]


def _has_secrets(file: Path) -> bool:
    """Return whether a hidden file may have secrets, by its name or its text."""
    return bool(_SECRET_FILE.match(file.name)) or bool(credentials.extract(file.read_text(errors="replace"))[1])


def _ignore_file(folder: Path, names: Sequence[str]) -> list[_NewFile]:
    """Return a `.jobignore` that includes hidden files, if there are any; with an existing one, print what to add to it."""
    file, lines = folder / packing.IGNORE_FILE, [f"!/{name}" for name in names]
    if not names or os.path.lexists(file):
        for line in lines:
            output.note(
                f"the script names {line[2:]}: add a line `{line}` to {importing.shell_path(file)}, which includes it"
            )
        return []
    return [_NewFile(file, "\n".join([*lines, ""]), f"it includes {', '.join(names)}, which the script names, in the job")]


def _is_importable(folder: Path, fields: Mapping[str, Any], new_files: Sequence[_NewFile]) -> bool:
    """Return whether a trial could import the entrypoint of a job, by a check of the job in a copy of its folder."""
    with tempfile.TemporaryDirectory(prefix="trialplane-") as scratch:
        copied_folder = Path(scratch, "job")
        packing.unpack(packing.pack(folder).data, copied_folder)
        for new_file in new_files:
            path = copied_folder / new_file.path.resolve().relative_to(folder)
            path.write_text(new_file.text, encoding="utf-8")
        (copied_folder / load.FILE).write_text(output.as_yaml(dict(fields)), encoding="utf-8")
        try:
            planning.check_job(copied_folder)
        except SpecError as error:  # for example a search starts when the script is imported
            return not any(issue.field == "entrypoint" for issue in error.issues)
    return True


def _with_dotenv(read: Script, file: Path) -> tuple[Option, ...]:
    """Return the options of a script, with the numbers of a .env file as defaults of variables of the environment.

    Texts are left out. They may be secrets, and job.yaml is committed and uploaded.
    """
    try:
        lines = document.decode(document.content(file), file.name).splitlines() if read.style is Style.ENVIRONMENT else []
    except (OSError, ValueError):
        return read.options
    pairs = (line.removeprefix("export ").partition("=") for line in lines)
    values = {name.strip(): value.strip().strip("\"'") for name, _, value in pairs}
    return tuple(
        script.with_default(option, values.get(option.name)) if option.kind in ("float", "int") else option
        for option in read.options
    )


def _by_argument(
    in_file: settings_file.SettingsFile | None, declared: Declared
) -> tuple[settings_file.SettingsFile | None, Declared]:
    """Give an argument that names a settings file, and has no default, the one that was found."""
    unnamed = (option for option in declared.options if option.default is None and script.CONFIG.fullmatch(option.name))
    named = next(unnamed, None)
    if in_file is None or named is None:
        return in_file, declared
    words = (named.flag, in_file.name) if named.flag else (in_file.name,)
    others = tuple(option for option in declared.options if option is not named)
    if _has_numbers(others):
        named = dataclasses.replace(named, default=in_file.name, required=True)
        return None, dataclasses.replace(declared, options=(named, *others))
    return dataclasses.replace(in_file, arguments=words), dataclasses.replace(declared, options=others)


def _is_of_use(declared: Declared) -> bool:
    """Return whether a script must get some of its arguments, or some may be worth a search."""
    options = declared.options
    return bool(guess.space(options) or guess.any_float(options)) or any(option.required for option in options)


def _has_numbers(options: Sequence[Option]) -> bool:
    """Return whether numbers, and not only choices, of a script are likely to be searched."""
    return any("choices" not in parameter for parameter, _ in guess.space(options).values())


def _hydra_sweep(file: Path, read: Script, folder: Path) -> dict[str, Any] | None:
    """Return the job of the sweep in a Hydra script's configuration; None without a readable one."""
    config = _config(file, read) if read.style is Style.HYDRA and read.returned else None
    if config is None:
        return None
    text = config.read_text(encoding="utf-8", errors="replace")
    if not hydra.has_sweep(text, config.name):
        return None
    try:
        imported = hydra.read(text, config.name, {file.name: "@hydra.main("})
    except SpecError as error:
        for issue in error.issues:
            output.note(f"not in the job: {issue}")
        return None
    for note in imported.notes:
        output.note(f"{config.name}: {note}")
    return {**imported.job, "script": file.relative_to(folder).as_posix()}


def _written(folder: Path, text: str, summary: str, new_files: Sequence[_NewFile] = ()) -> int:
    """Write the job's file and those that it needs, and say whether the job can run; return the exit code.

    Raises:
        InputError: A file exists, or cannot be written. None is left.
    """
    with contextlib.ExitStack() as undone:
        for path, content in [*((file.path, file.text) for file in new_files), (folder / load.FILE, text)]:
            try:
                with path.open("x", encoding="utf-8") as stream:  # also refuses a link, whatever it leads to
                    undone.callback(path.unlink, missing_ok=True)
                    stream.write(content)
            except OSError as error:
                raise InputError(f"{path} cannot be written: {error.strerror or error}; nothing was changed") from error
        undone.pop_all()
    for file in new_files:
        output.note(f"{importing.shell_path(file.path)} is written: {file.remark}")
    return _verdict(folder, summary)


def _verdict(folder: Path, summary: str) -> int:
    output.note(
        f"{importing.shell_path(folder / load.FILE)} is written; "
        f"`platform validate {importing.shell_path(folder)}` checks it"
    )
    return importing.report_readiness(folder, summary)


def _heading(name: str) -> str:
    return f"# Made from {name} by `platform init --from`.\n"


def _folder(file: Path, read: Script) -> Path:
    """Return the job's folder: the script's, or one above that also has Hydra's configuration (`config_path="../conf"`)."""
    config = Path(os.path.normpath(file.parent / read.config)).parent if read.config else file.parent
    return _common([file.parent, config]) if config.is_dir() else file.parent


def _common(folders: Sequence[Path]) -> Path:
    return Path(os.path.commonpath(folders))


def _tell_missing(file: Path, modules: Sequence[str], roots: Sequence[Path]) -> None:
    """Print the libraries that the script imports and this interpreter lacks."""
    for name in dict.fromkeys(module.partition(".")[0] for module in modules):
        if not any(script_folder.has_module(root, name) for root in roots) and not script_folder.is_installed(name):
            output.note(
                f"{file.name} imports {name}, which is not installed here; on a cluster the trial image needs it too"
            )


def _declared(
    file: Path, read: Script, code: Path, name: str, start: script_folder.Start, scratch: Path
) -> tuple[Script, Declared]:
    """Return the arguments of a script, and the script with the style that they need.

    Args:
        file: Path of the script as the user names it.
        read: Content of the script.
        code: Copy of the job's folder, which may be changed.
        name: Path of the script in it.
        start: Start of the script.
        scratch: Folder for output.

    Raises:
        InputError: The script takes no arguments, or ends before it reads them.
        SpecError: Its configuration is not YAML.
    """
    has_values = bool(guess.space(read.values))
    by_values = dataclasses.replace(read, style=Style.GLOBALS, options=read.values)
    if read.style is Style.PARSED:
        if _GIN.search(script_folder.source(code / name)):
            raise InputError(f"{_advice(file, code / name)}. Nothing was changed")
        declared, where = _parse_in_process(file, code, name, start, scratch)
        if declared.overrides:
            return dataclasses.replace(read, style=Style.HYDRA), declared
        if not declared.failure:
            return read, _with_choices(declared, read)
        reason = errors.shortened(declared.failure, 300)
        if has_values and not declared.failure.startswith(("ModuleNotFoundError", "ImportError")):
            output.note(f"{file.name} read no arguments: {reason}; so parameters replace the values in its text")
            return by_values, Declared(read.values)
        remedy = f"if it takes --NAME=VALUE, this runs it: {_command(file)}; or {_BY_COMMAND}"
        raise InputError(f"{file.name} ended before it read its arguments: {reason}{where}; {remedy}; nothing was changed")
    if read.style is Style.HYDRA:
        return read, _of_hydra(file, read, code, name, start, scratch)
    if read.style is Style.UNKNOWN and has_values:
        return by_values, Declared(read.values)
    if read.style is Style.UNKNOWN or (read.style is Style.GLOBALS and not guess.space(read.options)):
        advice = _advice(file, code / name)
        if read.style is Style.UNKNOWN or "wandb.config" in advice:
            raise InputError(f"{advice}. Nothing was changed")
        output.note(f"{advice}. Until then, the job is one trial without parameters")
        return dataclasses.replace(read, style=Style.SEARCHES), Declared()
    return read, Declared(read.options)


def _declared_by_call(
    file: Path, read: Script, code: Path, name: str, start: script_folder.Start, scratch: Path
) -> tuple[Script, Declared]:
    """Return the options of a command that calls a Python script, and the command with the form of further arguments.

    These are the numbers that are typed; the values of a settings file that the command names; and the arguments that the
    script declares, which are appended to the command. An argument with the name of a value of the file is set in both
    places, as either may override the other. The parameters are those of `_declared`.

    Raises:
        SpecError: There are no parameters, or a file is not Python or YAML.
    """
    assert read.call is not None
    call, in_command = read.call, {key for _, key in arguments.placeholders(read.command)}
    path = Path(os.path.normpath(code / call.folder / call.script))
    modules = script_folder.modules(path)
    called = script.read(modules[Path(path.name)][0], call.script, "\n".join(text for text, _ in modules.values()))
    declared, appended = _of_called(file, called, call, code, path, start, scratch)
    by_name = {option.name: option for option in declared.options}
    typed = {
        option.name: _with_type(option, by_name.get(option.name)) for option in read.options if option.name in in_command
    }
    in_file = {option.name: option for option in read.options if option.name not in in_command}
    if called.style is Style.CONFIGURATOR:  # its arguments override the file
        in_file = {}
    if not (typed or guess.space([*in_file.values(), *declared.options])) and not appended:
        in_file = {option.name: option for option in called.values}
        read = dataclasses.replace(read, config=path.relative_to(code).as_posix())
    # Hydra refuses a value that is given twice. Of the arguments of other parsers, the last one counts.
    typed_words = {word.partition("=")[0] for word in call.arguments} if appended == arguments.HYDRA else set()
    typed_words |= set(re.findall(r"--?([\w.-]+)[ =]+[\"']?\{", " ".join(read.command)))  # `--learning_rate {lr}` of a loop
    further = {key: option for key, option in by_name.items() if option.flag and key not in {*typed, *typed_words}}
    for key, option in in_file.items():
        last_part = key.rpartition(".")[2]
        is_single = sum(other.rpartition(".")[2] == last_part for other in in_file) == 1
        argument = further.pop(key, None) or (further.pop(last_part, None) if is_single else None)
        if argument is not None:  # `--lr` for `train.lr`
            in_file[key] = dataclasses.replace(option, flag=argument.flag, choices=argument.choices)
    appended_options = [dataclasses.replace(option, required=False) for option in further.values()]
    options = (*typed.values(), *in_file.values(), *appended_options)
    if not options:
        raise launcher.without_parameters(str(file))
    config = read.config if in_file else ""
    read = dataclasses.replace(read, options=options, config=config, appended=appended, in_file=tuple(in_file))
    return read, Declared(options, declared.left_out)


def _with_choices(declared: Declared, read: Script) -> Declared:
    """Return the arguments of a script, with the choices of an optimizer and the like that its text shows."""
    return dataclasses.replace(
        declared, options=tuple(guess.with_choices(option, read.compared) for option in declared.options)
    )


def _of_called(
    file: Path, called: Script, call: script.Call, code: Path, path: Path, start: script_folder.Start, scratch: Path
) -> tuple[Declared, str]:
    """Return the arguments of a script that a command calls, and their form: FLAGS, HYDRA, or "" if it declares none.

    Args:
        file: The command line.
        called: Content of the script.
        call: Its call in the command.
        code: Copy of the job's folder.
        path: Path of the script in it.
        start: Start of the command.
        scratch: Folder for output.
    """
    folder = code / call.folder
    if called.style is Style.PARSED:
        at_call = dataclasses.replace(start, cwd=call.folder, module=call.module)
        declared, _ = _parse_in_process(file, code, path.relative_to(code).as_posix(), at_call, scratch, call.arguments)
        if not declared.failure:
            return _with_choices(declared, called), arguments.HYDRA if declared.overrides else arguments.FLAGS
    elif called.style is Style.HYDRA:
        return _of_hydra(Path(call.script), called, folder, call.script, start, scratch), arguments.HYDRA
    elif called.style is Style.CONFIGURATOR:
        return Declared(_with_values(called.options, folder, call.arguments)), arguments.FLAGS
    elif called.style is Style.ATTRIBUTES:
        return Declared(called.options), arguments.FLAGS
    return Declared(), ""


def _with_type(option: Option, declared: Option | None) -> Option:
    """Return an option with a typed value, and with the type and the choices that the script declares for it."""
    if declared is None or not isinstance(option.default, (int, float)) or declared.kind not in ("int", "float"):
        return option
    value = float(option.default) if declared.kind == "float" else option.default
    return dataclasses.replace(option, default=value, kind=declared.kind, choices=option.choices or declared.choices)


def _with_values(options: Sequence[Option], folder: Path, words: Sequence[str]) -> tuple[Option, ...]:
    """Return the options of a configurator, with the values of the Python files that a command line names as defaults."""
    values: dict[str, Any] = {}
    for word in words:
        if word.endswith(".py") and script_folder.exists(folder / word):
            of_file = script.settings_options(script_folder.source(folder / word), word)
            values |= {option.name: option.default for option in of_file}
    # A configurator refuses a number without a point for a value that has one, and the other way round.
    kinds = {int: "int", float: "float", bool: "bool", str: "str"}
    return tuple(
        dataclasses.replace(option, default=value, kind=kinds[type(value)])
        for option in options
        if type(value := values.get(option.name, option.default)) in kinds
    )


def _of_hydra(file: Path, read: Script, code: Path, name: str, start: script_folder.Start, scratch: Path) -> Declared:
    """Return the values of a configuration of Hydra, from its file, or else as the script composes it.

    Raises:
        InputError: There is none.
        SpecError: It is not YAML.
    """
    config = _config(code / name, read)
    if config is not None:
        groups: dict[str, dict[str, str]] = {}
        for yaml_file in sorted(config.parent.rglob("*.y*ml")):
            group = yaml_file.parent.relative_to(config.parent).as_posix()
            groups.setdefault(group, {})[yaml_file.stem] = yaml_file.read_text(encoding="utf-8", errors="replace")
        return Declared(tuple(script.hydra_options(config.read_text(encoding="utf-8"), config.name, groups)))
    log = scratch / "composed.yaml"
    bounded.run([*start.words(name), "--cfg", "job"], code, _variables(scratch), log, _PATIENCE)
    with contextlib.suppress(SpecError):
        if options := script.hydra_options(log.read_text(encoding="utf-8", errors="replace"), file.name, {}):
            return Declared(tuple(options))
    raise InputError(
        f"{file.name} names no existing Hydra configuration; `platform import hydra FILE` reads one with a "
        f"sweep, and `python {file.name} -m hydra/sweeper=trialplane` needs no job at all; or name the parameters, "
        f"those that no configuration has as +NAME: {_command(file, '--set arguments=hydra')}"
    )


def _advice(file: Path, copied_file: Path) -> str:
    """Return advice for a script with unknown arguments, from a copy of it."""
    text = script_folder.source(copied_file)
    if "gin" in text and (flag := _GIN.search(text)):
        more = f"--set 'arguments=[\"--{flag[1]}=FUNCTION.NAME={{FUNCTION.NAME}}\"]'"
        return f"{file.name} is configured by gin; this searches a value: {_command(file, more, space='FUNCTION.NAME')}"
    if "wandb.config" in text and not script.ARGUMENTS.search(text):
        reason = "reads its parameters from wandb.config, and has no sweep that can be read"
        return f"{file.name} {reason}; this searches it: {_command(file, '--set arguments=none --set capture=wandb')}"
    return (
        f"{file.name} uses no known parser, and assigns no single value that looks worth searching. "
        f"If it takes --NAME=VALUE, this searches it: {_command(file)}; if it takes NAME=VALUE, with --set arguments=hydra; "
        "if it takes values alone, with --set 'arguments=[\"{NAME}\"]'; if NAME has one single value in its text, with "
        f"--set arguments=globals; or {_BY_COMMAND}. If none of these holds, write `from trialplane import params` at its "
        "top and "
        '`params().get("NAME", VALUE)` in place of a value, and run this with --set arguments=none'
    )


def _command(file: Path, more: str = "", *, space: str = "NAME") -> str:
    """Return a command that runs a study of a script without a job.yaml."""
    searched = f"--space {space}=LOW..HIGH " if space else ""
    words = f"platform submit hpo {importing.shell_path(file)} {searched}--objective METRIC:min --local {more}"
    return f"`{words.strip()}`"


def _config(file: Path, read: Script) -> Path | None:
    """Return the configuration of Hydra that a script names."""
    names = [Path(os.path.normpath(file.parent / f"{read.config}{end}")) for end in (".yaml", ".yml")] if read.config else []
    return next((name for name in names if name.is_file()), None)


def _variables(scratch: Path) -> dict[str, str]:
    """Return variables for a process that runs a script up to its parser."""
    return {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),  # as for a trial
        "PYTHONDONTWRITEBYTECODE": "1",
        "WANDB_MODE": "disabled",
        "MLFLOW_TRACKING_URI": f"sqlite:///{scratch}/unused.db",
    }


def _parse_in_process(
    file: Path, code: Path, name: str, start: script_folder.Start, scratch: Path, typed: Sequence[str] = ()
) -> tuple[Declared, str]:
    """Run the script in another process until it reads its arguments.

    Args:
        file: Path of the script as the user names it.
        code: Copy of the job's folder.
        name: Path of the script in it.
        start: Start of the script.
        scratch: Folder for output.
        typed: Arguments of a command that the user types.

    Returns:
        These, and a clause that names the output of a failure.
    """
    answer = scratch / "declared.json"
    variables = _variables(scratch)
    if start.path:
        variables["PYTHONPATH"] = os.pathsep.join(str(code / entry) for entry in start.path)
    command = [sys.executable, "-P", "-m", "trialplane.worker.setup.declaring", str(code / name), str(answer)]
    command += [start.module, *typed]
    ended = bounded.run(command, code / start.cwd, variables, scratch / "declaring.log", _PATIENCE)
    try:
        declared = records.from_json(Declared, answer.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        reason = f"it took more than {_PATIENCE:.0f} seconds" if ended.code is None else ended.cause
        declared = Declared(failure=reason)
    where = f"; {log_clause}" if declared.failure and (log_clause := ended.keep(file.stem)) else ""
    return declared, where


def _job(
    name: str, read: Script, declared: Declared, start: script_folder.Start, wanted: Mapping[str, dict[str, Any]]
) -> _Job:
    """Return the job for a script's arguments.

    Args:
        name: Path of the script in the job's folder.
        read: Content of the script.
        declared: Its arguments.
        start: Its start.
        wanted: Parameters to search in place of guessed ones.
    """
    rest = read.appended or _REST.get(read.style, arguments.FLAGS)
    # Other styles leave defaults to the script, and so does a command as it is typed.
    gets_defaults = (
        rest in (arguments.FLAGS, Style.COMMAND, Style.PROMPTS)
        and not (read.config or read.call)
        and read.style is not Style.ATTRIBUTES
    )
    params: dict[str, tuple[Any, str]] = {}
    further: tuple[list[str], list[str]] = ([], [])
    items: list[str] = []
    trailing: list[str] = []
    in_command = {key for _, key in arguments.placeholders(read.command)}
    in_subcommands = {key for _, key in arguments.placeholders(declared.subcommands)}
    booleans = {option.style for option in declared.options if option.style}
    style = next((candidate for candidate in ("negated", "switch", "value") if candidate in booleans), "switch")
    # A switch is off by default, and a job has one style for all booleans.
    options = [option for option in declared.options if not (option.style == "switch" and style == "negated")]
    options = [option for option in options if not _is_secret(option)]
    options = [_with_value(option, start.folder) for option in options]
    likely = guess.space(options) or guess.any_float(options)
    space = {name: likely[name] for name in guess.without_variants(likely)[:_MOST_SEARCHED]}
    if wanted:
        space = {key: (parameter, "") for key, parameter in wanted.items()}
    for option in options:
        if option.name in space:
            pass
        elif option.required:
            is_guessed = option.default is not None and option not in declared.options
            value = option.choices[0] if option.choices else option.default
            params[option.name] = (value, "required; the value is guessed" if is_guessed else "required")
        elif option.name in likely:
            parameter, reason = likely[option.name]
            further[0].append(_field(option.name, parameter, f"guessed: {reason}"))
        if option.name in space or option.required:
            pass
        elif option.name in in_command or (option.default is not None and gets_defaults and len(options) <= _MOST_PARAMS):
            params[option.name] = (option.default, "")
        else:
            further[1].append(_field(option.name, option.default))
            continue
        lacks = option.name in params and params[option.name][0] is None and option.lists != "repeat"
        words = _item(option, rest, style, lacks)
        if option.name in in_subcommands or (read.call is not None and option.name in in_command):
            words = []
        elif option.name in read.in_file:  # and not in {flags}, unless an argument overrides the file
            words = [f"{option.flag}={{{option.name}}}"] if option.flag[:1] == "-" else []
        if option.flag and option.flag[0] != "-" and rest == arguments.FLAGS and words:
            trailing += words
        else:
            items += words
    lists = {option.lists for option in declared.options if option.lists and option.name in params}
    names = {*space, *params}
    first = [word for word in declared.subcommands if all(key in names for _, key in arguments.placeholders([word]))]
    first += ["with"] if read.style is Style.SACRED else []
    last = [f"{{{rest}}}", *declared.trailing, *trailing]
    field: dict[str, Any] = {"items": [*first, *items, *last] if first or items or len(last) > 1 else rest}
    if rest == arguments.FLAGS and booleans and style != "switch":
        field["booleans"] = style
    if lists - {"spread"}:
        field["lists"] = min(lists - {"spread"})
    field_value = field["items"] if len(field) == 1 else field
    in_environment = read.style in (Style.ENVIRONMENT, Style.COMMAND, Style.PROMPTS)
    comments = [f"Made from {name} by `platform init --from`."]
    if read.style is Style.GLOBALS:
        comments.append("A parameter replaces the value that the script gives to its name.")
    if read.style is Style.HYDRA and read.config:
        comments.append(f"{read.config}.yaml has the other defaults; a parameter here overrides one of them.")
    if read.style is Style.SETTINGS:
        comments.append(f"{read.config} has the other values; a parameter here replaces one of them in a trial's copy.")
    late = [module for module in read.late if _is_heavy(module)]
    top = [module for module in read.top if _is_heavy(module)]
    defaults = {option.name: option.default for option in options if option.default is not None and option.name in space}
    command = start.command(name, declared.function)
    if read.style is Style.ENVIRONMENT:
        command = start.command(name, variables=items)
    if read.style is Style.PROMPTS:
        answers = " ".join(f"'{{{option.name}}}'" for option in options)
        command = ["bash", "-c", f"printf '%s\\n' {answers} | {shlex.join(start.words(name))}"]
    if read.style is Style.COMMAND:
        command = [os.path.relpath(name, start.cwd) if word == Path(name).name else word for word in read.command]
        command = [*(["env", "-C", start.cwd] if start.cwd != "." else []), *command]
    if read.appended and read.config:
        field_value = {**field, "file": read.config}
    elif read.appended:
        pass
    elif in_environment:
        field_value = (Path(name).parent / read.config).as_posix() if read.config else arguments.FLAGS
    elif read.style is Style.SEARCHES:
        field_value = "none"
    elif command and read.style is Style.GLOBALS:
        field_value = name  # whose values are replaced in its text, as in a settings file
    is_default = field_value == arguments.FLAGS and not read.appended and (in_environment or not command)
    return _Job(
        script=name,
        arguments=None if is_default else field_value,
        command=command,
        params=params,
        space=space,
        further=further,
        searchable=[key for key in _numbers(options, list(likely)) if key not in space][:_MOST_SHOWN],
        start=defaults,
        comments=comments,
        preload=[*top, *late] if late else [],
        uses_wandb=not in_environment and any(module.partition(".")[0] == "wandb" for module in (*read.top, *read.late)),
        in_file=read.in_file,
        returned="" if command and read.style is Style.HYDRA else read.returned,  # which no command can report
    )


def _numbers(options: Sequence[Option], likely: Sequence[str]) -> list[str]:
    """Return the names of the options that are numbers and may affect what a script learns, those in `likely` first."""
    numbers = [option for option in options if option.kind in ("int", "float") and not option.choices]
    names = [option.name for option in numbers if option.name in likely or guess.is_searchable(option)]
    return sorted(names, key=lambda name: likely.index(name) if name in likely else len(likely))


def _is_secret(option: Option) -> bool:
    """Return whether the default of an option is a secret: by its name, or as the script read it from the environment."""
    secrets = {
        value for name, value in os.environ.items() if len(value) >= _SHORTEST_SECRET and credentials.is_secret(name, value)
    }
    return credentials.is_secret(option.name, option.default) or str(option.default) in secrets


def _with_value(option: Option, folder: Path) -> Option:
    """Return an option that needs a value with a guessed one, which a smoke run tries."""
    if not option.required or option.default is not None or option.choices or option.lists or option.style:
        return option
    files = sorted(file.relative_to(folder).as_posix() for end in _DATA for file in folder.glob(f"*{end}"))
    files += [name for name in _DATA_FOLDERS if (folder / name).is_dir()]
    return dataclasses.replace(option, default=guess.value(option, files))


def _of_settings(
    name: str,
    read: Script,
    file: settings_file.SettingsFile,
    start: script_folder.Start,
    wanted: Mapping[str, dict[str, Any]],
) -> _Job:
    """Return the job of a script with a settings file. The other parameters are those of `_job`."""
    read = dataclasses.replace(read, style=Style.SETTINGS, config=file.name)
    items = [text.replace("{", "{{").replace("}", "}}") for text in file.arguments or ()]
    field = {"items": items, "file": file.name} if items else file.name
    return dataclasses.replace(_job(name, read, Declared(file.options), start, wanted), arguments=field)


def _item(option: Option, rest: str, style: str, lacks: bool) -> list[str]:
    """Return the item of an argument that {flags} or {hydra} cannot write; both omit arguments without a value."""
    if rest == Style.ENVIRONMENT:
        return [f"{option.name}={{{option.name}}}"]
    if rest in (Style.COMMAND, Style.PROMPTS):
        return []
    if rest != arguments.FLAGS:
        is_pythons = option.kind == "bool" and not option.style  # Sacred's True, and not Hydra's true
        return [f"{option.name}={{{option.name}}}"] if lacks or (rest == arguments.HYDRA and is_pythons) else []
    if not option.flag:
        return [f"{{{option.name}}}"]
    if option.flag != f"--{option.name}" or lacks:
        return [option.flag, f"{{{option.name}}}"] if option.style != "switch" else []
    return [f"{option.flag}={{{option.name}}}"] if option.style == "value" and style != "value" else []


def _is_heavy(module: str) -> bool:
    """Return whether a module is an installed library, and not of the standard library or the script."""
    name = module.partition(".")[0]
    return name not in sys.stdlib_module_names and name != "trialplane" and script_folder.is_installed(name)


def _command_line(job: _Job) -> list[str]:
    """Return the command of a run with the defaults."""
    return arguments.build(job.command, {name: value for name, (value, _) in job.params.items()} | job.start, {})


def _line(job: _Job) -> list[str]:
    """Return the arguments of a run with the defaults."""
    field = job.arguments
    if isinstance(field, str) and field.endswith(settings.SUFFIXES):
        return []
    if field == "none" or (field is None and job.command):
        return []
    mapping = field if isinstance(field, dict) else {"items": field or arguments.FLAGS}
    items = [f"{{{mapping['items']}}}"] if isinstance(mapping["items"], str) else mapping["items"]
    values = {name: value for name, (value, _) in job.params.items()} | job.start
    named = {name for _, name in arguments.placeholders(items)}
    elsewhere = {*job.in_file, *(name for _, name in arguments.placeholders(job.command))} - named
    values = {name: value for name, value in values.items() if name not in elsewhere}
    return arguments.build(items, values, {}, mapping.get("booleans", "switch"), mapping.get("lists", "spread"))


def _print_result(name: str, result: smoke.Smoke) -> None:
    took = f"{result.seconds:.0f} s"
    names = sorted({metric for metrics in result.metrics.values() for metric in metrics})
    shown = f"its metrics: {', '.join(names[:20])}" if names else "no metrics were found"
    if result.failure:
        output.note(f"{name} failed after {took}: {result.failure}; {shown}")
    else:
        output.note(f"{name} {'ended' if result.ended else 'was stopped'} after {took}; {shown}")


def _text(job: _Job, result: smoke.Smoke | None) -> str:
    """Return the text of job.yaml."""
    lines = [f"# {comment}" for comment in job.comments]
    if any(reason for _, reason in job.space.values()):
        lines.append("# Check the fields that are marked as guessed.")
    lines += ["kind: hpo", _field("command", job.command) if job.command else _field("script", job.script)]
    if job.arguments is not None:
        lines.append(_field("arguments", job.arguments))
    if job.command:
        pass  # another process does its own imports
    elif job.preload:
        lines.append(_field("preload", job.preload, "imported once per slot; the script imports some of them in functions"))
    else:
        lines.append("# preload: []  # what the script imports at its top is imported once per slot anyway")
    likely, further = ([f"  # {line}" for line in some] for some in job.further)
    if job.params or further:
        lines += ["", "params: # the script's own defaults, the same in every trial" if job.params else "# params:"]
        lines += [f"  {_field(name, value, comment)}" for name, (value, comment) in job.params.items()]
        lines += further
    if job.space:
        lines += ["", "space: # what is searched"]
        lines += [
            f"  {_field(name, parameter, reason and f'guessed: {reason}')}"
            for name, (parameter, reason) in job.space.items()
        ]
        lines += ["  # Others that could be searched; drop one from params if you do:", *likely] if likely else []
        lines += _enqueue(job)
    lines += [
        "",
        *_metrics(job, result),
        "sampler: tpe",
        *([] if job.returned and _objective(result) is None else ["pruner: asha"]),
        "",
    ]
    lines += [f"trials: {_TRIALS if job.space else 1}", f"parallel: {_PARALLEL if job.space else 1}"]
    lines += ["budget: {max_failed: 5, timeout: 1h}", "resources: {cpus: 1, memory: 2Gi}"]
    return "\n".join(lines) + "\n"


def _enqueue(job: _Job) -> list[str]:
    """Return lines that make the script's defaults the first trial, if they lie in the space."""
    defaults = {name: job.start[name] for name in job.space if name in job.start}
    start = {name: value for name, value in defaults.items() if _holds(job.space[name][0], value)}
    outside = "; ".join(
        f"{name}, by default {defaults[name]}, is outside of its range" for name in defaults if name not in start
    )
    if not start:
        return [f"# The script's defaults are not tried first: {escapes.escape_controls(outside)}"] if outside else []
    return [_field("enqueue", [start], f"the script's defaults, tried first{f'; {outside}' if outside else ''}")]


def _holds(parameter: dict[str, Any], value: Any) -> bool:
    """Return whether a value lies in a parameter, and on one of its steps."""
    if value is None or "choices" in parameter:
        return value in parameter.get("choices", ())
    if not isinstance(value, (int, float)) or not parameter["low"] <= value <= parameter["high"]:
        return False
    step = parameter.get("step") or (1 if parameter["type"] == "int" else None)
    return step is None or math.isclose((value - parameter["low"]) / step, round((value - parameter["low"]) / step))


def _objective(result: smoke.Smoke | None) -> tuple[MetricSource, dict[str, str]] | None:
    """Return the source and the field of the metric to optimize; None if no metric has a suitable name.

    Of several sources with equally good metrics, this is the first one: the output comes before files.
    """
    sources = result.metrics if result else {}
    objectives = [(source, best) for source, metrics in sources.items() if (best := guess.objective(metrics))]
    return max(objectives, key=lambda objective: guess.objective_rank(objective[1]["metric"]), default=None)


def _without_objective(job: _Job, result: smoke.Smoke | None, file: str) -> str:
    """Return a message that the objective is a placeholder, with the line to write instead."""
    if result is None:
        reason = "the script was not run"
    else:
        names = sorted({metric for metrics in result.metrics.values() for metric in metrics})
        reason = "it printed no metric"
        if names:
            reason = f"no metric that it printed has the name of an objective ({', '.join(names[:20])})"
        if last := guess.unnamed([metric for metrics in result.metrics.values() for metric in metrics]):
            folder = importing.shell_path(Path(file).parent)
            reason += f"; `platform submit hpo {folder} --objective {last}:min --local` minimizes {last}"
    verb = "logs to W&B" if result is not None and job.uses_wandb else "prints"
    return f"{reason}; name a metric that it {verb} in {file}, as in `objective: {{metric: NAME, direction: minimize}}`"


def _metrics(job: _Job, result: smoke.Smoke | None) -> list[str]:
    """Return the lines of the objective, and of the source of its metric unless that is the default."""
    if (chosen := _objective(result)) is not None and result is not None:
        source, best = chosen
        other_names = ", ".join(sorted(name for name in result.metrics[source] if name != best["metric"])[:20])
        beside = f"; the others: {other_names}" if other_names else ""
        is_default = declared_arguments.LIGHTNING_CALLBACK in str(job.arguments) or source.source in ("stdout", "mlflow")
        is_default = is_default and not source.pattern
        written: Any = {"from": "file", "path": source.path} if source.source == "file" else source.source
        written = {"from": "stdout", "pattern": source.pattern[0]} if source.pattern else written
        lines = [] if is_default else [_field("metrics", written, "where they were found")]
        return [*lines, _field("objective", best, f"guessed from the metrics of one run{beside}")]
    if job.returned:
        way = guess.objective({job.returned.removeprefix("-"): 0.0}) or {"direction": "minimize"}
        flipped = {"minimize": "maximize", "maximize": "minimize"}
        direction = flipped[way["direction"]] if job.returned.startswith("-") else way["direction"]
        remark = f"returned: {errors.shortened(job.returned, 60)}; the direction is guessed"
        if "with" in str(job.arguments):  # Sacred prints it
            return [_field("objective", {"metric": "Result", "direction": direction}, remark)]
        libraries = [*(["wandb"] if job.uses_wandb else []), "hydra"]
        capture = _field("capture", libraries, "the function's return value is reported")
        return [capture, _field("objective", {"metric": hydra.OBJECTIVE, "direction": direction}, remark)]
    objective = _field("objective", {"metric": "loss", "direction": "minimize"}, "a placeholder: no metric was found")
    captured = _field("capture", "wandb", "its logs to W&B are reported, and W&B gets nothing")
    return [captured, objective] if result is not None and job.uses_wandb else [objective]


def _field(name: str, value: Any, comment: str = "") -> str:
    """Return a line of YAML."""
    text = output.as_yaml({name: value}, flow=True).strip()[1:-1] if not isinstance(value, (dict, list)) else ""
    if not text:
        text = f"{output.as_yaml([name], flow=True).strip()[1:-1]}: {output.as_yaml(value, flow=True).strip()}"
    remark = escapes.escape_controls(" ".join(comment.split()))
    return f"{text} # {remark}" if remark else text
