"""The result of sampling: votes, volumes, and the uncertainty that follows from them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perturb_mpm import checks
from perturb_mpm.engines import FRACTION_BITS
from perturb_mpm.model import Grid
from perturb_mpm.posterior import display
from perturb_mpm.posterior import votes as parts
from perturb_mpm.posterior.bounds import plug_in_bias
from perturb_mpm.posterior.decision import (
    CERTAIN,
    UNCERTAIN,
    Regions,
    classify_means,
    classify_votes,
    decide_labels,
    marginal_entropy,
    vote_entropy,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Estimator = Literal["votes", "conditional"]
MarginalKind = Literal["votes", "conditional", "mean_field"]
Rule = Literal["interval", "paper"]
Correction = Literal["miller-madow", "none"]


@dataclass(frozen=True, eq=False, init=False, repr=False)
class Posterior:
    """The samples of a segmentation, counted: the result of ``sample`` and of the comparators.

    Arrays over the image may be given for all of it, (L, *spatial), or for the N voxels inside the
    mask, (L, N); only the latter are stored, and what is given outside does not count. Outside the
    mask: label 0, with all votes and a marginal of 1. Arrays are copied and read-only.

    Parameters
    ----------
    grid
        Shape, spacing and mask of the image.
    counts
        How many of the S samples gave each voxel each label; they sum to S at every voxel.
    sample_index
        The numbers of the samples, (S,), increasing.
    volumes
        The volume of each label in each sample, inside the mask, in mm³, (S, L).
    problem
        What was sampled, say a digest of all inputs: text, or a dict that JSON can store.
    parameters
        How it was sampled, a dict that JSON can store: all but the numbers of the samples.
    estimator
        Which marginals are meant where none are named: "votes" or "conditional".
    conditional
        The sum over the samples of ``fixed_point`` of their conditional marginals. Whole numbers
        add up to the same in any order, floats do not: so ranges merge to what one run gives.
    mean_field
        The marginals of the unperturbed problem, stored as float32.
    label_changes
        The share of the voxels whose label the last iteration changed, one a sample, (S,).

    Examples
    --------
    >>> crf = pm.DenseCRF(pm.unary_from_probabilities([[0.9, 0.5], [0.1, 0.5]]), spacing=2.0)
    >>> posterior = pm.sample(crf, samples=100, seed=7, engine="reference")
    >>> posterior.samples, posterior.n_labels
    (100, 2)
    >>> posterior.labels, posterior.entropy.round(2)  # bits
    (array([0, 1], dtype=uint8), array([0.47, 1.  ]))
    >>> posterior.volumes.mean(axis=0)  # mm³
    array([2.74, 1.26])
    """

    grid: Grid
    sample_index: NDArray[np.int64]
    volumes: NDArray[np.float64]
    problem: Any
    parameters: dict[str, Any]
    estimator: Estimator
    label_changes: NDArray[np.float64] | None
    voxel_counts: NDArray[np.unsignedinteger[Any]]
    """The votes inside the mask, (L, N): uint16 up to 65535 samples, uint32 beyond."""
    voxel_conditional: NDArray[np.int64] | None
    """The sum of conditional marginals inside the mask in units of 2⁻³⁰, (L, N)."""
    voxel_mean_field: NDArray[np.float32] | None
    """The mean field's marginals inside the mask, (L, N)."""

    def __init__(
        self,
        *,
        grid: Grid,
        counts: ArrayLike,
        sample_index: ArrayLike,
        volumes: ArrayLike,
        problem: str | Mapping[str, Any],
        parameters: Mapping[str, Any],
        estimator: Estimator = "votes",
        conditional: ArrayLike | None = None,
        mean_field: ArrayLike | None = None,
        label_changes: ArrayLike | None = None,
    ) -> None:
        if not isinstance(grid, Grid):
            raise TypeError(f"grid must be a Grid, got {type(grid).__name__}")
        if not isinstance(parameters, Mapping):
            raise TypeError(f"parameters must be a dict, got {type(parameters).__name__}")
        checks.choice(estimator, "estimator", get_args(Estimator))
        if estimator == "conditional" and conditional is None:
            raise ValueError('conditional must be given where estimator is "conditional", got None')
        index = parts.sample_numbers(sample_index)
        votes = parts.votes(counts, grid, len(index))
        if conditional is not None:
            conditional = parts.conditional(conditional, grid, len(votes), len(index))
        if mean_field is not None:
            mean_field = parts.mean_field(mean_field, grid, len(votes))
        if label_changes is not None:
            label_changes = parts.label_changes(label_changes, len(index))
        self._set(
            grid=grid,
            sample_index=index,
            volumes=parts.volumes(volumes, votes, grid, len(index)),
            problem=parts.copy_json(problem, "problem"),
            parameters=parts.copy_json(dict(parameters), "parameters"),
            estimator=estimator,
            label_changes=label_changes,
            voxel_counts=votes,
            voxel_conditional=conditional,
            voxel_mean_field=mean_field,
        )

    def __repr__(self) -> str:
        return (
            f"Posterior(samples={self.samples} ({parts.ranges(self.sample_index)}), "
            f"labels={self.n_labels}, shape={self.grid.shape}, spacing={self.grid.spacing}, "
            f"voxels={self.grid.voxels}, estimator={self.estimator!r})"
        )

    def __eq__(self, other: object) -> bool:
        """Whether both are the same samples of the same problem, bit for bit."""
        if not isinstance(other, Posterior):
            return NotImplemented
        return not parts.differences(self, other) and all(
            parts.same_array(getattr(self, name), getattr(other, name)) for name in parts.SAMPLED
        )

    __hash__ = None  # type: ignore[assignment]

    @property
    def samples(self) -> int:
        """S, the number of samples."""
        return len(self.sample_index)

    @property
    def n_labels(self) -> int:
        """L, the number of labels."""
        return len(self.voxel_counts)

    @property
    def hold(self) -> float:
        """Voxels where samples dissent with a smaller probability were frozen; 0: none were."""
        return float(self.parameters.get("hold", {}).get("epsilon", 0.0))

    @property
    def active_share(self) -> float:
        """The share of the voxels that every sample updated."""
        hold = self.parameters.get("hold", {})
        return 1.0 if "every_voxel" in hold else float(hold.get("active_share", 1.0))

    @property
    def hold_bound_nats(self) -> float:
        """Bounds how far noise moves a message that was frozen, in nats.

        It is a standard deviation, or a mean where noise is correlated between voxels.
        """
        return float(self.parameters.get("hold", {}).get("bound_nats", 0.0))

    @cached_property
    def counts(self) -> NDArray[np.unsignedinteger[Any]]:
        """How many samples gave each voxel each label, (L, *spatial)."""
        return checks.read_only(self._image(self.voxel_counts, self.samples))

    @property
    def conditional(self) -> NDArray[np.int64] | None:
        """The sum of the samples' conditional marginals in units of 2⁻³⁰, (L, *spatial)."""
        if self.voxel_conditional is None:
            return None
        return self._image(self.voxel_conditional, self.samples << FRACTION_BITS)

    @property
    def mean_field(self) -> NDArray[np.float32] | None:
        """The marginals of the unperturbed problem, (L, *spatial)."""
        return None if self.voxel_mean_field is None else self._image(self.voxel_mean_field, 1)

    @property
    def marginals(self) -> NDArray[np.float64]:
        """The probability of each label at each voxel by the ``estimator``, (L, *spatial)."""
        return self.estimate_marginals(self.estimator)

    @property
    def labels(self) -> NDArray[np.uint8]:
        """The most probable label of each voxel by the ``estimator``, the lowest of equals."""
        return self.estimate_labels(self.estimator)

    def estimate_labels(
        self, estimator: MarginalKind, regions: Regions | None = None
    ) -> NDArray[np.uint8]:
        """Return the labels by votes, conditional or mean_field, (*spatial).

        They are the most probable ones, or decided region by region: ``decide_labels``.
        """
        return self.grid.scatter(decide_labels(self._scores(estimator), regions), 0)

    @property
    def entropy(self) -> NDArray[np.float64]:
        """The entropy of each voxel's marginal in bits by the ``estimator``, (*spatial).

        That of votes is on average too low by ``bounds.plug_in_bias``: see ``mean_entropy``.
        """
        return self.estimate_entropy(self.estimator)

    @property
    def minority(self) -> NDArray[np.float64]:
        """One minus the marginal of the most probable label by the ``estimator``, (*spatial)."""
        return self.grid.scatter(self._voxel_minority(), 0)

    def estimate_marginals(self, estimator: MarginalKind) -> NDArray[np.float64]:
        """Return the marginals by votes, conditional or mean_field, (L, *spatial)."""
        return self._image(self.voxel_marginals(estimator), 1)

    def estimate_entropy(self, estimator: MarginalKind) -> NDArray[np.float64]:
        """Return the entropy in bits by votes, conditional or mean_field, (*spatial)."""
        return self.grid.scatter(self._voxel_entropy(estimator), 0)

    def mean_entropy(
        self, correction: Correction = "miller-madow", where: ArrayLike | None = None
    ) -> float:
        """Return the mean entropy in bits by the ``estimator`` over the voxels of the mask.

        ``where`` (*spatial) takes only those where it is not zero. Miller–Madow adds
        (m − 1)/(2S ln 2) where m labels have votes; marginals that are not votes need no such term.
        """
        checks.choice(correction, "correction", get_args(Correction))
        bits = self._voxel_entropy(self.estimator)
        if correction == "miller-madow" and self.estimator == "votes":
            bits += plug_in_bias(np.count_nonzero(self.voxel_counts, axis=0), self.samples)
        if where is not None:
            bits = bits[self.grid.gather(checks.numeric(where, "where")) != 0]
            if bits.size == 0:
                raise ValueError("where must contain a voxel of the mask, got none")
        return float(bits.mean())

    def uncertainty_map(
        self, threshold: float = 0.05, confidence: float = 0.95, rule: Rule = "interval"
    ) -> NDArray[np.uint8]:
        """Return 0 where a voxel is certain, 1 undecided, 2 uncertain, (*spatial).

        By the rule "interval" a voxel is certain where all of the interval of its minority share
        lies at or below the threshold, uncertain where all of it lies above, and undecided at this
        S where the threshold is inside. The interval is Clopper–Pearson's for votes, Chernoff's for
        conditional marginals; its confidence is each voxel's own, at an S fixed beforehand. More
        samples leave fewer voxels undecided, and do not otherwise change what is uncertain.

        By the rule "paper" a voxel is uncertain where its votes' entropy is not 0, that is where
        at least one sample dissents. That set grows with S without limit: report ``samples`` too.
        """
        checks.choice(rule, "rule", get_args(Rule))
        # From ½ on a label that is not the most probable one could pass for it by chance.
        threshold = checks.number(threshold, "threshold", positive=True, below=0.5)
        confidence = checks.number(confidence, "confidence", positive=True, below=1)
        if rule == "paper":
            found = (self._dissent() > 0) * np.uint8(UNCERTAIN)
        elif self.estimator == "votes":
            found = classify_votes(self._dissent(), self.samples, threshold, confidence)
        else:
            found = classify_means(self._voxel_minority(), self.samples, threshold, confidence)
        return self.grid.scatter(found, CERTAIN)

    def volume_quantiles(self, q: ArrayLike) -> NDArray[np.float64]:
        """Return quantiles over the samples of each label's volume in mm³, (L,) or (len(q), L).

        For a region of several labels add up their columns of ``volumes`` first. Where the noise
        is independent at every voxel the samples' volumes hardly differ, and say next
        to nothing about how far off the true volume is.
        """
        levels: NDArray[np.float64] = checks.numeric(q, "q").astype(np.float64)
        if levels.ndim > 1 or not ((levels >= 0) & (levels <= 1)).all():
            raise ValueError(f"q must be one or several numbers between 0 and 1, got {levels}")
        return np.quantile(self.volumes, levels, axis=0)

    def volume_interval(self, level: float = 0.95) -> NDArray[np.float64]:
        """Return the lower and the upper end of each label's central interval, mm³, (2, L).

        They mean something where noise was correlated (``noise_length`` of ``sample``): white
        noise averages out over a region, and its intervals are far too narrow.
        """
        level = checks.number(level, "level", positive=True, below=1)
        return self.volume_quantiles([(1.0 - level) / 2.0, (1.0 + level) / 2.0])

    def merge(self, *others: Posterior) -> Posterior:
        """Return the posterior of all these samples: bit for bit what one run over them gives.

        Refused where the problem or any parameter differs, or where two have the same sample.
        """
        return Posterior(**parts.merge([self, *others]))

    def save(self, path: str | os.PathLike[str], *, compress: bool = True) -> None:
        """Write a .npz file for ``load``: whole or not at all, the same bytes every time.

        The reference has a page on what is inside; NumPy alone can read it. Without compression it
        is several times larger and written at once.
        """
        parts.write_file(self, path, compress=compress)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a file that ``save`` wrote; one that is damaged, foreign or newer is refused."""
        content = parts.read_file(path)
        try:
            return cls(**content)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path} is damaged: {error}") from error

    def plot(
        self,
        image: ArrayLike | None = None,
        *,
        names: Sequence[str] | None = None,
        axis: int = -1,
        index: int | None = None,
        affine: ArrayLike | None = None,
    ) -> Figure:
        """Draw a slice with its uncertain voxels and labels, and the volumes of the samples.

        A voxel is coloured by its entropy where other labels have more than 5 % of it; lines are
        the borders of the labels. Intervals of volumes are drawn where noise was correlated
        (``noise_length``); white noise averages out and would make every volume look precise.

        Parameters
        ----------
        image
            What to draw underneath, (*spatial).
        names
            A name for each label, background first.
        axis
            Which axis of a 3-D image to cut across.
        index
            Which slice; by default the most uncertain one.
        affine
            How the patient lies, (4, 4) from indices to mm, as in ``case.geometry.affine``. Then
            slices are radiological, the patient's right on the left, with letters at the edges;
            ``axis`` 0, 1 and 2 cut sagittal, coronal and axial slices, of which ``index`` counts
            from the patient's right, back and bottom. Else axes are shown as the arrays have them.

        Returns
        -------
        matplotlib.figure.Figure
            It shows itself in a notebook; ``savefig`` writes it to a file.
        """
        return display.plot(self, image, names, axis, index, affine)

    def save_nifti(
        self, folder: str | os.PathLike[str], like: object | None = None
    ) -> dict[str, Path]:
        """Write ``labels``, ``marginals`` and ``entropy`` (bits) as .nii.gz into a folder.

        Parameters
        ----------
        folder
            Made where it is missing; files of these names are replaced.
        like
            Where the voxels are: a NIfTI file, a nibabel image, or an affine (4, 4) from indices
            to mm. By default nothing says how the patient lies: files then have the spacing
            alone and no orientation code, and a warning says so.

        Returns
        -------
        dict
            The path of each file by its name.
        """
        return display.save_nifti(self, folder, like)

    def _repr_html_(self) -> str:
        return display.table(self)

    def _set(self, **values: object) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _image(self, values: NDArray[Any], certain: int) -> NDArray[Any]:
        """Put (L, N) into the image; outside the mask label 0 has ``certain``, the others 0."""
        outside = np.where(np.arange(len(values)) == 0, certain, 0)
        return self.grid.scatter(values, outside)

    def _scores(self, estimator: MarginalKind) -> NDArray[Any]:
        """Return what the marginals of an estimator are made of, (L, N)."""
        sources = {
            "votes": self.voxel_counts,
            "conditional": self.voxel_conditional,
            "mean_field": self.voxel_mean_field,
        }
        given = {name: array for name, array in sources.items() if array is not None}
        checks.choice(estimator, "estimator of this posterior", list(given))
        return given[estimator]

    def voxel_marginals(self, estimator: MarginalKind) -> NDArray[np.float64]:
        """Return the marginals inside the mask, (L, N)."""
        scores = self._scores(estimator)
        if estimator == "votes":
            return scores / float(self.samples)
        if estimator == "mean_field":
            return scores.astype(np.float64)
        return scores / scores.sum(axis=0, dtype=np.float64)

    def _voxel_entropy(self, estimator: MarginalKind) -> NDArray[np.float64]:
        if estimator == "votes":
            return vote_entropy(self.voxel_counts, self.samples)
        return marginal_entropy(self.voxel_marginals(estimator))

    def _voxel_minority(self) -> NDArray[np.float64]:
        if self.estimator == "votes":
            return self._dissent() / self.samples
        return 1.0 - self.voxel_marginals(self.estimator).max(axis=0)

    def _dissent(self) -> NDArray[np.int64]:
        """How many samples do not have the label that most of them have, (N,)."""
        return self.samples - self.voxel_counts.max(axis=0).astype(np.int64)
