"""What the paper claims about the synthetic validation, judged by the numbers of a run."""

from __future__ import annotations

from dataclasses import dataclass

from perturb_mpm.reproduce.beaten import beaten_in_map
from perturb_mpm.reproduce.plan import Plan
from perturb_mpm.reproduce.readings import CLAIMED_FROM, Reading
from perturb_mpm.reproduce.summary import METRICS, Case, Summary
from perturb_mpm.reproduce.words import METRIC_NAMES, SELF_TERM_WORDS, count, listed, power

# A curve has converged where its last step, ten times the samples, changes it by less than this.
_CONVERGED = 0.05

# The noise of a single voxel is right where its error is within this factor of sampling error.
_SAMPLING_ERROR = 1.5


@dataclass(frozen=True)
class Claim:
    """One statement of the paper, in our words, and what the run says about it."""

    statement: str
    verdict: str
    evidence: str


def claims(summary: Summary, plan: Plan, found: list[Reading]) -> list[Claim]:
    """Judge every claim."""
    return [
        _lower_than_mean_field(found),
        _lower_everywhere(summary, plan),
        _residual(summary, plan, found),
        _sign(summary, plan),
        _scale(summary, plan),
        _order_one(summary, plan),
    ]


def _verdict(holding: int, total: int) -> str:
    if holding == total:
        return "holds"
    return "holds in part" if holding else "does not hold"


def _lower_than_mean_field(found: list[Reading]) -> Claim:
    holding = [reading for reading in found if reading.holds]
    by_reading = []
    for metric in METRICS[::-1]:
        for self_term in (False, True):
            group = [r for r in found if r.metric == metric and r.self_term is self_term]
            words = ", ".join(f"{reading.verdict} at σ = {reading.sigma:g}" for reading in group)
            by_reading.append(f"{METRIC_NAMES[metric]} {SELF_TERM_WORDS[self_term]}: {words}")
    return Claim(
        f"From {CLAIMED_FROM} samples on the mean error of votes is lower than that of mean field, "
        "at N = 6, 9 and 12.",
        _verdict(len(holding), len(found)),
        f"True at every N in {len(holding)} of {len(found)} ways to read the experiment. "
        f"In {'; in '.join(by_reading)}.",
    )


def _lower_everywhere(summary: Summary, plan: Plan) -> Claim:
    parts = []
    holding = total = 0
    for metric in METRICS[::-1]:
        for self_term in (False, True):
            beaten = beaten_in_map(summary, plan, metric, "votes", self_term=self_term)
            parts.append(f"{METRIC_NAMES[metric]} {SELF_TERM_WORDS[self_term]} {beaten.in_words}")
            holding, total = holding + beaten.lower, total + beaten.points
    return Claim(
        "On tractable problems the residual error is consistently lower than that of mean field.",
        _verdict(holding, total),
        f"Over all grids, weights and widths of the map, at {power(plan.map_samples)} samples, "
        f"votes are closer than mean field in: {'; '.join(parts)}. In brackets, only the points "
        "where as many exact samples are closer too, so that sampling error does not decide.",
    )


def _residual(summary: Summary, plan: Plan, found: list[Reading]) -> Claim:
    changes = [size.last_change for reading in found for size in reading.sizes]
    still = sum(change < _CONVERGED for change in changes)
    least = min(
        size.votes
        for reading in found
        if reading.metric == "total_variation"
        for size in reading.sizes
    )
    samples = plan.comparator_samples[-1]
    setting = plan.curve_settings[0]
    perfect = [
        summary.compared("total_variation", n, setting, "exact samples", samples).mean
        for n in plan.voxels
    ]
    before, last = plan.curve_samples[-2:]
    return Claim(
        "With more samples the error converges to a residual error.",
        _verdict(still, len(changes)),
        f"From {power(before)} to {power(last)} samples {still} of {len(changes)} curves change by "
        f"less than {100 * _CONVERGED:.0f} % (at most {100 * max(changes):.1f} %). The least total "
        f"variation left at {power(last)} samples is {least:.4f}; exact samples are at "
        f"{max(perfect):.4f} or less with {power(samples)} and go on falling as 1/√S.",
    )


def _noise_errors(summary: Summary, plan: Plan, name: str) -> dict[int, tuple[float, float]]:
    """Return mean and largest total variation on one voxel, by the number of labels."""
    found = {}
    for labels in plan.single_voxel_labels:
        case = Case(
            experiment="single voxel",
            voxels=1,
            labels=labels,
            weight=0.0,
            sigma_voxels=None,
            self_term=False,
            estimator=name,
            samples=plan.single_voxel_samples,
        )
        spread = summary.get("total_variation", case)
        found[labels] = (spread.mean, spread.largest)
    return found


def _sign(summary: Summary, plan: Plan) -> Claim:
    right = _noise_errors(summary, plan, "noise subtracted")
    wrong = _noise_errors(summary, plan, "noise added, as printed")
    fine = [l for l in right if wrong[l][0] < _SAMPLING_ERROR * right[l][0]]
    numbers = ", ".join(
        f"L = {l}: {wrong[l][0]:.4f} (worst {wrong[l][1]:.4f}) against {right[l][0]:.4f}"
        for l in right
    )
    verdict = _verdict(len(fine), len(right))
    if verdict == "holds in part":
        verdict = f"holds for L = {listed([str(l) for l in fine])} only"
    return Claim(
        "Gumbel noise −log(−log u) is added to the energies, which are then minimised.",
        verdict,
        "On one voxel without coupling the labels must follow softmax(−U). Mean total variation "
        f"over {count(summary.draws, 'draw')} with {power(plan.single_voxel_samples)} samples, "
        f"noise added against subtracted: {numbers}. {_binary_sign(summary, plan)}",
    )


def _binary_sign(summary: Summary, plan: Plan) -> str:
    """Say how much the sign changes the binary experiment, beside its standard error."""
    setting, samples = plan.curve_settings[0], plan.comparator_samples[-1]
    apart = noise = 0.0
    for voxels in plan.voxels:
        one, other = (
            summary.compared("total_variation", voxels, setting, name, samples)
            for name in ("votes", "votes, printed sign")
        )
        apart = max(apart, abs(one.mean - other.mean))
        noise = max(noise, one.standard_error)
    return (
        "With two labels only γ(1) − γ(0) counts, whose law is symmetric, so that the binary "
        f"experiment cannot see the sign: with coupling the two errors differ by {apart:.4f} at "
        f"most at {power(samples)} samples, where the standard error over the draws is up to "
        f"{noise:.4f}."
    )


def _scale(summary: Summary, plan: Plan) -> Claim:
    right = _noise_errors(summary, plan, "noise subtracted")
    scaled = _noise_errors(summary, plan, "noise of unit variance")
    fine = [l for l in right if scaled[l][0] < _SAMPLING_ERROR * right[l][0]]
    numbers = ", ".join(f"L = {l}: {scaled[l][0]:.4f} against {right[l][0]:.4f}" for l in right)
    return Claim(
        "The noise has zero mean and unit variance.",
        _verdict(len(fine), len(right)),
        "−log(−log u) has mean 0.5772, which cancels, and variance π²/6. Scaled to unit variance "
        f"it no longer samples a single voxel: mean total variation {numbers}.",
    )


def _order_one(summary: Summary, plan: Plan) -> Claim:
    weight, sigma = plan.curve_settings[0]
    samples = plan.comparator_samples[-1]

    def mean(voxels: int, name: str) -> float:
        return summary.compared("total_variation", voxels, (weight, sigma), name, samples).mean

    rows = [
        (n, mean(n, "order-1 Perturb-and-MAP"), mean(n, "full perturbation"), mean(n, "votes"))
        for n in plan.voxels
    ]
    fine = [n for n, first, full, _ in rows if first < _SAMPLING_ERROR * full]
    numbers = ", ".join(
        f"N = {n}: {first:.4f} against {full:.4f} (votes {votes:.4f})"
        for n, first, full, votes in rows
    )
    return Claim(
        "It is enough to perturb the unary potentials alone (order 1).",
        _verdict(len(fine), len(rows)),
        f"With exact MAP and {power(samples)} samples at w = {weight:g}, σ = {sigma:g}, total "
        f"variation of order-1 Perturb-and-MAP against full perturbation, which is exact: "
        f"{numbers}.",
    )
