"""Samples made by other machines' CPUs: placed and ended by Ray, carried over streams of our own."""
