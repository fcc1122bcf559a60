"""Label schemes, and the values of label maps as indices."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from perturb_mpm.files import (
    SCHEMES,
    InputError,
    LabelScheme,
    Source,
    label_indices,
    labels_from_text,
)


def test_schemes_are_named_or_written_out() -> None:
    assert labels_from_text(["brats2021"]).values == (0, 1, 2, 4)
    assert labels_from_text(["0:nothing", "7:tumour"]) == LabelScheme((0, 7), ("nothing", "tumour"))
    for text in ("brats", "0:a,b", "0:background", "0:a,0:b"):
        with pytest.raises(InputError, match="`labels`"):
            labels_from_text([text])


def test_values_become_indices() -> None:
    values = np.array([0, 4, 2, 1], dtype=np.float32)
    found = label_indices(values, SCHEMES["brats2021"], Source("data", Path("seg.nii.gz")))
    assert found.tolist() == [0, 3, 2, 1]
