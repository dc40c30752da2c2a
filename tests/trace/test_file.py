"""What was recorded can be read, whatever happened to the processes, the disk and the file."""

import multiprocessing as mp
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import TraceError
from headrace.trace import format as F
from headrace.trace import trace_file
from headrace.trace.analysis.operation_times import slow_samples
from headrace.trace.reader import read
from headrace.trace.trace_file import record
from tests.selection import examples

RUN = 4711


def sample(stream, index, *, operations=(), start=None, flags=0, cpu=-1):
    start = time.monotonic_ns() if start is None else start
    marks = [word for head in stream.operations(list(operations)) for word in (F.span(10), head + start)]
    stream.sample(index, start, 100, cpu, 7 << 32 | 9, flags, marks)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.trace"


def test_an_interrupt_while_the_file_is_another_s_leaves_it_to_other_threads(path, monkeypatch):
    stream = record(path).stream()

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(trace_file.fcntl, "lockf", interrupted)
        with pytest.raises(KeyboardInterrupt):
            sample(stream, 1)
    assert not trace_file._threads.locked()
    sample(stream, 2)
    assert read(path).samples["index"].tolist() == [2]


class TestRecords:
    def test_a_sample_may_have_a_key_beside_its_index(self, path):
        stream = record(path).stream()
        now = time.monotonic_ns()
        marks = [word for head in stream.operations(["Crop"]) for word in (F.span(40), head + now)]
        stream.sample(17, now, 100, 50, 0, *stream.keyed("scan/17.png", F.SLOW, marks))
        stream.sample("other", now, 100, 50, 0, 0, marks)
        trace = read(path)
        assert [(row["index"], trace.names[row["key"]], row["operations"]) for row in trace.samples] == [
            (17, "scan/17.png", 1), (-1, "'other'", 1),
        ]  # fmt: skip
        assert trace.operations["sample"].tolist() == [0, 1]
        _, (slow,) = slow_samples(trace)
        assert (slow.index, slow.key) == ("17", "scan/17.png")

    def test_a_key_that_is_no_text_is_no_error(self, path):
        stream = record(path).stream()
        stream.sample(17, time.monotonic_ns(), 100, 50, 0, *stream.keyed("scan/\udcff.png", F.SLOW, []))
        trace = read(path)
        assert trace.names[trace.samples["key"][0]] == "scan/\\udcff.png"

    def test_everything_that_was_recorded_is_read(self, path):
        recording = record(path)
        stream = recording.stream()
        now = time.monotonic_ns()
        stream.describe(F.STREAM_TEXT, {"role": "worker", "lane": 3})
        stream.describe(F.RUN_TEXT, {"run": RUN, "loader": "train", "epoch": 2, "workers": 5})
        stream.run(RUN, now)
        marks = [word for head in stream.operations(["Crop", "Flip"]) for word in (F.span(40, 20), head + now)]
        stream.sample(17, now, 100, 50, 7 << 32 | 9, F.SLOW, marks)
        stream.rows(6, 2, 1, now + 100, 5)
        stream.collate(6, 8, now + 200, 11)
        stream.batch(6, 8, 1, 4, now + 300, 12)
        stream.copy(6, 1 << 40, now + 400, 13)
        stream.span("forward", now + 500, 14)
        stream.counter("lanes", 5, now + 600)
        stream.event("death", 1, now + 700)
        trace = read(path)
        start = now - recording.base
        assert trace.streams[0].lane == 3
        assert trace.streams[0].thread == threading.get_native_id()
        (run,) = trace.runs
        assert (run.loader, run.epoch, run.facts) == ("train", 2, {"workers": 5})
        (made,) = trace.records("samples")
        assert made[:5] == (start, 100, 50, 0, 0)
        assert (made.index, made.batch, made.row, made.bytes_in, made.bytes_out) == (17, 6, 2, 7, 9)
        assert (made.slow, made.failed, made.operations) == (True, False, 2)
        crop, flip = trace.records("operations")
        assert (crop.name, crop.position, crop.elapsed, crop.cpu) == ("Crop", 0, 40, 20)
        assert (flip.name, flip.position, flip.sample) == ("Flip", 1, 0)
        assert next(trace.records("collations")).samples == 8
        delivered = next(trace.records("batches"))
        assert (delivered.batch, delivered.samples, delivered.ready, delivered.outstanding) == (6, 8, 1, 4)
        assert type(delivered).__name__ == "Batch"
        assert (delivered.start, delivered.elapsed) == (start + 300, 12)
        assert next(trace.records("copies")).bytes == 1 << 40
        assert next(trace.records("spans")).name == "forward"
        lanes, death = next(trace.records("counters")), next(trace.records("marks"))
        assert (lanes.name, lanes.value, lanes.time) == ("lanes", 5, start + 600)
        assert (death.name, death.value) == ("death", 1)
        assert trace.events == 10

    @settings(max_examples=examples(60))
    @given(
        st.lists(
            st.tuples(
                st.one_of(st.integers(0, 2**52 - 1), st.text(max_size=40)),
                st.lists(st.sampled_from(["a", "ü" * 20, "c"]), max_size=6),
                st.integers(0, 2**39),
                st.booleans(),
            ),
            max_size=60,
        )
    )
    def test_any_samples_survive_the_way_through_the_file(self, tmp_path_factory, made):
        where = tmp_path_factory.mktemp("trace") / "t"
        recording = record(where)
        stream = recording.stream()
        stream.run(RUN, recording.base)
        for at, (index, operations, elapsed, failed) in enumerate(made):
            heads = stream.operations(operations)
            marks = [word for head in heads for word in (F.span(3), head + recording.base + at)]
            stream.sample(index, recording.base + at, elapsed, elapsed, 0, F.FAILED * failed, marks)
            if not failed:
                stream.rows(at, at % 7, 1, recording.base + at, 0)
        trace = read(where)
        found = [
            (
                trace.names[row["key"]] if row["key"] >= 0 else int(row["index"]),
                int(row["elapsed"]),
                bool(row["failed"]),
            )
            for row in trace.samples
        ]
        assert found == [(repr(i) if isinstance(i, str) else i, elapsed, failed) for i, _, elapsed, failed in made]
        assert [int(batch) for batch in trace.samples["batch"]] == [
            -1 if failed else at for at, (_, _, _, failed) in enumerate(made)
        ]
        names = [[] for _ in made]
        for operation in trace.records("operations"):
            names[operation.sample].append(operation.name)
        assert names == [operations for _, operations, _, _ in made]

    def test_writes_name_the_samples_that_landed_nowhere_before(self, path):
        stream = record(path).stream()
        stream.run(RUN, time.monotonic_ns())
        for index, flags in ((0, 0), (1, F.FAILED), (2, 0), (3, 0)):
            sample(stream, index, flags=flags)
        stream.rows(9, 4, 2, time.monotonic_ns(), 1)
        stream.rows(10, 0, 1, time.monotonic_ns(), 1)
        samples = read(path).samples
        assert samples["batch"].tolist() == [9, -1, 9, 10]
        assert samples["row"].tolist() == [4, -1, 5, 0]

    def test_samples_of_an_abandoned_run_land_nowhere(self, path):
        stream = record(path).stream()
        stream.run(1, time.monotonic_ns())
        sample(stream, 0)
        stream.run(2, time.monotonic_ns())
        sample(stream, 1)
        stream.rows(0, 0, 1, time.monotonic_ns(), 1)
        assert read(path).samples["batch"].tolist() == [-1, 0]

    def test_arrow_tables_have_the_same_columns(self, path):
        stream = record(path).stream()
        sample(stream, 5, operations=["Crop"])
        trace = read(path)
        assert trace.arrow("samples")["index"].to_pylist() == [5]
        assert trace.arrow("operations")["name"].to_pylist() == ["Crop"]


class TestProcesses:
    def test_threads_and_forked_processes_have_streams_of_their_own(self, path):
        recording = record(path)
        sample(recording.stream(), 1)

        def work(index):
            sample(recording.stream(), index)

        thread = threading.Thread(target=work, args=(2,))
        thread.start()
        thread.join()
        child = mp.get_context("fork").Process(target=work, args=(3,))
        child.start()
        child.join()
        sample(recording.stream(), 4)
        trace = read(path)
        by_stream = {trace.streams[s].thread: [] for s in range(len(trace.streams))}
        for row in trace.samples:
            by_stream[trace.streams[row["stream"]].thread].append(int(row["index"]))
        assert sorted(by_stream.values()) == [[1, 4], [2], [3]]
        assert child.pid in by_stream

    def test_a_spawned_process_joins(self, path):
        recording = record(path)
        child = mp.get_context("spawn").Process(target=_record_one, args=(recording,))
        child.start()
        child.join()
        assert child.exitcode == 0
        assert read(path).samples["index"].tolist() == [99]

    def test_a_killed_process_loses_nothing_it_had_recorded(self, path):
        recording = record(path)
        got, told = mp.Pipe(duplex=False)
        child = mp.get_context("fork").Process(target=_record_for_ever, args=(recording, told))
        child.start()
        told.close()
        reached = got.recv()
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        while got.poll():
            try:
                reached = got.recv()
            except EOFError:
                break
        got.close()
        trace = read(path)
        found = trace.samples["index"].tolist()
        assert found == list(range(len(found)))
        assert len(found) >= reached
        assert (trace.samples["operations"] == 2).all()
        assert len(trace.operations) == 2 * len(found)

    def test_a_trace_can_be_read_while_it_is_written(self, path):
        stream = record(path).stream()
        for count in range(1, 4):
            sample(stream, count)
            assert len(read(path).samples) == count

    def test_two_programs_share_a_file_that_both_write_to(self, path):
        recording = record(path)
        sample(recording.stream(), 1)
        program = (
            "import sys, time; from headrace.trace.trace_file import record\n"
            "record(sys.argv[1]).stream().sample(2, time.monotonic_ns(), 5, 1, 0, 0, [])"
        )
        subprocess.run([sys.executable, "-c", program, str(path)], check=True)
        assert sorted(read(path).samples["index"].tolist()) == [1, 2]


class TestReplacing:
    def test_a_finished_trace_of_another_program_is_replaced(self, path):
        program = (
            "import sys, time; from headrace.trace.trace_file import record\n"
            "record(sys.argv[1]).stream().sample(2, time.monotonic_ns(), 5, 1, 0, 0, [])"
        )
        for _ in range(2):
            subprocess.run([sys.executable, "-c", program, str(path)], check=True)
            assert len(read(path).samples) == 1

    def test_this_program_goes_on_with_its_own(self, path):
        for count in (1, 2):
            recording = record(path)
            sample(recording.stream(), count)
            del recording
        assert read(path).samples["index"].tolist() == [1, 2]

    def test_any_other_file_is_left_alone(self, path):
        path.write_text("precious")
        with pytest.raises(TraceError, match="is not a trace"):
            record(path)
        assert path.read_text() == "precious"

    def test_a_directory_that_does_not_exist_is_named(self, tmp_path):
        with pytest.raises(TraceError, match=r"nowhere.*directory that exists"):
            record(tmp_path / "nowhere" / "run.trace")


class TestDamage:
    def test_foreign_and_empty_files_are_refused(self, path):
        for content, message in ((b"", "empty"), (b"PK\x03\x04" * 100, "not a headrace trace")):
            path.write_bytes(content)
            with pytest.raises(TraceError, match=message):
                read(path)
        with pytest.raises(TraceError, match="cannot be read"):
            read(path.with_name("missing"))

    def test_a_later_format_is_named(self, path):
        record(path)
        raw = bytearray(path.read_bytes())
        raw[16:20] = (7).to_bytes(4, "little")
        path.write_bytes(raw)
        with pytest.raises(TraceError, match="format 7"):
            read(path)

    @settings(max_examples=examples(40))
    @given(st.floats(0, 1))
    def test_a_file_cut_off_anywhere_gives_what_is_left_or_an_error(self, tmp_path_factory, share):
        where = tmp_path_factory.mktemp("cut") / "t"
        stream = record(where).stream()
        for index in range(200):
            sample(stream, index, operations=["a", "b"])
        raw = where.read_bytes()
        used = F.EXTENT + F.UNITS_OFFSET + 200 * 64 + 200
        cut = int(share * used)
        where.with_name("cut").write_bytes(raw[:cut])
        try:
            trace = read(where.with_name("cut"))
        except TraceError:
            assert cut < F.HEADER.size
            return
        found = trace.samples["index"].tolist()
        assert found == list(range(len(found)))
        assert len(trace.operations) == 2 * len(found)

    def test_a_full_disk_ends_the_trace_and_nothing_else(self, path):
        recording = record(path)
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (3 * F.EXTENT, before[1]))
        try:
            with pytest.warns(RuntimeWarning, match="ends here"):
                _record_many(recording, 20_000)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        trace = read(path)
        assert not trace.complete
        assert 1000 < len(trace.samples) < 20_000
        assert trace.samples["index"].tolist() == list(range(len(trace.samples)))


class TestCost:
    def test_an_event_takes_at_most_32_bytes(self, path):
        stream = record(path).stream()
        for index in range(20_000):
            sample(stream, index)
            stream.rows(index, 0, 1, time.monotonic_ns(), 1)
        trace = read(path)
        assert trace.size / trace.events <= 34  # nothing but samples and writes, and a started extent
        wide = record(path.with_name("wide")).stream()
        for index in range(5_000):
            sample(wide, index, operations=["a", "b", "c", "d"])
            wide.rows(index, 0, 1, time.monotonic_ns(), 1)
        trace = read(path.with_name("wide"))
        assert trace.size / trace.events <= 26

    def test_memory_does_not_grow_with_the_trace(self, path):
        stream = record(path).stream()
        sample(stream, 0)
        mapped = _mappings(path)
        for index in range(10_000):
            sample(stream, index)
        assert _mappings(path) == mapped


def test_the_file_is_closed_when_nobody_records(path):
    def open_files():
        return sum(fd.resolve() == path for fd in Path("/proc/self/fd").iterdir())

    stream = record(path).stream()
    sample(stream, 1)
    assert open_files() > 0
    del stream
    assert open_files() == 0
    assert len(read(path).samples) == 1


def _mappings(path):
    return sum(str(path) in line for line in Path("/proc/self/maps").read_text().splitlines())


def _record_many(recording, count):
    for index in range(count):
        sample(recording.stream(), index)


def _record_one(recording):
    sample(recording.stream(), 99)


def _record_for_ever(recording, told):
    stream = recording.stream()
    for index in range(10_000_000):
        sample(stream, index, operations=["a", "b"])
        if index % 5_000 == 4_999:
            told.send(index)
