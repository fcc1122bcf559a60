"""What the server gives out: the page of ``perturb-mpm view``, and volumes by name, no paths."""

from __future__ import annotations

import html
import math
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.files import Case
from perturb_mpm.posterior import marginal_entropy
from perturb_mpm.report import (
    SHOWN_FROM_BITS,
    BrowserGrid,
    ReportData,
    ShownImage,
    ViewerSettings,
    asset,
    box_around,
    grey_window,
    most_uncertain_mm,
    nifti_bytes,
    niivue,
    script,
    viewer_label_colours,
)
from perturb_mpm.run import report_data
from perturb_mpm.view.correction import Edits
from perturb_mpm.view.session import Session

_MARGIN_VOXELS = 10


def shown_images(case: Case) -> dict[str, NDArray[np.float32]]:
    """Return the sequences, and the mask where there is none."""
    return case.images or {"mask": case.mask.astype(np.float32)}


class Volumes:
    """Makes NIfTI bytes of a session's volumes around the mask, in full resolution."""

    def __init__(self, session: Session) -> None:
        self._session = session
        run = session.run
        box = box_around(run.case.mask, (_MARGIN_VOXELS,) * 3)
        geometry = run.case.geometry
        self._grid = BrowserGrid(geometry.affine, geometry.shape, box)
        self._makers: dict[str, Callable[[], bytes]] = {
            "labels": lambda: self._labels(run.labels),
            "entropy": lambda: self._file(run.entropy),
        }
        for k, image in enumerate(shown_images(run.case).values()):
            self._makers[f"image-{k}"] = partial(self._file, image)
        for label in range(len(run.case.labels)):
            self._makers[f"share-{label}"] = partial(self._share, label)
        for k in range(len(run.sampled_labels)):
            self._makers[f"sample-{k}"] = partial(self._sample, k)

    def get(self, name: str) -> bytes | None:
        """Return a volume of the run as NIfTI, None where there is none of that name.

        Its samples alone follow a correction; for all other volumes see ``changes``.
        """
        make = self._makers.get(name)
        return None if make is None else make()

    def changes(self) -> bytes:
        """Return what a correction changes in the run's maps, in the browser's order.

        Of M voxels, one after the other: M and their positions (uint32), entropy in bits (float32),
        labels (uint8), and the share of each label in 255 steps (uint8, L·M); little-endian.
        """
        correction, regions = self._session.shown.correction, self._session.run.regions
        positions = self._browser_index[correction.index]
        shown = positions >= 0
        marginals = correction.marginals[:, shown]
        parts = (
            np.array([shown.sum()], dtype="<u4"),
            positions[shown].astype("<u4"),
            marginal_entropy(marginals).astype("<f4"),
            correction.decide(regions)[shown],
            np.round(255 * marginals).astype(np.uint8),
        )
        return b"".join(part.tobytes() for part in parts)

    @cached_property
    def file_index(self) -> NDArray[np.int64]:
        """The C-order index in the file of each voxel in the browser's order."""
        return self._grid.file_index()

    @cached_property
    def _browser_index(self) -> NDArray[np.int32]:
        """The position of each voxel of the file in the browser's order, −1 where not shown."""
        index = np.full(self._session.run.labels.size, -1, dtype=np.int32)
        index[self.file_index] = np.arange(len(self.file_index), dtype=np.int32)
        return index

    def runs(self, edits: Edits) -> list[tuple[int, int, int]]:
        """Return edits as (label, first voxel, number of voxels) in the browser's order."""
        given = np.full(self._session.run.labels.size, -1, dtype=np.int16)
        given[list(edits)] = list(edits.values())
        labels = given[self.file_index]
        starts = np.flatnonzero(np.diff(labels, prepend=-2))
        lengths = np.diff(starts, append=len(labels))
        return [
            (int(labels[start]), int(start), int(length))
            for start, length in zip(starts, lengths)
            if labels[start] >= 0
        ]

    def parse_runs(self, runs: list[tuple[int, int, int]]) -> dict[int, int]:
        """Return the label of each voxel of the file from such runs."""
        edits: dict[int, int] = {}
        for label, start, length in runs:
            voxels = self.file_index[start : start + length].tolist()
            edits.update(dict.fromkeys(voxels, label))
        return edits

    def _labels(self, labels: NDArray[np.uint8]) -> bytes:
        return self._file(labels, labels=True)

    def _sample(self, k: int) -> bytes:
        run = self._session.shown.corrected or self._session.run
        return self._labels(run.sampled_labels[k])

    def _share(self, label: int) -> bytes:
        share = np.round(255 * self._session.run.marginals[label]).astype(np.uint8)
        return self._file(share, slope=1 / 255)

    def _file(self, volume: NDArray[Any], *, slope: float = 1.0, labels: bool = False) -> bytes:
        voxels = self._grid.reorder(volume)
        return nifti_bytes(voxels, self._grid.affine, slope=slope, labels=labels)


WITHOUT_WEBGL = (
    "This browser cannot draw in 3-D (it lacks WebGL 2, or it is switched off), so the viewer is "
    "not shown. report.html in the same folder has slices that need nothing of the kind."
)


def policy(nonce: str) -> str:
    """Return the content security policy: nothing runs but what carries the nonce."""
    return (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; "
        "img-src data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )


def render_page(session: Session, token: str, nonce: str) -> str:
    """Return the page with the viewer and the tools to correct."""
    run = session.run
    settings = _settings(report_data(run), shown_images(run.case), token)
    title = html.escape(run.title)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{title} – perturb-mpm view</title>
<link rel="icon" href="data:,">
<style nonce="{nonce}">{asset("viewer.css")}{asset("view.css")}</style>
</head>
<body>
<header><h1>{title}</h1><p>{html.escape(str(run.folder.resolve()))}</p></header>
<main>
{asset("viewer.html")}<template id="pmpm-correction-tools">
{asset("correction.html")}</template>
</main>
<script type="application/json" id="pmpm-settings">{settings.as_json()}</script>
<script nonce="{nonce}">{niivue()}</script>
<script nonce="{nonce}">{script("correction.js", "start_view.js")}</script>
</body>
</html>
"""


def _settings(
    data: ReportData, images: dict[str, NDArray[np.float32]], token: str
) -> ViewerSettings:
    return ViewerSettings(
        label_names=data.label_names,
        label_colours=viewer_label_colours(data.label_names),
        images=[
            ShownImage(name, {"url": f"/volumes/image-{k}"}, *grey_window(image[data.mask]))
            for k, (name, image) in enumerate(images.items())
        ],
        entropy={"url": "/volumes/entropy"},
        label_map={"url": "/volumes/labels"},
        samples=[{"url": f"/volumes/sample-{k}"} for k in range(len(data.sampled_labels))],
        shares=[{"url": f"/volumes/share-{label}"} for label in range(len(data.label_names))],
        top_bits=math.log2(len(data.label_names)),
        threshold_bits=SHOWN_FROM_BITS,
        start_mm=most_uncertain_mm(data),
        colour_map=data.colour_map,
        without_webgl=WITHOUT_WEBGL,
        more={"token": token},
    )
