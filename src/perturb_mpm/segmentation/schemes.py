"""Label schemes by name, never guessed: 4 is enhancing tumour in one and a cavity in another."""

from __future__ import annotations

from perturb_mpm.io.case import LabelScheme
from perturb_mpm.io.errors import InputError

_GLIOMA = ("background", "necrotic or non-enhancing core", "oedema", "enhancing tumour")

SCHEMES = {
    "brats2021": LabelScheme((0, 1, 2, 4), _GLIOMA),
    "brats2023": LabelScheme((0, 1, 2, 3), _GLIOMA),
    "brats2024": LabelScheme((0, 1, 2, 3, 4), (*_GLIOMA, "resection cavity")),
}


def scheme_of(text: str) -> LabelScheme:
    """Return a scheme by its name, or from ``0:background,1:tumour``."""
    if text in SCHEMES:
        return SCHEMES[text]
    pairs = [part.split(":", 1) for part in text.split(",")]
    if not all(len(pair) == 2 and pair[0].strip().isdecimal() for pair in pairs):
        raise InputError(
            f"--labels must be one of {', '.join(SCHEMES)}, or values and names such as "
            f"0:background,1:tumour, got {text}"
        )
    values = tuple(int(value) for value, _ in pairs)
    if len(values) < 2:
        raise InputError(f"--labels must have background and at least one label more, got {text}")
    try:
        return LabelScheme(values, tuple(name.strip() for _, name in pairs))
    except ValueError as error:
        raise InputError(f"--labels {text}: {error}") from error
