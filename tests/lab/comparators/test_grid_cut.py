from __future__ import annotations

import sys

import numpy as np
import pytest

from lab.comparators import (
    Enumeration,
    GridCRF,
    graph_cut,
    min_marginals,
    perturb_and_map,
    perturb_and_map_grid,
)


@pytest.fixture
def maxflow() -> None:
    pytest.importorskip("maxflow", reason="PyMaxflow (extra graphcut) is not installed")


def random_grid(
    seed: int, shape: tuple[int, ...], n_labels: int, weight: float = 0.8, **options: object
) -> GridCRF:
    rng = np.random.default_rng(seed)
    images = rng.normal(size=(1, *shape))
    unary = rng.normal(size=(n_labels, *shape))
    return GridCRF(unary, weight=weight, images=images, sigma_intensity=1.5, **options)


def test_without_pymaxflow_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "maxflow", None)
    crf = random_grid(0, (2, 2), 2)
    for call in (graph_cut, min_marginals, lambda crf: perturb_and_map_grid(crf, 1, 0)):
        with pytest.raises(ImportError, match=r"pip install 'perturb-mpm\[graphcut\]'"):
            call(crf)


@pytest.mark.usefixtures("maxflow")
class TestGraphCut:
    @pytest.mark.parametrize("seed", range(12))
    @pytest.mark.parametrize("neighbours", ["faces", "all"])
    def test_two_labels_are_solved_exactly(self, seed: int, neighbours: str) -> None:
        shape = [(3, 4), (2, 2, 3), (11,)][seed % 3]
        crf = random_grid(seed, shape, 2, weight=0.2 * (seed + 1), neighbours=neighbours)
        exact = Enumeration(crf)
        labels = graph_cut(crf)
        np.testing.assert_array_equal(labels, exact.labels)
        assert crf.energy(labels) == pytest.approx(exact.energy)

    @pytest.mark.parametrize("n_labels", [3, 4])
    def test_more_labels_are_mostly_solved_exactly_and_never_badly(self, n_labels: int) -> None:
        solved = 0
        for seed in range(25):
            crf = random_grid(seed, (2, 4), n_labels, weight=1.0, neighbours="all")
            exact = Enumeration(crf)
            least, best = exact.energy, exact.labels.ravel()
            found = crf.energy(graph_cut(crf))
            assert found >= least - 1e-9
            pairwise = crf.edges.weight[best[crf.edges.first] != best[crf.edges.second]].sum()
            assert found <= least + pairwise + 1e-9
            solved += found < least + 1e-9
        assert solved >= 22

    def test_an_expansion_never_raises_the_energy(self) -> None:
        from lab.comparators.grid_cut import expand

        rng = np.random.default_rng(0)
        for seed in range(10):
            crf = random_grid(seed, (6, 7), 5, weight=2.0, neighbours="all")
            labels = rng.integers(5, size=42, dtype=np.uint8)
            energy = crf.energy_inside(labels, crf.energies)
            for alpha in (3, 0, 4, 1, 2, 3):
                labels = expand(crf, crf.energies, labels, alpha)
                after = crf.energy_inside(labels, crf.energies)
                assert after <= energy + 1e-9
                energy = after

    def test_an_expansion_is_the_best_of_all(self) -> None:
        from lab.comparators.grid_cut import expand

        crf = random_grid(3, (2, 4), 3, weight=1.0, neighbours="all")
        labels = np.array([0, 1, 2, 1, 1, 0, 2, 2], dtype=np.uint8)
        switches = np.indices((2,) * 8).reshape(8, -1).T.astype(bool)
        best = min(
            crf.energy_inside(np.where(switch, np.uint8(1), labels), crf.energies)
            for switch in switches
        )
        moved = expand(crf, crf.energies, labels, 1)
        assert crf.energy_inside(moved, crf.energies) == pytest.approx(best)

    def test_no_coupling_is_the_least_unary(self) -> None:
        crf = random_grid(1, (5, 5), 4, weight=0.0)
        np.testing.assert_array_equal(graph_cut(crf), crf.energies.argmin(axis=0).reshape(5, 5))

    def test_outside_the_mask_is_label_zero(self) -> None:
        mask = np.array([1, 0, 1, 1])
        crf = GridCRF([[5.0] * 4, [0.0] * 4], weight=1.0, mask=mask)
        assert graph_cut(crf).tolist() == [1, 0, 1, 1]

    def test_samples_equal_those_by_enumeration_under_common_noise(self) -> None:
        crf = random_grid(5, (3, 3), 2, weight=1.0)
        cut, enumerated = perturb_and_map_grid(crf, 300, 7), perturb_and_map(crf, 300, 7)
        np.testing.assert_array_equal(cut.counts, enumerated.counts)
        np.testing.assert_array_equal(cut.volumes, enumerated.volumes)

    def test_samples_of_more_labels_are_close_to_those_by_enumeration(self) -> None:
        crf = random_grid(5, (2, 4), 3, weight=1.0)
        cut, enumerated = perturb_and_map_grid(crf, 300, 7), perturb_and_map(crf, 300, 7)
        assert np.abs(cut.marginals - enumerated.marginals).max() < 0.02


@pytest.mark.usefixtures("maxflow")
class TestMinMarginals:
    @pytest.mark.parametrize("seed", range(8))
    def test_they_equal_enumeration(self, seed: int) -> None:
        neighbours = "all" if seed % 2 else "faces"
        shape = (3, 4) if seed < 4 else (2, 2, 3)
        crf = random_grid(seed, shape, 2, weight=0.5 * seed, neighbours=neighbours)
        exact = Enumeration(crf)
        table = exact._table.energies.reshape((2,) * 12)
        expected = np.array([[table.take(l, axis=i).min() for i in range(12)] for l in (0, 1)])
        found = min_marginals(crf)
        np.testing.assert_allclose(found.energies.reshape(2, 12), expected, atol=1e-12)
        confidence = np.exp(exact.energy - expected)
        confidence /= confidence.sum(axis=0)
        np.testing.assert_allclose(found.confidence.reshape(2, 12), confidence, atol=1e-12)
        np.testing.assert_array_equal(found.labels, exact.labels)
        assert found.energy == pytest.approx(exact.energy)

    def test_reusing_the_flow_equals_starting_afresh(self) -> None:
        crf = random_grid(2, (15, 15), 2, weight=1.0, neighbours="all")
        found = min_marginals(crf)
        assert found.energies.min(axis=0) == pytest.approx(np.full((15, 15), found.energy))
        for place in np.random.default_rng(0).integers(15, size=(20, 2)):
            row, column = (int(each) for each in place)
            other = 1 - int(found.labels[row, column])
            unary = crf.energies.reshape(2, 15, 15).copy()
            unary[1 - other, row, column] += 1000
            forced = random_grid(2, (15, 15), 2, weight=1.0, neighbours="all")
            forced.energies = unary.reshape(2, -1)
            labels = graph_cut(forced)
            assert labels[row, column] == other
            assert found.energies[other, row, column] == pytest.approx(crf.energy(labels))

    def test_no_coupling_gives_the_softmax(self) -> None:
        crf = random_grid(4, (4, 4), 2, weight=0.0)
        expected = np.exp(-crf.energies) / np.exp(-crf.energies).sum(axis=0)
        np.testing.assert_allclose(min_marginals(crf).confidence.reshape(2, -1), expected)

    def test_they_are_not_marginals(self) -> None:
        # Three neighbours without a preference of their own still back the first voxel's.
        crf = GridCRF([[0.0] * 4, [1.0, 0.0, 0.0, 0.0]], weight=1.0)
        assert min_marginals(crf).confidence[0, 3] == pytest.approx(1 / (1 + np.exp(-1)))
        assert Enumeration(crf).marginals[0, 3] < 0.6

    def test_outside_the_mask_label_zero_is_certain(self) -> None:
        crf = GridCRF([[5.0] * 3, [0.0] * 3], weight=1.0, mask=[1, 0, 1])
        found = min_marginals(crf)
        assert found.confidence[:, 1].tolist() == [1, 0]
        assert found.labels.tolist() == [1, 0, 1]
