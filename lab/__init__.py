"""The laboratory, which is not installed: the paper's experiments, comparators, benchmarks.

``python -m lab --help`` lists the experiments.
"""
