"""Errors of stores as plain values, on their way from one process to another."""

from typing import Any

from headrace.core import errors


def described(error: BaseException) -> dict[str, Any]:
    """An error as plain values: its class if it is one of ours, its words, the key and the server."""
    known = type(error).__name__ if isinstance(error, errors.StoreError) else "StoreError"
    words = str(error) if isinstance(error, errors.StoreError) else f"{type(error).__name__}: {error}"
    return {
        "error": known,
        "message": words,
        "server": getattr(error, "server", None),
        "key": getattr(error, "key", None),
    }


def rebuilt(values: dict[str, Any]) -> errors.StoreError:
    """The error that was ``described``."""
    kind = getattr(errors, str(values.get("error")), None)
    if not (isinstance(kind, type) and issubclass(kind, errors.StoreError)):
        kind = errors.StoreError
    return kind(str(values.get("message")), server=values.get("server"), key=values.get("key"))
