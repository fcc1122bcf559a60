"""Does the spread of samples predict that of raters? Four radiologists on eight lung nodules.

The outlines (LIDC-IDRI) come without images, so the probabilities are made up from the outlines of
one or two readers: the mean of 1/(1 + exp(d/s)), d the signed distance to each in mm. The softness
s is learned on the other nodules, where readers are held against each other. What the samples say
is then held against the radiologists who were not asked.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, permutations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lab.patients import Patient, labelled_case
from lab.words import markdown_table, paragraph
from perturb_mpm.biomarkers import crps
from perturb_mpm.evaluation import (
    binary_entropy_percent,
    curvas_crps,
    curvas_ece,
    generalized_energy_distance,
    rater_correlation,
)
from perturb_mpm.files import InputError, LabelScheme, Source, read_volume
from perturb_mpm.progress import Progress
from perturb_mpm.run import RunSettings, build_crf, build_sampler, decide_settings
from perturb_mpm.tune import nan_mean

SCHEME = LabelScheme((0, 1), ("background", "nodule"))
MARGIN_MM = 10.0
SOFTNESS_MM = np.geomspace(0.2, 6.0, 35)
DEFAULT, WHITE, FIXED = "defaults of run", "full strength, white noise", "fixed width"
ASKED = {1: "one reader", 2: "two readers"}
SIGNIFICANT = 0.05
_KEPT = 24  # samples that are compared with the raters voxel by voxel
_LEAST = 1e-6


@dataclass(frozen=True, eq=False)
class Nodule:
    """What several readers drew, with a margin of ``MARGIN_MM`` around them."""

    name: str
    drawings: NDArray[np.bool_]  # (R, X, Y, Z)
    affine: NDArray[np.float64]

    @property
    def volumes_ml(self) -> NDArray[np.float64]:
        """The volume of each drawing, (R,)."""
        voxel_ml = abs(float(np.linalg.det(self.affine[:3, :3]))) / 1000
        volumes: NDArray[np.float64] = self.drawings.sum(axis=(1, 2, 3)) * voxel_ml
        return volumes

    @property
    def spread(self) -> float:
        """The standard deviation of the logarithms of the readers' volumes."""
        return float(np.log(self.volumes_ml).std(ddof=1))

    def distance_mm(self, reader: int) -> NDArray[np.float64]:
        """Return the signed distance to one reader's border, (X, Y, Z), negative inside."""
        from scipy.ndimage import distance_transform_edt

        drawn, step = self.drawings[reader], np.abs(np.diag(self.affine))[:3]
        outside, inside = (distance_transform_edt(part, sampling=step) for part in (~drawn, drawn))
        signed = outside - inside
        half = np.sign(signed) * step.min() / 2  # the border lies between two voxels
        distance: NDArray[np.float64] = signed - half
        return distance


@dataclass(frozen=True)
class ReaderRow:
    """One way to sample a nodule from some readers' outlines, held against the other readers."""

    nodule: str
    readers: tuple[int, ...]
    method: str
    spread: float
    """The standard deviation of the logarithms of the sampled volumes."""
    inside: float
    """The share of the other readers' volumes inside the central 95 % of the sampled ones."""
    crps_log: float
    """The mean CRPS of the logarithms of the other readers' volumes."""
    energy_distance: float = math.nan
    rater_correlation: float = math.nan
    curvas_ece: float = math.nan
    curvas_crps_ml: float = math.nan


def read_nodules(folder: Path) -> list[Nodule]:
    """Read all nodules of a folder."""
    paths = sorted(folder.glob("nodule*.nii.gz"))
    if len(paths) < 3:
        raise InputError(f"`data` must hold three nodules or more, got {folder} with {len(paths)}")
    found = []
    for path in paths:
        volume = read_volume(Source("data", path))
        step = np.array(volume.geometry.spacing[:3])
        pad = [(0, 0), *((n, n) for n in np.ceil(MARGIN_MM / step).astype(int))]
        drawings = np.pad(np.moveaxis(volume.voxels, 3, 0) > 0, pad)
        found.append(Nodule(path.name.split("_")[0], drawings, np.diag([*step, 1.0])))
    return found


def learn_softness(nodules: Iterable[Nodule]) -> float:
    """Return the softness s (mm) by which readers predict each other best: the log score."""
    losses = np.zeros(len(SOFTNESS_MM))
    for nodule in nodules:
        for reader in range(len(nodule.drawings)):
            distance = nodule.distance_mm(reader)
            near = np.abs(distance) < MARGIN_MM
            shares = np.delete(nodule.drawings, reader, axis=0)[:, near].mean(axis=0)  # (n,)
            for number, softness in enumerate(SOFTNESS_MM):
                x = distance[near] / softness  # −log p = log(1 + e^x), −log(1 − p) = that − x
                losses[number] += float((np.logaddexp(0, x) - (1 - shares) * x).mean())
    return float(SOFTNESS_MM[losses.argmin()])


def reader_patient(nodule: Nodule, readers: tuple[int, ...], softness: float, seed: int) -> Patient:
    """Return a nodule as some readers' outlines alone tell it, with an image made up from these."""
    from scipy.ndimage import gaussian_filter

    distances = [nodule.distance_mm(reader) for reader in readers]
    p = np.mean([1 / (1 + np.exp(each / softness)) for each in distances], axis=0)
    drawn = nodule.drawings[list(readers)].mean(axis=0)  # (X, Y, Z)
    noise = np.random.default_rng([seed, *readers]).normal(0, 0.3, drawn.shape)
    image = gaussian_filter(drawn, 1 / np.abs(np.diag(nodule.affine))[:3]) + noise
    mask = np.min(distances, axis=0) < MARGIN_MM
    images = {"made up": image.astype(np.float32)}
    labels = (drawn > 0.5).astype(np.uint8)
    case = labelled_case(images, mask, labels, SCHEME, nodule.affine)
    p = np.clip(p, _LEAST, 1 - _LEAST)
    return Patient(
        nodule.name, replace(case, probabilities=np.stack([1 - p, p]).astype(np.float32))
    )


def measure_nodules(
    nodules: Sequence[Nodule], samples: int, seed: int, progress: Progress | None = None
) -> list[ReaderRow]:
    """Sample every nodule from each reader's outline and from every two, in each way."""
    ways = {DEFAULT: RunSettings(), WHITE: RunSettings.of_paper()}
    normal = _normal_quantiles(samples)
    rows: list[ReaderRow] = []
    for number, nodule in enumerate(nodules, start=1):
        others = [each for each in nodules if each is not nodule]
        softness = learn_softness(others)
        typical = float(np.median([each.spread for each in others]))
        everyone = range(len(nodule.drawings))
        for readers in (group for asked in ASKED for group in combinations(everyone, asked)):
            patient = reader_patient(nodule, readers, softness, seed)
            for name, settings in ways.items():
                asked_for = settings.changed(samples=samples, seed=seed)
                rows.append(_sample(nodule, readers, name, patient, asked_for))
            middle = float(np.log(nodule.volumes_ml[list(readers)]).mean())
            rows.append(_volume_row(nodule, readers, FIXED, middle + typical * normal))
        if progress is not None:
            progress(number, len(nodules))
    return rows


def _sample(
    nodule: Nodule,
    readers: tuple[int, ...],
    method: str,
    patient: Patient,
    settings: RunSettings,
) -> ReaderRow:
    decided = decide_settings(settings, patient.case)
    kept: list[NDArray[np.uint8]] = []

    def keep(part: range, labels: NDArray[np.uint8]) -> None:
        kept.extend(labels[: max(0, _KEPT - part.start)])

    posterior = build_sampler(build_crf(patient.case, decided), decided).draw(keep=keep)
    grid = posterior.grid
    others = np.delete(nodule.drawings, readers, axis=0)
    rated = np.stack([grid.gather(each) for each in others])  # (R, N)
    share = posterior.voxel_counts[1] / posterior.samples  # (N,)
    volumes = posterior.volumes[:, 1] / 1000  # (S,)
    voxel_ml = math.prod(grid.spacing) / 1000
    row = _volume_row(nodule, readers, method, np.log(np.maximum(volumes, voxel_ml)))
    return replace(
        row,
        energy_distance=generalized_energy_distance(np.stack(kept) > 0, rated),
        rater_correlation=rater_correlation(binary_entropy_percent(share), rated),
        curvas_ece=curvas_ece(np.stack([1 - share, share]), rated.astype(np.int64)),
        curvas_crps_ml=curvas_crps(float(volumes.mean()), rated.sum(axis=1) * voxel_ml),
    )


def _volume_row(
    nodule: Nodule, readers: tuple[int, ...], method: str, logs: NDArray[np.float64]
) -> ReaderRow:
    others = np.log(np.delete(nodule.volumes_ml, readers))
    low, high = np.quantile(logs, [0.025, 0.975])
    inside = float(((low <= others) & (others <= high)).mean())
    score = float(np.mean([crps(logs, each) for each in others]))
    return ReaderRow(nodule.name, readers, method, float(logs.std(ddof=1)), inside, score)


def _normal_quantiles(count: int) -> NDArray[np.float64]:
    from scipy.special import ndtri

    quantiles: NDArray[np.float64] = ndtri((np.arange(count) + 0.5) / count)
    return quantiles


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Return Spearman's correlation and its exact one-sided p over all orders; no ties."""
    first, second = (np.argsort(np.argsort(each)).astype(np.float64) for each in (x, y))
    first -= first.mean()
    second -= second.mean()
    scale = float(first @ first)
    found = float(first @ second) / scale
    every = np.array(list(permutations(second))) @ first / scale
    return found, float((every >= found - 1e-9).mean())


def page(nodules: Sequence[Nodule], rows: Sequence[ReaderRow], samples: int) -> str:
    """Return the page in Markdown."""
    ways = [(method, asked) for asked in ASKED for method in (DEFAULT, WHITE)]
    lines = [
        [
            nodule.name,
            " / ".join(f"{volume:.2f}" for volume in nodule.volumes_ml),
            f"{nodule.spread:.3f}",
            *(f"{_mean(rows, 'spread', *way, nodule.name):.3f}" for way in ways),
        ]
        for nodule in nodules
    ]
    head = [f"{method}, {ASKED[asked]}" for method, asked in ways]
    blocks = [
        "# Does the spread of samples predict that of raters?",
        paragraph(
            f"The outlines are real: {len(nodules)} lung nodules, each drawn by four radiologists "
            "(LIDC-IDRI). Probabilities and images are made up: the data have no scans. The "
            "outlines of one or two readers become probabilities, the mean of 1/(1 + exp(d/s)) "
            "over them with the distance d to each, and the softness s by which readers of the "
            f"other nodules predict each other best; {samples} samples of these are held against "
            "the radiologists who were not asked. Every reader and every two have a turn, and "
            "numbers are means over turns. Written by `python -m lab raters --data FOLDER`."
        ),
        "## Spread of the volume",
        paragraph("The standard deviation of log volume, of the four raters and of samples:"),
        markdown_table(["nodule", "four volumes, ml", "raters", *head], lines),
        "\n".join(f"- {_verdict(nodules, rows, *way)}" for way in ways),
        paragraph(_answer(nodules, rows)),
        "## All scores",
        paragraph(
            "Means over nodules and turns. Inside is the share of the other raters' volumes inside "
            "the central 95 % of the sampled ones. Fixed width is no sampling: the readers' volume "
            "(geometric mean), with the median spread of the other nodules' raters. CRPS, energy "
            "distance (1 − IoU) and both scores of CURVAS: lower is better. The correlation is "
            "that of the entropy with the other raters' standard deviation, voxel by voxel."
        ),
        _scores(rows),
    ]
    return "\n\n".join(blocks) + "\n"


def _mean(
    rows: Sequence[ReaderRow], key: str, method: str, asked: int, nodule: str | None = None
) -> float:
    chosen = [row for row in rows if row.method == method and len(row.readers) == asked]
    values = [getattr(row, key) for row in chosen if nodule in {None, row.nodule}]
    return nan_mean(values)


def _verdict(nodules: Sequence[Nodule], rows: Sequence[ReaderRow], method: str, asked: int) -> str:
    true = [nodule.spread for nodule in nodules]
    spreads = [_mean(rows, "spread", method, asked, nodule.name) for nodule in nodules]
    rank, p = rank_correlation(spreads, true)
    ratio = float(np.median(np.divide(spreads, true)))
    return (
        f"{method}, {ASKED[asked]}: rank correlation with the raters' spread {rank:+.2f} (exact "
        f"p = {p:.2g}); {ratio:.2f} times the raters' spread in the median"
    )


def _answer(nodules: Sequence[Nodule], rows: Sequence[ReaderRow]) -> str:
    """Say whether the spread of the defaults tells hard nodules from easy ones."""
    true = [nodule.spread for nodule in nodules]
    p = [
        rank_correlation([_mean(rows, "spread", DEFAULT, n, each.name) for each in nodules], true)[
            1
        ]
        for n in ASKED
    ]
    better = [
        words
        for n, words in ASKED.items()
        if _mean(rows, "crps_log", DEFAULT, n) < _mean(rows, "crps_log", FIXED, n)
    ]
    found = "predicts" if max(p) < SIGNIFICANT else "does not predict"
    score = f"only from {' and '.join(better)}" if better else "in neither case"
    return (
        f"So the spread of the defaults {found} which nodules the raters disagree on, from "
        "outlines that do not show how hard a nodule is to see. It holds the other raters "
        f"far more often than white noise does, and scores better than one fixed width {score}. "
        f"{len(nodules)} nodules are few."
    )


def _scores(rows: Sequence[ReaderRow]) -> str:
    columns = {
        "spread": ("sd of log volume", ".3f"),
        "inside": ("inside", ".2f"),
        "crps_log": ("CRPS of log volume", ".3f"),
        "energy_distance": ("energy distance", ".3f"),
        "rater_correlation": ("correlation", ".3f"),
        "curvas_ece": ("CURVAS ECE", ".4f"),
        "curvas_crps_ml": ("CURVAS CRPS, ml", ".3f"),
    }
    lines = []
    for asked, words in ASKED.items():
        for method in (DEFAULT, WHITE, FIXED):
            values = [
                (_mean(rows, key, method, asked), digits) for key, (_, digits) in columns.items()
            ]
            cells = ["–" if math.isnan(value) else f"{value:{digits}}" for value, digits in values]
            lines.append([words, method, *cells])
    return markdown_table(["asked", "method", *(words for words, _ in columns.values())], lines)
