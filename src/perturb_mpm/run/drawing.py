"""Drawing a run's samples piece by piece, each piece safe on disk before the next."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.posterior import Posterior
from perturb_mpm.progress import Progress
from perturb_mpm.run.settings import OutputError
from perturb_mpm.run.state import (
    KEPT_SAMPLES,
    Snapshots,
    read_posterior,
    read_samples,
    read_snapshots,
    write_samples,
    write_snapshots,
)
from perturb_mpm.sampling import Sampler

SHOWN_AFTER = (10, 25, 50, 100, 200, 500, 1000, 2000, 5000)
"""After how many samples the entropy map is kept, to show how it settles."""

_PIECE = 25
_SECONDS_AT_RISK = 10.0  # about what an interruption may cost


@dataclass
class Drawn:
    """All that is drawn so far."""

    posterior: Posterior | None
    labels: list[NDArray[np.uint8]]  # of the first samples, each (N,)
    snapshots: dict[int, NDArray[np.float32]]  # samples -> entropy in bits, (N,)


def draw(sampler: Sampler, samples: int, place: Path, progress: Progress) -> Drawn:
    """Draw what the state in ``place`` does not hold yet, and keep it there."""
    drawn = _read(place)
    saved_at = time.monotonic()

    def keep(part: range, labels: NDArray[np.uint8]) -> None:
        wanted = slice(len(drawn.labels) - part.start, KEPT_SAMPLES - part.start)
        if part.start <= len(drawn.labels) < min(part.stop, KEPT_SAMPLES):
            drawn.labels.extend(labels[wanted].copy())

    for cut in _cuts(samples):
        before = 0 if drawn.posterior is None else drawn.posterior.samples
        if before >= cut:
            continue
        posterior = sampler.draw(
            cut,
            after=drawn.posterior,
            progress=lambda done, _: progress(done, samples),
            keep=keep,
        )
        drawn.posterior = posterior
        stopped = posterior.samples < cut
        shown = posterior.samples in SHOWN_AFTER or stopped or cut == samples
        if shown:
            bits = posterior.grid.gather(posterior.entropy)
            drawn.snapshots[posterior.samples] = bits.astype(np.float32)
        if shown or time.monotonic() - saved_at > _SECONDS_AT_RISK:
            _write(place, drawn, posterior)
            saved_at = time.monotonic()
        if stopped:
            break
    return drawn


def _cuts(samples: int) -> list[int]:
    """Return after how many samples there is a look at the clock."""
    cuts = {*range(_PIECE, samples, _PIECE), *SHOWN_AFTER, samples}
    return sorted(cut for cut in cuts if cut <= samples)


def _write(place: Path, drawn: Drawn, posterior: Posterior) -> None:
    """Write a checkpoint; the votes come last, so that the rest is never behind them."""
    write_samples(place, np.stack(drawn.labels))
    numbers = tuple(sorted(drawn.snapshots))
    maps = [drawn.snapshots[number] for number in numbers]
    none = np.zeros((0, posterior.grid.voxels), dtype=np.float32)
    write_snapshots(place, Snapshots(numbers, np.stack(maps) if maps else none))
    posterior.save(place / "posterior.npz")


def _read(place: Path) -> Drawn:
    if not (place / "posterior.npz").exists():
        return Drawn(None, [], {})
    try:
        posterior, labels = read_posterior(place), read_samples(place)
        snapshots = read_snapshots(place)
    except ValueError as error:
        raise OutputError(
            f"--output holds a damaged state, begin anew with --overwrite: {error}"
        ) from error
    kept = zip(snapshots.samples, snapshots.entropy)
    held = {number: bits for number, bits in kept if number <= posterior.samples}
    return Drawn(posterior, list(labels), held)
