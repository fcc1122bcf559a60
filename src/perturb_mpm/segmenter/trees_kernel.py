"""The way of every voxel down every tree, compiled."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.engines.cpu import kernel

FEW = 32  # voxels whose features stay near the processor


@kernel
def add_leaves(
    features: NDArray[np.float32],  # (n, F)
    roots: NDArray[np.uint32],  # (T,)
    depths: NDArray[np.int64],  # (T,)
    owners: NDArray[np.uint32],  # (T,)
    feature: NDArray[np.uint32],  # (nodes,)
    threshold: NDArray[np.float32],  # (nodes,)
    left: NDArray[np.uint32],  # (nodes,)
    value: NDArray[np.float64],  # (nodes, C)
    sums: NDArray[np.float64],  # (n, K), added to
) -> None:
    """Add the leaf that each voxel comes to in each tree to the sums of the tree's C labels.

    A few voxels go down a tree side by side, all as far as its deepest leaf, and one that has come
    to a leaf stays there: nothing is to be guessed, and their steps overlap.
    """
    near = np.zeros((features.shape[1], FEW), dtype=np.float32)
    node = np.empty(FEW, dtype=np.uint32)
    for start in range(0, features.shape[0], FEW):
        few = min(FEW, features.shape[0] - start)
        for voxel in range(few):
            for column in range(features.shape[1]):
                near[column, voxel] = features[start + voxel, column]
        for tree in range(roots.shape[0]):
            node[:] = roots[tree]
            for _ in range(depths[tree]):
                # As many as fit, though the last few be fewer: a number that is known is quicker.
                for voxel in range(FEW):
                    here = node[voxel]
                    further = near[feature[here], voxel] > threshold[here]
                    node[voxel] = left[here] + np.uint32(further)
            for voxel in range(few):
                for label in range(value.shape[1]):
                    sums[start + voxel, owners[tree] + label] += value[node[voxel], label]
