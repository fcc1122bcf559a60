"""Learning a CRF: it recovers what made the data, and refuses what cannot be learned from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import perturb_mpm as pm
from lab.comparators.enumeration import Enumeration
from perturb_mpm.learning.kernel_filters import FilterMaker
from perturb_mpm.learning.learner import Learned, learn
from perturb_mpm.learning.unrolled import make_problem

pytestmark = pytest.mark.filterwarnings("ignore::perturb_mpm.ConvergenceWarning")

Draws = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]

ITERATIONS = 5
SHAPE = (2, 3)  # 729 labellings
TRUE: dict[str, Any] = {
    "temperature": 0.6,
    "bias": (0.0, 0.8, -0.6),
    "weights": (2.0, 1.5),
    "sigmas": (1.5, 2.0, 0.7),
}


def tiny_crf(
    logits: NDArray[np.float64],  # (3, draws, 2, 3)
    image: NDArray[np.float64],  # (draws, 2, 3)
    temperature: float = 1.0,
    bias: tuple[float, ...] = (0.0, 0.0, 0.0),
    weights: tuple[float, float] = (1.0, 1.0),
    sigmas: tuple[float, float, float] = (1.0, 2.0, 0.7),
) -> pm.DenseCRF:
    """Grids of 2 × 3 voxels, so far apart that no kernel reaches from one to another."""
    offsets = np.array(bias)[:, np.newaxis, np.newaxis, np.newaxis]
    return pm.DenseCRF(
        -logits / temperature - offsets,
        [
            pm.SpatialKernel(sigmas[0], weights[0]),
            pm.BilateralKernel(
                image[np.newaxis], sigmas[1], sigmas[2], weights[1], standardize=False
            ),
        ],
        spacing=(100.0, 1.0, 1.0),
    )


def draws(count: int, seed: int) -> Draws:
    """Logits, an image and labels drawn exactly from the true CRF, by enumeration."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(3, count, *SHAPE))
    image = rng.normal(size=(count, *SHAPE))
    labels = np.empty((count, *SHAPE), dtype=np.int64)
    for t in range(count):
        one = tiny_crf(logits[:, t : t + 1], image[t : t + 1], **TRUE)
        labels[t] = Enumeration(one).draw(range(1), seed=1000 * seed + t).reshape(SHAPE)
    return logits, image, labels


def many_draws(parts: int, seed: int) -> list[Draws]:
    """Several parts of 25 draws each: all pairs of 150 voxels are few."""
    return [draws(25, seed + part) for part in range(parts)]


@pytest.fixture(scope="module")
def learned() -> Learned:
    parts = many_draws(12, seed=100)
    crfs = [tiny_crf(logits, image) for logits, image, _ in parts]
    return learn(crfs, [labels for *_, labels in parts], iterations=ITERATIONS, steps=12)


def iou(parts: list[Draws], make: Callable[..., pm.DenseCRF]) -> float:
    """Return the mean intersection over union of the three labels, all draws together."""
    found = [
        pm.mean_field(make(*part[:2]), ITERATIONS, engine="reference").labels for part in parts
    ]
    labels, truth = np.stack(found), np.stack([part[2] for part in parts])
    masks = [(labels == label, truth == label) for label in range(3)]
    return float(np.mean([(ours & true).sum() / (ours | true).sum() for ours, true in masks]))


def test_learned_parameters_are_as_good_as_the_true_ones_on_new_draws(learned: Learned) -> None:
    held_out = many_draws(8, seed=50)
    start = iou(held_out, tiny_crf)
    best = iou(held_out, lambda logits, image: tiny_crf(logits, image, **TRUE))
    found = iou(held_out, lambda logits, image: learned.apply(tiny_crf(logits, image)))
    assert start < best - 0.05  # or there would be nothing to learn
    assert found > best - 0.01


def test_the_objective_rises_and_the_trace_says_how(learned: Learned) -> None:
    assert learned.objective_after > learned.objective_before + 0.05
    assert learned.trace[0].objective == pytest.approx(learned.objective_before)
    phases = list(dict.fromkeys(step.phase for step in learned.trace))
    assert phases == ["unary", "weights", "compatibility", "bandwidths"]


def test_the_log_likelihood_finds_the_temperature_and_bias_of_independent_voxels() -> None:
    rng = np.random.default_rng(0)
    logits = 2 * rng.normal(size=(3, 4000))
    true = logits / 2.5 + np.array([[0.0], [1.0], [-0.5]])
    shares = np.exp(true) / np.exp(true).sum(axis=0)
    labels = (rng.random(4000) > shares.cumsum(axis=0)).sum(axis=0)
    found = learn(
        [pm.DenseCRF(-logits)],
        [labels],
        objective="log_likelihood",
        phases=["unary"],
        steps=50,
        strength=0.0,
        engine="reference",
    ).parameters
    assert found.temperature == pytest.approx(2.5, rel=0.1)
    np.testing.assert_allclose(found.bias, [0.0, 1.0, -0.5], atol=0.12)


def test_a_strong_pull_keeps_the_start() -> None:
    logits, image, labels = draws(10, seed=3)
    crf = tiny_crf(logits, image)
    held = learn([crf], [labels], iterations=2, steps=5, strength=1e4, phases=["weights"])
    assert held.parameters.temperature == pytest.approx(1.0, abs=1e-3)
    np.testing.assert_allclose(held.parameters.bias, 0.0, atol=1e-3)


def test_a_phase_moves_only_what_it_names() -> None:
    logits, image, labels = draws(10, seed=3)
    crf = tiny_crf(logits, image)
    unary = learn([crf], [labels], iterations=2, steps=3, phases=["unary"]).parameters
    assert unary.temperature != 1.0
    for change in unary.kernels:
        assert change.weight_factor == 1.0
        assert not change.compatibility_change.any()
        assert set(change.bandwidth_factors.values()) == {1.0}


def test_apply_gives_the_learned_parameters_to_a_crf(learned: Learned) -> None:
    logits, image, _ = draws(2, seed=4)
    crf = tiny_crf(logits, image)
    made = learned.apply(crf)
    found = learned.parameters
    wanted = crf.energies / found.temperature - found.bias[:, np.newaxis]
    np.testing.assert_allclose(made.energies, wanted)
    spatial, bilateral = made.kernels
    assert spatial.sigma == pytest.approx(found.kernels[0].bandwidth_factors["space"])
    assert bilateral.sigma_intensity == pytest.approx(
        0.7 * found.kernels[1].bandwidth_factors["intensity"]
    )
    potts = 1.0 - np.eye(3)
    np.testing.assert_allclose(
        made.terms[1].compatibility,
        found.kernels[1].weight_factor * (potts + found.kernels[1].compatibility_change),
    )


def test_a_crop_leaves_far_background_out() -> None:
    truth = np.zeros(40, dtype=np.int64)
    truth[10:12] = 1
    logits = np.zeros((2, 40))
    logits[0] = 1.0
    logits[1, 30] = 3.0  # the unaries take a voxel far away for foreground
    crf = pm.DenseCRF(-logits, [pm.SpatialKernel(1.0)], spacing=2.0)
    problem = make_problem(crf, truth, FilterMaker(None, None), crop_mm=4.0)
    assert len(problem.truth) == (2 + 4) + (1 + 4)
    assert problem.truth.sum() == 2
    nothing = make_problem(
        pm.DenseCRF(-logits[:, :20], [pm.SpatialKernel(1.0)]),
        np.zeros(20),
        FilterMaker(None, None),
        crop_mm=4.0,
    )
    assert len(nothing.truth) == 20


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"crfs": []}, ValueError, "at least one CRF"),
        ({"crfs": [1]}, TypeError, "crfs must hold DenseCRF, got int"),
        ({"truths": []}, ValueError, "one for each of the 1 crfs, got 0"),
        ({"truths": [np.full((2, 3, 3), 3)]}, ValueError, "truths must lie between 0 and 2"),
        ({"truths": [np.zeros((3, 3))]}, ValueError, "truths must have their image's shape"),
        ({"objective": "dice"}, ValueError, "objective must be one of"),
        ({"phases": ["weight"]}, ValueError, "phases must be one of"),
        ({"iterations": -1}, ValueError, "iterations must be at least 0"),
        ({"steps": 0}, ValueError, "steps must be at least 1"),
        ({"strength": -1.0}, ValueError, "strength must be at least 0"),
        ({"crop_mm": -1.0}, ValueError, "crop_mm must be at least 0"),
        ({"engine": "gpu"}, ValueError, "cannot be learned with"),
        ({"accuracy": "exact"}, ValueError, "cannot be learned with"),
    ],
)
def test_bad_input_is_refused(changes: dict[str, Any], error: type[Exception], words: str) -> None:
    logits, image = np.zeros((3, 2, 3, 3)), np.zeros((2, 3, 3))
    good: dict[str, Any] = {"crfs": [tiny_crf(logits, image)], "truths": [np.zeros((2, 3, 3))]}
    with pytest.raises(error, match=words):
        learn(**{**good, **changes})


def test_crfs_of_different_kinds_and_other_crfs_are_refused(learned: Learned) -> None:
    logits, image = np.zeros((3, 2, 3, 3)), np.zeros((2, 3, 3))
    plain = pm.DenseCRF(-logits)
    with pytest.raises(ValueError, match="same labels and kinds of kernels"):
        learn([tiny_crf(logits, image), plain], [np.zeros((2, 3, 3))] * 2)
    with pytest.raises(ValueError, match="the 2 kernels that were learned, got 0"):
        learned.apply(plain)
    other = tiny_crf(np.zeros((3, 2, 3, 3)), image)
    fewer = pm.DenseCRF(np.zeros((2, 2, 3, 3)), other.kernels)
    with pytest.raises(ValueError, match="the 3 labels that were learned, got 2"):
        learned.apply(fewer)
