"""What image and grid say about probabilities: the skill by hand, the grid's temperature."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from perturb_mpm.learning import evidence as module
from perturb_mpm.learning import grid_temperature, image_evidence, spare_soft_borders

Array = NDArray[np.float64]


def rectangle(shape: tuple[int, ...] = (40, 40)) -> tuple[Array, Array]:
    """Return a map of what is inside, and probabilities (2, *shape) that know it."""
    inside = np.zeros(shape)
    inside[tuple(slice(size // 4, size // 2) for size in shape)] = 1
    return inside, np.stack([0.95 - 0.9 * inside, 0.05 + 0.9 * inside])


def skill_by_hand(image: Array, p: Array, space: float, intensity: float, excluded: float) -> float:
    """Return the skill over all voxels near foreground, pair by pair, in one dimension."""
    voxels = len(image)
    z = (image - image.mean()) / image.std()
    prior = p.mean(axis=1)
    foreground = np.flatnonzero(p.argmax(axis=0) != 0)
    excess = np.zeros(2)
    for i in range(voxels):
        if np.abs(foreground - i).min() > module.NEAR_MM:
            continue
        far = [j for j in range(voxels) if abs(i - j) > excluded]
        for row, use_intensity in enumerate((1.0, 0.0)):
            weights = [
                np.exp(-0.5 * ((i - j) / space) ** 2)
                * np.exp(-0.5 * use_intensity * ((z[i] - z[j]) / intensity) ** 2)
                for j in far
            ]
            mean = (p[:, far] * weights).sum(axis=1) / np.sum(weights)
            predicted = 0.98 * mean + 0.02 * prior
            excess[row] += (p[:, i] * np.log(p[:, i] / predicted)).sum()
    return float(1 - excess[0] / excess[1])


def test_the_skill_is_that_of_its_formula() -> None:
    rng = np.random.default_rng(3)
    p = np.full(60, 0.1)
    p[20:32] = 0.8
    p = np.stack([1 - p, p])
    image = p[1] + 0.3 * rng.normal(size=60)
    found = image_evidence(image[np.newaxis], p, bandwidths=[(9.0, 0.7)], excluded_mm=3.0)
    assert found is not None
    assert found.skill == pytest.approx(skill_by_hand(image, p, 9.0, 0.7, 3.0), abs=1e-4)


@pytest.mark.parametrize("shape", [(80,), (40, 40), (24, 20, 16)])
def test_an_image_of_the_structure_has_skill_and_noise_has_none(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    inside, p = rectangle(shape)
    clear = image_evidence(inside[np.newaxis] + 0.05 * rng.normal(size=shape), p, spacing=2.0)
    noise = image_evidence(rng.normal(size=(1, *shape)), p, spacing=2.0)
    assert clear is not None
    assert noise is not None
    assert clear.skill > 0.8
    assert noise.skill < 0.1


def test_the_answer_depends_on_nothing_but_its_arguments() -> None:
    inside, p = rectangle((60, 60))
    image = inside[np.newaxis] + np.random.default_rng(1).normal(size=(1, 60, 60))
    assert image_evidence(image, p, seed=4) == image_evidence(image, p, seed=4)
    # Another scale or offset of the intensities says the same.
    again = image_evidence(1000 + 250 * image, p, seed=4)
    assert again is not None
    assert again.skill == pytest.approx(image_evidence(image, p, seed=4).skill, abs=1e-3)  # type: ignore[union-attr]


def test_voxels_outside_the_mask_say_nothing() -> None:
    rng = np.random.default_rng(5)
    inside, p = rectangle()
    image = inside[np.newaxis] + 0.2 * rng.normal(size=(1, 40, 40))
    mask = np.zeros((40, 40), dtype=bool)
    mask[:30, :30] = True
    cropped = image_evidence(image[:, :30, :30], p[:, :30, :30])
    image[:, ~mask] = 1e6
    masked = image_evidence(image, p, mask=mask)
    assert masked == cropped


def test_without_foreground_there_is_nothing_to_say() -> None:
    p = np.stack([np.full((8, 8), 0.9), np.full((8, 8), 0.1)])
    assert image_evidence(np.ones((1, 8, 8)), p) is None
    assert grid_temperature(p) is None


def logistic_border(width: float, voxels: int = 40) -> Array:
    """Return probabilities (2, voxels) of a border that is ``width`` voxels wide."""
    edge = 1 / (1 + np.exp(-(np.arange(voxels) - voxels / 2 + 0.3) / width))
    return np.stack([1 - edge, edge])


def test_a_sharp_border_is_softened_and_a_soft_one_is_left() -> None:
    sharp = grid_temperature(logistic_border(0.1))
    soft = grid_temperature(logistic_border(3.0))
    assert sharp is not None
    assert soft is not None
    assert sharp > 1.5
    assert soft == pytest.approx(1.0, abs=0.05)


def test_the_temperature_minimises_the_divergence() -> None:
    p = logistic_border(0.4)
    found = grid_temperature(p)
    assert found is not None
    p = np.maximum(p, 1e-6)
    p /= p.sum(axis=0)
    padded = np.pad(p, ((0, 0), (1, 1)), mode="edge")
    blurred = padded[:, :-2] / 12 + p * 10 / 12 + padded[:, 2:] / 12
    near = slice(20 - 5, None)  # within 5 mm of the foreground, which begins at voxel 20

    def divergence(temperature: float) -> float:
        q = np.exp(np.log(p) / temperature)
        q /= q.sum(axis=0)
        return float((blurred * np.log(blurred / q))[:, near].sum())

    assert divergence(found) < min(divergence(found * 1.02), divergence(found / 1.02))


def test_the_grid_is_added_less_and_less_to_borders_that_are_soft() -> None:
    widths = np.arange(0.25, 0.6, 0.01)
    found = [spare_soft_borders(grid_temperature(logistic_border(w)) or 0) for w in widths]
    assert found == sorted(found, reverse=True)
    assert found[0] == grid_temperature(logistic_border(0.25))
    assert found[-1] == 1
    assert -min(np.diff(found)) < 0.05  # and nowhere by a jump


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"images": np.ones((1, 9, 8))}, r"images must be \(channels, \*spatial\)"),
        ({"images": np.full((1, 8, 8), np.nan)}, "images must be finite"),
        ({"bandwidths": [(20.0, -1.0)]}, "bandwidths must be positive"),
        ({"excluded_mm": -1.0}, "excluded_mm must be at least 0"),
        ({"mask": np.zeros((8, 8))}, "mask must contain at least one voxel"),
    ],
)
def test_bad_input_is_named(change: dict[str, object], words: str) -> None:
    inside, p = rectangle((8, 8))
    arguments: dict[str, object] = {"images": inside[np.newaxis], "probabilities": p, **change}
    with pytest.raises((TypeError, ValueError), match=words):
        image_evidence(**arguments)  # type: ignore[arg-type]
