"""Minimum cuts by PyMaxflow, the one file that knows of it.

PyMaxflow (Boykov & Kolmogorov's algorithm) is under the GPL, so it is an extra.
"""

from __future__ import annotations

from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.comparators.grid_crf import Edges
from perturb_mpm.engines.memory import require, resolve_budget
from perturb_mpm.optional import optional_package

_NODE_BYTES = 48
_EDGE_BYTES = 64
_WORKING_BYTES = 64  # arrays of one number an edge, while the graph is being made


def load_maxflow() -> ModuleType:
    """Import PyMaxflow, or say which extra brings it."""
    module: ModuleType = optional_package("maxflow", "a graph cut")
    return module


class MinCut:
    """Minimises Σ_i c_i(y_i) + Σ_edges w [y_i ≠ y_j] over binary y, w ≥ 0."""

    def __init__(self, zero: NDArray[np.float64], one: NDArray[np.float64], edges: Edges) -> None:
        self._graph = load_maxflow().GraphFloat(len(zero), len(edges.weight))
        self._nodes = self._graph.add_grid_nodes(len(zero))
        self._graph.add_edges(edges.first, edges.second, edges.weight, edges.weight)
        # A node on the sink's side, y = 1, has its edge from the source cut.
        self._graph.add_grid_tedges(self._nodes, one, zero)

    def solve(self) -> float:
        """Find the minimum and return it."""
        return float(self._graph.maxflow())

    def labels(self) -> NDArray[np.bool_]:
        """Return the y of the minimum, (N,)."""
        labels: NDArray[np.bool_] = self._graph.get_grid_segments(self._nodes)
        return labels

    def change(self, node: int, zero: float, one: float) -> float:
        """Add to the costs of one node, and return the new minimum.

        The flow and the search trees of the last solution are the start of this one (Kohli &
        Torr, ICCV 2005), so only the neighbourhood of the node is looked at.
        """
        self._graph.add_tedge(node, one, zero)
        self._graph.mark_node(node)
        return float(self._graph.maxflow(reuse_trees=True))


def require_memory(voxels: int, edges: int) -> None:
    """Raise where a graph would not fit into the memory that is free."""
    needed = _NODE_BYTES * voxels + (_EDGE_BYTES + _WORKING_BYTES) * edges
    require(
        needed,
        resolve_budget(None),
        f"a graph of {voxels} voxels and {edges} edges",
        'use a smaller mask or neighbours="faces"',
    )
