"""How time grows with the number of voxels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lab.benchmarks.measure import Row
from lab.benchmarks.synthetic import BRAIN


def exponents(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Return p in time ∝ voxels^p of each engine, from the brains: they differ in size alone."""
    brains = [row for row in rows if row.problem.startswith(BRAIN) and row.one_s is not None]
    if len({row.voxels for row in brains}) < 2:
        return {}
    return {
        engine: {
            column: _slope([row for row in brains if row.engine == engine], column)
            for column in ("one_s", "batch_s")
        }
        for engine in dict.fromkeys(row.engine for row in brains)
    }


def _slope(rows: Sequence[Row], column: str) -> float:
    voxels = np.log([row.voxels for row in rows])
    seconds = np.log([getattr(row, column) for row in rows])
    return float(np.polyfit(voxels, seconds, 1)[0])
