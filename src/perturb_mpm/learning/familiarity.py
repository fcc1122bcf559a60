"""Is a case like those that settings were learned from? Properties that need no label.

A property of the cases learned from, on a scale on which it is about normal, predicts that of a new
case like them: mean ± t · sd · √(1 + 1/n). Outside of the central 99 % a case is unfamiliar.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perturb_mpm import checks
from perturb_mpm.model import Grid

LEVEL = 0.99
"""The share of cases like those learned from that lie inside the range of a property."""

SKILL, TEMPERATURE = "image evidence", "grid temperature"
ENTROPY, VOLUME = "entropy of the foreground, bits", "foreground, ml"
_LOGARITHMIC = (TEMPERATURE, ENTROPY, VOLUME)
# The least spread that a property has, on its scale: cases alike to the last digit are chance.
_LEAST_SPREAD = 0.02


@dataclass(frozen=True)
class Unfamiliar:
    """A property of a case that lies outside of its range."""

    name: str
    value: float
    lowest: float
    highest: float

    def __str__(self) -> str:
        """Return it in words: "grid temperature 2.1 (1.2 to 1.7)"."""
        return f"{self.name} {self.value:.3g} ({self.lowest:.3g} to {self.highest:.3g})"


def case_properties(
    images: Mapping[str, ArrayLike],
    probabilities: ArrayLike,
    *,
    spacing: float | Sequence[float] | None = None,
    mask: ArrayLike | None = None,
    skill: float | None = None,
    temperature: float | None = None,
) -> dict[str, float]:
    """Return what a case looks like, of its images by name and its probabilities (L, *spatial).

    ``skill`` and ``temperature`` are those of ``image_evidence`` and ``grid_temperature``. Of each
    image: the contrast of what is predicted as foreground, in standard deviations inside the mask,
    and its smoothness, the correlation of neighbouring voxels. A property that a case does not have
    is left out.

    Examples
    --------
    >>> from perturb_mpm.learning import case_properties
    >>> inside = np.zeros((10, 10)); inside[3:6, 3:6] = 1
    >>> p = np.stack([0.9 - 0.8 * inside, 0.1 + 0.8 * inside])
    >>> found = case_properties({"t1": inside}, p)
    >>> found["contrast of t1, sd"] > 2
    True
    """
    given = checks.floats(probabilities, "probabilities")
    checks.labels_first(given, "probabilities")
    grid = Grid(given.shape[1:], spacing, mask)
    p = grid.gather(given).astype(np.float64)  # (L, N)
    foreground = p.argmax(axis=0) > 0
    expected = 1 - p[0]
    found = {VOLUME: float(expected.sum()) * math.prod(grid.spacing) / 1000}
    if skill is not None:
        found[SKILL] = skill
    if temperature is not None:
        found[TEMPERATURE] = temperature
    if foreground.any():
        here = np.maximum(p[:, foreground], 1e-12)
        found[ENTROPY] = float(-(here * np.log2(here)).sum(axis=0).mean())
    for name, image in images.items():
        found |= _image_properties(name, np.asarray(image, dtype=np.float64), grid, foreground)
    return {name: value for name, value in found.items() if math.isfinite(value)}


def familiar_ranges(cases: Sequence[Mapping[str, float]]) -> dict[str, tuple[float, float]]:
    """Return between which values 99 % of cases like these lie, for properties that all have.

    Examples
    --------
    >>> from perturb_mpm.learning import familiar_ranges, find_unfamiliar
    >>> learned = familiar_ranges([{"skill": 0.7}, {"skill": 0.75}, {"skill": 0.72}])
    >>> find_unfamiliar({"skill": 0.73}, learned)
    ()
    >>> print(find_unfamiliar({"skill": 0.1}, learned)[0])
    skill 0.1 (0.437 to 1.01)
    """
    from scipy.special import stdtrit

    n = len(cases)
    if n < 2:
        raise ValueError(f"cases must be at least 2, got {n}")
    reach = float(stdtrit(n - 1, (1 + LEVEL) / 2)) * math.sqrt(1 + 1 / n)
    ranges = {}
    for name in cases[0]:
        if not all(name in each for each in cases):
            continue
        values = _to_scale(name, np.array([each[name] for each in cases]))
        half = reach * max(float(values.std(ddof=1)), _LEAST_SPREAD)
        ends = np.array([values.mean() - half, values.mean() + half])
        low, high = np.exp(ends) if name in _LOGARITHMIC else ends
        ranges[name] = (float(f"{low:.4g}"), float(f"{high:.4g}"))
    return ranges


def find_unfamiliar(
    properties: Mapping[str, float], ranges: Mapping[str, tuple[float, float]]
) -> tuple[Unfamiliar, ...]:
    """Return the properties of a case that lie outside of their ranges; others do not count."""
    return tuple(
        Unfamiliar(name, properties[name], low, high)
        for name, (low, high) in ranges.items()
        if name in properties and not low <= properties[name] <= high
    )


def _to_scale(name: str, values: NDArray[np.float64]) -> NDArray[np.float64]:
    if name not in _LOGARITHMIC:
        return values
    logarithms: NDArray[np.float64] = np.log(np.maximum(values, 1e-9))
    return logarithms


def _image_properties(
    name: str, image: NDArray[np.float64], grid: Grid, foreground: NDArray[np.bool_]
) -> dict[str, float]:
    """Return contrast and smoothness of one image; smoothness along the first axis."""
    inside = grid.gather(image)  # (N,)
    spread = float(inside.std())
    if spread == 0:
        return {}
    found = {}
    if foreground.any() and not foreground.all():
        difference = inside[foreground].mean() - inside[~foreground].mean()
        found[f"contrast of {name}, sd"] = float(difference) / spread
    standard = (image - float(inside.mean())) / spread
    where = grid.scatter(np.ones(grid.voxels, dtype=np.bool_), outside=False)
    pairs = where[1:] & where[:-1]
    if pairs.any():
        found[f"smoothness of {name}"] = float((standard[1:] * standard[:-1])[pairs].mean())
    return found
