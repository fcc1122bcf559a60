"""The dense CRF: its unary energies, its pairwise terms, and the digest that names it.

Energies (L, *spatial) from probabilities, label maps or logits end in the same formula. With p the
probabilities of one voxel,

    r_l = p_l^(1/T) / Σ_l' p_l'^(1/T)    over the labels with p_l > clip, 0 for the others
    s_l = max(r_l, clip) / Σ_l' max(r_l', clip)
    U_l = −log s_l

so that softmax(−U) = s, which is p itself at T = 1 but for the clip. The clip comes after the
temperature: a probability of 10⁻⁶ stays one where a temperature of 1.7 would make it 3·10⁻⁴, and a
brain of such voxels would grow a tumour. It is an uncertainty parameter: no label is ever less
likely than about clip.

Energies are computed in float64. They are returned in float32 where the input is held by float32
without loss, as the outputs of networks are, since their files carry no more; otherwise in float64.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perturb_mpm import checks
from perturb_mpm.model.grid import Grid
from perturb_mpm.model.kernels import Inside, Kernel, Normalization

if TYPE_CHECKING:
    from perturb_mpm.engines import Accuracy, Engine

# Up to this many voxels every pair is visited, in about a second and 0.15 GB for each kernel.
EXACT_VOXELS = 4096

# A compatibility is symmetric where it differs from its transpose by no more than float32 would.
_ROUNDING = 1e-6


@dataclass(frozen=True, eq=False)
class PairwiseTerm:
    """One kernel on the grid of its CRF, with the weight multiplied into the compatibility.

    ``potts_weight`` is w where the compatibility is w·[l ≠ l'], w ≥ 0, and None otherwise.
    """

    kernel: Kernel
    grid: Grid
    normalization: Normalization
    compatibility: NDArray[np.float64]  # (L, L)
    potts_weight: float | None

    def features(self) -> NDArray[np.float64]:
        """Compute the kernel's features in units of sigma, (N, d)."""
        return self.kernel.features_on(self.grid)


class DenseCRF:
    """A conditional random field in which every voxel is coupled to every other.

    All arrays are copied, images and features inside the mask alone, and the CRF is not meant to be
    changed afterwards.

    Parameters
    ----------
    unary
        Energies (L, *spatial), 2 to 255 labels, 1 to 4 axes; or those ``Inside`` a grid, whose
        spacing and mask then count.
    kernels
        Any number of ``SpatialKernel``, ``BilateralKernel`` and ``FeatureKernel``.
    compatibility
        μ for the kernels that carry none of their own: "potts" or a symmetric (L, L) matrix of
        any finite values.
    spacing
        The voxel size in mm, one number or one for each axis; 1 mm where it is None.
    mask
        The voxels in play, (*spatial), where not zero; all of them where it is None.
    self_term
        Whether mean field lets a voxel be its own neighbour (j = i), as other libraries do. It
        makes marginals overconfident; the energy of a labelling never includes it.
    centring
        How much of the message that softmax(−unary) itself sends is taken out of the unaries, 0 to
        1. 0 is mean field. At 1 softmax(−unary) is a fixed point of mean field whatever the kernels
        are: they act on deviations from it alone, on noise and on what a person corrects, and
        cannot eat up a small structure among what looks alike. (Deviations die out only where the
        kernels are weak enough: with two labels at even odds, of a total weight below 2.)

    Examples
    --------
    >>> unary = pm.unary_from_logits(np.zeros((2, 4, 3)))  # 2 labels, 4 × 3 voxels
    >>> crf = pm.DenseCRF(unary, [pm.SpatialKernel(sigma=3.0, weight=2.0)], spacing=(1.0, 2.0))
    >>> crf.n_labels, crf.grid.voxels
    (2, 12)
    """

    grid: Grid
    kernels: tuple[Kernel, ...]
    terms: tuple[PairwiseTerm, ...]
    self_term: bool
    centring: float
    energies: NDArray[Any]
    """The unary energies inside the mask, (L, N), C-contiguous and read-only."""
    prior: NDArray[Any]
    """The energies that ``centring`` refers to: those the CRF was made with, (L, N)."""

    def __init__(
        self,
        unary: ArrayLike | Inside,
        kernels: Iterable[Kernel] = (),
        compatibility: ArrayLike = "potts",
        spacing: float | Sequence[float] | None = None,
        mask: ArrayLike | None = None,
        *,
        self_term: bool = False,
        centring: float = 0.0,
    ) -> None:
        full = checks.floats(unary.values if isinstance(unary, Inside) else unary, "unary")
        checks.labels_first(full, "unary")
        checks.at_most(full, "unary", checks.LARGEST_ENERGY)
        if isinstance(unary, Inside):
            self.grid, inside = unary.grid, full  # (L, N)
        else:
            self.grid = Grid(full.shape[1:], spacing, mask)
            inside = self.grid.gather(full)
        self.energies = self.prior = checks.read_only(inside)
        self.self_term = checks.flag(self_term, "self_term")
        self.centring = checks.number(centring, "centring", minimum=0, maximum=1)
        default = _compatibility_matrix(compatibility, "compatibility", self.n_labels)
        self.kernels = _checked_kernels(kernels, self.grid)
        self.terms = tuple(self._term(kernel, default) for kernel in self.kernels)

    def __repr__(self) -> str:
        return (
            f"DenseCRF(labels={self.n_labels}, shape={self.shape}, spacing={self.grid.spacing}, "
            f"voxels={self.grid.voxels}, kernels={list(self.kernels)}, self_term={self.self_term}, "
            f"centring={self.centring})"
        )

    @property
    def n_labels(self) -> int:
        """L, the number of labels."""
        return int(self.energies.shape[0])

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the image."""
        return self.grid.shape

    def energy(
        self, labels: ArrayLike, engine: Engine = "auto", accuracy: Accuracy = "calibrated"
    ) -> float:
        """Return E(x) of a labelling (*spatial); what it says outside the mask does not count.

        It is exact, over all pairs, up to 4096 voxels, and beyond that as accurate as the engine's
        filter; naming an engine uses that one at any size. Normalisations "before" and "after"
        make k(i, j) ≠ k(j, i), and their mean counts.
        """
        from perturb_mpm.engines import prepare

        whole = checks.whole(labels, "labels")
        if whole.shape != self.shape:
            raise ValueError(f"labels must have the image's shape {self.shape}, got {whole.shape}")
        x = self.grid.gather(whole)  # (N,)
        checks.in_range(x, "labels", self.n_labels)
        if engine == "auto" and self.grid.voxels <= EXACT_VOXELS:
            engine = "reference"
        one_hot = (x == np.arange(self.n_labels)[:, np.newaxis]).astype(np.float64)  # (L, N)
        apart = copy.copy(self)
        apart.self_term = False
        solver = prepare(apart, engine=engine, accuracy=accuracy, batch=1)
        solver.load(self.energies[np.newaxis], one_hot[np.newaxis])
        energies = self.energies if solver.centre is None else self.energies - solver.centre
        unary = np.take_along_axis(energies, x[np.newaxis], axis=0)
        pairwise = np.take_along_axis(solver.pairwise()[0], x[np.newaxis], axis=0)
        return float(unary.sum(dtype=np.float64) + pairwise.sum(dtype=np.float64) / 2)

    def scale_kernels(self, factor: float) -> DenseCRF:
        """Return the same CRF with kernels of ``factor`` times the weight; it shares all arrays.

        Examples
        --------
        >>> crf = pm.DenseCRF(np.zeros((2, 3)), [pm.SpatialKernel(sigma=1.0, weight=2.0)])
        >>> crf.scale_kernels(0.5).kernels[0].weight
        1.0
        """
        other = copy.copy(self)
        other.kernels = tuple(
            dataclasses.replace(each, weight=factor * each.weight)  # type: ignore[type-var]
            for each in self.kernels
        )
        weighted = [checks.read_only(factor * term.compatibility) for term in self.terms]
        other.terms = tuple(
            dataclasses.replace(
                term, kernel=kernel, compatibility=matrix, potts_weight=_potts_weight(matrix)
            )
            for term, kernel, matrix in zip(self.terms, other.kernels, weighted, strict=True)
        )
        return other

    def _term(self, kernel: Kernel, default: NDArray[np.float64]) -> PairwiseTerm:
        matrix = default
        if kernel.compatibility is not None:
            name = f"compatibility of {type(kernel).__name__}"
            matrix = _compatibility_matrix(kernel.compatibility, name, self.n_labels)
        weighted = checks.read_only(kernel.weight * matrix)
        name = f"weight times compatibility of {type(kernel).__name__}"
        checks.at_most(weighted, name, checks.LARGEST_WEIGHT)
        return PairwiseTerm(
            kernel, self.grid, kernel.normalization, weighted, _potts_weight(weighted)
        )


def _checked_kernels(kernels: Iterable[Kernel], grid: Grid) -> tuple[Kernel, ...]:
    if isinstance(kernels, Kernel) or not isinstance(kernels, Iterable):
        raise TypeError(
            f"kernels must be a sequence of kernels, got {type(kernels).__name__}: "
            "write kernels=[kernel]"
        )
    checked = tuple(kernels)
    for kernel in checked:
        if not isinstance(kernel, Kernel):
            raise TypeError(
                "kernels must hold SpatialKernel, BilateralKernel or FeatureKernel, "
                f"got {type(kernel).__name__}"
            )
        kernel.check(grid)
    return tuple(kernel.inside(grid) for kernel in checked)


def _compatibility_matrix(value: ArrayLike, name: str, n_labels: int) -> NDArray[np.float64]:
    wanted = f'{name} must be "potts" or a symmetric ({n_labels}, {n_labels}) matrix'
    if isinstance(value, str):
        if value != "potts":
            raise ValueError(f'{wanted}, got "{value}"')
        return 1.0 - np.eye(n_labels)
    matrix = checks.floats(value, name).astype(np.float64)
    checks.at_most(matrix, name, checks.LARGEST_WEIGHT)
    if matrix.shape != (n_labels, n_labels):
        raise ValueError(f"{wanted}, got shape {matrix.shape}")
    uneven = np.abs(matrix - matrix.T) > _ROUNDING * np.abs(matrix).max()
    if uneven.any():
        row, column = (int(i) for i in np.argwhere(uneven)[0])
        raise ValueError(
            f"{name} must be symmetric, got {matrix[row, column]} at ({row}, {column}) but "
            f"{matrix[column, row]} at ({column}, {row}): (m + m.T) / 2 is the symmetric part"
        )
    return (matrix + matrix.T) / 2


def _potts_weight(matrix: NDArray[np.float64]) -> float | None:
    weight = float(matrix[0, 1])
    is_potts = weight >= 0 and np.array_equal(matrix, weight * (1.0 - np.eye(len(matrix))))
    return weight if is_potts else None


def digest(*parts: object) -> str:
    """Return the SHA-256 of arrays and plain values."""
    whole = hashlib.sha256()
    for part in parts:
        if isinstance(part, np.ndarray):
            plain = np.ascontiguousarray(part)
            whole.update(f"{plain.dtype.str}{plain.shape}".encode())
            whole.update(plain.data)
        else:
            whole.update(repr(part).encode())
    return whole.hexdigest()


def fingerprint(crf: DenseCRF) -> str:
    """Return the digest of the unaries, kernels, mask, spacing, self term and centring of a CRF."""
    grid = crf.grid
    parts: list[object] = [crf.energies, grid.shape, grid.spacing, grid.mask, crf.self_term]
    for term in crf.terms:
        parts.append(type(term.kernel).__name__)
        for field in dataclasses.fields(term.kernel):  # type: ignore[arg-type]
            value = getattr(term.kernel, field.name)
            parts += [field.name, value.values if isinstance(value, Inside) else value]
        parts.append(term.compatibility)
    if crf.centring > 0:
        parts += ["centring", crf.centring, crf.prior]
    return digest(*parts)


SUM_TOLERANCE = 1e-3
_AT_ONCE = 1 << 14  # voxels whose energies are computed at once: they stay in the cache


def unary_from_probabilities(
    probabilities: ArrayLike, temperature: float = 1.0, clip: float = 1e-6
) -> NDArray[Any]:
    """Return the energies of class probabilities (L, *spatial).

    Probabilities must not be negative and must sum to 1 at every voxel to within 1e-3; what is
    missing is then shared out by an exact renormalisation. ``temperature`` above 1 makes them
    less sure of themselves; ``clip`` is the smallest probability taken at its word.

    Examples
    --------
    >>> p = np.array([[0.9, 0.5], [0.1, 0.5]])  # 2 labels, 2 voxels
    >>> pm.unary_from_probabilities(p).round(3)
    array([[0.105, 0.693],
           [2.303, 0.693]])
    >>> pm.unary_from_probabilities(p, temperature=2.0).round(3)  # less sure
    array([[0.288, 0.693],
           [1.386, 0.693]])
    """
    temperature, clip = _checked_parameters(temperature, clip)
    given = checks.floats(probabilities, "probabilities")
    checks.labels_first(given, "probabilities")
    if given.min() < 0:
        raise ValueError(
            f"probabilities must not be negative, got {given.min()} at index {_where(given < 0)}"
        )
    sums = given.sum(axis=0, dtype=np.float64)  # (*spatial)
    off = np.abs(sums - 1) > SUM_TOLERANCE
    if off.any():
        raise ValueError(
            f"probabilities must sum to 1 over the labels (the first axis), got {sums[off][0]:.6g} "
            f"at voxel {_where(off)}: use unary_from_logits for scores that are not normalised"
        )
    flat, totals = given.reshape(len(given), -1), sums.reshape(-1)  # (L, N), (N,)
    energies = np.empty_like(flat)
    for first in range(0, len(totals), _AT_ONCE):
        part = slice(first, first + _AT_ONCE)
        energies[:, part] = _energies(flat[:, part] / totals[part], temperature, clip)
    return energies.reshape(given.shape)


def unary_from_logits(
    logits: ArrayLike, temperature: float = 1.0, clip: float = 1e-6
) -> NDArray[Any]:
    """Return the energies of unnormalised log-probabilities (L, *spatial), a network's output.

    The same as ``unary_from_probabilities`` of their softmax.

    Examples
    --------
    >>> unary = pm.unary_from_logits([[2.0, 0.0], [0.0, 0.0]])
    >>> np.exp(-unary).round(3)  # their softmax
    array([[0.881, 0.5  ],
           [0.119, 0.5  ]])
    """
    temperature, clip = _checked_parameters(temperature, clip)
    given = checks.floats(logits, "logits")
    checks.labels_first(given, "logits")
    shifted = given.astype(np.float64) - given.max(axis=0)
    probabilities = np.exp(shifted)
    probabilities /= probabilities.sum(axis=0)
    return _energies(probabilities, temperature, clip).astype(given.dtype, copy=False)


def unary_from_labels(
    labels: ArrayLike, n_labels: int, confidence: float = 0.9, unsure: int | None = None
) -> NDArray[np.float64]:
    """Return the energies of a label map (*spatial) with values 0 … n_labels − 1.

    The label of a voxel has the probability ``confidence``, the others share the rest equally.
    Voxels of the value ``unsure`` (any integer, such as 255 or −1) leave all labels equally likely.

    Examples
    --------
    >>> unary = pm.unary_from_labels([0, 1, 255], n_labels=2, confidence=0.9, unsure=255)
    >>> np.exp(-unary).round(3)
    array([[0.9, 0.1, 0.5],
           [0.1, 0.9, 0.5]])
    """
    n_labels = checks.integer(
        n_labels, "n_labels", minimum=checks.FEWEST_LABELS, maximum=checks.MOST_LABELS
    )
    confidence = checks.number(confidence, "confidence", positive=True, below=1)
    given = checks.whole(labels, "labels")
    if not 1 <= given.ndim <= 4 or given.size == 0:
        raise ValueError(
            f"labels must be (*spatial) with 1 to 4 axes, none empty, got shape {given.shape}"
        )
    unknown = np.zeros(given.shape, dtype=bool)
    if unsure is not None:
        unknown = given == checks.whole(unsure, "unsure")
    checks.in_range(given[~unknown], "labels", n_labels)
    own = np.arange(n_labels).reshape(-1, *(1,) * given.ndim) == given  # (L, *spatial)
    probabilities = np.where(own, confidence, (1 - confidence) / (n_labels - 1))
    probabilities[:, unknown] = 1 / n_labels
    return -np.log(probabilities)


def _energies(
    probabilities: NDArray[np.float64], temperature: float, clip: float
) -> NDArray[np.float64]:
    if temperature != 1:
        # In units of the largest, which no power makes 0; where all are clipped, all are alike.
        likely = np.where(probabilities > clip, probabilities / probabilities.max(axis=0), 0.0)
        likely **= 1 / temperature
        total = likely.sum(axis=0)
        probabilities = likely / np.where(total > 0, total, 1.0)
    logits = np.log(np.maximum(probabilities, clip))
    largest = logits.max(axis=0)
    return largest + np.log(np.exp(logits - largest).sum(axis=0)) - logits


def _checked_parameters(temperature: float, clip: float) -> tuple[float, float]:
    checks.number(temperature, "temperature", positive=True)
    checks.number(temperature, "temperature", minimum=checks.SMALLEST_TEMPERATURE)
    return float(temperature), checks.number(clip, "clip", positive=True, below=1)


def _where(bad: NDArray[np.bool_]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.argwhere(bad)[0])
