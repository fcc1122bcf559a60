from __future__ import annotations

from lab.synthetic.plan import Plan

RESULTS = {
    "reproduce-synthetic.csv",
    "reproduce-synthetic-curves.png",
    "reproduce-synthetic-map.png",
    "reproduce-synthetic.md",
}

# A run of a second or so.
TINY = Plan(
    mode="tiny",
    voxels=(6, 9),
    draws=2,
    curve_settings=((1.0, 1.0), (1.0, 0.7)),
    curve_samples=(10, 50),
    comparator_samples=(10, 50),
    map_weights=(0.25, 1.0),
    map_sigmas=(0.7, 1.4),
    map_samples=50,
    single_voxel_labels=(2, 3),
    single_voxel_samples=20_000,
)
