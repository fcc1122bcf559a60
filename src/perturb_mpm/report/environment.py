"""The one Jinja2 environment of all pages: text is escaped, and a missing value is an error."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from perturb_mpm.report import words
from perturb_mpm.report.colours import BRIGHTEST_GREY
from perturb_mpm.report.planes import in_words

if TYPE_CHECKING:
    from jinja2 import Environment

    from perturb_mpm.report.places import UncertainPlace


@cache
def page_environment(package: str | None = None) -> Environment:
    """Return the environment of the report's templates, and of those of another package."""
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
        "ml": words.ml,
        "percent": words.percent,
        "number": words.number,
        "centre": _centre,
        "capitalise": words.capitalised,
    }
    environment.globals |= {
        "interval_ml": words.interval_ml,
        "brightening": round(255 / BRIGHTEST_GREY, 3),
    }
    return environment


def _centre(place: UncertainPlace) -> str:
    """Return where a place is by the patient's sides, in mm."""
    return " · ".join(in_words(axis, mm) for axis, mm in enumerate(place.centre_mm))
