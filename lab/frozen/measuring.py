"""Compare samples sample by sample: ``hold`` and ``tolerance`` against full sampling."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lab.evidence import case_names, read_hippocampus
from lab.words import markdown_table, paragraph
from perturb_mpm.engines import Compute, Engine
from perturb_mpm.files import SCHEMES, Case, common_sequences, find_labelled_cases
from perturb_mpm.posterior import Posterior
from perturb_mpm.progress import Silent
from perturb_mpm.run import RunSettings, build_crf
from perturb_mpm.sampling import Sampler, Sampling
from perturb_mpm.segmenter import SegmenterModel
from perturb_mpm.tune import classify_cases, read_labelled_cases

PAGE_NAME = "frozen.md"
HOLD = RunSettings().sampling.hold
TOLERANCE = RunSettings().sampling.tolerance
RUN_STRENGTH = 0.5
"""The most that the image's evidence gives to kernels."""
CONVERGED = 40
"""Iterations of full sampling that converged samples are compared with."""

BLUR_MM, FLOOR = 1.5, 1e-4
LENGTHS_MM = (0.0, 6.0, 40.0)

OPENING = """The patients are real; the column *probabilities* says what made theirs.
Written by `python -m lab frozen --data FOLDER{options}`; {samples}
samples of seed 1, the engine `{engine}`. Every sample is compared with the sample of the same noise
under full sampling: the share of votes that differ, the share of voxels whose modal label
differs, the largest change of a label's mean volume and the same in standard deviations of the
samples' own volumes. `hold` ({hold:g}) is compared with full sampling of ten iterations,
`tolerance` ({tolerance:g}) with full sampling of {converged}, and so are both together, which is
what `run` does. *Active* is the share of voxels that are updated, the bound how far noise moves a
frozen message: a standard deviation, or a mean
where noise is correlated. Kernels are ours at full strength (*full*), or those
of `run` with the strength {strength:g}, the most that the image's evidence gives them."""
TIME = "Time is CPU time of sampling alone, against full sampling of ten iterations."
NOISE = """Correlated noise does not average out over the voxels of a region. There a voxel is
frozen only if the noise of none of 224 samples, of which these are the first, brings it within
0.7 nats, and half of what all others together send, of another label; which voxels these are is
found out once, and its time counts here in full.
`tolerance` serves any noise, with weak kernels.
Under our kernels at full strength samples creep on for many tens of updates: neither converged
samples nor the 40 updates that they are compared with have converged there. `run --paper` makes ten
updates and asks no rule."""

CHOICE = """The values of `hold` and `tolerance`, and how far updates are relaxed, were chosen on
some of these gliomas, the 0.7 nats on BraTS2021_01658 at 1 mm and BraTS2021_00006 at 2 mm with
their networks: on others the differences may be larger."""


COLUMNS = ("case", "probabilities", "kernels", "noise", "estimator", "", "active", "bound, nats",
           "wrong votes", "modal", "volume", "in sd", "still moving")  # fmt: skip


@dataclass(frozen=True)
class FrozenRow:
    """One case, one setting: how far it is from full sampling with the same noise."""

    case: str
    unaries: str
    kernels: str
    noise_mm: float
    estimator: str
    mode: str
    active_share: float
    bound_nats: float
    wrong_votes: float
    wrong_modal: float
    volume: float  # the largest relative change of a label's mean volume
    volume_sd: float  # the largest change in standard deviations of the samples' volumes
    still_moving: float
    faster: float


@dataclass(frozen=True)
class Drawn:
    """Samples with their label maps, and the CPU seconds they took."""

    posterior: Posterior
    labels: NDArray[np.uint8]  # (S, N)
    seconds: float


def warm_up(case: Case, settings: RunSettings, sampling: Sampling) -> None:
    """Sample a small piece out of the middle, which compiles what the whole of it needs."""
    near = tuple(slice(max(0, n // 2 - 12), n // 2 + 12) for n in case.mask.shape)
    piece = np.zeros_like(case.mask)
    piece[near] = True
    small = replace(case, mask=piece & case.mask)
    few = replace(sampling, samples=32, hold=0.3 if sampling.hold else 0.0)
    Sampler(build_crf(small, settings), few, Compute(engine="cpu", threads=1)).draw()


def draw(case: Case, settings: RunSettings, sampling: Sampling, engine: Engine) -> Drawn:
    """Draw on one thread or on the GPU; what is compiled or prepared once is not in the time."""
    if engine == "cpu":
        warm_up(case, settings, sampling)
    sampler = Sampler(build_crf(case, settings), sampling, Compute(engine=engine, threads=1))
    sampler.draw(1)
    kept: list[NDArray[np.uint8]] = []
    began = time.process_time()
    posterior = sampler.draw(keep=lambda _, labels: kept.append(labels.copy()))
    return Drawn(posterior, np.concatenate(kept), time.process_time() - began)


def compared(found: Drawn, full: Drawn) -> dict[str, float]:
    """Return how far samples are from those of full sampling."""
    ours, theirs = found.posterior, full.posterior
    mean = theirs.volumes.mean(axis=0)
    moved = np.abs(ours.volumes.mean(axis=0) - mean)
    spread = theirs.volumes.std(axis=0)
    return {
        "wrong_votes": float((found.labels != full.labels).mean()),
        "wrong_modal": float((ours.labels != theirs.labels).sum() / ours.grid.voxels),
        "volume": float((moved / np.maximum(mean, 1e-9))[1:].max()),
        "volume_sd": float((moved / np.maximum(spread, 1e-9))[1:].max()),
    }


def blurred_truth(case: Case) -> Case:
    """Return the case with its truth, blurred, as probabilities with a floor."""
    from scipy.ndimage import gaussian_filter

    sigma = [BLUR_MM / size for size in case.geometry.spacing]
    truth = np.asarray(case.truth)
    soft = np.stack(
        [gaussian_filter((truth == l).astype(np.float32), sigma) for l in range(len(case.labels))]
    )
    soft = np.maximum(soft, FLOOR)
    return replace(case, probabilities=soft / soft.sum(axis=0))


def measure_case(
    name: str, unaries: str, case: Case, samples: int, engine: Engine, *, few: bool = False
) -> Iterator[FrozenRow]:
    """Yield the rows of one case; ``few`` leaves out what is measured on smaller images."""
    ours = RunSettings().changed(strength=RUN_STRENGTH)
    kernels = {"full": RunSettings.of_paper(), "run": ours}
    for kernel, settings in kernels.items():
        for length in (0.0, 40.0) if few else LENGTHS_MM:
            for estimator in ("votes",) if few or length > 0 else ("votes", "conditional"):
                base = Sampling(samples=samples, seed=1, noise_length=length, estimator=estimator)  # type: ignore[arg-type]
                full = draw(case, settings, base, engine)
                many = replace(base, iterations=CONVERGED)
                modes = {"hold": (replace(base, hold=HOLD), base)} if length == 0 else {}
                if kernel == "run" or not few:
                    modes["tolerance"] = (replace(many, tolerance=TOLERANCE), many)
                if kernel == "run" and length > 0:
                    both = replace(many, tolerance=TOLERANCE, hold=HOLD)
                    modes["hold and tolerance"] = (both, many)
                for mode, (sampling, reference) in modes.items():
                    found = draw(case, settings, sampling, engine)
                    equal = full if reference is base else draw(case, settings, reference, engine)
                    changes = found.posterior.label_changes
                    yield FrozenRow(
                        case=name,
                        unaries=unaries,
                        kernels=kernel,
                        noise_mm=length,
                        estimator=estimator,
                        mode=mode,
                        active_share=found.posterior.active_share,
                        bound_nats=found.posterior.hold_bound_nats,
                        still_moving=float(np.mean(changes)) if changes is not None else 0.0,
                        faster=full.seconds / found.seconds,
                        **compared(found, equal),
                    )


def measure_frozen(
    data: Path,
    model: Path | None,
    samples: int,
    engine: Engine,
    *,
    quick: bool,
    report: Callable[[FrozenRow], object],
) -> list[FrozenRow]:
    """Measure gliomas and hippocampi of networks, with a model also its gliomas at 2 and 1 mm.

    ``report`` hears each row.
    """
    rows: list[FrozenRow] = []

    def keep(found: Iterator[FrozenRow]) -> None:
        for row in found:
            rows.append(row)
            report(row)

    for folder, most in (
        ("brats2021_2mm", 1 if quick else 5),
        ("brats2021_1mm", 0 if quick else 2),
    ):
        if model is None:
            break
        scheme = SegmenterModel.load(model).labels
        for files in find_labelled_cases(data / folder, "brats")[:most]:
            case = classify_cases([files], model, scheme, threads=1)[files.name]
            name, few = f"{files.name} {folder[-3:]}", folder.endswith("1mm")
            keep(measure_case(name, "trees", case, samples, engine, few=few))
            if not few:
                soft = blurred_truth(case)
                keep(measure_case(name, "blurred truth", soft, samples, engine, few=True))
    network = data / "hippocampus_network"
    for name in case_names(network)[: 1 if quick else 3]:
        keep(measure_case(name, "network", read_hippocampus(network, name), samples, engine))
    gliomas = find_labelled_cases(data / "brats2021_2mm", "brats")[: 1 if quick else 5]
    given = data / "glioma_network" / "probabilities"
    cases = read_labelled_cases(
        gliomas, given, common_sequences(gliomas), SCHEMES["brats2021"], Silent()
    )
    for name, case in cases.items():
        keep(measure_case(f"{name} 2mm", "network", case, samples, engine, few=True))
    return rows


def page(
    rows: list[FrozenRow], samples: int, engine: Engine = "cpu", *, quick: bool = False
) -> str:
    """Return the page in Markdown."""
    options = " --model MODEL.npz" if any(row.unaries == "trees" for row in rows) else ""
    options += (" --engine gpu" if engine == "gpu" else "") + (" --quick" if quick else "")
    opening = OPENING.format(
        options=options,
        engine=engine,
        samples=samples,
        hold=HOLD,
        strength=RUN_STRENGTH,
        tolerance=TOLERANCE,
        converged=CONVERGED,
    )
    timed = engine == "cpu"  # so few samples are no work for a GPU
    header = (*COLUMNS, *["× faster"] * timed)
    lines = [
        (
            row.case,
            row.unaries,
            row.kernels,
            "white" if row.noise_mm == 0 else f"{row.noise_mm:g} mm",
            row.estimator,
            row.mode,
            f"{row.active_share:.3g}",
            f"{row.bound_nats:.2g}",
            f"{row.wrong_votes:.1e}",
            f"{row.wrong_modal:.1e}",
            f"{100 * row.volume:.2f} %",
            f"{row.volume_sd:.3f}",
            f"{row.still_moving:.0e}",
            *[f"{row.faster:.1f}"] * timed,
        )
        for row in rows
    ]
    opening += f" {TIME}" if timed else ""
    parts = [
        "# Frozen voxels and converged samples",
        paragraph(opening),
        paragraph(NOISE),
        paragraph(CHOICE),
    ]
    return "\n\n".join([*parts, markdown_table(header, lines), paragraph(findings(rows))]) + "\n"


def findings(rows: list[FrozenRow]) -> str:
    """Return in words the worst of each mode and kernels."""
    words = []
    for mode, kernels in product(("hold", "tolerance", "hold and tolerance"), ("full", "run")):
        here = [row for row in rows if (row.mode, row.kernels) == (mode, kernels)]
        if here:
            whose = "our kernels at full strength" if kernels == "full" else "the kernels of `run`"
            words.append(
                f"`{mode.replace(' and ', '` and `')}` with {whose}: at most "
                f"{max(row.wrong_votes for row in here):.1e} of the votes, "
                f"{max(row.wrong_modal for row in here):.1e} of the modal labels and "
                f"{100 * max(row.volume for row in here):.2f} % of a volume differ "
                f"({max(row.volume_sd for row in here):.2f} of its standard deviation)."
            )
    return " ".join(words)
