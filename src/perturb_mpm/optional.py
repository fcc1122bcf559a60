"""Optional packages: imported where they are first used, with an error that names the extra."""

from __future__ import annotations

import importlib
from types import ModuleType

EXTRAS = {
    "zarr": "zarr",
    "dask": "cluster",
    "distributed": "cluster",
    "maxflow": "graphcut",
    "highdicom": "dicom",
    "pydicom": "dicom",
    "sklearn": "train",
    "SimpleITK": "itk",
    "monai": "monai",
    "torchio": "torchio",
    "tifffile": "tiff",
    "torch": "gpu",
    "triton": "gpu",
}
"""Packages by the extra that brings them. MONAI Label asks for a NumPy older than ours: no extra
can bring it."""


def optional_package(name: str, purpose: str) -> ModuleType:
    """Import a package of one of our extras, or say what to install."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        wanted = f"'perturb-mpm[{EXTRAS[name]}]'" if name in EXTRAS else name
        raise ImportError(f"{purpose} needs the package {name}: pip install {wanted}") from error
