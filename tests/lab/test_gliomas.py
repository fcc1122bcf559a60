"""The glioma experiment on made-up patients: every method, and a page without holes."""

from __future__ import annotations

import numpy as np

from lab.gliomas.gliomas_page import ORDER, findings, page
from lab.gliomas.measuring import BARE, DEFAULT, DISPLACED, WHITE, measure_gliomas
from perturb_mpm.files import SCHEMES, Case, geometry_from_affine
from perturb_mpm.progress import Silent
from perturb_mpm.tune import means


def patient(seed: int, *, enhancing: bool = True) -> Case:
    """A ball of oedema around a core around what enhances, and probabilities that see less."""
    rng = np.random.default_rng(seed)
    shape = (12, 12, 12)
    centre = 5.5 + rng.uniform(-0.7, 0.7, size=(3, 1, 1, 1))
    radius = np.sqrt(((np.indices(shape) - centre) ** 2).sum(axis=0))
    inner = 3 if enhancing else 1
    truth = np.select([radius < 1.8, radius < 2.8, radius < 4.2], [inner, 1, 2], 0).astype(np.uint8)
    own = truth == np.arange(4)[:, None, None, None]
    logits = 2.0 * own + rng.normal(0, 1, (4, *shape))
    shares = np.exp(logits) / np.exp(logits).sum(axis=0)
    images = {name: truth + rng.normal(5, 0.5, shape) for name in ("t1", "t1ce", "t2", "flair")}
    return Case(
        images={name: image.astype(np.float32) for name, image in images.items()},
        probabilities=shares.astype(np.float32),
        mask=np.ones(shape, dtype=bool),
        mask_origin="given",
        labels=SCHEMES["brats2021"],
        geometry=geometry_from_affine(shape, np.diag([2.0, 2.0, 2.0, 1.0])),
        hashes={},
        truth=truth,
    )


def test_every_method_is_scored_and_the_page_has_no_holes() -> None:
    cases = {f"p{seed}": patient(seed) for seed in range(3)}
    cases["p3"] = patient(3, enhancing=False)
    tuned, scores = measure_gliomas(cases, 8, Silent())
    assert tuned.regions == ("whole", "core", "enhancing")
    assert [list(fold) for fold in tuned.folds] == [["p0"], ["p1"], ["p2"], ["p3"]]
    rows = means(scores, tuned.regions)
    assert set(rows) == set(ORDER)
    for method in (BARE, DEFAULT, DISPLACED, WHITE):
        assert 0 < rows[method]["dice whole"] <= 1
        assert "crps core" in rows[method]
    text = page(tuned, scores, 8)
    assert "nan" not in text
    assert "/3" in text  # three patients have enhancing tumour
    assert findings(rows, tuned.regions).split(",")[0] in " ".join(text.split())


def test_the_words_follow_the_numbers() -> None:
    cases = {f"p{seed}": patient(seed) for seed in range(3)}
    tuned, scores = measure_gliomas(cases, 8, Silent())
    rows = {name: dict(row) for name, row in means(scores, tuned.regions).items()}
    for name in tuned.regions:
        rows["learned"][f"crps {name}"] = 9.0
    assert "worse than a fixed width in every region" in findings(rows, tuned.regions)
    rows["learned"]["crps core"] = 0.0
    assert "better than a fixed width for core, and worse for whole" in findings(
        rows, tuned.regions
    )
