"""Small made-up patients for the tests of the report."""

from __future__ import annotations

import base64
import io
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.report.data import ReportData, Snapshot, VolumeRow

NAMES = ("healthy", "necrosis", "oedema", "enhancing")

Affine = NDArray[np.float64]


def entropy_bits(marginals: NDArray[Any]) -> NDArray[np.float32]:
    safe = np.where(marginals > 0, marginals, 1.0)
    return (-(marginals * np.log2(safe)).sum(axis=0)).astype(np.float32)


def volume_rows(
    values: tuple[int, ...],
    names: tuple[str, ...],
    volumes_ml: NDArray[np.float64],  # (L,)
    samples_mm3: NDArray[np.float64],  # (S, L)
) -> tuple[VolumeRow, ...]:
    """Each label, and all but the background together."""

    def row(name: str, kind: Any, members: list[int]) -> VolumeRow:
        samples_ml = samples_mm3[:, members].sum(axis=1) / 1000
        ends = np.quantile(samples_ml, [0.025, 0.975]) if len(samples_ml) else (np.nan, np.nan)
        return VolumeRow(
            name,
            kind,
            tuple(values[label] for label in members),
            float(volumes_ml[members].sum()),
            samples_ml,
            (float(ends[0]), float(ends[1])),
        )

    rows = [row(name, "label" if l else "background", [l]) for l, name in enumerate(names)]
    together = [row("together", "together", list(range(1, len(names))))] if len(names) > 2 else []
    return (*rows, *together)


def report_case(
    shape: tuple[int, ...] = (20, 24, 16),
    affine: NDArray[np.float64] | None = None,
    **changes: Any,
) -> ReportData:
    """A box of oedema with some necrosis in it, and its border as likely to be healthy."""
    rng = np.random.default_rng(0)
    affine = np.diag([2.0, 2.0, 3.0, 1.0]) if affine is None else affine
    labels = np.zeros(shape, dtype=np.uint8)
    inner = tuple(slice(n // 4, max(n // 4 + 1, 3 * n // 4)) for n in shape)
    core = tuple(slice(n // 3, max(n // 3 + 1, n // 2)) for n in shape)
    labels[inner] = 2
    marginals = np.zeros((4, *shape), dtype=np.float32)
    marginals[0] = 1.0
    marginals[:, *inner] = np.reshape([0.4, 0.0, 0.6, 0.0], (4,) + (1,) * len(shape))
    labels[core] = 1
    marginals[:, *core] = np.reshape([0.0, 1.0, 0.0, 0.0], (4,) + (1,) * len(shape))
    entropy = entropy_bits(marginals)
    voxel = float(abs(np.linalg.det(affine[:3, :3])))
    sizes = np.bincount(labels.ravel(), minlength=4)
    spread = rng.normal(1.0, 0.1, size=(40, 4))
    values = {
        "title": "A patient",
        "images": {
            "T1ce": rng.normal(100, 10, shape).astype(np.float32),
            "FLAIR": rng.normal(50, 10, shape).astype(np.float32),
        },
        "mask": np.ones(shape, dtype=bool),
        "labels": labels,
        "entropy": entropy,
        "uncertainty": np.where(entropy > 0.29, 2, 0).astype(np.uint8),
        "marginals": marginals,
        "affine": affine,
        "spacing": tuple(float(e) for e in np.linalg.norm(affine[:3, :3], axis=0)),
        "label_values": (0, 1, 2, 4),
        "label_names": NAMES,
        "samples": 40,
        "volumes": volume_rows((0, 1, 2, 4), NAMES, sizes * voxel / 1000, sizes * voxel * spread),
        "intervals": "none",
        "perturbation": "Gumbel noise at every voxel.",
        "snapshots": (
            Snapshot(10, entropy * 0.8),
            Snapshot(25, entropy * 0.9),
            Snapshot(40, entropy),
        ),
        "sampled_labels": np.stack([labels, labels]),
        "parameters": {"sampling": {"seed": 11, "noise_scale": 1.0}},
    }
    return ReportData(**(values | changes))


def pixels_of(address: str) -> NDArray[np.float32]:
    """Decode a picture that stands in a page: (rows, columns) grey or (rows, columns, 4)."""
    from matplotlib.image import imread

    start = "data:image/png;base64,"
    assert address.startswith(start)
    return imread(io.BytesIO(base64.b64decode(address[len(start) :])), format="png")


def turned(degrees: float) -> Affine:
    """A scan turned about the axis from feet to head, first axis to the right when not turned."""
    c, s = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    return affine_of([[2 * c, 2 * s, 0], [-2 * s, 2 * c, 0], [0, 0, 3]], (5, -7, 11))


def affine_of(columns: list[list[float]], origin: tuple[float, float, float]) -> Affine:
    """The affine whose grid axes are these vectors, in mm to the right, front and top."""
    affine = np.eye(4)
    affine[:3, :3] = np.array(columns).T
    affine[:3, 3] = origin
    return affine
