"""The synthetic validation of the paper, done again."""

from lab.synthetic.measuring import Row
from lab.synthetic.summary import Metric

__all__ = [
    "Metric",
    "Row",
]
