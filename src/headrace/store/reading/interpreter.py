"""A fresh interpreter for a process of ours: nothing is forked while somebody holds a lock."""

import os
import pickle
import subprocess
import sys
from multiprocessing import spawn
from typing import Any

from headrace.core.errors import StoreError
from headrace.store import disposable

_FOR_MAIN = {"sys_path", "sys_argv", "orig_dir", "dir", "init_main_from_name", "init_main_from_path"}


def started(program: str, *descriptors: int) -> "subprocess.Popen[bytes]":
    """Runs ``program``, whose arguments are these descriptors, with this one's path and nothing else of it.

    What it is for it is told through one of them: arguments are in everybody's list of processes.
    """
    if disposable.here():
        raise StoreError("a program that is run once more, to find a class in it, starts nothing")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.Popen(  # noqa: S603  (this interpreter, our own program)
        [sys.executable, "-c", program, *map(str, descriptors)],
        pass_fds=descriptors,
        stdin=subprocess.DEVNULL,
        env=environment,
    )


def packed(thing: object, name: str) -> bytes:
    """``thing`` for such a process, which knows nothing of the program that was started. ``name``: for errors."""
    told = pickle.dumps(thing)
    of_main = {}
    if b"__main__" in told:
        of_main = {key: value for key, value in spawn.get_preparation_data(name).items() if key in _FOR_MAIN}
    return pickle.dumps((name, of_main, told))


def unpacked(told: bytes) -> Any:
    """The value that was ``packed`` by the process that started this one. Raises ``StoreError`` where it cannot be
    had here.

    Where it is of a class that the program itself defines, that is run once more, as ``multiprocessing`` does it: with
    another ``__name__``.
    """
    name, of_main, packed_thing = pickle.loads(told)  # noqa: S301  (from the process that started this one)
    try:
        if of_main:
            spawn.prepare(of_main)
        return pickle.loads(packed_thing)  # noqa: S301  (the same)
    except (Exception, SystemExit) as error:
        raise StoreError.at(
            name,
            f"the process that reads from it cannot load it ({type(error).__name__}: {error}); "
            "define the classes it is made of in a module of their own, or in a program whose work stands "
            "below if __name__ == '__main__':",
        ) from error
