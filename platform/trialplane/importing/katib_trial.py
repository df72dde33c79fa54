"""The trial template of a Katib Experiment: the command of its primary container, and what that runs on."""

from __future__ import annotations

import itertools
import posixpath
import re
from collections.abc import Iterator, Mapping
from typing import Any

from trialplane.errors import Place
from trialplane.importing import search
from trialplane.importing.source import Source
from trialplane.job import values

_MACRO = re.compile(r"\$\{trialParameters\.([^{}]+)\}|[{}]")
_META = re.compile(r"\$\{trialSpec\.(\w+)(?:\[(.+)\])?\}")
_TEMPLATE = ("spec", "trialTemplate")
_TRIAL = (*_TEMPLATE, "trialSpec")
# Stands where the file does not say what is run.
_UNKNOWN = "the-program-of-the-image"
# Kind of the trial → the key of its replicas.
_REPLICAS = {
    "PyTorchJob": "pytorchReplicaSpecs",
    "XGBoostJob": "xgbReplicaSpecs",
    "TFJob": "tfReplicaSpecs",
    "MPIJob": "mpiReplicaSpecs",
    "MXJob": "mxReplicaSpecs",
    "PaddleJob": "paddleReplicaSpecs",
}
_KINDS = ("Job", "TrainJob", *_REPLICAS)


def program(given: Source, space: Mapping[str, Any]) -> dict[str, Any]:
    """The command of the primary container, and what it runs on."""
    references = _references(given, space)
    kind = given.text(*_TRIAL, "kind")
    given.take(*_TRIAL, "apiVersion")
    if given.look(*_TEMPLATE, "configMap") is not None:
        given.skip("the template of the trial is not in this file: write its command into job.yaml", *_TEMPLATE, "configMap")
    container = _container(given, given.text(*_TEMPLATE, "primaryContainerName"))
    if container is None:
        if given.look(*_TEMPLATE, "configMap") is None:
            given.note("has no container with a command: write the command into job.yaml", *_TRIAL)
        return {"command": [_UNKNOWN], "arguments": [f"--{name}={{{name}}}" for name in space]}
    made: dict[str, Any] = {}
    command = [_filled(given, item, references, at) for item, at in _items(given, (*container, "command"))]
    rest = [_filled(given, item, references, at) for item, at in _items(given, (*container, "args"))]
    if not command:
        given.note(
            f"runs the image's own program, which the file does not name: write it in place of {_UNKNOWN}", *container
        )
        command = [_UNKNOWN]
    if (variables := list(_environment(given, (*container, "env"), references))) != []:
        command = ["env", *variables, *command]
    for name in space:
        if not any(f"{{{name}}}" in item for item in [*command, *rest]):
            given.note(f"no argument of the primary container uses {name}: write {{{name}}} where it belongs", *container)
    if kind not in _KINDS:
        given.note(
            f"of a {kind}, only this container runs as the trial; what the others pass to it must be written out", *container
        )
    image = given.text(*container, "image")
    if image:
        given.note("must be built from trialplane's trial image: `platform image build`", *container, "image")
        made["cluster"] = {"image": image}
    made |= {"command": command, "arguments": rest, "resources": _resources(given, container)}
    nodes = _nodes(given, kind, container)
    gpus = made["resources"].get("gpus", 0)
    ranks = (
        given.whole(*_TRIAL, "spec", "nprocPerNode") if str(given.look(*_TRIAL, "spec", "nprocPerNode")).isdigit() else None
    )
    if ranks is not None or gpus > 1:
        made["ranks"] = ranks or 1
    if nodes > 1:
        made["nodes"] = nodes
    return made


def _items(given: Source, place: Place) -> list[tuple[str, Place]]:
    value = given.look(*place)
    if isinstance(value, str):  # Argo takes one
        return [(given.text(*place), place)]
    return [(given.text(*place, index), (*place, index)) for index in given.indices(*place)]


def _references(given: Source, space: Mapping[str, Any]) -> dict[str, str]:
    """What stands for each of the template's parameters: a placeholder, or text."""
    made: dict[str, str] = {}
    for index in given.indices(*_TEMPLATE, "trialParameters"):
        place = (*_TEMPLATE, "trialParameters", index)
        given.take(*place, "description")
        name, reference = given.text(*place, "name"), given.text(*place, "reference")
        meta = _META.fullmatch(reference)
        if meta is None:
            parameter = given.name(reference, *place, "reference")
            if parameter not in space:
                given.note(f"{reference!r} is not one of the parameters; it stays as text", *place, "reference")
            made[name] = f"{{{parameter}}}" if parameter in space else reference
            continue
        field, key = meta.groups()
        fields = {"Name": "{run}-{trial}", "Kind": "kind", "APIVersion": "apiVersion", "Namespace": "namespace"}
        if field == "Name":
            made[name] = fields[field]
        elif field in ("Kind", "APIVersion"):
            made[name] = _escaped(given.text(*_TRIAL, fields[field]))
        elif field in ("Labels", "Annotations") and given.look(*_TRIAL, "metadata", field.lower(), key or "") is not None:
            made[name] = _escaped(given.text(*_TRIAL, "metadata", field.lower(), key or ""))
        elif field == "Namespace" and (namespace := given.look("metadata", "namespace")):
            made[name] = _escaped(str(namespace))
            given.note("is the namespace that the Experiment names, wherever the job runs", *place, "reference")
        else:
            given.note(f"{reference} is not known here; it stays as text", *place, "reference")
            made[name] = _escaped(reference)
    return made


def _escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _filled(given: Source, text: str, references: Mapping[str, str], place: Place) -> str:
    """An argument with our placeholders."""

    def one(match: re.Match[str]) -> str:
        if match[1] is None:
            return match[0] * 2
        if match[1] not in references:
            given.note(f"{match[0]} is not one of trialParameters; it stays as text", *place)
            return _escaped(match[0])
        return references[match[1]]

    return _MACRO.sub(one, text)


def _container(given: Source, name: str) -> Place | None:
    """The place of the primary container; of one without a name, the first that takes parameters, or the first."""
    found = list(_containers(given.look(*_TRIAL), _TRIAL))
    names = (name, name.removeprefix("step-"))  # Tekton names the container of a step so
    named = [place for place in found if name and (given.look(*place, "name") in names or place[-1] in names)]
    asked = [place for place in found if "${trialParameters." in str(given.look(*place))]
    chosen = next((place for place in [*(one for one in named if one in asked), *named, *asked, *found]), None)
    if chosen is not None:
        given.take(*chosen, "name")
    return chosen


def _containers(value: Any, place: Place) -> Iterator[Place]:
    if isinstance(value, dict):
        if isinstance(value.get("image"), str) and ("command" in value or "args" in value):
            yield place
        for key, below in value.items():
            yield from _containers(below, (*place, key))
    elif isinstance(value, list):
        for index, below in enumerate(value):
            yield from _containers(below, (*place, index))


def _environment(given: Source, place: Place, references: Mapping[str, str]) -> Iterator[str]:
    """The variables of the container as arguments of `env`."""
    for index in given.indices(*place):
        name = given.text(*place, index, "name")
        if given.look(*place, index, "value") is None:
            given.skip(
                f"the value of {name} is not in the file, and trials get no secrets of their own",
                *place,
                index,
                "valueFrom",
            )
            continue
        at = (*place, index, "value")
        yield f"{name}={_filled(given, given.text(*at), references, at)}"


def _resources(given: Source, container: Place) -> dict[str, Any]:
    """What the container may use: its limits, else its requests."""
    made: dict[str, Any] = {}
    fields = (*container, "resources") if given.look(*container, "resources") else (*container, "resourcesPerNode")
    for part in ("limits", "requests"):
        for key in given.keys(*fields, part):
            at = (*fields, part, key)
            if key == "cpu" and values.cores(search.scalar(given.text(*at))) is not None:
                made.setdefault("cpus", values.cores(search.scalar(given.text(*at))))
            elif key == "memory" and values.times(given.text(*at), 1) is not None:
                made.setdefault("memory", given.text(*at))
            elif key == "nvidia.com/gpu":
                made.setdefault("gpus", given.whole(*at) or 0)
            else:
                given.skip("a trial has cores, memory and GPUs; `cluster.gpu_resource` names another kind of GPU", *at)
    return made


def _nodes(given: Source, kind: str, container: Place) -> int:
    """How many machines a trial has."""
    if kind == "TrainJob":
        return given.whole(*_TRIAL, "spec", "trainer", "numNodes") or 1
    replicas = (*_TRIAL, "spec", _REPLICAS.get(kind, ""))
    counts = {role: given.whole(*replicas, role, "replicas") or 1 for role in given.keys(*replicas)}
    for role in counts:
        for at in _containers(given.look(*replicas, role), (*replicas, role)):
            if at != container and _same(given, at, container):
                given.take(*at)
    if kind in ("PyTorchJob", "XGBoostJob", "PaddleJob"):
        if kind != "PyTorchJob":
            why = f"nodes find each other by torchrun's variables here (MASTER_ADDR, RANK, …), not by those of {kind}"
            given.note(why, *replicas)
        return sum(counts.values())
    if sum(counts.values()) > 1:
        variable = "TF_CONFIG" if kind == "TFJob" else "mpirun's hosts" if kind == "MPIJob" else "the job's own variables"
        given.note(f"{sum(counts.values())} pods become one node: nothing here sets {variable}", *replicas)
    return 1


def _same(given: Source, one: Place, other: Place) -> bool:
    """Whether two containers run the same: then the second has been read with the first."""
    return all(given.look(*one, key) == given.look(*other, key) for key in ("image", "command", "args", "resources", "env"))


def runnable(job: dict[str, Any], scripts: Mapping[str, str], given: Source) -> tuple[dict[str, Any], list[str]]:
    """The job with a script that lies beside the file, and the names of such scripts.

    Such a script is the job's `script`, which starts from the warm template. One with variables stays a command.
    """
    variables = list(itertools.takewhile(lambda item: item == "env" or "=" in item, job["command"]))
    command = job["command"][len(variables) :]
    named = command[1] if len(command) > 1 and re.fullmatch(r"(?:/\S+/)?python[\d.]*", command[0]) else ""
    script, rest = named.removeprefix("./"), command[2:]
    if named.startswith("/") and (script := posixpath.basename(named)) in scripts:
        given.note(f"{named} lies in the image there; {script} beside the file travels with the run here", *_TRIAL)
    if script in scripts and variables:
        return {**job, "command": [*variables, command[0], script, *rest]}, [script]
    if script in scripts:
        made = {"script": script, "arguments": [*rest, *job["arguments"]] or "none"}
        return {**{key: value for key, value in job.items() if key not in ("command", "arguments")}, **made}, [script]
    inside = [item for item in command[1:2] if "." in item and not item.startswith(("/", "-"))]
    if inside:
        given.note(
            f"{inside[0]} lies in the image's folder there; the command runs in a copy of the job's folder here", *_TRIAL
        )
    return job, []
