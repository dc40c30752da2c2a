"""How much address space a loader takes, and where descriptors or memory are not to be had."""

import errno
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import LimitReached
from headrace.engine.memory import reservation
from headrace.engine.memory.limits import explained
from headrace.engine.memory.reservation import Extent, Reservation

ROOT = Path(__file__).parents[2]
GIB = 1 << 30


@given(
    lanes=st.integers(1, 80),
    prefetch=st.integers(1, 16),
    rows=st.one_of(st.none(), st.integers(1, 4096)),
    space=st.one_of(st.none(), st.integers(1 << 20, 1 << 40)),
)
def test_there_is_room_for_the_work(lanes, prefetch, rows, space):
    batches = prefetch * lanes
    dims = Extent(lanes, batches, rows).dims(space)
    assert dims.lanes >= lanes
    assert dims.groups > batches + lanes
    assert dims.slots > lanes
    assert dims.rows >= (1024 if rows is None else rows)


@given(space=st.integers(4 * GIB, 1 << 40), rows=st.one_of(st.none(), st.integers(1, 4096)))
def test_it_takes_a_part_of_what_there_is(space, rows):
    dims = Extent(3, 4, rows).dims(space)
    assert reservation.fixed(dims) + dims.slots * reservation.USUAL <= space


def test_of_an_unlimited_space(monkeypatch):
    monkeypatch.setattr(reservation, "address_space", lambda: None)
    memory = Reservation.of(Extent(3, 4, 64))
    assert memory.slot_bytes == reservation.SLOT
    assert not memory.shortage
    memory.close()


def test_of_a_limited_space(monkeypatch):
    monkeypatch.setattr(reservation, "address_space", lambda: 8 * GIB)
    memory = Reservation.of(Extent(3, 4, 64))
    assert len(memory.map) <= 2 * GIB
    assert memory.slot_bytes >= 64 << 20
    assert "ulimit -v" in memory.shortage
    memory.close()


LIMITED = """
import json, multiprocessing, resource
multiprocessing.set_start_method("fork")  # the class is typed in: nobody else finds it
resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
import torch, headrace

class Images(torch.utils.data.Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, index):
        return torch.full((3, 224, 224), index, dtype=torch.float32)

def loader(**options):
    return headrace.DataLoader(Images(), timeout=240, **options)

loaders = [
    loader(batch_size=16, num_workers=2, persistent_workers=True),
    loader(batch_size=16, num_workers=2, persistent_workers=True),
    loader(batch_sampler=[list(range(24)), list(range(24, 48))], num_workers=None),
]
iterators = [iter(each) for each in loaders]
print(json.dumps([[int(image[0, 0, 0]) for batch in each for image in batch] for each in iterators]))
"""


def run(program: str) -> str:
    command = [sys.executable, "-W", "error", "-c", program]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=True).stdout


def test_three_loaders_in_sixteen_gibibytes_of_address_space():
    assert json.loads(run(LIMITED)) == [list(range(48))] * 3


NO_FILES = """
import json, os, resource
import headrace

def attempt(spare):
    loader = headrace.DataLoader(list(range(8)), num_workers=2, timeout=240)
    taken = set(map(int, os.listdir("/proc/self/fd")))
    vacant = [number for number in range(max(taken) + 100) if number not in taken]
    resource.setrlimit(resource.RLIMIT_NOFILE, (vacant[spare], hard))
    try:
        return [batch.item() for batch in loader]
    except headrace.HeadraceError as error:
        return [type(error).__name__, isinstance(error, OSError), str(error)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

list(headrace.DataLoader(list(range(8)), num_workers=2))
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
print(json.dumps([attempt(spare) for spare in (0, 1, 2, 3, 4, 5, 6, 7, 9, 11, 13, 15, 17, 60)]))
"""


def test_descriptors_run_out_at_any_point():
    *refused, whole = json.loads(run(NO_FILES))
    assert whole == list(range(8))
    assert "LimitReached" in {answer[0] for answer in refused}
    for answer in refused:
        if answer != list(range(8)):
            name, is_os_error, text = answer
            assert name == "LimitReached", text
            assert is_os_error
            assert "ulimit -n" in text


@pytest.mark.parametrize("number", ["ENFILE", "EAGAIN", "ENOMEM"])
def test_other_limits_are_named(number):
    code = getattr(errno, number)
    with pytest.raises(LimitReached, match=r"cannot do it: .*use fewer workers") as caught, explained("do it"):
        raise OSError(code, "refused")
    assert caught.value.errno == code
    with pytest.raises(FileNotFoundError), explained("do it"):
        raise FileNotFoundError(2, "not a limit")
