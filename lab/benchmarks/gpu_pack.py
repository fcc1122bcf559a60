"""Problems in one small file each, for a GPU machine without the data or the packages to read it.

    python -m lab.benchmarks.gpu_pack FOLDER

writes the synthetic brain and, where its data is at hand, the real case, with the label maps that
the CPU engine finds. ``python -m lab.benchmarks.gpu --packed FOLDER`` reads them.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lab.benchmarks.problems import BenchmarkProblem, BenchmarkSetting

if TYPE_CHECKING:
    from perturb_mpm import DenseCRF


CPU_SAMPLES = 32
ITERATIONS = 10
SEED = 0


@dataclass(frozen=True)
class PackedProblem:
    """A problem's arrays inside the mask, rounded to half precision where they are not whole."""

    name: str
    mask: NDArray[np.bool_]
    images: NDArray[np.generic]  # (C, N)
    unary: NDArray[np.float16]  # (L, N)
    classes: NDArray[np.uint8]  # (N,)
    tumour: tuple[int, ...]
    settings: tuple[BenchmarkSetting, ...]
    cpu_labels: NDArray[np.uint8]  # (settings, N): the CPU's modal labels, ``plain``

    @classmethod
    def of(cls, problem: BenchmarkProblem, settings: tuple[BenchmarkSetting, ...]) -> PackedProblem:
        images = problem.images[:, problem.mask]
        whole = np.array_equal(images, images.astype(np.int16))
        return cls(
            name=problem.name,
            mask=problem.mask,
            images=images.astype(np.int16 if whole else np.float16),
            unary=problem.unary[:, problem.mask].astype(np.float16),
            classes=problem.classes[problem.mask],
            tumour=problem.tumour,
            settings=settings,
            cpu_labels=np.empty((0, 0), dtype=np.uint8),
        )

    @property
    def in_tumour(self) -> NDArray[np.bool_]:
        """Which voxels inside the mask are tumour, (N,)."""
        return np.isin(self.classes, self.tumour)

    def crf(self, setting: BenchmarkSetting) -> DenseCRF:
        """Return the CRF: Potts, symmetric normalisation, no self term."""
        import perturb_mpm as pm

        images, unary = (self._volume(values) for values in (self.images, self.unary))
        return pm.DenseCRF(
            unary=unary,
            kernels=[
                pm.SpatialKernel(sigma=setting.spatial_sigma, weight=setting.spatial_weight),
                pm.BilateralKernel(
                    images,
                    sigma_space=setting.sigma_space,
                    sigma_intensity=setting.sigma_intensity,
                    weight=setting.weight,
                ),
            ],
            mask=self.mask,
        )

    def bilateral_crf(self, setting: BenchmarkSetting) -> DenseCRF:
        """Return a CRF whose pairwise energy of label l is 1 − (K·Q/K·1)_l of the bilateral K."""
        import perturb_mpm as pm

        kernel = pm.BilateralKernel(
            self._volume(self.images),
            sigma_space=setting.sigma_space,
            sigma_intensity=setting.sigma_intensity,
            normalization="after",
        )
        unary = self._volume(self.unary)
        return pm.DenseCRF(unary=unary, kernels=[kernel], mask=self.mask, self_term=True)

    def save(self, path: Path) -> None:
        settings = [(s.sigma_space, s.sigma_intensity) for s in self.settings]
        np.savez_compressed(
            path,
            name=np.array(self.name),
            mask=np.packbits(self.mask),
            shape=np.array(self.mask.shape),
            images=self.images,
            unary=self.unary,
            classes=self.classes,
            tumour=np.array(self.tumour),
            settings=np.array(settings),
            cpu_labels=self.cpu_labels,
        )

    @classmethod
    def load(cls, path: Path) -> PackedProblem:
        with np.load(path, allow_pickle=False) as file:
            shape = tuple(int(n) for n in file["shape"])
            mask = np.unpackbits(file["mask"])[: int(np.prod(shape))].reshape(shape).astype(bool)
            return cls(
                name=str(file["name"]),
                mask=mask,
                images=file["images"],
                unary=file["unary"],
                classes=file["classes"],
                tumour=tuple(int(t) for t in file["tumour"]),
                settings=tuple(BenchmarkSetting(*map(float, pair)) for pair in file["settings"]),
                cpu_labels=file["cpu_labels"],
            )

    def _volume(self, values: NDArray[np.generic]) -> NDArray[np.float32]:
        full = np.zeros((len(values), *self.mask.shape), dtype=np.float32)
        full[:, self.mask] = values
        return full


def packed_problems() -> list[PackedProblem]:
    """Return the synthetic brain, and the real case where it is at hand."""
    from lab.benchmarks import problems

    brain = problems.brain(1_490_000)
    packed = [PackedProblem.of(brain, (brain.setting,))]
    if problems.case_folder().is_dir():
        settings = (BenchmarkSetting(20.0, 0.5), BenchmarkSetting(30.0, 1.0))
        packed.append(PackedProblem.of(problems.real_case(settings[0]), settings))
    return packed


def with_cpu_labels(packed: PackedProblem) -> PackedProblem:
    """Add the modal labels of some samples on the CPU engine, ``plain``."""
    from dataclasses import replace

    import perturb_mpm as pm

    labels = []
    for setting in packed.settings:
        posterior = pm.sample(
            packed.crf(setting),
            CPU_SAMPLES,
            SEED,
            iterations=ITERATIONS,
            engine="cpu",
            accuracy="plain",
        )
        inside = posterior.grid.gather(posterior.labels)
        labels.append(inside.astype(np.uint8))
    return replace(packed, cpu_labels=np.stack(labels))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write the problems of the GPU benchmark.")
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for number, each in enumerate(packed_problems()):
        with_cpu_labels(each).save(folder / f"{number}.npz")
