"""``perturb-mpm doctor``: what is installed, what this machine offers, whether it computes."""

from __future__ import annotations

import importlib.util
import platform
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, requires
from importlib.metadata import version as installed_version
from typing import Any

import numpy as np
from rich.table import Table

from perturb_mpm.cli.console import SHOW, Show, text_table
from perturb_mpm.engines import available_bytes, available_cores, resolve_budget
from perturb_mpm.inference import mean_field
from perturb_mpm.learning import image_evidence
from perturb_mpm.model import BilateralKernel, DenseCRF, SpatialKernel
from perturb_mpm.sampling import sample
from perturb_mpm.version import version

_MOST_WRONG_VOTES = 0.005
_SAMPLES = 2000
_LEAST_SKILL = 0.5  # of an image that shows the label
_LARGEST_ERROR = 1e-5  # of marginals in float32 against float64
# The mean over 64 voxels of a χ² with 2 degrees of freedom, over 2: mean 1, standard deviation ⅛.
_LARGEST_CHI_SQUARE = 1.6


@dataclass(frozen=True)
class Check:
    """One check: what was compared, whether it agreed, and how far."""

    name: str
    passed: bool
    detail: str


def self_test() -> list[Check]:
    """Run every check; one that raises has failed."""
    checks = {
        "cpu engine against the reference": _engines_agree,
        "samples follow the softmax without coupling": _samples_follow_softmax,
        "ranges of samples add up to one run": _ranges_add_up,
        "frozen voxels against full sampling": _frozen_voxels_agree,
        "image evidence tells an image from noise": _evidence_tells,
    }
    return [_run(name, check) for name, check in checks.items()]


def _run(name: str, check: Callable[[], tuple[bool, str]]) -> Check:
    try:
        return Check(name, *check())
    except Exception as error:  # noqa: BLE001 - whatever goes wrong is what is looked for
        return Check(name, passed=False, detail=f"{type(error).__name__}: {error}")


def _problem(*, coupled: bool) -> DenseCRF:
    rng = np.random.default_rng(0)
    shape = (4, 4, 4)
    kernels = [
        SpatialKernel(sigma=2.0, weight=1.0),
        BilateralKernel(rng.normal(size=(1, *shape)), sigma_space=4.0, sigma_intensity=0.5),
    ]
    return DenseCRF(rng.normal(size=(3, *shape)), kernels if coupled else ())


def _engines_agree() -> tuple[bool, str]:
    crf = _problem(coupled=True)
    ours = mean_field(crf, iterations=50, engine="cpu", accuracy="exact").marginals
    truth = mean_field(crf, iterations=50, engine="reference").marginals
    error = float(np.abs(ours - truth).max())
    return error < _LARGEST_ERROR, f"marginals differ by {error:.1e} at most"


def _samples_follow_softmax() -> tuple[bool, str]:
    crf = _problem(coupled=False)
    expected = np.exp(-crf.energies)  # (L, N)
    expected *= _SAMPLES / expected.sum(axis=0)
    votes = sample(crf, _SAMPLES, iterations=1, engine="cpu").voxel_counts
    chi_square = float(((votes - expected) ** 2 / expected).sum(axis=0).mean() / 2)
    return chi_square < _LARGEST_CHI_SQUARE, f"χ² over its mean {chi_square:.2f}"


def _ranges_add_up() -> tuple[bool, str]:
    crf = _problem(coupled=True)
    options = {"iterations": 3, "engine": "cpu"}
    whole = sample(crf, 40, **options)  # type: ignore[arg-type]
    first, second = (sample(crf, part, **options) for part in (range(15), range(15, 40)))  # type: ignore[arg-type]
    return second.merge(first) == whole, "bit for bit"


def _frozen_voxels_agree() -> tuple[bool, str]:
    crf = _problem(coupled=True)
    energies = crf.energies.reshape(crf.n_labels, *crf.shape).copy()
    energies[0, :3] -= 12  # three quarters are nearly certain
    certain = DenseCRF(energies, crf.kernels)
    full, frozen = (
        sample(certain, _SAMPLES, iterations=3, engine="cpu", hold=hold) for hold in (0.0, 0.01)
    )
    moved = np.abs(full.voxel_counts.astype(int) - frozen.voxel_counts).sum() / 2
    wrong = float(moved / frozen.voxel_counts.sum())
    passed = frozen.active_share < 1 and wrong < _MOST_WRONG_VOTES
    return passed, (
        f"{100 * wrong:.2g} % of the votes differ, {100 * frozen.active_share:.0f} % of the voxels "
        f"active, a frozen message moves by {frozen.hold_bound_nats:.2g} nats at most"
    )


def _evidence_tells() -> tuple[bool, str]:
    rng = np.random.default_rng(0)
    labels = np.zeros((16, 16, 16), dtype=np.int64)
    labels[4:12, 4:12, 4:12] = 1
    noise = rng.normal(size=labels.shape)
    probabilities = np.stack([0.9 - 0.8 * labels, 0.1 + 0.8 * labels])
    skills = [
        0.0 if found is None else found.skill
        for found in (
            image_evidence(image[np.newaxis], probabilities)
            for image in (labels + noise / 9, noise)
        )
    ]
    passed = skills[0] > _LEAST_SKILL and skills[1] < 1 - _LEAST_SKILL
    return passed, f"{100 * skills[0]:.0f} % predicted, {100 * skills[1]:.0f} % from noise"


_FOR_DEVELOPERS = ("test", "lint", "docs", "interop")
_REQUIREMENT = re.compile(r"([\w.-]+).*?(?:extra == ['\"](\w+)['\"])?$")


def doctor(*, show: Show = SHOW) -> None:
    """Show versions, extras, threads, cache, GPU and memory, and solve a tiny problem.

    The exit code says whether the self-test passed.
    """
    facts = {
        "versions": {"perturb-mpm": version(), "python": platform.python_version()},
        "extras": {},
        **_machine(),
    }
    for (package, extra), found in _requirements().items():
        if extra is None:
            facts["versions"][package] = found
        else:
            facts["extras"].setdefault(extra, {})[package] = found
    checks = self_test()
    passed = all(check.passed for check in checks)
    report = {**facts, "self_test": [asdict(check) for check in checks], "passed": passed}
    show.result(report, _table(facts, checks))
    if not passed:
        raise SystemExit(1)


def _requirements() -> dict[tuple[str, str | None], str | None]:
    """Return the version of each package that we ask for, None where it is missing."""
    try:
        lines = requires("perturb-mpm") or []
    except PackageNotFoundError:
        return {}
    found: dict[tuple[str, str | None], str | None] = {}
    for line in lines:
        match = _REQUIREMENT.match(line)
        if match and match[2] not in _FOR_DEVELOPERS:
            found[match[1], match[2]] = _find_version(match[1])
    return found


def _find_version(package: str) -> str | None:
    try:
        return installed_version(package)
    except PackageNotFoundError:
        return None


def _machine() -> dict[str, Any]:
    from perturb_mpm.engines.cpu import cache_folder  # which loads Numba

    cache = cache_folder()
    return {
        "system": platform.platform(),
        "processor": platform.machine(),
        "threads": available_cores(),
        "cache": {"folder": None if cache is None else str(cache), "writable": cache is not None},
        "gpu": _gpu(),
        "memory": {
            "free_gb": round(available_bytes() / 1e9, 2),
            "used_at_most_gb": round(resolve_budget(None) / 1e9, 2),
        },
    }


def _gpu() -> dict[str, Any]:
    """Return the GPU that PyTorch sees, and its memory."""
    if importlib.util.find_spec("torch") is None:
        return {"found": False, "detail": "PyTorch is not installed (extra gpu)"}
    import torch

    if not torch.cuda.is_available():
        return {"found": False, "detail": f"PyTorch {torch.__version__} sees none"}
    free, total = torch.cuda.mem_get_info()
    name = torch.cuda.get_device_name()
    memory = {"free_gb": round(free / 1e9, 2), "total_gb": round(total / 1e9, 2)}
    return {"found": True, "detail": name, **memory}


def _table(facts: Mapping[str, Any], checks: list[Check]) -> Table:
    rows = [(package, number or "missing") for package, number in facts["versions"].items()]
    for extra, packages in facts["extras"].items():
        words = [f"{name} {number or 'not installed'}" for name, number in packages.items()]
        rows.append((f"extra {extra}", ", ".join(words)))
    cache, memory = facts["cache"]["folder"], facts["memory"]
    rows += [
        ("system", f"{facts['system']}, {facts['processor']}"),
        ("threads", str(facts["threads"])),
        ("cache", cache or "none that only you can write to: kernels compile every time"),
        ("GPU", facts["gpu"]["detail"]),
        ("memory", f"{memory['free_gb']} GB free, {memory['used_at_most_gb']} GB used at most"),
    ]
    for check in checks:
        rows.append((check.name, f"{'passed' if check.passed else 'FAILED'}: {check.detail}"))
    table = text_table(("", ""), rows, show_header=False)
    table.columns[1].overflow = "fold"
    return table
