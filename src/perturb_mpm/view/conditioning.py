"""What labels set by hand say about the voxels around them.

A sample's scores are the network's log-probabilities plus noise that is correlated over a length.
Labels set by hand condition that noise: where a person says that the network is wrong, it is wrong
in the same way nearby. With f = m + g the scores of all labels, g Gaussian and independent for each
label, a share ``OWN`` of the noise is a voxel's own and makes the labels y of the painted voxels A

    p(y | f) = Π softmax(f / √OWN)_y,   cov g = (1 − OWN) · π²/6 · exp(−r² / 2ℓ²),

which is a Gaussian process classifier whose prior mean is the network (Rasmussen and Williams,
2006, section 3.5: Laplace's approximation). With W the curvature of log p at the mode,
B = (K + W⁻¹)⁻¹ and a the gradient at the mode, the scores at any voxel v become

    m + K_vA a,   with the share  tr(K_vA B K_Av) / (L − 1) / (π²/6)  of its noise explained,

and a sample's noise there follows by Matheron's rule: n + K_vA (a − B (g_A + ε)), cov ε = W⁻¹. A
run draws n alone, all of it correlated, so g_A must be made of it: g_A = (1 − OWN) n_A + √OWN z
with cov z = K_AA has the covariances K_AA with itself and K_vA with n. To take n_A for g_A would
explain twice as much as the paint says, and leave intervals that are too narrow. The length is the
one of ``LENGTH_SHARES`` times the run's under which the paint is the most probable.

People stop painting where the label map is right. So voxels beside the paint in a painted slice
count as seen, with the label they have and a weight of ``SEEN_WEIGHT``; without them, a stroke of
one label would say that everything around has it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.engines import FREE, softmax
from perturb_mpm.model import Grid
from perturb_mpm.noise import Lengths, Perturbation
from perturb_mpm.sampling import SolvedPart

OWN = 0.5
"""The share of the noise that each voxel has for itself."""
LENGTH_SHARES = (0.25, 0.5, 1.0)
"""Lengths tried, in units of the noise's. Which is best differs: the network that outlines
hippocampi errs over 2 to 5 mm, the one that misses parts of gliomas over 10 to 30 mm."""
SEEN_WEIGHT = 0.5
"""What a voxel beside the paint counts, beside a painted one."""
SEEN_VOXELS = 2
"""How far from the paint voxels count as seen."""
MOST_PAINTED = 180
"""Painted voxels that are conditioned on, and as many seen ones; of more, each stands for some."""
GUMBEL_VARIANCE = math.pi**2 / 6
_SUREST_NATS = 6.0  # how sure a network can be that a person may still convince its surroundings
_REACH = 2.5  # correlation lengths; 4 % are left there
_IN_DOUBT = 1e-3  # the probability of other labels from which a voxel is looked at
_LEAST_LEFT = 0.02  # of the noise's variance, so that nothing becomes certain
_JITTER = 1e-6  # of covariances, so that rounding leaves them positive
_TOGETHER = 20_000  # voxels whose covariances are in memory at once


@dataclass(frozen=True, eq=False)
class Influence:
    """What painted labels do to the scores of the voxels around them."""

    voxels: NDArray[np.int64]  # (V,) in the mask, rising; none of them painted
    shift: NDArray[np.float64]  # (L, V) nats
    explained: NDArray[np.float64]  # (V,) share of the noise's variance

    def apply(self, log_marginals: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return the marginals (L, V) that log-marginals (L, V) of these voxels become."""
        left = np.maximum(1 - self.explained, _LEAST_LEFT)
        return softmax((log_marginals + self.shift) / np.sqrt(left), axis=0)


class PaintedNoise:
    """The noise of a run given labels set by hand, (N,) with FREE elsewhere.

    ``scores`` (L, N) are the log-probabilities that the noise is added to. ``painted`` are the
    voxels it is conditioned on: set by hand, or seen beside these.
    """

    def __init__(
        self,
        scores: NDArray[np.floating],
        given: NDArray[np.integer],
        grid: Grid,
        lengths: Lengths,
        seed: int = 0,
    ) -> None:
        self._scores, self._given, self._grid = scores, given, grid
        set_by_hand, seen = (
            each[:: max(1, math.ceil(len(each) / MOST_PAINTED))]
            for each in (np.flatnonzero(given != FREE), _seen_voxels(given, grid))
        )
        every = (given != FREE).sum() / len(set_by_hand)  # so many each stands for
        voxels = np.concatenate([set_by_hand, seen])
        order = np.argsort(voxels)
        self.painted = voxels[order]  # (M,)
        self._positions = _positions_mm(grid, self.painted)
        self._seed = seed
        mean = np.asarray(scores[:, self.painted], dtype=np.float64)
        labels = np.where(given[self.painted] == FREE, mean.argmax(axis=0), given[self.painted])
        weights = np.where(given[self.painted] == FREE, SEEN_WEIGHT, 1.0) * every
        mean = np.maximum(mean - mean.max(axis=0), -_SUREST_NATS)
        tried = []
        for share in LENGTH_SHARES:
            parts = tuple((share * length, weight) for length, weight in lengths if length > 0)
            covariance = _covariance(self._positions, self._positions, parts)
            tried.append((_Laplace(mean, labels, covariance, weights), parts))
        self._solution, self._lengths = max(tried, key=lambda each: each[0].evidence)

    @property
    def lengths_mm(self) -> tuple[float, ...]:
        """The correlation lengths under which the paint is the most probable."""
        return tuple(length for length, _ in self._lengths)

    def influence(self) -> Influence:
        """Return what follows for the voxels in reach that are in doubt, before or after."""
        solution = self._solution
        near = self._near_voxels()
        shift = np.empty((len(self._scores), len(near)))
        for part in _batches(len(near)):
            shift[:, part] = solution.gradient @ self._covariance(near[part]).T
        before = np.asarray(self._scores[:, near], dtype=np.float64)
        surest = np.minimum(*(softmax(x, axis=0).max(axis=0) for x in (before, before + shift)))
        uncertain = surest < 1 - _IN_DOUBT
        voxels, shift = near[uncertain], shift[:, uncertain]
        explained = np.empty(len(voxels))
        trace = solution.trace()
        for part in _batches(len(voxels)):
            rows = self._covariance(voxels[part])
            explained[part] = ((rows @ trace) * rows).sum(axis=1)
        explained /= (len(self._scores) - 1) * GUMBEL_VARIANCE
        return Influence(voxels, shift, np.clip(explained, 0.0, 1.0))

    def sample_shifts(
        self, voxels: NDArray[np.int64], noise: NDArray[np.floating], samples: range
    ) -> NDArray[np.float32]:
        """Return the shifts (L, V, B) of samples whose noise at ``painted`` is (L, M, B)."""
        pull = np.stack(
            [
                self._solution.pull(noise[:, :, b], np.random.default_rng([self._seed, sample]))
                for b, sample in enumerate(samples)
            ],
            axis=-1,
        )  # (L, M, B)
        shifts = np.empty((len(noise), len(voxels), len(samples)), dtype=np.float32)
        for part in _batches(len(voxels)):
            rows = self._covariance(voxels[part])
            for label, weights in enumerate(pull):
                shifts[label, part] = rows @ weights
        return shifts

    def _covariance(self, voxels: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the covariance of voxels with the painted ones, (V, M)."""
        return _covariance(_positions_mm(self._grid, voxels), self._positions, self._lengths)

    def _near_voxels(self) -> NDArray[np.int64]:
        """Return the voxels of the mask in reach that are not painted themselves."""
        from scipy.spatial import cKDTree

        reach = _REACH * max(self.lengths_mm)
        low, high = self._positions.min(axis=0) - reach, self._positions.max(axis=0) + reach
        positions = _positions_mm(self._grid, np.arange(self._grid.voxels))
        inside = ((positions >= low) & (positions <= high)).all(axis=1) & (self._given == FREE)
        found = np.flatnonzero(inside)
        away, _ = cKDTree(self._positions).query(positions[found], distance_upper_bound=reach)
        return found[np.isfinite(away)]


class NoiseShift:
    """Moves the noise of samples as ``PaintedNoise`` says, from the noise they have."""

    def __init__(
        self,
        noise: PaintedNoise,
        scores: NDArray[np.float64],
        grid: Grid,
        perturbation: Perturbation,
    ) -> None:
        self._noise, self._scores, self._grid = noise, scores, grid
        self._perturbation = perturbation
        self._moved = noise.influence().voxels
        # Voxels seen beside the paint need not move, but their noise is conditioned on.
        self.voxels = np.union1d(self._moved, noise.painted)

    def __call__(self, log_odds: NDArray[np.float16], part: SolvedPart) -> None:
        """Move log-odds (A, L − 1, B) in place."""
        self._draw_unstored(log_odds, part)
        painted = np.searchsorted(part.voxels, self._noise.painted)
        mean = self._scores[1:, self._noise.painted] - self._scores[0, self._noise.painted]
        noise = log_odds[painted].transpose(1, 0, 2) - mean[:, :, np.newaxis]  # (L − 1, M, B)
        noise = np.concatenate([np.zeros_like(noise[:1]), noise])
        shifts = self._noise.sample_shifts(self._moved, noise, part.samples)  # (L, V, B)
        rows = np.searchsorted(part.voxels, self._moved)
        log_odds[rows] += (shifts[1:] - shifts[:1]).transpose(1, 0, 2).astype(np.float16)

    def _draw_unstored(self, log_odds: NDArray[np.float16], part: SolvedPart) -> None:
        """Draw the noise of voxels of which only labels are stored; labels stay what they are."""
        rows = np.flatnonzero(~part.stored)
        if not len(rows):
            return
        voxels = part.voxels[rows]
        mask = np.zeros(math.prod(self._grid.shape), dtype=np.bool_)
        mask[self._grid.index[voxels]] = True
        grid = Grid(self._grid.shape, self._grid.spacing, mask.reshape(self._grid.shape))
        samples = np.array(part.samples)
        drawn = -self._perturbation.energies(-self._scores[:, voxels], grid, samples)  # (B, L, R)
        drawn = drawn.transpose(2, 1, 0)  # (R, L, B)
        agrees = drawn.argmax(axis=1) == part.labels[rows]  # (R, B)
        own = (drawn[:, 1:] - drawn[:, :1]).astype(np.float16)
        log_odds[rows] = np.where(agrees[:, np.newaxis], own, log_odds[rows])


class _Laplace:
    """Laplace's approximation of f (L, M) at painted voxels, each counted ``weights`` times.

    Curvatures are W = diag(p) − p pᵀ / Σp at each voxel, so W, and B with it, are blind to what all
    labels have in common.
    """

    def __init__(
        self,
        mean: NDArray[np.float64],
        labels: NDArray[np.int64],
        covariance: NDArray[np.float64],
        weights: NDArray[np.float64],
    ) -> None:
        self._mean, self._labels, self._covariance = mean, labels, covariance
        self._weights, self._scale = weights, math.sqrt(OWN)
        certain = (np.arange(len(mean))[:, np.newaxis] == labels).astype(np.float64)
        f, dual = mean.copy(), np.zeros_like(mean)  # f = mean + dual K
        value = self._objective(f, dual)
        for _ in range(50):
            probabilities = self._factorise(f)
            gradient = weights * (certain - probabilities) / self._scale
            wanted = self._curve(f - mean) + gradient
            wanted -= self._solve(wanted @ covariance)
            step, before = 1.0, value
            while True:
                trial = dual + step * (wanted - dual)
                there = mean + trial @ covariance
                value = self._objective(there, trial)
                if value >= before or step < 1e-3:
                    break
                step /= 2
            dual, f = trial, there
            if abs(value - before) < 1e-4 * (1 + abs(before)):
                break
        self._factorise(f)
        self._root = np.linalg.cholesky(covariance + _JITTER * np.eye(len(covariance)))
        self.gradient, self._value = dual, value

    @property
    def evidence(self) -> float:
        """The logarithm of the probability of the labels."""
        determinant = sum(2 * np.log(np.diag(factor)).sum() for factor in self._factors)
        determinant += 2 * np.log(np.diag(self._sum_factor[0])).sum()
        determinant -= np.log(self._weights / self._scale**2).sum()
        return float(self._value - determinant / 2)

    def pull(
        self, noise: NDArray[np.floating], generator: np.random.Generator
    ) -> NDArray[np.float64]:
        """Return a − B (g + ε), (L, M); g is part of the noise (L, M) of one sample."""
        part = math.sqrt(OWN) * generator.standard_normal(noise.shape) @ self._root.T
        part += (1 - OWN) * noise
        root = np.sqrt(self._p)
        drawn = root * generator.standard_normal(noise.shape)
        drawn -= self._p * drawn.sum(axis=0) / self._p.sum(axis=0)  # of covariance W
        curved = self._curve(part) + drawn
        return self.gradient - (curved - self._solve(curved @ self._covariance))

    def trace(self) -> NDArray[np.float64]:
        """Return the sum over labels of the blocks of B on its diagonal, (M, M)."""
        from scipy.linalg import cho_solve

        blocks = [each - each @ cho_solve(self._sum_factor, each) for each in self._blocks]
        return np.sum(blocks, axis=0)

    def _objective(self, f: NDArray[np.float64], dual: NDArray[np.float64]) -> float:
        z = f / self._scale
        top = z.max(axis=0)
        chosen = z[self._labels, np.arange(len(self._labels))]
        likelihood = chosen - top - np.log(np.exp(z - top).sum(axis=0))
        return float((self._weights * likelihood).sum() - (dual * (f - self._mean)).sum() / 2)

    def _factorise(self, f: NDArray[np.float64]) -> NDArray[np.float64]:
        """Prepare W and B at f; return the probabilities of the labels there, (L, M)."""
        from scipy.linalg import cho_factor, cho_solve

        probabilities = softmax(f / self._scale, axis=0)
        self._p = np.maximum(probabilities, 1e-9) * self._weights / self._scale**2
        eye = np.eye(f.shape[1])
        self._factors, self._blocks = [], []
        for p in self._p:
            root = np.sqrt(p)
            factor = cho_factor(eye + root[:, np.newaxis] * self._covariance * root, lower=True)
            self._factors.append(factor[0])
            self._blocks.append(root[:, np.newaxis] * cho_solve(factor, np.diag(root)))
        self._sum_factor = cho_factor(np.sum(self._blocks, axis=0), lower=True)
        return probabilities

    def _curve(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return W x."""
        weighted = self._p * x
        return weighted - self._p * weighted.sum(axis=0) / self._p.sum(0)

    def _solve(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return B x."""
        from scipy.linalg import cho_solve

        parts = np.stack([block @ row for block, row in zip(self._blocks, x)])
        common = cho_solve(self._sum_factor, parts.sum(axis=0))
        return parts - np.stack([each @ common for each in self._blocks])


def _covariance(
    one: NDArray[np.float64], other: NDArray[np.float64], lengths: Lengths
) -> NDArray[np.float64]:
    """Return the covariance of the shared noise between positions in mm, (V, 3) and (M, 3)."""
    squares = (one**2).sum(axis=1)[:, np.newaxis] + (other**2).sum(axis=1) - 2 * one @ other.T
    np.maximum(squares, 0, out=squares)
    correlation = sum(weight * np.exp(-squares / (2 * length**2)) for length, weight in lengths)
    return (1 - OWN) * GUMBEL_VARIANCE * np.asarray(correlation)


def _seen_voxels(given: NDArray[np.integer], grid: Grid) -> NDArray[np.int64]:
    """Return the voxels beside the painted ones, in the slices that are painted, (V,)."""
    from scipy.ndimage import binary_dilation

    image = grid.scatter(given != FREE, 0)
    painted = np.argwhere(image)
    # Of the three ways to cut, the one with the fewest slices is how it was painted.
    across = min(range(2, -1, -1), key=lambda axis: len(np.unique(painted[:, axis])))
    low = np.maximum(painted.min(axis=0) - SEEN_VOXELS, 0)
    box = tuple(slice(a, b + SEEN_VOXELS + 1) for a, b in zip(low, painted.max(axis=0)))
    disc = np.ones([1 if axis == across else 3 for axis in range(3)], dtype=bool)
    near = np.zeros_like(image)
    near[box] = binary_dilation(image[box], disc, iterations=SEEN_VOXELS)
    return np.flatnonzero(grid.gather(near) & (given == FREE))


def _positions_mm(grid: Grid, voxels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return positions on the grid, (V, 3) mm."""
    indices = np.stack(np.unravel_index(grid.index[voxels], grid.shape), axis=1)
    return indices.astype(np.float64) * np.asarray(grid.spacing, dtype=np.float64)


def _batches(count: int) -> Iterator[slice]:
    for start in range(0, count, _TOGETHER):
        yield slice(start, start + _TOGETHER)
