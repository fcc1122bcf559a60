"""How far sampled volumes spread on real patients."""
