"""A run cut into parts of a second or so, each named by its setting."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product

from perturb_mpm.reproduce.against import compared
from perturb_mpm.reproduce.binary import curve, map_point
from perturb_mpm.reproduce.plan import Plan
from perturb_mpm.reproduce.rows import Row
from perturb_mpm.reproduce.single_voxel import single_voxel
from perturb_mpm.reproduce.synthetic import Setting

# What a problem costs beside its samples, and what a sample of all comparators costs, in samples
# of votes and conditional together. Only the bar of progress depends on it.
_OVERHEAD = 2000
_COMPARED = 35


@dataclass(frozen=True)
class Part:
    """Some of the rows of a run, which depend on nothing but the plan and the seed."""

    key: str
    cost: float
    measure: Callable[[], list[Row]]


def parts_of(plan: Plan, seed: int) -> list[Part]:
    """Return all parts of a run, in their order."""
    return [*_single(plan, seed), *_map(plan, seed), *_compared(plan, seed), *_curves(plan, seed)]


def _single(plan: Plan, seed: int) -> list[Part]:
    samples = plan.single_voxel_samples
    return [
        Part(
            f"single-L{labels}",
            plan.draws * (_OVERHEAD + samples) / 2,
            partial(single_voxel, labels, plan.draws, samples, seed),
        )
        for labels in plan.single_voxel_labels
    ]


def _map(plan: Plan, seed: int) -> list[Part]:
    parts = []
    for weight, sigma, self_term in product(plan.map_weights, plan.map_sigmas, (False, True)):
        setting = Setting(weight, sigma, self_term)
        samples = plan.map_samples
        parts.append(
            Part(
                f"map-{_name(setting)}",
                sum(plan.voxels) * plan.draws * (_OVERHEAD + samples),
                partial(map_point, plan.voxels, plan.draws, setting, samples, seed),
            )
        )
    return parts


def _compared(plan: Plan, seed: int) -> list[Part]:
    weight, sigma = plan.curve_settings[0]
    sizes = plan.comparator_samples
    parts = []
    for voxels, draw, self_term in product(plan.voxels, range(plan.draws), (False, True)):
        setting = Setting(weight, sigma, self_term)
        cost = voxels * (_OVERHEAD + sizes[-1] * (4 if self_term else _COMPARED))
        measure = partial(compared, voxels, draw, setting, sizes, seed)
        parts.append(Part(f"compared-N{voxels}-{_name(setting)}-draw{draw}", cost, measure))
    return parts


def _curves(plan: Plan, seed: int) -> list[Part]:
    parts = []
    sizes = plan.curve_samples
    # The settings change fastest: they share the noise of a draw, which is kept.
    for voxels, draw, (weight, sigma), self_term in product(
        plan.voxels, range(plan.draws), plan.curve_settings, (False, True)
    ):
        setting = Setting(weight, sigma, self_term)
        cost = voxels * (_OVERHEAD + sizes[-1])
        measure = partial(curve, voxels, draw, setting, sizes, seed)
        parts.append(Part(f"curve-N{voxels}-{_name(setting)}-draw{draw}", cost, measure))
    return parts


def _name(setting: Setting) -> str:
    kept = "self" if setting.self_term else "noself"
    return f"w{setting.weight:g}-s{setting.sigma:g}-{kept}"
