"""``run`` on a real network: printed volumes inside their intervals, harm found without a truth."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from perturb_mpm.evaluation import dice
from perturb_mpm.files import Case, LabelScheme, Source, read_case, read_label_map
from perturb_mpm.run import Run, RunSettings, run_case, volume_rows

ROOT = Path(__file__).resolve().parents[2]
SCHEME = LabelScheme((0, 1, 2), ("background", "anterior", "posterior"))
CASES = ("hippocampus_006", "hippocampus_058", "hippocampus_106")


@pytest.fixture(scope="module")
def data() -> Path:
    folder = Path(os.environ.get("PERTURB_MPM_DATA") or ROOT.parent / "shared" / "data")
    if not (folder / "hippocampus_network").is_dir():
        pytest.skip(f"hippocampus_network is not in {folder}: set PERTURB_MPM_DATA")
    return folder / "hippocampus_network"


def case_of(data: Path, name: str) -> Case:
    image = data / f"images/{name}.nii.gz"
    probabilities = data / f"probabilities/{name}.npz"
    case = read_case(image, probabilities, reference=image, labels=SCHEME)
    place = Source("images", image)
    truth = Source("truth", data / f"labels/{name}.nii.gz")
    return replace(case, truth=read_label_map(truth, SCHEME, case.geometry, place))


def lost_dice(run: Run) -> float:
    """The mean over anterior and posterior of what the kernels cost against the network alone."""
    case = run.case
    assert case.truth is not None
    alone = case.probabilities.argmax(axis=0)
    labels = [(case.truth == l, alone == l, run.labels == l) for l in (1, 2)]
    return float(
        np.mean([dice(network, true) - dice(ours, true) for true, network, ours in labels])
    )


@pytest.mark.parametrize(
    ("strength", "centring", "harmful"),
    [
        (0.35, 1.0, False),
        (0.35, 0.0, False),
        (1.0, 0.5, True),
        (1.0, 0.0, True),
    ],
)
def test_kernels_that_cost_dice_are_found_without_the_truth(
    data: Path, strength: float, centring: float, harmful: bool, tmp_path: Path
) -> None:
    settings = RunSettings().changed(
        samples=8,
        strength=strength,
        centring=centring,
        temperature=1.0,
        marginals="mean_field",
    )
    lost = []
    for name in CASES:
        case = case_of(data, name)
        kept = settings.changed(keep_strength=True)
        run = run_case(case, kept, tmp_path / name, title=name)
        lost.append(lost_dice(run))
        assert run.coupling is not None
        assert run.coupling.is_harmless == (not harmful)
        if harmful and name == CASES[0]:
            weaker = run_case(case, settings, tmp_path / f"{name} weaker", title=name)
            assert weaker.settings.coupling.strength < strength
            assert lost_dice(weaker) < 0.01
    assert (np.mean(lost) > 0.01) == harmful


@pytest.mark.parametrize("name", CASES)
def test_a_printed_volume_lies_inside_its_interval(data: Path, name: str, tmp_path: Path) -> None:
    case = case_of(data, name)
    settings = RunSettings().changed(samples=100)
    for wanted in (settings, settings.changed(regions={"total": (1, 2)})):
        run = run_case(case, wanted, tmp_path / str(len(wanted.regions)), title=name)
        assert run.coupling is None  # the image is silent: no kernels act
        for row in volume_rows(run):
            assert row.interval_ml[0] <= row.volume_ml <= row.interval_ml[1], row.name
    # The paper's algorithm does not: its intervals are narrow, and its votes are another matter.
    paper = RunSettings.of_paper().changed(samples=100)
    rows = volume_rows(run_case(case, paper, tmp_path / "paper", title=name))
    assert not all(row.interval_ml[0] <= row.volume_ml <= row.interval_ml[1] for row in rows)
