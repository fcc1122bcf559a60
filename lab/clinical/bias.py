"""When does dropping uncertain voxels help? The second clinical experiment over a segmenter's bias.

The paper reports that a corrected residual volume is nearer to three of four raters. A corrected
volume can only shrink, so the answer must depend on whether the segmenter draws too much. Here the
same patients are segmented by a classifier whose log-probability of enhancing tumour is raised by
b nats, b from too little to too much, with hand-set kernels and with a CRF learned by overlap.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from lab.clinical.biomarkers import MeasureScan, OperatedPatient
from lab.clinical.patients import QUICK_PATIENTS
from lab.patients import Patient, phantom_patient
from lab.phantoms import cohort, draw_rater_maps, resection_cohort
from perturb_mpm.assess import Scan, measure_scan
from perturb_mpm.learning import Learned, learn
from perturb_mpm.model import DenseCRF
from perturb_mpm.phantom import POSTOPERATIVE_LABEL_NAMES, Phantom, resect
from perturb_mpm.posterior import Posterior
from perturb_mpm.sampling import Sampler, Sampling

REGION = (POSTOPERATIVE_LABEL_NAMES.index("enhancing tumour"),)
HAND_SET, LEARNED = "our kernels at full strength", "learned by overlap"
TRAINING_SEED, NOISE_SEED = 10_000, 20_000
TRAINING_RESIDUALS_ML = (0.0, 0.5, 2.0, 5.0)
ITERATIONS = 10
HOLD = 0.002
"""Voxels whose label noise changes with a smaller probability are frozen: several times faster."""
_LEAST = 1e-6  # of a label that the classifier before surgery does not know


@dataclass(frozen=True)
class BiasPlan:
    """How many patients, biases and samples."""

    spacing_mm: float
    patients: int | None  # None: all 19
    samples: int
    biases_nats: tuple[float, ...]
    learned_biases_nats: tuple[float, ...]
    training: int
    steps: int
    repeats: int = 0  # with other noise at the largest bias: the Monte Carlo error


FULL = BiasPlan(4.0, None, 200, (0.0, 1.0, 2.0), (0.0, 1.0, 2.0), 4, 6, repeats=4)
QUICK = BiasPlan(8.0, QUICK_PATIENTS, 8, (0.0, 2.0), (2.0,), 2, 1, repeats=1)


@dataclass(frozen=True)
class Segmenter:
    """A classifier that is biased by some nats, and the CRF behind it."""

    bias_nats: float
    learned: Learned | None = None
    region: tuple[int, ...] = REGION
    repeat: int = 0
    """Above 0: the same with other noise."""

    @property
    def name(self) -> str:
        """The CRF and the bias, in words."""
        crf = HAND_SET if self.learned is None else LEARNED
        noise = f", other noise {self.repeat}" if self.repeat else ""
        return f"{crf}, {self.bias_nats:+g} nats{noise}"

    def crf(self, patient: Patient) -> DenseCRF:
        """Return the CRF of a patient."""
        crf = bias_patient(patient, self.bias_nats, self.region).crf()
        return crf if self.learned is None else self.learned.apply(crf)

    def sample(
        self, patient: Patient, samples: int, seed: int
    ) -> tuple[Posterior, NDArray[np.int64]]:
        """Return the votes of a patient, and the MPM labels (N,) without noise."""
        noise = seed + NOISE_SEED * self.repeat
        settings = Sampling(samples=samples, seed=noise, iterations=ITERATIONS, hold=HOLD)
        sampler = Sampler(self.crf(patient), settings)
        return sampler.draw(), sampler.mean_field().argmax(axis=0)


def scanners(segmenters: Sequence[Segmenter], samples: int, seed: int) -> dict[str, MeasureScan]:
    """Return what measures enhancing tumour in a scan, by the name of each segmenter."""

    def scan(patient: Patient, segmenter: Segmenter) -> Scan:
        posterior, labels = segmenter.sample(patient, samples, seed)
        return measure_scan(posterior, segmenter.region, segmenter.name, labels)

    return {each.name: partial(scan, segmenter=each) for each in segmenters}


def bias_patient(patient: Patient, nats: float, region: Sequence[int]) -> Patient:
    """Return the patient with p(l) ∝ p(l)·exp(nats) for the labels of the region."""
    raised = patient.case.probabilities.astype(np.float64)  # (L, X, Y, Z)
    raised[list(region)] *= np.exp(nats)
    raised /= raised.sum(axis=0)
    return replace(patient, case=replace(patient.case, probabilities=raised.astype(np.float32)))


def made_up_patients(plan: BiasPlan, seed: int) -> Iterator[OperatedPatient]:
    """Return the made-up patients before and after surgery, each drawn by four made-up raters."""
    pairs = resection_cohort(seed, spacing_mm=plan.spacing_mm)
    for number, pair in enumerate(islice(pairs, plan.patients), 1):
        before, after = (
            _patient(f"phantom {number}", scan, seed) for scan in (pair.before, pair.after)
        )
        yield OperatedPatient(before, after)


def _patient(name: str, scan: Phantom, seed: int) -> Patient:
    """Return a scan with the probabilities of its own classifier, for all labels of surgery."""
    names = POSTOPERATIVE_LABEL_NAMES
    p = scan.probabilities  # (L, X, Y, Z)
    missing = len(names) - len(p)
    if missing:
        rest = np.full((missing, *p.shape[1:]), _LEAST, dtype=np.float32)
        full = np.concatenate([p, rest])
        p = (full / full.sum(axis=0)).astype(np.float32)
    return phantom_patient(name, scan, p, draw_rater_maps(scan, seed), names)


def learn_by_overlap(plan: BiasPlan, seed: int) -> Learned:
    """Learn weights and unaries of the CRF by the IoU loss, on other patients after surgery.

    Their classifier is not biased: how a segmenter errs on new patients is not known beforehand.
    """
    residuals = TRAINING_RESIDUALS_ML
    scans = [
        resect(each, residuals[number % len(residuals)])
        for number, each in enumerate(
            cohort(plan.training, seed + TRAINING_SEED, spacing_mm=plan.spacing_mm)
        )
    ]
    patients = [_patient(f"training {number}", scan, seed) for number, scan in enumerate(scans)]
    return learn(
        [each.crf() for each in patients],
        [each.truth for each in patients],
        objective="mean_iou",
        iterations=ITERATIONS,
        phases=["weights"],
        steps=plan.steps,
        strength=0.03,
        crop_mm=10.0,
        engine="cpu",
    )


def segmenters(plan: BiasPlan, learned: Learned) -> list[Segmenter]:
    """Return all that are compared: hand-set kernels at every bias, the learned CRF at some."""
    return [
        *(Segmenter(bias) for bias in plan.biases_nats),
        *(Segmenter(bias, learned) for bias in plan.learned_biases_nats),
    ]


def repeat_with_other_noise(plan: BiasPlan) -> list[Segmenter]:
    """Return hand-set kernels at the largest bias, once for each further noise."""
    return [Segmenter(max(plan.biases_nats), repeat=n + 1) for n in range(plan.repeats)]
