"""The labels as a DICOM segmentation and their entropy as a DICOM parametric map.

Both refer to the series they were made from and lie on its slices. Their identifiers come from
their content and their dates from the series, so that the same result gives the same bytes.
"""

from __future__ import annotations

import hashlib
import math
import re
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.files.geometry import Geometry, find_turn, geometry_from_affine
from perturb_mpm.files.labels import LabelScheme, rgb
from perturb_mpm.files.source import Source
from perturb_mpm.optional import optional_package
from perturb_mpm.storage import DEFLATE, atomic_open, largest_file, require_size
from perturb_mpm.version import version

DICOM_FILES = {"dicom_labels": "labels.seg.dcm", "dicom_entropy": "entropy.pmap.dcm"}
PURPOSE = "writing DICOM"
_DEFLATED = "1.2.840.10008.1.2.1.99"  # the transfer syntax of compressed headers
TOLERANCE_MM = 1e-2  # DICOM keeps positions and directions as decimal text
_ROUNDED = 1e-3  # of a voxel: less is an error of rounding, or the border would be outside
_NEEDED = (
    *("ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing", "Rows", "Columns"),
    *("StudyInstanceUID", "FrameOfReferenceUID"),
)
# What must be there but may be empty, and is often taken out with the patient's name.
_MAY_BE_EMPTY = (
    *("PatientName", "PatientID", "PatientBirthDate", "PatientSex"),
    *("StudyDate", "StudyTime", "StudyID", "AccessionNumber"),
)


def check_dicom_series(series_folder: Path, geometry: Geometry) -> None:
    """Refuse at once a series that is not on the grid of the images, or a missing package."""
    optional_package("highdicom", PURPOSE)
    series = read_series(series_folder)
    with series.source.refuse_damage():
        turn_to_series(series, geometry)


def write_dicom(
    folder: Path,
    series_folder: Path,
    labels: NDArray[Any],
    entropy: NDArray[np.float32],
    geometry: Geometry,
    scheme: LabelScheme,
    mask: NDArray[np.bool_] | None = None,
) -> dict[str, Path]:
    """Write the files of ``DICOM_FILES`` into a folder and return them.

    ``labels`` (X, Y, Z) are indices 0 … L − 1; every label but background is a segment, numbered
    from 1. Where none is background, ``mask`` (X, Y, Z) says where there are labels. ``entropy``
    (X, Y, Z) is in bits. ``series_folder`` holds the DICOM series whose grid ``geometry`` must be.
    """
    series = read_series(series_folder)
    axes = turn_to_series(series, geometry)
    numbers = labels
    if not scheme.has_background:
        numbers = labels + 1 if mask is None else np.where(mask, labels + 1, 0)
    with series.source.refuse_damage():
        objects = {
            "dicom_labels": _segmentation(series, to_series_frames(numbers, axes), scheme),
            "dicom_entropy": _parametric_map(series, to_series_frames(entropy, axes), len(scheme)),
        }
    written = {}
    for name, dataset in objects.items():
        written[name] = folder / DICOM_FILES[name]
        with atomic_open(written[name]) as file:
            dataset.save_as(file, enforce_file_format=True)
    return written


@dataclass(frozen=True)
class Series:
    """The slices of one series, from the first to the last along their normal."""

    source: Source
    slices: tuple[Any, ...]  # pydicom.Dataset, without pixels
    geometry: Geometry  # of (column, row, slice), in NIfTI's directions


def read_series(folder: Path) -> Series:
    """Read the headers of the one DICOM series in a folder, and where its voxels are."""
    source = Source("dicom_series", folder)
    with source.refuse_damage():
        return _stack(source, _headers(source))


def _stack(source: Source, slices: list[Any]) -> Series:
    """Return slices in their order, and the grid that they make up."""
    normal = np.cross(_direction(slices[0], 0), _direction(slices[0], 1))
    slices = sorted(slices, key=lambda one: float(np.dot(_position(one), normal)))
    _check_stack(source, slices)
    first = slices[0]
    step = normal * float(first.get("SliceThickness") or 1.0)
    if len(slices) > 1:
        step = (_position(slices[-1]) - _position(first)) / (len(slices) - 1)
    _fill_missing_tags(slices, float(np.linalg.norm(step)))
    down, across = (float(size) for size in first.PixelSpacing)
    affine = np.eye(4)
    affine[:3, 0] = _direction(first, 0) * across
    affine[:3, 1] = _direction(first, 1) * down
    affine[:3, 2] = step
    affine[:3, 3] = _position(first)
    affine = np.diag([-1.0, -1.0, 1.0, 1.0]) @ affine
    shape = (int(first.Columns), int(first.Rows), len(slices))
    return Series(source, tuple(slices), geometry_from_affine(shape, affine))


def is_dicom(path: Path) -> bool:
    """Return whether a file has the preamble of DICOM."""
    with path.open("rb") as file:
        return file.read(132)[128:] == b"DICM"


def read_dose(source: Source, grid: Geometry) -> NDArray[np.float32]:
    """Read a DICOM RT Dose in Gy, interpolated linearly at the voxels of a grid, (X, Y, Z).

    What lies beyond the dose's own grid is NaN: no dose was computed there.
    """
    from scipy.ndimage import map_coordinates

    pydicom = optional_package("pydicom", "reading a DICOM dose")
    with source.refuse_damage():
        _header(pydicom, source.path)  # refuses what is too large to unpack
        dose = pydicom.dcmread(source.path)
        _check_dose(source, dose)
        gray = dose.pixel_array.reshape(-1, dose.Rows, dose.Columns) * float(dose.DoseGridScaling)
        offsets = np.atleast_1d(np.asarray(dose.get("GridFrameOffsetVector", 0.0), dtype=float))
        if len(offsets) != len(gray):
            raise source.error(f"must have {len(gray)} frame offsets, got {len(offsets)}")
        across, down = _direction(dose, 0), _direction(dose, 1)
        start, normal = _position(dose), np.cross(across, down)
        if offsets[0] != 0:  # positions along z, not distances from the first frame
            offsets = (offsets - offsets[0]) * np.sign(normal[2])
        order = np.argsort(offsets)
        gray, offsets = gray[order].astype(np.float32), offsets[order]
        steps = np.asarray(dose.PixelSpacing, dtype=float)
        _check_dose_grid(source, np.stack([across, down]), steps, offsets)
    found = np.empty(grid.shape, dtype=np.float32)
    to_dicom = np.diag([-1.0, -1.0, 1.0, 1.0]) @ grid.affine  # NIfTI's axes point the other way
    voxels = np.indices((1, *grid.shape[1:])).reshape(3, -1)
    for x in range(grid.shape[0]):  # slice by slice: a brain's coordinates take a lot of memory
        voxels[0] = x
        at = to_dicom[:3, :3] @ voxels + to_dicom[:3, 3:]
        away = at - start[:, np.newaxis]  # (3, V) mm
        along = normal @ away
        frame = np.interp(along, offsets, np.arange(len(offsets)))
        frame[(along < offsets[0] - TOLERANCE_MM) | (along > offsets[-1] + TOLERANCE_MM)] = -2
        index = np.stack([frame, down @ away / steps[0], across @ away / steps[1]])
        index = np.where(np.abs(index - np.rint(index)) < _ROUNDED, np.rint(index), index)
        values = map_coordinates(gray, index, order=1, mode="constant", cval=np.nan)
        found[x] = values.reshape(grid.shape[1:])
    if np.isnan(found).all():
        raise source.error("must overlap with the run's grid, got a dose elsewhere")
    return found


def _check_dose(source: Source, dose: Any) -> None:  # noqa: ANN401
    """Refuse a file that is no dose in Gy, or does not say where it lies."""
    kind = dose.get("Modality", "no modality"), dose.get("DoseUnits", "no unit")
    if kind != ("RTDOSE", "GY"):
        raise source.error(f"must be an RTDOSE in GY, got {kind[0]} in {kind[1]}")
    needed = ("DoseGridScaling", "ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing")
    missing = [name for name in needed if name not in dose]
    if missing:
        raise source.error(f"must say where its dose lies, got no {missing[0]}")
    if not 0 < float(dose.DoseGridScaling) < math.inf:
        raise source.error(f"must have a DoseGridScaling above 0, got {dose.DoseGridScaling}")


def _check_dose_grid(
    source: Source,
    axes: NDArray[np.float64],
    steps: NDArray[np.float64],
    offsets: NDArray[np.float64],
) -> None:
    """Refuse what is no grid: axes (2, 3), steps (2,) and sorted offsets of frames (F,)."""
    wrong = {
        "ImageOrientationPatient": not np.allclose(axes @ axes.T, np.eye(2), rtol=0, atol=1e-3),
        "PixelSpacing": not (np.isfinite(steps) & (steps > 0)).all(),
        "GridFrameOffsetVector": not (np.isfinite(offsets[0]) and (np.diff(offsets) > 0).all()),
    }
    for name in (name for name, is_wrong in wrong.items() if is_wrong):
        raise source.error(f"must lie on a grid, got an impossible {name}")


def _headers(source: Source) -> list[Any]:
    """Return the headers of every DICOM file in a folder, which must be of one series."""
    pydicom = optional_package("pydicom", "reading a DICOM series")
    if not source.path.is_dir():
        raise source.error("must be a folder with a DICOM series")
    headers = []
    for path in sorted(source.path.iterdir()):
        if path.is_file():
            try:
                headers.append(_header(pydicom, path))
            except pydicom.errors.InvalidDicomError:
                continue  # a file of another kind beside the series
    found = [one for one in headers if "SeriesInstanceUID" in one]
    numbers = {str(one.SeriesInstanceUID) for one in found}
    if len(numbers) != 1:
        raise source.error(f"must hold the files of one DICOM series, got {len(numbers)} series")
    for one in found:
        missing = [name for name in _NEEDED if name not in one]
        if missing:
            raise source.error(
                f"must hold slices with their position, but {Path(one.filename).name} has "
                f"no {missing[0]}; a series of several frames in one file is not read"
            )
    return found


def _header(pydicom: Any, path: Path) -> Any:  # noqa: ANN401 - a module and its dataset
    """Return the header of one file, whose size is known before it is unpacked."""
    meta = pydicom.filereader.read_file_meta_info(path)
    packed = str(meta.get("TransferSyntaxUID", "")) == _DEFLATED
    require_size(path.stat().st_size * (DEFLATE if packed else 1), largest_file())
    return pydicom.dcmread(path, stop_before_pixels=True)


def _check_stack(source: Source, slices: list[Any]) -> None:
    """Refuse slices that do not make up one regular grid."""
    first = slices[0]
    for one in slices:
        for name in ("ImageOrientationPatient", "PixelSpacing", "Rows", "Columns"):
            same = np.allclose(one[name].value, first[name].value, rtol=0, atol=1e-4)
            if not same:
                raise source.error(
                    f"all slices must have one {name}, got {first[name].value} and "
                    f"{one[name].value}"
                )
    positions = np.stack([_position(one) for one in slices])  # (slices, 3)
    expected = np.linspace(positions[0], positions[-1], len(slices))
    apart = float(np.abs(positions - expected).max())
    steps = np.linalg.norm(np.diff(positions, axis=0), axis=1)
    if apart > TOLERANCE_MM or (steps < TOLERANCE_MM).any():
        raise source.error(
            "slices must be the same distance from one to the next, got "
            f"{steps.min():.4g} to {steps.max():.4g} mm; one may be missing or there twice"
        )


def _fill_missing_tags(slices: list[Any], thickness_mm: float) -> None:
    """Put in what the standard wants and a series may lack, without inventing anything.

    The distance between slices is what their positions say: the tag is often wrong, and what is
    written would take it over.
    """
    for one in slices:
        one.SpacingBetweenSlices = f"{thickness_mm:.8g}"
        for name in _MAY_BE_EMPTY:
            if name not in one:
                setattr(one, name, "")
        if not one.get("SliceThickness"):
            one.SliceThickness = f"{thickness_mm:.8g}"


def _position(one: Any) -> NDArray[np.float64]:  # noqa: ANN401
    return np.asarray(one.ImagePositionPatient, dtype=np.float64)


def _direction(one: Any, axis: int) -> NDArray[np.float64]:  # noqa: ANN401
    """Return the direction of growing columns (0) or rows (1)."""
    both = np.asarray(one.ImageOrientationPatient, dtype=np.float64)
    return both[3 * axis : 3 * axis + 3]


def turn_to_series(series: Series, geometry: Geometry) -> NDArray[np.float64]:
    """Return how a grid's axes (3, 2) lie on a series, or refuse a grid that is another one."""
    grid = series.geometry
    turn = find_turn(geometry, grid, TOLERANCE_MM)
    if turn is None:
        raise series.source.error(
            f"the series must lie on the grid of the images, got shape {grid.shape} and affine "
            f"{grid.affine_text()} against shape {geometry.shape} and affine "
            f"{geometry.affine_text()}"
        )
    return turn


def to_series_frames(volume: NDArray[Any], axes: NDArray[np.float64]) -> NDArray[Any]:
    """Return a volume (X, Y, Z) as (slices, rows, columns) of the series."""
    from nibabel.orientations import apply_orientation

    turned = apply_orientation(volume, axes)  # (columns, rows, slices)
    return np.ascontiguousarray(turned.transpose(2, 1, 0))


def _segmentation(series: Series, numbers: NDArray[Any], scheme: LabelScheme) -> Any:  # noqa: ANN401
    """Return the segments whose numbers, or 0, stand in (slices, rows, columns)."""
    hd = optional_package("highdicom", PURPOSE)
    frames = numbers.astype(np.uint8)
    segments = []
    for index, (value, name, colour) in enumerate(scheme.foreground(), start=1):
        category, kind = find_codes(name)
        segment = hd.seg.SegmentDescription(
            segment_number=index,
            segment_label=name[:64],
            segmented_property_category=coded_concept(category),
            segmented_property_type=coded_concept(kind),
            algorithm_type="AUTOMATIC",
            algorithm_identification=hd.AlgorithmIdentificationSequence(
                name="perturb-mpm",
                version=version(),
                family=hd.sr.CodedConcept("123110", "DCM", "Artificial Intelligence"),
            ),
        )
        segment.SegmentDescription = f"value {value} in the label map"
        segment.RecommendedDisplayCIELabValue = list(cielab(*rgb(colour)))
        segments.append(segment)
    identity = _content_digest(series, frames, [*scheme.values, *scheme.names])
    dataset = hd.seg.Segmentation(
        source_images=series.slices,
        pixel_array=frames,
        segmentation_type="BINARY",
        segment_descriptions=segments,
        content_label="SEGMENTATION",
        content_description="Most probable label",
        series_description="perturb-mpm labels",
        **describe_equipment(series, identity, 1),
    )
    return _make_reproducible(dataset, series, identity)


def _parametric_map(series: Series, entropy: NDArray[Any], labels: int) -> Any:  # noqa: ANN401
    """Return the map of entropies (slices, rows, columns) in bits."""
    hd = optional_package("highdicom", PURPOSE)
    frames = entropy.astype(np.float32)
    most = math.log2(labels)
    bits = hd.sr.CodedConcept("bit", "UCUM", "bit")
    identity = _content_digest(series, frames, [])
    dataset = hd.pm.ParametricMap(
        source_images=series.slices,
        pixel_array=frames,
        contains_recognizable_visual_features=False,
        real_world_value_mappings=[
            hd.pm.RealWorldValueMapping(
                lut_label="entropy",
                lut_explanation="entropy of the marginals, bits",
                unit=bits,
                value_range=(0.0, most),
                slope=1.0,
                intercept=0.0,
            )
        ],
        voi_lut_transformations=[hd.VOILUTTransformation(most / 2, most)],
        content_label="ENTROPY",
        content_description="Entropy of the marginals in bits",
        series_description="perturb-mpm entropy",
        **describe_equipment(series, identity, 2),
    )
    _order_frames(dataset, series)
    _add_anatomy(dataset, series)
    return _make_reproducible(dataset, series, identity)


def _order_frames(dataset: Any, series: Series) -> None:  # noqa: ANN401
    """Let the frames of a map ascend along the normal, as readers that ignore positions take it."""
    first = series.slices[0]
    normal = np.cross(_direction(first, 0), _direction(first, 1))
    groups = list(dataset.PerFrameFunctionalGroupsSequence)
    heights = [float(np.dot(_position(each.PlanePositionSequence[0]), normal)) for each in groups]
    order = np.argsort(heights)
    for number, frame in enumerate(order, start=1):
        groups[frame].FrameContentSequence[0].DimensionIndexValues = [number]
    dataset.PerFrameFunctionalGroupsSequence = [groups[frame] for frame in order]
    pixels = np.frombuffer(dataset.FloatPixelData, dtype="<f4").reshape(len(groups), -1)
    dataset.FloatPixelData = pixels[order].tobytes()


def _add_anatomy(dataset: Any, series: Series) -> None:  # noqa: ANN401
    """Say which part of the body the frames show, as the standard wants of parametric maps."""
    pydicom = optional_package("pydicom", PURPOSE)
    part = str(series.slices[0].get("BodyPartExamined") or "").upper()
    anatomy = pydicom.Dataset()
    anatomy.AnatomicRegionSequence = [coded_concept(_BODY_PARTS.get(part, _BODY))]
    anatomy.FrameLaterality = "U"
    dataset.SharedFunctionalGroupsSequence[0].FrameAnatomySequence = [anatomy]


def cielab(red: int, green: int, blue: int) -> tuple[int, int, int]:
    """Return an sRGB colour, 0 to 255, as DICOM's CIELab (PCS, D50), 0 to 65535."""
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
        for c in (red / 255, green / 255, blue / 255)
    ]
    x, y, z = _XYZ_OF_SRGB @ np.array(linear) / _D50

    def root(t: float) -> float:
        return float(np.cbrt(t)) if t > (6 / 29) ** 3 else t / (3 * (6 / 29) ** 2) + 4 / 29

    lightness = 116 * root(y) - 16
    a, b = 500 * (root(x) - root(y)), 200 * (root(y) - root(z))
    scaled = (lightness / 100, (a + 128) / 255, (b + 128) / 255)
    l_star, a_star, b_star = (round(65535 * min(max(v, 0.0), 1.0)) for v in scaled)
    return l_star, a_star, b_star


class Code(NamedTuple):
    """A concept of SNOMED CT as DICOM writes it."""

    value: str
    meaning: str


ABNORMAL = Code("49755003", "Morphologically Abnormal Structure")
TISSUE = Code("85756007", "Tissue")
SUBSTANCE = Code("91720002", "Body Substance")
LESION = Code("52988006", "Lesion")

_BODY = Code("38266002", "Entire body")
_BODY_PARTS = {"BRAIN": Code("12738006", "Brain"), "HEAD": Code("69536005", "Head")}

# Of sRGB's primaries, adapted to the white of the profile connection space (Bradford).
_XYZ_OF_SRGB = np.array(
    [
        [0.4360747, 0.3850649, 0.1430804],
        [0.2225045, 0.7168786, 0.0606169],
        [0.0139322, 0.0971045, 0.7141733],
    ]
)
_D50 = np.array([0.96422, 1.0, 0.82521])

# The first that fits counts: a necrotic tumour core is a necrosis.
_BY_WORD = (
    (r"necro|\bncr", ABNORMAL, Code("6574001", "Necrosis")),
    (r"o?edema|\bed\b|snfh", ABNORMAL, Code("79654002", "Edema")),
    (r"h(a|ae|e)morr?h|blood", ABNORMAL, Code("50960005", "Hemorrhage")),
    (r"cyst", ABNORMAL, Code("367643001", "Cyst")),
    (r"tumou?r|enhanc|\bet\b|neoplas|glio|core", ABNORMAL, Code("108369006", "Neoplasm")),
    (r"white.?matter|\bwm\b", TISSUE, Code("389080008", "White Matter")),
    (r"gr[ae]y.?matter|\bgm\b", TISSUE, Code("389081007", "Gray Matter")),
    (r"csf|cerebrospinal", SUBSTANCE, Code("65216001", "Cerebrospinal Fluid")),
)


def find_codes(name: str) -> tuple[Code, Code]:
    """Return the category and the type of what a label's name stands for."""
    words = name.lower().replace("_", " ")
    for pattern, category, kind in _BY_WORD:
        if re.search(pattern, words):
            return category, kind
    return ABNORMAL, LESION


def coded_concept(code: Code) -> Any:  # noqa: ANN401
    """Return a code as highdicom has it."""
    concept = optional_package("highdicom", PURPOSE).sr.CodedConcept
    return concept(code.value, "SCT", code.meaning)


def describe_equipment(series: Series, identity: bytes, number: int) -> dict[str, Any]:
    """Return who made an object, and its numbers and names."""
    first = int(series.slices[0].get("SeriesNumber") or 0)
    return {
        "series_instance_uid": make_uid(identity, "series"),
        "series_number": 1000 + first * 10 + number,
        "sop_instance_uid": make_uid(identity, "instance"),
        "instance_number": 1,
        "manufacturer": "The perturb-mpm developers",
        "manufacturer_model_name": "perturb-mpm",
        "software_versions": version(),
        "device_serial_number": "0",
    }


def _make_reproducible(dataset: Any, series: Series, identity: bytes) -> Any:  # noqa: ANN401
    """Take out of an object what would differ if it were made again."""
    take_dates_of_series(dataset, series)
    organisation = make_uid(identity, "dimensions")
    dataset.DimensionOrganizationSequence[0].DimensionOrganizationUID = organisation
    for index in dataset.DimensionIndexSequence:
        index.DimensionOrganizationUID = organisation
    return dataset


def take_dates_of_series(dataset: Any, series: Series) -> None:  # noqa: ANN401
    """Let an object have the dates of its series, and none of its own making."""
    first = series.slices[0]
    day = first.get("ContentDate") or first.get("StudyDate") or "19000101"
    time = first.get("ContentTime") or first.get("StudyTime") or "000000"
    for name, value in (("Date", day), ("Time", time)):
        for event in ("Content", "InstanceCreation", "Series"):
            if f"{event}{name}" in dataset:
                setattr(dataset, f"{event}{name}", value)
    for equipment in dataset.get("ContributingEquipmentSequence", ()):
        equipment.pop("ContributionDateTime", None)


def _content_digest(series: Series, frames: NDArray[Any], words: list[object]) -> bytes:
    """Return a digest of what an object holds and of where it comes from."""
    digest = hashlib.sha256(repr([version(), words, frames.shape]).encode())
    for one in series.slices:
        digest.update(str(one.SOPInstanceUID).encode())
    digest.update(frames.tobytes())
    return digest.digest()


def make_uid(identity: bytes, what: str) -> str:
    """Return an identifier made from a digest, in the form DICOM has for UUIDs."""
    name = hashlib.sha256(identity + what.encode()).digest()
    return f"2.25.{uuid.UUID(bytes=name[:16], version=5).int}"
