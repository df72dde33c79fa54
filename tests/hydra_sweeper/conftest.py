"""A Hydra application in a folder, as people write them."""

from __future__ import annotations

from pathlib import Path

import pytest

TRAIN = """
import logging
import os
from pathlib import Path

import hydra
import trialplane
from hydra.core.hydra_config import HydraConfig

import beside

log = logging.getLogger(__name__)


@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(cfg):
    log.info("layers %s", cfg.model.layers)
    job = HydraConfig.get()
    Path(job.runtime.output_dir, "seen.txt").write_text(f"{job.job.num} {job.job.override_dirname} {os.getcwd()}")
    if cfg.what == "fails":
        raise ValueError("no such layer")
    if cfg.what == "text":
        return "good"
    for step in range(3):
        trialplane.report(step, objective=cfg.lr)
    return [cfg.lr, cfg.model.layers] if cfg.what == "two" else cfg.lr + cfg.model.layers


if __name__ == "__main__":
    main()
"""


@pytest.fixture
def application(tmp_path: Path) -> Path:
    """Its folder: fit.py, a module beside it, and a configuration with the group `model`."""
    folder = tmp_path / "application"
    (folder / "conf" / "model").mkdir(parents=True)
    (folder / "fit.py").write_text(TRAIN)
    (folder / "beside.py").write_text("")
    (folder / "conf" / "config.yaml").write_text("defaults: [{model: small}, _self_]\nlr: 0.5\nwhat: trains\nseed: 0\n")
    for name, layers in (("small", 2), ("large", 4)):
        (folder / "conf" / "model" / f"{name}.yaml").write_text(f"layers: {layers}\n")
    return folder
