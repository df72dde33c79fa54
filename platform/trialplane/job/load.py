"""Loads a job: from its name on the command line to a valid job, or to all of its issues at once.

A job is built from layers, and a later layer replaces values of earlier ones: the file, the profile, the environment, fixed
parameters (`--params`), `--set`, and flags. If the last two change a training's GPUs, its other resources are scaled with
the ranks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from trialplane import errors
from trialplane.errors import Issue, JobNotFound, SpecError
from trialplane.job import (
    arguments,
    document,
    draft,
    entrypoint,
    fixed_params,
    mlflow_names,
    reach,
    requirements,
    settings,
    short_forms,
    values,
    verdict,
)
from trialplane.job.document import Document
from trialplane.job.draft import Draft, Origin
from trialplane.job.fixed_params import Override
from trialplane.job.kinds import CLASSES, Job, training
from trialplane.job.numeric import is_number

FILE = "job.yaml"
FOLDER = "jobs"
_PIPELINE = "dvc.yaml"  # of DVC, of which `platform init --from` makes a job
_BINARY_HEAD = 1024  # bytes at the beginning of a program, of which some are zero
_COMMENTED_PARAM = re.compile(r"""^[ \t]+# ["']?([\w.-]+)["']?: (.*)""", re.MULTILINE)  #   # momentum: 0.9


class _Layers(NamedTuple):
    """The layers over a job file. The attributes are the arguments of `load_job`."""

    profile: str | None
    sets: Sequence[str]
    overrides: Mapping[str, Any]
    params: Mapping[str, Any]
    environ: Mapping[str, str]
    kind: str | None
    script: str


class _JobFile(NamedTuple):
    """A job file, checked without any layer and with each of its profiles.

    Attributes:
        document: Content of the file.
        draft: Draft with this content.
        judgment: Result of its validation.
        profiles: Names of the profiles that are mappings.
        issues: Issues of the profiles, and of fields that no job file may have.
    """

    document: Document
    draft: Draft
    judgment: verdict.Judgment
    profiles: list[str]
    issues: list[Issue]


class Flag(NamedTuple):
    """The value of an override whose flag has another name than the field.

    Attributes:
        value: The value; None if the flag was not used.
        source: Name of the flag: "--name".
    """

    value: Any
    source: str


def find_job(name_or_path: str, search: Path) -> Path:
    """Return the folder of a job.

    Args:
        name_or_path: Name in the nearest `jobs/` of `search` and its parents, or path of a folder or a job.yaml.
        search: Folder in which the search begins, usually the working directory.

    Raises:
        JobNotFound: There is no such job. The message names the searched paths and similar jobs.
    """
    path = search / values.expand_user(name_or_path)  # an absolute path replaces the folder
    folders = [folder / FOLDER for folder in (search, *search.absolute().parents) if (folder / FOLDER).is_dir()]
    may_be_name = name_or_path not in ("", ".", "..") and "/" not in name_or_path
    candidates = [folders[0] / name_or_path, path] if may_be_name and folders else [path]
    for candidate in candidates:
        if candidate.name == FILE and _is_file(candidate):
            return candidate.parent
        if _is_file(candidate / FILE):
            return candidate
    raise _not_found(name_or_path, path, candidates, folders)


def _not_found(name_or_path: str, path: Path, candidates: Sequence[Path], folders: Sequence[Path]) -> JobNotFound:
    """Return the error for a job that does not exist.

    Args:
        name_or_path: Name or path that the user wrote.
        path: The same as a path.
        candidates: Searched paths.
        folders: Existing `jobs/` folders, the nearest one first.
    """
    if program := _foreign_program(name_or_path, path):
        remedy = f"`platform init --from {shlex.quote(program.command)}` makes one{program.advice}"
        return JobNotFound(f"{name_or_path} {program.predicate} and no job; {remedy}", program.command)
    if path.suffix == ".py":
        hint = errors.nearest(path.name, [file.name for file in path.parent.glob("*.py")])
        return JobNotFound(f"there is no script {name_or_path}; {hint}".rstrip("; "))
    job_names = [file.parent.name for file in folders[0].glob(f"*/{FILE}")] if folders else []
    above = next((folder for folder in path.absolute().parents if _is_file(folder / FILE)), None)
    if name_or_path == "." and above is not None:
        hint = f"{above} is a job: write {os.path.relpath(above, path)} in place of ."
    elif job_names:
        hint = errors.nearest(name_or_path.rstrip("/").rpartition("/")[2], job_names)
    else:
        name = path.name or "NAME"  # the root folder has no name
        hint = f"there is no {FOLDER}/ folder here or above; `platform init {name}` makes a job; see `platform docs laptop`"
    searched = " and ".join(str(candidate / FILE) for candidate in candidates)
    return JobNotFound(f"no job {name_or_path!r}: looked at {searched}; {hint}".rstrip("; "))


class _ForeignProgram(NamedTuple):
    """A program of the user's that is no job, but of which `platform init --from` makes one.

    Attributes:
        predicate: Description of it in a message: "is a file".
        command: Argument for `--from`.
        advice: Advice on this argument, as the end of a sentence.
    """

    predicate: str
    command: str
    advice: str = ""


def _foreign_program(name_or_path: str, path: Path) -> _ForeignProgram | None:
    """Return the program that the user wrote in place of a job. None if it is none.

    Args:
        name_or_path: Name or path that the user wrote.
        path: The same as a path.
    """
    if _is_compiled(path):
        command = f"{name_or_path if '/' in name_or_path else f'./{name_or_path}'} ARGUMENTS"
        return _ForeignProgram("is a program", command, ", with the arguments that you type today, in quotes")
    if _is_file(path):
        return _ForeignProgram("is a file", name_or_path)
    if len(name_or_path.split()) > 1:
        return _ForeignProgram("is a command", name_or_path)
    if _is_file(path / _PIPELINE):
        return _ForeignProgram("has a pipeline of DVC", str(Path(name_or_path, _PIPELINE)))
    return None


def _is_compiled(path: Path) -> bool:
    """Return whether a path is that of a program that is not a text."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        return os.access(path, os.X_OK) and b"\0" in file.read(_BINARY_HEAD)
    return False


def _is_file(path: Path) -> bool:
    """Return whether a path is a file. False for a path that cannot be accessed."""
    try:
        return path.is_file()
    except OSError:  # the name is too long, or the folder is not accessible
        return False


def load_job(
    folder: Path,
    *,
    profile: str | None = None,
    sets: Sequence[str] = (),
    overrides: Mapping[str, Any] | None = None,
    params: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    kind: str | None = None,
    script: str = "",
) -> Job:
    """Return the job in a folder, with all overrides of a command line.

    Args:
        folder: Folder with job.yaml and the code.
        profile: Name of one of the file's profiles.
        sets: Assignments `field=value` with values in YAML: `space.lr.high=0.1`.
        overrides: Dotted field → value or `Flag`; None for a flag that was not used.
        params: Fixed parameters, which are removed from the space.
        environ: Environment. The variables in the job's `environment` are read unless they are empty.
        kind: Required kind of job. For a job of another kind, this is the only issue.
        script: Script in the folder that is run without a job.yaml; needs a `kind`.

    Raises:
        SpecError: The job has issues. The error contains all of them.
    """
    return _load(folder, _Layers(profile, sets, overrides or {}, params or {}, environ or {}, kind, script))


def _load(folder: Path, layers: _Layers) -> Job:
    """Return the job in a folder with all layers: see `load_job`."""
    job_file = _read(folder, layers)
    job_draft = job_file.draft.copy()
    issues = [*job_file.issues, *_apply_layers(job_draft, job_file, folder, layers)]
    if kind_issues := _kind_issues(job_draft, layers.kind):  # other issues would be about the wrong kind
        raise SpecError(kind_issues)
    judgment = _judge(job_draft, job_file)
    if layers.script and judgment.job is not None and job_draft.data.get("arguments") is None:
        field = reach.default_arguments(judgment.job, folder)
        if field is not None:  # load all again, because parameters may be short for the names that a settings file has
            return _load(folder, layers._replace(sets=(*layers.sets, f"arguments={json.dumps(field)}")))
        issues += reach.unwritable_booleans(judgment.job, folder)
    issues += judgment.issues
    issues += _code_issues(job_draft, judgment, folder)
    if issues or judgment.job is None:
        raise SpecError(_sorted_issues(issues, job_file.document.source))
    return _with_absolute_links(judgment.job, folder)


def _read(folder: Path, layers: _Layers) -> _JobFile:
    """Return the job file in a folder, or that of a script without one, with the issues of all of its profiles.

    Raises:
        SpecError: The file cannot be read.
    """
    source = _short_path(folder / (layers.script or FILE))
    if layers.script:
        content = Document(data={"kind": layers.kind, "script": layers.script}, lines={}, source=source)
    else:
        content = document.read(folder / FILE, source, "is empty; `platform init` writes one that runs")
    job_draft = Draft.from_document(content)
    job_draft.data["name"] = _job_name(folder / layers.script)  # without a script, that of the folder
    profiles, issues = _profiles(content)
    if "name" in content.data:
        message = "is the name of the job's folder; drop this line"
        issues.append(Issue(("name",), message, source=source, line=content.lines[("name",)]))
    judgment = verdict.judge(job_draft, "objective" in content.data)
    job_file = _JobFile(content, job_draft, judgment, profiles, issues)
    for name in profiles:
        issues += _profile_issues(job_file, name)
    return job_file


def _judge(job_draft: Draft, job_file: _JobFile) -> verdict.Judgment:
    """Validate a draft of a job file with layers.

    An entry of `environment` names a field that a variable sets. If it is valid in the file alone, it stays valid, even if a
    layer removes the field.
    """
    fields_with_issues = {issue.field for issue in job_file.judgment.issues}  # `broken` only says that some entry has one
    environment = job_file.document.data.get("environment")
    names = environment if isinstance(environment, dict) else {}
    valid_paths = [("environment", name) for name in names if f"environment.{name}" not in fields_with_issues]
    return verdict.judge(job_draft, "objective" in job_file.document.data, valid_paths)


def _apply_layers(job_draft: Draft, job_file: _JobFile, folder: Path, layers: _Layers) -> list[Issue]:
    """Apply all layers to a draft of a job file. Return issues of the profile's name and of the names of parameters."""
    issues: list[Issue] = []
    data, profile = job_file.document.data, layers.profile
    if profile in job_file.profiles:
        _apply_profile(job_draft, job_file.document, profile)
    elif profile is not None:
        hint = errors.nearest(profile, job_file.profiles) or "the job has no profiles"
        issues.append(Issue(("profiles",), f"there is no profile {profile!r}; {hint}", source="--profile"))
    _apply_environment(job_draft, layers.environ)
    commented = {} if layers.script else _commented_params(folder / FILE)
    if layers.params:
        fixed_params.fix_parameters(job_draft, layers.params, commented, accepts_new=bool(layers.script))
    # Names that overrides may set: collected before the overrides, which would add their own. With an unknown profile, also
    # those of all profiles, because the user may have meant any.
    is_unknown_profile = profile not in (None, *job_file.profiles)
    other_profiles = [data["profiles"][name] for name in job_file.profiles] if is_unknown_profile else []
    names = fixed_params.parameter_names(job_file.draft.data, job_draft.data, *other_profiles)
    overrides = _apply_overrides(job_draft, folder, layers, names, commented)
    return [*issues, *fixed_params.override_issues(job_draft, overrides, names)]


def _apply_overrides(
    job_draft: Draft, folder: Path, layers: _Layers, names: Collection[str], commented: Mapping[str, str]
) -> list[Override]:
    """Apply `--set` and flags to a draft. If they change a training's GPUs, scale its other resources.

    Args:
        job_draft: Draft to change.
        folder: Folder of the job.
        layers: All layers of the job.
        names: Names of the parameters in the job and its profile.
        commented: Texts of the parameters that the job file lists as comments, by name.
    """
    without_overrides = job_draft.copy()
    overrides = _apply_sets(job_draft, layers.sets)
    in_settings_files = _values_in_settings_files(job_draft.data.get("arguments"), folder)
    parameters = _Parameters(without_overrides.data, names, commented, in_settings_files)
    overrides += _apply_flags(job_draft, layers.overrides, parameters)
    sources = [override.source for override in overrides]
    for name, amount in training.scaled_resources(without_overrides.data, job_draft.data).items():
        if job_draft.origin(("resources", name)).source not in sources:  # an amount on the command line stays
            job_draft.data["resources"][name] = amount
    return overrides


def _with_absolute_links(job: Job, folder: Path) -> Job:
    """Return a job whose links have absolute targets. They are relative to the job's folder."""
    targets = {link: str(folder.absolute() / values.expand_user(target)) for link, target in job.links.items()}
    return job.model_copy(update={"links": targets}) if targets else job


def _sorted_issues(issues: Sequence[Issue], job_source: str) -> list[Issue]:
    """Return issues without repetitions: those whose source is the job file first, then each other source's, by line."""
    sources = [job_source, *dict.fromkeys(issue.source for issue in issues)]
    return sorted(dict.fromkeys(issues), key=lambda issue: (sources.index(issue.source), issue.line))


def _commented_params(file: Path) -> dict[str, str]:
    """Return the parameters that a job file lists as indented comments, as `init --from` writes them, with their texts."""
    return dict(_COMMENTED_PARAM.findall(file.read_text(encoding="utf-8")))


def _values_in_settings_files(job_arguments: Any, folder: Path) -> Mapping[str, Any]:
    """Return the values in the settings files of a job, by dotted name; those of a file that cannot be read are left out."""
    names: list[Any] = []
    if isinstance(job_arguments, str) and job_arguments.endswith(settings.SUFFIXES):
        names = [job_arguments]
    elif isinstance(job_arguments, dict):
        files = job_arguments.get("files")
        names = [job_arguments.get("file"), *(files if isinstance(files, (list, tuple)) else ())]
    file_values: dict[str, Any] = {}
    for name in names:
        if isinstance(name, str):
            with contextlib.suppress(OSError, ValueError):  # an issue, which the validation finds
                file_values |= settings.values((folder / name).read_text(encoding="utf-8"), name)
    return file_values


class _Parameters(NamedTuple):
    """The parameters of a job before `--set` and flags, by which the short forms of flags are read.

    Attributes:
        data: Fields of the job, which may be invalid.
        names: Names of the parameters in the job and its profile.
        commented: Texts of the parameters that the job file lists as comments, by name.
        in_settings_files: Values in the settings files of the job, by dotted name.
    """

    data: Mapping[str, Any]
    names: Collection[str]
    commented: Mapping[str, str]
    in_settings_files: Mapping[str, Any]

    def full_name(self, name: str, source: str) -> str:
        """Return the full name of a parameter that the option `source` names. See `fixed_params.full_name`."""
        names = {*self.names, *self.commented, *self.in_settings_files}
        return fixed_params.full_name(name, names, source, are_all_known=bool(self.in_settings_files))

    def is_float(self, name: str) -> bool:
        """Whether a parameter is a float: in a file, `params`, the space, the first point of `enqueue`, or a comment."""
        points = self.data.get("enqueue")
        first_point = points[0] if isinstance(points, list) and points else None
        sections = [self.data.get("params"), self.data.get("space"), first_point, self.in_settings_files]
        definitions = [section[name] for section in sections if isinstance(section, dict) and name in section]
        with contextlib.suppress(SpecError):  # a comment may be any text
            definitions.append(document.scalar(self.commented.get(name, ""), name))
        # A value such as 0.1, or the fields of a range in the space
        return any(
            definition.get("type") == "float" if isinstance(definition, dict) else isinstance(definition, float)
            for definition in definitions
        )


def _apply_sets(job_draft: Draft, sets: Sequence[str]) -> list[Override]:
    """Apply assignments `field=value` of `--set` to a draft. Return those that could be read; add issues of the others."""
    overrides: list[Override] = []
    for text in sets:
        try:
            assignment = document.assignment(text)
        except SpecError as error:
            job_draft.issues += error.issues
            continue
        field_path = draft.path(assignment.field, fixed_params.parameter_names(job_draft.data))
        overrides.append(Override(assignment.source, field_path, assignment.value))
        job_draft.set(field_path, assignment.value, Origin(assignment.source))
    return overrides


def _apply_flags(job_draft: Draft, flags: Mapping[str, Any], parameters: _Parameters) -> list[Override]:
    """Apply the values of flags to a draft.

    Args:
        job_draft: Draft to change. Issues of short forms are added to it.
        flags: Dotted field → value or `Flag`.
        parameters: Parameters of the job without overrides.

    Returns:
        The flags that were used, without those that have issues.
    """
    overrides: list[Override] = []
    for field, value_or_flag in flags.items():
        is_flag = isinstance(value_or_flag, Flag)
        flag = value_or_flag if is_flag else Flag(value_or_flag, "--" + field.replace("_", "-"))
        if flag.value is None:
            continue
        try:
            override = _read_flag(job_draft.data, field, flag, parameters)
        except SpecError as error:
            job_draft.issues += error.issues
            continue
        overrides.append(override)
        job_draft.set(override.field_path, override.value, Origin(override.source))
    return overrides


def _read_flag(data: Mapping[str, Any], field: str, flag: Flag, parameters: _Parameters) -> Override:
    """Return the field and the value that a flag sets.

    `--space` may shorten the name of a parameter, and `--objective` may write a metric as the program prints it.

    Args:
        data: Fields of the job.
        field: Dotted field.
        flag: The flag.
        parameters: Parameters of the job without overrides.

    Raises:
        SpecError: A short name fits several parameters.
    """
    field_path, value = draft.path(field, fixed_params.parameter_names(data)), flag.value
    if flag.source.startswith("--space "):
        name = str(field_path[1])
        is_hydra = arguments.HYDRA in str(data.get("arguments"))  # its configuration may have any other names
        if not is_hydra:
            name = parameters.full_name(name, flag.source)
        if parameters.is_float(name):
            value = short_forms.with_float_range(value)  # `--space lr=0..1` has whole numbers, and lr is a float
        field_path = ("space", name)
    if flag.source.startswith("--objective ") and data.keys() & {"script", "command"}:
        value = [{**objective, "metric": mlflow_names.program_metric(objective["metric"])} for objective in value]
    return Override(flag.source, field_path, value)


def _kind_issues(job_draft: Draft, kind: str | None) -> list[Issue]:
    """Return an issue if a job is of another kind than `kind`. Empty if it is not, or if `kind` is None.

    Also empty if the job's kind is invalid, which the validation reports.
    """
    actual_kind = job_draft.data.get("kind")
    is_valid = actual_kind in list(CLASSES)  # a list, because the kind may be any YAML, also what is not hashable
    if kind is None or actual_kind == kind or not is_valid:
        return []
    origin = job_draft.origin(("kind",))
    name = job_draft.data["name"]
    message = f"is {actual_kind}, and not {kind}: `platform submit {actual_kind} {name}`"
    return [Issue(("kind",), message, source=origin.source, line=origin.line)]


def _job_name(path: Path) -> str:
    """Return the name of a job, from its folder or script, with valid characters."""
    name = path.absolute().name.removesuffix(".py")
    return re.sub(r"[^a-z0-9_-]+", "-", name.lower())[:63].strip("-_") or "job"


def _short_path(path: Path) -> str:
    """Return a path for messages: relative to the working directory if it is in it."""
    try:
        return str(path.absolute().relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _profiles(job_file: Document) -> tuple[list[str], list[Issue]]:
    """Return the names of the profiles that are mappings, and issues of the others."""
    profiles = job_file.data.get("profiles")
    if profiles is None:
        return [], []
    if not isinstance(profiles, dict):
        message = "must be a mapping of names to fields: max: {trials: 800}"
        return [], [Issue(("profiles",), message, source=job_file.source, line=job_file.lines[("profiles",)])]
    valid_names: list[str] = []
    issues: list[Issue] = []
    for name, fields in profiles.items():
        path = ("profiles", name)
        if isinstance(fields, dict):
            valid_names.append(name)
        else:
            issues.append(Issue(path, "must be a mapping of fields", job_file.source, job_file.lines[path]))
    return valid_names, issues


def _apply_profile(job_draft: Draft, job_file: Document, name: str) -> None:
    """Merge a profile over a draft."""
    origins = {
        field_path[2:]: Origin(job_file.source, line, within=("profiles", name))
        for field_path, line in job_file.lines.items()
        if field_path[:2] == ("profiles", name) and len(field_path) > 2
    }
    job_draft.merge(job_file.data["profiles"][name], origins)


def _profile_issues(job_file: _JobFile, name: str) -> list[Issue]:
    """Return the issues that the job has only with a profile. All profiles are checked, also those that are not selected."""
    with_profile = job_file.draft.copy()
    _apply_profile(with_profile, job_file.document, name)
    # An invalid field of the file may have another message with the profile; report it once.
    reported = {(issue.field, issue.line) for issue in job_file.judgment.issues}
    new_issues: list[Issue] = []
    for issue in _judge(with_profile, job_file).issues:
        if (issue.field, issue.line) in reported:
            continue
        is_in_profile = issue.field_path[:2] == ("profiles", name)  # otherwise the message says which profile it concerns
        message = issue.message if is_in_profile else f"{issue.message} (with profile {name})"
        new_issues.append(dataclasses.replace(issue, message=message))
    return new_issues


def _apply_environment(job_draft: Draft, environ: Mapping[str, str]) -> None:
    """Set the fields that the job's `environment` names to the values of their variables. Add issues of invalid values.

    An empty variable changes nothing.
    """
    field_by_variable = job_draft.data.get("environment")
    for variable, field in field_by_variable.items() if isinstance(field_by_variable, dict) else ():
        text = environ.get(variable, "")
        if not text.strip() or not isinstance(field, str):
            continue
        field_path = draft.path(field, fixed_params.parameter_names(job_draft.data))
        old = job_draft.get(field_path)
        value = _variable_value(text, variable, is_for_list=isinstance(old, list))
        if value is not None and is_number(old) and not is_number(value):
            job_draft.issues.append(Issue((field,), f"must be a number like {old}, not {text!r}", source=variable))
        else:
            job_draft.set(field_path, value, Origin(variable))


def _variable_value(text: str, variable: str, *, is_for_list: bool) -> Any:
    """Return the value of a field that an environment variable sets: YAML, or else the text itself.

    Args:
        text: Content of the variable.
        variable: Name of the variable, for messages.
        is_for_list: Whether the field is a list, whose items may be separated by commas.
    """
    try:
        value = document.scalar(text, variable)
        if is_for_list and not isinstance(value, list):
            return [document.scalar(part, variable) for part in text.split(",") if part.strip()]
    except SpecError:
        return text
    return value


def _code_issues(job_draft: Draft, judgment: verdict.Judgment, folder: Path) -> list[Issue]:
    """Return the issues of the files that the job names, each with the line of the job file or of the code.

    Empty if too little of the job is valid to tell which files it names: the default entrypoint depends on the kind.
    """
    if judgment.partial is None or ("kind",) in judgment.broken:
        return []
    issues = list(entrypoint.check(judgment.partial, folder, judgment.broken))
    if ("requirements",) not in judgment.broken and ("script",) not in judgment.broken:
        issues += requirements.job_requirements(judgment.partial, folder, requirements.source_prefix(folder)).issues
    # Issues of the code have a source. Issues of the job's fields get one: the file, flag or variable that sets the field.
    return [issue if issue.source else verdict.locate(job_draft, issue) for issue in issues]
