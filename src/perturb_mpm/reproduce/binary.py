"""The measurements on binary grids: error along the samples, and over weight and width."""

from __future__ import annotations

from collections.abc import Sequence

from perturb_mpm.comparators import Enumeration
from perturb_mpm.crf import DenseCRF
from perturb_mpm.reproduce import synthetic
from perturb_mpm.reproduce.rows import Measure, Row
from perturb_mpm.reproduce.synthetic import Setting


def noise_seed(seed: int, draw: int) -> int:
    """Return the seed of the noise of one draw: no two runs or draws share theirs."""
    return seed << 32 | draw


def posed(
    experiment: str, voxels: int, draw: int, setting: Setting
) -> tuple[DenseCRF, Enumeration, Measure]:
    """Return a problem, all its labellings, and what measures errors against them."""
    crf = synthetic.problem(voxels, draw, setting)
    every = Enumeration(crf)
    return crf, every, Measure(experiment, setting, draw, every.marginals[1].ravel())


def curve(voxels: int, draw: int, setting: Setting, sizes: Sequence[int], seed: int) -> list[Row]:
    """Measure mean field, votes and the conditional estimator along the number of samples."""
    crf, _, measure = posed("curves", voxels, draw, setting)
    noise = noise_seed(seed, draw)
    return [
        measure.estimate("mean field", synthetic.mean_field_marginals(crf), None),
        *measure.counts("votes", synthetic.votes(crf, sizes, noise), sizes),
        *measure.estimates(
            "conditional", synthetic.conditional_marginals(crf, sizes, noise), sizes
        ),
    ]


def map_point(
    voxels: Sequence[int], draws: int, setting: Setting, samples: int, seed: int
) -> list[Row]:
    """Measure the same three at one weight and width, and what perfect samples would give."""
    sizes = [samples]
    rows = []
    for size in voxels:
        for draw in range(draws):
            crf, every, measure = posed("map", size, draw, setting)
            noise = noise_seed(seed, draw)
            perfect = every.draw(range(samples), noise).sum(axis=0, keepdims=True)  # (1, N)
            conditional = synthetic.conditional_marginals(crf, sizes, noise)
            rows += [
                measure.estimate("mean field", synthetic.mean_field_marginals(crf), None),
                *measure.counts("votes", synthetic.votes(crf, sizes, noise), sizes),
                *measure.estimates("conditional", conditional, sizes),
                *measure.counts("exact samples", perfect, sizes),
            ]
    return rows
