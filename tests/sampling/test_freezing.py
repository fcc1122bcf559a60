"""Frozen voxels: their averages, how they are chosen, and what sampling makes of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

import perturb_mpm as pm
from perturb_mpm.engines import Compute, FreezingSolver, FrozenVoxels, Solver, prepare, softmax
from perturb_mpm.noise import Perturbation, gumbel
from perturb_mpm.sampling import Sampler, Sampling, freezing
from perturb_mpm.sampling.freezing import (
    SPAN,
    FreezeRule,
    Freezing,
    averaged_marginals,
    averaging_table,
    find_frozen,
)


def frozen_voxels(crf: pm.DenseCRF, solver: Solver, **options: object) -> FrozenVoxels:
    """Return what samples with these options freeze."""
    rule = FreezeRule.from_sampling(Sampling(**options))  # type: ignore[arg-type]
    found = find_frozen(crf, solver, rule).frozen
    assert found is not None
    return found


def certain_problem(seed: int = 1, shape: tuple[int, ...] = (9, 10, 8)) -> pm.DenseCRF:
    """A ball whose border is in doubt and whose inside and outside are not; images show it."""
    rng = np.random.default_rng(seed)
    axes = np.meshgrid(*(np.linspace(-1.6, 1.6, n) for n in shape), indexing="ij")
    depth = 1.0 - np.sqrt(sum(axis**2 for axis in axes))  # above 0 inside
    core = depth - 0.45
    logits = np.stack([np.zeros(shape), 14 * depth, 14 * depth + 12 * core])
    logits += 0.3 * rng.normal(size=logits.shape)
    images = np.stack([depth, core]) + 0.1 * rng.normal(size=(2, *shape))
    return pm.DenseCRF(
        -logits,
        [
            pm.SpatialKernel(sigma=1.5, weight=0.6),
            pm.BilateralKernel(images, sigma_space=3.0, sigma_intensity=0.6, weight=1.2),
        ],
    )


@pytest.mark.parametrize("gap", [0.1, 1.0, 3.0, 8.0, 20.0])
def test_the_average_over_the_noise_of_two_labels_is_the_closed_form(gap: float) -> None:
    r = math.exp(-gap)
    wanted = r * (r - 1 + gap) / (1 - r) ** 2
    table = averaging_table(1.0, 1.0)
    q = averaged_marginals(np.array([[0.0], [-gap]], dtype=np.float32), table)
    assert q[1, 0] == pytest.approx(wanted, rel=2e-3)
    assert q.sum() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize(("scale", "sharpness"), [(1.0, 1.0), (0.5, 1 / math.sqrt(0.75))])
def test_the_average_of_four_labels_is_that_of_many_draws(scale: float, sharpness: float) -> None:
    rng = np.random.default_rng(0)
    logits = np.array([[0.0, 0.0], [-4.0, -6.0], [-5.0, -3.5], [-7.0, -9.0]])
    noise = -np.log(-np.log(rng.random((200_000, 4, 1))))
    drawn = softmax(sharpness * (logits + scale * noise))  # (draws, L, N)
    found = averaged_marginals(logits.astype(np.float32), averaging_table(scale, sharpness))
    np.testing.assert_allclose(found, drawn.mean(axis=0), rtol=0.06, atol=2e-4)


def test_far_beyond_the_table_a_label_is_certain() -> None:
    logits = np.array([[0.0], [-3 * SPAN]], dtype=np.float32)
    q = averaged_marginals(logits, averaging_table(1.0, 1.0))
    assert 0 <= q[1, 0] < 1e-15


def test_with_every_voxel_active_freezing_changes_nothing() -> None:
    crf = certain_problem()
    path = frozen_voxels(crf, prepare(crf, "reference", batch=3), iterations=4, hold=0.3)
    rng = np.random.default_rng(5)
    whole = FrozenVoxels(
        np.arange(crf.grid.voxels),
        rng.random((4, *crf.energies.shape)).astype(np.float32),  # any path cancels
        rng.random((4, *crf.energies.shape)).astype(np.float32),
        path.last,
    )
    solver = prepare(crf, "reference", batch=3)
    for t in range(4):
        solver.load(crf.energies[np.newaxis], whole.marginals[[t]])
        whole.energies[t] = solver.pairwise()[0]
    found = []
    for frozen in (None, whole):
        solver.freeze(frozen)
        solver.perturb(Perturbation(3), np.arange(3))
        for _ in range(4):
            solver.step()
        found.append(solver.marginals())
    np.testing.assert_allclose(found[1], found[0], atol=1e-6)


@pytest.mark.parametrize("estimator", ["votes", "conditional"])
@pytest.mark.parametrize("centring", [0.0, 1.0])
def test_freezing_the_certain_gives_the_samples_of_full_sampling(
    estimator: str, centring: float
) -> None:
    crf = certain_problem()
    crf = pm.DenseCRF(
        crf.grid.scatter(crf.energies, 0), crf.kernels, spacing=crf.grid.spacing, centring=centring
    )
    options = {"seed": 2, "iterations": 5, "engine": "reference", "estimator": estimator}
    full = pm.sample(crf, 40, **options)
    held = pm.sample(crf, 40, hold=0.005, **options)
    assert 0.05 < held.active_share < 0.45
    assert 0 < held.hold_bound_nats < 0.2
    wrong = np.abs(held.counts.astype(int) - full.counts.astype(int)).sum() / 2
    seeds = pm.sample(crf, 40, **{**options, "seed": 3})
    noise = np.abs(seeds.counts.astype(int) - full.counts.astype(int)).sum() / 2
    assert wrong <= 0.02 * noise
    np.testing.assert_allclose(held.marginals, full.marginals, atol=0.03)
    np.testing.assert_allclose(held.volumes.mean(axis=0), full.volumes.mean(axis=0), rtol=0.004)


def test_what_is_wrong_with_the_path_is_seen() -> None:
    """A negative control: frozen voxels that say the opposite change the samples."""
    crf = certain_problem()
    solver = prepare(crf, "reference", batch=16)
    frozen = frozen_voxels(crf, solver, iterations=4, hold=0.005)
    wrong = FrozenVoxels(
        frozen.active, frozen.energies[:, [1, 2, 0]], frozen.marginals, frozen.last
    )
    labels = []
    for each in (None, frozen, wrong):
        solver.freeze(each)
        solver.perturb(Perturbation(3), np.arange(16))
        for _ in range(4):
            solver.step()
        labels.append(solver.labels())
    right = (labels[1] != labels[0]).mean()
    assert right < 1e-3
    assert (labels[2] != labels[0]).mean() > 10 * right + 0.005


def test_a_frozen_voxel_votes_by_its_own_noise() -> None:
    crf = certain_problem()
    solver = prepare(crf, "reference", batch=4)
    frozen = frozen_voxels(crf, solver, iterations=2, hold=0.2)
    solver.freeze(frozen)
    solver.perturb(Perturbation(6), np.arange(4))
    solver.step()
    solver.step()
    noise = gumbel(6, np.arange(4), crf.grid.index, crf.n_labels)
    wanted = (noise - crf.energies - frozen.last).argmax(axis=1)
    others = np.setdiff1d(np.arange(crf.grid.voxels), frozen.active)
    np.testing.assert_array_equal(solver.labels()[:, others], wanted[:, others])


def test_loading_takes_every_voxel_and_none_ends_it() -> None:
    crf = certain_problem()
    solver, plain = prepare(crf, "reference", batch=2), prepare(crf, "reference", batch=2)
    solver.freeze(frozen_voxels(crf, solver, iterations=2, hold=0.1))
    for each in (solver, plain):
        each.load(crf.energies[np.newaxis])
        each.step()
    np.testing.assert_array_equal(solver.marginals(), plain.marginals())
    solver.freeze(None)
    for each in (solver, plain):
        each.perturb(Perturbation(), np.arange(2))
        each.step()
    np.testing.assert_array_equal(solver.marginals(), plain.marginals())


@pytest.mark.parametrize("engine", ["reference", "cpu"])
@pytest.mark.parametrize("estimator", ["votes", "conditional"])
@pytest.mark.parametrize("tolerance", [0.0, 0.01])
def test_neither_batch_nor_cut_nor_threads_change_a_bit(
    engine: str, estimator: str, tolerance: float
) -> None:
    crf = certain_problem()
    options = {"seed": 4, "iterations": 3, "estimator": estimator, "hold": 0.01, "engine": engine}
    options["tolerance"] = tolerance
    whole = pm.sample(crf, 20, batch=20, threads=1, **options)
    assert whole.active_share < 0.45
    parts = [
        pm.sample(crf, range(a, b), batch=batch, threads=2, **options)
        for a, b, batch in ((0, 3, 1), (3, 17, 5), (17, 20, 2))
    ]
    assert parts[0].merge(*parts[1:]) == whole
    sampler = Sampler(
        crf,
        Sampling(**{k: v for k, v in options.items() if k != "engine"}),
        Compute(engine=engine, batch=7),
    )
    assert sampler.draw(20, after=sampler.draw(6)) == whole


@pytest.mark.parametrize("problems", [1, 5, 16])
@pytest.mark.parametrize("warm", [False, True])
def test_the_first_update_counts_the_labels_that_leave_the_start(
    problems: int, *, warm: bool
) -> None:
    crf = certain_problem()
    sampling = Sampling(iterations=3, hold=0.01)
    frozen = find_frozen(
        crf, prepare(crf, "reference", batch=1), FreezeRule.from_sampling(sampling)
    ).frozen
    start = softmax(-crf.energies[np.newaxis])[0] if warm else None
    changes = []
    for engine in ("cpu", "reference"):
        solver = prepare(crf, engine, "exact", batch=problems)
        solver.freeze(frozen)
        for seed in (1, 2):  # what the samples before left behind does not count
            solver.perturb(Perturbation(seed), np.arange(problems), start)
            changes.append(solver.step().switched)
    np.testing.assert_allclose(changes[:2], changes[2:], atol=1e-9)
    assert np.max(changes) > 0


def test_full_sampling_where_freezing_would_not_serve_and_says_so() -> None:
    crf = certain_problem()
    uncertain = pm.DenseCRF(np.zeros((2, 6, 6)), [pm.SpatialKernel(sigma=1.0, weight=1.0)])
    options = {"samples": 6, "iterations": 2, "engine": "reference"}
    for problem, other, word in (
        (crf, {"start": "warm"}, "cold"),
        (uncertain, {}, "active"),
    ):
        full = pm.sample(problem, **options, **other)
        held = pm.sample(problem, hold=0.01, **options, **other)
        np.testing.assert_array_equal(held.counts, full.counts)
        assert held.active_share == 1.0
        assert word in held.parameters["hold"]["every_voxel"]
        assert full.hold == 0.0
        assert "hold" not in full.parameters


@pytest.mark.parametrize("length", [6.0, 30.0, math.inf, [(30.0, 0.5), (3.0, 0.5)]])
@pytest.mark.parametrize("engine", ["reference", "cpu"])
def test_correlated_noise_freezes_the_certain_too(
    engine: str, length: pm.NoiseLength, monkeypatch: pytest.MonkeyPatch
) -> None:
    crf = certain_problem()
    options = {"seed": 2, "iterations": 30, "tolerance": 1e-4, "noise_length": length}
    options |= {"engine": engine, "accuracy": "exact"}
    full, held = (pm.sample(crf, 40, hold=hold, **options) for hold in (0.0, 1e-3))
    assert 0.05 < held.active_share < 0.6
    assert 0 < held.hold_bound_nats < 0.1
    wrong = np.abs(held.counts.astype(int) - full.counts.astype(int)).sum() / 2
    seeds = pm.sample(crf, 40, **{**options, "seed": 3})
    noise = np.abs(seeds.counts.astype(int) - full.counts.astype(int)).sum() / 2
    assert wrong <= 0.03 * noise
    np.testing.assert_allclose(held.volumes, full.volumes, atol=0.02 * crf.grid.voxels)
    monkeypatch.setattr(freezing, "NEAR_NATS", -100.0)
    rough = pm.sample(crf, 40, hold=0.3, **options)  # a negative control: too much is frozen
    assert np.abs(rough.counts.astype(int) - full.counts.astype(int)).sum() / 2 > 2 * wrong


@pytest.mark.parametrize("nats", [0.0, 1.0, -2.0])
@pytest.mark.parametrize("length", [30.0, 3.0, [(30.0, 0.5), (0.0, 0.5)]])
@pytest.mark.parametrize("shape", [(34, 30, 26), (70, 64)])
def test_voxels_near_another_label_are_those_that_noise_brings_there_one_by_one(
    shape: tuple[int, ...], length: pm.NoiseLength, nats: float
) -> None:
    rng = np.random.default_rng(8)
    logits = rng.normal(-4, 2, size=(3, *shape))
    logits[0] = 0
    logits[2, : shape[0] // 3] = 4  # another label is the most probable in a part
    crf = pm.DenseCRF(-logits, [pm.SpatialKernel(sigma=1.0, weight=0.01)], centring=0.5)
    perturbation = Sampling(seed=5, noise_length=length).perturbation
    pairwise = rng.normal(size=crf.energies.shape).astype(np.float32)
    samples = np.arange(40, 76)  # more than a batch
    solver = prepare(crf, "cpu", batch=4)
    assert isinstance(solver, FreezingSolver)
    found = solver.find_near(perturbation, samples, pairwise, nats)
    assert solver.centre is not None
    base = solver.centre - pairwise
    own = (base - crf.energies).argmax(axis=0)
    least = np.full(crf.grid.voxels, np.inf)  # of the samples: how far other labels are below
    for sample in samples.tolist():
        shaken = base - perturbation.energies(crf.energies, crf.grid, [sample])[0]
        mine = np.take_along_axis(shaken, own[np.newaxis], axis=0)[0]
        np.put_along_axis(shaken, own[np.newaxis], -np.inf, axis=0)
        least = np.minimum(least, mine - shaken.max(axis=0))
    close = np.abs(least - nats) < 2e-3
    np.testing.assert_array_equal(found[~close], (least < nats)[~close])
    assert 0.02 < found.mean() < 0.98
    if crf.grid.voxels < 5000:
        reference = prepare(crf, "reference", batch=4)
        assert isinstance(reference, FreezingSolver)
        again = reference.find_near(perturbation, samples, pairwise, nats)
        np.testing.assert_array_equal(found[~close], again[~close])


@pytest.mark.parametrize("tolerance", [0.0, 1e-3])
@pytest.mark.parametrize("estimator", ["votes", "conditional"])
def test_where_nothing_is_active_every_voxel_votes_by_itself(
    estimator: str, tolerance: float
) -> None:
    unaries = np.stack([np.zeros((8, 7, 6)), np.full((8, 7, 6), 6.0)])
    crf = pm.DenseCRF(unaries, [pm.SpatialKernel(sigma=1.0, weight=0.01)])
    options = {"seed": 2, "estimator": estimator, "tolerance": tolerance, "iterations": 4}
    full = pm.sample(crf, 32, engine="reference", **options)
    assert full.counts[1].any() == (estimator == "votes")  # whose noise is wider
    for engine in ("reference", "cpu"):
        held = pm.sample(crf, 32, engine=engine, hold=0.1, **options)
        assert held.active_share == 0
        np.testing.assert_array_equal(held.counts, full.counts)
        np.testing.assert_allclose(held.volumes, full.volumes)
        if estimator == "conditional":
            np.testing.assert_allclose(held.marginals, full.marginals, atol=1e-5)


@pytest.mark.parametrize("bad", [-0.1, 1.0, 1.5, math.nan, math.inf])
def test_what_hold_must_be(bad: float) -> None:
    with pytest.raises(ValueError, match="hold must be"):
        pm.sample(certain_problem(), 2, hold=bad)


def test_posteriors_of_different_holds_do_not_merge() -> None:
    crf = certain_problem()
    options = {"iterations": 2, "engine": "reference"}
    one = pm.sample(crf, range(2), hold=0.01, **options)
    other = pm.sample(crf, range(2, 4), hold=0.02, **options)
    none = pm.sample(crf, range(4, 6), **options)
    with pytest.raises(ValueError, match=r"hold\.epsilon 0\.01 against 0\.02"):
        one.merge(other)
    with pytest.raises(ValueError, match="hold"):
        one.merge(none)
    sampler = Sampler(crf, Sampling(iterations=2, hold=0.02), Compute(engine="reference"))
    with pytest.raises(ValueError, match="after must be of the same"):
        sampler.draw(4, after=one)


def follow_rule(
    crf: pm.DenseCRF, rule: FreezeRule, *, compact: bool = False
) -> tuple[FrozenVoxels, Freezing]:
    """Return what a rule freezes on the CPU engine."""
    found = find_frozen(crf, prepare(crf, "cpu", batch=2, compact=compact), rule)
    assert found.frozen is not None
    assert found.active_share == pytest.approx(len(found.frozen.active) / crf.grid.voxels)
    return found.frozen, found


@pytest.mark.parametrize("centring", [0.0, 1.0])
@pytest.mark.parametrize("tolerance", [0.0, 1e-4])
def test_compact_marginals_freeze_what_float32_freezes(centring: float, tolerance: float) -> None:
    crf = certain_problem()
    crf = pm.DenseCRF(
        crf.grid.scatter(crf.energies, 0), crf.kernels, spacing=crf.grid.spacing, centring=centring
    )
    rule = FreezeRule.from_sampling(Sampling(iterations=6, hold=0.01, tolerance=tolerance))
    (wide, one), (narrow, other) = (follow_rule(crf, rule, compact=c) for c in (False, True))
    assert one.bound_nats == pytest.approx(other.bound_nats, rel=0.02)
    np.testing.assert_array_equal(wide.active, narrow.active)
    np.testing.assert_allclose(wide.energies, narrow.energies, atol=2e-3)
    np.testing.assert_allclose(wide.marginals, narrow.marginals, atol=2e-4)
    np.testing.assert_allclose(wide.last, narrow.last, atol=2e-3)


def test_where_energies_are_too_many_to_store_they_are_computed_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    crf = certain_problem()
    rule = FreezeRule(0.01, 1.0, 1.0, 6)
    stored, one = follow_rule(crf, rule)
    monkeypatch.setattr(freezing, "MOST_STORED_BYTES", 0)
    again, other = follow_rule(crf, rule)
    assert one.bound_nats == other.bound_nats
    for name, values in vars(stored).items():
        np.testing.assert_array_equal(getattr(again, name), values, err_msg=name)


def test_another_width_of_the_noise_freezes_something_else() -> None:
    crf = certain_problem()
    one, other = (follow_rule(crf, FreezeRule(0.01, scale, 1.0, 6))[0] for scale in (1.0, 0.7))
    _, here, there = np.intersect1d(one.active, other.active, return_indices=True)
    assert np.abs(one.energies[-1][:, here] - other.energies[-1][:, there]).max() > 0.01


def test_energies_that_no_longer_move_end_the_path() -> None:
    crf = certain_problem()
    few, many = (
        follow_rule(crf, FreezeRule(0.01, 1.0, 1.0, 40, still_nats=still))[0]
        for still in (0.05, 1e-4)
    )
    assert 2 < len(few.energies) < len(many.energies) < 40


@pytest.mark.parametrize("batch", [1, 3, 20])
def test_groups_of_samples_are_the_same_in_any_ranges_and_batches(
    batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(freezing, "GROUP", 12)
    options = {"samples": 40, "seed": 2, "iterations": 30, "tolerance": 1e-4, "noise_length": 30.0}
    sampling = Sampling(**options, hold=0.3)
    whole = Sampler(certain_problem(), sampling, Compute("cpu", "exact", batch=40))
    starts: list[NDArray[np.int64]] = []
    labels: list[NDArray[np.uint8]] = []
    drawn = whole.draw(starts=starts, keep=lambda _, rows: labels.append(rows.copy()))
    sampler = Sampler(certain_problem(), sampling, Compute("cpu", "exact", batch=batch))
    pieces = sampler.draw(range(7)).merge(sampler.draw(range(7, 40)))
    for one in (pieces, sampler.draw(40, after=sampler.draw(17))):
        np.testing.assert_array_equal(one.counts, drawn.counts)
        np.testing.assert_array_equal(one.volumes, drawn.volumes)
        np.testing.assert_array_equal(one.label_changes, drawn.label_changes)
        assert one.parameters == drawn.parameters
    active = {group: whole._freezing_of(group).frozen.active for group in range(4)}
    assert len({tuple(each) for each in active.values()}) > 1
    everywhere = np.array([np.isin(np.arange(len(whole.active)), a) for a in active.values()])
    np.testing.assert_array_equal(whole.active, everywhere.all(axis=0))
    # Frozen voxels keep the label that they have without noise in all samples of their group.
    found = np.concatenate(labels)
    for group, mine in active.items():
        others = np.delete(found[12 * group : 12 * (group + 1)], mine, axis=1)
        assert (others == others[0]).all()
        assert others.shape[1] > 0
    sizes = [np.bincount(row, minlength=3) for row in found]
    np.testing.assert_allclose(np.array(sizes) * np.prod(drawn.grid.spacing), drawn.volumes)
    assert np.concatenate(starts).shape == (40, drawn.n_labels)
    assert (np.concatenate(starts).sum(axis=1) == drawn.grid.voxels).all()


@pytest.mark.parametrize("length", [0.0, 30.0])
@pytest.mark.parametrize("engine", ["reference", "cpu"])
def test_the_kernels_of_all_voxels_can_be_forgotten_and_come_back(
    engine: pm.Engine, length: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(freezing, "GROUP", 12)
    sampling = Sampling(samples=12, seed=2, tolerance=1e-4, hold=0.01, noise_length=length)
    sampler, other = (Sampler(certain_problem(), sampling, Compute(engine)) for _ in range(2))
    sampler.forget_whole()
    if engine == "cpu":
        with pytest.raises(RuntimeError, match="prepare the engine again"):
            sampler.solver.load(sampler.crf.energies[np.newaxis])
    for numbers in (range(5), range(5, 12), range(10, 16)):  # the last two belong to two groups
        mine, wanted = sampler.draw(numbers), other.draw(numbers)
        np.testing.assert_array_equal(mine.counts, wanted.counts)
        np.testing.assert_array_equal(mine.volumes, wanted.volumes)
        assert mine.active_share < 1
    sampler.forget_whole()
    weaker, wanted = (each.scale_kernels(0.5).draw(range(3)) for each in (sampler, other))
    np.testing.assert_array_equal(weaker.counts, wanted.counts)
    longer = Sampling(samples=13, seed=2, tolerance=1e-4, hold=0.01, noise_length=30.0)
    kept = Sampler(certain_problem(), longer, Compute(engine))
    kept.forget_whole()  # whose other group needs them soon
    kept.solver.load(kept.crf.energies[np.newaxis])
    assert kept.solver.marginals().shape[1:] == kept.crf.energies.shape
