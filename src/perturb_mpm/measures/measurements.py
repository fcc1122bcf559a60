"""Measures of many samples: gathered batch by batch, summed up, and asked whether a rule holds."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.biomarkers import SampledBiomarker, distribution
from perturb_mpm.measures.measure import Measure
from perturb_mpm.measures.structure import LabelMap, MeasuredPatient
from perturb_mpm.posterior import clopper_pearson

_SIGNS: Mapping[str, Callable[[NDArray[np.float64], float], NDArray[np.bool_]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
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
        all_hold: NDArray[np.bool_] = np.logical_and.reduce(results)
        return all_hold


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
    """One measure of one structure, summed up over samples."""

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
        self._columns = tuple(Column(name, m.name, m.unit) for name, m in self._pairs)
        self._index: list[int] = []
        self._rows: list[NDArray[np.float64]] = []
        self._label_map = self._measure(patient.label_map)

    @property
    def columns(self) -> tuple[Column, ...]:
        """What is measured."""
        return self._columns

    def add(self, part: range, labels: NDArray[np.uint8]) -> None:
        """Measure the samples ``part`` with their labels inside the mask, (B, N)."""
        for number, each in zip(part, labels, strict=True):
            self._index.append(number)
            self._rows.append(self._measure(LabelMap(self._scene, each)))

    @property
    def measurements(self) -> Measurements:
        """The samples so far."""
        rows = np.array(self._rows).reshape(-1, len(self._columns))
        index = np.array(self._index, dtype=np.int64)
        return Measurements(self._columns, index, rows, self._label_map)

    def _measure(self, labels: LabelMap) -> NDArray[np.float64]:
        return np.array([measure(labels.structure(name)) for name, measure in self._pairs])
