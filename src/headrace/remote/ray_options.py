"""``remote=``: whose CPUs make samples beside those of this host."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_ADDRESS = re.compile(r"[^\s:/@]+:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5}")


@dataclass(frozen=True, slots=True)
class Ray:
    """CPUs of a Ray cluster, as many as are there, up to ``cpus``.

    ``address``: of the cluster's GCS, ``host:port``; None: the cluster that this process, or the environment variable
    RAY_ADDRESS, says it is in. ``resources``: what a process that makes samples needs beside CPUs, for up to eight of
    them, by which nodes are chosen; ``labels``: those that a node must have. ``runtime_env``: Ray's, with code,
    packages and environment variables (credentials among them) for those processes; None: that of the job this process
    is in. ``compare``: every worker makes the first sample that comes from elsewhere itself, too, and one that differs
    in a single bit is an error. ``pickled``: samples of types that no entry of a cache can hold are carried as pickles,
    as Ray would; whoever can write to the network between the hosts could then run code in this one's workers.
    """

    cpus: int
    address: str | None = None
    resources: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    runtime_env: Mapping[str, Any] | None = field(default=None, repr=False)
    compare: bool = True
    pickled: bool = False

    def __post_init__(self) -> None:
        given: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__}  # whatever it is
        cpus, address, environment = given["cpus"], given["address"], given["runtime_env"]
        if isinstance(cpus, bool) or not isinstance(cpus, int) or cpus < 1:
            raise ValueError(f"Ray(cpus=...) takes a positive number of CPUs, not {cpus!r}")
        if address is not None and not (isinstance(address, str) and _ADDRESS.fullmatch(address)):
            msg = "Ray(address=...) takes host:port of the cluster's GCS, as `ray start --head` prints it, not "
            raise ValueError(msg + repr(address))
        for name, amount in given["resources"].items():
            if isinstance(amount, bool) or not isinstance(amount, (int, float)) or amount <= 0:
                raise ValueError(f"Ray(resources=...) takes names and positive amounts, not {name!r}: {amount!r}")
            if name in {"CPU", "GPU", "memory"}:
                raise ValueError(f"Ray(resources=...) takes custom resources, not {name!r}: cpus= says how many CPUs")
        for name, value in given["labels"].items():
            if not isinstance(value, str):
                raise TypeError(f"Ray(labels=...) takes names and texts, not {name!r}: {value!r}")
        if environment is not None and not isinstance(environment, Mapping):
            raise TypeError(f"Ray(runtime_env=...) takes a dict as ray.init does, not {type(environment).__name__}")


def hosts(loader: Any) -> Any:
    """Other hosts' part in the work of a loader with ``remote=``. Raises ``RemoteError`` where they can have none."""
    from headrace.remote import plug  # noqa: PLC0415  (for who has none, it costs nothing)

    return plug.hosts(loader)
