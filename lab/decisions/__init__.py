"""Do decisions hold? Lesions, growth and where a correction pays, against known truths."""

from lab.decisions.phantoms import Head, HeadScan, make_case, make_head

__all__ = [
    "Head",
    "HeadScan",
    "make_case",
    "make_head",
]
