"""What the comparison methods share, and voxels drawn one by one: from mean field or unaries."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perturb_mpm import checks
from perturb_mpm.engines import Accuracy, Engine
from perturb_mpm.inference import mean_field
from perturb_mpm.model import BilateralKernel, DenseCRF, Grid, PairwiseTerm, digest, fingerprint
from perturb_mpm.noise import checked_seed, gumbel
from perturb_mpm.posterior import Posterior, Tally
from perturb_mpm.sampling import sample_range
from perturb_mpm.version import version

Neighbours = Literal["faces", "all"]

Samples = int | range

# Of the methods that do not use the noise of Perturb-and-MPM.
_STREAMS = {"exact": 0, "full_perturbation": 1, "contours": 2, "gibbs": 3}

# How many numbers of noise are drawn at once.
_NOISE_AT_ONCE = 2**22


class Edges(NamedTuple):
    """Pairs of neighbours, each once, by their index among the N voxels of the mask."""

    first: NDArray[np.int64]  # (E,)
    second: NDArray[np.int64]  # (E,)
    weight: NDArray[np.float64]  # (E,)

    def matrix(self, voxels: int) -> NDArray[np.float64]:
        """Return the weights as a symmetric (N, N) matrix."""
        dense = np.zeros((voxels, voxels))
        dense[self.first, self.second] = dense[self.second, self.first] = self.weight
        return dense


class GridCRF:
    """E(x) = Σ_i U_i(x_i) + Σ_{neighbours i, j} w_ij [x_i ≠ x_j], P ∝ exp(−E).

    The contrast-sensitive weights are those of Boykov & Jolly (ICCV 2001):
    w_ij = weight · exp(−|I_i − I_j|² / 2σ²) / distance, the distance in mm.

    Parameters
    ----------
    unary
        Energies (L, *spatial), 2 to 255 labels, 1 to 4 axes.
    weight
        What a pair of unlike labels costs 1 mm apart where the intensities are equal.
    images
        Intensities (C, *spatial), z-scored inside the mask; without them only distance counts.
    sigma_intensity
        σ in standard deviations inside the mask, one number or one for each channel.
    neighbours
        "faces": 4 in 2-D, 6 in 3-D. "all": corners and edges too, 8 in 2-D, 26 in 3-D.
    spacing
        The voxel size in mm, one number or one for each axis; 1 mm where it is None.
    mask
        The voxels in play, (*spatial), where not zero; all of them where it is None.
    """

    grid: Grid
    energies: NDArray[Any]
    """The unary energies inside the mask, (L, N), read-only."""
    edges: Edges

    def __init__(
        self,
        unary: ArrayLike,
        weight: float,
        images: ArrayLike | None = None,
        sigma_intensity: float | Sequence[float] = 1.0,
        neighbours: Neighbours = "faces",
        spacing: float | Sequence[float] | None = None,
        mask: ArrayLike | None = None,
    ) -> None:
        full = checks.floats(unary, "unary")
        checks.labels_first(full, "unary")
        weight = checks.number(weight, "weight", minimum=0)
        checks.choice(neighbours, "neighbours", get_args(Neighbours))
        self.grid = Grid(full.shape[1:], spacing, mask)
        self.energies = checks.read_only(self.grid.gather(full))
        first, second, distance = _pairs(self.grid, neighbours)
        strength = weight / distance  # (E,)
        if images is not None:
            kernel = BilateralKernel(images, sigma_space=1.0, sigma_intensity=sigma_intensity)
            scaled = kernel.features_on(self.grid)[:, self.grid.ndim :]  # (N, C)
            strength *= np.exp(-((scaled[first] - scaled[second]) ** 2).sum(axis=1) / 2)
        self.edges = Edges(first, second, strength)

    def __repr__(self) -> str:
        return (
            f"GridCRF(labels={self.n_labels}, shape={self.grid.shape}, "
            f"spacing={self.grid.spacing}, voxels={self.grid.voxels}, "
            f"edges={len(self.edges.weight)})"
        )

    @property
    def n_labels(self) -> int:
        """L, the number of labels."""
        return int(self.energies.shape[0])

    def energy(self, labels: ArrayLike) -> float:
        """Return E(x) of a labelling (*spatial); what it says outside the mask does not count."""
        whole = checks.whole(labels, "labels")
        if whole.shape != self.grid.shape:
            raise ValueError(
                f"labels must have the image's shape {self.grid.shape}, got {whole.shape}"
            )
        x = self.grid.gather(whole)  # (N,)
        checks.in_range(x, "labels", self.n_labels)
        return self.energy_inside(x, self.energies)

    def energy_inside(self, x: NDArray[Any], energies: NDArray[Any]) -> float:
        """Return E of the labels (N,) inside the mask under other unary energies (L, N)."""
        unary = np.take_along_axis(energies, x[np.newaxis].astype(np.int64), axis=0)
        cut = x[self.edges.first] != x[self.edges.second]
        return float(unary.sum(dtype=np.float64) + self.edges.weight[cut].sum())


def _pairs(
    grid: Grid, neighbours: Neighbours
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Return the indices of both voxels of every pair of neighbours, and their distance in mm."""
    index = grid.scatter(np.arange(grid.voxels), -1)  # (*shape)
    first, second, distance = [], [], []
    for offset in itertools.product((-1, 0, 1), repeat=grid.ndim):
        forward = offset > (0,) * grid.ndim  # one of each pair of opposite directions
        if not forward or (neighbours == "faces" and np.abs(offset).sum() > 1):
            continue
        here = index[tuple(slice(max(0, -o), min(n, n - o)) for o, n in zip(offset, grid.shape))]
        there = index[tuple(slice(max(0, o), min(n, n + o)) for o, n in zip(offset, grid.shape))]
        inside = (here >= 0) & (there >= 0)
        first.append(here[inside])
        second.append(there[inside])
        length = float(np.linalg.norm(np.multiply(offset, grid.spacing)))
        distance.append(np.full(len(first[-1]), length))
    return np.concatenate(first), np.concatenate(second), np.concatenate(distance)


Model = DenseCRF | GridCRF


class PairwiseEnergy(NamedTuple):
    """One pairwise energy Σ_{i<j} μ(x_i, x_j) k(i, j)."""

    kernel: NDArray[np.float64]  # (N, N): symmetric, its diagonal 0
    compatibility: NDArray[np.float64]  # (L, L)


def check_model(crf: object) -> None:
    """Raise where ``crf`` is neither of the two models."""
    if not isinstance(crf, DenseCRF | GridCRF):
        raise TypeError(f"crf must be a DenseCRF or a GridCRF, got {type(crf).__name__}")


def problem(crf: Model) -> str:
    """Return a name for all that makes the energy, to tell posteriors apart."""
    if isinstance(crf, GridCRF):
        return digest(crf.energies, crf.grid.spacing, crf.grid.index, *crf.edges)
    return fingerprint(crf)


def couplings(crf: Model) -> list[PairwiseEnergy]:
    """Return the pairwise energies, all Potts terms added up into one.

    Normalisations "before" and "after" make k(i, j) ≠ k(j, i); their mean counts, as it does in
    ``DenseCRF.energy``. There is no self term, whatever the CRF says.
    """
    potts = 1.0 - np.eye(crf.n_labels)
    if isinstance(crf, GridCRF):
        return [PairwiseEnergy(crf.edges.matrix(crf.grid.voxels), potts)]
    result = []
    total = np.zeros((0, 0))
    for term in crf.terms:
        kernel = _symmetric(term)
        if term.potts_weight is None:
            result.append(PairwiseEnergy(kernel, term.compatibility))
        else:
            kernel *= term.potts_weight
            total = total + kernel if total.size else kernel
    return [PairwiseEnergy(total, potts), *result] if total.size else result


def _symmetric(term: PairwiseTerm) -> NDArray[np.float64]:
    from perturb_mpm.engines import kernel_matrix

    kernel = kernel_matrix(term)
    if term.normalization in {"before", "after"}:
        kernel = (kernel + kernel.T) / 2
    np.fill_diagonal(kernel, 0.0)
    return kernel


def batches(samples: range, each: int, most: int) -> Iterator[range]:
    """Cut a range into parts whose samples, of size ``each``, hold at most ``most`` together."""
    step = max(1, most // each)
    for start in range(samples.start, samples.stop, step):
        yield range(start, min(start + step, samples.stop))


class Collector:
    """Counts label maps into a posterior, under the name of what made them."""

    def __init__(self, method: str, samples: Samples, seed: int, **options: float | str) -> None:
        self.samples = sample_range(samples)
        self.seed = checked_seed(seed)
        self._parameters = {"method": method, "seed": self.seed, **options, "version": version()}

    def collect(
        self, grid: Grid, n_labels: int, draws: Iterable[NDArray[np.uint8]], problem: str
    ) -> Posterior:
        """Return the posterior of all label maps, (B, N) at a time, inside the mask."""
        tally = Tally(grid, n_labels, conditional=False)
        for labels in draws:
            tally.add(labels, np.zeros(len(labels)))
        return Posterior(
            grid=grid,
            counts=tally.counts,
            sample_index=np.array(self.samples),
            volumes=tally.sizes * math.prod(grid.spacing),
            problem=problem,
            parameters=self._parameters,
        )


def generator(method: str, seed: int, number: int = 0) -> np.random.Generator:
    """Return random numbers that belong to a method, a seed and the number of a sample or chain."""
    return np.random.default_rng([seed & 0xFFFFFFFF, seed >> 32, _STREAMS[method], number])


def independent(
    crf: DenseCRF,
    samples: Samples,
    seed: int,
    *,
    iterations: int = 10,
    engine: Engine = "auto",
    accuracy: Accuracy = "calibrated",
) -> Posterior:
    """Draw each voxel's label from its mean-field marginal Q_i, by itself.

    The marginals of the samples are Q's; that voxels go together is lost, so the volumes of these
    samples hardly vary. The noise is that of ``pm.sample``. Any size of problem.
    """
    options = {"iterations": iterations, "engine": engine, "accuracy": accuracy}
    run = Collector("independent", samples, seed, **options)
    q = mean_field(crf, iterations, engine=engine, accuracy=accuracy).marginals
    inside = crf.grid.gather(q).astype(np.float64)  # (L, N)
    tiny = np.finfo(np.float64).tiny
    draws = _gumbel_max(crf, np.log(np.maximum(inside, tiny)), run.samples, run.seed)
    return run.collect(crf.grid, crf.n_labels, draws, problem(crf))


def unary_only(crf: Model, samples: Samples, seed: int) -> Posterior:
    """Draw each voxel's label from softmax(−U_i), by itself: what is left without coupling.

    The noise is that of ``pm.sample``. Any size of problem.
    """
    run = Collector("unary_only", samples, seed)
    check_model(crf)
    draws = _gumbel_max(crf, -crf.energies.astype(np.float64), run.samples, run.seed)
    return run.collect(crf.grid, crf.n_labels, draws, problem(crf))


def _gumbel_max(
    crf: Model, logits: NDArray[np.float64], samples: range, seed: int
) -> Iterator[NDArray[np.uint8]]:
    """Draw from softmax(logits), (L, N), as the label of the largest logit + noise."""
    for batch in batches(samples, logits.size, _NOISE_AT_ONCE):
        noise = gumbel(seed, batch, crf.grid.index, crf.n_labels)  # (B, L, N)
        yield (logits + noise).argmax(axis=1).astype(np.uint8)
