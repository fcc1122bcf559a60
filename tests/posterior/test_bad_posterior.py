from __future__ import annotations

import numpy as np
import pytest

from helpers.bad import Bad
from helpers.posteriors import GRID, MASK, PARAMETERS, PROBLEM, L, of_counts, run
from perturb_mpm.model.grid import Grid

COUNTS = np.array([[3, 1], [1, 3]])
OTHER_MASK = np.roll(MASK, 1)

CASES = [
    Bad("grid", TypeError, r"grid must be a Grid, got tuple", lambda: of_counts(COUNTS, grid=(2,))),
    Bad(
        "counts_float",
        TypeError,
        r"counts must be integers, got dtype float64",
        lambda: of_counts(COUNTS, counts=COUNTS / 4),
    ),
    Bad(
        "counts_shape",
        ValueError,
        r"counts must be \(labels, \*\(2,\)\), or \(labels, 2\) .* got shape \(2, 3\)",
        lambda: of_counts(COUNTS, counts=np.zeros((2, 3), int)),
    ),
    Bad(
        "counts_scalar",
        ValueError,
        r"counts must be .* got shape \(\)",
        lambda: of_counts(COUNTS, counts=4),
    ),
    Bad(
        "one_label",
        ValueError,
        r"counts must have 2 to 255 labels \(the first axis\), got shape \(1, 2\)",
        lambda: of_counts(COUNTS, counts=[[4, 4]]),
    ),
    Bad(
        "counts_sum",
        ValueError,
        r"sum to the 4 samples at every voxel, .* sums from 4 to 5, wrong at 1 voxels",
        lambda: of_counts(COUNTS, counts=[[3, 2], [1, 3]]),
    ),
    Bad(
        "counts_negative",
        ValueError,
        r"counts must be at least 0 .* got values from -1",
        lambda: of_counts(COUNTS, counts=[[5, 2], [-1, 2]]),
    ),
    Bad(
        "no_samples",
        ValueError,
        r"sample_index must be \(samples,\), not empty, got shape \(0,\)",
        lambda: of_counts(COUNTS, sample_index=np.zeros(0, int)),
    ),
    Bad(
        "samples_twice",
        ValueError,
        r"sample_index must be increasing numbers from 0 on, got 0–1, 1–2",
        lambda: of_counts(COUNTS, sample_index=[0, 1, 1, 2]),
    ),
    Bad(
        "samples_negative",
        ValueError,
        r"sample_index must be increasing numbers from 0 on, got -1–2",
        lambda: of_counts(COUNTS, sample_index=[-1, 0, 1, 2]),
    ),
    Bad(
        "volumes_shape",
        ValueError,
        r"volumes must be \(4 samples, 2 labels\), got shape \(4,\)",
        lambda: of_counts(COUNTS, volumes=np.ones(4)),
    ),
    Bad(
        "volumes_nan",
        ValueError,
        r"volumes must be finite",
        lambda: of_counts(COUNTS, volumes=np.full((4, 2), np.nan)),
    ),
    Bad(
        "volumes_in_ml",
        ValueError,
        r"volumes must be at least 0, 30 mm³ in each sample, .* got",
        lambda: run(range(4), volumes=run(range(4)).volumes / 1000),
    ),
    Bad(
        "volumes_swapped",
        ValueError,
        r"for each label what its votes amount to",
        lambda: of_counts([[4, 3], [0, 1]], volumes=np.tile([0.25, 1.75], (4, 1))),
    ),
    Bad(
        "estimator",
        ValueError,
        r"estimator must be one of votes, conditional, got str 'gibbs'",
        lambda: run(range(4), estimator="gibbs"),
    ),
    Bad(
        "estimator_without",
        ValueError,
        r'conditional must be given where estimator is "conditional", got None',
        lambda: of_counts(COUNTS, estimator="conditional"),
    ),
    Bad(
        "conditional_float",
        TypeError,
        r"conditional must be integers, got dtype float64",
        lambda: of_counts(COUNTS, conditional=np.full((2, 2), 0.5)),
    ),
    Bad(
        "conditional_sum",
        ValueError,
        r"conditional must be at least 0 and sum to 4294967296 .* within 0.001",
        lambda: of_counts(COUNTS, conditional=COUNTS),
    ),
    Bad(
        "conditional_shape",
        ValueError,
        r"conditional must be .* got shape \(2,\)",
        lambda: of_counts(COUNTS, conditional=COUNTS[0]),
    ),
    Bad(
        "mean_field_labels",
        ValueError,
        r"mean_field must be \(labels, \*\(2,\)\).* got shape \(3, 2\)",
        lambda: of_counts(COUNTS, mean_field=np.full((3, 2), 1 / 3)),
    ),
    Bad(
        "mean_field_energies",
        ValueError,
        r"mean_field must be at least 0 and sum to 1 .* sums from 6 to 8",
        lambda: of_counts(COUNTS, mean_field=[[3.0, 5.0], [3.0, 3.0]]),
    ),
    Bad(
        "mean_field_nan",
        ValueError,
        r"mean_field must be finite",
        lambda: of_counts(COUNTS, mean_field=np.full((2, 2), np.nan)),
    ),
    Bad(
        "label_changes_percent",
        ValueError,
        r"label_changes must lie between 0 and 1, got values from 12.0 to 12.0",
        lambda: of_counts(COUNTS, label_changes=[12] * 4),
    ),
    Bad(
        "label_changes_shape",
        ValueError,
        r"label_changes must be \(4 samples,\), got shape \(3,\)",
        lambda: of_counts(COUNTS, label_changes=[0.0] * 3),
    ),
    Bad(
        "parameters_list",
        TypeError,
        r"parameters must be a dict, got list",
        lambda: of_counts(COUNTS, parameters=[]),
    ),
    Bad(
        "parameters_array",
        TypeError,
        r"parameters must contain only text, .* ndarray",
        lambda: of_counts(COUNTS, parameters={"a": COUNTS}),
    ),
    Bad(
        "parameters_infinite",
        TypeError,
        r"parameters must contain only text, finite numbers, .*: write infinity as text",
        lambda: of_counts(COUNTS, parameters={"length_mm": np.inf}),
    ),
    Bad(
        "problem_bytes",
        TypeError,
        r"problem must contain only text",
        lambda: of_counts(COUNTS, problem=b"digest"),
    ),
    Bad(
        "entropy_not_held",
        ValueError,
        r"estimator of this posterior must be one of votes, got str 'conditional'",
        lambda: of_counts(COUNTS).estimate_entropy("conditional"),
    ),
    Bad(
        "marginals_unknown",
        ValueError,
        r"estimator of this posterior must be one of votes, conditional, mean_field, got str 'map'",
        lambda: run(range(3)).estimate_marginals("map"),
    ),
    Bad(
        "correction",
        ValueError,
        r"correction must be one of miller-madow, none, got bool True",
        lambda: run(range(3)).mean_entropy(True),
    ),
    Bad(
        "where_shape",
        ValueError,
        r"array must end in the shape \(4, 5\), got \(5,\)",
        lambda: run(range(3)).mean_entropy(where=np.ones(5)),
    ),
    Bad(
        "where_empty",
        ValueError,
        r"where must contain a voxel of the mask, got none",
        lambda: run(range(3)).mean_entropy(where=~MASK),
    ),
    Bad(
        "threshold",
        ValueError,
        r"threshold must be positive and below 0.5, got 0.5",
        lambda: run(range(3)).uncertainty_map(0.5),
    ),
    Bad(
        "confidence",
        ValueError,
        r"confidence must be positive and below 1, got 95.0",
        lambda: run(range(3)).uncertainty_map(confidence=95),
    ),
    Bad(
        "rule",
        ValueError,
        r"rule must be one of interval, paper, got str 'entropy'",
        lambda: run(range(3)).uncertainty_map(rule="entropy"),
    ),
    Bad(
        "quantile",
        ValueError,
        r"q must be one or several numbers between 0 and 1, got \[ 2.5 97.5\]",
        lambda: run(range(3)).volume_quantiles([2.5, 97.5]),
    ),
    Bad(
        "level",
        ValueError,
        r"level must be positive and below 1, got 95.0",
        lambda: run(range(3)).volume_interval(95),
    ),
    Bad(
        "merge_type",
        TypeError,
        r"other must be a Posterior, got str",
        lambda: run(range(3)).merge("case.npz"),
    ),
    Bad(
        "merge_overlap",
        ValueError,
        r"must have different samples to be merged, got 3 in more than one: 2–3, 7",
        lambda: run([0, 1, 2, 3, 7]).merge(run([2, 3, 7, 9])),
    ),
    Bad(
        "merge_itself",
        ValueError,
        r"must have different samples to be merged, got 3 in more than one: 0–2",
        lambda: run(range(3)).merge(run(range(3))),
    ),
    Bad(
        "merge_seed",
        ValueError,
        r"same problem and parameters to be merged, got seed 7 against 8$",
        lambda: run(range(3)).merge(run(range(3, 6), parameters=PARAMETERS | {"seed": 8})),
    ),
    Bad(
        "merge_missing",
        ValueError,
        r"got start nothing against 'warm'$",
        lambda: run(range(3)).merge(run(range(3, 6), parameters=PARAMETERS | {"start": "warm"})),
    ),
    Bad(
        "merge_nested",
        ValueError,
        r"got problem.energies 'ab12' against 'ff00'; seed 7 against 8$",
        lambda: run(range(3)).merge(
            run(
                range(3, 6),
                problem=PROBLEM | {"energies": "ff00"},
                parameters=PARAMETERS | {"seed": 8},
            )
        ),
    ),
    Bad(
        "merge_spacing",
        ValueError,
        r"got spacing \(1.0, 2.5\) against \(1.0, 3.0\)",
        lambda: run(range(3)).merge(run(range(3, 6), Grid(GRID.shape, (1.0, 3.0), MASK))),
    ),
    Bad(
        "merge_mask",
        ValueError,
        r"got masks of 12 and 12 voxels that differ",
        lambda: run(range(3)).merge(run(range(3, 6), Grid(GRID.shape, GRID.spacing, OTHER_MASK))),
    ),
    Bad(
        "merge_shape",
        ValueError,
        r"got shape \(4, 5\) against \(6,\)",
        lambda: run(range(3)).merge(run(range(3, 6), Grid((6,)))),
    ),
    Bad(
        "merge_estimator",
        ValueError,
        r"got estimator 'votes' against 'conditional'",
        lambda: run(range(3)).merge(run(range(3, 6), estimator="conditional")),
    ),
    Bad(
        "merge_conditional",
        ValueError,
        r"conditional must be in all posteriors or in none to be merged",
        lambda: run(range(3)).merge(run(range(3, 6), conditional=None)),
    ),
    Bad(
        "merge_label_changes",
        ValueError,
        r"label_changes must be in all posteriors or in none to be merged",
        lambda: run(range(3)).merge(run(range(3, 6), label_changes=None)),
    ),
    Bad(
        "merge_mean_field",
        ValueError,
        r"mean_field must be the same in all posteriors to be merged",
        lambda: run(range(3)).merge(
            run(range(3, 6), mean_field=np.full((L, GRID.voxels), 1 / L, np.float32))
        ),
    ),
]


@pytest.mark.parametrize("bad", CASES, ids=lambda bad: bad.name)
def test_it_is_refused_in_words(bad: Bad) -> None:
    with pytest.raises(bad.error, match=bad.message):
        bad.call()
