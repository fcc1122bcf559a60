"""The paper's pictures of patients, computed: growing S (figure 4), raters and uncertainty (7, 8).

All patients are made up. The uncertainty of figure 4 is the entropy of the votes over all labels;
that of figures 7 and 8 is the entropy of enhancing tumour against everything else. Both in bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lab.clinical.bias import REGION, BiasPlan, Segmenter, made_up_patients
from lab.figures import LABEL_COLOURS, new_figure
from lab.patients import Patient, phantom_patient
from lab.phantoms import preoperative_cohort
from lab.words import markdown_table
from perturb_mpm.evaluation import binary_entropy_percent
from perturb_mpm.posterior import Posterior
from perturb_mpm.sampling import Sampler, Sampling

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

SNAPSHOTS = (10, 50, 100, 200)
BIAS_NATS = 2.0
"""Of the segmenter of figures 7 and 8, which draws too much: the paper's did, too."""
SOLID, DASHED = "-", (0, (2.5, 1.5))  # of boxes, white in black: seen on every colour and in grey

# Healthy is not drawn; a cavity or haemorrhage has the colour of necrosis, as in the paper.
COLOURS = ("#00000000", *LABEL_COLOURS[1:], LABEL_COLOURS[1])
LEGEND = {
    "necrosis, cavity or haemorrhage": COLOURS[1],
    "oedema": COLOURS[2],
    "non-enhancing tumour": COLOURS[3],
    "enhancing tumour": COLOURS[4],
}


@dataclass(frozen=True)
class IllustrationPlan:
    """How fine the patients are, how many are looked at, and how many samples are drawn."""

    spacing_mm: float
    candidates: int
    snapshots: tuple[int, ...]


FULL = IllustrationPlan(3.0, 19, SNAPSHOTS)
QUICK = IllustrationPlan(6.0, 5, (2, 4, 6, 8))


def sample_growth(plan: IllustrationPlan, seed: int) -> tuple[Patient, list[Posterior]]:
    """Return a patient before surgery, and the posterior of ever more of its samples."""
    scan = next(iter(preoperative_cohort(seed, spacing_mm=plan.spacing_mm)))
    patient = phantom_patient("phantom 1", scan, scan.probabilities)
    return patient, grow_samples(patient, plan.snapshots, seed)


class GrowthRow(NamedTuple):
    """What the entropy of the votes has become at a number of samples."""

    samples: int
    uncertain_ml: float
    """The volume of the voxels whose entropy is not 0."""
    mean_bits: float
    """The mean entropy of the voxels that are uncertain at the most samples."""
    change_bits: float | None
    """How far their entropy has moved since fewer samples, the mean of |ΔH|."""
    at_border: float
    """The share of all entropy that lies within a voxel of a border between labels."""


def growth_rows(patient: Patient, found: Sequence[Posterior]) -> list[GrowthRow]:
    """Measure whether the entropy saturates with the number of samples, and where it lies."""
    border = label_borders(found[-1].labels)
    uncertain = found[-1].entropy > 0
    rows = []
    before: NDArray[np.floating] | None = None
    for posterior in found:
        bits = posterior.entropy
        change = None if before is None else float(np.abs(bits - before)[uncertain].mean())
        rows.append(
            GrowthRow(
                posterior.samples,
                patient.volume_ml((bits > 0).astype(int), (1,)),
                float(bits[uncertain].mean()),
                change,
                float(bits[border].sum() / bits.sum()),
            )
        )
        before = bits
    return rows


def label_borders(labels: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Return the voxels that have another label among the 27 around them."""
    from scipy.ndimage import maximum_filter, minimum_filter

    differs: NDArray[np.bool_] = maximum_filter(labels, 3) != minimum_filter(labels, 3)
    return differs


def border_share(patient: Patient, found: Sequence[Posterior]) -> float:
    """Return the share of the brain that lies within a voxel of a border between labels."""
    return float(label_borders(found[-1].labels)[patient.case.mask].mean())


def growth_table(rows: Sequence[GrowthRow]) -> str:
    """Return the table beside figure 4."""
    head = [
        "samples",
        "entropy above 0, ml",
        "mean entropy, bits",
        "changed by, bits",
        "of it within a voxel of a border, %",
    ]
    lines = [
        [
            str(row.samples),
            f"{row.uncertain_ml:.1f}",
            f"{row.mean_bits:.3f}",
            "–" if row.change_bits is None else f"{row.change_bits:.3f}",
            f"{100 * row.at_border:.0f}",
        ]
        for row in rows
    ]
    return markdown_table(head, lines)


def draw_growth(patient: Patient, found: Sequence[Posterior]) -> Figure:
    """Draw figure 4: one patient's truth and segmentation, and the entropy of ever more samples."""
    labels = found[-1].labels
    z = int(np.isin(patient.truth, (1, 3, 4)).sum(axis=(0, 1)).argmax())
    image = _image(patient)
    figure = new_figure(11.4, 6.4)
    axes = figure.subplots(2, 3).ravel()
    view = _SliceView(image, z, _box(patient, z))
    view.overlay(axes[0], patient.truth, "truth")
    view.overlay(axes[1], labels, f"label of most votes, S = {found[-1].samples}")
    for panel, posterior in zip(axes[2:], found):
        drawn = view.heat(panel, posterior.entropy, f"S = {posterior.samples}", 2.0)
    _explain_colours(figure, drawn, "entropy of the votes, bits")
    return figure


def grow_samples(patient: Patient, sizes: Sequence[int], seed: int) -> list[Posterior]:
    """Return the posterior of the first S samples for every S: each adds to the one before."""
    sampler = Sampler(patient.crf(), Sampling(samples=sizes[-1], seed=seed, iterations=10))
    found: list[Posterior] = []
    for start, stop in pairwise([0, *sizes]):
        part = sampler.draw(range(start, stop))
        found.append(found[-1].merge(part) if found else part)
    return found


@dataclass(frozen=True, eq=False)
class SampledScan:
    """A scan after surgery, its MPM labels and the votes of its samples."""

    patient: Patient
    labels: NDArray[np.int64]  # (X, Y, Z)
    bits: NDArray[np.float64]  # (X, Y, Z): entropy of enhancing tumour against the rest

    @property
    def predicted(self) -> NDArray[np.bool_]:
        """Where enhancing tumour was segmented."""
        return np.isin(self.labels, REGION)

    @property
    def false_positive(self) -> NDArray[np.bool_]:
        """Where it was segmented and is not."""
        return self.predicted & ~np.isin(self.patient.truth, REGION)


def sample_scan(patient: Patient, samples: int, seed: int) -> SampledScan:
    """Segment and sample one scan by the segmenter that draws too much."""
    posterior, inside = Segmenter(BIAS_NATS).sample(patient, samples, seed)
    share = posterior.counts[list(REGION)].sum(axis=0) / posterior.samples
    labels = posterior.grid.scatter(inside, 0)
    return SampledScan(patient, labels, binary_entropy_percent(share) / 100)


def choose_patients(plan: IllustrationPlan, seed: int) -> tuple[Patient, Patient]:
    """Return scans after surgery: the one with most enhancing tumour left, one with none."""
    wanted = BiasPlan(plan.spacing_mm, plan.candidates, 1, (), (), 0, 0)
    scans = [each.after for each in made_up_patients(wanted, seed)]
    left = [scan.volume_ml(scan.truth, REGION) for scan in scans]
    complete = [scan for scan, volume in zip(scans, left) if volume == 0]
    return scans[int(np.argmax(left))], (complete or scans)[0]


def draw_raters(found: SampledScan) -> Figure:
    """Draw figure 7: raters, the segmentation and its uncertainty; boxes where raters differ."""
    patient = found.patient
    if patient.raters is None:
        raise ValueError("the patient must have raters")
    outlined = np.isin(patient.raters, REGION)  # (R, X, Y, Z)
    share = outlined.mean(axis=0)  # (X, Y, Z)
    differ: NDArray[np.bool_] = (share > 0) & (share < 1)
    z = int(differ.sum(axis=(0, 1)).argmax())
    view = _SliceView(_image(patient), z, _box(patient, z))
    figure = new_figure(11.4, 6.6)
    axes = figure.subplots(2, 3).ravel()
    for number, panel in enumerate(axes[:4]):
        view.overlay(panel, patient.raters[number], f"rater {number + 1}")
    view.overlay(axes[4], found.labels, "segmentation (MPM)")
    drawn = view.heat(axes[5], found.bits, "its uncertainty", 1.0)
    _explain_colours(figure, drawn, "entropy of enhancing tumour, bits")
    for panel in axes:
        view.mark(panel, differ)
    return figure


def draw_false_positives(found: SampledScan) -> Figure:
    """Draw figure 8: two slices after a complete resection, false positives by their entropy."""
    false = found.false_positive
    by_slice = false.sum(axis=(0, 1))
    first = int(by_slice.argmax())
    others = by_slice.copy()
    others[max(0, first - 1) : first + 2] = 0
    second = int(others.argmax()) if others.any() else first
    figure = new_figure(11.4, 7.0)
    for row, z in zip(figure.subplots(2, 3), (first, second)):
        view = _SliceView(_image(found.patient), z, _box(found.patient, z))
        view.plain(row[0], f"T1c, slice {z}")
        view.overlay(row[1], found.labels, "segmentation (MPM)")
        drawn = view.heat(row[2], found.bits, "its uncertainty", 1.0)
        uncertain = found.bits > 0
        for panel in row[1:]:
            for island in _islands(false[:, :, z]):
                all_uncertain = uncertain[:, :, z][island].mean() > 0.9
                view.mark_island(panel, island, SOLID if all_uncertain else DASHED)
    _explain_colours(figure, drawn, "entropy of enhancing tumour, bits")
    return figure


def _explain_colours(figure: Figure, drawn: AxesImage, words: str) -> None:
    """Add one bar of colours beside all panels, and the names of the labels below."""
    from matplotlib.patches import Patch

    figure.colorbar(drawn, ax=figure.axes, shrink=0.7, pad=0.01).set_label(words)
    handles = [Patch(facecolor=colour, label=name) for name, colour in LEGEND.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=9, frameon=False)


def uncertain_share(found: SampledScan) -> float:
    """Return the share of false positives that the entropy of enhancing tumour marks."""
    false = found.false_positive
    return float((found.bits[false] > 0).mean()) if false.any() else float("nan")


@dataclass(frozen=True, eq=False)
class _SliceView:
    """One axial slice of an image, cut to a box."""

    image: NDArray[np.float32]  # (X, Y, Z)
    z: int
    box: tuple[slice, slice]

    def plain(self, axes: Axes, title: str) -> None:
        """Show the image alone."""
        inside = self._cut(self.image)
        axes.imshow(inside.T, origin="lower", cmap="gray", interpolation="nearest")
        axes.set_title(title, fontsize=9)
        axes.set_xticks([])
        axes.set_yticks([])

    def overlay(self, axes: Axes, labels: NDArray[np.integer], title: str) -> None:
        """Show labels over the image."""
        from matplotlib.colors import ListedColormap

        self.plain(axes, title)
        shown = ListedColormap(COLOURS)
        cut = self._cut(labels).T
        look: dict[str, Any] = {"cmap": shown, "vmin": -0.5, "vmax": len(COLOURS) - 0.5}
        axes.imshow(cut, origin="lower", alpha=0.65, interpolation="nearest", **look)

    def heat(self, axes: Axes, bits: NDArray[np.floating], title: str, most: float) -> AxesImage:
        """Show an entropy over the image where it is not 0."""
        self.plain(axes, title)
        cut = np.ma.masked_equal(self._cut(bits).T, 0)
        return axes.imshow(
            cut, origin="lower", cmap="hot", vmin=0, vmax=most, interpolation="nearest"
        )

    def mark(self, axes: Axes, where: NDArray[np.bool_]) -> None:
        """Draw boxes around the two largest islands of a mask."""
        for island in _islands(where[:, :, self.z])[:2]:
            self.mark_island(axes, island, SOLID)

    def mark_island(self, axes: Axes, island: NDArray[np.bool_], line: Any) -> None:  # noqa: ANN401
        """Draw a box around an island of the slice, (X, Y)."""
        from matplotlib.patches import Rectangle

        found = np.argwhere(island) - [self.box[0].start, self.box[1].start]
        low, high = found.min(axis=0) - 1.5, found.max(axis=0) + 1.5
        size = high - low
        for colour, width, style in (("black", 3.4, SOLID), ("white", 1.8, line)):
            look: dict[str, Any] = {"edgecolor": colour, "linewidth": width, "linestyle": style}
            axes.add_patch(Rectangle(low, *size, fill=False, **look))

    def _cut(self, volume: NDArray[Any]) -> NDArray[Any]:
        return volume[self.box[0], self.box[1], self.z]


def _islands(mask: NDArray[np.bool_]) -> list[NDArray[np.bool_]]:
    """Return the connected parts of a slice, largest first."""
    from scipy.ndimage import label

    parts, count = label(mask, structure=np.ones((3, 3)))
    found = [parts == number for number in range(1, count + 1)]
    return sorted(found, key=lambda part: -int(part.sum()))


def _image(patient: Patient) -> NDArray[np.float32]:
    return next(image for name, image in patient.case.images.items() if name.lower() == "t1c")


def _box(patient: Patient, z: int, margin_mm: float = 18.0) -> tuple[slice, slice]:
    """Return the box of what is not healthy in a slice, with a margin."""
    ill = np.argwhere(patient.truth[:, :, z] > 0)
    if not len(ill):
        ill = np.argwhere(patient.case.mask[:, :, z])
    steps = [int(margin_mm / step) for step in patient.grid.spacing[:2]]
    x, y = (
        slice(max(0, int(low) - step), int(high) + 1 + step)
        for low, high, step in zip(ill.min(axis=0), ill.max(axis=0), steps)
    )
    return x, y
