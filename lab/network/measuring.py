"""Each way to get labels, maps and volumes out of a network, scored on cases with known labels.

What ``tune`` learns is scored in folds: each case with the settings that the other folds gave.

Labels, calibration, likelihood and detection are measured within 5 mm of the network's or the true
foreground, the same voxels for every method; volumes are those of the whole image.
"""

from __future__ import annotations

import csv
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.comparators import displace_borders
from lab.store import PartStore
from perturb_mpm.biomarkers import LearnedLaw, crps
from perturb_mpm.evaluation import auroc, dice, domain_mask, top_label
from perturb_mpm.files import (
    Case,
    InputError,
    LabelScheme,
    Source,
    label_indices,
    read_case,
    read_volume,
)
from perturb_mpm.inference import ConvergenceWarning
from perturb_mpm.model import Grid
from perturb_mpm.posterior import marginal_entropy
from perturb_mpm.progress import Silent, StagedProgress
from perturb_mpm.run import (
    RunSettings,
    assumed_length_mm,
    build_crf,
    build_sampler,
    decide_settings,
    map_marginals,
    settings_from_text,
    settings_text,
)
from perturb_mpm.tune import TuningOptions, nan_mean, tune

SCHEME = LabelScheme((0, 1, 2), ("background", "anterior", "posterior"))
REGIONS = {"anterior": (1,), "posterior": (2,), "both": (1, 2)}
MARGIN_MM = 5.0
LEAST = 1e-7  # of a probability, before its logarithm
TEMPERATURES = tuple(round(1 + 0.1 * step, 1) for step in range(21))
FOLDS = 5
NETWORK = "network alone"

DEFAULT = "defaults of run"
WHITE = "our kernels at full strength, white noise"
FORCED = "kernels whatever the image says"
DISPLACED = "displaced borders"
FORCED_STRENGTH = 0.35


@dataclass(frozen=True)
class CaseScore:
    """One method on one case; volumes are in ml, None where a method draws no samples."""

    case: str
    method: str
    dice: dict[str, float]
    calibration_error: float
    log_score_nats: float
    auroc: float
    volume_error_log: dict[str, float]
    inside: dict[str, bool] | None = None
    crps_log: dict[str, float] | None = None
    own_volume_inside: dict[str, bool] | None = None


@dataclass(frozen=True)
class NetworkCase:
    """A case with its truth, and what other methods make of it."""

    name: str
    case: Case
    others: Mapping[str, NDArray[Any]]

    @property
    def truth(self) -> NDArray[np.uint8]:
        """The true labels, (X, Y, Z)."""
        if self.case.truth is None:
            raise ValueError(f"the truth of {self.name} must be known")
        return self.case.truth

    @property
    def near(self) -> NDArray[np.bool_]:
        """The voxels that are scored, (X, Y, Z)."""
        predicted = self.case.probabilities.argmax(axis=0) > 0
        spacing = self.case.geometry.spacing
        return domain_mask("dilated", predicted, self.truth > 0, self.case.mask, spacing, MARGIN_MM)


@dataclass(frozen=True)
class Answer:
    """What a method says of a case."""

    marginals: NDArray[np.floating]  # (L, X, Y, Z)
    volumes_ml: NDArray[np.float64] | None = None  # (S, L)
    laws: Mapping[str, LearnedLaw] = field(default_factory=dict)  # of volumes by region
    scores_maps: bool = True
    """False where the marginals are shares of a few label maps: most are 0 or 1, an artefact."""


def read_network_case(data: Path, name: str) -> NetworkCase:
    """Read a case's image, the network's probabilities, the truth and the other methods."""
    image = data / "images" / f"{name}.nii.gz"
    probabilities = data / "probabilities" / f"{name}.npz"
    case = read_case(image, probabilities, reference=image, labels=SCHEME, named_by="data")
    drawn = read_volume(Source("data", data / "labels" / f"{name}.nii.gz"))
    truth = label_indices(drawn.voxels, SCHEME, drawn.source)
    with np.load(data / "others" / f"{name}.npz", allow_pickle=False) as file:
        others = {key: file[key] for key in file.files}
    labelled = Case(**{**vars(case), "truth": truth.astype(np.uint8)})
    return NetworkCase(name, labelled, others)


def case_names(data: Path) -> list[str]:
    """Return the names of the cases in the folder's table."""
    table = data / "cases.csv"
    try:
        with table.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file))
        names = sorted(Path(next(iter(row.values()))).name.removesuffix(".nii.gz") for row in rows)
    except (OSError, StopIteration, TypeError) as error:
        raise InputError(f"`data` must be the folder of the network's cases: {error}") from error
    return names


def scale_temperature(
    probabilities: NDArray[np.floating], temperature: float
) -> NDArray[np.float64]:
    """Return softmax(log p / T), (L, …)."""
    powers = np.maximum(probabilities.astype(np.float64), LEAST) ** (1 / temperature)
    softened: NDArray[np.float64] = powers / powers.sum(axis=0)
    return softened


def log_loss(marginals: NDArray[np.floating], truth: NDArray[np.int64]) -> float:
    """Return the mean of −log p of the true label in nats; marginals are (L, N)."""
    true = np.take_along_axis(marginals, truth[np.newaxis], axis=0)
    return float(-np.log(np.maximum(true, LEAST)).mean())


def sample_case(case: NetworkCase, settings: RunSettings, kind: str) -> Answer:
    """Sample a case; ``kind`` says which marginals make its labels and maps."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        settings = decide_settings(settings.changed(marginals=kind), case.case)
        posterior = build_sampler(build_crf(case.case, settings), settings).draw()
    marginals = posterior.grid.scatter(map_marginals(case.case, settings, posterior), 0)
    return Answer(marginals, posterior.volumes / 1000)


def vote_shares(case: NetworkCase, key: str) -> Answer:
    """Return the share of label maps (S, X, Y, Z) and the volumes of each."""
    maps = case.others[key]
    grid = Grid(case.case.geometry.shape, case.case.geometry.spacing)
    voxel_ml = math.prod(grid.spacing) / 1000
    shares = np.stack([(maps == label).mean(axis=0) for label in range(len(SCHEME))])
    counts = [(maps == label).reshape(len(maps), -1).sum(axis=1) for label in range(len(SCHEME))]
    return Answer(shares, np.stack(counts, axis=1) * voxel_ml, scores_maps=False)


def methods(samples: int, seed: int) -> dict[str, Callable[[NetworkCase, float], Answer]]:
    """Return each method as a function of a case and the temperature learned without it."""
    white = RunSettings.of_paper().changed(samples=samples, seed=seed)
    default = RunSettings().changed(samples=samples, seed=seed)
    forced = default.changed(strength=FORCED_STRENGTH)
    bare = default.changed(strength=0.0)

    def at_grid_temperature(case: NetworkCase) -> Answer:
        """Sample without kernels, at the temperature of the maps."""
        settings = decide_settings(bare, case.case)
        return sample_case(case, settings.changed(sampling_temperature=None), "blend")

    return {
        NETWORK: lambda case, _: Answer(case.case.probabilities),
        "grid temperature": lambda case, _: at_grid_temperature(case),
        "with temperature": lambda case, t: Answer(scale_temperature(case.case.probabilities, t)),
        "ensemble of 5": lambda case, _: Answer(
            case.others["mean_ensemble"], vote_shares(case, "labels_ensemble").volumes_ml
        ),
        "20 dropout samples": lambda case, _: vote_shares(case, "labels_mc"),
        "8 flips": lambda case, _: vote_shares(case, "labels_tta"),
        DISPLACED: lambda case, _: displaced(case, samples, seed),
        WHITE: lambda case, _: sample_case(case, white, "votes"),
        FORCED: lambda case, _: sample_case(case, forced, "blend"),
        DEFAULT: lambda case, _: sample_case(case, default, "blend"),
    }


def displaced(case: NetworkCase, samples: int, seed: int) -> Answer:
    """Move the borders by one voxel's size, correlated over as many mm as the noise of ``run``."""
    size = float(np.mean(case.case.geometry.spacing))
    length = assumed_length_mm(case.case)
    return Answer(*displace_borders(case.case, length, size, samples, seed))


LEARNED = "learned by tune, 5 folds"
FIXED = "fixed width, 5 folds"
RESIDUAL = "errors of other cases, 5 folds"


def sample_learned(case: NetworkCase, settings: RunSettings, samples: int, seed: int) -> Answer:
    """Sample a case with settings that were learned without it."""
    found = sample_case(case, settings.changed(samples=samples, seed=seed), "blend")
    # The regions of this page are the labels, and all of them together under another name.
    return replace(found, laws=dict(zip(REGIONS, settings.volume_laws.values(), strict=False)))


def measure_network(
    data: Path,
    folder: Path,
    *,
    samples: int = 100,
    most_cases: int | None = None,
    seed: int = 0,
    progress: StagedProgress | None = None,
) -> list[CaseScore]:
    """Score every method on every case, going on where an earlier run stopped."""
    progress = progress or Silent()
    names = case_names(data)[:most_cases]
    store = PartStore(folder / "parts", {"samples": samples, "seed": seed, "cases": names})
    losses = [
        _load_or_measure(store, f"losses-{name}", partial(_losses, data, name)) for name in names
    ]
    texts = _load_or_measure(store, "tuned", partial(_tune, data, names, progress))
    progress.stage("scoring")
    scores = []
    for place, name in enumerate(names):
        temperature = _learn_temperature(losses, place)
        own = settings_from_text(texts[name])
        measure = partial(_score, data, name, temperature, own, samples, seed)
        found = _load_or_measure(store, name, measure)
        scores += [CaseScore(**each) for each in found["scores"]]
        progress(place + 1, len(names))
    return scores + residual_scores(scores, names)


def _tune(data: Path, names: Sequence[str], progress: StagedProgress) -> dict[str, str]:
    """Return the settings learned without each case, as the text of a settings file."""
    cases = {name: read_network_case(data, name).case for name in names}
    found = tune(cases, RunSettings(), TuningOptions(folds=min(FOLDS, len(names))), progress)
    return {name: settings_text(settings) for name, settings in found.without.items()}


def residual_scores(scores: Sequence[CaseScore], names: Sequence[str]) -> list[CaseScore]:
    """Predict each volume from the network's own and what it missed in the other folds' cases.

    By these errors themselves, and by Student's law with their mean and spread.
    """
    from scipy.special import stdtrit

    alone = {each.case: each for each in scores if each.method == NETWORK}
    grid = (np.arange(400) + 0.5) / 400
    result = []
    for method in (FIXED, RESIDUAL):
        for place, name in enumerate(names):
            others = [alone[n] for i, n in enumerate(names) if i % FOLDS != place % FOLDS]
            mine = alone[name]
            inside, values, own = {}, {}, {}
            for region in REGIONS:
                # The error is log found − log true; the truth lies minus others' errors away.
                moved = np.array([-each.volume_error_log[region] for each in others])
                if method == FIXED:
                    n = len(moved)
                    spread = moved.std(ddof=1) * math.sqrt(1 + 1 / n)
                    moved = moved.mean() + spread * stdtrit(n - 1, grid)
                truth = -mine.volume_error_log[region]
                lower, upper = np.quantile(moved, [0.025, 0.975])
                inside[region] = bool(lower <= truth <= upper)
                own[region] = bool(lower <= 0 <= upper)
                values[region] = crps(moved, truth)
            result.append(
                replace(
                    mine,
                    method=method,
                    inside=inside,
                    crps_log=values,
                    own_volume_inside=own,
                )
            )
    return result


def _load_or_measure(
    store: PartStore, key: str, measure: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    found = store.load(key)
    if found is None:
        found = measure()
        store.save(key, found)
    return found


def _losses(data: Path, name: str) -> dict[str, Any]:
    """Return the summed loss of a case at each temperature, and how many voxels it has."""
    case = read_network_case(data, name)
    near = case.near
    truth = case.truth[near].astype(np.int64)
    losses = [
        log_loss(scale_temperature(case.case.probabilities[:, near], t), truth) * truth.size
        for t in TEMPERATURES
    ]
    return {"losses": losses, "voxels": int(truth.size)}


def _learn_temperature(losses: Sequence[Mapping[str, Any]], place: int) -> float:
    """Return the temperature of the least loss on the cases of the other folds."""
    others = [each["losses"] for i, each in enumerate(losses) if i % FOLDS != place % FOLDS]
    best = int(np.sum(others or [each["losses"] for each in losses], axis=0).argmin())
    return TEMPERATURES[best]


def _score(
    data: Path, name: str, temperature: float, own: RunSettings, samples: int, seed: int
) -> dict[str, Any]:
    case = read_network_case(data, name)
    found = [
        score(case, method, answer(case, temperature))
        for method, answer in methods(samples, seed).items()
    ]
    found.append(score(case, LEARNED, sample_learned(case, own, samples, seed)))
    return {"temperature": temperature, "scores": [asdict(each) for each in found]}


def score(case: NetworkCase, method: str, answer: Answer) -> CaseScore:
    """Score one answer; a region's Dice and volume are those of the union of its labels."""
    near, truth = case.near, case.truth
    marginals = np.maximum(answer.marginals[:, near].astype(np.float64), LEAST)
    marginals /= marginals.sum(axis=0)
    labels = answer.marginals.argmax(axis=0)
    errors = labels[near] != truth[near]
    voxel_ml = math.prod(case.case.geometry.spacing) / 1000
    found, true = (
        {name: np.isin(of, members) for name, members in REGIONS.items()} for of in (labels, truth)
    )
    true_ml = {name: float(mask.sum()) * voxel_ml for name, mask in true.items()}
    found_ml = {name: float(mask.sum()) * voxel_ml for name, mask in found.items()}
    known = truth[near].astype(np.int64)
    return CaseScore(
        case=case.name,
        method=method,
        dice={name: dice(found[name], true[name]) for name in REGIONS},
        **_map_scores(marginals, known, errors, scored=answer.scores_maps),
        # Where nothing is found, half a voxel stands for it.
        volume_error_log={
            n: math.log(max(found_ml[n], voxel_ml / 2) / true_ml[n]) for n in REGIONS
        },
        **_volume_scores(answer, true_ml, found_ml),
    )


def _map_scores(
    marginals: NDArray[np.float64],
    truth: NDArray[np.int64],
    errors: NDArray[np.bool_],
    *,
    scored: bool,
) -> dict[str, Any]:
    if not scored:
        return dict.fromkeys(("calibration_error", "log_score_nats", "auroc"), math.nan)
    return {
        "calibration_error": top_label(marginals, truth).expected_error,
        "log_score_nats": log_loss(marginals, truth),
        "auroc": auroc(marginal_entropy(marginals), errors),
    }


def _volume_scores(
    answer: Answer, true_ml: Mapping[str, float], found_ml: Mapping[str, float]
) -> dict[str, Any]:
    volumes_ml = answer.volumes_ml
    if volumes_ml is None:
        return {}
    inside, scores, own = {}, {}, {}
    for name, members in REGIONS.items():
        drawn = volumes_ml[:, list(members)].sum(axis=1)
        law = answer.laws.get(name)
        lower, upper = np.quantile(drawn, [0.025, 0.975]) if law is None else law.widen(drawn)
        drawn = drawn if law is None else law.draws(drawn)
        inside[name] = bool(lower <= true_ml[name] <= upper)
        own[name] = bool(lower <= found_ml[name] <= upper)
        scores[name] = crps(np.log(np.maximum(drawn, 1e-3)), math.log(true_ml[name]))
    return {"inside": inside, "crps_log": scores, "own_volume_inside": own}


def summarise(scores: Iterable[CaseScore]) -> dict[str, dict[str, float]]:
    """Return the means over cases of each method, in the order of the methods."""
    by_method: dict[str, list[CaseScore]] = {}
    for each in scores:
        by_method.setdefault(each.method, []).append(each)
    return {method: _means(found) for method, found in by_method.items()}


def _means(scores: Sequence[CaseScore]) -> dict[str, float]:
    means: dict[str, float] = {}
    for name in ("calibration_error", "log_score_nats", "auroc"):
        values = [getattr(each, name) for each in scores]
        means[name] = nan_mean(values)
    for name in ("dice", "volume_error_log", "inside", "crps_log", "own_volume_inside"):
        for region in REGIONS:
            values = [getattr(each, name) for each in scores]
            known = [value[region] for value in values if value is not None]
            means[f"{name} {region}"] = float(np.mean(known)) if known else math.nan
    return means
