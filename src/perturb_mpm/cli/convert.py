"""``perturb-mpm convert``: a volume into another format, its voxels where they were."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from perturb_mpm.cli.console import SHOW, Files, Flag, Show, UsageError, Words
from perturb_mpm.files import convert as convert_files
from perturb_mpm.files import labels_from_text


def convert(
    *,
    inputs: Annotated[Files, Parameter(name="--input")],
    output: Path,
    reference: Path | None = None,
    labels: Words = None,
    overwrite: Flag = False,
    show: Show = SHOW,
) -> None:
    """Write volumes in another format: NIfTI, NRRD, MetaImage, MGZ, TIFF, PNG, Slicer's segments.

    Parameters
    ----------
    inputs
        A volume in any of these formats or nnU-Net's .npz; several 3-D ones become maps of one.
    output
        The file to write; its ending says how: .nii.gz, .nii, .nrrd, .mha, .mgz, .tif, .png, or
        .seg.nrrd for 3D Slicer's segments.
    reference
        A volume that says where the voxels of an .npz are; else the label map beside it does.
    labels
        Values and names of the segments in a .seg.nrrd, background first: 0:background 1:core.
    overwrite
        Replace a file that is there.
    """
    if output.exists() and not overwrite:
        raise UsageError(f"--output must be a new file, got {output}, which exists: --overwrite")
    if not output.parent.is_dir():
        raise UsageError(f"--output must lie in a folder that exists, got {output}")
    scheme = None if labels is None else labels_from_text(labels)
    shape = convert_files(inputs, output, reference=reference, labels=scheme)
    content = {"output": str(output), "shape": list(shape)}
    show.result(content, f"wrote {output}, {' × '.join(map(str, shape))}")
