"""Gliomas left out one at a time: trees alone, what run assumes, what tune learns, baselines."""

from lab.gliomas.measuring import REGIONS, measure_gliomas

__all__ = ["measure_gliomas", "REGIONS"]
