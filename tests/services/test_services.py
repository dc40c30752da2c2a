"""The services' own rules: whose a process is, when it is gone, what is said when it cannot be had."""

import functools
import os
import socket
import ssl
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests import services
from tests.services import Unavailable, fixtures, process, redis, sharing
from tests.services.process import Running, free_port, get, last_words, spawn, tool

SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setattr(process, "HOME", tmp_path)
    monkeypatch.setattr(services, "HOME", tmp_path)
    return tmp_path


def sleeper(home, name="sleeper", command=SLEEP):
    return spawn(name, command, ports={"x": 1}, log=home / "out.log", env={})


class TestProcess:
    def test_is_known_while_it_lives_and_no_longer(self, home):
        running = sleeper(home)
        assert Running.known("sleeper") == running
        running.stop()
        assert not running.alive
        assert Running.known("sleeper") is None
        running.stop()

    def test_somebody_else_with_its_pid_is_left_alone(self, home):
        running = sleeper(home)
        stranger = replace(running, began=running.began - 1)
        stranger.save()
        assert Running.known("sleeper") is None
        stranger.stop()
        assert running.alive
        running.stop()

    def test_one_that_was_left_running_gives_way_to_its_successor(self, home):
        first = sleeper(home)
        second = sleeper(home)
        assert not first.alive
        assert Running.known("sleeper") == second
        second.stop()

    def test_a_zombie_is_gone(self, home):
        child = subprocess.Popen([sys.executable, "-c", ""])
        deadline = time.monotonic() + 30
        while Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert process._began(child.pid) == 0
        child.wait()

    def test_one_that_does_not_listen_to_reason_is_killed(self, home, monkeypatch):
        stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True)"
        running = sleeper(home, command=[sys.executable, "-c", f"{stubborn}; time.sleep(600)"])
        running.wait_until(lambda: "up" in (home / "out.log").read_text(), 30)
        monkeypatch.setattr(process, "PATIENCE_S", 0.5)
        began = time.monotonic()
        running.stop()
        assert time.monotonic() - began >= 0.5
        assert not running.alive

    def test_its_last_words_are_told_when_it_ends_early(self, home):
        running = sleeper(home, command=[sys.executable, "-c", "print('ERROR no such key'); print('bye')"])
        with pytest.raises(Unavailable, match="sleeper ended: ERROR no such key"):
            running.wait_until(lambda: False, 30)

    def test_one_that_is_never_ready_is_stopped(self, home):
        running = sleeper(home)
        with pytest.raises(Unavailable, match="not ready after 0 s"):
            running.wait_until(lambda: False, 0.05)
        assert not running.alive


class TestSharing:
    """The last of those who use a server ends it, whoever started it, and though others died."""

    @pytest.fixture
    def use(self, home, monkeypatch):
        monkeypatch.setattr(sharing, "HOME", home)
        start = functools.partial(spawn, "sleeper", SLEEP, ports={}, log=home / "out.log", env={})
        monkeypatch.setitem(sharing.SERVICES, "sleeper", start)
        (home / "run").mkdir()

        def user(releases):
            """Another process that uses it until it is told to go."""
            asked, told = os.pipe(), os.pipe()
            pid = os.fork()
            if pid == 0:
                try:
                    os.close(asked[1])
                    process._children.clear()  # they are not this process's
                    used = sharing.Used("sleeper")
                    os.write(told[1], str(used.running.pid).encode())
                    os.read(asked[0], 1)
                    if releases:
                        used.release()
                finally:
                    os._exit(0)
            os.close(asked[0])
            server = int(os.read(told[0], 20))
            for end in told:
                os.close(end)

            def go():
                os.close(asked[1])
                os.waitpid(pid, 0)

            return server, go

        return user

    @pytest.mark.parametrize("releases", [True, False], ids=["released", "died"])
    def test_it_outlives_the_one_who_started_it(self, use, releases):
        server, go = use(releases)
        used = sharing.Used("sleeper")
        assert used.running.pid == server
        assert not used.is_new
        go()
        assert used.running.alive
        used.release()
        assert not used.running.alive

    def test_it_outlives_those_who_came_later(self, use):
        used = sharing.Used("sleeper")
        _, go = use(True)
        go()
        assert used.running.alive
        used.release()
        assert not used.running.alive

    def test_one_that_is_kept_stays_until_it_is_stopped(self, use):
        used = sharing.Used("sleeper")
        used.keep()
        used.release()
        assert used.running.alive
        assert sharing.stop("sleeper")
        assert not used.running.alive


class TestGetting:
    def test_a_missing_tool_is_named(self):
        with pytest.raises(Unavailable, match="no surely-not-there on this machine"):
            tool("surely-not-there")

    def test_the_last_line_of_a_failure_is_told(self):
        with pytest.raises(Unavailable, match=r"registry not reachable$"):
            get([sys.executable, "-c", "import sys; sys.exit('first\\nregistry not reachable')"], seconds=30)
        with pytest.raises(Unavailable, match="took longer than"):
            get(SLEEP, seconds=0.2)

    def test_a_port_that_is_taken_is_passed_over(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            assert free_port(port) != port

    def test_no_log_is_said_to_be_none(self, tmp_path):
        assert last_words(tmp_path / "none") == "no log"

    @pytest.mark.parametrize("ci", [False, True])
    def test_what_cannot_be_had_is_skipped_or_fails(self, monkeypatch, ci):
        monkeypatch.setattr(fixtures, "_missing", {})
        monkeypatch.delenv("CI", raising=False)
        if ci:
            monkeypatch.setenv("CI", "true")
        asked = []

        def fail():
            asked.append(1)
            raise Unavailable("no java on this machine")

        outcome = pytest.fail.Exception if ci else pytest.skip.Exception
        for _ in range(2):
            with pytest.raises(outcome, match="x is not available: no java on this machine"):
                fixtures.had("x", fail)
        assert len(asked) == 1


@pytest.mark.service
class TestRedis:
    def ask(self, link, *lines):
        answers = []
        for line in lines:
            link.sendall(f"{line}\r\n".encode())
            answers.append(link.recv(4096).decode().strip())
        return answers

    def test_lets_its_user_do_what_a_cache_needs_and_no_more(self, redis_server):
        with socket.create_connection(("127.0.0.1", redis_server.ports["redis"]), timeout=10) as link:
            login = f"AUTH {redis.USER} {redis.PASSWORD}"
            found = self.ask(link, "GET hr:a", login, "SET hr:a 1", "GET other", "FLUSHALL")
        assert [answer.split()[0] for answer in found] == ["-NOAUTH", "+OK", "+OK", "-NOPERM", "-NOPERM"]

    def test_speaks_tls(self, redis_server, tls):
        context = ssl.create_default_context(cafile=tls.ca)
        with (
            socket.create_connection(("127.0.0.1", redis_server.ports["rediss"]), timeout=10) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as link,
        ):
            assert self.ask(link, "PING")[0].startswith("-NOAUTH")


def test_nothing_is_written_outside_the_ignored_folder():
    ignored = (Path(__file__).parents[2] / ".gitignore").read_text().splitlines()
    assert "/.services/" in ignored
    assert services.HOME.name == ".services"
    assert os.path.commonpath([services.HOME, Path(__file__)]) == str(Path(__file__).parents[2])
