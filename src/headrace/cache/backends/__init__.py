"""Backends of a shared cache: shared memory with a disk behind it, and Redis."""
