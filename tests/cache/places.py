"""The two kinds of backend, for tests that run on both, and samples to keep in them."""

import contextlib

import numpy as np
import pytest

from headrace.cache.backends import local_tables, redis_tables, shm
from headrace.cache.division import DivisionRecord
from headrace.cache.entries.codec import Codec
from headrace.cache.peers import Unit
from headrace.cache.policies import Need
from headrace.cache.share import Share
from tests.cache import servers
from tests.cache.servers import PASSWORD, USER
from tests.names import new_name

SCOPES = "a" * 32, "b" * 32, "c" * 32
TITLE = "0123456789abcdef"
CODEC = Codec()


class Place:
    """A cache of a test's own, to be opened as often as one likes."""

    def __init__(self, url):
        self.url, self.namespace = url, new_name()
        self._open = []

    def backend(self, samples=64, size=1 << 20, title=TITLE):
        if self.url is None:
            found = local_tables.opened(self.namespace, size, title, samples)
        else:
            found = redis_tables.opened(self.url, self.namespace, title, samples)
        self._open.append(found)
        return found

    def share(self, unit, samples=64, size=1 << 20, *, parts=(0, 100, 0), title=TITLE, disk=None):
        backend = self.backend(samples, size, title)
        if backend.division() is None:
            assert backend.divide(DivisionRecord(0, parts, fixed=False, before=parts), None)
        self._open += [] if disk is None else [disk]
        return Share(backend, disk, SCOPES, size, unit, Need())

    def close(self):
        for each in self._open:
            each.close()
        if self.url is None:
            shm.remove(self.namespace)


@contextlib.contextmanager
def opened(kind, folder):
    """``kind``: shm or redis."""
    with contextlib.ExitStack() as stack:
        url = None
        if kind == "redis":
            server = stack.enter_context(servers.one(folder))
            url = f"redis://{USER}:{PASSWORD}@127.0.0.1:{server.port}"
        place = Place(url)
        stack.callback(place.close)
        yield place


@pytest.fixture(params=["shm", "redis"])
def place(request, tmp_path):
    with opened(request.param, tmp_path) as found:
        yield found


def unit(number):
    return Unit(f"{number:016x}", f"{number:016x}-0")


def described(sample, size=1000):
    """An array of it."""
    return CODEC.describe(np.full(size, sample, np.int32))


def value(found):
    """The sample that an entry is of; all of it must be."""
    array = CODEC.rebuild(*found)
    assert (array == array[0]).all()
    return int(array[0])
