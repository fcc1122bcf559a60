"""Every limit a comparator states is enforced before any work, and says what to do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import perturb_mpm as pm
from helpers.bad import Bad
from lab import comparators as c

TINY = pm.DenseCRF(unary=np.zeros((2, 2, 2)))
MIDDLE = pm.DenseCRF(unary=np.zeros((2, 2, 7)))
WIDE = pm.DenseCRF(unary=np.zeros((2, 5, 5)))
LARGE = pm.DenseCRF(unary=np.zeros((2, 71, 71)))
GRID = c.GridCRF(np.zeros((2, 2, 2)), weight=1.0)
REGION = np.eye(3)


def contours(region: Any = REGION, samples: Any = 1, seed: Any = 0, **options: Any) -> object:
    return c.contours(region, samples, seed, **{"amplitude_mm": 1.0, "length_mm": 1.0, **options})


def of_a_grid(crf: object, samples: Any, seed: Any) -> object:
    return c.perturb_and_map_grid(GRID, samples, seed)


def of_a_region(crf: object, samples: Any, seed: Any) -> object:
    return contours(REGION, samples, seed)


DRAWING = [
    c.exact,
    c.full_perturbation,
    c.perturb_and_map,
    c.gibbs,
    c.independent,
    c.unary_only,
    of_a_grid,
    of_a_region,
]

CASES = [
    Bad(
        "a crf that is too large to enumerate",
        ValueError,
        r"crf must have at most 2e\+07 labellings to be enumerated, got 2\^25: use a smaller mask",
        lambda: c.Enumeration(WIDE),
    ),
    Bad("the same, exact", ValueError, r"got 2\^25", lambda: c.exact(WIDE, 1, 0)),
    Bad("the same, full", ValueError, r"got 2\^25", lambda: c.full_perturbation(WIDE, 1, 0)),
    Bad("the same, order 1", ValueError, r"got 2\^25", lambda: c.perturb_and_map(WIDE, 1, 0)),
    Bad(
        "too many samples for order 1",
        ValueError,
        "samples must be at most 6103515 for a crf with 16384 labellings, got 10000000: use fewer",
        lambda: c.perturb_and_map(MIDDLE, 10_000_000, 0),
    ),
    Bad(
        "too many draws of full perturbation",
        ValueError,
        "samples must be at most 610351 for a crf with 16384 labellings, got 700000: use fewer",
        lambda: c.full_perturbation(MIDDLE, 700_000, 0),
    ),
    Bad(
        "a crf that is too large for Gibbs sampling",
        ValueError,
        "crf must have at most 5000 voxels for Gibbs sampling with all pairs, got 5041: use a",
        lambda: c.gibbs(LARGE, 1, 0),
    ),
    Bad(
        "no chains",
        ValueError,
        "chains must be at least 1, got 0",
        lambda: c.gibbs(TINY, 1, 0, chains=0),
    ),
    Bad(
        "negative burn-in",
        ValueError,
        "burn_in must be at least 0, got -1",
        lambda: c.gibbs(TINY, 1, 0, burn_in=-1),
    ),
    Bad("no thinning", ValueError, "thin must be at least 1", lambda: c.gibbs(TINY, 1, 0, thin=0)),
    Bad(
        "no sweeps",
        ValueError,
        "sweeps must be at least 1, got 0",
        lambda: c.run_chains(TINY, 0, 0),
    ),
    Bad(
        "not a crf",
        TypeError,
        "crf must be a DenseCRF or a GridCRF, got ndarray",
        lambda: c.exact(np.zeros((2, 2)), 1, 0),
    ),
    Bad("not a crf, Gibbs", TypeError, "crf must be a", lambda: c.gibbs(3, 1, 0)),
    Bad("not a crf, unaries", TypeError, "crf must be a", lambda: c.unary_only(3, 1, 0)),
    Bad("not a crf, mean field", TypeError, "crf must be a", lambda: c.independent(GRID, 1, 0)),
    Bad(
        "a dense crf for a graph cut",
        TypeError,
        "crf must be a GridCRF, got DenseCRF: graph cuts need neighbours on a grid",
        lambda: c.graph_cut(TINY),
    ),
    Bad("the same, samples", TypeError, "GridCRF", lambda: c.perturb_and_map_grid(TINY, 1, 0)),
    Bad("the same, min-marginals", TypeError, "GridCRF", lambda: c.min_marginals(TINY)),
    Bad(
        "min-marginals of three labels",
        ValueError,
        "crf must have 2 labels for min-marginals by graph cuts, got 3: add up",
        lambda: c.min_marginals(c.GridCRF(np.zeros((3, 2)), weight=1.0)),
    ),
    Bad(
        "min-marginals of a large image",
        ValueError,
        "crf must have at most 2000000 voxels, one minimum cut each, got 2002225: use a",
        lambda: c.min_marginals(c.GridCRF(np.zeros((2, 1415, 1415)), weight=1.0)),
    ),
    Bad(
        "a negative weight",
        ValueError,
        r"weight must be at least 0, got -1\.0",
        lambda: c.GridCRF(np.zeros((2, 2)), weight=-1.0),
    ),
    Bad(
        "unknown neighbours",
        ValueError,
        "neighbours must be one of faces, all, got str '6'",
        lambda: c.GridCRF(np.zeros((2, 2)), weight=1.0, neighbours="6"),
    ),
    Bad(
        "labels of another shape",
        ValueError,
        r"labels must have the image's shape \(2, 2\), got \(4,\)",
        lambda: GRID.energy([0, 0, 0, 0]),
    ),
    Bad(
        "an unknown label",
        ValueError,
        "labels must lie between 0 and 1",
        lambda: GRID.energy(np.full((2, 2), 2)),
    ),
    Bad(
        "an empty region",
        ValueError,
        "region must have voxels both inside and outside, .* got 0 of 9 voxels inside",
        lambda: contours(np.zeros((3, 3))),
    ),
    Bad("a full region", ValueError, "got 9 of 9", lambda: contours(np.ones((3, 3)))),
    Bad(
        "a negative amplitude",
        ValueError,
        "amplitude_mm must be at least 0",
        lambda: contours(amplitude_mm=-1.0),
    ),
    Bad("no length", ValueError, "length_mm must be positive", lambda: contours(length_mm=0.0)),
    Bad(
        "an image of another shape",
        ValueError,
        r"image must have the region's shape \(3, 3\), got \(2, 2\)",
        lambda: contours(image=np.zeros((2, 2))),
    ),
    Bad(
        "a length that needs more memory than there is",
        MemoryError,
        "a random field of .* needs .* GB, memory allows .*: use a shorter length_mm",
        lambda: contours(length_mm=1e6),
    ),
]


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (0, "samples must be at least 1, got 0"),
        (10**7 + 1, "samples must be at most 10000000"),
        (range(3, 3), "samples must be a number or a range that rises by 1"),
        (range(0, 10, 2), "samples must be a number or a range"),
        (range(-1, 3), "samples must be a number or a range"),
        (range(2**32, 2**32 + 1), "samples must be a number or a range"),
    ],
)
@pytest.mark.parametrize("comparator", DRAWING)
def test_which_samples_is_checked(comparator: Any, samples: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        comparator(TINY, samples, 0)


@pytest.mark.parametrize("comparator", DRAWING)
def test_seeds_have_64_bits(comparator: Any) -> None:
    for seed in (-1, 2**64):
        with pytest.raises(
            ValueError, match=r"seed must be at (least 0|most 18446744073709551615)"
        ):
            comparator(TINY, 1, seed)
    with pytest.raises(TypeError, match="seed must be an integer"):
        comparator(TINY, 1, 1.5)
    with pytest.raises(TypeError, match="samples must be an integer"):
        comparator(TINY, 1.5, 0)


def test_a_problem_that_does_not_fit_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("maxflow", reason="PyMaxflow (extra graphcut) is not installed")
    monkeypatch.setattr("perturb_mpm.engines.compute.available_bytes", lambda: 400)
    with pytest.raises(
        MemoryError, match=r"a graph of 4 voxels and 4 edges needs .* use a smaller"
    ):
        c.graph_cut(GRID)
    with pytest.raises(MemoryError, match=r"Gibbs sampling of 4 voxels, .* use a smaller mask"):
        c.gibbs(TINY, 10, 0)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_it_is_refused(case: Bad) -> None:
    with pytest.raises(case.error, match=case.message):
        case.call()
