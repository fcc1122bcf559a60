"""The plain lattice against pydensecrf2, which lives in an environment of its own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

import perturb_mpm as pm

PEER = os.environ.get("PERTURB_MPM_PEER_PYTHON", "")

pytestmark = pytest.mark.skipif(
    not Path(PEER).is_file(),
    reason="PERTURB_MPM_PEER_PYTHON names no Python with pydensecrf2 (make peer)",
)

# Reads energies, weights and features, writes the marginals after some iterations.
SCRIPT = """
import sys
import numpy as np
import pydensecrf.densecrf as dcrf
folder, iterations = sys.argv[1], int(sys.argv[2])
energies = np.load(folder + "/energies.npy")
crf = dcrf.DenseCRF(energies.shape[1], energies.shape[0])
crf.setUnaryEnergy(energies)
for number, weight in enumerate(np.load(folder + "/weights.npy")):
    crf.addPairwiseEnergy(np.load(f"{folder}/features{number}.npy"), float(weight))
np.save(folder + "/marginals.npy", np.array(crf.inference(iterations)))
"""


def peer_marginals(crf: pm.DenseCRF, iterations: int, folder: Path) -> np.ndarray:
    np.save(folder / "energies.npy", np.ascontiguousarray(crf.energies, dtype=np.float32))
    np.save(folder / "weights.npy", [term.potts_weight for term in crf.terms])
    for number, term in enumerate(crf.terms):
        features = np.ascontiguousarray(term.features().T, dtype=np.float32)
        np.save(folder / f"features{number}.npy", features)
    command = [PEER, "-c", SCRIPT, str(folder), str(iterations)]
    subprocess.run(command, check=True, timeout=300)
    return np.asarray(np.load(folder / "marginals.npy"))


def photograph() -> pm.DenseCRF:
    """2-D, red, green and blue in their own units, 6 labels."""
    rng = np.random.default_rng(5)
    shape = (60, 80)
    y, x = np.mgrid[: shape[0], : shape[1]]
    colours = np.stack([100 + 50 * np.sin(x / 9 + k) + 40 * np.cos(y / 7 - k) for k in range(3)])
    colours = np.clip(colours + rng.normal(scale=8, size=colours.shape), 0, 255).round()
    probabilities = rng.dirichlet(np.ones(6), size=shape).transpose(2, 0, 1)
    return pm.DenseCRF(
        unary=pm.unary_from_probabilities(probabilities, clip=1e-5),
        kernels=[
            pm.SpatialKernel(sigma=3.0, weight=3.0),
            pm.BilateralKernel(
                colours, sigma_space=40.0, sigma_intensity=13.0, weight=10.0, standardize=False
            ),
        ],
        self_term=True,
    )


def brain() -> pm.DenseCRF:
    """3-D, four standardised sequences, anisotropic voxels, a mask, 4 labels."""
    rng = np.random.default_rng(6)
    shape = (24, 26, 20)
    z = np.stack(np.meshgrid(*(np.linspace(-2, 2, n) for n in shape), indexing="ij"))
    images = np.stack([np.sin(2 * z[k % 3] + k) for k in range(4)])
    images += rng.normal(scale=0.2, size=images.shape)
    mask = (z**2).sum(axis=0) < 4
    # pydensecrf pads the voxels to a multiple of four with features of 0, which then count.
    surplus = np.flatnonzero(mask)[: int(mask.sum()) % 4]
    mask.reshape(-1)[surplus] = False
    return pm.DenseCRF(
        unary=rng.normal(size=(4, *shape)),
        kernels=[
            pm.SpatialKernel(sigma=2.0, weight=2.0),
            pm.BilateralKernel(images, sigma_space=5.0, sigma_intensity=0.5, weight=4.0),
        ],
        spacing=(1.0, 0.9, 1.5),
        mask=mask,
        self_term=True,
    )


@pytest.mark.parametrize("make", [photograph, brain], ids=lambda make: make.__name__)
@pytest.mark.filterwarnings("ignore::perturb_mpm.ConvergenceWarning")
def test_the_plain_lattice_equals_pydensecrf(make: object, tmp_path: Path) -> None:
    crf: pm.DenseCRF = make()  # type: ignore[operator]
    expected = peer_marginals(crf, 5, tmp_path)
    ours = pm.mean_field(crf, iterations=5, engine="cpu", accuracy="plain")
    got = crf.grid.gather(ours.marginals)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)
    # Another filter is another result: the comparison can fail.
    other = pm.mean_field(crf, iterations=5, engine="cpu", accuracy="calibrated")
    assert np.abs(crf.grid.gather(other.marginals) - expected).max() > 1e-3
