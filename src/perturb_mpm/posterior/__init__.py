"""The result of sampling, its file, and what can be said of it."""
