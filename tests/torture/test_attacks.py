"""The attack in short: some trials of each kind, and a control that faults are seen."""

from __future__ import annotations

import os
import random
import shutil
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lab.torture import headers
from lab.torture.attack import Attack, Finding, Trial, attempt, judge, run_attack
from lab.torture.costs import BAD, measure_cost
from lab.torture.damage import damage_bytes
from lab.torture.headers import prepare_headers
from lab.torture.interface import prepare_interface
from lab.torture.memory import BLOCK, bytes_a_case, memory_used
from lab.torture.readers import READERS, prepare_readers
from lab.torture.requests import prepare_requests
from lab.torture.sets import COMMANDS, prepare_caches, prepare_sets
from perturb_mpm.checks import ExpectedError
from perturb_mpm.files import Source, Volume, read_volume

SEED = 5


def check_trials(trial: Trial, trials: int, place: Path) -> int:
    """Make some trials; return how many were refused, and fail at the first fault."""
    refused = 0
    for number in range(trials):
        place.mkdir()
        finding = attempt(trial, "short", SEED, number, place)
        assert not finding.kind, f"trial {number}: {finding.words}"
        refused += finding.refused
        shutil.rmtree(place)
    return refused


def test_damaged_files_are_read_or_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERTURB_MPM_LARGEST_FILE_GB", "0.1")
    trials = 20 * len(READERS)
    refused = check_trials(prepare_readers(tmp_path), trials, tmp_path / "trial")
    assert refused > trials / 2  # damage is noticed, as a rule


def test_headers_are_read_as_other_readers_do_or_refused(tmp_path: Path) -> None:
    pytest.importorskip("SimpleITK", reason="the extra itk is not installed")
    trials = 300
    refused = check_trials(prepare_headers(tmp_path), trials, tmp_path / "trial")
    assert trials / 20 < refused < trials / 2


@pytest.mark.parametrize("mistake", ["mirrored", "moved", "shifted"])
def test_a_reader_with_a_mistake_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mistake: str
) -> None:
    pytest.importorskip("SimpleITK", reason="the extra itk is not installed")

    def misread(source: Source) -> Volume:
        volume = read_volume(source)
        if mistake == "mirrored":
            return replace(volume, voxels=volume.voxels[::-1])
        if mistake == "shifted":
            return replace(volume, voxels=np.roll(volume.voxels, 1))
        affine = volume.geometry.affine + 0.01 * np.eye(4)
        return replace(volume, geometry=replace(volume.geometry, affine=affine))

    monkeypatch.setattr(headers, "read_volume", misread)
    with pytest.raises(AssertionError, match=r"voxels|affine"):
        check_trials(prepare_headers(tmp_path), 20, tmp_path / "trial")


@pytest.mark.parametrize("kind", BAD)
def test_bad_files_cost_little_and_twice_as_large_ones_twice(kind: str, tmp_path: Path) -> None:
    finding = measure_cost(kind, tmp_path)
    assert not finding.kind, finding.words


def test_a_cost_that_grows_too_fast_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cube(path: Path) -> None:
        sum(range(8 * (path.stat().st_size // 1000) ** 3))

    monkeypatch.setitem(BAD, "cube", BAD["CSV, rows"]._replace(read=cube))
    assert measure_cost("cube", tmp_path).kind == "growth"
    hungry = BAD["NRRD, a tail after raw beside"]._replace(read=lambda _: len(b"a" * (300 << 20)))
    monkeypatch.setitem(BAD, "hungry", hungry)
    assert measure_cost("hungry", tmp_path).kind == "growth"


@pytest.fixture(scope="module")
def set_trial(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    """Every command, asked once: the runs that it is asked about are the same."""
    return prepare_sets(tmp_path_factory.mktemp("sets"))


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_disturbed_sets_of_files_are_of_one_question(
    command: str, set_trial: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in set(COMMANDS) - {command}:
        monkeypatch.delitem(COMMANDS, name)
    check_trials(set_trial, 2, tmp_path / "trial")


def test_disturbed_caches_change_no_number(tmp_path: Path) -> None:
    check_trials(prepare_caches(tmp_path), 3, tmp_path / "trial")


def test_odd_arrays_are_computed_or_refused_in_one_line(tmp_path: Path) -> None:
    assert check_trials(prepare_interface(tmp_path), 8, tmp_path / "trial") == 8


def test_hostile_requests_are_answered(tmp_path: Path) -> None:
    """In a process of its own: what the server prints is looked at."""
    attack = Attack("requests", "requests", prepare_requests, longest=15)
    outcome = run_attack(attack, 300, SEED, tmp_path / "kept", trials=200)
    assert outcome.trials == 200
    assert outcome.faults == 0, [Path(place, "what.txt").read_text() for place in outcome.kept]


def test_damage_is_the_same_for_the_same_seed() -> None:
    content = bytes(range(256)) * 4
    ways = {damage_bytes(content, random.Random(number), []) for number in range(200)}  # noqa: S311
    again = {damage_bytes(content, random.Random(number), []) for number in range(200)}  # noqa: S311
    assert ways == again
    assert len(ways) > 150


def test_what_is_judged_a_fault() -> None:
    def fails(error: Exception) -> Finding:
        def call() -> None:
            raise error

        return judge(call, (ValueError,))

    assert fails(ExpectedError("`mask` must be there")) == Finding(refused=True)
    assert fails(KeyError("mask")).kind == "traceback"
    assert fails(ValueError("not one of ours")).kind == "traceback"
    assert fails(ExpectedError("two\nlines")).kind == "traceback"
    assert fails(ExpectedError("")).kind == "traceback"
    assert judge(lambda: 3) == Finding()


def _crashing(_: Path) -> Trial:
    def trial(rng: random.Random, place: Path) -> Finding:
        (place / "input").write_text("the one")
        kind = rng.randrange(5)
        if kind == 0:
            os.abort()
        if kind == 1:
            time.sleep(600)
        if kind == 2:
            return Finding(kind="lost", words="a byte")
        while kind == 3:
            pass  # computes for ever
        return Finding(refused=True)

    return trial


def test_crashes_and_hangs_are_counted_and_their_inputs_kept(tmp_path: Path) -> None:
    attack = Attack("control", "trials", _crashing, longest=0.25)
    kinds = [random.Random(f"{SEED} control {n}").randrange(5) for n in range(5)]  # noqa: S311
    outcome = run_attack(attack, 300, SEED, tmp_path, trials=5)
    assert sorted(kinds) == [0, 1, 2, 3, 4]
    assert outcome.crashes == 1
    assert outcome.hangs == 2
    assert outcome.lost > 0
    assert outcome.refused > 0
    assert all(Path(place, "input").read_text() == "the one" for place in outcome.kept)


def test_memory_that_a_case_keeps_is_seen() -> None:
    before, kept = memory_used(), [bytes(1000) for _ in range(1000)]
    if not before:
        pytest.skip("the allocator of this system does not tell what it has handed out")
    assert 1_000_000 <= memory_used() - before < 1_200_000
    del kept
    assert abs(memory_used() - before) < 50_000
    flat = [10**8 + 7 * (n % 3) for n in range(7)]
    assert abs(bytes_a_case(flat)) < 1
    assert bytes_a_case([n * BLOCK * 2000 + each for n, each in enumerate(flat)]) > 1900
    assert bytes_a_case([each + 2_000_000 * (n > 3) for n, each in enumerate(flat)]) < 1
    assert bytes_a_case(flat[:1]) == 0
