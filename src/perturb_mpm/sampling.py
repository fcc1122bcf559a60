"""Perturb-and-MPM: segmentations sampled from a dense CRF, and counted.

Each sample perturbs the unary energies with Gumbel noise, solves the mean field of the perturbed
problem from a cold start, and takes every voxel's most probable label (Meier et al. 2017,
Algorithm 1, with the sign of the noise corrected: energies are lowered by it).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from perturb_mpm.crf import DenseCRF
from perturb_mpm.engines import Accuracy, Engine
from perturb_mpm.fields import Field
from perturb_mpm.posterior import Estimator, Posterior
from perturb_mpm.precision import Precision
from perturb_mpm.sample_store import SampleStore
from perturb_mpm.sampler import Progress, Sampler, Start, sample_range


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
    sampler = Sampler(
        crf,
        seed,
        iterations=iterations,
        estimator=estimator,
        noise_scale=noise_scale,
        fields=fields,
        start=start,
        antithetic=antithetic,
        until=until,
        engine=engine,
        accuracy=accuracy,
        batch=batch,
        threads=threads,
        memory_budget=memory_budget,
    )
    numbers = sample_range(samples)
    if until is not None:
        until.check_reachable(len(numbers), crf.n_labels, crf.grid.voxels)
    if store is None:
        return sampler.draw(numbers, progress=progress)
    samples_on_disk = SampleStore(Path(store), numbers, crf.grid)
    posterior = sampler.draw(numbers, progress=progress, keep=samples_on_disk.write)
    samples_on_disk.finish(posterior.samples)
    return posterior
