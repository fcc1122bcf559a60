"""The report: one HTML file that opens from disk, needs no network and reads without scripts."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from perturb_mpm.posterior import UNCERTAIN, UNDECIDED
from perturb_mpm.report import words
from perturb_mpm.report.answer import answer
from perturb_mpm.report.colours import SHOWN_FROM_BITS
from perturb_mpm.report.data import ReportData, checked
from perturb_mpm.report.embedded import POLICY, viewer_fragment
from perturb_mpm.report.environment import page_environment
from perturb_mpm.report.pictures import Studio, colour_bar
from perturb_mpm.report.places import (
    MOST_SLICED,
    UncertainPlace,
    middle_of_labels,
    sliced,
    thumbnails,
    uncertain_places,
    uncertain_voxels,
)
from perturb_mpm.report.planes import tilt_degrees
from perturb_mpm.report.provenance import PAPER, methods
from perturb_mpm.report.truth import compare_with_truth
from perturb_mpm.report.volumes import (
    changes_bits,
    settling_curve,
    shown_snapshots,
    volume_histogram,
)
from perturb_mpm.storage import atomic_open

_SETTLING_REACH_MM = 50.0
_TILT_SAID_FROM_DEGREES = 1.0


def write_report(path: Path, data: ReportData, *, viewer: bool = True) -> str:
    """Write the report of one patient, and return its answer; the same data, the same bytes.

    ``viewer=False`` leaves out the interactive viewer, and with it the volumes in the page.
    """
    data = checked(data)
    places = uncertain_places(data)
    page = _render(data, places, viewer=viewer)
    with atomic_open(path) as file:
        file.write(page.encode())
    return str(answer(data, places))


def render_report(data: ReportData, *, viewer: bool = True) -> str:
    """Return the report as HTML."""
    data = checked(data)
    return _render(data, uncertain_places(data), viewer=viewer)


def _render(data: ReportData, places: list[UncertainPlace], *, viewer: bool) -> str:
    studio = Studio(data, tuple(place.centre_voxel for place in places[:MOST_SLICED]))
    uncertain, rule = uncertain_voxels(data)
    main = places[0].centre_voxel if places else middle_of_labels(data)
    return (
        page_environment()
        .get_template("report.html")
        .render(
            data=data,
            answer=answer(data, places),
            studio=studio,
            summary=_summary(data),
            colour_bar=colour_bar(studio.scale),
            shown_from_bits=SHOWN_FROM_BITS,
            tilt=_tilt(data),
            slices=sliced(studio, places),
            places_ml=np.count_nonzero(uncertain) * math.prod(data.spacing) / 1000.0,
            colours={
                data.label_names[0]: "",
                **{style.name: style.colour for style in studio.styles},
            },
            places=list(zip(places, thumbnails(studio, places))),
            rule=rule,
            volumes=[
                (row, volume_histogram(row)) for row in data.volumes if row.kind != "background"
            ],
            settling=_settling(studio, main),
            ensemble=_ensemble(studio),
            truth=_truth(studio, main),
            policy=POLICY,
            viewer=viewer_fragment(data) if viewer else None,
            parameters=list(words.rows_of(data.parameters)),
            paper=PAPER,
            methods=methods(
                data.provenance,
                samples=data.samples,
                perturbation=data.perturbation,
                intervals=data.intervals,
                learned_cases=data.learned_cases,
            ),
        )
    )


def _summary(data: ReportData) -> dict[str, Any]:
    """Return the figures of the page's head."""
    voxel_ml = math.prod(data.spacing) / 1000.0
    inside = data.uncertainty[data.mask]
    return {
        "samples": data.samples,
        "seed": words.find_parameter(data.parameters, "seed"),
        "uncertain_ml": float(np.count_nonzero(inside == UNCERTAIN) * voxel_ml),
        "undecided_ml": float(np.count_nonzero(inside == UNDECIDED) * voxel_ml),
    }


def _tilt(data: ReportData) -> str | None:
    """Return how far the image is turned against the scanner, None where hardly."""
    degrees = tilt_degrees(data.affine)
    return f"{degrees:.0f}°" if degrees >= _TILT_SAID_FROM_DEGREES else None


def _settling(studio: Studio, voxel: tuple[int, int, int]) -> dict[str, Any] | None:
    """Return the same slice after more and more samples, and a curve; None with one map alone."""
    snapshots = studio.data.snapshots
    if len(snapshots) < 2:
        return None
    plane = studio.planes[0]
    changes = changes_bits(studio.data)
    return {
        "pictures": [
            (
                snapshot.samples,
                studio.entropy_picture(
                    plane,
                    voxel,
                    entropy=snapshot.entropy,
                    sequences=1,
                    reach_mm=_SETTLING_REACH_MM,
                ),
            )
            for snapshot in shown_snapshots(snapshots)
        ],
        "changes": changes,
        "curve": settling_curve(changes),
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


def _truth(studio: Studio, voxel: tuple[int, int, int]) -> dict[str, Any] | None:
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
