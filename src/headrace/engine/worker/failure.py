"""Exceptions across the process boundary: the type, torch's message, and the object itself where it can travel."""

import pickle
import traceback
from typing import Any


def pack(error: BaseException, where: str, *, fatal: bool = False) -> bytes:
    """An exception of this process as bytes. ``fatal``: not the sample's fault, so ``Skip`` must not hide it."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    message = f"Caught {type(error).__name__} {where}.\nOriginal {text}"
    whole = (type(error), message, error.with_traceback(None), fatal)
    for candidate in (whole, (type(error), message, None, fatal), (RuntimeError, message, None, fatal)):
        try:
            packed = pickle.dumps(candidate)
            back = pickle.loads(packed)[2]  # noqa: S301  (our own bytes: some exceptions pickle and do not come back)
            if back is not None and type(back) is not type(error):
                continue
        except Exception:  # noqa: BLE001, S112  (whatever an exception class does, the message still travels)
            continue
        return packed
    return pickle.dumps((RuntimeError, message, None, fatal))


def unpack(packed: bytes) -> tuple[BaseException, BaseException | None, bool]:
    """(what to raise, as torch would; the original object or None; fatal) from ``pack`` in a worker of this run."""
    kind, message, original, fatal = pickle.loads(packed)  # noqa: S301  (written by our own child process)
    raised = rebuilt(kind, message)
    raised.__cause__ = original
    return raised, original, fatal


def rebuilt(kind: type[BaseException], message: str) -> BaseException:
    """``kind(message)``; a RuntimeError where the type wants other arguments."""
    if kind is KeyError:
        message = _Readable(message)
    make: Any = kind
    try:
        made: BaseException = make(message=message) if getattr(kind, "message", None) else make(message)
        return made
    except Exception:  # noqa: BLE001  (the constructor is the user's)
        return RuntimeError(message)


class _Readable(str):
    """KeyError prints its argument's repr; this one's is the text."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)
