"""Options that several commands share: how files are read, and every setting of a run.

The options of settings are generated from the fields of ``RunSettings``: a new field is an option
of ``run`` and ``cohort`` at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, make_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

from cyclopts import Group, Parameter

from perturb_mpm.cli.console import Flag, UsageError, Words, usage_errors
from perturb_mpm.cohort import CaseReading
from perturb_mpm.fields import settings_in
from perturb_mpm.files import LabelScheme, labels_from_text, region_values_from_text
from perturb_mpm.run import (
    DEFAULT_BILATERAL,
    DEFAULT_SPATIAL,
    KernelSettings,
    RunSettings,
    read_settings,
)

INPUTS = Group("Inputs", sort_key=1)
MODEL = Group("Model", sort_key=2)
OUTPUT = Group("Output", sort_key=6)
_GROUPS = {
    "sampling": Group("Sampling", sort_key=3),
    "compute": Group("Computing", sort_key=4),
    "findings": Group("Findings", sort_key=5),
    "report": OUTPUT,
}
# Option: the kernel it changes, the key, and what it says.
_KERNEL_OPTIONS: dict[str, tuple[KernelSettings, str, str]] = {
    "spatial_sigma": (DEFAULT_SPATIAL, "sigma_space", "How far the spatial kernel reaches"),
    "spatial_weight": (DEFAULT_SPATIAL, "weight", "Weight of the spatial kernel; 0 drops it"),
    "bilateral_sigma_space": (
        DEFAULT_BILATERAL,
        "sigma_space",
        "How far the bilateral kernel reaches",
    ),
    "bilateral_sigma_intensity_sd": (
        DEFAULT_BILATERAL,
        "sigma_intensity_sd",
        "How alike intensities must be for the bilateral kernel",
    ),
    "bilateral_weight": (DEFAULT_BILATERAL, "weight", "Weight of the bilateral kernel; 0 drops it"),
}


@Parameter(name="*", group=INPUTS)
@dataclass(frozen=True, kw_only=True)
class ReadingOptions:
    """How the files of a case are read."""

    kind: Literal["probabilities", "logits", "labels"] = "probabilities"
    """What the files of --probabilities hold: probabilities, a network's raw logits, or a label
    map."""
    confidence: float = 0.9
    """With --kind labels: how probable each voxel's own label is taken to be."""
    model: Path | None = None
    """A model trained by perturb-mpm that makes the probabilities from the images."""
    labels: Words = None
    """The labels' numbers in your files, background first, with names or without: 0:background
    1:core, 0 1 2 4, or a scheme such as brats2021. Default: those of dataset.json, else 0, 1, 2
    …"""
    background: int | None = None
    """The value written outside the mask. Default: 0, or the first label's number where 0 is a
    label."""
    image_names: Words = None
    """A name for each image. Default: taken from the file names."""
    dataset_json: Path | None = None
    """nnU-Net's dataset.json. Default: the one beside an .npz."""
    npz_axes: Literal["image", "ras"] | None = None
    """The order of an .npz's axes: image (the image's own) or ras (turned by nnU-Net's reader).
    Needed only where neither a label map nor plans.json lies beside it."""

    def check_model(self, probabilities: tuple[Path, ...], *, needed: bool = False) -> None:
        """Refuse a model beside probabilities, or one that is no file; or neither."""
        if probabilities if self.model is not None else needed and not probabilities:
            raise UsageError("either --probabilities or --model must be given, and not both")
        if self.model is not None and not self.model.is_file():
            raise UsageError(f"--model must be a file, got {self.model}, which is not there")

    def to_reading(self, reference: Path | None = None) -> CaseReading:
        """Return how the options say that files are read; bare values leave names as they are."""
        labels: LabelScheme | tuple[int, ...] | None = None
        if self.labels is not None:
            labels = labels_from_text(self.labels)
            if all(part.strip().isdecimal() for part in ",".join(self.labels).split(",")):
                labels = labels.values
        return CaseReading(**{**vars(self), "labels": labels, "reference": reference})


@Parameter(name="*", group=MODEL)
@dataclass(frozen=True, kw_only=True)
class _FileOptions:
    """What is sampled; an option that is not given has the value of the settings file."""

    settings: Path | None = None
    """A TOML file with all settings, as tune writes it, or a name from perturb-mpm settings list.
    Options given beside it win."""
    paper: Flag = False
    """The paper's algorithm: white noise and votes, our kernels at full strength, not centred."""
    region: Words = None
    """Regions by name and label values, nested or apart: whole=1,2,4 core=1,4 enhancing=4. Each
    region gets a volume, and labels are decided region by region. Default: those of nnU-Net's
    dataset.json, where it has some."""


def _generate_options() -> Iterator[tuple[str, object, object]]:
    """Yield name, annotation and default of an option for every setting; None is not given."""
    defaults = RunSettings()
    for table in (each.name for each in fields(defaults)):
        group = _GROUPS.get(table, MODEL)
        if table == "kernels":
            for name, (kernel, key, words) in _KERNEL_OPTIONS.items():
                about = replace(dict(settings_in(kernel))[key], help=words)
                parameter = Parameter(help=about.describe(getattr(kernel, key)), group=group)
                yield name, Annotated[float | None, parameter], field(default=None)
        elif table not in ("regions", "volume_laws", "dice_laws", "measure_laws", "tuning_ranges"):
            values = getattr(defaults, table)
            hints = get_type_hints(type(values))
            for name, about in settings_in(values):
                kind: Any = hints[name] if about.option is True else about.option
                words = about.describe(getattr(values, name))
                several = kind == tuple[str, ...]
                parameter = Parameter(
                    help=words, group=group, negative="", consume_multiple=several
                )
                if about.option:
                    yield name, Annotated[kind | None, parameter], field(default=None)


if TYPE_CHECKING:

    class SettingsOptions(_FileOptions):
        """Every setting of a run as an option."""

        samples: int | None

else:
    SettingsOptions = Parameter(name="*")(
        make_dataclass(
            "SettingsOptions",
            _generate_options(),
            bases=(_FileOptions,),
            frozen=True,
            kw_only=True,
            namespace={"__module__": __name__, "__doc__": "Every setting of a run as an option."},
        )
    )


def settings_from_options(options: SettingsOptions) -> RunSettings:
    """Return the settings that the options ask for; what is wrong with them is a UsageError."""
    if options.paper and options.settings is not None:
        raise UsageError("--paper and --settings must not be given together: choose one")
    given = {name: value for name, value in vars(options).items() if value is not None}
    path, regions, _ = (given.pop(name, None) for name in ("settings", "region", "paper"))
    kernels = {name: given.pop(name) for name in _KERNEL_OPTIONS if name in given}
    with usage_errors():
        settings = RunSettings.of_paper() if options.paper else RunSettings()
        if path is not None:
            settings = read_settings(path)
        if regions is not None:
            given["regions"] = region_values_from_text(regions)
        return settings.changed(**given, kernels=_change_kernels(settings, kernels))


def cohort_settings(options: SettingsOptions) -> RunSettings:
    """Return the same for many cases, whose numbers of labels are not known yet."""
    settings = settings_from_options(options)
    if settings.sampling.until is not None and not says_samples(options):
        raise UsageError("--until must come with --samples, the most that a case may take")
    return settings


def says_samples(options: SettingsOptions) -> bool:
    """Whether the user chose a number of samples, by an option or in a settings file."""
    return options.samples is not None or options.settings is not None


def _change_kernels(settings: RunSettings, given: dict[str, float]) -> tuple[KernelSettings, ...]:
    """Change the one kernel that each option means, or add it where there is none of its kind."""
    kernels = list(settings.kernels)
    for option, value in given.items():
        default, key, _ = _KERNEL_OPTIONS[option]
        found = [i for i, each in enumerate(kernels) if each.kind == default.kind]
        if len(found) > 1:
            raise UsageError(
                f"--{default.kind}-… options must mean one kernel, got --settings with "
                f"{len(found)} {default.kind} kernels: change them in the file"
            )
        change: dict[str, Any] = {key: value}
        if not found:
            kernels.append(replace(default, **change))
        else:
            kernels[found[0]] = replace(kernels[found[0]], **change)
    return tuple(kernels)
