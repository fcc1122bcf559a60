"""The model: grid, unary energies, kernels and the dense CRF."""
