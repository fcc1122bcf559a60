"""The glioma: a necrotic core, an enhancing rim around it, oedema along the white matter."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perturb_mpm.phantom.shapes import Array, smooth_noise, soft_step


@dataclass(frozen=True)
class Tumour:
    """Where a tumour lies and how far it reaches, in mm."""

    centre: Array  # (3,)
    core_radius: float
    oedema_radius: float

    @classmethod
    def place(cls, rng: np.random.Generator) -> Tumour:
        """Put a tumour of random size into the white matter of one hemisphere."""
        side = rng.choice([-1.0, 1.0])
        centre = np.array([side * rng.uniform(28, 34), rng.uniform(-28, 26), rng.uniform(8, 22)])
        core_radius = rng.uniform(15.0, 19.0)
        return cls(centre, core_radius, core_radius * rng.uniform(1.8, 2.1))

    def distance_mm(self, points: Array) -> Array:
        """Return how far each of ``points`` (3, *shape) lies from the centre."""
        offsets = points - self.centre.reshape(3, 1, 1, 1)
        distance: Array = np.sqrt((offsets**2).sum(axis=0))
        return distance

    def undo_mass_effect(self, points: Array) -> Array:
        """Return where each point of the pushed-aside brain lay before the tumour grew."""
        centre = self.centre.reshape(3, 1, 1, 1)
        reach = self.distance_mm(points) / (1.7 * self.core_radius)
        return centre + (points - centre) * (1.0 - 0.35 * np.exp(-(reach**2)))

    def tissue(
        self, points: Array, healthy: dict[str, Array], soft_mm: float, rng: np.random.Generator
    ) -> dict[str, Array]:
        """Return the shares of all tissues once the tumour has taken its place; they sum to 1."""
        distance = self.distance_mm(points)
        lobes = np.exp(
            0.16 * smooth_noise(points, 13.0, rng) + 0.06 * smooth_noise(points, 5.0, rng)
        )
        core = soft_step(self.core_radius - distance * lobes, soft_mm)
        hollow = 0.74 + 0.11 * smooth_noise(points, 8.0, rng)  # the rim is nowhere equally thick
        necrosis = core * soft_step(self.core_radius * hollow - distance * lobes, soft_mm)

        fingers = np.exp(0.16 * smooth_noise(points, 16.0, rng))
        barrier = 14.0 * healthy["grey"]  # oedema follows white matter and stops at the cortex
        # It fades out over some 8 mm, so that where it ends is a matter of opinion.
        reach = self.oedema_radius - distance * fingers - barrier
        same_side = soft_step(points[0] * np.sign(self.centre[0]) - 3.0, soft_mm)
        spread = soft_step(reach, 4.0) * same_side * (1.0 - healthy["fluid"])
        oedema = spread * (1.0 - core)

        left_over = 1.0 - core - oedema
        shares = {name: share * left_over for name, share in healthy.items()}
        return shares | {"necrosis": necrosis, "rim": core - necrosis, "oedema": oedema}
