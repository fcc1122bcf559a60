"""A run's maps and samples with some voxels set by a person.

The mean field follows at once, then the run's samples, each with its own noise, wherever the labels
set move them (``perturb_mpm.sampling.Editor``). Voxels that are not moved keep what the run gave
them, to the last bit. The result depends on the run and the edits, not on the order of these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.checks import ExpectedError
from perturb_mpm.engines import FRACTION_BITS, FREE
from perturb_mpm.model import Grid
from perturb_mpm.posterior import Posterior, Regions, decide_labels, marginal_entropy
from perturb_mpm.progress import Progress
from perturb_mpm.run import Run, build_crf
from perturb_mpm.sampling import Edit, EditedVotes, Editor, Sampler, sample_edited

Edits = Mapping[int, int]
"""The label of each edited voxel, by its C-order index in the whole image."""

# Differences of marginals below this are rounding.
_NOTHING = 1e-9


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


class Corrector:
    """Answers edits of a run; making it prepares the engine.

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
        self._sampling = replace(settings.sampling, samples=posterior.samples, until=None, hold=0.0)
        self._crf = build_crf(run.case, settings)
        self._mean_field = posterior.voxel_marginals("mean_field")
        self._own = posterior.voxel_marginals(settings.maps.marginals)  # (L, N)
        sampler = Sampler(self._crf, self._sampling, self._compute)
        self._editor = Editor(sampler, self._mean_field)

    @property
    def moves_samples(self) -> bool:
        """Whether an edit moves the samples drawn before; else it draws all of them again."""
        return self._sampling.estimator == "votes"

    def draw_samples(self, progress: Progress) -> None:
        """Draw the run's samples once more, and store their solutions for edits to start from."""
        if self.moves_samples:
            self._editor.keep(progress=progress)

    def preview(self, edits: Edits) -> tuple[Edit, Correction]:
        """Return the mean field with the edits, and what it makes of the run's maps."""
        index = self._crf.grid.index
        given = np.full(len(index), FREE, dtype=np.int16)
        rows, labels = _inside(edits, index)
        given[rows] = labels
        edit = self._editor.edit(given)
        new = edit.marginals.astype(np.float64)
        if self._run.settings.maps.marginals != "mean_field":
            moved = new - self._mean_field[:, edit.voxels]
            new = _normalise(self._own[:, edit.voxels] + moved)
        return edit, self._correction(edit.voxels, new, edits, edit)

    def solve(
        self, edits: Edits, edit: Edit, progress: Progress, show: Callable[[Correction], None]
    ) -> tuple[Run, Correction]:
        """Return the corrected run, and its maps; ``show`` gets those of the samples so far."""
        run, total = self._run, self._sampling.samples
        if not self.moves_samples:
            posterior = sample_edited(
                self._crf, edit.given, self._sampling, self._compute, progress=progress
            )
            first = run.first_samples
        else:
            votes = None
            for votes in self._editor.votes(edit):
                progress(votes.samples, total)
                if run.settings.maps.marginals == "votes":
                    show(self._interim(votes, edits, edit))
            assert votes is not None  # noqa: S101 - a run has samples
            posterior = self._editor.posterior(edit, votes)
            first = _moved_samples(run.first_samples, votes)
        new = posterior.voxel_marginals(run.settings.maps.marginals)
        moved = np.flatnonzero(np.abs(new - self._own).max(axis=0) > _NOTHING)
        correction = self._correction(moved, new[:, moved], edits, edit)
        return corrected_run(run, posterior, first, edits), correction

    def _interim(self, votes: EditedVotes, edits: Edits, edit: Edit) -> Correction:
        """Return the correction by the samples solved so far."""
        shares = self._own[:, votes.voxels] + votes.changes / votes.samples
        return self._correction(votes.voxels, _normalise(shares), edits, edit)

    def _correction(
        self, voxels: NDArray[np.int64], new: NDArray[np.float64], edits: Edits, edit: Edit
    ) -> Correction:
        """Return new marginals (L, V) of some voxels, and the labels set, where they differ."""
        given = edit.given[voxels]
        certain = np.arange(len(new))[:, np.newaxis] == given  # (L, V)
        new = np.where(given == FREE, new, certain)
        differs = np.abs(new - self._own[:, voxels]).max(axis=0, initial=0.0) > _NOTHING
        differs |= given != FREE
        inside = Correction(self._crf.grid.index[voxels[differs]], new[:, differs])
        return _join(inside, self._outside_mask(edits))

    def _outside_mask(self, edits: Edits) -> Correction:
        """Return the edits that the CRF knows nothing of: they are taken as they are."""
        index, labels = _outside(edits, self._crf.grid.index)
        own = np.arange(self._crf.n_labels)[:, np.newaxis] == labels  # (L, M)
        return Correction(index, own.astype(np.float64))


def corrected_run(
    run: Run, posterior: Posterior, first_samples: NDArray[np.uint8] | None, edits: Edits
) -> Run:
    """Return the run with another posterior; voxels set outside its mask become part of it."""
    index, labels = _outside(edits, posterior.grid.index)
    case = run.case
    if len(index):
        mask = case.mask.copy()
        mask.flat[index] = True
        case = replace(case, mask=mask)
        grid = Grid(case.geometry.shape, case.geometry.spacing, mask)
        posterior, first_samples = _on_grid(grid, posterior, first_samples, index, labels)
    return replace(run, case=case, votes=posterior, first_samples=first_samples, snapshots={})


def _on_grid(
    grid: Grid,
    posterior: Posterior,
    first_samples: NDArray[np.uint8] | None,
    index: NDArray[np.int64],
    labels: NDArray[np.int64],
) -> tuple[Posterior, NDArray[np.uint8] | None]:
    """Return a posterior on a larger grid, where the added voxels have one label for certain."""
    old, added = (np.searchsorted(grid.index, each) for each in (posterior.grid.index, index))
    certain = np.arange(posterior.n_labels)[:, np.newaxis] == labels  # (L, M)

    def extend(values: NDArray[Any] | None, one: float) -> NDArray[Any] | None:
        if values is None:
            return None
        out = np.empty((*values.shape[:-1], grid.voxels), dtype=values.dtype)
        out[..., old], out[..., added] = values, certain * one
        return out

    voxel_mm3 = float(np.prod(grid.spacing))
    volumes = posterior.volumes + voxel_mm3 * certain.sum(axis=1)
    counts = extend(posterior.voxel_counts, posterior.samples)
    if first_samples is not None:
        larger = np.empty((len(first_samples), grid.voxels), dtype=np.uint8)
        larger[:, old], larger[:, added] = first_samples, labels
        first_samples = larger
    extended = Posterior(
        grid=grid,
        counts=np.asarray(counts),
        sample_index=posterior.sample_index,
        volumes=volumes,
        problem=posterior.problem,
        parameters=posterior.parameters,
        estimator=posterior.estimator,
        conditional=extend(posterior.voxel_conditional, posterior.samples << FRACTION_BITS),
        mean_field=extend(posterior.voxel_mean_field, 1),
        label_changes=posterior.label_changes,
    )
    return extended, first_samples


def _moved_samples(first: NDArray[np.uint8] | None, votes: EditedVotes) -> NDArray[np.uint8] | None:
    """Return the first segmentations (K, N) with the labels they have after the edit."""
    if first is None:
        return None
    moved = first.copy()
    count = min(len(moved), len(votes.first_labels))
    moved[:count, votes.voxels] = votes.first_labels[:count]
    return moved


def _normalise(shares: NDArray[np.float64]) -> NDArray[np.float64]:
    positive = np.maximum(shares, 0.0)
    marginals: NDArray[np.float64] = positive / positive.sum(axis=0)
    return marginals


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


def _join(one: Correction, other: Correction) -> Correction:
    """Return both as one, in the order of the image."""
    index = np.concatenate([one.index, other.index])
    marginals = np.concatenate([one.marginals, other.marginals], axis=1)
    order = np.argsort(index)
    return Correction(index[order], marginals[:, order])
