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
from trialplane.errors import FieldPath, Issue, JobNotFound, SpecError
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
from trialplane.job.kinds import CLASSES, Job, training
from trialplane.job.numeric import is_number

FILE = "job.yaml"
FOLDER = "jobs"
_PIPELINE = "dvc.yaml"  # of DVC, of which `platform init --from` makes a job
_BINARY_HEAD = 1024  # bytes at the beginning of a program, of which some are zero
_COMMENTED_PARAM = re.compile(r"""^[ \t]+# ["']?([\w.-]+)["']?: (.*)""", re.MULTILINE)  #   # momentum: 0.9


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
    if _is_compiled(path):
        program = f"{name_or_path if '/' in name_or_path else f'./{name_or_path}'} ARGUMENTS"
        remedy = (
            f"`platform init --from {shlex.quote(program)}` makes one, with the arguments that you type today, in quotes"
        )
        return JobNotFound(f"{name_or_path} is a program and no job; {remedy}", program)
    if _is_file(path) or len(name_or_path.split()) > 1:
        noun = "a file" if _is_file(path) else "a command"
        remedy = f"`platform init --from {shlex.quote(name_or_path)}` makes one"
        return JobNotFound(f"{name_or_path} is {noun} and no job; {remedy}", name_or_path)
    if _is_file(path / _PIPELINE):
        pipeline = str(Path(name_or_path, _PIPELINE))
        remedy = f"`platform init --from {shlex.quote(pipeline)}` makes one"
        return JobNotFound(f"{name_or_path} has a pipeline of DVC and no job; {remedy}", pipeline)
    if path.suffix == ".py":
        hint = errors.nearest(path.name, [file.name for file in path.parent.glob("*.py")])
        return JobNotFound(f"there is no script {name_or_path}; {hint}".rstrip("; "))
    searched = " and ".join(str(candidate / FILE) for candidate in candidates)
    job_names = [file.parent.name for file in folders[0].glob(f"*/{FILE}")] if folders else []
    hint = errors.nearest(name_or_path.rstrip("/").rpartition("/")[2], job_names)
    if not job_names:
        name = path.name or "NAME"  # the root folder has no name
        hint = f"there is no {FOLDER}/ folder here or above; `platform init {name}` makes a job; see `platform docs laptop`"
    above = next((folder for folder in path.absolute().parents if _is_file(folder / FILE)), None)
    if name_or_path == "." and above is not None:
        hint = f"{above} is a job: write {os.path.relpath(above, path)} in place of ."
    return JobNotFound(f"no job {name_or_path!r}: looked at {searched}; {hint}".rstrip("; "))


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
    source = _short_path(folder / (script or FILE))
    if script:
        job_file = Document(data={"kind": kind, "script": script}, lines={}, source=source)
    else:
        job_file = document.read(folder / FILE, source, "is empty; `platform init` writes one that runs")
    # First the job without a profile or an override, and with each profile.
    profiles, issues = _profiles(job_file)
    base = Draft.from_document(job_file)
    base.data["name"] = _job_name(folder / script)  # without a script, that of the folder
    if "name" in job_file.data:
        message = "is the name of the job's folder; drop this line"
        issues.append(Issue(("name",), message, source=source, line=job_file.lines[("name",)]))
    has_objective = "objective" in job_file.data
    base_judgment = verdict.judge(base, has_objective)
    for name in profiles:
        issues += _judge_profile(base, job_file, name, base_judgment)

    # Then the selected profile, and the layers over it.
    job_draft = base.copy()
    if profile in profiles:
        _apply_profile(job_draft, job_file, profile)
    elif profile is not None:
        hint = errors.nearest(profile, profiles) or "the job has no profiles"
        issues.append(Issue(("profiles",), f"there is no profile {profile!r}; {hint}", source="--profile"))
    _apply_environment(job_draft, environ or {})
    commented_params = {} if script else _commented_params(folder / FILE)
    if params:
        fixed_params.fix_parameters(job_draft, params, commented_params, accepts_new=bool(script))
    # Names that overrides may set: collected before the overrides, which would add their own. With an unknown profile, also
    # those of all profiles, because the user may have meant any.
    is_valid_profile = profile in (None, *profiles)
    profile_data = [] if is_valid_profile else [job_file.data["profiles"][name] for name in profiles]
    known_names = fixed_params.parameter_names(base.data, job_draft.data, *profile_data)
    overridden = _apply_overrides(job_draft, folder, sets, overrides or {}, commented_params, known_names)
    issues += fixed_params.override_issues(job_draft, overridden, known_names)
    if kind_issues := _kind_issues(job_draft, kind):  # other issues would be about the wrong kind
        raise SpecError(kind_issues)

    # At last the whole job, and the code that it names.
    judgment = verdict.judge(job_draft, has_objective, valid_paths=_valid_environment_paths(job_file, base_judgment))
    if script and judgment.job is not None and job_draft.data.get("arguments") is None:
        field = reach.default_arguments(judgment.job, folder)
        if field is not None:  # load all again, because parameters may be short for the names that a settings file has
            sets = (*sets, f"arguments={json.dumps(field)}")
            return load_job(
                folder,
                profile=profile,
                sets=sets,
                overrides=overrides,
                params=params,
                environ=environ,
                kind=kind,
                script=script,
            )
        issues += reach.unwritable_booleans(judgment.job, folder)
    issues += judgment.issues
    issues += _code_issues(job_draft, judgment, folder)
    if issues or judgment.job is None:
        raise SpecError(_sorted_issues(issues, source))
    return _with_absolute_links(judgment.job, folder)


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


def _values_in_settings_file(job_arguments: Any, folder: Path) -> Mapping[str, Any]:
    """Return the values in the settings file of a job, by dotted name; {} without one, or if it cannot be read."""
    name = job_arguments.get("file") if isinstance(job_arguments, dict) else job_arguments
    if not isinstance(name, str) or not (isinstance(job_arguments, dict) or name.endswith(settings.SUFFIXES)):
        return {}
    with contextlib.suppress(OSError, ValueError):  # an issue, which the validation finds
        return settings.values((folder / name).read_text(encoding="utf-8"), name)
    return {}


def _is_float(
    name: str, data: Mapping[str, Any], values_in_file: Mapping[str, Any], commented_params: Mapping[str, str]
) -> bool:
    """Return whether a parameter is a float: in a file, `params`, the space, the first point of `enqueue`, or a comment.

    Args:
        name: Name of the parameter.
        data: Fields of the job, which may be invalid.
        values_in_file: Values in the settings file of the job, by dotted name.
        commented_params: Texts of the parameters that the job file lists as comments, by name.
    """
    points = data.get("enqueue")
    first_point = points[0] if isinstance(points, list) and points else None
    sections = [data.get("params"), data.get("space"), first_point, values_in_file]
    definitions = [section[name] for section in sections if isinstance(section, dict) and name in section]
    with contextlib.suppress(SpecError):  # a comment may be any text
        definitions.append(document.scalar(commented_params.get(name, ""), name))
    # A value such as 0.1, or the fields of a range in the space
    return any(
        definition.get("type") == "float" if isinstance(definition, dict) else isinstance(definition, float)
        for definition in definitions
    )


def _apply_overrides(
    job_draft: Draft,
    folder: Path,
    sets: Sequence[str],
    overrides: Mapping[str, Any],
    commented_params: Mapping[str, str],
    known_names: Collection[str],
) -> dict[str, tuple[FieldPath, Any]]:
    """Apply `--set` and flags to a draft. If they change a training's GPUs, scale its other resources.

    Args:
        job_draft: Draft to change.
        folder: Folder of the job.
        sets: Assignments `field=value`.
        overrides: Dotted field → value or `Flag`.
        commented_params: Texts of the parameters that the job file lists as comments, by name.
        known_names: Names of all other parameters.

    Returns:
        Source of each override → its field and value.
    """
    without_overrides = job_draft.copy()
    overridden: dict[str, tuple[FieldPath, Any]] = {}
    for assignment_text in sets:
        try:
            field, value, source = document.assignment(assignment_text)
        except SpecError as error:
            job_draft.issues += error.issues
            continue
        field_path = draft.path(field, fixed_params.parameter_names(job_draft.data))
        job_draft.set(field_path, value, Origin(source))
        overridden[f"--set {assignment_text}"] = (field_path, value)
    values_in_file = _values_in_settings_file(job_draft.data.get("arguments"), folder)
    for field, value_or_flag in overrides.items():
        is_flag = isinstance(value_or_flag, Flag)
        value, source = value_or_flag if is_flag else (value_or_flag, "--" + field.replace("_", "-"))
        if value is None:
            continue
        field_path = draft.path(field, fixed_params.parameter_names(job_draft.data))
        is_space_flag = source.startswith("--space ")
        is_hydra = arguments.HYDRA in str(job_draft.data.get("arguments"))  # its configuration may have any other names
        if is_space_flag and not is_hydra:
            try:
                names = {*known_names, *commented_params, *values_in_file}
                name = fixed_params.full_name(str(field_path[1]), names, source, are_all_known=bool(values_in_file))
            except SpecError as error:
                job_draft.issues += error.issues
                continue
            field_path = ("space", name)
        if is_space_flag and _is_float(str(field_path[1]), without_overrides.data, values_in_file, commented_params):
            value = short_forms.with_float_range(value)  # `--space lr=0..1` has whole numbers, and lr is a float
        if source.startswith("--objective ") and job_draft.data.keys() & {"script", "command"}:
            value = [{**objective, "metric": mlflow_names.program_metric(objective["metric"])} for objective in value]
        job_draft.set(field_path, value, Origin(source))
        overridden[source] = (field_path, value)
    for name, amount in training.scaled_resources(without_overrides.data, job_draft.data).items():
        if job_draft.origin(("resources", name)).source not in overridden:  # an amount on the command line stays
            job_draft.data["resources"][name] = amount
    return overridden


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


def _valid_environment_paths(job_file: Document, base_judgment: verdict.Judgment) -> list[FieldPath]:
    """Return the paths of the entries of `environment` that are valid without a profile.

    An entry names a field that a variable sets. If a profile removes the field, the entry stays valid.
    """
    fields_with_issues = {issue.field for issue in base_judgment.issues}  # `broken` only says that some entry has one
    environment = job_file.data.get("environment")
    names = environment if isinstance(environment, dict) else {}
    return [("environment", name) for name in names if f"environment.{name}" not in fields_with_issues]


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


def _judge_profile(base: Draft, job_file: Document, name: str, base_judgment: verdict.Judgment) -> list[Issue]:
    """Return the issues that the job has only with a profile. All profiles are checked, also those that are not selected."""
    with_profile = base.copy()
    _apply_profile(with_profile, job_file, name)
    judgment = verdict.judge(
        with_profile, "objective" in job_file.data, valid_paths=_valid_environment_paths(job_file, base_judgment)
    )
    # An invalid field of the file may have another message with the profile; report it once.
    reported = {(issue.field, issue.line) for issue in base_judgment.issues}
    new_issues: list[Issue] = []
    for issue in judgment.issues:
        if (issue.field, issue.line) in reported:
            continue
        is_in_profile = issue.field_path[:2] == ("profiles", name)  # otherwise the message says which profile it concerns
        message = issue.message if is_in_profile else f"{issue.message} (with profile {name})"
        new_issues.append(dataclasses.replace(issue, message=message))
    return new_issues


def _apply_environment(job_draft: Draft, environ: Mapping[str, str]) -> None:
    """Set the fields that the job's `environment` names to the values of their variables. Add issues of invalid values.

    An empty variable changes nothing. If the field has a list so far, a variable may separate the new items by commas.
    """
    field_by_variable = job_draft.data.get("environment")
    for variable, field in field_by_variable.items() if isinstance(field_by_variable, dict) else ():
        text = environ.get(variable, "")
        if not text.strip() or not isinstance(field, str):
            continue
        field_path = draft.path(field, fixed_params.parameter_names(job_draft.data))
        old = job_draft.get(field_path)
        try:
            value = document.scalar(text, variable)
            if isinstance(old, list) and not isinstance(value, list):
                value = [document.scalar(part, variable) for part in text.split(",") if part.strip()]
        except SpecError:
            value = text  # a string that is not valid YAML
        is_null = value is None
        if is_number(old) and not is_number(value) and not is_null:
            job_draft.issues.append(Issue((field,), f"must be a number like {old}, not {text!r}", source=variable))
        else:
            job_draft.set(field_path, value, Origin(variable))


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
