"""ARCHITECTURE.md against the source: who imports whom, through which doors, one word a thing."""

from __future__ import annotations

import ast
import functools
import importlib
import re
import subprocess
import sys
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "perturb_mpm"
LAB = ROOT / "lab"
ROW = re.compile(r"^\| `(\w+)` \| (library|application) \| .+ \|$", re.MULTILINE)
PARTS = dict(ROW.findall((ROOT / "ARCHITECTURE.md").read_text()))  # package -> part, in order
ORDER = list(PARTS)
BACKWARDS = {("model", "engines")}  # inside a function of DenseCRF
# Where a heavy package may be imported when a module is loaded; elsewhere only inside functions.
HEAVY = {
    "numba": ("engines/cpu/",),
    "llvmlite": ("engines/cpu/",),
    "torch": ("engines/gpu/",),
    "triton": ("engines/gpu/",),
    "cyclopts": ("cli/",),
    "rich": ("cli/",),  # 12 ms, and help is printed by it
    **dict.fromkeys(("scipy", "sklearn", "matplotlib", "nibabel", "jinja2", "zarr"), ()),
}
OPEN = {"", "perturb_mpm", "lab"}  # modules that lie here are doors themselves
# The two engines have the same parts under the same names.
TWINS = {"ExactFilter", "Lattice"}


@dataclass(frozen=True)
class Import:
    path: Path
    module: str
    name: str | None
    lazy: bool

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}: {self.module} ({self.name})"


def sources(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


@functools.cache
def parse(text: str) -> ast.Module:
    return ast.parse(text)


def imports_of(path: Path, text: str) -> Iterator[Import]:
    """Yield every import; those inside functions and those for types only are lazy."""
    for node in ast.walk(parse(text)):
        lazy = isinstance(node, ast.Import | ast.ImportFrom) and node.col_offset > 0
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(path, alias.name, None, lazy)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                yield Import(path, node.module, alias.name, lazy)


@functools.cache
def all_imports() -> list[Import]:
    files = [*sources(PACKAGE), *sources(LAB)]
    return [each for path in files for each in imports_of(path, path.read_text())]


def top_package(path: Path) -> str | None:
    """Return the package of a file of the source; None is the package's own ``__init__``."""
    first = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return None if first == "__init__" else first


def target_package(each: Import) -> str | None:
    parts = each.module.split(".")
    if parts[0] != "perturb_mpm":
        return None
    return parts[1] if len(parts) > 1 else each.name if each.name in PARTS else None


def wrong_direction(found: list[Import]) -> list[str]:
    """Return the imports of the package that lead downwards, or out into the laboratory."""
    wrong = []
    for each in found:
        if not each.path.is_relative_to(PACKAGE):
            continue
        here, there = top_package(each.path), target_package(each)
        if each.module.split(".")[0] == "lab":
            wrong.append(str(each))
        if here is None or there is None or here == there:
            continue
        back = (here, there) in BACKWARDS and each.lazy
        if not back and ORDER.index(there) >= ORDER.index(here):
            wrong.append(str(each))
    return wrong


def package_of(path: Path) -> str:
    """Return the dotted name of the package that a file belongs to."""
    root = PACKAGE.parent if path.is_relative_to(PACKAGE) else ROOT
    return ".".join(path.parent.relative_to(root).parts)


def is_package(module: str) -> bool:
    root = PACKAGE.parent if module.startswith("perturb_mpm") else ROOT
    return root.joinpath(*module.split("."), "__init__.py").is_file()


def past_a_door(found: list[Import]) -> list[str]:
    """Return the imports that take something of another package elsewhere than at its door."""
    wrong = []
    for each in found:
        if each.module.split(".")[0] not in {"perturb_mpm", "lab"}:
            continue
        mine, package = package_of(each.path), each.module
        if not is_package(package):
            around = package.rpartition(".")[0]  # the package that holds the module
            if around not in OPEN and not f"{mine}.".startswith(f"{around}."):
                wrong.append(str(each))
        elif each.name is not None and not f"{mine}.".startswith(f"{package}."):
            if package in OPEN:
                continue
            inner = is_package(f"{package}.{each.name}")
            if not inner and each.name not in importlib.import_module(package).__all__:
                wrong.append(str(each))
    return wrong


def options_named(path: Path) -> list[str]:
    """Return the texts of a file that name an option of the command line."""
    constants = (n for n in ast.walk(parse(path.read_text())) if isinstance(n, ast.Constant))
    texts = (n.value for n in constants if isinstance(n.value, str))
    return [text for text in texts if re.search(r"(?<![\w<!-])--[a-z]", text)]


def test_the_page_lists_every_package() -> None:
    there = {p.name for p in PACKAGE.iterdir() if (p / "__init__.py").is_file()}
    there |= {p.stem for p in PACKAGE.glob("*.py")} - {"__init__"}
    assert set(PARTS) == there
    parts = list(PARTS.values())
    assert parts == sorted(parts, key=["library", "application"].index)


def test_the_picture_shows_every_package() -> None:
    shown = set(re.findall(r"\w+", (ROOT / "docs" / "architecture.svg").read_text()))
    assert set(PARTS) - {"__main__"} <= shown


def test_imports_go_one_way() -> None:
    assert wrong_direction(all_imports()) == []


def test_imports_go_through_doors() -> None:
    assert past_a_door(all_imports()) == []


@pytest.mark.parametrize(
    ("file", "line", "check"),
    [
        ("model/grid.py", "from perturb_mpm.engines import prepare", wrong_direction),
        ("noise/gumbel.py", "def f():\n    from perturb_mpm import sampling", wrong_direction),
        ("sampling/sampler.py", "from perturb_mpm.files import Case", wrong_direction),
        ("run/model.py", "def f():\n    from lab.store import PartStore", wrong_direction),
        ("run/model.py", "from perturb_mpm.model.crf import DenseCRF", past_a_door),
        ("run/model.py", "from perturb_mpm.model import _potts_weight", past_a_door),
        ("engines/gpu/chain.py", "from perturb_mpm.engines.cpu.chain import Taps", past_a_door),
    ],
)
def test_a_wrong_import_is_found(file: str, line: str, check: object) -> None:
    found = list(imports_of(PACKAGE / file, line))
    assert len(check(found)) == 1  # type: ignore[operator]


def test_the_two_engines_do_not_know_each_other() -> None:
    for one, other in (("cpu", "gpu"), ("gpu", "cpu")):
        folder = PACKAGE / "engines" / one
        found = [i for path in sources(folder) for i in imports_of(path, path.read_text())]
        assert found
        names = {f"{each.module}.{each.name}" for each in found}
        assert [name for name in names if f"engines.{other}" in name] == []


def test_heavy_packages_load_when_they_are_needed() -> None:
    wrong = []
    for each in all_imports():
        top = each.module.split(".")[0]
        if each.lazy or not each.path.is_relative_to(PACKAGE) or top not in HEAVY:
            continue
        inside = each.path.relative_to(PACKAGE).as_posix()
        if not any(inside.startswith(folder) for folder in HEAVY[top]):
            wrong.append(str(each))
    assert wrong == []


def test_every_door_names_what_it_has() -> None:
    for path in (*PACKAGE.rglob("__init__.py"), *LAB.rglob("__init__.py")):
        module = importlib.import_module(package_of(path))
        assert module.__doc__, path
        names = getattr(module, "__all__", None)
        assert names is not None or path.parent == LAB, path
        for name in names or ():
            assert hasattr(module, name), f"{path}: {name}"
        assert len(set(names or ())) == len(names or ()), path


def test_no_class_name_means_two_things() -> None:
    places = defaultdict(list)
    for path in (*sources(PACKAGE), *sources(LAB)):
        for node in parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(path.relative_to(ROOT).as_posix())
    twice = {name: found for name, found in places.items() if len(found) > 1}
    assert {name: found for name, found in twice.items() if name not in TWINS} == {}


def test_only_the_command_line_speaks_of_options() -> None:
    texts = {
        path.relative_to(PACKAGE).as_posix(): options_named(path)
        for path in sources(PACKAGE)
        if top_package(path) != "cli"
    }
    assert {path: found for path, found in texts.items() if found} == {}


def test_the_wheel_holds_the_package_and_nothing_of_the_laboratory(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="hatchling is not installed")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "perturb_mpm/report/assets/viewer.js" in names
    assert {name.split("/")[0].split("-")[0] for name in names} == {"perturb_mpm"}
