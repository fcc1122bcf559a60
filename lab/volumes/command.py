"""``python -m lab volumes``: how far sampled volumes spread on real patients."""

from __future__ import annotations

from pathlib import Path

from lab.console import Flag, Json, OutputFolder, Quiet, print_results
from perturb_mpm.cli import prepare_folder, shown_progress


def volumes(
    *,
    data: Path,
    output: OutputFolder = Path("reproduce-volumes"),
    quick: Flag = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Sample the volumes of real tumours under noise of several lengths; write a table and a page.

    Parameters
    ----------
    data
        The folder of the BraTS 2021 patients, or one that has it as brats2021_2mm.
    quick
        Two patients and few samples: under a minute instead of some minutes.
    """
    from lab.volumes.measuring import CSV_NAME, PAGE_NAME, reproduce_volumes
    from lab.volumes.patients import patient_folders
    from lab.volumes.volume_page import findings

    patient_folders(data)
    folder = prepare_folder(output)
    with shown_progress(quiet=quiet) as progress:
        progress.stage("sampling")
        rows = reproduce_volumes(data, folder, quick=quick, progress=progress)
    files = [folder / CSV_NAME, folder / PAGE_NAME]
    print_results(files, findings(rows), {"rows": rows}, quiet=quiet, json=json)
