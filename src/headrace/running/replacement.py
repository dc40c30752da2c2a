"""Torch's DataLoader, replaced by ours under its own name in a running process."""

import abc
import atexit
import copy
import dataclasses
import os
import sys
import types
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import torch.utils.data
import torch.utils.data.dataloader

from headrace.engine.trainer.cores import automatic_workers
from headrace.integrations import torch_loader
from headrace.loader import DataLoader as HeadraceLoader
from headrace.running.meter import Meter
from headrace.running.orders import AUTOMATIC, ProcessReport, RunOrders
from headrace.trace import session

T_co = TypeVar("T_co", covariant=True)
TorchLoader: Any = torch.utils.data.DataLoader
INTERNALS = frozenset({"_get_iterator", "_index_sampler", "_auto_collation", "check_worker_number_rationality"})
"""Methods of torch's loader that ours has no use for: whoever overrides them counts on torch's own machinery."""


class _Stands(abc.ABCMeta):
    """The class of a stand-in for torch's loader.

    Whatever is a torch loader counts as an instance, as it did before. A subclass that overrides internals is made a
    subclass of torch's own. ABCMeta, so that classes which are abstract too can still be made.
    """

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **kwargs: Any) -> Any:
        overridden = INTERNALS & namespace.keys()
        if not overridden or not any(isinstance(base, _Stands) for base in bases):
            return super().__new__(mcs, name, bases, namespace, **kwargs)
        own = tuple(_LeftAlone if isinstance(base, _Stands) else base for base in bases)
        kind, _, kwargs = types.prepare_class(name, own, kwargs)
        made = kind(name, own, namespace, **kwargs)
        _left[made] = f"{made.__module__}.{made.__qualname__} (overrides {', '.join(sorted(overridden))})"
        return made

    def __instancecheck__(cls, instance: Any) -> bool:
        return (
            isinstance(instance, TorchLoader) if cls.__dict__.get("stands_in") else super().__instancecheck__(instance)
        )

    def __subclasscheck__(cls, subclass: type) -> bool:
        return (
            issubclass(subclass, TorchLoader) if cls.__dict__.get("stands_in") else super().__subclasscheck__(subclass)
        )


class _LeftAlone(TorchLoader[T_co], Generic[T_co]):  # type: ignore[misc]
    """torch's own loader under classes that stay what they are. The first that is made of each is reported.

    Libraries define such classes that a program never uses, so the class alone is nothing to speak of.
    """

    def __new__(cls, *_args: Any, **_kwargs: Any) -> Any:
        for each in cls.__mro__:
            if (what := _left.pop(each, None)) is not None:
                _tell_left_alone(what)
        return super().__new__(cls)


_left: dict[type, str] = {}
"""Classes that were left alone, none of which was made yet, and why."""


class _CountedLoader:
    """Base of both stand-ins: counts the loader, and has its batches timed where that was asked for.

    No constructor of its own: frameworks read the arguments of a loader's and build another like it.
    """

    def __iter__(self: Any) -> Any:
        if not vars(self).setdefault("_is_counted", False):
            vars(self)["_is_counted"] = True
            _report().loaders += 1
            _written()  # now: a process that is killed, or that multiprocessing made, ends without what atexit has
        if _meter is None or vars(self).get("_plain"):
            return self._begun()
        return _meter.timed(self._begun, self)


class Replaced(_CountedLoader, HeadraceLoader[T_co], Generic[T_co], metaclass=_Stands):
    """headrace's loader under the name of torch's."""

    stands_in = True

    def _begun(self) -> Any:
        if _orders is not None and _orders.loader == AUTOMATIC:
            self._choose_workers()
        return HeadraceLoader.__iter__(self)

    def _choose_workers(self) -> None:
        """Choose the number of workers as if the program had not said how many."""
        if not self._leeway.workers:
            self._leeway = dataclasses.replace(self._leeway, workers=True)
            self.num_workers = automatic_workers()
            self.prefetch_factor = 2 if self.prefetch_factor is None else self.prefetch_factor


class Recorded(_CountedLoader, TorchLoader[T_co], Generic[T_co], metaclass=_Stands):  # type: ignore[misc]
    """torch's own loader, recorded where a trace was asked for."""

    stands_in = True
    _recorder: Any

    def _begun(self) -> Iterator[Any]:
        if vars(self).get("_plain") or session.recording(None) is None:
            return TorchLoader.__iter__(self)  # type: ignore[no-any-return]
        if "_recorder" not in vars(self):
            plain: Any = copy.copy(self)
            plain._plain = True  # noqa: SLF001  (our own)
            self._recorder = torch_loader.traced(plain)
        return iter(self._recorder)


_orders: RunOrders | None = None
_meter: Meter | None = None
_here: tuple[int, ProcessReport] | None = None


def install() -> None:
    """Replace ``torch.utils.data.DataLoader`` by what the orders say, from now on. Does nothing where there are
    none.
    """
    global _orders, _meter  # noqa: PLW0603  (one program, one replacement)
    _orders = RunOrders.here()
    if _orders is None or torch.utils.data.DataLoader is not TorchLoader:
        return
    stand_in: Any = Recorded if _orders.loader == "torch" else Replaced
    # Pickled by that name, a loader becomes whatever stands there in the process that reads it.
    stand_in.__module__, stand_in.__name__, stand_in.__qualname__ = TorchLoader.__module__, "DataLoader", "DataLoader"
    torch.utils.data.DataLoader = torch.utils.data.dataloader.DataLoader = stand_in  # type: ignore[misc]
    if _orders.measure:
        _meter = Meter(_report, _orders, _written)


def _report() -> ProcessReport:
    """The report of this process; a forked one begins its own."""
    global _here  # noqa: PLW0603
    if _here is None or _here[0] != os.getpid():
        _here = os.getpid(), ProcessReport(rank=int(os.environ.get("RANK", "0")))
        atexit.register(_written)
    return _here[1]


def _written() -> None:
    if _here is not None and _here[0] == os.getpid() and _orders is not None:
        _here[1].write(_orders.reports)


def _tell_left_alone(what: str) -> None:
    if what.startswith("__mp_main__."):  # a spawned process imports the program again, and it has been said
        return
    _report().left_alone.append(what)
    if _orders is not None and _orders.loader != "torch":
        print(f"headrace run: left alone: {what}", file=sys.stderr)  # noqa: T201
