"""What the readings say about the self term, the metric, and the conditional estimator."""

from __future__ import annotations

from collections.abc import Sequence

from perturb_mpm.reproduce.readings import Reading, Size
from perturb_mpm.reproduce.summary import METRICS, Metric
from perturb_mpm.reproduce.words import METRIC_NAMES, listed

_STARTS = {
    False: "Without self term, as in the paper's equations,",
    True: "With the self term kept,",
}

# How many times the error of votes is called far worse.
_FAR_WORSE = 2.0


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
    return [" ".join(sentences), _effect_of_the_self_term(found)]


def _effect_of_the_self_term(found: Sequence[Reading]) -> str:
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
    text += f" Its error is {listed(ranges)}."
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
