"""Learning the parameters of a CRF, and of the random fields beside its noise, from labelled cases.

The CRF is learned by gradients through its mean-field iterations (Krähenbühl & Koltun 2013), the
fields by scores of the volumes they predict.
"""
