"""What the paper claims about the synthetic validation, judged by the numbers of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lab.synthetic.plan import SyntheticPlan
from lab.synthetic.summary import (
    CLAIMED_FROM,
    METRIC_NAMES,
    METRICS,
    SELF_TERM_WORDS,
    Condition,
    ErrorSummary,
    Metric,
    Reading,
    Size,
    compared_in_map,
)
from lab.words import count, join_words, power

_STARTS = {
    False: "Without self term, as in the paper's equations,",
    True: "With the self term kept,",
}

# How many times the error of votes is called far worse.
_FAR_WORSE = 2.0

# A curve has converged where its last step, ten times the samples, changes it by less than this.
_CONVERGED = 0.05

# The noise of a single voxel is right where its error is within this factor of sampling error.
_SAMPLING_ERROR = 1.5


def self_term_and_metric(found: Sequence[Reading]) -> list[str]:
    """Return paragraphs on where votes beat mean field, and why."""
    sentences = []
    for self_term in (False, True):
        lines = []
        for metric in METRICS[::-1]:
            factors = [
                size.mean_field / size.votes
                for size in _sizes(found, self_term=self_term, metric=metric)
            ]
            lower = sum(factor > 1 for factor in factors)
            lines.append(
                f"in {lower} of {len(factors)} cases in {METRIC_NAMES[metric]} (mean field's error "
                f"is {min(factors):.2f} to {max(factors):.2f} times theirs)"
            )
        sentences.append(f"{_STARTS[self_term]} votes end below mean field {' and '.join(lines)}.")
    return [" ".join(sentences), _self_term_effect(found)]


def _self_term_effect(found: Sequence[Reading]) -> str:
    """Say what the self term does to mean field and to votes."""
    pairs = list(zip(_sizes(found, self_term=True), _sizes(found, self_term=False)))
    grows = [kept.mean_field / without.mean_field for kept, without in pairs]
    moves = [kept.votes / without.votes for kept, without in pairs]
    text = (
        "Keeping j = i makes each voxel agree with itself: it multiplies the error of mean field "
        f"by {min(grows):.1f} to {max(grows):.1f}, that of votes by {min(moves):.2f} to "
        f"{max(moves):.2f}."
    )
    if all(kept.votes < kept.mean_field for kept, _ in pairs) and min(grows) > max(moves):
        text += (
            " With the self term, then, the advantage of votes comes for the most part from an "
            "error of mean field that leaving out j = i removes."
        )
    lower = {
        metric: sum(
            size.votes < size.mean_field for size in _sizes(found, self_term=False, metric=metric)
        )
        for metric in METRICS
    }
    if lower["log_probability_error_nats"] > lower["total_variation"]:
        text += (
            " Without it, the metric decides: the logarithm punishes mean field's overconfidence "
            "in rare labels, which total variation hardly sees."
        )
    return text


def conditional_or_votes(found: Sequence[Reading], *, self_term: bool) -> str:
    """Say how often the conditional estimator beats votes and mean field, and its worst case."""
    cases = [(r, size) for r in found if r.self_term is self_term for size in r.sizes]
    votes = sum(size.conditional < size.votes for _, size in cases)
    plain = sum(size.conditional < size.mean_field for _, size in cases)
    text = (
        f"{_STARTS[self_term]} conditional is closer to the exact marginals than votes in {votes} "
        f"of {len(cases)} cases, and closer than mean field in {plain}."
    )
    ratios: dict[float, list[float]] = {}
    for reading, size in cases:
        ratios.setdefault(reading.sigma, []).append(size.conditional / size.votes)
    ranges = [
        f"{min(of_sigma):.2f} to {max(of_sigma):.2f} times that of votes at σ = {sigma:g}"
        for sigma, of_sigma in ratios.items()
    ]
    text += f" Its error is {join_words(ranges)}."
    if self_term and max(max(of_sigma) for of_sigma in ratios.values()) > _FAR_WORSE:
        text += (
            " So it can be far worse than votes: it averages probabilities, which the self term "
            "makes overconfident, where votes only ask which label wins. To use conditional, leave "
            "the self term out."
        )
    return text


def _sizes(
    found: Sequence[Reading], *, self_term: bool, metric: Metric | None = None
) -> list[Size]:
    """Return the sizes of all readings with this self term, in one order for both."""
    chosen = [r for r in found if r.self_term is self_term and metric in {None, r.metric}]
    return [size for reading in chosen for size in reading.sizes]


@dataclass(frozen=True)
class Claim:
    """One statement of the paper, in our words, and what the run says about it."""

    statement: str
    verdict: str
    evidence: str


def claims(summary: ErrorSummary, plan: SyntheticPlan, found: list[Reading]) -> list[Claim]:
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
        f"Expected over the noise, true at every N in {len(holding)} of {len(found)} ways to read "
        f"the experiment. In {'; in '.join(by_reading)}. At {CLAIMED_FROM} samples, "
        f"w = {found[0].weight:g}, σ = {found[0].sigma:g}, without self term: "
        f"{'; '.join(_at_claimed(r) for r in found if _is_first(r, found[0]))}.",
    )


def _is_first(reading: Reading, first: Reading) -> bool:
    same = (reading.weight, reading.sigma) == (first.weight, first.sigma)
    return same and not reading.self_term


def _at_claimed(reading: Reading) -> str:
    """Return the expected errors of votes at the number of samples the paper names."""
    votes = " / ".join(
        f"{size.claimed.mean:.4f} ± {size.claimed.run_error:.4f}" for size in reading.sizes
    )
    plain = " / ".join(f"{size.mean_field:.4f}" for size in reading.sizes)
    return f"{METRIC_NAMES[reading.metric]} {votes} against mean field's {plain}"


def _lower_everywhere(summary: ErrorSummary, plan: SyntheticPlan) -> Claim:
    parts = []
    holding = total = 0
    for metric in METRICS[::-1]:
        for self_term in (False, True):
            compared = compared_in_map(summary, plan, metric, "votes", self_term=self_term)
            parts.append(f"{METRIC_NAMES[metric]} {SELF_TERM_WORDS[self_term]} {compared.in_words}")
            holding, total = holding + compared.lower, total + compared.points
    return Claim(
        "On tractable problems the residual error is consistently lower than that of mean field.",
        _verdict(holding, total),
        f"Over all grids, weights and widths of the map, at {power(plan.map_samples)} samples, "
        f"votes are closer than mean field in: {'; '.join(parts)}. In brackets, only the points "
        "where as many exact samples are closer too, so that sampling error does not decide.",
    )


def _residual(summary: ErrorSummary, plan: SyntheticPlan, found: list[Reading]) -> Claim:
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


def _noise_errors(
    summary: ErrorSummary, plan: SyntheticPlan, name: str
) -> dict[int, tuple[float, float]]:
    """Return mean and largest total variation on one voxel, by the number of labels."""
    found = {}
    for labels in plan.single_voxel_labels:
        case = Condition(
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


def _sign(summary: ErrorSummary, plan: SyntheticPlan) -> Claim:
    right = _noise_errors(summary, plan, "noise subtracted")
    wrong = _noise_errors(summary, plan, "noise added, as printed")
    fine = [l for l in right if wrong[l][0] < _SAMPLING_ERROR * right[l][0]]
    numbers = ", ".join(
        f"L = {l}: {wrong[l][0]:.4f} (worst {wrong[l][1]:.4f}) against {right[l][0]:.4f}"
        for l in right
    )
    verdict = _verdict(len(fine), len(right))
    if verdict == "holds in part":
        verdict = f"holds for L = {join_words([str(l) for l in fine])} only"
    return Claim(
        "Gumbel noise −log(−log u) is added to the energies, which are then minimised.",
        verdict,
        "On one voxel without coupling the labels must follow softmax(−U). Mean total variation "
        f"over {count(summary.draws, 'draw')} with {power(plan.single_voxel_samples)} samples, "
        f"noise added against subtracted: {numbers}. {_binary_sign(summary, plan)}",
    )


def _binary_sign(summary: ErrorSummary, plan: SyntheticPlan) -> str:
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


def _scale(summary: ErrorSummary, plan: SyntheticPlan) -> Claim:
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


def _order_one(summary: ErrorSummary, plan: SyntheticPlan) -> Claim:
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
