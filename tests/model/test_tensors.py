"""PyTorch tensors as arrays: any device, with gradients, in bfloat16; or refused in words."""

from __future__ import annotations

import numpy as np
import pytest

import perturb_mpm as pm

torch = pytest.importorskip("torch", reason="PyTorch is not installed")


def crf(unary: object, spacing: object = None) -> pm.DenseCRF:
    kernels = [pm.SpatialKernel(sigma=2.0)]
    return pm.DenseCRF(unary, kernels, spacing=spacing)  # type: ignore[arg-type]


def test_tensors_are_taken_as_arrays() -> None:
    values = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    expected = crf(values, (1.0, 2.0))
    graded = torch.from_numpy(values.copy()).requires_grad_()
    for tensor in (graded, torch.from_numpy(values).to(torch.bfloat16)):
        found = crf(tensor, torch.tensor([1.0, 2.0]))
        np.testing.assert_array_equal(found.energies, expected.energies)
        assert found.grid.spacing == (1.0, 2.0)
    assert graded.requires_grad
    assert crf(values, torch.tensor(2.0)).grid.spacing == (2.0, 2.0)


@pytest.mark.parametrize("kind", ["sparse", "meta", "complex"])
def test_other_tensors_are_refused_in_a_sentence(kind: str) -> None:
    tensor = torch.zeros(2, 3, 4)
    made = {
        "sparse": tensor.to_sparse,
        "meta": lambda: tensor.to("meta"),
        "complex": lambda: tensor.to(torch.complex64),
    }[kind]()
    with pytest.raises(TypeError, match="unary must be a"):
        crf(made)
