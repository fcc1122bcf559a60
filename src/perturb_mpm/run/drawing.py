"""Drawing a run's samples piece by piece, each piece safe on disk before the next."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.progress import Progress
from perturb_mpm.run.coupling import Pilot
from perturb_mpm.run.settings import OutputError
from perturb_mpm.run.state import MOST_SAMPLE_MAPS, Run
from perturb_mpm.sampling import Sampler
from perturb_mpm.storage import DAMAGE, reason_of

SHOWN_AFTER = (10, 25, 50, 100, 200, 500, 1000, 2000, 5000)
"""After how many samples the entropy map is kept, to show how it converges."""

_SECONDS_AT_RISK = 10.0  # about what an interruption may cost


def draw_samples(run: Run, sampler: Sampler, progress: Progress, pilot: Pilot | None = None) -> Run:
    """Draw what the run's folder does not hold yet, and keep it there; return the run with all.

    ``pilot`` is the first samples where they are drawn already.
    """
    if pilot is not None and pilot.posterior.samples < run.settings.sampling.samples:
        run = replace(run, votes=pilot.posterior, first_samples=pilot.labels[:MOST_SAMPLE_MAPS])
    run = _continued(run, sampler.problem)
    goal = run.settings.sampling.samples
    saved_at = time.monotonic()
    seconds_each = 0.0  # of a sample, in the last piece
    while (held := run.votes.samples if run.votes else 0) < goal:
        cuts = SHOWN_AFTER if run.by_samples else ()
        stop = _next_stop(held, goal, sampler.batch, seconds_each, cuts)
        started = time.monotonic()
        first = _FirstSamples(run.first_samples)
        posterior = sampler.draw(
            stop,
            after=run.votes,
            progress=lambda done, _: progress(done, goal),
            keep=first.add,
        )
        seconds_each = (time.monotonic() - started) / (stop - held)
        ended = posterior.samples < stop  # ``until`` is reached
        snapshots = dict(run.snapshots)
        shown = posterior.samples in cuts or ended or stop == goal
        if shown and run.by_samples:
            bits = posterior.grid.gather(posterior.entropy)
            snapshots[posterior.samples] = bits.astype(np.float32)
        run = replace(run, votes=posterior, first_samples=first.labels, snapshots=snapshots)
        if shown or time.monotonic() - saved_at > _SECONDS_AT_RISK:
            run.write_checkpoint()
            saved_at = time.monotonic()
        if ended:
            break
    return run


class _FirstSamples:
    """Keeps the labels of the first samples, which come in order."""

    def __init__(self, before: NDArray[np.uint8] | None) -> None:
        self.labels = before  # (K, N)

    def add(self, part: range, labels: NDArray[np.uint8]) -> None:
        """Take the labels (B, N) of the samples ``part``."""
        known = 0 if self.labels is None else len(self.labels)
        if not part.start <= known < min(part.stop, MOST_SAMPLE_MAPS):
            return
        new = labels[known - part.start : MOST_SAMPLE_MAPS - part.start].copy()
        self.labels = new if self.labels is None else np.concatenate([self.labels, new])


def _next_stop(held: int, goal: int, batch: int, seconds_each: float, cuts: tuple[int, ...]) -> int:
    """Return after how many samples to look at the clock: where a map is kept, or full batches."""
    affordable = int(_SECONDS_AT_RISK / seconds_each) if seconds_each else batch
    full = max(affordable // batch, 1) * batch
    return min(goal, held + full, *(cut for cut in cuts if cut > held))


def _continued(run: Run, problem: str) -> Run:
    """Return the run with what its folder holds, after checking that this is its own."""
    try:
        run = run.with_checkpoint()
        run.check_votes(problem)
    except DAMAGE as error:
        words = reason_of(error)
        raise OutputError(
            f"`output` holds a damaged state, begin anew with `overwrite=True`: {words}"
        ) from error
    return run
