"""The settings of a run: those of a file, and over them the options that were given."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from perturb_mpm.cli.errors import UsageError

if TYPE_CHECKING:
    from perturb_mpm.cli.run_options import ComputeOptions, ModelOptions
    from perturb_mpm.pipeline.settings import KernelSettings, RunSettings

_SAME_NAME = ("samples", "seed", "until", "iterations", "temperature", "clip", "estimator")


def settings_from_options(
    model: ModelOptions, compute: ComputeOptions, colour_map: str | None
) -> RunSettings:
    """Return the settings; what is wrong with them is a UsageError."""
    from perturb_mpm.pipeline.settings import RunSettings, read_settings

    given = {name: getattr(model, name) for name in _SAME_NAME} | vars(compute)
    given["colour_map"] = colour_map
    try:
        settings = RunSettings() if model.settings is None else read_settings(model.settings)
        kernels = _kernels(settings, model)
        values = {name: value for name, value in given.items() if value is not None}
        return replace(settings, kernels=kernels, **values)
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from error


def enough_samples(settings: RunSettings, model: ModelOptions, labels: int) -> RunSettings:
    """Return settings that allow as many samples as ``until`` may take, unless a number is said."""
    if settings.precision is None or model.samples is not None or model.settings is not None:
        return settings
    return replace(settings, samples=settings.precision.samples_to_reach(labels))


def _kernels(settings: RunSettings, model: ModelOptions) -> tuple[KernelSettings, ...]:
    from perturb_mpm.pipeline.settings import DEFAULT_BILATERAL, DEFAULT_SPATIAL

    kernels = list(settings.kernels)
    wanted = {
        DEFAULT_SPATIAL: {"sigma_mm": model.spatial_sigma, "weight": model.spatial_weight},
        DEFAULT_BILATERAL: {
            "sigma_mm": model.bilateral_space,
            "sigma_intensity_sd": model.bilateral_intensity,
            "weight": model.bilateral_weight,
        },
    }
    for default, options in wanted.items():
        changed = {key: value for key, value in options.items() if value is not None}
        if changed:
            _change(kernels, default, changed)
    return tuple(kernels)


def _change(
    kernels: list[KernelSettings], default: KernelSettings, changed: dict[str, Any]
) -> None:
    """Change the one kernel of that kind, or add it where there is none."""
    places = [place for place, kernel in enumerate(kernels) if kernel.kind == default.kind]
    if len(places) > 1:
        raise UsageError(
            f"--{default.kind}-… options must mean one kernel, got --settings with {len(places)} "
            f"{default.kind} kernels: change them in the file"
        )
    if not places:
        kernels.append(replace(default, **changed))
    else:
        kernels[places[0]] = replace(kernels[places[0]], **changed)
