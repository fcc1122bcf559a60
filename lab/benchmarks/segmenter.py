"""Time and memory of the segmenter on a whole patient: features, then forests, each on its own.

Every part runs in a process of its own, so that its peak memory is its own.

    python -m lab.benchmarks.segmenter --model model.npz
    python -m lab.benchmarks.segmenter --model model.npz --case BraTS2021_00006
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from lab.benchmarks import machine
from lab.benchmarks.worker import ROOT
from perturb_mpm.segmenter import Prepared, SegmenterModel, feature_table, prepare

SHAPE = (240, 240, 155)
RESULTS = machine.RESULTS / "segmenter.json"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Time and peak memory of features and forests on one whole patient.",
        epilog="example: python -m lab.benchmarks.segmenter --model model.npz",
    )
    parser.add_argument("--model", type=Path, required=True, help="a file of perturb-mpm train")
    parser.add_argument(
        "--case",
        type=Path,
        help="a folder of one BraTS patient; a made-up head of 240×240×155 where there is none",
    )
    parser.add_argument("--json", type=Path, default=RESULTS, help="where the figures go")
    parser.add_argument("--part", choices=["features", "forests"], help=argparse.SUPPRESS)
    parser.add_argument("--table", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def made_up_head(sequences: tuple[str, ...]) -> Prepared:
    """Return smooth noise in an ellipsoid of 1.5 million voxels of 1 mm, a brain's number."""
    from scipy.ndimage import gaussian_filter

    rng = np.random.default_rng(0)
    place = np.indices(SHAPE, dtype=np.float32) - (np.array(SHAPE).reshape(3, 1, 1, 1) - 1) / 2
    radii = np.array([66.0, 84.0, 64.0]).reshape(3, 1, 1, 1)
    brain = ((place / radii) ** 2).sum(axis=0) < 1
    images = {}
    for name in sequences:
        noise = gaussian_filter(rng.normal(size=SHAPE).astype(np.float32), 4) * 30
        noise += rng.normal(scale=0.3, size=SHAPE).astype(np.float32)
        images[name] = np.where(brain, 100 + 10 * noise, 0)
    return prepare(images, np.eye(4), brain)


def read_case(folder: Path, sequences: tuple[str, ...]) -> Prepared:
    from perturb_mpm.files import find_labelled_cases, read_images

    cases = find_labelled_cases(folder.parent, "brats")
    paths = next(each for each in cases if each.name == folder.name).select_images(sequences)
    found = read_images(list(paths.values()), image_names=list(paths))
    return prepare(found.images, found.geometry.affine, found.mask)


def measure_part(options: argparse.Namespace) -> dict[str, object]:
    """Measure one part in this process; features are handed on in a file."""
    model = SegmenterModel.load(options.model)
    case = options.case
    prepared = read_case(case, model.sequences) if case else made_up_head(model.sequences)
    scene = prepared.scene
    inputs_gb = peak_gb()
    began, cpu = time.perf_counter(), time.process_time()
    if options.part == "features":
        table = feature_table(scene)
    else:
        table = np.load(options.table)
        began, cpu = time.perf_counter(), time.process_time()
        model.calibration.apply(model.ensemble.predict(table))
    wall_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    if options.part == "features":
        np.save(options.table, table)
    return {
        "shape": list(prepared.shape),
        "voxels": int(scene.mask.sum()),
        "features": table.shape[1],
        "trees": sum(forest.count for forest in model.ensemble.forests),
        "wall_s": round(wall_s, 2),
        "cpu_s": round(cpu_s, 2),
        "peak_gb": round(peak_gb(), 3),
        "peak_before_gb": round(inputs_gb, 3),
    }


def peak_gb() -> float:
    """Return the largest resident size of this process so far, in 10⁹ bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def main() -> None:
    options = arguments()
    if options.part:
        print(json.dumps(measure_part(options)))
        return
    content: dict[str, object] = {"machine": machine.describe()}
    with tempfile.TemporaryDirectory() as folder:
        for part in ("features", "forests"):
            command = [sys.executable, "-m", "lab.benchmarks.segmenter", "--part", part]
            command += ["--model", str(options.model), "--table", f"{folder}/table.npy"]
            command += ["--case", str(options.case)] if options.case else []
            done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True)
            content[part] = json.loads(done.stdout)
            print(part, content[part])
    machine.write_results(options.json, content)
    print(f"wrote {options.json}")


if __name__ == "__main__":
    main()
