"""How a case is run: every parameter of the model, of the sampling and of the computing.

A settings file is TOML. Every table and key may be left out and then has the value shown here; a
key that is not known is refused with the nearest that is.

    [sampling]
    samples = 200             # how many; with until the most
    seed = 0
    iterations = 40           # the most mean-field updates of a sample; 10 are the paper's
    until = 0.1               # stop when frequencies are known to ±0.1; left out: draw all samples
    estimator = "votes"       # or "conditional"
    noise_scale = 1.0         # times the Gumbel noise; left out: what the estimator asks for
    noise_length = 0.0        # mm over which noise goes together; 0.0 is the paper, inf one draw,
                              # [[40.0, 0.7], [0.0, 0.3]] a mixture; left out: the radius of a ball
                              # of the foreground that the probabilities expect
    start = "cold"            # or "warm", which is another law
    antithetic = false        # samples 2t and 2t + 1 are opposites
    tolerance = 5e-5          # stop a sample when about this share of its labels would still
                              # change; 0.0 makes all iterations, as the paper does
    hold = 0.0                # update only voxels that dissent with a probability above this

    [unary]
    temperature = 1.0         # above 1: probabilities less sure of themselves
    clip = 1e-6               # the smallest probability taken at its word
    bias = [0.0, 0.3, -0.1]   # nats on each label's log-probability, U − bias; left out: 0
    members = "mean"          # of an ensemble: sample its mean, or "cycle" through its members

    [coupling]
    strength = 0.35           # times the weight of every kernel; 1.0 is the paper
    keep_strength = false     # where kernels move volumes far: true warns, false weakens them
    centring = 1.0            # kernels act on deviations from the probabilities alone; 0.0: paper

    [[kernels]]               # one table a kernel; kernels = [] at the top means none
    kind = "spatial"
    sigma_space = 3.0         # mm: one number, or one for each axis
    weight = 1.0
    normalization = "symmetric"  # or "before", "after", "none"
    compatibility = [[0.0, 1.0], [1.0, 0.0]]  # symmetric L × L, times the weight; left out: Potts

    [[kernels]]
    kind = "bilateral"
    sigma_space = 20.0        # mm
    sigma_intensity_sd = 0.5  # standard deviations inside the mask: one number, or one an image
    weight = 3.0

    [regions]                 # named sets of label values, nested or apart: labels are decided
    core = [1, 4]             # region by region, and each has a volume; left out: the case's own

    [maps]
    marginals = "mean_field"  # what labels and maps are made of; "votes" is the paper, and
                              # "conditional" needs the estimator of that name

    [basis]
    learned_cases = 0         # from how many labelled cases these settings were learned
    note = "…"                # what that showed, for the reader of a report

    [widening]                # by name of a region or label: how far both ends of its volume's
    core = 0.05               # interval move, in nats of log(V + 0.1 ml); left out: not at all

    [compute]
    engine = "auto"
    accuracy = "calibrated"
    batch = 16                # samples solved at once; left out: planned from the memory
    threads = 2               # left out: all cores
    memory = "4 GB"           # left out: 60 % of what is free
    kernel_cache = "kernels"  # a folder that keeps prepared kernels; left out: none

    [report]
    colour_map = "inferno"    # or "viridis", "jet", "hot"

What is under ``compute`` except engine and accuracy, and ``report``, changes no result: a run may
be resumed with other values of these. Labels are numbered here in the order of the probabilities,
whatever values they have in the files.
"""

from __future__ import annotations

import difflib
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

from perturb_mpm import checks
from perturb_mpm.checks import ExpectedError
from perturb_mpm.engines import Compute
from perturb_mpm.files import RegionValues, checked_region_values
from perturb_mpm.model import Normalization
from perturb_mpm.posterior import MarginalKind
from perturb_mpm.sampling import Sampling
from perturb_mpm.storage import DamagedError, atomic_open, json_ready, parse_toml, read_toml


class SettingsError(ExpectedError):
    """A parameter is wrong, or does not fit the case."""


class OutputError(ExpectedError):
    """The output folder cannot be used."""


def check_keys(found: Iterable[str], known: Iterable[str], where: str) -> None:
    """Refuse a key that is not known, and name the nearest that is."""
    names = list(known)
    for key in found:
        if key not in names:
            near = difflib.get_close_matches(key, names, n=1, cutoff=0.5)
            meant = f": did you mean {near[0]}?" if near else f": known are {', '.join(names)}"
            raise ValueError(f"unknown key {key!r} {where}{meant}")


def table_text(header: str, values: Mapping[str, object]) -> str:
    """Write a table with those of its keys that have a value."""
    given = {key: value for key, value in values.items() if value is not None}
    lines = [header, *(f"{key} = {value_text(value)}" for key, value in given.items())]
    return "\n".join(lines) + "\n"


def value_text(value: object) -> str:
    """Write text, a number, or a list of them at any depth."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if isinstance(value, tuple | list):
        return f"[{', '.join(value_text(each) for each in value)}]"
    return repr(value)


ColourMap = Literal["inferno", "viridis", "jet", "hot"]
KernelKind = Literal["spatial", "bilateral"]
Intervals = Literal["none", "assumed", "learned"]
Members = Literal["mean", "cycle"]
Numbers = float | tuple[float, ...]

UNARY = ("temperature", "clip", "bias", "members")
COUPLING = ("strength", "centring", "keep_strength")
SAMPLING = tuple(each.name for each in fields(Sampling))
COMPUTE = tuple(each.name for each in fields(Compute))
TABLES = {
    "sampling": SAMPLING,
    "unary": UNARY,
    "coupling": COUPLING,
    "maps": ("marginals",),
    "basis": ("learned_cases", "note"),
    "compute": COMPUTE,
    "report": ("colour_map",),
}
CHANGE_NO_RESULT = ("batch", "threads", "memory", "kernel_cache")

# Beyond these, energies overflow float32 on their way to a sample.
_SMALLEST, _LARGEST = 1e-6, 1e6


@dataclass(frozen=True)
class KernelSettings:
    """A kernel in mm and, where it is bilateral, in standard deviations of the images.

    Examples
    --------
    >>> from perturb_mpm.run import KernelSettings
    >>> kernel = KernelSettings("bilateral", sigma_space=20.0, weight=3.0, sigma_intensity_sd=0.5)
    >>> settings = pm.RunSettings(kernels=(kernel,))
    """

    kind: KernelKind
    sigma_space: Numbers
    weight: float = 1.0
    sigma_intensity_sd: Numbers | None = None
    normalization: Normalization = "symmetric"
    compatibility: tuple[tuple[float, ...], ...] | None = None  # (L, L), Potts where None

    def __post_init__(self) -> None:
        checks.choice(self.kind, "kind of a kernel", get_args(KernelKind))
        name = f"of a {self.kind} kernel"
        checks.choice(self.normalization, f"normalization {name}", get_args(Normalization))
        has_intensity = self.sigma_intensity_sd is not None
        if has_intensity != (self.kind == "bilateral"):
            raise ValueError(
                f"sigma_intensity_sd must be given for bilateral kernels and for no others, "
                f"got {self.sigma_intensity_sd} {name}"
            )
        self._set("sigma_space", checks.positive_numbers(self.sigma_space, f"sigma_space {name}"))
        if has_intensity:
            sd = checks.positive_numbers(self.sigma_intensity_sd, f"sigma_intensity_sd {name}")
            self._set("sigma_intensity_sd", sd)
        weight = checks.number(self.weight, f"weight {name}", minimum=0, below=_LARGEST)
        self._set("weight", weight)
        if self.compatibility is not None:
            matrix = checks.floats(self.compatibility, f"compatibility {name}").tolist()
            self._set("compatibility", tuple(map(tuple, matrix)))

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)


DEFAULT_SPATIAL = KernelSettings("spatial", sigma_space=3.0, weight=1.0)
DEFAULT_BILATERAL = KernelSettings(
    "bilateral", sigma_space=20.0, sigma_intensity_sd=0.5, weight=3.0
)


# Ten updates of the paper's kernels leave some volumes 4 % from where they end. Weak kernels settle
# in about five, and each sample stops when it has.
CONVERGED = Sampling(iterations=40, tolerance=5e-5)


@dataclass(frozen=True)
class RunSettings:
    """All parameters of a run; see the top of this file for what each means.

    Examples
    --------
    >>> settings = pm.RunSettings().changed(samples=50, seed=7, temperature=1.5)
    >>> settings.sampling.samples, settings.temperature, settings.strength
    (50, 1.5, 0.35)
    """

    sampling: Sampling = CONVERGED
    compute: Compute = field(default_factory=Compute)
    temperature: float = 1.0
    clip: float = 1e-6
    bias: tuple[float, ...] | None = None  # (L,) nats
    members: Members = "mean"
    strength: float = 0.35
    centring: float = 1.0
    keep_strength: bool = False
    kernels: tuple[KernelSettings, ...] = (DEFAULT_SPATIAL, DEFAULT_BILATERAL)
    marginals: MarginalKind = "mean_field"
    regions: RegionValues = field(default_factory=dict, hash=False)  # name -> label values
    learned_cases: int = 0
    note: str = ""
    widening: Mapping[str, float] = field(default_factory=dict, hash=False)  # name -> nats
    colour_map: ColourMap = "inferno"

    def __post_init__(self) -> None:
        checks.instance(self.sampling, "sampling", Sampling)
        checks.instance(self.compute, "compute", Compute)
        checked: dict[str, object] = {
            "temperature": _temperature(self.temperature),
            "clip": checks.number(self.clip, "clip", positive=True, below=1),
            "learned_cases": checks.integer(self.learned_cases, "learned_cases", minimum=0),
            "strength": checks.number(self.strength, "strength", minimum=0, below=_LARGEST),
            "centring": checks.number(self.centring, "centring", minimum=0, maximum=1),
            "keep_strength": checks.flag(self.keep_strength, "keep_strength"),
            "kernels": _all_of(self.kernels, "kernels", KernelSettings),
            "regions": checked_region_values(self.regions),
            "widening": _checked_widening(self.widening),
        }
        checks.instance(self.note, "note", str)
        checks.choice(self.colour_map, "colour_map", get_args(ColourMap))
        checks.choice(self.marginals, "marginals", get_args(MarginalKind))
        checks.choice(self.members, "members", get_args(Members))
        if self.marginals == "conditional" and self.sampling.estimator != "conditional":
            raise ValueError('marginals "conditional" needs estimator "conditional"')
        if self.bias is not None:
            given: object = self.bias
            if not isinstance(given, Sequence) or isinstance(given, str):
                raise TypeError(f"bias must be one number for each label, got {given!r}")
            checked["bias"] = tuple(checks.number(each, "bias") for each in self.bias)
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @classmethod
    def of_paper(cls) -> RunSettings:
        """Return the paper's algorithm: white noise, votes, and kernels at full strength."""
        return cls(
            Sampling(noise_length=0.0),
            strength=1.0,
            centring=0.0,
            keep_strength=True,
            marginals="votes",
        )

    @property
    def intervals(self) -> Intervals:
        """What volume intervals rest on: nothing, an assumed length, or labelled cases."""
        if not self.sampling.goes_together:
            return "none"
        return "learned" if self.learned_cases else "assumed"

    def changed(self, **values: Any) -> RunSettings:  # noqa: ANN401 - each is checked
        """Return these settings with other values, wherever they belong: ``changed(samples=9)``."""
        sampling = {name: values.pop(name) for name in SAMPLING if name in values}
        compute = {name: values.pop(name) for name in COMPUTE if name in values}
        return replace(
            self,
            sampling=replace(self.sampling, **sampling),
            compute=replace(self.compute, **compute),
            **values,
        )

    def as_tables(self) -> dict[str, Any]:
        """Return the tables of a settings file, as plain values; infinity is a float."""
        until = self.sampling.until
        return {
            "sampling": {
                **{name: getattr(self.sampling, name) for name in SAMPLING},
                "until": None if until is None else until.epsilon,
            },
            "unary": {name: getattr(self, name) for name in UNARY},
            "coupling": {name: getattr(self, name) for name in COUPLING},
            "maps": {"marginals": self.marginals},
            "regions": dict(self.regions),
            "basis": {"learned_cases": self.learned_cases, "note": self.note or None},
            "widening": dict(self.widening),
            "compute": asdict(self.compute),
            "report": {"colour_map": self.colour_map},
            "kernels": [asdict(each) for each in self.kernels],
        }

    def identity(self) -> dict[str, Any]:
        """Return all that the results depend on, as values that JSON can hold."""
        tables = self.as_tables()
        compute = {k: v for k, v in tables["compute"].items() if k not in CHANGE_NO_RESULT}
        plain: dict[str, Any] = json_ready(
            {
                **tables["sampling"],
                **tables["unary"],
                **tables["coupling"],
                **tables["maps"],
                **compute,
                "kernels": tables["kernels"],
                "regions": tables["regions"],
                "widening": tables["widening"],
            }
        )
        return plain


def settings_from_tables(tables: Mapping[str, Any], base: RunSettings | None = None) -> RunSettings:
    """Return the settings of TOML's tables; what they leave out is that of ``base``."""
    named = ("regions", "widening")
    check_keys(tables, [*TABLES, *named, "kernels"], "at the top")
    given = {table: _table(tables.get(table, {}), table) for table in TABLES}
    for table, keys in TABLES.items():
        check_keys(given[table], keys, f"in [{table}]")
    sampling = dict(given["sampling"])
    values: dict[str, Any] = {**given["unary"], **given["coupling"], **given["maps"]}
    values |= given["basis"] | given["report"]
    values |= {name: _table(tables[name], name) for name in named if name in tables}
    if "kernels" in tables:
        values["kernels"] = _kernels(tables["kernels"])
    return (base or RunSettings()).changed(**sampling, **given["compute"], **values)


def read_settings(path: str | os.PathLike[str], base: RunSettings | None = None) -> RunSettings:
    """Read a settings file; what it leaves out is that of ``base``, the defaults unless given.

    What is wrong with it is a ValueError that names the file.

    Examples
    --------
    >>> from perturb_mpm.run import read_settings, write_settings
    >>> write_settings("mine.toml", pm.RunSettings(temperature=1.5))
    >>> read_settings("mine.toml").temperature
    1.5
    """
    try:
        return settings_from_tables(read_toml(Path(path)), base)
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}") from error
    except DamagedError:
        raise
    except (OverflowError, TypeError, ValueError) as error:
        raise SettingsError(f"{path}: {error}") from error


def settings_from_text(text: str) -> RunSettings:
    """Return the settings that ``settings_text`` wrote.

    Examples
    --------
    >>> from perturb_mpm.run import settings_from_text
    >>> settings_from_text("unary.temperature = 1.5").temperature
    1.5
    """
    return settings_from_tables(parse_toml(text, "settings"))


def settings_text(settings: RunSettings, comment: str = "") -> str:
    """Write settings as TOML, after a comment; what has no value is left out.

    Examples
    --------
    >>> from perturb_mpm.run import settings_text
    >>> "temperature = 1.5" in settings_text(pm.RunSettings(temperature=1.5))
    True
    """
    tables = settings.as_tables()
    parts = ["".join(f"# {line}".rstrip() + "\n" for line in comment.splitlines())]
    if not tables["kernels"]:
        parts.append("kernels = []\n")  # stands before the first table: it belongs to none
    parts += [table_text(f"[{name}]", tables[name]) for name in ("sampling", "unary", "coupling")]
    parts += [table_text("[[kernels]]", each) for each in tables["kernels"]]
    for table, values in (("regions", settings.regions), ("widening", settings.widening)):
        if values:
            named = {value_text(name): value for name, value in values.items()}
            parts.append(table_text(f"[{table}]", named))
    parts += [
        table_text(f"[{name}]", tables[name]) for name in ("maps", "basis", "compute", "report")
    ]
    return "\n".join(part for part in parts if part)


def write_settings(path: str | os.PathLike[str], settings: RunSettings, comment: str = "") -> None:
    """Write a settings file, whole or not at all; ``comment`` comes first, line by line.

    Examples
    --------
    >>> from perturb_mpm.run import write_settings
    >>> write_settings("mine.toml", pm.RunSettings(temperature=1.5), "for perturb-mpm run")
    """
    with atomic_open(path) as file:
        file.write(settings_text(settings, comment).encode())


def _checked_widening(value: object) -> dict[str, float]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise TypeError(f"widening must be a table of names and nats, got {value!r}")
    return {name: checks.number(each, f"widening of {name}") for name, each in value.items()}


def _temperature(value: float) -> float:
    checks.number(value, "temperature", positive=True)
    return checks.number(value, "temperature", minimum=_SMALLEST, below=_LARGEST)


def _all_of(values: object, name: str, kind: type) -> tuple[Any, ...]:
    if not isinstance(values, Sequence) or not all(isinstance(each, kind) for each in values):
        raise TypeError(f"{name} must be a sequence of {kind.__name__}, got {values!r}")
    return tuple(values)


def _table(value: object, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{name} must be a table, got {value!r}: write [{name}] above its keys")
    return value


def _kernels(value: object) -> tuple[KernelSettings, ...]:
    """Return one kernel for each table of an array of tables."""
    if not isinstance(value, list):
        raise TypeError(f"kernels must be tables, got {value!r}: write [[kernels]] above each")
    known = [field.name for field in fields(KernelSettings)]
    made = []
    for place, table in enumerate(value):
        where = f"in [[kernels]] number {place + 1}"
        check_keys(_table(table, "kernels"), known, where)
        missing = [key for key in ("kind", "sigma_space") if key not in table]
        if missing:
            raise ValueError(f"{where.removeprefix('in ')} must have the key {missing[0]}")
        try:
            made.append(KernelSettings(**table))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{where.removeprefix('in ')}: {error}") from error
    return tuple(made)
