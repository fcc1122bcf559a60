"""Perturb-and-MPM: segmentations sampled from a dense CRF, and counted.

Each sample perturbs the unary energies with Gumbel noise, solves the mean field of the perturbed
problem from a cold start, and takes every voxel's most probable label (Meier et al. 2017,
Algorithm 1, with the sign of the noise corrected: energies are lowered by it).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.engines import Accuracy, Compute, Engine
from perturb_mpm.model import DenseCRF, Grid
from perturb_mpm.noise import NoiseLength
from perturb_mpm.optional import optional_package
from perturb_mpm.posterior import Estimator, Posterior, Precision
from perturb_mpm.progress import Progress, progress_from
from perturb_mpm.sampling.sampler import Sampler, sample_range
from perturb_mpm.sampling.settings import Sampling, Start


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
            self._array = self._create()
        first = part.start - self._numbers.start
        self._array[first : first + len(part)] = self._grid.scatter(labels, 0)

    def finish(self, samples: int) -> None:
        """Cut the array to the samples that were drawn."""
        self._array.resize((samples, *self._grid.shape))

    def _create(self) -> Any:  # noqa: ANN401
        return self._zarr.create_array(
            store=str(self._folder),
            shape=(len(self._numbers), *self._grid.shape),
            chunks=(1, *self._grid.shape),
            dtype="uint8",
            attributes={
                "first_sample": self._numbers.start,
                "spacing_mm": list(self._grid.spacing),
            },
        )


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
        Over how many mm the noise of neighbouring voxels goes together: 0 is the paper's white
        noise, ``math.inf`` one draw for the whole image, and ``[(40, 0.7), (0, 0.3)]`` a mixture
        of lengths with weights. The law of the noise at each voxel is Gumbel's whatever it is, so
        without coupling the votes follow softmax(−U); but volumes spread as whole regions err.
    start
        "cold" starts each sample at its own softmax(−Ũ). "warm" starts at the unperturbed mean
        field, which changes the law of the samples: not what the paper means.
    antithetic
        Make samples 2t and 2t + 1 opposites, which halves the variance of means.
    tolerance
        Let each sample converge: stop as soon as about this share of its labels would still
        change, by the last two updates; ``iterations`` is then the most. Updates go further than
        the paper's, to the same fixed points in fewer steps. 0 makes ``iterations`` updates.
    hold
        Update only the voxels where a sample dissents with a probability above this, and hold the
        others at marginals averaged over the noise: 0.005 changes fewer votes than the filter's
        own error, and costs several times less. 0 updates every voxel, as the paper does. Where
        noise goes together between voxels, or too many are active, every voxel is updated too;
        ``Posterior.active_share`` is then 1.
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
