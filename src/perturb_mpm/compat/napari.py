"""A run as layers of napari, which needs not be installed here: data, arguments, kind.

    viewer = napari.Viewer()
    for data, arguments, kind in read_layers("case"):
        getattr(viewer, f"add_{kind}")(data, **arguments)

napari finds ``get_reader`` by ``napari.yaml``: drop the folder of a run on its window.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from perturb_mpm.report import uncertain_locations
from perturb_mpm.run import STATE, load_run, report_data

__all__ = ["get_reader", "read_layers"]

Layer = tuple[Any, dict[str, Any], str]


def get_reader(path: str | list[str]) -> Callable[[str | list[str]], list[Layer]] | None:
    """Return what reads the folder of a run, None for anything else."""
    if isinstance(path, list) or not (Path(path) / STATE).is_dir():
        return None
    return lambda one: read_layers(one if isinstance(one, str) else one[0])


def read_layers(folder: str | Path) -> list[Layer]:
    """Return the images, entropy (bits), labels and uncertain locations of a run, in mm (RAS).

    Examples
    --------
    >>> from perturb_mpm.compat.napari import read_layers
    >>> case = pm.read_case("t1c.nii.gz", "case.npz")
    >>> settings = pm.RunSettings().changed(samples=4, seed=7)
    >>> run = pm.run_case(case, settings, "layers", title="Patient 1")
    >>> [arguments["name"] for _, arguments, _ in read_layers("layers")]
    ['t1c', 'entropy, bits', 'labels', 'uncertain locations']
    """
    run = load_run(Path(folder))
    case, affine = run.case, run.case.geometry.affine
    common = {"affine": affine}
    colours: dict[int | None, str] = {v: colour for v, _, colour in case.labels.foreground()}
    found = uncertain_locations(report_data(run))
    features = {"words": [f"{each.where}: {' or '.join(each.labels)}" for each in found]}
    points = np.array([each.centre_voxel for each in found], dtype=float).reshape(-1, 3)
    entropy = {"colormap": "inferno", "blending": "additive", "opacity": 0.7}
    colours[None] = "transparent"  # everything else, which is background
    described = {
        "colormap": colours,
        "metadata": {"names": dict(zip(case.labels.values, case.labels.names))},
    }
    return [
        *((image, {"name": name, **common}, "image") for name, image in case.images.items()),
        (run.entropy, {"name": "entropy, bits", **entropy, **common}, "image"),
        (case.labels.to_values(run.labels), {"name": "labels", **described, **common}, "labels"),
        (
            points,
            {"name": "uncertain locations", "features": features, "text": "words", **common},
            "points",
        ),
    ]
