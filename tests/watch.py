"""Every test has a time-out (``timeout`` in pyproject.toml, or its mark) that needs no interpreter lock.

Another process ends the one whose test takes longer. Where pytest runs several (``-n``), that costs the one test: it
has failed, with the stacks of its threads, a new process takes the place of the one that ended, and the rest goes on.
"""

import contextlib
import faulthandler
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.selection import ENDS, TIME_OVER

WATCHER = Path(__file__).with_name("watcher.py")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("timeout", "how many seconds a test may take that has no mark", default="120")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "timeout(seconds): ends a test that takes longer")
    if config.getoption("numprocesses", None):
        config.pluginmanager.register(Crashes())
    elif not config.getoption("usepdb"):
        config.pluginmanager.register(Watch(config))


class Watch:
    """In a process that runs tests: tells the watcher what begins and what has ended."""

    def __init__(self, config: pytest.Config) -> None:
        self._usual = float(config.getini("timeout"))
        self._times = 10 if config.getoption("--soak") else 1
        self._path = getattr(config, "workerinput", {}).get("stacks")
        with config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            file = os.open(self._path, os.O_CREAT | os.O_WRONLY | os.O_APPEND) if self._path else os.dup(2)
        self._file = os.fdopen(file, "wb", 0)
        self._watcher: int | None = None

    def pytest_sessionstart(self) -> None:
        faulthandler.enable(self._file)
        read, self._watcher = os.pipe()
        report = self._file.fileno()
        command = [sys.executable, "-I", "-S", WATCHER, str(os.getpid()), str(report)]
        subprocess.run(command, stdin=read, pass_fds=[report], start_new_session=True, check=True)
        os.close(read)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        marker = item.get_closest_marker("timeout")
        left = item.config.stash.get(ENDS, float("inf")) - time.monotonic()
        seconds = self._times * (float(marker.args[0]) if marker else self._usual)
        reason = f"{item.nodeid} took longer than {seconds:g} s" if seconds < left else TIME_OVER
        if self._path:
            self._file.truncate(0)
        self._say(f"{max(min(seconds, left), 1.0)} {reason}")
        try:
            return (yield)
        finally:
            self._say("0")

    def _say(self, line: str) -> None:
        if self._watcher is not None:
            with contextlib.suppress(BrokenPipeError):
                os.write(self._watcher, f"{line}\n".encode())

    def pytest_unconfigure(self) -> None:
        faulthandler.disable()
        if self._watcher is not None:
            os.close(self._watcher)
            self._watcher = None
        self._file.close()


class Crashes:
    """In the process that has others run tests: says of one that ended what it wrote."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="headrace-stacks-")

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput["stacks"] = str(Path(self._folder.name) / node.gateway.id)

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, report: pytest.TestReport) -> None:
        path = Path(self._folder.name) / report.node.gateway.id
        written = path.read_text(errors="replace") if path.exists() else ""
        if written.startswith(TIME_OVER):
            report.outcome, report.longrepr = "skipped", (report.nodeid, 0, f"Skipped: {TIME_OVER}")
        else:
            report.longrepr = f"{report.longrepr}\n{written}"

    def pytest_unconfigure(self) -> None:
        self._folder.cleanup()
