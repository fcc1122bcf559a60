"""The table of rooms in ARCHITECTURE.md against every import in the source."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "perturb_mpm"
PAGE = ROOT / "ARCHITECTURE.md"


@dataclass(frozen=True)
class Room:
    name: str
    files: tuple[str, ...]
    at_once: frozenset[str]
    lazily: frozenset[str]

    def holds(self, path: Path) -> bool:
        inside = path.relative_to(SOURCE).as_posix()
        return any(inside.startswith(f) if f.endswith("/") else inside == f for f in self.files)


@dataclass(frozen=True)
class Import:
    path: Path
    name: str  # of a room, or of a package
    lazy: bool


def names(cell: str) -> frozenset[str]:
    return frozenset(re.findall(r"[a-z0-9_]+", cell)) - {"nothing"}


def read_rooms() -> list[Room]:
    rows = re.findall(
        r"^\| (\w+) \| (`.*?) \| .*? \| (.*?) \| (.*?)\|$", PAGE.read_text(), re.MULTILINE
    )
    rooms = []
    for name, files, ours, packages in rows:
        now, _, later = ours.partition("lazily")
        now_packages, _, later_packages = packages.partition("lazily")
        found = tuple(re.findall(r"`(.*?)`", files))
        at_once = names(now) | names(now_packages)
        rooms.append(Room(name, found, at_once, names(later) | names(later_packages)))
    return rooms


ROOMS = read_rooms()
FILES = sorted(SOURCE.rglob("*.py"))


def rooms_of(path: Path) -> list[str]:
    return [room.name for room in ROOMS if room.holds(path)]


def file_of(module: str) -> Path | None:
    parts = module.split(".")[1:]
    candidates = (
        SOURCE.joinpath(*parts, "__init__.py"),
        SOURCE.joinpath(*parts).with_suffix(".py"),
    )
    return next((path for path in candidates if path.is_file()), None)


def modules(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom) or node.module is None:
        return []
    if node.module.split(".")[0] != "perturb_mpm":
        return [node.module]
    longer = [f"{node.module}.{alias.name}" for alias in node.names]
    return [name if file_of(name) else node.module for name in longer]


def imports_of(path: Path, source: str) -> Iterator[Import]:
    """Yield every import of another room or a package; what only types need counts as lazy."""
    for node in ast.walk(ast.parse(source)):
        for module in modules(node):
            first = module.split(".")[0]
            lazy = node.col_offset > 0
            if first == "perturb_mpm":
                target = file_of(module)
                assert target is not None, f"{path} imports {module}, which is not there"
                if rooms_of(target) != rooms_of(path):
                    yield Import(path, rooms_of(target)[0], lazy)
            elif first not in sys.stdlib_module_names:
                yield Import(path, first, lazy)


def forbidden(found: Iterator[Import]) -> list[str]:
    allowed = {room.name: room for room in ROOMS}
    wrong = []
    for each in found:
        room = allowed[rooms_of(each.path)[0]]
        if each.name not in (room.at_once | room.lazily if each.lazy else room.at_once):
            how = "lazily" if each.lazy else "at once"
            wrong.append(f"{each.path.relative_to(SOURCE)} imports {each.name} {how}")
    return wrong


def all_imports() -> Iterator[Import]:
    for path in FILES:
        yield from imports_of(path, path.read_text())


def test_every_file_is_in_one_room() -> None:
    assert [(str(path), rooms_of(path)) for path in FILES if len(rooms_of(path)) != 1] == []
    for room in ROOMS:
        assert [name for name in room.files if not (SOURCE / name).exists()] == []


def test_rooms_import_what_the_page_says() -> None:
    assert forbidden(all_imports()) == []


def test_the_page_lists_nothing_that_no_file_imports() -> None:
    used = {(rooms_of(each.path)[0], each.name) for each in all_imports()}
    listed = {(room.name, name) for room in ROOMS for name in room.at_once | room.lazily}
    assert sorted(listed - used) == []


def test_rooms_import_only_rooms_above_them() -> None:
    above: set[str] = set()
    everywhere = {room.name for room in ROOMS}
    for room in ROOMS:
        assert room.at_once & everywhere <= above, room.name
        above.add(room.name)
    backwards = [
        (room.name, name)
        for place, room in enumerate(ROOMS)
        for name in room.lazily & everywhere
        if name not in {other.name for other in ROOMS[:place]}
    ]
    assert backwards == [("model", "engines")]


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("grid.py", "from perturb_mpm.engines import prepare"),
        ("noise.py", "from perturb_mpm import crf"),
        ("engines/protocol.py", "def f():\n    from perturb_mpm.sampling import sample"),
        ("unary.py", "import numba"),
        ("bounds.py", "from scipy.special import entr"),
    ],
)
def test_a_forbidden_import_is_found(file: str, line: str) -> None:
    assert len(forbidden(imports_of(SOURCE / file, line))) == 1


def test_numba_stays_in_the_cpu_engine() -> None:
    users = {each.path for each in all_imports() if each.name in {"numba", "llvmlite"}}
    assert users
    assert all(path.is_relative_to(SOURCE / "engines" / "cpu") for path in users)
