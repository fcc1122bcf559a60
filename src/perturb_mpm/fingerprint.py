"""Names for content: the same for the same arrays and values on any machine."""

from __future__ import annotations

import dataclasses
import hashlib

import numpy as np

from perturb_mpm.crf import DenseCRF


def digest(*parts: object) -> str:
    """Return the SHA-256 of arrays and plain values."""
    whole = hashlib.sha256()
    for part in parts:
        if isinstance(part, np.ndarray):
            plain = np.ascontiguousarray(part)
            whole.update(f"{plain.dtype.str}{plain.shape}".encode())
            whole.update(plain.data)
        else:
            whole.update(repr(part).encode())
    return whole.hexdigest()


def fingerprint(crf: DenseCRF) -> str:
    """Return the digest of the unaries, kernels, mask, spacing and self term of a CRF."""
    grid = crf.grid
    parts: list[object] = [crf.energies, grid.shape, grid.spacing, grid.mask, crf.self_term]
    for term in crf.terms:
        parts.append(type(term.kernel).__name__)
        for field in dataclasses.fields(term.kernel):  # type: ignore[arg-type]
            parts += [field.name, getattr(term.kernel, field.name)]
        parts.append(term.compatibility)
    return digest(*parts)
