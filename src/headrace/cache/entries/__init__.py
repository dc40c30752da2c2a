"""Entries of a cache: samples as bytes and back, without pickle."""
