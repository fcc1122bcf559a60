from __future__ import annotations

from importlib.resources import files
from itertools import pairwise

import numpy as np
import pytest

from perturb_mpm.evaluation import dice
from perturb_mpm.phantom import (
    LABEL_NAMES,
    POSTOPERATIVE_LABEL_NAMES,
    Phantom,
    glioblastoma,
    resect,
)
from perturb_mpm.phantom.anatomy import atlas
from perturb_mpm.phantom.space import PhantomGrid, RandomSource, level_for_volume

SEEDS = range(5)
T1, T1C, T2, FLAIR = range(4)


@pytest.fixture(scope="module")
def patients() -> list[Phantom]:
    return [glioblastoma(seed, spacing_mm=4.0) for seed in SEEDS]


@pytest.fixture(scope="module")
def patient(patients: list[Phantom]) -> Phantom:
    return patients[0]


@pytest.fixture(scope="module")
def fine() -> Phantom:
    return glioblastoma(1, spacing_mm=2.0)


@pytest.fixture(scope="module")
def operated(fine: Phantom) -> Phantom:
    return resect(fine, residual_ml=2.0)


@pytest.mark.parametrize("name", ["images", "truth", "memberships", "mask", "probabilities"])
def test_the_same_seed_is_the_same_patient_bit_for_bit(patient: Phantom, name: str) -> None:
    again = glioblastoma(0, spacing_mm=4.0)
    assert getattr(patient, name).tobytes() == getattr(again, name).tobytes()


def test_surgery_is_the_same_every_time(patient: Phantom) -> None:
    once, again = resect(patient, 1.0), resect(patient, 1.0)
    assert once.images.tobytes() == again.images.tobytes()
    assert once.truth.tobytes() == again.truth.tobytes()


def test_another_seed_is_another_patient(patients: list[Phantom]) -> None:
    for one, other in pairwise(patients):
        assert dice(one.truth > 0, other.truth > 0) < 0.6
        assert not np.array_equal(one.mask, other.mask)


def test_arrays_have_the_stated_shapes_and_types(patient: Phantom) -> None:
    shape = (40, 50, 42)
    assert patient.images.shape == (4, *shape)
    assert patient.memberships.shape == patient.probabilities.shape == (5, *shape)
    for array in (patient.images, patient.memberships, patient.probabilities):
        assert array.dtype == np.float32
        assert np.isfinite(array).all()
        assert (array >= -1e-6).all()
    assert patient.truth.dtype == np.uint8
    assert patient.mask.dtype == np.bool_
    assert patient.label_names == LABEL_NAMES
    assert patient.spacing == (4.0, 4.0, 4.0)
    np.testing.assert_allclose(
        patient.affine[:3, 3] + 4.0 * np.array([19.5, 24.5, 20.5]), [0, -17, 5]
    )


@pytest.mark.parametrize("name", ["memberships", "probabilities"])
def test_shares_of_labels_sum_to_one(patient: Phantom, operated: Phantom, name: str) -> None:
    for case in (patient, operated):
        np.testing.assert_allclose(getattr(case, name).sum(axis=0), 1.0, atol=1e-5)


def test_outside_the_brain_there_is_nothing(patient: Phantom, operated: Phantom) -> None:
    for case in (patient, operated):
        outside = ~case.mask
        assert (case.images[:, outside] == 0.0).all()
        assert (case.truth[outside] == 0).all()
        assert (case.probabilities[0, outside] == 1.0).all()


def test_volumes_are_those_of_patients(patients: list[Phantom]) -> None:
    for case in patients:
        necrosis, oedema, bulk, enhancing = (case.volume_ml(label) for label in (1, 2, 3, 4))
        assert 1100.0 < case.mask.sum() * 0.064 < 1600.0
        assert 5.0 < enhancing < 40.0
        assert 20.0 < oedema < 120.0
        assert 1.0 < necrosis < 50.0
        assert 0.5 < bulk < 30.0


def test_the_parts_have_the_volumes_that_were_drawn(fine: Phantom) -> None:
    assert fine.volume_ml(4) == pytest.approx(fine.disease.enhancing_ml, rel=0.02)
    assert fine.volume_ml(2) == pytest.approx(fine.disease.oedema_ml, rel=0.05)
    assert sum(map(fine.volume_ml, (1, 3, 4))) == pytest.approx(fine.disease.core_ml, rel=0.02)


def test_resolution_does_not_change_the_patient(fine: Phantom) -> None:
    coarse = glioblastoma(1, spacing_mm=4.0)
    np.testing.assert_array_equal(coarse.disease.centre, fine.disease.centre)
    for label in (1, 2, 3, 4):
        assert coarse.volume_ml(label) == pytest.approx(fine.volume_ml(label), rel=0.05)
    blocks = fine.mask.reshape(40, 2, 50, 2, 42, 2).mean(axis=(1, 3, 5)) > 0.5
    assert dice(blocks, coarse.mask) > 0.98


def test_sequences_show_what_they_are_made_for(patients: list[Phantom]) -> None:
    for case in patients:
        sure = [case.mask & (share > 0.9) for share in case.memberships]
        tissue = {
            name: case.mask & (case.tissue[name] > 0.9) for name in ("white", "grey", "fluid")
        }
        seen = np.array([[np.median(image[each]) for each in sure] for image in case.images])
        assert seen[T1C].argmax() == 4  # enhancing tumour is brightest after contrast agent
        assert seen[FLAIR][2] > 1.3 * seen[FLAIR][0]  # oedema shines on FLAIR
        assert seen[FLAIR][2] > 1.1 * seen[FLAIR][1]
        assert seen[T2].argmax() == 1  # necrosis is the wettest
        for channel, order in ((T1, "white grey fluid"), (T2, "fluid grey white")):
            image = case.images[channel]
            levels = [np.median(image[tissue[name]]) for name in order.split()]
            assert levels == sorted(levels, reverse=True)


def test_flair_has_thicker_slices_than_t1(fine: Phantom) -> None:
    inside = fine.mask[1:-1, 1:-1, 1:-1]

    def roughness(channel: int, axis: int) -> float:
        image = fine.images[channel]
        steps = np.abs(np.diff(image, axis=axis))
        trimmed = [slice(1, -1)] * 3
        trimmed[axis] = slice(1, None)
        return float(steps[tuple(trimmed)][inside].mean() / image[fine.mask].mean())

    assert roughness(FLAIR, 2) / roughness(FLAIR, 0) < 0.95 * roughness(T1, 2) / roughness(T1, 0)


def test_oedema_follows_white_matter(fine: Phantom) -> None:
    from scipy.ndimage import binary_dilation

    from perturb_mpm.phantom.anatomy import anatomy

    around = anatomy(RandomSource(fine.seed), fine.grid, fine.disease)
    oedema = fine.truth == 2
    beside = binary_dilation(oedema, iterations=2) & fine.mask & (fine.truth == 0)
    assert around.white[oedema].mean() > 0.75
    assert around.white[beside].mean() < 0.6


@pytest.mark.parametrize("seed", [1, 4])
def test_mass_effect_moves_the_midline_and_squeezes_the_fluid(seed: int) -> None:
    pushed = glioblastoma(seed, spacing_mm=4.0)
    at_rest = glioblastoma(seed, spacing_mm=4.0, mass_effect=0.0)
    x, y, z = pushed.grid.points()
    centre = pushed.disease.centre
    side = np.sign(centre[0])
    level = (np.abs(y - centre[1]) < 24.0) & (np.abs(z - centre[2]) < 30.0) & pushed.mask
    midline = level & (np.abs(x) < 14.0)  # the fissure: fluid and the cortex on both sides of it
    same_side = level & (x * side > 4.0)

    def middle_mm(case: Phantom) -> float:
        weight = (case.tissue["grey"] + 2.0 * case.tissue["fluid"])[midline]
        return float((weight * x[midline]).sum() / weight.sum())

    assert side * (middle_mm(pushed) - middle_mm(at_rest)) < -0.4
    assert pushed.tissue["fluid"][same_side].sum() < 0.85 * at_rest.tissue["fluid"][same_side].sum()


@pytest.mark.parametrize("residual_ml", [0.0, 0.3, 1.0, 5.0])
def test_surgery_leaves_the_volume_that_was_asked_for(fine: Phantom, residual_ml: float) -> None:
    after = resect(fine, residual_ml)
    assert after.volume_ml(4) == pytest.approx(residual_ml, rel=0.1)


def test_surgery_leaves_a_cavity_where_the_core_was(fine: Phantom, operated: Phantom) -> None:
    assert operated.stage == "post-operative"
    assert operated.label_names == POSTOPERATIVE_LABEL_NAMES
    core = np.isin(fine.truth, (1, 3, 4))
    cavity = operated.truth == 5
    assert (cavity & core).sum() > 0.7 * cavity.sum()
    assert operated.volume_ml(1) == operated.volume_ml(3) == 0.0
    assert 0.5 * fine.volume_ml(2) < operated.volume_ml(2) < fine.volume_ml(2)
    from scipy.ndimage import distance_transform_edt

    from_wall_mm = distance_transform_edt(~cavity, sampling=operated.spacing)[operated.truth == 4]
    assert np.quantile(from_wall_mm, 0.95) < 7.0


def test_contrast_agent_tells_remnants_from_blood(operated: Phantom) -> None:
    white = operated.mask & (operated.tissue["white"] > 0.95)
    t1, t1c = (operated.images[c] / np.median(operated.images[c][white]) for c in (T1, T1C))
    blood = operated.mask & (operated.tissue["blood"] > 0.8)
    remnants = operated.mask & (operated.tissue["enhancing"] > 0.8)
    assert np.median(t1c[blood]) > 1.15
    assert np.median(t1c[remnants]) > 1.15
    rise = t1c - t1
    assert np.quantile(rise[blood], 0.9) < np.quantile(rise[remnants], 0.1)


def test_air_lies_in_front_of_the_fluid(operated: Phantom) -> None:
    _, y, _ = operated.grid.points()
    air, fluid = (operated.tissue[name] > 0.9 for name in ("air", "cavity"))
    assert air.any()
    assert y[air].min() > np.quantile(y[fluid], 0.9)


def test_the_classifier_is_good_but_not_perfect(patients: list[Phantom]) -> None:
    scores = np.array(
        [
            [dice(p.truth == label, p.probabilities.argmax(axis=0) == label) for label in (2, 4)]
            for p in patients
        ]
    )
    assert scores.min() > 0.45
    assert scores.max() < 0.95


def test_the_classifier_suspects_blood(operated: Phantom) -> None:
    enhancing = operated.probabilities[4]
    blood = operated.mask & (operated.tissue["blood"] > 0.5)
    healthy = operated.mask & (operated.memberships[0] > 0.99)
    assert enhancing[blood].mean() > 10.0 * enhancing[healthy].mean()
    assert enhancing[blood].mean() < enhancing[operated.truth == 4].mean()


def test_a_field_is_the_same_on_every_grid() -> None:
    source = RandomSource(3)
    coarse, fine = (PhantomGrid.over_the_brain((step, step, step)) for step in (8.0, 8.0 / 3.0))
    once = source.noise(coarse, "lobes", 17.0)
    assert fine.axes[0][1] == pytest.approx(coarse.axes[0][0])
    again = source.noise(fine, "lobes", 17.0)[1::3, 1::3, 1::3]
    np.testing.assert_allclose(once, again, atol=1e-4)
    assert source.noise(fine, "lobes", 5.0).std() == pytest.approx(1.0, abs=0.1)


def test_the_level_for_a_volume_counts_voxels() -> None:
    grid = PhantomGrid.over_the_brain((8.0, 8.0, 8.0))
    score = RandomSource(0).noise(grid, "any", 20.0)
    inside = score > 0.0
    for volume_ml in (1.0, 50.0):
        level = level_for_volume(score, inside, volume_ml, grid)
        assert (score[inside] > level).sum() == round(volume_ml / 0.512)
    assert level_for_volume(score, inside, 0.0, grid) == np.inf
    assert level_for_volume(score, inside, 1e6, grid) == -np.inf


def test_the_atlas_is_small_and_carries_its_notice() -> None:
    data = files("perturb_mpm.phantom") / "data"
    assert len((data / "mni152_2mm.npz").read_bytes()) < 700_000
    notice = " ".join((data / "NOTICE.md").read_text().split())
    assert "Louis Collins, McConnell Brain Imaging Centre" in notice
    assert "provided that the above copyright notice appear in all copies" in notice
    maps = atlas()
    assert maps.grey.shape == maps.white.shape == maps.brain.shape == (73, 91, 78)
    assert float((maps.grey + maps.white - maps.brain).max()) < 0.35
    left, right = maps.white[:36].ravel(), maps.white[:-37:-1].ravel()
    assert np.corrcoef(left, right)[0, 1] > 0.97  # the template is symmetric


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"spacing_mm": 0.0}, "spacing_mm must be positive"),
        ({"spacing_mm": 0.5}, "spacing_mm must lie between 0.9 and 8.0 mm, got 0.5"),
        ({"spacing_mm": (2.0, 2.0)}, "spacing_mm must be one number or one for each axis"),
        ({"mass_effect": -0.1}, "mass_effect must be at least 0"),
        ({"mass_effect": float("nan")}, "mass_effect must be finite"),
    ],
)
def test_impossible_patients_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        glioblastoma(**arguments)  # type: ignore[arg-type]


def test_a_seed_must_be_a_whole_number() -> None:
    with pytest.raises(TypeError, match=r"seed must be an integer, got float 1\.5"):
        glioblastoma(1.5)  # type: ignore[arg-type]


def test_impossible_operations_are_refused(fine: Phantom, operated: Phantom) -> None:
    with pytest.raises(ValueError, match="residual_ml must be at least 0"):
        resect(fine, -1.0)
    with pytest.raises(
        ValueError, match=r"residual_ml must be below the enhancing volume.* got 99"
    ):
        resect(fine, 99.0)
    with pytest.raises(ValueError, match="patient must be pre-operative"):
        resect(operated, 0.0)
    with pytest.raises(ValueError, match="label must be at most 4, got 5"):
        fine.volume_ml(5)
