"""Odd arrays and numbers, given to the functions of the library; Hypothesis chooses them."""

from __future__ import annotations

import random
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import perturb_mpm as pm
from lab.torture.attack import Attack, Finding, Trial, judge
from perturb_mpm.biomarkers import wilcoxon_exact
from perturb_mpm.checks import ExpectedError

try:
    from hypothesis import HealthCheck, Phase, given, seed, settings
    from hypothesis import strategies as st
    from hypothesis.extra import numpy as arrays
except ImportError as error:
    raise ExpectedError(
        "torture needs the package hypothesis: pip install 'perturb-mpm[test]'"
    ) from error

EXAMPLES = 50  # of one trial
_ERRORS = (TypeError, ValueError, MemoryError)
_ENGINES = ("reference", "cpu")

_NUMBERS: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from([0, -1, 1, 2, 0.5, 1e-320, 1e-30, 1e30, 1e39, 1e300, 10**400, -0.0]),
    st.sampled_from([float("nan"), float("inf"), float("-inf"), None, True, "1", b"1", 1j, [], ()]),
    st.sampled_from([np.float32(1), np.int8(3), np.uint64(2**63), np.float16(2), np.longdouble(1)]),
    st.floats(allow_nan=True),
    st.integers(-5, 300),
)
_SHAPES: st.SearchStrategy[tuple[int, ...]] = st.one_of(
    st.sampled_from([(), (0,), (1,), (3,), (2, 0), (2, 3, 4), (3, 4, 3, 2), (2, 1, 1, 1, 1)]),
    st.sampled_from([(1, 1, 1, 1, 1, 1, 2), (256, 2), (2, 5), (3, 4, 5)]),
    arrays.array_shapes(min_dims=1, max_dims=4, max_side=5),
)
_KINDS = (
    *("f2", "f4", "f8", ">f4", "g", "i1", "i8", "u1", "u8", ">i2", "?"),
    *("c8", "O", "U3", "S2", "M8[s]", "m8[s]", [("a", "f4")]),
)


@st.composite
def odd_arrays(draw: st.DrawFn) -> Any:  # noqa: ANN401 - anything at all
    """Draw an array of any type, shape, order and content, or something that is none."""
    other = draw(st.integers(0, 19))
    if other == 0:
        return draw(_NUMBERS)
    if other == 1:
        return draw(st.sampled_from([[[1, 2], [3]], "abc", object(), {1: 2}, {1}, iter([1]), [[]]]))
    dtype = np.dtype(draw(st.sampled_from(_KINDS[:11] if other < 16 else _KINDS)))
    shape = draw(_SHAPES)
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        values = generator.normal(size=shape) * draw(
            st.sampled_from([1.0, 10.0, 1e10, 1e38, 1e300])
        )
        array = np.abs(values) if draw(st.booleans()) else values
        if dtype.kind in "OUSMmV":
            array = np.zeros(shape, dtype)
        else:
            array = np.asarray(array).astype(dtype)
    if array.size and dtype.kind in "fc" and draw(st.integers(0, 3)) == 0:
        array.flat[draw(st.integers(0, array.size - 1))] = draw(
            st.sampled_from([np.nan, np.inf, -np.inf, 0, -1, 1e300 if dtype == np.float64 else 6e4])
        )
    return draw(st.sampled_from(_FORMS))(array)


_FORMS: tuple[Callable[[Any], Any], ...] = (
    lambda a: a,
    lambda a: a,
    lambda a: a[..., ::-1] if a.ndim else a,
    np.asfortranarray,
    lambda a: np.broadcast_to(a[..., :1], a.shape) if a.ndim and a.size else a,
    np.ma.masked_array,
    lambda a: a.tolist(),
    lambda a: a.view(np.memmap) if a.ndim else a,
)


def _distribution(labels: int, shape: tuple[int, ...], number: int) -> np.ndarray:
    p = np.random.default_rng(number).random((labels, *shape)) + 1e-3
    return np.asarray(p / p.sum(axis=0))


@st.composite
def calls(draw: st.DrawFn) -> Callable[[], object]:
    """Draw a call of the library in which one or more arguments are odd."""
    number = draw(st.integers(0, 1000))
    shape = draw(st.sampled_from([(5,), (4, 3), (3, 3, 2), (2, 2, 2, 2)]))
    unary = pm.unary_from_probabilities(_distribution(3, shape, number))
    array, other = draw(odd_arrays()), draw(odd_arrays())
    x, y, z = draw(_NUMBERS), draw(_NUMBERS), draw(_NUMBERS)
    engine = draw(st.sampled_from(_ENGINES))
    update = draw(st.sampled_from(["parallel", "convergent", "convergent", 3]))

    def model(**changed: object) -> pm.DenseCRF:
        chosen: dict[str, Any] = {"unary": unary, "kernels": [pm.SpatialKernel(2.0)], **changed}
        return pm.DenseCRF(**chosen)

    def solve_crf(**changed: object) -> None:
        check_mean_field(
            pm.mean_field(model(**changed), 3, update=update, engine=engine)  # type: ignore[arg-type]
        )

    def sample_crf(crf: pm.DenseCRF, **options: object) -> None:
        chosen: dict[str, Any] = {"samples": 3, "iterations": 2, "engine": engine, **options}
        check_posterior(pm.sample(crf, **chosen))

    def count_votes() -> None:
        grid = pm.Grid(shape)
        check_posterior(
            pm.Posterior(
                grid=grid,
                counts=array,
                sample_index=other,
                volumes=draw_volumes,
                problem="x",
                parameters={},
            )
        )

    draw_volumes = draw(odd_arrays())
    return draw(
        st.sampled_from(
            [
                lambda: pm.unary_from_probabilities(array, x, y),
                lambda: pm.unary_from_probabilities(_distribution(2, shape, number), x, y),
                lambda: pm.unary_from_logits(array, x),
                lambda: pm.unary_from_labels(array, x, y),
                lambda: pm.Grid(array, other),
                lambda: pm.Grid(shape, array, other),
                lambda: pm.Grid(shape, x),
                lambda: pm.SpatialKernel(array, weight=y),
                lambda: solve_crf(unary=array),
                lambda: solve_crf(unary=array, mask=other),
                lambda: solve_crf(mask=array),
                lambda: solve_crf(spacing=array),
                lambda: solve_crf(spacing=x),
                lambda: solve_crf(compatibility=array),
                lambda: solve_crf(kernels=[pm.SpatialKernel(x, weight=y)]),
                lambda: solve_crf(kernels=[pm.SpatialKernel(2.0, weight=y, compatibility=array)]),
                lambda: solve_crf(kernels=[pm.BilateralKernel(array, x, y)]),
                lambda: solve_crf(kernels=[pm.BilateralKernel(array, 2.0, 0.5)], unary=other),
                lambda: solve_crf(kernels=[pm.FeatureKernel(array, x)]),
                lambda: solve_crf(kernels=array),
                lambda: solve_crf(self_term=x, centring=y),
                lambda: pm.mean_field(model(), x, tolerance=y, damping=z),
                lambda: model().energy(array),
                lambda: sample_crf(model(), samples=x if _few(x) else 2, seed=y),
                lambda: sample_crf(model(), noise_scale=x),
                lambda: sample_crf(model(), noise_length=x),
                lambda: sample_crf(model(unary=array), until=y if _few(y) else None),
                lambda: sample_crf(model(), noise_length=[(x, y), (z, x)]),
                count_votes,
                lambda: pm.samples_needed(x, y, z),
                lambda: pm.Precision(x, y, z),
                lambda: pm.Sampling(x, y),
                lambda: wilcoxon_exact(array, other),
            ]
        )
    )


def _few(value: Any) -> bool:  # noqa: ANN401
    """Whether a number of samples is none that takes hours: those are right to ask for."""
    return not (isinstance(value, int | float | np.number) and abs(float(min(value, 21))) > 20)


def check_mean_field(result: pm.MeanField) -> None:
    """Check that marginals are probabilities and the free energy is a number."""
    q = np.asarray(result.marginals, dtype=np.float64)
    if not np.isfinite(q).all() or np.abs(q.sum(axis=0) - 1).max() > 1e-4 or q.min() < 0:
        raise AssertionError("the marginals are no probabilities")
    if not np.isfinite(result.free_energy) or not np.isfinite(result.entropy).all():
        raise AssertionError("the free energy or the entropy is no number")


def check_posterior(posterior: pm.Posterior) -> None:
    """Check that votes add up and volumes are numbers."""
    if (posterior.counts.sum(axis=0, dtype=np.int64) != posterior.samples).any():
        raise AssertionError("the votes do not add up")
    if not np.isfinite(posterior.volumes).all() or not np.isfinite(posterior.entropy).all():
        raise AssertionError("volumes or entropy are no numbers")


def prepare_interface(_: Path) -> Trial:
    """Return a trial of so many examples, whose seed is the trial's own."""
    warnings.simplefilter("ignore", pm.ConvergenceWarning)
    warm = pm.DenseCRF(np.zeros((2, 4, 4)), [pm.SpatialKernel(1.0)])
    pm.sample(warm, samples=1, engine="cpu")  # compiling takes longer than a trial may

    def trial(rng: random.Random, _: Path) -> Finding:
        refused = 0

        @seed(rng.getrandbits(64))
        @settings(
            max_examples=EXAMPLES,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(calls())
        def check(call: Callable[[], object]) -> None:
            nonlocal refused
            finding = judge(call, _ERRORS)
            refused += finding.refused
            if finding.kind:
                raise AssertionError(finding.words)

        try:
            check()
        except AssertionError as error:
            return Finding(refused > 0, "traceback", str(error))
        except Exception:  # noqa: BLE001 - this is what is looked for
            return Finding(refused > 0, "traceback", traceback.format_exc())
        return Finding(refused > 0)

    return trial


ODD = Attack("interface", "odd arrays", prepare_interface, share=4.0, longest=60, each=EXAMPLES)
