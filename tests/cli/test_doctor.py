"""``perturb-mpm doctor``: what it shows, and that it notices when something is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import perturb_mpm as pm
from helpers.small_case import call
from perturb_mpm import inference
from perturb_mpm.cli import doctor as command
from perturb_mpm.cli.doctor import self_test
from perturb_mpm.noise.gumbel import gumbel


def test_a_healthy_installation(capfd: pytest.CaptureFixture[str]) -> None:
    assert call("doctor", "--json") == 0
    report = json.loads(capfd.readouterr().out)
    assert report["passed"] is True
    assert report["versions"]["perturb-mpm"] == pm.__version__
    assert report["versions"]["numpy"] == np.__version__
    assert set(report["versions"]) > {"numba", "nibabel", "scipy", "python"}
    assert "zarr" in report["extras"]["zarr"]
    assert not {"test", "lint"} & set(report["extras"])
    assert report["threads"] >= 1
    assert report["memory"]["free_gb"] > report["memory"]["used_at_most_gb"] > 0
    assert [check["passed"] for check in report["self_test"]] == [True] * 5
    assert Path(report["cache"]["folder"]).is_dir()
    assert {"found", "detail"} <= set(report["gpu"])


def test_the_table(capfd: pytest.CaptureFixture[str]) -> None:
    assert call("doctor") == 0
    shown = capfd.readouterr().out
    for text in ("perturb-mpm", "numba", "extra zarr", "threads", "cache", "GPU", "memory"):
        assert text in shown
    assert shown.count("passed") == 5
    assert "FAILED" not in shown


def test_quiet_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    assert call("doctor", "--quiet") == 0
    assert capfd.readouterr().out == ""


def test_missing_extras_and_cache_are_told(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from perturb_mpm.engines import cpu

    monkeypatch.setattr(command.importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(cpu, "cache_folder", lambda: None)
    real = command._find_version
    monkeypatch.setattr(
        command, "_find_version", lambda name: None if name == "zarr" else real(name)
    )
    assert call("doctor") == 0
    shown = " ".join(capfd.readouterr().out.replace("│", " ").split())
    assert "zarr not installed" in shown
    assert "PyTorch is not installed" in shown
    assert "none that only you can write to" in shown


def test_wrong_marginals_are_noticed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    real = inference.mean_field

    def wrong(crf: pm.DenseCRF, **options: object) -> object:
        return real(crf, **{**options, "iterations": 1 if options["engine"] == "cpu" else 50})

    monkeypatch.setattr(command, "mean_field", wrong)
    with pytest.warns(pm.ConvergenceWarning):
        assert call("doctor") == 1
    assert "FAILED" in capfd.readouterr().out


def test_the_wrong_sign_of_the_noise_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    class WrongSign:
        def __init__(self, crf: pm.DenseCRF, samples: int) -> None:
            noise = gumbel(0, np.arange(samples), crf.grid.index, crf.n_labels)
            labels = np.argmin(crf.energies + noise, axis=1)  # (S, N)
            self.voxel_counts = np.stack([(labels == l).sum(axis=0) for l in range(crf.n_labels)])

    monkeypatch.setattr(command, "sample", lambda crf, samples, **_: WrongSign(crf, samples))
    passed = {check.name: check.passed for check in self_test()}
    assert passed["cpu engine against the reference"]
    assert not passed["samples follow the softmax without coupling"]


def test_an_engine_that_raises_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no such instruction")

    monkeypatch.setattr(command, "sample", broken)
    checks = self_test()
    assert [check.passed for check in checks] == [True, False, False, False, True]
    assert checks[1].detail == "RuntimeError: no such instruction"
