"""The page of the experiment over a segmenter's bias: when correction helps, by exact tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lab.clinical.bias import (
    HAND_SET,
    HOLD,
    ITERATIONS,
    LEARNED,
    BiasPlan,
    Segmenter,
)
from lab.clinical.biomarkers import TRUTH, BiomarkerResults, ErrorTest, signed_errors, typical
from lab.clinical.biomarkers_page import DARK, LIGHT, NAMES
from lab.figures import BLACK, BLUE, new_figure
from lab.words import count, join_words, markdown_table, paragraph
from perturb_mpm.learning import Learned

if TYPE_CHECKING:
    from matplotlib.figure import Figure


SIGNIFICANT = 0.05


@dataclass(frozen=True, eq=False)
class BiasFindings:
    """All that the page is written from."""

    plan: BiasPlan
    learned: Learned
    segmenters: Sequence[Segmenter]
    results: BiomarkerResults
    tests: Sequence[ErrorTest]
    unit: str = "ml"
    repeated: Sequence[Segmenter] = ()
    """The same segmenter with other noise."""

    def test(self, segmenter: Segmenter, quantity: str, rater: str) -> ErrorTest:
        """Return the test of the corrected values of one segmenter against one rater."""
        wanted = (segmenter.name, quantity, "corrected", rater)
        return next(
            each
            for each in self.tests
            if (each.perturbation, each.quantity, each.method, each.reference) == wanted
        )

    @property
    def raters(self) -> list[str]:
        """The names of the raters."""
        return [name for name in self.results.references if name != TRUTH]


def page(found: BiasFindings, real: BiasFindings | None = None) -> str:
    """Return the page in Markdown; ``real`` are findings of patients at two dates."""
    plan = found.plan
    patients = len(found.results.references[TRUTH])
    made_up, option = "Everything on this page is made up", ""
    if real is not None:
        made_up = "The patients under “Real patients” are real, everything else is made up"
        option = " --data FOLDER"
    blocks = [
        "# When does dropping uncertain voxels help?",
        paragraph(
            f"{made_up}: {patients} patients before and after surgery at "
            f"{plan.spacing_mm:g} mm, four raters, and a classifier that comes with the patients "
            f"(no forest). Written by `python -m lab bias{option}`."
        ),
        paragraph(
            "Meier et al. report that the residual tumour volume (RTV) is nearer to raters 1, 2 "
            "and 4 once uncertain voxels are dropped. A corrected volume can only shrink, so that "
            "can only help a segmenter that draws too much. Here the log-probability of enhancing "
            "tumour is raised by a bias before the CRF, the same in all patients. A voxel is "
            f"uncertain where one of {plan.samples} samples disagrees (entropy of the votes over "
            f"all labels above 0), the paper's rule; {ITERATIONS} iterations, white noise, voxels "
            f"frozen below {HOLD:g}. Exact Wilcoxon signed-rank tests of the absolute errors; "
            f"Bonferroni over {len(found.raters)} raters and two quantities."
        ),
        "## Residual tumour volume",
        _verdicts(found, "rtv_ml"),
        _table(found, "rtv_ml"),
        *_other_noise(found),
        "![Absolute error of residual volume at every bias, by rater](reproduce-bias.png)",
        paragraph(
            "*As the paper's figure 6, at every bias: light the error as segmented, dark without "
            "uncertain voxels; lines join a patient's two errors.*"
        ),
        "## Extent of resection",
        _verdicts(found, "eor_frac"),
        _table(found, "eor_frac"),
        "![Absolute error of extent of resection at every bias, by rater](reproduce-bias-eor.png)",
        paragraph("*As the paper's figure 5, at every bias; drawn like the picture above.*"),
        "## The CRF learned by overlap",
        paragraph(_learning(found)),
        "![Overlap on the training scans at every step of learning](reproduce-bias-learning.png)",
        paragraph(
            "*Every evaluation of the search, among them trial steps that it takes back. It stops "
            "below the largest overlap because a penalty pulls the parameters to their start.*"
        ),
        *([] if real is None else _real(real)),
    ]
    return "\n\n".join(blocks) + "\n"


def _real(found: BiasFindings) -> list[str]:
    """Return what real patients at two dates say."""
    patients = len(found.results.references[TRUTH])
    return [
        "## Real patients",
        paragraph(
            f"{patients} patients with a glioblastoma after surgery (Brain-Tumor-Progression, "
            "TCIA), each at two dates: T1 after contrast and one expert's mask of enhancing "
            "tumour. They go as far as this: no scan is from before surgery, there is no second "
            "rater, and the voxel size is lost, so that kernels are in voxels and volumes in "
            "thousands of voxels. Each is segmented by a decision forest that was trained on the "
            "other half of the patients; the whole crop is sampled. The volume is that of the "
            "second date; rater 1 is the expert."
        ),
        _verdicts(found, "rtv_ml"),
        _table(found, "rtv_ml"),
        paragraph(_drawn_too_little(found)),
        paragraph(
            "The change between the dates, (V₁ − V₂) / V₁, in the place of the extent of resection:"
        ),
        _verdicts(found, "eor_frac"),
        _table(found, "eor_frac"),
    ]


def _drawn_too_little(found: BiasFindings) -> str:
    """Say for how many of the biases the segmenter draws too little, so that no drop can help."""
    signed = [
        typical(signed_errors(found.results, each.name, "rtv_ml", "original", TRUTH))
        for each in found.segmenters
    ]
    too_little = sum(value < 0 for value in signed)
    return (
        f"With {too_little} of {len(signed)} biases this forest draws too little in the median, "
        "and there a volume that can only shrink comes no nearer to the expert."
    )


def _verdicts(found: BiasFindings, quantity: str) -> str:
    """Say at which bias correction brings the values nearer to which raters."""
    sentences = []
    for segmenter in found.segmenters:
        groups: dict[str, list[str]] = {"nearer to": [], "farther from": []}
        for rater in found.raters:
            test = found.test(segmenter, quantity, rater)
            if test.bonferroni < SIGNIFICANT and test.median_after != test.median_before:
                closer = test.median_after < test.median_before
                groups["nearer to" if closer else "farther from"].append(rater)
        words = [f"{how} {join_words(who)}" for how, who in groups.items() if who]
        sentences.append(f"- {segmenter.name}: {', '.join(words) or 'no significant change'}")
    head = "Without uncertain voxels the values come, significantly after Bonferroni:"
    return "\n".join([head, "", *sentences])


def _table(found: BiasFindings, quantity: str) -> str:
    digits = ".2f" if quantity == "rtv_ml" else ".3f"
    rows = []
    for segmenter in found.segmenters:
        signed = signed_errors(found.results, segmenter.name, quantity, "original", TRUTH)
        cells = [segmenter.name, f"{typical(signed):+{digits}}"]
        for rater in found.raters:
            test = found.test(segmenter, quantity, rater)
            cells.append(
                f"{test.median_before:{digits}} → {test.median_after:{digits}} "
                f"({test.pvalue:.1g}, {test.bonferroni:.1g})"
            )
        rows.append(cells)
    unit = f", {found.unit}" if quantity == "rtv_ml" else ""
    heads = [f"{rater}{unit}" for rater in found.raters]
    note = paragraph(
        "Median absolute error as segmented → without uncertain voxels (p, p by Bonferroni); the "
        "second column is the median of the value minus the truth, as segmented:"
    )
    head = ["CRF, bias", f"value − truth{unit}", *heads]
    return note + "\n\n" + markdown_table(head, rows)


def _other_noise(found: BiasFindings) -> list[str]:
    """Say how far the medians without uncertain voxels move with other noise."""
    if not found.repeated:
        return []
    ranges = []
    for rater in found.raters:
        tests = [found.test(each, "rtv_ml", rater) for each in found.repeated]
        medians = [test.median_after for test in tests]
        low, high = (f"{value:.2f}" for value in (min(medians), max(medians)))
        largest = max(test.pvalue for test in tests)
        between = low if low == high else f"{low} to {high}"
        ranges.append(f"{between} {found.unit} for {rater} (p at most {largest:.1g})")
    voxel_ml = found.plan.spacing_mm**3 / 1000
    return [
        paragraph(
            f"The label maps have no noise. With {count(len(found.repeated), 'further seed')} of "
            f"the noise, at {found.repeated[0].bias_nats:+g} nats and for the same patients, the "
            f"medians without uncertain voxels are {join_words(ranges)}. One voxel has "
            f"{voxel_ml:.3f} {found.unit}."
        )
    ]


def _learning(found: BiasFindings) -> str:
    learned = found.learned
    factors = [change.weight_factor for change in learned.parameters.kernels]
    return (
        f"As in the paper, the CRF's parameters are learned by the intersection over union "
        f"(Krähenbühl & Koltun 2013), on {found.plan.training} other scans after surgery whose "
        f"classifier has no bias: the mean IoU goes from {learned.objective_before:.3f} to "
        f"{learned.objective_after:.3f}, the weights become "
        f"{join_words([f'{factor:.2f}' for factor in factors])} times those of the hand-set "
        f"kernels (spatial, bilateral), the temperature {learned.parameters.temperature:.2f}. "
        f"“{HAND_SET}” and “{LEARNED}” stand side by side in the tables above."
    )


def boxplots(
    results: BiomarkerResults, segmenters: Sequence[Segmenter], quantity: str = "rtv_ml"
) -> Figure:
    """Draw the absolute errors of every rater, one panel for each segmenter."""
    from matplotlib.patches import Patch

    raters = [name for name in results.references if name != TRUTH]
    columns = min(3, len(segmenters))
    rows = -(-len(segmenters) // columns)
    figure = new_figure(3.1 * columns, 3.2 * rows + 0.4)
    panels = np.atleast_1d(figure.subplots(rows, columns, sharey=True)).ravel()
    for axes, segmenter in zip(panels, segmenters):
        for place, rater in enumerate(raters):
            errors = [
                np.abs(signed_errors(results, segmenter.name, quantity, method, rater))
                for method in ("original", "corrected")
            ]
            for shift, values, colour in zip((-0.18, 0.18), errors, (LIGHT, DARK)):
                axes.boxplot(
                    values[~np.isnan(values)],
                    positions=[place + shift],
                    widths=0.3,
                    patch_artist=True,
                    boxprops={"facecolor": colour},
                    medianprops={"color": "black", "linewidth": 2},
                    flierprops={"marker": "."},
                )
            for before, after in zip(*errors):
                shifts = [place - 0.18, place + 0.18]
                axes.plot(shifts, [before, after], color=BLACK, alpha=0.2, linewidth=0.6)
        axes.set_xticks(range(len(raters)), [f"R{number + 1}" for number in range(len(raters))])
        axes.set_title(segmenter.name, fontsize=8)
    for axes in panels[len(segmenters) :]:
        axes.axis("off")
    for axes in panels[::columns]:
        axes.set_ylabel(f"absolute error of {NAMES[quantity]}")
    handles = [
        Patch(facecolor=LIGHT, edgecolor="black", label="as segmented"),
        Patch(facecolor=DARK, edgecolor="black", label="uncertain voxels dropped"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, fontsize=9)
    return figure


def learning_curve(learned: Learned) -> Figure:
    """Draw the overlap on the training scans at every evaluation of the search."""
    figure = new_figure(5.2, 3.2)
    axes = figure.subplots()
    values = [step.objective for step in learned.trace]
    axes.plot(range(len(values)), values, color=BLUE, marker="o", markersize=4)
    axes.set(xlabel="evaluation", ylabel="mean IoU on the training scans")
    axes.grid(visible=True, color="0.9")
    return figure
