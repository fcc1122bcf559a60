"""Smooth random fields in millimetres, as a pure function of (seed, sample, field, place, label).

Independent noise at every voxel averages out over a region, so that sampled volumes hardly differ.
Fields make whole neighbourhoods err together: Ũ = U − γ − Σ_k a_k g_k.

A field g has mean 0 and variance 1 at every voxel, and between two voxels at a distance of r mm the
correlation exp(−r² / 2ℓ²): 0.61 at one length ℓ, 0.14 at two, 0.01 at three. ``field_nodes.py``
says how it is made.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perturb_mpm import checks
from perturb_mpm.field_nodes import NodeLattice, longest_axis
from perturb_mpm.grid import Grid
from perturb_mpm.noise import checked_samples, checked_seed


@dataclass(frozen=True)
class Field:
    """A smooth random field; ``scale`` times itself is subtracted from the unary energies.

    ``length_mm`` is ℓ, and ``math.inf`` makes one number for the whole image. With ``labels`` None
    every label has a field of its own. A collection of labels shares one field, and the others
    have none; shared by all labels it changes nothing.
    """

    length_mm: float
    scale: float
    labels: Collection[int] | None = None

    def __post_init__(self) -> None:
        length = self.length_mm
        if length != math.inf:
            length = checks.number(length, "length_mm of Field", positive=True)
        object.__setattr__(self, "length_mm", float(length))
        scale = checks.number(self.scale, "scale of Field", minimum=0)
        object.__setattr__(self, "scale", scale)
        object.__setattr__(self, "labels", _checked_labels(self.labels))

    def check(self, grid: Grid, n_labels: int) -> None:
        """Raise where the field does not fit the image or its labels; nothing is drawn."""
        if self.labels is not None:
            checks.in_range(np.array(self.labels), "labels of Field", n_labels)
        longest = longest_axis(grid.ndim)
        if max(grid.shape) > longest:
            raise ValueError(
                f"fields must be on images of at most {longest} voxels along each of "
                f"{grid.ndim} axes, got shape {grid.shape}"
            )

    def describe(self) -> dict[str, object]:
        """Return what makes the field, as values that JSON can hold; infinity is "inf"."""
        return {
            "length_mm": "inf" if math.isinf(self.length_mm) else self.length_mm,
            "scale": self.scale,
            "labels": None if self.labels is None else list(self.labels),
        }


def sample_fields(
    fields: Sequence[Field],
    seed: int,
    samples: ArrayLike,
    grid: Grid,
    n_labels: int,
    *,
    antithetic: bool = False,
) -> Iterator[NDArray[np.float32]]:
    """Yield for each sample what the fields add up to, Σ_k a_k g_k inside the mask, (L, N).

    With ``antithetic`` sample 2t + 1 is the opposite of sample 2t.
    """
    seed = checked_seed(seed)
    chosen = checked_samples(samples)
    antithetic = checks.flag(antithetic, "antithetic")
    lattices = node_lattices(fields, grid, n_labels)

    def one(sample: int) -> NDArray[np.float32]:
        total = np.zeros((n_labels, grid.voxels), dtype=np.float32)
        for lattice in lattices:
            for label, nodes in enumerate(lattice.draw(seed, sample, antithetic=antithetic)):
                total[label] += lattice.at_voxels(nodes)
        return total

    return (one(sample) for sample in chosen.tolist())


def node_lattices(fields: Sequence[Field], grid: Grid, n_labels: int) -> list[NodeLattice]:
    """Return a lattice for each length among the fields of a scale above 0.

    Field k takes stream 1 + k of the random numbers, whatever the others are.
    """
    lattices: dict[float, NodeLattice] = {}
    for k, field in enumerate(fields):
        field.check(grid, n_labels)
        if field.scale > 0:
            if field.length_mm not in lattices:
                lattices[field.length_mm] = NodeLattice(field.length_mm, grid, n_labels)
            lattices[field.length_mm].add(1 + k, field.scale, field.labels)
    return list(lattices.values())


def _checked_labels(labels: object) -> tuple[int, ...] | None:
    if labels is None:
        return None
    if isinstance(labels, np.ndarray):
        labels = labels.tolist()
    if isinstance(labels, str) or not isinstance(labels, Iterable):
        raise TypeError(
            f"labels of Field must be None or a collection of labels, got {labels!r}: "
            "write labels=[label]"
        )
    each = {
        checks.integer(label, "labels of Field", minimum=0, maximum=checks.MOST_LABELS - 1)
        for label in labels
    }
    if not each:
        raise ValueError(
            "labels of Field must name at least one label, got none: "
            "labels=None gives every label a field of its own"
        )
    return tuple(sorted(each))
