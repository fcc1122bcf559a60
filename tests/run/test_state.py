"""The state of a run: cut short, it goes on; of another run, it is refused."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

import perturb_mpm as pm
from helpers.small_case import SAME_BYTES, content, read, save, write_files
from helpers.viewer_run import copy_run
from perturb_mpm import storage
from perturb_mpm.files import Case
from perturb_mpm.run import drawing
from perturb_mpm.run import folder as folder_module
from perturb_mpm.run.folder import lock_folder, plan_layout
from perturb_mpm.run.model import build_crf
from perturb_mpm.run.running import run_case
from perturb_mpm.run.settings import OutputError, RunSettings
from perturb_mpm.run.state import Run, StateError, load_run
from perturb_mpm.storage import LockedError

SETTINGS = RunSettings.of_paper().changed(samples=60, seed=1, iterations=3)


class StopError(Exception):
    """Stands for whatever ends a process."""


class Stopping:
    """Stops the run when it tells of so many samples."""

    def __init__(self, after: int) -> None:
        self.after = after

    def stage(self, words: str) -> None:
        pass

    def warn(self, words: str) -> None:
        pass

    def __call__(self, done: float, _: float) -> None:
        if done >= self.after:
            raise StopError


class Counting(Stopping):
    """Notes which numbers of samples are told."""

    def __init__(self) -> None:
        super().__init__(10**9)
        self.told: list[int] = []

    def __call__(self, done: float, _: float) -> None:
        self.told.append(done)


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("patient")
    write_files(folder)
    return folder


@pytest.fixture(scope="module")
def case(patient: Path) -> Case:
    return read(patient)


@pytest.fixture(scope="module")
def whole(case: Case, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    run_case(case, SETTINGS, folder, title="whole")
    return folder


@pytest.fixture
def cut(case: Case, tmp_path: Path) -> Path:
    """A run that was stopped after 25 samples were safe."""
    with pytest.raises(StopError):
        run_case(case, SETTINGS, tmp_path / "cut", title="cut", progress=Stopping(50))
    return tmp_path / "cut"


def test_a_run_goes_on_where_it_stopped(case: Case, cut: Path, whole: Path) -> None:
    assert [path.name for path in cut.iterdir()] == ["state"]
    assert pm.Posterior.load(cut / "state" / "posterior.npz").samples == 25
    counting = Counting()
    run_case(case, SETTINGS, cut, title="cut", resume=True, progress=counting)
    assert counting.told[0] > 25
    assert content(cut) == content(whole)
    for name in ("posterior.npz", "samples.npz", "snapshots.npz", "case.npz"):
        assert (cut / "state" / name).read_bytes() == (whole / "state" / name).read_bytes()


@pytest.mark.parametrize("after", [1, 11, 30, 55])
def test_it_may_stop_anywhere_and_often(
    after: int, case: Case, whole: Path, tmp_path: Path
) -> None:
    for stop in (after, after + 3):
        with pytest.raises(StopError):
            run_case(case, SETTINGS, tmp_path, title="x", resume=True, progress=Stopping(stop))
    run_case(case, SETTINGS, tmp_path, title="x", resume=True)
    assert content(tmp_path) == content(whole)


def test_samples_and_maps_kept_before_the_votes_do_no_harm(
    case: Case, cut: Path, whole: Path
) -> None:
    """Killed between the files of a checkpoint, the votes are behind the rest."""
    for name in ("samples.npz", "snapshots.npz"):
        (cut / "state" / name).write_bytes((whole / "state" / name).read_bytes())
    run_case(case, SETTINGS, cut, title="cut", resume=True)
    assert content(cut) == content(whole)
    for name in ("samples.npz", "snapshots.npz"):
        assert (cut / "state" / name).read_bytes() == (whole / "state" / name).read_bytes()


def test_a_finished_run_is_written_again_without_sampling(case: Case, whole: Path) -> None:
    before = content(whole)
    with mock.patch(
        "perturb_mpm.sampling.sampler.prepare_with", side_effect=AssertionError("prepared")
    ):
        run_case(case, SETTINGS, whole, title="whole", resume=True)
    assert content(whole) == before


def test_resume_begins_where_nothing_is(case: Case, whole: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("new", "empty"):
        run_case(case, SETTINGS, tmp_path / name, title="x", resume=True)
        assert content(tmp_path / name) == content(whole)


def test_leftovers_of_a_killed_run_are_removed(case: Case, cut: Path) -> None:
    (cut / ".labels.nii.gz.0123abcd.part").write_bytes(b"half")
    (cut / "state" / ".posterior.npz.0123abcd.part").write_bytes(b"half")
    (cut / ".mine.part").write_bytes(b"not ours")
    run_case(case, SETTINGS, cut, title="cut", resume=True)
    left = [path.name for path in cut.rglob(".*")]
    assert left == [".mine.part"]


def test_snapshots_and_samples_are_those_of_fewer_samples(case: Case, whole: Path) -> None:
    crf = build_crf(case, SETTINGS)
    run = load_run(whole)
    assert list(run.snapshots) == [10, 25, 50, 60]
    for samples, bits in run.snapshots.items():
        posterior = pm.sample(crf, samples, seed=1, iterations=3)
        expected = posterior.grid.gather(posterior.entropy).astype(np.float32)
        np.testing.assert_array_equal(bits, expected)
    assert run.sampled_labels.shape == (16, *case.mask.shape)
    for number in (0, 9, 15):
        alone = pm.sample(crf, range(number, number + 1), seed=1, iterations=3)
        np.testing.assert_array_equal(run.sampled_labels[number], alone.labels)


def test_the_state_brings_the_case_back(case: Case, whole: Path) -> None:
    run = load_run(whole)
    assert run.settings == SETTINGS.changed(engine="cpu")  # what "auto" was
    assert run.title == "whole"
    assert run.files["labels"] == whole / "labels.nii.gz"
    assert run.posterior.samples == 60
    assert list(run.case.images) == list(case.images)
    for name, image in case.images.items():
        np.testing.assert_array_equal(run.case.images[name], image)
    np.testing.assert_array_equal(run.case.mask, case.mask)
    assert run.case.labels == case.labels
    assert run.case.geometry.header == case.geometry.header
    assert run.case.geometry.spacing == case.geometry.spacing
    again = pm.sample(build_crf(run.case, run.settings), 60, seed=1, iterations=3)
    assert again == run.posterior


def test_a_folder_without_a_run_has_no_state(tmp_path: Path, cut: Path) -> None:
    with pytest.raises(StateError, match="holds no run of perturb-mpm"):
        load_run(tmp_path)
    (tmp_path / "cohort.json").write_text("{}")
    with pytest.raises(StateError, match="is the folder of a cohort: name that of one of its"):
        load_run(tmp_path)
    (cut / "state" / "posterior.npz").unlink()
    with pytest.raises(StateError, match="holds a run without samples"):
        load_run(cut)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"seed": 2}, "parameters.seed was 1, is 2"),
        ({"samples": 61}, "parameters.samples was 60, is 61"),
        ({"temperature": 2.0}, "parameters.temperature was 1.0, is 2.0"),
        ({"noise_length": 3.0}, "parameters.noise_length was 0.0, is 3.0"),
        (
            {"kernels": (replace(SETTINGS.kernels[0], weight=2.0), SETTINGS.kernels[1])},
            "parameters.kernels[0].weight was 1.0, is 2.0",
        ),
    ],
)
def test_other_parameters_are_refused(
    changed: dict[str, object], words: str, case: Case, cut: Path
) -> None:
    before = content(cut / "state", sorted(os.listdir(cut / "state")))
    with pytest.raises(OutputError, match=f"got others: {re.escape(words)}"):
        run_case(case, SETTINGS.changed(**changed), cut, title="x", resume=True)
    assert content(cut / "state", sorted(os.listdir(cut / "state"))) == before


def test_other_inputs_are_refused(patient: Path, case: Case, cut: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    for name in ("t1", "flair", "p"):
        content_of = (patient / f"{name}.nii.gz").read_bytes()
        (tmp_path / "other" / f"{name}.nii.gz").write_bytes(content_of)
    moved = next(iter(case.images.values())) * 1.5
    save(tmp_path / "other" / "t1.nii.gz", moved)
    with pytest.raises(OutputError, match=r"got others: inputs\.t1\.nii\.gz was \""):
        run_case(read(tmp_path / "other"), SETTINGS, cut, title="x", resume=True)
    named = replace(case, labels=replace(case.labels, values=(0, 1, 4)))
    with pytest.raises(OutputError, match=re.escape("labels.values[2] was 2, is 4")):
        run_case(named, SETTINGS, cut, title="x", resume=True)
    mirrored = case.geometry.affine @ np.diag([-1.0, 1.0, 1.0, 1.0])
    turned = replace(case, geometry=replace(case.geometry, affine=mirrored))
    with pytest.raises(OutputError, match=re.escape("affine[0][0] was -2.0, is 2.0")):
        run_case(turned, SETTINGS, cut, title="x", resume=True)
    swapped = replace(case, images=dict(zip(("flair", "t1"), case.images.values())))
    with pytest.raises(OutputError, match=re.escape('images[0] was "t1", is "flair"')):
        run_case(swapped, SETTINGS, cut, title="x", resume=True)
    other = replace(case, probabilities=case.probabilities[::-1].copy())
    with pytest.raises(OutputError, match="the energies and kernels made of the inputs"):
        run_case(other, SETTINGS, cut, title="x", resume=True)
    with pytest.raises(OutputError, match=r"reading\.kind was absent, is"):
        run_case(case, SETTINGS, cut, title="x", resume=True, reading={"kind": "logits"})


def test_other_threads_and_colours_are_not_other_parameters(
    case: Case, cut: Path, whole: Path
) -> None:
    settings = SETTINGS.changed(threads=1, memory="1 GB", colour_map="jet")
    run_case(case, settings, cut, title="x", resume=True)
    assert content(cut) == content(whole)
    assert load_run(cut).settings.report.colour_map == "jet"


def test_a_run_goes_on_with_the_engine_it_began_with(case: Case, tmp_path: Path) -> None:
    exact = SETTINGS.changed(samples=12, iterations=1, engine="reference")
    with pytest.raises(StopError):
        run_case(case, exact, tmp_path / "cut", title="x", progress=Stopping(12))
    auto = exact.changed(engine="auto")
    result = run_case(case, auto, tmp_path / "cut", title="x", resume=True)
    assert result.summary["parameters"]["engine"] == "reference"
    run_case(case, exact, tmp_path / "whole", title="x")
    assert content(tmp_path / "cut") == content(tmp_path / "whole")
    with pytest.raises(OutputError, match=r'parameters\.engine was "reference", is "cpu"'):
        run_case(case, exact.changed(engine="cpu"), tmp_path / "cut", title="x", resume=True)


def test_overwrite_begins_anew_and_leaves_other_files(
    case: Case, cut: Path, tmp_path: Path
) -> None:
    (cut / "notes.txt").write_text("mine")
    other = SETTINGS.changed(seed=9)
    run_case(case, other, cut, title="x", overwrite=True)
    run_case(case, other, tmp_path / "fresh", title="x")
    assert content(cut) == content(tmp_path / "fresh")
    assert (cut / "notes.txt").read_text() == "mine"


def test_overwrite_and_resume_exclude_each_other(case: Case, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="must not be given together"):
        run_case(case, SETTINGS, tmp_path / "o", title="x", overwrite=True, resume=True)


@pytest.mark.parametrize("resume", [False, True])
def test_a_folder_with_something_else_is_refused(resume: bool, case: Case, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(OutputError, match="`output` must be an empty folder"):
        run_case(case, SETTINGS, tmp_path, title="x", resume=resume)
    assert os.listdir(tmp_path) == ["thesis.tex"]


def test_a_run_that_was_begun_is_not_begun_again_unasked(case: Case, cut: Path) -> None:
    with pytest.raises(OutputError, match="with `resume=True` or begin anew with `overwrite=True`"):
        run_case(case, SETTINGS, cut, title="x")


@pytest.mark.parametrize("name", ["posterior.npz", "samples.npz", "snapshots.npz", "run.json"])
def test_a_damaged_state_is_refused(name: str, case: Case, cut: Path) -> None:
    file = cut / "state" / name
    file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(OutputError, match="begin anew with `overwrite=True`"):
        run_case(case, SETTINGS, cut, title="x", resume=True)


def test_two_runs_in_one_folder_are_refused(case: Case, cut: Path) -> None:
    with (
        lock_folder(plan_layout(cut)),
        pytest.raises(LockedError, match="a run or viewer is using it"),
    ):
        run_case(case, SETTINGS, cut, title="x", resume=True)


def test_a_run_that_ends_before_ours_begins_is_not_taken_for_ours(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another run finishes in the folder after ours was started, just before it has the lock."""
    first = True
    make = folder_module._make_folders

    def overtaken(folder: Path) -> list[Path]:
        nonlocal first
        if first:
            first = False
            run_case(case, SETTINGS.changed(seed=9), tmp_path / "out", title="other")
        return make(folder)

    monkeypatch.setattr(folder_module, "_make_folders", overtaken)
    with pytest.raises(OutputError, match="`output` must be an empty folder"):
        run_case(case, SETTINGS, tmp_path / "out", title="ours")
    assert load_run(tmp_path / "out").settings.sampling.seed == 9


@pytest.mark.parametrize(
    "changed", [{"seed": 9}, {"temperature": 2.0}, {"estimator": "conditional"}]
)
def test_complete_votes_of_another_run_are_refused(
    changed: dict[str, object], case: Case, whole: Path, tmp_path: Path
) -> None:
    mine, other = tmp_path / "mine", tmp_path / "other"
    run_case(case, SETTINGS.changed(**changed), other, title="other")
    shutil.copytree(whole, mine)
    shutil.copy(other / "state" / "posterior.npz", mine / "state" / "posterior.npz")
    with pytest.raises(OutputError, match="holds the votes of another run"):
        run_case(case, SETTINGS, mine, title="mine", resume=True)


def test_a_refused_run_leaves_no_folder_and_no_lock(case: Case, tmp_path: Path) -> None:
    with pytest.raises(MemoryError):
        run_case(case, SETTINGS.changed(memory="10 kB"), tmp_path / "a" / "b", title="x")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(OutputError, match="which is not"):
        run_case(case, SETTINGS, tmp_path / "mine", title="x")
    assert os.listdir(tmp_path / "mine") == ["notes.txt"]


def test_a_folder_with_nothing_but_a_lock_is_empty(case: Case, whole: Path, tmp_path: Path) -> None:
    """What a run leaves that is killed while it prepares."""
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "lock").touch()
    run_case(case, SETTINGS, tmp_path, title="x")
    assert content(tmp_path) == content(whole)


def test_votes_without_a_name_are_not_gone_on_with(case: Case, cut: Path) -> None:
    (cut / "state" / "run.json").unlink()
    with pytest.raises(OutputError, match="which holds state"):
        run_case(case, SETTINGS, cut, title="x", resume=True)


def test_batches_are_full_between_the_maps_that_are_kept(case: Case, tmp_path: Path) -> None:
    counting = Counting()
    settings = SETTINGS.changed(samples=200, iterations=1, batch=20)
    run_case(case, settings, tmp_path / "out", title="x", progress=counting)
    assert counting.told == [10, 25, 45, 50, 70, 90, 100, 120, 140, 160, 180, 200]


@pytest.fixture
def full_disk() -> Iterator[mock.Mock]:
    """The disk is full from the sixth file on: each is synchronised, and its folder."""
    real, calls = os.fsync, []

    def fsync(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) > 10:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    with mock.patch.object(storage.os, "fsync", side_effect=fsync) as patched:
        yield patched


def test_a_disk_that_fills_up_leaves_nothing_half_written(
    case: Case, whole: Path, tmp_path: Path, full_disk: mock.Mock
) -> None:
    with pytest.raises(OutputError, match=r"no room left .*the same with `resume=True`"):
        run_case(case, SETTINGS, tmp_path / "out", title="x")
    assert full_disk.call_count > 10
    full_disk.side_effect = None
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert [path for path in files if path.name.endswith(".part")] == []
    run_case(case, SETTINGS, tmp_path / "out", title="x", resume=True)
    assert content(tmp_path / "out") == content(whole)


def test_checkpoints_come_by_the_clock_too(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drawing, "_SECONDS_AT_RISK", -1.0)
    settings = SETTINGS.changed(samples=100, batch=8)
    with pytest.raises(StopError):
        run_case(case, settings, tmp_path / "out", title="x", progress=Stopping(100))
    assert pm.Posterior.load(tmp_path / "out" / "state" / "posterior.npz").samples == 98


def test_the_run_is_named_first(case: Case, tmp_path: Path) -> None:
    with pytest.raises(StopError):
        run_case(case, SETTINGS, tmp_path / "out", title="x", progress=Stopping(1))
    names = sorted(os.listdir(tmp_path / "out" / "state"))
    assert names == ["case.npz", "files.json", "lock", "run.json"]
    run = json.loads((tmp_path / "out" / "state" / "run.json").read_text())
    assert run["inputs"] == case.hashes
    assert run["parameters"]["seed"] == 1
    assert run["version"] == pm.__version__
    assert not set(SAME_BYTES) & set(os.listdir(tmp_path / "out"))


@pytest.mark.parametrize(
    ("scale", "kind"), [(1.0, np.int16), (0.5, np.float32), (1e6, np.float32)], ids=str
)
def test_images_are_kept_to_the_last_bit_in_as_little_as_they_need(
    case: Case, tmp_path: Path, scale: float, kind: type
) -> None:
    whole_numbers = {
        name: (np.rint(image * 7) * scale).astype(np.float32) for name, image in case.images.items()
    }
    first = next(iter(whole_numbers.values()))
    first[:2] = first[:, :, -1] = 0
    given = replace(case, images=whole_numbers)
    run_case(given, SETTINGS.changed(samples=2), tmp_path, title="x")
    with np.load(tmp_path / "state" / "case.npz") as stored:
        assert stored["images"].dtype == kind
    for name, image in load_run(tmp_path).case.images.items():
        assert image.dtype == np.float32
        np.testing.assert_array_equal(image.view(np.uint32), whole_numbers[name].view(np.uint32))


def test_a_negative_zero_is_a_bit_too(case: Case, tmp_path: Path) -> None:
    image = np.zeros(case.mask.shape, np.float32)
    image[1, 1, 1], image[2, 2, 2] = 3, -0.0
    run_case(replace(case, images={"t1": image}), SETTINGS.changed(samples=2), tmp_path, title="x")
    found = load_run(tmp_path).case.images["t1"]
    np.testing.assert_array_equal(np.signbit(found), np.signbit(image))
    np.testing.assert_array_equal(found, image)


def test_a_box_that_the_images_do_not_fill_is_damage(case: Case, tmp_path: Path) -> None:
    run_case(case, SETTINGS.changed(samples=2), tmp_path, title="x")
    file = tmp_path / "state" / "case.npz"
    arrays = storage.read_arrays(file)
    for box in (arrays["box"] + 1, arrays["box"][:2], arrays["box"] * 100):
        storage.write_arrays(file, {**arrays, "box": box})
        with pytest.raises(StateError, match=r"fill their box|must be"):
            load_run(tmp_path)


def test_a_run_that_is_begun_anew_while_it_is_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copy_run(tmp_path / "case")
    path = folder / "state" / "run.json"
    read = Run.with_checkpoint

    def begin_anew(run: Run) -> Run:
        path.write_text(path.read_text().replace("Made-up patient", "Another patient"))
        return read(run)

    monkeypatch.setattr(Run, "with_checkpoint", begin_anew)
    with pytest.raises(StateError, match="was begun anew while it was read"):
        load_run(folder)


@pytest.mark.parametrize(("name", "value"), [("seed", 99), ("problem_sha256", "0" * 64)])
def test_the_summary_of_another_run_is_refused(tmp_path: Path, name: str, value: object) -> None:
    folder = copy_run(tmp_path / "case")
    path = folder / "summary.json"
    assert load_run(folder).summary["seed"] == 5
    path.write_text(json.dumps({**json.loads(path.read_text()), name: value}))
    with pytest.raises(StateError, match=r"summary\.json is the summary of another run"):
        _ = load_run(folder).summary
