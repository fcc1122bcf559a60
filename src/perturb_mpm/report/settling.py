"""How the entropy map settles as samples are added."""

from __future__ import annotations

import numpy as np

from perturb_mpm.report.data import ReportData, Snapshot

WANTED = (10, 25, 50, 100, 200)  # as in the paper's figure


def shown_snapshots(snapshots: tuple[Snapshot, ...]) -> tuple[Snapshot, ...]:
    """Return at most five snapshots: those nearest to the paper's numbers, and the last one."""
    if len(snapshots) <= len(WANTED):
        return snapshots
    last = snapshots[-1].samples
    wanted = [*(number for number in WANTED[:-1] if number < last), last]
    nearest = {min(snapshots, key=lambda s: abs(s.samples - n)).samples for n in wanted}
    return tuple(snapshot for snapshot in snapshots if snapshot.samples in nearest)


def changes_bits(data: ReportData) -> list[tuple[int, float]]:
    """Return (samples, mean |H − final H|) of each snapshot, in bits.

    The mean is over the voxels in which any sample of the final map disagrees: all others have an
    entropy of 0 throughout.
    """
    final = data.snapshots[-1].entropy
    disagreeing = final > 0
    if not disagreeing.any():
        return [(snapshot.samples, 0.0) for snapshot in data.snapshots]
    settled = final[disagreeing]
    return [
        (each.samples, float(np.abs(each.entropy[disagreeing] - settled).mean(dtype=np.float64)))
        for each in data.snapshots
    ]
