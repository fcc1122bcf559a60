"""CRFs that couple only neighbours on the grid, solved by graph cuts (PyMaxflow)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.comparators.common import Collector, Edges, GridCRF, Samples, problem
from perturb_mpm.engines import require, resolve_budget
from perturb_mpm.noise import gumbel
from perturb_mpm.optional import optional_package
from perturb_mpm.posterior import Posterior

_NODE_BYTES = 48
_EDGE_BYTES = 64
_WORKING_BYTES = 64  # arrays of one number an edge, while the graph is being made

# An energy has fallen when it falls by more than its sums are rounded.
_ROUNDING = 1e-10

LARGEST_VOXELS = 2_000_000


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


def graph_cut(crf: GridCRF) -> NDArray[np.uint8]:
    """Return a labelling (*spatial) of least energy; label 0 outside the mask.

    With two labels it is the most probable labelling, exactly, by one minimum cut. With more it
    is a local minimum by α-expansion (Boykov, Veksler & Zabih, PAMI 2001): switching any voxels to
    any one label would not lower its energy, and the energy is above the least by no more than
    the pairwise energy of the best labelling. Needs the extra ``graphcut``, and memory for the
    graph: about 0.4 kB a voxel with 6 neighbours, 1.7 kB with 26.
    """
    _check(crf)
    return crf.grid.scatter(minimize(crf, crf.energies), 0)


def perturb_and_map_grid(crf: GridCRF, samples: Samples, seed: int) -> Posterior:
    """Draw samples by order-1 perturbation: ``graph_cut`` with the unary energies U − γ.

    γ is the very noise that ``pm.sample`` perturbs with. With two labels each sample is the exact
    minimum; with more it is α-expansion's, so this is no longer exactly Perturb-and-MAP. Needs
    the extra ``graphcut``, the memory of one ``graph_cut`` and its time for each sample: at 64³
    voxels 0.1 s with 2 labels and 6 neighbours, 1 s with 4 labels, 10 s with 4 labels and 26.
    """
    run = Collector("perturb_and_map_grid", samples, seed)
    _check(crf)
    draws = _perturb(crf, run.samples, run.seed)
    return run.collect(crf.grid, crf.n_labels, draws, problem(crf))


def _perturb(crf: GridCRF, samples: range, seed: int) -> Iterator[NDArray[np.uint8]]:
    for index in samples:
        noise = gumbel(seed, range(index, index + 1), crf.grid.index, crf.n_labels)[0]  # (L, N)
        yield minimize(crf, crf.energies - noise)[np.newaxis]


def minimize(crf: GridCRF, energies: NDArray[Any]) -> NDArray[np.uint8]:
    """Return labels (N,) of least energy with other unary energies (L, N) instead of the CRF's."""
    energies = energies.astype(np.float64)
    if crf.n_labels == 2:
        return expand(crf, energies, np.zeros(crf.grid.voxels, dtype=np.uint8), 1)
    labels: NDArray[np.uint8] = energies.argmin(axis=0).astype(np.uint8)
    least = crf.energy_inside(labels, energies)
    tolerance = _ROUNDING * (np.abs(energies).max(axis=0).sum() + crf.edges.weight.sum())
    unchanged, alpha = 0, 0
    while unchanged < crf.n_labels:
        moved = expand(crf, energies, labels, alpha)
        energy = crf.energy_inside(moved, energies)
        unchanged += 1
        if energy < least - tolerance:
            labels, least, unchanged = moved, energy, 1
        alpha = (alpha + 1) % crf.n_labels
    return labels


def expand(
    crf: GridCRF, energies: NDArray[np.float64], labels: NDArray[np.uint8], alpha: int
) -> NDArray[np.uint8]:
    """Return the best labelling (N,) that keeps or switches to ``alpha`` every voxel's label.

    Keeping both labels of a pair costs A, switching the second only B, the first only C and both
    nothing. As costs of single voxels and of unlike decisions that is
    (C − B − A)/2 for switching the first, (B − C − A)/2 for the second, (B + C − A)/2 ≥ 0 between.
    """
    first, second, weight = crf.edges
    here, there = labels[first], labels[second]  # (E,)
    a, b, c = weight * (here != there), weight * (here != alpha), weight * (there != alpha)
    size = crf.grid.voxels
    switch = energies[alpha] + np.bincount(first, (c - b - a) / 2, minlength=size)  # (N,)
    switch += np.bincount(second, (b - c - a) / 2, minlength=size)
    keep = np.take_along_axis(energies, labels[np.newaxis].astype(np.int64), axis=0)[0]
    between = (b + c - a) / 2
    coupled = between > 0
    cut = MinCut(keep, switch, Edges(first[coupled], second[coupled], between[coupled]))
    cut.solve()
    return np.where(cut.labels(), np.uint8(alpha), labels)


def _check(crf: object) -> None:
    if not isinstance(crf, GridCRF):
        raise TypeError(
            f"crf must be a GridCRF, got {type(crf).__name__}: graph cuts need neighbours on a "
            "grid, GridCRF(unary, weight=…)"
        )
    load_maxflow()
    require_memory(crf.grid.voxels, len(crf.edges.weight))


@dataclass(frozen=True, eq=False)
class MinMarginals:
    """The result of ``min_marginals``. Outside the mask: label 0, certain, with its energies 0."""

    energies: NDArray[np.float64] = field(repr=False)
    """ψ_{i;l}, the least energy of any labelling with x_i = l, (2, *spatial)."""
    confidence: NDArray[np.float64] = field(repr=False)
    """σ_{i;l} = exp(−ψ_{i;l}) / Σ_l' exp(−ψ_{i;l'}), (2, *spatial)."""
    labels: NDArray[np.uint8] = field(repr=False)
    """The labelling of least energy, (*spatial)."""
    energy: float
    """Its energy."""


def min_marginals(crf: GridCRF) -> MinMarginals:
    """Compute each voxel's least energy under either label, and the confidence it implies.

    One minimum cut for the best labelling, then one for each voxel with the other label forced on
    it, which starts from the flow of the one before. There are no samples, and σ is not a
    marginal of P: it compares the best labellings and not how many there are.

    Two labels and at most two million voxels, at 2 to 10 µs each. Needs the extra ``graphcut``.
    """
    _check_binary(crf)
    zero, one = crf.energies.astype(np.float64)  # (N,), (N,)
    cut = MinCut(zero, one, crf.edges)
    energy = cut.solve()
    labels = cut.labels()  # (N,)
    psi = np.full((2, crf.grid.voxels), energy)
    force = _decisive(crf)  # (N,)
    for node, is_one in enumerate(labels):
        push = (0.0, float(force[node])) if is_one else (float(force[node]), 0.0)
        psi[0 if is_one else 1, node] = cut.change(node, *push)
        cut.change(node, -push[0], -push[1])
    confidence = 1 / (1 + np.exp(np.clip(psi - psi[::-1], -700, 700)))
    return MinMarginals(
        energies=crf.grid.scatter(psi, 0.0),
        confidence=crf.grid.scatter(confidence, (1.0, 0.0)),
        labels=crf.grid.scatter(labels.astype(np.uint8), 0),
        energy=energy,
    )


def _decisive(crf: GridCRF) -> NDArray[np.float64]:
    """Return a cost (N,) that no voxel will pay: more than flipping it could ever save.

    It is no larger than it must be, or the energies would drown in its rounding.
    """
    first, second, weight = crf.edges
    size = crf.grid.voxels
    around = np.bincount(first, weight, size) + np.bincount(second, weight, size)
    zero, one = crf.energies.astype(np.float64)
    decisive: NDArray[np.float64] = 1.0 + around + np.abs(one - zero)
    return decisive


def _check_binary(crf: object) -> None:
    if not isinstance(crf, GridCRF):
        raise TypeError(
            f"crf must be a GridCRF, got {type(crf).__name__}: graph cuts need neighbours on a "
            "grid, GridCRF(unary, weight=…)"
        )
    if crf.n_labels != 2:
        raise ValueError(
            f"crf must have 2 labels for min-marginals by graph cuts, got {crf.n_labels}: "
            "add up the labels of the foreground first"
        )
    if crf.grid.voxels > LARGEST_VOXELS:
        raise ValueError(
            f"crf must have at most {LARGEST_VOXELS} voxels, one minimum cut each, "
            f"got {crf.grid.voxels}: use a smaller mask or one slice"
        )
    load_maxflow()
    require_memory(crf.grid.voxels, len(crf.edges.weight))
