"""Files of perf records: what is read out of them, whole or cut off."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import TraceError
from headrace.trace.hardware.records import note, parse, read
from headrace.trace.hardware.symbols import Spaces
from tests.trace.hardware.support import execed, fork, lost, mmap2, sample

EVENTS = note(json.dumps({"events": {"5": "cpu-clock", "6": "page-faults"}, "kernel": False, "frequency": 99}).encode())


def test_samples_come_in_order_of_time_with_their_event():
    found = parse(EVENTS + sample(6, 0x20, 30, 4) + sample(5, 0x10, 20, 7, kernel=True) + sample(99, 1, 1))
    assert found.events == ["cpu-clock", "page-faults"]
    assert (found.kernel, found.frequency) == (False, 99)
    assert found.samples["time"].tolist() == [20, 30]
    assert found.samples["event"].tolist() == [0, 1]
    assert found.samples["ip"].tolist() == [0x10, 0x20]
    assert found.samples["period"].tolist() == [7, 4]
    assert found.samples["kernel"].tolist() == [True, False]


def test_a_fixed_period_is_told_once():
    found = parse(EVENTS + note(json.dumps({"periods": {"page-faults": 31}}).encode()) + sample(6, 1, 1, 0xDEAD))
    assert found.samples["period"].tolist() == [31]


def test_totals_and_losses_are_kept():
    raw = EVENTS + lost(3) + sample(5, 1, 1) + lost(4) + note(json.dumps({"totals": {"cpu-clock": [9, 8, 7]}}).encode())
    found = parse(raw)
    assert found.lost == 7
    assert found.totals == {"cpu-clock": (9, 8, 7)}


PERIODS = note(json.dumps({"periods": {"page-faults": 31}}).encode())
WHOLE = (
    PERIODS
    + EVENTS
    + b"".join(
        part
        for at in range(20)
        for part in (
            sample(5, at, 10 * at),
            mmap2(1, 10 * at, 0x1000 * at, 0x1000, 0, f"/lib/{at}.so"),
            fork(at + 2, 1, 10 * at),
        )
    )
)


@given(st.integers(0, len(WHOLE)))
def test_a_cut_file_gives_what_is_whole_in_it(length):
    found, complete = parse(WHOLE[:length]), parse(WHOLE)
    assert found.samples.tolist() == complete.samples.tolist()[: len(found.samples)]
    assert set(found.changes) <= set(complete.changes)
    assert len(found.samples) >= (length - len(PERIODS + EVENTS)) // 300


def test_a_forked_process_has_its_parents_mappings_and_a_new_program_none():
    raw = (
        EVENTS
        + mmap2(1, 10, 0x1000, 0x1000, 0x200, "/lib/a.so")
        + fork(2, 1, 20)
        + mmap2(1, 30, 0x1000, 0x1000, 0, "/lib/late.so")
        + fork(3, 1, 40)
        + execed(3, 50)
        + mmap2(3, 60, 0x1000, 0x1000, 0, "/lib/c.so")
    )
    spaces = Spaces(parse(raw).changes)

    def where(process: int, time: int, address: int) -> str | None:
        found = spaces.find(process, spaces.program(process, time), address)
        return found.file if found else None

    assert where(1, 100, 0x1500) == "/lib/late.so"
    assert where(2, 100, 0x1500) == "/lib/a.so"
    assert where(3, 45, 0x1500) == "/lib/late.so"
    assert where(3, 70, 0x1500) == "/lib/c.so"
    assert where(2, 100, 0x2000) is None


@pytest.mark.parametrize("raw", [b"", b"no records at all", sample(5, 1, 1)])
def test_any_other_file_is_refused(tmp_path, raw):
    path = tmp_path / "a.hw"
    path.write_bytes(raw)
    with pytest.raises(TraceError, match="no file of samples"):
        read(path)
    with pytest.raises(TraceError, match="cannot be read"):
        read(tmp_path / "none.hw")


@pytest.mark.parametrize("damage", [note(b"{"), note(b"[]"), note(b'{"totals": {"cycles": 1}}'), fork(1, 2, 3)[:16]])
def test_a_damaged_file_is_told(tmp_path, damage):
    path = tmp_path / "a.hw"
    path.write_bytes(note(b"{}") + damage[:6] + len(damage).to_bytes(2, "little") + damage[8:])
    with pytest.raises(TraceError, match="damaged"):
        read(path)
