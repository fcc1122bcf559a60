"""The numbers and names of the labels: the user's, else the model's, else 0 … L − 1."""

from __future__ import annotations

from collections.abc import Sequence

from perturb_mpm.checks import FEWEST_LABELS, MOST_LABELS
from perturb_mpm.io.case import LabelScheme
from perturb_mpm.io.dataset_json import Dataset
from perturb_mpm.io.errors import InputError


def choose_scheme(
    labels: int,
    values: Sequence[int] | None,
    names: Sequence[str] | None,
    dataset: Dataset | None,
) -> LabelScheme:
    """Return the labels as the user numbers and names them, or say what does not fit."""
    for option, given in (("--label-values", values), ("--label-names", names)):
        if given is not None and len(given) != labels:
            raise InputError(
                f"{option} must give one for each of the {labels} labels, background first, "
                f"got {len(given)}: {', '.join(map(str, given))}"
            )
    if not FEWEST_LABELS <= labels <= MOST_LABELS:
        raise InputError(f"there must be {FEWEST_LABELS} to {MOST_LABELS} labels, got {labels}")
    known = dataset.labels if dataset else None
    chosen = tuple(values) if values is not None else known.values if known else range(labels)
    if names is None:
        names = known.names if known else ["background", *(f"label_{v}" for v in chosen[1:])]
    try:
        return LabelScheme(tuple(chosen), tuple(names))
    except ValueError as error:
        raise InputError(f"--label-values, --label-names: {error}") from error
