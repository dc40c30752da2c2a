"""Scripted implementations for tests. Nothing in the package imports this."""

from headrace.testing.device import ScriptedAccelerator

__all__ = ["ScriptedAccelerator"]
