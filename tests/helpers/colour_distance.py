"""How different two colours look: CIEDE2000 (Luo, Cui and Rigg 2001)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Colours = NDArray[np.floating]

# sRGB to XYZ (IEC 61966-2-1), divided by the white point D65.
_XYZ = np.array(
    [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
) / np.array([[0.95047], [1.0], [1.08883]])


def lab(colours: Colours) -> NDArray[np.float64]:
    """CIELAB of sRGB colours (…, 3) in 0 … 255."""
    shares = np.asarray(colours, dtype=np.float64) / 255
    linear = np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)
    xyz = linear @ _XYZ.T
    f = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    x, y, z = np.moveaxis(f, -1, 0)
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=-1)


def ciede2000(first: Colours, second: Colours) -> NDArray[np.float64]:
    """The difference of two CIELAB colours (…, 3); 1 can just be seen, 100 is black and white."""
    (l1, a1, b1), (l2, a2, b2) = (np.moveaxis(np.asarray(c), -1, 0) for c in (first, second))
    chroma = (np.hypot(a1, b1) + np.hypot(a2, b2)) / 2
    grow = 1.5 - 0.5 * np.sqrt(chroma**7 / (chroma**7 + 25.0**7))
    c1, c2 = np.hypot(grow * a1, b1), np.hypot(grow * a2, b2)
    h1, h2 = (np.degrees(np.arctan2(b, grow * a)) % 360 for a, b in ((a1, b1), (a2, b2)))
    turn = np.where(c1 * c2 == 0, 0.0, (h2 - h1 + 180) % 360 - 180)
    hue = 2 * np.sqrt(c1 * c2) * np.sin(np.radians(turn / 2))
    lightness, c = (l1 + l2) / 2, (c1 + c2) / 2
    h = np.where(c1 * c2 == 0, h1 + h2, (h1 + turn / 2) % 360)
    t = (
        1
        - 0.17 * np.cos(np.radians(h - 30))
        + 0.24 * np.cos(np.radians(2 * h))
        + 0.32 * np.cos(np.radians(3 * h + 6))
        - 0.20 * np.cos(np.radians(4 * h - 63))
    )
    away = (lightness - 50) ** 2
    dl = (l2 - l1) / (1 + 0.015 * away / np.sqrt(20 + away))
    dc = (c2 - c1) / (1 + 0.045 * c)
    dh = hue / (1 + 0.015 * c * t)
    rotate = -np.sin(np.radians(60 * np.exp(-(((h - 275) / 25) ** 2))))
    rotate = rotate * 2 * np.sqrt(c**7 / (c**7 + 25.0**7))
    return np.asarray(np.sqrt(dl**2 + dc**2 + dh**2 + rotate * dc * dh))
