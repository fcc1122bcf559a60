"""Small plans, with which the experiments take a second or so."""

from __future__ import annotations

from lab.segmentation.plan import SegmentationPlan
from lab.synthetic.plan import SyntheticPlan

RESULTS = {
    "reproduce-synthetic.csv",
    "reproduce-synthetic-maxima.csv",
    "reproduce-synthetic-overview.png",
    "reproduce-synthetic-maxima.png",
    "reproduce-synthetic-curves.png",
    "reproduce-synthetic-map.png",
    "reproduce-synthetic.md",
}

TINY = SyntheticPlan(
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
    maxima_samples=50,
)

TINY_SEGMENTATION = SegmentationPlan(
    mode="tiny",
    iterations=2,
    phases=("weights",),
    steps=1,
    crop_mm=10.0,
    samples=3,
    phantoms=2,
    phantom_mm=8.0,
)
