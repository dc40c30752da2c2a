"""``headrace trace hw``: what it prints, writes and refuses."""

import errno
import json
import os
import resource
import sys

import pytest

from headrace.cli.__main__ import main
from headrace.trace.hardware import perf
from tests.trace.hardware.support import PROGRAM, sampling  # noqa: F401  (a fixture)

HOME = {"libz": "compress", "libcrypto": "digest", "_multiarray_umath": "sort"}
"""Where the functions of a library belong."""


@pytest.fixture
def program() -> list[str]:
    return ["--", sys.executable, str(PROGRAM)]


def run(capfd, *arguments: str) -> tuple[int, str, str]:
    code = main(["trace", "hw", *arguments])
    captured = capfd.readouterr()
    return code, captured.out, captured.err


@pytest.mark.usefixtures("sampling")
def test_samples_land_in_the_right_operation(capfd, tmp_path, program):
    trace, links = tmp_path / "a.trace", tmp_path / "map.json"
    code, out, _ = run(
        capfd, "-o", str(trace), "--frequency", "2000", "--mapping", str(links), "--json", *program, "2", "200"
    )
    assert code == 0
    found = json.loads(out)
    right = wrong = 0
    for operation in found["operations"]:
        for function in operation["functions"]:
            home = next((home for library, home in HOME.items() if function["library"].startswith(library)), None)
            if home and operation["name"] in HOME.values():
                right += function["samples"] * (operation["name"] == home)
                wrong += function["samples"] * (operation["name"] != home)
    assert right > 100
    assert wrong <= 0.02 * right
    calls = {operation["name"]: operation["calls"] for operation in found["operations"]}
    assert [calls[name] for name in HOME.values()] == [200, 200, 200]
    assert run(capfd, "--read", str(trace), "--json")[:2] == (0, out)  # nothing but the files is needed
    entry = json.loads(links.read_text())["operations"]["compress"][0]
    assert entry["library"].startswith("libz")
    assert entry["samples"] > 10
    assert entry["share_low"] < entry["share"] < entry["share_high"]
    assert entry["belongs_low"] <= entry["belongs"] <= entry["belongs_high"]


@pytest.mark.usefixtures("sampling")
def test_tables_are_printed_for_people(capfd, tmp_path, program):
    code, out, _ = run(capfd, "-o", str(tmp_path / "a.trace"), *program, "1", "60")
    assert code == 0
    for word in ("compress", "digest", "sort", "samples", "kernel", "95 %", "libz"):
        assert word in out


@pytest.mark.usefixtures("sampling")
def test_only_own_code_is_sampled_where_the_kernels_is_forbidden(capfd, tmp_path, program, monkeypatch):
    real = perf._perf_event_open

    def strict(event, pace, flags, processor):
        return real(event, pace, flags, processor) if flags & perf._NO_KERNEL else (-1, errno.EACCES)

    monkeypatch.setattr(perf, "_perf_event_open", strict)
    code, out, _ = run(capfd, "-o", str(tmp_path / "a.trace"), *program, "1", "60")
    assert code == 0
    assert "Kernel code was not sampled" in out
    code, out, _ = run(capfd, "--read", str(tmp_path / "a.trace"), "--json")
    found = json.loads(out)
    assert not found["kernel"]
    assert all(operation["parts"]["kernel"] == 0 for operation in found["operations"])


def test_without_permission_the_way_out_is_told(capfd, tmp_path, program, monkeypatch):
    monkeypatch.setattr(perf, "_perf_event_open", lambda *_: (-1, errno.EACCES))
    code, _, err = run(capfd, "-o", str(tmp_path / "a.trace"), *program, "1", "1")
    assert code == 2
    assert "perf_event_paranoid" in err
    assert len(err.strip().splitlines()) == 1
    assert os.listdir(tmp_path) == []  # noqa: PTH208  (a list is compared)


@pytest.mark.usefixtures("sampling")
def test_an_event_the_machine_lacks_is_refused(capfd, tmp_path, monkeypatch):
    real = perf._perf_event_open
    monkeypatch.setattr(
        perf,
        "_perf_event_open",
        lambda event, *rest: (-1, errno.ENOENT) if event.name == "cycles" else real(event, *rest),
    )
    code, _, err = run(capfd, "-o", str(tmp_path / "a.trace"), "--events", "cycles", "--", "true")
    assert (code, "--events cycles: this machine cannot count it" in err) == (2, True)


@pytest.mark.usefixtures("sampling")
def test_chosen_events_are_sampled(capfd, tmp_path, program):
    events = "context-switches,minor-faults"
    code, out, _ = run(capfd, "-o", str(tmp_path / "a.trace"), "--events", events, "--json", *program, "2", "40")
    assert code == 0
    assert json.loads(out)["events"] == ["cpu-clock", "context-switches", "minor-faults"]


@pytest.mark.usefixtures("sampling")
def test_the_programs_limits_are_its_own(capfd, tmp_path, program):
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, before[1]))  # too few for many processors
    try:
        code, out, _ = run(capfd, "-o", str(tmp_path / "a.trace"), *program, "1", "1")
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 200
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert (code, "descriptors: 200" in out) == (0, True)


@pytest.mark.usefixtures("sampling")
def test_the_programs_exit_code_is_passed_on(capfd, tmp_path, program):
    code, out, err = run(capfd, "-o", str(tmp_path / "a.trace"), *program, "1", "5", "7")
    assert (code, "ended with exit code 7" in err, "compress" in out) == (7, True, True)
    code, _, err = run(capfd, "-o", str(tmp_path / "b.trace"), "--", "false")
    assert (code, "ended with exit code 1" in err) == (1, True)
    assert not list(tmp_path.glob("b.trace*"))


@pytest.mark.usefixtures("sampling")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--", "true"], "recorded nothing"),
        (["--", "no-such-program"], "cannot run 'no-such-program'"),
        ([], "nothing to run"),
        (["--"], "nothing to run"),
        (["--frequency", "0", "--", "true"], "--frequency"),
        (["--events", "hopes", "--", "true"], "no event named 'hopes'"),
        (["--read", "none.trace"], "none.trace: cannot be read"),
        (["--import", "none.csv"], "--import needs --mapping"),
        (["--import", "none.csv", "--mapping", "none.json"], "none.csv: cannot be read"),
        (["-o", "no/such/folder", "--", "true"], "name a file in a directory that exists"),
    ],
)
def test_mistakes_are_told_in_one_line(capfd, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    code, _, err = run(capfd, *arguments)
    assert code == 2
    assert message in err
    assert len(err.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("sampling")
def test_a_file_that_is_no_trace_is_left_alone(capfd, tmp_path):
    path = tmp_path / "thesis.txt"
    path.write_text("years of work")
    code, _, err = run(capfd, "-o", str(path), "--", "true")
    assert (code, "left alone" in err, path.read_text()) == (2, True, "years of work")


def test_a_vendors_profile_is_split_by_a_mapping(capfd, tmp_path):
    links = tmp_path / "map.json"
    entry = {"function": "decode_mcu", "library": "libjpeg.so.62", "part": "native", "samples": 3}
    entry |= dict.fromkeys(["share", "share_low", "share_high", "belongs", "belongs_low", "belongs_high"], 0.5)
    links.write_text(json.dumps({"format": "headrace mapping 1", "operations": {"Load": [entry]}}))
    export = str(PROGRAM.with_name("data") / "vtune_hotspots.csv")
    code, out, _ = run(capfd, "--import", export, "--mapping", str(links), "--json")
    assert code == 0
    assert json.loads(out)["operations"]["Load"]["CPU Time"] == 4.0
    code, out, _ = run(capfd, "--import", export, "--mapping", str(links))
    assert (code, "their measured samples" in " ".join(out.split()), "50.0% of CPU Time" in out) == (0, True, True)
    for damaged in ("{}", '{"format": "headrace mapping 1", "operations": []}'):
        links.write_text(damaged)
        code, _, err = run(capfd, "--import", export, "--mapping", str(links))
        assert (code, "this is no mapping" in err) == (2, True)
