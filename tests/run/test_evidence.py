"""What a run decides by image and grid where nothing was learned."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from perturb_mpm.files import Case
from perturb_mpm.learning import ImageEvidence, grid_temperature, image_evidence
from perturb_mpm.model import unary_from_probabilities
from perturb_mpm.posterior import marginal_entropy
from perturb_mpm.run import (
    CaseEvidence,
    RunSettings,
    build_crf,
    decide_settings,
    find_evidence,
    load_run,
    map_marginals,
    run_case,
)
from perturb_mpm.run.model import find_exponent
from perturb_mpm.run.settings import DEFAULT_BILATERAL

FEW = RunSettings().changed(samples=4, seed=2)


def evidence_with(skill: float, temperature: float | None = 1.4) -> CaseEvidence:
    return CaseEvidence(ImageEvidence(skill, 20.0, 0.3, (skill, 0.1, 0.0)), temperature)


@pytest.mark.parametrize(
    ("skill", "strength"),
    [(-0.4, 0.0), (0.16, 0.0), (0.25, 0.0), (0.42, 0.17), (0.66, 0.41), (0.75, 0.5), (1.0, 0.5)],
)
def test_kernels_act_as_far_as_the_image_predicts_the_probabilities(
    skill: float, strength: float
) -> None:
    assert evidence_with(skill).strength == pytest.approx(strength)


def test_no_kernels_act_where_nothing_is_predicted() -> None:
    assert CaseEvidence(None, None).strength == 0


@pytest.mark.parametrize(("skill", "temperature"), [(0.7, 1.1), (0.1, 1.0)])
def test_soft_borders_are_left_where_no_kernels_act(skill: float, temperature: float) -> None:
    assert evidence_with(skill, 1.1).map_temperature == temperature
    assert evidence_with(skill, 1.62).map_temperature == 1.62
    assert evidence_with(skill, 0.9).map_temperature == 1


def test_what_is_decided_is_what_image_and_grid_say(speaking: Case) -> None:
    found, p = find_evidence(speaking), speaking.probabilities
    spacing, mask = speaking.geometry.spacing, speaking.mask
    images = np.stack(list(speaking.images.values()))
    assert found.image == image_evidence(images, p, spacing=spacing, mask=mask)
    assert found.temperature == grid_temperature(p, spacing=spacing, mask=mask)
    assert found.image is not None
    settings = decide_settings(FEW, speaking)
    assert settings.coupling.strength == found.strength > 0
    assert settings.coupling.centring == 0
    assert settings.unary.temperature == round(found.temperature or 0, 2) > 1
    assert settings.unary.sampling_temperature is None  # the same, where kernels act
    assert settings.kernels[1].sigma_intensity_sd == found.image.sigma_intensity
    again = decide_settings(settings, speaking, evidence_with(0.0, 9.0))
    assert again == settings  # what settings say is never changed


def test_without_kernels_samples_take_the_probabilities_as_they_are(silent: Case) -> None:
    settings = decide_settings(FEW, silent)
    assert settings.coupling.strength == 0
    assert not settings.has_kernels
    assert (settings.unary.temperature or 0) > settings.unary.sampling_temperature == 1  # type: ignore[operator]
    crf = build_crf(silent, settings)
    np.testing.assert_array_equal(
        crf.prior, unary_from_probabilities(silent.probabilities[:, silent.mask])
    )
    given = decide_settings(FEW.changed(temperature=2.0), silent)
    assert given.unary.sampling_temperature is None
    np.testing.assert_array_equal(
        build_crf(silent, given).prior,
        unary_from_probabilities(silent.probabilities[:, silent.mask], 2.0),
    )


def test_a_kernel_of_ones_own_keeps_its_bandwidth(speaking: Case) -> None:
    own = replace(DEFAULT_BILATERAL, sigma_space=11.0)
    settings = decide_settings(replace(FEW, kernels=(own,)), speaking)
    assert settings.kernels == (own,)


def test_labels_stay_and_maps_are_tempered_where_the_image_is_silent(
    silent: Case, tmp_path: Path
) -> None:
    run = run_case(silent, FEW, tmp_path / "out", title="silent")
    inside, p = silent.mask, silent.probabilities.astype(np.float64)
    np.testing.assert_array_equal(run.labels[inside], p.argmax(axis=0)[inside])
    powers = p ** (1 / (run.settings.unary.temperature or 1.0))
    expected = (powers / powers.sum(axis=0))[:, inside]
    np.testing.assert_allclose(run.marginals[:, inside], expected, atol=1e-5)
    assert "too little for the CRF to help: it is off" in run.summary["answer"]
    assert run.summary["image_evidence"] < 0.25
    assert run.summary["temperature"] == run.settings.unary.temperature


def test_a_blend_is_half_mean_field_and_half_probabilities(speaking: Case, tmp_path: Path) -> None:
    run = run_case(speaking, FEW, tmp_path / "out", title="speaking")
    inside, p = speaking.mask, speaking.probabilities.astype(np.float64)
    powers = p ** (1 / (run.settings.unary.temperature or 1.0))
    tempered = (powers / powers.sum(axis=0))[:, inside]
    field = run.posterior.voxel_marginals("mean_field")
    assert np.abs(field - tempered).max() > 0.01  # kernels act
    softened = ((field + tempered) / 2) ** run.exponent
    softened /= softened.sum(axis=0)
    np.testing.assert_allclose(run.marginals[:, inside], softened, atol=1e-5)
    np.testing.assert_array_equal(run.labels[inside], (field + tempered).argmax(axis=0))
    assert "the CRF is on" in run.summary["answer"]
    assert 0.25 < run.summary["image_evidence"] <= 1
    page = (tmp_path / "out" / "report.html").read_text()
    assert "What the CRF changed" in page
    changed = (run.labels != p.argmax(axis=0))[inside]
    assert ("another label" in page) == bool(changed.any())
    own = RunSettings().changed(samples=4, strength=0.2)
    other = run_case(speaking, own, tmp_path / "own", title="given")
    assert "the strength of the CRF, 0.2, was given" in other.summary["answer"]


def test_a_blend_is_no_surer_than_the_tempered_probabilities(
    speaking: Case, tmp_path: Path
) -> None:
    run = run_case(speaking, FEW, tmp_path / "out", title="speaking")
    tempered, own = run.tempered, run.voxel_marginals
    mean = (run.posterior.voxel_marginals("mean_field") + tempered) / 2
    bits = [float(marginal_entropy(each).sum()) for each in (mean, own, tempered)]
    assert bits[0] < 0.99 * bits[2]  # surer, before
    assert bits[1] == pytest.approx(bits[2], rel=2e-3)
    assert 0.5 < run.exponent < 1
    order = marginal_entropy(mean).argsort()
    assert np.all(np.diff(marginal_entropy(own)[order]) > -0.02)  # voxels keep their order
    # Where the mean is as unsure already, it is what is shown; and what labels taught stays.
    soft = RunSettings().changed(samples=4, temperature=1.0, sampling_temperature=6.0, strength=0.1)
    other = run_case(speaking, soft, tmp_path / "soft", title="soft")
    assert other.exponent == 1
    learned = run.settings.changed(learned_cases=4)
    assert find_exponent(learned, run.posterior, tempered) == 1
    np.testing.assert_allclose(map_marginals(speaking, learned, run.posterior), mean)


def test_a_run_goes_on_with_what_was_decided_when_it_began(speaking: Case, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    begun = run_case(speaking, FEW, folder, title="x")
    assert load_run(folder).evidence == begun.evidence
    file = folder / "state" / "run.json"
    found = json.loads(file.read_text())
    # Another machine may round another skill: what is written decides.
    found["evidence"]["image"]["skill"] += 1e-9
    file.write_text(json.dumps(found))
    (folder / "summary.json").unlink()
    again = run_case(speaking, FEW, folder, title="x", resume=True)
    assert again.settings == begun.settings
    assert again.evidence != begun.evidence


def test_a_case_outside_of_what_was_learned_is_marked(speaking: Case, tmp_path: Path) -> None:
    found = find_evidence(speaking)
    assert found.image is not None
    like = {"image evidence": (found.image.skill - 0.1, found.image.skill + 0.1)}
    unlike = {"image evidence": (0.0, 0.2), "grid temperature": (1.0, 9.0)}
    learned = FEW.changed(learned_cases=5, strength=0.0, tuning_ranges=like)
    assert run_case(speaking, learned, tmp_path / "like", title="x").summary["warnings"] == []
    other = run_case(
        speaking, learned.changed(tuning_ranges=unlike), tmp_path / "unlike", title="x"
    )
    (warning,) = other.summary["warnings"]
    assert warning.startswith("this case lies outside of what was learned")
    assert f"image evidence {found.image.skill:.3g} (0 to 0.2)" in warning
    assert "grid temperature" not in warning
