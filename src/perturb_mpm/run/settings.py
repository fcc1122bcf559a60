"""How a case is run: every parameter of the model, of the sampling and of the computing.

Each class of settings is a table of a settings file, and each of its fields a key; ``Sampling`` and
``Compute`` are such tables too. ``settings_reference`` writes a file with all keys and comments. A
new parameter is one field: see ``perturb_mpm.fields``.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_type_hints

from perturb_mpm import checks
from perturb_mpm.biomarkers import LearnedLaw, MeasureScale
from perturb_mpm.checks import ExpectedError
from perturb_mpm.engines import Compute
from perturb_mpm.fields import (
    Check,
    CheckedSettings,
    Setting,
    check_settings,
    exactly,
    one_of,
    setting,
    settings_in,
)
from perturb_mpm.files import RegionValues, check_region_values
from perturb_mpm.measures import LEAST_ML
from perturb_mpm.model import Normalization
from perturb_mpm.sampling import Sampling
from perturb_mpm.storage import DamagedError, json_ready, parse_toml, read_toml, write_text


class SettingsError(ExpectedError):
    """A parameter is wrong, or does not fit the case."""


class OutputError(ExpectedError):
    """The output folder cannot be used."""


class UnusableRunError(OutputError):
    """The run in the output folder cannot go on: it is damaged, or of other inputs or parameters.

    ``reason`` says which, without advice.
    """

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


ColourMap = Literal["inferno", "viridis", "jet", "hot"]
KernelKind = Literal["spatial", "bilateral"]
MapKind = Literal["votes", "conditional", "mean_field", "blend"]
Intervals = Literal["none", "assumed", "learned"]
Members = Literal["mean", "cycle"]
Numbers = float | tuple[float, ...]

# Beyond these, energies overflow float32 on their way to a sample.
_SMALLEST, _LARGEST = 1e-6, 1e6


def _check_temperature(value: object, name: str) -> float:
    checks.number(value, name, positive=True)
    return checks.number(value, name, minimum=_SMALLEST, below=_LARGEST)


def _check_each(
    check: Check, words: str, value: object, name: str, length: int | None = None
) -> tuple[Any, ...]:
    """Take a list of ``words``, each of which passes the check."""
    items = None if isinstance(value, str) or not isinstance(value, Sequence) else tuple(value)
    if items is None or length not in (None, len(items)):
        raise TypeError(f"{name} must be {words}, got {value!r}")
    return tuple(check(each, name) for each in items)


_check_words = partial(_check_each, exactly(str), "a list of words")


def _check_table(value: object, name: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise TypeError(f"{name} must be a table of names, got {value!r}")
    return value


def _check_laws(scale: MeasureScale | None, value: object, name: str) -> dict[str, LearnedLaw]:
    """Take laws, or tables of their numbers as a settings file has them; some say their scale."""
    given: dict[str, Any] = {} if scale is None else {"scale": scale}
    laws: dict[str, LearnedLaw] = {}
    for key, each in _check_table(value, name).items():
        try:
            laws[key] = each if isinstance(each, LearnedLaw) else LearnedLaw(**given, **each)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{name} of {key}: {error}") from error
    return laws


def _check_ranges(value: object, name: str) -> dict[str, tuple[float, float]]:
    two_numbers = partial(_check_each, checks.number, "two numbers", length=2)
    table = _check_table(value, name)
    return {key: two_numbers(each, f"{name} of {key}") for key, each in table.items()}


def _plain_laws(
    laws: Mapping[str, LearnedLaw], *, scale: bool = False
) -> dict[str, dict[str, float | str]]:
    """Return the numbers of each law, with its scale where the table does not say it."""
    left_out = () if scale else ("scale",)
    return {
        name: {k: each for k, each in vars(law).items() if k not in left_out and each is not None}
        for name, law in laws.items()
    }


def _check_matrix(value: object, name: str) -> tuple[tuple[float, ...], ...]:
    return tuple(map(tuple, checks.floats(value, name).tolist()))  # type: ignore[arg-type]


@dataclass(frozen=True)
class KernelSettings:
    """A kernel in mm and, where it is bilateral, in standard deviations of the images.

    Examples
    --------
    >>> from perturb_mpm.run import KernelSettings
    >>> kernel = KernelSettings("bilateral", sigma_space=20.0, weight=3.0, sigma_intensity_sd=0.5)
    >>> settings = pm.RunSettings(kernels=(kernel,))
    """

    kind: KernelKind = setting(MISSING, "spatial or bilateral", one_of(KernelKind))
    sigma_space: Numbers = setting(
        MISSING,
        "How far it reaches: one number, or one for each axis",
        checks.positive_numbers,
        unit="mm",
    )
    weight: float = setting(
        1.0, "Its weight", partial(checks.number, minimum=0, below=_LARGEST), unit="nats"
    )
    sigma_intensity_sd: Numbers | None = setting(
        None,
        "Of a bilateral kernel, how alike intensities must be: one number, or one for each image",
        checks.positive_numbers,
        unit="standard deviations inside the mask",
        unset="none, for a spatial kernel",
    )
    normalization: Normalization = setting(
        "symmetric", "symmetric, before, after or none", one_of(Normalization)
    )
    compatibility: tuple[tuple[float, ...], ...] | None = setting(  # (L, L)
        None,
        "A symmetric matrix, labels × labels, times the weight",
        _check_matrix,
        unset="Potts",
        example=((0.0, 1.0), (1.0, 0.0)),
    )

    def __post_init__(self) -> None:
        one_of(KernelKind)(self.kind, "kind of a kernel")
        owner = f" of a {self.kind} kernel"
        if (self.sigma_intensity_sd is not None) != (self.kind == "bilateral"):
            raise ValueError(
                f"sigma_intensity_sd must be given for bilateral kernels and for no others, "
                f"got {self.sigma_intensity_sd}{owner}"
            )
        check_settings(self, owner)


DEFAULT_SPATIAL = KernelSettings("spatial", sigma_space=3.0, weight=1.0)
DEFAULT_BILATERAL = KernelSettings(
    "bilateral", sigma_space=20.0, sigma_intensity_sd=0.5, weight=3.0
)

# Ten updates of kernels at full strength leave some volumes 4 % from where they end. Samples with
# weak kernels converge in about five, and each stops when it has. Voxels that leave their label in
# no sample are frozen: most of a brain, and what they send hardly moves.
CONVERGED = Sampling(iterations=40, tolerance=5e-5, hold=5e-3)


@dataclass(frozen=True)
class UnarySettings(CheckedSettings):
    """How probabilities become energies."""

    temperature: float | None = setting(
        None,
        "Above 1 makes the probabilities less sure of themselves",
        _check_temperature,
        unset="that of the grid, by which a border is known no better than its voxels",
        example=1.5,
    )
    sampling_temperature: float | None = setting(
        None,
        "The temperature at which samples are drawn, where it is another",
        _check_temperature,
        unset="1 where the temperature is the grid's and no kernels act, else the temperature",
        example=1.0,
    )
    clip: float = setting(
        1e-6,
        "Probabilities below this count as this",
        partial(checks.number, positive=True, below=1),
    )
    bias: tuple[float, ...] | None = setting(  # (L,)
        None,
        "Added to the log-probability of each label, in the order of the probabilities",
        partial(_check_each, checks.number, "one number for each label"),
        unit="nats",
        unset="0",
        example=(0.0, 0.3, -0.1),
        option=False,
    )
    members: Members = setting(
        "mean", "For an ensemble: sample its mean, or cycle through its members", one_of(Members)
    )


@dataclass(frozen=True)
class CouplingSettings(CheckedSettings):
    """How strongly the kernels couple voxels."""

    strength: float | None = setting(
        None,
        "Multiplies the weight of every kernel; 0 turns the kernels off",
        partial(checks.number, minimum=0, below=_LARGEST),
        unset="0 to 0.5, as far as voxels that look alike predict the probabilities",
        example=0.35,
    )
    centring: float = setting(
        0.0,
        "0 to 1; at 1 the kernels act only on deviations from the probabilities",
        partial(checks.number, minimum=0, maximum=1),
    )
    keep_strength: bool = setting(
        False,  # noqa: FBT003 - the default
        "Only warn where the kernels move volumes far from what the probabilities say; do not "
        "weaken them",
        checks.flag,
    )


@dataclass(frozen=True)
class MapSettings(CheckedSettings):
    """What labels and maps are made of."""

    marginals: MapKind = setting(
        "blend",
        "What labels and maps are made of: votes (the paper), conditional (needs that estimator), "
        "mean_field (too sure where kernels are strong) or blend (the mean of mean field and "
        "tempered probabilities, softened where it is surer than these)",
        one_of(MapKind),
    )


_resumable = partial(setting, changes_results=False)
_learned = partial(_resumable, option=False)


@dataclass(frozen=True)
class BasisSettings(CheckedSettings):
    """What these settings were learned from."""

    learned_cases: int = _learned(
        0,
        "From how many labelled cases these settings were learned",
        partial(checks.integer, minimum=0),
    )
    scan_correlation: float = _learned(
        0.0,
        "Correlation of the errors of two scans of one patient, 0 to 1, learned from scans in "
        "which nothing changed",
        partial(checks.number, minimum=0, maximum=1),
    )
    note: str = _learned(
        "",
        "What these cases showed, for the reader of a report",
        exactly(str),
        example="…",
    )
    learned_labels: tuple[str, ...] = _learned(
        (),
        "The labels that a case must have, as value:name; any where none are given",
        _check_words,
        example=("0:background", "1:core"),
    )
    learned_sequences: tuple[str, ...] = _learned(
        (),
        "The sequences that a case must have; any where none are given",
        _check_words,
        example=("t1c", "flair"),
    )
    learned_voxels: tuple[float, ...] = _learned(
        (),
        "The smallest and largest side of a voxel that a case may have; any where none is given",
        partial(_check_each, checks.number, "two numbers"),
        unit="mm",
        example=(0.9, 1.1),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.learned_voxels) not in (0, 2):
            raise ValueError(f"learned_voxels must be two numbers, got {self.learned_voxels}")


@dataclass(frozen=True)
class FindingSettings(CheckedSettings):
    """What is measured on every sample, beyond volumes."""

    measure: tuple[str, ...] = _resumable(
        (),
        "Measures to take of every region and label in every sample: volume, diameter, area … "
        "(all names: in the help of perturb-mpm measure)",
        _check_words,
        example=("diameter", "area"),
    )
    rule: tuple[str, ...] = _resumable(
        (),
        'Questions about these measures, such as "core.diameter > 30", answered by a probability',
        _check_words,
        example=("core.diameter > 30",),
    )
    lesions: str | None = _resumable(
        None,
        "A region or label whose lesions are listed one by one: how probable and how large each is",
        exactly(str),
        unset="none",
        example="core",
    )
    least_lesion: float = _resumable(
        LEAST_ML,
        "Smaller connected pieces are no lesions",
        partial(checks.number, minimum=0),
        unit="ml",
    )
    priority: str | None = _resumable(
        None,
        "A measure, such as core.volume: where a correction would narrow its interval most",
        exactly(str),
        unset="none",
        example="core.volume",
    )


@dataclass(frozen=True)
class ReportSettings(CheckedSettings):
    """How the report looks."""

    colour_map: ColourMap = setting(
        "inferno",
        "The colours of the uncertainty map in the report",
        one_of(ColourMap),
        changes_results=False,
    )


@dataclass(frozen=True)
class RunSettings(CheckedSettings):
    """All parameters of a run, table by table as in a settings file.

    Examples
    --------
    >>> settings = pm.RunSettings().changed(samples=50, seed=7, temperature=1.5)
    >>> settings.sampling.samples, settings.unary.temperature
    (50, 1.5)
    """

    sampling: Sampling = CONVERGED
    unary: UnarySettings = field(default_factory=UnarySettings)
    coupling: CouplingSettings = field(default_factory=CouplingSettings)
    kernels: tuple[KernelSettings, ...] = setting(
        (DEFAULT_SPATIAL, DEFAULT_BILATERAL),
        "One table for each kernel; kernels = [] at the top means none",
        partial(_check_each, exactly(KernelSettings), "a sequence of KernelSettings"),
        plain=lambda kernels: [plain_values(each) for each in kernels],
    )
    regions: RegionValues = setting(
        {},
        "Named sets of label values, nested or apart: labels are decided region by region, and "
        "each region has a volume. Left out: those of the case",
        lambda value, _: check_region_values(value),
        example={"core": (1, 4)},
        plain=dict,
    )
    volume_laws: Mapping[str, LearnedLaw] = setting(
        {},
        "By name of a region or label: where its true volume lies, given the samples. On the scale "
        "log(V + 0.1 ml), shift moves their median, the interval has the floor at least, trust "
        "multiplies their spread; reach is where it ends, in these units",
        partial(_check_laws, "volume"),
        example={"core": {"shift": 0.05, "floor": 0.2, "trust": 0.8, "cases": 11}},
        plain=_plain_laws,
    )
    dice_laws: Mapping[str, LearnedLaw] = setting(
        {},
        "The same of the Dice of label map and truth, given the Dice of label map and samples; on "
        "the scale of log-odds",
        partial(_check_laws, "share"),
        example={"core": {"shift": -0.3, "floor": 0.4, "trust": 1.1, "cases": 11}},
        plain=_plain_laws,
    )
    measure_laws: Mapping[str, LearnedLaw] = setting(
        {},
        "The same of any other measure, by structure and measure, given its samples; on the scale "
        "log(x + 1) of a size in its unit, log(V + 0.1 ml) of a volume, log-odds of a share",
        partial(_check_laws, None),
        example={
            "core.area": {"scale": "size", "shift": 0.02, "floor": 0.1, "trust": 0.9, "cases": 9}
        },
        plain=partial(_plain_laws, scale=True),
    )
    tuning_ranges: Mapping[str, tuple[float, float]] = setting(
        {},
        "By name of a property: between which values a case resembles those learned from",
        _check_ranges,
        example={"grid temperature": (1.2, 1.7)},
        plain=dict,
    )
    maps: MapSettings = field(default_factory=MapSettings)
    basis: BasisSettings = field(default_factory=BasisSettings)
    compute: Compute = field(default_factory=Compute)
    findings: FindingSettings = field(default_factory=FindingSettings)
    report: ReportSettings = field(default_factory=ReportSettings)

    def __post_init__(self) -> None:
        for name, kind in TABLES.items():
            checks.instance(getattr(self, name), name, kind)
        super().__post_init__()
        if self.maps.marginals == "conditional" and self.sampling.estimator != "conditional":
            raise ValueError('marginals "conditional" needs estimator "conditional"')

    @classmethod
    def of_paper(cls) -> RunSettings:
        """Return the paper's algorithm: white noise, votes; our kernels at full strength."""
        return cls(
            sampling=Sampling(noise_length=0.0),
            unary=UnarySettings(temperature=1.0),
            coupling=CouplingSettings(strength=1.0, centring=0.0, keep_strength=True),
            maps=MapSettings("votes"),
        )

    @property
    def has_kernels(self) -> bool:
        """Whether kernels act."""
        return bool(self.coupling.strength and self.kernels)

    @property
    def intervals(self) -> Intervals:
        """What volume intervals rest on: nothing, an assumed length, or labelled cases."""
        if not self.sampling.correlated and self.sampling.noise_length is not None:
            return "none"  # of a length that is not given yet, the case decides
        return "learned" if self.basis.learned_cases else "assumed"

    def changed(self, **values: Any) -> RunSettings:  # noqa: ANN401 - each is checked
        """Return these settings with other values, wherever they belong: ``changed(samples=9)``."""
        tables: dict[str, dict[str, Any]] = {}
        for name in [name for name in values if name in _TABLE]:
            tables.setdefault(_TABLE[name], {})[name] = values.pop(name)
        new = {name: replace(getattr(self, name), **given) for name, given in tables.items()}
        return replace(self, **new, **values)

    def as_tables(self) -> dict[str, Any]:
        """Return the tables of a settings file, as plain values; infinity is a float."""
        tables = {name: plain_values(getattr(self, name)) for name in TABLES}
        return {each.name: (tables | plain_values(self))[each.name] for each in fields(self)}

    def identity(self) -> dict[str, Any]:
        """Return all that the results depend on, as values that JSON can hold."""
        tables = self.as_tables()
        values = {
            name: tables[table][name]
            for table, kind in TABLES.items()
            for name, each in settings_in(kind)
            if each.changes_results
        }
        return json_ready(values | plain_values(self))


TABLES: dict[str, type] = {
    name: kind
    for name, kind in get_type_hints(RunSettings).items()
    if isinstance(kind, type) and is_dataclass(kind)
}
_TABLE = {name: table for table, kind in TABLES.items() for name, _ in settings_in(kind)}


def plain_values(table: object) -> dict[str, Any]:
    """Return the fields of a table as values that TOML can hold; None where one has no value."""
    return {name: each.plain(getattr(table, name)) for name, each in settings_in(table)}


def settings_from_tables(tables: Mapping[str, Any], base: RunSettings | None = None) -> RunSettings:
    """Return the settings of TOML's tables; what they leave out is that of ``base``."""
    check_keys(tables, [each.name for each in fields(RunSettings)], "at the top")
    values: dict[str, Any] = {}
    for name, value in tables.items():
        if name == "kernels":
            values[name] = _read_kernels(value)
        elif name in TABLES:
            keys = [key for key, _ in settings_in(TABLES[name])]
            check_keys(_read_table(value, name), keys, f"in [{name}]")
            values |= value
        else:
            values[name] = _read_table(value, name)
    return (base or RunSettings()).changed(**values)


def read_settings(path: str | os.PathLike[str], base: RunSettings | None = None) -> RunSettings:
    """Read a settings file; what it leaves out is that of ``base``, the defaults unless given.

    What is wrong with it is a ValueError that names the file. Where there is no such file, the name
    may be that of ``shipped_settings``.

    Examples
    --------
    >>> from perturb_mpm.run import read_settings, write_settings
    >>> write_settings("mine.toml", pm.RunSettings().changed(temperature=1.5))
    >>> read_settings("mine.toml").unary.temperature
    1.5
    """
    shipped = shipped_settings()
    found = Path(path)
    if not found.exists():
        found = shipped.get(str(path), found)
    try:
        tables = read_toml(found)
        if not tables:
            raise ValueError("holds no settings; has a power cut emptied it?")
        return settings_from_tables(tables, base)
    except OSError as error:
        known = f"; learned settings that come with the program are {', '.join(shipped)}"
        raise SettingsError(f"{path} cannot be read: {error.strerror}{known}") from error
    except DamagedError:
        raise
    except (OverflowError, TypeError, ValueError) as error:
        raise SettingsError(f"{path}: {error}") from error


def shipped_settings() -> dict[str, Path]:
    """Return the files of settings that were learned on public data, by name.

    Examples
    --------
    >>> from perturb_mpm.run import shipped_settings
    >>> sorted(shipped_settings())
    ['glioma-unet-2mm', 'hippocampus-unet']
    """
    return {path.stem: path for path in sorted(Path(__file__).with_name("learned").glob("*.toml"))}


def settings_from_text(text: str) -> RunSettings:
    """Return the settings that ``settings_text`` wrote.

    Examples
    --------
    >>> from perturb_mpm.run import settings_from_text
    >>> settings_from_text("unary.temperature = 1.5").unary.temperature
    1.5
    """
    return settings_from_tables(parse_toml(text, "settings"))


def settings_text(settings: RunSettings, comment: str = "") -> str:
    """Write settings as TOML, after a comment; what has no value is left out.

    Examples
    --------
    >>> from perturb_mpm.run import settings_text
    >>> "temperature = 1.5" in settings_text(pm.RunSettings().changed(temperature=1.5))
    True
    """
    tables = settings.as_tables()
    parts = ["".join(f"# {line}".rstrip() + "\n" for line in comment.splitlines())]
    if not settings.kernels:
        parts.append("kernels = []\n")  # stands before the first table: it belongs to none
    for name, values in tables.items():
        if name == "kernels":
            parts += [_table_text("[[kernels]]", each) for each in values]
        elif name in TABLES:
            parts.append(_table_text(f"[{name}]", values))
        elif values:
            parts.append(_table_text(f"[{name}]", _quote_keys(values)))
    return "\n".join(part for part in parts if part)


def write_settings(path: str | os.PathLike[str], settings: RunSettings, comment: str = "") -> None:
    """Write a settings file, whole or not at all; ``comment`` comes first, line by line.

    Examples
    --------
    >>> from perturb_mpm.run import write_settings
    >>> settings = pm.RunSettings().changed(temperature=1.5)
    >>> write_settings("mine.toml", settings, "for perturb-mpm run")
    """
    write_text(path, settings_text(settings, comment))


def settings_reference() -> str:
    """Return a settings file with every key, its default or an example, and what each means."""
    defaults, parts = RunSettings(), []
    for each in fields(RunSettings):
        if each.name in TABLES:
            table = getattr(defaults, each.name)
            parts += [_comment(type(table).__doc__ or ""), _describe_table(f"[{each.name}]", table)]
            continue
        about: Setting = each.metadata["setting"]
        parts.append(_comment(about.describe()))
        if each.name == "kernels":
            parts += [_describe_table("[[kernels]]", kernel) for kernel in defaults.kernels]
        else:
            parts.append(_table_text(f"[{each.name}]", _quote_keys(about.example)) + "\n")
    return "".join(parts).rstrip() + "\n"


def _describe_table(header: str, table: object) -> str:
    """Write a table with a comment above each key; a key without a default shows its example."""
    text, values = f"{header}\n", plain_values(table)
    for name, each in settings_in(table):
        value = each.example if values[name] is None else values[name]
        if value is not None:
            unset = f" Left out: {each.unset}." if each.unset else ""
            text += _comment(each.describe() + unset) + f"{name} = {value_text(value)}\n"
    return f"{text}\n"


def _comment(text: str) -> str:
    """Return the first paragraph as lines of comments."""
    first = text.partition("\n")[0]
    return textwrap.fill(first, 96, initial_indent="# ", subsequent_indent="# ") + "\n"


def check_keys(found: Iterable[str], known: Iterable[str], where: str) -> None:
    """Refuse a key that is not known, and name the nearest that is."""
    names = list(known)
    for key in found:
        if key not in names:
            near = difflib.get_close_matches(key, names, n=1, cutoff=0.5)
            meant = f": did you mean {near[0]}?" if near else f": known are {', '.join(names)}"
            raise ValueError(f"unknown key {key!r} {where}{meant}")


def value_text(value: object) -> str:
    """Write text, a number, or lists and tables of them at any depth."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if isinstance(value, tuple | list):
        return f"[{', '.join(value_text(each) for each in value)}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key} = {value_text(each)}' for key, each in value.items())}}}"
    return repr(value)


def _quote_keys(values: Mapping[str, object]) -> dict[str, object]:
    """Return a table whose keys are a user's words, written as TOML wants them."""
    return {value_text(key): value for key, value in values.items()}


def _table_text(header: str, values: Mapping[str, object]) -> str:
    """Write a table with those of its keys that have a value."""
    given = {key: value for key, value in values.items() if value is not None}
    lines = [header, *(f"{key} = {value_text(value)}" for key, value in given.items())]
    return "\n".join(lines) + "\n"


def _read_table(value: object, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{name} must be a table, got {value!r}: write [{name}] above its keys")
    return value


def _read_kernels(value: object) -> tuple[KernelSettings, ...]:
    """Return one kernel for each table of an array of tables."""
    if not isinstance(value, list):
        raise TypeError(f"kernels must be tables, got {value!r}: write [[kernels]] above each")
    known = [each.name for each in fields(KernelSettings)]
    kernels = []
    for number, table in enumerate(value, start=1):
        where = f"[[kernels]] number {number}"
        check_keys(_read_table(table, "kernels"), known, f"in {where}")
        missing = [key for key in ("kind", "sigma_space") if key not in table]
        if missing:
            raise ValueError(f"{where} must have the key {missing[0]}")
        try:
            kernels.append(KernelSettings(**table))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{where}: {error}") from error
    return tuple(kernels)
