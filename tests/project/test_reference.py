"""The reference: every public name is in it, with an example that runs."""

from __future__ import annotations

import contextlib
import doctest
import importlib
import inspect
import re
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import perturb_mpm as pm
from perturb_mpm.files import save_nifti
from perturb_mpm.phantom import glioblastoma

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = sorted((ROOT / "docs" / "reference").glob("*.md"))
BLOCK = re.compile(r"^```\{eval-rst\}\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Doors whose every function and class is public.
WHOLE = ("", ".posterior", ".evaluation", ".measures", ".biomarkers", ".phantom")
# Names at these doors that serve other packages and no user.
INTERNAL = {"Tally", "count_type", "copy_json", "check_nested", "LabelMap", "Column"}


def listed() -> list[tuple[str, str]]:
    """Return (module, name) of everything that the reference lists."""
    found = []
    for page in REFERENCE:
        for block in re.findall(
            r"^```\{eval-rst\}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL
        ):
            module = re.search(r"currentmodule:: (\S+)", block)
            assert module is not None
            found += [(module[1], name) for name in re.findall(r"^   (\w+)$", block, re.MULTILINE)]
    return found


LISTED = listed()


def public_names() -> set[tuple[str, str]]:
    """Return every function and class at the public doors."""
    found = set()
    for end in WHOLE:
        module = importlib.import_module(f"perturb_mpm{end}")
        objects = {name: getattr(module, name) for name in module.__all__}
        kept = (name for name, value in objects.items() if callable_of_ours(value))
        found |= {(f"perturb_mpm{end}", name) for name in kept if name not in INTERNAL}
    return found


def callable_of_ours(value: object) -> bool:
    return inspect.isfunction(value) or inspect.isclass(value)


def imported_in_pages() -> set[tuple[str, str]]:
    """Return every name that README.md and docs/ import from this package."""
    found = set()
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *REFERENCE]
    for page in pages:
        for module, names in re.findall(
            r"^from (perturb_mpm(?:\.[\w.]+)?) import ([\w, ]+)$", page.read_text(), re.MULTILINE
        ):
            found |= {(module, name.strip()) for name in names.split(",")}
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the examples speak of."""
    place = tmp_path_factory.mktemp("examples")
    patient = glioblastoma(seed=0, spacing_mm=8.0)
    t1c, flair = (patient.images[patient.channel_names.index(name)] for name in ("T1c", "FLAIR"))
    archive = {"probabilities": patient.probabilities.transpose(0, 3, 2, 1)}
    for sub in ("imagesTs", "predicted"):
        (place / sub).mkdir()
    for name, image in (("t1c", t1c), ("flair", flair)):
        save_nifti(place / f"{name}.nii.gz", image, patient.affine)
    np.savez(place / "case.npz", **archive)
    for case in "AB":
        for number, image in enumerate((t1c, flair)):
            save_nifti(place / "imagesTs" / f"{case}_{number:04d}.nii.gz", image, patient.affine)
        np.savez(place / "predicted" / f"{case}.npz", **archive)
    return place


def example_of(module: str, name: str) -> doctest.DocTest | None:
    value = getattr(importlib.import_module(module), name)
    text = inspect.getdoc(value) or ""
    if "\nExamples\n--------\n" not in text:
        return None
    after = text.split("\nExamples\n--------\n")[1]
    names = {"np": np, "pm": pm}
    found = doctest.DocTestParser().get_doctest(after, names, f"{module}.{name}", None, None)
    return found if found.examples else None


def test_every_public_name_is_in_the_reference_once() -> None:
    assert len(set(LISTED)) == len(LISTED)
    names = {name for _, name in LISTED}
    assert {(module, name) for module, name in public_names() if name not in names} == set()


def test_what_the_pages_import_is_in_the_reference() -> None:
    names = {name for _, name in LISTED}
    modules = {module.removeprefix("perturb_mpm.") for module, _ in LISTED}
    constants = {"RATERS", "RANO_RESECT"}  # described where they are used
    in_tables = {"PerturbMPMd", "PerturbMPM"}  # cannot be imported without MONAI or TorchIO
    found = {name for _, name in imported_in_pages()}
    assert found - names - modules - constants - in_tables == set()


@pytest.mark.parametrize(("module", "name"), LISTED, ids=lambda value: value)
def test_every_name_has_an_example_that_runs(module: str, name: str, folder: Path) -> None:
    test = example_of(module, name)
    assert test is not None, f"{module}.{name} has no example"
    told: list[str] = []
    before = {key for key in sys.modules if key.startswith("pydensecrf")}
    with contextlib.chdir(folder):
        result = doctest.DocTestRunner().run(test, out=told.append)
    for key in {key for key in sys.modules if key.startswith("pydensecrf")} - before:
        del sys.modules[key]  # what install() leaves behind
    assert result.failed == 0, "".join(told)


def test_a_name_without_an_example_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    stub = ModuleType("stub")

    def plain() -> None:
        """Do nothing."""

    def wrong() -> None:
        """Do nothing.

        Examples
        --------
        >>> 1 + 1
        3
        """

    stub.plain, stub.wrong = plain, wrong  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "stub", stub)
    assert example_of("stub", "plain") is None
    test = example_of("stub", "wrong")
    assert test is not None
    assert doctest.DocTestRunner(verbose=False).run(test, out=lambda _: None).failed == 1
