"""The sampler: its law where it is known, its purity, and the inputs it refuses."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

import perturb_mpm as pm
from perturb_mpm.noise.perturbation import Perturbation

ENGINES = [("reference", "exact"), ("cpu", "exact"), ("cpu", "calibrated")]


def uncoupled(n_labels: int, voxels: int = 40) -> pm.DenseCRF:
    return pm.DenseCRF(unary=np.random.default_rng(n_labels).gumbel(size=(n_labels, voxels)))


def coupled(shape: tuple[int, ...] = (9, 8, 7)) -> pm.DenseCRF:
    rng = np.random.default_rng(8)
    images = rng.normal(size=(2, *shape))
    return pm.DenseCRF(
        unary=rng.normal(size=(3, *shape)),
        kernels=[
            pm.SpatialKernel(sigma=2.0, weight=1.0),
            pm.BilateralKernel(images, sigma_space=4.0, sigma_intensity=1.0, weight=2.0),
        ],
        spacing=(1.0, 1.0, 2.0),
        mask=rng.random(shape) < 0.8,
    )


def softmax(crf: pm.DenseCRF) -> np.ndarray:
    q = np.exp(-crf.energies)
    return np.asarray(q / q.sum(axis=0))


def chi_square(crf: pm.DenseCRF, counts: np.ndarray, samples: int) -> float:
    """The mean over voxels of Pearson's statistic over its degrees of freedom: 1 if all is well."""
    expected = samples * softmax(crf)
    return float(((counts - expected) ** 2 / expected).sum(axis=0).mean() / (len(counts) - 1))


@pytest.mark.parametrize("n_labels", [3, 4, 5])
@pytest.mark.parametrize(("engine", "accuracy"), ENGINES)
def test_votes_without_coupling_follow_softmax(n_labels: int, engine: str, accuracy: str) -> None:
    crf = uncoupled(n_labels)
    posterior = pm.sample(crf, samples=4000, seed=1, iterations=1, engine=engine, accuracy=accuracy)
    # 40 voxels: the mean of the statistic has a standard deviation below 0.16.
    assert chi_square(crf, posterior.voxel_counts, 4000) < 1.6


@pytest.mark.parametrize("n_labels", [3, 4, 5])
def test_the_printed_sign_fails_the_same_test(n_labels: int) -> None:
    crf = uncoupled(n_labels)
    noise = crf.energies - Perturbation(1).energies(crf.energies, crf.grid, np.arange(4000))
    wrong = np.argmin(crf.energies + noise, axis=1)  # (S, N)
    counts = np.stack([(wrong == l).sum(axis=0) for l in range(n_labels)])
    assert chi_square(crf, counts, 4000) > 10


@pytest.mark.filterwarnings("ignore::perturb_mpm.ConvergenceWarning")
def test_perturbing_the_converged_energies_returns_the_mean_field() -> None:
    """Proposition 1 of the paper: −log Q perturbed, without coupling, votes as Q says."""
    q = pm.mean_field(coupled(), iterations=50, engine="reference").marginals
    crf = pm.DenseCRF(unary=-np.log(np.maximum(q, 1e-300)), mask=coupled().grid.mask)
    posterior = pm.sample(crf, samples=3000, iterations=1, engine="reference")
    assert chi_square(crf, posterior.voxel_counts, 3000) < 1.3


@pytest.mark.parametrize(("engine", "accuracy"), ENGINES)
def test_conditional_without_coupling_is_exact(engine: str, accuracy: str) -> None:
    crf = uncoupled(4)
    posterior = pm.sample(
        crf, samples=3, estimator="conditional", engine=engine, accuracy=accuracy, iterations=2
    )
    np.testing.assert_allclose(posterior.marginals, softmax(crf), atol=2e-6)


@pytest.mark.parametrize("estimator", ["votes", "conditional"])
@pytest.mark.parametrize(("engine", "accuracy"), ENGINES)
def test_batches_threads_and_ranges_change_no_bit(
    estimator: str, engine: str, accuracy: str
) -> None:
    crf = coupled()
    options = {"seed": 3, "iterations": 4, "estimator": estimator, "engine": engine}
    options |= {"accuracy": accuracy, "noise_length": [(5.0, 0.7), (math.inf, 0.2), (0.0, 0.1)]}
    whole = pm.sample(crf, samples=21, **options)
    for batch, threads in ((1, 1), (4, 2), (21, 3)):
        assert pm.sample(crf, samples=21, batch=batch, threads=threads, **options) == whole
    parts = [pm.sample(crf, samples=r, **options) for r in (range(13, 21), range(5), range(5, 13))]
    assert parts[0].merge(*parts[1:]) == whole


@pytest.mark.parametrize("estimator", ["votes", "conditional"])
def test_exact_engines_draw_the_same_samples(estimator: str) -> None:
    crf = coupled()
    options = {"samples": 30, "seed": 5, "iterations": 5, "estimator": estimator}
    ours = pm.sample(crf, engine="cpu", accuracy="exact", **options)
    truth = pm.sample(crf, engine="reference", **options)
    assert (ours.labels != truth.labels).mean() <= 0.001
    assert np.abs(ours.counts.astype(int) - truth.counts.astype(int)).sum() <= 4
    np.testing.assert_allclose(
        ours.estimate_marginals("mean_field"), truth.estimate_marginals("mean_field"), atol=1e-5
    )
    if estimator == "conditional":
        np.testing.assert_allclose(ours.marginals, truth.marginals, atol=1e-4)


def test_the_conditional_estimator_by_hand() -> None:
    """Two voxels, one iteration: messages of softmax(−βŨ), added to the unperturbed unaries."""
    unary = np.array([[0.2, -0.1], [0.0, 0.4], [0.3, 0.1]])
    crf = pm.DenseCRF(unary, [pm.SpatialKernel(sigma=1.0, weight=1.5, normalization="none")])
    posterior = pm.sample(crf, 1, seed=9, iterations=1, estimator="conditional", engine="reference")
    perturbed = Perturbation(9, 0.5).energies(crf.energies, crf.grid, np.array([0]))[0]
    q = np.exp(-perturbed / math.sqrt(0.75))
    q /= q.sum(axis=0)
    coupling = 1.5 * math.exp(-0.5)
    logits = -unary + coupling * q[:, ::-1]  # Potts: agreement with the other voxel
    expected = np.exp(logits) / np.exp(logits).sum(axis=0)
    np.testing.assert_allclose(posterior.marginals, expected, atol=1e-6)


def test_scale_zero_gives_the_mean_field_in_every_sample() -> None:
    crf = coupled()
    posterior = pm.sample(crf, samples=3, noise_scale=0.0, engine="cpu", accuracy="exact")
    q = posterior.estimate_marginals("mean_field")
    np.testing.assert_array_equal(posterior.labels, q.argmax(axis=0))
    assert posterior.entropy.max() == 0


def test_noise_that_goes_together_spreads_the_volumes() -> None:
    crf = coupled((12, 12, 10))
    paper = pm.sample(crf, samples=60, iterations=3)
    spread = pm.sample(crf, samples=60, iterations=3, noise_length=math.inf)
    assert spread.volumes.std(axis=0).min() > 3 * paper.volumes.std(axis=0).max()


def test_volumes_are_those_of_the_samples(tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr")
    crf = coupled()
    posterior = pm.sample(crf, samples=range(3, 9), iterations=2, store=tmp_path / "samples")
    array = zarr.open_array(str(tmp_path / "samples"), mode="r")
    maps = np.asarray(array[:])
    assert maps.shape == (6, *crf.shape)
    assert array.chunks == (1, *crf.shape)
    assert dict(array.attrs)["first_sample"] == 3
    inside = crf.grid.mask
    for number, labels in enumerate(maps):
        sizes = np.bincount(labels[inside], minlength=3)
        np.testing.assert_array_equal(posterior.volumes[number], 2.0 * sizes)
    votes = np.stack([(maps == l).sum(axis=0) for l in range(3)])
    np.testing.assert_array_equal(posterior.counts[:, inside], votes[:, inside])
    with pytest.raises(FileExistsError, match="store must be a new folder"):
        pm.sample(crf, samples=2, store=tmp_path / "samples")


def test_a_warm_start_is_another_law() -> None:
    crf = coupled()
    cold = pm.sample(crf, samples=10, iterations=3)
    warm = pm.sample(crf, samples=10, iterations=3, start="warm")
    assert (cold.counts != warm.counts).any()
    assert cold.parameters["start"] == "cold"


def test_antithetic_pairs_halve_the_variance_of_a_frequency() -> None:
    crf = uncoupled(2, voxels=400)
    options = {"samples": 200, "iterations": 1, "engine": "cpu"}
    truth = softmax(crf)
    free = pm.sample(crf, **options).marginals - truth
    paired = pm.sample(crf, antithetic=True, **options).marginals - truth
    assert (paired**2).mean() < 0.7 * (free**2).mean()


def test_sampling_stops_at_the_precision_asked_for() -> None:
    crf = pm.DenseCRF(unary=np.array([[0.0] * 6, [9.0] * 6]))
    until = pm.Precision(epsilon=0.1, delta=0.05)
    posterior = pm.sample(crf, samples=2000, until=until, batch=16, iterations=1)
    assert posterior.samples < 200
    assert until.is_reached(posterior.counts, posterior.samples)
    earlier = pm.sample(crf, samples=posterior.samples - 32, iterations=1)
    assert not until.is_reached(earlier.counts, earlier.samples)


def test_where_it_stops_does_not_depend_on_the_batch(tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr")
    crf = pm.DenseCRF(unary=np.array([[0.0] * 6, [9.0] * 6]))
    options = {"samples": 2000, "until": pm.Precision(epsilon=0.1), "iterations": 1}
    whole = pm.sample(crf, store=tmp_path / "samples", **options)
    for batch in (5, 32, 100):
        assert pm.sample(crf, batch=batch, **options) == whole
    assert zarr.open_array(str(tmp_path / "samples"), mode="r").shape == (whole.samples, 6)


def test_a_run_that_cannot_start_leaves_no_store(tmp_path: Path) -> None:
    pytest.importorskip("zarr")
    with pytest.raises(MemoryError):
        pm.sample(coupled(), 2, engine="cpu", memory="10 kB", store=tmp_path / "samples")
    assert not (tmp_path / "samples").exists()


def test_progress_is_told_after_every_batch() -> None:
    seen: list[tuple[int, int]] = []
    pm.sample(
        coupled(), 10, iterations=1, batch=4, progress=lambda done, of: seen.append((done, of))
    )
    assert seen == [(4, 10), (8, 10), (10, 10)]


def test_convergence_of_the_samples_is_recorded() -> None:
    crf = coupled()
    few = pm.sample(crf, samples=8, iterations=2).label_changes
    many = pm.sample(crf, samples=8, iterations=30).label_changes
    assert few is not None
    assert many is not None
    assert few.max() > 0
    assert many.max() == 0
    assert pm.sample(crf, samples=2, iterations=1).label_changes is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"samples": 0}, "samples must be .* got 0"),
        ({"samples": range(5, 5)}, r"samples must be a number or a range .*got range\(5, 5\)"),
        ({"samples": range(9, 3, -1)}, "samples must be a number or a range that rises by 1"),
        ({"samples": range(0, 9, 2)}, "samples must be a number or a range that rises by 1"),
        ({"samples": range(-3, 3)}, "samples must be a number or a range that rises by 1 from 0"),
        ({"seed": -1}, "seed must be .* got -1"),
        ({"seed": 2**64}, f"seed must be .*{2**64 - 1}.*, got {2**64}"),
        ({"iterations": -1}, "iterations must be at least 0, got -1"),
        ({"estimator": "median"}, "estimator must be one of votes, conditional, got str 'median'"),
        ({"start": "hot"}, "start must be one of cold, warm, got str 'hot'"),
        ({"noise_scale": -0.1}, "noise_scale must be at least 0, got -0.1"),
        (
            {"noise_scale": 1.0, "estimator": "conditional"},
            'noise_scale must be below 1 with estimator "conditional", got 1',
        ),
        ({"noise_length": -3.0}, "noise_length must be at least 0, got -3.0"),
        ({"batch": 0}, "batch must be at least 1, got 0"),
        (
            {"until": pm.Precision(0.01, 0.05)},
            r"must be reachable within 200 samples, got one that takes up to \d+",
        ),
        (
            {"until": pm.Precision(0.3, 0.05), "antithetic": True},
            "until needs independent samples, got antithetic=True",
        ),
        (
            {"until": pm.Precision(0.3, 0.05), "estimator": "conditional"},
            'until needs estimator "votes", got "conditional"',
        ),
    ],
    ids=str,
)
def test_bad_input(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pm.sample(coupled(), **arguments)  # type: ignore[arg-type]


def test_bad_types() -> None:
    with pytest.raises(TypeError, match="crf must be a DenseCRF, got int"):
        pm.sample(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="until must be a Precision or a number, got str"):
        pm.sample(coupled(), until="soon")  # type: ignore[arg-type]
