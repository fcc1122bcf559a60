"""Tiny patients in nnU-Net's layout, each with a ball of its own."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from helpers.small_case import SAME_BYTES, SHAPE, save

NAMES = ("A1", "A2", "B1")


def write_small_cohort(root: Path, names: tuple[str, ...] = NAMES) -> list[str]:
    """Write images, predictions and truths; return the options that name the first two."""
    images, maps, truths = (root / name for name in ("imagesTs", "predicted", "labelsTs"))
    for folder in (images, maps, truths):
        folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(names):
        write_one(root, name, number)
    labels = {"background": 0, "oedema": 1, "core": 2}
    content = {"labels": labels, "channel_names": {"0": "t1", "1": "flair"}}
    (maps / "dataset.json").write_text(json.dumps(content))
    return ["--images", str(images), "--probabilities", str(maps)]


def write_one(root: Path, name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    axes = np.meshgrid(*(np.arange(n) - (n - 1) / 2 for n in SHAPE), indexing="ij")
    place = rng.uniform(-1, 1, size=3)
    distance = np.sqrt(sum((axis - at) ** 2 for axis, at in zip(axes, place)))
    truth = np.where(distance < 1.8, 2, np.where(distance < 3.5, 1, 0))
    inside = np.sqrt(sum(axis**2 for axis in axes)) < 5.5
    truth = truth * inside
    for channel in range(2):
        image = (100 + 40 * truth + 10 * rng.normal(size=SHAPE)) * inside
        save(root / "imagesTs" / f"{name}_{channel:04d}.nii.gz", image.astype(np.float32))
    noise = (1 + 0.3 * seed) * rng.normal(size=(3, *SHAPE))
    p = np.exp(3.0 * (truth == np.arange(3).reshape(-1, 1, 1, 1)) + noise)
    p = (p / p.sum(axis=0)).astype(np.float32)
    np.savez(root / "predicted" / f"{name}.npz", probabilities=p.transpose(0, 3, 2, 1))
    save(root / "predicted" / f"{name}.nii.gz", p.argmax(axis=0).astype(np.uint8))
    save(root / "labelsTs" / f"{name}.nii.gz", truth.astype(np.uint8))


def outputs(out: Path, names: tuple[str, ...] = NAMES) -> dict[str, bytes]:
    """Return the bytes of every map and table of every case."""
    return {
        f"{name}/{file}": (out / name / file).read_bytes() for name in names for file in SAME_BYTES
    }
