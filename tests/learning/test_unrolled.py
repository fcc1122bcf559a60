"""The gradients that learning follows, against central differences."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

import perturb_mpm as pm
from helpers.problems import NORMALIZATIONS, random_problem
from perturb_mpm.engines import morton_order
from perturb_mpm.engines.cpu.threads import Threads
from perturb_mpm.learning import unrolled
from perturb_mpm.learning.kernel_filters import FilterMaker
from perturb_mpm.learning.objectives import OBJECTIVES, Objective
from perturb_mpm.learning.unrolled import Problem, make_problem, run_backwards, run_forwards

EXACT = FilterMaker(None, None)
ITERATIONS = 5

Value = Callable[[NDArray[np.float64]], float]


def tiny(normalization: str, self_term: bool = False, centring: float = 0.0) -> Problem:
    """20 voxels, 3 labels, a spatial Potts kernel and a bilateral one with its own matrix."""
    weight = 0.2 if normalization == "none" else 1.0
    crf, _ = random_problem(
        3, (4, 5), 3, weight=weight, normalization=normalization, self_term=self_term
    )
    truth = np.random.default_rng(4).integers(0, 3, size=(4, 5))
    problem = make_problem(crf, truth, EXACT, None)
    problem.centring = centring
    return problem


def value_and_gradient(
    problem: Problem, objective: Objective, theta: NDArray[np.float64]
) -> tuple[Value, NDArray[np.float64]]:
    layout = problem.layout

    def value(at: NDArray[np.float64]) -> float:
        q = run_forwards(problem, layout.unpack(at), ITERATIONS).marginals[-1]
        return objective.value(objective.sums(q, problem.truth))

    course = run_forwards(problem, layout.unpack(theta), ITERATIONS)
    q = course.marginals[-1]
    slope = objective.gradient(q, problem.truth, objective.sums(q, problem.truth))
    return value, layout.pack(run_backwards(problem, course, slope))


def central_difference(
    value: Value, theta: NDArray[np.float64], direction: NDArray[np.float64], step: float
) -> float:
    ahead, behind = value(theta + step * direction), value(theta - step * direction)
    return (ahead - behind) / (2 * step)


def richardson(value: Value, theta: NDArray[np.float64], direction: NDArray[np.float64]) -> float:
    """A central difference whose error is of fourth order."""
    fine = central_difference(value, theta, direction, 1e-4)
    coarse = central_difference(value, theta, direction, 2e-4)
    return (4 * fine - coarse) / 3


@pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=OBJECTIVES)
@pytest.mark.parametrize(("self_term", "centring"), [(False, 0.0), (True, 0.0), (False, 0.6)])
@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_every_derivative_is_that_of_a_central_difference(
    normalization: str, self_term: bool, centring: float, objective: Objective
) -> None:
    problem = tiny(normalization, self_term, centring)
    layout = problem.layout
    theta = 0.2 * np.random.default_rng(5).normal(size=layout.size)
    value, gradient = value_and_gradient(problem, objective, theta)
    numeric = np.array([richardson(value, theta, unit) for unit in np.eye(layout.size)])
    assert set(layout.kinds) == {"temperature", "bias", "weight", "compatibility", "bandwidth"}
    for kind in set(layout.kinds):
        of_kind = np.array([each == kind for each in layout.kinds])
        wrong = np.abs(gradient - numeric)[of_kind].max()
        assert wrong <= 1e-6 * np.abs(numeric[of_kind]).max(), kind


def test_a_gradient_without_the_normalisers_term_would_be_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = tiny("symmetric")
    theta = np.zeros(problem.layout.size)
    _, right = value_and_gradient(problem, OBJECTIVES["iou"], theta)
    monkeypatch.setattr(unrolled, "NORMALIZER_SHARES", {"symmetric": (0.0, 0.0)})
    _, wrong = value_and_gradient(problem, OBJECTIVES["iou"], theta)
    width = problem.layout.kinds.index("bandwidth")
    assert abs(wrong[width] - right[width]) > 0.05 * abs(right[width])


@pytest.mark.parametrize("accuracy", ["calibrated", "plain"])
def test_through_the_lattice_the_directional_derivative_agrees(accuracy: str) -> None:
    problem = volume_problem(FilterMaker(accuracy, Threads(2)))  # type: ignore[arg-type]
    theta = np.zeros(problem.layout.size)
    for objective in OBJECTIVES.values():
        value, gradient = value_and_gradient(problem, objective, theta)
        uphill = gradient / np.linalg.norm(gradient)
        wanted = central_difference(value, theta, uphill, 0.03)
        assert gradient @ uphill == pytest.approx(wanted, rel=0.05), objective.name


def test_through_the_lattice_all_but_bandwidths_are_those_of_the_lattice_itself() -> None:
    problem = volume_problem(FilterMaker("calibrated", Threads(2)))
    theta = np.zeros(problem.layout.size)
    value, gradient = value_and_gradient(problem, OBJECTIVES["log_likelihood"], theta)
    smooth = np.array([kind != "bandwidth" for kind in problem.layout.kinds])
    direction = np.where(smooth, np.random.default_rng(1).normal(size=len(smooth)), 0.0)
    wanted = central_difference(value, theta, direction, 0.003)
    assert gradient @ direction == pytest.approx(wanted, rel=2e-3)


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_the_lattices_transpose_is_its_transpose(normalization: str) -> None:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(500, 3)) * 3
    kernel = FilterMaker("calibrated", Threads(1)).make(features, normalization, 1.0)  # type: ignore[arg-type]
    a, b = rng.normal(size=(2, 500, 2))
    left, right = np.sum(a * kernel.apply(b)), np.sum(kernel.apply_transpose(a) * b)
    assert left == pytest.approx(right, rel=1e-4)
    ones = np.ones((500, 1))
    row_sums = kernel.apply(ones / kernel.before[:, np.newaxis])[:, 0] / kernel.after
    np.testing.assert_allclose(row_sums, kernel.row_sums, rtol=1e-4)


@pytest.mark.parametrize("centring", [0.0, 0.6])
def test_the_marginals_are_those_of_mean_field(centring: float) -> None:
    plain, truth = volume()
    crf = pm.DenseCRF(
        plain.grid.scatter(plain.energies, 0.0),
        plain.kernels,
        spacing=plain.grid.spacing,
        mask=plain.grid.mask,
        centring=centring,
    )
    problem = make_problem(crf, truth, FilterMaker("calibrated", Threads(2)), None)
    parameters = problem.layout.unpack(np.zeros(problem.layout.size))
    ours = run_forwards(problem, parameters, 4).marginals[-1]  # (N, L)
    theirs = pm.mean_field(crf, 4, threads=2).marginals
    wanted = crf.grid.gather(theirs).T[morton_order(crf.grid)]
    np.testing.assert_allclose(ours, wanted, atol=2e-5)


def volume() -> tuple[pm.DenseCRF, NDArray[np.int64]]:
    """A ball of two labels in a cube of 28 voxels, seen through noise."""
    rng = np.random.default_rng(0)
    place = np.indices((28, 28, 28)) - 13.5
    radius = np.sqrt((place**2).sum(axis=0))
    truth = np.where(radius < 5, 2, np.where(radius < 9, 1, 0))
    images = np.stack([truth + rng.normal(0, 0.7, truth.shape) for _ in range(2)])
    logits = 1.2 * (truth == np.arange(3)[:, None, None, None]) + rng.normal(
        0, 1.0, (3, *truth.shape)
    )
    crf = pm.DenseCRF(
        pm.unary_from_logits(logits),
        [
            pm.SpatialKernel(sigma=3.0, weight=0.6),
            pm.BilateralKernel(images, sigma_space=8.0, sigma_intensity=0.8, weight=0.8),
        ],
    )
    return crf, truth


def volume_problem(maker: FilterMaker) -> Problem:
    return make_problem(*volume(), maker, None)
