"""The one module that imports Ray: it joins a cluster, and places, starts and ends the processes that make samples.

It runs in the fetching process, never in the trainer, whose own Ray it leaves alone. Ray has no time limit of its own
for an address where nobody answers, so it is probed first.
"""

import asyncio
import contextlib
import json
import logging
import os
import pickle
import socket
import threading
from dataclasses import dataclass
from typing import Any

import ray
import ray.cloudpickle
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from headrace.core.errors import RemoteError
from headrace.remote import messages
from headrace.remote.elsewhere.actor_orders import SIZE, HostOrders
from headrace.remote.rules import placement
from headrace.remote.rules.placement import Place, Placement
from headrace.store.reading.interpreter import started

PROBE_SECONDS = 5.0
INLINED = 2 << 20
"""Bytes of an answer that Ray carries inside its own messages, where it carries them at all."""
_BOOT = "import sys; from headrace.remote.elsewhere.host_process import main; main(int(sys.argv[1]))"


def by_value(value: Any) -> bytes:
    """A pickle with the code of what only this program defines."""
    packed: bytes = ray.cloudpickle.dumps(value)  # type: ignore[no-untyped-call]
    return packed


@dataclass(frozen=True, slots=True)
class Started:
    """A process that forks lanes, and where it listens."""

    actor: Any
    node: str
    address: str
    port: int


class HostActor:
    """The actor that Ray places: it starts a process that makes samples, and ends it by ending. It makes none
    itself.
    """

    def __init__(self) -> None:
        self._channel: socket.socket | None = None
        self._process: Any = None
        self._links: dict[int, socket.socket] = {}
        self._address = ("", 0)
        self._token = b""

    def start(self, bundle: bytes, token: bytes, lanes: int, first: int, total: int) -> dict[str, Any]:
        """Start the process; returns where it listens, or an error in words."""
        address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = started(_BOOT, theirs.fileno())
        self._channel, self._token = ours, token
        packed = pickle.dumps(HostOrders(bundle, token, address, lanes, first, total))
        told = b""
        with contextlib.suppress(ConnectionError):
            ours.sendall(SIZE.pack(len(packed)) + packed)
            with ours.makefile("rb") as file:
                told = file.readline()
        answer: dict[str, Any] = (
            json.loads(told) if told else {"error": f"the process ended with code {self._process.wait()}"}
        )
        self._address = address, int(answer.get("port", 0))
        node = ray.get_runtime_context().get_node_id()
        return {**answer, "address": address, "node": node}

    def exchange(self, lane: int, request: bytes) -> bytes:
        """Ask a lane here and bring its answer: the way where no stream connects."""
        link = self._links.get(lane)
        if link is None:
            link = self._links[lane] = socket.create_connection(self._address)
            link.sendall(self._token)
        try:
            link.sendall(request)
            while True:
                head = messages.Head.read(_exactly(link, messages.HEAD.size))
                body = _exactly(link, head.size)
                if head.kind in (messages.Subject.ANSWER, messages.Subject.REFUSAL):
                    return head.packed() + body
        except OSError:  # the lane has ended: whoever asks next gets another
            self._links.pop(lane).close()
            raise

    def ping(self) -> None:
        """Answer, which shows that the actor lives."""


def _exactly(link: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        data = link.recv(size - len(found))
        if not data:
            raise ConnectionResetError("the lane has ended")
        found += data
    return bytes(found)


class Driver:
    """A connection to a cluster. One per process; ends with it, and all that it started."""

    def __init__(self, place: Place) -> None:
        """Joins, which takes a while. Raises ``RemoteError`` where nobody answers."""
        self._place = place
        host, _, port = place.address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), PROBE_SECONDS).close()
        except OSError as error:
            raise RemoteError(f"no Ray cluster answers at {place.address}: {error}") from None
        environment = None if place.runtime_env is None else dict(place.runtime_env)
        logging.getLogger("ray").setLevel(
            logging.ERROR
        )  # it would tell the trainer's user about threads of this process
        ray.init(address=place.address, runtime_env=environment, log_to_driver=False, configure_logging=False)

    @property
    def is_guarded(self) -> bool:
        """True if the cluster is protected by TLS, which a plain stream would undercut.

        Tokens, Ray's other protection, say who may speak and hide nothing: what a stream begins with does the same.
        """
        return os.environ.get("RAY_USE_TLS", "0").lower() in {"1", "true"}

    def placed(self, cpus: int) -> list[Placement]:
        """Processes for so many lanes."""
        among, place = placement.nodes(ray.nodes()), self._place  # type: ignore[no-untyped-call]
        own = ray.get_runtime_context().get_node_id()
        return placement.placed(cpus, among, place.resources, place.labels, own)

    def hold(self, bundle: bytes) -> Any:
        """A reference to what every process needs: it crosses the network once per node."""
        return ray.put(bundle)

    async def start(self, where: Placement, bundle: Any, token: bytes, first: int, total: int) -> Started:
        """Place and start one. Raises ``RemoteError`` where it refuses, and Ray's errors where it dies.

        Waits for as long as Ray finds no room.
        """
        options: dict[str, Any] = {
            "num_cpus": where.lanes,
            "resources": dict(self._place.resources) or None,
            "max_restarts": 0,
            "max_task_retries": 0,
            "max_concurrency": where.lanes + 2,
            "scheduling_strategy": "SPREAD",
            "runtime_env": {
                "env_vars": {
                    "RAY_max_direct_call_object_size": str(INLINED),
                    "RAY_task_rpc_inlined_bytes_limit": str(16 * INLINED),
                }
            },
        }
        if self._place.labels:
            options["label_selector"] = dict(self._place.labels)
        elif where.node is not None:
            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(where.node, soft=True)
        actor: Any = ray.remote(HostActor).options(**options).remote()
        try:
            told = await actor.start.remote(bundle, token, where.lanes, first, total)
        except BaseException:
            self.end(actor)
            raise
        if "error" in told:
            self.end(actor)
            raise RemoteError(f"node {told['address']}: {told['error']}")
        return Started(actor, told["node"], told["address"], told["port"])

    async def exchange(self, actor: Any, lane: int, request: bytes) -> bytes:
        """An answer, carried by Ray."""
        answer: bytes = await actor.exchange.remote(lane, request)
        return answer

    async def ping(self, actor: Any) -> None:
        """Returns when the actor answers."""
        await actor.ping.remote()

    def end(self, actor: Any) -> None:
        """Have a process ended, whatever state it is in. Does not wait."""
        with contextlib.suppress(Exception):  # a cluster that is gone
            ray.kill(actor, no_restart=True)


def joined(place: Place) -> "asyncio.Future[Driver]":
    """A connection made in a thread of its own, which may hang: the process can end all the same."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Driver] = loop.create_future()

    def settle(result: Driver | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        elif result is not None:
            future.set_result(result)

    def join() -> None:
        try:
            made: Driver | None = Driver(place)
            error: BaseException | None = None
        except BaseException as raised:  # noqa: BLE001  (told to whoever waits)
            made, error = None, raised
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, made, error)

    threading.Thread(target=join, name="headrace-ray", daemon=True).start()
    return future
