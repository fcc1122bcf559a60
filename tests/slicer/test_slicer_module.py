"""The module of 3D Slicer: its logic through the real commands, its panel with stand-ins."""

from __future__ import annotations

import importlib
import json
import sys
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import nibabel as nib
import numpy as np
import pytest

from helpers.viewer_run import copy_run
from perturb_mpm.files import Source, read_volume

MODULE = Path(__file__).parents[2] / "slicer" / "PerturbMPM"


@pytest.fixture
def logic(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(MODULE))
    yield importlib.import_module("PerturbMPMLib.logic")
    for name in [each for each in sys.modules if each.startswith("PerturbMPM")]:
        del sys.modules[name]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return copy_run(tmp_path / "case")


def test_a_run_is_opened_and_its_correction_handed_back(
    logic: Any, folder: Path, tmp_path: Path
) -> None:
    run = logic.RunFolder(folder)
    assert run.labels == {0: "healthy", 2: "oedema", 7: "core"}
    assert "oedema" in run.answer
    segments = run.segmentation(sys.executable, tmp_path)
    own = nib.load(folder / "labels.nii.gz")
    values = np.asarray(own.dataobj)
    np.testing.assert_array_equal(read_volume(Source("labels", segments)).voxels, values)
    assert b"Segment1_Name:=core" in segments.read_bytes()[:4000]
    places = run.read_places(sys.executable)
    assert places
    inside = np.linalg.inv(own.affine) @ (*places[0].mm, 1)  # in RAS, on the grid
    assert (inside[:3] >= 0).all()
    assert (inside[:3] < values.shape).all()

    masks = {f"label_{value}": values == value for value in (2, 7)}
    x, y, z = (int(n) for n in np.argwhere(values == 2)[0])
    masks["label_7"] = masks["label_7"].copy()
    masks["label_7"][x, y, z] = True  # the last one wins
    painted = logic.combine_segments(masks, run.labels)
    corrected = tmp_path / "corrected.nii.gz"
    nib.save(nib.Nifti1Image(painted.astype(np.uint16), own.affine), corrected)
    assert run.correct(sys.executable, corrected)
    after = np.asarray(nib.load(run.find("labels")).dataobj)
    assert run.find("labels").name == "labels-corrected.nii.gz"
    assert after[x, y, z] == 7
    page = json.loads((folder / "edits.json").read_text())
    assert [each["new_label"] for each in page["edits"]] == [7]


def test_what_cannot_be_is_said(logic: Any, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not the folder of a finished run"):
        logic.RunFolder(tmp_path)
    run = logic.RunFolder(folder)
    mask = np.ones((2, 2, 2))
    with pytest.raises(ValueError, match="no label for the segment Segment_1; it has oedema, core"):
        logic.combine_segments({"Segment_1": mask}, run.labels)
    other = tmp_path / "other.nii.gz"
    nib.save(nib.Nifti1Image(np.zeros((3, 3, 3), np.uint8), np.eye(4)), other)
    with pytest.raises(logic.CommandError, match=r"--correction .* must lie on the grid"):
        run.correct(sys.executable, other)
    page = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps({**page, "seed": 99}))
    with pytest.raises(ValueError, match="contains another run by now: open it again"):
        run.correct(sys.executable, folder / "labels.nii.gz")
    with pytest.raises(ValueError, match="at least one image"):
        logic.run_arguments([], [], tmp_path)
    arguments = logic.run_arguments([Path("t1.nii.gz")], [Path("p.npz")], Path("out"), ["--seed=3"])
    assert arguments[:5] == ["run", "--image", "t1.nii.gz", "--probabilities", "p.npz"]
    with pytest.raises(logic.CommandError, match=r"p\.npz: there is no such file"):
        logic.call(sys.executable, arguments)


def test_the_panel_opens_a_run_and_writes_a_correction(
    logic: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Base:
        def __init__(self, *_: Any) -> None: ...

        def setup(self) -> None: ...

    names = [f"ScriptedLoadableModule{each}" for each in ("", "Widget", "Logic")]
    scripted = SimpleNamespace(**dict.fromkeys(names, Base))
    slicer, qt, ctk, vtk = (MagicMock() for _ in range(4))
    slicer.app.temporaryPath = str(tmp_path)
    slicer.util.tryWithErrorDisplay.side_effect = lambda *_, **__: nullcontext()
    for name, stand_in in {
        "slicer": slicer,
        "qt": qt,
        "ctk": ctk,
        "vtk": vtk,
        "slicer.ScriptedLoadableModule": scripted,
    }.items():
        monkeypatch.setitem(sys.modules, name, stand_in)
    module: ModuleType = importlib.import_module("PerturbMPM")
    monkeypatch.setattr(module.shutil, "which", lambda _: sys.executable)
    widget = module.PerturbMPMWidget()
    widget.layout = MagicMock()
    widget.setup()
    widget.folder.currentPath = str(folder)
    widget.onOpen()
    slicer.util.loadSegmentation.assert_called_once_with(str(tmp_path / "labels.seg.nrrd"))
    assert slicer.util.loadVolume.call_args.args[0] == str(folder / "entropy.nii.gz")
    assert widget.list.addItems.call_args.args[0] == [each.words for each in widget.places]
    widget.onPlace(0)
    jump = slicer.modules.markups.logic().JumpSlicesToLocation
    assert jump.call_args.args == (*widget.places[0].mm, True)

    own = nib.load(folder / "labels.nii.gz")
    values = np.asarray(own.dataobj)
    ids = vtk.vtkStringArray()
    ids.GetNumberOfValues.return_value = 2
    ids.GetValue.side_effect = ["label_2", "label_7"].__getitem__
    # Slicer's arrays have the axes K, J, I.
    slicer.util.arrayFromSegmentBinaryLabelmap.side_effect = lambda _, name, __: (
        (values == int(name.removeprefix("label_"))).T
    )
    monkeypatch.setitem(sys.modules, "perturb_mpm", None)  # not in Slicer's Python
    widget.logic.require_package()
    assert slicer.util.pip_install.call_args.args == (str(Path(__file__).parents[2]),)
    monkeypatch.setattr(module, "__file__", str(tmp_path / "a" / "b" / "PerturbMPM.py"))
    with pytest.raises(ImportError):
        widget.logic.require_package()
    path = widget.logic.write_correction()
    given = slicer.util.addVolumeFromArray.call_args.args[0]
    np.testing.assert_array_equal(given.T, values)
    assert slicer.util.saveNode.call_args.args[1] == str(path)
