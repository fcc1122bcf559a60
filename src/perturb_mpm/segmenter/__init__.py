"""The segmenter: features of multi-sequence MRI, a decision forest, calibrated probabilities.

It is built after Meier et al. (2014), whose features and forest are described in words only; it is
not a reproduction of theirs.
"""
