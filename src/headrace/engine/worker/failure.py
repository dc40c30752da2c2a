"""Exceptions across the process boundary: the type, torch's message, and the object itself where it can travel.

A packed error never has more than ``MOST`` bytes, whatever it holds, and can be made smaller still: first the object
stays behind, then the middle of the message.
"""

import pickle
import traceback
from contextlib import suppress
from functools import lru_cache
from typing import Any

MOST = 1 << 20
"""Bytes of a packed error."""
LEAST = 1 << 10
"""Every error can be packed into so few."""
LEAVING = (SystemExit, KeyboardInterrupt)
"""With these, user code ends its process: that is the worker's death, not an error of the sample."""


def pack(error: BaseException, where: str, *, fatal: bool = False) -> bytes:
    """An exception of this process as bytes. ``fatal``: not the sample's fault, so ``Skip`` must not hide it."""
    fatal = fatal or not isinstance(error, Exception)
    message = f"Caught {type(error).__name__} {where}.\nOriginal {_text(error)}"
    original = _travels(error.with_traceback(None))
    kind: Any = type(error)
    return within(_joined(message, fatal, _class(kind), original or b""), MOST)


def no_room(where: str) -> bytes:
    """The packed error that stands for those of a batch in which more samples failed than there is room for."""
    message = f"A sample failed {where}, as so many others of its batch that there was no room left for its error"
    return _joined(message, fatal=False, kind=b"", original=b"")


def within(packed: bytes, limit: int) -> bytes:
    """The same error in at most ``limit`` bytes (``LEAST`` or more): without its object, then with a shorter text."""
    if len(packed) <= limit:
        return packed
    message, fatal, kind, _ = pickle.loads(packed)  # noqa: S301  (our own bytes)
    shorter = _joined(message, fatal, kind, original=b"")
    if len(shorter) > limit:
        kind = kind if len(kind) <= LEAST // 2 else b""
        shorter = _joined(shortened(message, limit - len(kind) - 128), fatal, kind, original=b"")
    return shorter


def shortened(text: str, limit: int) -> str:
    """The text cut to ``limit`` bytes: its beginning, and its end, where a traceback says what happened."""
    encoded = text.encode("utf-8", "surrogatepass")
    if len(encoded) <= limit:
        return text
    gap = f"\n[... {len(encoded) - limit} bytes left out ...]\n"
    tail = limit // 4
    head = limit - tail - len(gap)
    return encoded[:head].decode("utf-8", "ignore") + gap + encoded[-tail:].decode("utf-8", "ignore")


def unpack(packed: bytes) -> tuple[BaseException, BaseException | None, bool]:
    """(what to raise, as torch would; the original object or None; fatal) from ``pack`` in a worker of this run."""
    message, fatal, kind_bytes, original_bytes = pickle.loads(packed)  # noqa: S301  (written by our own child process)
    kind: type[BaseException] = RuntimeError
    original: BaseException | None = None
    with suppress(Exception):  # what could be read in the worker may not be importable here
        kind = pickle.loads(kind_bytes) if kind_bytes else RuntimeError  # noqa: S301  (as above)
        original = pickle.loads(original_bytes) if original_bytes else None  # noqa: S301  (as above)
    raised = rebuilt(kind, message)
    raised.__cause__ = original
    return raised, original, fatal


def summary(packed: bytes) -> str:
    """The last line of what a packed error says; nothing of the user's is unpickled."""
    text: str = pickle.loads(packed)[0].rstrip()  # noqa: S301  (as above)
    return shortened(text.rpartition("\n")[2], LEAST)


def is_a(packed: bytes, kind: Any) -> bool:
    """True if a packed error is of just this type; nothing of the user's is unpickled."""
    return bool(pickle.loads(packed)[2] == _class(kind))  # noqa: S301  (as above)


def rebuilt(kind: type[BaseException], message: str) -> BaseException:
    """``kind(message)``; a RuntimeError where the type wants other arguments, or would end the user's loop."""
    if kind is KeyError:
        message = _Readable(message)
    make: Any = kind
    with suppress(Exception):  # the constructor is the user's
        # torch gives the message by name to classes that have one, too (``ExceptionWrapper``).
        made: object = make(message=message) if getattr(kind, "message", None) else make(message)
        if isinstance(made, BaseException) and not isinstance(made, StopIteration):
            return made
    return RuntimeError(message)


def footprint(error: BaseException) -> int | None:
    """The approximate number of bytes that an exception holds; None when they are more than ``MOST``."""
    stream = _Bounded()
    try:
        pickle.Pickler(stream).dump(error)
    except _TooLarge:
        return None
    except Exception:  # noqa: BLE001  (what cannot be pickled has no size that could be asked for)
        return min(MOST, LEAST + len(_text(error)))
    return stream.size


def stand_in(error: BaseException) -> RuntimeError:
    """The error that stands for an exception that holds too much to be kept."""
    return RuntimeError(shortened(_text(error).rstrip(), LEAST))


@lru_cache(maxsize=64)
def _class(kind: type[BaseException]) -> bytes:
    """An exception type, pickled; nothing where it cannot be."""
    return _travels(kind) or b""


def _joined(message: str, fatal: bool, kind: bytes, original: bytes) -> bytes:
    return pickle.dumps((message, fatal, kind, original))


def _text(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(type(error), error, error.__traceback__))
    except Exception as reason:  # noqa: BLE001  (whatever an exception class does, something must be said of it)
        return f"{type(error).__name__}, whose traceback cannot be printed: {type(reason).__name__}"


def _travels(value: Any) -> bytes | None:
    """A class, or an exception that comes out of its pickle as one of its class, pickled; None where it does not."""
    stream = _Bounded()
    try:
        pickle.Pickler(stream).dump(value)
        packed = b"".join(stream.parts)
        back = pickle.loads(packed)  # noqa: S301  (our own bytes: some exceptions pickle and do not come back)
        same = back is value if isinstance(value, type) else type(back) is type(value)
    except Exception:  # noqa: BLE001  (whatever an exception class does, the message still travels)
        return None
    return packed if same else None


class _TooLarge(Exception):
    """The error for more than ``MOST`` bytes."""


class _Bounded:
    """Takes bytes until they are too many, so that what holds gigabytes is not pickled to its end."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.size = 0

    def write(self, data: Any) -> int:
        part = bytes(data)
        self.size += len(part)
        if self.size > MOST:
            raise _TooLarge
        self.parts.append(part)
        return len(part)


class _Readable(str):
    """KeyError prints its argument's repr; this one's is the text."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)
