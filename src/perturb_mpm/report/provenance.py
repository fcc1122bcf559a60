"""What a page's result rests on: inputs, settings, versions, and a paragraph to put in a paper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

PAPER = (
    "R. Meier, U. Knecht, A. Jungo, R. Wiest, M. Reyes. Perturb-and-MPM: Quantifying Segmentation "
    "Uncertainty in Dense Multi-Label CRFs. arXiv:1703.00312, 2017."
)


@dataclass(frozen=True)
class Provenance:
    """Where a result comes from."""

    version: str = ""  # of perturb-mpm
    date: str = ""  # when the run began, such as 2026-03-31
    inputs: Mapping[str, str] = field(default_factory=dict)  # file name -> SHA-256
    kernels: str = ""  # in words
    settling: str = ""  # how far the samples have come, in sentences
    maps: str = ""  # what labels and maps are made of, in words
    software: Mapping[str, str] = field(default_factory=dict)  # name -> version


def methods(
    provenance: Provenance, *, samples: int, perturbation: str, intervals: str, learned_cases: int
) -> str:
    """Return how it was done, as a paper's methods section would say it."""
    version = f", version {provenance.version}" if provenance.version else ""
    kernels = f" with {provenance.kernels}" if provenance.kernels else ""
    text = (
        "The uncertainty of the segmentation was estimated with Perturb-and-MPM (Meier et al. "
        f"2017) as implemented in perturb-mpm{version}. {samples} segmentations were sampled from "
        f"a dense conditional random field{kernels}, perturbed by {perturbation}."
    )
    if provenance.settling:
        text += f" {provenance.settling}"
    if provenance.maps:
        text += f" Labels and entropy are those of {provenance.maps}."
    if intervals == "assumed":
        text += (
            " Volume intervals are the central 95 % of the sampled volumes; the length of the "
            "noise was assumed, not learned."
        )
    elif intervals == "learned":
        text += (
            " Volume intervals are the central 95 % of the sampled volumes, with parameters "
            f"learned from {learned_cases} labelled cases."
        )
    return text
