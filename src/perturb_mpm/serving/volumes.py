"""The volumes that the server gives out, by name: an allow-list, no paths."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.io.case import Case
from perturb_mpm.serving.session import Session
from perturb_mpm.viewer.nifti_bytes import nifti_bytes
from perturb_mpm.viewer.turning import Turning, box_around

_MARGIN_VOXELS = 10


def shown_images(case: Case) -> dict[str, NDArray[np.float32]]:
    """Return the sequences, and the mask where there is none."""
    return case.images or {"mask": case.mask.astype(np.float32)}


class Volumes:
    """Makes NIfTI bytes of a session's volumes around the mask, in full resolution."""

    def __init__(self, session: Session) -> None:
        self._session = session
        case = session.state.case
        box = box_around(case.mask, _MARGIN_VOXELS)
        self._turning = Turning(case.geometry.affine, case.geometry.shape, box)
        self._made: dict[str, Callable[[], bytes]] = {
            "labels": lambda: self._labels(session.labels),
            "entropy": lambda: self._file(session.entropy),
            "run-labels": lambda: self._labels(session.run_labels),
            "run-entropy": lambda: self._file(session.run_entropy),
        }
        for place, image in enumerate(shown_images(case).values()):
            self._made[f"image-{place}"] = partial(self._file, image)
        for label in range(len(case.labels)):
            self._made[f"share-{label}"] = partial(self._share, label)
        for place, labels in enumerate(session.state.sampled_labels):
            self._made[f"sample-{place}"] = partial(self._labels, labels)

    def get(self, name: str) -> bytes | None:
        """Return a volume as NIfTI, None where there is none of that name."""
        make = self._made.get(name)
        return None if make is None else make()

    @cached_property
    def file_index(self) -> NDArray[np.int64]:
        """The C-order index in the file of each voxel in the browser's order."""
        return self._turning.file_index()

    def runs(self) -> list[tuple[int, int, int]]:
        """Return the edits as (label, first voxel, number of voxels) in the browser's order."""
        edits = self._session.edits
        held = np.full(self._session.run_labels.size, -1, dtype=np.int16)
        held[list(edits)] = list(edits.values())
        turned = held[self.file_index]
        borders = np.flatnonzero(np.diff(turned)) + 1
        starts = np.concatenate([[0], borders])
        lengths = np.diff(np.concatenate([starts, [len(turned)]]))
        return [
            (int(turned[start]), int(start), int(length))
            for start, length in zip(starts, lengths)
            if turned[start] >= 0
        ]

    def edits_of(self, runs: list[tuple[int, int, int]]) -> dict[int, int]:
        """Return the label of each voxel of the file from such runs."""
        edits: dict[int, int] = {}
        for label, start, length in runs:
            places = self.file_index[start : start + length].tolist()
            edits.update(dict.fromkeys(places, label))
        return edits

    def _labels(self, labels: NDArray[np.uint8]) -> bytes:
        return self._file(labels, labels=True)

    def _share(self, label: int) -> bytes:
        share = np.round(255 * self._session.share(label)).astype(np.uint8)
        return self._file(share, slope=1 / 255)

    def _file(self, volume: NDArray[Any], *, slope: float = 1.0, labels: bool = False) -> bytes:
        turned = self._turning.turned(volume)
        return nifti_bytes(turned, self._turning.affine, slope=slope, labels=labels)
