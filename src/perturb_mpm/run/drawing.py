"""Drawing a run's samples piece by piece, each piece safe on disk before the next, or once more.

Ranges that others drew lie in the run's state as part-FIRST-STOP.npz, with the labels of the first
samples in part-FIRST-STOP-labels.npz: ``draw_samples`` takes them where it comes to them.
"""

from __future__ import annotations

import time
from concurrent.futures import Executor, Future
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.posterior import Posterior
from perturb_mpm.progress import Progress
from perturb_mpm.run.coupling import Pilot
from perturb_mpm.run.manifest import find_range_files
from perturb_mpm.run.model import build_crf, build_sampler, member_energies
from perturb_mpm.run.settings import UnusableRunError
from perturb_mpm.run.state import MOST_SAMPLE_MAPS, Run, StateError
from perturb_mpm.sampling import Keep, Sampler
from perturb_mpm.storage import DAMAGE, error_text, read_arrays, write_arrays

SHOWN_AFTER = (10, 25, 50, 100, 200, 500, 1000, 2000, 5000)
"""After how many samples the entropy map is kept, to show how it converges."""

_PART = "part-"
_SECONDS_AT_RISK = 10.0  # about what an interruption may cost


def draw_samples(
    run: Run, sampler: Sampler, progress: Progress, pilot: Pilot | None, writer: Executor
) -> tuple[Run, Future[None]]:
    """Draw the samples that the run's folder does not have yet, and keep them there; return all.

    ``pilot`` is the first samples where they are drawn already. The whole is written by ``writer``
    while the caller goes on, who must ask the future that is returned before anything ends.
    """
    run = _load_samples(run, sampler.problem, pilot)
    goal = run.settings.sampling.samples
    saved_at = time.monotonic()
    seconds_each = 0.0  # of a sample, in the last piece
    cuts = SHOWN_AFTER if run.by_samples else ()
    parts = _find_parts(run)
    reached = False  # the precision of ``until``
    ended = False
    while (drawn := run.votes.samples if run.votes else 0) < goal and not reached:
        limit = min([goal, *(cut for cut in (*cuts, *parts) if cut > drawn)])
        first = _FirstSamples(run.first_samples)
        posterior = _take_part(run, parts.get(drawn), limit, sampler.problem, first)
        if posterior is None:
            stop = min(limit, drawn + _samples_per_piece(sampler.batch, seconds_each))
            started = time.monotonic()
            posterior = sampler.draw(
                stop,
                after=run.votes,
                progress=lambda done, _: progress(done, goal),
                keep=None if first.complete else first.add,
            )
            seconds_each = (time.monotonic() - started) / (stop - drawn)
            reached = posterior.samples < stop
        else:
            progress(posterior.samples, goal)
        shown = posterior.samples in cuts or reached or posterior.samples == goal
        snapshots = dict(run.snapshots)
        if shown and run.by_samples:
            bits = posterior.grid.gather(posterior.entropy)
            snapshots[posterior.samples] = bits.astype(np.float32)
        run = replace(run, votes=posterior, first_samples=first.labels, snapshots=snapshots)
        ended = reached or posterior.samples == goal
        if not ended and (shown or time.monotonic() - saved_at > _SECONDS_AT_RISK):
            run.write_checkpoint(last=False)
            saved_at = time.monotonic()
    return run, writer.submit(_keep_all, run, changed=ended)


def _keep_all(run: Run, *, changed: bool) -> None:
    """Write all samples, and remove the ranges that others drew."""
    if changed:
        run.write_checkpoint(last=True)
    for file in find_range_files(run.folder):
        file.unlink()


def begin_samples(run: Run, problem: str, pilot: Pilot | None) -> int:
    """Keep the first samples where they are drawn already; return how many are in the folder."""
    run = _load_samples(run, problem, pilot)
    if run.votes is None:
        return 0
    if not (run.state / "posterior.npz").exists():
        run.write_checkpoint()
    return run.votes.samples


def draw_range(run: Run, sampler: Sampler, numbers: range) -> None:
    """Draw some of the samples and leave them beside the votes, cut where maps are kept."""
    cuts = [cut for cut in SHOWN_AFTER if numbers.start < cut < numbers.stop]
    ends = [numbers.start, *cuts, numbers.stop]
    for start, stop in pairwise(ends):
        file, labels = _part_files(run, range(start, stop))
        if file.exists():
            continue
        first = _FirstSamples(None, start)
        drawn = sampler.draw(range(start, stop), keep=first.add)
        if first.labels is not None:
            write_arrays(labels, {"labels": first.labels})
        drawn.save(file)


def rebuild_sampler(run: Run) -> Sampler:
    """Return the sampler that drew a run's samples; StateError where it cannot be made again."""
    settings = run.settings.changed(samples=run.posterior.samples, until=None)
    try:
        members = member_energies(run.case, settings)
    except ValueError as error:
        raise StateError(
            f'{run.folder}: a run with `members="cycle"` does not keep its members, so that its '
            "samples cannot be drawn again"
        ) from error
    sampler = build_sampler(build_crf(run.case, settings), settings, members)
    if sampler.problem != run.posterior.problem:
        raise StateError(
            f"{run.folder}: this version makes another problem of the case than the one that was "
            "sampled; sample it again"
        )
    try:
        sampler.prepare()
    except (ImportError, RuntimeError) as error:
        raise StateError(
            f"{run.folder}: its samples were drawn on the engine {settings.compute.engine}, which "
            f"cannot be used here: {error}"
        ) from error
    return sampler


def redraw_samples(
    run: Run, sampler: Sampler, numbers: range, keep: Keep, progress: Progress | None = None
) -> None:
    """Draw some of a run's samples again; ``keep`` gets their numbers and labels (B, N).

    StateError where they have other volumes than the run's: another machine or version.
    """
    known = run.posterior.volumes  # (S, L) mm³
    voxel_mm3 = float(np.prod(run.posterior.grid.spacing))
    n_labels = run.posterior.n_labels

    def compare(part: range, labels: NDArray[np.uint8]) -> None:
        for number, each in zip(part, labels, strict=True):
            sizes = np.bincount(each, minlength=n_labels)
            if not np.array_equal(sizes, np.rint(known[number] / voxel_mm3)):
                raise StateError(
                    f"{run.folder}: sample {number}, drawn again, differs from the run's: it was "
                    "drawn by another version or on another kind of machine; sample it again"
                )
        keep(part, labels)

    sampler.draw(numbers, keep=compare, progress=progress)


def _part_files(run: Run, numbers: range) -> tuple[Path, Path]:
    """Return the files of a range's votes, and of its labels where it has some of the first."""
    stem = f"{_PART}{numbers.start}-{numbers.stop}"
    return run.state / f"{stem}.npz", run.state / f"{stem}-labels.npz"


def _find_parts(run: Run) -> dict[int, range]:
    """Return the ranges that others have drawn, by their first sample."""
    found: dict[int, range] = {}
    for file in find_range_files(run.folder):
        numbers = file.stem.removeprefix(_PART).split("-")
        if len(numbers) == 2 and all(map(str.isdecimal, numbers)):
            part = range(int(numbers[0]), int(numbers[1]))
            found[part.start] = max(part, found.get(part.start, part), key=len)
    return found


def _take_part(
    run: Run, part: range | None, limit: int, problem: str, first: _FirstSamples
) -> Posterior | None:
    """Return the votes with those of a part that others drew, None where it cannot be taken."""
    if part is None or part.stop > limit:
        return None
    file, labels = _part_files(run, part)
    try:
        drawn = Posterior.load(file)
        merged = drawn if run.votes is None else run.votes.merge(drawn)
        replace(run, votes=merged).check_votes(problem)
        if part.start < MOST_SAMPLE_MAPS:
            rows = read_arrays(labels, ["labels"])["labels"]
            first.add(range(part.start, part.start + len(rows)), rows)
    except DAMAGE:
        return None  # it is drawn again: a sample is a function of its number
    return merged


class _FirstSamples:
    """Keeps the labels of the first samples, which come in order from ``start`` on."""

    def __init__(self, before: NDArray[np.uint8] | None, start: int = 0) -> None:
        self.labels = before  # (K, N)
        self._start = start

    @property
    def complete(self) -> bool:
        """Whether no sample that comes now is kept."""
        return self._start + (0 if self.labels is None else len(self.labels)) >= MOST_SAMPLE_MAPS

    def add(self, part: range, labels: NDArray[np.uint8]) -> None:
        """Take the labels (B, N) of the samples ``part``."""
        known = self._start + (0 if self.labels is None else len(self.labels))
        if not part.start <= known < min(part.stop, MOST_SAMPLE_MAPS):
            return
        new = labels[known - part.start : MOST_SAMPLE_MAPS - part.start].copy()
        self.labels = new if self.labels is None else np.concatenate([self.labels, new])


def _samples_per_piece(batch: int, seconds_each: float) -> int:
    """Return how many samples to draw before a look at the clock: full batches."""
    affordable = int(_SECONDS_AT_RISK / seconds_each) if seconds_each else batch
    return max(affordable // batch, 1) * batch


def _load_samples(run: Run, problem: str, pilot: Pilot | None) -> Run:
    """Return the run with the samples in its folder, else the pilot's; refuse another run's."""
    if pilot is not None and pilot.posterior.samples < run.settings.sampling.samples:
        run = replace(run, votes=pilot.posterior, first_samples=pilot.labels[:MOST_SAMPLE_MAPS])
    try:
        run = run.with_checkpoint()
        run.check_votes(problem)
    except DAMAGE as error:
        raise UnusableRunError(
            "`output` holds a damaged state, begin anew with `overwrite=True`: "
            f"{error_text(error)}",
            f"its state is damaged: {error_text(error)}",
        ) from error
    return run
