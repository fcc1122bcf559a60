"""Headers drawn field by field, read by us and by another reader: the same voxels, or a refusal.

SimpleITK reads NIfTI, NRRD and MetaImage; what MGH and NIfTI 2 mean is computed here from their
definitions. Where the other reader refuses a file there is nothing to compare with.
"""

from __future__ import annotations

import bz2
import gzip
import math
import random
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lab.torture.attack import NOTE, Attack, Finding, Trial
from perturb_mpm.files import InputError, Source, Volume, read_volume
from perturb_mpm.optional import optional_package

_LPS = np.diag([-1.0, -1.0, 1.0, 1.0])
_MM = 1e-3


class OtherReading(NamedTuple):
    """What another reader makes of a file."""

    voxels: NDArray[Any]  # (X, Y, Z, …)
    affine: NDArray[np.float64] | None  # (4, 4), None where the file does not say


class DrawnHeader(NamedTuple):
    """A file that was drawn, and how else to read it."""

    path: Path
    read: Callable[[Path], OtherReading | None]


def prepare_headers(folder: Path) -> Trial:
    """Return a trial that draws a header of any format and compares both readers."""
    ends = dict.fromkeys(("compared", "refused by us", "refused by the other"), 0)

    def trial(rng: random.Random, trial_folder: Path) -> Finding:
        finding, end = compare_readers(draw_header(rng, trial_folder))
        ends[end] += 1
        if sum(ends.values()) % 100 == 0:
            note = ", ".join(f"{count} {name}" for name, count in ends.items())
            (folder / NOTE).write_text(note, encoding="utf-8")
        return finding

    return trial


def draw_header(rng: random.Random, folder: Path) -> DrawnHeader:
    """Write a small volume with the documented fields of its format drawn at random."""
    return rng.choice((_draw_nifti, _draw_nrrd, _draw_metaimage, _draw_mgh))(rng, folder)


def compare_readers(header: DrawnHeader) -> tuple[Finding, str]:
    """Read a file twice; another voxel or another position is a fault, a refusal is none."""
    try:
        ours = read_volume(Source("images", header.path))
    except InputError:
        return Finding(refused=True), "refused by us"
    theirs = header.read(header.path)
    if theirs is None:
        return Finding(), "refused by the other"
    words = _difference(ours, theirs)
    return Finding() if words is None else Finding(kind="wrong", words=words), "compared"


def _difference(ours: Volume, theirs: OtherReading) -> str | None:
    mine, other = np.squeeze(ours.voxels), np.squeeze(theirs.voxels)
    if mine.shape != other.shape:
        return f"shape {mine.shape} and {other.shape}"
    with np.errstate(all="ignore"):
        if not np.allclose(mine, other.astype(np.float32), rtol=1e-5, equal_nan=True):
            return f"voxels {mine.ravel()[:8]} and {other.ravel()[:8]}"
    if theirs.affine is not None and not np.allclose(ours.geometry.affine, theirs.affine, atol=_MM):
        return f"affine {ours.geometry.affine.tolist()} and {theirs.affine.tolist()}"
    return None


def read_with_itk(path: Path) -> OtherReading | None:
    """Return what SimpleITK reads, None where it refuses."""
    sitk = optional_package("SimpleITK", "comparing readers")
    sitk.ProcessObject.SetGlobalWarningDisplay(False)  # noqa: FBT003
    try:
        image = sitk.ReadImage(str(path))
    except RuntimeError:
        return None
    array = sitk.GetArrayFromImage(image)
    axes, several = image.GetDimension(), image.GetNumberOfComponentsPerPixel() > 1
    order = [*range(axes)[::-1], *([axes] if several else [])]
    space = min(axes, 3)
    affine = np.eye(4)
    directions = np.array(image.GetDirection()).reshape(axes, axes)[:space, :space]
    affine[:space, :space] = directions * np.array(image.GetSpacing())[:space]
    affine[:space, 3] = image.GetOrigin()[:space]
    voxels = array.transpose(order)
    while voxels.ndim < 3:
        voxels = voxels[..., np.newaxis]
    return OtherReading(voxels, _LPS @ affine)


def _draw_shape(rng: random.Random, axes: int = 3) -> list[int]:
    return [rng.randint(2, 4) for _ in range(axes)]


def _draw_voxels(rng: random.Random, shape: list[int], kind: str) -> NDArray[Any]:
    values = np.random.default_rng(rng.randrange(1 << 30)).integers(0, 100, shape)
    return values.astype(np.dtype(kind))


def _draw_rotation(rng: random.Random) -> NDArray[np.float64]:
    """Return a rotation or reflection (3, 3), often along the axes."""
    if rng.random() < 0.5:
        matrix: NDArray[np.float64] = np.eye(3)[rng.sample(range(3), 3)]
        matrix *= np.array([rng.choice((-1.0, 1.0)) for _ in range(3)])
        return matrix
    found: NDArray[np.float64]
    found, _ = np.linalg.qr(np.random.default_rng(rng.randrange(1 << 30)).normal(size=(3, 3)))
    return found


def _some(rng: random.Random, fields: list[str], share: float = 0.15) -> list[str]:
    return [field for field in fields if rng.random() < share]


_NIFTI_ASIDE: dict[str, Any] = {  # fields that change neither voxels nor positions
    "cal_max": 9,
    "cal_min": 1,
    "toffset": 3,
    "slice_code": 1,
    "slice_start": 1,
    "slice_end": 2,
    "slice_duration": 0.1,
    "dim_info": 57,
    "intent_p1": 2,
    "intent_p2": 3,
    "intent_p3": 4,
    "intent_name": b"volume",
    "intent_code": 0,
    "descrip": b"a volume",
    "aux_file": b"other.nii",
    "data_type": b"text",
    "db_name": b"text",
    "extents": 16384,
    "session_error": 1,
    "regular": b"r",
    "glmax": 9,
    "glmin": 1,
    "unused_str": b"text",
}


def _draw_nifti(rng: random.Random, folder: Path) -> DrawnHeader:
    import nibabel as nib

    codes = {2: "u1", 4: "i2", 8: "i4", 16: "f4", 64: "f8", 256: "i1", 512: "u2", 768: "u4"}
    codes |= {1024: "i8", 1280: "u8"}
    code, kind = rng.choice(list(codes.items()))
    order = rng.choice("<>")
    shape = _draw_shape(rng, rng.choice((3, 3, 3, 4)))
    shape += rng.choice(([], [], [], [1] * (5 - len(shape))))
    voxels = _draw_voxels(rng, shape, order + kind)
    kinds: tuple[Any, ...] = (nib.Nifti1Header, nib.Nifti2Header)
    header = rng.choice(kinds)(endianness=order)
    header.set_data_shape(shape)
    header["datatype"], header["bitpix"] = code, voxels.dtype.itemsize * 8
    affine = np.eye(4)
    spacing = [rng.uniform(0.5, 3) for _ in range(3)]
    affine[:3, :3] = _draw_rotation(rng) * spacing
    affine[:3, 3] = [rng.uniform(-90, 90) for _ in range(3)]
    header["pixdim"][1:4] = spacing
    both = rng.choice(((1, 0), (0, 1), (1, 1), (2, 4), (0, 0)))
    if both[0]:
        header.set_qform(affine, code=both[0])
    if all(both) and rng.random() < 0.3:  # both forms disagree
        header["qoffset_x"] += 5
    if both[1]:
        header.set_sform(affine, code=both[1])
    header["xyzt_units"] = unit = rng.choice((0, 2, 2, 2, 10, 1, 3))
    slope = rng.choice((0, 1, 1, 2.5, -1, math.nan))
    # A slope of 0 or NaN says that nothing is scaled; readers differ on what an intercept then is.
    inter = rng.choice((0, 0, 7)) if slope and math.isfinite(slope) else 0
    header["scl_slope"], header["scl_inter"] = slope, inter
    first = 544 if isinstance(header, nib.Nifti2Header) else 352
    header["vox_offset"] = offset = rng.choice((first, first, first + 16, first + 48))
    for name, value in _NIFTI_ASIDE.items():
        if name in header.keys() and rng.random() < 0.2:  # noqa: SIM118 - it is no dictionary
            header[name] = value
    block = header.binaryblock
    if offset > first:  # room for an extension of 16 bytes, with its size and code
        extension = struct.pack(order + "2i", 16, rng.choice((0, 4, 6))) + b"comment\0"
        block = header.binaryblock + rng.choice((bytes(4) + bytes(16), b"\1\0\0\0" + extension))
    content = block.ljust(offset, b"\0") + voxels.tobytes(order="F")
    path = folder / rng.choice(("v.nii", "v.nii.gz"))
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)

    def read(path: Path) -> OtherReading | None:
        scale = {1: 1000.0, 3: 0.001}.get(unit, 1.0)
        factor = slope if slope and math.isfinite(slope) else 1
        meant = OtherReading(
            voxels * float(factor) + inter, np.diag([scale, scale, scale, 1]) @ affine
        )
        # ITK does not read NIfTI 2.
        found = meant if isinstance(header, nib.Nifti2Header) else read_with_itk(path)
        # Of two forms we and nibabel take the second, ITK the first, whose quaternion is rounded by
        # up to 0.03° near half a turn; without codes, readers differ on where the first voxel is.
        if found is None or (any(both) and not all(both)):
            return found
        return found._replace(affine=meant.affine if all(both) else None)

    return DrawnHeader(path, read)


def _numbers(values: Any) -> str:  # noqa: ANN401 - an array or a list
    return " ".join(f"{float(v):.9g}" for v in values)


def _vector(values: NDArray[np.float64]) -> str:
    return f"({','.join(f'{v:.9g}' for v in values)})"


def _draw_nrrd(rng: random.Random, folder: Path) -> DrawnHeader:
    names = {"uchar": "u1", "int8": "i1", "short": "i2", "Unsigned Short": "u2", "int32": "i4"}
    names |= {"uint": "u4", "longlong": "i8", "float": "f4", "double": "f8", "uint64": "u8"}
    names |= {"signed char": "i1", "unsigned char": "u1", "ushort": "u2", "int64_t": "i8"}
    name, kind = rng.choice(list(names.items()))
    several = rng.random() < 0.2
    shape = [rng.randint(2, 3), *_draw_shape(rng)] if several else _draw_shape(rng)
    big = rng.random() < 0.3
    voxels = _draw_voxels(rng, shape, (">" if big else "<") + kind)
    endian = rng.choice(("big", "Big", "BIG")) if big else rng.choice(("little", "Little"))
    encoding = rng.choice(("raw", "raw", "raw", "gzip", "GZ", "bzip2", "bz2", "hex", "text"))
    fields = [f"type: {name}", f"dimension: {len(shape)}", f"sizes: {_numbers(shape)}"]
    fields += [] if rng.random() < 0.05 else [f"endian: {endian}"]
    fields += [f"encoding: {encoding}"]
    fields += _draw_nrrd_space(rng, several=several)
    if several or rng.random() < 0.3:
        kinds = [*(["vector"] if several else []), "domain", "domain", "domain"]
        fields += [f"kinds: {' '.join(kinds)}"]
    fields += _some(rng, [f"centers: {' '.join(['???'] * several + ['cell'] * 3)}"])
    fields += _some(rng, ["content: a volume", "min: 0", "max: 9", "old min: 1", "old max: 5"])
    fields += _some(rng, ["number: 24", "sample units: HU", "# a comment", "owner:=somebody"])
    fields += _some(rng, [f"thicknesses: {' '.join(['nan'] * several + ['1', '2', '3'])}"], 0.08)
    fields += _some(rng, [f"axis maxs: {' '.join(['nan'] * (several + 3))}", "block size: 4"], 0.05)
    fields += _some(rng, ["labels:" + ' "a"' * (several + 3)], 0.08)
    fields += _some(rng, ["units:" + ' "mm"' * (several + 3)], 0.05)
    fields += _some(rng, [fields[0], fields[3], "endian: big"], 0.03)  # twice
    content = voxels.tobytes(order="F")
    if rng.random() < 0.05:
        fields += [f"line skip: {rng.choice((0, 1))}"]
        content = b"skipped\n" * int(fields[-1][-1]) + content
    if rng.random() < 0.15 and encoding == "raw":
        skip = rng.choice((-1, 4))
        fields += [f"byte skip: {skip}"]
        content = b"skip" + content
    detached = rng.random() < 0.3
    fields += [rng.choice(("data file: v.raw", "datafile: v.raw", "data file: ./v.raw"))] * detached
    if encoding.lower().startswith("gz"):
        content = gzip.compress(content)
    elif encoding.startswith("bz"):
        content = bz2.compress(content)
    elif encoding == "text":
        content = " ".join(map(str, voxels.ravel(order="F"))).encode()
    elif encoding == "hex":
        content = content.hex().encode()
    path = folder / ("v.nhdr" if detached else "v.nrrd")
    magic = rng.choice(("NRRD0005", "NRRD0005", "NRRD0004", "NRRD0006", "NRRD0001"))
    text = rng.choice(("\n", "\n", "\n", "\r\n")).join([magic, *fields, "", ""]).encode()
    path.write_bytes(text if detached else text + content)
    if detached:
        (folder / "v.raw").write_bytes(content)
    return DrawnHeader(path, read_with_itk)


def _draw_nrrd_space(rng: random.Random, *, several: bool) -> list[str]:
    """Return the fields that say where voxels are, the first axis none of space if ``several``."""
    way = rng.choice(("directions", "directions", "spacings", "nothing"))
    fields: list[str] = []
    if way == "directions":
        steps = _draw_rotation(rng) * [[rng.uniform(0.5, 3)] for _ in range(3)]
        spaces = ("left-posterior-superior", "LPS", "RAS", "right-anterior-superior", "LAS")
        space = rng.choice((*spaces, *spaces, "scanner-xyz", "3D-right-handed"))
        fields += [rng.choice((f"space: {space}", f"space: {space}", "space dimension: 3"))]
        fields += [f"space directions: {' '.join([*['none'] * several, *map(_vector, steps)])}"]
        origin = np.array([rng.uniform(-9, 9) for _ in range(3)])
        fields += _some(rng, [f"space origin: {_vector(origin)}"], 0.8)
        fields += _some(rng, ['space units: "mm" "mm" "mm"', 'space units: "cm" "cm" "cm"'], 0.1)
        fields += _some(rng, ["measurement frame: (0,1,0) (1,0,0) (0,0,1)"])
    elif way == "spacings":
        spacings = [rng.choice((1.0, rng.uniform(0.5, 3), -2.0)) for _ in range(3)]
        fields += [f"spacings: {' '.join([*['nan'] * several, _numbers(spacings)])}"]
        fields += _some(rng, [f"axis mins: {' '.join(['nan'] * several + ['1', '2', '3'])}"])
    return fields


def _draw_metaimage(rng: random.Random, folder: Path) -> DrawnHeader:
    kinds = {"CHAR": "i1", "UCHAR": "u1", "SHORT": "i2", "USHORT": "u2", "INT": "i4"}
    kinds |= {"UINT": "u4", "LONG_LONG": "i8", "FLOAT": "f4", "DOUBLE": "f8"}
    name, kind = rng.choice(list(kinds.items()))
    shape, channels = _draw_shape(rng), rng.choice((1, 1, 1, 3))
    big, packed = rng.random() < 0.3, rng.random() < 0.4
    voxels = _draw_voxels(rng, [channels, *shape], (">" if big else "<") + kind)
    content = voxels.tobytes(order="F")
    true, false = rng.choice(("True", "true", "T", "1")), rng.choice(("False", "false", "0"))
    fields = _some(rng, ["ObjectType = Image"], 0.9)
    fields += ["NDims = 3"]
    text = not packed and rng.random() < 0.05
    fields += [f"BinaryData = {false}"] if text else _some(rng, [f"BinaryData = {true}"], 0.9)
    if text:
        content = " ".join(map(str, voxels.ravel(order="F"))).encode()
    order = rng.choice(("BinaryDataByteOrderMSB", "ElementByteOrderMSB"))
    fields += [f"{order} = {true if big else false}"]
    if packed:
        content = zlib.compress(content)
        fields += [f"CompressedData = {true}", f"CompressedDataSize = {len(content)}"]
    else:
        fields += _some(rng, [f"CompressedData = {false}"])
    matrix = rng.choice(("TransformMatrix", "Rotation", "Orientation"))
    fields += _some(rng, [f"{matrix} = {_numbers(_draw_rotation(rng).ravel())}"], 0.7)
    offset = rng.choice(("Offset", "Position", "Origin"))
    fields += _some(rng, [f"{offset} = {_numbers([rng.uniform(-9, 9) for _ in range(3)])}"], 0.7)
    steps = [rng.choice((1.0, rng.uniform(0.5, 3))) for _ in range(3)]
    fields += _some(rng, [f"ElementSpacing = {_numbers(steps)}", "ElementSize = 2 3 4"], 0.6)
    fields += _some(rng, ["CenterOfRotation = 0 0 0", "CenterOfRotation = 1 2 3"], 0.2)
    fields += _some(rng, ["AnatomicalOrientation = RAS", "Modality = MET_MOD_MR", "Comment = a"])
    fields += _some(rng, ["ElementMin = 0", "ElementMax = 9", "Offset : 1 2 3"], 0.05)
    fields += _some(rng, ["ID = 3", "ParentID = 1", "Name = a", "Color = 1 0 0 1"])
    fields += _some(rng, ["ObjectSubType = Image", "DistanceUnits = mm", "TransformType = Rigid"])
    fields += _some(rng, ["ElementToIntensityFunctionSlope = 2", "DistanceUnits = um"], 0.03)
    fields += _some(rng, ["ElementToIntensityFunctionOffset = 3", "ElementNBits = 16"], 0.03)
    fields += [f"DimSize = {_numbers(shape)}"]
    fields += [f"ElementNumberOfChannels = {channels}"] if channels > 1 else []
    fields += [f"ElementType = MET_{name}"]
    detached = rng.random() < 0.4
    if detached and not packed and not text and rng.random() < 0.5:
        fields += [f"HeaderSize = {rng.choice((-1, 16))}"]
        content = bytes(range(16)) + content
    data = "v.raw" if detached else rng.choice(("LOCAL", "Local", "local"))
    fields += [f"ElementDataFile = {data}"]
    path = folder / ("v.mhd" if detached else "v.mha")
    head = rng.choice(("\n", "\n", "\n", "\r\n")).join([*fields, ""]).encode()
    path.write_bytes(head if detached else head + content)
    if detached:
        (folder / "v.raw").write_bytes(content)
    return DrawnHeader(path, read_with_itk)


def _draw_mgh(rng: random.Random, folder: Path) -> DrawnHeader:
    code, kind = rng.choice(((0, ">u1"), (1, ">i4"), (3, ">f4"), (4, ">i2")))
    shape = [*_draw_shape(rng), rng.choice((1, 1, 3))]
    voxels = _draw_voxels(rng, shape, kind)
    good = rng.random() < 0.7
    delta = np.array([rng.uniform(0.5, 3) for _ in range(3)], ">f4")
    rotation = _draw_rotation(rng).astype(">f4")  # columns are the directions of the axes
    centre = np.array([rng.uniform(-90, 90) for _ in range(3)], ">f4")
    header = np.array([1, *shape, code, rng.choice((0, 1))], ">i4").tobytes()
    header += np.array(good, ">i2").tobytes()
    header += delta.tobytes() + rotation.T.tobytes() + centre.tobytes()
    content = header.ljust(284, b"\0") + voxels.tobytes(order="F")
    content += rng.choice((b"", bytes(20), b"\0" * 20 + b"tags"))
    path = folder / rng.choice(("v.mgh", "v.mgz"))
    path.write_bytes(gzip.compress(content) if path.suffix == ".mgz" else content)
    if not good:  # FreeSurfer's coronal slices of 1 mm around the origin
        delta, centre = np.ones(3, ">f4"), np.zeros(3, ">f4")
        rotation = np.array([[-1, 0, 0], [0, 0, 1], [0, -1, 0]], ">f4")
    affine = np.eye(4)
    affine[:3, :3] = rotation.astype(np.float64) * delta.astype(np.float64)
    affine[:3, 3] = centre - affine[:3, :3] @ (np.array(shape[:3]) / 2)
    return DrawnHeader(path, lambda _: OtherReading(voxels, affine))


HEADERS = Attack("headers", "headers drawn at random", prepare_headers, share=1.0)
