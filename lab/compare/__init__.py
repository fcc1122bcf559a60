"""Every method that the paper names, on one patient."""

from lab.compare.methods import METHODS, ComparePlan, MethodResult, Subject, run_methods

__all__ = ["METHODS", "ComparePlan", "MethodResult", "Subject", "run_methods"]
