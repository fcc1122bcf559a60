"""The ways to read the paper's experiment, and whether its claim holds in each."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from perturb_mpm.reproduce.plan import Plan
from perturb_mpm.reproduce.summary import METRICS, Metric, Summary
from perturb_mpm.reproduce.words import listed

# The paper: lower than mean field "from |S| = 50 on".
CLAIMED_FROM = 50


@dataclass(frozen=True)
class Size:
    """Votes beside mean field on grids of one size."""

    voxels: int
    mean_field: float
    votes: float
    conditional: float
    """Both at the largest number of samples."""
    lower_from: int | None
    """The number of samples from which on votes are always below mean field; None: never."""
    last_change: float
    """How much the error of votes changed, relative to it, with the last step in samples."""


@dataclass(frozen=True)
class Reading:
    """One weight, width, self term and metric."""

    weight: float
    sigma: float
    self_term: bool
    metric: Metric
    sizes: tuple[Size, ...]

    @property
    def holds_for(self) -> tuple[int, ...]:
        """The sizes N at which votes are below mean field from 50 samples on."""
        return tuple(
            size.voxels
            for size in self.sizes
            if size.lower_from is not None and size.lower_from <= CLAIMED_FROM
        )

    @property
    def holds(self) -> bool:
        """Whether they are at every size."""
        return len(self.holds_for) == len(self.sizes)

    @property
    def verdict(self) -> str:
        """For which sizes the claim holds, in words."""
        if self.holds:
            return "holds"
        if not self.holds_for:
            return "fails"
        return f"holds for N = {listed([str(n) for n in self.holds_for])}"


def readings(summary: Summary, plan: Plan) -> list[Reading]:
    """Return all readings: the metric of the caption first, as in the paper's figure."""
    return [
        Reading(
            weight,
            sigma,
            self_term,
            metric,
            tuple(
                _size(summary, plan, metric, voxels, (weight, sigma, self_term))
                for voxels in plan.voxels
            ),
        )
        for metric, self_term, (weight, sigma) in product(
            METRICS[::-1], (False, True), plan.curve_settings
        )
    ]


def _size(
    summary: Summary, plan: Plan, metric: Metric, voxels: int, setting: tuple[float, float, bool]
) -> Size:
    means = {}
    for estimator in ("mean field", "votes", "conditional"):
        found = summary.curve(metric, "curves", voxels, setting, estimator)
        means[estimator] = [spread.mean for spread in found.values()]
    [plain] = means["mean field"]
    votes = means["votes"]
    lower_from = None
    for samples, error in reversed(list(zip(plan.curve_samples, votes))):
        if error >= plain:
            break
        lower_from = samples
    return Size(
        voxels=voxels,
        mean_field=plain,
        votes=votes[-1],
        conditional=means["conditional"][-1],
        lower_from=lower_from,
        last_change=abs(votes[-1] / votes[-2] - 1),
    )
