"""What the forest sees of a voxel: families of features, each one function with named columns."""
