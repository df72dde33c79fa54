"""From the name of a job on the command line to a job that can run, or to all of its issues at once.

A later layer wins over earlier ones: the file, the profile, the environment, fixed parameters (`--params`), `--set`,
and flags. If the last two change a training's GPUs, its other resources are scaled with the ranks.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from trialplane import errors
from trialplane.errors import Issue, JobNotFound, Place, SpecError
from trialplane.job import document, draft, entrypoint, fixed, requirements, verdict
from trialplane.job.document import Document
from trialplane.job.draft import Draft, Origin
from trialplane.job.kinds import CLASSES, Job, training

FILE = "job.yaml"
FOLDER = "jobs"


class Flag(NamedTuple):
    """A value with its flag, if that is not `--` and the field's name."""

    value: Any
    source: str


def find_job(name_or_path: str, search: Path) -> Path:
    """Return the folder of a job.

    Args:
        name_or_path: a name in the nearest `jobs/` of `search` and its parents, or the path of a folder or job.yaml.
        search: folder to start in, usually the working directory.

    Raises:
        JobNotFound: there is none; names the searched paths and similar jobs.
    """
    try:
        path = Path(name_or_path).expanduser()
    except RuntimeError as error:
        raise JobNotFound(f"no job {name_or_path!r}: there is no such user") from error
    path = path if path.is_absolute() else search / path
    folders = [folder / FOLDER for folder in (search, *search.absolute().parents) if (folder / FOLDER).is_dir()]
    plain = name_or_path not in ("", ".", "..") and "/" not in name_or_path
    candidates = [folders[0] / name_or_path, path] if plain and folders else [path]
    for candidate in candidates:
        if candidate.name == FILE and _is_file(candidate):
            return candidate.parent
        if _is_file(candidate / FILE):
            return candidate
    if path.suffix == ".py":
        near = errors.nearest(path.name, [file.name for file in path.parent.glob("*.py")])
        if _is_file(path):
            raise JobNotFound(f"{name_or_path} is a script and no job; `platform init --from {name_or_path}` makes one")
        raise JobNotFound(f"there is no script {name_or_path}; {near}".rstrip("; "))
    searched = " and ".join(str(candidate / FILE) for candidate in candidates)
    job_names = [path.parent.name for path in folders[0].glob(f"*/{FILE}")] if folders else []
    hint = errors.nearest(name_or_path.rstrip("/").rpartition("/")[2], job_names)
    if not job_names:
        name = path.name or "NAME"
        hint = f"there is no {FOLDER}/ folder here or above; `platform init {name}` makes a job; see `platform docs laptop`"
    raise JobNotFound(f"no job {name_or_path!r}: looked at {searched}; {hint}".rstrip("; "))


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that is too long, or a folder without access
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
        folder: folder with job.yaml and the code.
        profile: name of one of the file's profiles.
        sets: `field=value` each, value in YAML: `space.lr.high=0.1`.
        overrides: dotted field → value or `Flag`; None for a flag that was not used.
        params: fixed parameters, which are removed from the space.
        environ: environment; the variables in the job's `environment` are read unless they are empty.
        kind: required kind; for another kind this is the only issue.
        script: file in the folder that is the job, without a job.yaml; needs a `kind`.

    Raises:
        SpecError: the job has issues; contains all of them.
    """
    source = _shown(folder / (script or FILE))
    empty = "is empty; `platform init` writes one that runs"
    text = Document({"kind": kind, "script": script}, {}, source) if script else document.read(folder / FILE, source, empty)
    profiles, issues = _profiles(text)
    base = Draft.of(text, skip=("profiles",))
    has_objective = "objective" in text.data
    base.data["name"] = text.data.get("name", _name(Path(script or folder)))
    if "name" in text.data:
        message = "is the name of the job's folder; drop this line"
        issues.append(Issue(("name",), message, source, text.lines[("name",)]))
        base.data["name"] = _name(folder)

    plain = verdict.judge(base, has_objective)
    for name in profiles:
        issues += _judge_profile(base, text, name, plain, has_objective)
    job_draft = base.copy()
    if profile is not None and profile in profiles:
        _lay_profile(job_draft, text, profile)
    elif profile is not None:
        hint = errors.nearest(profile, profiles) or "the job has no profiles"
        issues.append(Issue(("profiles",), f"there is no profile {profile!r}; {hint}", "--profile"))
    _lay_environment(job_draft, environ or {})
    if params:
        fixed.lay(job_draft, params, takes_any=bool(script))
    others = profiles if profile is not None and profile not in profiles else ()  # the user may have meant one of them
    known_names = fixed.named(base.data, job_draft.data, *(text.data["profiles"][name] for name in others))
    written = job_draft.copy()
    overrides_by_source = {
        f"--set {assignment_text}": field_and_value
        for assignment_text in sets
        if (field_and_value := _lay_set(job_draft, assignment_text)) is not None
    }
    for field, value in (overrides or {}).items():
        flag = value if isinstance(value, Flag) else Flag(value, "--" + field.replace("_", "-"))
        if flag.value is not None:
            overrides_by_source[flag.source] = (draft.path(field, fixed.named(job_draft.data)), flag.value)
            job_draft.set(*overrides_by_source[flag.source], Origin(flag.source))
    for name, amount in training.scaled(written.data, job_draft.data).items():
        if job_draft.origin(("resources", name)).source not in overrides_by_source:
            job_draft.data["resources"][name] = amount
    issues += fixed.refused(job_draft, overrides_by_source, known_names)
    other = _of_another_kind(job_draft, kind)
    if other:
        raise SpecError(other)

    result = verdict.judge(job_draft, has_objective, _settled(text, plain))
    issues += result.issues
    issues += _check_code(job_draft, result, folder)
    if issues or result.job is None:
        order = {origin: index for index, origin in enumerate([source, *(issue.source for issue in issues)])}
        raise SpecError(
            sorted(dict.fromkeys(issues), key=lambda issue: (issue.source != source, order[issue.source], issue.line))
        )
    return result.job


def _of_another_kind(whole: Draft, kind: str | None) -> list[Issue]:
    actual_kind = whole.data.get("kind")
    if kind is None or actual_kind == kind or actual_kind not in list(CLASSES):  # it may be any YAML value
        return []
    origin = whole.origin(("kind",))
    name = whole.data["name"]
    message = f"is {actual_kind}, and not {kind}: `platform submit {actual_kind} {name}`"
    return [Issue(("kind",), message, origin.source, origin.line)]


def _settled(text: Document, plain: verdict.Judgment) -> list[Place]:
    """Return the variables that refer to valid fields of the file's job. A profile may remove these fields."""
    broken_fields = {issue.field for issue in plain.issues}
    environment = text.data.get("environment")
    names = environment if isinstance(environment, dict) else {}
    return [("environment", name) for name in names if f"environment.{name}" not in broken_fields]


def _name(path: Path) -> str:
    """Return the name of a job, from its folder or script, with valid characters."""
    name = path.absolute().name.removesuffix(".py")
    return re.sub(r"[^a-z0-9_-]+", "-", name.lower())[:63].strip("-_") or "job"


def _shown(path: Path) -> str:
    """Return a path in its shortest form."""
    try:
        return str(path.absolute().relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _profiles(text: Document) -> tuple[list[str], list[Issue]]:
    """Return the names of profiles that are mappings, and issues of the others."""
    profiles = text.data.get("profiles")
    if profiles is None:
        return [], []
    if not isinstance(profiles, dict):
        message = "must be a mapping of names to fields: max: {trials: 800}"
        return [], [Issue(("profiles",), message, text.source, text.lines[("profiles",)])]
    wrong = [
        Issue(("profiles", name), "must be a mapping of fields", text.source, text.lines[("profiles", name)])
        for name, fields in profiles.items()
        if not isinstance(fields, dict)
    ]
    return [name for name, fields in profiles.items() if isinstance(fields, dict)], wrong


def _lay_profile(base: Draft, text: Document, name: str) -> None:
    origins = {
        field_path[2:]: Origin(text.source, line, ("profiles", name))
        for field_path, line in text.lines.items()
        if field_path[:2] == ("profiles", name) and len(field_path) > 2
    }
    base.lay(text.data["profiles"][name], origins)


def _judge_profile(base: Draft, text: Document, name: str, plain: verdict.Judgment, singular: bool) -> list[Issue]:
    """Return issues that the job only has with a profile, selected or not."""
    trial = base.copy()
    _lay_profile(trial, text, name)
    # An invalid field of the file may have another message with the profile; report it once.
    reported = {(issue.field, issue.line) for issue in plain.issues}
    new_issues = [
        issue
        for issue in verdict.judge(trial, singular, _settled(text, plain)).issues
        if (issue.field, issue.line) not in reported
    ]
    return [
        issue
        if issue.place[:2] == ("profiles", name)
        else dataclasses.replace(issue, message=f"{issue.message} (with profile {name})")
        for issue in new_issues
    ]


def _lay_environment(whole: Draft, environ: Mapping[str, str]) -> None:
    variables = whole.data.get("environment")
    for variable, field in variables.items() if isinstance(variables, dict) else ():
        text = environ.get(variable, "")
        if not text.strip() or not isinstance(field, str):
            continue
        field_path = draft.path(field, fixed.named(whole.data))
        old = whole.get(field_path)
        try:
            value = document.scalar(text, variable)
            if isinstance(old, list) and not isinstance(value, list):
                value = [document.scalar(part, variable) for part in text.split(",") if part.strip()]
        except SpecError:
            value = text  # a plain string that is not valid YAML
        if _is_number(old) and not _is_number(value) and value is not None:
            whole.issues.append(Issue((field,), f"must be a number like {old}, not {text!r}", variable))
        else:
            whole.set(field_path, value, Origin(variable))


def _lay_set(whole: Draft, assignment_text: str) -> tuple[Place, Any] | None:
    """Apply `field=value` to the draft. Return the field and the value, or None after an issue."""
    try:
        field, value, source = document.assignment(assignment_text)
    except SpecError as error:
        whole.issues += error.issues
        return None
    field_path = draft.path(field, fixed.named(whole.data))
    whole.set(field_path, value, Origin(source))
    return field_path, value


def _check_code(whole: Draft, judged: verdict.Judgment, folder: Path) -> list[Issue]:
    """Return issues of the files that the job names, with the lines that name them."""
    if judged.sound is None or ("kind",) in judged.broken:  # the default entrypoint depends on the kind
        return []
    issues = list(entrypoint.check(judged.sound, folder, judged.broken))
    if ("requirements",) not in judged.broken and ("script",) not in judged.broken:
        issues += requirements.of(judged.sound, folder, requirements.prefix(folder)).issues
    return [issue if issue.source else verdict.located(whole, issue) for issue in issues]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
