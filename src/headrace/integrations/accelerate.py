"""Adapter for accelerate, so that what ``Accelerator.prepare`` returns still runs on this engine.

accelerate never iterates the loader it is given. It reads torch's arguments back from its attributes, shards
the batch sampler, and makes a ``DataLoaderShard`` (or ``DataLoaderDispatcher``) that holds a new, plain torch
loader as ``base_dataloader``. Everything accelerate is for happens in that wrapper: device placement,
synchronised generators, ``set_epoch``, the look-ahead behind gradient accumulation and
``gather_for_metrics``. So the wrapper stays accelerate's own and only the loader inside it is exchanged. A
wrapper answers ``isinstance`` with the class of what it holds and passes on what it does not know, so
``stats()`` and ``close()`` keep working.

Two descriptors on the loader's class do it; in a process that has not imported accelerate they do nothing:

- ``Asked`` is ``_is_accelerate_prepared``, the first thing ``prepare`` looks at. Reading it teaches
  accelerate's wrappers to recognise our loaders, or refuses an accelerate whose wrappers hold no loader.
- ``Signed`` is ``timeout``, one of the arguments that are read back: see ``headrace.integrations.signature``.

Two things are asked of the loader. Every argument of its constructor that torch's does not have is kept in
an attribute of the same name, which Lightning needs as well. And indices are drawn from ``batch_sampler`` at
each ``iter()``, not earlier: accelerate puts samplers into it and synchronises their generators just before.
"""

import functools
import inspect
import sys
import weakref
from types import ModuleType
from typing import Any

import torch.utils.data

from headrace.integrations.signature import Signature

Loader = torch.utils.data.DataLoader[Any]

WRAPPERS = ("DataLoaderShard", "DataLoaderDispatcher", "SkipDataLoader")
"""The classes of accelerate that hold a loader."""
TORCH_ARGUMENTS = inspect.signature(torch.utils.data.DataLoader.__init__).parameters.keys()

_taught: weakref.WeakSet[type] = weakref.WeakSet()


class Asked:
    """``_is_accelerate_prepared``: false, until somebody sets it on an instance."""

    def __get__(self, loader: Loader | None, owner: type | None = None) -> bool:
        accelerate = _imported()
        if loader is not None and accelerate is not None and not _teach(accelerate):
            version = getattr(sys.modules.get("accelerate"), "__version__", "of an unknown version")
            raise RuntimeError(
                f"accelerate {version} would replace this loader by torch's without a word: it does not wrap "
                "loaders the way headrace knows. Use accelerate 1.0 or newer; or set "
                "loader._is_accelerate_prepared = True, which makes sharding and placement your task"
            )
        return False


def taught() -> bool:
    """Teach accelerate's wrappers to recognise our loaders; True if accelerate is here, and they do."""
    accelerate = _imported()
    return accelerate is not None and _teach(accelerate)


def _imported() -> ModuleType | None:
    return sys.modules.get("accelerate.data_loader")


def _teach(accelerate: ModuleType) -> bool:
    """Wrap the constructors of accelerate's wrappers, once. False, and nothing done, if they are unknown."""
    adapter = getattr(accelerate, "DataLoaderAdapter", None)
    read_back = getattr(accelerate, "_PYTORCH_DATALOADER_KWARGS", {})
    wrappers: list[Any] = [getattr(accelerate, name, None) for name in WRAPPERS]
    if not isinstance(adapter, type) or not all(
        isinstance(wrapper, type) and issubclass(wrapper, adapter) for wrapper in wrappers
    ):
        return False
    # The class of a wrapper is that of its base_dataloader: what makes isinstance hold.
    if not isinstance(vars(adapter).get("__class__"), property) or "timeout" not in read_back:
        return False
    for wrapper in wrappers:
        if wrapper not in _taught:
            _exchange_on_construction(wrapper)
            _taught.add(wrapper)
    return True


def _exchange_on_construction(wrapper: Any) -> None:
    construct = wrapper.__init__

    @functools.wraps(construct)
    def constructor(self: Any, dataset: Any, *args: Any, **kwargs: Any) -> None:
        signature: Any = kwargs.get("timeout")
        loader = signature.loader() if isinstance(signature, Signature) else None
        if loader is None:
            construct(self, dataset, *args, **kwargs)
            return
        # torchdata's loader would start its workers here, to be thrown away at once.
        stateful = kwargs.pop("use_stateful_dataloader", False)
        construct(self, dataset, *args, **kwargs)
        self.use_stateful_dataloader = stateful
        self.base_dataloader = _successor(loader, signature.build, dataset, kwargs)
        if stateful:
            self.dl_state_dict = self.base_dataloader.state_dict()
        else:
            # accelerate would take the state of every batch, because ours has one, and never save it.
            self._update_state_dict = _do_nothing

    wrapper.__init__ = constructor


def _do_nothing() -> None:
    """The stand-in for bookkeeping that nobody asked for."""


def _successor(loader: Any, build: type[Loader], dataset: Any, asked: dict[str, Any]) -> Loader:
    """The loader for accelerate's wrapper: the given one, or one like it for the data and batches accelerate made
    of it.
    """
    device = asked.get("device")
    # Our copy runs ahead on a side stream; accelerate's own then finds nothing to do.
    ahead = device if device is not None and torch.device(device).type == "cuda" else None
    if dataset is loader.dataset and _asks_for_the_same_batches(asked, loader):
        loader.device = ahead if loader.device is None else loader.device
        return loader  # type: ignore[no-any-return]
    arguments = {name: value for name, value in asked.items() if name in TORCH_ARGUMENTS}
    beyond = inspect.signature(build.__init__).parameters.keys() - TORCH_ARGUMENTS
    arguments |= {name: getattr(loader, name) for name in beyond}
    arguments["device"] = ahead if loader.device is None else loader.device
    return build(dataset, **arguments)


def _asks_for_the_same_batches(asked: dict[str, Any], loader: Loader) -> bool:
    if isinstance(loader.dataset, torch.utils.data.IterableDataset):
        return (asked.get("batch_size"), asked.get("drop_last")) == (loader.batch_size, loader.drop_last)
    return loader.batch_sampler is not None and asked.get("batch_sampler") is loader.batch_sampler
