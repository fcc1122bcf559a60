"""Labels set by hand in a sampled CRF, answered without sampling everything again.

An edit holds some voxels at labels and leaves the noise of every sample as it is. Where it moves a
sample is known before that is solved: where the pairwise energies change and the voxel is in doubt.
Only these voxels are updated, wherever they lie, from the solution that the sample had:

    x' = x − pairwise(Q' − Q),   Q' = softmax(x'),   from Q' = Q but for the labels set,

with x the log-odds of Q. Everything else keeps what it was, to the last bit. ``Editor.keep`` draws
the samples once more and keeps x in 16 bits for the voxels most in doubt, within a bound.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from perturb_mpm import checks
from perturb_mpm.engines import (
    FREE,
    Compute,
    FreezingSolver,
    RestrictedProblem,
    resolve_budget,
    softmax,
    to_log_odds,
)
from perturb_mpm.inference import Schedule, run_updates
from perturb_mpm.model import DenseCRF
from perturb_mpm.posterior import Posterior
from perturb_mpm.progress import Progress
from perturb_mpm.sampling.sampler import Sampler
from perturb_mpm.sampling.settings import Sampling

MOVED = 3e-4
"""A voxel is updated where the change of its energies in nats, times the probability that a sample
dissents, is above this: about the share of samples that would change their mind."""

LEAST_DISSENT = 1e-3
"""Voxels that dissent less often are not stored: they stay as they are unless they are set."""

STILL = 2e-3
"""Updates end when none of them changes a marginal by more than this."""

TOGETHER = 32
"""Samples solved together, whatever the engine's batch, so that this changes nothing."""

USUAL_MEMORY = "512 MB"
FORBIDDEN_NATS = 1e4
"""No noise and no message comes near it; engines cut it to what they can hold."""


@dataclass(frozen=True, eq=False)
class Edit:
    """Labels set by hand, and the mean field that follows them."""

    given: NDArray[np.int16]  # (N,): a label, or FREE
    voxels: NDArray[np.int64]  # (A,), rising: what was solved again
    marginals: NDArray[np.float32]  # (L, A): its mean field
    felt_nats: NDArray[np.float32]  # (N,): how far the labels set move the energies by themselves


@dataclass(frozen=True, eq=False)
class EditedVotes:
    """How the first samples of a run vote after an edit."""

    samples: int  # how many are solved
    voxels: NDArray[np.int64]  # (A,), rising: all others vote as they did
    changes: NDArray[np.int64]  # (L, A): votes gained and lost
    size_changes: NDArray[np.int64]  # (samples, L): voxels that each label gains and loses
    labels: NDArray[np.uint8]  # (samples, A)


class SampleShift(Protocol):
    """Moves the log-odds of samples at some voxels before these are solved again."""

    @property
    def voxels(self) -> NDArray[np.int64]:
        """The voxels that move, (V,), rising; labels set by hand are not among them."""

    def __call__(self, log_odds: NDArray[np.float16], part: SolvedPart) -> None:
        """Move log-odds (A, L − 1, B) in place."""


@dataclass(frozen=True, eq=False)
class SolvedPart:
    """Which samples are solved together, and where."""

    samples: range
    voxels: NDArray[np.int64]  # (A,), rising
    stored: NDArray[np.bool_]  # (A,): where log-odds are the samples' own; else only their labels
    labels: NDArray[np.uint8]  # (A, B)


@dataclass(frozen=True, eq=False)
class _Solutions:
    """The solution of every sample: log-odds at some voxels, and the labels of all others."""

    posterior: Posterior
    voxels: NDArray[np.int64]  # (V,), rising
    log_odds: NDArray[np.float16]  # (V, L − 1, S)
    usual: NDArray[np.uint8]  # (N,): the label of a voxel that is not stored …
    dissent: NDArray[np.int64]  # (3, D): … but in these: voxel, sample, label; by voxel

    def before(self, voxels: NDArray[np.int64]) -> NDArray[np.float16]:
        """Return the log-odds of all samples at some voxels, (A, L − 1, S)."""
        _, others, samples = self.log_odds.shape
        out = np.empty((len(voxels), others, samples), dtype=np.float16)
        known = np.isin(voxels, self.voxels)
        out[known] = self.log_odds[np.searchsorted(self.voxels, voxels[known])]
        rest = np.flatnonzero(~known)
        labels = np.repeat(self.usual[voxels[rest], np.newaxis], samples, axis=1)  # (R, S)
        for r, voxel in enumerate(voxels[rest].tolist()):
            here = slice(*np.searchsorted(self.dissent[0], [voxel, voxel + 1]))
            labels[r, self.dissent[1, here]] = self.dissent[2, here]
        certain = labels[:, np.newaxis] == np.arange(others + 1)[:, np.newaxis]  # (R, L, S)
        out[rest] = to_log_odds(certain.astype(np.float32))
        return out


class Editor:
    """Answers edits of a CRF that was sampled; the engine must be ``cpu`` or ``reference``.

    ``mean_field`` (L, N) is the CRF's mean field; computed if omitted.

    Examples
    --------
    >>> from perturb_mpm.sampling import Editor
    >>> unary = np.random.default_rng(0).normal(size=(2, 6, 6))
    >>> crf = pm.DenseCRF(unary, [pm.SpatialKernel(sigma=1.0, weight=1.0)])
    >>> compute = pm.Compute(engine="reference")
    >>> editor = Editor(pm.Sampler(crf, pm.Sampling(samples=8), compute))
    >>> before = editor.keep()  # the samples, and what edits start from
    >>> given = np.full(36, -1)  # −1: nobody has set it
    >>> given[:3] = 1
    >>> edit = editor.edit(given)  # the mean field follows
    >>> *_, votes = editor.votes(edit)  # then the samples, batch by batch
    >>> editor.posterior(edit, votes).labels.ravel()[:3]
    array([1, 1, 1], dtype=uint8)
    """

    def __init__(self, sampler: Sampler, mean_field: NDArray[np.floating] | None = None) -> None:
        solver = sampler.solver
        if not isinstance(solver, FreezingSolver):
            raise ValueError(f'`sampler` must have the engine "cpu", got "{solver.engine}"')
        self._sampler, self._solver = sampler, solver
        self._mean_field = sampler.mean_field() if mean_field is None else mean_field
        # With correlated noise, samples vary more than the mean field suggests.
        apart = softmax(-sampler.crf.energies, axis=0).max(axis=0)
        self._dissent = 1 - np.minimum(self._mean_field.max(axis=0), apart)  # (N,)
        self._solutions: _Solutions | None = None

    @property
    def kept_bytes(self) -> int:
        """How much memory the samples' log-odds take."""
        return 0 if self._solutions is None else self._solutions.log_odds.nbytes

    def keep(
        self, memory: int | str = USUAL_MEMORY, *, progress: Progress | None = None
    ) -> Posterior:
        """Draw the samples and keep their solutions, in at most so much memory; return all votes.

        Of voxels that do not fit, those that dissent least are left out.
        """
        crf, sampling = self._sampler.crf, self._sampler.sampling
        if sampling.estimator != "votes":
            raise ValueError(f'`sampler` must count votes, got estimator "{sampling.estimator}"')
        most = resolve_budget(memory) // (2 * (crf.n_labels - 1) * sampling.samples)
        least = LEAST_DISSENT
        if (self._dissent > least).sum() > most:
            least = float(np.partition(self._dissent, -most - 1)[-most - 1])
        stored = (self._dissent > least) & self._sampler.active
        voxels, others = np.flatnonzero(stored), np.flatnonzero(~stored)
        usual = self._mean_field.argmax(axis=0).astype(np.uint8)
        log_odds = np.empty((len(voxels), crf.n_labels - 1, sampling.samples), dtype=np.float16)
        dissent: list[NDArray[np.int64]] = []

        def take(part: range, labels: NDArray[np.uint8]) -> None:
            here = self._solver.log_odds(voxels)
            _agree(here, labels[:, voxels].T)
            log_odds[:, :, part.start : part.stop] = here
            sample, index = np.nonzero(labels[:, others] != usual[others])
            voxel = others[index]
            dissent.append(np.stack([voxel, part.start + sample, labels[sample, voxel]]))

        posterior = self._sampler.draw(progress=progress, keep=take, keeps_solver=True)
        found = np.concatenate(dissent, axis=1)
        found = found[:, np.argsort(found[0], kind="stable")]
        log_odds = log_odds[:, :, : posterior.samples]  # ``until`` may have ended it
        self._solutions = _Solutions(posterior, voxels, log_odds, usual, found)
        return posterior

    def edit(self, given: NDArray[np.integer]) -> Edit:
        """Return what labels set by hand, (N,) with FREE elsewhere, do to the mean field."""
        labels = self._check_given(given)
        edited = np.flatnonzero(labels != FREE)
        certain = np.arange(len(self._mean_field))[:, np.newaxis] == labels[edited]  # (L, G)
        felt = self._reach(edited, certain - self._mean_field[:, edited])
        voxels = np.flatnonzero((felt * self._dissent > MOVED) | (labels != FREE))
        before = to_log_odds(self._mean_field[:, voxels].T[:, :, np.newaxis])
        restricted = self._solver.restrict(voxels)
        restricted.load(before, labels[voxels])
        marginals = self._solve(restricted, 1.0)[0]
        return Edit(labels, voxels, marginals.astype(np.float32), felt)

    def votes(self, edit: Edit, shift: SampleShift | None = None) -> Iterator[EditedVotes]:
        """Solve the samples again where the edit moves them, and yield the votes of those done.

        ``shift`` is what the edit says about the noise of the samples.
        """
        if self._solutions is None:
            raise ValueError("`votes` needs the samples: call `keep` first")
        solutions, sampling = self._solutions, self._sampler.sampling
        # What follows an edit moves others in turn, and the mean field has shown how far.
        moved = edit.marginals - self._mean_field[:, edit.voxels]
        felt = np.maximum(edit.felt_nats, self._reach(edit.voxels, moved))
        worth = np.zeros(len(felt), dtype=np.bool_)
        worth[solutions.voxels] = (felt * self._dissent > MOVED)[solutions.voxels]
        if shift is not None:
            worth[shift.voxels] = True
        voxels = np.flatnonzero(worth | (edit.given != FREE))
        stored = np.isin(voxels, solutions.voxels)
        restricted = self._solver.restrict(voxels)
        before = solutions.before(voxels)
        n_labels, samples = self._sampler.crf.n_labels, solutions.posterior.samples
        changes = np.zeros((n_labels, len(voxels)), dtype=np.int64)
        sizes: list[NDArray[np.int64]] = []
        found = np.empty((0, len(voxels)), dtype=np.uint8)
        for start in range(0, samples, TOGETHER):
            part = np.ascontiguousarray(before[:, :, start : start + TOGETHER])
            old = _labels_from_log_odds(part).T
            if shift is not None:
                here = range(start, start + part.shape[2])
                shift(part, SolvedPart(here, voxels, stored, old.T))
            restricted.load(part, edit.given[voxels], sharpness=sampling.sharpness)
            marginals = self._solve(restricted, sampling.sharpness)
            new = _most_probable(marginals.transpose(1, 0, 2))  # (B, A)
            for label in range(n_labels):
                changes[label] += (new == label).sum(axis=0)
                changes[label] -= (old == label).sum(axis=0)
            sizes.append(_sizes(new, n_labels) - _sizes(old, n_labels))
            found = np.concatenate([found, new])
            done = start + len(new)
            yield EditedVotes(done, voxels, changes.copy(), np.concatenate(sizes), found)

    def sampled_labels(
        self, votes: EditedVotes | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
        """Return the voxels in which samples differ, (V,), and their labels there, (S, V).

        Voxels that dissent too rarely to be stored are left out, unless an edit moved them.
        """
        if self._solutions is None:
            raise ValueError("`sampled_labels` needs the samples: call `keep` first")
        voxels = self._solutions.voxels
        labels = _labels_from_log_odds(self._solutions.log_odds).T
        if votes is not None:
            own = ~np.isin(voxels, votes.voxels)
            voxels = np.concatenate([voxels[own], votes.voxels])
            labels = np.concatenate([labels[:, own], votes.labels], axis=1)
        differ = (labels != labels[0]).any(axis=0)
        return voxels[differ], labels[:, differ]

    def posterior(self, edit: Edit, votes: EditedVotes) -> Posterior:
        """Return the posterior of the edited CRF: the votes of all samples, and its mean field."""
        if self._solutions is None or votes.samples != self._solutions.posterior.samples:
            raise ValueError("`votes` must be those of all samples, got those of some")
        base = self._solutions.posterior
        counts = base.voxel_counts.astype(np.int64)
        counts[:, votes.voxels] += votes.changes
        mean_field = self._mean_field.astype(np.float32)
        mean_field[:, edit.voxels] = edit.marginals
        return Posterior(
            grid=base.grid,
            counts=counts,
            sample_index=base.sample_index,
            volumes=base.volumes + votes.size_changes * math.prod(base.grid.spacing),
            problem=base.problem,
            parameters={**base.parameters, "edited_voxels": int((edit.given != FREE).sum())},
            estimator=base.estimator,
            mean_field=mean_field,
            label_changes=base.label_changes,
        )

    def _solve(self, restricted: RestrictedProblem, sharpness: float) -> NDArray[np.floating]:
        """Return the marginals (B, L, A) after updates that end where they hardly move any."""
        iterations = self._sampler.sampling.iterations
        schedule = Schedule(iterations, sharpness=sharpness, watch_all=True)
        for change in run_updates(restricted, schedule):
            if change.maximum.max() <= STILL:
                break
        return restricted.marginals()

    def _reach(
        self, voxels: NDArray[np.int64], changes: NDArray[np.floating]
    ) -> NDArray[np.float32]:
        """Return how far changes of marginals (L, V) move the energies of two labels, (N,) nats."""
        if len(voxels) == 0:
            return np.zeros(len(self._dissent), dtype=np.float32)
        energies = self._solver.reach(voxels, changes)  # (L, N)
        felt: NDArray[np.float32] = np.ptp(energies, axis=0).astype(np.float32)
        return felt

    def _check_given(self, given: NDArray[np.integer]) -> NDArray[np.int16]:
        labels, n_labels = checks.whole(given, "given"), len(self._mean_field)
        if labels.shape != self._dissent.shape or labels.min() < FREE or labels.max() >= n_labels:
            raise ValueError(
                f"`given` must hold a label below {n_labels}, or {FREE}, for each of the "
                f"{len(self._dissent)} voxels, got shape {labels.shape} with values from "
                f"{labels.min()} to {labels.max()}"
            )
        return labels.astype(np.int16)


def edited_crf(crf: DenseCRF, given: NDArray[np.integer]) -> DenseCRF:
    """Return the CRF in which voxels can have the label they are given, (N,), alone."""
    fixed = given != FREE
    energies = crf.energies.copy()  # (L, N)
    for label, row in enumerate(energies):
        row[fixed] = np.where(given[fixed] == label, 0.0, FORBIDDEN_NATS)
    other = copy.copy(crf)  # what it is centred on stays
    other.energies = checks.read_only(energies)
    return other


def sample_edited(
    crf: DenseCRF,
    given: NDArray[np.integer],
    sampling: Sampling,
    compute: Compute,
    *,
    progress: Progress | None = None,
) -> Posterior:
    """Sample a CRF again with labels set by hand, everywhere: what ``Editor`` comes close to."""
    return Sampler(edited_crf(crf, given), sampling, compute).draw(progress=progress)


def _most_probable(scores: NDArray[np.floating]) -> NDArray[np.uint8]:
    """Return which of (L, …) scores is highest, the first of equals: by far faster than argmax."""
    best, labels = scores[0].copy(), np.zeros(scores.shape[1:], dtype=np.uint8)
    for label, score in enumerate(scores[1:], start=1):
        higher = score > best
        labels[higher] = label
        np.maximum(best, score, out=best)
    return labels


def _labels_from_log_odds(log_odds: NDArray[np.float16]) -> NDArray[np.uint8]:
    """Return the most probable labels, the lowest of equals: (V, L − 1, S) → (V, S)."""
    # Half-precision floats that are not negative are in the order of their bits.
    bits = np.maximum(log_odds.view(np.int16), 0).transpose(1, 0, 2)  # (L − 1, V, S)
    return _most_probable(np.concatenate([np.zeros_like(bits[:1]), bits]))


def _agree(log_odds: NDArray[np.float16], labels: NDArray[np.uint8]) -> None:
    """Make log-odds (V, L − 1, B) agree with the labels (V, B) that were counted, in place.

    16 bits make a few equal that were not.
    """
    voxel, sample = np.nonzero(_labels_from_log_odds(log_odds) != labels)
    others = log_odds[voxel, :, sample].astype(np.float32)  # (M, L − 1)
    x = np.concatenate([np.zeros_like(others[:, :1]), others], axis=1)
    top = x.max(axis=1)
    x[np.arange(len(x)), labels[voxel, sample]] = top + np.maximum(np.abs(top), 1) / 256
    log_odds[voxel, :, sample] = x[:, 1:] - x[:, :1]


def _sizes(labels: NDArray[np.uint8], n_labels: int) -> NDArray[np.int64]:
    """Return how many voxels of (B, A) have each label, (B, L)."""
    return np.stack([(labels == label).sum(axis=1) for label in range(n_labels)], axis=1)
