"""Size of an installation, and how long it takes to start: ``python -m lab.benchmarks.install``.

Sizes are those of the files that each package has in this environment, with all that it asks for.
What an extra adds is what the base does not have; a package that is missing here is named.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
import tomllib
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
DEVELOPERS = ("test", "lint", "docs", "interop")  # extras that no user needs
STARTS = {
    "import perturb_mpm": ["-c", "import perturb_mpm"],
    "perturb-mpm --help": ["-m", "perturb_mpm", "--help"],
    "perturb-mpm run --help": ["-m", "perturb_mpm", "run", "--help"],
}
_TIMES = 5


def closure(requirements: list[str]) -> tuple[dict[str, Distribution], set[str]]:
    """Return every package that is needed, by name, and the names of those that are not here."""
    found: dict[str, Distribution] = {}
    missing: set[str] = set()
    todo = [(Requirement(line), "") for line in requirements]
    seen = set()
    while todo:
        requirement, extra = todo.pop()
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        key = name, tuple(sorted(requirement.extras))
        if key in seen:
            continue
        seen.add(key)
        try:
            found[name] = distribution(requirement.name)
        except PackageNotFoundError:
            missing.add(name)
            continue
        wanted = [Requirement(line) for line in found[name].requires or ()]
        todo += [(each, own) for each in wanted for own in ("", *requirement.extras)]
    return found, missing


def megabytes(package: Distribution) -> float:
    """Return the size of a package's files, MB; what Python compiles of them is left out."""
    paths = (Path(str(file.locate())) for file in package.files or ())
    return sum(p.stat().st_size for p in paths if p.is_file() and p.suffix != ".pyc") / 1e6


def own_megabytes() -> float:
    """Return the size of this package as its wheel holds it, MB."""
    files = (ROOT / "src" / "perturb_mpm").rglob("*")
    return sum(p.stat().st_size for p in files if p.is_file() and p.suffix != ".pyc") / 1e6


def sizes() -> list[tuple[str, int, float, str]]:
    """Return (what, packages, MB, missing here) of the base, then what each extra adds."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    base, missing = closure(project["dependencies"])
    total = own_megabytes() + sum(map(megabytes, base.values()))
    rows = [("base", len(base) + 1, total, " ".join(sorted(missing)))]
    for extra, requirements in sorted(project["optional-dependencies"].items()):
        if extra not in DEVELOPERS:
            more, absent = closure(requirements)
            added = [package for name, package in more.items() if name not in base]
            size = sum(map(megabytes, added))
            rows.append((f"+ {extra}", len(added), size, " ".join(sorted(absent))))
    return rows


def seconds_to_start(arguments: list[str]) -> float:
    """Return the shortest of some starts of Python, s."""
    taken = []
    for _ in range(_TIMES):
        begun = time.perf_counter()
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
        taken.append(time.perf_counter() - begun)
    return min(taken)


def main() -> None:
    """Print both tables as Markdown."""
    print("| installation | packages | MB | not here |\n|---|--:|--:|---|")
    for what, count, size, missing in sizes():
        print(f"| {what} | {count} | {size:.0f} | {missing} |")
    print(f"\n| start | s, best of {_TIMES} |\n|---|--:|")
    print(f"| python -c pass | {seconds_to_start(['-c', 'pass']):.2f} |")
    for what, arguments in STARTS.items():
        print(f"| {what} | {seconds_to_start(arguments):.2f} |")


if __name__ == "__main__":
    main()
