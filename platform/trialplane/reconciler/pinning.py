"""Images by digest: which digest each image of a run's templates has, and templates that name it. Pure.

A tag may be pushed again, and a pod that is made later would then run another image than its run's first ones. So what the
first pods have pulled is kept in the Run's status, by the image's name in the job or the site, and later pods are made of
that digest. An image of which two digests were seen is not pinned: which one a node can run is not known here.
"""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from trialplane.plan.run import Image

Thing = Mapping[str, Any]

# What a node says of an image: with its repository only if that came from a registry. Docker puts a scheme before it.
_PULLED = re.compile(r"(?:[\w-]+://)?(?P<repository>[^@\s]+)@(?P<digest>sha256:[0-9a-f]{64})")


@dataclasses.dataclass(frozen=True)
class Pulled:
    """An image that a container of a pod runs.

    Attributes:
        image: as the job or the site names it.
        digest: of the repository; "" where the node has it without a registry.
        pod: its name.
    """

    image: str
    digest: str
    pod: str


def by_digest(image: str, digest: str) -> str:
    """The name of the same image with a digest in place of its tag; one with a digest keeps it."""
    return image if "@" in image else f"{_repository(image)}@{digest}"


def names(images: Iterable[Image]) -> dict[str, str]:
    """How the job or the site names each image that templates may name by its digest."""
    return {by_digest(one.image, one.digest): one.image for one in images}


def of_ledger(images: Mapping[str, Sequence[str]]) -> tuple[Image, ...]:
    """The images that the ledger has, each with its digests."""
    return tuple(Image(image=image, digest=digest) for image, digests in images.items() for digest in digests)


def named(ray_cluster: Thing, images: Iterable[Image]) -> tuple[str, ...]:
    """The images of a RayCluster's templates, each once, as the job or the site names them."""
    known = names(images)
    found = (str(container.get("image", "")) for _, _, container in _containers(ray_cluster))
    return tuple(dict.fromkeys(known.get(image, image) for image in found if image))


def pulled(ray_cluster: Thing, pods: Iterable[Thing], images: Sequence[Image]) -> tuple[Pulled, ...]:
    """What the containers of the templates run, in the order of the pods.

    Args:
        ray_cluster: of the run; KubeRay's own containers in its pods are left out.
        pods: of the run.
        images: those known by now.
    """
    known, wanted = names(images), named(ray_cluster, images)
    boxes = {container.get("name") for _, _, container in _containers(ray_cluster)}
    found: list[Pulled] = []
    for pod in pods:
        spec, status = pod.get("spec") or {}, pod.get("status") or {}
        said = [*(status.get("containerStatuses") or []), *(status.get("initContainerStatuses") or [])]
        ids = {one.get("name"): str(one.get("imageID") or "") for one in said}
        for container in [*(spec.get("containers") or []), *(spec.get("initContainers") or [])]:
            image = str(container.get("image", ""))
            name = known.get(image, image)
            if container.get("name") in boxes and name in wanted and (said_id := ids.get(container["name"])):
                found.append(Pulled(name, _digest(image, said_id), str(pod["metadata"]["name"])))
    return tuple(found)


def made_of(ray_cluster: Thing, images: Iterable[Image]) -> tuple[Image, ...]:
    """Those of the images that the templates name by their digests."""
    there = {container.get("image") for _, _, container in _containers(ray_cluster)}
    return tuple(one for one in images if by_digest(one.image, one.digest) in there)


def joined(ray_cluster: Thing, images: Sequence[Image], seen: Iterable[Pulled]) -> tuple[Image, ...]:
    """The images of the templates with the digests that are known, and those that were seen."""
    wanted = named(ray_cluster, images)
    found = (Image(image=one.image, digest=one.digest) for one in seen if one.digest)
    return tuple(dict.fromkeys(one for one in (*images, *found) if one.image in wanted))


def several(images: Iterable[Image]) -> dict[str, list[str]]:
    """The images of which more than one digest is known, with these."""
    found: dict[str, list[str]] = {}
    for one in images:
        found.setdefault(one.image, []).append(one.digest)
    return {image: digests for image, digests in found.items() if len(digests) > 1}


def sure(images: Sequence[Image]) -> tuple[Image, ...]:
    """The images of which one digest is known."""
    unsure = several(images)
    return tuple(one for one in images if one.image not in unsure)


def pinned(ray_cluster: Thing, images: Sequence[Image]) -> dict[str, Any]:
    """The RayCluster with templates that name images by their digests, where these are known."""
    made = copy.deepcopy(dict(ray_cluster))
    to = {one.image: by_digest(one.image, one.digest) for one in sure(images)}
    for _, _, container in _containers(made):
        container["image"] = to.get(container["image"], container["image"])
    return made


def patch(ray_cluster: Thing, images: Sequence[Image]) -> list[dict[str, Any]]:
    """The JSON patch that has a RayCluster's later pods made of these digests; nothing if they are already.

    An image that was pinned before a second digest of it was seen goes by its tag again.
    """
    to = {by_digest(image, digest): image for image, digests in several(images).items() for digest in digests}
    to |= {one.image: by_digest(one.image, one.digest) for one in sure(images)}
    made: list[dict[str, Any]] = []
    for place, group, container in _containers(ray_cluster):
        before = container.get("image", "")
        if (after := to.get(before, before)) != before:
            if group is not None:  # the tests fail if another group, or another container, has taken its place
                made.append({"op": "test", "path": f"{group[0]}/groupName", "value": group[1]})
            made.append({"op": "test", "path": f"{place}/image", "value": before})
            made.append({"op": "replace", "path": f"{place}/image", "value": after})
    return made


def _containers(ray_cluster: Thing) -> Iterator[tuple[str, tuple[str, str] | None, Any]]:
    """The containers of all templates, each with its JSON pointer, and the pointer and name of its worker group."""
    spec = ray_cluster.get("spec") or {}
    yield from ((place, None, one) for place, one in _of("/spec/headGroupSpec", spec.get("headGroupSpec") or {}))
    for number, group in enumerate(spec.get("workerGroupSpecs") or []):
        place = f"/spec/workerGroupSpecs/{number}"
        yield from ((where, (place, str(group.get("groupName", ""))), one) for where, one in _of(place, group))


def _of(place: str, group: Thing) -> Iterator[tuple[str, Any]]:
    pod = (group.get("template") or {}).get("spec") or {}
    for kind in ("containers", "initContainers"):
        for number, container in enumerate(pod.get(kind) or []):
            yield f"{place}/template/spec/{kind}/{number}", container


def _digest(image: str, said: str) -> str:
    """The digest that a node gives for an image; "" without one of the image's own repository.

    An image that was loaded into a node by hand has none, or that of a repository that no registry has. A container that
    is made of a digest runs that one: the node may know the same image by the digest of another name.
    """
    if "@" in image:
        return image.partition("@")[2]
    found = _PULLED.fullmatch(said)
    return found["digest"] if found and _is_same(_repository(image), found["repository"]) else ""


def _is_same(name: str, pulled_from: str) -> bool:
    """Whether a node has an image from the repository that a template names, which may leave out the node's default host."""
    name, pulled_from = _in_full(name), _in_full(pulled_from)
    if name == pulled_from:
        return True
    _, _, path = pulled_from.partition("/")
    return not _has_host(name) and _has_host(pulled_from) and path in (name, f"library/{name}")


def _in_full(repository: str) -> str:
    """The repository as nodes name it, if its host is Docker Hub, which has two names, and `library/` before short names."""
    host, _, path = repository.partition("/")
    if host not in ("docker.io", "index.docker.io"):
        return repository
    return f"docker.io/{path}" if "/" in path else f"docker.io/library/{path}"


def _has_host(repository: str) -> bool:
    first, slash, _ = repository.partition("/")
    return bool(slash) and (first == "localhost" or "." in first or ":" in first)


def _repository(image: str) -> str:
    """The name of an image without tag and digest; a host may have a port."""
    before, slash, last = image.partition("@")[0].rpartition("/")
    return f"{before}{slash}{last.partition(':')[0]}"
