"""Time the answer to an edit: ``python -m lab.benchmarks.edit --help``.

One thread, CPU seconds. A ball at the most uncertain place of a real patient is set to a label, and
the mean field and all samples follow (``perturb_mpm.sampling.Editor``), beside sampling everything
again with the same noise on an engine that is prepared. The table goes to docs/view.md.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from lab.benchmarks import machine
from lab.benchmarks.figures import with_figures
from lab.benchmarks.problems import case_folder
from lab.benchmarks.worker import ROOT
from lab.words import markdown_table, paragraph

if TYPE_CHECKING:
    from perturb_mpm import Posterior
    from perturb_mpm.files import Case
    from perturb_mpm.model import Grid
    from perturb_mpm.run import RunSettings
    from perturb_mpm.sampling import Editor

T = TypeVar("T")

PAGE = ROOT / "docs" / "view.md"
BEGIN, END = "<!-- edit figures -->", "<!-- end of edit figures -->"
RADIUS_MM = 5.0
AROUND_MM = 5.0
ENHANCING = 3
HEADER = (
    "settings of",
    "first picture, s",
    "all samples, s",
    "sampling again, s",
    "times less",
    "kept, MB",
    "voxels solved, %",
    "votes that the edit moves",
    "of these wrong",
    "labels wrong, voxels",
    "volumes off, at most",
)


@dataclass(frozen=True)
class EditRow:
    """One edit: CPU seconds of its parts, and how far it is from sampling everything again."""

    settings: str
    samples: int
    voxels: int
    spacing_mm: float
    edited: int
    prepare_s: float  # the engine
    keep_s: float  # drawing the samples once and keeping their solutions
    first_s: float  # the mean field with the edit
    votes_s: float  # the samples with the edit
    again_s: float  # sampling everything again
    kept_bytes: int
    solved_share: float
    moved_votes: float  # shares of all votes
    wrong_votes: float
    wrong_labels: int
    volume_off: float  # of the samples' mean, the largest of any label but the background

    @property
    def times_less(self) -> float:
        """How much less the answer costs than sampling again."""
        return self.again_s / (self.first_s + self.votes_s)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="An edit answered from what was kept, beside sampling everything again.",
        epilog="example: python -m lab.benchmarks.edit --model model.npz --page",
    )
    parser.add_argument("--model", type=Path, required=True, help="a model that `train` wrote")
    parser.add_argument("--case", type=Path, default=case_folder(), help="a folder of BraTS")
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--json", type=Path, default=machine.RESULTS / "edit.json")
    parser.add_argument("--page", action="store_true", help="put the table into docs/view.md")
    return parser.parse_args()


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """Return what the work gives, and its CPU seconds."""
    began = time.process_time()
    found = work()
    return found, time.process_time() - began


def ball(grid: Grid, entropy: NDArray[np.floating], label: int) -> NDArray[np.int16]:
    """Return labels (N,) that set a ball where most is uncertain, by entropy (N,)."""
    from scipy.ndimage import gaussian_filter

    around = gaussian_filter(
        grid.scatter(entropy.astype(np.float32), 0), [AROUND_MM / size for size in grid.spacing]
    )
    centre = np.array(np.unravel_index(int(around.argmax()), grid.shape))
    places = np.stack(np.unravel_index(grid.index, grid.shape), axis=1)
    away = np.linalg.norm((places - centre) * grid.spacing, axis=1)
    return np.where(away <= RADIUS_MM, label, -1).astype(np.int16)


def measure(case: Case, name: str, settings: RunSettings, samples: int) -> EditRow:
    """Return the figures of one edit of a case under some settings."""
    from lab.frozen import warm_up
    from perturb_mpm.engines import Compute
    from perturb_mpm.posterior import marginal_entropy
    from perturb_mpm.run import assumed_length_mm, build_crf
    from perturb_mpm.sampling import Editor, Sampler, edited_crf

    sampling = replace(settings.sampling, samples=samples)
    if sampling.noise_length is None:
        sampling = replace(sampling, noise_length=assumed_length_mm(case))
    compute = Compute(engine="cpu", threads=1)
    warm_up(case, settings, sampling)
    crf = build_crf(case, settings)
    sampler = Sampler(crf, sampling, compute)
    _, prepare_s = timed(sampler.prepare)
    mean_field = sampler.mean_field()
    editor = Editor(sampler, mean_field)
    before, keep_s = timed(editor.keep)
    given = ball(crf.grid, marginal_entropy(mean_field.astype(np.float64)), _label(mean_field))
    _answer(editor, ball(crf.grid, 1 - mean_field.max(axis=0), 0))  # compiles what is needed
    edit, first_s = timed(lambda: editor.edit(given))
    votes, votes_s = timed(lambda: list(editor.votes(edit))[-1])
    found = editor.posterior(edit, votes)
    anew = Sampler(edited_crf(crf, given), sampling, compute)
    anew.mean_field()  # and what that needs is prepared
    again, again_s = timed(anew.draw)
    volumes = again.volumes.mean(axis=0)
    return EditRow(
        settings=name,
        samples=samples,
        voxels=crf.grid.voxels,
        spacing_mm=crf.grid.spacing[0],
        edited=int((given >= 0).sum()),
        prepare_s=prepare_s,
        keep_s=keep_s,
        first_s=first_s,
        votes_s=votes_s,
        again_s=again_s,
        kept_bytes=editor.kept_bytes,
        solved_share=len(votes.voxels) / crf.grid.voxels,
        moved_votes=apart(before, again),
        wrong_votes=apart(found, again),
        wrong_labels=int((found.labels != again.labels).sum()),
        volume_off=float((np.abs(found.volumes.mean(axis=0) - volumes) / volumes)[1:].max()),
    )


def _label(mean_field: NDArray[np.floating]) -> int:
    """Return what the ball is set to: enhancing tumour where there are so many labels."""
    return min(ENHANCING, len(mean_field) - 1)


def _answer(editor: Editor, given: NDArray[np.int16]) -> None:
    edit = editor.edit(given)
    next(iter(editor.votes(edit)))


def apart(one: Posterior, other: Posterior) -> float:
    """Return the share of votes that differ, counted voxel by voxel."""
    away = np.abs(one.voxel_counts.astype(np.int64) - other.voxel_counts.astype(np.int64)).sum()
    return float(away) / 2 / one.samples / one.grid.voxels


def rendered(results: dict[str, object], rows: list[EditRow]) -> str:
    """Return the table for the page, and what it was measured on."""
    first = rows[0]
    cpu = results["machine"]["cpu"]  # type: ignore[index]
    about = (
        f"{first.edited} voxels (a ball of {RADIUS_MM:g} mm radius) set in a glioma patient at "
        f"{first.spacing_mm:g} mm, {first.voxels / 1e6:.1f} million voxels, {first.samples} "
        f"samples; CPU seconds on one thread of {cpu}. *Sampling again* has its engine prepared. "
        "Written by `python -m lab.benchmarks.edit --model MODEL.npz --page`."
    )
    cells = [
        (
            row.settings,
            f"{row.first_s:.2f}",
            f"{row.votes_s:.1f}",
            f"{row.again_s:.0f}",
            f"{row.times_less:.0f}",
            f"{row.kept_bytes / 1e6:.0f}",
            f"{100 * row.solved_share:.1f}",
            f"{row.moved_votes:.1e}",
            f"{100 * row.wrong_votes / row.moved_votes:.1f} %",
            str(row.wrong_labels),
            f"{100 * row.volume_off:.3f} %",
        )
        for row in rows
    ]
    return f"{paragraph(about)}\n\n{markdown_table(HEADER, cells)}"


def ways() -> Iterator[tuple[str, RunSettings]]:
    from perturb_mpm.run import RunSettings

    yield "`run`", RunSettings()
    yield "the paper", RunSettings.of_paper()


def main() -> None:
    options = arguments()
    from perturb_mpm.files import find_labelled_cases
    from perturb_mpm.segmenter import SegmenterModel
    from perturb_mpm.tune import classify_cases

    files = next(
        f for f in find_labelled_cases(options.case.parent, "brats") if f.name == options.case.name
    )
    scheme = SegmenterModel.load(options.model).labels
    case = classify_cases([files], options.model, scheme)[files.name]
    rows: list[EditRow] = []
    results: dict[str, object] = {"machine": machine.describe()}
    for name, settings in ways():
        rows.append(measure(case, name, settings, options.samples))
        print(rows[-1], flush=True)
        results["rows"] = [asdict(row) for row in rows]
        machine.write_results(options.json, results)
        if options.page:
            text = PAGE.read_text(encoding="utf-8")
            text = with_figures(text, rendered(results, rows), BEGIN, END)
            PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
