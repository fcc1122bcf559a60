"""Between the settings of ``run`` and what learning moves: settings in, settings out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from perturb_mpm.learning.parameters import KernelChange, Parameters
from perturb_mpm.pipeline.settings import KernelSettings, Numbers, RunSettings

# More digits than any run can tell apart, and few enough to read.
_DIGITS = 6


def tuned_settings(start: RunSettings, parameters: Parameters) -> RunSettings:
    """Return the settings that were learned, starting from ``start``.

    A CRF of ``start`` has the energies U = −log p / T − bias; learning makes them U / T' − bias',
    which is −log p / (T T') − (bias / T' + bias').
    """
    before = np.zeros(len(parameters.bias)) if start.bias is None else np.asarray(start.bias)
    bias = before / parameters.temperature + parameters.bias
    changes = iter(parameters.kernels)
    return replace(
        start,
        temperature=_rounded(start.temperature * parameters.temperature),
        bias=tuple(_rounded(each) for each in bias.tolist()),
        kernels=tuple(_tuned_kernels(start.kernels, changes, len(bias))),
    )


def _tuned_kernels(
    kernels: tuple[KernelSettings, ...], changes: Iterator[KernelChange], n_labels: int
) -> Iterator[KernelSettings]:
    """Yield the kernels as they were learned; those of weight 0 are in no CRF and stay."""
    for kernel in kernels:
        yield kernel if kernel.weight == 0 else _tuned(kernel, next(changes), n_labels)


def _tuned(kernel: KernelSettings, change: KernelChange, n_labels: int) -> KernelSettings:
    factors = change.bandwidth_factors
    intensity = kernel.sigma_intensity_sd
    matrix = kernel.compatibility
    if change.compatibility_change.any():
        start = 1.0 - np.eye(n_labels) if matrix is None else np.asarray(matrix)
        found = (start + change.compatibility_change).tolist()
        matrix = tuple(tuple(_rounded(each) for each in row) for row in found)
    return replace(
        kernel,
        sigma_mm=_times(kernel.sigma_mm, factors["space"]),
        sigma_intensity_sd=None if intensity is None else _times(intensity, factors["intensity"]),
        weight=_rounded(kernel.weight * change.weight_factor),
        compatibility=matrix,
    )


def _times(numbers: Numbers, factor: float) -> Numbers:
    if isinstance(numbers, tuple):
        return tuple(_rounded(each * factor) for each in numbers)
    return _rounded(numbers * factor)


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
