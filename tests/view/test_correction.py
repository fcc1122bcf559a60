"""Voxels held by hand: the same as solving all again, only where they are felt, and the list."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from numpy.typing import NDArray

import perturb_mpm as pm
from perturb_mpm.engines import Compute
from perturb_mpm.files import Geometry, LabelScheme
from perturb_mpm.model.grid import Grid
from perturb_mpm.progress import Silent
from perturb_mpm.sampling import Sampler, Sampling
from perturb_mpm.view import correction as module
from perturb_mpm.view.correction import (
    FREE,
    Correction,
    Corrector,
    draw,
    reach_mm,
    with_held,
    within_reach,
)
from perturb_mpm.view.edits import EditsError, EditsFile

SAMPLES = 24
SEED = 3
SHAPE = (22, 20, 14)
SPACING = (4.0, 4.0, 4.0)
ONE_EDIT = '{"format": 1, "run": "digest", "edits": [{"order": 1, "voxel": %s, "new_label": %d}]}'
PLAN = Sampling(SAMPLES, SEED, iterations=6)


def make_problem() -> pm.DenseCRF:
    """Return two blurred balls in a block without its corners, three labels."""
    from scipy.ndimage import gaussian_filter

    places = np.stack(np.indices(SHAPE), axis=-1)
    truth = np.zeros(SHAPE, dtype=int)
    for label, centre, radius in ((1, (7, 9, 7), 5.0), (2, (9, 10, 6), 3.0)):
        truth[np.linalg.norm(places - np.array(centre), axis=-1) < radius] = label
    generator = np.random.default_rng(1)
    image = truth + 0.3 * generator.standard_normal(SHAPE)
    soft = np.stack([gaussian_filter((truth == label) * 1.0, 1.3) for label in range(3)]) + 0.05
    mask = np.linalg.norm((places - np.array([10.5, 9.5, 6.5])) / (11, 10, 7), axis=-1) < 1.2
    return pm.DenseCRF(
        pm.unary_from_probabilities(soft / soft.sum(axis=0)),
        [pm.SpatialKernel(4.0, 1.0), pm.BilateralKernel(image[np.newaxis], 6.0, 0.5, 2.0)],
        spacing=SPACING,
        mask=mask,
    )


@pytest.fixture(scope="module")
def crf() -> pm.DenseCRF:
    return make_problem()


@pytest.fixture(scope="module")
def posterior(crf: pm.DenseCRF) -> pm.Posterior:
    return pm.sample(crf, SAMPLES, SEED, iterations=6)


@pytest.fixture(scope="module")
def edits(crf: pm.DenseCRF, posterior: pm.Posterior) -> dict[int, int]:
    """Background where the inner ball begins: labels 1 and 2 until now."""
    places = np.stack(np.indices(SHAPE), axis=-1)
    ball = np.linalg.norm(places - np.array([6, 10, 6]), axis=-1) < 2
    assert (posterior.labels[ball] > 0).all()
    return dict.fromkeys(np.flatnonzero(ball).tolist(), 0)


@pytest.fixture(scope="module")
def whole(crf: pm.DenseCRF, edits: dict[int, int]) -> pm.Posterior:
    """Sample again with the edits written into the unaries, by the public interface alone."""
    unary = crf.grid.scatter(crf.energies, 0)
    flat = unary.reshape(3, -1)
    flat[:, list(edits)] = 1e4
    flat[0, list(edits)] = 0.0
    again = pm.DenseCRF(unary, crf.kernels, spacing=SPACING, mask=crf.grid.mask)
    return pm.sample(again, SAMPLES, SEED, iterations=6)


def make_corrector(crf: pm.DenseCRF, posterior: pm.Posterior, **changes: int) -> Corrector:
    plan = replace(PLAN, **changes)  # type: ignore[arg-type]
    return Corrector(
        crf, plan, Compute(), posterior.voxel_marginals(posterior.estimator), posterior.samples
    )


def near_edits(crf: pm.DenseCRF, edits: dict[int, int]) -> NDArray[np.bool_]:
    near = within_reach(np.isin(crf.grid.index, list(edits)), crf.grid, reach_mm(crf.kernels))
    image: NDArray[np.bool_] = crf.grid.scatter(near, ~np.True_)
    return image


def test_a_correction_is_what_solving_all_again_gives_within_reach(
    crf: pm.DenseCRF, posterior: pm.Posterior, edits: dict[int, int], whole: pm.Posterior
) -> None:
    corrected = make_corrector(crf, posterior).correct(edits)
    labels = corrected.labels(posterior.labels)
    bits = corrected.entropy(posterior.entropy.astype(np.float32))
    near = near_edits(crf, edits)
    assert 0.3 < near[crf.grid.mask].mean() < 0.95  # both kinds of voxels are there
    assert (labels == whole.labels)[near].mean() >= 0.99
    assert bits[near] == pytest.approx(whole.entropy[near], abs=1e-6)
    assert np.array_equal(labels[~near], posterior.labels[~near])
    assert np.array_equal(bits[~near], posterior.entropy.astype(np.float32)[~near])
    assert (labels.flat[list(edits)] == 0).all()
    assert (bits.flat[list(edits)] == 0).all()
    pulled = set(np.flatnonzero(labels != posterior.labels)) - edits.keys()
    assert pulled  # neighbours follow
    assert all(posterior.entropy.flat[voxel] > 0 for voxel in pulled)  # and only doubtful ones


def test_fewer_samples_move_the_marginals_by_their_difference(
    crf: pm.DenseCRF, posterior: pm.Posterior, edits: dict[int, int], whole: pm.Posterior
) -> None:
    shares: list[float] = []
    corrector = make_corrector(crf, posterior, samples=8)
    corrected = corrector.correct(edits, lambda done, of: shares.append(done / of))
    labels = corrected.labels(posterior.labels)
    near = near_edits(crf, edits)
    assert (labels == whole.labels)[near].mean() >= 0.98
    assert np.allclose(corrected.marginals.sum(axis=0), 1)
    assert shares == sorted(shares)
    assert shares[-1] == 1
    before = len(shares)
    corrector.correct(
        edits, lambda done, of: shares.append(done / of)
    )  # what is free of edits is not solved again
    assert len(shares) - before < before


def test_voxels_that_are_held_at_what_they_are_move_nothing_else(
    crf: pm.DenseCRF, posterior: pm.Posterior
) -> None:
    sure = crf.grid.scatter(posterior.voxel_marginals(posterior.estimator)[0], 0) == 1
    voxel = int(np.flatnonzero(sure & (crf.grid.mask == 1))[0])
    corrected = make_corrector(crf, posterior).correct({voxel: 0})
    assert np.array_equal(corrected.labels(posterior.labels), posterior.labels)


def test_the_order_of_edits_does_not_matter(
    crf: pm.DenseCRF, posterior: pm.Posterior, edits: dict[int, int]
) -> None:
    plan = {"samples": 2}
    one = make_corrector(crf, posterior, **plan).correct(edits)
    other = make_corrector(crf, posterior, **plan).correct(dict(reversed(edits.items())))
    assert np.array_equal(one.index, other.index)
    assert np.array_equal(one.marginals, other.marginals)
    assert (np.diff(one.index) > 0).all()


def test_nothing_is_solved_for_edits_outside_the_mask(
    crf: pm.DenseCRF, posterior: pm.Posterior, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(module, "draw", never)
    assert crf.grid.mask is not None
    outside = int(np.flatnonzero(~crf.grid.mask)[7])
    corrector = make_corrector(crf, posterior)
    corrected = corrector.correct({outside: 2})
    assert corrected.index.tolist() == [outside]
    labels = corrected.labels(posterior.labels)
    assert labels.flat[outside] == 2
    assert (labels != posterior.labels).sum() == 1
    assert not len(corrector.correct({}).index)


@pytest.mark.parametrize("estimator", ["votes", "conditional"])
def test_drawing_again_gives_the_runs_own_marginals(
    crf: pm.DenseCRF, estimator: pm.posterior.Estimator
) -> None:
    posterior = pm.sample(crf, 6, SEED, iterations=6, estimator=estimator)
    drawn = draw(crf, replace(PLAN, samples=6, estimator=estimator), Compute(), Silent())
    assert np.array_equal(drawn, posterior.voxel_marginals(posterior.estimator))
    assert drawn == pytest.approx(crf.grid.gather(posterior.marginals), abs=1e-8)


def test_held_voxels_keep_their_label_against_any_noise(crf: pm.DenseCRF) -> None:
    held = np.full(crf.grid.voxels, FREE, dtype=np.int16)
    held[::7], held[3::7] = 2, 1
    drawn = draw(with_held(crf, held), replace(PLAN, samples=8), Compute(), Silent())
    assert (drawn[2, ::7] == 1).all()
    assert (drawn[1, 3::7] == 1).all()
    assert (drawn[0, 1::7] > 0).any()


def test_reach_follows_the_widest_kernel() -> None:
    features = pm.FeatureKernel(np.zeros((1, 4, 4, 4)), 1.0)
    assert reach_mm([]) == 0
    assert reach_mm([pm.SpatialKernel(2.0), pm.SpatialKernel((1.0, 4.0, 1.0))]) == 16.0
    assert reach_mm([features]) == np.inf


def test_distance_is_in_mm() -> None:
    grid = Grid((1, 9), (1.0, 3.0))
    edited = np.arange(9) == 4
    assert within_reach(edited, grid, 6.0).nonzero()[0].tolist() == [2, 3, 4, 5, 6]
    assert not within_reach(~edited & edited, grid, 6.0).any()


def test_a_correction_writes_only_its_own_voxels() -> None:
    correction = Correction(np.array([1, 3]), np.array([[0.25, 1.0], [0.75, 0.0]]))
    assert correction.labels(np.zeros((2, 2), np.uint8)).tolist() == [[0, 1], [0, 0]]
    bits = correction.entropy(np.full((2, 2), 0.5, np.float32))
    assert bits == pytest.approx(np.array([[0.5, 0.8112781], [0.5, 0.0]]))


def test_corrected_labels_are_decided_region_by_region() -> None:
    marginals = np.array([[0.4], [0.3], [0.3]])
    correction = Correction(np.array([1]), marginals)
    whole = np.zeros((2, 2), np.uint8)
    assert correction.labels(whole).tolist() == [[0, 0], [0, 0]]
    assert correction.labels(whole, {"all": (1, 2)}).tolist() == [[0, 1], [0, 0]]


@pytest.fixture
def edits_file(tmp_path: Path) -> EditsFile:
    affine = np.array([[2.0, 0, 0, -5], [0, 3, 0, 1], [0, 0, 4, 0], [0, 0, 0, 1]])
    geometry = Geometry((3, 4, 5), affine, (2.0, 3.0, 4.0), nib.Nifti1Header())
    return EditsFile(tmp_path / "edits.json", "digest", LabelScheme((0, 4), ("a", "b")), geometry)


def test_edits_come_back_in_their_order_and_in_the_users_numbers(edits_file: EditsFile) -> None:
    assert edits_file.read() == {}
    edits = {47: 1, 3: 0}
    edits_file.write(edits, np.zeros((3, 4, 5), np.uint8))
    assert list(edits_file.read().items()) == [(47, 1), (3, 0)]
    first, second = json.loads(edits_file.path.read_text())["edits"]
    assert first == {
        "order": 1,
        "voxel": [2, 1, 2],
        "position_mm": [-1.0, 4.0, 8.0],
        "old_label": 0,
        "new_label": 4,
    }
    assert second["voxel"] == [0, 0, 3]
    edits_file.write({}, np.zeros((3, 4, 5), np.uint8))
    assert edits_file.read() == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "cannot be read"),
        ('{"format": 1}', "not a list of edits"),
        ('{"format": 2, "run": "digest", "edits": []}', "format must be 1, got 2"),
        ('{"format": 1, "run": "other", "edits": []}', "another run"),
        (ONE_EDIT % ("[9, 0, 0]", 4), "not a list of edits"),
        (ONE_EDIT % ("[1, 0, 0]", 3), "not a list of edits"),
    ],
)
def test_a_list_that_is_not_of_this_run_is_refused(
    edits_file: EditsFile, text: str, words: str
) -> None:
    edits_file.path.write_text(text)
    with pytest.raises(EditsError, match=words):
        edits_file.read()


def test_maps_of_the_mean_field_are_solved_once_and_not_sampled(
    crf: pm.DenseCRF, posterior: pm.Posterior
) -> None:
    own = posterior.voxel_marginals("mean_field")
    corrector = Corrector(crf, PLAN, Compute(), own, posterior.samples, by_samples=False)
    voxel = int(crf.grid.index[crf.grid.voxels // 2])
    label = int(own[:, crf.grid.voxels // 2].argmin())
    found = corrector.correct({voxel: label})
    held = np.full(crf.grid.voxels, -1, dtype=np.int16)
    held[crf.grid.voxels // 2] = label
    again = Sampler(with_held(crf, held), PLAN, Compute()).mean_field()
    places = np.searchsorted(crf.grid.index, found.index)
    free = found.index != voxel
    np.testing.assert_array_equal(found.marginals[:, free], again[:, places[free]])
    assert found.marginals[label, ~free] == 1
