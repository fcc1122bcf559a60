"""Settings of a run: what a TOML file may say, and what it is told where it is wrong."""

from __future__ import annotations

import math
import re
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from perturb_mpm.fields import Setting, settings_in
from perturb_mpm.posterior import Precision
from perturb_mpm.run.settings import (
    TABLES,
    KernelSettings,
    RunSettings,
    read_settings,
    settings_from_tables,
    settings_from_text,
    settings_reference,
    settings_text,
    write_settings,
)

EVERYTHING = RunSettings().changed(
    samples=300,
    seed=7,
    iterations=8,
    until=0.2,
    noise_scale=0.9,
    temperature=1.5,
    clip=1e-4,
    bias=(0.0, 0.25, -0.5),
    kernels=(
        KernelSettings("spatial", (1.0, 1.0, 3.0), 2.0, normalization="none"),
        KernelSettings("bilateral", 10, 3, (0.5, 0.2), compatibility=((0, 1, 2),) * 3),
    ),
    noise_length=[(math.inf, 0.25), (30.0, 0.75)],
    engine="cpu",
    accuracy="exact",
    threads=2,
    memory="2 GB",
    colour_map="jet",
)


@pytest.mark.parametrize(
    "settings",
    [RunSettings(), EVERYTHING, RunSettings(kernels=())],
    ids=["defaults", "everything", "no kernels"],
)
def test_what_is_written_is_read_back(settings: RunSettings, tmp_path: Path) -> None:
    write_settings(tmp_path / "tuned.toml", settings, "learned from 9 cases\n\nby tune")
    assert read_settings(tmp_path / "tuned.toml") == settings
    text = (tmp_path / "tuned.toml").read_text()
    assert text.startswith("# learned from 9 cases\n#\n# by tune\n")
    assert settings_from_text(settings_text(settings)) == settings


def test_the_documented_file_is_accepted_and_shows_the_defaults() -> None:
    documented = tomllib.loads(settings_reference())
    assert list(documented) == [each.name for each in fields(RunSettings)]
    settings_from_tables(documented)
    for table, values in RunSettings().as_tables().items():
        if table in TABLES:
            assert list(documented[table]) == list(values)
            for name, value in values.items():
                assert value is None or documented[table][name] == value, name
    for ours, default in zip(documented["kernels"], RunSettings().kernels, strict=True):
        ours.pop("compatibility")  # an example of what is left out by default
        assert KernelSettings(**ours) == default


def test_what_is_left_out_has_its_default() -> None:
    assert settings_from_tables({}) == RunSettings()
    only = settings_from_tables({"unary": {"temperature": 2}})
    assert only == RunSettings().changed(temperature=2.0)
    assert settings_from_tables({"kernels": []}).kernels == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[unary]\ntemprature = 2.0", "unknown key 'temprature' in [unary]: did you mean temperat"),
        ("[unry]\nclip = 1e-6", "unknown key 'unry' at the top: did you mean unary?"),
        ("[report]\nzzz = 1", "unknown key 'zzz' in [report]: known are colour_map"),
        ('[[kernels]]\nkind = "spatial"\nsigma = 3.0', "did you mean sigma_space?"),
        ('[[kernels]]\nkind = "spatial"', "[[kernels]] number 1 must have the key sigma_space"),
        (
            '[[kernels]]\nkind = "sharp"\nsigma_space = 1',
            "kind of a kernel must be one of spatial,",
        ),
        (
            '[[kernels]]\nkind = "bilateral"\nsigma_space = 1',
            "sigma_intensity_sd must be given for",
        ),
        ("[[kernels]]\nsigma_space = 1", "[[kernels]] number 1 must have the key kind"),
        ("[sampling]\nnoise_length = -1.0", "noise_length must be at least 0, got -1.0"),
        ('[unary]\ntemperature = "hot"', "temperature must be a number, got str 'hot'"),
        ("[unary]\nbias = 0.5", "bias must be one number for each label, got 0.5"),
        ("[sampling]\nsamples = 1.5", "samples must be an integer, got float 1.5"),
        ("unary = 3", "unary must be a table, got 3"),
        ("kernels = 3", "kernels must be tables, got 3"),
        ("kernels = [3]", "kernels must be a table, got 3"),
        ("[unary\n", "Expected ']'"),
        ("# nothing else\n", "holds no settings; has a power cut emptied it?"),
    ],
)
def test_a_wrong_file_is_told_in_one_line(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        read_settings(path)
    assert str(error.value).startswith((f"{path}: ", f"{path} cannot be read: "))


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none\.toml cannot be read: No such file"):
        read_settings(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"samples": 0}, "samples must be at least 1, got 0"),
        ({"seed": -1}, "seed must be"),
        ({"until": 1.0}, "until must be positive and below 1, got 1"),
        ({"temperature": 0.0}, "temperature must be positive, got 0"),
        ({"temperature": 1e300}, "temperature must be at least 1e-06 and below 1000000"),
        ({"temperature": 1e-300}, "temperature must be at least 1e-06"),
        ({"until": 1e-9}, "epsilon of Precision must be at least 0.0001, got 1e-09"),
        ({"engine": "abacus"}, "engine must be one of auto, reference, cpu, gpu"),
        ({"colour_map": "pink"}, "colour_map must be one of inferno, viridis, jet, hot"),
        ({"threads": 0}, "threads must be at least 1, got 0"),
        ({"until": 0.3, "estimator": "conditional"}, 'until needs estimator "votes"'),
        ({"memory": "lots"}, "memory must be a positive number of bytes or a text"),
        ({"samples": 5 * 10**9}, "samples must be at most 10000000, got 5000000000"),
        ({"kernels": (3,)}, "kernels must be a KernelSettings"),
    ],
)
def test_bad_values(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        RunSettings().changed(**arguments)


def test_what_changes_no_map_is_not_part_of_a_run() -> None:
    other = RunSettings().changed(threads=1, memory="1 GB", colour_map="hot")
    assert other.identity() == RunSettings().identity()
    for name in ("samples", "seed", "temperature", "engine", "kernels", "noise_length"):
        assert name in other.identity()


@pytest.mark.parametrize(
    "precision",
    [Precision(0.1), Precision(0.1, delta=0.01), Precision(0.05, scope="map")],
    ids=["epsilon alone", "another delta", "a whole map"],
)
def test_a_precision_is_read_back_whole(precision: Precision) -> None:
    settings = RunSettings().changed(until=precision)
    assert settings_from_text(settings_text(settings)) == settings
    others = RunSettings().changed(until=Precision(precision.epsilon, delta=0.02))
    assert settings.identity() != others.identity()


def test_a_precision_with_the_usual_delta_and_scope_is_written_as_a_number() -> None:
    assert "until = 0.1\n" in settings_text(RunSettings().changed(until=0.1))
    with pytest.raises(ValueError, match=r"until must be a number or a table of epsilon"):
        settings_from_text("sampling.until = {epsilon = 0.1, alpha = 0.05}")


EVERY = [
    pytest.param(table, name, about, id=name)
    for table, kind in TABLES.items()
    for name, about in settings_in(kind)
]


def another_value(table: str, name: str, about: Setting) -> object:
    """Return a value of a setting that is not its default."""
    value = getattr(getattr(RunSettings(), table), name)
    if about.example is not None:
        return about.example
    if isinstance(value, str):
        choices: tuple[str, ...] = get_args(get_type_hints(TABLES[table])[name])
        return next(each for each in choices if each != value)
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int) else (value + 0.5) / 2


@pytest.mark.parametrize(("table", "name", "about"), EVERY)
def test_every_setting_is_read_back_and_names_the_run_where_it_changes_results(
    table: str, name: str, about: Setting
) -> None:
    settings = RunSettings().changed(**{name: another_value(table, name, about)})
    assert settings != RunSettings()
    assert settings_from_text(settings_text(settings)) == settings
    assert (settings.identity() != RunSettings().identity()) == about.changes_results


def test_every_setting_has_a_name_of_its_own() -> None:
    names = [each.values[1] for each in EVERY]
    names += [each.name for each in fields(RunSettings)]
    assert len(names) == len(set(names))
