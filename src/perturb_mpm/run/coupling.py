"""A check that needs no truth: whether the kernels leave volumes where the probabilities put them.

Kernels smooth, and what they smooth away is a small structure among what looks alike. Two numbers
tell, for every region and label of some size, as a share of the volume that the probabilities
(after temperature and bias) expect:

- how far the mean field of the CRF moves the expected volume;
- how far the kernels move the mean volume of the first samples: the same noise with and without
  kernels, sample by sample, less what may be chance in a pilot of a few samples.

Where either is above ``LARGEST_SHIFT``, the strength of the kernels is halved, and after
``MOST_HALVINGS`` set to 0. The pilot's samples are the first of the run, so that a run that passes
loses nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.model import DenseCRF
from perturb_mpm.posterior import Posterior
from perturb_mpm.run.model import prior_probabilities
from perturb_mpm.sampling import Sampler

if TYPE_CHECKING:
    from perturb_mpm.run.state import Run

PILOT_SAMPLES = 8  # fewer than the first map that is kept of a run needs
LARGEST_SHIFT = 0.10
MOST_HALVINGS = 3
LEAST_SHARE = 0.05  # of the expected foreground: what is smaller is not looked at
_STANDARD_ERRORS = 2.4  # 95 % of Student's t with 7 degrees of freedom


@dataclass(frozen=True)
class VolumeShift:
    """How far the kernels move the volume of one region or label, as a share of what is expected.

    ``mean_field_frac`` is that of the mean field, ``sampled_frac`` the mean over the pilot's
    samples and ``sampled_error_frac`` its standard error; both are None where no sample was asked.
    """

    name: str
    mean_field_frac: float
    sampled_frac: float | None = None
    sampled_error_frac: float | None = None

    @property
    def surely_frac(self) -> float:
        """The larger of both, where the samples count as far as they are sure."""
        sampled = abs(self.sampled_frac or 0) - _STANDARD_ERRORS * (self.sampled_error_frac or 0)
        return max(abs(self.mean_field_frac), sampled)


@dataclass(frozen=True)
class CouplingCheck:
    """The strength of the kernels that was asked for and is used, and what moved most at the first.

    ``moved`` is None where nothing is large enough to be looked at.
    """

    asked_strength: float
    used_strength: float
    moved: VolumeShift | None

    @property
    def is_harmless(self) -> bool:
        """Whether the kernels asked for leave the volumes where they are."""
        return self.moved is None or self.moved.surely_frac <= LARGEST_SHIFT

    def as_json(self) -> dict[str, Any]:
        """Return it as values that JSON can hold."""
        return asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> CouplingCheck:
        """Return what ``as_json`` wrote; TypeError or KeyError where it is something else."""
        moved = found["moved"]
        if moved is not None:
            sampled = (
                None if moved[name] is None else float(moved[name])
                for name in ("sampled_frac", "sampled_error_frac")
            )
            moved = VolumeShift(str(moved["name"]), float(moved["mean_field_frac"]), *sampled)
        return cls(float(found["asked_strength"]), float(found["used_strength"]), moved)

    def warning(self) -> str | None:
        """Say what the kernels do, None where they do no harm."""
        if self.is_harmless or self.moved is None:
            return None
        by_field = abs(self.moved.mean_field_frac) == self.moved.surely_frac
        share = self.moved.mean_field_frac if by_field else self.moved.sampled_frac or 0.0
        way = "above" if share > 0 else "below"
        words = (
            f"the kernels move the volume of {self.moved.name} {100 * abs(share):.0f} % {way} what "
            f"the probabilities expect, more than {100 * LARGEST_SHIFT:.0f} %"
        )
        if self.used_strength == self.asked_strength:
            return f"{words}: labelled cases tell whether that is right"
        return (
            f"{words}: their strength was lowered from {self.asked_strength:.2g} to "
            f"{self.used_strength:.2g}"
        )


@dataclass(frozen=True, eq=False)
class Pilot:
    """The first samples of a run."""

    posterior: Posterior
    labels: NDArray[np.uint8]  # (S, N)
    starts: NDArray[np.int64]  # (S, L): sizes before the kernels have moved a label, in voxels

    @property
    def moved_voxels(self) -> NDArray[np.float64]:
        """How many voxels the kernels add to each label of each sample, (S, L)."""
        posterior = self.posterior
        sizes: NDArray[np.float64] = posterior.volumes / math.prod(posterior.grid.spacing)
        return sizes - self.starts


def check_coupling(
    run: Run, sampler: Sampler, build: Callable[[Run], Sampler]
) -> tuple[Run, Sampler, Pilot | None]:
    """Return the run with its check, its sampler and the pilot; weaken the kernels where need be.

    ``sampler`` is that of the run as it was asked for, ``build`` makes one of a run with another
    strength. Where the settings say so, or were learned on labelled cases, nothing is weakened.
    """
    asked = run.settings.coupling.strength or 0.0
    if not sampler.crf.kernels:
        return run, sampler, None
    samples = min(PILOT_SAMPLES, run.settings.sampling.samples)
    weaken = not (run.settings.coupling.keep_strength or run.settings.basis.learned_cases)
    expected = _expected_voxels(sampler.crf)  # whatever the weights
    first: VolumeShift | None = None
    pilot: Pilot | None = None
    for halving in range(MOST_HALVINGS + 1):
        moved = _find_largest_shift(run, sampler, expected)
        if not weaken or moved is None or moved.surely_frac <= LARGEST_SHIFT:
            # Samples are asked only where the mean field does not say it already.
            pilot = _draw_pilot(sampler, samples)
            moved = _find_largest_shift(run, sampler, expected, pilot)
        first = moved if halving == 0 else first
        if moved is None or moved.surely_frac <= LARGEST_SHIFT or not weaken:
            break
        strength = asked / 2 ** (halving + 1) if halving < MOST_HALVINGS else 0.0
        run, pilot = replace(run, settings=run.settings.changed(strength=strength)), None
        sampler = sampler.scale_kernels(0.5) if strength > 0 else build(run)
    check = CouplingCheck(asked, run.settings.coupling.strength or 0.0, first)
    return replace(run, coupling=check), sampler, pilot


def _draw_pilot(sampler: Sampler, samples: int) -> Pilot:
    parts: list[NDArray[np.uint8]] = []
    starts: list[NDArray[np.int64]] = []
    posterior = sampler.draw(
        samples,
        keep=lambda _, labels: parts.append(labels.copy()),
        starts=starts,
    )
    return Pilot(posterior, np.concatenate(parts), np.concatenate(starts))


def _find_largest_shift(
    run: Run, sampler: Sampler, expected: NDArray[np.float64], pilot: Pilot | None = None
) -> VolumeShift | None:
    """Return what moves most of the regions and labels of some size, None where there are none.

    ``expected`` (L,) is how many voxels of each label the probabilities expect.
    """
    solved = sampler.mean_field().sum(axis=1, dtype=np.float64)  # (L,)
    labels = run.case.labels
    foreground = [label for label in range(len(labels)) if label or not labels.has_background]
    least = LEAST_SHARE * expected[foreground].sum()
    found = []
    for name, members in {**{labels.names[l]: (l,) for l in foreground}, **run.regions}.items():
        rows = list(members)
        size = expected[rows].sum()
        if size <= least:
            continue
        shift = VolumeShift(name, float(solved[rows].sum() / size - 1))
        if pilot is not None:
            differences = pilot.moved_voxels[:, rows].sum(axis=1) / size  # (S,)
            several = len(differences) > 1  # one says nothing of how sure it is
            mean = float(differences.mean()) if several else 0.0
            error = float(differences.std(ddof=1)) / math.sqrt(len(differences)) if several else 0.0
            shift = replace(shift, sampled_frac=mean, sampled_error_frac=error)
        found.append(shift)
    return max(found, key=lambda each: each.surely_frac, default=None)


def _expected_voxels(crf: DenseCRF) -> NDArray[np.float64]:
    """Return the expected number of voxels of each label by softmax(−U) alone, (L,)."""
    expected: NDArray[np.float64] = prior_probabilities(crf.prior).sum(axis=1)
    return expected
