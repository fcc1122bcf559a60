"""The pictures of a written page, decoded, and what is wrong with their brightness and colours."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from helpers.report_cases import pixels_of


def luminance(colours: NDArray[np.floating]) -> NDArray[np.float64]:
    """Relative luminance of sRGB colours (…, 3) in 0 … 1, as WCAG 2 defines it."""
    linear = np.where(colours <= 0.04045, colours / 12.92, ((colours + 0.055) / 1.055) ** 2.4)
    return np.asarray(linear @ [0.2126, 0.7152, 0.0722])


def slices_of(page: str, *, opaque: bool | None = None) -> list[tuple[list[str], str]]:
    """The addresses of every slice's sequences and of its overlay, where it has one."""
    found = []
    for part in page.split('<div class="slice ')[1:]:
        classes = part.split('"')[0].split()
        if "bare" in classes or opaque not in (None, "opaque" in classes):
            continue
        greys = re.findall(r'class="grey sequence-\d+" src="([^"]+)"', part)
        (overlay,) = re.findall(r'class="overlay" src="([^"]+)"', part)
        found.append((greys, overlay))
    return found


def bar_of(page: str) -> NDArray[np.float32]:
    """The colours of the scale, (256, 4)."""
    (address,) = re.findall(r'<div class="bar"><i><img src="([^"]+)"', page)
    return pixels_of(address)[0]


def faults(page: str) -> set[str]:
    """What is wrong with the pictures of a page, with maps as opaque as it shows them at first."""
    wrong = set()
    bar = bar_of(page)
    scale = {tuple(colour) for colour in bar[bar[:, 3] == 1, :3].tolist()}
    errors = 0
    (found,) = re.findall(r"\.slice \.overlay {[^}]*opacity: ([\d.]+)", page)
    slices = [(greys, overlay, float(found)) for greys, overlay in slices_of(page, opaque=False)]
    slices += [(greys, overlay, 1.0) for greys, overlay in slices_of(page, opaque=True)]
    for greys, overlay, opacity in slices:
        pixels = pixels_of(overlay)  # (rows, columns, 4)
        shown = pixels[..., 3] > 0
        if not np.isin(pixels[..., 3], (0, 1)).all():
            wrong.add("the image shines through")
        if not {tuple(colour) for colour in pixels[shown][:, :3].tolist()} <= scale:
            errors += 1  # the map of errors has a colour of its own
        for address in greys:
            image = np.repeat(pixels_of(address)[..., None], 3, axis=-1)
            certain = luminance(image[~shown])
            seen = opacity * pixels[shown, :3] + (1 - opacity) * image[shown]
            if shown.any() and certain.size and certain.max() >= luminance(seen).min():
                wrong.add("something certain is as bright as something uncertain")
    if errors > 1:
        wrong.add("a colour is not on the scale")
    return wrong
