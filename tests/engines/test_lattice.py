"""What the CPU and the GPU engine share: keys, order, blur, groups of kernels and field tables."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import perturb_mpm as pm
from perturb_mpm.engines.lattice import (
    BLURS,
    Blur,
    against_first_label,
    group_kernels,
    key_code,
    morton_order,
    published_gain,
)
from perturb_mpm.model import Grid
from perturb_mpm.noise import NodeTables, length_lattices


def test_the_curve_goes_through_a_square_in_z() -> None:
    order = morton_order(Grid((4, 4)))
    assert [divmod(int(i), 4) for i in order[:4]] == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert sorted(order) == list(range(16))


def test_different_vertices_have_different_keys_in_every_copy() -> None:
    scales = np.array([[1.0, 1.0], [1.08, 1.08]], dtype=np.float32)
    code = key_code(np.zeros(2), np.full(2, 5.0), scales)
    vertices = np.array(list(itertools.product(range(-4, 10), repeat=2)))
    keys = np.concatenate([vertices @ code.strides + k * code.copy_stride for k in range(2)])
    assert len(np.unique(keys)) == len(keys)
    assert len(np.unique(code.curve(keys[: len(vertices)]))) == len(vertices)


@pytest.mark.parametrize("accuracy", BLURS)
def test_steps_of_hashed_keys_wrap_around(accuracy: str) -> None:
    """Their sums take more than 64 bits, which NumPy warns of where they are single numbers."""
    directions = np.array([2**62 - 1, 2**61 + 1, 2**62 + 3], dtype=np.int64)
    directions = np.append(directions, -directions.sum())
    blur = BLURS[accuracy]
    reach = len(blur.taps) - 1
    steps, weights = blur.passes(directions)[-1]
    farthest = sum(reach * int(d) for d in directions[-blur.fused :])
    assert int(steps[-1]) == (farthest + 2**63) % 2**64 - 2**63
    assert weights[-1] == blur.taps[-1] ** blur.fused


def test_a_vertex_gets_most_of_itself() -> None:
    responses = Blur().responses(3)
    assert responses[0] == 1 + 2 * 0.5**4
    # One step forwards is three backwards along the other directions.
    np.testing.assert_array_equal(responses[1:], responses[:0:-1])
    assert responses[0] > responses[1:].max()
    assert published_gain(3) == 8 / 9


def test_potts_kernels_share_a_group_and_matrices_have_their_own() -> None:
    matrix = np.array([[0.0, 1.0, 2.0], [1.0, 0.0, 1.0], [2.0, 1.0, 0.0]])
    kernels = [
        pm.SpatialKernel(1.0, 2.0),
        pm.SpatialKernel(2.0, 1.0, compatibility=matrix),
        pm.SpatialKernel(3.0, 4.0),
    ]
    crf = pm.DenseCRF(unary=np.zeros((3, 5)), kernels=kernels)
    groups = group_kernels(crf.terms, 3)
    assert [group.members for group in groups] == [[0, 2], [1]]
    assert groups[0].weights == [2.0, 4.0]
    matrices, offsets = against_first_label(groups)
    np.testing.assert_array_equal(offsets, [[1, 1], [1, 2]])
    np.testing.assert_array_equal(matrices[0], [[-2, -1], [-1, -2]])
    assert group_kernels((), 3)[0].members == []


def test_tables_find_the_nodes_that_smooth_noise_is_made_of() -> None:
    grid = Grid((4, 5), spacing=(1.0, 2.0))
    lattices = length_lattices(((8.0, 0.5), (3.0, 0.5)), grid, 2)
    tables = NodeTables.build([each.axes for each in lattices], grid)
    nodes = np.random.default_rng(0).normal(size=tables.nodes)
    for f, lattice in enumerate(lattices):
        own = nodes[tables.starts[f] : tables.starts[f + 1]].reshape(lattice.shape)
        for voxel, expected in enumerate(lattice.at_voxels(own)):
            place = (0, 0, *divmod(voxel, 5))
            corner = sum(tables.firsts[f, a, x] for a, x in enumerate(place))
            total = 0.0
            for taps in itertools.product(range(3), repeat=4):
                shares = [tables.weights[f, a, x, t] for a, (x, t) in enumerate(zip(place, taps))]
                weight = np.prod(shares)
                if weight:
                    total += weight * nodes[corner + int(tables.steps[f] @ taps)]
            assert total == pytest.approx(expected, abs=1e-6)
