"""``python -m lab frozen``: frozen voxels and converged samples beside full sampling."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Literal

from lab.console import Flag, Json, OutputFolder, Quiet, print_results, write_text
from perturb_mpm.cli import prepare_folder


def frozen(
    *,
    data: Path,
    model: Path | None = None,
    output: OutputFolder = Path("frozen"),
    samples: int = 32,
    engine: Literal["cpu", "gpu"] = "cpu",
    quick: Flag = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Compare ``hold`` and ``tolerance`` with full sampling, sample by sample; write a page.

    Parameters
    ----------
    data
        The folder with brats2021_2mm, brats2021_1mm, glioma_network and hippocampus_network.
    model
        A model of ``train``, for gliomas of trees too; patients it was trained on are answered by
        trees that never saw them.
    samples
        How many segmentations are sampled each time.
    engine
        cpu, on one thread, or gpu.
    quick
        One patient of each kind.
    """
    from lab.frozen.measuring import PAGE_NAME, FrozenRow, findings, measure_frozen, page

    folder = prepare_folder(output)
    done: list[FrozenRow] = []

    def report(row: FrozenRow) -> None:
        done.append(row)  # the page grows row by row: an interruption leaves what was measured
        write_text(folder / PAGE_NAME, page(done, samples, engine, quick=quick))

    rows = measure_frozen(data, model, samples, engine, quick=quick, report=report)
    results = {"rows": [asdict(row) for row in rows]}
    print_results([folder / PAGE_NAME], findings(rows), results, quiet=quiet, json=json)
