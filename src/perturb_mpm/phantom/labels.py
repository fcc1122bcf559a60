"""The labels of the truth, and which tissues carry them."""

from __future__ import annotations

LABEL_NAMES = ("healthy", "necrosis", "oedema", "non-enhancing core", "enhancing tumour")
POSTOPERATIVE_LABEL_NAMES = (*LABEL_NAMES, "cavity or haemorrhage")
HEALTHY, NECROSIS, OEDEMA, NON_ENHANCING, ENHANCING, CAVITY = range(6)

LABEL_OF = {
    "white": HEALTHY,
    "grey": HEALTHY,
    "fluid": HEALTHY,
    "necrosis": NECROSIS,
    "oedema": OEDEMA,
    "non-enhancing": NON_ENHANCING,
    "enhancing": ENHANCING,
    "cavity": CAVITY,
    "blood": CAVITY,
    "air": CAVITY,
}
