"""What MLflow's door lets through: the endpoints, with the meaning of each field, and what must hold before one is called.

Pure: a request becomes a `Call`, which says what MLflow is sent and which runs, logged models and experiments it names; the
door (`mlflow`) looks up whose these are. What is sent is written anew from the fields that are known here, so MLflow reads
no other spelling of a field, no second value and no path than the ones that were checked.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import re
import urllib.parse
from collections.abc import Mapping
from typing import Any

from trialplane.gateway.records import TAGS, Run
from trialplane.wire import labels

# Errors as MLflow's client knows them. The first makes the recorder retry, the others make it leave out what was refused.
DENIED = "PERMISSION_DENIED"
UNKNOWN = "RESOURCE_DOES_NOT_EXIST"
INVALID = "INVALID_PARAMETER_VALUE"
NO_ENDPOINT = "ENDPOINT_NOT_FOUND"
FULL = "RESOURCE_LIMIT_EXCEEDED"  # which the recorder tries again

_API = "/api/2.0/mlflow/"
_ARTIFACTS = "/api/2.0/mlflow-artifacts/artifacts"
_ID = re.compile(r"[0-9A-Za-z_-]{1,64}")
_CODINGS = 8  # how often a path may be encoded that is looked into


class Refused(Exception):
    """A request that the door does not let through: a status of HTTP, a code as MLflow's client knows it, and a text."""

    def __init__(self, status: int, code: str, text: str) -> None:
        self.status, self.code = status, code
        super().__init__(text)


class Field(enum.Enum):
    """What a field of a request is; what names something must name what is the run's."""

    PLAIN = enum.auto()
    RUN = enum.auto()
    MODEL = enum.auto()  # id of a logged model
    REGISTERED = enum.auto()  # name of a registered model
    MODELS = enum.auto()  # entries with such ids
    METRICS = enum.auto()
    EXPERIMENT = enum.auto()
    EXPERIMENTS = enum.auto()
    JOB = enum.auto()  # name of the experiment
    TAGS = enum.auto()
    TAG = enum.auto()  # name of a tag
    FILTER = enum.auto()
    FOLDER = enum.auto()
    SOURCE = enum.auto()  # URI of artifacts of the run


F = Field


@dataclasses.dataclass(frozen=True)
class Endpoint:
    """One endpoint.

    Attributes:
        fields: by name; a request with another one is refused.
        needs: the field that a request must have.
        marks: of something that it makes, the tags by which that is the run's, or its namespace's.
    """

    fields: Mapping[str, Field]
    needs: str = "run_id"
    marks: tuple[str, ...] = ()


def _of_run(**more: Field) -> Endpoint:
    return Endpoint({"run_id": F.RUN, "run_uuid": F.RUN, **more})


def _plain(*names: str) -> dict[str, Field]:
    return dict.fromkeys(names, F.PLAIN)


_SEARCH = {"experiment_ids": F.EXPERIMENTS, "filter": F.FILTER, **_plain("max_results", "order_by", "page_token")}
_ENDPOINTS: Mapping[tuple[str, str], Endpoint] = {
    ("POST", "experiments/create"): Endpoint({"name": F.JOB}, "name"),
    ("GET", "experiments/get"): Endpoint({"experiment_id": F.EXPERIMENT}, "experiment_id"),
    ("GET", "experiments/get-by-name"): Endpoint({"experiment_name": F.JOB}, "experiment_name"),
    ("POST", "runs/create"): Endpoint(
        {"experiment_id": F.EXPERIMENT, "tags": F.TAGS, **_plain("user_id", "run_name", "start_time")}, "experiment_id", TAGS
    ),
    ("POST", "runs/update"): _of_run(**_plain("status", "end_time", "run_name")),
    ("POST", "runs/delete"): _of_run(),
    ("GET", "runs/get"): _of_run(),
    ("POST", "runs/log-metric"): _of_run(
        model_id=F.MODEL, **_plain("key", "value", "timestamp", "step", "dataset_name", "dataset_digest")
    ),
    ("POST", "runs/log-parameter"): _of_run(**_plain("key", "value")),
    ("POST", "runs/log-batch"): _of_run(metrics=F.METRICS, params=F.PLAIN, tags=F.TAGS),
    ("POST", "runs/log-inputs"): _of_run(datasets=F.PLAIN, models=F.MODELS),
    ("POST", "runs/outputs"): _of_run(models=F.MODELS),
    ("POST", "runs/log-model"): _of_run(model_json=F.PLAIN),
    ("POST", "runs/set-tag"): _of_run(key=F.TAG, value=F.PLAIN),
    ("POST", "runs/delete-tag"): _of_run(key=F.TAG),
    ("POST", "runs/search"): Endpoint({**_SEARCH, "run_view_type": F.PLAIN}, "experiment_ids"),
    ("GET", "artifacts/list"): _of_run(path=F.FOLDER, page_token=F.PLAIN),
    ("GET", "metrics/get-history"): _of_run(**_plain("metric_key", "page_token", "max_results")),
    ("POST", "logged-models"): Endpoint(
        {"source_run_id": F.RUN, "experiment_id": F.EXPERIMENT, "tags": F.TAGS, **_plain("name", "model_type", "params")},
        "source_run_id",
        TAGS,
    ),
    ("POST", "logged-models/search"): Endpoint({**_SEARCH, "datasets": F.PLAIN}, "experiment_ids"),
    ("GET", "logged-models/{}"): Endpoint({"model_id": F.MODEL}, "model_id"),
    ("PATCH", "logged-models/{}"): Endpoint({"model_id": F.MODEL, "status": F.PLAIN}, "model_id"),
    ("POST", "logged-models/{}/params"): Endpoint({"model_id": F.MODEL, "params": F.PLAIN}, "model_id"),
    ("PATCH", "logged-models/{}/tags"): Endpoint({"model_id": F.MODEL, "tags": F.TAGS}, "model_id"),
    ("POST", "registered-models/create"): Endpoint(
        {"tags": F.TAGS, **_plain("name", "description")}, "name", (labels.NAMESPACE,)
    ),
    ("POST", "model-versions/create"): Endpoint(
        {
            "run_id": F.RUN,
            "model_id": F.MODEL,
            "source": F.SOURCE,
            "name": F.REGISTERED,
            "tags": F.TAGS,
            "description": F.PLAIN,
        },
        "source",
        (labels.NAMESPACE,),
    ),
    ("GET", "model-versions/get"): Endpoint({"name": F.REGISTERED, "version": F.PLAIN}, "name"),
}


@dataclasses.dataclass(frozen=True)
class Call:
    """A request that MLflow may be sent once everything that it names is known to be the run's.

    Attributes:
        method, target: of HTTP.
        body: JSON; None for none, or for an artifact, whose bytes follow.
        runs, models, experiments: ids.
        roots: id → the folder of artifacts that it must have; of URIs without their scheme and host.
        registered: name of a registered model; "" for none.
        makes: whether the answer describes a run that is new.
    """

    method: str
    target: str
    body: dict[str, Any] | None = None
    runs: frozenset[str] = frozenset()
    models: frozenset[str] = frozenset()
    experiments: frozenset[str] = frozenset()
    roots: Mapping[str, str] = dataclasses.field(default_factory=dict)
    registered: str = ""
    makes: bool = False


class _Names:
    """What one request names."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.runs: set[str] = set()
        self.models: set[str] = set()
        self.experiments: set[str] = set()
        self.source = ""
        self.registered = ""

    def take(self, name: str, kind: Field, value: Any) -> Any:
        """Notes what a field names, and returns the value that is sent."""
        match kind:
            case F.RUN | F.MODEL | F.EXPERIMENT:
                if value == "" and kind is F.MODEL:
                    return value
                known = {F.RUN: self.runs, F.MODEL: self.models, F.EXPERIMENT: self.experiments}[kind]
                known.add(_id(name, value))
            case F.EXPERIMENTS:
                self.experiments |= {_id(name, one) for one in _list(name, value)}
            case F.MODELS:
                value = [_entry(name, one, ("model_id", "step")) for one in _list(name, value)]
                self.models |= {_id(f"{name}.model_id", one.get("model_id")) for one in value}
            case F.METRICS:
                fields = ("key", "value", "timestamp", "step", "model_id", "dataset_name", "dataset_digest", "run_id")
                value = [_entry(name, one, fields) for one in _list(name, value)]
                self.models |= {_id(f"{name}.model_id", one["model_id"]) for one in value if one.get("model_id")}
                self.runs |= {_id(f"{name}.run_id", one["run_id"]) for one in value if one.get("run_id")}
            case F.JOB if value != self.run.job:
                raise Refused(403, DENIED, f"runs of {self.run.job} have the experiment of that name, and not {value!r:.80}")
            case F.JOB:
                value = self.run.experiment
            case F.TAGS:
                value = [_entry(name, one, ("key", "value")) for one in _list(name, value)]
                for one in value:
                    self.tag(one.get("key"), one.get("value"))
            case F.FILTER:
                value = self.only(_text(name, value))
            case F.FOLDER:
                _parts(_text(name, value))
            case F.REGISTERED:
                self.registered = value = _text(name, value)
            case F.SOURCE:
                self.source = _text(name, value)
        return value

    def tag(self, key: Any, value: Any) -> None:
        """A tag that is to be set; None in place of the value for one that is to be deleted."""
        key = _text("key", key)
        own = self.run.tags
        if key in own and value != own[key]:
            raise Refused(403, DENIED, f"the tag {key} says whose this is: in {self.run.name} it stays {own[key]!r}")
        if key == labels.PARENT and value is not None:
            self.runs.add(_id(labels.PARENT, value))

    def only(self, query: str) -> str:
        """A filter that finds the run's own alone: its experiment is of its namespace, and a deleted run had another record.

        Ours stands first, so the rest cannot comment it out; there is no OR.
        """
        own = " and ".join(f"tags.`{key}` = '{self.run.tags[key]}'" for key in (labels.RUN, labels.RECORD))
        return f"{own} and {query}" if query.strip() else own


def call(run: Run, method: str, path: str, query: str, body: bytes) -> Call:
    """The call that a request of a run asks for.

    Args:
        run: the run.
        method: of HTTP.
        path: below the door, as it came.
        query: what came after the `?`.
        body: all of it; b"" for a GET.

    Raises:
        Refused: it is no call that the door lets through.
    """
    endpoint, model = _endpoint(method, path)
    given = _query(query) if method == "GET" else _object(body)
    if model and given.setdefault("model_id", model) != model:
        raise Refused(400, INVALID, "model_id is not the one in the path")
    names = _Names(run)
    if method == "POST" and F.FILTER in endpoint.fields.values():
        given.setdefault("filter", "")
    for name in given:
        if name not in endpoint.fields:
            raise Refused(400, INVALID, f"the gateway does not know the field {name!r:.80} of {method} {path:.80}")
    if given.get(endpoint.needs) in (None, "", []) and not given.get("run_uuid"):  # a run's former name of the field
        raise Refused(400, INVALID, f"{method} {path:.80} needs the field {endpoint.needs}")
    sent = {name: names.take(name, endpoint.fields[name], value) for name, value in given.items()}
    if endpoint.fields.get("key") is F.TAG:
        names.tag(sent.get("key"), sent.get("value") if path.endswith("set-tag") else None)
    if endpoint.marks:
        rest = [tag for tag in sent.get("tags", ()) if tag.get("key") not in run.tags]
        sent["tags"] = [*rest, *({"key": key, "value": run.tags[key]} for key in endpoint.marks)]
    return Call(
        method,
        f"{path}?{urllib.parse.urlencode(sent)}" if method == "GET" else path,
        None if method == "GET" else sent,
        frozenset(names.runs),
        frozenset(names.models),
        frozenset(names.experiments),
        _source_root(names.source, names.runs, names.models) if names.source else {},
        registered=names.registered,
        makes=bool(endpoint.marks) and endpoint.needs == "experiment_id",
    )


def artifact(method: str, path: str, query: str) -> Call | None:
    """The transfer of an artifact, or a list of them, that a request asks for; None if it asks for something else.

    Raises:
        Refused: the path is not one below a run's artifacts.
    """
    if path == _ARTIFACTS and method == "GET":
        given = _query(query)
        if set(given) != {"path"}:
            raise Refused(400, INVALID, "a list of artifacts needs the field path, and no other one")
        parts = _parts(given["path"])
        return _below(method, f"{_ARTIFACTS}?{urllib.parse.urlencode({'path': '/'.join(parts)})}", parts, listed=True)
    if not path.startswith(f"{_ARTIFACTS}/") or method not in ("GET", "PUT"):
        return None
    if query:
        raise Refused(400, INVALID, "an artifact's address has no query")
    try:
        parts = _parts(urllib.parse.unquote(path.removeprefix(f"{_ARTIFACTS}/"), errors="strict"))
    except UnicodeDecodeError as error:
        raise Refused(400, INVALID, "an artifact's path is not UTF-8") from error
    return _below(method, f"{_ARTIFACTS}/{urllib.parse.quote('/'.join(parts))}", parts, listed=False)


def root(uri: str) -> str:
    """The folder of artifacts that MLflow's server keeps, of the URI of a run's; "" where clients go elsewhere with them."""
    found = urllib.parse.urlsplit(uri)
    return found.path.strip("/") if found.scheme == "mlflow-artifacts" else ""


def _endpoint(method: str, path: str) -> tuple[Endpoint, str]:
    """The endpoint, and the id of a logged model that is in the path, or ""."""
    name = path.removeprefix(_API) if path.startswith(_API) else ""
    if (found := _ENDPOINTS.get((method, name))) is not None and "{" not in name:
        return found, ""
    parts = name.split("/")
    if parts[0] == "logged-models" and len(parts) > 1 and _ID.fullmatch(parts[1]):
        found = _ENDPOINTS.get((method, "/".join([parts[0], "{}", *parts[2:]])))
        if found is not None:
            return found, parts[1]
    text = f"the gateway lets through what logging to MLflow needs, and {method} {path:.120} is not part of that"
    raise Refused(404, NO_ENDPOINT, text)


def _below(method: str, target: str, parts: list[str], *, listed: bool) -> Call:
    """The call for a path that must lie below the artifacts of the run, or logged model, whose id is in it."""
    if "artifacts" not in parts[1:]:
        raise Refused(403, UNKNOWN, f"{'/'.join(parts):.120} is not a path below a run's artifacts")
    end = parts.index("artifacts", 1) + 1
    if end == len(parts) and not listed:
        raise Refused(400, INVALID, "an artifact's path ends with its name")
    owner = _id("the path's id", parts[end - 2])
    runs, models = (set(), {owner}) if owner.startswith("m-") else ({owner}, set())
    roots = {owner: "/".join(parts[:end])}
    return Call(method, target, None, frozenset(runs), frozenset(models), roots=roots)


def _source_root(source: str, runs: set[str], models: set[str]) -> dict[str, str]:
    """Id of the run or logged model → the folder in which the source of a registered model lies."""
    uri = urllib.parse.urlsplit(source)
    if uri.scheme == "models" and models and uri.path.strip("/") in models and not (uri.netloc or uri.query):
        return {}
    parts = _parts(uri.path.strip("/"))
    if uri.scheme == "mlflow-artifacts" and "artifacts" in parts[1:] and not (uri.query or uri.fragment):
        end = parts.index("artifacts", 1) + 1
        if parts[end - 2] in runs | models:
            return {parts[end - 2]: "/".join(parts[:end])}
    raise Refused(403, DENIED, f"a model that a run registers is one of its artifacts, and {source!r:.120} is not")


def _parts(path: str) -> list[str]:
    """A relative path's parts.

    Raises:
        Refused: whatever way it is read, it might lead elsewhere.
    """
    text = path
    for _ in range(_CODINGS):
        inner = text.replace("\\", "/").split("/")
        if ".." in inner or "." in inner or "" in inner[:-1] or any(ord(sign) < 32 or sign == "\x7f" for sign in text):
            raise Refused(400, INVALID, f"{path!r:.120} is not a plain relative path")
        if (decoded := urllib.parse.unquote(text)) == text:
            return [part for part in path.split("/") if part]
        text = decoded
    raise Refused(400, INVALID, f"{path!r:.120} is encoded too often")


def _query(text: str) -> dict[str, Any]:
    try:
        pairs = urllib.parse.parse_qsl(text, keep_blank_values=True, strict_parsing=bool(text), max_num_fields=20)
    except ValueError as error:
        raise Refused(400, INVALID, "the query cannot be read") from error
    if len(dict(pairs)) < len(pairs):
        raise Refused(400, INVALID, "a field of the query occurs twice")
    return dict(pairs)


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body or b"{}")
    except (ValueError, RecursionError) as error:
        raise Refused(400, INVALID, "the body is no JSON") from error
    if not isinstance(found, dict):
        raise Refused(400, INVALID, "the body is no JSON object")
    return {name: value for name, value in found.items() if value is not None}


def _entry(name: str, value: Any, fields: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(value, dict) or not set(value) <= set(fields):
        raise Refused(400, INVALID, f"an entry of {name} has {', '.join(fields)}, and nothing else")
    return value


def _list(name: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise Refused(400, INVALID, f"{name} must be a list")
    return value


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise Refused(400, INVALID, f"{name} must be a text")
    return value


def _id(name: str, value: Any) -> str:
    if not isinstance(value, str) or not _ID.fullmatch(value):
        raise Refused(400, INVALID, f"{name} is no id of MLflow: {value!r:.80}")
    return value
