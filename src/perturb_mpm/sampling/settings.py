"""How segmentations are sampled: one value object for every interface.

A new parameter is a field here, with its check, and a keyword of ``perturb_mpm.sample``; settings
files, the command line and the viewer take whatever fields there are.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from perturb_mpm import checks
from perturb_mpm.engines import MOST_ITERATIONS
from perturb_mpm.noise import (
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


@dataclass(frozen=True)
class Sampling:
    """How many samples are drawn and by which law; see ``perturb_mpm.sample`` for each.

    ``help`` in a field's metadata is what the command line says of its option, ``option`` the
    option's type where it is another; a field without help has no option.

    Examples
    --------
    >>> sampling = pm.Sampling(samples=50, seed=7, noise_length=20.0)
    >>> sampling.samples, sampling.noise_length
    (50, 20.0)
    """

    samples: int = field(
        default=200,
        metadata={"help": "How many segmentations to sample, or the most. Default 200."},
    )
    seed: int = field(
        default=0,
        metadata={"help": "Names the noise: the same seed gives the same files. Default 0."},
    )
    iterations: int = field(
        default=10, metadata={"help": "The most mean-field updates of a sample. Default 40."}
    )
    until: Precision | None = field(
        default=None,
        metadata={
            "option": float,
            "help": "Stop when every frequency is known to within this, as in 0.1, at 95 % for any "
            "one voxel.",
        },
    )
    estimator: Estimator = field(
        default="votes",
        metadata={"help": "How marginals are estimated: votes (the paper) or conditional."},
    )
    noise_scale: float | None = None
    noise_length: NoiseLength | None = field(
        default=None,
        metadata={
            "option": str,
            "help": "Over how many mm the noise of neighbours goes together, as in 40, inf or "
            "40:0.7,4:0.3 (lengths with weights); 0 is the paper. Default: the radius of what "
            "the probabilities show.",
        },
    )
    start: Start = "cold"
    antithetic: bool = False
    tolerance: float = field(
        default=0.0,
        metadata={
            "help": "Stop a sample when about this share of its labels would still change; 0 makes "
            "all iterations. Default 5e-5."
        },
    )
    hold: float = field(
        default=0.0,
        metadata={
            "help": "Update only voxels that dissent with a probability above this, as in 0.005; 0 "
            "updates every voxel, which is the paper."
        },
    )

    def __post_init__(self) -> None:
        checked: dict[str, Any] = {
            "samples": checks.integer(self.samples, "samples", minimum=1, maximum=MOST_SAMPLES),
            "seed": checked_seed(self.seed),
            "iterations": checks.integer(
                self.iterations, "iterations", minimum=0, maximum=MOST_ITERATIONS
            ),
            "until": _checked_until(self.until),
            "tolerance": checks.number(self.tolerance, "tolerance", minimum=0, below=1),
            "hold": checks.number(self.hold, "hold", minimum=0, below=1),
        }
        checks.choice(self.estimator, "estimator", get_args(Estimator))
        checks.choice(self.start, "start", get_args(Start))
        if self.noise_scale is not None:
            checked["noise_scale"] = checks.nats(self.noise_scale, "noise_scale")
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        if self.noise_length is not None:
            object.__setattr__(self, "noise_length", simplest(checked_lengths(self.noise_length)))
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
        """Over which lengths noise goes together; 0, the paper's, where none is said."""
        return WHITE if self.noise_length is None else checked_lengths(self.noise_length)

    @property
    def goes_together(self) -> bool:
        """Whether neighbouring voxels err together: only then volumes spread as they should."""
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


def _checked_until(until: object) -> Precision | None:
    """Return the precision; a plain number is its epsilon."""
    if until is None or isinstance(until, Precision):
        return until
    if isinstance(until, int | float):
        return Precision(checks.number(until, "until", positive=True, below=1))
    raise TypeError(f"until must be a Precision or a number, got {type(until).__name__}")
