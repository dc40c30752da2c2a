"""The orders that the actor gives to the process it starts, which forks lanes."""

import struct
from dataclasses import dataclass

SIZE = struct.Struct("<Q")
"""Stands before the orders."""


@dataclass(frozen=True, slots=True)
class HostOrders:
    """The orders of one host: its part of the work."""

    bundle: bytes
    """A ``Bundle``, pickled by the trainer: nobody on the way unpickles it."""
    token: bytes
    address: str
    """Of this node: where to listen."""
    lanes: int
    first: int
    """The number of the first of them, as ``worker_init_fn`` is told."""
    total: int
    """Lanes on all hosts, the trainer's included."""
