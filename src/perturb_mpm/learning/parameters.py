"""What is learned of a CRF, as changes against its start, and as the vector an optimiser moves.

    U' = U / T − bias            temperature T, one bias in nats for each label but label 0
    μ_m' = w_m · (C_m + Δ_m)     weight w_m and a symmetric change Δ_m of the compatibility
    σ_g' = σ_g · s_g             one factor for each group of a kernel's features

The vector θ holds log T, the biases, log (w_m / start), Δ_m and log s_g: the CRF itself is θ = 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Kind = Literal["temperature", "bias", "weight", "compatibility", "bandwidth"]
Phase = Literal["unary", "weights", "compatibility", "bandwidths"]

# What each phase moves. A weight and its compatibility are never moved together: one would do.
PHASES: dict[Phase, tuple[Kind, ...]] = {
    "unary": ("temperature", "bias"),
    "weights": ("temperature", "bias", "weight"),
    "compatibility": ("temperature", "bias", "compatibility"),
    "bandwidths": ("temperature", "bias", "weight", "bandwidth"),
}

# How far each kind may go from its start; logarithms but for bias (nats) and compatibility.
REACH: dict[Kind, float] = {
    "temperature": 2.0,
    "bias": 6.0,
    "weight": 4.0,
    "compatibility": 4.0,
    "bandwidth": 1.5,
}


@dataclass(frozen=True)
class KernelShape:
    """The groups of a kernel's features, by name, with the columns of each."""

    groups: dict[str, slice]


@dataclass(frozen=True, eq=False)
class KernelChange:
    """What is learned of one kernel."""

    weight_factor: float
    compatibility_change: NDArray[np.float64]  # (L, L), symmetric
    bandwidth_factors: dict[str, float]  # by group


@dataclass(frozen=True, eq=False)
class Parameters:
    """What is learned of a CRF: temperature, bias (L,) in nats, and a change of each kernel."""

    temperature: float
    bias: NDArray[np.float64]  # (L,), 0 for label 0
    kernels: tuple[KernelChange, ...]


@dataclass(eq=False)
class Gradient:
    """Derivatives by what ``Parameters`` holds: logarithms where θ has them."""

    log_temperature: float
    bias: NDArray[np.float64]  # (L,)
    log_weights: NDArray[np.float64]  # (M,)
    compatibility: NDArray[np.float64]  # (M, L, L), not symmetric: by each entry
    log_bandwidths: list[dict[str, float]] = field(default_factory=list)

    def __iadd__(self, other: Gradient) -> Gradient:
        self.log_temperature += other.log_temperature
        self.bias = self.bias + other.bias
        self.log_weights = self.log_weights + other.log_weights
        self.compatibility = self.compatibility + other.compatibility
        self.log_bandwidths = [
            {name: mine[name] + theirs[name] for name in mine}
            for mine, theirs in zip(self.log_bandwidths, other.log_bandwidths, strict=True)
        ]
        return self


@dataclass(frozen=True)
class ParameterLayout:
    """Where each parameter of a CRF with L labels and these kernels stands in θ."""

    n_labels: int
    kernels: tuple[KernelShape, ...]

    @cached_property
    def kinds(self) -> list[Kind]:
        """The kind of each entry of θ."""
        pairs = self.n_labels * (self.n_labels + 1) // 2
        kinds: list[Kind] = ["temperature", *["bias"] * (self.n_labels - 1)]  # type: ignore[list-item]
        for shape in self.kernels:
            kinds += ["weight", *["compatibility"] * pairs, *["bandwidth"] * len(shape.groups)]  # type: ignore[list-item]
        return kinds

    @property
    def size(self) -> int:
        """The length of θ."""
        return len(self.kinds)

    def moved_in(self, phase: Phase) -> NDArray[np.bool_]:
        """Return which entries a phase moves, (size,)."""
        return np.array([kind in PHASES[phase] for kind in self.kinds])

    def bounds(self) -> list[tuple[float, float]]:
        """Return how far each entry may go."""
        return [(-REACH[kind], REACH[kind]) for kind in self.kinds]

    def unpack(self, theta: NDArray[np.float64]) -> Parameters:
        """Return the parameters of a vector."""
        entries = iter(theta.tolist())
        temperature = float(np.exp(next(entries)))
        bias = np.array([0.0, *(next(entries) for _ in range(self.n_labels - 1))])
        rows, columns = np.triu_indices(self.n_labels)
        changes = []
        for shape in self.kernels:
            weight = float(np.exp(next(entries)))
            change = np.zeros((self.n_labels, self.n_labels))
            change[rows, columns] = [next(entries) for _ in rows]
            change[columns, rows] = change[rows, columns]
            factors = {name: float(np.exp(next(entries))) for name in shape.groups}
            changes.append(KernelChange(weight, change, factors))
        return Parameters(temperature, bias, tuple(changes))

    def pack(self, gradient: Gradient) -> NDArray[np.float64]:
        """Return a gradient as a vector, (size,)."""
        rows, columns = np.triu_indices(self.n_labels)
        entries = [gradient.log_temperature, *gradient.bias[1:].tolist()]
        for m, shape in enumerate(self.kernels):
            by_entry = gradient.compatibility[m]
            both = by_entry + by_entry.T - np.diag(np.diag(by_entry))
            entries.append(float(gradient.log_weights[m]))
            entries += both[rows, columns].tolist()
            entries += [gradient.log_bandwidths[m][name] for name in shape.groups]
        return np.array(entries)
