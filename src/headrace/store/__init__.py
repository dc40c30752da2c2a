"""Samples in files, databases and object stores: key to encoded bytes."""
