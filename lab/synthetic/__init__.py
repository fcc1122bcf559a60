"""The synthetic validation of the paper, done again."""

from lab.synthetic.plan import FULL, QUICK, SyntheticPlan
from lab.synthetic.run import SyntheticOutcome, reproduce_synthetic

__all__ = [
    "FULL",
    "QUICK",
    "SyntheticOutcome",
    "SyntheticPlan",
    "reproduce_synthetic",
]
