"""Shards that other libraries wrote are read bit for bit; theirs run in an environment of their own, if it is there."""

import io
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from headrace import store
from headrace.core.errors import StoreRefused
from headrace.store import LabelKind
from tests.services.fixtures import NOT_HAD

pytestmark = pytest.mark.service

HERE = Path(__file__).parent
PYTHON = HERE.parents[2] / ".venv-peers" / "bin" / "python"


def run(script, *arguments):
    """A script in the peers' environment. It takes gigabytes, so what does without it is skipped and counted, in
    continuous integration too.
    """
    if not PYTHON.exists():
        pytest.skip(f"what their own libraries write and read {NOT_HAD} make bench-peers makes .venv-peers")
    done = subprocess.run(
        [PYTHON, HERE / script, *map(str, arguments)], capture_output=True, text=True, timeout=240, check=False,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("theirs")
    run("peers_write.py", folder)
    return folder


def array(payload):
    return np.load(io.BytesIO(bytes(payload)), allow_pickle=False)


def picture(number):
    return np.array([(number + at) % 256 for at in range(36)], np.uint8).reshape(3, 4, 3)


@pytest.mark.parametrize("codec", [None, "zstd:3", "br:4", "snappy", "gz:2", "bz2:2"])
def test_mds_of_every_column_type_and_compression(theirs, codec):
    url = f"mds://{theirs}/mds-{codec}"
    expected = {
        "image": picture,
        "free": lambda n: np.arange(n + 1, dtype=np.uint8).reshape(1, -1),
        "typed": lambda n: np.full(3, n, np.int16),
        "fixed": lambda n: np.full((2, 3), n, np.float32),
    }
    for name, made in expected.items():
        opened = store.open_store(f"{url}?data={name}")
        for n, key in enumerate(opened.keys()):
            row = opened.get(key)
            assert row.label == n % 3
            found = array(row.payload)
            assert found.dtype == made(n).dtype
            assert np.array_equal(found, made(n))
    opened = store.open_store(f"{url}?data=raw")
    assert [bytes(opened.get(key).payload) for key in opened.keys()] == [bytes([n]) * (n + 1) for n in range(12)]  # noqa: SIM118
    columns = opened.columns()
    assert columns["name"].tolist() == [f"n{n}é" for n in range(12)]
    assert columns["score"].tolist() == [n / 4 for n in range(12)]
    assert columns["big"].tolist() == list(range(12))
    assert columns["exact"].tolist() == [str(n) for n in range(12)]
    assert opened.info().rows == 12


def test_tars(theirs):
    opened = store.open_store(f"wds://{theirs}/wds/train-{{000..002}}.tar")
    assert [opened.get(key) for key in opened.keys()] == [  # noqa: SIM118
        (f"x{n:03}", bytes([n]) * (100 * n), n % 3) for n in range(12)
    ]
    assert opened.columns(["site"])["site"].tolist() == [f"s{n % 2}" for n in range(12)]


@pytest.mark.parametrize("level", ["none", "chunk"])
def test_litdata_of_every_data_format(theirs, level):
    url = f"litdata://{theirs}/lit-{level}"
    expected = {
        "image": picture,
        "array": lambda n: np.full((2, 3), n, np.int16),
        "tensor": lambda n: np.full((2, 2), n, np.int64),
        "flat": lambda n: np.arange(n + 1, dtype=np.int64),
    }
    for name, made in expected.items():
        opened = store.open_store(f"{url}?data={name}")
        for n, key in enumerate(opened.keys()):
            row = opened.get(key)
            assert row.label == n % 3
            found = array(row.payload)
            assert found.dtype == made(n).dtype
            assert np.array_equal(found, made(n))
    opened = store.open_store(f"{url}?data=raw.inner&label=name")
    assert [(bytes(row.payload), row.label) for row in opened.get_many(opened.keys())] == [
        (bytes([n]) * (n + 1), f"n{n}é".encode()) for n in range(12)
    ]
    assert opened.columns(["ok"])["ok"].tolist() == [n % 2 == 0 for n in range(12)]
    assert opened.info().labels is LabelKind.BLOB


def test_litdata_compressed_by_batch_says_so(theirs):
    with pytest.raises(StoreRefused, match="compressed by batch or by sample"):
        store.open_store(f"litdata://{theirs}/lit-batch").keys()


def test_litdata_of_tokens(theirs):
    opened = store.open_store(f"litdata://{theirs}/tokens?block=3")
    found = [array(opened.get(key).payload).tolist() for key in opened.keys()]  # noqa: SIM118
    expected = [list(range(7 * n + 3 * part, 7 * n + 3 * part + 3)) for n in range(6) for part in range(2)]
    assert found == expected
    with pytest.raises(StoreRefused, match=r"\?block= says how many"):
        store.open_store(f"litdata://{theirs}/tokens").keys()
