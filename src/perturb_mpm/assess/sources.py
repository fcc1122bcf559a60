"""What is assessed, read from files: a prediction, its label maps, regions, a cohort's table."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.checks import ExpectedError
from perturb_mpm.evaluation import Prediction, from_marginals, from_posterior, from_samples
from perturb_mpm.files import (
    CaseFiles,
    Geometry,
    InputError,
    LabelScheme,
    Source,
    Volume,
    find_label_map,
    label_indices,
    read_label_map,
    read_table,
    read_volume,
    require_same_grid,
)
from perturb_mpm.measures import LesionCandidates
from perturb_mpm.posterior import MarginalKind, Posterior, Regions, decide_labels, marginal_entropy
from perturb_mpm.run import (
    FINDING_FILES,
    STATE,
    OutputError,
    Run,
    is_finding,
    load_run,
    measured_patient,
    sampled_share,
)
from perturb_mpm.storage import DAMAGE, file_digest

NETWORK = "network alone"
"""The method that every run is measured beside: the probabilities it was made from."""


def read_cohort(path: Path, truths: Path | None = None) -> list[CaseFiles]:
    """Read the columns case, prediction, truth, mask and any number that begin with rater.

    Each case needs a prediction and a truth or a rater. A folder of ``perturb-mpm cohort`` stands
    for its cases that are done and have a truth: the cohort's own, or CASE.nii.gz in the folder
    ``truths``.
    """
    if path.is_dir():
        found = cases_done(path, truths)
        known = [each for each in found if each.truth is not None]
        if not known:
            where = f" in {truths}" if truths else ""
            raise InputError(
                f"`table` {path}: must have a case that is done and has a truth, got "
                f"{len(found)} done and no truth{where}"
            )
        return known
    if truths is not None:
        raise InputError(f"`truth` must not be given for a table, which names truths: {path}")
    rows = read_table(
        Source("table", path),
        ("case", "prediction"),
        ("truth", "mask"),
        prefix="rater",
        unique="case",
    )
    cases = []
    for row in rows:
        raters = [row.path(name) for name in row.fields if name.startswith("rater")]
        case = CaseFiles(
            row.fields["case"],
            mask=row.path("mask"),
            truth=row.path("truth"),
            raters=tuple(path for path in raters if path is not None),
            prediction=row.path("prediction"),
        )
        if case.truth is None and not case.raters:
            raise row.error("must name a truth or a rater")
        cases.append(case)
    return cases


def cases_done(
    folder: Path, truths: Path | None = None, named_by: str = "table"
) -> list[CaseFiles]:
    """Return the cases of a cohort's folder that are done, by name, with a truth or without.

    Truths are the cohort's own, or CASE.nii.gz in the folder ``truths``. ``named_by`` is the
    argument that names the folder, for errors.
    """
    if truths is not None and not truths.is_dir():
        raise InputError(f"`truth` must be a folder with CASE.nii.gz of each case, got {truths}")
    source = Source(named_by, folder / "cohort.json")
    content = source.read_json()
    try:
        done = [each for each in content["records"] if each["status"] == "done"]
        found = {str(each["case"]): each["truth"] and Path(each["truth"]) for each in done}
    except (KeyError, TypeError) as error:
        raise source.error(f"must be what perturb-mpm cohort writes, got no {error}") from error
    for each in done:
        _check_case(folder / str(each["case"]), each.get("run_sha256"))
    if truths is not None:
        found = {name: find_label_map(truths, name) for name in found}
    return [
        CaseFiles(name, truth=truth, prediction=folder / name)
        for name, truth in sorted(found.items())
    ]


def _check_case(folder: Path, known: str | None) -> None:
    """Refuse a case whose folder holds another run than when the cohort's tables were written."""
    path = folder / STATE / "run.json"
    if known is None or not path.is_file():
        return  # of an earlier version; a folder without a run is refused where it is read
    if file_digest(path) != known:
        raise InputError(
            f"`table` must be a cohort with its own cases, got another run in {folder}: remove "
            "that folder and run the cohort again"
        )


@dataclass(frozen=True, eq=False)
class Segmentation:
    """A prediction with what is needed to compare it with files."""

    source: Source
    prediction: Prediction
    scheme: LabelScheme
    geometry: Geometry
    sampled_labels: NDArray[np.uint8] | None = None  # (K, X, Y, Z) label indices
    posterior: Posterior | None = None
    regions: Regions = field(default_factory=dict)  # those of a run
    inputs: tuple[Path, ...] = ()  # names of the files that a run was made from
    image: NDArray[np.float32] | None = None  # (X, Y, Z), the first of a run
    network: Prediction | None = None  # the probabilities that a run was made from
    lesions: FoundLesions | None = None  # of a run that found them one by one
    image_evidence: float | None = None  # of a run: how well its image predicts its probabilities
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class FoundLesions:
    """Where the lesions of a run may be, and how probable each is."""

    structure: str
    members: tuple[int, ...]
    candidates: LesionCandidates
    probability: NDArray[np.float64]  # (C,)


def read_segmentation(
    source: Source,
    scheme: LabelScheme | None = None,
    mask: Path | None = None,
    estimator: MarginalKind | None = None,
) -> Segmentation:
    """Read a folder of ``perturb-mpm run``, or a 4-D NIfTI file of label maps or marginals.

    Whole numbers along the fourth axis are sampled label maps, one a sample; numbers between are
    marginals, one a label. A file needs ``scheme``: label values are never guessed.
    """
    if source.path.is_dir():
        if mask is not None:
            raise InputError(f"`mask` must not be given for a run, which has its own: {source}")
        return _from_run(source, estimator)
    if scheme is None:
        raise source.error("needs `labels`: what its labels are cannot be guessed")
    volume = read_volume(source)
    if volume.voxels.ndim != 4:
        raise source.error(
            "must be a folder of perturb-mpm run, or have four axes with a label map a sample or "
            f"a marginal a label, got shape {volume.voxels.shape}"
        )
    inside = _read_mask(mask, source, volume)
    maps = np.moveaxis(volume.voxels, 3, 0)
    spacing = volume.geometry.spacing
    try:
        if _are_label_maps(maps):
            labels = np.stack([label_indices(each, scheme, source) for each in maps])
            prediction = from_samples(labels, len(scheme), spacing, inside)
            return Segmentation(source, prediction, scheme, volume.geometry, labels)
        if len(maps) != len(scheme):
            raise source.error(f"must hold {len(scheme)} marginals, one a label, got {len(maps)}")
        prediction = from_marginals(maps, spacing, inside)
    except ExpectedError:
        raise
    except (TypeError, ValueError) as error:
        raise source.error(str(error)) from error
    return Segmentation(source, prediction, scheme, volume.geometry)


def read_labels(
    source: Source, like: Segmentation, mapped: Mapping[int, int] | None = None
) -> NDArray[np.uint8]:
    """Read a label map on the grid of a segmentation, as label indices (X, Y, Z).

    Values that are ``mapped`` stand for others of the segmentation.
    """
    remedy = "; `map` says which of these another value stands for, as in 4=3"
    mask = like.prediction.grid.mask
    return read_label_map(source, like.scheme, like.geometry, like.source, remedy, mapped, mask)


def _from_run(source: Source, estimator: MarginalKind | None) -> Segmentation:
    try:
        run = load_run(source.path)
        if estimator is not None:
            prediction = from_posterior(run.posterior, estimator)
        else:  # the run's own maps and labels; its volumes are its samples'
            prediction = replace(
                from_posterior(run.posterior),
                labels=run.posterior.grid.gather(run.labels).astype(np.int64),
                marginals=run.voxel_marginals.astype(np.float32),
                entropy_bits=marginal_entropy(run.voxel_marginals),
                samples=run.posterior.samples if run.by_samples else None,
                name=run.settings.maps.marginals,
            )
    except ValueError as error:
        raise source.error(str(error)) from error
    return Segmentation(
        source,
        prediction,
        run.case.labels,
        run.case.geometry,
        run.sampled_labels,
        run.posterior,
        run.regions,
        tuple(map(Path, run.case.hashes)),
        next(iter(run.case.images.values()), None),
        _network_alone(run),
        _found_lesions(run),
        None if run.evidence is None or run.evidence.image is None else run.evidence.image.skill,
        (words,) if (words := run.describe_correction()) else (),
    )


def _found_lesions(run: Run) -> FoundLesions | None:
    """Return the lesions that a run's summary lists, None where it has none."""
    found = run.summary.get("lesions")
    if found is None:
        return None
    structure = str(found["structure"])
    patient = measured_patient(run)
    members = patient.structures[structure]
    voxel_ml, least_ml = patient.voxel_mm3 / 1000, float(found["least_ml"])
    share = sampled_share(run, members)
    candidates = LesionCandidates.from_share(share, voxel_ml, least_ml)
    probability = np.array([each["probability"] for each in found["lesions"]], dtype=np.float64)
    if len(probability) != len(candidates):
        raise ValueError(
            f"summary.json must list {len(candidates)} lesions, got {len(probability)}"
        )
    return FoundLesions(structure, members, candidates, probability)


def _network_alone(run: Run) -> Prediction:
    """Return what a run was given, with labels decided as the run decides them."""
    case = run.case
    given = from_marginals(case.probabilities, case.geometry.spacing, case.mask, NETWORK)
    labels = decide_labels(given.marginals, run.decisions)
    return replace(given, labels=labels.astype(np.int64))


def _read_mask(path: Path | None, grid: Source, volume: Volume) -> NDArray[np.bool_] | None:
    if path is None:
        return None
    source = Source("mask", path)
    mask = read_volume(source)
    if mask.voxels.ndim != 3:
        raise source.error(f"must have three axes, got shape {mask.voxels.shape}")
    require_same_grid(source, mask.geometry, grid, volume.geometry)
    if not mask.voxels.any():
        raise source.error("must hold a voxel that is not 0, got none")
    return mask.voxels != 0


def _are_label_maps(maps: NDArray[np.float32]) -> bool:
    """Whether all values are whole, and not just a one-hot distribution over the labels."""
    return bool((maps == np.floor(maps)).all()) and not bool((maps.sum(axis=0) == 1).all())


def check_measures_folder(folder: Path) -> None:
    """Refuse a folder that contains a run, or files of the names to be written that are others'."""
    every = [name for names in FINDING_FILES.values() for name in names]
    refuse_others(folder, dict.fromkeys(every, is_finding))


def refuse_others(folder: Path, own: Mapping[str, Callable[[Path], bool]]) -> None:
    """Refuse the folder of a run, and files to be replaced that fail the test of their name.

    An empty file is nobody's: a power cut may have left it.
    """
    if (folder / STATE / "run.json").is_file():
        raise OutputError(f"`output` must not be the folder of a run, got {folder}: name another")
    for name, is_own in own.items():
        if not (folder / name).exists() or not (folder / name).stat().st_size:
            continue
        try:
            known = is_own(folder / name)
        except (*DAMAGE, csv.Error):
            known = False
        if not known:
            raise OutputError(
                f"`output` must be a folder whose files may be replaced, got {folder / name}, "
                "which this command did not write: name another folder"
            )


def first_row(path: Path) -> tuple[str, ...]:
    """Return the first row of a table."""
    with path.open(encoding="utf-8", newline="") as file:
        return tuple(next(csv.reader(file), ()))
