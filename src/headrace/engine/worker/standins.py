"""What stands in for an operation while it is looked at: an object of a class of its own, or one for a function."""

import copyreg
import types
from collections.abc import Callable
from typing import Any

Undo = Callable[[], None]


def exchanged(target: Any, methods: dict[str, Callable[..., Any]]) -> Undo:
    """Give one object a class of its own, of the same name, that differs in these methods only.

    Raises ``TypeError`` where an object cannot change its class. Copies of the object are of its old class. What is
    returned undoes it, in any order with others.
    """
    kind = type(target)

    def reduced(self: Any, protocol: Any) -> Any:
        """A copy is of the class everybody knows."""
        # Its own reduction names its class, and this one cannot be imported anywhere.
        self.__class__ = kind
        try:
            how, *rest = self.__reduce_ex__(protocol)
        finally:
            self.__class__ = timed
        return (_new if how is copyreg.__newobj__ else how, *rest)  # type: ignore[attr-defined]  # it is there

    body: dict[str, Any] = {
        **methods,
        "__reduce_ex__": reduced,
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
    }
    if not hasattr(target, "__dict__"):
        body["__slots__"] = ()
    timed = types.new_class(kind.__name__, (kind,), exec_body=lambda namespace: namespace.update(body))
    target.__class__ = timed

    def undo() -> None:
        for method in methods:  # another exchange may stand upon this one
            if method in vars(timed):
                delattr(timed, method)
        if type(target) is timed:
            target.__class__ = kind

    return undo


class Passing:
    """Stands for a function; whatever else is asked of it is the function's."""

    def __init__(self, function: Any, call: Callable[..., Any]) -> None:
        self.__wrapped__, self.__call, self.retired = function, call, False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__call(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "__wrapped__"), name)

    def __reduce__(self) -> Any:
        return _same, (self.__wrapped__,)

    def retire(self) -> None:
        """From now on, just pass on."""
        self.__call, self.retired = self.__wrapped__, True

    def innermost(self) -> Any:
        """What is left when those that just pass on are gone."""
        wrapped = self.__wrapped__
        return wrapped.innermost() if isinstance(wrapped, Passing) and wrapped.retired else wrapped


def _new(kind: type, *args: Any) -> Any:
    """An object of that class: the pickler would insist on the one that its model is of."""
    return kind.__new__(kind, *args)


def _same(function: Any) -> Any:
    return function
