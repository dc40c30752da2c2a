"""``headrace trace hw`` with the loader itself."""

import json
import sys

import pytest

from headrace.cli.__main__ import main
from tests.trace.hardware.support import sampling  # noqa: F401  (a fixture)

PROGRAM = """
import hashlib, sys, zlib
import headrace
from torchvision.transforms import Compose

TEXT = bytes(range(256)) * 256


class Texts:
    def __init__(self):
        self.transform = Compose([zlib.compress, Digest()])

    def __len__(self):
        return 120

    def __getitem__(self, index):
        return self.transform(TEXT)


class Digest:
    def __call__(self, packed):
        for _ in range(20):
            found = hashlib.sha256(TEXT).digest()
        return found[0]


if __name__ == "__main__":
    workers, *trace = sys.argv[1:]
    options = {"trace": trace[0]} if trace else {}
    with headrace.DataLoader(Texts(), batch_size=8, num_workers=int(workers), **options) as loader:
        for batch in loader:
            pass
"""


@pytest.mark.usefixtures("sampling")
def test_operations_of_a_dataset_are_found_in_its_workers(capfd, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    arguments = [
        "-o",
        str(tmp_path / "a.trace"),
        "--frequency",
        "2000",
        "--json",
        "--",
        sys.executable,
        str(script),
        "2",
    ]
    assert main(["trace", "hw", *arguments]) == 0
    found = {operation["name"]: operation for operation in json.loads(capfd.readouterr().out)["operations"]}
    assert (found["compress"]["calls"], found["Digest"]["calls"]) == (120, 120)
    assert found["compress"]["functions"][0]["library"].startswith("libz")
    assert found["Digest"]["functions"][0]["library"].startswith("libcrypto")


@pytest.mark.soak
@pytest.mark.usefixtures("sampling")
def test_a_script_may_name_its_own_trace(capfd, tmp_path):
    script, own = tmp_path / "train.py", tmp_path / "own.trace"
    script.write_text(PROGRAM)
    told = tmp_path / "a.trace"
    program = ["--", sys.executable, str(script), "2", str(own)]
    assert main(["trace", "hw", "-o", str(told), "--frequency", "2000", "--json", *program]) == 0
    out, err = capfd.readouterr()
    found = {operation["name"]: operation for operation in json.loads(out)["operations"]}
    assert (found["compress"]["calls"], found["Digest"]["calls"]) == (120, 120)
    assert found["Digest"]["samples"] > 0
    assert str(own) in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["own.trace", "own.trace.hw", "train.py"]
    assert main(["trace", "hw", "--read", str(own), "--json"]) == 0
    assert capfd.readouterr().out == out


@pytest.mark.soak
@pytest.mark.usefixtures("sampling")
def test_so_may_one_that_is_studied(capfd, tmp_path):
    script, own = tmp_path / "train.py", tmp_path / "own.trace"
    script.write_text(PROGRAM)
    program = ["--", sys.executable, str(script), "{workers}", str(own)]
    assert main(["trace", "study", "--workers", "1,2", "--json", *program]) == 0
    runs = json.loads(capfd.readouterr().out)["runs"]
    assert [run["workers"] for run in runs] == [1, 2]
    assert all(run["operations"]["Digest"]["calls"] == 120 for run in runs)
    assert all(run["operations"]["Digest"]["cpu_seconds"] > 0 for run in runs)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["own.trace", "train.py"]
