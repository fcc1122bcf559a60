"""pydensecrf's matrices: float32 arrays in column-major order, as NumPy has them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["MatrixXf", "VectorXf", "matrixXf", "vectorXf"]

MatrixXf = np.ndarray
VectorXf = np.ndarray


def vectorXf(arr: Any) -> NDArray[np.float32]:  # noqa: ANN401
    """Return a copy of a float32 vector."""
    return np.array(float32_array(arr, "arr", 1))


def matrixXf(arr: Any) -> NDArray[np.float32]:  # noqa: ANN401
    """Return a copy of a float32 matrix in column-major order."""
    return np.array(float32_array(arr, "arr", 2), order="F")


def float32_array(value: Any, name: str, ndim: int) -> NDArray[np.float32]:  # noqa: ANN401
    """Return a float32 array of so many axes; TypeError or ValueError as pydensecrf has them."""
    if value is None:
        raise TypeError(f"`{name}` must be a float32 array, got None")
    array = np.asarray(value)
    if array.ndim != ndim:
        raise ValueError(f"`{name}` must have {ndim} axes, got shape {array.shape}")
    if array.dtype != np.float32:
        raise ValueError(
            f"`{name}` must be float32, got {array.dtype}: convert it with astype(np.float32)"
        )
    return array
