"""The page of ``perturb-mpm view``."""

from __future__ import annotations

import html
import math

import numpy as np

from perturb_mpm.pipeline.state import RunState
from perturb_mpm.report.colours import SHOWN_FROM_BITS
from perturb_mpm.report.data import ReportData
from perturb_mpm.report.regions import uncertain_regions
from perturb_mpm.report.viewer import most_uncertain_mm, viewer_label_colours
from perturb_mpm.serving.volumes import shown_images
from perturb_mpm.viewer.assets import asset, niivue, script
from perturb_mpm.viewer.settings import ShownImage, ViewerSettings

WITHOUT_WEBGL = (
    "This browser cannot draw in 3-D (it lacks WebGL 2, or it is switched off), so the viewer is "
    "not shown. report.html in the same folder has slices that need nothing of the kind."
)
_DARKEST_PERCENTILE, _BRIGHTEST_PERCENTILE = 0.5, 99.8
_REGIONS = 12


def policy(nonce: str) -> str:
    """Return the content security policy: nothing runs but what carries the nonce."""
    return (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; "
        "img-src data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )


def render_page(state: RunState, token: str, nonce: str) -> str:
    """Return the page with the viewer and the tools to correct."""
    data = _report_data(state)
    settings = _settings(data, token)
    title = html.escape(state.title)
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
<header><h1>{title}</h1><p>{html.escape(str(state.folder.resolve()))}</p></header>
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


def _settings(data: ReportData, token: str) -> ViewerSettings:
    regions = [
        {
            "mm": region.centre_mm,
            "words": f"{region.volume_ml:.2g} ml, {region.mean_entropy_bits:.2f} bits: "
            + " or ".join(name for name, _ in region.labels),
        }
        for region in uncertain_regions(data, limit=_REGIONS)
    ]
    return ViewerSettings(
        label_names=data.label_names,
        label_colours=viewer_label_colours(data.label_names),
        images=[_image(place, name, data) for place, name in enumerate(data.images)],
        entropy={"url": "/volumes/entropy"},
        label_map={"url": "/volumes/labels"},
        samples=[{"url": f"/volumes/sample-{k}"} for k in range(len(data.sampled_labels))],
        shares=[{"url": f"/volumes/share-{label}"} for label in range(len(data.label_names))],
        top_bits=math.log2(len(data.label_names)),
        threshold_bits=SHOWN_FROM_BITS,
        start_mm=most_uncertain_mm(data),
        colour_map=data.colour_map,
        without_webgl=WITHOUT_WEBGL,
        more={"token": token, "regions": regions},
    )


def _image(place: int, name: str, data: ReportData) -> ShownImage:
    values = data.images[name][data.mask]
    low, high = np.percentile(values, (_DARKEST_PERCENTILE, _BRIGHTEST_PERCENTILE))
    return ShownImage(name, {"url": f"/volumes/image-{place}"}, float(low), float(high))


def _report_data(state: RunState) -> ReportData:
    case, posterior = state.case, state.posterior
    return ReportData(
        title=state.title,
        images=shown_images(case),
        mask=case.mask,
        labels=posterior.labels,
        entropy=posterior.entropy.astype(np.float32),
        uncertainty=posterior.uncertainty_map(),
        marginals=posterior.marginals.astype(np.float32),
        affine=case.geometry.affine,
        spacing=case.geometry.spacing,
        label_values=case.labels.values,
        label_names=case.labels.names,
        volumes_mm3=posterior.volumes,
        independent_noise=not state.settings.fields,
        perturbation="",
        snapshots=(),
        sampled_labels=state.sampled_labels,
        colour_map=state.settings.colour_map,
    )
