"""Named sets of labels: "tumour core" is necrosis, non-enhancing and enhancing tumour together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perturb_mpm import checks

Regions = Mapping[str, tuple[int, ...]]


def default_regions(label_names: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Return one region a label but the background, and all of them together where several."""
    regions: dict[str, tuple[int, ...]] = {
        name: (label,) for label, name in enumerate(label_names) if label > 0
    }
    if len(regions) > 1:
        regions.setdefault("foreground", tuple(range(1, len(label_names))))
    return regions


def checked_regions(regions: Regions, n_labels: int) -> dict[str, tuple[int, ...]]:
    """Return the regions after checking that each is a set of foreground labels."""
    if not regions:
        raise ValueError("regions must name at least one set of labels, got none")
    for name, labels in regions.items():
        if not labels or len(set(labels)) < len(labels):
            raise ValueError(f"regions[{name!r}] must be different labels, got {labels}")
        for label in labels:
            checks.integer(label, f"regions[{name!r}]", minimum=1, maximum=n_labels - 1)
    return {name: tuple(labels) for name, labels in regions.items()}
