"""Exact answers for tiny problems by visiting every labelling, Perturb-and-MAP among them."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from lab.comparators.common import (
    Collector,
    Model,
    Samples,
    batches,
    check_model,
    couplings,
    generator,
    problem,
)
from perturb_mpm.noise import gumbel
from perturb_mpm.posterior import Posterior

LARGEST_STATES = 20_000_000

# How many energies are worked on at once, 8 bytes each.
_ENERGIES_AT_ONCE = 2**20

# What a run visits at most, labellings × samples: some minutes for either perturbation.
LARGEST_WORK = 10**11

LARGEST_DRAWS = 10**10


class StateTable:
    """E(x) of every labelling, as a table: first half of the voxels × the other half.

    A labelling is numbered by its labels, the first voxel's counting most. Splitting the voxels
    into a head and a tail leaves E = E(head) + E(tail) + cross terms, and the cross terms are a
    sum of one number for each voxel of the tail: N/2 additions a labelling instead of N²/2.

    The limit is L^N ≤ 2·10⁷: 24 voxels with 2 labels, 15 with 3, 12 with 4, 10 with 5.
    """

    energies: NDArray[np.float64]
    """E of every labelling, (H, T)."""

    def __init__(self, crf: Model) -> None:
        check_model(crf)
        n_labels, voxels = crf.energies.shape
        check_states(n_labels, voxels)
        self.n_labels, self.voxels = n_labels, voxels
        split = voxels - voxels // 2
        self.head = _digits(n_labels, split)  # (H, N_h)
        self.tail = _digits(n_labels, voxels - split)  # (T, N_t)
        pairs = _pair_energies(crf)  # (N, L, N, L)
        first, second = slice(0, split), slice(split, voxels)
        unary = crf.energies.astype(np.float64)  # (L, N)
        head = _inner(self.head, unary[:, first], pairs[first, :, first])  # (H,)
        tail = _inner(self.tail, unary[:, second], pairs[second, :, second])  # (T,)
        self.energies = head[:, np.newaxis] + tail
        self._add_cross(pairs[first, :, second])

    @property
    def states(self) -> int:
        """L^N."""
        return self.energies.size

    def labels(self, index: NDArray[np.integer]) -> NDArray[np.uint8]:
        """Return the labellings with the given numbers, (M,) → (M, N)."""
        head, tail = np.divmod(index, len(self.tail))
        return np.concatenate([self.head[head], self.tail[tail]], axis=1)

    def sums(self, values: NDArray[np.floating]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return Σ_i values_i(x_i) of (B, L, N) values over the head, (B, H), and the tail, (B, T).

        The sum of one of each is that of a whole labelling.
        """
        split = self.head.shape[1]
        return _gather(values[..., :split], self.head), _gather(values[..., split:], self.tail)

    def rows(self) -> list[slice]:
        """Return slices of the rows of the table, about a million energies each."""
        step = max(1, _ENERGIES_AT_ONCE // len(self.tail))
        return [slice(start, start + step) for start in range(0, len(self.head), step)]

    def _add_cross(self, pairs: NDArray[np.float64]) -> None:
        """Add the pairs between head and tail, (N_h, L, N_t, L), a few rows at a time."""
        for rows in self.rows():
            messages = np.zeros((len(self.head[rows]), *pairs.shape[2:]))  # (M, N_t, L)
            for i, labels in enumerate(self.head[rows].T):  # (M,)
                messages += pairs[i, labels]
            for j, labels in enumerate(self.tail.T):  # (T,)
                self.energies[rows] += messages[:, j, labels]


def check_states(n_labels: int, voxels: int) -> None:
    """Raise where L^N labellings are too many to visit."""
    if voxels * np.log(n_labels) > np.log(LARGEST_STATES):
        raise ValueError(
            f"crf must have at most {LARGEST_STATES:.0e} labellings to be enumerated, got "
            f"{n_labels}^{voxels}: use a smaller mask or fewer labels, or sample with gibbs"
        )


def _digits(n_labels: int, voxels: int) -> NDArray[np.uint8]:
    """Return every labelling of some voxels, (L^voxels, voxels)."""
    powers = n_labels ** np.arange(voxels - 1, -1, -1)
    numbers = np.arange(n_labels**voxels)[:, np.newaxis]
    digits: NDArray[np.uint8] = (numbers // powers % n_labels).astype(np.uint8)
    return digits


def _pair_energies(crf: Model) -> NDArray[np.float64]:
    """Return Σ_m μ_m(l, l') k_m(i, j), (N, L, N, L), 0 where i = j."""
    n_labels, voxels = crf.energies.shape
    total = np.zeros((voxels, n_labels, voxels, n_labels))
    for kernel, compatibility in couplings(crf):
        total += kernel[:, np.newaxis, :, np.newaxis] * compatibility[:, np.newaxis, :]
    return total


def _inner(
    states: NDArray[np.uint8], unary: NDArray[np.float64], pairs: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return E of the labellings (M, n) of n voxels among themselves, (M,)."""
    total: NDArray[np.float64] = _gather(unary[np.newaxis], states)[0]
    for i in range(states.shape[1]):
        for j in range(i):
            total += pairs[i, states[:, i], j, states[:, j]]
    return total


def _gather(values: NDArray[np.floating], states: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return Σ_i values_i(x_i) of (B, L, n) values for every labelling (M, n): (B, M)."""
    total = np.zeros((len(values), len(states)))
    for i, labels in enumerate(states.T):  # (M,)
        total += values[:, labels, i]
    return total


class Enumeration:
    """P(x) = exp(−E(x)) / Z over all L^N labellings, at most 2·10⁷ of them.

    Every labelling's energy is kept, 8 bytes each. It has no self term, whatever the CRF says, as
    in ``DenseCRF.energy``.
    """

    log_z: float
    """The logarithm of Σ_x exp(−E(x)), in nats."""
    marginals: NDArray[np.float64]
    """P(x_i = l), (L, *spatial); outside the mask 1 for label 0."""
    labels: NDArray[np.uint8]
    """The labelling of least energy, the first of equals, (*spatial)."""
    energy: float
    """Its energy."""

    def __init__(self, crf: Model) -> None:
        self._table = table = StateTable(crf)
        best = int(table.energies.argmin())
        self.energy = float(table.energies.flat[best])
        self.labels = crf.grid.scatter(table.labels(np.array([best]))[0], 0)
        head = np.zeros(len(table.head))  # Σ_tail exp(−E), up to a factor
        tail = np.zeros(len(table.tail))
        for rows in table.rows():
            weights = np.exp(self.energy - table.energies[rows])  # (M, T)
            head[rows] = weights.sum(axis=1)
            tail += weights.sum(axis=0)
        self._head = head
        self.log_z = math.log(head.sum()) - self.energy
        shares = [
            np.bincount(labels, weights / head.sum(), minlength=table.n_labels)
            for states, weights in ((table.head, head), (table.tail, tail))
            for labels in states.T
        ]
        certain = np.arange(table.n_labels) == 0  # (L,), outside the mask
        self.marginals = crf.grid.scatter(np.stack(shares, axis=1), certain)

    def probability(self, labels: NDArray[np.integer]) -> NDArray[np.float64]:
        """Return P(x) of whole labellings given as the N labels inside the mask: (M, N) → (M,)."""
        number = np.zeros(len(labels), dtype=np.int64)
        for each in labels.T.astype(np.int64):  # (M,)
            number = number * self._table.n_labels + each
        return np.exp(-self.log_z - self._table.energies.ravel()[number])

    def draw(self, samples: range, seed: int) -> NDArray[np.uint8]:
        """Return independent samples of P, (S, N), by inverting its distribution function."""
        uniform = generator("exact", seed).random((samples.stop, 2))[samples.start :]
        cumulative = np.cumsum(self._head)
        heads = np.searchsorted(cumulative, uniform[:, 0] * cumulative[-1], side="right")
        numbers = np.empty(len(samples), dtype=np.int64)
        for head in np.unique(heads):
            here = np.flatnonzero(heads == head)
            row = np.cumsum(np.exp(self.energy - self._table.energies[head]))  # (T,)
            tails = np.searchsorted(row, uniform[here, 1] * row[-1], side="right")
            numbers[here] = head * len(row) + tails
        return self._table.labels(numbers)


def exact(crf: Model, samples: Samples, seed: int) -> Posterior:
    """Draw independent, exact samples of a CRF with at most 2·10⁷ labellings.

    Sample t depends on the seed and on t alone. ``Enumeration`` has the exact marginals, log Z and
    the most probable labelling.
    """
    run = Collector("exact", samples, seed)
    draws = [Enumeration(crf).draw(run.samples, run.seed)]
    return run.collect(crf.grid, crf.n_labels, draws, problem(crf))


def perturb_and_map(crf: Model, samples: Samples, seed: int) -> Posterior:
    """Draw samples by order-1 perturbation: the labelling of least E(x) − Σ_i γ_i(x_i).

    γ is the very noise that ``pm.sample`` perturbs the unary energies with, so the two can be
    compared sample by sample under one seed. Without coupling the samples are exact; with coupling
    they are not samples of P. At most 2·10⁷ labellings, and 10¹¹ labellings × samples.
    """
    run = Collector("perturb_and_map", samples, seed)
    table = StateTable(crf)
    _check_work(table.states, len(run.samples), LARGEST_WORK)
    draws = perturbed_maps(crf, table, run.samples, run.seed)
    return run.collect(crf.grid, crf.n_labels, draws, problem(crf))


def full_perturbation(crf: Model, samples: Samples, seed: int) -> Posterior:
    """Draw samples by full perturbation: the labelling of least E(x) − γ(x), one Gumbel for each x.

    These are exact samples of P (Proposition 3 of Papandreou & Yuille). With γ = −log e, e
    exponential, the least E − γ is the least e·exp(E), and that is what is looked for. Sample t
    depends on the seed and on t alone. At most 2·10⁷ labellings, and 10¹⁰ labellings × samples.
    """
    run = Collector("full_perturbation", samples, seed)
    table = StateTable(crf)
    _check_work(table.states, len(run.samples), LARGEST_DRAWS)
    draws = _full(table, run.samples, run.seed)
    return run.collect(crf.grid, crf.n_labels, draws, problem(crf))


def perturbed_maps(
    crf: Model, table: StateTable, samples: range, seed: int
) -> Iterator[NDArray[np.uint8]]:
    """Yield the samples of ``perturb_and_map``, some at a time, (B, N)."""
    for batch in batches(samples, table.states, _ENERGIES_AT_ONCE):
        noise = gumbel(seed, batch, crf.grid.index, table.n_labels)  # (B, L, N)
        head, tail = table.sums(noise)  # (B, H), (B, T)
        perturbed = table.energies - head[:, :, np.newaxis]  # (B, H, T)
        perturbed -= tail[:, np.newaxis, :]
        yield table.labels(perturbed.reshape(len(batch), -1).argmin(axis=1))


def _full(table: StateTable, samples: range, seed: int) -> Iterator[NDArray[np.uint8]]:
    exponents = np.minimum(table.energies - table.energies.min(), 700.0)  # exp stays finite
    slowness = np.exp(exponents).ravel()  # (L^N,): exp(E), up to a factor
    race = np.empty_like(slowness)
    for batch in batches(samples, 1, _ENERGIES_AT_ONCE // table.voxels):
        first = np.empty(len(batch), dtype=np.int64)
        for position, index in enumerate(batch):
            generator("full_perturbation", seed, index).standard_exponential(out=race)
            race *= slowness
            first[position] = race.argmin()
        yield table.labels(first)


def _check_work(states: int, samples: int, most: int) -> None:
    if states * samples > most:
        raise ValueError(
            f"samples must be at most {most // states} for a crf with {states} labellings, "
            f"got {samples}: use fewer samples or a smaller mask"
        )
