"""A trained segmenter: forests, calibration, and what images it wants and labels it gives."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perturb_mpm.files import Geometry, InputError, LabelScheme, Source
from perturb_mpm.segmenter.boosting import BoostedTrees
from perturb_mpm.segmenter.calibration import Calibration
from perturb_mpm.segmenter.ensemble import Ensemble, Forest
from perturb_mpm.segmenter.feature_store import feature_table
from perturb_mpm.segmenter.features import feature_names
from perturb_mpm.segmenter.forest import RandomTrees
from perturb_mpm.segmenter.model_file import load_skops, save_skops
from perturb_mpm.segmenter.preprocessing import Prepared, prepare, select_sequences

_FORMAT = "perturb-mpm segmenter 2"


class Images(Protocol):
    """One patient's images and mask on one grid, such as ``io.case.ImageSet``."""

    @property
    def images(self) -> dict[str, NDArray[np.float32]]: ...  # noqa: D102
    @property
    def mask(self) -> NDArray[np.bool_]: ...  # noqa: D102
    @property
    def geometry(self) -> Geometry: ...  # noqa: D102


@dataclass(frozen=True, eq=False)
class SegmenterModel:
    """Everything that turns a patient's images into probabilities of labels.

    ``crf_toml`` holds the CRF's settings where they were tuned for this model, else nothing.
    """

    sequences: tuple[str, ...]
    labels: LabelScheme
    ensemble: Ensemble
    calibration: Calibration
    crf_toml: str = ""

    def probabilities(self, prepared: Prepared) -> NDArray[np.float32]:
        """Return the calibrated probabilities (L, *shape) on the patient's own grid.

        Outside the mask background has probability 1.
        """
        scene = prepared.scene
        answers = self.ensemble.predict(feature_table(scene))  # (N, L)
        outside = np.eye(len(self.labels), dtype=np.float32)[0]
        return prepared.restore(self.calibration.apply(answers).T, outside)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model as a skops file; the same model gives the same bytes."""
        ensemble = self.ensemble
        content = {
            "format": _FORMAT,
            "features": list(feature_names(self.sequences)),
            "sequences": list(self.sequences),
            "label_values": list(self.labels.values),
            "label_names": list(self.labels.names),
            "calibration": {**asdict(self.calibration), "ratio": list(self.calibration.ratio)},
            "crf_toml": self.crf_toml,
            "folds": [list(names) for names in ensemble.folds],
            "shown": list(ensemble.shown),
            "forests": [_content_of(forest) for forest in ensemble.forests],
        }
        save_skops(path, content)

    @staticmethod
    def load(path: str | os.PathLike[str], option: str = "--model") -> SegmenterModel:
        """Read a model; one with an unexpected type or other features is refused."""
        source = Source(option, Path(path))
        content = load_skops(path, option)
        if content.get("format") != _FORMAT:
            raise source.error(
                f"must be a {_FORMAT}, got {content.get('format', 'a file of another kind')}"
            )
        try:
            return _from_content(content, source)
        except (KeyError, TypeError, AttributeError) as error:
            raise source.error(f"must be a whole model, got one that lacks {error}") from error


def _from_content(content: dict[str, Any], source: Source) -> SegmenterModel:
    sequences = tuple(content["sequences"])
    if tuple(content["features"]) != feature_names(sequences):
        raise source.error(
            "must be trained on the features that this version computes, got others; "
            "train the model anew or use the version that made it"
        )
    labels = LabelScheme(tuple(content["label_values"]), tuple(content["label_names"]))
    calibration = dict(content["calibration"])
    calibration["ratio"] = tuple(calibration["ratio"])
    ensemble = Ensemble(
        len(labels),
        tuple(tuple(names) for names in content["folds"]),
        tuple(_forest(each) for each in content["forests"]),
        tuple(content["shown"]),
    )
    if not all(forest.fits(len(content["features"]), len(labels)) for forest in ensemble.forests):
        raise source.error("must hold trees of its own features and labels, got others or damaged")
    return SegmenterModel(
        sequences, labels, ensemble, Calibration(**calibration), content["crf_toml"]
    )


def _content_of(forest: Forest) -> dict[str, Any]:
    """Return what the file holds of a forest: by name, arrays or a forest of scikit-learn."""
    return {field.name: getattr(forest, field.name) for field in fields(forest)}


def _forest(content: dict[str, Any]) -> Forest:
    return RandomTrees(**content) if "forest" in content else BoostedTrees(**content)


def require_scheme(model: SegmenterModel, labels: LabelScheme, source: Source) -> None:
    """Refuse a model whose labels are not the ones expected."""
    if model.labels.values != labels.values:
        raise source.error(
            f"must be trained on the label values {_listed(labels.values)}, "
            f"got {_listed(model.labels.values)}"
        )


def probabilities_from_model(
    model_path: Path, image_set: Images
) -> tuple[NDArray[np.float32], LabelScheme]:
    """Return the probabilities (L, X, Y, Z) that a model file gives to images, and its labels.

    Sequences are matched by name (t1ce and t1c are the same); a missing one is refused.
    """
    model = SegmenterModel.load(model_path)
    images = select_sequences(image_set.images, model.sequences)
    prepared = _prepared(images, image_set.geometry.affine, image_set.mask)
    return model.probabilities(prepared), model.labels


def _prepared(
    images: dict[str, NDArray[np.float32]], affine: ArrayLike, mask: NDArray[np.bool_]
) -> Prepared:
    try:
        return prepare(images, affine, mask)
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"--image: {error}") from error


def _listed(values: tuple[int, ...]) -> str:
    return ", ".join(map(str, values))
