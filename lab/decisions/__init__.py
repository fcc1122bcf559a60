"""Do decisions hold? Lesions, growth and where a correction pays, against known truths."""
