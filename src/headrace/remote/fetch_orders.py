"""The orders of a fetcher that has samples made on other hosts."""

import socket
from dataclasses import dataclass

from headrace.fetching.arena import Arena
from headrace.fetching.fetcher_main import Orders, Told
from headrace.remote.rules.placement import Place


@dataclass(frozen=True, kw_only=True)
class RemoteOrders(Orders):
    """Samples made on other hosts are wanted."""

    place: Place
    cpus: int
    bundle: bytes
    """A ``Bundle``, pickled: it is passed on as it is."""
    own: int
    """Lanes beside the trainer."""

    @property
    def name(self) -> str:
        return f"hosts of the Ray cluster at {self.place.address}"

    def begun(self, connection: socket.socket, arena: Arena) -> Told:
        from headrace.remote.loop import RemoteLoop  # noqa: PLC0415  (which imports Ray: in the fetcher's process alone)

        return RemoteLoop(connection, arena, self)
