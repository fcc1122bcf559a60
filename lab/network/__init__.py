"""What a dense CRF and its noise make of a real network, beside what one does instead."""

from lab.network.measuring import CaseScore, measure_network, summarised

__all__ = ["CaseScore", "measure_network", "summarised"]
