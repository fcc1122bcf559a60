"""Measures of many samples: summed up, asked whether a rule holds, and where they would narrow.

For the last, the mask is cut into cubes. With v the volume of a structure in one of them and m the
measure, in each sample, knowing v explains the share Cov(m, v)² / (Var v · Var m) of the variance
of m. For a cube of one voxel, in the structure in a share p of the samples, it is
Cov(m, 1)² / (p (1 − p) Var m). Cubes beside each other say the same twice, so that the list is
greedy: each next cube explains most of what those before it leave.

Samples err over longer distances than classifiers do: by samples alone, a few cubes say nearly all
about the others. So each cube that samples disagree about also has an error of its own, of variance
τ s², where s² is the mean of Var v over these cubes, independent of those of others: it adds α² τ
s² to the variance of m and α τ s² to the covariance, where α = Cov(m, V) / Var V is what m grows by
with the whole volume V; 1, in its unit, if m is the volume. The error is as large where samples
hardly vary: a network is as wrong there, and what it misses it is sure of. How large τ is nobody
knows before anything is told: ``OWN_ERRORS`` are equally probable.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from perturb_mpm import checks
from perturb_mpm.biomarkers import SampledBiomarker, distribution
from perturb_mpm.measures.measure import Measure
from perturb_mpm.measures.structure import LabelMap, MeasuredPatient, membership
from perturb_mpm.posterior import clopper_pearson

_SIGNS: Mapping[str, Callable[[NDArray[np.float64], float], NDArray[np.bool_]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
PATCH_MM = 10.0
"""The side of a cube."""
OWN_ERRORS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
"""τ, the variance of a cube's own error over the mean variance of cubes in samples."""
_SAMPLES_EACH = 10  # as many samples for each cube of the list, at least
_LEAST = 1e-12  # of a variance, relative to what it was
_COMPARISON = re.compile(r"\s*(.+)\.([^.<>=]*?[^.<>=\s])\s*(<=|>=|<|>)\s*([-+\w.]+)\s*")


@dataclass(frozen=True)
class Column:
    """One measure of one structure."""

    structure: str
    measure: str
    unit: str

    @property
    def key(self) -> str:
        """As a rule names it: ``core.volume``."""
        return f"{self.structure}.{self.measure}"

    @property
    def heading(self) -> str:
        """As a table names it, with its unit: ``core.volume_ml``."""
        return self.key + (f"_{self.unit}" if self.unit else "")


@dataclass(frozen=True)
class Rule:
    """Comparisons of measures with numbers, all of which must hold, such as core.volume > 10.

    Examples
    --------
    >>> from perturb_mpm.measures import Rule
    >>> Rule.from_text("core.volume > 10 and core.diameter <= 30").keys
    ('core.volume', 'core.diameter')
    """

    text: str
    parts: tuple[tuple[str, str, float], ...]  # key, sign, number

    @classmethod
    def from_text(cls, text: str) -> Rule:
        """Read a rule; ValueError where it is none."""
        parts = []
        for each in text.split(" and "):
            found = _COMPARISON.fullmatch(each)
            try:
                number = float(found[4]) if found else None
            except ValueError:
                number = None
            if found is None or number is None:
                raise ValueError(
                    "`rule` must be STRUCTURE.MEASURE, one of <, <=, >, >=, and a number, such as "
                    f'"enhancing.volume > 10", several joined by "and", got {text!r}'
                )
            parts.append((f"{found[1]}.{found[2]}", found[3], number))
        return cls(" ".join(text.split()), tuple(parts))

    @property
    def keys(self) -> tuple[str, ...]:
        """The measures that it asks for."""
        return tuple(key for key, _, _ in self.parts)

    def holds(self, values: Mapping[str, NDArray[np.float64]]) -> NDArray[np.bool_]:
        """Return where the rule holds, (S,); nowhere where a value is undefined."""
        results = [_SIGNS[sign](values[key], number) for key, sign, number in self.parts]
        return np.logical_and.reduce(results)


@dataclass(frozen=True, eq=False)
class Measurements:
    """The measures of every sample, and of the label map; NaN where one is not defined.

    Examples
    --------
    >>> from perturb_mpm.measures import Measurer, MeasuredPatient, find_measures
    >>> labels = np.ones((2, 2, 2), np.uint8)
    >>> patient = MeasuredPatient(pm.Grid((2, 2, 2), spacing=10.0), {"core": (1,)}, labels)
    >>> measurer = Measurer(patient, find_measures(["volume"], patient))
    >>> measurer.add(range(2), np.array([[1] * 8, [0] * 4 + [1] * 4], np.uint8))
    >>> found = measurer.measurements
    >>> found["core.volume"], found.probability("core.volume > 5")
    (array([8., 4.]), 0.5)
    """

    columns: tuple[Column, ...]
    sample_index: NDArray[np.int64]  # (S,)
    values: NDArray[np.float64]  # (S, M)
    label_map: NDArray[np.float64]  # (M,)

    def __getitem__(self, key: str) -> NDArray[np.float64]:
        """Return the values of one measure of one structure in every sample, (S,)."""
        return self.values[:, self._position(key)]

    def _position(self, key: str) -> int:
        keys = [column.key for column in self.columns]
        if key not in keys:
            raise ValueError(f"a measure must be one of {', '.join(keys)}, got {key!r}")
        return keys.index(key)

    @property
    def samples(self) -> int:
        """S, the number of samples."""
        return len(self.sample_index)

    def label_map_value(self, key: str) -> float:
        """Return the value of the label map."""
        return float(self.label_map[self._position(key)])

    def distribution(self, key: str) -> SampledBiomarker:
        """Return median and central 95 % of the samples in which a measure is defined."""
        return distribution(self[key])

    def holds(self, rule: str | Rule) -> NDArray[np.bool_]:
        """Return in which samples a rule holds, (S,)."""
        asked = Rule.from_text(rule) if isinstance(rule, str) else rule
        return asked.holds({key: self[key] for key in asked.keys})

    def probability(self, rule: str | Rule) -> float:
        """Return the share of samples in which a rule holds."""
        return float(self.holds(rule).mean())

    def probability_interval(self, rule: str | Rule) -> tuple[float, float]:
        """Return how far the probability is known by so many samples (Clopper–Pearson, 95 %)."""
        holding = self.holds(rule)
        low, high = clopper_pearson(int(holding.sum()), len(holding), 0.95)
        return float(low), float(high)

    def merge(self, other: Measurements) -> Measurements:
        """Return the measures of both ranges of samples, by their numbers."""
        if self.columns != other.columns or not np.array_equal(
            self.label_map, other.label_map, equal_nan=True
        ):
            raise ValueError("other must have the same measures of the same label map")
        index = np.concatenate([self.sample_index, other.sample_index])
        if len(np.unique(index)) < len(index):
            raise ValueError("other must have other samples, got some twice")
        order = np.argsort(index)
        values = np.concatenate([self.values, other.values])[order]
        return replace(self, sample_index=index[order], values=values)


@dataclass(frozen=True)
class MeasureRow:
    """One measure of one structure, summed up over samples.

    Examples
    --------
    >>> from perturb_mpm.measures import MeasureRow
    >>> MeasureRow("core", "volume", "ml", 9.0, 9.2, (7.0, 12.0), 0, "samples").interval
    (7.0, 12.0)
    """

    structure: str
    measure: str
    unit: str
    label_map: float
    median: float
    interval: tuple[float, float]  # 95 %; NaN where white noise says nothing
    undefined_samples: int
    rests_on: str
    """What the interval rests on, in words."""


@dataclass(frozen=True, eq=False)
class Extremes:
    """Samples from small to large by the volume of a structure, and which they are.

    Examples
    --------
    >>> from perturb_mpm.measures import Extremes
    >>> Extremes.choose(np.array([5.0, 1.0, 3.0, 2.0, 4.0]), (0.025, 0.5, 0.975))
    [1, 2, 0]
    """

    structure: str
    levels: tuple[float, ...]
    """The share of samples below each."""
    numbers: tuple[int, ...]
    volumes_ml: tuple[float, ...]
    labels: NDArray[np.uint8]  # (K, X, Y, Z) label indices

    @staticmethod
    def choose(volumes: NDArray[np.floating], levels: Sequence[float]) -> list[int]:
        """Return the numbers of the samples nearest to some quantiles of volumes (S,)."""
        order = np.argsort(volumes, kind="stable")
        return [int(order[round(level * (len(order) - 1))]) for level in levels]


class Measurer:
    """Measures samples as they are drawn, and keeps their numbers alone.

    ``add`` is what ``Sampler.draw`` takes as ``keep``.

    Examples
    --------
    >>> from perturb_mpm.measures import Measurer, MeasuredPatient, find_measures
    >>> crf = pm.DenseCRF(pm.unary_from_logits(np.zeros((2, 2, 2, 2))))
    >>> patient = MeasuredPatient(crf.grid, {"core": (1,)}, np.ones((2, 2, 2), np.uint8))
    >>> measurer = Measurer(patient, find_measures(["volume", "components"], patient))
    >>> posterior = pm.Sampler(crf, pm.Sampling(samples=5)).draw(keep=measurer.add)
    >>> measurer.measurements.values.shape
    (5, 2)
    """

    def __init__(
        self,
        patient: MeasuredPatient,
        measures: Sequence[Measure],
        structures: Sequence[str] | None = None,
    ) -> None:
        names = tuple(patient.structures if structures is None else structures)
        self._scene = patient
        self._pairs = [(name, measure) for name in names for measure in measures]
        self.columns = tuple(Column(name, m.name, m.unit) for name, m in self._pairs)
        self._index: list[int] = []
        self._rows: list[NDArray[np.float64]] = []
        self._label_map = self._measure(patient.label_map)

    def add(self, part: range, labels: NDArray[np.uint8]) -> None:
        """Measure the samples ``part`` with their labels inside the mask, (B, N)."""
        for number, each in zip(part, labels, strict=True):
            sample = LabelMap(self._scene, each)
            self._index.append(number)
            self._rows.append(self._measure(sample))
            sample.clear()

    @property
    def measurements(self) -> Measurements:
        """The samples so far."""
        rows = np.array(self._rows).reshape(-1, len(self.columns))
        index = np.array(self._index, dtype=np.int64)
        return Measurements(self.columns, index, rows, self._label_map)

    def _measure(self, labels: LabelMap) -> NDArray[np.float64]:
        return np.array([measure(labels.structure(name)) for name, measure in self._pairs])


@dataclass(frozen=True)
class PriorityPatch:
    """One cube of the list.

    Examples
    --------
    >>> from perturb_mpm.measures import PriorityPatch
    >>> PriorityPatch((4, 5, 6), (5, 5, 5), explained=0.3, explained_so_far=0.3).centre_voxel
    (4, 5, 6)
    """

    centre_voxel: tuple[int, int, int]
    """The voxel nearest to the middle of what is uncertain in it."""
    size_voxels: tuple[int, int, int]
    explained: float
    """The share of the variance that it explains by itself, 0 to 1."""
    explained_so_far: float
    """What it and all before it explain together, in samples that did not choose (two halves)."""


@dataclass(frozen=True, eq=False)
class Priority:
    """What each cube, and each axial slice, would tell about one measure of one structure.

    Examples
    --------
    >>> from perturb_mpm.measures import Priority
    >>> volumes = np.array([[1.0], [2.0], [3.0]])  # samples × cubes
    >>> one = np.zeros((1, 3), int)
    >>> found = Priority(
    ...     "core", "volume", volumes[:, 0], volumes, volumes, one[0, :1], one, (1, 1, 1), (1, 1, 1)
    ... )
    >>> found.explained, found.slice_list()
    (array([1.]), [(0, 1.0)])
    """

    structure: str
    measure: str
    values: NDArray[np.float64]  # (S,) the measure
    volumes: NDArray[np.float64]  # (S, P) voxels of the structure in each cube
    slice_volumes: NDArray[np.float64]  # (S, Z) the same in each axial slice
    patches: NDArray[np.int64]  # (R,) the cube of every voxel that samples disagree about
    voxels: NDArray[np.int64]  # (R, 3)
    size_voxels: tuple[int, int, int]
    shape: tuple[int, ...]

    @cached_property
    def explained(self) -> NDArray[np.float64]:
        """The share of the variance that each cube explains by itself, (P,)."""
        return explained_share(self.values, self.volumes)

    def image(self) -> NDArray[np.float32]:
        """Return the share at each voxel that samples disagree about, 0 elsewhere, (X, Y, Z)."""
        found = np.zeros(self.shape, dtype=np.float32)
        found[tuple(self.voxels.T)] = self.explained[self.patches]
        return found

    def slice_list(self, most: int = 10) -> list[tuple[int, float]]:
        """Return the axial slices that explain most by themselves: index and share."""
        share = explained_share(self.values, self.slice_volumes)
        order = np.argsort(-share, kind="stable")[:most]
        return [(int(each), float(share[each])) for each in order if share[each] > 0]

    def patch_list(self, most: int = 12) -> list[PriorityPatch]:
        """Return the cubes in the order in which one should look at them."""
        most = min(most, max(len(self.values) // _SAMPLES_EACH, 1))
        order = greedy_order(self.values, self.volumes, most)
        so_far = explained_elsewhere(self.values, self.volumes, order)
        return [
            PriorityPatch(
                self._centre(each), self.size_voxels, float(self.explained[each]), float(share)
            )
            for each, share in zip(order, so_far)
        ]

    def _centre(self, patch: int) -> tuple[int, int, int]:
        here = self.voxels[self.patches == patch]
        nearest = here[np.square(here - here.mean(axis=0)).sum(axis=1).argmin()]
        return int(nearest[0]), int(nearest[1]), int(nearest[2])


class CubeLaw:
    """What is known of a measure, and of the volume of each cube, while cubes are told.

    Values (S,) and volumes (S, P) are those of samples. Under each τ of ``own_errors`` all is
    taken for Gaussian, and told cubes are conditioned on one after another.

    Examples
    --------
    >>> from perturb_mpm.measures import CubeLaw
    >>> volumes = np.array([[0.0, 0.1, 1.0], [1.0, 1.1, 0.0], [2.0, 2.3, 0.0], [3.0, 2.9, 1.0]])
    >>> law = CubeLaw(volumes.sum(axis=1), volumes, own_errors=(0.0,))
    >>> law.tell(0)
    >>> int(law.gains().argmax())  # not its neighbour
    2
    """

    def __init__(
        self,
        values: NDArray[np.float64],
        volumes: NDArray[np.float64],
        own_errors: Sequence[float] = OWN_ERRORS,
    ) -> None:
        x, y = volumes - volumes.mean(axis=0), values - values.mean()
        self._x = x / np.sqrt(max(len(x), 1))  # (S, P)
        sizes = np.square(self._x).sum(axis=0)  # (P,) variances
        self.own: NDArray[np.float64] = np.multiply.outer(own_errors, _equal_shares(sizes))
        """The variance of each cube's own error under each τ, (T, P)."""
        own = self.own
        self._slope = _slope(y, x.sum(axis=1))
        self._middle = np.broadcast_to(volumes.mean(axis=0), own.shape).copy()  # (T, P)
        self._sizes = sizes + own  # (T, P)
        self._floor = _LEAST * np.maximum(self._sizes, 1.0)
        self._shared = y @ x / max(len(y), 1) + self._slope * own  # (T, P) covariances
        self.variance: NDArray[np.float64] = y.var() + self._slope**2 * own.sum(axis=1)
        """Of the measure, under each τ, (T,)."""
        self._evidence = np.zeros(len(own))
        self._told: list[NDArray[np.float64]] = []  # (T, P) each

    @property
    def probability(self) -> NDArray[np.float64]:
        """How probable each τ is by what was told, (T,)."""
        found = np.exp(self._evidence - self._evidence.max())
        return np.asarray(found / found.sum())

    def gains(self) -> NDArray[np.float64]:
        """Return by how much knowing each cube is expected to lower the variance, (P,)."""
        known = self._sizes <= self._floor
        gain = np.square(self._shared) / np.where(known, 1.0, self._sizes)
        return np.asarray(self.probability @ np.where(known, 0.0, gain))

    def choose(self, most: int, least: float) -> Iterator[tuple[int, float]]:
        """Tell the cube of the largest gain, and so on while that is above ``least``; yield both.

        ``most`` is how many are told at most.
        """
        for _ in range(most):
            gains = self.gains()
            best = int(gains.argmax())
            if gains[best] <= least:
                return
            yield best, float(gains[best])
            self.tell(best)

    def tell(self, cube: int, volume: float | None = None) -> None:
        """Condition on a cube; its volume, where it is known, says which τ are probable."""
        size, floor = (each[:, cube, np.newaxis] for each in (self._sizes, self._floor))  # (T, 1)
        known = size <= floor  # by those told before: it says nothing of others
        size = np.where(known, floor, size)
        along = np.tile(self._x[:, cube] @ self._x, (len(size), 1))  # (T, P)
        along[:, cube] += self.own[:, cube]
        for earlier in self._told:
            along -= earlier[:, cube : cube + 1] * earlier
        along = np.where(known, 0.0, along / np.sqrt(size))
        if volume is not None:
            away = (volume - self._middle[:, cube : cube + 1]) / np.sqrt(size)
            self._evidence -= (np.log(size) + away**2)[:, 0] / 2
            self._middle += along * away
        share = np.where(known, 0.0, self._shared[:, cube : cube + 1] / np.sqrt(size))
        self._shared -= along * share
        self._sizes -= along**2
        self._sizes[:, cube] = 0.0
        self.variance = self.variance - share[:, 0] ** 2
        self._told.append(along)


def _equal_shares(variances: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean of variances (P,) that are not 0 in place of each of these."""
    varies = variances > 0
    return np.where(varies, variances.sum() / max(varies.sum(), 1), 0.0)


def _slope(y: NDArray[np.float64], x: NDArray[np.float64]) -> float:
    """Return what centred values (S,) grow by with others."""
    size = float(x @ x)
    return float(y @ x) / size if size else 0.0


def explained_share(
    values: NDArray[np.float64],
    volumes: NDArray[np.float64],
    own_errors: Sequence[float] = OWN_ERRORS,
) -> NDArray[np.float64]:
    """Return the share of the variance of values (S,) that each column (S, P) explains."""
    law = CubeLaw(values, volumes, own_errors)
    total = law.probability @ law.variance
    return law.gains() / total if total else np.zeros(volumes.shape[1])


def greedy_order(
    values: NDArray[np.float64],
    volumes: NDArray[np.float64],
    most: int,
    own_errors: Sequence[float] = OWN_ERRORS,
) -> list[int]:
    """Return columns (S, P), each the one that explains most of what those before it leave.

    Examples
    --------
    >>> from perturb_mpm.measures import greedy_order
    >>> volumes = np.array([[0.0, 0.1, 1.0], [1.0, 1.1, 0.0], [2.0, 2.3, 0.0], [3.0, 2.9, 1.0]])
    >>> greedy_order(volumes.sum(axis=1), volumes, 2, own_errors=(0.0,))  # not its neighbour
    [0, 2]
    >>> greedy_order(volumes.sum(axis=1), volumes, 2)  # which may err by itself
    [0, 1]
    """
    law = CubeLaw(values, volumes, own_errors)
    least = _LEAST * float(law.variance.max())
    return [cube for cube, _ in law.choose(min(most, volumes.shape[1]), least)]


def explained_elsewhere(
    values: NDArray[np.float64],
    volumes: NDArray[np.float64],
    order: list[int],
    own_errors: Sequence[float] = OWN_ERRORS,
) -> NDArray[np.float64]:
    """Return what the first 1 … K columns of an order explain in samples they were not fitted to.

    Even samples are fitted and odd ones judged, and the other way round; never below 0 or less
    than fewer columns explain. Own errors are those of the law.
    """
    halves = [np.arange(len(values)) % 2 == each for each in (0, 1)]
    shares = np.zeros(len(order))
    if min(half.sum() for half in halves) < 3:
        return shares
    x, y = volumes - volumes.mean(axis=0), values - values.mean()
    slope, sizes = _slope(y, x.sum(axis=1)), _equal_shares(x.var(axis=0))
    own = np.array(own_errors)
    for fitted, judged in (halves, halves[::-1]):
        total = y[judged].var() + own.mean() * slope**2 * sizes.sum()
        for k in range(1, len(order) + 1):
            chosen = order[:k]
            middle, base = x[fitted][:, chosen].mean(axis=0), y[fitted].mean()
            here, there = x[fitted][:, chosen] - middle, x[judged][:, chosen] - middle
            left = 0.0
            for each in own:
                matrix = here.T @ here / len(here) + np.diag(each * sizes[chosen])
                shared = here.T @ (y[fitted] - base) / len(here) + each * slope * sizes[chosen]
                weights = np.linalg.lstsq(matrix, shared, rcond=1e-6)[0]
                own_left = sizes.sum() * slope**2 - sizes[chosen].sum() * slope**2
                own_left += (np.square(slope - weights) * sizes[chosen]).sum()
                left += np.square(y[judged] - base - there @ weights).mean() + each * own_left
            shares[k - 1] += (1 - left / len(own) / total) / 2 if total else 0.0
    return np.maximum.accumulate(np.clip(shares, 0.0, 1.0))


class PriorityFinder:
    """Gathers volumes of cubes as samples are drawn; ``add`` is what ``Sampler.draw`` keeps by.

    ``patient`` must know where samples disagree (``MeasuredPatient.with_votes``).

    Examples
    --------
    >>> from perturb_mpm.measures import MeasuredPatient, PriorityFinder, find_measures
    >>> samples = np.array([[1, 0, 0, 0], [1, 1, 1, 0], [1, 1, 1, 0]], np.uint8)  # (S, N)
    >>> labels = samples[0].reshape(4, 1, 1)
    >>> patient = MeasuredPatient(pm.Grid(labels.shape, spacing=1.0), {"core": (1,)}, labels)
    >>> votes = np.stack([(samples == label).sum(axis=0) for label in (0, 1)])
    >>> volume = find_measures(["volume"], patient)[0]
    >>> finder = PriorityFinder(patient.with_votes(votes), "core", volume, patch_mm=1.0)
    >>> finder.add(range(3), samples)
    >>> finder.priority.image().ravel().round(2)  # voxels 1 and 2 vary together
    array([0.  , 0.74, 0.74, 0.  ], dtype=float32)
    """

    def __init__(
        self,
        patient: MeasuredPatient,
        structure: str,
        measure: Measure,
        patch_mm: float = PATCH_MM,
    ) -> None:
        checks.number(patch_mm, "patch_mm", positive=True)
        self._patient, self._name, self._measure = patient, structure, measure
        self._rows = patient.rows[structure]  # (R,) where any sample has it
        x, y, z = (max(round(patch_mm / step), 1) for step in patient.grid.spacing)
        self._size = (x, y, z)
        index = patient.grid.index[self._rows]
        self._voxels = np.stack(np.unravel_index(index, patient.grid.shape), axis=1)  # (R, 3)
        cube = self._number_cubes(self._voxels)
        self._cubes, self._patch = np.unique(cube, return_inverse=True)
        self._votes = np.zeros(len(self._rows), dtype=np.int64)
        self._values: list[float] = []
        self._volumes: list[NDArray[np.int64]] = []
        self._slices: list[NDArray[np.int64]] = []

    def add(self, part: range, labels: NDArray[np.uint8]) -> None:
        """Take the samples ``part`` with their labels inside the mask, (B, N)."""
        members = membership(self._patient.structures[self._name])
        for _, each in zip(part, labels, strict=True):
            inside = members[each[self._rows]]
            self._votes += inside
            self._volumes.append(np.bincount(self._patch[inside], minlength=len(self._cubes)))
            height = self._voxels[inside, self._patient.across]
            depth = self._patient.grid.shape[self._patient.across]
            self._slices.append(np.bincount(height, minlength=depth))
            sample = LabelMap(self._patient, each)
            self._values.append(self._measure(sample.structure(self._name)))
            sample.clear()

    def _number_cubes(self, voxels: NDArray[np.int64]) -> NDArray[np.intp]:
        """Return the number of the cube of each voxel (R, 3)."""
        cubes = [n // step + 1 for n, step in zip(self._patient.grid.shape, self._size)]
        return np.ravel_multi_index(tuple((voxels // self._size).T), cubes)

    def cube_volumes(self, structure: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return how many voxels of a structure (X, Y, Z), such as a truth, each cube has."""
        found = self._number_cubes(np.argwhere(structure))
        position = np.searchsorted(self._cubes, found)
        position[position == len(self._cubes)] = 0
        known = self._cubes[position] == found  # no sample has the structure in the others
        return np.bincount(position[known], minlength=len(self._cubes))

    @property
    def priority(self) -> Priority:
        """What the samples so far say; those in which the measure is undefined are left out."""
        values = np.array(self._values)
        known = np.isfinite(values)
        varies = (self._votes > 0) & (self._votes < len(values))
        return Priority(
            self._name,
            self._measure.name,
            values[known],
            np.array(self._volumes, dtype=np.float64).reshape(len(values), -1)[known],
            np.array(self._slices, dtype=np.float64).reshape(len(values), -1)[known],
            self._patch[varies],
            self._voxels[varies],
            self._size,
            self._patient.grid.shape,
        )
