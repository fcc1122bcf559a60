"""The report: one HTML file that opens from disk, needs no network and reads without scripts."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.evaluation import dice
from perturb_mpm.model import bounding_box
from perturb_mpm.posterior import UNCERTAIN, UNDECIDED
from perturb_mpm.report.answer import (
    PAPER,
    PageAnswer,
    answer,
    answer_rows,
    change_in_words,
    methods,
    row_name,
)
from perturb_mpm.report.charts import (
    changes_bits,
    convergence_curve,
    shown_snapshots,
    volume_histogram,
)
from perturb_mpm.report.colours import SHOWN_FROM_BITS
from perturb_mpm.report.data import ReportData, check_data
from perturb_mpm.report.findings import draw_findings
from perturb_mpm.report.locations import (
    UncertainLocation,
    label_centre,
    uncertain_locations,
    uncertain_voxels,
)
from perturb_mpm.report.pages import find_parameter, page_environment, parameter_rows
from perturb_mpm.report.pictures import Picture, Studio, colour_bar
from perturb_mpm.report.planes import Voxel, tilt_degrees
from perturb_mpm.report.viewer import POLICY, pack, viewer_fragment
from perturb_mpm.storage import write_text

MOST_SLICED = 3
"""How many locations are shown in slices."""

_THUMBNAIL_REACH_MM = 25.0
_CONVERGENCE_REACH_MM = 50.0
_LEAST_TILT_DEGREES = 1.0  # that is worth a sentence

Labels = NDArray[np.integer]


def write_report(path: Path, data: ReportData, *, viewer: bool = True) -> str:
    """Write the report of one patient, and return its answer; the same data, the same bytes.

    ``viewer=False`` leaves out the interactive viewer, and with it the volumes in the page.
    """
    words, page = render_report(data, viewer=viewer)
    write_text(path, page)
    return words


def render_report(data: ReportData, *, viewer: bool = True) -> tuple[str, str]:
    """Return the report's answer, and the whole page as HTML."""
    data = check_data(data)
    with ThreadPoolExecutor(1) as beside:  # compressing the volumes takes as long as the rest
        packed = beside.submit(pack, data) if viewer else None
        locations = uncertain_locations(data)
        said = answer(data, locations)
        page = _page_parts(data, locations, said)
        embedded = viewer_fragment(data, locations, packed.result()) if packed else None
    template = page_environment().get_template("report.html")
    return str(said), template.render(**page, viewer=embedded)


def _page_parts(
    data: ReportData, locations: list[UncertainLocation], said: PageAnswer
) -> dict[str, Any]:
    """Return what the page's template shows, but for the viewer."""
    rows = answer_rows(data)
    members = (tuple(map(data.label_values.index, row.values)) for row in rows)
    centres = tuple(each.centre_voxel for each in locations[:MOST_SLICED])
    studio = Studio(data, centres, tuple(members))
    uncertain, rule = uncertain_voxels(data)
    main = locations[0].centre_voxel if locations else label_centre(data)
    return {
        "data": data,
        "answer": said,
        "run_digest": run_digest(data),
        "structures": [row_name(row) for row in rows],
        "change_in_words": change_in_words,
        "studio": studio,
        "summary": _summary(data),
        "colour_bar": colour_bar(studio.scale),
        "shown_from_bits": SHOWN_FROM_BITS,
        "tilt": _tilt_words(data),
        "slices": _location_slices(studio, locations),
        "uncertain_ml": np.count_nonzero(uncertain) * math.prod(data.spacing) / 1000.0,
        "colours": {
            data.label_names[0]: "",
            **{style.name: style.colour for style in studio.styles},
        },
        "locations": [(each, _thumbnail(studio, each)) for each in locations],
        "rule": rule,
        "volumes": [
            (row, volume_histogram(row)) for row in data.volumes if row.kind != "background"
        ],
        "convergence": _convergence(studio, main),
        "findings": draw_findings(studio),
        "kernels": _kernel_changes(studio),
        "ensemble": _ensemble(studio),
        "truth": _truth(studio, main),
        "policy": POLICY,
        "parameters": list(parameter_rows(data.parameters)),
        "paper": PAPER,
        "methods": methods(data),
    }


def run_digest(data: ReportData) -> str:
    """Return what tells the run of a rating from other runs of the same case."""
    inputs = [data.title, data.samples, data.parameters, data.provenance.inputs]
    return hashlib.sha256(repr(inputs).encode()).hexdigest()[:16]


def _summary(data: ReportData) -> dict[str, Any]:
    """Return the figures of the page's head."""
    voxel_ml = math.prod(data.spacing) / 1000.0
    inside = data.uncertainty[data.mask]
    return {
        "samples": data.samples,
        "seed": find_parameter(data.parameters, "seed"),
        "uncertain_ml": float(np.count_nonzero(inside == UNCERTAIN) * voxel_ml),
        "undecided_ml": float(np.count_nonzero(inside == UNDECIDED) * voxel_ml),
    }


def _tilt_words(data: ReportData) -> str | None:
    """Return how far the image is turned from the scanner's axes, None where hardly."""
    degrees = tilt_degrees(data.affine)
    return f"{degrees:.0f}°" if degrees >= _LEAST_TILT_DEGREES else None


def _location_slices(
    studio: Studio, locations: list[UncertainLocation]
) -> list[tuple[UncertainLocation | None, list[Picture]]]:
    """Return the first locations in every plane, or the labels' middle where there is none."""
    first: list[tuple[UncertainLocation | None, Voxel]]
    first = [(each, each.centre_voxel) for each in locations[:MOST_SLICED]]
    return [
        (
            each,
            [
                studio.bare_picture(studio.planes[0], voxel),
                *(studio.location_picture(plane, voxel) for plane in studio.planes),
            ],
        )
        for each, voxel in first or [(None, label_centre(studio.data))]
    ]


def _thumbnail(studio: Studio, location: UncertainLocation) -> Picture:
    plane, voxel = studio.planes[0], location.centre_voxel
    return studio.entropy_picture(plane, voxel, sequences=1, reach_mm=_THUMBNAIL_REACH_MM)


def _convergence(studio: Studio, voxel: Voxel) -> dict[str, Any] | None:
    """Return the same slice after more and more samples, and a curve; None with one map alone."""
    snapshots = studio.data.snapshots
    if len(snapshots) < 2:
        return None

    def picture(bits: NDArray[np.float32]) -> Picture:
        return studio.entropy_picture(
            studio.planes[0], voxel, entropy=bits, sequences=1, reach_mm=_CONVERGENCE_REACH_MM
        )

    changes = changes_bits(studio.data)
    return {
        "pictures": [(each.samples, picture(each.entropy)) for each in shown_snapshots(snapshots)],
        "changes": changes,
        "curve": convergence_curve(changes),
    }


def _kernel_changes(studio: Studio) -> dict[str, Any] | None:
    """Return what kernels made of the most probable labels: volumes, and slices of the most."""
    data, before = studio.data, studio.data.before_kernels
    if before is None:
        return None
    voxel_ml = math.prod(data.spacing) / 1000.0
    changed = (before != data.labels) & data.mask  # (X, Y, Z)
    rows = [row for row in data.volumes if row.kind in ("region", "label")]
    members = [[data.label_values.index(value) for value in row.values] for row in rows]
    known = before[data.mask]
    pictures: list[Picture] = []
    if changed.any():
        box = bounding_box(changed)
        # The slice along each axis that has the most of it.
        x, y, z = (
            span.start + int(changed[box].sum(axis=tuple({0, 1, 2} - {axis})).argmax())
            for axis, span in enumerate(box)
        )
        pictures = [studio.change_picture(plane, (x, y, z), changed) for plane in studio.planes]
    return {
        "changed_ml": float(changed.sum()) * voxel_ml,
        "volumes": [
            (row, float(np.isin(known, labels).sum()) * voxel_ml)
            for row, labels in zip(rows, members, strict=True)
        ],
        "pictures": pictures,
    }


def _ensemble(studio: Studio) -> dict[str, Any] | None:
    """Return slices through where the members of an ensemble disagree most, where there are any."""
    data = studio.data
    if data.disagreement is None:
        return None
    bits = np.where(data.mask, data.disagreement, 0)  # (X, Y, Z)
    i, j, k = (int(each) for each in np.unravel_index(int(bits.argmax()), bits.shape))
    top = float(bits.max()) or 1.0
    return {
        "most_bits": float(bits.max()),
        "mean_bits": float(bits[data.mask].mean(dtype=np.float64)) if data.mask.any() else 0.0,
        "pictures": [
            studio.disagreement_picture(plane, (i, j, k), bits.astype(np.float32), top)
            for plane in studio.planes
        ],
    }


def _truth(studio: Studio, voxel: Voxel) -> dict[str, Any] | None:
    """Return errors beside entropy, where the truth is known."""
    truth = studio.data.truth
    if truth is None:
        return None
    plane = studio.planes[0]
    return {
        "entropy": studio.entropy_picture(plane, voxel),
        "errors": studio.error_picture(plane, voxel, truth),
        "agreement": compare_with_truth(studio.data, truth),
    }


@dataclass(frozen=True)
class LabelComparison:
    """One label: its true volume, and each segmentation's volume and Dice coefficient."""

    label: str
    truth_ml: float
    volume_ml: dict[str, float]
    dice: dict[str, float]


def compare_labels(
    truth: Labels,
    segmentations: Mapping[str, Labels],
    label_names: Sequence[str],
    spacing: Sequence[float],
) -> list[LabelComparison]:
    """Compare named segmentations with the truth, label by label, leaving out label 0."""
    voxel_ml = math.prod(spacing) / 1000.0
    rows = []
    for label, name in enumerate(label_names[1:], start=1):
        true_region = truth == label
        regions = {key: labels == label for key, labels in segmentations.items()}
        rows.append(
            LabelComparison(
                label=name,
                truth_ml=float(true_region.sum() * voxel_ml),
                volume_ml={key: float(region.sum() * voxel_ml) for key, region in regions.items()},
                dice={key: dice(true_region, region) for key, region in regions.items()},
            )
        )
    return rows


@dataclass(frozen=True)
class Agreement:
    """Overlap of each region and label, and what being called uncertain says about errors."""

    dice: tuple[tuple[str, float | None], ...]  # None: the label is in neither
    outside: tuple[str, ...]  # whose Dice is not in the interval that was expected
    wrong: int  # voxels inside the mask whose label is not the truth's
    wrong_ml: float
    wrong_share: float  # of the mask
    flagged_of_wrong: float | None  # share of the wrong voxels that are uncertain
    flagged_of_right: float | None
    wrong_of_flagged: float | None  # share of the uncertain voxels that are wrong
    rule: str  # which voxels were taken as uncertain


def compare_with_truth(data: ReportData, truth: NDArray[np.uint8]) -> Agreement:
    """Compare the labels and the uncertain voxels with the truth, inside the mask."""
    labels, known = data.labels[data.mask], truth[data.mask]  # (N,)
    uncertain, rule = uncertain_voxels(data)
    flagged = uncertain[data.mask]
    wrong = labels != known
    voxel_ml = math.prod(data.spacing) / 1000.0
    overlaps = tuple(
        (name, _shown_dice(np.isin(labels, members), np.isin(known, members)))
        for name, members in [
            *data.regions.items(),
            *((name, (label,)) for label, name in enumerate(data.label_names) if label > 0),
        ]
    )
    return Agreement(
        dice=overlaps,
        outside=tuple(
            name
            for name, found in overlaps
            if found is not None and not _is_expected(found, data.agreement.get(name))
        ),
        wrong=int(wrong.sum()),
        wrong_ml=float(wrong.sum()) * voxel_ml,
        wrong_share=_share(wrong) or 0.0,
        flagged_of_wrong=_share(flagged[wrong]),
        flagged_of_right=_share(flagged[~wrong]),
        wrong_of_flagged=_share(wrong[flagged]),
        rule=rule,
    )


def _is_expected(found: float, expected: tuple[float, float, float] | None) -> bool:
    return expected is None or expected[1] <= found <= expected[2]


def _shown_dice(one: NDArray[np.bool_], other: NDArray[np.bool_]) -> float | None:
    return dice(one, other) if one.any() or other.any() else None


def _share(flags: NDArray[np.bool_]) -> float | None:
    return float(flags.mean()) if len(flags) else None
