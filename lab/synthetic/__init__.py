"""The synthetic validation of the paper, done again."""
