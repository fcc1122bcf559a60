"""Our engine and pydensecrf2 on the same model, the same machine, in the same run."""
