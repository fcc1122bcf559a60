"""Many patients from one seed, among them cohorts like the paper's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from perturb_mpm.checks import integer
from perturb_mpm.phantom.classifier import ENHANCING
from perturb_mpm.phantom.patient import Phantom, glioblastoma, resected

PREOPERATIVE_CASES = 14
PARTIAL_RESECTIONS, COMPLETE_RESECTIONS = 9, 10
_RESIDUAL_ML = (0.4, 6.0)
_LARGEST_SHARE = 0.35  # of the enhancing tumour that is left behind


@dataclass(frozen=True)
class ResectionPair:
    """The same patient before and right after surgery.

    Examples
    --------
    >>> from perturb_mpm.phantom import resection_cohort
    >>> pair = next(resection_cohort(spacing_mm=8.0))
    >>> pair.complete == (pair.residual_ml == 0)
    True
    """

    before: Phantom
    after: Phantom
    residual_ml: float  # 0: a complete resection

    @property
    def complete(self) -> bool:
        """Whether no enhancing tumour was left."""
        return self.residual_ml == 0.0


def cohort(
    n: int, seed: int = 0, *, spacing_mm: float | Sequence[float] = 2.0
) -> Iterator[Phantom]:
    """Return ``n`` patients before surgery; each is made when its turn comes.

    Examples
    --------
    >>> from perturb_mpm.phantom import cohort
    >>> len([patient.truth for patient in cohort(2, seed=5, spacing_mm=8.0)])
    2
    """
    seeds = _seeds(integer(n, "n", minimum=1), integer(seed, "seed", minimum=0))
    return (glioblastoma(each, spacing_mm=spacing_mm) for each in seeds)


def preoperative_cohort(
    seed: int = 0, *, spacing_mm: float | Sequence[float] = 2.0
) -> Iterator[Phantom]:
    """Return a cohort of the size of the paper's for the quality of uncertainty: 14 patients.

    Examples
    --------
    >>> from perturb_mpm.phantom import preoperative_cohort
    >>> first = next(preoperative_cohort(spacing_mm=8.0))
    >>> first.stage
    'pre-operative'
    """
    return cohort(PREOPERATIVE_CASES, seed, spacing_mm=spacing_mm)


def resection_cohort(
    seed: int = 0, *, spacing_mm: float | Sequence[float] = 2.0
) -> Iterator[ResectionPair]:
    """Return pairs like the paper's for the biomarkers: 9 partial and 10 complete resections.

    Their order is random, the volumes left behind are spread evenly over the logarithm.

    Examples
    --------
    >>> from perturb_mpm.phantom import resection_cohort
    >>> pair = next(resection_cohort(spacing_mm=8.0))
    >>> pair.before.seed == pair.after.seed
    True
    """
    seed = integer(seed, "seed", minimum=0)
    rng = np.random.default_rng([seed, PARTIAL_RESECTIONS])
    low, high = np.log(_RESIDUAL_ML)
    spread = np.exp(low + (high - low) * (np.arange(PARTIAL_RESECTIONS) + 0.5) / PARTIAL_RESECTIONS)
    wanted = rng.permutation([*spread, *[0.0] * COMPLETE_RESECTIONS])
    patients = _seeds(len(wanted), seed + 1)
    return (_pair(each, float(ml), spacing_mm) for each, ml in zip(patients, wanted))


def _pair(seed: int, residual_ml: float, spacing_mm: float | Sequence[float]) -> ResectionPair:
    """Make one patient and operate."""
    before = glioblastoma(seed, spacing_mm=spacing_mm)
    residual_ml = min(residual_ml, _LARGEST_SHARE * before.volume_ml(ENHANCING))
    return ResectionPair(before, resected(before, residual_ml), residual_ml)


def _seeds(n: int, seed: int) -> list[int]:
    """Return the seeds of ``n`` patients; a larger cohort begins with the same ones."""
    return [int(np.random.SeedSequence([seed, i]).generate_state(1)[0]) for i in range(n)]
