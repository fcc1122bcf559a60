"""Every installation in a fresh environment: its size, and whether its example runs.

    python -m lab.benchmarks.install                     # base, and each extra
    python -m lab.benchmarks.install --python 3.13 --only base zarr
    python -m lab.benchmarks.install --resolve           # other systems and Pythons

The wheel of this checkout is built once. An environment holds it, one extra and what these ask for;
sizes are those of its files without what Python compiles of them. uv makes the environments, and
says for which systems there are wheels of all packages; nothing runs there.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from textwrap import indent

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DEVELOPERS = ("test", "lint", "docs", "interop")  # extras that no user needs
EXTRAS = tuple(sorted(set(PROJECT["optional-dependencies"]) - set(DEVELOPERS)))
BEFORE = "base and scikit-learn, which once was in it"
STARTS = {
    "`python -c pass`": ["-c", "pass"],
    "`import perturb_mpm`": ["-c", "import perturb_mpm"],
    "`perturb-mpm --help`": ["-m", "perturb_mpm", "--help"],
    "`perturb-mpm run --help`": ["-m", "perturb_mpm", "run", "--help"],
}
_TIMES = 5
SYSTEMS = {  # as uv names them
    "Linux": "x86_64-manylinux_2_28",
    "macOS": "aarch64-apple-darwin",
    "Windows": "x86_64-pc-windows-msvc",
}
VERSIONS = ("3.11", "3.12", "3.13", "3.14")

# What every example begins with: a tiny problem, solved by the engine that needs nothing compiled.
_TINY = """
import numpy as np, perturb_mpm as pm
rng = np.random.default_rng(0)
p = rng.dirichlet(np.ones(3), size=(5, 6, 4)).transpose(3, 0, 1, 2).astype(np.float32)
image = rng.normal(size=(1, *p.shape[1:])).astype(np.float32)
crf = pm.DenseCRF(pm.unary_from_probabilities(p), [pm.SpatialKernel(sigma=2.0, weight=1.0)])
settings = pm.RunSettings().changed(engine="reference")
"""
_CALL = "\nif __name__ == '__main__':\n    main()\n"
EXAMPLES = {
    "base": """
posterior = pm.sample(crf, 8, engine="cpu")
assert posterior.counts.sum() == 8 * image.size
""",
    "cluster": """
from perturb_mpm.cohort import local_workers, map_on_workers
with local_workers(2) as client:
    assert list(map_on_workers(client, abs, [-1, -2])) == [1, 2]
""",
    "dicom": """
import highdicom, pydicom
from pathlib import Path
from pydicom.data import get_testdata_file
from perturb_mpm.files import Source, geometry_from_affine, read_dose
dose = pydicom.dcmread(get_testdata_file("rtdose.dcm"))
dose.DoseUnits = "GY"
dose.save_as("dose.dcm")
x, y, z = map(float, dose.ImagePositionPatient)
grid = geometry_from_affine((4, 4, 2), [[-5, 0, 0, -x], [0, -5, 0, -y], [0, 0, 5, z], [0, 0, 0, 1]])
assert read_dose(Source("dose", Path("dose.dcm")), grid).max() > 0
""",
    "gpu": """
import torch, triton
try:
    pm.sample(crf, 4, engine="gpu")
except RuntimeError as error:
    assert "needs an NVIDIA GPU" in str(error) and not torch.cuda.is_available()
""",
    "graphcut": """
import maxflow
graph = maxflow.Graph[float]()
graph.add_grid_edges(graph.add_grid_nodes((3, 3)), 1)
assert graph.maxflow() == 0
""",
    "itk": """
from perturb_mpm.segmenter import resample
same = resample(image[0], np.eye(4), image[0].shape, np.eye(4))
np.testing.assert_allclose(same, image[0], rtol=1e-5)
""",
    "monai": """
from perturb_mpm.compat.monai import PerturbMPM
found = PerturbMPM(samples=4, settings=settings)(p, image)
assert found["labels"].shape == image.shape
""",
    "tiff": """
import tifffile
from pathlib import Path
from perturb_mpm.files import Source, read_volume
tifffile.imwrite("map.tif", p[0].transpose())
Path("map.json").write_text('{"spacing": [1, 1, 1]}')
np.testing.assert_array_equal(read_volume(Source("image", Path("map.tif"))).voxels, p[0])
""",
    "torchio": """
import torchio
from perturb_mpm.compat.torchio import PerturbMPM
subject = torchio.Subject(p=torchio.ScalarImage(tensor=p), image=torchio.ScalarImage(tensor=image))
found = PerturbMPM("p", "image", samples=4, settings=settings)(subject)
assert found["p_labels"].data.shape == image.shape
""",
    "train": """
from perturb_mpm.segmenter import Boosting
features = rng.normal(size=(500, 4)).astype(np.float32)
labels = (features[:, 0] > 0).astype(int)
assert Boosting(rounds=5).grow(features, labels, seed=0) is not None
""",
    "zarr": """
pm.sample(crf, 4, engine="reference", store="samples.zarr")
import zarr
assert zarr.open("samples.zarr").shape[0] == 4
""",
}


def run(*command: str | Path, **options: object) -> str:
    """Run a command to its end, quietly; return what it prints, or raise its last words."""
    words = [str(each) for each in command]
    done = subprocess.run(words, capture_output=True, text=True, check=False, **options)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or ["it said nothing"]
        raise RuntimeError(f"{words[0]}: {said[-1]}")
    return done.stdout


def build_wheel(folder: Path) -> Path:
    """Return the wheel of this checkout."""
    run("uv", "build", "--wheel", "--out-dir", folder, ROOT)
    (wheel,) = folder.glob("*.whl")
    return wheel


def make_environment(folder: Path, python: str, *requirements: str) -> Path:
    """Make an environment with these packages and no others; return its Python."""
    run("uv", "venv", "--python", python, folder)
    own = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    run("uv", "pip", "install", "--python", own, *requirements)
    return own


def measure(python: Path) -> tuple[set[str], float]:
    """Return the packages of an environment, and the size of their files, MB."""
    (libraries,) = run(
        python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"
    ).splitlines()
    packages = {each.name.split("-")[0] for each in Path(libraries).glob("*.dist-info")}
    files = (each for each in Path(libraries).rglob("*") if each.suffix != ".pyc")
    return packages, sum(each.stat().st_size for each in files if each.is_file()) / 1e6


def try_example(python: Path, name: str, folder: Path) -> str:
    """Run an example in an empty folder, with nothing of this checkout in reach."""
    folder.mkdir()
    program = folder / "example.py"
    program.write_text(f"def main():{indent(_TINY + EXAMPLES[name], '    ')}{_CALL}")
    try:
        run(python, "-W", "ignore", program, cwd=folder, env=outside())
    except RuntimeError as error:
        return str(error)
    return "runs"


def outside() -> dict[str, str]:
    """Return the environment's variables without the one that leads to this checkout."""
    return {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}


def seconds_to_start(python: Path, arguments: list[str]) -> float:
    """Return what the cheapest of some starts of Python takes of a core, s."""
    taken = []
    for _ in range(_TIMES):
        before = os.times()
        run(python, *arguments, env=outside())
        after = os.times()
        taken.append(sum(after[2:4]) - sum(before[2:4]))  # user and system, of child processes
    return min(taken)


def installations(names: list[str], python: str, folder: Path) -> Iterator[str]:
    """Yield the tables of installations and of starts as Markdown, line by line."""
    wheel = build_wheel(folder)
    first = make_environment(folder / "base", python, str(wheel))
    base, size = measure(first)
    yield run(first, "--version")
    yield "| installation | packages | MB | its example |\n|---|--:|--:|---|"
    yield f"| base | {len(base)} | {size:.0f} | {try_example(first, 'base', folder / 'example')} |"
    for number, name in enumerate(names):
        before, place = name == BEFORE, folder / str(number)
        wanted = (str(wheel), "scikit-learn") if before else (f"{wheel}[{name}]",)
        try:
            own = make_environment(place, python, *wanted)
        except RuntimeError as error:
            yield f"| `{name}` | | | {error} |"
            continue
        packages, megabytes = measure(own)
        if before:
            yield f"| {name} | {len(packages)} | {megabytes:.0f} | |"
        else:
            found = try_example(own, name, folder / name)
            yield f"| `{name}` adds | {len(packages - base)} | {megabytes - size:.0f} | {found} |"
        shutil.rmtree(place)
    yield f"\n| start | s of a core, best of {_TIMES} |\n|---|--:|"
    for what, arguments in STARTS.items():
        yield f"| {what} | {seconds_to_start(first, arguments):.2f} |"


def resolutions(names: list[str], folder: Path) -> Iterator[str]:
    """Yield for which systems and Pythons there are wheels of everything, as Markdown."""
    yield f"| system | installation | {' | '.join(VERSIONS)} |\n|---|---|{'---|' * len(VERSIONS)}"
    extras = PROJECT["optional-dependencies"]
    listed = folder / "requirements.in"
    compile_ = "uv", "pip", "compile", "--python", sys.executable, "--only-binary", ":all:"
    for system, name in itertools.product(SYSTEMS, names):
        wanted = [*PROJECT["dependencies"], *extras.get(name, ())]
        listed.write_text("\n".join(wanted), encoding="utf-8")
        found = []
        for version in VERSIONS:
            target = "--python-version", version, "--python-platform", SYSTEMS[system]
            try:
                run(*compile_, *target, listed)
                found.append("yes")
            except RuntimeError:
                found.append("no")
        yield f"| {system} | `{name}` | {' | '.join(found)} |"


def main() -> None:
    """Print the tables, each line as soon as it is known."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--python", default=sys.executable, help="which Python to install into")
    parser.add_argument("--only", nargs="+", choices=["base", *EXTRAS], help="instead of all")
    parser.add_argument("--resolve", action="store_true", help="for which systems there are wheels")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        if given.resolve:
            lines = resolutions(given.only or ["base", *EXTRAS], Path(made))
        else:
            names = [name for name in given.only or (BEFORE, *EXTRAS) if name != "base"]
            lines = installations(names, given.python, Path(made))
        for line in lines:
            print(line, flush=True)


if __name__ == "__main__":
    main()
