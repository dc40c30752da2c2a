"""A script in a process of its own that need not import torch again: it is forked from the one that runs the tests."""

import atexit
import os
import runpy
import subprocess
import sys
import tempfile
import threading
import traceback
import warnings
import weakref
from multiprocessing import util
from pathlib import Path


def run(script: Path, folder: Path, *, strict: bool) -> subprocess.CompletedProcess[str]:
    """As ``python script`` in that folder; where it is strict, with ``-W error``."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        pid = os.fork()
        if pid == 0:
            _become(script, folder, output.fileno(), errors.fileno(), strict=strict)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        for file in (output, errors):
            file.seek(0)
        return subprocess.CompletedProcess(str(script), status, output.read(), errors.read())


def _become(script: Path, folder: Path, output: int, errors: int, *, strict: bool) -> None:
    """Never returns. What the tests' process wanted done at its end is not done at this one's."""
    status = 1
    try:
        os.dup2(output, 1)
        os.dup2(errors, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", 1, closefd=False)
        atexit._clear()
        weakref.finalize._registry.clear()
        weakref.finalize._registered_with_atexit = False
        atexit.register(util._exit_function)
        warnings.resetwarnings()
        if strict:
            warnings.simplefilter("error")
        os.chdir(folder)
        sys.argv, sys.path[:0] = [str(script)], [str(script.parent)]
        try:
            runpy.run_path(str(script), run_name="__main__")
            status = 0
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
        threading._shutdown()
        atexit._run_exitfuncs()
    except BaseException:  # noqa: BLE001  (as the interpreter does)
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
