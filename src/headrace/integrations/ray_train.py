"""Integration with Ray Train: ``ray.train.torch.prepare_data_loader`` returns a loader of ours.

With more than one rank, Ray makes a torch loader with a ``DistributedSampler`` of eleven arguments it reads back, and
always wraps that in one that moves batches to the rank's device and holds one batch ahead. The first would drop this
engine without a word, the second hides ``state_dict`` and makes it wrong by a batch. So the two names by which Ray's
functions find these classes stand for functions here, which do the same as before for loaders that are not ours: ours
is built anew with all of its settings and Ray's sampler, and moves its batches itself, so nothing wraps it.

Ray is taught when a loader of ours is made after ``ray.train.torch`` was imported, or read by it. One that was made
earlier and has nothing read of it (one rank, or a ``DistributedSampler`` of the user's) is wrapped, by Ray's rules.
"""

import inspect
import sys
from types import ModuleType
from typing import Any

import torch

from headrace.integrations.signature import Loader, Signature, Signed

MODULES = ("ray.train.torch.train_loop_utils", "ray.train.v2.torch.train_loop_utils")
"""Where Ray prepares loaders, in its older and its newer way."""
MAKES, WRAPS = "DataLoader", "_WrappedDataLoader"

_taught: set[str] = set()


def taught() -> bool:
    """Teach Ray Train to make loaders of ours from now on; True if it is here."""
    for name in MODULES:
        module = sys.modules.get(name)
        if module is not None and name not in _taught and _teach(module):
            _taught.add(name)
    return bool(_taught)


def _teach(module: ModuleType) -> bool:
    """Exchange the two names, once. False, and nothing done, where they are unknown, or not there yet."""
    make, wrap = getattr(module, MAKES, None), getattr(module, WRAPS, None)
    if make is None or wrap is None:
        return False

    def makes(*args: Any, **kwargs: Any) -> Any:
        signature = kwargs.get("timeout")
        loader = signature.loader() if isinstance(signature, Signature) else None
        if loader is None:
            return make(*args, **kwargs)
        assert isinstance(signature, Signature)
        return _successor(loader, signature.build, kwargs)

    def wraps(loader: Any, device: torch.device, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(getattr(type(loader), "timeout", None), Signed) or device.type not in {"cpu", "cuda"}:
            return wrap(loader, device, *args, **kwargs)
        if device.type == "cuda" and loader.device is None:
            loader.device = device  # copied ahead, on a stream of its own
        return loader

    setattr(module, MAKES, makes)
    setattr(module, WRAPS, wraps)
    return True


def _successor(loader: Any, build: type[Loader], asked: dict[str, Any]) -> Loader:
    """A loader like this one for what Ray asks; what it forgets to ask for is as it was."""
    rest = inspect.signature(build.__init__).parameters.keys() - asked.keys() - {"self", "batch_sampler"}
    return build(**asked, **{name: getattr(loader, name) for name in rest})
