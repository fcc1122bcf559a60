"""Which tumour a patient has: where it is, how large its parts are, how hard it pushes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from perturb_mpm.phantom.atlas import atlas
from perturb_mpm.phantom.head import to_patient
from perturb_mpm.phantom.space import Array, Source

_ENHANCING_ML = (6.5, 36.0)
_CORE_ML = 78.0
_OEDEMA_ML = (24.0, 112.0)


@dataclass(frozen=True)
class Disease:
    """One glioblastoma in numbers."""

    centre: Array  # (3,) mm, in the patient
    enhancing_ml: float
    core_ml: float  # enhancing tumour, non-enhancing core and necrosis together
    non_enhancing_ml: float
    oedema_ml: float
    push: float  # how much of its volume pushes tissue aside rather than replacing it

    @classmethod
    def draw(cls, source: Source) -> Disease:
        """Draw the tumour of one patient."""
        rng = source.rng("disease")
        places = atlas().places()
        place = places[rng.integers(len(places))] * np.array([rng.choice([-1.0, 1.0]), 1.0, 1.0])
        enhancing = float(np.clip(17.0 * np.exp(0.5 * rng.standard_normal()), *_ENHANCING_ML))
        core = min(enhancing / rng.uniform(0.36, 0.68), _CORE_ML)
        rest = core - enhancing
        return cls(
            centre=to_patient(source, place.astype(np.float32)),
            enhancing_ml=enhancing,
            core_ml=core,
            non_enhancing_ml=rest * rng.uniform(0.2, 0.5),
            oedema_ml=float(np.clip(58.0 * np.exp(0.45 * rng.standard_normal()), *_OEDEMA_ML)),
            push=float(rng.uniform(0.8, 1.7)),
        )

    def pushing(self, factor: float) -> Disease:
        """Return the same tumour with its mass effect multiplied by ``factor``."""
        return replace(self, push=self.push * factor)

    def with_oedema(self, factor: float) -> Disease:
        """Return the same tumour with the volume of its oedema multiplied by ``factor``."""
        return replace(self, oedema_ml=self.oedema_ml * factor)

    @property
    def core_radius_mm(self) -> float:
        """The radius of a ball of the core's volume."""
        return float(np.cbrt(3000.0 * self.core_ml / (4.0 * np.pi)))

    @property
    def pushing_radius_mm(self) -> float:
        """The radius of the ball whose volume is pushed aside."""
        volume_ml = self.push * (0.8 * self.core_ml + 0.2 * self.oedema_ml)
        return float(np.cbrt(3000.0 * volume_ml / (4.0 * np.pi)))
