"""``remote=headrace.Ray(...)`` says what is wrong with it before anything is started."""

import pickle

import pytest
from torch.utils.data import IterableDataset

import headrace
from headrace.core.errors import RemoteError
from headrace.core.options import Seeding
from headrace.remote import plug
from tests.remote.datasets import Noisy


class Stream(IterableDataset):
    def __iter__(self):
        yield 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"cpus": 0}, "cpus"),
        ({"cpus": True}, "cpus"),
        ({"cpus": 2.0}, "cpus"),
        ({"cpus": 2, "address": "auto"}, "host:port"),
        ({"cpus": 2, "address": "ray://head:10001"}, "host:port"),
        ({"cpus": 2, "address": "head"}, "host:port"),
        ({"cpus": 2, "resources": {"CPU": 1}}, "cpus="),
        ({"cpus": 2, "resources": {"cheap": -1}}, "resources"),
    ],
)
def test_values_that_make_no_sense_are_refused(arguments, says):
    with pytest.raises(ValueError, match=says):
        headrace.Ray(**arguments)


@pytest.mark.parametrize("arguments", [{"labels": {"zone": 1}}, {"runtime_env": "env.yaml"}])
def test_things_of_another_type_are_refused(arguments):
    with pytest.raises(TypeError, match=next(iter(arguments))):
        headrace.Ray(cpus=2, **arguments)


def test_credentials_are_not_shown():
    options = headrace.Ray(cpus=2, runtime_env={"env_vars": {"SECRET": "hush"}})
    assert "hush" not in repr(options)
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize(
    ("dataset", "arguments", "says"),
    [
        (Stream(), {"num_workers": 1}, "map-style"),
        (Noisy(4), {"num_workers": 1, "loading": headrace.Loading(seeding=Seeding.WORKER)}, "Seeding.SAMPLE"),
    ],
)
def test_loaders_that_cannot_have_it_say_why(dataset, arguments, says):
    with pytest.raises(RemoteError, match=says):
        headrace.DataLoader(dataset, remote=headrace.Ray(cpus=2), **arguments)


def test_another_kind_of_thing_is_refused():
    with pytest.raises(TypeError, match=r"headrace\.Ray"):
        headrace.DataLoader(Noisy(4), num_workers=1, remote="ray")


def test_without_a_cluster_it_says_how_to_name_one(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(RemoteError, match="host:port"):
        plug.place(headrace.Ray(cpus=2))
    monkeypatch.setenv("RAY_ADDRESS", "10.1.2.3:6379")
    assert plug.place(headrace.Ray(cpus=2)).address == "10.1.2.3:6379"
