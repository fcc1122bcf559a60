"""The paper's two drawings, computed: the way of Algorithm 1 (figure 1), the maxima (figure 2)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lab.comparators import Enumeration
from lab.figures import BLACK, BLUE, LABEL_COLOURS, ORANGE, new_figure, save_png
from lab.synthetic.measuring import KernelSetting, mean_field_marginals, noise_seed, problem
from perturb_mpm.inference import mean_field
from perturb_mpm.model import BilateralKernel, DenseCRF, SpatialKernel, unary_from_probabilities
from perturb_mpm.noise import gumbel
from perturb_mpm.phantom import glioblastoma
from perturb_mpm.sampling import sample

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from perturb_mpm.posterior import Posterior

SPACING_MM = 4.0
MARGIN_MM = 12.0
SAMPLES = 100
ITERATIONS = 10
SHOWN = 3  # samples whose three steps are drawn
LIKELIEST = 12  # labellings of a panel of figure 2


@dataclass(frozen=True, eq=False)
class Overview:
    """One slice of a made-up patient, and what Algorithm 1 makes of it."""

    image: NDArray[np.float32]  # (X, Y)
    label_names: tuple[str, ...]
    crf: DenseCRF
    perturbed: list[NDArray[np.int64]]
    """Of the first samples, the label of least U − γ, (X, Y) each."""
    fields: list[NDArray[np.float32]]
    """Of these, the mean field of the perturbed problem, (L, X, Y) each."""
    unperturbed: NDArray[np.int64]
    """The MPM labels without noise, (X, Y)."""
    posterior: Posterior


def compute_overview(seed: int = 0) -> Overview:
    """Run Algorithm 1 on the slice with most tumour, with the exact engine."""
    phantom = glioblastoma(seed, spacing_mm=SPACING_MM)
    z = int((phantom.truth > 0).sum(axis=(0, 1)).argmax())
    tumour, margin = np.argwhere(phantom.truth[:, :, z] > 0), int(MARGIN_MM / SPACING_MM)
    x, y = (
        slice(max(0, low - margin), high + 1 + margin)
        for low, high in zip(tumour.min(axis=0), tumour.max(axis=0))
    )
    images = phantom.images[:, x, y, z]  # (C, X, Y)
    crf = DenseCRF(
        unary=unary_from_probabilities(phantom.probabilities[:, x, y, z]),
        kernels=[
            SpatialKernel(sigma=3.0, weight=1.0),
            BilateralKernel(images, sigma_space=20.0, sigma_intensity=0.5, weight=3.0),
        ],
        spacing=(SPACING_MM, SPACING_MM),
    )
    noise = gumbel(seed, range(SHOWN), crf.grid.index, crf.n_labels)  # (B, L, N)
    perturbed, fields = [], []
    for each in noise:
        unary = crf.grid.scatter(crf.energies - each, 0.0)  # (L, X, Y)
        found = DenseCRF(unary=unary, kernels=crf.kernels, spacing=crf.grid.spacing)
        perturbed.append(unary.argmin(axis=0))
        fields.append(mean_field(found, ITERATIONS, engine="reference").marginals)
    posterior = sample(crf, SAMPLES, seed, iterations=ITERATIONS, engine="reference")
    channel = phantom.channel_names.index("T1c")
    labels = mean_field(crf, ITERATIONS, engine="reference").marginals.argmax(axis=0)
    names = phantom.label_names
    return Overview(images[channel], names, crf, perturbed, fields, labels, posterior)


def draw_overview(file: IO[bytes], found: Overview) -> None:
    """Write the figure as a PNG: image, three samples step by step, marginals and histograms."""
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch
    from matplotlib.patheffects import withStroke

    n_labels = found.crf.n_labels
    labels: dict[str, Any] = {
        "cmap": ListedColormap(LABEL_COLOURS[:n_labels]),
        "vmin": -0.5,
        "vmax": n_labels - 0.5,
    }
    figure = new_figure(12.6, 6.6)
    grid = figure.add_gridspec(3, 6, width_ratios=(1, 1, 1, 1, 1, 1.35))
    axes = np.array([[figure.add_subplot(grid[i, j]) for j in range(6)] for i in range(3)])
    _show(axes[0, 0], found.image, "image (T1c)", cmap="gray")
    _show(
        axes[1, 0],
        found.crf.energies.argmin(axis=0).reshape(found.image.shape),
        "label of least U",
        **labels,
    )
    _show(axes[2, 0], found.unperturbed, "MPM, not perturbed", **labels)
    for row, (perturbed, field) in enumerate(zip(found.perturbed, found.fields)):
        number = f"sample {row + 1}"
        _show(axes[row, 1], perturbed, f"{number}: least U − γ", **labels)
        _show(
            axes[row, 2],
            field.max(axis=0),
            "largest Q (0.2 to 1)",
            cmap="viridis",
            vmin=0.2,
            vmax=1,
        )
        _show(axes[row, 3], field.argmax(axis=0), "its MPM labels", **labels)
    points = uncertain_voxels(found.posterior.entropy)
    _show(axes[0, 4], found.posterior.labels, f"most votes of {SAMPLES}", **labels)
    most = float(found.posterior.entropy.max())
    _show(
        axes[1, 4], found.posterior.entropy, f"entropy (0 to {most:.1f} bits)", cmap="magma", vmin=0
    )
    axes[2, 4].axis("off")
    axes[2, 4].legend(
        handles=[
            Patch(facecolor=colour, edgecolor="0.6", label=name)
            for colour, name in zip(LABEL_COLOURS, found.label_names)
        ],
        loc="center",
        fontsize=8,
        frameon=False,
    )
    seen = [withStroke(linewidth=2.5, foreground="black")]  # white in black: on light and dark
    for row, (x, y) in enumerate(points):
        for panel in (axes[0, 0], axes[1, 4]):
            panel.plot(
                x,
                y,
                "o",
                markerfacecolor="none",
                markeredgecolor="white",
                path_effects=seen,
            )
            panel.annotate(
                "abc"[row],
                (x, y),
                (4, 3),
                textcoords="offset points",
                fontsize=9,
                color="white",
                weight="bold",
                path_effects=seen,
            )
        shares = found.posterior.counts[:, x, y] / SAMPLES
        axes[row, 5].bar(range(n_labels), shares, color=LABEL_COLOURS[:n_labels], edgecolor="0.4")
        axes[row, 5].set(ylim=(0, 1), xticks=[], ylabel="share of samples")
        axes[row, 5].set_title(f"voxel {'abc'[row]}: histogram of labels", fontsize=9)
    save_png(figure, file)


def uncertain_voxels(entropy: NDArray[np.floating], apart: int = 5) -> list[tuple[int, int]]:
    """Return three voxels (x, y) of large entropy, none within ``apart`` voxels of another."""
    chosen: list[tuple[int, int]] = []
    for flat in np.argsort(-entropy, axis=None, kind="stable"):
        x, y = (int(each) for each in np.unravel_index(flat, entropy.shape))
        if all(max(abs(x - a), abs(y - b)) > apart for a, b in chosen):
            chosen.append((x, y))
        if len(chosen) == SHOWN:
            break
    return chosen


def _show(axes: Axes, values: NDArray[Any], title: str, **look: Any) -> None:  # noqa: ANN401
    axes.imshow(values.T, origin="lower", interpolation="nearest", **look)
    axes.set_title(title, fontsize=9)
    axes.set_xticks([])
    axes.set_yticks([])


@dataclass(frozen=True, eq=False)
class PerturbedProblem:
    """All labellings of one perturbed problem, likeliest first."""

    number: int
    labellings: NDArray[np.uint8]  # (2^N, N)
    p: NDArray[np.float64]  # (2^N,)
    q: NDArray[np.float64]  # (2^N,)

    @property
    def coincide(self) -> bool:
        """Whether the labelling of largest P has the largest Q too."""
        return int(self.p.argmax()) == int(self.q.argmax())


def perturbed_problem(draw: int, number: int, seed: int) -> PerturbedProblem:
    """Return P and Q of sample ``number`` of a problem of 3 × 3 voxels, w = σ = 1."""
    crf = problem(9, draw, KernelSetting(1.0, 1.0, self_term=False))
    noise = gumbel(noise_seed(seed, draw), range(number, number + 1), crf.grid.index, 2)[0]
    unary = crf.grid.scatter(crf.energies - noise, 0.0)
    perturbed = DenseCRF(unary=unary, kernels=crf.kernels)
    labellings = (np.arange(2**9)[:, np.newaxis] >> np.arange(8, -1, -1) & 1).astype(np.uint8)
    q = mean_field_marginals(perturbed)  # (N,)
    of_q = np.where(labellings == 1, q, 1 - q).prod(axis=1)
    of_p = Enumeration(perturbed).probability(labellings)
    order = np.argsort(-of_p, kind="stable")
    return PerturbedProblem(number, labellings[order], of_p[order], of_q[order])


def draw_maxima(file: IO[bytes], seed: int = 0) -> None:
    """Write the figure as a PNG: the first sample whose maxima coincide, the first whose do not."""
    chosen: dict[bool, PerturbedProblem] = {}
    number = 0
    while len(chosen) < 2:
        found = perturbed_problem(0, number, seed)
        chosen.setdefault(found.coincide, found)
        number += 1
    figure = new_figure(10.2, 6.4)
    for axes, coincide in zip(figure.subplots(2, 1), (True, False)):
        _draw_problem(axes, chosen[coincide])
    save_png(figure, file)


def _draw_problem(axes: Axes, found: PerturbedProblem) -> None:
    """Draw P and Q over the likeliest labellings, the labellings below, the maxima framed."""
    from matplotlib.patches import Patch

    shown = sorted({*range(LIKELIEST), int(found.q.argmax())})
    places = np.arange(len(shown))
    for shift, values, colour in ((-0.2, found.p, BLUE), (0.2, found.q, ORANGE)):
        edges = [BLACK if each == values.argmax() else "none" for each in shown]
        axes.bar(
            places + shift,
            values[shown],
            0.38,
            color=colour,
            edgecolor=edges,
            linewidth=2.5,
        )
    words = "maxima coincide: MPM = MAP" if found.coincide else "maxima differ: MPM ≠ MAP"
    axes.set_title(f"sample {found.number}: {words}", fontsize=10, loc="left")
    axes.set(ylabel="probability", xticks=[], xlim=(-0.7, len(shown) - 0.3))
    names = {BLUE: "P, by enumeration", ORANGE: "Q, mean field"}
    handles = [Patch(facecolor=colour, label=name) for colour, name in names.items()]
    handles.append(Patch(facecolor="none", edgecolor=BLACK, linewidth=2.5, label="maximum"))
    axes.legend(handles=handles, fontsize=9, frameon=False)
    for place, each in zip(places, shown):
        inset = axes.inset_axes(
            (place - 0.3, -0.34, 0.6, 0.26), transform=axes.get_xaxis_transform()
        )
        inset.imshow(found.labellings[each].reshape(3, 3), cmap="gray_r", vmin=-0.3, vmax=1.2)
        inset.set(xticks=[], yticks=[])
    for before, after in pairwise(shown):
        if after - before > 1:
            axes.axvline(places[shown.index(after)] - 0.5, color="0.6", linestyle=":")
