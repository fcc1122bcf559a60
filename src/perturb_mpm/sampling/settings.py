"""How segmentations are sampled: one value object for every interface, and noise two scans share.

A new parameter is a field here and a keyword of ``perturb_mpm.sample``; settings files, the command
line and the viewer take whatever fields there are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perturb_mpm import checks
from perturb_mpm.engines import MOST_ITERATIONS
from perturb_mpm.fields import CheckedSettings, one_of, setting
from perturb_mpm.model import Grid
from perturb_mpm.noise import (
    FARTHEST,
    WHITE,
    Lengths,
    NoiseLength,
    Perturbation,
    checked_lengths,
    checked_seed,
    simplest,
)
from perturb_mpm.posterior import Estimator, Precision

Start = Literal["cold", "warm"]

MOST_SAMPLES = 10**7  # of one run: beyond that even their volumes alone take gigabytes
# Updates of samples that are to converge go so much further than the new marginals, in turns: a
# polynomial of two updates that is small between 0.1 and 0.45, where the eigenvalues of a
# linearised update lie that decide. Those from −0.45 to 1 stay inside ±1.
RELAXATIONS = (0.2, 0.6)
NOISE_SCALE: dict[str, float] = {"votes": 1.0, "conditional": 0.5}


def _read_until(value: object, name: str) -> Precision:
    """Return a precision; a plain number is its epsilon, a table has the names of its fields."""
    if isinstance(value, Precision):
        return value
    if isinstance(value, Mapping):
        known = [each.name for each in fields(Precision)]
        if "epsilon" not in value or not set(value) <= set(known):
            raise ValueError(
                f"{name} must be a number or a table of epsilon and perhaps delta and scope, "
                f"got {dict(value)}"
            )
        return Precision(**value)
    if isinstance(value, int | float):
        return Precision(checks.number(value, name, positive=True, below=1))
    raise TypeError(f"{name} must be a Precision or a number, got {type(value).__name__}")


def _write_until(value: Precision | None) -> object:
    """Return epsilon alone where the rest is as usual, else a table of all fields."""
    if value is None or value == Precision(value.epsilon):
        return None if value is None else value.epsilon
    return asdict(value)


@dataclass(frozen=True)
class Sampling(CheckedSettings):
    """How many samples are drawn, and by which law.

    ``perturb_mpm.sample`` says more of each parameter.

    Examples
    --------
    >>> sampling = pm.Sampling(samples=50, seed=7, noise_length=20.0)
    >>> sampling.samples, sampling.noise_length
    (50, 20.0)
    """

    samples: int = setting(
        200,
        "How many segmentations to sample; at most so many with until",
        partial(checks.integer, minimum=1, maximum=MOST_SAMPLES),
    )
    seed: int = setting(
        0,
        "Names the noise: the same seed gives the same files",
        lambda value, _: checked_seed(value),
    )
    iterations: int = setting(
        10,
        "At most so many mean-field updates of a sample; the paper names no number",
        partial(checks.integer, minimum=0, maximum=MOST_ITERATIONS),
    )
    until: Precision | None = setting(
        None,
        "Stop once frequencies are known to within this (95 %, for any one voxel), as in 0.1",
        _read_until,
        unset="draw all samples",
        example=0.1,
        option=float,
        plain=_write_until,
    )
    estimator: Estimator = setting(
        "votes",
        "How marginals are estimated: votes (the paper) or conditional",
        one_of(Estimator),
    )
    noise_scale: float | None = setting(
        None,
        "Multiplies the Gumbel noise",
        checks.nats,
        unset="1 for votes, 0.5 for the conditional estimator",
        example=1.0,
        option=False,
    )
    noise_length: NoiseLength | None = setting(
        None,
        "Correlation length of the noise: 40, inf (one draw for all voxels) or "
        "40:0.7,4:0.3 (a mixture with weights); 0 is the paper's independent noise",
        lambda value, _: simplest(checked_lengths(value)),
        unit="mm",
        unset="the radius of the structure that the probabilities expect",
        example=[(40.0, 0.7), (0.0, 0.3)],
        option=str,
    )
    start: Start = setting(
        "cold",
        "Where samples start: cold, or warm from the mean field, which samples another law",
        one_of(Start),
        option=False,
    )
    antithetic: bool = setting(
        False,  # noqa: FBT003 - the default
        "Draw samples 2t and 2t + 1 with opposite noise",
        checks.flag,
        option=False,
    )
    tolerance: float = setting(
        0.0,
        "Stop a sample once less than about this share of its labels would still change; 0 runs "
        "all iterations",
        partial(checks.number, minimum=0, below=1),
    )
    hold: float = setting(
        0.0,
        "Freeze voxels that leave the mean field's label with at most this probability, as in "
        "0.005; 0 updates every voxel",
        partial(checks.number, minimum=0, below=1),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_together()

    @property
    def scale(self) -> float:
        """What the Gumbel noise is multiplied by."""
        return NOISE_SCALE[self.estimator] if self.noise_scale is None else self.noise_scale

    @property
    def sharpness(self) -> float:
        """β of τ² + 1/β² = 1: the noise left out of the votes is in the softmax instead."""
        return 1.0 if self.estimator == "votes" else 1 / math.sqrt(1 - self.scale**2)

    @property
    def dampings(self) -> tuple[float, ...]:
        """What updates keep of old marginals, in turns; below 0 they go further and converge."""
        return (0.0,) if self.tolerance == 0 else tuple(-each for each in RELAXATIONS)

    @property
    def perturbation(self) -> Perturbation:
        """The noise of these samples."""
        return Perturbation(self.seed, self.scale, self.antithetic, self.lengths)

    @property
    def lengths(self) -> Lengths:
        """The correlation lengths of the noise, with weights; by default white noise."""
        return WHITE if self.noise_length is None else checked_lengths(self.noise_length)

    @property
    def correlated(self) -> bool:
        """Whether noise is correlated between voxels: only then volumes spread as they should."""
        return self.perturbation.correlated

    def describe(self) -> dict[str, object]:
        """Return what the law of the samples depends on, as values that JSON can hold."""
        return {
            "iterations": self.iterations,
            "perturbation": self.perturbation.describe(),
            "sharpness": self.sharpness,
            "start": self.start,
            **({} if self.tolerance == 0 else {"tolerance": self.tolerance}),
            "until": None if self.until is None else asdict(self.until),
        }

    def _check_together(self) -> None:
        if self.estimator == "conditional" and self.scale >= 1:
            raise ValueError(
                f'noise_scale must be below 1 with estimator "conditional", got {self.scale}: '
                "0.5 is usual"
            )
        if self.until is not None and self.estimator != "votes":
            raise ValueError(
                f'until needs estimator "votes", got "{self.estimator}": it counts votes'
            )
        if self.until is not None and self.antithetic:
            raise ValueError("until needs independent samples, got antithetic=True")


@dataclass(frozen=True)
class SharedPerturbation(Perturbation):
    """Gumbel noise of this seed, correlated by ``correlation`` with all that share ``shared_seed``.

        g_t = √ρ·g_shared + √(1 − ρ)·g_t,own      γ_t = −log(−log Φ(g_t))

    Each g is the Gaussian field behind Gumbel noise, so that γ_t keeps its law at every voxel and
    its correlation in space, and between two scans on one grid the fields correlate by ρ. It is
    drawn in NumPy, whatever the engine.
    """

    shared_seed: int = 0
    correlation: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        share = checks.number(self.correlation, "correlation", minimum=0, maximum=1)
        object.__setattr__(self, "correlation", share)
        if self.seed == self.shared_seed:
            raise ValueError("shared_seed must differ from the seed, which names the own noise")

    def energies(
        self, base: NDArray[np.floating], grid: Grid, samples: ArrayLike
    ) -> NDArray[np.float32]:
        """Return the perturbed energies (B, L, N) of ``base`` (L, N), the unaries in the mask."""
        own = self._normal(self.seed, base, grid, samples)
        shared = self._normal(self.shared_seed, base, grid, samples)
        g = math.sqrt(self.correlation) * shared + math.sqrt(1 - self.correlation) * own
        energies: NDArray[np.float64] = base - self.scale * _to_gumbel(g)
        return energies.astype(np.float32)

    def _normal(
        self, seed: int, base: NDArray[np.floating], grid: Grid, samples: ArrayLike
    ) -> NDArray[np.float64]:
        """Return the Gaussian field of a seed, (B, L, N)."""
        plain = Perturbation(seed, 1.0, self.antithetic, self.lengths)
        return _to_normal(-plain.energies(np.zeros(base.shape), grid, samples).astype(np.float64))


def share_noise(
    perturbation: Perturbation, number: int, shared_seed: int, correlation: float
) -> SharedPerturbation:
    """Return the noise of scan ``number`` (1, 2 …) of some that share a part of it."""
    seed = (shared_seed + number) % 2**64
    plain = replace(perturbation, seed=seed)
    return SharedPerturbation(
        plain.seed, plain.scale, plain.antithetic, plain.lengths, shared_seed, correlation
    )


def _to_normal(gumbel: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return g with Φ(g) = exp(−exp(−γ)), from the nearer tail."""
    from scipy.special import ndtri

    below = np.exp(-gumbel)
    g: NDArray[np.float64] = np.where(gumbel < 0, ndtri(np.exp(-below)), -ndtri(-np.expm1(-below)))
    return g


def _to_gumbel(g: NDArray[np.float64]) -> NDArray[np.float64]:
    from scipy.special import log_ndtr

    gumbel: NDArray[np.float64] = -np.log(-log_ndtr(np.clip(g, -FARTHEST, FARTHEST)))
    return gumbel
