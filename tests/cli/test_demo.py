"""``headrace demo``: store, splits, cache and trace in one run, and every sample counted."""

import contextlib
import json

import pytest
from PIL import Image

from headrace.cli.__main__ import main
from headrace.store.ingest import ingest
from headrace.store.locate import open_store
from tests.services.redis import PASSWORD, USER


def test_the_whole_is_shown(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code = main(["demo", "--images", "48", "--epochs", "2", "--workers", "1", "--batch-size", "8", "--json"])
    facts = json.loads(capsys.readouterr().out)
    assert code == 0
    torch, ours = facts["loaders"]
    assert (torch["complete"], ours["complete"]) == (True, True)
    assert (torch["hits"], ours["hits"]) == (None, 0.5)  # all of the second epoch's
    assert 32 <= facts["samples"] <= 40  # whole patients
    for file in ("demo.trace", "report.html", "timeline.json"):
        assert (tmp_path / "headrace-demo" / file).stat().st_size > 1000
    assert main(["cache", "ls", "--json"]) == 0
    assert "headrace-demo" not in capsys.readouterr().out


@pytest.mark.service
def test_what_it_wrote_to_servers_is_gone_afterwards(
    tmp_path, monkeypatch, capsys, cassandra_server, keyspace, redis_server
):
    monkeypatch.chdir(tmp_path)
    url, redis = cassandra_server.url(keyspace), f"redis://{USER}:{PASSWORD}@127.0.0.1:{redis_server.ports['redis']}"
    small = ["demo", "--images", "48", "--epochs", "2", "--workers", "1", "--batch-size", "8", "--cassandra", url]
    assert main([*small, "--redis", redis, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert [loader["complete"] for loader in facts["loaders"]] == [True, True]
    assert f"{keyspace}/samples" in facts["left"]
    with contextlib.closing(open_store(url)) as store:
        assert store.keys() == []
    picture = tmp_path / "mine" / "cat" / "tom.png"
    picture.parent.mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(picture)
    ingest(str(tmp_path / "mine"), url)
    assert main(small) == 2
    assert "it has 1 rows, and the demo wants a table of its own" in capsys.readouterr().err
    with contextlib.closing(open_store(url)) as store:
        assert len(store.keys()) == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--images", "3"], "--images must be at least 32"),
        (["--output", "/dev/null/x"], "--output /dev/null/x"),
        (["--redis", "redis://127.0.0.1:1"], "--redis: no cache can be kept there"),
    ],
)
def test_mistakes_are_told_in_a_line(tmp_path, monkeypatch, capsys, arguments, says):
    monkeypatch.chdir(tmp_path)
    assert main(["demo", *arguments]) == 2
    assert says in capsys.readouterr().err
