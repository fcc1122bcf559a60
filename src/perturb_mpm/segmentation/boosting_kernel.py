"""The way of every voxel down every tree, compiled."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.engines.cpu.compile import kernel

FEW = 64


@kernel
def add_leaves(
    features: NDArray[np.float32],  # (n, F)
    roots: NDArray[np.int64],  # (T,)
    owners: NDArray[np.int64],  # (T,)
    feature: NDArray[np.int64],  # (nodes,), negative at a leaf
    threshold: NDArray[np.float64],  # (nodes,)
    left: NDArray[np.int64],  # (nodes,)
    right: NDArray[np.int64],  # (nodes,)
    value: NDArray[np.float64],  # (nodes,)
    sums: NDArray[np.float64],  # (n, K), added to
) -> None:
    """Add the leaf that each voxel comes to in each tree to the sum of the tree's label.

    A few voxels go down one tree after the other, so that tree and voxels stay near the processor.
    """
    for start in range(0, features.shape[0], FEW):
        stop = min(start + FEW, features.shape[0])
        for tree in range(roots.shape[0]):
            for voxel in range(start, stop):
                node = roots[tree]
                while feature[node] >= 0:
                    below = features[voxel, feature[node]] <= threshold[node]
                    node = left[node] if below else right[node]
                sums[voxel, owners[tree]] += value[node]
