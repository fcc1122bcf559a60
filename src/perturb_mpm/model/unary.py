"""Unary energies (L, *spatial) from probabilities, label maps or logits.

All three end in the same formula. With p the probabilities of one voxel,

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

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perturb_mpm import checks

SUM_TOLERANCE = 1e-3


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
    return _energies(given / sums, temperature, clip).astype(given.dtype, copy=False)


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
    energies: NDArray[np.float64] = largest + np.log(np.exp(logits - largest).sum(axis=0)) - logits
    return energies


def _checked_parameters(temperature: float, clip: float) -> tuple[float, float]:
    return (
        _checked_temperature(temperature),
        checks.number(clip, "clip", positive=True, below=1),
    )


def _checked_temperature(temperature: float) -> float:
    checks.number(temperature, "temperature", positive=True)
    return checks.number(temperature, "temperature", minimum=checks.SMALLEST_TEMPERATURE)


def _where(bad: NDArray[np.bool_]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.argwhere(bad)[0])
