"""How readable the source is, in numbers: names, argument lists, crumbs, one word for one thing.

``python tests/project/test_house.py`` prints the counts of this checkout.
"""

from __future__ import annotations

import ast
import functools
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"

MOST_ARGUMENTS = 7
# A function is a verb with its object, or a noun for what it returns: neither a bare participle
# (`checked`) nor `x_of`.
PARTICIPLE = re.compile(r"_?[a-z]+(ed|ten|wn|lt|ept|eld)")
# Words that had several meanings here, or that nobody outside uses; see CONTRIBUTING.md.
DIALECT = re.compile(
    r"(^|_)(held(?!_out)|settled?|doubtful|place[sd]?|rooms?|told)(_|$)", re.IGNORECASE
)
PROSE = re.compile(
    r"\b(go(es|ing)? together between|doubtful voxels?|held voxels?|settled)\b", re.IGNORECASE
)


@dataclass(frozen=True)
class Counts:
    """What a reader of the source meets."""

    lines: int
    files: int
    functions: int
    long_signatures: tuple[str, ...]  # functions with more than seven arguments
    dialect: tuple[str, ...]  # functions named by a bare participle or `x_of`
    one_importer: tuple[str, ...]  # modules that one other module imports

    @property
    def dialect_share(self) -> float:
        return len(self.dialect) / self.functions


@functools.cache
def parse(text: str) -> ast.Module:
    return ast.parse(text)


def is_dialect(name: str) -> bool:
    plain = name.strip("_")
    return plain.endswith("_of") or "_of_" in name or PARTICIPLE.fullmatch(name) is not None


def argument_count(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    arguments = function.args
    return len([*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs])


def imported_modules(tree: ast.AST) -> Iterator[str]:
    """Yield what is imported, ``from a import b`` as a and as a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def count(root: Path) -> Counts:
    """Count everything below ``root``, a folder of packages."""
    lines = functions = 0
    long_signatures, dialect = [], []
    importers: defaultdict[str, set[str]] = defaultdict(set)
    modules = {}
    for path in sorted(root.rglob("*.py")):
        text, where = path.read_text(), path.relative_to(root).as_posix()
        module = where.removesuffix(".py").replace("/", ".")
        modules[module] = where
        lines += len(text.splitlines())
        tree = parse(text)
        for name in imported_modules(tree):
            importers[name].add(module)
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            functions += 1
            if argument_count(node) > MOST_ARGUMENTS:
                long_signatures.append(f"{where}: {node.name}")
            if is_dialect(node.name):
                dialect.append(f"{where}: {node.name}")
    alone = [
        where
        for module, where in modules.items()
        if not where.endswith("__init__.py") and len(importers[module]) == 1
    ]
    return Counts(
        lines, len(modules), functions, tuple(long_signatures), tuple(dialect), tuple(alone)
    )


def names_defined(tree: ast.AST) -> Iterator[str]:
    """Yield the names that a file gives to functions, classes, arguments and variables."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


@pytest.fixture(scope="module")
def counts() -> Counts:
    return count(SOURCE)


def test_functions_are_verbs_or_nouns(counts: Counts) -> None:
    assert counts.dialect_share <= 0.02, counts.dialect


def test_few_functions_take_many_arguments(counts: Counts) -> None:
    assert len(counts.long_signatures) <= 45, counts.long_signatures


def test_few_files_have_a_single_importer(counts: Counts) -> None:
    # Most of these are the only module of their idea, which their package's door imports.
    assert len(counts.one_importer) <= 35, counts.one_importer


def test_names_are_the_fields_words() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted(SOURCE.rglob("*.py"))
        for name in sorted(set(names_defined(parse(path.read_text()))))
        if DIALECT.search(name)
    ]
    assert wrong == []


def test_sentences_are_in_the_fields_words() -> None:
    paths = [*SOURCE.rglob("*.py"), *(ROOT / "lab").rglob("*.py"), *(ROOT / "docs").glob("*.md")]
    wrong = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sorted(paths)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if PROSE.search(line)
    ]
    assert wrong == []


@pytest.mark.parametrize("name", ["_checked", "kept", "path_of", "_rows_of_case", "built"])
def test_dialect_is_recognised(name: str) -> None:
    assert is_dialect(name)


@pytest.mark.parametrize(
    "name", ["check", "read_header", "expected_volume", "mean_field", "offset"]
)
def test_good_names_pass(name: str) -> None:
    assert not is_dialect(name)


def test_a_small_tree_is_counted(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def kept(a, b, c, d, e, f, g, *, h):\n    return a\n")
    (tmp_path / "b.py").write_text("from a import kept\n\n\ndef draw_batch():\n    pass\n")
    found = count(tmp_path)
    assert (found.lines, found.files, found.functions) == (7, 2, 2)
    assert found.long_signatures == ("a.py: kept",) == found.dialect
    assert found.one_importer == ("a.py",)
    assert found.dialect_share == 0.5


if __name__ == "__main__":
    now = count(SOURCE)
    for heading, value in (
        ("lines in src", now.lines),
        ("files in src", now.files),
        ("functions with more than 7 arguments", len(now.long_signatures)),
        ("files with one importer", len(now.one_importer)),
        ("functions named by a bare participle or x_of, %", f"{100 * now.dialect_share:.1f}"),
    ):
        print(f"{heading:50} {value:>8}")  # noqa: T201 - a table for the person who asks
