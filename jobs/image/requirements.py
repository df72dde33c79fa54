"""Write the requirements of pyproject.toml to files for the images, so that their layers do not change with the code.

    python requirements.py pyproject.toml FOLDER

writes to FOLDER: `shared.txt` (for both images), `controller.txt` and `trial.txt` (the rest for each), and `torch.txt` (only
torch, whose build depends on whether trials use GPUs). Only the controller's image has the kubernetes client, because of all
pods only the operator's, which has this image, calls an API server.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

OPERATOR_ONLY = {"kubernetes"}


def name(requirement: str) -> str:
    """Return the normalized name of the distribution of a requirement."""
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert match, f"pyproject.toml holds a requirement without a name: {requirement!r}"
    return re.sub(r"[-_.]+", "-", match.group()).lower()


def lists(pyproject: str) -> dict[str, list[str]]:
    """Return the requirements of each layer, sorted, by the name of its file.

    Args:
        pyproject: Text of pyproject.toml.
    """
    project = tomllib.loads(pyproject)["project"]
    dependencies = set(project["dependencies"])
    base = {text for text in dependencies if name(text) not in OPERATOR_ONLY}
    extras = project["optional-dependencies"]
    # The controller's image also serves as the operator's and MLflow's.
    other_roles = {text for text in (*extras["operator"], *extras["mlflow"]) if name(text) != "trialplane"}
    controller = set(extras["controller"]) | other_roles | (dependencies - base)
    worker = set(extras["worker"])
    torch = {text for text in worker if name(text) == "torch"}
    shared = base | (controller & worker) - torch
    parts = {"shared": shared, "torch": torch, "controller": controller - shared - torch, "trial": worker - shared - torch}
    return {part: sorted(requirements) for part, requirements in parts.items()}


if __name__ == "__main__":
    for part, requirements in lists(Path(sys.argv[1]).read_text()).items():
        Path(sys.argv[2], f"{part}.txt").write_text("".join(f"{r}\n" for r in requirements))
