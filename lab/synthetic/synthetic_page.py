"""The page that says what a run found. Every number and verdict in it comes from the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from lab.synthetic.claims import Claim, conditional_or_votes, self_term_and_metric
from lab.synthetic.illustrations import SAMPLES, SPACING_MM
from lab.synthetic.maxima import maxima_section
from lab.synthetic.measuring import ITERATIONS, MOST_RUNS
from lab.synthetic.plan import SyntheticPlan
from lab.synthetic.summary import (
    CLAIMED_FROM,
    METRIC_NAMES,
    METRICS,
    SELF_TERM,
    ErrorSummary,
    Reading,
    Size,
    compared_in_map,
)
from lab.words import count, join_words, markdown_table, paragraph, power

if TYPE_CHECKING:
    from lab.synthetic.run import SyntheticOutcome


_METHODS = (
    "unary only",
    "mean field",
    "samples of Q",
    "votes",
    "votes, printed sign",
    "order-1 Perturb-and-MAP",
    "conditional",
    "Gibbs",
    "full perturbation",
    "exact samples",
)

_READING = ["metric", "self term", "w", "σ"]


def page(outcome: SyntheticOutcome, plan: SyntheticPlan, figures: Mapping[str, str]) -> str:
    """Return the page as Markdown; ``figures`` are the names of the figures' files."""
    summary, found = outcome.summary, outcome.readings
    blocks = [
        *_opening(summary, plan),
        *_claims(outcome.claims),
        *_overview(figures["overview"]),
        *maxima_section(outcome.maxima, plan, figures["maxima"]),
        *_curves(plan, found, figures["curves"]),
        "## The self term and the metric decide",
        *(paragraph(text) for text in self_term_and_metric(found)),
        *_conditional(plan, found),
        *_comparators(summary, plan),
        *_map(summary, plan, figures["map"]),
    ]
    return "\n\n".join(blocks) + "\n"


def _opening(summary: ErrorSummary, plan: SyntheticPlan) -> list[str]:
    options = " --quick" if plan.mode == "quick" else ""
    return [
        "# The paper's synthetic validation, done again",
        paragraph(
            "All problems on this page are made up, as the paper's are. "
            f"`python -m lab synthetic{options}` wrote it, its figures and tables of all numbers "
            "(`reproduce-synthetic.csv`, `reproduce-synthetic-maxima.csv`). Every number and "
            "verdict here comes from that run."
        ),
        paragraph(
            f"Binary grids of N = {join_words([str(n) for n in plan.voxels])} voxels; "
            "unaries −log p with p(x = 0) uniform on [0, 1), "
            f"{count(summary.draws, 'draw')}; a Potts prior with the kernel "
            "w·exp(−d² / 2σ²) of the distance d in voxels; "
            f"{ITERATIONS} parallel updates of mean field; exact marginals by enumeration. The "
            "paper does not say w, σ, the number of updates, or whether the sum over j keeps the "
            "voxel itself (j = i), as public libraries do; its text measures the l1 norm of the "
            "marginals, its caption the error of log-probabilities. So w, σ, the self term and the "
            "metric are varied here."
        ),
        paragraph(
            "*Total variation* is half the l1 norm, averaged over the voxels. *Log-probability "
            "error* is the mean of |log f − log P| over voxels and labels, in nats, with "
            "f = (k + ½) / (S + 1) for k of S votes. *Votes* is the paper's estimator with noise "
            "subtracted; *conditional* is ours: it averages softmax(−U + messages) over the "
            "samples instead of counting their labels."
        ),
    ]


def _claims(verdicts: Sequence[Claim]) -> list[str]:
    rows = [[each.statement, f"**{each.verdict}**", each.evidence] for each in verdicts]
    return ["## Which claims hold", markdown_table(["the paper", "verdict", "measured"], rows)]


def _overview(figure: str) -> list[str]:
    return [
        "## Algorithm 1, step by step: the paper's figure 1",
        f"![From an image to samples and histograms of labels]({figure})",
        paragraph(
            f"*One slice of a made-up patient, {SPACING_MM:g} mm. Each row is a sample: noise is "
            "taken off the unary energies, the mean field of the perturbed problem is computed "
            "(drawn: each voxel's largest marginal, dark to bright), and every voxel takes its "
            "likeliest label. On the right what "
            f"{SAMPLES} samples say, and the histogram of their labels at three voxels.*"
        ),
    ]


def _curves(plan: SyntheticPlan, found: Sequence[Reading], figure: str) -> list[str]:
    weight, sigma = plan.curve_settings[0]
    rows = [
        [
            *_reading_cells(reading),
            *(_size_cell(size) for size in reading.sizes),
            f"**{reading.verdict}**",
        ]
        for reading in found
    ]
    return [
        "## Error against the number of samples: the paper's figure 3",
        f"![Error against the number of samples, with and without self term]({figure})",
        paragraph(
            f"*Means over the draws at w = {weight:g}, σ = {sigma:g}. Lines with markers are "
            "sampled, level lines without markers are mean field. Top: the metric of the paper's "
            "caption; bottom: that of its text.*"
        ),
        paragraph(
            f"Mean field → votes at {power(plan.curve_samples[-1])} samples, and in brackets the "
            "number of samples from which on the expected error of votes stays below mean field's "
            "by two standard errors. Below that number of samples errors are means over up to "
            f"{MOST_RUNS} runs that share no sample, not those of one run:"
        ),
        markdown_table([*_READING, *(f"N = {n}" for n in plan.voxels), "the claim"], rows),
        paragraph(
            f"The same at {CLAIMED_FROM} samples, from where the paper sees votes below it: "
            "mean field → votes, expected over the noise, ± the standard error of that expectation:"
        ),
        markdown_table(
            [*_READING, *(f"N = {n}" for n in plan.voxels)],
            [[*_reading_cells(r), *(_claimed_cell(size) for size in r.sizes)] for r in found],
        ),
    ]


def _reading_cells(reading: Reading) -> list[str]:
    name, kept = METRIC_NAMES[reading.metric], SELF_TERM[reading.self_term]
    return [name, kept, f"{reading.weight:g}", f"{reading.sigma:g}"]


def _claimed_cell(size: Size) -> str:
    return f"{size.mean_field:.4f} → {size.claimed.mean:.4f} ± {size.claimed.run_error:.4f}"


def _size_cell(size: Size) -> str:
    lower = "never" if size.lower_from is None else f"from {power(size.lower_from)}"
    return f"{size.mean_field:.4f} → {size.votes:.4f} ({lower})"


def _conditional(plan: SyntheticPlan, found: Sequence[Reading]) -> list[str]:
    rows = []
    for reading in found:
        trios = [(size.mean_field, size.votes, size.conditional) for size in reading.sizes]
        cells = [" / ".join(f"{value:.4f}" for value in trio) for trio in trios]
        rows.append([*_reading_cells(reading), *cells])
    return [
        "## Votes or conditional",
        f"Mean field / votes / conditional at {power(plan.curve_samples[-1])} samples:",
        markdown_table([*_READING, *(f"N = {n}" for n in plan.voxels)], rows),
        *(paragraph(conditional_or_votes(found, self_term=kept)) for kept in (False, True)),
    ]


def _comparators(summary: ErrorSummary, plan: SyntheticPlan) -> list[str]:
    setting = plan.curve_settings[0]
    last = plan.comparator_samples[-1]
    sizes = [100, last] if 100 in plan.comparator_samples[:-1] else [last]
    rows = []
    for name in _METHODS:
        cells = [name]
        for voxels in plan.voxels:
            for size in sizes:
                means = [
                    summary.compared(metric, voxels, setting, name, size).mean for metric in METRICS
                ]
                cells.append(" / ".join(f"{mean:.4f}" for mean in means))
        rows.append(cells)
    header = [f"N = {n}, S = {power(size)}" for n in plan.voxels for size in sizes]
    return [
        "## Beside other samplers, at equal numbers of samples",
        paragraph(
            f"Total variation / log-probability error in nats at w = {setting[0]:g}, "
            f"σ = {setting[1]:g} without self term. Mean field is not sampled. Gibbs runs 4 chains "
            "and does not count the first 500 sweeps of each; order-1 Perturb-and-MAP finds its "
            "MAP exactly; full perturbation and exact samples visit all labellings, and are exact."
        ),
        markdown_table(["method", *header], rows),
    ]


def _map(summary: ErrorSummary, plan: SyntheticPlan, figure: str) -> list[str]:
    rows = []
    for metric in METRICS[::-1]:
        for self_term in (False, True):
            row = [METRIC_NAMES[metric], SELF_TERM[self_term]]
            for name in ("votes", "conditional"):
                compared = compared_in_map(summary, plan, metric, name, self_term=self_term)
                row += [compared.in_words, _excess(compared.largest_excess)]
            rows.append(row)
    weights, sigmas = plan.map_weights, plan.map_sigmas
    excess = "at worst above by"
    return [
        "## Over weight and width",
        f"![Where votes and conditional are closer to the truth than mean field]({figure})",
        paragraph(
            f"*N = {plan.voxels[-1]}, {power(plan.map_samples)} samples, means over the draws. "
            "Dark: closer to the exact marginals than mean field; hatched: farther away. Left of "
            "the dashed line even as many exact samples are farther away than mean field: the "
            "coupling is so weak there that sampling error decides. Circles: the settings of the "
            "tables above.*"
        ),
        paragraph(
            f"{count(len(weights), 'weight')} (w = {weights[0]:g} … {weights[-1]:g}), "
            f"{count(len(sigmas), 'width')} (σ = {sigmas[0]:g} … {sigmas[-1]:g}) and "
            f"{count(len(plan.voxels), 'grid')}: in how many of them each estimator is closer than "
            f"mean field at {power(plan.map_samples)} samples (in brackets: among those where as "
            "many exact samples are closer, too), and by how much its mean error exceeds that of "
            "mean field at worst:"
        ),
        markdown_table(["metric", "self term", "votes", excess, "conditional", excess], rows),
    ]


def _excess(value: float) -> str:
    return f"{value:.2g}" if value > 0 else "never"
