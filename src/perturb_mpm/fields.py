"""Settings that say themselves once: default, check, help text, unit, and whether results change.

``Sampling``, ``Compute`` and the tables of ``RunSettings`` are frozen dataclasses whose fields are
made by ``setting``. The options of the command line, the keys and comments of a settings file, and
the identity of a run are all generated from these fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, get_args

from perturb_mpm import checks

Check = Callable[[Any, str], Any]


@dataclass(frozen=True)
class Setting:
    """What a field of settings says of itself.

    ``check`` takes the value and its name, and returns the value to store. None is allowed where
    ``unset`` says what it stands for; ``example`` then shows the key in the documented file.
    ``option`` is the type of the option on the command line where it is not the field's own, and
    False where there is none. A run may be resumed with another value of what does not change
    results. ``plain`` turns a value into what TOML and JSON can hold; an empty one is left out.
    """

    help: str
    check: Check
    unit: str = ""
    unset: str = ""
    example: Any = None
    option: object = True
    changes_results: bool = True
    plain: Callable[[Any], object] = lambda value: None if value in ("", ()) else value

    def describe(self, default: object = MISSING) -> str:
        """Return the help text with the unit and, where one is given, the default."""
        words = f"{self.help}." + (f" In {self.unit}." if self.unit else "")
        if default is None and self.unset:
            return f"{words} Default: {self.unset}."
        if isinstance(default, int | float) and not isinstance(default, bool):
            return f"{words} Default: {default:g}."
        return f"{words} Default: {default}." if isinstance(default, str) and default else words


def setting(
    default: object,
    help: str,  # noqa: A002 - it is what the command line calls it
    check: Check,
    **others: Any,  # noqa: ANN401 - fields of Setting
) -> Any:  # noqa: ANN401 - a field of any type
    """Return a dataclass field that carries its check and help text; see ``Setting``."""
    metadata = {"setting": Setting(help, check, **others)}
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), hash=False, metadata=metadata)
    return field(default=default, metadata=metadata)


def settings_in(table: Any) -> Iterator[tuple[str, Setting]]:  # noqa: ANN401 - dataclass or instance
    """Yield name and ``Setting`` of every field that has one."""
    for each in fields(table):
        if "setting" in each.metadata:
            yield each.name, each.metadata["setting"]


class CheckedSettings:
    """The base of settings that are checked as they are made."""

    def __post_init__(self) -> None:
        check_settings(self)


def check_settings(table: Any, owner: str = "") -> None:  # noqa: ANN401 - a frozen dataclass
    """Check every field and store what its check returns; errors name the field and ``owner``."""
    for name, each in settings_in(table):
        value = getattr(table, name)
        if value is not None or not each.unset:
            object.__setattr__(table, name, each.check(value, f"{name}{owner}"))


def one_of(choices: object) -> Check:
    """Return a check that accepts the values of a ``Literal``."""

    def check(value: object, name: str) -> object:
        checks.choice(value, name, get_args(choices))
        return value

    return check


def exactly(kind: type) -> Check:
    """Return a check that accepts instances of ``kind``."""

    def check(value: object, name: str) -> object:
        checks.instance(value, name, kind)
        return value

    return check
