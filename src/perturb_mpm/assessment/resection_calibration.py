"""What a cohort with known volumes teaches about sampled intervals and class probabilities."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from perturb_mpm.assessment.pairs import Biomarkers
from perturb_mpm.biomarkers.intervals import ConformalWidening, conformal_widening, coverage, crps
from perturb_mpm.biomarkers.resection_classes import RANO_RESECT, ResectionClass, classify
from perturb_mpm.io.errors import Source
from perturb_mpm.io.json_file import write_json


@dataclass(frozen=True)
class ResectionCalibration:
    """How far samples can be believed, measured on cases whose volumes are known."""

    perturbation: str
    cases: int
    residual_coverage: float
    """The share of cases whose true residual volume lies in the 95 % sample interval."""
    residual_crps_ml: float
    class_brier: float
    """Mean over cases of Σ_c (p(c) − [c is true])², 0 … 2."""
    true_class_probability: float
    """The mean probability given to the class that was true."""
    widening_log: float | None
    """What conformal intervals add on the scale log(V + offset); None: too few cases."""
    widening_offset_ml: float
    confidence: float = 0.95

    @property
    def widening(self) -> ConformalWidening | None:
        """The conformal widening, where the cohort was large enough."""
        if self.widening_log is None:
            return None
        return ConformalWidening(
            self.widening_log, self.widening_offset_ml, self.confidence, self.cases
        )


def calibrate(
    found: Sequence[Biomarkers],
    true_before_ml: Sequence[float],
    true_after_ml: Sequence[float],
    classes: Sequence[ResectionClass] = RANO_RESECT,
    noise_floor_ml: float = 0.0,
) -> ResectionCalibration:
    """Compare sampled biomarkers with known volumes, one of each a case."""
    if not len(found) == len(true_before_ml) == len(true_after_ml) or not found:
        raise ValueError(
            "found and the true volumes must have the same length, at least 1, "
            f"got {len(found)}, {len(true_before_ml)} and {len(true_after_ml)}"
        )
    sampled = [each.sampled for each in found if each.sampled is not None]
    if len(sampled) < len(found):
        raise ValueError("found must have samples in every case: label maps alone have none")
    kinds = {each.perturbation for each in found}
    if len(kinds) > 1:
        raise ValueError(f"found must rest on one perturbation, got {len(kinds)}")
    lower = [each.residual_ml.lower for each in sampled]
    upper = [each.residual_ml.upper for each in sampled]
    widening = conformal_widening(lower, upper, true_after_ml)
    true_class = classify(true_before_ml, true_after_ml, classes, noise_floor_ml)
    given = np.array([[each.classes[c.name] for c in classes] for each in sampled])  # (n, C)
    truth = np.eye(len(classes))[true_class]
    return ResectionCalibration(
        perturbation=found[0].perturbation or "none",
        cases=len(found),
        residual_coverage=coverage(lower, upper, true_after_ml),
        residual_crps_ml=float(
            np.mean([crps(each.residual_ml.values, y) for each, y in zip(sampled, true_after_ml)])
        ),
        class_brier=float(((given - truth) ** 2).sum(axis=1).mean()),
        true_class_probability=float((given * truth).sum(axis=1).mean()),
        widening_log=widening.amount if math.isfinite(widening.amount) else None,
        widening_offset_ml=widening.offset_ml,
    )


def write_calibration(path: Path, calibration: ResectionCalibration) -> None:
    """Write a calibration as JSON."""
    write_json(path, asdict(calibration))


def read_calibration(path: Path) -> ResectionCalibration:
    """Read what ``write_calibration`` wrote."""
    source = Source("--calibration", path)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return ResectionCalibration(**content)
    except OSError as error:
        raise source.error(f"cannot be read ({error.strerror})") from error
    except (TypeError, ValueError) as error:
        raise source.error(f"is no calibration of perturb-mpm biomarkers ({error})") from error
