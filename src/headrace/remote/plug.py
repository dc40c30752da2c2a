"""``remote=`` in a loader: what it needs to be allowed, and what the engine is given for it."""

import importlib.util
import os
import pickle
import sys
from typing import Any

from torch.utils.data import IterableDataset

from headrace.core.errors import RemoteError
from headrace.core.options import Loading, Seeding
from headrace.engine.trainer.counters import LoaderCounters
from headrace.fetching.arena import Arena
from headrace.fetching.fetcher import Fetcher
from headrace.remote.elsewhere import shipped
from headrace.remote.fetch_orders import RemoteOrders
from headrace.remote.messages import GroupKey
from headrace.remote.ray_options import Ray
from headrace.remote.remade import RemoteMaking
from headrace.remote.rules.placement import Place
from headrace.remote.supply import Crowd, RemoteGroups
from headrace.sched.epochs.trainer_commands import Arrangement
from headrace.sched.source import Source


def hosts(loader: Any) -> "RayHosts":
    """The hosts of a loader that has all its arguments. Raises ``RemoteError`` if they do not allow it."""
    if importlib.util.find_spec("ray") is None:
        raise RemoteError("remote= needs Ray: pip install 'headrace[ray]'")
    refused = (
        (isinstance(loader.dataset, IterableDataset), "takes map-style datasets: a stream has no samples to give away"),
        (
            loader.loading.seeding is not Seeding.SAMPLE,
            "needs Loading(seeding=Seeding.SAMPLE): one seed for each sample",
        ),
    )
    for is_so, why in refused:
        if is_so:
            raise RemoteError(f"remote= {why}")
    return RayHosts(loader.remote, loader.loading, loader.num_workers)


def place(options: Ray) -> Place:
    """The cluster. Raises ``RemoteError`` where none is known."""
    address, environment = options.address, options.runtime_env
    ray = sys.modules.get("ray")
    if ray is not None and getattr(ray, "is_initialized", bool)():
        context = ray.get_runtime_context()
        address = address or str(context.gcs_address)
        if environment is None and address == context.gcs_address:
            environment = dict(context.runtime_env) or None
    address = address or os.environ.get("RAY_ADDRESS")
    if not address:
        raise RemoteError("remote=: no Ray cluster is known here: headrace.Ray(address='host:port') names its GCS")
    return Place(address, dict(options.resources), dict(options.labels), environment)


class RayHosts:
    """The hosts of a Ray cluster, for one loader."""

    def __init__(self, options: Ray, loading: Loading, workers: int) -> None:
        """Start without asking anything of anybody."""
        self._options, self._prefetch = options, loading.prefetch
        self._crowd = Crowd(loading.prefetch.memory, workers)

    def making(self, arena: Arena) -> RemoteMaking:
        """The orders by which processes here take up what comes into ``arena``."""
        return RemoteMaking(arena, compares=self._options.compare, pickled=self._options.pickled)

    @property
    def is_gone(self) -> bool:
        """True if nobody makes samples elsewhere any more."""
        return self._crowd.is_gone

    def orders(self, dataset: Any, worker_init_fn: Any, workers: int, batch: int) -> RemoteOrders:
        """The orders of a fetcher that has samples made there. Raises ``RemoteError`` for what cannot travel."""
        told = pickle.dumps(shipped.packed(dataset, worker_init_fn, _by_value, pickled=self._options.pickled))
        return RemoteOrders(
            prefetch=self._prefetch,
            batch=batch,
            place=place(self._options),
            cpus=self._options.cpus,
            bundle=told,
            own=workers,
        )

    def groups(
        self,
        groups: Source,
        fetcher: Fetcher,
        counters: LoaderCounters,
        seeds: tuple[int, int],
        arrangement: Arrangement,
        displacement: int,
    ) -> RemoteGroups:
        """The groups of an epoch, some of them made there. ``seeds``: the loader's, and the epoch."""
        if fetcher.pid is None and not self._crowd.is_gone:
            fetcher.begin()

        def key(index: Any, form: int) -> str:
            if type(index) not in {int, str}:
                raise TypeError(index)
            return GroupKey(*seeds, index, form).text()

        return RemoteGroups(groups, fetcher, key, arrangement, displacement, self._crowd, counters)

    def count(self, fetcher: Fetcher, counters: LoaderCounters) -> None:
        """Bring what is known of other hosts into the counters."""
        self._crowd.count(fetcher, counters)


def _by_value(value: Any) -> bytes:
    from headrace.remote.ray_driver import by_value  # noqa: PLC0415  (imports Ray, for programs that define their dataset)

    return by_value(value)
