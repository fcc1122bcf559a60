"""Mean field of one problem."""
