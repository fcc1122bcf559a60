"""Perturb-and-MPM: segmentations sampled from a dense CRF, and counted.

Each sample perturbs the unary energies with Gumbel noise, solves the mean field of the perturbed
problem from a cold start, and takes every voxel's most probable label (Meier et al. 2017,
Algorithm 1, with the sign of the noise corrected: energies are lowered by it).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from perturb_mpm import checks
from perturb_mpm.crf import DenseCRF
from perturb_mpm.engines import Accuracy, Engine, Solver, prepare
from perturb_mpm.fields import Field
from perturb_mpm.fingerprint import fingerprint
from perturb_mpm.noise import SAMPLES
from perturb_mpm.perturbation import Perturbation
from perturb_mpm.posterior import Estimator, Posterior
from perturb_mpm.posterior_parts import count_type
from perturb_mpm.precision import Precision
from perturb_mpm.sample_store import SampleStore
from perturb_mpm.tally import Tally
from perturb_mpm.version import version

Start = Literal["cold", "warm"]
Progress = Callable[[int, int], object]

# After so many samples each time ``until`` is asked, whatever the batch: the result is the same.
CHECK_EVERY = 32
NOISE_SCALE: dict[str, float] = {"votes": 1.0, "conditional": 0.5}


def sample(
    crf: DenseCRF,
    samples: int | range = 200,
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
    progress: Progress | None = None,
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
        "conditional" averages softmax(−U + fields − pairwise): the voxel's own noise is
        integrated out.
    noise_scale
        Multiplies the Gumbel noise; None means 1 for votes and 0.5 for conditional. There the
        messages are computed from softmax(β·logits) with 1/β² = 1 − noise_scale².
    fields
        Smooth random fields beside the voxel noise; without them sampled volumes are far too
        certain. None is the paper.
    start
        "cold" starts each sample at its own softmax(−Ũ). "warm" starts at the unperturbed mean
        field, which changes the law of the samples: not what the paper means.
    antithetic
        Make samples 2t and 2t + 1 opposites, which halves the variance of means.
    until
        Stop as soon as this precision is reached, asked after every 32 samples; ``samples`` is
        then the most to draw.
    engine, accuracy, batch, threads, memory_budget
        Where and how it is computed, see ``perturb_mpm.engines.prepare``.
    progress
        Called with (samples done, samples asked for) after each batch.
    store
        A folder for the label maps of all samples, (S, *spatial) uint8 in Zarr, one chunk a sample
        (needs the extra ``zarr``).
    """
    if not isinstance(crf, DenseCRF):
        raise TypeError(f"crf must be a DenseCRF, got {type(crf).__name__}")
    numbers = sample_range(samples)
    iterations = checks.integer(iterations, "iterations", minimum=0)
    checks.choice(estimator, "estimator", get_args(Estimator))
    checks.choice(start, "start", get_args(Start))
    scale = NOISE_SCALE[estimator] if noise_scale is None else noise_scale
    scale = checks.number(scale, "noise_scale", minimum=0)
    sharpness = _sharpness(estimator, scale)
    perturbation = Perturbation(seed, scale, tuple(fields), antithetic)
    perturbation.check(crf.grid, crf.n_labels)
    if until is not None:
        _check_until(until, perturbation, estimator, len(numbers), crf)
    samples_on_disk = None if store is None else SampleStore(Path(store), numbers, crf.grid)
    batch_limit = CHECK_EVERY if until is not None else len(numbers)

    solver = prepare(
        crf,
        engine,
        accuracy,
        batch=batch,
        threads=threads,
        memory_budget=memory_budget,
        compact=True,
    )
    unperturbed = _unperturbed(crf, solver, iterations)  # (L, N)
    tally = Tally(crf.grid, crf.n_labels, conditional=estimator == "conditional")
    for part in _parts(numbers, solver.batch, batch_limit):
        solver.perturb(
            perturbation,
            np.array(part, dtype=np.int64),
            unperturbed if start == "warm" else None,
            sharpness=sharpness,
        )
        switched = np.zeros(len(part))
        for left in range(iterations - 1, -1, -1):
            if left == 0 and estimator == "conditional":
                tally.add_conditional(solver.conditional())
            switched = solver.step(sharpness=sharpness, watched=left < 2).switched
        if iterations == 0 and estimator == "conditional":
            tally.add_conditional(solver.conditional())
        tally.add_counted(solver.count_votes(tally.counts), switched)
        if samples_on_disk is not None:
            samples_on_disk.write(part, solver.labels())
        if progress is not None:
            progress(tally.samples, len(numbers))
        checked = tally.samples % CHECK_EVERY == 0
        if until is not None and checked and until.reached(tally.counts, tally.samples):
            break
    if samples_on_disk is not None:
        samples_on_disk.finish(tally.samples)

    return Posterior(
        grid=crf.grid,
        counts=tally.counts.astype(count_type(tally.samples), copy=False),
        sample_index=np.array(numbers[: tally.samples]),
        volumes=tally.sizes * math.prod(crf.grid.spacing),
        problem=fingerprint(crf),
        parameters={
            "method": "perturb-and-mpm",
            "iterations": iterations,
            "perturbation": perturbation.describe(),
            "sharpness": sharpness,
            "start": start,
            "until": None if until is None else asdict(until),
            "engine": solver.engine,
            "accuracy": solver.accuracy,
            "version": version(),
        },
        estimator=estimator,
        conditional=tally.conditional,
        mean_field=unperturbed,
        label_changes=tally.switched if iterations > 1 else None,
    )


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


def _parts(numbers: range, batch: int, block: int) -> Iterator[range]:
    """Cut a range into blocks, and these into batches."""
    for start in range(numbers.start, numbers.stop, block):
        stop = min(start + block, numbers.stop)
        for first in range(start, stop, batch):
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


def _check_until(
    until: Precision, perturbation: Perturbation, estimator: Estimator, most: int, crf: DenseCRF
) -> None:
    if not isinstance(until, Precision):
        raise TypeError(f"until must be a Precision, got {type(until).__name__}")
    if estimator != "votes":
        raise ValueError(f'until needs estimator "votes", got "{estimator}": it counts votes')
    if perturbation.antithetic:
        raise ValueError("until needs independent samples, got antithetic=True")
    until.check_reachable(most, crf.n_labels, crf.grid.voxels)


def _unperturbed(crf: DenseCRF, solver: Solver, iterations: int) -> NDArray[np.floating]:
    """Return the mean field of the problem itself, (L, N)."""
    solver.load(crf.energies[np.newaxis])
    for left in range(iterations - 1, -1, -1):
        solver.step(watched=left == 0)
    marginals: NDArray[np.floating] = solver.marginals()[0]
    return marginals
