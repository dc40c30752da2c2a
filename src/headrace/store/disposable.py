"""Declaration that this process may be killed at any moment, and ends without tidying up.

A native driver with threads of its own may wait for them with the interpreter's lock held, or crash while it ends. So
drivers of that kind run only in processes that say so here when they begin.
"""

_disposable = False


def declare() -> None:
    """Declare that this process may be killed and replaced: nothing but what another one asked it for is in it."""
    global _disposable  # noqa: PLW0603  (a fact about the process, said once)
    _disposable = True


def here() -> bool:
    """True once it was declared."""
    return _disposable
