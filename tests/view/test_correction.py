"""Voxels set by hand: what sampling all again gives, only where they are felt."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from helpers.viewer_run import SETTINGS, copy_run, make_case
from perturb_mpm.engines import FREE, Compute
from perturb_mpm.model import Grid
from perturb_mpm.progress import Silent
from perturb_mpm.run import Run, RunSettings, build_crf, load_run, run_case, volume_rows
from perturb_mpm.sampling import Sampling, sample_edited
from perturb_mpm.view.conditioning import NoiseShift, PaintedNoise
from perturb_mpm.view.correction import (
    Correction,
    CorrectionError,
    CorrectionFiles,
    Corrector,
    volume_changes,
)

CORE = 2
DEFAULTS = RunSettings().changed(
    samples=24, seed=5, iterations=10, kernels=SETTINGS.kernels, accuracy="plain"
)
CONDITIONAL = SETTINGS.changed(estimator="conditional", marginals="conditional", samples=6)
CENTRED = DEFAULTS.changed(temperature=1.0, strength=0.35, centring=1.0, marginals="mean_field")
UNCOUPLED = DEFAULTS.changed(strength=0.0)  # as where the image's evidence is against kernels
KINDS = {
    "votes": SETTINGS,
    "mean field": CENTRED.changed(noise_length=0.0),
    "conditional": CONDITIONAL,
}
CORRELATED = {"mean field": CENTRED, "blend": DEFAULTS, "no kernels": UNCOUPLED}


@pytest.fixture(params=KINDS)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    return load_run(copy_run(tmp_path / "case", KINDS[request.param]))


@pytest.fixture
def by_votes(tmp_path: Path) -> Run:
    return load_run(copy_run(tmp_path / "case"))


def ball(run: Run, label: int = CORE, radius_mm: float = 9.0) -> dict[int, int]:
    """Voxels around the middle of the oedema."""
    places = np.stack(np.unravel_index(np.arange(run.labels.size), run.labels.shape), axis=1)
    oedema = np.argwhere(run.labels == 1)
    centre = oedema[len(oedema) // 3]
    near = np.linalg.norm((places - centre) * run.case.geometry.spacing, axis=1) < radius_mm
    return dict.fromkeys(np.flatnonzero(near & run.case.mask.ravel()).tolist(), label)


def solved(run: Run, edits: dict[int, int]) -> tuple[Run, Correction, list[Correction]]:
    """The corrected run, its maps, and all maps on the way there."""
    corrector = Corrector(run)
    corrector.draw_samples(Silent())
    preview = corrector.preview(edits)
    shown = [preview.correction]
    corrected, last = corrector.solve(preview, Silent(), shown.append)
    return corrected, last, shown


def test_a_correction_is_what_sampling_all_again_gives(run: Run) -> None:
    edits = ball(run)
    corrected, correction, shown = solved(run, edits)
    crf = build_crf(run.case, run.settings)
    given = np.full(crf.grid.voxels, -1, dtype=np.int16)
    given[np.isin(crf.grid.index, list(edits))] = CORE
    sampling = replace(run.settings.sampling, samples=run.posterior.samples)
    again = sample_edited(crf, given, sampling, Compute(engine="cpu", accuracy="plain"))
    expected = replace(corrected, votes=again)
    new, wanted, old = (each.voxel_marginals for each in (corrected, expected, run))
    moved = np.abs(wanted - old).sum()
    assert moved > 20
    assert np.abs(new - wanted).sum() < 0.15 * moved
    assert (corrected.labels == expected.labels).mean() > 0.999
    away = np.abs(corrected.posterior.volumes - again.volumes).sum()
    assert away < 0.15 * np.abs(run.posterior.volumes - again.volumes).sum()
    # What is shown is what the corrected run has; all else is the run's own, to the last bit.
    assert np.array_equal(correction.labels(run.labels, run.regions), corrected.labels)
    rest = np.ones(run.labels.size, dtype=bool)
    rest[correction.index] = False
    assert rest.sum() > 0.3 * rest.size
    # Conditional marginals have no last bit: differences below 1e-9 count as none.
    apart = np.abs(corrected.entropy - run.entropy).ravel()[rest].max()
    assert apart <= (1e-6 if run.settings.maps.marginals == "conditional" else 0)
    assert (corrected.labels.flat[list(edits)] == CORE).all()
    assert (corrected.entropy.flat[list(edits)] == 0).all()
    pulled = set(np.flatnonzero(corrected.labels != run.labels)) - edits.keys()
    assert pulled  # neighbours follow
    assert all(run.entropy.flat[voxel] > 0 for voxel in pulled)  # and only doubtful ones
    # The first picture is most of it already.
    early = shown[0].labels(run.labels, run.regions)
    assert (early != corrected.labels).sum() < 0.3 * (run.labels != corrected.labels).sum()


@pytest.fixture(params=CORRELATED)
def correlated(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    return load_run(copy_run(tmp_path / "case", CORRELATED[request.param]))


def test_neighbours_follow_the_noise_whatever_the_kernels(correlated: Run) -> None:
    run, edits = correlated, ball(correlated)
    corrected, correction, shown = solved(run, edits)
    index = run.posterior.grid.index
    free = ~np.isin(index, list(edits))
    pulled = set(np.flatnonzero(corrected.labels != run.labels)) - edits.keys()
    to_core = [voxel for voxel in pulled if corrected.labels.flat[voxel] == CORE]
    assert len(to_core) > 0.3 * len(edits)
    assert (corrected.labels.flat[list(pulled)] > 0).all()
    # Samples follow as the maps do.
    new, old = (each.posterior.voxel_marginals("votes")[CORE, free] for each in (corrected, run))
    map_gain = (corrected.voxel_marginals - run.voxel_marginals)[CORE, free]
    moved = map_gain > 0.2
    assert moved.sum() > 10
    assert (new - old)[moved].mean() == pytest.approx(map_gain[moved].mean(), abs=0.15)
    assert (corrected.labels.flat[list(edits)] == CORE).all()
    assert (corrected.entropy.flat[list(edits)] == 0).all()
    assert np.array_equal(correction.labels(run.labels, run.regions), corrected.labels)
    assert np.array_equal(shown[0].index, correction.index)  # the first picture is the last
    # Far from the paint nothing changes, to the last bit.
    assert (corrected.voxel_marginals == run.voxel_marginals).all(axis=0).mean() > 0.05


def test_a_label_that_nothing_speaks_for_gains_nothing_by_a_correction(tmp_path: Path) -> None:
    case = make_case()
    sharp = np.maximum(case.probabilities - 0.065, 0)  # no core at the oedema's outer border
    sharp /= np.maximum(sharp.sum(axis=0), 1e-6)
    sharp[0] += 1 - sharp.sum(axis=0)
    case = replace(case, probabilities=sharp)
    run = run_case(case, DEFAULTS, tmp_path / "case", title="Made-up patient")
    shown = Corrector(run).preview(ball(run, label=0)).correction
    nothing = (run.marginals[CORE] < 1e-4).flat[shown.index]
    assert nothing.sum() > 50
    assert shown.marginals[CORE, nothing].max() < 0.01


def test_what_was_seen_beside_the_paint_is_solved_again_though_it_is_certain() -> None:
    grid = Grid((9, 9, 5), (1.0, 1.0, 1.0))
    scores = np.log(np.array([[1 - 1e-7], [1e-7]])).repeat(grid.voxels, axis=1)
    given = np.full(grid.voxels, FREE, dtype=np.int16)
    given[grid.voxels // 2] = 0
    noise = PaintedNoise(scores, given, grid, ((4.0, 1.0),))
    assert len(noise.painted) > 1  # the voxel painted, and those around it
    assert len(noise.influence().voxels) == 0
    shift = NoiseShift(noise, scores, grid, Sampling(noise_length=4.0).perturbation)
    assert set(noise.painted) <= set(shift.voxels)


def test_intervals_shrink_where_a_slice_is_known(correlated: Run) -> None:
    run = correlated
    slices = (run.labels == CORE).sum(axis=(0, 1))
    known = np.zeros(run.labels.shape, dtype=bool)
    known[:, :, int(slices.argmax())] = True
    voxels = np.flatnonzero(known & run.case.mask)
    edits = dict(zip(voxels.tolist(), run.labels.flat[voxels].tolist()))
    corrected, correction, _ = solved(run, edits)
    for each in volume_changes(run, correction, corrected):
        assert each.before_interval_ml is not None
        assert each.after_interval_ml is not None
        assert np.ptp(each.after_interval_ml) < 0.8 * np.ptp(each.before_interval_ml)


def test_pictures_on_the_way_come_nearer_to_the_last(
    by_votes: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perturb_mpm.sampling.editing.TOGETHER", 6)
    _, last, shown = solved(by_votes, ball(by_votes))
    assert len(shown) == 1 + 4

    def away(one: Correction) -> float:
        own = by_votes.marginals.reshape(3, -1).astype(np.float64)
        own[:, one.index] = one.marginals
        return float(np.abs(own[:, last.index] - last.marginals).sum())

    assert away(shown[-1]) < 1e-4 < away(shown[1])
    assert all(np.allclose(each.marginals.sum(axis=0), 1) for each in shown)


def test_voxels_set_to_what_they_are_move_nothing_else(by_votes: Run) -> None:
    sure = (by_votes.marginals[0] == 1) & by_votes.case.mask
    corrected, _, _ = solved(by_votes, {int(np.flatnonzero(sure)[0]): 0})
    assert np.array_equal(corrected.labels, by_votes.labels)
    assert np.array_equal(corrected.posterior.volumes, by_votes.posterior.volumes)


def test_the_order_of_edits_does_not_matter(by_votes: Run) -> None:
    edits = ball(by_votes)
    _, one, _ = solved(by_votes, edits)
    _, other, _ = solved(by_votes, dict(reversed(edits.items())))
    assert np.array_equal(one.index, other.index)
    assert np.array_equal(one.marginals, other.marginals)
    assert (np.diff(one.index) > 0).all()


def test_voxels_set_outside_the_mask_become_part_of_it(run: Run) -> None:
    outside = int(np.flatnonzero(~run.case.mask)[7])
    corrected, correction, _ = solved(run, {outside: CORE})
    assert correction.index.tolist() == [outside]
    assert corrected.labels.flat[outside] == CORE
    assert (corrected.labels != run.labels).sum() == 1
    assert corrected.case.mask.sum() == run.case.mask.sum() + 1
    voxel_ml = math.prod(run.case.geometry.spacing) / 1000
    gained = corrected.posterior.volumes - run.posterior.volumes
    assert gained / 1000 == pytest.approx(np.array([[0, 0, voxel_ml]] * run.posterior.samples))
    assert corrected.sampled_labels[:, *np.unravel_index(outside, run.labels.shape)].min() == CORE


def test_changes_of_volumes_are_those_of_the_maps_and_of_the_pages(run: Run) -> None:
    listed = run.folder / "state" / "files.json"  # which names the correction's files too
    untouched = {p: p.read_bytes() for p in run.folder.rglob("*") if p.is_file() and p != listed}
    edits = ball(run)
    corrected, correction, _ = solved(run, edits)
    rows = {row.name: row.volume_ml for row in volume_rows(corrected)}
    changes = volume_changes(run, correction)
    assert [each.name for each in changes] == [
        row.name for row in volume_rows(run) if row.kind != "background"
    ]
    assert {each.name: each.after_ml for each in changes} == pytest.approx(
        {each.name: rows[each.name] for each in changes}
    )
    core = next(each for each in changes if each.name == "core")
    assert core.after_ml > core.before_ml
    CorrectionFiles(run).save(edits, correction, corrected)
    summary = json.loads((run.folder / "summary-corrected.json").read_text())
    told = next(each for each in summary["labels"] if each["name"] == "core")
    assert told["volume_ml"] == pytest.approx(core.after_ml)
    assert summary["corrected"]["edited_voxels"] == len(edits)
    page = (run.folder / "report-corrected.html").read_text()
    assert "Made-up patient, corrected" in page
    assert f"{len(edits)} voxels were set by hand" in page
    assert {path: path.read_bytes() for path in untouched} == untouched


def test_a_run_that_cycles_through_members_is_refused(by_votes: Run) -> None:
    cycling = replace(by_votes, settings=by_votes.settings.changed(members="cycle"))
    with pytest.raises(CorrectionError, match="does not keep its members"):
        Corrector(cycling)


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
