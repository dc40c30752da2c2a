"""The process that brings rows: all of them, once each, whatever happens to it."""

import mmap
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.core.errors import MissingKey, StoreRefused, StoreUnavailable
from headrace.core.options import Prefetch, Retry
from headrace.fetching import fetcher_process
from headrace.fetching.arriving import ArrivingGroups
from headrace.fetching.fetch_loop import StoreOrders
from headrace.fetching.fetcher import Fetcher
from headrace.fetching.fetcher_process import LOOK_SECONDS, Pulse
from headrace.sched.epochs.trainer_commands import Arrangement
from headrace.sched.groups import Groups
from headrace.sched.hand import NOT_YET
from tests.engine.remote import RemoteNumbers
from tests.sched.test_groups import Listed


class Collected(dict):
    """What arrived, by number."""

    def __call__(self, place):
        assert place.number not in self
        self[place.number] = place


def waited(fetcher):
    fd, events = fetcher.waited_for()
    poll = select.poll()
    poll.register(fd, events)
    assert poll.poll(30_000)


def looked(fetcher):
    """As ``waited``, for no longer than one may go without looking after the fetcher."""
    fd, events = fetcher.waited_for()
    poll = select.poll()
    poll.register(fd, events)
    poll.poll(1000 * LOOK_SECONDS)


def first_of_two_here(fetcher):
    """Two groups of eight rows, of which the first has come."""
    order = Listed([list(range(8)), list(range(8, 16))])
    groups = ArrivingGroups(Groups(order, [], None, batched=True), fetcher, str, Arrangement.STRICT, 0)
    while (first := groups.next()) is NOT_YET:
        looked(fetcher)
    return groups, first


def brought(fetcher, count, *, ahead=50):
    """Ask for the first ``count`` rows a few at a time, take and free each; the rows by number."""
    asked, found, rows = 0, Collected(), {}
    while len(rows) < count:
        if asked < count and asked - len(rows) < ahead:
            upto = min(count, asked + 10)
            fetcher.ask({number: str(number) for number in range(asked, upto)}, found)
            asked = upto
        fetcher.pump()
        for number, place in list(found.items()):
            if number not in rows:
                rows[number] = fetcher.arena.read(place, str(number))
                fetcher.taken([place])
                fetcher.free([place])
        if len(rows) < asked:
            looked(fetcher)
    return rows


@pytest.fixture
def fetcher_of():
    made = []

    def make(store, **options):
        made.append(Fetcher(StoreOrders(store=store, prefetch=Prefetch(**options), retry=Retry(attempts=2), batch=8)))
        return made[-1]

    yield make
    for fetcher in made:
        fetcher.close()
        fetcher.close()


def test_rows_come_with_payload_and_label(fetcher_of):
    rows = brought(fetcher_of(RemoteNumbers(300)), 300)
    assert sorted(rows) == list(range(300))
    for number, row in rows.items():
        assert row.label == number
        assert row.payload == (str(number).encode() * 50)[:50]


def test_memory_is_bounded_and_used_again(fetcher_of):
    fetcher = fetcher_of(RemoteNumbers(400, size=100_000), memory=1 << 20)
    places = Collected()
    for first in range(0, 400, 8):
        fetcher.ask({number: str(number) for number in range(first, first + 8)}, places)
        while len(places) < first + 8:
            fetcher.pump()
            if len(places) < first + 8:
                waited(fetcher)
        used = [places[number] for number in range(first, first + 8)]
        fetcher.taken(used)
        fetcher.free(used)
    assert max(place.offset for place in places.values()) < 8 << 20


@pytest.mark.parametrize(
    "slow", [{}, {8 * group: 0.02 for group in range(50)}], ids=["even", "the first of a group last"]
)
def test_sizes_that_rise_are_kept_within_the_memory(fetcher_of, slow):
    """Groups of eight, taken in the order asked for; many are asked for ahead. The last rows have 200 kB."""
    memory, largest, count = 4 << 20, 200_000, 400
    store = RemoteNumbers(count, size=100, growth=500, slow=slow)
    fetcher, places, asked = fetcher_of(store, memory=memory, ramp=0, window=16), Collected(), 0
    for first in range(0, count, 8):
        while asked < min(count, first + 128):
            fetcher.ask({number: str(number) for number in range(asked, asked + 8)}, places)
            asked += 8
        group = range(first, first + 8)
        while not all(number in places for number in group):
            fetcher.pump()
            assert 512 * os.fstat(fetcher.arena.fd).st_blocks < 1.25 * memory + 16 * (largest + 8192) + mmap.PAGESIZE
            if not all(number in places for number in group):
                waited(fetcher)
        for number in group:
            row = fetcher.arena.read(places[number], str(number))
            assert len(row.payload) == 100 + 500 * number
            assert row.payload.startswith(str(number).encode())
        used = [places[number] for number in group]
        fetcher.taken(used)
        fetcher.free(used)


def test_a_killed_fetcher_is_replaced_and_nothing_is_lost(fetcher_of, tmp_path):
    store = RemoteNumbers(200, kills={3, 50, 51, 120}, marks=str(tmp_path))
    fetcher = fetcher_of(store)
    rows = brought(fetcher, 200)
    assert sorted(rows) == list(range(200))
    assert all(row.label == number for number, row in rows.items())
    assert fetcher.network.restarts >= 3


@pytest.fixture
def impatient(monkeypatch):
    """A fetcher counts as hung sooner than it should on a busy machine, and later than one ever is in a test."""
    monkeypatch.setattr(fetcher_process, "SILENT_SECONDS", 3.0)


@pytest.mark.usefixtures("impatient")
def test_a_fetcher_that_hangs_is_replaced_and_nothing_is_lost(fetcher_of, tmp_path):
    fetcher = fetcher_of(RemoteNumbers(100, stops={30}, marks=str(tmp_path)))
    rows = brought(fetcher, 100)
    assert sorted(rows) == list(range(100))
    assert fetcher.network.restarts >= 1


@pytest.mark.usefixtures("impatient")
def test_a_fetcher_that_owes_nothing_may_be_silent(fetcher_of):
    fetcher = fetcher_of(RemoteNumbers(10))
    brought(fetcher, 10)
    pid = fetcher.pid
    os.kill(pid, signal.SIGSTOP)
    for _ in range(4):
        fetcher.pump()
        looked(fetcher)
    assert fetcher.pid == pid
    os.kill(pid, signal.SIGCONT)


def test_silence_counts_only_while_somebody_looks():
    pulse = Pulse(7, now=100.0)
    assert pulse.look(7, 100.5) == 0.5
    assert pulse.look(7, 5000.0) == 0.5 + LOOK_SECONDS  # whoever looks was stopped too
    assert pulse.look(8, 5000.1) == 0.0
    assert pulse.look(8, 5000.4) == pytest.approx(0.3)


def all_of(fetcher, numbers):
    """Ask for these rows and take each as it comes, without freeing any; their places by number."""
    found, taken = Collected(), set()
    fetcher.ask({number: str(number) for number in numbers}, found)
    while len(found) < len(numbers):
        fetcher.pump()
        fetcher.taken(place for number, place in found.items() if number not in taken)
        taken.update(found)
        if len(found) < len(numbers):
            waited(fetcher)
    return found


def test_what_a_dead_fetcher_brought_stays_where_it_lies(fetcher_of):
    fetcher = fetcher_of(RemoteNumbers(100))
    kept = all_of(fetcher, range(16))
    os.kill(fetcher.pid, signal.SIGKILL)
    more = all_of(fetcher, range(16, 48))
    for number, place in {**kept, **more}.items():
        row = fetcher.arena.read(place, str(number))
        assert (row.label, row.payload) == (number, (str(number).encode() * 50)[:50])


def test_a_missing_row_is_an_error_of_its_own(fetcher_of):
    fetcher = fetcher_of(RemoteNumbers(10, missing={4}))
    found = all_of(fetcher, range(10))
    with pytest.raises(MissingKey, match="numbers://nowhere has no row with the key '4'") as caught:
        fetcher.arena.read(found[4], "4")
    assert caught.value.key == "4"
    assert [number for number, place in found.items() if place.failed] == [4]


def test_a_store_that_refuses_says_why_and_again(fetcher_of):
    fetcher = fetcher_of(RemoteNumbers(refuses=True))
    fetcher.ask({0: "0"}, Collected())
    for _ in range(2):
        with pytest.raises(StoreRefused, match="wrong password"):
            while True:
                fetcher.pump()
                waited(fetcher)


def test_a_fetcher_that_never_brings_anything_is_given_up(fetcher_of):
    fetcher = fetcher_of(RemoteNumbers(10, always_dies=True))
    fetcher.ask({0: "0"}, Collected())
    with pytest.raises(StoreUnavailable, match="ended 4 times without bringing a row, the last time with exit code -9"):
        while True:
            fetcher.pump()
            waited(fetcher)


def test_what_nobody_waits_for_any_more_is_not_brought(fetcher_of):
    fetcher, dropped, found = fetcher_of(RemoteNumbers(100, slow={1: 30.0})), Collected(), Collected()
    fetcher.ask({0: "0", 1: "1"}, dropped)
    while 0 not in dropped:
        fetcher.pump()
        if 0 not in dropped:
            waited(fetcher)
    fetcher.drop([1])
    fetcher.ask({2: "2"}, found)
    while 2 not in found:
        fetcher.pump()
        if 2 not in found:
            waited(fetcher)
    assert 1 not in dropped


def test_whoever_waits_for_workers_goes_on_with_the_fetcher_meanwhile(fetcher_of):
    """What is still to be said to it, or was not heard, would end every sleep at once."""
    fetcher = fetcher_of(RemoteNumbers(16))
    groups, _ = first_of_two_here(fetcher)
    for _ in range(30):
        _, events = groups.wakes()
        assert not events & select.POLLOUT
        if not fetcher._asked:
            break
        looked(fetcher)
    assert not fetcher._asked
    groups.close()


def test_what_is_put_back_twice_leaves_nothing_of_the_first(fetcher_of):
    fetcher = fetcher_of(RemoteNumbers(16))
    groups, first = first_of_two_here(fetcher)
    groups.put_back([first.indices])
    groups.put_back([])
    again = []
    while (group := groups.next()) is not None:
        if group is NOT_YET:
            looked(fetcher)
        else:
            again.append(group)
    assert [group.indices for group in again] == [list(range(8)), list(range(8, 16))]
    assert not fetcher._asked
    assert len(fetcher._live) == 16
    first.release(range(8))
    assert len(fetcher._live) == 16, "what lies there now is another's"
    groups.close()
    assert not fetcher._live


def test_credentials_are_not_in_the_process_list(fetcher_of):
    store = RemoteNumbers(10)
    store.password = "visible-to-nobody"
    fetcher = fetcher_of(store)
    brought(fetcher, 10)
    shown = Path(f"/proc/{fetcher.pid}")
    assert b"visible-to-nobody" not in (shown / "cmdline").read_bytes() + (shown / "environ").read_bytes()


def test_the_fetcher_starts_without_torch_and_numpy():
    imports = "import sys, headrace.fetching.fetch_loop, headrace.store.cassandra.cassandra_store"
    program = f"{imports}; sys.exit(not {{'torch', 'numpy'}}.isdisjoint(sys.modules))"
    assert subprocess.run([sys.executable, "-c", program], timeout=240, check=False).returncode == 0


PROGRAM = """
import select
from headrace.core.options import Prefetch, Retry
from headrace.fetching.fetcher import Fetcher
from headrace.fetching.fetch_loop import StoreOrders
from headrace.sched.epochs.trainer_commands import Arrangement
from headrace.sched.groups import Groups
from headrace.sched.hand import NOT_YET
from tests.engine.remote import RemoteNumbers
from tests.sched.test_groups import Listed

class Mine(RemoteNumbers):
    pass

def main():
    fetcher, found = Fetcher(StoreOrders(store=Mine(8), prefetch=Prefetch(), retry=Retry(), batch=8)), []
    try:
        fetcher.ask({number: str(number) for number in range(8)}, found.append)
        while len(found) < 8:
            fetcher.pump()
            select.select([fetcher.waited_for()[0]], [], [], 1.0)
        print("brought", sorted(place.number for place in found))
    finally:
        fetcher.close()
"""


def test_a_class_of_the_program_itself_is_found(tmp_path):
    (tmp_path / "program.py").write_text(f"{PROGRAM}\nif __name__ == '__main__':\n    main()\n")
    done = _ran(tmp_path / "program.py")
    assert done.stderr == ""
    assert done.stdout == "brought [0, 1, 2, 3, 4, 5, 6, 7]\n"


@pytest.mark.parametrize("typed", [False, True], ids=["a program that cannot be run twice", "typed in"])
def test_where_it_cannot_be_found_it_is_said_what_to_do(tmp_path, typed):
    program = f"{PROGRAM}\nmain()\n"
    (tmp_path / "program.py").write_text(program)
    done = _ran("-c", program) if typed else _ran(tmp_path / "program.py")
    last = done.stderr.splitlines()[-1]
    assert "numbers://nowhere: the process that reads from it cannot load it" in last
    assert ("attribute 'Mine'" in last) is typed
    assert "below if __name__ == '__main__':" in last
    assert done.stdout == ""


def _ran(*arguments):
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    return subprocess.run(
        [sys.executable, *arguments], check=False, capture_output=True, text=True, timeout=240, env=environment
    )
