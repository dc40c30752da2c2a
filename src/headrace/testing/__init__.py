"""Scripted implementations and conformance suites for tests. Nothing in the package imports this."""

from headrace.testing.scripted import ScriptedStore, Step
from headrace.testing.stores import StoreConformance, WritableConformance

__all__ = ["ScriptedStore", "Step", "StoreConformance", "WritableConformance"]
