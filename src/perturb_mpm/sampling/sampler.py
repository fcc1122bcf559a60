"""A CRF made ready once and sampled range by range: Algorithm 1, batch by batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import cached_property, partial
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from perturb_mpm import checks
from perturb_mpm.engines import Accuracy, Engine, Solver, prepare
from perturb_mpm.model.crf import DenseCRF, fingerprint
from perturb_mpm.noise.fields import Field
from perturb_mpm.noise.gumbel import SAMPLES
from perturb_mpm.noise.perturbation import Perturbation
from perturb_mpm.posterior.posterior import Estimator, Posterior
from perturb_mpm.posterior.precision import Precision
from perturb_mpm.posterior.votes import Tally, count_type, plain
from perturb_mpm.version import version

Start = Literal["cold", "warm"]
Progress = Callable[[int, int], object]
Keep = Callable[[range, NDArray[np.uint8]], object]

# After so many samples each time ``until`` is asked, whatever the batch: the result is the same.
CHECK_EVERY = 32
NOISE_SCALE: dict[str, float] = {"votes": 1.0, "conditional": 0.5}


class Sampler:
    """A CRF ready to be sampled range by range, on an engine that is prepared only once.

    The arguments are those of ``perturb_mpm.sample`` and are checked at once; the first ``draw``
    prepares the engine.
    """

    def __init__(
        self,
        crf: DenseCRF,
        seed: int = 0,
        *,
        iterations: int = 10,
        estimator: Estimator = "votes",
        noise_scale: float | None = None,
        fields: Sequence[Field] = (),
        start: Start = "cold",
        antithetic: bool = False,
        until: Precision | None = None,
        engine: Engine = "auto",
        accuracy: Accuracy = "calibrated",
        batch: int | None = None,
        threads: int | None = None,
        memory_budget: int | str | None = None,
    ) -> None:
        if not isinstance(crf, DenseCRF):
            raise TypeError(f"crf must be a DenseCRF, got {type(crf).__name__}")
        self._crf = crf
        self._iterations = checks.integer(iterations, "iterations", minimum=0)
        checks.choice(estimator, "estimator", get_args(Estimator))
        checks.choice(start, "start", get_args(Start))
        self._estimator, self._start, self._until = estimator, start, until
        scale = NOISE_SCALE[estimator] if noise_scale is None else noise_scale
        scale = checks.number(scale, "noise_scale", minimum=0)
        self._sharpness = _sharpness(estimator, scale)
        self._perturbation = Perturbation(seed, scale, tuple(fields), antithetic)
        self._perturbation.check(crf.grid, crf.n_labels)
        if until is not None:
            _check_until(until, self._perturbation, estimator)
        self._prepared_solver = partial(
            prepare,
            crf,
            engine,
            accuracy,
            batch=batch,
            threads=threads,
            memory_budget=memory_budget,
            compact=True,
        )

    @cached_property
    def problem(self) -> str:
        """The digest that names the CRF."""
        return fingerprint(self._crf)

    def prepare(self) -> Engine:
        """Prepare the engine now and return its name; MemoryError where the CRF does not fit."""
        engine: Engine = self._solver.engine  # type: ignore[assignment]
        return engine

    def draw(
        self,
        samples: int | range,
        *,
        after: Posterior | None = None,
        progress: Progress | None = None,
        keep: Keep | None = None,
    ) -> Posterior:
        """Draw these samples, or only those of them that ``after`` does not hold.

        ``after`` must hold the first of them, from a sampler of the same arguments; the result is
        then the posterior of all, bit for bit what one call gives, also where ``until`` ends it.
        After each batch ``progress`` is called with (samples held, samples asked for), and
        ``keep`` with the numbers of the batch's samples and their labels inside the mask, (B, N).
        """
        numbers = sample_range(samples)
        held = 0 if after is None else self._held(after, numbers)
        if after is not None and (held == len(numbers) or self._enough(after.voxel_counts, held)):
            return after
        crf = self._crf
        tally = Tally(crf.grid, crf.n_labels, conditional=self._estimator == "conditional")
        mean_field = self._unperturbed
        block = CHECK_EVERY if self._until is not None else len(numbers)
        for part in _parts(numbers, held, self._solver.batch, block):
            self._draw_batch(part, tally)
            if keep is not None:
                keep(part, self._solver.labels())
            if progress is not None:
                progress(held + tally.samples, len(numbers))
            if self._enough(tally.counts, held + tally.samples, after):
                break
        drawn = Posterior(
            grid=crf.grid,
            counts=tally.counts.astype(count_type(tally.samples), copy=False),
            sample_index=np.array(numbers[held : held + tally.samples]),
            volumes=tally.sizes * math.prod(crf.grid.spacing),
            problem=self.problem,
            parameters=self._parameters(),
            estimator=self._estimator,
            conditional=tally.conditional,
            mean_field=mean_field,
            label_changes=tally.switched if self._iterations > 1 else None,
        )
        return drawn if after is None else after.merge(drawn)

    @cached_property
    def _solver(self) -> Solver:
        return self._prepared_solver()

    @cached_property
    def _unperturbed(self) -> NDArray[np.floating]:
        """The mean field of the problem itself, (L, N)."""
        self._solver.load(self._crf.energies[np.newaxis])
        for left in range(self._iterations - 1, -1, -1):
            self._solver.step(watched=left == 0)
        marginals: NDArray[np.floating] = self._solver.marginals()[0]
        return marginals

    def _parameters(self) -> dict[str, object]:
        return {
            "method": "perturb-and-mpm",
            "iterations": self._iterations,
            "perturbation": self._perturbation.describe(),
            "sharpness": self._sharpness,
            "start": self._start,
            "until": None if self._until is None else asdict(self._until),
            "engine": self._solver.engine,
            "accuracy": self._solver.accuracy,
            "version": version(),
        }

    def _draw_batch(self, part: range, tally: Tally) -> None:
        solver, conditional = self._solver, self._estimator == "conditional"
        solver.perturb(
            self._perturbation,
            np.array(part, dtype=np.int64),
            self._unperturbed if self._start == "warm" else None,
            sharpness=self._sharpness,
        )
        switched = np.zeros(len(part))
        for left in range(self._iterations - 1, -1, -1):
            if left == 0 and conditional:
                tally.add_conditional(solver.conditional())
            switched = solver.step(sharpness=self._sharpness, watched=left < 2).switched
        if self._iterations == 0 and conditional:
            tally.add_conditional(solver.conditional())
        tally.add_counted(solver.count_votes(tally.counts), switched)

    def _enough(self, counts: NDArray[Any], samples: int, after: Posterior | None = None) -> bool:
        """Return whether to stop: asked of every 32 samples' votes, (L, N), those before too."""
        if self._until is None or samples % CHECK_EVERY != 0:
            return False
        votes = counts if after is None else counts + after.voxel_counts
        return self._until.reached(votes, samples)

    def _held(self, after: Posterior, numbers: range) -> int:
        """Return how many of the samples ``after`` holds, and refuse one that holds others."""
        if after.problem != self.problem or after.parameters != plain(
            self._parameters(), "parameters"
        ):
            raise ValueError("after must be of the same problem and parameters, got one of others")
        if not np.array_equal(after.sample_index, numbers[: after.samples]):
            raise ValueError(f"after must hold the first of {numbers}, got {after}")
        return after.samples


def sample_range(samples: int | range) -> range:
    """Return the numbers of the samples asked for: n means 0 … n − 1."""
    if not isinstance(samples, range):
        return range(checks.integer(samples, "samples", minimum=1, maximum=SAMPLES))
    if len(samples) == 0 or samples.step != 1 or samples.start < 0 or samples.stop > SAMPLES:
        raise ValueError(
            "samples must be a number or a range that rises by 1 from 0 or more, to 2³² at most, "
            f"got {samples}"
        )
    return samples


def _parts(numbers: range, held: int, batch: int, block: int) -> Iterator[range]:
    """Cut a range into blocks, what is left of these after ``held`` numbers into batches."""
    for start in range(numbers.start, numbers.stop, block):
        stop = min(start + block, numbers.stop)
        for first in range(max(start, numbers.start + held), stop, batch):
            yield range(first, min(first + batch, stop))


def _sharpness(estimator: Estimator, scale: float) -> float:
    """Return β of τ² + 1/β² = 1: the noise left out of the votes is in the softmax instead."""
    if estimator == "votes":
        return 1.0
    if scale >= 1:
        raise ValueError(
            f'noise_scale must be below 1 with estimator "conditional", got {scale}: 0.5 is usual'
        )
    return 1 / math.sqrt(1 - scale**2)


def _check_until(until: Precision, perturbation: Perturbation, estimator: Estimator) -> None:
    if not isinstance(until, Precision):
        raise TypeError(f"until must be a Precision, got {type(until).__name__}")
    if estimator != "votes":
        raise ValueError(f'until needs estimator "votes", got "{estimator}": it counts votes')
    if perturbation.antithetic:
        raise ValueError("until needs independent samples, got antithetic=True")
