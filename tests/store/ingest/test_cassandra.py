"""From files to batches through a real Cassandra: ingest, info, split, load."""

import json

import pytest
import torch

import headrace
from headrace.cli.__main__ import main
from headrace.store import open_store
from headrace.store.ingest import ReadOptions, Working, ingest
from headrace.store.reading.bridges import Blocking
from tests.store.ingest.support import class_folders, manifest, picture

pytestmark = pytest.mark.service


def rows(url):
    store = Blocking(open_store(url))
    try:
        return {row.key: (bytes(row.payload), row.label) for row in store.get_many(store.keys())}
    finally:
        store.close()


def test_from_files_to_batches(cassandra_server, keyspace, tmp_path, capsys):
    table = [
        {"path": f"{number}.png", "label": "cat" if number % 3 else "dog", "patient": f"P{number // 4}"}
        for number in range(48)
    ]
    for number, row in enumerate(table):
        (tmp_path / row["path"]).write_bytes(picture(number))
    url = cassandra_server.url(keyspace, id_type="uuid")
    source = str(manifest(tmp_path / "all.csv", table))
    assert main(["ingest", source, url, "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert (first["written"], first["failed"]) == (48, [])
    secret = f":{cassandra_server.password}@"  # the user has the same name
    assert secret in url
    assert secret not in json.dumps(first)
    assert main(["ingest", source, url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["present"] == 48

    changed = [{**row, "label": "dog"} for row in table[:7]]
    again = ingest(str(manifest(tmp_path / "some.csv", changed)), url)
    assert (again.present, again.differing, again.whole) == (3, {"label": 4}, False)

    assert main(["store", "info", url, "--json"]) == 0
    info = json.loads(capsys.readouterr().out)
    assert (info["samples"], info["classes"]) == (48, {"cat": 32, "dog": 16})
    assert info["columns"] == {"path": "text", "patient": "text", "class": "text"}

    file = tmp_path / "splits.parquet"
    arguments = ["--fractions", "train=0.5,test=0.5", "--group-by", "patient", "--stratify", "class", "-o", str(file)]
    assert main(["split", url, *arguments, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["table"] == f"{keyspace}.samples"
    assert secret not in file.read_bytes().decode(errors="replace")

    with headrace.StoreDataset(url, f"{file}:train") as train:
        train.check()
        assert train.classes == ["cat", "dog"]
        for make in (headrace.DataLoader, torch.utils.data.DataLoader):
            labels = torch.cat([label for _, label in make(train, 4, num_workers=2)])
            assert sorted(labels.tolist()) == sorted(train.labels.tolist())
            assert len(labels) == 24
        assert train[0][0].shape == (3, 20, 24)
        with headrace.DataLoader(train, 4, shuffle=True, num_workers=2) as loader:
            batches = iter(loader)
            seen = [label for _ in range(2) for label in next(batches)[1].tolist()]
            state = loader.state_dict()
        with headrace.DataLoader(train, 4, shuffle=True, num_workers=1) as other:
            other.load_state_dict(state)
            seen += [label for _, labels in other for label in labels.tolist()]
        assert sorted(seen) == sorted(train.labels.tolist())


def test_processes_write_what_one_does(cassandra_server, keyspace, tmp_path):
    class_folders(tmp_path / "in", 150)
    urls = [cassandra_server.url(keyspace, table=name) for name in ("one", "several")]
    for url, workers in zip(urls, (0, 2), strict=True):
        outcome = ingest(str(tmp_path / "in"), url, working=Working(workers=workers))
        assert (outcome.written, outcome.failures) == (150, ())
    assert rows(urls[0]) == rows(urls[1])


def test_a_key_that_the_table_cannot_have_is_one_failure(cassandra_server, keyspace, tmp_path):
    (tmp_path / "a.png").write_bytes(picture(1))
    table = [{"path": "a.png", "name": "no uuid"}, {"path": "a.png", "name": "00000000-0000-4000-8000-000000000001"}]
    url = cassandra_server.url(keyspace, id_type="uuid")
    outcome = ingest(str(manifest(tmp_path / "m.csv", table)), url, ReadOptions(key="name"))
    assert outcome.written == 1
    [(_, error)] = outcome.failures
    assert "is no uuid" in error
