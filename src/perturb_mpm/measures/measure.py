"""A measure: a name, a unit and a function of one structure; those that are built in, by name."""

from __future__ import annotations

import importlib
import re
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import overload

import numpy as np

from perturb_mpm.biomarkers import MeasureScale
from perturb_mpm.checks import ExpectedError
from perturb_mpm.measures import relations, shapes
from perturb_mpm.measures.structure import MeasuredPatient, Structure

Compute = Callable[[Structure], float]

DEFAULT_MEASURES = (
    *("volume", "area", "diameter", "bidirectional", "axial_diameter", "perpendicular_diameter"),
    *("sphericity", "components"),
)
_DOSE = re.compile(r"([dv])(\d+(?:\.\d+)?)")
_NAME = re.compile(r"[^\s.<>=,:]+(:[^<>=]+)?")


class MeasureError(ExpectedError):
    """A measure cannot be computed of some structure."""


@dataclass(frozen=True)
class Measure:
    """A number of one structure, with its name and unit ("" where it has none).

    Examples
    --------
    >>> from perturb_mpm.measures import Measure
    >>> Measure("voxels", "", lambda structure: structure.voxels).column("core")
    'core.voxels'
    """

    name: str
    unit: str
    compute: Compute

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"name must be one word without dots or signs, got {self.name!r}")
        if not callable(self.compute):
            raise TypeError(f"compute must be a function, got {type(self.compute).__name__}")

    def __call__(self, structure: Structure) -> float:
        """Return the measure of one structure."""
        try:
            return float(self.compute(structure))
        except Exception as error:  # a user's function may raise anything
            last = traceback.extract_tb(error.__traceback__)[-1]
            raise MeasureError(
                f"`measure` {self.name} must return a number for {structure.name} of "
                f"{structure.voxels} voxels, got {type(error).__name__}: {error} "
                f"({last.filename}, line {last.lineno})"
            ) from error

    @property
    def scale(self) -> MeasureScale:
        """Where its errors compare in small and large cases; see ``to_scale``."""
        if self.unit == "ml":
            return "volume"
        is_share = self.name in ("dice", "surface_dice") or re.fullmatch(r"v[\d.]+", self.name)
        return "share" if is_share else "size"

    def column(self, structure: str) -> str:
        """Return the heading of its column, such as ``core.volume_ml``."""
        return f"{structure}.{self.name}" + (f"_{self.unit}" if self.unit else "")


@overload
def define_measure(function: Compute, /) -> Measure: ...
@overload
def define_measure(*, name: str | None = None, unit: str = "") -> Callable[[Compute], Measure]: ...
def define_measure(
    function: Compute | None = None, /, *, name: str | None = None, unit: str = ""
) -> Measure | Callable[[Compute], Measure]:
    """Make a measure of a function; it is called by the function's name unless ``name`` is given.

    Examples
    --------
    >>> from perturb_mpm.measures import define_measure
    >>> @define_measure(unit="mm")
    ... def height(structure):
    ...     return structure.mask.shape[2] * structure.spacing[2]
    >>> height.name, height.unit
    ('height', 'mm')
    """

    def define(compute: Compute) -> Measure:
        return Measure(name or str(getattr(compute, "__name__", "")), unit, compute)

    return define if function is None else define(function)


# In float64; the standard deviation divides by n, as IBSI has it.
_MEAN, _SD = (partial(each, dtype="f8") for each in (np.mean, np.std))
_PLAIN: Mapping[str, tuple[str, Compute]] = {
    "volume": ("ml", shapes.volume_ml),
    "area": ("mm2", shapes.surface_area_mm2),
    "diameter": ("mm", shapes.diameter_mm),
    "bidirectional": ("mm2", shapes.bidirectional_mm2),
    "axial_diameter": ("mm", shapes.axial_diameter_mm),
    "perpendicular_diameter": ("mm", shapes.perpendicular_diameter_mm),
    "sphericity": ("", shapes.sphericity),
    "components": ("", shapes.components),
    "margin": ("mm", relations.margin_mm),
    "dice": ("", relations.dice_with_label_map),
    "surface_dice": ("", relations.surface_dice),
    "hd95": ("mm", relations.hausdorff95_mm),
    "mean_dose": ("gy", partial(relations.dose, summarize=_MEAN)),
}
_BESIDE: Mapping[str, tuple[str, Callable[..., float]]] = {
    "distance": ("mm", relations.distance_mm),
    "contact": ("mm2", relations.contact_mm2),
    "overlap": ("ml", relations.overlap_ml),
}
_INSIDE: Mapping[str, tuple[str, Callable[..., float]]] = {
    name: (unit, partial(relations.intensity, summarize=summarize))
    for name, unit, summarize in (
        ("mean", "", _MEAN),
        ("sd", "", _SD),
        ("median", "", partial(np.percentile, q=50)),
        ("p10", "", partial(np.percentile, q=10)),
        ("p90", "", partial(np.percentile, q=90)),
        ("entropy", "bits", relations.bin_entropy),
    )
}
MEASURES = (*_PLAIN, *(f"{name}:MASK" for name in _BESIDE), *(f"{n}:IMAGE" for n in _INSIDE))
"""What is built in; also dX and vX with a dose, as in d95 and v20."""


def find_measures(
    words: Sequence[str | Measure | Compute], patient: MeasuredPatient
) -> tuple[Measure, ...]:
    """Return the measures of some names, each once; ValueError where what they need is missing.

    Examples
    --------
    >>> from perturb_mpm.measures import MeasuredPatient, find_measures
    >>> patient = MeasuredPatient(pm.Grid((2, 2, 2)), {"core": (1,)}, np.ones((2, 2, 2), np.uint8))
    >>> [measure.column("core") for measure in find_measures(["volume", "area"], patient)]
    ['core.volume_ml', 'core.area_mm2']
    """
    found: dict[str, Measure] = {}
    for word in words:
        for each in _measures_named(word, patient):
            found[each.name] = each
    if not found:
        raise ValueError("`measure` must name at least one measure, got none")
    return tuple(found.values())


def _measures_named(word: str | Measure | Compute, patient: MeasuredPatient) -> Iterator[Measure]:
    if isinstance(word, Measure):
        yield word
    elif not isinstance(word, str):
        yield define_measure(word)
    elif word in _PLAIN:
        if word == "mean_dose":
            _require_dose(patient, word)
        unit, compute = _PLAIN[word]
        yield Measure(word, unit, compute)
    elif (dose := _DOSE.fullmatch(word)) is not None:
        _require_dose(patient, word)
        yield _dose_measure(word, dose[1], float(dose[2]))
    else:
        name, _, argument = word.partition(":")
        if name in _BESIDE:
            _require(argument, (*patient.masks, *patient.structures), word, "a mask or structure")
            unit, beside = _BESIDE[name]
            yield Measure(word, unit, partial(beside, other=argument))
        elif name in _INSIDE:
            _require(argument, tuple(patient.images), word, "an image")
            unit, inside = _INSIDE[name]
            yield Measure(word, unit, partial(inside, image=argument))
        else:
            yield _import_measure(word)


def _dose_measure(word: str, kind: str, number: float) -> Measure:
    """Return V_x, the share that gets at least x Gy, or D_x, what the best treated x % get."""
    if kind == "v":
        share = partial(relations.dose, summarize=lambda gray: (gray >= number).mean())
        return Measure(word, "", share)
    if not 0 < number <= 100:
        raise ValueError(f"`measure` dX needs a percentage above 0, at most 100, got {word}")
    least = partial(np.percentile, q=100 - number)
    return Measure(word, "gy", partial(relations.dose, summarize=least))


def _require(argument: str, known: Sequence[str], word: str, kind: str) -> None:
    if argument not in known:
        raise ValueError(
            f"`measure` {word} must name {kind} after the colon, one of "
            f"{', '.join(known) or 'none that is given'}, got {argument or 'nothing'}"
        )


def _require_dose(patient: MeasuredPatient, word: str) -> None:
    if patient.dose_gy is None:
        raise ValueError(f"`measure` {word} needs a `dose`, got none")


def _import_measure(word: str) -> Measure:
    """Return a user's measure, ``module:function``."""
    module, colon, name = word.partition(":")
    if not colon or not re.fullmatch(r"[\w.]+", module) or not name.isidentifier():
        raise ValueError(
            f"`measure` must be one of {', '.join(MEASURES)}, dX or vX with a dose, or "
            f"module:function, got {word!r}"
        )
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"`measure` {word} cannot be imported: {error}") from error
    if isinstance(found, Measure):
        return found
    if not callable(found):
        raise ValueError(f"`measure` {word} must be a function, got {type(found).__name__}")
    return Measure(name, "", found)
