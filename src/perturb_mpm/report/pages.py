"""What all pages share: numbers as a reader wants them, and the Jinja2 environment of templates."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from perturb_mpm.report.colours import BRIGHTEST_GREY, OPACITY, OPAQUE_GREY
from perturb_mpm.report.planes import in_words

if TYPE_CHECKING:
    from jinja2 import Environment

NOTHING = "–"


def number(value: float) -> str:
    """Return a value with three digits behind the point, or one where it is large."""
    if math.isnan(value):
        return NOTHING
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}"


def ml(value: float) -> str:
    """Return a volume with as many digits as it deserves, without its unit."""
    if math.isnan(value):
        return NOTHING
    if value == 0:
        return "0"
    size = abs(value)
    digits = 0 if size >= 1000 else 1 if size >= 10 else 2 if size >= 0.095 else 3
    return f"{value:.{digits}f}".replace("-", "−")


def about_ml(value: float) -> str:
    """Return a volume as one says it aloud: two or three digits, without its unit."""
    size = abs(value)
    if size == 0 or math.isnan(value):
        return ml(value)
    digits = 0 if size >= 9.95 else 1 if size >= 0.95 else 2 if size >= 0.095 else 3
    return f"{value:.{digits}f}" if size >= 0.0005 else "under 0.001"


def interval_ml(low: float, high: float) -> str:
    """Return an interval of volumes; both ends have enough digits to differ."""
    if math.isnan(low):
        return NOTHING
    digits = 0 if low >= 1000 else 1 if low >= 10 else 2 if high >= 0.095 else 3
    while high > low and f"{low:.{digits}f}" == f"{high:.{digits}f}" and digits < 4:
        digits += 1
    return f"{low:.{digits}f} – {high:.{digits}f}"


def capitalise(text: str) -> str:
    """Return a text with its first letter as a capital, the others as they are."""
    return f"{text[:1].upper()}{text[1:]}"


def percent(share: float | None, digits: int = 1) -> str:
    """Return a share in per cent."""
    if share is None or math.isnan(share):
        return NOTHING
    return f"{100.0 * share:.{digits}f} %"


def parameter_rows(parameters: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    """Yield every parameter as (name, value), those inside others with both names."""
    for name, value in parameters.items():
        full = f"{before} · {name}" if before else str(name)
        if isinstance(value, Mapping):
            yield from parameter_rows(value, full)
        elif _contains_mappings(value):
            for rank, each in enumerate(value, start=1):
                yield from parameter_rows(each, f"{full} {rank}")
        else:
            yield full, _text(value)


def find_parameter(parameters: Mapping[str, Any], name: str) -> str | None:
    """Return the first parameter of this name, wherever it stands."""
    for full, value in parameter_rows(parameters):
        if full.split(" · ")[-1] == name:
            return value
    return None


def _contains_mappings(value: object) -> bool:
    return (
        isinstance(value, Sequence)
        and not isinstance(value, str)
        and bool(value)
        and all(isinstance(each, Mapping) for each in value)
    )


def _text(value: object) -> str:
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return repr(float(value))
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(_text(each) for each in value) or NOTHING
    return str(value)


@cache
def page_environment(package: str | None = None) -> Environment:
    """Return the environment of the report's templates, and of those of another package.

    Text is escaped, and a missing value is an error.
    """
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    packages = ["perturb_mpm.report", *([package] if package else [])]
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(each) for each in packages]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "ml": ml,
        "percent": percent,
        "number": number,
        "mm": _sides,
        "capitalise": capitalise,
    }
    environment.globals |= {
        "interval_ml": interval_ml,
        "brightening": round(255 / BRIGHTEST_GREY, 3),
        "opaque_brightening": round(OPAQUE_GREY / BRIGHTEST_GREY, 3),
        "opacity": OPACITY,
        "brightest_grey": BRIGHTEST_GREY,
    }
    return environment


def _sides(mm: Sequence[float]) -> str:
    """Return scanner coordinates by the patient's sides, such as "L 23 · A 5 · S 40"."""
    return " · ".join(in_words(axis, each) for axis, each in enumerate(mm))
