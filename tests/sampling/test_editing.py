"""Edits answered from what was kept: what sampling everything again gives, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

import perturb_mpm as pm
from helpers.problems import masked_volume, smooth_problem
from perturb_mpm.engines import FREE, Compute
from perturb_mpm.sampling import EditedVotes, Editor, Sampler, Sampling, sample_edited

PLAN = Sampling(40, seed=3, iterations=10)
CPU = Compute(engine="cpu")
# Of the votes that an edit moves, how many may differ from sampling everything again: kernels as
# strong as the paper's have several solutions here, and a cold start may find another than the
# one that lies next to the solution before.
MOST_WRONG = {1.0: 0.2, 0.35: 0.05}


def ball(crf: pm.DenseCRF, label: int = 1, radius: float = 3.0) -> NDArray[np.int16]:
    """A ball in the middle of the image set to one label."""
    places = np.stack(np.unravel_index(crf.grid.index, crf.grid.shape), axis=1)
    middle = (np.array(crf.grid.shape) - 1) / 2
    near = np.linalg.norm(places - middle, axis=1) < radius
    return np.where(near, label, FREE).astype(np.int16)


def weaker(crf: pm.DenseCRF, strength: float, centring: float) -> pm.DenseCRF:
    kernels = [replace(each, weight=strength * each.weight) for each in crf.kernels]  # type: ignore[type-var]
    return pm.DenseCRF(
        crf.grid.scatter(crf.energies, 0),
        kernels,
        spacing=crf.grid.spacing,
        mask=crf.grid.mask,
        centring=centring,
    )


def last(editor: Editor, given: NDArray[np.int16]) -> tuple[pm.Posterior, EditedVotes]:
    edit = editor.edit(given)
    *_, votes = editor.votes(edit)
    return editor.posterior(edit, votes), votes


def apart(one: pm.Posterior, other: pm.Posterior) -> float:
    """The share of votes that differ at least."""
    away = np.abs(one.voxel_counts.astype(int) - other.voxel_counts.astype(int)).sum()
    return float(away) / 2 / one.samples / one.grid.voxels


@pytest.mark.parametrize("length", [0.0, 8.0])
@pytest.mark.parametrize(("strength", "centring"), [(1.0, 0.0), (0.35, 1.0)])
def test_an_edit_is_what_sampling_everything_again_gives(
    length: float, strength: float, centring: float
) -> None:
    crf = weaker(smooth_problem(), strength, centring)
    plan = replace(PLAN, noise_length=length)
    editor = Editor(Sampler(crf, plan, CPU))
    before = editor.keep()
    assert before == Sampler(crf, plan, CPU).draw()
    given = ball(crf)
    found, votes = last(editor, given)
    again = sample_edited(crf, given, plan, CPU)
    moved, wrong = apart(before, again), apart(found, again)
    assert moved > 1e-2
    assert wrong < MOST_WRONG[strength] * moved
    assert (found.labels == again.labels).mean() > 0.996
    own, wanted = (each.voxel_marginals("mean_field") for each in (found, again))
    np.testing.assert_allclose(own, wanted, atol=0.05 if strength == 1 else 0.005)
    away = np.abs(found.volumes - again.volumes).mean(axis=0)
    most = np.abs(before.volumes - again.volumes).mean(axis=0)
    assert (away <= MOST_WRONG[strength] * most + 2).all()
    assert (found.voxel_counts[1, given != FREE] == found.samples).all()
    others = np.setdiff1d(np.arange(crf.grid.voxels), votes.voxels)
    assert len(others) > 0
    np.testing.assert_array_equal(
        found.voxel_counts[:, others], before.voxel_counts[:, others]
    )  # to the last bit


def test_the_reference_engine_answers_too() -> None:
    crf = masked_volume()
    plan = replace(PLAN, samples=12, noise_length=3.0)
    compute = Compute(engine="reference")
    editor = Editor(Sampler(crf, plan, compute))
    before = editor.keep()
    given = ball(crf, 2, 1.5)
    found, _ = last(editor, given)
    again = sample_edited(crf, given, plan, compute)
    assert apart(before, again) > 0.03
    assert apart(found, again) < 0.01


def test_a_label_that_nothing_follows_is_noticed() -> None:
    """The negative control: with the kernels left out an edit moves its own voxels alone."""
    crf = smooth_problem()
    alone = weaker(crf, 0.0, 0.0)
    given = ball(crf)
    editor = Editor(Sampler(alone, PLAN, CPU))
    editor.keep()
    found, votes = last(editor, given)
    np.testing.assert_array_equal(votes.voxels, np.flatnonzero(given != FREE))
    again = sample_edited(crf, given, PLAN, CPU)
    assert apart(found, again) > 0.5 * apart(editor.keep(), again)


@pytest.mark.parametrize("changes", [{"tolerance": 1e-3, "iterations": 30}, {"antithetic": True}])
def test_other_ways_of_sampling_are_followed(changes: dict[str, object]) -> None:
    crf = smooth_problem()
    plan = replace(PLAN, samples=24, **changes)  # type: ignore[arg-type]
    editor = Editor(Sampler(crf, plan, CPU))
    before = editor.keep()
    given = ball(crf)
    found, _ = last(editor, given)
    again = sample_edited(crf, given, plan, CPU)
    assert apart(found, again) < MOST_WRONG[1.0] * apart(before, again)


def test_nothing_set_changes_nothing_and_the_order_of_batches_neither() -> None:
    crf = smooth_problem()
    nothing = np.full(crf.grid.voxels, FREE, dtype=np.int16)
    answers = []
    for batch in (7, 40):
        editor = Editor(Sampler(crf, PLAN, Compute(engine="cpu", batch=batch)))
        before = editor.keep()
        found, _ = last(editor, nothing)
        np.testing.assert_array_equal(found.voxel_counts, before.voxel_counts)
        np.testing.assert_array_equal(found.volumes, before.volumes)
        answers.append(last(editor, ball(crf))[0])
    np.testing.assert_array_equal(answers[0].voxel_counts, answers[1].voxel_counts)
    np.testing.assert_array_equal(answers[0].volumes, answers[1].volumes)


def test_what_is_kept_is_bounded_and_the_rest_stays_as_it_is() -> None:
    crf = smooth_problem()
    roomy, narrow = (Editor(Sampler(crf, PLAN, CPU)) for _ in range(2))
    whole = roomy.keep()
    limit = roomy.kept_bytes // 3
    assert narrow.keep(limit) == whole
    assert 0.9 * limit < narrow.kept_bytes <= limit
    given = ball(crf, 0, 5.0)
    found, votes = last(narrow, given)
    again = sample_edited(crf, given, PLAN, CPU)
    assert apart(found, again) < 0.5 * apart(whole, again)
    # Voxels that were set had their own labels in every sample, kept or not.
    gained = votes.changes[:, np.isin(votes.voxels, np.flatnonzero(given != FREE))]
    np.testing.assert_array_equal(
        gained[0], whole.samples - whole.voxel_counts[0, given != FREE].astype(int)
    )


def test_votes_come_batch_by_batch() -> None:
    crf = smooth_problem()
    editor = Editor(Sampler(crf, PLAN, CPU))
    editor.keep()
    edit = editor.edit(ball(crf))
    parts = list(editor.votes(edit))
    assert [part.samples for part in parts] == [32, 40]
    assert all(len(part.size_changes) == part.samples for part in parts)
    assert parts[0].labels.shape == (parts[0].samples, len(parts[0].voxels))
    with pytest.raises(ValueError, match="`votes` must be those of all samples"):
        editor.posterior(edit, parts[0])


def test_bad_arguments_are_named() -> None:
    crf = masked_volume()
    editor = Editor(Sampler(crf, PLAN, CPU))
    given = np.full(crf.grid.voxels, FREE)
    with pytest.raises(ValueError, match="`votes` needs the samples"):
        list(editor.votes(editor.edit(given)))
    for wrong in (given[1:], given + crf.n_labels + 1, given - 1):
        with pytest.raises(ValueError, match="`given` must hold a label below 3"):
            editor.edit(wrong)
    conditional = Sampler(crf, replace(PLAN, estimator="conditional"), CPU)
    with pytest.raises(ValueError, match="`sampler` must count votes"):
        Editor(conditional).keep()


@pytest.mark.parametrize("engine", ["reference", "cpu"])
def test_samples_with_frozen_voxels_are_edited_like_all_others(engine: str) -> None:
    crf = masked_volume()
    sharper = 20 * crf.grid.scatter(crf.energies, 0)
    crf = pm.DenseCRF(sharper, crf.kernels, spacing=crf.grid.spacing, mask=crf.grid.mask)
    compute = Compute(engine=engine)
    found = []
    for hold in (0.0, 1e-3):
        plan = replace(PLAN, hold=hold, noise_length=6.0, iterations=30, tolerance=1e-4)
        sampler = Sampler(crf, plan, compute)
        editor = Editor(sampler)
        assert editor.keep() == sampler.draw()
        edit = editor.edit(ball(crf))
        *_, votes = editor.votes(edit)
        found.append(editor.posterior(edit, votes))
    assert found[1].active_share < 1
    differ = np.abs(found[1].counts.astype(int) - found[0].counts.astype(int)).sum() / 2
    moved = np.abs(found[0].counts.astype(int) - sampler.draw().counts.astype(int)).sum() / 2
    assert differ <= 0.05 * moved
