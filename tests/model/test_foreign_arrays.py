"""Arrays of other libraries: taken, or refused in a sentence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import perturb_mpm as pm
from perturb_mpm.checks import numeric


class OnDevice:
    """As CuPy's arrays are: NumPy may not convert them, ``get`` copies them."""

    __cuda_array_interface__: dict[str, Any] = {}  # noqa: RUF012 - only its name counts

    def __array__(self, *_: object, **__: object) -> None:
        raise TypeError("Implicit conversion to a NumPy array is not allowed")

    def get(self) -> np.ndarray:
        return np.arange(6.0).reshape(2, 3)


class Exported:
    """As JAX's arrays are: NumPy converts them."""

    def __array__(self, *_: object, **__: object) -> np.ndarray:
        return np.arange(6.0).reshape(2, 3)


@pytest.mark.parametrize("given", [OnDevice(), Exported()])
def test_arrays_of_cupy_and_jax_are_taken(given: Any) -> None:
    np.testing.assert_array_equal(numeric(given, "x"), np.arange(6.0).reshape(2, 3))


def test_an_image_of_simpleitk_is_refused_in_a_sentence() -> None:
    itk = pytest.importorskip("SimpleITK")
    image = itk.GetImageFromArray(np.zeros((2, 3, 4), np.float32))
    with pytest.raises(TypeError, match=r"got an image of SimpleITK.*GetArrayFromImage"):
        pm.BilateralKernel(image, sigma_space=3.0, sigma_intensity=0.2)
    array = itk.GetArrayFromImage(image).transpose()
    assert array.shape == image.GetSize()  # as the sentence says
