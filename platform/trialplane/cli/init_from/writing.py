"""The job of a script, a launcher or a command line: its parameters, its metrics, and its job.yaml.

The parameters are found (`script_parameters`, `command_parameters`), become a job (`script_job`), and the script runs
once, to show its metrics. Nothing is written before all of that has succeeded.
"""

from __future__ import annotations

import ast
import dataclasses
import os
import re
import shlex
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from trialplane import errors
from trialplane.cli import importing, output
from trialplane.cli.init_from import (
    advice,
    command_parameters,
    data_links,
    files_above,
    job_files,
    requested_constants,
    script_job,
    script_parameters,
    searches,
    settings_file,
    smoke,
    space_names,
    unknown_names,
)
from trialplane.cli.init_from.probe import ScriptCopy
from trialplane.cli.init_from.request import Origin, Request
from trialplane.cli.init_from.script_job import ScriptJob
from trialplane.errors import InputError
from trialplane.importing import guess, script, script_folder
from trialplane.importing.script import Script, Style
from trialplane.job import arguments, credentials, load, notebook, settings
from trialplane.plan import pack as packing
from trialplane.wire import escapes
from trialplane.wire.declared import Declared, Option
from trialplane.worker import shipping

# Styles of scripts that may have a settings file, too.
_WITH_SETTINGS = (Style.UNKNOWN, Style.GLOBALS, Style.ENVIRONMENT, Style.PARSED)
# Variables that torchrun sets, in the failure of a script that lacks them.
_RANK = re.compile(r"\b(?:LOCAL_RANK|RANK|WORLD_SIZE|MASTER_ADDR)\b")
_REPOSITORY = ".git"
_MOST_SHOWN = 5  # names of metrics in a message
_LONGER_RUN = 600  # seconds, for a script whose run was stopped
# In the failure of a script that reads the revision of its repository, of which a trial's copy is none.
_NO_REPOSITORY = re.compile(r"not a git repository|InvalidGitRepositoryError|'git', 'rev-parse'")


def write_job(origin: Origin, parsed_script: Script, request: Request) -> int:
    """Write the job of a script, a launcher or a command line; return the exit code.

    Raises:
        InputError, SpecError: See `from_file.make`.
    """
    title, real = origin.short_title, origin.real
    start, file_with_values = _find_start(origin, parsed_script, request)
    folder = start.folder
    call = parsed_script.call
    if call is not None and (start.cwd != "." or not (folder / call.folder / call.script).is_file()):
        # The call is not relative to the job's folder, so its arguments cannot be found from there.
        parsed_script = dataclasses.replace(parsed_script, call=None)
    parsed_script = _with_paths_from(folder, parsed_script, real)
    job_file = folder / load.FILE
    if job_file.is_symlink() or job_file.exists():
        command = f"rm {importing.shell_path(job_file)} && {request.command(origin.source)}"
        remedy = f"`{command}` replaces it" if job_files.is_made(job_file) else "remove it"
        raise InputError(f"{job_file} already exists; nothing was changed; {remedy}, or move {title} to another folder")
    _print_missing_libraries(origin.file, parsed_script, roots=[real.parent, folder, folder / "src", *start.roots])
    if notebook.is_notebook(origin.text):
        output.note(f"{title} is an exported notebook: trials leave out its magics and shell commands")
    for remark in parsed_script.notes:
        output.note(f"{origin.file}: {remark}")
    ignored = packing.ignored_lines(parsed_script.outputs)
    start = dataclasses.replace(start, links=data_links.find(folder, ignored))
    if start.links:
        _print_links(start.links)
    exit_code = searches.write_own_search(origin, parsed_script, start, request)
    if exit_code is not None:
        return exit_code
    hidden_files = job_files.hidden_files(title, origin.text, start)
    additions = {hidden: (folder / hidden).read_bytes() for hidden in hidden_files}
    packed = packing.pack(folder, additions=additions, ignored=[*ignored, *packing.ignored_lines(start.links)])
    origin = dataclasses.replace(
        origin, new_files=(*origin.new_files, *job_files.ignore_file(folder, hidden_files, ignored))
    )
    job, result, summary, options = _make_job(origin, parsed_script, start, file_with_values, packed.data, request)
    yaml_text = script_job.yaml_text(job, result)
    failure = _trial_failure(origin, job, result, job_file, request)
    exit_code = job_files.write_files(folder, yaml_text, summary, origin.new_files, options, failure)
    _, unread_remarks = script_job.metric_sources(job, result)
    outside = script_job.outside_remark(job)
    value_message = f"{outside}: no trial has today's value" if outside else ""
    restart_remark, pruner_message = script_job.restart_remark(job, result), script_job.pruner_message(job, result)
    for message in filter(None, (*unread_remarks, restart_remark, value_message, pruner_message)):
        output.note(message)
    if job.searchable:
        command = f"platform submit hpo {importing.shell_path(folder)} --space {job.searchable[0]}=LOW..HIGH --local"
        output.note(f"to search another option ({', '.join(job.searchable)}): `{command}`")
    return exit_code


def _print_links(links: Sequence[str]) -> None:
    """Print which data of a job are linked, and what that means for trials."""
    output.note(
        f"not uploaded, but linked in the folder of each trial, also below: {errors.shortened(', '.join(links), 300)}; what "
        "the script writes there, it writes into your folder; on a cluster, name a path on the data volume (`platform "
        "explain links`)"
    )


class _Made(NamedTuple):
    """A job, and what the user learns about it.

    Attributes:
        job: The job.
        result: Result of its smoke run, perhaps with the metrics of an earlier run.
        summary: Sentence that says what the job searches and optimizes.
        submit_options: Options that `submit` needs.
    """

    job: ScriptJob
    result: smoke.Smoke
    summary: str
    submit_options: str


def _make_job(
    origin: Origin,
    source: Script,
    start: script_folder.Start,
    source_file: settings_file.SettingsFile | None,
    packed: bytes,
    request: Request,
) -> _Made:
    """Find the parameters of a script in a copy of its folder, run the copy once, and print remarks.

    Raises:
        InputError, SpecError: See `from_file.make`.
    """
    title, job_file = origin.short_title, start.folder / load.FILE
    name = origin.real.relative_to(start.folder).as_posix()
    result = smoke.NOT_RUN
    with tempfile.TemporaryDirectory(prefix="trialplane-") as scratch:
        copy = ScriptCopy(origin.file, Path(scratch, "code"), name, start, Path(scratch), request.secrets)
        smoke_folder = Path(scratch, "smoke")
        for target in (copy.folder, smoke_folder):  # two copies, because a probe may change its own
            _unpack(packed, target, origin, copy)
        parameters = _find_parameters(copy, source, source_file, request)
        parsed_script, declared, file_with_values = parameters
        files_above.refuse_missing_module(declared.failure, origin, parsed_script, start, request)
        request = dataclasses.replace(request, space=space_names.declared_space(request.space, declared))
        typed = request.command(origin.source)
        unknown_names.refuse(request.space, copy, parsed_script, declared, title, origin.started_commands, typed)
        job = _build_job(origin, parameters, start, request)
        if request.with_smoke and not job.missing:
            watched = () if file_with_values is None else (file_with_values.name, *file_with_values.others)
            job, result = _run_smoke(origin, job, parsed_script, copy, smoke_folder, request, watched)
            files_above.refuse_missing_module(result.failure, origin, parsed_script, start, request)
            files_above.refuse_missing_file(result.failure, smoke_folder, origin, parsed_script, start, request)
    if source_file is not None and file_with_values is not None and result.read:
        used, first_read = file_with_values.name, next(iter(result.read))
        if used not in result.read:
            output.note(f"{title} reads {first_read}, not {used}")
            return _make_job(origin, source, start, source_file.instead(first_read), packed, request)
        if not file_with_values.arguments:  # the run shows all files that the script reads
            others = tuple(other for other in file_with_values.others if other in result.read)
            file_with_values = dataclasses.replace(file_with_values, others=others)
    if request.objective is None and not any(source.path in parsed_script.metric_files for source in result.metrics):
        result = _with_earlier_metrics(result, start.folder, parsed_script.metric_files)
    _print_remarks(title, job, declared, file_with_values, job_file)
    _print_missing_values(title, job, job_file)
    config = parsed_script.config if job.in_file else ""
    if file_with_values is not None:
        config = file_with_values.name
    if parsed_script.style is Style.GLOBALS:
        _add_lines(name, origin.text, job)
    if config.endswith(".py"):
        _add_lines(config, script_folder.source(start.folder / config), job)
    return _Made(job, result, *_summary(origin, job, parsed_script, result, job_file, request))


class _Parameters(NamedTuple):
    """The parameters of a script.

    Attributes:
        script: The script, with the style that they need.
        declared: The parameters.
        file: Settings file whose values they are; None if they are the script's own.
    """

    script: Script
    declared: Declared
    file: settings_file.SettingsFile | None


def _build_job(origin: Origin, parameters: _Parameters, start: script_folder.Start, request: Request) -> ScriptJob:
    """Return the job for the parameters of a script, with the options of the user."""
    name = origin.real.relative_to(start.folder).as_posix()
    if parameters.file is None:
        job = script_job.build(name, parameters.script, parameters.declared, start, request.space)
    else:
        job = script_job.build_with_file(name, parameters.script, parameters.file, start, request.space)
    switched_on = {name.replace("_", "-") for name in request.switched_on}
    return dataclasses.replace(
        job,
        objective=request.objective,
        defaults={**job.defaults, **{name: True for name in job.space if name.replace("_", "-") in switched_on}},
        links=start.links,
        trials=request.trials,
        comments=job.comments if origin.text else [f"Made from {origin.title} by `platform init --from`."],
    )


def _print_remarks(
    title: str,
    job: ScriptJob,
    declared: Declared,
    file_with_values: settings_file.SettingsFile | None,
    job_file: Path,
) -> None:
    """Print the facts about the job of a script that its job.yaml does not show."""
    if declared.failure:
        output.note(f"{title}: {command_parameters.not_asked(declared)}")
    for argument in declared.left_out:
        output.note(f"not a parameter: {argument}")
    for option in declared.options:
        if option.place and option.name in job.space:
            _print_comment(f"{option.name} is the {option.default} in {option.place}", job)
    if file_with_values is not None and file_with_values.others:
        used, others = file_with_values.name, ", ".join(file_with_values.others)
        output.note(f"the values are those of {used}; for those of another ({others}) change its name in {job_file}")
        job.comments.append(escapes.escape_controls(f"Other settings files: {others}"))
    if job.shared_paths:
        ports = [shared for shared in job.shared_paths if shared.startswith("port ")]
        remedies = ["give torchrun --standalone, not a port"] if ports else []
        if len(ports) < len(job.shared_paths):
            remedies.insert(0, "let it write below its working directory, of which each trial has its own")
        output.note(
            f"{title} uses {', '.join(job.shared_paths)}, which all trials share, so `parallel` is 1; for more, "
            f"{', and '.join(remedies)}"
        )


def _print_comment(note: str, job: ScriptJob) -> None:
    """Print a note, and add it to the comments of the job."""
    output.note(note)
    job.comments.append(escapes.escape_controls(note))


def _add_lines(name: str, text: str, job: ScriptJob) -> None:
    """Add the lines of a Python file that set searched values to the job's comments, and print those of repeated values."""
    first_trial = script_job.first_trial(job)
    described = {comment.partition(" ")[0] for comment in job.comments}  # values without a name of their own
    lines_by_name = {key: lines for key, lines in script.value_lines(text).items() if key in job.space}
    single = [
        f"{key} in line {lines[0]}" for key, lines in lines_by_name.items() if len(lines) == 1 and key not in described
    ]
    if single:
        job.comments.append(escapes.escape_controls(f"Values that are replaced in {name}: {', '.join(single)}"))
    for key, lines in lines_by_name.items():
        if len(lines) > 1:
            shown_lines = errors.shortened(f"{', '.join(map(str, lines[:-1]))} and {lines[-1]}", 100)
            quantity = "both" if len(lines) == 2 else "all"
            first = f", {first_trial[key]} in the first trial" if key in first_trial else ""
            _print_comment(f"{key} is set in lines {shown_lines} of {name}; {quantity} get the trial's value{first}", job)


def _with_paths_from(folder: Path, parsed_script: Script, file: Path) -> Script:
    """Return a script whose declared paths are relative to a folder, which is that of its file or one above.

    Paths outside of the folder are left out: a trial runs in a copy of it, and finds no results elsewhere.
    """
    home = file.parent.relative_to(folder)

    def inside(names: Sequence[str]) -> tuple[str, ...]:
        paths = (os.path.normpath(home / name) for name in names)
        return tuple(path for path in paths if not path.startswith((os.pardir, "/")))

    return dataclasses.replace(
        parsed_script, metric_files=inside(parsed_script.metric_files), outputs=inside(parsed_script.outputs)
    )


def _find_start(
    origin: Origin, parsed_script: Script, request: Request
) -> tuple[script_folder.Start, settings_file.SettingsFile | None]:
    """Return the start of a script in its job's folder, and its settings file, or None without one.

    The job's folder contains the script, its modules, its settings file and its Hydra configuration.
    """
    real = origin.real
    objective = request.objective["metric"] if request.objective else ""
    has_file = parsed_script.style in _WITH_SETTINGS
    file_with_values = settings_file.find(real, parsed_script, request.space, objective) if has_file else None
    is_shell = bool(origin.text) and parsed_script.style is Style.COMMAND and real.suffix in settings.SHELLS
    if origin.call is not None and parsed_script.style is not Style.WANDB:  # whose job has a script in its own folder
        start = script_folder.typed_start(real, parsed_script, origin.text, Path(origin.call.folder).resolve())
    elif is_shell:
        start = script_folder.shell_start(real, parsed_script, origin.text)
    else:
        start = script_folder.start(real, parsed_script, origin.text)
    folders = [start.folder]
    if not is_shell:
        folders.append(_hydra_folder(real, parsed_script))
    if file_with_values is None:
        return start.within(Path(os.path.commonpath(folders))), None
    start = start.within(Path(os.path.commonpath([*folders, file_with_values.folder])))
    return start, file_with_values.below(start.folder)


def _unpack(packed: bytes, target: Path, origin: Origin, copy: ScriptCopy) -> None:
    """Unpack a job's folder as a run gets it, with the files that the job adds, and with a notebook as plain Python."""
    packing.unpack(packed, target)
    shipping.add_links(target, {link: str(copy.start.folder / link) for link in copy.start.links})
    for new_file in origin.new_files:
        path = new_file.path.resolve().relative_to(copy.start.folder)
        (target / path).write_text(new_file.text, encoding="utf-8")
    if notebook.is_notebook(origin.text):
        (target / copy.name).write_text(ast.unparse(notebook.parse(origin.text)), encoding="utf-8")


def _find_parameters(
    copy: ScriptCopy, parsed_script: Script, file_with_values: settings_file.SettingsFile | None, request: Request
) -> _Parameters:
    """Choose between the parameters of a settings file and those of the script itself.

    Raises:
        InputError, SpecError: See `script_parameters.find` and `command_parameters.find`.
    """
    names_in_file = [] if file_with_values is None else [option.name for option in file_with_values.options]
    if file_with_values is not None and parsed_script.takes_file:
        _refuse_ambiguous(file_with_values, "", copy, request)
    if requested_constants.searches_only_constants(parsed_script, request.space, names_in_file):
        return _Parameters(requested_constants.as_globals(parsed_script), Declared(parsed_script.values), None)
    if parsed_script.style is not Style.PARSED:  # whose arguments come first
        declared = Declared(parsed_script.options)
        in_module = requested_constants.module_parameters(copy, parsed_script, declared, request.space, names_in_file)
        if in_module is not None:
            return _Parameters(*in_module, None)
    # A script with a parser may read the values of its file or not, unless a pipeline or an argument names the file.
    if file_with_values is not None and (parsed_script.style is not Style.PARSED or file_with_values.arguments is not None):
        file, options = file_with_values, file_with_values.options
        mixed = requested_constants.beside_file(parsed_script, file.name, options, request.space)
        if mixed is not None and not file.arguments:
            return _Parameters(*mixed, None)
        return _Parameters(parsed_script, Declared(options), file)
    if parsed_script.style is Style.COMMAND:
        parsed_script, declared = command_parameters.find(copy, parsed_script, request.space)
    else:
        parsed_script, declared = script_parameters.find(copy, parsed_script, request.space, names_in_file)
        if parsed_script.in_file:  # values of a module
            return _Parameters(parsed_script, declared, None)
    is_imported = file_with_values is not None and file_with_values.name in parsed_script.config_modules
    if not is_imported:
        file_with_values, declared = _pass_by_argument(file_with_values, declared, copy, request)
    # The values in the text replace arguments of no use, but those of a script that searches are often settings of that.
    has_likely = bool(guess.space(declared.options) or guess.positive_floats(declared.options))
    needs_arguments = has_likely or _has_required(declared)
    searches_itself = parsed_script.style is Style.SEARCHES and not request.space
    if file_with_values is None and not (needs_arguments or searches_itself) and guess.space(parsed_script.values):
        parsed_script = requested_constants.as_globals(parsed_script)
        declared = Declared(parsed_script.values, declared.left_out, subcommands=declared.subcommands)
    # Numbers that the script declares are better than those of the file, and required arguments need a value.
    if file_with_values is None or _has_searchable_numbers(declared.options) or _has_required(declared):
        return _Parameters(parsed_script, declared, None)
    if file_with_values.arguments is None and not any(arguments.placeholders(declared.subcommands)):
        file_with_values = dataclasses.replace(file_with_values, arguments=declared.subcommands)
    options = (*file_with_values.options, *file_with_values.required)
    return _Parameters(parsed_script, Declared(options), file_with_values)


def _pass_by_argument(
    file: settings_file.SettingsFile | None, declared: Declared, copy: ScriptCopy, request: Request
) -> tuple[settings_file.SettingsFile | None, Declared]:
    """Let a script's argument for a settings file, such as `--config`, name the file, if it has no default.

    If some of the other arguments are numbers that are worth a search, these are the parameters: the argument gets the name
    of the file as its default. Otherwise the values in the file are: the file gets the argument, and the required ones.

    Returns:
        The settings file, None if the arguments are the parameters, and the script's arguments. Both are unchanged without
        a file or such an argument.

    Raises:
        InputError: Several files are equally likely, and the script may need one.
    """
    candidates = (option for option in declared.options if option.default is None and script.CONFIG.fullmatch(option.name))
    file_option = next(candidates, None)
    if file is None or file_option is None:
        return file, declared
    others = tuple(option for option in declared.options if option is not file_option)
    name = file_option.name.replace("-", "_")
    # `if args.config` and `config is None` in the script: it runs without a file.
    is_tested = re.search(rf"if (?:not )?\w+\.{name}\b|\b{name} is ", script_folder.source(copy.path))
    if file.is_ambiguous and is_tested and not file_option.required and _has_searchable_numbers(others):
        return None, declared
    _refuse_ambiguous(file, file_option.flag, copy, request)
    if _has_searchable_numbers(others):
        file_option = dataclasses.replace(file_option, default=file.name, required=True)
        return None, dataclasses.replace(declared, options=(file_option, *others))
    words = (file_option.flag, file.name) if file_option.flag else (file.name,)
    if declared.overrides:  # config=FILE
        words = ("=".join(words),)
    required = tuple(option for option in others if option.required)
    return dataclasses.replace(file, arguments=words, required=required), dataclasses.replace(declared, options=())


def _refuse_ambiguous(file: settings_file.SettingsFile, flag: str, copy: ScriptCopy, request: Request) -> None:
    """Check that a script's argument, which may have no flag, can name only one settings file.

    Raises:
        InputError: Several files are equally likely. The message has a command for each.
    """
    if not file.is_ambiguous:
        return
    folder = copy.start.folder
    change = "" if folder == Path.cwd() else f"cd {shlex.quote(os.path.relpath(folder))} && "
    start = copy.start.command(copy.name) or ["python", copy.name]
    lines = (shlex.join([*start, *filter(None, (flag, name))]) for name in (file.name, *file.others))
    commands = "".join(f"\n  {change}{request.command(line)}" for line in lines)
    raise InputError(
        f"{copy.file.name} reads the settings file that {flag or 'its first argument'} names, and several could be it; type "
        f"the command for yours:{commands}\nnothing was changed"
    )


def _has_required(declared: Declared) -> bool:
    """Return whether a script refuses to run without some of its arguments."""
    return any(option.required for option in declared.options)


def _has_searchable_numbers(options: Sequence[Option]) -> bool:
    """Return whether some options that may be worth a search have a range, and not only choices."""
    return any("choices" not in parameter.fields for parameter in guess.space(options).values())


def _run_smoke(
    origin: Origin,
    job: ScriptJob,
    parsed_script: Script,
    copy: ScriptCopy,
    folder: Path,
    request: Request,
    watched: Collection[str],
) -> tuple[ScriptJob, smoke.Smoke]:
    """Run a script once with its defaults or the command's values, and print the metrics that it has.

    A script that needs the variables of torchrun gets a command with torchrun, and one that reads the revision of its Git
    repository a link to it. Then it runs again, in `folder`, a copy of the job's folder. For `watched` see `smoke.run`.

    Returns:
        The job, perhaps with another command or another link, and the result of the last run.
    """
    title, job_folder = origin.short_title, importing.shell_path(copy.start.folder)
    limit = request.smoke_seconds or smoke.LONGEST
    requested = [request.objective["metric"]] if request.objective else []

    def run(job: ScriptJob) -> smoke.Smoke:
        own_options = (*parsed_script.options, *parsed_script.values)
        return smoke.run(
            job.command_line(),
            origin.real.stem,
            folder,
            copy.scratch,
            parsed_script.printed,
            request.secrets,
            options=[*job.default_values, *(option.name for option in own_options)],
            limit=limit,
            requested=requested,
            declared=parsed_script.metric_files,
            watched=watched,
            searched_values=job.defaults.values(),
        )

    values = "its defaults" if origin.text else "the command's values"
    words = job.command_line() if job.command else ["python", job.script, *job.default_arguments()]
    shown_command = f", as `{escapes.escape_controls(shlex.join(words))}`" if job.command or not origin.text else ""
    output.note(
        f"{title} runs once with {values}{shown_command}, in a copy of {job_folder}, for {limit:.0f} seconds at "
        "most, to find its metrics; --no-smoke skips this"
    )
    result = run(job)
    if _RANK.search(result.failure) and not job.command:
        output.note(f"{title} needs the variables of torchrun ({result.failure}), which starts it then")
        torchrun = ["python", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1", job.script]
        job = dataclasses.replace(job, command=torchrun, arguments=job.arguments or arguments.FLAGS)
        result = run(job)
    repository = copy.start.folder / _REPOSITORY
    if _NO_REPOSITORY.search(result.failure) and repository.is_dir():
        output.note(
            f"{title} reads the Git repository of its folder: trials get a link to {_REPOSITORY}, and must not commit"
        )
        shipping.add_links(folder, {_REPOSITORY: str(repository)})
        job = dataclasses.replace(job, links=(*job.links, _REPOSITORY))
        result = run(job)
    if job.command:
        result = _without_mlflow(result, title)
    longer = max(_LONGER_RUN, 2 * limit)
    command = f"{request.command(origin.source)} --smoke-seconds {longer:.0f}"
    _print_result(title, result, job_folder, requested, command, _code_texts(copy, parsed_script))
    return job, result


def _without_mlflow(result: smoke.Smoke, title: str) -> smoke.Smoke:
    """Return the result of a command without the metrics that it logs to MLflow, which are printed."""
    mlflow_metrics = result.metrics.get(smoke.MLFLOW)
    if not mlflow_metrics:
        return result
    output.note(
        f"{title} logs {', '.join(smoke.shown_names([mlflow_metrics]))} to MLflow, which is not read from a command, a "
        "process of its own: print the metric, or write it to a file"
    )
    readable = {source: values for source, values in result.metrics.items() if source != smoke.MLFLOW}
    return dataclasses.replace(result, metrics=readable)


def _code_texts(copy: ScriptCopy, parsed_script: Script) -> list[str]:
    """Return the texts of a Python script, or of the one that a command calls, and of its modules; [] without one."""
    call = parsed_script.call
    file = copy.path if call is None else Path(os.path.normpath(copy.folder / call.folder / call.script))
    return list(script_folder.modules(file).values()) if file.suffix == ".py" and file.is_file() else []


def _with_earlier_metrics(result: smoke.Smoke, folder: Path, declared: Sequence[str]) -> smoke.Smoke:
    """Return the result of a smoke run with the metrics that an earlier run has written into the declared files, if any."""
    metrics = smoke.declared_metrics(folder, declared) if declared else {}
    if not metrics:
        return result
    output.note(f"the metrics are those of an earlier run, in {', '.join(source.path for source in metrics)}")
    return dataclasses.replace(result, metrics=metrics, was_run=True)


def _print_missing_values(title: str, job: ScriptJob, job_file: Path) -> None:
    """Print the parameters that need a value from the user, and the ways to give one."""
    secrets = [name for name in job.missing if credentials.is_secret(name, "VALUE")]
    for name in job.missing:
        remedy = f"write it into {job_file}"
        if name in secrets:
            remedy = f"it looks like a secret, which no job may have: let {title} read an environment variable in its place"
        output.note(f"{title} needs a value for {name}: {remedy}")
    if job.missing and not secrets:
        flags = " ".join(f"--param {name}=VALUE" for name in job.missing)
        command = f"platform submit hpo {importing.shell_path(job_file.parent)} {flags} --objective METRIC:min --local"
        output.note(f"or give it when the job is submitted: `{command}`")


def _summary(
    origin: Origin, job: ScriptJob, parsed_script: Script, result: smoke.Smoke, job_file: Path, request: Request
) -> tuple[str, str]:
    """Return the sentence that says what the job searches and optimizes, and the options that `submit` needs."""
    options = ""
    if job.space:
        summary = f"{errors.counted(len(job.space), 'parameter')} to search"
        summary += "" if request.space else ", in ranges that are guessed"
    elif parsed_script.style is Style.SEARCHES and parsed_script.searcher:
        summary = (
            f"{origin.short_title} searches by itself, by {parsed_script.searcher}, and runs unmodified, as one trial; to "
            'search here, fit one model with `params().get("NAME", VALUE)` after `from trialplane import params`, and write '
            "`space: {NAME: …}`"
        )
    else:
        summary = f"found no parameter to search: write `space: {{NAME: …}}` into {importing.shell_path(job_file)}"
    if (objective := script_job.best_objective(job, result)) is not None:
        summary += f"; objective: {objective.text} ({objective.reason})"
        names = list(dict.fromkeys(script_job.metric_names(result)))
        direction = objective.fields["direction"]
        other_names = [name for name in names if guess.direction(name) == direction and not guess.is_of_training(name)]
        other_name = next(iter(objective.similar), "") or guess.possible_objective(other_names)
        if len(names) > 1 and request.objective is None:
            summary += "; `--objective METRIC:min` or `:max` at submit picks another metric"
        elif objective.metric not in names and other_name and not _lacks_objective(job, result):
            of = f":{objective.fields['of']}" if "of" in objective.fields else ""
            option = f"--objective {shlex.quote(other_name)}:{direction[:3]}{of}"
            summary += f"; `{option}` at submit picks one that it did show"
    elif job.returned:
        summary += "; the function's return value is the objective"
    else:
        message, options = script_job.placeholder_message(job, result, os.path.relpath(job_file))
        summary += f"; {message}"
    if result.failure and origin.text:
        summary += f"; if it needs other arguments, {advice.by_command(origin.file)}"
    return summary, options


def _trial_failure(origin: Origin, job: ScriptJob, result: smoke.Smoke, job_file: Path, request: Request) -> str:
    """Return why trials will fail as the run shows, and what to do, see `importing.report_readiness`; "" if unknown."""
    if result.failure:
        return "its trials will fail as the run above did; when that is mended"
    objective = script_job.best_objective(job, result)
    if objective is None or not _lacks_objective(job, result):
        return ""
    names = smoke.shown_names(result.metrics.values())
    other_name = next(iter(objective.similar), "METRIC")
    command = request.with_objective(other_name).command(origin.source)
    choice = "" if objective.similar else f" with one of its metrics ({errors.shortened(', '.join(names), 300)})"
    remedy = f"remove {importing.shell_path(job_file)} and type `{command}`{choice}"
    return f"its trials will fail without {objective.metric}: {remedy}; if other values show {objective.metric}"


def _lacks_objective(job: ScriptJob, result: smoke.Smoke) -> bool:
    """Return whether a run that ended well showed other metrics than the one that the user names.

    W&B's calls may depend on an option that is off in this run.
    """
    objective = script_job.best_objective(job, result)
    names = script_job.metric_names(result)
    has_ended_well = result.was_run and result.ended and not result.failure
    return has_ended_well and not job.uses_wandb and bool(names) and objective is not None and objective.metric not in names


def _hydra_folder(file: Path, parsed_script: Script) -> Path:
    """Return the folder of a script, or one above that also has its Hydra configuration, for `config_path="../conf"`."""
    config = Path(os.path.normpath(file.parent / parsed_script.config)).parent if parsed_script.config else file.parent
    return Path(os.path.commonpath([file.parent, config])) if config.is_dir() else file.parent


def _print_missing_libraries(file: Path, parsed_script: Script, roots: Sequence[Path]) -> None:
    """Print the libraries that a script imports, and that are neither installed here nor its own modules."""
    for name in dict.fromkeys(module.partition(".")[0] for module in parsed_script.modules):
        if not any(script_folder.has_module(root, name) for root in roots) and not script_folder.is_installed(name):
            output.note(
                f"{file.name} imports {name}, which is not installed here; on a cluster the trial image needs it too"
            )


def _print_result(
    name: str, result: smoke.Smoke, folder: str, requested: Sequence[str], command: str, texts: Sequence[str]
) -> None:
    """Print the end of a smoke run and the names of its metrics, and the way to name others if it was stopped.

    Args:
        name: Name of the script.
        result: Result of the run.
        folder: Folder of the job as a word of a shell.
        requested: Metrics that the user wants to optimize.
        command: Command of the user for a longer run.
        texts: Texts of the script and of its modules.
    """
    duration = f"{result.seconds:.0f} s"
    all_names = script_job.metric_names(result)
    names = smoke.shown_names(result.metrics.values())
    shown = f"its metrics: {', '.join(names)}" if names else "no metrics were found"
    if result.failure:
        output.note(f"{name} failed after {duration}: {result.failure}; {shown}")
        return
    output.note(f"{name} {'ended' if result.ended else 'was stopped'} after {duration}; {shown}")
    shown_spellings = set(map(smoke.spelling, all_names))
    missing = [metric for metric in requested if smoke.spelling(metric) not in shown_spellings]
    if not result.ended and missing:
        output.note(
            f"it had not shown {' and '.join(missing)} by then; for a longer run remove {load.FILE} and type `{command}`"
        )
    elif not result.ended and not requested:
        later_names = smoke.names_in_code(texts, all_names)
        guessed = guess.objective(dict.fromkeys(later_names or names, 0.0)) or {"direction": "minimize"}
        option = f"--objective {later_names[0] if later_names else 'METRIC'}:{guessed['direction'][:3]}"  # min or max
        shown_later = ", ".join(later_names[:_MOST_SHOWN]) or "those of a test at its end"
        output.note(
            f"metrics that it prints later are missing here, such as {shown_later}: name yours, as in "
            f"`platform submit hpo {folder} {option} --local`, or remove {load.FILE} and type `{command}`"
        )
    exact = set().union(*result.exact.values())
    for metric in [] if result.ended or missing else requested:
        if metric not in exact and any(re.search(rf"[\"']{re.escape(metric)}(?!\w)", text) for text in texts):
            output.note(
                f"{name} has shown {metric} in another spelling only, and has this one in its code: if it writes {metric} "
                f"later, remove {load.FILE} and type `{command}`"
            )
