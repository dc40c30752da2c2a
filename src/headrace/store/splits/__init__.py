"""Samples divided into train, test and the rest by their metadata, and the file that says how."""
