"""A trained segmenter: forests, calibration, and what images it wants and labels it gives."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.checks import FEWEST_LABELS, MOST_LABELS, in_short
from perturb_mpm.files import (
    Case,
    ImageSet,
    InputError,
    LabelScheme,
    Source,
    choose_scheme,
    select_sequences,
)
from perturb_mpm.segmenter.calibration import Calibration
from perturb_mpm.segmenter.features import feature_names, feature_table
from perturb_mpm.segmenter.preprocessing import Prepared, prepare_images
from perturb_mpm.segmenter.scene import map_in_threads
from perturb_mpm.segmenter.trees import ARRAYS, Trees
from perturb_mpm.storage import DAMAGE, arrays_in, error_text, file_digest, parse_json, write_arrays

_FORMAT = "perturb-mpm segmenter 4"
_METADATA = "model.json"  # the name of the array that holds JSON, one number a byte
_MOST_BYTES = 1 << 30  # of all arrays together: 10 folds of 150 rounds have 4 MB
_MOST_SEQUENCES = 32
MOST_FOLDS = 1000
_BLOCK = 16_384  # voxels that a thread predicts at once: bounds the memory of a prediction


@dataclass(frozen=True, eq=False)
class Ensemble:
    """The forests, and which patients the folds are."""

    n_labels: int
    folds: tuple[tuple[str, ...], ...]
    forests: tuple[Trees, ...]  # each grown without the fold of its index
    shown: tuple[float, ...]  # (L,) each label's share of the voxels that were drawn

    def find_fold(self, name: str) -> int:
        """Return the fold of a patient."""
        return next(fold for fold, names in enumerate(self.folds) if name in names)

    def predict(self, table: NDArray[np.float16], fold: int | None = None) -> NDArray[np.float32]:
        """Return probabilities (N, L) of features (N, F), not calibrated; computed in blocks.

        With ``fold``, of the trees that were not shown that fold.
        """
        forests = self.forests if fold is None else self.forests[fold : fold + 1]
        result = np.empty((len(table), self.n_labels), dtype=np.float32)

        def predict(start: int) -> None:
            block = slice(start, start + _BLOCK)
            features = table[block].astype(np.float32)
            each = [forest.predict(features, self.n_labels) for forest in forests]
            result[block] = np.mean(each, axis=0)

        map_in_threads(predict, range(0, len(table), _BLOCK))
        return result


@dataclass(frozen=True, eq=False)
class SegmenterModel:
    """Everything that turns a patient's images into probabilities of labels."""

    sequences: tuple[str, ...]
    labels: LabelScheme
    ensemble: Ensemble
    calibration: Calibration

    def honest_probabilities(self, name: str, prepared: Prepared) -> NDArray[np.float32]:
        """Return the probabilities of a patient by those trees that never saw it."""
        known = any(name in names for names in self.ensemble.folds)
        return self.probabilities(prepared, self.ensemble.find_fold(name) if known else None)

    def probabilities(self, prepared: Prepared, fold: int | None = None) -> NDArray[np.float32]:
        """Return the calibrated probabilities (L, *shape) on the patient's own grid.

        Outside the mask background has probability 1. With ``fold``, of the trees that were not
        shown that fold.
        """
        answers = self.ensemble.predict(feature_table(prepared.scene), fold)  # (N, L)
        outside = np.eye(len(self.labels), dtype=np.float32)[0]
        return prepared.restore(self.calibration.apply(answers).T, outside)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model as an npz file of plain arrays; the same model gives the same bytes."""
        ensemble = self.ensemble
        metadata = {
            "format": _FORMAT,
            "sequences": self.sequences,
            "features": feature_names(self.sequences),
            "label_values": self.labels.values,
            "label_names": self.labels.names,
            "calibration": asdict(self.calibration),
            "folds": ensemble.folds,
            "shown": ensemble.shown,
        }
        text = json.dumps(metadata, ensure_ascii=False, allow_nan=False, indent=1)
        arrays: dict[str, NDArray[Any]] = {_METADATA: np.frombuffer(text.encode(), dtype=np.uint8)}
        for index, forest in enumerate(ensemble.forests):
            arrays |= {f"{index}.{name}": getattr(forest, name) for name in ARRAYS}
        write_arrays(Path(path), arrays)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> SegmenterModel:
        """Read a model; all of it is checked before a tree is walked."""
        source = Source("model", Path(path))
        try:
            with source.open() as file:
                arrays = arrays_in(file, limit=_MOST_BYTES)
            return _parse_model(arrays, source)
        except InputError:
            raise
        except DAMAGE as error:
            words = in_short(error_text(error), 200)
            raise source.error(
                f"must be a model of perturb-mpm train; it is not, or damaged ({words})"
            ) from error


def _parse_model(arrays: dict[str, NDArray[Any]], source: Source) -> SegmenterModel:
    packed = arrays[_METADATA]
    if packed.dtype != np.uint8 or packed.ndim != 1:
        raise TypeError(f"{_METADATA} must be bytes, got {packed.dtype}")
    metadata = parse_json(packed.tobytes(), _METADATA)
    found = metadata.get("format") if isinstance(metadata, dict) else None
    if found != _FORMAT:
        kind = in_short(str(found or "a file of another kind"), 60)
        raise source.error(f"must be a {_FORMAT}, got {kind}")
    sequences = tuple(_texts(metadata["sequences"], "sequences"))
    if not 1 <= len(sequences) <= _MOST_SEQUENCES:
        raise ValueError(f"sequences must be 1 to {_MOST_SEQUENCES}, got {len(sequences)}")
    features = feature_names(sequences)
    if tuple(_texts(metadata["features"], "features")) != features:
        raise source.error(
            "must be trained on the features that this version computes, got others; "
            "train the model anew or use the version that made it"
        )
    values = [_whole(value) for value in _items(metadata["label_values"], "label values")]
    labels = LabelScheme(tuple(values), tuple(_texts(metadata["label_names"], "label names")))
    calibration = dict(metadata["calibration"])
    calibration["ratio"] = tuple(_items(calibration["ratio"], "ratios"))
    shown = tuple(_items(metadata["shown"], "shares"))
    if not FEWEST_LABELS <= len(labels) <= MOST_LABELS:
        raise ValueError(f"labels must be {FEWEST_LABELS} to {MOST_LABELS}, got {len(labels)}")
    if not len(labels) == len(calibration["ratio"]) == len(shown):
        raise ValueError("labels, ratios and shares must be as many")
    folds = tuple(tuple(_texts(names, "a fold")) for names in _items(metadata["folds"], "folds"))
    if not 1 <= len(folds) <= MOST_FOLDS:
        raise ValueError(f"folds must be 1 to {MOST_FOLDS}, got {len(folds)}")
    forests = []
    for index in range(len(folds)):
        own = {name: arrays[f"{index}.{name}"] for name in ARRAYS}
        forest = Trees(**own)
        forest.check(len(features), len(labels))
        forests.append(forest)
    ensemble = Ensemble(len(labels), folds, tuple(forests), tuple(map(float, shown)))
    return SegmenterModel(sequences, labels, ensemble, Calibration(**calibration))


def _items(value: object, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"{what} must be a list, got {type(value).__name__}")
    return value


def _texts(value: object, what: str) -> list[str]:
    texts = _items(value, what)
    if not all(isinstance(text, str) for text in texts):
        raise TypeError(f"{what} must all be text")
    return texts


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"label values must be whole numbers, got {value!r}")
    return value


def require_scheme(model: SegmenterModel, labels: LabelScheme, source: Source) -> None:
    """Refuse a model whose labels are not the ones expected."""
    if model.labels.values != labels.values:
        raise source.error(
            f"must be trained on the label values {', '.join(map(str, labels.values))}, "
            f"got {', '.join(map(str, model.labels.values))}"
        )


def case_from_model(
    model_path: Path,
    image_set: ImageSet,
    labels: LabelScheme | Sequence[int] | None = None,
    background: int | None = None,
) -> Case:
    """Return the case of images whose probabilities a model file gives.

    Sequences are matched by name (t1ce and t1c are the same); a missing one is refused.
    ``labels`` are the caller's values and names instead of the model's.
    """
    model = SegmenterModel.load(model_path)
    images = select_sequences(image_set.images, model.sequences)
    prepared = prepare_images(replace(image_set, images=images))
    scheme = choose_scheme(len(model.labels), labels, model.labels, background)
    case = Case.from_images(image_set, model.probabilities(prepared), scheme)
    return replace(case, hashes={**case.hashes, model_path.name: file_digest(model_path)})
