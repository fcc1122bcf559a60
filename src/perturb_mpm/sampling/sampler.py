"""A CRF made ready once and sampled range by range: Algorithm 1, batch by batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm import checks
from perturb_mpm.engines import (
    Compute,
    Engine,
    NarrowingSolver,
    Solver,
    in_turn,
    prepare_with,
)
from perturb_mpm.model import DenseCRF, digest, fingerprint
from perturb_mpm.noise import SAMPLES, NoiseLength
from perturb_mpm.posterior import Posterior, Tally, copy_json, count_type
from perturb_mpm.progress import Progress
from perturb_mpm.sampling.held import Holding, hold_certain
from perturb_mpm.sampling.settings import MOST_SAMPLES, Sampling
from perturb_mpm.version import version

Keep = Callable[[range, NDArray[np.uint8]], object]

# After so many samples each time ``until`` is asked, whatever the batch: the result is the same.
CHECK_EVERY = 32
VECTOR = 8  # samples that one instruction updates


class Sampler:
    """A CRF ready to be sampled range by range, on an engine that is prepared only once.

    The arguments are checked at once; the first ``draw`` prepares the engine. ``members``, where
    given, are unaries (L, N) in place of the CRF's own: sample s perturbs member s mod M.

    Examples
    --------
    >>> crf = pm.DenseCRF(pm.unary_from_logits(np.zeros((2, 3))))
    >>> sampler = pm.Sampler(crf, pm.Sampling(seed=7), pm.Compute(engine="reference"))
    >>> first, second = sampler.draw(range(0, 5)), sampler.draw(range(5, 10))
    >>> first.merge(second).samples
    10
    """

    def __init__(
        self,
        crf: DenseCRF,
        sampling: Sampling | None = None,
        compute: Compute | None = None,
        members: Sequence[NDArray[np.floating]] = (),
    ) -> None:
        if not isinstance(crf, DenseCRF):
            raise TypeError(f"crf must be a DenseCRF, got {type(crf).__name__}")
        self._crf = crf
        self._sampling = Sampling() if sampling is None else sampling
        self._compute = Compute() if compute is None else compute
        self._perturbation = self._sampling.perturbation
        self._perturbation.check(crf.grid)
        self._members = tuple(checks.floats(each, "members") for each in members)
        for each in self._members:
            if each.shape != crf.energies.shape:
                raise ValueError(
                    f"members must have the shape {crf.energies.shape} of the CRF's energies, "
                    f"got {each.shape}"
                )
        if self._members and self._sampling.estimator != "votes":
            raise ValueError(f'members need estimator "votes", got "{self._sampling.estimator}"')

    def with_noise(self, length: NoiseLength) -> Sampler:
        """Return a sampler of the same CRF with noise of another length, on the same engine.

        Asking prepares the engine; the two samplers must not draw at the same time.
        """
        shared = self._sampling.hold == 0  # what an engine holds depends on the noise
        if shared:
            _, _ = self._unperturbed, self.problem
        other = copy(self)
        other._sampling = replace(self._sampling, noise_length=length)
        other._perturbation = other._sampling.perturbation
        other._perturbation.check(self._crf.grid)
        if not shared:
            for name in ("_solver", "_holding"):
                other.__dict__.pop(name, None)
        return other

    @property
    def crf(self) -> DenseCRF:
        """What is sampled."""
        return self._crf

    @property
    def sampling(self) -> Sampling:
        """How it is sampled."""
        return self._sampling

    @property
    def solver(self) -> Solver:
        """The engine; asking prepares it."""
        return self._solver

    @cached_property
    def problem(self) -> str:
        """The digest that names the CRF, and the members where there are any."""
        own = fingerprint(self._crf)
        return digest(own, *self._members) if self._members else own

    def prepare(self) -> Engine:
        """Prepare the engine now and return its name; MemoryError where the CRF does not fit."""
        engine: Engine = self._solver.engine  # type: ignore[assignment]
        return engine

    @property
    def batch(self) -> int:
        """How many samples are solved at once; asking prepares the engine."""
        return self._solver.batch

    def draw(
        self,
        samples: int | range | None = None,
        *,
        after: Posterior | None = None,
        progress: Progress | None = None,
        keep: Keep | None = None,
        keeps_solver: bool = False,
    ) -> Posterior:
        """Draw these samples (all by default), or only those that ``after`` does not hold.

        ``after`` must hold the first of them, from a sampler of the same arguments; the result is
        then the posterior of all, bit for bit what one call gives, also where ``until`` ends it.
        After each batch ``progress`` is called with (samples held, samples asked for), and
        ``keep`` with the numbers of the batch's samples and their labels inside the mask, (B, N);
        with ``keeps_solver`` the solver then still has every one of them.
        """
        numbers = sample_range(self._sampling.samples if samples is None else samples)
        held = 0 if after is None else self._held(after, numbers)
        if after is not None and (held == len(numbers) or self._enough(after.voxel_counts, held)):
            return after
        crf = self._crf
        tally = Tally(crf.grid, crf.n_labels, conditional=self._sampling.estimator == "conditional")
        with ThreadPoolExecutor(1) as beside:  # to name large arrays takes a while of its own
            beside.submit(lambda: self.problem)
            self._tally(tally, numbers, held, after, progress, keep, keeps_solver=keeps_solver)
        drawn = Posterior(
            grid=crf.grid,
            counts=tally.counts.astype(count_type(tally.samples), copy=False),
            sample_index=np.array(numbers[held : held + tally.samples]),
            volumes=tally.sizes * math.prod(crf.grid.spacing),
            problem=self.problem,
            parameters=self._parameters(),
            estimator=self._sampling.estimator,
            conditional=tally.conditional,
            mean_field=self._unperturbed,
            label_changes=tally.label_changes if self._sampling.iterations > 1 else None,
        )
        return drawn if after is None else after.merge(drawn)

    def _tally(
        self,
        tally: Tally,
        numbers: range,
        held: int,
        after: Posterior | None,
        progress: Progress | None,
        keep: Keep | None,
        *,
        keeps_solver: bool,
    ) -> None:
        """Draw the samples that are not held yet, and count them."""
        _, _ = self._unperturbed, self._holding
        block = CHECK_EVERY if self._sampling.until is not None else len(numbers)
        for part in _parts(numbers, held, self._solver.batch, block):
            wanted = {"with_labels": keep is not None, "keeps_solver": keeps_solver}
            settled = self._draw_batch(part, tally, **wanted)
            if keep is not None:
                keep(part, self._solver.labels() if settled is None else settled)
            if progress is not None:
                progress(held + tally.samples, len(numbers))
            if self._enough(tally.counts, held + tally.samples, after):
                break

    @cached_property
    def _solver(self) -> Solver:
        return prepare_with(self._crf, self._compute, compact=True)

    def mean_field(self) -> NDArray[np.floating]:
        """Return the mean field of the CRF itself after as many iterations, (L, N)."""
        return self._unperturbed

    @cached_property
    def _unperturbed(self) -> NDArray[np.floating]:
        """The mean field of the problem itself, (L, N)."""
        sampling = self._sampling
        self._solver.load(self._crf.energies[np.newaxis])
        moved, switched = np.zeros(1), np.ones(1)
        for done in range(sampling.iterations):
            if sampling.tolerance > 0 and _settled(switched, moved, sampling.tolerance, done):
                break
            watched = sampling.tolerance > 0 or done == sampling.iterations - 1
            step = self._solver.step(damping=in_turn(sampling.dampings, done), watched=watched)
            moved, switched = switched, step.switched
        marginals: NDArray[np.floating] = self._solver.marginals()[0]
        return marginals

    def _parameters(self) -> dict[str, object]:
        return {
            "method": "perturb-and-mpm",
            **self._sampling.describe(),
            **({"members": len(self._members)} if self._members else {}),
            **({"hold": self._holding.describe()} if self._holding else {}),
            "engine": self._solver.engine,
            "accuracy": self._solver.accuracy,
            "version": version(),
        }

    @cached_property
    def _holding(self) -> Holding | None:
        """What is held; None where every voxel is updated because nobody asked for less."""
        if self._sampling.hold == 0:
            return None
        if self._members:
            return Holding(self._sampling.hold, None, 1.0, 0.0, "there are several members")
        return hold_certain(self._crf, self._solver, self._sampling)

    def _draw_batch(
        self, part: range, tally: Tally, *, with_labels: bool, keeps_solver: bool
    ) -> NDArray[np.uint8] | None:
        """Draw and count some samples; return labels (B, N) that the solver no longer has."""
        solver, conditional = self._solver, self._sampling.estimator == "conditional"
        start = self._unperturbed if self._sampling.start == "warm" else None
        if self._members:
            unaries = [self._perturbed_member(sample) for sample in part]
            solver.load(unaries, None if start is None else [start] * len(part))
        else:
            solver.perturb(
                self._perturbation,
                np.array(part, dtype=np.int64),
                start,
                sharpness=self._sampling.sharpness,
            )
        if self._sampling.tolerance > 0:
            return self._converge(
                len(part), tally, with_labels=with_labels, keeps_solver=keeps_solver
            )
        switched = np.zeros(len(part))
        for left in range(self._sampling.iterations - 1, -1, -1):
            if left == 0 and conditional:
                tally.add_conditional(solver.conditional())
            switched = solver.step(sharpness=self._sampling.sharpness, watched=left < 2).switched
        if self._sampling.iterations == 0 and conditional:
            tally.add_conditional(solver.conditional())
        tally.add_sizes(solver.count_votes(tally.counts), switched)
        return None

    def _converge(
        self, problems: int, tally: Tally, *, with_labels: bool, keeps_solver: bool
    ) -> NDArray[np.uint8]:
        """Update until every sample has settled, each by its own rule; count it when it does.

        Return the labels they had then, (B, N), where wanted.
        """
        solver, sampling = self._solver, self._sampling
        settled = np.zeros(problems, dtype=np.bool_)
        sizes = np.zeros((problems, self._crf.n_labels), dtype=np.int64)
        moved, switched = np.zeros(problems), np.ones(problems)
        voxels = self._crf.grid.voxels if with_labels else 0
        labels = np.empty((problems, voxels), dtype=np.uint8)
        solved = np.arange(problems)  # the samples that the solver still has
        for done in range(sampling.iterations + 1):
            last = done == sampling.iterations
            now = ~settled & (last | _settled(switched, moved, sampling.tolerance, done))
            if now.any():
                here = now[solved]
                if sampling.estimator == "conditional":
                    tally.add_conditional(solver.conditional(here))
                sizes[now] = solver.count_votes(tally.counts, here)[here]
                if with_labels:
                    labels[now] = solver.labels()[here]
                settled |= now
            if settled.all():
                break
            if not keeps_solver:
                solved = _without_settled(solver, solved, settled)
            damping = in_turn(sampling.dampings, done)
            step = solver.step(damping=damping, sharpness=sampling.sharpness)
            moved, going = switched, ~settled
            switched = switched.copy()
            switched[going] = step.switched[going[solved]]
        tally.add_sizes(sizes, switched)
        return labels

    def _perturbed_member(self, sample: int) -> NDArray[np.float32]:
        """Return the perturbed unaries of a sample's member, (L, N)."""
        member = self._members[sample % len(self._members)]
        unaries: NDArray[np.float32] = self._perturbation.energies(
            member, self._crf.grid, [sample]
        )[0]
        return unaries

    def _enough(self, counts: NDArray[Any], samples: int, after: Posterior | None = None) -> bool:
        """Return whether to stop: asked of every 32 samples' votes, (L, N), those before too."""
        if self._sampling.until is None or samples % CHECK_EVERY != 0:
            return False
        votes = counts if after is None else counts + after.voxel_counts
        return self._sampling.until.is_reached(votes, samples)

    def _held(self, after: Posterior, numbers: range) -> int:
        """Return how many of the samples ``after`` holds, and refuse one that holds others."""
        if after.problem != self.problem or after.parameters != copy_json(
            self._parameters(), "parameters"
        ):
            raise ValueError("after must be of the same problem and parameters, got one of others")
        if not np.array_equal(after.sample_index, numbers[: after.samples]):
            raise ValueError(f"after must hold the first of {numbers}, got {after}")
        return after.samples


def _without_settled(
    solver: Solver, solved: NDArray[np.int64], settled: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Let the solver drop settled samples where half of them are; return which it still has.

    Some may stay, to fill up vectors: so many are updated faster than a few less.
    """
    going = ~settled[solved]
    count = int(going.sum())
    wanted = count if count == 1 else -(-count // VECTOR) * VECTOR
    if 2 * wanted > len(solved):
        wanted = count
    if 2 * wanted > len(solved) or not isinstance(solver, NarrowingSolver):
        return solved
    going[np.flatnonzero(~going)[: wanted - count]] = True
    return solved[going] if solver.go_on_with(going) else solved


def _settled(
    switched: NDArray[np.float64], before: NDArray[np.float64], tolerance: float, done: int
) -> NDArray[np.bool_]:
    """Return which samples have hardly a label left to change, (B,).

    ``switched`` and ``before`` are the shares of labels that the last two updates changed. If every
    later update changes the same share of what the one before it changed, as near a fixed point,
    this sums up to switched·r/(1 − r) with r = switched/before. The first update, from a start
    without messages, is too large to compare with.
    """
    still: NDArray[np.bool_] = switched == 0
    if done < 3:
        return still
    left = switched**2 / np.maximum(before - switched, 1e-300)
    return still | ((switched < before) & (left <= tolerance))


def sample_range(samples: int | range) -> range:
    """Return the numbers of the samples asked for: n means 0 … n − 1."""
    if not isinstance(samples, range):
        return range(checks.integer(samples, "samples", minimum=1, maximum=MOST_SAMPLES))
    if len(samples) == 0 or samples.step != 1 or samples.start < 0 or samples.stop > SAMPLES:
        raise ValueError(
            "samples must be a number or a range that rises by 1 from 0 or more, to 2³² at most, "
            f"got {samples}"
        )
    checks.integer(len(samples), "the length of samples", minimum=1, maximum=MOST_SAMPLES)
    return samples


def _parts(numbers: range, held: int, batch: int, block: int) -> Iterator[range]:
    """Cut a range into blocks, what is left of these after ``held`` numbers into batches."""
    for start in range(numbers.start, numbers.stop, block):
        stop = min(start + block, numbers.stop)
        for first in range(max(start, numbers.start + held), stop, batch):
            yield range(first, min(first + batch, stop))
