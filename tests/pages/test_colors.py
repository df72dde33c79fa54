"""The colors of the report's charts: distinct, also for color-blind readers, and with enough contrast in both themes."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest

from trialplane.pages import page

ASSETS = Path(page.__file__).parent / "assets"
# What readers with normal sight, deuteranopia and protanopia see, in linear RGB (Machado 2009).
SIGHTS = (
    np.eye(3),
    np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]),
    np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]),
)
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
CONTRAST = 3.0  # of WCAG 2.2 for graphics
DISTANCE = 15.0  # in CIELAB


def linear(color: str) -> np.ndarray:
    parts = np.array([int(color[start : start + 2], 16) for start in (1, 3, 5)]) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def contrast(color: str, other: str) -> float:
    darker, lighter = sorted(float(XYZ[1] @ linear(each)) for each in (color, other))
    return (lighter + 0.05) / (darker + 0.05)


def lab(rgb: np.ndarray) -> np.ndarray:
    parts = XYZ @ np.clip(rgb, 0, 1) / np.array([0.9505, 1.0, 1.089])
    x, y, z = np.where(parts > 0.008856, np.cbrt(parts), 7.787 * parts + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def distance(color: str, other: str) -> float:
    pairs = (lab(sight @ linear(color)) - lab(sight @ linear(other)) for sight in SIGHTS)
    return min(float(np.linalg.norm(difference)) for difference in pairs)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_colors_stand_out_and_differ(theme: str) -> None:
    charts, css = ((ASSETS / name).read_text() for name in ("charts.js", "page.css"))
    panel = re.findall(r"--panel: (#[0-9a-f]{6})", css)[["light", "dark"].index(theme)]
    shades = json.loads(re.search(r"THEME_COLORS = (\{.*?\});", charts, re.DOTALL)[1])[theme]  # type: ignore[index]
    scales = re.search(r"const scale = .*?\?(.*?)\n\s*: (.*?);", charts, re.DOTALL)
    assert scales is not None
    scale = re.findall("#[0-9a-f]{6}", scales[["light", "dark"].index(theme) + 1])
    assert len(set(shades)) == 8
    assert len(scale) > 2
    for color in (*shades, *scale):
        assert contrast(color, panel) >= CONTRAST, color
    for pair in itertools.combinations(shades, 2):
        assert distance(*pair) >= DISTANCE, pair
