"""A run's maps and samples with some voxels set by a person, and the files of such a correction.

The mean field follows at once, then the run's samples, wherever the labels set move them by kernels
(``perturb_mpm.sampling.Editor``) or by what they say about the noise (``conditioning``). Voxels
that are not moved keep what the run gave them, to the last bit. The result depends on the run and
the edits, not on the order of these.

The files lie beside the run's own and are one set, which is current as a whole or not. A set is
first written under other names, into the run's state folder. Then its manifest,
``state/correction.json``, which names the files and their digests, replaces the one before in a
single step: that makes the new set current. Only then do its files take their visible names.
A process that is killed before that step leaves the old set, one that is killed after it the new
set. ``recover`` removes or finishes what it left behind, whenever the run is opened.
"""

from __future__ import annotations

import io
import json
import math
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm import checks
from perturb_mpm.checks import ExpectedError, in_short
from perturb_mpm.engines import FRACTION_BITS, FREE, LEAST_MARGINAL, softmax
from perturb_mpm.files import Geometry, LabelScheme, save_like
from perturb_mpm.model import Grid
from perturb_mpm.posterior import Posterior, Regions, decide_labels, marginal_entropy
from perturb_mpm.progress import Progress
from perturb_mpm.run import (
    CORRECTED_SUMMARY,
    STATE,
    OutputError,
    Run,
    assumed_length_mm,
    build_crf,
    map_marginals,
    register_files,
    summarize_run,
    volume_rows,
    volume_sets,
    write_page,
)
from perturb_mpm.sampling import Edit, EditedVotes, Editor, Sampler, sample_edited
from perturb_mpm.storage import (
    DAMAGE,
    DamagedError,
    error_text,
    file_digest,
    largest_state,
    read_arrays,
    read_json,
    write_arrays,
    write_json,
    write_text,
)
from perturb_mpm.view.conditioning import NoiseShift, PaintedNoise

Edits = Mapping[int, int]
"""The label of each edited voxel, by its C-order index in the whole image."""

# Differences of marginals below this are rounding.
_NOTHING = 1e-9
_LEAST_SHARE = 1e-12


class CorrectionError(ExpectedError):
    """A run cannot be corrected."""


@dataclass(frozen=True)
class Correction:
    """The marginals of the voxels that edits have set or moved; all others are the run's own."""

    index: NDArray[np.int64]  # (M,) C-order indices in the whole image, increasing
    marginals: NDArray[np.float64]  # (L, M)

    def decide(self, regions: Regions | None = None) -> NDArray[np.uint8]:
        """Return the labels of these voxels, (M,), decided as the run does."""
        return decide_labels(self.marginals, regions)

    def labels(self, own: NDArray[np.uint8], regions: Regions | None = None) -> NDArray[np.uint8]:
        """Return the corrected labels (*spatial) from the run's own."""
        labels = own.copy()
        labels.flat[self.index] = self.decide(regions)
        return labels

    def entropy(self, own: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the corrected entropy in bits (*spatial) from the run's own."""
        entropy = own.copy()
        entropy.flat[self.index] = marginal_entropy(self.marginals)
        return entropy


def no_correction(n_labels: int) -> Correction:
    """Return a correction that leaves everything as it is."""
    return Correction(np.empty(0, dtype=np.int64), np.empty((n_labels, 0)))


@dataclass(frozen=True, eq=False)
class Preview:
    """Edits, and what mean field and noise make of them before any sample is solved."""

    edits: Edits
    edit: Edit
    marginals: NDArray[np.float64]  # (L, N)
    correction: Correction


class Corrector:
    """Answers edits of a run; making it prepares the engine.

    Neighbours follow the labels set by hand in two ways: through the kernels, where the image's
    evidence lets any act, and through the noise of the samples (``PaintedNoise``).
    ``draw_samples`` may take as long as the run did; ``preview`` works meanwhile.
    """

    def __init__(self, run: Run) -> None:
        settings, posterior = run.settings, run.posterior
        if settings.unary.members == "cycle":
            raise CorrectionError(
                'a run with `members="cycle"` cannot be corrected: it does not keep its members'
            )
        self._run = run
        # Only these engines answer edits; where the run used the same, its samples come again.
        engine = settings.compute.engine if settings.compute.engine == "reference" else "cpu"
        self._compute = replace(settings.compute, engine=engine)
        self._sampling = replace(settings.sampling, samples=posterior.samples, until=None)
        self._crf = build_crf(run.case, settings)
        self._mean_field = posterior.voxel_marginals("mean_field")
        self._own = run.voxel_marginals  # (L, N)
        sampler = Sampler(self._crf, self._sampling, self._compute)
        self._editor = Editor(sampler, self._mean_field)
        self._votes: EditedVotes | None = None

    @property
    def moves_samples(self) -> bool:
        """Whether an edit moves the samples drawn before; else it draws all of them again."""
        return self._sampling.estimator == "votes"

    def draw_samples(self, progress: Progress) -> None:
        """Draw the run's samples once more, and store their solutions for edits to start from."""
        if self.moves_samples:
            self._editor.keep(progress=progress)

    def preview(self, edits: Edits) -> Preview:
        """Return the mean field with the edits, and what it and the noise make of the maps."""
        index = self._crf.grid.index
        given = np.full(len(index), FREE, dtype=np.int16)
        rows, labels = _inside(edits, index)
        given[rows] = labels
        edit = self._editor.edit(given)
        # Kernels move the log-odds of every kind of map as they move those of the mean field.
        # Edits are solved from log-odds that end at LEAST_MARGINAL: smaller shares are equal.
        by_kernels = _log(edit.marginals, LEAST_MARGINAL)
        by_kernels -= _log(self._mean_field[:, edit.voxels], LEAST_MARGINAL)
        by_kernels[:, given[edit.voxels] != FREE] = 0  # the noise is asked about what was there
        scores = _log(self._own, self._least_share)
        scores[:, edit.voxels] += by_kernels
        marginals = self._own.copy()
        marginals[:, edit.voxels] = softmax(scores[:, edit.voxels], axis=0)
        self._follow_noise(marginals, scores, given)
        return self._answer(edits, edit, marginals)

    def solve(
        self, preview: Preview, progress: Progress, show: Callable[[Correction], None]
    ) -> tuple[Run, Correction]:
        """Return the corrected run, and its maps; ``show`` gets those of the samples so far."""
        run, edits, edit = self._run, preview.edits, preview.edit
        kind = run.settings.maps.marginals
        if not self.moves_samples:
            posterior = sample_edited(
                self._crf, edit.given, self._sampling, self._compute, progress=progress
            )
            first, answer = run.first_samples, preview
            if kind != "mean_field":
                # Softened as before, or an edit would move voxels that it does not reach.
                marginals = map_marginals(
                    run.case, run.settings, posterior, run.tempered, run.exponent
                )
                self._follow_noise(marginals, _log(marginals), edit.given)
                answer = self._answer(edits, edit, marginals)
        else:
            votes = None
            for votes in self._editor.votes(edit, self._shift(edit.given)):
                progress(votes.samples, self._sampling.samples)
                if kind == "votes":
                    show(self._interim(votes, edits, edit))
            assert votes is not None  # noqa: S101 - a run has samples
            self._votes = votes
            posterior = self._editor.posterior(edit, votes)
            first, answer = _moved_samples(run.first_samples, votes), preview
            if kind == "votes":
                answer = self._answer(edits, edit, posterior.voxel_marginals(kind).copy())
        return corrected_run(run, posterior, first, answer), answer.correction

    def sampled_labels(self) -> tuple[NDArray[np.int64], NDArray[np.uint8]] | None:
        """Return where samples differ, (V,) in the mask, and their labels there, (S, V).

        They are those of the last edits. None where samples are not stored.
        """
        return self._editor.sampled_labels(self._votes) if self.moves_samples else None

    def forget_edits(self) -> None:
        """Let ``sampled_labels`` be the run's own again."""
        self._votes = None

    @property
    def _least_share(self) -> float:
        """What a share of 0 is taken for: votes are not sure of more than they were cast."""
        by_votes = self._run.settings.maps.marginals == "votes"
        return 0.5 / self._run.posterior.samples if by_votes else _LEAST_SHARE

    def _painted_noise(
        self, scores: NDArray[np.float64], given: NDArray[np.int16]
    ) -> PaintedNoise | None:
        """Return the noise given the edits; None where it is white, or nothing is set."""
        if not self._sampling.correlated or (given == FREE).all():
            return None
        # One draw for the whole image says nothing about how far to go: the structure's size does.
        lengths = tuple(
            (assumed_length_mm(self._run.case) if math.isinf(length) else length, weight)
            for length, weight in self._sampling.lengths
        )
        return PaintedNoise(scores, given, self._crf.grid, lengths, self._sampling.seed)

    def _follow_noise(
        self,
        marginals: NDArray[np.float64],
        scores: NDArray[np.float64],
        given: NDArray[np.int16],
    ) -> None:
        """Let marginals (L, N) with these scores follow what edits say about the noise."""
        noise = self._painted_noise(scores, given)
        if noise is not None:
            influence = noise.influence()
            marginals[:, influence.voxels] = influence.apply(scores[:, influence.voxels])

    def _shift(self, given: NDArray[np.int16]) -> NoiseShift | None:
        """Return how edits move the noise of the samples."""
        scores = _log(self._mean_field)
        noise = self._painted_noise(scores, given)
        if noise is None:
            return None
        return NoiseShift(noise, scores, self._crf.grid, self._sampling.perturbation)

    def _interim(self, votes: EditedVotes, edits: Edits, edit: Edit) -> Correction:
        """Return the correction by the samples solved so far."""
        marginals = self._own.copy()
        shares = np.maximum(self._own[:, votes.voxels] + votes.changes / votes.samples, 0.0)
        marginals[:, votes.voxels] = shares / shares.sum(axis=0)
        return self._answer(edits, edit, marginals).correction

    def _answer(self, edits: Edits, edit: Edit, marginals: NDArray[np.float64]) -> Preview:
        """Return marginals (L, N), certain where labels are set, and where they differ."""
        edited = np.flatnonzero(edit.given != FREE)
        certain = np.arange(len(marginals))[:, np.newaxis] == edit.given[edited]
        marginals[:, edited] = certain
        differs = np.abs(marginals - self._own).max(axis=0) > _NOTHING
        differs[edited] = True
        outside, labels = _outside(edits, self._crf.grid.index)
        own = np.arange(self._crf.n_labels)[:, np.newaxis] == labels  # the CRF knows nothing of it
        index = np.concatenate([self._crf.grid.index[differs], outside])
        order = np.argsort(index)
        moved = np.concatenate([marginals[:, differs], own], axis=1)
        return Preview(edits, edit, marginals, Correction(index[order], moved[:, order]))


def corrected_run(
    run: Run, posterior: Posterior, first_samples: NDArray[np.uint8] | None, answer: Preview
) -> Run:
    """Return the run with another posterior; voxels set outside its mask become part of it."""
    index, labels = _outside(answer.edits, posterior.grid.index)
    case, marginals = run.case, answer.marginals
    if len(index):
        mask = case.mask.copy()
        mask.flat[index] = True
        case = replace(case, mask=mask)
        grid = Grid(case.geometry.shape, case.geometry.spacing, mask)
        extend = _Extension(grid, posterior.grid.index, index)
        certain = np.arange(posterior.n_labels)[:, np.newaxis] == labels  # (L, M)
        marginals, first_samples = extend(marginals, certain), extend(first_samples, labels)
        posterior = _extend_posterior(posterior, extend, certain)
    return replace(
        run,
        case=case,
        votes=posterior,
        first_samples=first_samples,
        snapshots={},
        corrected=marginals,
    )


@dataclass(frozen=True, eq=False)
class _Extension:
    """Puts arrays (…, N) on a larger grid; ``old`` and ``added`` are indices in the whole image."""

    grid: Grid
    old: NDArray[np.int64]  # (N,)
    added: NDArray[np.int64]  # (M,)

    def __call__(self, values: Any, beside: NDArray[Any]) -> Any:  # noqa: ANN401 - None stays None
        if values is None:
            return None
        out = np.empty((*values.shape[:-1], self.grid.voxels), dtype=values.dtype)
        for index, part in ((self.old, values), (self.added, beside)):
            out[..., np.searchsorted(self.grid.index, index)] = part
        return out


def _extend_posterior(
    posterior: Posterior, extend: _Extension, certain: NDArray[np.bool_]
) -> Posterior:
    """Return a posterior on a larger grid, where added voxels have one label, (L, M), for sure."""
    samples, voxel_mm3 = posterior.samples, float(np.prod(extend.grid.spacing))
    return Posterior(
        grid=extend.grid,
        counts=extend(posterior.voxel_counts, certain * samples),
        sample_index=posterior.sample_index,
        volumes=posterior.volumes + voxel_mm3 * certain.sum(axis=1),
        problem=posterior.problem,
        parameters=posterior.parameters,
        estimator=posterior.estimator,
        conditional=extend(posterior.voxel_conditional, certain * (samples << FRACTION_BITS)),
        mean_field=extend(posterior.voxel_mean_field, certain),
        label_changes=posterior.label_changes,
    )


def _moved_samples(first: NDArray[np.uint8] | None, votes: EditedVotes) -> NDArray[np.uint8] | None:
    """Return the first segmentations (K, N) with the labels they have after the edit."""
    if first is None:
        return None
    moved = first.copy()
    count = min(len(moved), len(votes.labels))
    moved[:count, votes.voxels] = votes.labels[:count]
    return moved


def _log(shares: NDArray[np.floating], least: float = _LEAST_SHARE) -> NDArray[np.float64]:
    return np.log(np.maximum(shares, least, dtype=np.float64))


def _inside(edits: Edits, index: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the positions in ``index`` of the edits that are there, and their labels."""
    voxels = np.array(list(edits), dtype=np.int64)
    labels = np.array(list(edits.values()), dtype=np.int64)
    rows = np.minimum(np.searchsorted(index, voxels), len(index) - 1)
    there = index[rows] == voxels
    return rows[there], labels[there]


def _outside(edits: Edits, index: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the voxels of the image that were set and are not in ``index``, and their labels."""
    voxels = np.setdiff1d(np.array(list(edits), dtype=np.int64), index)
    return voxels, np.array([edits[voxel] for voxel in voxels.tolist()], dtype=np.int64)


LABELS = "labels-corrected.nii.gz"
ENTROPY = "entropy-corrected.nii.gz"
REPORT = "report-corrected.html"
EDITS = "edits.json"
MARGINALS = f"{STATE}/correction.npz"
FILES = (LABELS, ENTROPY, REPORT, CORRECTED_SUMMARY, EDITS, MARGINALS)
MANIFEST = "correction.json"  # in the state folder
DRAFT = "draft.json"  # in the state folder: strokes that no update has taken in
FORMAT = 1
ABOUT = "Voxels set by hand: their indices from 0 and their labels as in labels.nii.gz."
_STAGED = "new-"  # how names begin until a set is current


Interval = Sequence[float] | None
"""Both ends of 95 %, ml; None where it is not known."""


@dataclass(frozen=True)
class VolumeChange:
    """What a correction does to the volume of a region or a label, as the maps show it."""

    name: str
    before_ml: float
    after_ml: float
    before_interval_ml: Interval = None
    after_interval_ml: Interval = None


def volume_changes(
    run: Run, correction: Correction, corrected: Run | None = None
) -> list[VolumeChange]:
    """Return a row for each region and label but the background.

    The interval after the correction is that of the corrected run's samples.
    """
    labels, voxel_ml = run.case.labels, math.prod(run.case.geometry.spacing) / 1000
    before, after = (
        np.bincount(each, minlength=len(labels))
        for each in (run.labels.flat[correction.index], correction.decide(run.decisions))
    )
    inside = {row.name: row for row in volume_rows(run)}
    later = inside if len(correction.index) == 0 else {}
    if corrected is not None:
        later = {row.name: row for row in volume_rows(corrected)}
    return [
        VolumeChange(
            name,
            inside[name].volume_ml,
            inside[name].volume_ml + voxel_ml * float((after - before)[members].sum()),
            _known_interval(inside[name].interval_ml),
            _known_interval(later[name].interval_ml) if name in later else None,
        )
        for name, kind, members in volume_sets(labels, run.regions)
        if kind != "background"
    ]


def _known_interval(interval_ml: tuple[float, float]) -> Interval:
    """Return an interval, None where noise is white: it says nothing about volumes."""
    return None if math.isnan(interval_ml[0]) else interval_ml


class CorrectionFiles:
    """Reads and writes the files of the correction of one run."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._state = run.folder / STATE
        self._run_digest = file_digest(self._state / "run.json")
        self._edits = EditsFile(
            run.folder / EDITS, str(run.posterior.problem), run.case.labels, run.case.geometry
        )

    def read(self) -> tuple[dict[int, int], Correction, bool]:
        """Return the edits, what they make of the maps, and whether every file is as it was saved.

        Without edits, or where the correction of other edits is found, the maps are the run's own.
        """
        self.recover()
        edits = self._edits.read()
        correction = self._read_marginals(edits)
        saved = self._read_manifest() or {}
        paths = {name: self.run.folder / name for name in FILES}
        whole = all(p.is_file() and file_digest(p) == saved.get(name) for name, p in paths.items())
        if correction is None:
            return edits, no_correction(self.run.posterior.n_labels), False
        return edits, correction, whole

    def read_volumes(self) -> list[VolumeChange]:
        """Return the volumes of the current set, where ``read`` found it whole."""
        try:
            found = read_json(self.run.folder / CORRECTED_SUMMARY)["corrected"]["volumes"]
            return [VolumeChange(**each) for each in found]
        except DAMAGE:  # another version saved it
            return []

    def save(self, edits: Edits, correction: Correction, corrected: Run) -> None:
        """Make these the current edits and files; where that fails, all stays as it was."""
        self._check_run()
        self.recover()
        self._register()
        staged = {name: self._staged_path(name) for name in FILES}
        try:
            self._write_maps(staged, edits, correction)
            self._write_pages(staged, edits, correction, corrected)
            replace(self._edits, path=staged[EDITS]).write(edits, self.run.labels)
            digests = {name: file_digest(path) for name, path in staged.items()}
            write_json(self._state / MANIFEST, {"format": FORMAT, "files": digests})
        except BaseException:
            with suppress(OSError):
                self.recover()
            raise
        self.recover()

    def archive(self) -> bytes | None:
        """Return the current set as one ZIP file, None where there is none."""
        if not self._read_manifest():
            return None
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w") as pack:
            for name in (LABELS, ENTROPY, REPORT, CORRECTED_SUMMARY, EDITS):
                content = (self.run.folder / name).read_bytes()
                packed = name.endswith(".gz")
                method = zipfile.ZIP_STORED if packed else zipfile.ZIP_DEFLATED
                entry = zipfile.ZipInfo(name)  # with no date: the same set gives the same bytes
                entry.external_attr = 0o644 << 16
                pack.writestr(entry, content, method)
        return stream.getvalue()

    def read_draft(self) -> dict[str, Any] | None:
        """Return the strokes that were not saved, None where there are none."""
        try:
            draft: dict[str, Any] = read_json(self._state / DRAFT)
        except (FileNotFoundError, DamagedError):
            return None
        return draft

    def write_draft(self, draft: dict[str, Any]) -> None:
        """Keep strokes that are not saved yet."""
        self._check_run()
        register_files(self.run.folder, [f"{STATE}/{DRAFT}"])
        write_json(self._state / DRAFT, draft)

    def remove(self) -> None:
        """Remove all files of a correction: a set without any becomes the current one."""
        self._check_run()
        self._register()
        write_json(self._state / MANIFEST, {"format": FORMAT, "files": {}})
        self.recover()

    def recover(self) -> None:
        """Give the files of the current set their names, and remove what belongs to none."""
        current = self._read_manifest()
        for name in FILES:
            staged, visible = self._staged_path(name), self.run.folder / name
            wanted = None if current is None else current.get(name)
            if staged.exists():
                if wanted is not None and file_digest(staged) == wanted:
                    staged.replace(visible)
                else:
                    staged.unlink()
            if current is not None and wanted is None and visible.exists():
                visible.unlink()
        for pattern in (f".{_STAGED}*.part", f".{MANIFEST}.*.part"):
            for partial in self._state.glob(pattern):
                partial.unlink()
        if current == {}:
            (self._state / MANIFEST).unlink()

    def _staged_path(self, name: str) -> Path:
        return self._state / f"{_STAGED}{Path(name).name}"

    def _register(self) -> None:
        """List the names of a correction among the run's files, before any of them is written."""
        staged = [f"{STATE}/{self._staged_path(name).name}" for name in FILES]
        register_files(self.run.folder, [*FILES, *staged, f"{STATE}/{MANIFEST}"])

    def _check_run(self) -> None:
        """Refuse to write beside another run: locks do not work on every file system."""
        if file_digest(self._state / "run.json") != self._run_digest:
            raise OutputError(
                f"{self.run.folder} now contains another run than the one that is shown; open it "
                "again"
            )

    def _read_manifest(self) -> dict[str, str] | None:
        """Return the digest of each file of the current set, None where nothing was saved."""
        path = self._state / MANIFEST
        try:
            page = read_json(path)
        except FileNotFoundError:
            return None
        try:
            files = {str(name): str(digest) for name, digest in page["files"].items()}
            if page["format"] != FORMAT or set(files) not in (set(), set(FILES)):
                raise ValueError("it names other files")
        except DAMAGE as error:
            raise DamagedError(f"{path} is damaged: {error_text(error)}") from error
        return files

    def _write_maps(self, paths: dict[str, Path], edits: Edits, correction: Correction) -> None:
        run, case = self.run, self.run.case
        mask = case.mask.copy()
        mask.flat[list(edits)] = True
        values = case.labels.to_values(correction.labels(run.labels, run.decisions), mask)
        save_like(paths[LABELS], values, case.geometry, "label values, corrected by hand")
        top = f"{math.log2(len(case.labels)):.4g}"
        bits = correction.entropy(run.entropy)
        save_like(paths[ENTROPY], bits, case.geometry, f"entropy, bits, 0 to {top}, corrected")
        arrays = {
            "edited_index": np.array(list(edits), dtype=np.int64),
            "edited_label": np.array(list(edits.values()), dtype=np.int64),
            "index": correction.index,
            "marginals": correction.marginals,
        }
        write_arrays(paths[MARGINALS], arrays)

    def _write_pages(
        self, paths: dict[str, Path], edits: Edits, correction: Correction, corrected: Run
    ) -> None:
        """Write the report and the summary of the corrected run."""
        run = self.run
        files = {
            "labels": LABELS,
            "entropy": ENTROPY,
            "report": REPORT,
            "summary": CORRECTED_SUMMARY,
        }
        outputs = {name: paths[file] for name, file in files.items()}
        by_hand = (
            f"{len(edits)} voxels were set by hand: maps, volumes and intervals are those of the "
            "model given that these labels are right"
        )
        warnings = [by_hand, *run.case.warnings]
        page = replace(corrected, title=f"{run.title}, corrected", files={**run.files, **outputs})
        answer = write_page(page, warnings)
        summary = {
            **summarize_run(page),
            "answer": answer,
            "corrected": {
                "edited_voxels": len(edits),
                "volumes": [asdict(each) for each in volume_changes(run, correction, corrected)],
            },
            "warnings": warnings,
            "files": files,
        }
        write_json(paths[CORRECTED_SUMMARY], summary)

    def _read_marginals(self, edits: Edits) -> Correction | None:
        """Return the saved correction of these edits, None where there is none."""
        path = self.run.folder / MARGINALS
        if not edits or not path.is_file():
            return None
        arrays = read_arrays(path, limit=largest_state())
        try:
            pairs = zip(arrays["edited_index"].tolist(), arrays["edited_label"].tolist())
            if dict(pairs) != dict(edits):
                return None
            _check_fit(arrays["index"], arrays["marginals"], self.run)
        except DAMAGE as error:
            raise DamagedError(f"{path} is damaged: {error_text(error)}") from error
        return Correction(arrays["index"], arrays["marginals"])


def _check_fit(index: NDArray[Any], marginals: NDArray[Any], run: Run) -> None:
    """Refuse what does not fit the run: it would be written anywhere in its maps."""
    if index.dtype != np.int64 or index.ndim != 1 or marginals.dtype != np.float64:
        raise ValueError("its arrays are of other types")
    if marginals.shape != (run.posterior.n_labels, len(index)):
        raise ValueError("its marginals do not fit its voxels")
    checks.in_range(index, "index", run.case.mask.size)
    checks.finite(marginals, "marginals")


class EditsError(ExpectedError):
    """A list of edits cannot be read, or belongs to another run."""


@dataclass(frozen=True)
class EditsFile:
    """Reads and writes the edits of one run; ``run`` is the digest that names its CRF."""

    path: Path
    run: str
    labels: LabelScheme
    geometry: Geometry

    def write(self, edits: Edits, old_labels: NDArray[np.uint8]) -> None:
        """Write the edits in their order; ``old_labels`` (X, Y, Z) are the run's own."""
        entries = []
        for order, (voxel, label) in enumerate(edits.items(), start=1):
            indices = [int(i) for i in np.unravel_index(voxel, self.geometry.shape)]
            mm = self.geometry.affine[:3, :3] @ indices + self.geometry.affine[:3, 3]
            entry = {
                "order": order,
                "voxel": indices,
                "position_mm": [round(float(x), 3) for x in mm],
                "old_label": self.labels.values[int(old_labels.flat[voxel])],
                "new_label": self.labels.values[label],
            }
            entries.append("    " + json.dumps(entry))
        page = {"format": FORMAT, "about": ABOUT, "run": self.run, "shape": self.geometry.shape}
        head = json.dumps({**page, "edits": []}, indent=2, ensure_ascii=False)
        lines = ",\n".join(entries)  # one for each edit
        listed = f"[\n{lines}\n  ]\n}}\n" if entries else "[]\n}\n"
        write_text(self.path, head.removesuffix("[]\n}") + listed)

    def read(self) -> dict[int, int]:
        """Return the edits in their order, none where there is no file."""
        try:
            page = read_json(self.path)
        except FileNotFoundError:
            return {}
        except DamagedError as error:
            raise EditsError(str(error)) from error
        try:
            return self._parse(page)
        except DAMAGE as error:
            words = in_short(error_text(error), 300)
            raise EditsError(f"{self.path} is not a list of edits of this run: {words}") from error

    def _parse(self, page: dict[str, Any]) -> dict[int, int]:
        if page["format"] != FORMAT:
            raise ValueError(f"its format must be {FORMAT}, got {page['format']}")
        if page["run"] != self.run:
            raise ValueError("it was made for another run; move it away to start anew")
        edits = {}
        for entry in sorted(page["edits"], key=lambda each: int(each["order"])):
            voxel = np.ravel_multi_index(entry["voxel"], self.geometry.shape)
            edits[int(voxel)] = self.labels.values.index(entry["new_label"])
        return edits
