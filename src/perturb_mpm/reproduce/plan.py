"""What a run of the synthetic validation measures: all that its numbers depend on, but the seed."""

from __future__ import annotations

from dataclasses import asdict, dataclass

# Raised when the same plan and seed would give other numbers than before.
FORMAT = 1


@dataclass(frozen=True)
class Plan:
    """The settings, the numbers of samples and the number of draws of a run."""

    mode: str
    """The name of the plan, for its reader."""
    voxels: tuple[int, ...]
    """The sizes N of the grids."""
    draws: int
    """How many random unaries a mean is taken over."""
    curve_settings: tuple[tuple[float, float], ...]
    """The (weight, sigma) whose errors are followed along the number of samples."""
    curve_samples: tuple[int, ...]
    comparator_samples: tuple[int, ...]
    """At which numbers of samples all methods are compared, at the first of the settings."""
    map_weights: tuple[float, ...]
    map_sigmas: tuple[float, ...]
    map_samples: int
    single_voxel_labels: tuple[int, ...]
    """The numbers of labels that the sign of the noise is tried with."""
    single_voxel_samples: int

    def describe(self, seed: int) -> dict[str, object]:
        """Return all that the numbers depend on, as values that JSON gives back unchanged."""
        plain = {key: _plain(value) for key, value in asdict(self).items()}
        return {"format": FORMAT, "seed": seed, **plain}


FULL = Plan(
    mode="full",
    voxels=(6, 9, 12),
    draws=20,
    curve_settings=((1.0, 1.0), (1.0, 0.7)),
    curve_samples=(10, 50, 10**2, 10**3, 10**4, 10**5, 10**6),
    comparator_samples=(10, 50, 10**2, 10**3, 10**4),
    map_weights=(0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0),
    map_sigmas=(0.4, 0.5, 0.6, 0.7, 0.85, 1.0, 1.4, 2.0, 3.0),
    map_samples=10**4,
    single_voxel_labels=(2, 3, 4, 5),
    single_voxel_samples=10**5,
)

QUICK = Plan(
    mode="quick",
    voxels=(6, 9, 12),
    draws=20,
    curve_settings=((1.0, 1.0), (1.0, 0.7)),
    curve_samples=(10, 50, 10**2, 10**3, 10**4),
    comparator_samples=(10, 50, 10**2, 10**3),
    map_weights=(0.25, 0.5, 1.0, 2.0, 4.0),
    map_sigmas=(0.4, 0.7, 1.0, 1.4, 3.0),
    map_samples=10**3,
    single_voxel_labels=(2, 3, 4, 5),
    single_voxel_samples=10**4,
)


def _plain(value: object) -> object:
    return [_plain(each) for each in value] if isinstance(value, tuple) else value
