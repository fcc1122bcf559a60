"""What is taken off the unary energies to make a sample, Ũ = U − scale·γ, white or correlated.

Correlated Gumbel noise keeps its law at each voxel:

    γ_l(x) = −log(−log Φ(g_l(x))),   g_l = Σ_k √w_k · smooth(ℓ_k),   Σ_k w_k = 1

Each part is Gaussian with variance 1 at every voxel and correlation exp(−r² / 2ℓ²) between voxels
at a distance of r mm, so Φ(g) is uniform and γ is Gumbel at every voxel, whatever the lengths are.
The labels are independent of each other: without coupling the votes of every voxel follow
softmax(−U) for every ℓ, and only the correlations change. ℓ = 0 is white noise, the paper's;
ℓ = ∞ is one draw for the whole image.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perturb_mpm import checks
from perturb_mpm.model import Grid
from perturb_mpm.noise.gumbel import STREAMS, bits, checked_samples, checked_seed, gumbel, uniform
from perturb_mpm.noise.nodes import NodeLattice, longest_axis

NoiseLength = float | str | Sequence[tuple[float, float]]
"""A length in mm, (length in mm, weight) of each part of a mixture, or either as text."""

Lengths = tuple[tuple[float, float], ...]
"""(ℓ in mm, w) of each part, by falling length; the weights sum to 1."""

WHITE: Lengths = ((0.0, 1.0),)
MOST_LENGTHS = 8
# Φ is clipped at 1e-7 on both sides: γ stays between −2.78 and 16.12, nearly as white noise does.
FARTHEST = 5.199337582


def checked_lengths(value: object) -> Lengths:
    """Return the parts of the noise, with weights that sum to 1; "40:0.7,0:0.3" is a mixture."""
    if isinstance(value, str):
        value = _from_text(value)
    parts = value if isinstance(value, Sequence) else ((value, 1.0),)
    if not 1 <= len(parts) <= MOST_LENGTHS:
        raise ValueError(
            f"noise_length must be a length or 1 to {MOST_LENGTHS} pairs (length, weight), "
            f"got {value!r}"
        )
    weights: dict[float, float] = {}
    for part in parts:
        if not isinstance(part, Sequence) or isinstance(part, str) or len(part) != 2:
            raise TypeError(
                f"noise_length must be a length in mm or pairs (length, weight), got {value!r}"
            )
        length = _checked_length(part[0])
        weight = checks.number(part[1], "weight of noise_length", positive=True)
        weights[length] = weights.get(length, 0.0) + weight
    total = sum(weights.values())
    return tuple((length, weights[length] / total) for length in sorted(weights, reverse=True))


def simplest(lengths: Lengths) -> NoiseLength:
    """Return one length as a number, and a mixture as its parts."""
    return lengths[0][0] if len(lengths) == 1 else lengths


def _from_text(text: str) -> list[tuple[float, float]]:
    try:
        words = [part.partition(":") for part in text.split(",")]
        return [(float(length), float(weight or 1)) for length, _, weight in words]
    except ValueError:
        raise ValueError(
            "noise_length must be a length in mm such as 40 or inf, or lengths with weights such "
            f"as 40:0.7,4:0.3, got {text!r}"
        ) from None


def _checked_length(value: object) -> float:
    if isinstance(value, float) and value == math.inf:
        return value
    return checks.number(value, "noise_length", minimum=0)


def length_lattices(lengths: Lengths, grid: Grid, n_labels: int) -> list[NodeLattice]:
    """Return the nodes of each length above 0; the white part is drawn at the voxels."""
    return [
        NodeLattice(length, grid, n_labels, scale=math.sqrt(weight), stream=STREAMS - 1 - k)
        for k, (length, weight) in enumerate(lengths)
        if length > 0
    ]


def white_share(lengths: Lengths) -> float:
    """Return √w of the white part, 0 where there is none."""
    return math.sqrt(dict(lengths).get(0.0, 0.0))


def gumbel_from_normal(g: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return −log(−log Φ(g)): Gumbel where g is standard normal."""
    from scipy.special import log_ndtr

    clipped = np.clip(g.astype(np.float64), -FARTHEST, FARTHEST)
    return -np.log(-log_ndtr(clipped))


def correlated_gumbel(
    lengths: Lengths,
    seed: int,
    samples: ArrayLike,
    grid: Grid,
    n_labels: int,
    *,
    antithetic: bool = False,
) -> Iterator[NDArray[np.float64]]:
    """Yield the noise of each sample in the mask, (L, N); ``antithetic`` takes −g for odd ones."""
    from scipy.special import ndtri

    lattices = length_lattices(lengths, grid, n_labels)
    white = white_share(lengths)
    for sample in checked_samples(samples).tolist():
        g = np.zeros((n_labels, grid.voxels))
        for lattice in lattices:
            for label, nodes in enumerate(lattice.draw(seed, sample, antithetic=antithetic)):
                g[label] += lattice.at_voxels(nodes)
        if white > 0:
            drawn = sample & ~1 if antithetic else sample
            words = bits(seed, np.array([drawn]), grid.index, n_labels)[0]  # (L, N)
            flipped = ~words if antithetic and sample & 1 else words
            g += white * ndtri(uniform(flipped))
        yield gumbel_from_normal(g)


@dataclass(frozen=True)
class Perturbation:
    """Gumbel noise γ for every voxel and label.

    Scale 1 of white noise is the paper's. ``lengths`` correlates the noise of voxels
    and keeps its law at each (see above). With ``antithetic`` samples 2t and 2t + 1 are
    opposites: 1 − u in place of u.
    """

    seed: int = 0
    scale: float = 1.0
    antithetic: bool = False
    lengths: Lengths = WHITE

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", checked_seed(self.seed))
        object.__setattr__(self, "scale", checks.nats(self.scale, "scale of Perturbation"))
        object.__setattr__(self, "antithetic", checks.flag(self.antithetic, "antithetic"))
        object.__setattr__(self, "lengths", checked_lengths(self.lengths))

    @property
    def correlated(self) -> bool:
        """Whether the noise of neighbouring voxels is correlated."""
        return self.lengths != WHITE

    def without_noise(self) -> Perturbation:
        """Return what is left when each voxel's own noise is integrated out."""
        return replace(self, scale=0.0, lengths=WHITE)

    def check(self, grid: Grid) -> None:
        """Raise where the image is too long for noise of a length; nothing is drawn."""
        longest = longest_axis(grid.ndim)
        if self.correlated and max(grid.shape) > longest:
            raise ValueError(
                f"noise_length must be 0 on images of more than {longest} voxels along one of "
                f"{grid.ndim} axes, got shape {grid.shape}"
            )

    def describe(self) -> dict[str, object]:
        """Return all that makes the perturbation, as values that JSON can hold."""
        lengths = [["inf" if math.isinf(mm) else mm, weight] for mm, weight in self.lengths]
        return {
            "seed": self.seed,
            "scale": self.scale,
            "antithetic": self.antithetic,
            **({"lengths_mm": lengths} if self.correlated else {}),
        }

    def energies(
        self, base: NDArray[np.floating], grid: Grid, samples: ArrayLike
    ) -> NDArray[np.float32]:
        """Return the perturbed energies (B, L, N) of ``base`` (L, N), the unaries in the mask."""
        self.check(grid)
        options = {"antithetic": self.antithetic}
        if self.correlated:
            together = correlated_gumbel(
                self.lengths, self.seed, samples, grid, len(base), **options
            )
            return np.stack([base - self.scale * each for each in together]).astype(np.float32)
        noise = gumbel(self.seed, samples, grid.index, len(base), **options)
        energies: NDArray[np.float64] = base - self.scale * noise.astype(np.float64)
        return energies.astype(np.float32)
