"""What MLflow's pages ask for: the requests that only read, with the things that each names.

Pure: a request becomes a `Question`; the door (`mlflow`) looks up in which namespace the things that it names are. As for
runs (`mlflow_calls`) what is sent is written anew from the fields that are known here; others are left out, as each version
of the pages has a few more.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import re
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from trialplane.gateway.mlflow_calls import DENIED, INVALID, Refused
from trialplane.wire import labels
from trialplane.wire.mlflow import Scope

EXPERIMENTS, REGISTERED, VERSIONS = "experiments", "registered_models", "model_versions"  # lists in answers
MAX_NAMED = 200  # things in one request: MLflow is asked whose each is

_ID = re.compile(r"[0-9A-Za-z_-]{1,64}")
_STATIC = re.compile(r"/(?:static-files/.*|version|health)?")
_API = re.compile(r"/(?:ajax-)?api/[23]\.0/mlflow/(.+)")
_COMPONENT = re.compile(r'@component\(name: "[\w.]+"\)')
_ROOTS = re.compile(r"\bmlflow[A-Z]\w*")
_KNOWN_ROOTS = frozenset(
    ("mlflowGetExperiment", "mlflowGetRun", "mlflowGetMetricHistoryBulkInterval", "mlflowListArtifacts", "mlflowSearchRuns")
)


class Field(enum.Enum):
    """What a field of a request names; one of these may be given several times."""

    PLAIN = enum.auto()
    RUN = enum.auto()
    MODEL = enum.auto()  # id of a logged model
    EXPERIMENT = enum.auto()
    LOCATION = enum.auto()  # an experiment, as traces have it
    EXPERIMENT_NAME = enum.auto()
    REGISTERED = enum.auto()  # name of a registered model


F = Field


@dataclasses.dataclass(frozen=True)
class Question:
    """A request that only reads, and may be passed on once all that it names is known to be its user's.

    Attributes:
        target, body: of the request as it is sent.
        runs, models, experiments: ids.
        experiment_names: of experiments.
        registered: names of registered models.
        lists: the list in the answer that must be reduced to what is the user's; "" for none.
        goes_on: whether the answer may say that the list goes on. By a filter of the user's alone that would tell him which
            of others' entries match it.
    """

    target: str
    body: bytes = b""
    runs: frozenset[str] = frozenset()
    models: frozenset[str] = frozenset()
    experiments: frozenset[str] = frozenset()
    experiment_names: frozenset[str] = frozenset()
    registered: frozenset[str] = frozenset()
    lists: str = ""
    goes_on: bool = True


def _of(kind: Field, *names: str, plain: str = "") -> dict[str, Field]:
    return dict.fromkeys(names, kind) | dict.fromkeys(plain.split(), F.PLAIN)


_LIST = "filter max_results order_by page_token"
_RUN = ("run_id", "run_uuid")
_VERSION = _of(F.REGISTERED, "name", plain="version")
_QUESTIONS: Mapping[str, Mapping[str, Field]] = {
    "GET experiments/search": _of(F.PLAIN, plain=f"{_LIST} view_type"),
    "POST experiments/search": _of(F.PLAIN, plain=f"{_LIST} view_type"),
    "GET experiments/get": _of(F.EXPERIMENT, "experiment_id"),
    "GET experiments/get-by-name": _of(F.EXPERIMENT_NAME, "experiment_name"),
    "POST experiments/search-datasets": _of(F.EXPERIMENT, "experiment_ids"),
    "POST runs/search": _of(F.EXPERIMENT, "experiment_ids", plain=f"{_LIST} run_view_type"),
    "GET runs/get": _of(F.RUN, *_RUN),
    "GET metrics/get-history": _of(F.RUN, *_RUN, plain="metric_key page_token max_results"),
    "GET metrics/get-history-bulk": _of(F.RUN, "run_id", plain="metric_key max_results"),
    "GET metrics/get-history-bulk-interval": _of(F.RUN, "run_ids", plain="metric_key start_step end_step max_results"),
    "GET artifacts/list": _of(F.RUN, *_RUN, plain="path page_token"),
    "GET artifacts/presigned-download-url": _of(F.RUN, *_RUN, plain="path"),
    "GET get-artifact": _of(F.RUN, *_RUN, plain="path"),
    "POST logged-models/search": _of(F.EXPERIMENT, "experiment_ids", plain=f"{_LIST} datasets"),
    "GET logged-models/{}": _of(F.MODEL),
    "GET logged-models/{}/artifacts/directories": _of(F.MODEL, plain="artifact_directory_path page_token"),
    "GET logged-models/{}/artifacts/files": _of(F.MODEL, plain="artifact_file_path"),
    "GET registered-models/search": _of(F.PLAIN, plain=_LIST),
    "GET registered-models/get": _of(F.REGISTERED, "name"),
    "GET registered-models/alias": _of(F.REGISTERED, "name", plain="alias"),
    "GET registered-models/get-latest-versions": _of(F.REGISTERED, "name", plain="stages"),
    "GET model-versions/search": _of(F.PLAIN, plain=_LIST),
    "GET model-versions/get": _VERSION,
    "GET model-versions/get-download-uri": _VERSION,
    "GET model-versions/get-artifact": {**_VERSION, "path": F.PLAIN},
    "GET traces": _of(F.EXPERIMENT, "experiment_ids", plain=_LIST),
    "POST traces/search": _of(F.LOCATION, "locations", plain=_LIST),
    "POST datasets/search": _of(F.EXPERIMENT, "experiment_ids", plain="filter_string max_results order_by page_token"),
    "GET server-info": {},
}
_LISTS = {
    "experiments/search": EXPERIMENTS,
    "registered-models/search": REGISTERED,
    "model-versions/search": VERSIONS,
}


def question(scope: Scope, method: str, target: str, body: Callable[[], bytes]) -> Question:
    """What a request of MLflow's pages asks for.

    Args:
        scope: of the user's namespace.
        method: of HTTP.
        target: behind the door of users, with its query.
        body: reads all of it.

    Raises:
        Refused: it is none that the pages read with, or it does not say of what.
    """
    path, _, query = target.partition("?")
    if "%" in path or ".." in path or "//" in path:
        raise _not_reading(method, target)
    if method == "GET" and _STATIC.fullmatch(path):
        return Question(target)
    if method == "POST" and path == "/graphql":
        return _graphql(body())
    in_api = _API.fullmatch(path)
    name = in_api[1] if in_api else path[1:] if path.endswith("/get-artifact") else ""
    model, known = "", _QUESTIONS.get(f"{method} {name}")
    if known is None and name.startswith("logged-models/"):
        _, model, rest = [*name.split("/", 2), ""][:3]
        known = _QUESTIONS.get(f"{method} logged-models/{{}}{'/' if rest else ''}{rest}")
    if known is None:
        raise _not_reading(method, target)
    given = urllib.parse.parse_qs(query, keep_blank_values=True) if method == "GET" else _object(body())
    sent = {field: value for field, value in given.items() if field in known}
    goes_on = True
    if lists := _LISTS.get(name, ""):
        own, theirs = _own(scope, lists), sent.get("filter") or ""
        theirs = theirs[0] if isinstance(theirs, list) else theirs
        goes_on = bool(own) or not theirs
        sent |= {"filter": " AND ".join(filter(None, (own, theirs)))} if own else {}
    named: dict[Field, set[str]] = {kind: set() for kind in F}
    for field, value in sent.items():
        if known[field] is not F.PLAIN:
            named[known[field]].update(_named(known[field], field, value))
    if model:
        named[F.MODEL].add(_id("the path", model))
    if not set(known.values()) <= {F.PLAIN} and not any(named[kind] for kind in F):
        raise Refused(400, INVALID, f"{method} {path:.120} must say of what")
    _check_number(sum(map(len, named.values())))
    return Question(
        f"{path}?{urllib.parse.urlencode(sent, doseq=True)}" if method == "GET" and sent else path,
        b"" if method == "GET" else json.dumps(sent).encode(),
        frozenset(named[F.RUN]),
        frozenset(named[F.MODEL]),
        frozenset(named[F.EXPERIMENT] | named[F.LOCATION]),
        frozenset(named[F.EXPERIMENT_NAME]),
        frozenset(named[F.REGISTERED]),
        lists,
        goes_on,
    )


def _own(scope: Scope, lists: str) -> str:
    """A filter by which MLflow leaves most of others' out, so that pages are full; "" where it knows none.

    What is not the user's is taken out of the answer in any case.
    """
    if scope.is_control:  # to whom also belongs what has no tag
        return ""
    return (
        f"name LIKE '{scope.experiment('%')}'"
        if lists == EXPERIMENTS
        else f"tags.`{labels.NAMESPACE}` = '{scope.namespace}'"
    )


def _not_reading(method: str, target: str) -> Refused:
    text = "MLflow is read-only here: its records are written by runs"
    return Refused(403, DENIED, f"{text}, and {method} {target:.120} is not a request that only reads")


def _named(kind: Field, field: str, value: Any) -> Iterator[str]:
    for one in value if isinstance(value, list) else [value]:
        if kind is F.LOCATION:
            place = one.get("mlflow_experiment") if isinstance(one, dict) and len(one) <= 2 else None
            if (
                not isinstance(place, dict)
                or set(place) != {"experiment_id"}
                or not set(one) <= {"type", "mlflow_experiment"}
            ):
                raise Refused(400, INVALID, f"{field} must name experiments")
            yield _id(field, place["experiment_id"])
        elif kind in (F.EXPERIMENT_NAME, F.REGISTERED):
            if not isinstance(one, str):
                raise Refused(400, INVALID, f"{field} must be a text")
            yield one
        else:
            yield _id(field, one)


def _graphql(body: bytes) -> Question:
    """A query in GraphQL; all that it names must be in variables that are objects, so it need not be parsed to know that."""
    given = _object(body)
    text, variables = given.get("query"), given.get("variables") or {}
    if not isinstance(text, str) or not isinstance(variables, dict):
        raise Refused(400, INVALID, "a question in GraphQL has a query and variables")
    plain = _COMPONENT.sub("", text)
    roots = set(_ROOTS.findall(plain))
    if "mutation" in plain.lower() or "subscription" in plain.lower() or not roots <= _KNOWN_ROOTS:
        raise Refused(403, DENIED, "MLflow is read-only here, and this is no question that its pages ask")
    if set(plain) & set('"#'):
        raise Refused(403, DENIED, "what a question in GraphQL names must be in its variables")
    # The fields of an object have the names of MLflow's schema. A variable of another type has the query's own name, and may
    # be anywhere in it.
    if not all(isinstance(value, dict) for value in variables.values()):
        raise Refused(403, DENIED, "each variable of a question in GraphQL must be an object, as MLflow's pages ask")
    runs, experiments = set[str](), set[str]()
    _walk(variables, runs, experiments)
    _check_number(len(runs) + len(experiments))
    sent = {"query": text, "variables": variables, "operationName": given.get("operationName")}
    return Question("/graphql", json.dumps(sent).encode(), runs=frozenset(runs), experiments=frozenset(experiments))


def _check_number(named: int) -> None:
    if named > MAX_NAMED:
        text = f"one request names {named} things of MLflow, and {MAX_NAMED} is the most; ask for fewer"
        raise Refused(400, INVALID, text)


def _walk(value: Any, runs: set[str], experiments: set[str]) -> None:
    """Collects the ids in variables, whose fields have these names in all that MLflow knows."""
    for name, inner in value.items():
        words = name.lower().replace("_", "").removesuffix("s")
        if (found := {"runid": runs, "runuuid": runs, "experimentid": experiments}.get(words)) is not None:
            found.update(_id(name, one) for one in (inner if isinstance(inner, list) else [inner]) if one is not None)
        else:
            for one in inner if isinstance(inner, list) else [inner]:
                if isinstance(one, dict):
                    _walk(one, runs, experiments)


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body or b"{}")
    except (ValueError, RecursionError) as error:
        raise Refused(400, INVALID, "the body is no JSON") from error
    if not isinstance(found, dict):
        raise Refused(400, INVALID, "the body is no JSON object")
    return found


def _id(name: str, value: Any) -> str:
    if not isinstance(value, str) or not _ID.fullmatch(value):
        raise Refused(400, INVALID, f"{name} is no id of MLflow: {value!r:.80}")
    return value
