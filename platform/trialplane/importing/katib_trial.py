"""The trial template of a Katib Experiment: the command of its primary container, its resources and its nodes."""

from __future__ import annotations

import itertools
import posixpath
import re
from collections.abc import Iterator, Mapping
from typing import Any

from trialplane.errors import FieldPath
from trialplane.importing import search
from trialplane.importing.source import Source
from trialplane.job import arguments, credentials, values

_MACRO = re.compile(r"\$\{trialParameters\.([^{}]+)\}|[{}]")  # ${trialParameters.NAME}; a single brace has no NAME

_TEMPLATE = ("spec", "trialTemplate")
_TRIAL = (*_TEMPLATE, "trialSpec")
# Replaces the program of an image, which the file does not name.
_UNKNOWN_PROGRAM = "the-program-of-the-image"
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


def program(source: Source, space: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields of the job from the template: command, arguments, image, resources, ranks and nodes.

    If the template is not in the file, or has no container with a command, the command is a placeholder, with a note.
    """
    replacements = _replacements(source, space)
    kind = source.text(*_TRIAL, "kind")
    source.mark_read(*_TRIAL, "apiVersion")
    source.skip("the template of the trial is not in this file: write its command into job.yaml", *_TEMPLATE, "configMap")
    container = _primary_container(source)
    if container is None:
        if source.look(*_TEMPLATE, "configMap") is None:
            source.note("has no container with a command: write the command into job.yaml", *_TRIAL)
        return {"command": [_UNKNOWN_PROGRAM], "arguments": [f"--{name}={{{name}}}" for name in space]}
    fields = _command(source, container, replacements, space)
    if kind not in _KINDS:
        remark = "only this container runs as the trial; what the others pass to it must be written out"
        source.note(f"of a {kind}, {remark}", *container)
    if image := source.text(*container, "image"):
        source.note("must be built from trialplane's trial image: `platform image build`", *container, "image")
        fields = {"cluster": {"image": image}, **fields}
    fields["resources"] = resources = _resources(source, container)
    ranks_field = (*_TRIAL, "spec", "nprocPerNode")  # a number, or a word such as `auto`
    ranks = source.integer(*ranks_field) if str(source.look(*ranks_field)).isdigit() else None
    if ranks is not None or resources.get("gpus", 0) > 1:
        fields["ranks"] = ranks or 1  # by default, a job has a rank for each GPU
    if (nodes := _nodes(source, kind, container)) > 1:
        fields["nodes"] = nodes
    return fields


def _command(
    source: Source, container: FieldPath, replacements: Mapping[str, str], space: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the fields `command` and `arguments` of the job for a container. Add a note on each parameter not in them."""
    command = _words(source, (*container, "command"), replacements)
    argument_items = _words(source, (*container, "args"), replacements)
    if not command:
        remark = "runs the image's own program, which the file does not name: write it in place of"
        source.note(f"{remark} {_UNKNOWN_PROGRAM}", *container)
        command = [_UNKNOWN_PROGRAM]
    if variables := list(_environment(source, (*container, "env"), replacements)):
        command = ["env", *variables, *command]
    text = " ".join([*command, *argument_items])
    for name in space:
        if f"{{{name}}}" not in text:
            source.note(f"no argument of the primary container uses {name}: write {{{name}}} where it belongs", *container)
    return {"command": command, "arguments": argument_items}


def _words(source: Source, field: FieldPath, replacements: Mapping[str, str]) -> list[str]:
    """Return the words of a command or of arguments, as `_with_placeholders` returns each of them."""
    return [_with_placeholders(source, (*field, index), replacements) for index in source.indices(*field)]


def _replacements(source: Source, space: Mapping[str, Any]) -> dict[str, str]:
    """Return the text that replaces each `${trialParameters.NAME}` of the template, by NAME.

    It is the placeholder of a parameter to search or of the trial's name, or a fixed text from the file.
    """
    replacements: dict[str, str] = {}
    for index in source.indices(*_TEMPLATE, "trialParameters"):
        parameter_field = (*_TEMPLATE, "trialParameters", index)
        source.mark_read(*parameter_field, "description")
        name, reference = source.text(*parameter_field, "name"), source.text(*parameter_field, "reference")
        reference_field = (*parameter_field, "reference")
        if reference == "${trialSpec.Name}":
            replacements[name] = "{run}-{trial}"
        elif reference.startswith("${trialSpec."):  # another field of the trial, such as a label
            source.note(f"{reference} is not known here; it stays as text", *reference_field)
            replacements[name] = arguments.escaped(reference)
        elif (parameter := source.name(reference, *reference_field)) in space:
            replacements[name] = f"{{{parameter}}}"
        else:
            source.note(f"{reference!r} is not one of the parameters; it stays as text", *reference_field)
            replacements[name] = reference
    return replacements


def _with_placeholders(source: Source, field: FieldPath, replacements: Mapping[str, str]) -> str:
    """Return the text at a path as a job's: `{lr}` for `${trialParameters.rate}`, and any other braces doubled."""

    def replacement(match: re.Match[str]) -> str:
        """Return the text for a parameter or a single brace. An unknown parameter stays as text, with a note."""
        if match[1] is None:
            return arguments.escaped(match[0])
        if match[1] not in replacements:
            source.note(f"{match[0]} is not one of trialParameters; it stays as text", *field)
            return arguments.escaped(match[0])
        return replacements[match[1]]

    return _MACRO.sub(replacement, source.text(*field))


def _primary_container(source: Source) -> FieldPath | None:
    """Return the path of the primary container; None if there is no container.

    It is the first one with the name of the primary container and a parameter of the template, or else the first one with
    the name, or else the first one with a parameter, or else the first one.
    """
    name = source.text(*_TEMPLATE, "primaryContainerName")
    accepted_names = (name, name.removeprefix("step-"))  # Tekton adds this prefix to the name of a step

    def preference(container: FieldPath) -> tuple[bool, bool]:
        """Return whether a container has the name, and whether it uses a parameter."""
        is_named = name != "" and source.look(*container, "name") in accepted_names
        return is_named, "${trialParameters." in str(source.look(*container))

    primary = max(_containers(source.look(*_TRIAL), _TRIAL), key=preference, default=None)
    if primary is not None:
        source.mark_read(*primary, "name")
    return primary


def _containers(value: Any, field: FieldPath) -> Iterator[FieldPath]:
    """Yield the paths of the containers in a value: mappings with an image, and a command or arguments."""
    if isinstance(value, dict):
        if isinstance(value.get("image"), str) and ("command" in value or "args" in value):
            yield field
        for key, child in value.items():
            yield from _containers(child, (*field, key))
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from _containers(child, (*field, index))


def _environment(source: Source, field: FieldPath, replacements: Mapping[str, str]) -> Iterator[str]:
    """Yield the environment variables of the container as arguments of `env`, NAME=VALUE.

    A secret, or a value that is not in the file, is left out, with a note.
    """
    for index in source.indices(*field):
        name, value_field = source.text(*field, index, "name"), (*field, index, "value")
        value = source.look(*value_field)
        if value is None:
            reason = f"the value of {name} is not in the file, and trials get no secrets of their own"
            source.skip(reason, *field, index, "valueFrom")
        elif credentials.is_secret(name, value):
            source.skip(f"{name} looks like a secret, and everyone who may see a run sees its job", *value_field)
        else:
            yield f"{name}={_with_placeholders(source, value_field, replacements)}"


def _resources(source: Source, container: FieldPath) -> dict[str, Any]:
    """Return the resources of the container by their names in a job. A limit is preferred to a request."""
    resources: dict[str, Any] = {}
    field = (*container, "resources") if source.look(*container, "resources") else (*container, "resourcesPerNode")
    for part in ("limits", "requests"):
        for key in source.keys(*field, part):
            amount_field = (*field, part, key)
            amount = source.text(*amount_field)
            cores = values.cores(search.scalar(amount)) if key == "cpu" else None  # 500m is 0.5
            if cores is not None:
                resources.setdefault("cpus", cores)
            elif key == "memory" and values.multiply(amount, 1) is not None:  # an amount that a job understands, as 4Gi
                resources.setdefault("memory", amount)
            elif key == "nvidia.com/gpu":
                resources.setdefault("gpus", source.integer(*amount_field) or 0)
            else:
                reason = "a trial has cores, memory and GPUs; `cluster.gpu_resource` names another kind of GPU"
                source.skip(reason, *amount_field)
    return resources


def _nodes(source: Source, kind: str, container: FieldPath) -> int:
    """Return the number of nodes of a trial. Add a note if the framework's nodes do not find each other here.

    Args:
        source: The file.
        kind: Kind of the trial, such as `PyTorchJob`.
        container: Path of the primary container. Those of other replicas with the same program are marked as read.
    """
    if kind == "TrainJob":
        return source.integer(*_TRIAL, "spec", "trainer", "numNodes") or 1
    replicas = (*_TRIAL, "spec", _REPLICAS.get(kind, ""))
    types = source.keys(*replicas)  # such as Master and Worker
    pods = sum(source.integer(*replicas, replica_type, "replicas") or 1 for replica_type in types)
    for replica_type in types:
        for other in _containers(source.look(*replicas, replica_type), (*replicas, replica_type)):
            if other != container and _is_same_program(source, other, container):
                source.mark_read(*other)
    if kind == "PyTorchJob":
        return pods
    if kind in ("XGBoostJob", "PaddleJob"):
        reason = f"nodes find each other by torchrun's variables here (MASTER_ADDR, RANK, …), not by those of {kind}"
        source.note(reason, *replicas)
        return pods
    if pods > 1:
        variable = {"TFJob": "TF_CONFIG", "MPIJob": "mpirun's hosts"}.get(kind, "the job's own variables")
        source.note(f"{pods} pods become one node: nothing here sets {variable}", *replicas)
    return 1


def _is_same_program(source: Source, first: FieldPath, second: FieldPath) -> bool:
    """Return whether two containers run the same program, so that only one of them has to be read."""
    return all(
        source.look(*first, key) == source.look(*second, key) for key in ("image", "command", "args", "resources", "env")
    )


def with_script(job: dict[str, Any], scripts: Mapping[str, str], source: Source) -> tuple[dict[str, Any], list[str]]:
    """Return a job that runs a script beside the file, and the names of the scripts that the job's folder needs.

    If the command runs such a script with Python, the field `script` replaces it: trials start from the warm template. If
    the command also sets environment variables, it stays a command, as `script` cannot set them. If it runs no script beside
    the file, the job is unchanged, and there are no names.
    """
    variables = list(itertools.takewhile(lambda item: item == "env" or "=" in item, job["command"]))  # env LR=0.1
    command = job["command"][len(variables) :]
    file = command[1] if len(command) > 1 else ""
    is_absolute = file.startswith("/")
    script = posixpath.basename(file) if is_absolute else file.removeprefix("./")
    starts_python = file and re.fullmatch(r"(?:/\S+/)?python[\d.]*", command[0])  # /usr/bin/python3.11
    if not starts_python or script not in scripts:
        if "." in file and not is_absolute and not file.startswith("-"):
            reason = f"{file} lies in the image's folder there; the command runs in a copy of the job's folder here"
            source.note(reason, *_TRIAL)
        return job, []
    if is_absolute:
        source.note(f"{file} lies in the image there; {script} beside the file travels with the run here", *_TRIAL)
    if variables:
        return {**job, "command": [*variables, command[0], script, *command[2:]]}, [script]
    other_fields = {key: value for key, value in job.items() if key not in ("command", "arguments")}
    return {**other_fields, "script": script, "arguments": [*command[2:], *job["arguments"]] or "none"}, [script]
