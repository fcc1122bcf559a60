"""What a run of the synthetic validation measures, cut into parts of a second or so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product

from lab.synthetic.measuring import (
    ErrorRow,
    KernelSetting,
    compared,
    curve,
    map_point,
    single_voxel,
)

# Raised when the same plan and seed would give other numbers than before.
FORMAT = 2

# What a problem costs beside its samples, and what a sample of all comparators costs, in samples
# of votes and conditional together. Only the bar of progress depends on it.
_OVERHEAD = 2000

_COMPARED = 35


@dataclass(frozen=True)
class SyntheticPlan:
    """The settings, the numbers of samples and the number of draws of a run."""

    mode: str
    """The name of the plan, for its reader."""
    voxels: tuple[int, ...]
    """The sizes N of the grids."""
    draws: int
    """How many random unaries a mean is taken over."""
    curve_settings: tuple[tuple[float, float], ...]
    """The (weight, sigma) whose errors are followed along the number of samples."""
    curve_samples: tuple[int, ...]
    comparator_samples: tuple[int, ...]
    """At which numbers of samples all methods are compared, at the first of the settings."""
    map_weights: tuple[float, ...]
    map_sigmas: tuple[float, ...]
    map_samples: int
    single_voxel_labels: tuple[int, ...]
    """The numbers of labels that the sign of the noise is tried with."""
    single_voxel_samples: int
    maxima_samples: int
    """Samples of each problem whose MAP and MPM labellings are compared."""

    def describe(self, seed: int) -> dict[str, object]:
        """Return all that the numbers depend on beside the version."""
        return {"format": FORMAT, "seed": seed, **asdict(self)}


FULL = SyntheticPlan(
    mode="full",
    voxels=(6, 9, 12),
    draws=20,
    curve_settings=((1.0, 1.0), (1.0, 0.7)),
    curve_samples=(10, 50, 10**2, 10**3, 10**4, 10**5, 10**6),
    comparator_samples=(10, 50, 10**2, 10**3, 10**4),
    map_weights=(0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0),
    map_sigmas=(0.4, 0.5, 0.6, 0.7, 0.85, 1.0, 1.4, 2.0, 3.0),
    map_samples=10**4,
    single_voxel_labels=(2, 3, 4, 5),
    single_voxel_samples=10**5,
    maxima_samples=10**5,
)

QUICK = SyntheticPlan(
    mode="quick",
    voxels=(6, 9, 12),
    draws=20,
    curve_settings=((1.0, 1.0), (1.0, 0.7)),
    curve_samples=(10, 50, 10**2, 10**3, 10**4),
    comparator_samples=(10, 50, 10**2, 10**3),
    map_weights=(0.25, 0.5, 1.0, 2.0, 4.0),
    map_sigmas=(0.4, 0.7, 1.0, 1.4, 3.0),
    map_samples=10**3,
    single_voxel_labels=(2, 3, 4, 5),
    single_voxel_samples=10**4,
    maxima_samples=10**3,
)


@dataclass(frozen=True)
class Part:
    """Some of the rows of a run, which depend on nothing but the plan and the seed."""

    key: str
    cost: float
    measure: Callable[[], list[ErrorRow]]


def plan_parts(plan: SyntheticPlan, seed: int) -> list[Part]:
    """Return all parts of a run, in their order."""
    return [
        *_single(plan, seed),
        *_map(plan, seed),
        *_comparison_parts(plan, seed),
        *_curves(plan, seed),
    ]


def _single(plan: SyntheticPlan, seed: int) -> list[Part]:
    samples = plan.single_voxel_samples
    return [
        Part(
            f"single-L{labels}",
            plan.draws * (_OVERHEAD + samples) / 2,
            partial(single_voxel, labels, plan.draws, samples, seed),
        )
        for labels in plan.single_voxel_labels
    ]


def _map(plan: SyntheticPlan, seed: int) -> list[Part]:
    parts = []
    for weight, sigma, self_term in product(plan.map_weights, plan.map_sigmas, (False, True)):
        setting = KernelSetting(weight, sigma, self_term)
        samples = plan.map_samples
        parts.append(
            Part(
                f"map-{_name(setting)}",
                sum(plan.voxels) * plan.draws * (_OVERHEAD + samples),
                partial(map_point, plan.voxels, plan.draws, setting, samples, seed),
            )
        )
    return parts


def _comparison_parts(plan: SyntheticPlan, seed: int) -> list[Part]:
    weight, sigma = plan.curve_settings[0]
    sizes = plan.comparator_samples
    parts = []
    for voxels, draw, self_term in product(plan.voxels, range(plan.draws), (False, True)):
        setting = KernelSetting(weight, sigma, self_term)
        cost = voxels * (_OVERHEAD + sizes[-1] * (4 if self_term else _COMPARED))
        measure = partial(compared, voxels, draw, setting, sizes, seed)
        parts.append(Part(f"compared-N{voxels}-{_name(setting)}-draw{draw}", cost, measure))
    return parts


def _curves(plan: SyntheticPlan, seed: int) -> list[Part]:
    parts = []
    sizes = plan.curve_samples
    # The settings change fastest: they share the noise of a draw, which is kept.
    for voxels, draw, (weight, sigma), self_term in product(
        plan.voxels, range(plan.draws), plan.curve_settings, (False, True)
    ):
        setting = KernelSetting(weight, sigma, self_term)
        cost = voxels * (_OVERHEAD + sizes[-1])
        measure = partial(curve, voxels, draw, setting, sizes, seed)
        parts.append(Part(f"curve-N{voxels}-{_name(setting)}-draw{draw}", cost, measure))
    return parts


def _name(setting: KernelSetting) -> str:
    kept = "self" if setting.self_term else "noself"
    return f"w{setting.weight:g}-s{setting.sigma:g}-{kept}"
