"""DICOM out: voxel by voxel on the slices of the series, whatever order the NIfTI is in."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest

from helpers.dicom_series import (
    COLUMNS,
    ORIGIN,
    ROWS,
    SCHEME,
    SLICES,
    STEP,
    TURN,
    scanner_affine,
    write_series,
)
from perturb_mpm.files import (
    Geometry,
    InputError,
    LabelScheme,
    Source,
    geometry_from_affine,
    label_colours,
    read_dose,
)
from perturb_mpm.files.dicom import check_dicom_series, cielab, find_codes, read_series, write_dicom
from perturb_mpm.files.labels import rgb

hd = pytest.importorskip("highdicom", reason="the extra dicom is not installed")
pydicom = pytest.importorskip("pydicom", reason="the extra dicom is not installed")


ORDERS = {
    "as DICOM": [[0, 1], [1, 1], [2, 1]],
    "rows turned round": [[0, 1], [1, -1], [2, 1]],
    "everything turned": [[2, -1], [0, 1], [1, -1]],
}


def in_order(order: str) -> tuple[np.ndarray, np.ndarray, Geometry]:
    """Return labels and entropy (X, Y, Z) in some voxel order, and where they are."""
    rng = np.random.default_rng(3)
    labels = rng.integers(0, 3, (COLUMNS, ROWS, SLICES)).astype(np.uint8)
    labels[:, :, 1] = 0  # a slice without segments
    entropy = rng.uniform(0, np.log2(3), labels.shape).astype(np.float32)
    turn = np.array(ORDERS[order])
    affine = scanner_affine() @ nib.orientations.inv_ornt_aff(turn, labels.shape)
    labels, entropy = (nib.orientations.apply_orientation(v, turn) for v in (labels, entropy))
    return labels, entropy, geometry_from_affine(labels.shape, affine)


def at_places(volume: np.ndarray, affine: np.ndarray) -> dict[tuple[float, ...], float]:
    """Return place in mm -> value, the same for every voxel order."""
    index = np.indices(volume.shape).reshape(3, -1)
    places = np.round(nib.affines.apply_affine(affine, index.T), 2)
    return dict(zip(map(tuple, places.tolist()), volume.ravel().tolist()))


def affine_of(volume: Any) -> np.ndarray:
    """Return highdicom's affine, which counts to the left and back, in NIfTI's directions."""
    return np.diag([-1.0, -1.0, 1.0, 1.0]) @ volume.affine


@pytest.mark.parametrize("order", ORDERS)
def test_labels_and_entropy_come_back_voxel_by_voxel(tmp_path: Path, order: str) -> None:
    labels, entropy, geometry = in_order(order)
    files = write_dicom(
        tmp_path, write_series(tmp_path / "series"), labels, entropy, geometry, SCHEME
    )
    assert sorted(os.listdir(tmp_path)) == ["entropy.pmap.dcm", "labels.seg.dcm", "series"]

    segmentation = hd.seg.segread(files["dicom_labels"])
    found = segmentation.get_volume(combine_segments=True)
    assert at_places(found.array, affine_of(found)) == at_places(labels, geometry.affine)

    parametric = hd.pm.ParametricMap.from_dataset(pydicom.dcmread(files["dicom_entropy"]))
    found = parametric.get_volume(dtype=np.float32)
    assert at_places(found.array, affine_of(found)) == at_places(entropy, geometry.affine)


def dcmqi(program: str) -> str:
    """Return the path of one of dcmqi's converters."""
    found = shutil.which(program) or shutil.which(program, path=str(Path(sys.executable).parent))
    if found is None:
        pytest.skip(f"dcmqi's {program} is not installed")
    return found


def wrong_distance(one: Any, _: int) -> None:
    one.SpacingBetweenSlices = 7.5


@pytest.mark.parametrize("spoil", [lambda *_: None, wrong_distance], ids=["as it is", "wrong tag"])
@pytest.mark.parametrize("order", ORDERS)
def test_dcmqi_reads_the_same_voxels(
    tmp_path: Path, order: str, spoil: Callable[[Any, int], None]
) -> None:
    to_labels, to_map = dcmqi("segimage2itkimage"), dcmqi("paramap2itkimage")
    labels, entropy, geometry = in_order(order)
    series = write_series(tmp_path / "series", spoil)
    files = write_dicom(tmp_path, series, labels, entropy, geometry, SCHEME)
    out = tmp_path / "out"
    out.mkdir()
    for program, file in ((to_labels, "dicom_labels"), (to_map, "dicom_entropy")):
        command = [program, "--inputDICOM", str(files[file]), "--outputDirectory", str(out)]
        subprocess.run([*command, "-t", "nifti"], check=True, capture_output=True, timeout=120)
    for number in (1, 2):
        found = nib.load(out / f"{number}.nii.gz")
        expected = (labels == number).astype(np.uint8)
        got = at_places(np.asarray(found.dataobj) > 0, found.affine)
        assert got == at_places(expected, geometry.affine)
    found = nib.load(out / "pmap.nii.gz")
    assert at_places(np.asarray(found.dataobj), found.affine) == at_places(entropy, geometry.affine)


@pytest.mark.parametrize("kind", ["dicom_labels", "dicom_entropy"])
def test_the_distance_between_slices_is_that_of_their_positions(tmp_path: Path, kind: str) -> None:
    labels, entropy, geometry = in_order("as DICOM")
    series = write_series(tmp_path / "series", wrong_distance)
    written = pydicom.dcmread(
        write_dicom(tmp_path, series, labels, entropy, geometry, SCHEME)[kind]
    )
    (shared,) = written.SharedFunctionalGroupsSequence
    distance = shared.PixelMeasuresSequence[0].SpacingBetweenSlices
    assert float(distance) == pytest.approx(STEP, abs=1e-5)


def test_frames_of_the_map_ascend_along_the_normal_and_say_what_they_show(tmp_path: Path) -> None:
    labels, entropy, geometry = in_order("everything turned")
    series = write_series(
        tmp_path / "series", lambda one, _: setattr(one, "BodyPartExamined", "BRAIN")
    )
    files = write_dicom(tmp_path, series, labels, entropy, geometry, SCHEME)
    written = pydicom.dcmread(files["dicom_entropy"])
    places = [
        np.dot(frame.PlanePositionSequence[0].ImagePositionPatient, TURN[:, 2])
        for frame in written.PerFrameFunctionalGroupsSequence
    ]
    assert places == sorted(places)
    (anatomy,) = written.SharedFunctionalGroupsSequence[0].FrameAnatomySequence
    assert anatomy.AnatomicRegionSequence[0].CodeMeaning == "Brain"


def test_tissues_without_background_are_all_segments(tmp_path: Path) -> None:
    labels, entropy, geometry = in_order("as DICOM")
    scheme = LabelScheme((1, 2, 3), ("CSF", "grey matter", "white matter"))
    mask = entropy > 0.5
    series = write_series(tmp_path / "series")
    files = write_dicom(tmp_path, series, labels, entropy, geometry, scheme, mask)
    found = hd.seg.segread(files["dicom_labels"])
    assert [segment.SegmentLabel for segment in found.SegmentSequence] == list(scheme.names)
    volume = found.get_volume(combine_segments=True)
    expected = np.where(mask, labels + 1, 0)
    assert at_places(volume.array, affine_of(volume)) == at_places(expected, geometry.affine)


@pytest.mark.parametrize(
    ("colour", "expected"),
    [  # L* of 0 to 100, a* and b* of -128 to 127, all to 65535; red by hand from its primaries
        ((255, 255, 255), (65535, 32896, 32896)),
        ((0, 0, 0), (0, 32896, 32896)),
        ((255, 0, 0), (35584, 53662, 50857)),
    ],
)
def test_colours_are_cielab(colour: tuple[int, int, int], expected: tuple[int, ...]) -> None:
    np.testing.assert_allclose(cielab(*colour), expected, atol=60)


def test_segments_carry_names_codes_and_the_users_values(tmp_path: Path) -> None:
    labels, entropy, geometry = in_order("rows turned round")
    series = write_series(tmp_path / "series")
    files = write_dicom(tmp_path, series, labels, entropy, geometry, SCHEME)
    segmentation = hd.seg.segread(files["dicom_labels"])
    first, second = segmentation.SegmentSequence
    assert (first.SegmentNumber, first.SegmentLabel) == (1, "necrosis")
    assert first.SegmentedPropertyTypeCodeSequence[0].CodeMeaning == "Necrosis"
    assert second.SegmentLabel == "enhancing tumour"
    assert first.RecommendedDisplayCIELabValue == list(cielab(*rgb(label_colours(["necrosis"])[0])))
    assert second.SegmentDescription == "value 4 in the label map"
    assert segmentation.PatientID == "P01"
    assert segmentation.FrameOfReferenceUID == "1.2.826.0.1.3680043.8.498.3"
    parametric = pydicom.dcmread(files["dicom_entropy"])
    (shared,) = parametric.SharedFunctionalGroupsSequence
    mapping = shared.RealWorldValueMappingSequence[0]
    assert mapping.MeasurementUnitsCodeSequence[0].CodeValue == "bit"
    assert mapping.DoubleFloatRealWorldValueLastValueMapped == pytest.approx(np.log2(3))


def test_the_same_result_gives_the_same_bytes(tmp_path: Path) -> None:
    labels, entropy, geometry = in_order("as DICOM")
    series = write_series(tmp_path / "series")

    def written(name: str, labels: np.ndarray) -> dict[str, bytes]:
        (tmp_path / name).mkdir()
        files = write_dicom(tmp_path / name, series, labels, entropy, geometry, SCHEME)
        return {key: file.read_bytes() for key, file in files.items()}

    first, second = written("1", labels), written("2", labels)
    assert first == second
    other = written("3", np.where(labels == 1, 2, labels))
    assert other["dicom_labels"] != first["dicom_labels"]
    assert other["dicom_entropy"] == first["dicom_entropy"]
    numbers = [pydicom.dcmread(tmp_path / name / "labels.seg.dcm").SOPInstanceUID for name in "123"]
    assert numbers[0] == numbers[1] != numbers[2]


def test_the_grid_of_a_series_is_found(tmp_path: Path) -> None:
    series = read_series(write_series(tmp_path / "series"))
    assert series.geometry.shape == (COLUMNS, ROWS, SLICES)
    np.testing.assert_allclose(series.geometry.affine, scanner_affine(), atol=1e-4)
    assert [int(one.InstanceNumber) for one in series.slices] == [1, 2, 3, 4]


def moved(geometry: Geometry, mm: float) -> Geometry:
    affine = geometry.affine.copy()
    affine[1, 3] += mm
    return geometry_from_affine(geometry.shape, affine)


def stripped(one: Any, _: int) -> None:
    for name in ("PatientName", "PatientID", "PatientBirthDate", "StudyDate", "SliceThickness"):
        delattr(one, name)


def test_a_series_without_its_patients_name_is_taken(tmp_path: Path) -> None:
    labels, entropy, geometry = in_order("as DICOM")
    series = write_series(tmp_path / "series", stripped)
    files = write_dicom(tmp_path, series, labels, entropy, geometry, SCHEME)
    found = pydicom.dcmread(files["dicom_labels"])
    assert found.PatientName == ""
    (shared,) = found.SharedFunctionalGroupsSequence
    assert shared.PixelMeasuresSequence[0].SliceThickness == pytest.approx(STEP, abs=1e-5)


def test_a_volume_elsewhere_is_refused(tmp_path: Path) -> None:
    labels, entropy, geometry = in_order("rows turned round")
    series = write_series(tmp_path / "series")
    check_dicom_series(series, geometry)
    check_dicom_series(series, moved(geometry, 0.005))
    for wrong in (
        moved(geometry, 0.05),
        geometry_from_affine(geometry.shape, np.eye(4)),
        geometry_from_affine((COLUMNS, ROWS, SLICES + 1), geometry.affine),
    ):
        with pytest.raises(InputError, match=r"`dicom_series` .* must lie on the grid"):
            check_dicom_series(series, wrong)
    with pytest.raises(InputError, match="must lie on the grid"):
        write_dicom(tmp_path, series, labels, entropy, moved(geometry, 1), SCHEME)
    assert os.listdir(tmp_path) == ["series"]


def missing_place(one: Any, k: int) -> None:
    if k == 2:
        del one.ImagePositionPatient


def no_frame(one: Any, _: int) -> None:
    del one.FrameOfReferenceUID


def gap(one: Any, k: int) -> None:
    if k == 3:
        one.ImagePositionPatient = [round(float(v), 6) for v in ORIGIN + TURN[:, 2] * STEP * 5]


def twice(one: Any, k: int) -> None:
    if k == 1:
        one.ImagePositionPatient = [round(float(v), 6) for v in ORIGIN]


def two_series(one: Any, k: int) -> None:
    if k == 1:
        one.SeriesInstanceUID += ".9"


def other_size(one: Any, k: int) -> None:
    if k == 1:
        one.PixelSpacing = [2, 2]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (missing_place, "IM002.dcm has no ImagePositionPatient"),
        (no_frame, "IM001.dcm has no FrameOfReferenceUID"),
        (gap, r"same distance from one to the next, got 2.5 to 7.5 mm"),
        (twice, r"same distance from one to the next, got 0 to 5 mm; .* there twice"),
        (two_series, "must hold the files of one DICOM series, got 2 series"),
        (other_size, "all slices must have one PixelSpacing"),
    ],
)
def test_a_series_that_is_no_grid(
    tmp_path: Path, spoil: Callable[[Any, int], None], message: str
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        read_series(write_series(tmp_path / "series", spoil))
    assert "\n" not in str(caught.value)


def test_a_folder_without_dicom(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("nothing")
    with pytest.raises(InputError, match="must hold the files of one DICOM series, got 0 series"):
        read_series(tmp_path)
    with pytest.raises(InputError, match="must be a folder with a DICOM series"):
        read_series(tmp_path / "gone")


@pytest.mark.parametrize(
    ("name", "meaning"),
    [
        ("NCR", "Necrosis"),
        ("necrotic tumour core", "Necrosis"),
        ("peritumoral_edema", "Edema"),
        ("oedema", "Edema"),
        ("ET", "Neoplasm"),
        ("enhancing_tumor", "Neoplasm"),
        ("whole tumour (rest)", "Neoplasm"),
        ("white matter", "White Matter"),
        ("CSF", "Cerebrospinal Fluid"),
        ("label_4", "Lesion"),
    ],
)
def test_codes_follow_the_words(name: str, meaning: str) -> None:
    assert find_codes(name)[1].meaning == meaning


def test_codes_are_those_of_the_standard() -> None:
    codes = pydicom.sr.codedict.codes.SCT
    names = ("necrosis", "oedema", "cyst", "tumour", "white matter", "grey matter", "csf", "?")
    for name in (*names, "haemorrhage"):
        for code in find_codes(name):
            key = code.meaning.replace(" ", "")
            assert getattr(codes, key).value == code.value


def write_dose(path: Path, *, absolute: bool = False, **changes: object) -> Path:
    """Write an oblique RT Dose of 10 + 0.1 x − 0.2 y + 0.3 z Gy, in mm of DICOM's axes."""
    dose = pydicom.Dataset()
    turn = np.eye(3) if absolute else TURN
    offsets = np.array([0.0, 2.0, 5.0, 9.0])  # not the same distance everywhere
    start = np.array([-20.0, -15.0, 30.0])
    k, j, i = np.meshgrid(np.arange(4), np.arange(6), np.arange(5), indexing="ij")
    at = start[:, None, None, None] + np.einsum(
        "ab,bkji->akji", turn, np.stack([3.0 * i, 2.5 * j, offsets[k]])
    )
    gray = 10 + 0.1 * at[0] - 0.2 * at[1] + 0.3 * at[2]
    dose.SOPClassUID, dose.SOPInstanceUID = pydicom.uid.RTDoseStorage, "1.2.826.0.1.7"
    dose.Modality, dose.DoseUnits, dose.DoseType = "RTDOSE", "GY", "PHYSICAL"
    dose.Rows, dose.Columns, dose.NumberOfFrames = 6, 5, 4
    dose.PixelSpacing, dose.DoseGridScaling = [2.5, 3.0], "1e-8"
    dose.ImagePositionPatient = start.tolist()
    dose.ImageOrientationPatient = [round(float(v), 8) for v in (*turn[:, 0], *turn[:, 1])]
    dose.GridFrameOffsetVector = (offsets + (30.0 if absolute else 0.0)).tolist()
    dose.SamplesPerPixel, dose.PhotometricInterpretation = 1, "MONOCHROME2"
    dose.BitsAllocated, dose.BitsStored, dose.HighBit, dose.PixelRepresentation = 32, 32, 31, 0
    dose.PixelData = np.rint(gray / 1e-8).astype("<u4").tobytes()
    for name, value in changes.items():
        setattr(dose, name, value)
    dose.file_meta = pydicom.dataset.FileMetaDataset()
    dose.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    dose.save_as(path, enforce_file_format=True)
    return path


@pytest.mark.parametrize("absolute", [False, True])
def test_a_dose_is_interpolated_where_the_voxels_are(tmp_path: Path, *, absolute: bool) -> None:
    turn = np.eye(3) if absolute else TURN
    middle = np.array([-20.0, -15.0, 30.0]) + turn @ [6.0, 6.0, 4.5]
    affine = np.eye(4)
    affine[:3, :3] = np.diag([-1, -1, 1]) @ turn @ np.diag([1.1, -1.3, 0.9])
    affine[:3, 3] = np.diag([-1, -1, 1]) @ middle - affine[:3, :3] @ [2, 2, 2]
    grid = geometry_from_affine((5, 5, 5), affine)
    found = read_dose(Source("dose", write_dose(tmp_path / "d.dcm", absolute=absolute)), grid)
    voxels = np.indices((5, 5, 5)).reshape(3, -1)
    x, y, z = np.diag([-1, -1, 1]) @ (affine[:3, :3] @ voxels + affine[:3, 3:])
    np.testing.assert_allclose(found.ravel(), 10 + 0.1 * x - 0.2 * y + 0.3 * z, atol=1e-3)
    affine[:3, 3] += affine[:3, 0] * 4  # the last of it beyond the dose
    moved = geometry_from_affine((5, 5, 5), affine)
    outside = np.isnan(read_dose(Source("dose", tmp_path / "d.dcm"), moved))
    assert outside.any()
    assert not outside[0].any()


def test_a_dose_that_is_none_is_refused(tmp_path: Path) -> None:
    grid = geometry_from_affine((5, 5, 5), np.diag([1.0, 1.0, 1.0, 1.0]))
    for changes, words in (
        ({"DoseUnits": "RELATIVE"}, "must be an RTDOSE in GY, got RTDOSE in RELATIVE"),
        ({"Modality": "CT"}, "got CT in GY"),
        ({"GridFrameOffsetVector": [0.0, 1.0]}, "must have 4 frame offsets, got 2"),
        ({"GridFrameOffsetVector": [0.0] * 4}, "got an impossible GridFrameOffsetVector"),
        ({"ImageOrientationPatient": [0.0] * 6}, "got an impossible ImageOrientationPatient"),
        ({"PixelSpacing": [0.0, 1.0]}, "got an impossible PixelSpacing"),
        ({"DoseGridScaling": "-1"}, "must have a DoseGridScaling above 0, got -1"),
        ({}, "must overlap with the run's grid"),
    ):
        with pytest.raises(InputError, match=words):
            read_dose(Source("dose", write_dose(tmp_path / "d.dcm", **changes)), grid)
