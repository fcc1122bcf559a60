"""The files of a finished run, each whole or not at all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.files import Case
from perturb_mpm.run.folder import Layout
from perturb_mpm.run.settings import RunSettings
from perturb_mpm.run.summary import Maps, parameters_in_words, perturbation_in_words
from perturb_mpm.version import version


def write_maps(layout: Layout, case: Case, maps: Maps) -> None:
    """Write the NIfTI files, with the user's label values and the geometry of the input."""
    from perturb_mpm.files import save_like

    n_labels = len(case.labels)
    files, geometry = layout.files, case.geometry
    save_like(files["labels"], case.labels.values_of(maps.labels), geometry, "label values")
    save_like(
        files["marginals"],
        np.moveaxis(maps.marginals, 0, -1),  # (X, Y, Z, L)
        geometry,
        "probability of each label",
    )
    most = f"{math.log2(n_labels):.4g}"
    save_like(files["entropy"], maps.entropy, geometry, f"entropy, bits, 0 to {most}")
    save_like(
        files["uncertainty"], maps.uncertainty, geometry, "0 certain, 1 undecided, 2 uncertain"
    )


def write_tables(layout: Layout, case: Case, maps: Maps) -> None:
    """Write the volumes of every sample."""
    from perturb_mpm.files import write_volumes

    posterior = maps.posterior
    numbers = posterior.sample_index.tolist()
    write_volumes(layout.files["volumes"], posterior.volumes, case.labels, numbers)


def write_page(
    layout: Layout,
    case: Case,
    settings: RunSettings,
    maps: Maps,
    *,
    title: str,
    truth: NDArray[np.uint8] | None,
    warnings: Sequence[str],
) -> None:
    """Write the report."""
    from perturb_mpm.report import ReportData, Snapshot, write_report

    data = ReportData(
        title=title,
        images=case.images,
        mask=case.mask,
        labels=maps.labels,
        entropy=maps.entropy,
        uncertainty=maps.uncertainty,
        marginals=maps.marginals,
        affine=case.geometry.affine,
        spacing=case.geometry.spacing,
        label_values=case.labels.values,
        label_names=case.labels.names,
        volumes_mm3=maps.posterior.volumes,
        independent_noise=not settings.sampling.has_fields,
        perturbation=perturbation_in_words(settings, case.labels),
        snapshots=tuple(Snapshot(number, bits) for number, bits in maps.snapshots.items()),
        sampled_labels=maps.sampled_labels,
        truth=truth,
        parameters={"mask": case.mask_origin, **parameters_in_words(settings)},
        warnings=tuple(warnings),
        colour_map=settings.colour_map,
    )
    write_report(layout.files["report"], data)


def write_sidecars(layout: Layout, case: Case) -> None:
    """Write what BIDS wants beside its files, where names are BIDS names."""
    if layout.bids is None:
        return
    from perturb_mpm.files import write_bids_sidecars

    names = {name: str(file.relative_to(layout.root)) for name, file in layout.files.items()}
    most = math.log2(len(case.labels))
    write_bids_sidecars(layout.root, names, case.labels, most, version())


def write_dicom_series(layout: Layout, case: Case, maps: Maps, series: Path) -> dict[str, Path]:
    """Write a DICOM SEG of the labels and a parametric map of the entropy."""
    from perturb_mpm.files import write_dicom

    return write_dicom(layout.run, series, maps.labels, maps.entropy, case.geometry, case.labels)
