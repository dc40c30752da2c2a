"""``headrace trace hw`` with the loader itself."""

import json
import sys

import pytest

from headrace.cli.__main__ import main
from tests.trace.hardware.support import sampling  # noqa: F401  (a fixture)

PROGRAM = """
import hashlib, zlib
import headrace

TEXT = bytes(range(256)) * 256


class Compose:
    def __init__(self, *transforms):
        self.transforms = list(transforms)

    def __call__(self, sample):
        for transform in self.transforms:
            sample = transform(sample)
        return sample


class Texts:
    def __init__(self):
        self.transform = Compose(zlib.compress, Digest())

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
    with headrace.DataLoader(Texts(), batch_size=8, num_workers=2) as loader:
        for batch in loader:
            pass
"""


@pytest.mark.usefixtures("sampling")
def test_operations_of_a_dataset_are_found_in_its_workers(capfd, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    arguments = ["-o", str(tmp_path / "a.trace"), "--frequency", "2000", "--json", "--", sys.executable, str(script)]
    assert main(["trace", "hw", *arguments]) == 0
    found = {operation["name"]: operation for operation in json.loads(capfd.readouterr().out)["operations"]}
    assert (found["compress"]["calls"], found["Digest"]["calls"]) == (120, 120)
    assert found["compress"]["functions"][0]["library"].startswith("libz")
    assert found["Digest"]["functions"][0]["library"].startswith("libcrypto")
