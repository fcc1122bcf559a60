"""All L^N labellings of a tiny problem, numbered, with the energy of each."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.comparators.couplings import Model, check_model, couplings

LARGEST_STATES = 20_000_000

# How many energies are worked on at once, 8 bytes each.
_CHUNK = 2**20


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
        return _gathered(values[..., :split], self.head), _gathered(values[..., split:], self.tail)

    def rows(self) -> list[slice]:
        """Return slices of the rows of the table, about a million energies each."""
        step = max(1, _CHUNK // len(self.tail))
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
    total: NDArray[np.float64] = _gathered(unary[np.newaxis], states)[0]
    for i in range(states.shape[1]):
        for j in range(i):
            total += pairs[i, states[:, i], j, states[:, j]]
    return total


def _gathered(values: NDArray[np.floating], states: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return Σ_i values_i(x_i) of (B, L, n) values for every labelling (M, n): (B, M)."""
    total = np.zeros((len(values), len(states)))
    for i, labels in enumerate(states.T):  # (M,)
        total += values[:, labels, i]
    return total
