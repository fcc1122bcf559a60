"""From one patient's files to every output file, with a state that survives interruption."""
