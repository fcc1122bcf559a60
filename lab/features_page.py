"""The page that lists all features, made from the code that computes them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

from perturb_mpm.files import STANDARD
from perturb_mpm.segmenter import FAMILIES, family_names

_HEAD = """# Features

What the forests see of a voxel, for the sequences {sequences}: {count} columns in {families}
families, after the description of Meier et al. (2014). This page is made from the code
(`python -m lab.features_page > docs/features.md`), and a test compares them.

Intensities are in robust standard deviations from the median inside the brain (interquartile
range / 1.349). Lengths are in mm, so a model can be used on another voxel size. A Gaussian or a
box counts only voxels inside the brain. Axes are turned to point right, front and up; left and
right are not told apart: *outwards* is away from the mid-sagittal plane, which is searched for
where the brain is most like its mirror image.

| family | columns | what | names |
|---|---|---|---|
"""


def features_page(sequences: Sequence[str] = STANDARD) -> str:
    """Return the page as Markdown."""
    families = family_names(tuple(sequences))
    count = sum(len(names) for names in families.values())
    head = _HEAD.format(sequences=", ".join(sequences), count=count, families=len(families))
    rows = [_row(name, FAMILIES[name], names) for name, names in families.items()]
    return head + "".join(rows)


def _row(name: str, family: Callable[..., object], columns: Sequence[str]) -> str:
    what = (inspect.getdoc(family) or "").split("\n\n")[0].removeprefix("Return ")
    what = what[:1].upper() + what[1:]
    shown = ", ".join(f"`{column}`" for column in _few(columns))
    return f"| {name} | {len(columns)} | {what} | {shown} |\n"


def _few(columns: Sequence[str], most: int = 4) -> list[str]:
    """Return the first, the last and some between them."""
    if len(columns) <= most:
        return list(columns)
    return [columns[i * (len(columns) - 1) // (most - 1)] for i in range(most)]


if __name__ == "__main__":
    import sys

    sys.stdout.write(features_page())
