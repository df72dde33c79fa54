"""From a name on the command line to a job that can run, or to every issue at once.

Layers, each winning over those before: the file, the profile, the environment, fixed parameters (`--params`), `--set`,
and the flags. Where the last two change a training's GPUs, its other resources grow or shrink with the ranks.
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
    """A value with the flag it came from, where that is not `--` and the field."""

    value: Any
    source: str


def find_job(name_or_path: str, search: Path) -> Path:
    """The folder of a job.

    Args:
        name_or_path: a name in the nearest `jobs/` of `search` and its parents, or the path of a folder or job.yaml.
        search: where to begin, mostly the working directory.

    Raises:
        JobNotFound: there is none; names what was looked at and the nearest.
    """
    try:
        place = Path(name_or_path).expanduser()
    except RuntimeError as error:
        raise JobNotFound(f"no job {name_or_path!r}: there is no such user") from error
    place = place if place.is_absolute() else search / place
    folders = [folder / FOLDER for folder in (search, *search.absolute().parents) if (folder / FOLDER).is_dir()]
    plain = name_or_path not in ("", ".", "..") and "/" not in name_or_path
    candidates = [folders[0] / name_or_path, place] if plain and folders else [place]
    for candidate in candidates:
        if candidate.name == FILE and _is_file(candidate):
            return candidate.parent
        if _is_file(candidate / FILE):
            return candidate
    if place.suffix == ".py":
        near = errors.nearest(place.name, [file.name for file in place.parent.glob("*.py")])
        if _is_file(place):
            raise JobNotFound(f"{name_or_path} is a script and no job; `platform init --from {name_or_path}` makes one")
        raise JobNotFound(f"there is no script {name_or_path}; {near}".rstrip("; "))
    looked = " and ".join(str(candidate / FILE) for candidate in candidates)
    known = [path.parent.name for path in folders[0].glob(f"*/{FILE}")] if folders else []
    hint = errors.nearest(name_or_path.rstrip("/").rpartition("/")[2], known)
    if not known:
        name = place.name or "NAME"
        hint = f"there is no {FOLDER}/ folder here or above; `platform init {name}` makes a job; see `platform docs laptop`"
    raise JobNotFound(f"no job {name_or_path!r}: looked at {looked}; {hint}".rstrip("; "))


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name too long for a file, or a folder that is closed
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
    """The job in a folder, with all overrides of a command line applied.

    Args:
        folder: holds job.yaml and the code.
        profile: name of one of the file's profiles.
        sets: `field=value` each, value in YAML: `space.lr.high=0.1`.
        overrides: dotted field → value, or → `Flag`; None stands for a flag that was not given.
        params: values to fix; such parameters are removed from the space.
        environ: variables, of which those in the job's `environment` are read; empty ones are not.
        kind: that the job must have; for another kind this is the only issue.
        script: a file of the folder that is the job, without a job.yaml; it needs a `kind`.

    Raises:
        SpecError: with every issue.
    """
    source = _shown(folder / (script or FILE))
    empty = "is empty; `platform init` writes one that runs"
    text = Document({"kind": kind, "script": script}, {}, source) if script else document.read(folder / FILE, source, empty)
    profiles, issues = _profiles(text)
    base = Draft.of(text, skip=("profiles",))
    singular = "objective" in text.data
    base.data["name"] = text.data.get("name", _name(Path(script or folder)))
    if "name" in text.data:
        message = "is the name of the job's folder; drop this line"
        issues.append(Issue(("name",), message, source, text.lines[("name",)]))
        base.data["name"] = _name(folder)

    plain = verdict.judge(base, singular)
    for name in profiles:
        issues += _judge_profile(base, text, name, plain, singular)
    whole = base.copy()
    if profile is not None and profile in profiles:
        _lay_profile(whole, text, profile)
    elif profile is not None:
        hint = errors.nearest(profile, profiles) or "the job has no profiles"
        issues.append(Issue(("profiles",), f"there is no profile {profile!r}; {hint}", "--profile"))
    _lay_environment(whole, environ or {})
    if params:
        fixed.lay(whole, params, takes_any=bool(script))
    others = profiles if profile is not None and profile not in profiles else ()  # one of them may have been meant
    known = fixed.named(base.data, whole.data, *(text.data["profiles"][name] for name in others))
    written = whole.copy()
    laid = {f"--set {given}": found for given in sets if (found := _lay_set(whole, given)) is not None}
    for field, value in (overrides or {}).items():
        flag = value if isinstance(value, Flag) else Flag(value, "--" + field.replace("_", "-"))
        if flag.value is not None:
            laid[flag.source] = (draft.path(field, fixed.named(whole.data)), flag.value)
            whole.set(*laid[flag.source], Origin(flag.source))
    for name, amount in training.scaled(written.data, whole.data).items():
        if whole.origin(("resources", name)).source not in laid:
            whole.data["resources"][name] = amount
    issues += fixed.refused(whole, laid, known)
    other = _of_another_kind(whole, kind)
    if other:
        raise SpecError(other)

    judged = verdict.judge(whole, singular, _settled(text, plain))
    issues += judged.issues
    issues += _check_code(whole, judged, folder)
    if issues or judged.job is None:
        order = {origin: index for index, origin in enumerate([source, *(c.source for c in issues)])}
        raise SpecError(sorted(dict.fromkeys(issues), key=lambda c: (c.source != source, order[c.source], c.line)))
    return judged.job


def _of_another_kind(whole: Draft, kind: str | None) -> list[Issue]:
    given = whole.data.get("kind")
    if kind is None or given == kind or given not in list(CLASSES):  # it may be anything that YAML holds
        return []
    origin = whole.origin(("kind",))
    name = whole.data["name"]
    message = f"is {given}, and not {kind}: `platform submit {given} {name}`"
    return [Issue(("kind",), message, origin.source, origin.line)]


def _settled(text: Document, plain: verdict.Verdict) -> list[Place]:
    """Variables that name a field of the file's job; a profile or a fixed parameter may take that field away."""
    wrong = {one.field for one in plain.issues}
    given = text.data.get("environment")
    names = given if isinstance(given, dict) else {}
    return [("environment", name) for name in names if f"environment.{name}" not in wrong]


def _name(path: Path) -> str:
    """The name of a job: that of its folder, or of its script, as jobs are named."""
    name = path.absolute().name.removesuffix(".py")
    return re.sub(r"[^a-z0-9_-]+", "-", name.lower())[:63].strip("-_") or "job"


def _shown(path: Path) -> str:
    """A path in its shortest form."""
    try:
        return str(path.absolute().relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _profiles(text: Document) -> tuple[list[str], list[Issue]]:
    """Names of the profiles that are mappings, and issues about the others."""
    given = text.data.get("profiles")
    if given is None:
        return [], []
    if not isinstance(given, dict):
        message = "must be a mapping of names to fields: max: {trials: 800}"
        return [], [Issue(("profiles",), message, text.source, text.lines[("profiles",)])]
    wrong = [
        Issue(("profiles", name), "must be a mapping of fields", text.source, text.lines[("profiles", name)])
        for name, fields in given.items()
        if not isinstance(fields, dict)
    ]
    return [name for name, fields in given.items() if isinstance(fields, dict)], wrong


def _lay_profile(base: Draft, text: Document, name: str) -> None:
    origins = {
        place[2:]: Origin(text.source, line, ("profiles", name))
        for place, line in text.lines.items()
        if place[:2] == ("profiles", name) and len(place) > 2
    }
    base.lay(text.data["profiles"][name], origins)


def _judge_profile(base: Draft, text: Document, name: str, plain: verdict.Verdict, singular: bool) -> list[Issue]:
    """Issues that the job has only with a profile, chosen or not."""
    trial = base.copy()
    _lay_profile(trial, text, name)
    # An invalid field of the file may have another message with the profile; report it once.
    known_fields = {(one.field, one.line) for one in plain.issues}
    found = [
        one
        for one in verdict.judge(trial, singular, _settled(text, plain)).issues
        if (one.field, one.line) not in known_fields
    ]
    return [
        one
        if one.place[:2] == ("profiles", name)
        else dataclasses.replace(one, message=f"{one.message} (with profile {name})")
        for one in found
    ]


def _lay_environment(whole: Draft, environ: Mapping[str, str]) -> None:
    variables = whole.data.get("environment")
    for variable, field in variables.items() if isinstance(variables, dict) else ():
        given = environ.get(variable, "")
        if not given.strip() or not isinstance(field, str):
            continue
        place = draft.path(field, fixed.named(whole.data))
        old = whole.get(place)
        try:
            value = document.scalar(given, variable)
            if isinstance(old, list) and not isinstance(value, list):
                value = [document.scalar(part, variable) for part in given.split(",") if part.strip()]
        except SpecError:
            value = given  # a plain string that is not valid YAML
        if _is_number(old) and not _is_number(value) and value is not None:
            whole.issues.append(Issue((field,), f"must be a number like {old}, not {given!r}", variable))
        else:
            whole.set(place, value, Origin(variable))


def _lay_set(whole: Draft, given: str) -> tuple[Place, Any] | None:
    """Lay `field=value` over the draft; give the two, or None after an issue."""
    try:
        field, value, source = document.assignment(given)
    except SpecError as error:
        whole.issues += error.issues
        return None
    place = draft.path(field, fixed.named(whole.data))
    whole.set(place, value, Origin(source))
    return place, value


def _check_code(whole: Draft, judged: verdict.Verdict, folder: Path) -> list[Issue]:
    """Issues of the files that the job names, where they are named."""
    if judged.sound is None or ("kind",) in judged.broken:  # a kind may have an entrypoint of its own
        return []
    found = list(entrypoint.check(judged.sound, folder, judged.broken))
    if ("requirements",) not in judged.broken and ("script",) not in judged.broken:
        found += requirements.of(judged.sound, folder, requirements.prefix(folder)).issues
    return [issue if issue.source else verdict.located(whole, issue) for issue in found]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
