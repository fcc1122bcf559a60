"""How bright each tissue is in each sequence, and how that differs from scan to scan."""

from __future__ import annotations

import numpy as np

from perturb_mpm.phantom.space import Source

CHANNEL_NAMES = ("T1", "T1c", "T2", "FLAIR")

TYPICAL = {  # white matter in T1 being 1
    "white": (1.00, 1.00, 0.58, 0.74),
    "grey": (0.77, 0.80, 0.80, 0.92),
    "fluid": (0.28, 0.30, 2.10, 0.26),
    "necrosis": (0.52, 0.50, 1.70, 0.80),
    "oedema": (0.80, 0.81, 1.25, 1.55),
    "non-enhancing": (0.74, 0.78, 1.15, 1.35),
    "enhancing": (0.79, 1.70, 1.05, 1.30),
    "cavity": (0.40, 0.43, 1.95, 0.48),
    "blood": (1.38, 1.46, 0.48, 0.95),
    "air": (0.03, 0.03, 0.03, 0.03),
}
SPREAD = {  # of the logarithm, from scan to scan, in each sequence
    "white": (0.0, 0.0, 0.05, 0.04),
    "grey": (0.04, 0.04, 0.05, 0.04),
    "fluid": (0.10, 0.10, 0.10, 0.15),
    "necrosis": (0.10, 0.10, 0.12, 0.30),
    "oedema": (0.04, 0.04, 0.08, 0.08),
    "non-enhancing": (0.05, 0.05, 0.08, 0.08),
    "enhancing": (0.05, 0.13, 0.08, 0.08),
    "cavity": (0.10, 0.10, 0.08, 0.35),
    "blood": (0.06, 0.06, 0.25, 0.15),
    "air": (0.0, 0.0, 0.0, 0.0),
}


def brightness(source: Source, stage: str) -> dict[str, tuple[float, ...]]:
    """Return the brightness of each tissue in the four sequences of one scan.

    T1 and T1c share their deviations, so that what does not enhance is as bright in both.
    """
    rng = source.rng(f"contrast, {stage}")
    flatness = rng.uniform(0.75, 1.1, len(CHANNEL_NAMES))
    flatness[1] = flatness[0]
    result: dict[str, tuple[float, ...]] = {}
    for name, values in TYPICAL.items():
        deviation = rng.standard_normal(len(CHANNEL_NAMES))
        if name != "enhancing":
            deviation[1] = deviation[0]
        bright = np.array(values) * np.exp(np.array(SPREAD[name]) * deviation)
        if name == "grey":
            white = np.array(result["white"])
            bright = white + flatness * (bright - white)
        result[name] = tuple(float(value) for value in bright)
    return result
