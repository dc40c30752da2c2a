"""The attribute ``timeout`` of our loaders: a number that knows the loader it was read from.

Who makes another loader of ours reads torch's arguments back from its attributes. A signed number among them tells the
one that is made whose place it takes. Of the arguments that are never ``None``, ``timeout`` is the one nobody copies
between loaders by hand.
"""

import weakref
from collections.abc import Callable
from typing import Any, overload

import torch.utils.data

Loader = torch.utils.data.DataLoader[Any]


class Signature(float):
    """A ``timeout`` that knows the loader it was read from, while that lives. Pickles as a plain number."""

    loader: "weakref.ref[Loader]"
    build: type[Loader]

    def __reduce__(self) -> tuple[type[float], tuple[float]]:
        return float, (float(self),)


class Signed:
    """The attribute ``timeout``: a plain number, but signed where one of its readers may read it."""

    def __init__(self, *readers: Callable[[], bool]) -> None:
        """``readers``: each says whether somebody is here who makes loaders of ours anew, and knows signatures."""
        self._readers = readers

    def __set_name__(self, owner: type[Loader], name: str) -> None:
        self.owner, self.name = owner, name

    @overload
    def __get__(self, loader: None, owner: type | None = None) -> "Signed": ...
    @overload
    def __get__(self, loader: Loader, owner: type | None = None) -> float: ...
    def __get__(self, loader: Loader | None, owner: type | None = None) -> "Signed | float":
        if loader is None:
            return self
        try:
            value: float = vars(loader)[self.name]
        except KeyError:
            raise AttributeError(self.name) from None
        if not self._is_read():
            return value
        signature = Signature(value)
        signature.loader = weakref.ref(loader)
        # A subclass with a constructor of its own cannot be built from torch's arguments.
        signature.build = type(loader) if type(loader).__init__ is self.owner.__init__ else self.owner
        return signature

    def __set__(self, loader: Loader, value: float) -> None:
        self._is_read()  # a reader may only look at what was made after it was taught
        vars(loader)[self.name] = float(value) if isinstance(value, Signature) else value

    def _is_read(self) -> bool:
        here = [reader() for reader in self._readers]  # each of them: to be asked teaches it
        return any(here)
