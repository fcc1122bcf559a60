"""One patient: the files of a case, read, compared with each other and checked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import TypeGuard, cast, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perturb_mpm.files.geometry import Geometry
from perturb_mpm.files.images import (
    ImageSet,
    clean_images,
    derive_mask,
    find_mask,
    first_voxel,
    read_image_volumes,
    voxel_count,
)
from perturb_mpm.files.labels import (
    LabelScheme,
    RegionValues,
    choose_scheme,
    confidence_warning,
    label_map_values,
    probabilities_from_label_map,
)
from perturb_mpm.files.names import other_patient_warnings
from perturb_mpm.files.nnunet import (
    Dataset,
    KnownGrid,
    NpzAxes,
    find_dataset,
    read_dataset,
    read_npz,
)
from perturb_mpm.files.probabilities import (
    EnsembleMaps,
    Kind,
    background_warning,
    combine_members,
    distribution_from_maps,
    foreground_warning,
    read_members,
)
from perturb_mpm.files.source import (
    AnyPath,
    Digests,
    InputError,
    Paths,
    Source,
    all_paths,
    require_readable,
)
from perturb_mpm.files.volumes import Volume, align, read_volume_3d
from perturb_mpm.model import Grid
from perturb_mpm.posterior import decide_labels


@dataclass(frozen=True)
class Case:
    """One patient on one grid: images, probabilities, mask, and the truth where it is known.

    Examples
    --------
    >>> case = pm.read_case("t1c.nii.gz", "case.npz")
    >>> case.geometry.spacing, case.mask_origin
    ((8.0, 8.0, 8.0), 'derived: the 2 601 of 10 500 voxels where any image is not 0')
    """

    images: dict[str, NDArray[np.float32]]  # name -> (X, Y, Z)
    probabilities: NDArray[np.float32]  # (L, X, Y, Z), sums to 1
    mask: NDArray[np.bool_]  # (X, Y, Z)
    mask_origin: str  # "given", or in words how it was derived
    labels: LabelScheme
    geometry: Geometry
    hashes: dict[str, str]  # file name -> SHA-256 of every file that was read
    warnings: tuple[str, ...] = ()
    truth: NDArray[np.uint8] | None = None  # (X, Y, Z), labels 0 … L − 1
    regions: RegionValues = field(default_factory=dict)
    """Those of the model that made the probabilities, in label values."""
    ensemble: EnsembleMaps | None = None
    """Of several members, whose mean the probabilities are."""

    @cached_property
    def grid(self) -> Grid:
        """The voxels inside the mask, with their spacing in mm."""
        return Grid(self.geometry.shape, self.geometry.spacing, self.mask)

    def _repr_html_(self) -> str:
        shape = " × ".join(map(str, self.geometry.shape))
        steps = " × ".join(f"{step:g}" for step in self.geometry.spacing)
        rows = {
            "images": ", ".join(self.images),
            "grid": f"{shape} voxels of {steps} mm, axes {self.geometry.axis_codes}",
            "labels": ", ".join(f"{v} {n}" for v, n in zip(self.labels.values, self.labels.names)),
            "mask": f"{np.count_nonzero(self.mask)} voxels, {self.mask_origin}",
            "truth": "known" if self.truth is not None else "not known",
            **{f"note {number}": words for number, words in enumerate(self.warnings, start=1)},
        }
        cells = "".join(f"<tr><th>{k}</th><td>{escape(v)}</td></tr>" for k, v in rows.items())
        return f"<div><b>Case</b><table>{cells}</table></div>"

    @classmethod
    def from_images(
        cls,
        images: ImageSet,
        probabilities: NDArray[np.float32],
        labels: LabelScheme,
        truth: NDArray[np.uint8] | None = None,
    ) -> Case:
        """Return the case of images whose probabilities (L, X, Y, Z) come from no file."""
        return cls(**vars(images), probabilities=probabilities, labels=labels, truth=truth)


def read_case(
    images: Paths | Mapping[str, ArrayLike] | Sequence[ArrayLike],
    probabilities: Paths | ArrayLike,
    *,
    kind: Kind = "probabilities",
    confidence: float = 0.9,
    labels: LabelScheme | Sequence[int] | None = None,
    dataset_json: AnyPath | None = None,
    reference: AnyPath | None = None,
    npz_axes: NpzAxes | None = None,
    truth: AnyPath | None = None,
    mask: AnyPath | ArrayLike | None = None,
    image_names: Sequence[str] | None = None,
    affine: ArrayLike | None = None,
    background: int | None = None,
    keep_members: bool = False,
    named_by: str | None = None,
) -> Case:
    """Read images and probabilities on one grid; raise ``InputError`` in one line where they fail.

    Parameters
    ----------
    images
        A file for each sequence, NIfTI or another format. Everything that is written lies on the
        grid of the first. Or arrays (X, Y, Z), by name or in a list; then probabilities and mask
        are arrays too, (L, X, Y, Z) and (X, Y, Z).
    probabilities
        One 4-D NIfTI with the labels last, one 3-D NIfTI for each label, or nnU-Net's .npz.
        Background comes first. Several 4-D NIfTI or .npz are the members of an ensemble: the case
        has their mean, and where they disagree.
    kind
        What these files hold: ``probabilities``, ``logits`` (a network's raw scores) or
        ``labels``, a hard label map that is trusted to ``confidence`` at every voxel.
    labels
        The user's own numbers and names of the labels, or the numbers alone, background first;
        else from ``dataset_json``, else 0 … L − 1.
    dataset_json
        nnU-Net's, looked for beside an .npz where it is not given. It says which labels there
        are, and which nested regions the maps are where a model was trained on regions.
    reference
        A file on whose grid, and in whose order of axes, the voxels of an .npz are; else the label
        map beside it says so, else the first image. Near-exact agreement with the label map
        decides in which order nnU-Net has stored the axes.
    npz_axes
        ``image`` where the axes of an .npz are those of the image, ``ras`` where nnU-Net's reader
        has turned them to RAS; needed where neither label map nor plans.json shows it.
    truth
        The true label map of a labelled case, which shows it too; it is not read for anything else.
    mask
        A NIfTI that is not 0 where voxels count; else it is derived from the images.
    image_names
        Short names of the images; else from their files' names.
    affine
        Of arrays: from indices to mm, (4, 4). Without it voxels are 1 mm wide, and nothing says
        how the patient lies.
    background
        The value of voxels outside the mask in what is written: that of the first label where 0
        is a label, else 0.
    keep_members
        Keep every member of an ensemble too, which takes memory.
    named_by
        The argument that errors name where one has named images and mask, such as ``data``.

    Examples
    --------
    >>> case = pm.read_case(["t1c.nii.gz", "flair.nii.gz"], "case.npz")
    >>> list(case.images), case.probabilities.shape
    (['t1c', 'flair'], (5, 20, 25, 21))
    """
    if kind not in get_args(Kind):
        raise InputError(f"`kind` must be one of {', '.join(get_args(Kind))}, got {kind}")
    if probabilities is None:
        raise InputError(
            "`probabilities` must name a network's output, got None: a model of perturb-mpm train "
            "makes them from images alone"
        )
    if _are_arrays(images):
        return _case_from_arrays(
            images, probabilities, affine, mask, kind=kind, labels=labels, image_names=image_names
        )
    if npz_axes not in (None, *get_args(NpzAxes)):
        raise InputError(f"`npz_axes` must be image or ras, got {npz_axes}")
    images, probabilities = cast("Paths", images), cast("Paths", probabilities)
    mask = cast("AnyPath | None", mask)
    known = KnownGrid(reference, npz_axes, truth)
    paths = all_paths(probabilities)
    sources = [Source("probabilities", path) for path in paths]
    for argument, path in ((named_by or "mask", mask), ("reference", reference)):
        sources += [Source(argument, Path(path))] if path else []
    require_readable(sources)

    digests = Digests()
    dataset = _find_dataset(paths, dataset_json, digests)
    with ThreadPoolExecutor(1) as beside:  # unpacking leaves Python free
        if kind != "labels" and len(paths) == 1 and paths[0].suffix == ".npz":
            known = replace(known, maps=beside.submit(read_npz, sources[0]))
        volumes = read_image_volumes(
            images,
            digests,
            image_names=image_names,
            channels=dataset.channels if dataset else None,
            named_by=named_by,
        )
    image = next(iter(volumes.values()))
    ensemble = None
    if kind == "labels":
        label_map = _read_one_label_map(paths, digests, image)
        found = _from_label_map(label_map, confidence, labels, dataset, background)
    else:
        members = (
            _from_maps(align(maps, image), kind, labels, dataset, background)
            for maps in read_members(paths, kind, dataset, known, image, digests)
        )
        found, ensemble = _combine(members, keep=keep_members)

    inside, origin, mask_notes = find_mask(volumes, mask, digests, named_by)
    notes = (
        *other_patient_warnings(image.source.path, [*paths, *all_paths(mask or [])]),
        *found.warnings,
        *mask_notes,
        *image.geometry.warnings(),
    )
    case = _assemble(volumes, found, inside, origin, notes, digests.by_name())
    return replace(case, regions=_region_values(dataset, found.labels), ensemble=ensemble)


def _are_arrays(images: object) -> TypeGuard[Mapping[str, ArrayLike] | Sequence[ArrayLike]]:
    """Whether images are arrays, in a mapping or a list, and not the names of files."""
    given = list(images.values()) if isinstance(images, Mapping) else images
    return isinstance(given, list | tuple) and any(isinstance(each, np.ndarray) for each in given)


def _case_from_arrays(
    images: Mapping[str, ArrayLike] | Sequence[ArrayLike],
    probabilities: object,
    affine: ArrayLike | None,
    mask: object,
    *,
    kind: Kind,
    labels: LabelScheme | Sequence[int] | None,
    image_names: Sequence[str] | None,
) -> Case:
    """Return the case of arrays in memory."""
    from nibabel.nifti1 import Nifti1Header

    if not isinstance(images, Mapping):
        images = {f"image {number}": each for number, each in enumerate(images, start=1)}
    names = list(image_names or images)
    arrays = [np.array(each, dtype=np.float32) for each in images.values()]
    shape = arrays[0].shape
    if len(names) != len(arrays) or len(shape) != 3 or any(e.shape != shape for e in arrays):
        shapes = ", ".join(str(each.shape) for each in arrays)
        raise InputError(
            f"`images` must be arrays (X, Y, Z) of one shape, with a name each, got {shapes}"
        )
    maps = np.array(probabilities, dtype=np.float32)
    if maps.ndim != 4 or maps.shape[1:] != shape:
        last = " (its labels come last: np.moveaxis(probabilities, -1, 0))"
        hint = last if maps.shape[:-1] == shape else ""
        expected = ", ".join(map(str, shape))
        raise InputError(
            f"`probabilities` must have the shape (labels, {expected}), got {maps.shape}{hint}"
        )
    matrix = np.eye(4) if affine is None else np.array(affine, dtype=np.float64)
    header = Nifti1Header()
    header.set_data_shape(shape)
    header.set_sform(matrix, code="unknown" if affine is None else "scanner")
    spacing = tuple(float(step) for step in np.linalg.norm(matrix[:3, :3], axis=0))
    geometry = Geometry(shape, matrix, spacing, header)  # type: ignore[arg-type] # three axes
    volumes = {
        name: Volume(Source("images", Path(name)), array, geometry)
        for name, array in zip(names, arrays)
    }
    source = Source("probabilities", Path("array"))
    found = _from_maps(Volume(source, np.moveaxis(maps, 0, -1), geometry), kind, labels, None, None)
    if mask is None:
        inside, origin = derive_mask({name: each.voxels for name, each in volumes.items()})
    else:
        inside, origin = np.asarray(mask) != 0, "given"
        if inside.shape != shape or not inside.any():
            raise InputError(f"`mask` must have voxels, and the shape {shape}, got {inside.shape}")
    hashed = dict(zip((*names, "probabilities"), (*arrays, maps)))
    hashes = {name: sha256(array.tobytes()).hexdigest() for name, array in hashed.items()}
    return _assemble(volumes, found, inside, origin, (), hashes)


_UNIFORM = 1e-3  # probabilities that differ by less are the same


@dataclass(frozen=True)
class _Distribution:
    """What the probability files come to."""

    source: Source
    probabilities: NDArray[np.float32]  # (L, X, Y, Z)
    labels: LabelScheme
    empty: NDArray[np.bool_] | None = None  # (X, Y, Z), voxels without any probability
    warnings: tuple[str, ...] = ()


def _assemble(
    volumes: Mapping[str, Volume],
    found: _Distribution,
    mask: NDArray[np.bool_],
    origin: str,
    notes: Iterable[str],
    hashes: dict[str, str],
) -> Case:
    """Return the case of images and probabilities on one grid, inside a mask of this origin."""
    warnings = [*notes, *_mismatch_warnings(found, mask)]
    if found.empty is not None and found.empty.any():
        mask, origin = _leave_out_empty(mask, origin, found.empty, found.source)
        warnings.append(
            f"{voxel_count(found.empty)} have no probability at all; they are outside the mask and "
            "count as background"
        )
    images, image_warnings = clean_images(volumes, mask)
    return Case(
        images=images,
        probabilities=found.probabilities,
        mask=mask,
        mask_origin=origin,
        labels=found.labels,
        geometry=next(iter(volumes.values())).geometry,
        hashes=hashes,
        warnings=(*warnings, *image_warnings),
    )


def _from_maps(
    maps: Volume,
    kind: Kind,
    labels: LabelScheme | Sequence[int] | None,
    dataset: Dataset | None,
    background: int | None,
) -> _Distribution:
    distribution, empty = distribution_from_maps(maps, kind, dataset)
    known = dataset.labels if dataset else None
    scheme = choose_scheme(len(distribution), labels, known, background)
    return _Distribution(maps.source, distribution, scheme, empty, maps.notes)


def _combine(
    found: Iterable[_Distribution], *, keep: bool
) -> tuple[_Distribution, EnsembleMaps | None]:
    """Return the mean of an ensemble's members, or the only one as it is."""
    seen: list[_Distribution] = []  # without their maps

    def distributions() -> Iterator[NDArray[np.float32]]:
        for member in found:
            if seen and len(member.labels) != len(seen[0].labels):
                raise member.source.error(
                    f"must have the {len(seen[0].labels)} labels of {seen[0].source.path}, as a "
                    f"member of the same ensemble, got {len(member.labels)}"
                )
            seen.append(replace(member, probabilities=np.zeros(0, np.float32)))
            yield member.probabilities

    mean, ensemble = combine_members(distributions(), keep=keep)
    empty = [member.empty for member in seen if member.empty is not None]
    combined = replace(
        seen[0],
        probabilities=mean,
        empty=np.logical_or.reduce(empty) if empty else None,
        warnings=tuple(dict.fromkeys(words for member in seen for words in member.warnings)),
    )
    return combined, ensemble


def _from_label_map(
    label_map: Volume,
    confidence: float,
    labels: LabelScheme | Sequence[int] | None,
    dataset: Dataset | None,
    background: int | None,
) -> _Distribution:
    if labels is None and dataset is not None:
        labels = dataset.labels
    if labels is None:
        labels = label_map_values(label_map.voxels, label_map.source)
    scheme = choose_scheme(len(labels), labels, None, background)
    distribution = probabilities_from_label_map(
        label_map.voxels, scheme.values, confidence, label_map.source
    )
    warnings = (*label_map.notes, confidence_warning(confidence))
    return _Distribution(label_map.source, distribution, scheme, warnings=warnings)


def _read_one_label_map(paths: Sequence[Path], digests: Digests, image: Volume) -> Volume:
    """Read a label map on the image's grid."""
    if len(paths) != 1:
        raise InputError(
            f'`probabilities` must name one label map with `kind="labels"`, got {len(paths)}'
        )
    source = Source("probabilities", paths[0])
    return align(read_volume_3d(source, digests, "a label map"), image)


def _find_dataset(
    probabilities: Sequence[Path], given: AnyPath | None, digests: Digests
) -> Dataset | None:
    path, argument = Path(given) if given else None, "dataset_json"
    archives = [each for each in probabilities if each.suffix == ".npz"]
    if path is None and archives:
        path, argument = find_dataset(archives[0]), "probabilities"
    if path is None:
        return None
    source = Source(argument, path)
    digests.add(source)
    return read_dataset(source)


def _region_values(dataset: Dataset | None, scheme: LabelScheme) -> RegionValues:
    """Return the regions of a model that was trained on them, in the values of its labels."""
    if dataset is None or dataset.regions is None or len(dataset.labels) != len(scheme):
        return {}
    return {
        name: tuple(scheme.values[label] for label in members)
        for name, members in dataset.regions.members().items()
    }


def _mismatch_warnings(found: _Distribution, mask: NDArray[np.bool_]) -> Iterator[str]:
    """Yield what speaks against the maps being those of the patient in the mask."""
    several = np.count_nonzero(mask) > 1
    alike = several and all(np.ptp(share[mask]) < _UNIFORM for share in found.probabilities)
    # A patient without a tumour is all background.
    if alike and found.probabilities[0][mask].max() <= 1 / 2:
        yield "the probabilities are the same at every voxel: they say nothing about any place"
        return
    if not found.labels.has_background:
        return
    labels = decide_labels(found.probabilities)  # (X, Y, Z)
    background = background_warning(labels, mask, found.labels.names)
    if background is not None:
        yield background
    elif (outside := foreground_warning(labels, mask)) is not None:
        yield outside


def _leave_out_empty(
    mask: NDArray[np.bool_], origin: str, empty: NDArray[np.bool_], source: Source
) -> tuple[NDArray[np.bool_], str]:
    """Refuse voxels of a given mask that have no probability; leave them out of a derived one."""
    uncovered = mask & empty
    if not uncovered.any():
        return mask, origin
    if origin == "given":
        raise source.error(
            "must have probabilities inside the mask, got 0 for every label at "
            f"{voxel_count(uncovered)}, the first at {first_voxel(uncovered)}"
        )
    left = mask & ~empty
    if not left.any():
        raise source.error("must have probabilities where the images are, got 0 for every label")
    return left, f"{origin}, less {voxel_count(uncovered)} without any probability"
