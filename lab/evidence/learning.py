"""Five cases drawn at random, and how well Dice is ranked, on a study whose cases are sampled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from perturb_mpm.evaluation import expected_dice, risk_coverage
from perturb_mpm.posterior import decide_labels
from perturb_mpm.tune import (
    FIXED,
    Candidate,
    Folds,
    PredictedMeasure,
    Study,
    learn,
    predict_baselines,
)

FEW = 5
DRAWS = 100  # of ten, one that happens on five easy cases moves the mean by several percent


@dataclass(frozen=True)
class FewScore:
    """What a few cases teach, on all others: means by region."""

    draw: int
    temperature: float | None  # of the maps; None is that of each grid
    samples: str
    volumes: dict[str, tuple[float, float]]  # share inside, CRPS
    fixed_width: dict[str, tuple[float, float]]
    dice: dict[str, tuple[float, float]]


def score_few(
    study: Study, candidates: Sequence[Candidate], few: int = FEW, draws: int = DRAWS
) -> list[FewScore]:
    """Learn from a few cases drawn at random, many times; score each on all other cases.

    Samples do not depend on labels, so those of the study are used.
    """
    n, regions = len(study.problems), tuple(study.regions)
    study = replace(study, folds=Folds.deal(n, n))
    found = []
    for draw in range(draws):
        chosen = sorted(np.random.default_rng(draw).choice(n, few, replace=False).tolist())
        lesson = learn(study, candidates, chosen)
        rest = [case for case in range(n) if case not in chosen]
        volumes, dice = lesson.candidate.volumes, lesson.candidate.dice
        fixed = [predict_baselines(study, chosen, case)[FIXED] for case in rest]
        rows = {
            "volumes": [volumes.predict(case, lesson.volume_laws, regions) for case in rest],
            "fixed_width": fixed,
            "dice": [dice.predict(case, lesson.dice_laws, regions) for case in rest],
        }
        means = {
            key: {name: _mean([row[name] for row in of]) for name in regions}
            for key, of in rows.items()
        }
        found.append(FewScore(draw, lesson.temperature.temperature, lesson.candidate.name, **means))
    return found


@dataclass(frozen=True)
class RankScore:
    """How well a confidence that needs no label ranks the true Dice of a region."""

    confidence: str
    region: str
    rank_correlation: float
    aurc: float


def rank_dice(study: Study, candidate: Candidate) -> list[RankScore]:
    """Rank cases whose truth has the region: by sampled, soft and pairwise Dice."""
    from scipy.stats import spearmanr

    found = []
    for name, members in study.regions.items():
        have = [i for i, each in enumerate(study.problems) if np.isin(each.truth, members).any()]
        samples = [candidate.samples[i] for i in have]
        true = np.array([each.true_dice[name] for each in samples])
        confidences = {
            "median Dice of samples": [float(np.median(each.dice[name])) for each in samples],
            "Soft Dice Confidence": [_soft_dice(study, candidate, i, members) for i in have],
            "pairwise Dice of samples": [each.pairwise_dice[name] for each in samples],
        }
        found += [
            RankScore(
                words,
                name,
                float(spearmanr(values, true).statistic),
                risk_coverage(values, 1 - true).aurc,
            )
            for words, values in confidences.items()
        ]
    return found


def _soft_dice(study: Study, candidate: Candidate, case: int, members: Sequence[int]) -> float:
    """Return the Dice that the maps at the grid's temperature expect of their labels."""
    problem = study.problems[case]
    maps = problem.blend(candidate.samples[case].mean_field, problem.grid_temperature)
    labels = decide_labels(maps, problem.choose(study.decisions))
    return expected_dice(np.isin(labels, members), maps[list(members)].sum(axis=0))


def _mean(predictions: Sequence[PredictedMeasure]) -> tuple[float, float]:
    """Return the share inside, and the mean CRPS."""
    return (
        float(np.mean([each.inside for each in predictions])),
        float(np.mean([each.crps for each in predictions])),
    )
