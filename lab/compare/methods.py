"""The paper's method and its rivals on one case, each on as many voxels as it can take.

Dense methods share one CRF, our kernels at full strength. Methods on the grid share another: the
same unaries, neighbours by faces, contrast-sensitive Potts. What is slow gets a box around the
most uncertain voxel; what knows two labels gets the region against the rest.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from lab.comparators import (
    Enumeration,
    GridCRF,
    contours,
    exact,
    gibbs,
    gibbs_grid,
    min_marginals,
    perturb_and_map_grid,
    perturb_and_solve,
)
from perturb_mpm.evaluation import binary_entropy_percent
from perturb_mpm.files import Case, geometry_from_affine
from perturb_mpm.inference import ConvergenceWarning, mean_field
from perturb_mpm.model import DenseCRF
from perturb_mpm.posterior import Posterior
from perturb_mpm.progress import StagedProgress
from perturb_mpm.run import RunSettings, build_crf
from perturb_mpm.sampling import sample

GRID_WEIGHT = 1.0  # nats a mm between equal neighbours
ITERATIONS = 10
LARGEST_ENUMERATED = 2.0e7


@dataclass(frozen=True)
class ComparePlan:
    """How many samples each kind of method draws, and on how many voxels the slow ones."""

    samples: int = 50
    cut_samples: int = 20
    program_samples: int = 5
    dense_voxels: int = 1000
    program_voxels: int = 150
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Subject:
    """One case, the labels of the region that is measured, and the CRFs of its methods."""

    case: Case
    members: tuple[int, ...]
    plan: ComparePlan

    @cached_property
    def dense(self) -> DenseCRF:
        """The dense CRF: our kernels at full strength."""
        return build_crf(self.case, RunSettings.of_paper())

    @cached_property
    def grid(self) -> GridCRF:
        """The CRF of neighbours on the grid, with all labels."""
        return self._grid(self._unary)

    @cached_property
    def binary(self) -> GridCRF:
        """The CRF of neighbours on the grid, the region against the rest."""
        p = np.exp(-self._unary)
        inside = p[list(self.members)].sum(axis=0) / p.sum(axis=0)
        clipped = np.clip(inside, 1e-6, 1 - 1e-6)
        return self._grid(-np.log(np.stack([1 - clipped, clipped])))

    @property
    def spacing(self) -> tuple[float, ...]:
        """The voxel size, mm."""
        return tuple(self.case.geometry.spacing)

    @property
    def _unary(self) -> NDArray[np.float64]:
        return -np.log(np.clip(self.case.probabilities.astype(np.float64), 1e-6, 1))

    def _grid(self, unary: NDArray[np.float64]) -> GridCRF:
        images = np.stack(list(self.case.images.values()))
        return GridCRF(unary, GRID_WEIGHT, images, spacing=self.spacing, mask=self.case.mask)

    def shrink(self, voxels: int) -> Subject:
        """Return the box of at most so many voxels around the most uncertain voxel."""
        share = self.case.probabilities[list(self.members)].sum(axis=0)
        doubt = np.where(self.case.mask, share * (1 - share), -1.0)
        centre = np.unravel_index(int(doubt.argmax()), doubt.shape)
        side = max(1, int(voxels ** (1 / 3)))
        box = tuple(
            slice(start, start + min(side, size))
            for start, size in (
                (int(np.clip(c - side // 2, 0, max(0, size - side))), size)
                for c, size in zip(centre, doubt.shape)
            )
        )
        return replace(self, case=crop_case(self.case, box))


def crop_box(case: Case, members: tuple[int, ...], side: int) -> tuple[slice, ...]:
    """Return the cube of a side in voxels around the centre of the region, inside the image."""
    share = case.probabilities[list(members)].sum(axis=0)
    where = np.argwhere(share > 0.5 if (share > 0.5).any() else share >= share.max())
    box = []
    for c, size in zip(where.mean(axis=0), share.shape):
        start = int(np.clip(c - side // 2, 0, max(0, size - side)))
        box.append(slice(start, min(start + side, size)))
    return tuple(box)


def crop_case(case: Case, box: tuple[slice, ...]) -> Case:
    """Return the case inside a box, in its place in space."""
    affine = case.geometry.affine.copy()
    affine[:3, 3] += affine[:3, :3] @ [part.start for part in box]
    x, y, z = (part.stop - part.start for part in box)
    return replace(
        case,
        images={name: image[box] for name, image in case.images.items()},
        probabilities=case.probabilities[(slice(None), *box)],
        mask=case.mask[box],
        geometry=geometry_from_affine((x, y, z), affine),
        truth=None if case.truth is None else case.truth[box],
        ensemble=None,
    )


@dataclass(frozen=True, eq=False)
class RivalAnswer:
    """What a method says of the region, on the subject that it was given."""

    subject: Subject
    share: NDArray[np.float64]  # (X, Y, Z): the region's probability
    volumes_ml: NDArray[np.float64] | None = None  # (S,)


@dataclass(frozen=True, eq=False)
class MethodResult:
    """One row of the table."""

    method: str
    voxels: int
    samples: int | None
    seconds: float
    cpu_seconds: float
    """Of all threads: what the method costs on a machine that is not busy."""
    entropy_bits: float | None
    """The mean over the voxels of the entropy of the region against the rest."""
    volume_ml: tuple[float, float, float] | None
    """2.5 %, median and 97.5 % of the sampled volumes."""
    agreement: float | None
    """The mean of |p − q| with votes, over the voxels that both have."""
    note: str
    share: NDArray[np.float64] | None
    """(X, Y, Z), of a method that ran on the whole subject."""


def _votes_answer(subject: Subject, posterior: Posterior, members: tuple[int, ...]) -> RivalAnswer:
    share = posterior.marginals[list(members)].sum(axis=0)
    return RivalAnswer(subject, share, posterior.volumes[:, list(members)].sum(axis=1) / 1000)


def _mean_field(s: Subject) -> RivalAnswer:
    q = mean_field(s.dense, ITERATIONS).marginals
    return RivalAnswer(s, q[list(s.members)].sum(axis=0).astype(np.float64))


def _votes(s: Subject) -> RivalAnswer:
    posterior = sample(s.dense, s.plan.samples, s.plan.seed, iterations=ITERATIONS)
    return _votes_answer(s, posterior, s.members)


def _conditional(s: Subject) -> RivalAnswer:
    posterior = sample(
        s.dense, s.plan.samples, s.plan.seed, iterations=ITERATIONS, estimator="conditional"
    )
    return RivalAnswer(s, posterior.marginals[list(s.members)].sum(axis=0))


def _perturb_and_map(s: Subject) -> RivalAnswer:
    return _votes_answer(
        s, perturb_and_map_grid(s.grid, s.plan.cut_samples, s.plan.seed), s.members
    )


def _alberts(s: Subject) -> RivalAnswer:
    return _votes_answer(s, perturb_and_map_grid(s.binary, s.plan.samples, s.plan.seed), (1,))


def _gibbs_grid(s: Subject) -> RivalAnswer:
    return _votes_answer(s, gibbs_grid(s.grid, s.plan.samples, s.plan.seed), s.members)


def _gibbs_dense(s: Subject) -> RivalAnswer:
    return _votes_answer(s, gibbs(s.dense, 4 * s.plan.samples, s.plan.seed), s.members)


def _min_marginals(s: Subject) -> RivalAnswer:
    return RivalAnswer(s, min_marginals(s.binary).confidence[1])


def _contours(s: Subject) -> RivalAnswer:
    region = s.case.probabilities[list(s.members)].sum(axis=0) > 0.5
    amplitude = float(np.mean(s.spacing))
    posterior = contours(
        region, s.plan.samples, s.plan.seed,
        amplitude_mm=amplitude, length_mm=5 * amplitude, spacing=s.spacing,
    )  # fmt: skip
    return _votes_answer(s, posterior, (1,))


def _programs(s: Subject) -> RivalAnswer:
    return _votes_answer(
        s, perturb_and_solve(s.grid, s.plan.program_samples, s.plan.seed), s.members
    )


def _exact(s: Subject) -> RivalAnswer:
    n_labels, voxels = s.dense.energies.shape
    if voxels * np.log(n_labels) > np.log(LARGEST_ENUMERATED):
        raise ValueError(f"{n_labels}^{voxels} labellings cannot be visited")
    marginals = Enumeration(s.dense).marginals
    drawn = exact(s.dense, s.plan.samples, s.plan.seed)
    answer = _votes_answer(s, drawn, s.members)
    return replace(answer, share=marginals[list(s.members)].sum(axis=0))


@dataclass(frozen=True)
class Method:
    """A method: how it answers, on how many voxels at most, and what to know about it."""

    answer: Callable[[Subject], RivalAnswer]
    note: str
    most_voxels: Callable[[ComparePlan], int] | None = None


METHODS = {
    "mean field": Method(_mean_field, "dense CRF, not sampled"),
    "votes": Method(_votes, "Perturb-and-MPM, dense CRF"),
    "conditional": Method(_conditional, "dense CRF, ours"),
    "Perturb-and-MAP": Method(_perturb_and_map, "grid, graph cuts; α-expansion for several labels"),
    "Alberts' volume uncertainty": Method(_alberts, "grid, region against rest, exact cuts"),
    "Gibbs on the grid": Method(_gibbs_grid, "one chain, every 5th sweep after 100"),
    "Gibbs": Method(_gibbs_dense, "dense CRF, all pairs, 4 chains", lambda plan: plan.dense_voxels),
    "min-marginals": Method(_min_marginals, "grid, region against rest; no probabilities of P"),
    "contour GP": Method(_contours, "region of probability above ½; knows no model"),
    "Kim's integer programs": Method(_programs, "grid, exact minimum", lambda p: p.program_voxels),
    "exact": Method(_exact, "dense CRF, all labellings", lambda _: 8),
}


def run_methods(subject: Subject, progress: StagedProgress) -> Iterator[MethodResult]:
    """Run every method; one that cannot take the case says why in its note."""
    boxes: dict[int, Subject] = {}
    votes: dict[int, NDArray[np.float64]] = {}
    for name, method in METHODS.items():
        progress.stage(name)
        whole = method.most_voxels is None
        given = subject
        if method.most_voxels is not None:
            most = method.most_voxels(subject.plan)
            given = boxes.setdefault(most, subject.shrink(most))
        start, used = time.perf_counter(), time.process_time()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                answer = method.answer(given)
        except (ValueError, ImportError) as error:
            yield MethodResult(name, 0, None, 0, 0, None, None, None, f"not run: {error}", None)
            continue
        seconds = (time.perf_counter() - start, time.process_time() - used)
        if id(given) not in votes:
            votes[id(given)] = answer.share if name == "votes" else _votes(given).share
        yield _result(name, method, answer, seconds, votes[id(given)], whole=whole)


def _result(
    name: str,
    method: Method,
    answer: RivalAnswer,
    seconds: tuple[float, float],
    votes: NDArray[np.float64],
    *,
    whole: bool,
) -> MethodResult:
    inside = answer.subject.case.mask
    share = np.clip(answer.share, 0, 1)
    low_to_high = None
    if answer.volumes_ml is not None:
        low, middle, high = np.quantile(answer.volumes_ml, (0.025, 0.5, 0.975))
        low_to_high = (float(low), float(middle), float(high))
    return MethodResult(
        name,
        int(inside.sum()),
        None if answer.volumes_ml is None else len(answer.volumes_ml),
        *seconds,
        float(binary_entropy_percent(share[inside]).mean() / 100),
        low_to_high,
        float(np.abs(share - votes)[inside].mean()),
        method.note,
        share if whole else None,
    )
