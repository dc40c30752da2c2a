"""Decisions on what is made where. Pure."""
