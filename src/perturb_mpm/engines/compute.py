"""Where and how a problem is computed: one value object for every interface."""

from __future__ import annotations

from dataclasses import dataclass, field
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

    def __post_init__(self) -> None:
        checks.choice(self.engine, "engine", get_args(Engine))
        checks.choice(self.accuracy, "accuracy", get_args(Accuracy))
        if self.batch is not None:
            checked = checks.integer(self.batch, "batch", minimum=1, maximum=MOST_PROBLEMS)
            object.__setattr__(self, "batch", checked)
        if self.threads is not None:
            checked = checks.integer(self.threads, "threads", minimum=1, maximum=MOST_THREADS)
            object.__setattr__(self, "threads", checked)
        resolve_budget(self.memory)  # refuses what cannot be read
