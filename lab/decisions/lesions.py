"""Whether the probability of a lesion means what it says, on heads with satellite lesions."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lab.decisions.phantoms import make_case, make_head
from lab.words import markdown_table, paragraph
from perturb_mpm.evaluation import LesionDetection, lesion_detection
from perturb_mpm.files import Case
from perturb_mpm.measures import COVERED, LEAST_ML, LesionCandidates, LesionFinder, MeasuredPatient
from perturb_mpm.progress import Progress
from perturb_mpm.run import RunSettings, build_crf, build_sampler, decide_settings, find_evidence

SAMPLED, PEAK, MAPPED, WHITE = (
    "samples: P(exists)",
    "largest probability, same candidates",
    "largest probability, pieces of the label map",
    "samples of white noise (control)",
)
FIRST = 3000
OPENING = """{heads} made-up heads with a large lesion, {satellites} satellites in the mean and as
many spots that are none, {samples} samples each by the settings that `run` decides itself; a
classifier that learned from 24 other heads makes the probabilities. Written by
`python -m lab lesions`. A lesion of the truth is found by a candidate where it covers more than
{covered:g} of its core; pieces below {least:g} ml are no lesions; {missed} of {lesions} lesions
have no candidate and are never found."""
CHOICE = """Nothing was chosen on these heads. An earlier page had 40 others, and a core that was
covered by more than a tenth counted: 53 candidates of mean probability 0.49 were in the truth in
0.32 of the cases. On 40 more heads (seeds from 500 on) the middle bins were too sure as well, and
less so the more of a core must be covered; a fifth was chosen there."""


@dataclass
class Pool:
    """Candidates of all heads by one method."""

    score: list[float] = field(default_factory=list)
    hit: list[bool] = field(default_factory=list)
    missed: int = 0
    scans: int = 0

    def add(
        self, score: NDArray[np.floating], candidates: LesionCandidates, truth: NDArray[np.bool_]
    ) -> None:
        """Take the candidates of one head with their scores (C,)."""
        match = candidates.match(truth)
        self.score += score.tolist()
        self.hit += match.exists.tolist()
        self.missed += match.unmatched
        self.scans += 1

    def detection(self) -> LesionDetection:
        """Return how well they find lesions."""
        return lesion_detection(np.clip(self.score, 0, 1), self.hit, self.missed, self.scans)


def measure_lesions(
    heads: int, samples: int, progress: Progress | None = None
) -> tuple[dict[str, Pool], int]:
    """Return the candidates of each method, and the number of true satellites."""
    pools = {name: Pool() for name in (SAMPLED, PEAK, MAPPED, WHITE)}
    satellites = 0
    for number in range(heads):
        head = make_head(FIRST + number)
        satellites += sum(ball.lesion for ball in head.balls) - 1
        scan = head.scan()
        case, truth = make_case(scan), scan.truth
        p = case.probabilities[1]
        candidates, probability = _sample(case, RunSettings().changed(samples=samples))
        pools[SAMPLED].add(probability, candidates, truth)
        pools[PEAK].add(_largest(candidates, p), candidates, truth)
        pieces = LesionCandidates.from_share((p > 0.5).astype(np.float64), candidates.voxel_ml)
        pools[MAPPED].add(_largest(pieces, p), pieces, truth)
        if number % 4 == 0:
            white = RunSettings().changed(samples=samples, noise_length=0.0, temperature=1.0)
            found, alone = _sample(case, white.changed(strength=0.0))
            pools[WHITE].add(alone, found, truth)
        if progress is not None:
            progress(number + 1, heads)
    return pools, satellites


def _largest(candidates: LesionCandidates, p: NDArray[np.floating]) -> NDArray[np.float64]:
    found = np.zeros(len(candidates) + 1)
    np.maximum.at(found, candidates.basins.ravel(), p[candidates.box].ravel())
    return found[1:]


def _sample(case: Case, settings: RunSettings) -> tuple[LesionCandidates, NDArray[np.float64]]:
    """Return the candidates of samples, and the share of samples that has each."""
    decided = decide_settings(settings, case, find_evidence(case))
    sampler = build_sampler(build_crf(case, decided), decided)
    kept: list[tuple[range, NDArray[np.uint8]]] = []
    posterior = sampler.draw(keep=lambda part, labels: kept.append((part, labels.copy())))
    votes = posterior.voxel_counts
    patient = MeasuredPatient(
        posterior.grid, {"lesion": (1,)}, (case.probabilities[1] > 0.5).astype(np.uint8)
    ).with_votes(votes)
    share = posterior.grid.scatter(votes[1] / posterior.samples, 0)
    finder = LesionFinder(patient, "lesion", share)
    for part, labels in kept:
        finder.add(part, labels)
    return finder.candidates, finder.lesions.probability


def page(pools: dict[str, Pool], satellites: int, samples: int) -> str:
    """Return the page in Markdown."""
    found = {name: pool.detection() for name, pool in pools.items()}
    own = pools[SAMPLED]
    words = OPENING.format(
        heads=own.scans,
        satellites=f"{satellites / own.scans:.1f}",
        samples=samples,
        covered=COVERED,
        least=LEAST_ML,
        missed=own.missed,
        lesions=sum(own.hit) + own.missed,
    )
    rows = [
        [
            name,
            f"{pools[name].scans}",
            f"{len(pools[name].score)}",
            f"{each.average_precision:.3f}",
            *(f"{each.sensitivity_at(alarms):.2f}" for alarms in (0.25, 0.5, 1, 2)),
        ]
        for name, each in found.items()
    ]
    header = ["score", "heads", "candidates", "AP"]
    header += [f"found at {alarms:g} false a head" for alarms in (0.25, 0.5, 1, 2)]
    parts = [
        "# Lesions that one may believe in",
        paragraph(words),
        paragraph(CHOICE),
        "## Finding lesions",
        paragraph("AP is the average precision; the other columns are points of the FROC curve."),
        markdown_table(header, rows),
        "## Does the probability mean what it says?",
        paragraph(verdict(pools)),
        *(_reliability_table(name, found[name]) for name in (SAMPLED, PEAK, WHITE)),
    ]
    return "\n\n".join(parts) + "\n"


def verdict(pools: dict[str, Pool]) -> str:
    """Return in sentences what was found."""
    found = {name: pool.detection() for name, pool in pools.items()}
    curve = found[SAMPLED].reliability
    gaps = np.abs(curve.accuracy - curve.confidence)
    within = int((gaps <= 0.1).sum())
    return (
        f"Of five bins of P(exists), {within} are within 0.1 of how often the truth has the "
        f"lesion; the largest gap is {np.nanmax(gaps):.2f}, the mean over candidates "
        f"{curve.expected_error:.3f} (largest probability: "
        f"{found[PEAK].reliability.expected_error:.3f}; white noise: "
        f"{found[WHITE].reliability.expected_error:.3f}). The average precision is "
        f"{found[SAMPLED].average_precision:.3f}, {found[PEAK].average_precision:.3f} by the "
        f"largest probability of the same candidates and {found[MAPPED].average_precision:.3f} by "
        "that of the pieces of the label map."
    )


def _reliability_table(name: str, found: LesionDetection) -> str:
    curve = found.reliability
    rows = [
        [f"{k / 5:.1f} – {(k + 1) / 5:.1f}", f"{n}", f"{p:.2f}", f"{share:.2f}"]
        for k, (n, p, share) in enumerate(zip(curve.voxels, curve.confidence, curve.accuracy))
    ]
    return markdown_table([name, "candidates", "mean score", "share in the truth"], rows)
