"""Fingerprints of datasets: of their values and of the code that makes their samples."""
