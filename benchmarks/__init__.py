"""Experiments that compare headrace with torch's DataLoader: ``python -m benchmarks``."""
