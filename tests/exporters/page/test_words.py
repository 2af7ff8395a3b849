"""The colours of categories can be told apart, on white and on black, whatever colours a person sees."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from tracer.analysis.kinds import LAYERS, Kind
from tracer.exporters.page.data import CATEGORIES

# What is seen of linear red, green and blue. Source: Machado, Oliveira and Fernandes 2009, severity 1.0.
VISIONS = {
    "all colours": np.eye(3),
    "no green": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "no red": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "no blue": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
LUMINANCE = np.array([0.2126, 0.7152, 0.0722])
# Of CIELAB; a difference of 2 is just seen side by side.
LEAST_DIFFERENCE = 17
GROUNDS = ("#ffffff", "#16191e")  # As `--paper` of page.css
LEAST_CONTRAST = 1.25  # Of WCAG's ratio; layers lie beside each other and have a legend


def linear(color: str) -> np.ndarray:
    shares = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    """CIELAB, of linear sRGB under D65."""
    to_xyz = np.array(
        [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
    )
    x, y, z = to_xyz @ np.clip(rgb, 0, 1) / np.array([0.95047, 1, 1.08883])
    fx, fy, fz = (np.cbrt(one) if one > 216 / 24389 else (24389 / 27 * one + 16) / 116 for one in (x, y, z))
    return np.array([116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)])


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("ground", [0, 1], ids=["on white", "on black"])
def test_any_two_categories_can_be_told_apart(ground: int, vision: str) -> None:
    seen = {name: lab(VISIONS[vision] @ linear(colors[ground])) for name, colors in CATEGORIES.items()}
    close = [
        (first, second)
        for first, second in combinations(seen, 2)
        if np.linalg.norm(seen[first] - seen[second]) < LEAST_DIFFERENCE
    ]
    # A page has one of these two: torch's own word, or ours.
    assert close in ([], [("UNTAGGED", "UNKNOWN")])


@pytest.mark.parametrize("ground", [0, 1], ids=["on white", "on black"])
def test_every_category_is_seen_on_its_ground_and_in_one_order(ground: int) -> None:
    luminance = {name: float(linear(colors[ground]) @ LUMINANCE) for name, colors in CATEGORIES.items()}
    paper = float(linear(GROUNDS[ground]) @ LUMINANCE)
    contrast = {name: (max(one, paper) + 0.05) / (min(one, paper) + 0.05) for name, one in luminance.items()}
    assert {name: ratio for name, ratio in contrast.items() if ratio < LEAST_CONTRAST} == {}
    assert [name for name in CATEGORIES if name in Kind.__members__] == [kind.name for kind in LAYERS]


def test_every_kind_has_a_colour_and_words() -> None:
    assert {kind.name for kind in Kind} <= set(CATEGORIES)
