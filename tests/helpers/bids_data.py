"""Tiny BIDS datasets with the probabilities of a segmentation as a derivative; the validator."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from helpers.small_case import SHAPE, save

LABELS = ("background", "oedema", "core")


def describe(folder: Path, **more: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    content = {"Name": folder.name, "BIDSVersion": "1.10.0", **more}
    (folder / "dataset_description.json").write_text(json.dumps(content))


def write_dataset(
    root: Path,
    cases: tuple[str, ...] = ("sub-01", "sub-02"),
    pipelines: tuple[str, ...] = ("nnunet",),
    ending: str = ".nii.gz",
) -> Path:
    """Write cases such as sub-01_ses-pre_run-1: two images, and maps of every pipeline."""
    describe(root)
    for number, case in enumerate(cases):
        entities = case.split("_")
        folders = [each for each in entities if not each.startswith("run-")]
        anat = Path(*folders, "anat")
        rng = np.random.default_rng(number)
        axes = np.meshgrid(*(np.arange(n) - (n - 1) / 2 for n in SHAPE), indexing="ij")
        distance = np.sqrt(sum(axis**2 for axis in axes))
        truth = np.where(distance < 1.8, 2, np.where(distance < 3.5, 1, 0))
        inside = distance < 5.5
        (root / anat).mkdir(parents=True, exist_ok=True)
        for name in ("T1w", "FLAIR"):
            image = (100 + 40 * truth + 10 * rng.normal(size=SHAPE)) * inside
            save(root / anat / f"{case}_{name}{ending}", image.astype(np.float32))
        for pipeline in pipelines:
            derived = root / "derivatives" / pipeline
            describe(derived, DatasetType="derivative", GeneratedBy=[{"Name": pipeline}])
            (derived / anat).mkdir(parents=True, exist_ok=True)
            noise = rng.normal(size=(3, *SHAPE))
            p = np.exp(3.0 * (truth == np.arange(3).reshape(-1, 1, 1, 1)) + noise)
            maps = np.moveaxis(p / p.sum(axis=0), 0, -1).astype(np.float32)
            save(derived / anat / f"{case}_space-orig_probseg{ending}", maps)
            label_map = maps.argmax(axis=-1).astype(np.uint8)
            save(derived / anat / f"{case}_space-orig_dseg{ending}", label_map)
            sidecar = json.dumps({"LabelMap": LABELS})
            (derived / anat / f"{case}_space-orig_probseg.json").write_text(sidecar)
    return root


def require_validator() -> str:
    """Return the validator (version 2 or later); skip where there is none."""
    names = ("bids-validator-deno", "bids-validator")
    places = (None, str(Path(sys.executable).parent))
    found = [shutil.which(name, path=place) for name in names for place in places]
    program = next((path for path in found if path), None)
    if program is None:
        pytest.skip("the BIDS validator is not installed")
    return program


def errors_in(dataset: Path) -> list[str]:
    """Return what the validator calls errors."""
    done = subprocess.run(
        [require_validator(), str(dataset), "--json"], capture_output=True, timeout=300, check=False
    )
    issues = json.loads(done.stdout)["issues"]["issues"]
    return [
        f"{issue['code']} {issue['location']}" for issue in issues if issue["severity"] == "error"
    ]
