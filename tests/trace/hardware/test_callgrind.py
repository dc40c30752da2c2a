"""Exact counts under valgrind."""

import json
import platform
import shutil
import sys
from pathlib import Path

import pytest

from headrace.cli.__main__ import main
from headrace.trace.hardware import callgrind
from headrace.trace.hardware.callgrind_file import read
from headrace.trace.hardware.mapping import counted
from headrace.trace.probe import Probe
from tests.trace.hardware.support import PROGRAM


def test_costs_are_summed_by_operation_and_function():
    counts = read(Path(__file__).with_name("data"))
    assert counts.events == ["Ir", "Dr", "D1mr"]
    assert list(counts.operations) == ["Resize image", "Flip"]  # what ran at exit is no operation
    resize = counts.operations["Resize image"]
    assert resize.calls == 2
    costs = {(function.name, function.library): values for function, values in resize.functions.items()}
    # A callee's cost is its own, not its caller's too.
    assert costs == {("resample", "libimage.so"): [150, 15, 2], ("memcpy", "libc.so.6"): [20, 2, 1]}


def test_exact_counts_make_a_mapping_too():
    found = counted(read(Path(__file__).with_name("data")))
    resample, memcpy = found["Resize image"]
    assert (resample.function, resample.samples, resample.share) == ("resample", 150, pytest.approx(150 / 170))
    assert (memcpy.belongs_low, memcpy.belongs, memcpy.belongs_high) == (1.0, 1.0, 1.0)


@pytest.mark.parametrize("limit", ["", "3", "three"])
def test_a_program_outside_valgrind_is_left_alone(limit):
    assert callgrind.measuring(limit) is None


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the request is machine code of x86-64")
def test_requests_do_nothing_outside_valgrind():
    measured = callgrind.Callgrind(1)
    assert not measured.present
    measured.enter("a")
    measured.leave("a")


def test_a_recorders_probe_measures_its_operations(monkeypatch):
    seen = []

    class Fake:
        def enter(self, operation):
            seen.append(("enter", operation))

        def leave(self, operation):
            seen.append(("leave", operation))

    monkeypatch.setattr(callgrind, "measuring", lambda limit: Fake() if limit == "3" else None)
    probe = Probe()
    callgrind.attach(probe, ["read", "resize"], "3")
    assert probe.timed(lambda x: x + 1, 2, 0)(1) == 2
    with pytest.raises(ZeroDivisionError):
        probe.timed(lambda: 1 / 0, 1, 0)()
    assert seen == [("enter", "resize"), ("leave", "resize"), ("enter", "read"), ("leave", "read")]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the request is machine code of x86-64")
def test_only_the_innermost_operation_is_measured_and_not_too_often(monkeypatch):
    measured = callgrind.Callgrind(2)
    requests = []
    monkeypatch.setattr(measured, "_request", lambda code, argument=0: requests.append(code))
    for _ in range(3):
        measured.enter("outer")
        measured.enter("inner")
        measured.leave("inner")
        measured.leave("outer")
    assert requests.count(callgrind._DUMP_AT) == 2
    assert measured._calls == {"inner": 2}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed (apt-get install valgrind)")
def test_operations_are_counted_alone(capfd):
    assert (
        main(["trace", "hw", "--callgrind", "--calls", "1", "--json", "--", sys.executable, str(PROGRAM), "1", "2"])
        == 0
    )
    found = json.loads(capfd.readouterr().out)
    assert {name: operation["calls"] for name, operation in found.items()} == {"compress": 1, "digest": 1, "sort": 1}
    for name, library in (("compress", "libz"), ("digest", "libcrypto"), ("sort", "_multiarray_umath")):
        costs = {}
        for function in found[name]["functions"]:
            costs[function["library"]] = costs.get(function["library"], 0) + function["counts"]["Ir"]
        assert max(costs, key=costs.get).startswith(library)
        others = {"libz", "libcrypto", "_multiarray_umath"} - {library}
        foreign = sum(cost for known, cost in costs.items() if known.startswith(tuple(others)))
        assert foreign <= 0.02 * sum(costs.values())


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed (apt-get install valgrind)")
@pytest.mark.parametrize(("program", "code"), [("true", 2), ("false", 1)])
def test_a_program_without_operations_is_told_so(capfd, program, code):
    assert main(["trace", "hw", "--callgrind", "--", program]) == code
    err = capfd.readouterr().err
    assert "num_workers=0" in err
    assert len(err.strip().splitlines()) == 1


def test_valgrind_must_be_there(monkeypatch, capsys):
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert main(["trace", "hw", "--callgrind", "--", "true"]) == 2
    assert "apt-get install valgrind" in capsys.readouterr().err
