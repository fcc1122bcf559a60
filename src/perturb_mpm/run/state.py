"""One ``Run``: a case, its settings and what is sampled, in memory and on disk.

On disk it is the folder ``state`` in the run's folder; each file appears whole or not at all, and
none is pickled. N counts the voxels inside the mask in C order, L the labels.

    run.json       written first: what the run is (inputs' SHA-256, names of images, affine, label
                   scheme, parameters, version, digest of the CRF), and under "about" its title, its
                   settings as TOML and the names of its output files relative to the run's folder
    case.npz       header (JSON text), images (C, x, y, z) float32, or int16 where these are equal,
                   cut to the box (3, 2) around what is not 0, probabilities (L, N) float32, mask
                   (X, Y, Z) bool, affine (4, 4), nifti_header (bytes), and of an ensemble
                   mutual_information (N,) float32 bits
    samples.npz    labels (K, N) uint8: the first K ≤ 40 sampled segmentations, label indices
    snapshots.npz  samples (k,) int64, entropy (k, N) float32: the map in bits after so many samples
    posterior.npz  all votes so far: ``perturb_mpm.Posterior.load`` reads it
    files.json     the names of all files of the run and its corrections, each before it is there
    lock           locked while a run writes here or a viewer shows it

A correction made in the viewer adds files of its own.

``posterior.npz`` is the last file of a checkpoint. Samples and snapshots are functions of the
sample's number alone, so that what they hold beyond it is right all the same.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from html import escape
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perturb_mpm import checks
from perturb_mpm.checks import ExpectedError, in_short
from perturb_mpm.files import (
    DICOM_FILES,
    Case,
    EnsembleMaps,
    Geometry,
    LabelScheme,
    quiet_libraries,
    region_members,
)
from perturb_mpm.model import Grid, bounding_box
from perturb_mpm.posterior import (
    CERTAIN,
    UNCERTAIN,
    Posterior,
    Regions,
    choose_regions,
    copy_json,
    decide_labels,
    marginal_entropy,
)
from perturb_mpm.run.coupling import CouplingCheck
from perturb_mpm.run.evidence import CaseEvidence
from perturb_mpm.run.model import find_exponent, map_marginals, tempered_probabilities
from perturb_mpm.run.settings import RunSettings, settings_from_text, settings_text
from perturb_mpm.storage import (
    DAMAGE,
    MISSING,
    DamagedError,
    error_text,
    largest_state,
    nested_differences,
    parse_json,
    read_arrays,
    read_json,
    write_arrays,
    write_json,
)
from perturb_mpm.version import version

STATE = "state"
STATE_FILES = ("run.json", "case.npz", "samples.npz", "snapshots.npz", "posterior.npz")
CORRECTED_SUMMARY = "summary-corrected.json"
"""What the viewer writes of a run that was corrected by hand."""
MOST_SAMPLE_MAPS = 40
"""So many samples are kept as label maps: those that the label map is compared with."""
_SHOWN_SAMPLES = 16
UNCERTAIN_SHARE = 0.05  # of the other labels together

_CASE_ARRAYS = {  # type and number of axes of what case.npz must hold
    "box": (np.int64, 2),
    "probabilities": (np.float32, 2),
    "mask": (np.bool_, 3),
    "affine": (np.float64, 2),
    "nifti_header": (np.uint8, 1),
}
FORMAT = "perturb-mpm run"
_FORMAT_VERSION = 1


class StateError(ExpectedError):
    """A folder does not hold the state of a run, or holds a damaged one."""


class DiceInterval(NamedTuple):
    """The Dice of a region of the label map with the truth: middle and both ends of 95 %."""

    median: float
    lower: float
    upper: float


@dataclass(frozen=True)
class Run:
    """A case, how it is sampled, and what is drawn so far.

    Maps are (X, Y, Z) in the order of the input; outside the mask they are label 0, for certain.
    Each is computed once.

    Examples
    --------
    >>> case = pm.read_case("t1c.nii.gz", "case.npz")
    >>> run = pm.run_case(case, pm.RunSettings().changed(samples=4), "folder", title="Patient 1")
    >>> run.labels.shape == run.entropy.shape == case.mask.shape
    True
    """

    folder: Path
    title: str
    files: Mapping[str, Path]  # plain name, as in "labels" -> file
    case: Case
    settings: RunSettings
    reading: Mapping[str, object] = field(default_factory=dict)  # how the case's files were read
    votes: Posterior | None = None  # None before the first samples
    first_samples: NDArray[np.uint8] | None = None  # (K, N) label indices of samples 0 … K − 1
    snapshots: Mapping[int, NDArray[np.float32]] = field(default_factory=dict)
    """Entropy in bits inside the mask, (N,), after so many samples."""
    coupling: CouplingCheck | None = None
    """What the kernels do to volumes, and whether they were weakened; None where there are none."""
    evidence: CaseEvidence | None = None
    """What image and grid say about the probabilities; None before they are asked."""
    corrected: NDArray[np.float64] | None = None
    """The marginals that labels set by hand lead to, (L, N); None where none were set."""
    agreement: Mapping[str, DiceInterval] = field(default_factory=dict)
    """By name of a region or label; empty before it is measured, or where noise is white."""

    @property
    def state(self) -> Path:
        """The folder of what is needed to go on."""
        return self.folder / STATE

    def _repr_html_(self) -> str:
        if self.votes is None:
            return f"<div><b>Run</b> of {escape(self.title)}: no samples yet</div>"
        from perturb_mpm.run.volumes import volume_rows

        rows = "".join(
            f"<tr><th>{escape(row.name)}</th><td>{row.volume_ml:.1f}</td>"
            + ("<td></td></tr>" if math.isnan(low) else f"<td>{low:.1f} to {high:.1f}</td></tr>")
            for row in volume_rows(self)
            if row.kind != "background"
            for low, high in (row.interval_ml,)
        )
        return (
            f"<div><b>Run</b> of {escape(self.title)}: {self.votes.samples} samples, in "
            f"{escape(str(self.folder))}<table><thead><tr><th></th><th>volume, ml</th>"
            f"<th>95 % interval, ml</th></tr></thead><tbody>{rows}</tbody></table></div>"
        )

    @property
    def posterior(self) -> Posterior:
        """All votes so far; StateError where there are none."""
        if self.votes is None:
            raise StateError(
                f"{self.folder} holds a run without samples: finish it with `resume=True` first"
            )
        return self.votes

    @cached_property
    def labels(self) -> NDArray[np.uint8]:
        """The most probable labels, or those decided by regions, indices (X, Y, Z)."""
        return self._image(decide_labels(self.voxel_marginals, self.decisions))

    @cached_property
    def decisions(self) -> Regions:
        """The regions that labels are decided by; none where the most probable label is better.

        Chosen by what the run was given, so that neither samples nor corrections change the rule.
        """
        if not self.regions:
            return {}
        return choose_regions(self.tempered, self.regions)

    @cached_property
    def regions(self) -> dict[str, tuple[int, ...]]:
        """Named sets of label indices."""
        return region_members(self.settings.regions, self.case.labels)

    @cached_property
    def marginals(self) -> NDArray[np.float32]:
        """The probability of each label, (L, X, Y, Z)."""
        background = np.eye(self.posterior.n_labels, dtype=np.float32)[0]
        return self.posterior.grid.scatter(self.voxel_marginals.astype(np.float32), background)

    @cached_property
    def entropy(self) -> NDArray[np.float32]:
        """The entropy of the marginals in bits, (X, Y, Z)."""
        return self._image(marginal_entropy(self.voxel_marginals).astype(np.float32))

    @cached_property
    def uncertainty(self) -> NDArray[np.uint8]:
        """0 certain, 1 undecided, 2 uncertain, (X, Y, Z)."""
        if self.by_samples:
            return self.posterior.uncertainty_map()
        minority = 1 - self.voxel_marginals.max(axis=0)
        classes = np.where(minority > UNCERTAIN_SHARE, UNCERTAIN, CERTAIN).astype(np.uint8)
        return self._image(classes)

    @cached_property
    def voxel_marginals(self) -> NDArray[np.float64]:
        """The probability of each label inside the mask, (L, N); certain where set by hand."""
        if self.corrected is not None:
            return self.corrected
        if self.settings.maps.marginals != "blend":
            return map_marginals(self.case, self.settings, self.posterior)
        return map_marginals(self.case, self.settings, self.posterior, self.tempered, self.exponent)

    @cached_property
    def tempered(self) -> NDArray[np.float64]:
        """The probabilities inside the mask at their temperature, before kernels, (L, N)."""
        return tempered_probabilities(self.case, self.settings)

    @cached_property
    def exponent(self) -> float:
        """The power by which a blend is softened until it is no surer than ``tempered``."""
        return find_exponent(self.settings, self.posterior, self.tempered)

    def annotated(self, **changes: Any) -> Run:  # noqa: ANN401 - any field
        """Return the run with other files or findings, which change no map: it keeps its maps."""
        other = replace(self, **changes)
        other.__dict__.update({n: v for n, v in self.__dict__.items() if n not in changes})
        return other

    def compute_maps(self) -> None:
        """Compute all maps now, so that several threads may read them."""
        _ = self.labels, self.marginals, self.entropy, self.uncertainty

    def _image(self, inside: NDArray[Any]) -> NDArray[Any]:
        """Return values inside the mask, (N,), as an image (X, Y, Z) of zeros outside."""
        return self.posterior.grid.scatter(inside, 0)

    @property
    def by_samples(self) -> bool:
        """Whether the maps are counted from samples; else they do not depend on their number."""
        return self.settings.maps.marginals == self.settings.sampling.estimator

    @cached_property
    def sampled_labels(self) -> NDArray[np.uint8]:
        """The first sampled segmentations, label indices (K, X, Y, Z), K ≤ 16."""
        grid = self.posterior.grid
        none = np.zeros((0, grid.voxels), np.uint8)
        rows = none if self.first_samples is None else self.first_samples[:_SHOWN_SAMPLES]
        return grid.scatter(rows, 0)

    @cached_property
    def entropy_after(self) -> dict[int, NDArray[np.float32]]:
        """The entropy maps (X, Y, Z) in bits after rising numbers of samples."""
        scatter = self.posterior.grid.scatter
        return {samples: scatter(bits, 0) for samples, bits in sorted(self.snapshots.items())}

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The content of summary.json, which a finished run has."""
        found: dict[str, Any] = read_json(self.files["summary"])
        own = {"problem_sha256": self.posterior.problem, "seed": self.settings.sampling.seed}
        if any(found.get(name) != value for name, value in own.items()):
            raise StateError(f"{self.files['summary']} is the summary of another run")
        return found

    def describe_correction(self) -> str | None:
        """Say that the run was corrected by hand, which none of its maps and samples knows."""
        try:
            voxels = read_json(self.folder / CORRECTED_SUMMARY)["corrected"]["edited_voxels"]
        except (FileNotFoundError, *DAMAGE):
            return None
        return (
            f"{self.folder} was corrected by hand ({voxels} voxels), which does not count here: "
            f"volumes with the correction are in {CORRECTED_SUMMARY}"
        )

    def identity(self, problem: str) -> dict[str, Any]:
        """Return what must agree before a run goes on; ``problem`` is the digest of its CRF."""
        identity = {
            "format": FORMAT,
            "format_version": _FORMAT_VERSION,
            "version": version(),
            "inputs": self.case.hashes,
            "reading": dict(self.reading),
            "mask": self.case.mask_origin,
            "images": list(self.case.images),
            "affine": self.case.geometry.affine.tolist(),
            "labels": {"values": self.case.labels.values, "names": self.case.labels.names},
            "parameters": self.settings.identity(),
            "coupling": None if self.coupling is None else self.coupling.as_json(),
            "evidence": None if self.evidence is None else self.evidence.as_json(),
            "problem": problem,
        }
        plain_values: dict[str, Any] = json.loads(json.dumps(identity, allow_nan=False))
        return plain_values

    @property
    def begun(self) -> str:
        """The day on which the run began (UTC), such as 2026-03-31.

        ``SOURCE_DATE_EPOCH``, a number of seconds, stands for the clock where it is set.
        """
        kept = self.state / "case.npz"
        said = os.environ.get("SOURCE_DATE_EPOCH", "")
        seconds = float(said) if said.isdecimal() else kept.stat().st_mtime
        return datetime.fromtimestamp(seconds, UTC).date().isoformat()

    def write_start(self, problem: str) -> None:
        """Write what the run is, and the case that it is about."""
        names = {n: file.relative_to(self.folder).as_posix() for n, file in self.files.items()}
        # A folder of this machine is no part of a run that others may open.
        settings = settings_text(self.settings.changed(kernel_cache=None))
        about = {"title": self.title, "files": names, "settings": settings}
        write_json(self.state / "run.json", {**self.identity(problem), "about": about})
        if not _is_readable(self.state / "case.npz"):
            _write_case(self.state / "case.npz", self.case)

    def write_checkpoint(self, *, last: bool = True) -> None:
        """Write what is drawn; the votes come last, so that the rest is never behind them.

        What the next checkpoint replaces is not compressed: the user waits.
        """
        posterior = self.posterior
        nothing = np.zeros((0, posterior.grid.voxels))
        rows = nothing.astype(np.uint8) if self.first_samples is None else self.first_samples
        write_arrays(self.state / "samples.npz", {"labels": rows}, compress=last)
        numbers = sorted(self.snapshots)
        maps = [self.snapshots[number] for number in numbers]
        arrays: dict[str, NDArray[Any]] = {
            "samples": np.array(numbers, dtype=np.int64),
            "entropy": np.stack(maps) if maps else nothing.astype(np.float32),
        }
        write_arrays(self.state / "snapshots.npz", arrays, compress=last)
        posterior.save(self.state / "posterior.npz", compress=last)

    def with_checkpoint(self) -> Run:
        """Return the run with what its folder holds of it, if anything; ValueError if damaged."""
        if not (self.state / "posterior.npz").is_file():
            return self
        posterior = Posterior.load(self.state / "posterior.npz")
        most = largest_state()
        rows = read_arrays(self.state / "samples.npz", ["labels"], most).get("labels", np.zeros(0))
        shown = read_arrays(self.state / "snapshots.npz", ["samples", "entropy"], most)
        inside = (posterior.grid.voxels,)
        if (
            rows.ndim != 2
            or rows.shape[1:] != inside
            or rows.dtype != np.uint8
            or rows.max(initial=0) >= posterior.n_labels
        ):
            raise ValueError(f"{self.state / 'samples.npz'} does not fit the votes beside it")
        if (
            shown["entropy"].shape[1:] != inside
            or shown["entropy"].dtype != np.float32
            or shown["samples"].dtype != np.int64
            or not np.isfinite(shown["entropy"]).all()
        ):
            raise ValueError(f"{self.state / 'snapshots.npz'} does not fit the votes beside it")
        maps = zip(shown["samples"].tolist(), shown["entropy"], strict=True)
        snapshots = {samples: bits for samples, bits in maps if samples <= posterior.samples}
        return replace(self, votes=posterior, first_samples=rows, snapshots=snapshots)

    def check_votes(self, problem: str) -> None:
        """Refuse votes that are not of this problem, these parameters and the first samples."""
        if self.votes is None:
            return
        sampling, compute = self.settings.sampling, self.settings.compute
        found = self.votes.parameters
        expected: dict[str, object] = {**sampling.describe(), "version": version()}
        expected["engine"] = compute.engine
        if compute.engine != "reference":  # which is exact whatever was asked for
            expected["accuracy"] = compute.accuracy
        expected = copy_json(expected, "parameters")
        if (
            self.votes.problem != problem
            or self.votes.estimator != sampling.estimator
            or any(found.get(name) != value for name, value in expected.items())
            or self.votes.samples > sampling.samples
            or not np.array_equal(self.votes.sample_index, np.arange(self.votes.samples))
        ):
            raise StateError(f"{self.state / 'posterior.npz'} holds the votes of another run")


def load_run(folder: str | Path) -> Run:
    """Read the run in ``folder``; ``build_crf(run.case, run.settings)`` is its CRF.

    Examples
    --------
    >>> case = pm.read_case("t1c.nii.gz", "case.npz")
    >>> run = pm.run_case(case, pm.RunSettings().changed(samples=4), "again", title="Patient 1")
    >>> pm.load_run("again").posterior.samples
    4
    """
    folder = Path(folder)
    found = read_run_json(folder / STATE)
    if found is None:
        if (folder / "cohort.json").exists():
            raise StateError(
                f"{folder} is the folder of a cohort: name that of one of its cases, or, to "
                "evaluate all of them, pass it as `table`"
            )
        raise StateError(f"{folder} holds no run of perturb-mpm: it has no {STATE}/run.json")
    try:
        about = found["about"]
        files = {name: path_inside(folder, file) for name, file in about["files"].items()}
        dicom = {name: folder / file for name, file in DICOM_FILES.items()}
        run = Run(
            folder=folder,
            title=str(about["title"]),
            files=files | {name: file for name, file in dicom.items() if file.is_file()},
            case=_read_case(folder / STATE / "case.npz"),
            settings=settings_from_text(about["settings"]).changed(kernel_cache=None),
            reading=dict(found["reading"]),
            coupling=read_coupling(found),
            evidence=read_evidence(found),
        ).with_checkpoint()
        if run.votes is not None:
            _require_fit(run.case, run.votes)
    except DAMAGE as error:
        raise StateError(f"{folder} holds a damaged run: {error_text(error)}") from error
    if run.posterior.problem != found.get("problem"):
        raise StateError(f"{run.state / 'posterior.npz'} holds the votes of another run")
    if read_run_json(folder / STATE) != found:
        raise StateError(
            f"{folder} was begun anew while it was read: wait until that run has ended"
        )
    return run


def read_coupling(found: Mapping[str, Any]) -> CouplingCheck | None:
    """Return what run.json says of the kernels."""
    coupling = found.get("coupling")
    return None if coupling is None else CouplingCheck.from_json(coupling)


def read_evidence(found: Mapping[str, Any]) -> CaseEvidence | None:
    """Return what run.json says of image and grid."""
    evidence = found.get("evidence")
    return None if evidence is None else CaseEvidence.from_json(evidence)


def read_run_json(state: Path) -> dict[str, Any] | None:
    """Return what run.json says, None where there is none."""
    try:
        found = read_json(state / "run.json")
    except FileNotFoundError:
        return None
    except DamagedError as error:
        raise StateError(str(error)) from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise StateError(f"{state / 'run.json'} is not the run.json of a perturb-mpm run")
    return found


_MOST_NAMED = 3  # an error is one line


def describe_difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return in words what two identities differ in, nothing where they are the same."""
    known = {key: before[key] for key in now if key in before}
    found = [
        f"{path} was {_short_json(one)}, is {_short_json(other)}"
        for path, one, other in nested_differences(known, now)
        if path != "problem"
    ]
    if not found and before.get("problem") != now["problem"]:
        found = ["the energies and kernels made of the inputs"]
    left = len(found) - _MOST_NAMED
    return "; ".join(found[:_MOST_NAMED] + ([f"and {left} more"] if left > 0 else []))


def _short_json(value: object) -> str:
    return "absent" if value is MISSING else in_short(json.dumps(value, ensure_ascii=False), 40)


def _write_case(path: Path, case: Case) -> None:
    """Write images, probabilities inside the mask, mask, labels and geometry."""
    words: dict[str, Any] = {
        "image_names": list(case.images),
        "label_values": case.labels.values,
        "label_names": case.labels.names,
        "mask_origin": case.mask_origin,
        "shape": case.geometry.shape,
        "spacing_mm": case.geometry.spacing,
        "hashes": case.hashes,
        "warnings": case.warnings,
    }
    if case.geometry.ending != ".nii.gz":
        words["ending"] = case.geometry.ending
    if case.labels.background is not None:
        words["label_background"] = case.labels.background
    if case.ensemble is not None:
        words["members"] = case.ensemble.count
    images, box = _pack_images(list(case.images.values()), case.geometry.shape)
    arrays: dict[str, NDArray[Any]] = {
        "header": np.array(json.dumps(words)),
        "images": images,
        "box": box,
        "probabilities": case.grid.gather(case.probabilities),  # (L, N)
        "mask": case.mask,
        "affine": case.geometry.affine,
        "nifti_header": np.frombuffer(case.geometry.header.binaryblock, dtype=np.uint8),
    }
    if case.ensemble is not None:
        information = case.grid.gather(case.ensemble.mutual_information)
        arrays["mutual_information"] = information  # (N,)
    # Compressing these takes longer than sampling a small case, and makes them little smaller.
    write_arrays(path, arrays, stored=("images", "probabilities"))


def _pack_images(
    images: Sequence[NDArray[np.float32]], shape: tuple[int, ...]
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return images (C, X, Y, Z) cut to a box (3, 2), as int16 where no bit is lost by it."""
    found = np.zeros(shape, dtype=np.bool_)
    for image in images:
        found |= np.ascontiguousarray(image).view(np.uint32) != 0  # −0 is not 0
    box = np.zeros((3, 2), dtype=np.int64)
    if found.any():
        box[:] = [(each.start, each.stop) for each in bounding_box(found)]
    cut = tuple(slice(start, stop) for start, stop in box)
    packed = np.zeros((len(images), *np.diff(box).ravel()), dtype=np.float32)
    for row, image in zip(packed, images, strict=True):
        row[...] = image[cut]
    if np.abs(packed).max(initial=0) < np.iinfo(np.int16).max:  # NaN was refused when it was read
        narrow = packed.astype(np.int16)
        if np.array_equal(narrow.astype(np.float32).view(np.uint32), packed.view(np.uint32)):
            return narrow, box
    return packed, box


def _unpack_images(
    packed: NDArray[Any], box: NDArray[np.int64], count: int, shape: tuple[int, ...]
) -> NDArray[np.float32]:
    """Return the images (C, X, Y, Z) that ``_pack_images`` made smaller."""
    if (
        box.shape != (3, 2)
        or (box < 0).any()
        or (box[:, 1] > shape).any()
        or packed.shape != (count, *np.diff(box).ravel())
        or packed.dtype not in (np.float32, np.int16)
    ):
        raise ValueError(
            f"images must be {count} that fill their box in a grid {shape}, got {packed.shape}"
        )
    images = np.zeros((len(packed), *shape), dtype=np.float32)
    images[:, *(slice(start, stop) for start, stop in box)] = packed
    return images


def _is_readable(path: Path) -> bool:
    """Whether a file of arrays is there, and not cut short as by a power cut."""
    try:
        return bool(read_arrays(path, ["header"], largest_state()))
    except DAMAGE:
        return False


def _read_case(path: Path) -> Case:
    """Read what ``_write_case`` wrote; outside the mask label 0 has the probability 1."""
    arrays = read_arrays(path, limit=largest_state())
    words = parse_json(str(arrays["header"].item()), path)
    mask = arrays["mask"]
    for name, (dtype, axes) in _CASE_ARRAYS.items():
        if arrays[name].dtype != dtype or arrays[name].ndim != axes:
            raise ValueError(f"{name} must be {dtype} with {axes} axes")
    if mask.shape != tuple(words["shape"]):
        raise ValueError(f"mask must be {tuple(words['shape'])}, got {mask.shape}")
    voxels = int(mask.sum())
    count = len(words["image_names"])
    images = _unpack_images(arrays["images"], arrays["box"], count, mask.shape)
    expected: dict[str, tuple[int, ...]] = {
        "probabilities": (len(words["label_values"]), voxels),
        "affine": (4, 4),
    }
    if "members" in words:
        expected["mutual_information"] = (voxels,)
    for name, shape in expected.items():
        if arrays[name].shape != shape:
            raise ValueError(f"{name} must be {shape}, got {arrays[name].shape}")
    checks.finite(images, "images")
    for name in ("probabilities", "affine"):
        checks.finite(arrays[name], name)
    geometry = Geometry(
        shape=mask.shape,
        affine=arrays["affine"],
        spacing=tuple(words["spacing_mm"]),
        header=_nifti_header(arrays["nifti_header"]),
        ending=words.get("ending", ".nii.gz"),
    )
    probabilities = arrays["probabilities"]  # (L, N)
    off = np.abs(probabilities.sum(axis=0) - 1).max(initial=0) > 1e-3  # as a CRF refuses them
    if off or probabilities.min(initial=0) < 0:
        raise ValueError("probabilities must be at least 0 and sum to 1 over the labels")
    outside = np.arange(len(probabilities)) == 0
    ensemble = None
    if "members" in words:
        information = arrays["mutual_information"]  # (N,)
        checks.finite(information, "mutual_information")
        ensemble = EnsembleMaps(
            int(words["members"]), _grid(geometry, mask).scatter(information, 0)
        )
    return Case(
        images=dict(zip(words["image_names"], images, strict=True)),
        probabilities=_grid(geometry, mask).scatter(probabilities, outside),
        mask=mask,
        mask_origin=words["mask_origin"],
        labels=LabelScheme(
            tuple(words["label_values"]),
            tuple(words["label_names"]),
            words.get("label_background"),
        ),
        geometry=geometry,
        hashes=words["hashes"],
        warnings=tuple(words["warnings"]),
        ensemble=ensemble,
    )


def path_inside(folder: Path, name: str) -> Path:
    """Return a file of a run's folder, by a name that does not lead out of it."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name:
        raise ValueError("its files must lie in its folder")
    return folder / path


def _require_fit(case: Case, votes: Posterior) -> None:
    if votes.grid.shape != case.mask.shape or votes.n_labels != len(case.labels):
        raise ValueError("posterior.npz does not fit case.npz beside it")
    if len(case.probabilities) != len(case.labels):
        raise ValueError("case.npz must have as many probabilities as labels")


def _grid(geometry: Geometry, mask: NDArray[np.bool_]) -> Grid:
    return Grid(geometry.shape, geometry.spacing, mask)


def _nifti_header(block: NDArray[np.uint8]) -> Any:  # noqa: ANN401
    from nibabel.nifti1 import Nifti1Header
    from nibabel.nifti2 import Nifti2Header
    from nibabel.spatialimages import HeaderDataError
    from nibabel.wrapstruct import WrapStructError

    first: Any = Nifti1Header
    second: Any = Nifti2Header
    kind = second if block.size == second.template_dtype.itemsize else first
    try:
        with quiet_libraries():
            return kind(block.tobytes())
    except (HeaderDataError, WrapStructError) as error:
        raise ValueError(f"nifti_header is damaged ({error})") from error
