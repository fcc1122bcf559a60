"""``perturb-mpm view``: a run's maps in the browser, and corrections back to disk."""
