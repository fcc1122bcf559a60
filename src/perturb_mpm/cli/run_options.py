"""The options of ``perturb-mpm run``, in the groups that its help shows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Group, Parameter

Flag = Annotated[bool, Parameter(negative="")]
Files = Annotated[tuple[Path, ...], Parameter(consume_multiple=True, negative="")]
Numbers = Annotated[tuple[int, ...] | None, Parameter(consume_multiple=True, negative="")]
Names = Annotated[tuple[str, ...] | None, Parameter(consume_multiple=True, negative="")]


@Parameter(name="*", group=Group("Inputs", sort_key=1))
@dataclass(frozen=True, kw_only=True)
class InputOptions:
    """What is read.

    Parameters
    ----------
    image
        The sequences, NIfTI, one or more; what is written lies on the grid of the first.
    probabilities
        One 4-D NIfTI with the labels last, one 3-D NIfTI a label, or nnU-Net's .npz; background
        first.
    kind
        What these files hold: probabilities, a network's raw logits, or a hard label map.
    confidence
        How far a hard label map is trusted at every voxel, with --kind labels.
    model
        A model trained by perturb-mpm that makes the probabilities from the images.
    label_values
        Your number for each label, as in 0 1 2 4; else dataset.json's, else 0, 1, 2 …
    label_names
        Your name for each label.
    image_names
        Your name for each image; else from the names of their files.
    dataset_json
        nnU-Net's dataset.json; looked for beside an .npz.
    reference
        A NIfTI that says where the voxels of an .npz are; else the one beside it does.
    mask
        A NIfTI that is not 0 where voxels count; else where any image is not 0.
    """

    image: Files
    probabilities: Annotated[Files, Parameter(show_default=False)] = ()
    kind: Literal["probabilities", "logits", "labels"] = "probabilities"
    confidence: float = 0.9
    model: Path | None = None
    label_values: Numbers = None
    label_names: Names = None
    image_names: Names = None
    dataset_json: Path | None = None
    reference: Path | None = None
    mask: Path | None = None


@Parameter(name="*", group=Group("Model and sampling", sort_key=2))
@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """What is sampled; an option that is not given has the value of the settings file.

    Parameters
    ----------
    settings
        A TOML file with all of these, as tune writes it; options given here come before it.
    samples
        How many segmentations to sample; with --until the most. Default 200.
    seed
        Names the noise: the same seed gives the same files. Default 0.
    until
        Stop when every frequency is known to within this, as in 0.1, at 95 % for any one voxel.
    iterations
        Mean-field updates of each sample. Default 10.
    temperature
        Above 1 makes the probabilities less sure of themselves. Default 1.
    clip
        The smallest probability taken at its word. Default 1e-6.
    estimator
        How marginals are estimated: counted votes (the paper), or conditional.
    spatial_sigma
        How far the spatial kernel reaches, mm. Default 3.
    spatial_weight
        Its weight; 0 leaves it out. Default 1.
    bilateral_space
        How far the bilateral kernel reaches, mm. Default 20.
    bilateral_intensity
        How alike intensities must be for it, standard deviations. Default 0.5.
    bilateral_weight
        Its weight; 0 leaves it out. Default 3.
    """

    settings: Path | None = None
    samples: int | None = None
    seed: int | None = None
    until: float | None = None
    iterations: int | None = None
    temperature: float | None = None
    clip: float | None = None
    estimator: Literal["votes", "conditional"] | None = None
    spatial_sigma: float | None = None
    spatial_weight: float | None = None
    bilateral_space: float | None = None
    bilateral_intensity: float | None = None
    bilateral_weight: float | None = None


@Parameter(name="*", group=Group("Computing", sort_key=3))
@dataclass(frozen=True, kw_only=True)
class ComputeOptions:
    """How it is computed.

    Parameters
    ----------
    engine
        Where to compute; auto takes what is there.
    accuracy
        How close the filter comes to the Gaussian kernels; exact takes all pairs.
    threads
        How many threads; all cores where it is not given. No result depends on it.
    memory
        How much memory may be taken, as in "4 GB"; else 60 % of what is free.
    """

    engine: Literal["auto", "reference", "cpu", "gpu"] | None = None
    accuracy: Literal["plain", "calibrated", "accurate", "exact"] | None = None
    threads: int | None = None
    memory: str | None = None


@Parameter(name="*", group=Group("Output", sort_key=4))
@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """What is written.

    Parameters
    ----------
    output
        The folder to write to; made where it is missing, and refused where it is not empty.
    resume
        Go on with the interrupted run in the folder, or begin where there is none.
    overwrite
        Replace the outputs of an earlier run in the folder.
    bids
        Give BIDS names: SUBJECT or SUBJECT/SESSION, as in 01/pre; the folder is the dataset.
    dicom
        A folder with the DICOM series of the images: adds a DICOM SEG of the labels and a
        parametric map of the entropy.
    title
        The heading of the report; the name of the folder where it is not given.
    colour_map
        The colours of the report's entropy.
    quiet
        Print nothing, and show no progress.
    json
        Print the summary as one JSON object instead of a table.
    """

    output: Path
    resume: Flag = False
    overwrite: Flag = False
    bids: str | None = None
    dicom: Path | None = None
    title: str | None = None
    colour_map: Literal["inferno", "viridis", "jet", "hot"] | None = None
    quiet: Flag = False
    json: Flag = False
