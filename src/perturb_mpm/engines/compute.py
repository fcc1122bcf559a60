"""Where and how a problem is computed: one value object for every interface."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from perturb_mpm import checks
from perturb_mpm.engines.memory import resolve_budget
from perturb_mpm.engines.protocol import Accuracy

Engine = Literal["auto", "reference", "cpu", "gpu"]

MOST_ITERATIONS = 10**5
MOST_THREADS = 4096
MOST_PROBLEMS = 65536


@dataclass(frozen=True)
class Compute:
    """Where and how to compute; all but engine and accuracy change no result.

    ``help`` in a field's metadata is what the command line says of its option.

    Examples
    --------
    >>> pm.Compute(engine="cpu", threads=2, memory="4 GB").accuracy
    'calibrated'
    """

    engine: Engine = field(
        default="auto", metadata={"help": "Where to compute; auto takes what is there."}
    )
    accuracy: Accuracy = field(
        default="calibrated",
        metadata={
            "help": "How close the filter comes to the Gaussian kernels; exact takes all pairs."
        },
    )
    batch: int | None = field(
        default=None,
        metadata={"help": "How many samples are solved at once; planned from the memory."},
    )
    threads: int | None = field(
        default=None, metadata={"help": "How many threads; all cores by default."}
    )
    memory: int | str | None = field(
        default=None,
        metadata={
            "option": str,
            "help": 'How much memory may be taken, as in "4 GB"; 60 % of what is free by default.',
        },
    )
    kernel_cache: str | Path | None = field(
        default=None,
        metadata={
            "option": Path,
            "help": (
                "A folder that keeps prepared kernels for the next run of the same images, up to "
                "8 GB; none by default."
            ),
        },
    )

    def __post_init__(self) -> None:
        checks.choice(self.engine, "engine", get_args(Engine))
        checks.choice(self.accuracy, "accuracy", get_args(Accuracy))
        if self.batch is not None:
            checked = checks.integer(self.batch, "batch", minimum=1, maximum=MOST_PROBLEMS)
            object.__setattr__(self, "batch", checked)
        if self.threads is not None:
            checked = checks.integer(self.threads, "threads", minimum=1, maximum=MOST_THREADS)
            object.__setattr__(self, "threads", checked)
        if self.memory is not None:
            resolve_budget(self.memory)  # refuses what cannot be read
        if self.kernel_cache is not None:
            object.__setattr__(self, "kernel_cache", _folder(self.kernel_cache, "`kernel_cache`"))


def _folder(value: object, name: str) -> str:
    """Return the whole path of a folder, which may be made later."""
    if not isinstance(value, str | Path):
        raise TypeError(f"{name} must be the path of a folder, got {value!r}")
    path = Path(value).absolute()
    try:
        usable = (
            bool(str(value)) and "\0" not in str(value) and (path.is_dir() or not path.exists())
        )
    except OSError:  # a name too long, a folder that may not be entered
        usable = False
    if not usable:
        raise ValueError(f"{name} must be a folder, or one that can be made, got {str(value)!r}")
    return str(path)
