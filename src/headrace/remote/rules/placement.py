"""The numbers of processes that make samples, for each node. Pure: nodes in, sizes out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

LANES = 8
"""At most so many lanes share a process that they are forked from."""


@dataclass(frozen=True, slots=True)
class Place:
    """A cluster, and what of it is to be used."""

    address: str
    resources: Mapping[str, float]
    labels: Mapping[str, str]
    runtime_env: Mapping[str, Any] | None = field(repr=False)


class ClusterNode(NamedTuple):
    """The description that a cluster gives of one of its nodes."""

    identity: str
    address: str
    resources: Mapping[str, float]
    labels: Mapping[str, str]


class Placement(NamedTuple):
    """A process on another host, and the lanes it forks."""

    lanes: int
    node: str | None
    """The node it should be on; None: wherever Ray finds room."""


def nodes(told: Sequence[Mapping[str, Any]]) -> list[ClusterNode]:
    """The nodes that are alive, as ``ray.nodes()`` tells them."""
    return [
        ClusterNode(each["NodeID"], each["NodeManagerAddress"], each.get("Resources", {}), each.get("Labels") or {})
        for each in told
        if each.get("Alive")
    ]


def placed(
    cpus: int, among: Sequence[ClusterNode], resources: Mapping[str, float], labels: Mapping[str, str], own: str | None
) -> list[Placement]:
    """Processes for ``cpus`` lanes in all, those of the largest nodes first.

    ``own``: the trainer's node, whose CPUs its workers have already; it is used only where resources or labels ask for
    it. What finds no room now is left to Ray, which waits for a node, or has one started.
    """
    chosen = resources or labels
    fits = [
        node
        for node in among
        if (chosen or node.identity != own)
        and all(node.resources.get(name, 0) >= amount for name, amount in resources.items())
        and all(node.labels.get(name) == value for name, value in labels.items())
    ]
    found: list[Placement] = []
    left = cpus
    for node in sorted(fits, key=lambda each: -each.resources.get("CPU", 0)):
        room = min(left, int(node.resources.get("CPU", 0)))
        left -= room
        while room > 0:
            found.append(Placement(min(LANES, room), node.identity))
            room -= LANES
    while left > 0:
        found.append(Placement(min(LANES, left), None))
        left -= LANES
    return found
