"""Made-up labelled cases to tune on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.files import Case, LabelScheme, geometry_from_affine, save_nifti


def layered_arrays(seed: int) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.uint8]]:
    """Two images, probabilities (3, 8, 8, 8) that see too little foreground, and the truth."""
    rng = np.random.default_rng(seed)
    centre = 3.5 + rng.uniform(-0.5, 0.5, size=(3, 1, 1, 1))
    radius = np.sqrt(((np.indices((8, 8, 8)) - centre) ** 2).sum(axis=0))
    truth = np.where(radius < 1.8, 2, np.where(radius < 3.2, 1, 0)).astype(np.uint8)
    images = np.stack([truth + rng.normal(0, s, truth.shape) for s in (0.5, 0.8)]) + 5.0
    logits = 2.0 * (truth == np.arange(3)[:, None, None, None]) + rng.normal(0, 1, (3, 8, 8, 8))
    logits[0] += 1.5
    shares = np.exp(logits)
    shares /= shares.sum(axis=0)
    return images.astype(np.float32), shares.astype(np.float32), truth


def layered_case(seed: int) -> Case:
    """A core in a rim, with its truth."""
    images, shares, truth = layered_arrays(seed)
    return Case(
        images={"a": images[0], "b": images[1]},
        probabilities=shares,
        mask=np.ones(truth.shape, dtype=bool),
        mask_origin="given",
        labels=LabelScheme((0, 1, 2), ("background", "rim", "core")),
        geometry=geometry_from_affine(truth.shape, np.diag([2.0, 2.0, 2.0, 1.0])),
        hashes={},
        truth=truth,
    )


def miscalibrated_case(seed: int, temperature: float, bias: float) -> Case:
    """A case whose true labels were drawn from softmax(log p / temperature + bias)."""
    rng = np.random.default_rng(seed)
    shape = (16, 16, 16)
    centre = 7.5 + rng.uniform(-1, 1, size=(3, 1, 1, 1))
    radius = np.sqrt(((np.indices(shape) - centre) ** 2).sum(axis=0))
    log_odds = 3.0 * (4.0 - radius)
    shares = 1 / (1 + np.exp(-log_odds))
    drawn = 1 / (1 + np.exp(-(log_odds / temperature + bias)))
    truth = (rng.uniform(size=shape) < drawn).astype(np.uint8)
    return Case(
        images={"a": rng.normal(size=shape).astype(np.float32)},
        probabilities=np.stack([1 - shares, shares]).astype(np.float32),
        mask=np.ones(shape, dtype=bool),
        mask_origin="given",
        labels=LabelScheme((0, 1), ("background", "ball")),
        geometry=geometry_from_affine(shape, np.diag([2.0, 2.0, 2.0, 1.0])),
        hashes={},
        truth=truth,
    )


def write_cases(folder: Path, count: int) -> Path:
    """A table of cases with their probabilities beside them."""
    affine = np.diag([2.0, 2.0, 2.0, 1.0])
    (folder / "probabilities").mkdir()
    lines = ["case,labels,t1,t2"]
    for number in range(count):
        images, shares, truth = layered_arrays(number)
        name = f"p{number}"
        for sequence, image in zip(("t1", "t2"), images):
            save_nifti(folder / f"{name}_{sequence}.nii.gz", image, affine)
        save_nifti(folder / f"{name}_seg.nii.gz", truth, affine)
        save_nifti(folder / "probabilities" / f"{name}.nii.gz", np.moveaxis(shares, 0, -1), affine)
        lines.append(f"{name},{name}_seg.nii.gz,{name}_t1.nii.gz,{name}_t2.nii.gz")
    table = folder / "cases.csv"
    table.write_text("\n".join(lines) + "\n")
    return table
