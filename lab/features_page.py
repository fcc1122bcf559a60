"""The page that lists all features, made from the code that computes them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

from perturb_mpm.files import STANDARD
from perturb_mpm.segmenter import FAMILIES, family_names

_HEAD = """# Features

What the trees see of a voxel, for the sequences {sequences}: {count} columns in {families}
families, after the description of Meier et al. (2014). This page is made from the code
(`python -m lab.features_page > docs/features.md`), and a test compares them.

Intensities are in robust standard deviations from the median inside the brain (interquartile
range / 1.349). Lengths are in mm, so a model can be used on another voxel size. A Gaussian or a
box counts only voxels inside the brain. Axes are turned to point right, front and up; left and
right are not told apart: *outwards* is away from the mid-sagittal plane, which is searched for
where the brain is most like its mirror image.

| family | columns | what | names | computed by |
|---|---|---|---|---|
"""

_MEIER = """
## The families of Meier et al.

Their forest (2014, used again in 2016 and in the paper) sees appearance and context; we know the
families by their names. Sizes of patches, numbers and lengths of rays, trees and depth we do not
know: ours are our own choice, and no column is theirs. Boosted trees and the forest of
`perturb-mpm train --forest` see the same columns.

| their family | kind | ours | computed by |
|---|---|---|---|
| voxel intensities | appearance | {intensities} | {at_intensities} |
| first-order texture on local patches | appearance | {texture} | {at_texture} |
| gradient texture | appearance | {gradients} | {at_gradients} |
| multi-scale symmetry | context | {symmetry} | {at_symmetry} |
| atlas-normalised coordinates | context | {location}: within the brain, no atlas | {at_location} |
| multi-channel rays | context | {rays}: means along six rays | {at_rays} |

Ours alone: {alone}.
"""

_THEIRS = {
    "intensities": ("intensities",),
    "texture": ("statistics", "entropies"),
    "gradients": ("gradients",),
    "symmetry": ("symmetry",),
    "location": ("location",),
    "rays": ("boxes",),
}


def features_page() -> str:
    """Return the page as Markdown."""
    families = family_names(STANDARD)
    count = sum(len(names) for names in families.values())
    head = _HEAD.format(sequences=", ".join(STANDARD), count=count, families=len(families))
    rows = [_row(name, FAMILIES[name], names) for name, names in families.items()]
    return head + "".join(rows) + _meier_table()


def _meier_table() -> str:
    """Return which of our families stands for which of theirs, and what computes it."""
    words = {key: ", ".join(names) for key, names in _THEIRS.items()}
    places = {
        f"at_{key}": ", ".join(_place(FAMILIES[name]) for name in names)
        for key, names in _THEIRS.items()
    }
    taken = {name for names in _THEIRS.values() for name in names}
    alone = ", ".join(name for name in FAMILIES if name not in taken)
    return _MEIER.format(**words, **places, alone=alone)


def _place(family: Callable[..., object]) -> str:
    return f"`{family.__module__.removeprefix('perturb_mpm.')}.{family.__name__}`"


def _row(name: str, family: Callable[..., object], columns: Sequence[str]) -> str:
    what = (inspect.getdoc(family) or "").split("\n\n")[0].removeprefix("Return ")
    what = what[:1].upper() + what[1:]
    shown = ", ".join(f"`{column}`" for column in _few(columns))
    return f"| {name} | {len(columns)} | {what} | {shown} | {_place(family)} |\n"


def _few(columns: Sequence[str], most: int = 4) -> list[str]:
    """Return the first, the last and some between them."""
    if len(columns) <= most:
        return list(columns)
    return [columns[i * (len(columns) - 1) // (most - 1)] for i in range(most)]


if __name__ == "__main__":
    import sys

    sys.stdout.write(features_page())
