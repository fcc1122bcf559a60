"""What is taken off the unary energies to make a sample: Ũ = U − scale·γ − Σ_k a_k g_k."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perturb_mpm import checks
from perturb_mpm.model import Grid
from perturb_mpm.noise.correlated import (
    WHITE,
    Lengths,
    check_fits,
    checked_lengths,
    correlated_gumbel,
    described,
)
from perturb_mpm.noise.fields import Field, sample_fields
from perturb_mpm.noise.gumbel import STREAMS, checked_seed, gumbel


@dataclass(frozen=True)
class Perturbation:
    """Gumbel noise γ for every voxel and label, and smooth fields g_k of scales a_k beside it.

    Scale 1 of white noise without fields is the paper's. ``lengths`` makes the noise go together
    between voxels and keeps its law at each (see ``correlated``); it takes the place of fields.
    With ``antithetic`` samples 2t and 2t + 1 are opposites: 1 − u in place of u, −g in place of g.
    """

    seed: int = 0
    scale: float = 1.0
    fields: tuple[Field, ...] = ()
    antithetic: bool = False
    lengths: Lengths = WHITE

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", checked_seed(self.seed))
        object.__setattr__(self, "scale", checks.nats(self.scale, "scale of Perturbation"))
        object.__setattr__(self, "fields", _checked_fields(self.fields))
        object.__setattr__(self, "antithetic", checks.flag(self.antithetic, "antithetic"))
        object.__setattr__(self, "lengths", checked_lengths(self.lengths))
        if self.correlated and self.fields:
            raise ValueError(
                "fields must be empty where noise_length is above 0, got both: correlated noise "
                "takes their place"
            )

    @property
    def correlated(self) -> bool:
        """Whether the noise of neighbouring voxels goes together."""
        return self.lengths != WHITE

    def without_noise(self) -> Perturbation:
        """Return what is left when each voxel's own noise is integrated out: the fields alone."""
        return replace(self, scale=0.0, lengths=WHITE)

    def check(self, grid: Grid, n_labels: int) -> None:
        """Raise where a field does not fit the image or its labels; nothing is drawn."""
        check_fits(self.lengths, grid)
        for field in self.fields:
            field.check(grid, n_labels)

    def describe(self) -> dict[str, object]:
        """Return all that makes the perturbation, as values that JSON can hold."""
        return {
            "seed": self.seed,
            "scale": self.scale,
            "fields": [field.describe() for field in self.fields],
            "antithetic": self.antithetic,
            **({"lengths_mm": described(self.lengths)} if self.correlated else {}),
        }

    def energies(
        self, base: NDArray[np.floating], grid: Grid, samples: ArrayLike
    ) -> NDArray[np.float32]:
        """Return the perturbed energies (B, L, N) of ``base`` (L, N), the unaries in the mask."""
        self.check(grid, len(base))
        options = {"antithetic": self.antithetic}
        if self.correlated:
            together = correlated_gumbel(
                self.lengths, self.seed, samples, grid, len(base), **options
            )
            return np.stack([base - self.scale * each for each in together]).astype(np.float32)
        noise = gumbel(self.seed, samples, grid.index, len(base), **options)
        energies: NDArray[np.float64] = base - self.scale * noise.astype(np.float64)
        if self.fields:
            drawn = sample_fields(self.fields, self.seed, samples, grid, len(base), **options)
            for b, values in enumerate(drawn):
                energies[b] -= values
        return energies.astype(np.float32)


def _checked_fields(fields: object) -> tuple[Field, ...]:
    if isinstance(fields, Field) or not isinstance(fields, Iterable):
        raise TypeError(
            f"fields must be a sequence of Field, got {type(fields).__name__}: write fields=[field]"
        )
    checked = tuple(fields)
    for field in checked:
        if not isinstance(field, Field):
            raise TypeError(f"fields must hold Field, got {type(field).__name__}")
    if len(checked) >= STREAMS:
        raise ValueError(f"fields must be fewer than {STREAMS}, got {len(checked)}")
    return checked
