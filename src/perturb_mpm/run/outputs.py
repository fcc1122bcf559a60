"""The files of a finished run, each whole or not at all: maps, tables, report and summary."""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.files import (
    DIAMETERS,
    Program,
    SegmentVolume,
    save_like,
    write_bids_sidecars,
    write_dicom,
    write_dicom_report,
    write_for_program,
    write_volumes,
)
from perturb_mpm.measures import MeasureRow
from perturb_mpm.noise import WHITE
from perturb_mpm.posterior import CERTAIN, UNCERTAIN, UNDECIDED, Posterior, decide_labels
from perturb_mpm.report import Findings, Provenance, ReportData, Snapshot, VolumeRow, write_report
from perturb_mpm.run.folder import Layout
from perturb_mpm.run.settings import KernelSettings, RunSettings
from perturb_mpm.run.state import DiceInterval, Run
from perturb_mpm.run.volumes import INTERVAL, volume_rows
from perturb_mpm.sampling import Sampling
from perturb_mpm.version import version

MAPS_IN_WORDS = {
    "votes": "the samples' votes",
    "conditional": "the samples' conditional probabilities",
    "mean_field": "the mean field of the unperturbed model",
    "blend": "the mean of the mean field and the probabilities at their temperature, softened "
    "where it is surer than these",
}
CLASSES = {"certain": CERTAIN, "undecided": UNDECIDED, "uncertain": UNCERTAIN}


def write_maps(run: Run) -> None:
    """Write the NIfTI files, with the user's label values and the geometry of the input."""
    files, geometry, labels = run.files, run.case.geometry, run.case.labels
    save_like(
        files["labels"], labels.to_values(run.labels, run.case.mask), geometry, "label values"
    )
    save_like(
        files["marginals"],
        np.moveaxis(_known_marginals(run), 0, -1),  # (X, Y, Z, L)
        geometry,
        "probability of each label",
    )
    most = f"{math.log2(len(labels)):.4g}"
    save_like(files["entropy"], run.entropy, geometry, f"entropy, bits, 0 to {most}")
    save_like(
        files["uncertainty"], run.uncertainty, geometry, "0 certain, 1 undecided, 2 uncertain"
    )

    if run.case.ensemble is not None:
        bits = run.case.ensemble.mutual_information * run.case.mask
        words = f"mutual information of {run.case.ensemble.count} members, bits"
        save_like(files["mutual_information"], bits, geometry, words)


def _known_marginals(run: Run) -> NDArray[np.floating]:
    """Return the marginals (L, X, Y, Z); 0 outside the mask where no label is background."""
    if run.case.labels.has_background:
        return run.marginals
    return np.where(run.case.mask, run.marginals, 0)


def write_sampled_volumes(run: Run) -> None:
    """Write the volumes of every sample."""
    posterior = run.posterior
    numbers = posterior.sample_index.tolist()
    regions = run.regions
    write_volumes(run.files["volumes"], posterior.volumes, run.case.labels, numbers, regions)


def write_sidecars(run: Run, layout: Layout) -> None:
    """Write what BIDS wants beside its files, where names are BIDS names."""
    if layout.bids is None:
        return

    names = {name: str(file.relative_to(layout.root)) for name, file in run.files.items()}
    most = math.log2(len(run.case.labels))
    write_bids_sidecars(layout.root, names, run.case.labels, most, version())


def write_dicom_files(run: Run, series: Path) -> dict[str, Path]:
    """Write a DICOM SEG of the labels and a parametric map of the entropy."""
    case = run.case
    return write_dicom(
        run.folder, series, run.labels, run.entropy, case.geometry, case.labels, case.mask
    )


def write_also(run: Run, programs: Sequence[Program]) -> None:
    """Write the labels as other programs want them, beside the outputs."""
    case = run.case
    values = case.labels.to_values(run.labels, case.mask)
    for program in programs:
        if program != "sr" and program != "extremes":  # noqa: PLR1714 - narrows the type
            write_for_program(run.folder, program, values, case.geometry, case.labels)


def write_structured_report(run: Run, series: Path, measures: Sequence[MeasureRow]) -> None:
    """Write volumes and diameters of all labels, with intervals, as a DICOM structured report."""
    rows = [row for row in volume_rows(run) if row.kind == "label"]
    diameters: dict[str, dict[str, tuple[float, float, float]]] = {row.name: {} for row in rows}
    for each in measures:
        if each.structure in diameters and each.measure in DIAMETERS:
            diameters[each.structure][each.measure] = (each.label_map, *each.interval)
    volumes = [
        SegmentVolume(number, row.name, row.volume_ml, row.interval_ml, diameters[row.name])
        for number, row in enumerate(rows, start=1)
    ]
    words = [
        f"{run.posterior.samples} samples, seed {run.settings.sampling.seed}",
        perturbation_in_words(run.settings),
        f"temperature {_temperature(run.settings)}",
        f"strength of kernels {run.settings.coupling.strength:g}",
    ]
    write_dicom_report(run.folder, series, volumes, run.settings.intervals, words)


def write_page(run: Run, warnings: Sequence[str], findings: Findings | None = None) -> str:
    """Write the report, and return the answer at its top."""
    return write_report(run.files["report"], report_data(run, warnings, findings))


def report_data(
    run: Run, warnings: Sequence[str] = (), findings: Findings | None = None
) -> ReportData:
    """Return what the report and the viewer show of a run."""
    case, settings = run.case, run.settings
    return ReportData(
        title=run.title,
        images=case.images,
        mask=case.mask,
        labels=run.labels,
        entropy=run.entropy,
        uncertainty=run.uncertainty,
        marginals=run.marginals,
        affine=case.geometry.affine,
        spacing=case.geometry.spacing,
        label_values=case.labels.values,
        label_names=case.labels.names,
        samples=run.posterior.samples,
        volumes=volume_rows(run),
        regions=run.regions,
        members=0 if case.ensemble is None else case.ensemble.count,
        disagreement=None if case.ensemble is None else case.ensemble.mutual_information,
        intervals=settings.intervals,
        evidence=evidence_in_words(run),
        before_kernels=_labels_before_kernels(run),
        agreement=run.agreement,
        learned_cases=settings.basis.learned_cases,
        by_samples=run.by_samples,
        perturbation=perturbation_in_words(settings),
        snapshots=tuple(Snapshot(number, bits) for number, bits in run.entropy_after.items()),
        sampled_labels=run.sampled_labels,
        truth=case.truth,
        parameters={
            "mask": case.mask_origin,
            **parameters_in_words(settings),
            **_describe_weakening(run),
        },
        warnings=tuple(warnings),
        findings=findings,
        colour_map=settings.report.colour_map,
        oriented=case.geometry.has_orientation,
        provenance=Provenance(
            version=version(),
            date=run.begun,
            inputs=case.hashes,
            kernels=_kernels_in_words(settings),
            convergence=convergence_in_words(run.posterior),
            maps=MAPS_IN_WORDS[settings.maps.marginals],
            software={
                name: text
                for name, text in _versions(run.posterior.parameters).items()
                if name not in ("perturb-mpm", "engine")
            },
        ),
    )


def evidence_in_words(run: Run) -> str:
    """Return whether the image predicts the probabilities, and what follows for the kernels."""
    if run.evidence is None:
        return ""
    image, strength = run.evidence.image, run.settings.coupling.strength
    if image is None:
        return "No foreground is predicted: the image has nothing to say about it."
    share = f"{100 * max(image.skill, 0.0):.0f} %"
    words = f"Voxels that look alike predict {share} of what the probabilities say"
    decided = run.coupling.asked_strength if run.coupling else strength
    weakened = f", weakened to {strength:.2g}" if strength != decided else ""
    if decided != run.evidence.strength:
        return f"{words}; the strength of the CRF, {decided:g}, was given{weakened}."
    if not decided:
        return f"{words}, too little for the CRF to help: it is off."
    if not strength:
        return f"{words}, but the CRF moved volumes too far: it is off."
    return f"{words}: the CRF is on{weakened}."


def _labels_before_kernels(run: Run) -> NDArray[np.uint8] | None:
    """Return the labels of the probabilities at their temperature, where kernels act."""
    if not run.settings.has_kernels or run.evidence is None:
        return None
    before = decide_labels(run.tempered, run.decisions)
    return run.posterior.grid.scatter(before, 0)


def summarize_run(run: Run) -> dict[str, Any]:
    """Return all but the files, the warnings and the timings, as values that JSON can hold."""
    case, settings, posterior = run.case, run.settings, run.posterior
    inside, rows = MapsInside(run), volume_rows(run)
    everywhere = np.ones(posterior.grid.voxels, dtype=np.bool_)
    found = None if run.evidence is None else run.evidence.image
    return {
        "title": run.title,
        "samples": posterior.samples,
        "seed": settings.sampling.seed,
        "estimator": settings.sampling.estimator,
        "marginals": settings.maps.marginals,
        "perturbation": perturbation_in_words(settings),
        "volumes_reflect_voxel_noise_alone": not settings.sampling.correlated,
        "intervals": {
            "rest_on": settings.intervals,
            "learned_cases": settings.basis.learned_cases,
            "note": settings.basis.note or None,
        },
        "ensemble": _ensemble(run),
        "labels_decided_by": "regions" if run.decisions else "most probable label",
        "image_evidence": None if found is None else found.skill,
        "temperature": settings.unary.temperature,
        "evidence": None if run.evidence is None else run.evidence.as_json(),
        "coupling": None if run.coupling is None else run.coupling.as_json(),
        "regions": [_volumes(run, row, inside) for row in rows if row.kind == "region"],
        "labels": [
            _volumes(run, row, inside) for row in rows if row.kind in ("label", "background")
        ],
        "entropy": {
            "mean_bits": inside.mean_bits(everywhere),
            "mean_bits_corrected": (
                posterior.mean_entropy() if run.by_samples else inside.mean_bits(everywhere)
            ),
            "largest_bits": float(inside.entropy.max()),
            "largest_possible_bits": math.log2(posterior.n_labels),
        },
        "uncertainty": {
            "threshold": 0.05,
            "confidence": 0.95,
            **inside.shares(everywhere),
        },
        "largest_label_change_frac": _largest_change(run),
        "hold": posterior.parameters.get("hold"),
        "mask": {
            "origin": case.mask_origin,
            "voxels": posterior.grid.voxels,
            "volume_ml": posterior.grid.voxels * _voxel_ml(run),
        },
        "image": {
            "names": list(case.images),
            "shape": case.geometry.shape,
            "spacing_mm": case.geometry.spacing,
            "affine_mm": case.geometry.affine.tolist(),
        },
        "parameters": settings.identity(),
        "reading": dict(run.reading),
        "inputs_sha256": case.hashes,
        "problem_sha256": posterior.problem,
        "versions": _versions(posterior.parameters),
    }


@dataclass(frozen=True)
class MapsInside:
    """The maps of a run inside the mask, (N,) each: a brain is a small part of its volume.

    Examples
    --------
    >>> from perturb_mpm.run import MapsInside
    >>> case = pm.read_case("t1c.nii.gz", "case.npz")
    >>> run = pm.run_case(case, pm.RunSettings().changed(samples=4), "inside", title="Patient 1")
    >>> found = MapsInside(run)
    >>> found.labels.shape == found.entropy.shape == (run.posterior.grid.voxels,)
    True
    """

    run: Run

    @cached_property
    def labels(self) -> NDArray[np.uint8]:
        """Label indices."""
        return self.run.posterior.grid.gather(self.run.labels)

    @cached_property
    def entropy(self) -> NDArray[np.float32]:
        """Of the marginals, bits."""
        return self.run.posterior.grid.gather(self.run.entropy)

    @cached_property
    def uncertainty(self) -> NDArray[np.uint8]:
        """0 certain, 1 undecided, 2 uncertain."""
        return self.run.posterior.grid.gather(self.run.uncertainty)

    @cached_property
    def marginals(self) -> NDArray[np.float32]:
        """The probability of each label, (L, N)."""
        return self.run.posterior.grid.gather(self.run.marginals)

    def having(self, members: Sequence[int]) -> NDArray[np.bool_]:
        """Return which voxels have one of some labels, (N,)."""
        return np.isin(self.labels, members)

    def mean_bits(self, where: NDArray[np.bool_]) -> float:
        """Return the mean entropy of some voxels (N,)."""
        return float(self.entropy[where].mean(dtype=np.float64))

    def shares(self, where: NDArray[np.bool_]) -> dict[str, float]:
        """Return which share of some voxels (N,) is certain, undecided, uncertain."""
        found = self.uncertainty[where]
        return {f"{word}_frac": float((found == each).mean()) for word, each in CLASSES.items()}


def _volumes(run: Run, row: VolumeRow, inside: MapsInside) -> dict[str, Any]:
    """Return one row, with the uncertainty of its voxels; volumes are inside the mask."""
    values = run.case.labels.values
    here = inside.having([values.index(value) for value in row.values])
    found = bool(here.any())
    return {
        **({"values": row.values} if row.kind == "region" else {"value": row.values[0]}),
        "name": row.name,
        "volume_ml": row.volume_ml,
        "sampled_mean_ml": row.mean_ml,
        "sampled_sd_ml": row.sd_ml,
        "interval_level": INTERVAL,
        "interval_lower_ml": row.interval_ml[0],
        "interval_upper_ml": row.interval_ml[1],
        **_dice_keys(run.agreement.get(row.name)),
        "mean_entropy_bits": inside.mean_bits(here) if found else None,
        **(inside.shares(here) if found else dict.fromkeys(f"{word}_frac" for word in CLASSES)),
    }


def _dice_keys(found: DiceInterval | None) -> dict[str, float | None]:
    """Return the Dice that the truth would give; None where it was not measured."""
    values = (None, None, None) if found is None else found
    return dict(zip(("dice_median", "dice_lower", "dice_upper"), values, strict=True))


def _ensemble(run: Run) -> dict[str, Any] | None:
    found = run.case.ensemble
    if found is None:
        return None
    inside = found.mutual_information[run.case.mask]
    return {
        "members": found.count,
        "samples_from": run.settings.unary.members,
        "mean_mutual_information_bits": float(inside.mean(dtype=np.float64)),
        "largest_mutual_information_bits": float(inside.max()),
    }


def _largest_change(run: Run) -> float | None:
    changes = run.posterior.label_changes
    return None if changes is None else float(changes.max())


def convergence_in_words(posterior: Posterior) -> str:
    """Return how far the samples converged, and what was frozen while they did."""
    words = ""
    if posterior.label_changes is not None:
        share = 100 * float(posterior.label_changes.max())
        words = f"The last iteration changed the label of {share:.2g} % of the voxels at most."
    if posterior.active_share < 1:
        words += (
            f" Each sample updated {100 * posterior.active_share:.2g} % of the voxels; the others "
            "hardly ever change their label and were frozen at their averages, which moves a "
            f"message by {posterior.hold_bound_nats:.2g} nats at most."
        )
    return words.strip()


def _voxel_ml(run: Run) -> float:
    return math.prod(run.case.geometry.spacing) / 1000


def _versions(parameters: Mapping[str, Any]) -> dict[str, str]:
    return {
        "perturb-mpm": version(),
        "engine": f"{parameters['engine']}, {parameters['accuracy']}",
        "python": platform.python_version(),
        "numpy": installed("numpy"),
        "numba": installed("numba"),
        "nibabel": installed("nibabel"),
    }


def perturbation_in_words(settings: RunSettings) -> str:
    """Return which perturbation the samples come from."""
    lengths = settings.sampling.lengths
    if lengths != WHITE:
        parts = [f"{_length(length)} ({100 * weight:.0f} %)" for length, weight in lengths]
        words = " and ".join(parts) if len(parts) > 1 else _length(lengths[0][0])
        return f"Gumbel noise correlated over {words}"
    return "Gumbel noise, independent at every voxel"


def _length(length_mm: float) -> str:
    return "the whole image" if math.isinf(length_mm) else f"{length_mm:g} mm"


def _describe_weakening(run: Run) -> dict[str, object]:
    check = run.coupling
    if check is None or check.used_strength == check.asked_strength:
        return {}
    asked = f"{check.used_strength:g}, lowered from the {check.asked_strength:g} asked for"
    return {"strength of the kernels": asked}


def parameters_in_words(settings: RunSettings) -> dict[str, object]:
    """Return the parameters as a reader of the report wants them, with their units."""
    rows: dict[str, object] = {
        "seed": settings.sampling.seed,
        "mean-field iterations": _iterations(settings.sampling),
        "estimator": settings.sampling.estimator,
        "labels and maps from": settings.maps.marginals.replace("_", " "),
        "temperature": _temperature(settings),
        "smallest probability": settings.unary.clip,
    }
    if settings.basis.note:
        rows["what the settings rest on"] = settings.basis.note
    if settings.sampling.until is not None:
        rows["sampled until frequencies are within"] = f"±{settings.sampling.until.epsilon:g}"
    if settings.unary.bias is not None:
        rows["bias (nats)"] = _join_numbers(settings.unary.bias)
    if settings.coupling.strength != 1:
        rows["strength of the kernels"] = settings.coupling.strength
    if settings.coupling.centring > 0:
        rows["centring of the kernels"] = settings.coupling.centring
    for kernel in settings.kernels:
        rows[f"{kernel.kind} kernel"] = _kernel(kernel)
    rows["engine"] = f"{settings.compute.engine}, {settings.compute.accuracy}"
    return rows


def _temperature(settings: RunSettings) -> str:
    unary = settings.unary
    words = f"{unary.temperature:g}"
    sampled = unary.sampling_temperature
    if sampled is None or sampled == unary.temperature:
        return words
    return f"{words} for labels and maps, {sampled:g} for samples"


def _iterations(sampling: Sampling) -> str:
    if sampling.tolerance == 0:
        return str(sampling.iterations)
    share = f"{100 * sampling.tolerance:.2g} % of a sample's labels"
    return f"until about {share} would still change, {sampling.iterations} at most"


def _kernel(kernel: KernelSettings) -> str:
    words = f"{_join_numbers(kernel.sigma_space)} mm"
    if kernel.sigma_intensity_sd is not None:
        words += f", {_join_numbers(kernel.sigma_intensity_sd)} sd of intensity"
    own = ", own compatibility" if kernel.compatibility is not None else ""
    return f"{words}, weight {kernel.weight:g}{own}"


def _kernels_in_words(settings: RunSettings) -> str:
    if not settings.has_kernels:
        return "no kernels"
    each = [f"a {kernel.kind} kernel ({_kernel(kernel)})" for kernel in settings.kernels]
    words = " and ".join(each)
    if settings.coupling.strength != 1:
        words += f", all weights times {settings.coupling.strength:g}"
    return (
        f"{words}, centred by {settings.coupling.centring:g}"
        if settings.coupling.centring
        else words
    )


def _join_numbers(numbers: float | tuple[float, ...]) -> str:
    each = numbers if isinstance(numbers, tuple) else (numbers,)
    return ", ".join(f"{number:g}" for number in each)
