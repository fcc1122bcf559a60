"""A tiny problem solved in ways that must agree: whether this installation computes rightly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perturb_mpm.crf import DenseCRF

_SAMPLES = 2000
_LARGEST_ERROR = 1e-5  # of marginals in float32 against float64
# The mean over 64 voxels of a χ² with 2 degrees of freedom, over 2: mean 1, standard deviation ⅛.
_LARGEST_CHI_SQUARE = 1.6


@dataclass(frozen=True)
class Check:
    """One check: what was compared, whether it agreed, and how far."""

    name: str
    passed: bool
    detail: str


def self_test() -> list[Check]:
    """Run every check; one that raises has failed."""
    checks = {
        "cpu engine against the reference": _engines_agree,
        "samples follow the softmax without coupling": _samples_follow_softmax,
        "ranges of samples add up to one run": _ranges_add_up,
    }
    return [_run(name, check) for name, check in checks.items()]


def _run(name: str, check: Callable[[], tuple[bool, str]]) -> Check:
    try:
        return Check(name, *check())
    except Exception as error:  # noqa: BLE001 - whatever goes wrong is what is looked for
        return Check(name, passed=False, detail=f"{type(error).__name__}: {error}")


def _problem(*, coupled: bool) -> DenseCRF:
    import numpy as np

    from perturb_mpm.crf import DenseCRF
    from perturb_mpm.kernels import BilateralKernel, SpatialKernel

    rng = np.random.default_rng(0)
    shape = (4, 4, 4)
    kernels = [
        SpatialKernel(sigma=2.0, weight=1.0),
        BilateralKernel(rng.normal(size=(1, *shape)), sigma_space=4.0, sigma_intensity=0.5),
    ]
    return DenseCRF(rng.normal(size=(3, *shape)), kernels if coupled else ())


def _engines_agree() -> tuple[bool, str]:
    import numpy as np

    from perturb_mpm.inference import mean_field

    crf = _problem(coupled=True)
    ours = mean_field(crf, iterations=50, engine="cpu", accuracy="exact").marginals
    truth = mean_field(crf, iterations=50, engine="reference").marginals
    error = float(np.abs(ours - truth).max())
    return error < _LARGEST_ERROR, f"marginals differ by {error:.1e} at most"


def _samples_follow_softmax() -> tuple[bool, str]:
    import numpy as np

    from perturb_mpm.sampling import sample

    crf = _problem(coupled=False)
    expected = np.exp(-crf.energies)  # (L, N)
    expected *= _SAMPLES / expected.sum(axis=0)
    votes = sample(crf, _SAMPLES, iterations=1, engine="cpu").voxel_counts
    chi_square = float(((votes - expected) ** 2 / expected).sum(axis=0).mean() / 2)
    return chi_square < _LARGEST_CHI_SQUARE, f"χ² over its mean {chi_square:.2f}"


def _ranges_add_up() -> tuple[bool, str]:
    from perturb_mpm.sampling import sample

    crf = _problem(coupled=True)
    options = {"iterations": 3, "engine": "cpu"}
    whole = sample(crf, 40, **options)  # type: ignore[arg-type]
    first, second = (sample(crf, part, **options) for part in (range(15), range(15, 40)))  # type: ignore[arg-type]
    return second.merge(first) == whole, "bit for bit"
