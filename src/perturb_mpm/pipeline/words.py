"""What a run did, in words for its pages and tables."""

from __future__ import annotations

import math

from perturb_mpm.fields import Field
from perturb_mpm.io.case import LabelScheme
from perturb_mpm.pipeline.settings import KernelSettings, RunSettings


def perturbation_in_words(settings: RunSettings, labels: LabelScheme) -> str:
    """Return which perturbation the samples come from."""
    noise = "Gumbel noise, independent at every voxel"
    fields = [field for field in settings.fields if field.scale > 0]
    if not fields:
        return f"{noise}, without random fields"
    return f"{noise}, and {'; '.join(_field(field, labels) for field in fields)}"


def parameters_in_words(settings: RunSettings) -> dict[str, object]:
    """Return the parameters as a reader of the report wants them, with their units."""
    rows: dict[str, object] = {
        "seed": settings.seed,
        "mean-field iterations": settings.iterations,
        "estimator": settings.estimator,
        "temperature": settings.temperature,
        "smallest probability": settings.clip,
    }
    if settings.until is not None:
        rows["sampled until frequencies are within"] = f"±{settings.until:g}"
    if settings.bias is not None:
        rows["bias (nats)"] = _listed(settings.bias)
    for kernel in settings.kernels:
        rows[f"{kernel.kind} kernel"] = _kernel(kernel)
    rows["engine"] = f"{settings.engine}, {settings.accuracy}"
    return rows


def _field(field: Field, labels: LabelScheme) -> str:
    length = "one offset for the whole image"
    if math.isfinite(field.length_mm):
        length = f"a smooth random field of length {field.length_mm:g} mm"
    whose = "for each label"
    if field.labels is not None:
        whose = f"shared by {', '.join(labels.names[label] for label in field.labels)}"
    return f"{length} and scale {field.scale:g} nats {whose}"


def _kernel(kernel: KernelSettings) -> str:
    words = f"{_listed(kernel.sigma_mm)} mm"
    if kernel.sigma_intensity_sd is not None:
        words += f", {_listed(kernel.sigma_intensity_sd)} sd of intensity"
    own = ", own compatibility" if kernel.compatibility is not None else ""
    return f"{words}, weight {kernel.weight:g}{own}"


def _listed(numbers: float | tuple[float, ...]) -> str:
    each = numbers if isinstance(numbers, tuple) else (numbers,)
    return ", ".join(f"{number:g}" for number in each)
