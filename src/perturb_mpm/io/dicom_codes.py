"""Codes of what a segment is, from the words of its name; a lesion where they say nothing."""

from __future__ import annotations

import re
from typing import NamedTuple


class Code(NamedTuple):
    """A concept of SNOMED CT as DICOM writes it."""

    value: str
    meaning: str


ABNORMAL = Code("49755003", "Morphologically Abnormal Structure")
TISSUE = Code("85756007", "Tissue")
SUBSTANCE = Code("91720002", "Body Substance")
LESION = Code("52988006", "Lesion")

# The first that fits counts: a necrotic tumour core is a necrosis.
_BY_WORD = (
    (r"necro|\bncr", ABNORMAL, Code("6574001", "Necrosis")),
    (r"o?edema|\bed\b|snfh", ABNORMAL, Code("79654002", "Edema")),
    (r"h(a|ae|e)morr?h|blood", ABNORMAL, Code("50960005", "Hemorrhage")),
    (r"cyst", ABNORMAL, Code("367643001", "Cyst")),
    (r"tumou?r|enhanc|\bet\b|neoplas|glio|core", ABNORMAL, Code("108369006", "Neoplasm")),
    (r"white.?matter|\bwm\b", TISSUE, Code("389080008", "White Matter")),
    (r"gr[ae]y.?matter|\bgm\b", TISSUE, Code("389081007", "Gray Matter")),
    (r"csf|cerebrospinal", SUBSTANCE, Code("65216001", "Cerebrospinal Fluid")),
)


def codes_of(name: str) -> tuple[Code, Code]:
    """Return the category and the type of what a label's name stands for."""
    words = name.lower().replace("_", " ")
    for pattern, category, kind in _BY_WORD:
        if re.search(pattern, words):
            return category, kind
    return ABNORMAL, LESION
