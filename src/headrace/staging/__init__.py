"""Datasets in stages: which steps a sample goes through, and which of them always give the same."""
