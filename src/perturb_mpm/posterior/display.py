"""A posterior to look at: a table for notebooks, a picture, and NIfTI files.

Pictures show array axes as they are, the first to the right and the second upwards, unless an
affine says how the patient lies: then the patient's right is on the left, as radiologists look.
Intervals of volumes are shown only where noise is correlated: noise that is independent at every
voxel averages out over a region, and would make any volume look precise.
"""

from __future__ import annotations

import gzip
import io
import math
import os
import warnings
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perturb_mpm import checks
from perturb_mpm.storage import atomic_open

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

    from perturb_mpm.posterior.posterior import Posterior

LEVEL = 0.95  # of the intervals that are shown
SHOWN_FROM = 0.05  # the minority share from which a voxel's entropy is drawn
_COLOUR_MAP, _BRIGHT_FROM = "inferno", 0.6  # the part of it that outshines the image
_BRIGHTEST_GREY = 0.4
_OUTLINES = ("#4cc9f0", "#80ed99", "#ffffff", "#c8b6ff", "#ff9ebb", "#bfd7ea")
_MM3_IN_ML = 1000.0
NO_INTERVALS = (
    "No intervals: noise that is independent at every voxel says nothing about volumes. "
    "Sample with noise_length, in mm."
)
_EDGES = {  # of a picture: where its letter stands, how it is aligned, and which way it lies
    (0, 0): (0.01, 0.5, "left", "center"),
    (0, 1): (0.99, 0.5, "right", "center"),
    (1, 0): (0.5, 0.01, "center", "bottom"),
    (1, 1): (0.5, 0.99, "center", "top"),
}


def label_names(posterior: Posterior, names: Sequence[str] | None) -> list[str]:
    """Return a name for each label: those given, else "label 1" and so on."""
    if names is None:
        return [f"label {number}" for number in range(posterior.n_labels)]
    if isinstance(names, str) or len(names) != posterior.n_labels:
        raise ValueError(
            f"`names` must be one for each of the {posterior.n_labels} labels, got {names!r}"
        )
    return [str(name) for name in names]


def table(posterior: Posterior) -> str:
    """Return volumes and entropy of each label as an HTML table, with a slice of the entropy."""
    grid = posterior.grid
    spacing = " × ".join(f"{size:g}" for size in grid.spacing)
    shape = " × ".join(map(str, grid.shape))
    low, high = posterior.volume_interval(LEVEL) / _MM3_IN_ML  # (L,) each
    middle = np.median(posterior.volumes, axis=0) / _MM3_IN_ML
    shown = has_intervals(posterior)
    rows = "".join(
        f"<tr><td>{name}</td><td>{middle[label]:.1f}</td>"
        + (f"<td>{low[label]:.1f} to {high[label]:.1f}</td></tr>" if shown else "</tr>")
        for label, name in enumerate(label_names(posterior, None))
    )
    heading = f"<th>{100 * LEVEL:.0f} % of samples, ml</th>" if shown else ""
    note = "" if shown else f"<p>{NO_INTERVALS}</p>"
    picture = _entropy_picture(posterior) if grid.ndim in {2, 3} else ""
    return (
        f"<div><b>Posterior</b>: {posterior.samples} samples, {shape} voxels of {spacing} mm, "
        f"estimator {posterior.estimator}, mean entropy {posterior.mean_entropy():.3f} bits"
        "<table><thead><tr><th></th><th>median volume, ml</th>"
        f"{heading}</tr></thead><tbody>{rows}</tbody></table>{note}{picture}</div>"
    )


def has_intervals(posterior: Posterior) -> bool:
    """Whether the spread of volumes means something: noise was correlated (``noise_length``)."""
    return "lengths_mm" in posterior.parameters.get("perturbation", {})


def plot(
    posterior: Posterior,
    image: ArrayLike | None,
    names: Sequence[str] | None,
    axis: int,
    index: int | None,
    affine: ArrayLike | None = None,
) -> Figure:
    """Return a figure: the slice with its entropy and labels, and the volumes of the samples."""
    grid = posterior.grid
    if affine is not None and grid.ndim != 3:
        raise ValueError(f"`affine` needs an image of 3 axes, got {grid.ndim}")
    view = _View(None if affine is None else _affine(posterior, affine))
    if grid.ndim not in {2, 3}:
        raise ValueError(f"`plot` needs an image of 2 or 3 axes, got {grid.ndim}")
    named = label_names(posterior, names)
    axis = checks.integer(axis, "axis", minimum=-grid.ndim, maximum=grid.ndim - 1)
    anatomy = np.zeros(grid.shape) if image is None else checks.numeric(image, "image")
    if anatomy.shape != grid.shape:
        raise ValueError(f"`image` must have the shape {grid.shape}, got {anatomy.shape}")
    if index is None:
        index = largest_slice(view.turn(posterior.entropy), axis)
    elif grid.ndim == 3:
        most = view.turn(anatomy).shape[axis] - 1
        index = checks.integer(index, "index", minimum=0, maximum=most)

    import matplotlib.pyplot as plt

    figure, (overlay, volumes) = plt.subplots(
        1, 2, figsize=(10.0, 4.2), width_ratios=(5, 4), layout="constrained"
    )
    plt.close(figure)  # a notebook would show it twice
    _draw_slice(overlay, posterior, view.turn(anatomy), axis, index, view)
    _draw_volumes(volumes, posterior, named)
    return figure


class _View:
    """How arrays are turned before they are drawn: as they are, or by an affine (4, 4).

    With an affine the axes become left, anterior and superior: the patient's right is on the left.
    """

    def __init__(self, affine: NDArray[np.float64] | None) -> None:
        self.letters = None if affine is None else ("RL", "PA", "IS")  # at both ends of each axis
        self._turn: NDArray[np.float64] | None = None
        if affine is not None:
            from nibabel.orientations import axcodes2ornt, io_orientation, ornt_transform

            self._turn = ornt_transform(io_orientation(affine), axcodes2ornt(("L", "A", "S")))

    def turn(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return an image with its axes in the order of the picture."""
        if self._turn is None:
            return values
        from nibabel.orientations import apply_orientation

        return apply_orientation(values, self._turn)

    def spacing(self, steps: Sequence[float]) -> list[float]:
        """Return the steps of the axes in the order of the picture."""
        if self._turn is None:
            return list(steps)
        order = np.argsort(self._turn[:, 0])
        return [float(steps[int(axis)]) for axis in order]


def save_nifti(
    posterior: Posterior, folder: str | os.PathLike[str], like: object
) -> dict[str, Path]:
    """Write labels, marginals and entropy; return the path of each."""
    if posterior.grid.ndim != 3:
        raise ValueError(f"`save_nifti` needs an image of 3 axes, got {posterior.grid.ndim}")
    affine = _affine(posterior, like)
    if like is None:
        warnings.warn(
            "nothing says how the patient lies: the files have the spacing alone; name the image "
            "by `like`",
            stacklevel=3,
        )
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    volumes: dict[str, NDArray[Any]] = {
        "labels": posterior.labels,
        "marginals": np.moveaxis(posterior.marginals, 0, -1).astype(np.float32),  # labels last
        "entropy": posterior.entropy.astype(np.float32),
    }
    written = {name: target / f"{name}.nii.gz" for name in volumes}
    for name, volume in volumes.items():
        _write(written[name], volume, affine, "unknown" if like is None else "scanner")
    return written


def largest_slice(values: NDArray[Any], axis: int) -> int:
    """Return the slice of an image across an axis with the largest sum; 0 of a 2-D image."""
    if values.ndim == 2:
        return 0
    return int(values.sum(axis=tuple(set(range(3)) - {axis % 3})).argmax())


def _slice(values: NDArray[Any], axis: int, index: int) -> NDArray[Any]:
    """Return a slice (up, right) of an image, to be drawn from the lower left."""
    return (values if values.ndim == 2 else np.take(values, index, axis=axis)).T


def _draw_slice(
    axes: Axes, posterior: Posterior, anatomy: NDArray[Any], axis: int, index: int, view: _View
) -> None:
    grid = posterior.grid
    shown = _slice(anatomy.astype(np.float64), axis, index)
    labels = _slice(view.turn(posterior.labels), axis, index)
    sure = _slice(view.turn(posterior.minority), axis, index) <= SHOWN_FROM
    spacing = view.spacing(grid.spacing)
    if grid.ndim == 3:
        del spacing[axis]
    fixed: dict[str, Any] = {
        "origin": "lower",
        "aspect": spacing[1] / spacing[0],
        "interpolation": "nearest",
    }
    # The image stays darker than the entropy above it: what shines is uncertain.
    low, high = np.percentile(shown, [0.5, 99.5])
    white = low + (high - low or 1.0) / _BRIGHTEST_GREY
    axes.imshow(shown, cmap="gray", vmin=low, vmax=white, **fixed)
    bits = np.ma.masked_where(sure, _slice(view.turn(posterior.entropy), axis, index))
    top = math.log2(posterior.n_labels)
    drawn = axes.imshow(bits, cmap=_bright_colours(), vmin=0.0, vmax=top, **fixed)
    for label in range(1, posterior.n_labels):
        inside = labels == label
        if inside.any() and not inside.all():
            axes.contour(inside, levels=[0.5], colors=_outline(label), linewidths=0.9)
    if grid.mask is not None:
        inside = _slice(view.turn(grid.mask), axis, index)
        for limits, across in ((axes.set_xlim, 0), (axes.set_ylim, 1)):
            used = np.flatnonzero(inside.any(axis=across))
            if used.size:
                limits(used[0] - 1.5, used[-1] + 1.5)
    axes.set_axis_off()
    axes.set_title("uncertain voxels" if grid.ndim == 2 else f"uncertain voxels, slice {index}")
    if view.letters is not None:
        sides = [letters for number, letters in enumerate(view.letters) if number != axis % 3]
        style: dict[str, Any] = {"transform": axes.transAxes, "color": "w", "weight": "bold"}
        for (side, end), (x, y, ha, va) in _EDGES.items():
            axes.text(x, y, sides[side][end], ha=ha, va=va, **style)
    axes.figure.colorbar(drawn, ax=axes, shrink=0.8, label="entropy, bits")


def _draw_volumes(axes: Axes, posterior: Posterior, names: Sequence[str]) -> None:
    millilitres = posterior.volumes[:, 1:] / _MM3_IN_ML  # (S, L - 1)
    low, high = posterior.volume_interval(LEVEL)[:, 1:] / _MM3_IN_ML
    for row, sampled in enumerate(millilitres.T):
        axes.plot(sampled, np.full(len(sampled), row), "|", color="0.6")
        if has_intervals(posterior):
            axes.hlines(row, low[row], high[row], color="0.25", linewidth=2)
        fill = _outline(row + 1)
        axes.plot(np.median(sampled), row, "o", markerfacecolor=fill, markeredgecolor="0.25")
    axes.set_yticks(range(len(names) - 1), names[1:])
    axes.set_ylim(len(names) - 1.5, -0.5)
    axes.set_xlabel("ml")
    interval = f" and {100 * LEVEL:.0f} % of samples" if has_intervals(posterior) else ""
    axes.set_title(f"volumes: median{interval}")
    if not interval:
        axes.annotate(
            NO_INTERVALS.replace(". ", ".\n").replace(": ", ":\n"),
            (0.0, -0.16),
            xycoords="axes fraction",
            va="top",
            fontsize="small",
        )
    axes.spines[["top", "right"]].set_visible(False)


def _outline(label: int) -> str:
    return _OUTLINES[(label - 1) % len(_OUTLINES)]


def _bright_colours() -> Colormap:
    import matplotlib as mpl
    from matplotlib.colors import ListedColormap

    return ListedColormap(mpl.colormaps[_COLOUR_MAP](np.linspace(_BRIGHT_FROM, 1.0, 256)))


def _entropy_picture(posterior: Posterior) -> str:
    from matplotlib.image import imsave

    entropy = posterior.entropy
    bits = _slice(entropy, -1, largest_slice(entropy, -1))
    file = io.BytesIO()
    top = math.log2(posterior.n_labels)
    imsave(file, bits[::-1], cmap=_COLOUR_MAP, vmin=0.0, vmax=top, format="png")
    data = b64encode(file.getvalue()).decode()
    return (
        '<img alt="Entropy of the most uncertain slice" style="height: 12em; '
        f'image-rendering: pixelated" src="data:image/png;base64,{data}">'
    )


def _affine(posterior: Posterior, like: Any) -> NDArray[np.float64]:  # noqa: ANN401
    """Return the affine of an image, of a file or of numbers; without any, that of the spacing."""
    if like is None:
        return np.diag([*posterior.grid.spacing, 1.0])
    shape = posterior.grid.shape
    if isinstance(like, str | os.PathLike):
        import nibabel as nib

        like = nib.load(like)
    if hasattr(like, "affine"):
        if tuple(like.shape[:3]) != shape:
            raise ValueError(f"`like` must have the shape {shape}, got {tuple(like.shape)}")
        like = like.affine
    affine: NDArray[np.float64] = checks.numeric(like, "like").astype(np.float64)
    if affine.shape != (4, 4):
        raise ValueError(
            "`like` must be a NIfTI file, a nibabel image or an affine (4, 4), got the shape "
            f"{affine.shape}"
        )
    checks.finite(affine, "like")
    return affine


def _write(path: Path, volume: NDArray[Any], affine: NDArray[np.float64], code: str) -> None:
    import nibabel as nib

    image = nib.Nifti1Image(volume, affine)
    image.set_sform(affine, code=code)
    image.set_qform(affine, code=code)
    image.header.set_xyzt_units(xyz="mm")
    # No name and no time in the header of the stream: equal volumes, equal files.
    with atomic_open(path) as file, gzip.GzipFile("", "wb", 6, file, mtime=0) as stream:
        image.to_stream(stream)
