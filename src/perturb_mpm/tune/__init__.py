"""Settings of ``run`` tuned on labelled cases, and cross-validated."""
