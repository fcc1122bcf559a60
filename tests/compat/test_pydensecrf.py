"""pydensecrf's interface: by hand, against our own model, and against pydensecrf where it is."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import perturb_mpm as pm
from perturb_mpm.compat.pydensecrf import densecrf as dcrf
from perturb_mpm.compat.pydensecrf import eigen, install, utils
from perturb_mpm.engines import prepare

PEER = os.environ.get("PERTURB_MPM_PEER_PYTHON", "")
H, W, LABELS = 12, 16, 3


def energies(labels: int = LABELS, size: int = H * W) -> np.ndarray:
    return np.random.default_rng(1).gamma(1.5, 1.0, (labels, size)).astype(np.float32)


def picture() -> np.ndarray:
    return np.random.default_rng(2).integers(0, 255, (H, W, 3)).astype(np.uint8)


def two_kernels(compat: Any = 2.0, normalization: int = 3) -> Any:
    d = dcrf.DenseCRF2D(W, H, LABELS)
    d.setUnaryEnergy(energies())
    d.addPairwiseGaussian(3, compat, normalization=normalization)
    d.addPairwiseBilateral((9, 7), (40, 50, 60), picture(), compat, normalization=normalization)
    return d


def test_marginals_are_float32_in_column_major_order() -> None:
    q = two_kernels().inference(3)
    assert q.dtype == np.float32
    assert q.shape == (LABELS, H * W)
    assert q.flags.f_contiguous
    np.testing.assert_allclose(np.asarray(q).sum(axis=0), 1, atol=1e-6)
    np.testing.assert_array_equal(np.argmax(q, axis=0), two_kernels().map(3))


def test_no_updates_give_softmax() -> None:
    expected = np.exp(-energies().astype(np.float64))
    expected /= expected.sum(axis=0)
    np.testing.assert_allclose(two_kernels().inference(0), expected, atol=1e-6)


def test_steps_change_q_in_place_and_equal_inference() -> None:
    d = two_kernels()
    q, tmp1, tmp2 = d.startInference()
    same = q
    for _ in range(4):
        d.stepInference(q, tmp1, tmp2)
    assert same is q
    np.testing.assert_array_equal(q, two_kernels().inference(4))
    # A Q that was changed in between is where the next step starts.
    q[...] = 1 / LABELS
    d.stepInference(q, tmp1, tmp2)
    other = two_kernels()
    start = np.full_like(q, 1 / LABELS)
    other.stepInference(start)
    np.testing.assert_array_equal(q, start)


@pytest.mark.parametrize("normalization", [1, 2, 3], ids=["before", "after", "symmetric"])
@pytest.mark.parametrize("kind", ["potts", "negative", "vector", "matrix", "uneven"])
def test_marginals_are_those_of_the_model_they_stand_for(kind: str, normalization: int) -> None:
    rng = np.random.default_rng(3)
    uneven = rng.normal(size=(LABELS, LABELS)).astype(np.float32)
    compat: Any = {
        "potts": 1.5,
        "negative": -0.5,
        "vector": np.array([-1, -2, 0.5], np.float32),
        "matrix": uneven + uneven.T,
        "uneven": uneven,
    }[kind]
    # What is added to −log Q of each label is compatibility @ K Q.
    matrix = {
        "potts": -1.5 * np.eye(LABELS),
        "negative": 0.5 * np.eye(LABELS),
        "vector": np.diag([-1, -2, 0.5]),
    }.get(kind, (uneven + uneven.T) if kind == "matrix" else (uneven + uneven.T) / 2)
    d = two_kernels(compat, normalization)
    y, x = np.mgrid[:H, :W].astype(np.float32)
    colours = np.moveaxis(picture(), -1, 0) / np.array([40, 50, 60]).reshape(3, 1, 1)
    norm = (None, "before", "after", "symmetric")[normalization]
    kernels = [
        pm.FeatureKernel(features, normalization=norm, compatibility=matrix)  # type: ignore[arg-type]
        for features in (np.stack([x / 3, y / 3]), np.stack([x / 9, y / 7, *colours]))
    ]
    crf = pm.DenseCRF(energies().reshape(LABELS, H, W), kernels, self_term=True)
    solver = prepare(crf, "cpu", "plain", batch=1)
    solver.load(crf.energies[np.newaxis])
    for _ in range(3):
        solver.step()
    np.testing.assert_allclose(d.inference(3), solver.marginals()[0], atol=2e-6)
    # Its divergence has neither a half nor a constant.
    q = d.inference(3).astype(np.float64)
    expected = (q * (np.log(np.maximum(q, 1e-20)) + energies() + solver.pairwise()[0])).sum()
    assert d.klDivergence(d.inference(3)) == pytest.approx(expected, rel=1e-5)


def test_the_lattice_is_kept_when_only_the_unary_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    built = []

    def counted(*args: Any, **kwargs: Any) -> Any:
        built.append(args)
        return prepare(*args, **kwargs)

    monkeypatch.setattr(dcrf, "prepare", counted)
    d = two_kernels()
    first = d.inference(2)
    other = energies()[::-1]
    d.setUnaryEnergy(other)  # not contiguous
    second = d.inference(2)
    assert np.abs(second - first).max() > 0.1
    d.setUnaryEnergy(energies())
    np.testing.assert_array_equal(d.inference(2), first)
    assert len(built) == 1
    d.addPairwiseGaussian(1, 1)
    d.inference(1)
    assert len(built) == 2


def test_inputs_may_be_strided_and_read_only() -> None:
    image = picture()
    image.setflags(write=False)
    features = utils.create_pairwise_bilateral((7, 9), (40, 50, 60), image, chdim=2)
    plain, other = crf_of(), crf_of()
    plain.setUnaryEnergy(energies())
    plain.addPairwiseEnergy(features, 2.0)
    plain.addPairwiseBilateral(9, (40, 50, 60), picture(), 2.0)
    other.setUnaryEnergy(np.repeat(energies(), 2, axis=1)[:, ::2])
    other.addPairwiseEnergy(np.asfortranarray(features), 2.0)
    other.addPairwiseBilateral(9, (40, 50, 60), np.asfortranarray(image), 2.0)
    np.testing.assert_array_equal(plain.inference(3), other.inference(3))


def test_an_infinite_energy_forbids_a_label() -> None:
    forbidden = energies()
    forbidden[1, :50] = np.inf
    d = two_kernels()
    d.setUnaryEnergy(forbidden)
    q = d.inference(5)
    assert np.isfinite(q).all()
    assert q[1, :50].max() < 1e-12
    assert q[1, 50:].max() > 0.1


def test_logistic_and_constant_unaries() -> None:
    rng = np.random.default_rng(5)
    weights = rng.normal(size=(LABELS, 4)).astype(np.float32)
    features = rng.normal(size=(4, H * W)).astype(np.float32)
    results = []
    for unary in (dcrf.LogisticUnary(weights, features), dcrf.ConstUnary(weights @ features)):
        d = dcrf.DenseCRF(H * W, LABELS)
        d.setUnary(unary)
        results.append(d.inference(0))
    d.setUnaryEnergy(weights, features)
    results.append(d.inference(0))
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


def test_without_unary_and_with_one_label() -> None:
    d = dcrf.DenseCRF(8, 2)
    np.testing.assert_allclose(d.inference(0), 0.5)
    assert np.asarray(d.startInference()[0]).max() == 0
    one = dcrf.DenseCRF(8, 1)
    one.addPairwiseEnergy(np.zeros((1, 8), np.float32), 3)
    np.testing.assert_array_equal(one.inference(2), np.ones((1, 8)))


def test_samples_are_those_of_the_library() -> None:
    posterior = two_kernels().sample(20, seed=4)
    assert posterior.labels.shape == (H, W)
    assert posterior.samples == 20
    assert posterior.entropy.max() > 0
    again = two_kernels().sample(20, seed=4)
    np.testing.assert_array_equal(posterior.counts, again.counts)
    other = two_kernels().sample(20, seed=5)
    assert (posterior.counts != other.counts).any()


SHORT, PAIR, WIDE32 = energies(3, 10), energies(3, 2), energies()
WIDE, GREY = WIDE32.astype(np.float64), picture()[..., :2]


def crf_of(labels: int = LABELS) -> Any:
    return dcrf.DenseCRF2D(W, H, labels)


@pytest.mark.parametrize(
    ("error", "message", "call"),
    [
        (
            ValueError,
            r"shape \(3, 192\), got \(3, 10\)",
            lambda d: d.setUnaryEnergy(energies(3, 10)),
        ),
        (
            ValueError,
            "must be float32, got float64",
            lambda d: d.setUnaryEnergy(np.zeros((3, 192))),
        ),
        (ValueError, "must have 2 axes", lambda d: d.setUnaryEnergy(np.zeros(192, np.float32))),
        (ValueError, "must not be NaN", lambda d: d.setUnaryEnergy(energies() * np.nan)),
        (TypeError, "got None", lambda d: d.setUnaryEnergy(None)),
        (TypeError, "ConstUnary or LogisticUnary", lambda d: d.setUnary(energies())),
        (
            ValueError,
            "`f` must have 2 rows",
            lambda d: d.setUnaryEnergy(energies(3, 2), energies()),
        ),
        (ValueError, r"shape \(\?, 192\)", lambda d: d.addPairwiseEnergy(energies(2, 9), 1)),
        (ValueError, "is not a valid", lambda d: d.addPairwiseGaussian(3, 1, normalization=7)),
        (ValueError, "is not a valid", lambda d: d.addPairwiseGaussian(3, 1, kernel=9)),
        (ValueError, "`sxy` must be", lambda d: d.addPairwiseGaussian(0, 1)),
        (ValueError, "`sxy` must be", lambda d: d.addPairwiseGaussian((3,), 1)),
        (ValueError, "must be float32", lambda d: d.addPairwiseGaussian(3, np.ones(3))),
        (ValueError, "3 entries", lambda d: d.addPairwiseGaussian(3, np.ones(2, np.float32))),
        (ValueError, "got 3 axes", lambda d: d.addPairwiseGaussian(3, np.ones((3, 3, 3)))),
        (
            ValueError,
            "must be uint8",
            lambda d: d.addPairwiseBilateral(3, 3, picture()[..., :2], 1),
        ),
        (ValueError, "must be uint8", lambda d: d.addPairwiseBilateral(3, 3, picture() * 1.0, 1)),
        (TypeError, "got None", lambda d: d.addPairwiseBilateral(3, 3, None, 1)),
        (TypeError, "startInference", lambda d: d.stepInference([1, 2], None, None)),
        (ValueError, r"`Q` must have the shape", lambda d: d.klDivergence(energies(2, 2))),
    ],
)
def test_errors_have_the_types_of_pydensecrf(
    error: type[Exception], message: str, call: Any
) -> None:
    with pytest.raises(error, match=message):
        call(crf_of())


def test_matrices_are_arrays() -> None:
    vector = np.arange(3, dtype=np.float32)
    np.testing.assert_array_equal(np.array(eigen.vectorXf(vector)), vector)
    matrix = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(np.array(eigen.matrixXf(matrix)), matrix)
    with pytest.raises(ValueError, match="float32"):
        eigen.matrixXf(matrix.astype(np.float64))
    with pytest.raises(ValueError, match="2 axes"):
        eigen.matrixXf(vector)
    with pytest.raises(TypeError, match="None"):
        eigen.matrixXf(None)


def test_unaries_by_hand(caplog: pytest.LogCaptureFixture) -> None:
    found = utils.unary_from_labels(np.array([[0, 1], [2, 3]]), 3, 0.8)
    third, right, wrong = -np.log([1 / 3, 0.8, 0.1])
    expected = [
        [third, right, wrong, wrong],
        [third, wrong, right, wrong],
        [third, wrong, wrong, right],
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    certain = utils.unary_from_labels(np.array([0, 1]), 2, 0.9, zero_unsure=False)
    np.testing.assert_allclose(certain, -np.log([[0.9, 0.1], [0.1, 0.9]]), rtol=1e-6)
    with pytest.raises(IndexError, match="at most 1 and not negative, got 2"):
        utils.unary_from_labels(np.array([2]), 2, 0.9, zero_unsure=False)
    with pytest.raises(AssertionError, match="gt_prob"):
        utils.unary_from_labels(np.array([1]), 2, 1.0)
    p = np.array([[0.0, 0.25], [1.0, 0.75]])
    np.testing.assert_allclose(
        utils.unary_from_softmax(p), -np.log([[1e-5, 0.25], [1, 0.75]]), rtol=1e-6
    )
    scaled = utils.unary_from_softmax(p, scale=0.5)
    np.testing.assert_allclose(scaled, -np.log([[0.25, 0.375], [0.75, 0.625]]), rtol=1e-6)
    with pytest.raises(AssertionError, match="scale"):
        utils.unary_from_softmax(p, scale=2)
    assert utils.softmax_to_unary(p)[0, 0] == np.inf
    np.testing.assert_array_equal(
        utils.compute_unary(np.array([0, 1]), 2), utils.unary_from_labels(np.array([0, 1]), 2, 0.5)
    )
    assert len(caplog.records) == 2


def test_features_by_hand() -> None:
    found = utils.create_pairwise_gaussian((2, 4), (2, 3))
    np.testing.assert_allclose(found, [[0, 0, 0, 0.5, 0.5, 0.5], [0, 0.25, 0.5, 0, 0.25, 0.5]])
    image = np.array([[10, 20, 30], [40, 50, 60]], np.uint8)
    found = utils.create_pairwise_bilateral((2, 4), 10, image)
    np.testing.assert_allclose(found[2], [1, 2, 3, 4, 5, 6])
    colour = np.stack([image, image], axis=1)  # (2, 2, 3)
    found = utils.create_pairwise_bilateral((2, 4), (10, 5), colour, chdim=1)
    np.testing.assert_allclose(found[3], [2, 4, 6, 8, 10, 12])
    assert found.dtype == np.float32


@pytest.fixture
def installed() -> Iterator[ModuleType]:
    before = {
        name: sys.modules.pop(name)
        for name in list(sys.modules)
        if "pydensecrf" in name.split(".")[0]
    }
    install()
    import pydensecrf.densecrf  # type: ignore[import-not-found]

    yield pydensecrf.densecrf
    for name in [name for name in sys.modules if name.split(".")[0] == "pydensecrf"]:
        del sys.modules[name]
    sys.modules.update(before)


def test_programs_of_others_import_it_by_its_name(installed: ModuleType) -> None:
    from pydensecrf.utils import unary_from_softmax  # type: ignore[import-not-found]

    assert installed.DenseCRF2D is dcrf.DenseCRF2D
    assert unary_from_softmax is utils.unary_from_softmax
    assert installed.NORMALIZE_SYMMETRIC == 3
    assert installed.DIAG_KERNEL == installed.KernelType.DIAG_KERNEL == 1


# Twelve problems of every kind, solved by whatever is called pydensecrf.
SCRIPT = """
import sys
import numpy as np
if sys.argv[2] == "ours":
    from perturb_mpm.compat.pydensecrf import install
    install()
import pydensecrf.densecrf as dcrf
import pydensecrf.utils as utils
found = {}
for k in range(12):
    rng = np.random.default_rng(k)
    labels, h, w = int(rng.integers(2, 12)), 4 * int(rng.integers(3, 9)), int(rng.integers(9, 30))
    strength = 1.0 if k % 4 else 0.01
    matrix = (strength * rng.normal(size=(labels, labels))).astype(np.float32)
    compat = [3.0 * strength, -0.5 * strength, -2 * np.abs(matrix[0]), matrix][k // 3]
    image = rng.integers(0, 255, (h, w, 3)).astype(np.uint8)
    if k % 2:
        d = dcrf.DenseCRF2D(w, h, labels)
        d.addPairwiseGaussian((2.5, 3), compat, normalization=k % 4)
        d.addPairwiseBilateral(20, (30, 40, 50), image, compat, normalization=k % 4)
    else:
        d = dcrf.DenseCRF(h * w, labels)
        features = utils.create_pairwise_gaussian((2, 3), (h, w))
        d.addPairwiseEnergy(features, compat, normalization=k % 4)
        features = utils.create_pairwise_bilateral((15, 20), (30, 40, 50), image, chdim=2)
        d.addPairwiseEnergy(features, compat, normalization=k % 4)
    d.setUnaryEnergy(rng.gamma(1.5, 1.0, (labels, h * w)).astype(np.float32))
    q, one, two = d.startInference()
    for _ in range(4):
        d.stepInference(q, one, two)
    found[f"q{k}"] = np.array(d.inference(4))
    found[f"steps{k}"] = np.array(q)
    found[f"divergence{k}"] = d.klDivergence(q)
np.savez(sys.argv[1], **found)
"""


@pytest.mark.skipif(
    not Path(PEER).is_file(),
    reason="PERTURB_MPM_PEER_PYTHON names no Python with pydensecrf2 (make peer)",
)
def test_results_are_those_of_pydensecrf(tmp_path: Path) -> None:
    results = {}
    for name, python in (("theirs", PEER), ("ours", sys.executable)):
        path = tmp_path / f"{name}.npz"
        subprocess.run([python, "-c", SCRIPT, str(path), name], check=True, timeout=300)
        with np.load(path) as file:
            results[name] = dict(file)
    for key, expected in results["theirs"].items():
        found = results["ours"][key]
        if key.startswith("divergence"):
            assert found == pytest.approx(expected, rel=1e-5, abs=0.01), key
        else:
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5, err_msg=key)
            np.testing.assert_array_equal(found.argmax(axis=0), expected.argmax(axis=0))
