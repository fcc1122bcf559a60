"""Perturb-and-MPM: segmentations sampled from a dense CRF, and counted batch by batch.

Each sample perturbs the unary energies with Gumbel noise, solves the mean field of the perturbed
problem from a cold start, and takes every voxel's most probable label (Meier et al. 2017,
Algorithm 1, with the sign of the noise corrected: energies are lowered by it).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm import checks
from perturb_mpm.engines import (
    Accuracy,
    Compute,
    Engine,
    FreezingSolver,
    NarrowingSolver,
    ReweighingSolver,
    Solver,
    prepare_with,
)
from perturb_mpm.inference import Schedule, run_updates
from perturb_mpm.model import DenseCRF, Grid, digest, fingerprint
from perturb_mpm.noise import SAMPLES, NoiseLength, Perturbation
from perturb_mpm.optional import optional_package
from perturb_mpm.posterior import Estimator, Posterior, Precision, Tally, copy_json, count_type
from perturb_mpm.progress import Progress, progress_from
from perturb_mpm.sampling.freezing import FreezeRule, Freezing, NoiseGroup, find_frozen, group_size
from perturb_mpm.sampling.settings import MOST_SAMPLES, Sampling, Start
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
        checks.instance(crf, "crf", DenseCRF)
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
        self._forgot_whole = False
        self._forget_noise()

    @property
    def crf(self) -> DenseCRF:
        """What is sampled."""
        return self._crf

    @property
    def sampling(self) -> Sampling:
        """How it is sampled."""
        return self._sampling

    @cached_property
    def solver(self) -> Solver:
        """The engine; asking prepares it."""
        return prepare_with(self._crf, self._compute, compact=True)

    @property
    def batch(self) -> int:
        """How many samples are solved at once; asking prepares the engine."""
        return self.solver.batch

    @cached_property
    def problem(self) -> str:
        """The digest that names the CRF, and the members where there are any."""
        own = fingerprint(self._crf)
        return digest(own, *self._members) if self._members else own

    @property
    def active(self) -> NDArray[np.bool_]:
        """The voxels that all samples update, (N,); asking prepares the engine."""
        active = np.ones(self._crf.grid.voxels, dtype=np.bool_)
        for group in range(-(-self._sampling.samples // group_size(self._sampling))):
            freezing = self._freezing_of(group)
            if freezing is not None and freezing.frozen is not None:
                active &= np.isin(np.arange(len(active)), freezing.frozen.active)
        return active

    def prepare(self) -> Engine:
        """Prepare the engine now and return its name; MemoryError where the CRF does not fit."""
        engine: Engine = self.solver.engine  # type: ignore[assignment]
        return engine

    def mean_field(self) -> NDArray[np.floating]:
        """Return the mean field of the CRF itself after as many iterations, (L, N)."""
        return self._mean_field

    def scale_kernels(self, factor: float) -> Sampler:
        """Return a sampler of the CRF with kernels of ``factor`` times the weight.

        It goes on with this one's engine where that is prepared and can: then this one must not
        draw any more.
        """
        self._remember_whole()
        other = copy(self)
        other._crf = self._crf.scale_kernels(factor)
        for name in ("problem", "solver", "_freezing_solver", "_mean_field"):
            other.__dict__.pop(name, None)
        other._forget_noise()
        solver = self.__dict__.get("solver")
        if isinstance(solver, ReweighingSolver) and solver.reweigh(other._crf):
            other.__dict__["solver"] = self.__dict__.pop("solver")
        return other

    def forget_whole(self) -> None:
        """Let go of the kernels of all voxels where samples need those of active voxels alone.

        They are prepared again should anything ask for them, which takes as long as the first time.
        """
        if self._freezing_solver is None or self._sampling.samples > group_size(self._sampling):
            return
        self.mean_field()  # which every posterior has: now it can still be solved
        freezing = self._freezing_of(0)
        if freezing is not None and freezing.frozen is not None:
            self._freezing_solver.freeze(freezing.frozen)
            self._freezing_solver.forget_whole()
            self._forgot_whole = True

    def with_perturbation(self, perturbation: Perturbation) -> Sampler:
        """Return a sampler of the same CRF, on the same engine, with noise drawn outside of it.

        It is slower than the engine's own noise, and no voxel is frozen; the two samplers must not
        draw at the same time.
        """
        if self._sampling.estimator != "votes":
            raise ValueError('perturbation needs estimator "votes"')
        perturbation.check(self._crf.grid)
        self._remember_whole()
        other = copy(self)
        other._sampling = replace(self._sampling, hold=0.0)
        other._forget_noise()
        other._perturbation = perturbation
        other._members = self._members or (self._crf.energies,)
        return other

    def draw(
        self,
        samples: int | range | None = None,
        *,
        after: Posterior | None = None,
        progress: Progress | None = None,
        keep: Keep | None = None,
        keeps_solver: bool = False,
        starts: list[NDArray[np.int64]] | None = None,
    ) -> Posterior:
        """Draw these samples (all by default), or only those that ``after`` does not have.

        ``after`` must have the first of them, from a sampler of the same arguments; the result is
        then the posterior of all, bit for bit what one call gives, also where ``until`` ends it.
        After each batch ``progress`` is called with (samples drawn, samples asked for), and
        ``keep`` with the numbers of the batch's samples and their labels inside the mask, (B, N);
        with ``keeps_solver`` the solver then still has every one of them. ``starts`` gets the sizes
        of each label (B, L) in voxels before any kernel has moved them.
        """
        numbers = sample_range(self._sampling.samples if samples is None else samples)
        drawn = 0 if after is None else self._count_drawn(after, numbers)
        if after is not None and (drawn == len(numbers) or self._enough(after.voxel_counts, drawn)):
            return after
        crf = self._crf
        tally = Tally(crf.grid, crf.n_labels, conditional=self._sampling.estimator == "conditional")
        with ThreadPoolExecutor(1) as beside:  # hashing large arrays is slow: do it in parallel
            beside.submit(lambda: self.problem)
            solver, mean_field = self.solver, self._mean_field
            wanted = _BatchOutput(keep is not None, keeps_solver, starts)
            block = CHECK_EVERY if self._sampling.until is not None else len(numbers)
            for part in self._parts(numbers, drawn, block):
                self._freeze(part.start // group_size(self._sampling))
                labels = self._draw_batch(part, tally, wanted)
                if keep is not None:
                    keep(part, solver.labels() if labels is None else labels)
                if progress is not None:
                    progress(drawn + tally.samples, len(numbers))
                if self._enough(tally.counts, drawn + tally.samples, after):
                    break
        posterior = Posterior(
            grid=crf.grid,
            counts=tally.counts.astype(count_type(tally.samples), copy=False),
            sample_index=np.array(numbers[drawn : drawn + tally.samples]),
            volumes=tally.sizes * math.prod(crf.grid.spacing),
            problem=self.problem,
            parameters=self._parameters(),
            estimator=self._sampling.estimator,
            conditional=tally.conditional,
            mean_field=mean_field,
            label_changes=tally.label_changes if self._sampling.iterations > 1 else None,
        )
        return posterior if after is None else after.merge(posterior)

    @cached_property
    def _freezing_solver(self) -> FreezingSolver | None:
        """The engine where it can freeze voxels; asking a protocol reads all that it offers."""
        return self.solver if isinstance(self.solver, FreezingSolver) else None

    @cached_property
    def _mean_field(self) -> NDArray[np.floating]:
        """The mean field of the problem itself, (L, N)."""
        solver, tolerance = self.solver, self._sampling.tolerance
        solver.load(self._crf.energies[np.newaxis])
        before, switched = np.zeros(1), np.ones(1)
        schedule = replace(self._schedule, sharpness=1.0)
        for done, change in enumerate(run_updates(solver, schedule), start=1):
            before, switched = switched, change.switched
            if tolerance > 0 and _converged(switched, before, tolerance, done):
                break
        marginals: NDArray[np.floating] = solver.marginals()[0]
        return marginals

    def _forget_noise(self) -> None:
        """Forget all that depends on the noise."""
        # What the first group of samples freezes, and the one that was asked for last.
        self._freezings: dict[int, Freezing] = {}

    def _freezing_of(self, group: int) -> Freezing | None:
        """Return what samples of a group freeze, None where nobody asked for any freezing."""
        if self._sampling.hold == 0:
            return None
        if self._members:
            return Freezing(self._sampling.hold, None, 1.0, 0.0, "there are several members")
        if group not in self._freezings:
            self._remember_whole()
            together = None
            if self._sampling.correlated:
                together = NoiseGroup(self._perturbation, group, self._mean_field)
            rule = FreezeRule.from_sampling(self._sampling, self._compute.threads)
            first = {number: each for number, each in self._freezings.items() if number == 0}
            found = find_frozen(self._crf, self.solver, rule, together)
            self._freezings = {**first, group: found}
        return self._freezings[group]

    def _remember_whole(self) -> None:
        """Prepare the engine anew where it has forgotten what all voxels need."""
        if self._forgot_whole:
            self._forgot_whole = False
            for name in ("solver", "_freezing_solver"):
                self.__dict__.pop(name, None)

    def _freeze(self, group: int) -> None:
        """Let the solver freeze what samples of a group do."""
        if self._freezing_solver is not None:
            freezing = self._freezing_of(group)
            self._freezing_solver.freeze(None if freezing is None else freezing.frozen)

    @property
    def _schedule(self) -> Schedule:
        """How each sample is updated."""
        sampling = self._sampling
        watch = sampling.tolerance > 0
        return Schedule(sampling.iterations, sampling.dampings, sampling.sharpness, watch_all=watch)

    def _draw_batch(
        self, part: range, tally: Tally, wanted: _BatchOutput
    ) -> NDArray[np.uint8] | None:
        """Draw and count some samples; return labels (B, N) that the solver no longer has."""
        solver, iterations = self.solver, self._sampling.iterations
        fill = 0 if wanted.every_problem else self._count_fill(part)
        self._begin([*part, *[part[-1]] * fill])
        if wanted.starts is not None:
            starts = solver.count_votes(np.zeros_like(tally.counts))
            wanted.starts.append(starts[: len(part)])
        if self._sampling.tolerance > 0:
            return self._converge(len(part), fill, tally, wanted)
        updates = run_updates(solver, self._schedule)
        last = deque(islice(updates, max(iterations - 1, 0)), maxlen=1)
        if self._sampling.estimator == "conditional":
            tally.add_conditional(solver.conditional())
        last.extend(updates)
        switched = last[0].switched if last else np.zeros(len(part))
        tally.add_sizes(solver.count_votes(tally.counts), switched)
        return None

    def _count_fill(self, part: range) -> int:
        """Return how many samples to solve once more so that all fill up vectors.

        With frozen voxels 32 samples take less than 31; nobody counts those that only fill up.
        """
        filled = -(-len(part) // VECTOR) * VECTOR
        freezing = self._freezing_of(part.start // group_size(self._sampling))
        frozen = freezing is not None and freezing.frozen is not None
        worth = frozen and self._sampling.tolerance > 0 and len(part) > VECTOR // 2
        return filled - len(part) if worth and filled <= self.solver.batch else 0

    def _begin(self, part: Sequence[int]) -> None:
        """Let the solver take the perturbed problems of some samples."""
        start = self._mean_field if self._sampling.start == "warm" else None
        if self._members:
            unaries = [self._perturb_member(sample) for sample in part]
            self.solver.load(unaries, None if start is None else [start] * len(part))
            return
        numbers = np.array(part, dtype=np.int64)
        sharpness = self._sampling.sharpness
        self.solver.perturb(self._perturbation, numbers, start, sharpness=sharpness)

    def _converge(
        self, samples: int, fill: int, tally: Tally, wanted: _BatchOutput
    ) -> NDArray[np.uint8]:
        """Update until every sample has converged, each by its own rule; count it when it does.

        Return the labels they had then, (B, N), where wanted. The last ``fill`` problems of the
        solver count as converged from the start.
        """
        solver, sampling = self.solver, self._sampling
        problems = samples + fill
        converged = np.arange(problems) >= samples
        sizes = np.zeros((problems, self._crf.n_labels), dtype=np.int64)
        before, switched = np.zeros(problems), np.ones(problems)
        voxels = self._crf.grid.voxels if wanted.labels else 0
        labels = np.empty((samples, voxels), dtype=np.uint8)
        solved = np.arange(problems)  # those that the solver still has
        updates = run_updates(solver, self._schedule)
        for done in range(sampling.iterations + 1):
            last = done == sampling.iterations
            now = ~converged & (last | _converged(switched, before, sampling.tolerance, done))
            if now.any():
                here = now[solved]
                if sampling.estimator == "conditional":
                    tally.add_conditional(solver.conditional(here))
                sizes[now] = solver.count_votes(tally.counts, here)[here]
                if wanted.labels:
                    labels[now[:samples]] = solver.labels()[here]
                converged |= now
            if converged.all():
                break
            if not wanted.every_problem:
                solved = _drop_converged(solver, solved, converged)
            change, going = next(updates), ~converged
            before, switched = switched, switched.copy()
            switched[going] = change.switched[going[solved]]
        tally.add_sizes(sizes[:samples], switched[:samples])
        return labels

    def _perturb_member(self, sample: int) -> NDArray[np.float32]:
        """Return the perturbed unaries of a sample's member, (L, N)."""
        member = self._members[sample % len(self._members)]
        unaries: NDArray[np.float32] = self._perturbation.energies(
            member, self._crf.grid, [sample]
        )[0]
        return unaries

    def _parameters(self) -> dict[str, object]:
        freezing, solver = self._freezing_of(0), self.solver
        return {
            "method": "perturb-and-mpm",
            **self._sampling.describe(),
            **({"members": len(self._members)} if self._members else {}),
            **({"hold": freezing.describe()} if freezing else {}),
            "engine": solver.engine,
            "accuracy": solver.accuracy,
            "version": version(),
        }

    def _parts(self, numbers: range, drawn: int, block: int) -> Iterator[range]:
        """Cut a range into blocks, what is left of these after ``drawn`` numbers into batches.

        No batch has samples of two groups.
        """
        size, first = group_size(self._sampling), numbers.start + drawn
        while first < numbers.stop:
            end_of_block = numbers.start + (1 + (first - numbers.start) // block) * block
            end_of_group = (1 + first // size) * size
            stop = min(first + self.solver.batch, end_of_block, end_of_group, numbers.stop)
            yield range(first, stop)
            first = stop

    def _enough(self, counts: NDArray[Any], samples: int, after: Posterior | None = None) -> bool:
        """Return whether to stop: asked of every 32 samples' votes, (L, N), those before too."""
        if self._sampling.until is None or samples % CHECK_EVERY != 0:
            return False
        votes = counts if after is None else counts + after.voxel_counts
        return self._sampling.until.is_reached(votes, samples)

    def _count_drawn(self, after: Posterior, numbers: range) -> int:
        """Return how many of the samples ``after`` has, and refuse one that has others."""
        if after.problem != self.problem or after.parameters != copy_json(
            self._parameters(), "parameters"
        ):
            raise ValueError("after must be of the same problem and parameters, got one of others")
        if not np.array_equal(after.sample_index, numbers[: after.samples]):
            raise ValueError(f"after must hold the first of {numbers}, got {after}")
        return after.samples


@dataclass(frozen=True)
class _BatchOutput:
    """What is wanted of a batch beside its votes."""

    labels: bool
    every_problem: bool = False  # whether the solver must still have all of them
    starts: list[NDArray[np.int64]] | None = None  # gets label sizes before the first update


def _drop_converged(
    solver: Solver, solved: NDArray[np.int64], converged: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Let the solver drop converged samples where half of them are; return which it still has.

    Some may stay, to fill up vectors: so many are updated faster than a few less.
    """
    going = ~converged[solved]
    count = int(going.sum())
    wanted = count if count == 1 else -(-count // VECTOR) * VECTOR
    if 2 * wanted > len(solved):
        wanted = count
    if 2 * wanted > len(solved) or not isinstance(solver, NarrowingSolver):
        return solved
    going[np.flatnonzero(~going)[: wanted - count]] = True
    return solved[going] if solver.drop_converged(going) else solved


def _converged(
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


class SampleStore:
    """An array (S, *spatial) of uint8 in a new folder, 0 outside the mask.

    The first sample's number is in its attribute ``first_sample``.
    """

    def __init__(self, folder: Path, numbers: range, grid: Grid) -> None:
        self._zarr = optional_package("zarr", "storing samples")
        if folder.exists():
            raise FileExistsError(f"store must be a new folder, got {folder}, which exists")
        self._folder, self._numbers, self._grid = folder, numbers, grid
        self._array: Any = None

    def write(self, part: range, labels: NDArray[np.uint8]) -> None:
        """Write the samples of a batch, (B, N); the folder is made with the first."""
        if self._array is None:
            self._array = self._zarr.create_array(
                store=str(self._folder),
                shape=(len(self._numbers), *self._grid.shape),
                chunks=(1, *self._grid.shape),
                dtype="uint8",
                attributes={
                    "first_sample": self._numbers.start,
                    "spacing_mm": list(self._grid.spacing),
                },
            )
        first = part.start - self._numbers.start
        self._array[first : first + len(part)] = self._grid.scatter(labels, 0)

    def finish(self, samples: int) -> None:
        """Cut the array to the samples that were drawn."""
        self._array.resize((samples, *self._grid.shape))


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


def sample(
    crf: DenseCRF,
    samples: int | range = 200,
    seed: int = 0,
    *,
    iterations: int = 10,
    estimator: Estimator = "votes",
    noise_scale: float | None = None,
    noise_length: NoiseLength = 0.0,
    start: Start = "cold",
    antithetic: bool = False,
    tolerance: float = 0.0,
    hold: float = 0.0,
    until: Precision | float | None = None,
    engine: Engine = "auto",
    accuracy: Accuracy = "calibrated",
    batch: int | None = None,
    threads: int | None = None,
    memory: int | str | None = None,
    kernel_cache: str | Path | None = None,
    progress: Progress | bool | None = None,
    store: str | Path | None = None,
) -> Posterior:
    """Sample segmentations of a CRF.

    The noise of a voxel is a pure function of the seed, the sample's number, the voxel and the
    label: batch, threads and interruptions change nothing, and ranges of samples add up (``merge``)
    to what one run gives.

    Parameters
    ----------
    crf
        The model.
    samples
        How many samples, or which: ``range(100, 200)``.
    seed
        Names the noise, 0 to 2⁶⁴ − 1.
    iterations
        Mean-field updates of each sample.
    estimator
        What the posterior's marginals are: "votes" counts each sample's labels (the paper);
        "conditional" averages softmax(−U − pairwise): the voxel's own noise is
        integrated out.
    noise_scale
        Multiplies the Gumbel noise; None means 1 for votes and 0.5 for conditional. There the
        messages are computed from softmax(β·logits) with 1/β² = 1 − noise_scale².
    noise_length
        Correlation length of the noise in mm: 0 is the paper's white noise, ``math.inf`` one draw
        for the whole image, and ``[(40, 0.7), (0, 0.3)]`` a mixture of lengths with weights. The
        law of the noise at each voxel is Gumbel's whatever it is, so
        without coupling the votes follow softmax(−U); but volumes spread as whole regions err.
    start
        "cold" starts each sample at its own softmax(−Ũ). "warm" starts at the unperturbed mean
        field, which changes the law of the samples: not what the paper means.
    antithetic
        Make samples 2t and 2t + 1 opposites, which halves the variance of means.
    tolerance
        Let each sample converge: stop as soon as about this share of its labels would still
        change, by the last two updates; ``iterations`` is then the most. Updates go further than
        plain ones, to the same fixed points in fewer steps. 0 makes ``iterations`` updates.
    hold
        Update only the voxels where a sample dissents with a probability above this, and freeze
        the others at marginals averaged over the noise: 0.005 changes fewer votes than the
        filter's own error, and costs several times less. 0 updates every voxel.
        Where noise is correlated between voxels, those are updated too that the noise of any of 224
        samples brings near to another label. Where too many are, or the engine is the GPU, every
        voxel is updated; ``Posterior.active_share`` is then 1.
    until
        Stop as soon as this precision is reached (a number is its epsilon), asked after every 32
        samples; ``samples`` is then the most to draw.
    engine, accuracy, batch, threads, memory, kernel_cache
        Where and how it is computed, see ``perturb_mpm.engines.prepare``.
    progress
        True shows a line on stderr; a function is called with (samples done, samples asked for)
        after each batch.
    store
        A folder for the label maps of all samples, (S, *spatial) uint8 in Zarr, one chunk a sample
        (needs the extra ``zarr``).

    Examples
    --------
    >>> unary = pm.unary_from_probabilities([[0.9, 0.5], [0.1, 0.5]])
    >>> posterior = pm.sample(pm.DenseCRF(unary), samples=4000, seed=7, engine="reference")
    >>> posterior.marginals.round(2)  # without coupling, votes follow the probabilities
    array([[0.9, 0.5],
           [0.1, 0.5]])
    """
    numbers, shown = sample_range(samples), progress_from(progress)
    sampling = Sampling(
        samples=len(numbers),
        seed=seed,
        iterations=iterations,
        until=until,  # type: ignore[arg-type]  # a number becomes a Precision
        estimator=estimator,
        noise_scale=noise_scale,
        noise_length=noise_length,
        start=start,
        antithetic=antithetic,
        tolerance=tolerance,
        hold=hold,
    )
    compute = Compute(engine, accuracy, batch, threads, memory, kernel_cache)
    sampler = Sampler(crf, sampling, compute)
    if sampling.until is not None:
        sampling.until.check_reachable(len(numbers), crf.n_labels, crf.grid.voxels)
    if store is None:
        return sampler.draw(numbers, progress=shown)
    samples_on_disk = SampleStore(Path(store), numbers, crf.grid)
    posterior = sampler.draw(numbers, progress=shown, keep=samples_on_disk.write)
    samples_on_disk.finish(posterior.samples)
    return posterior
