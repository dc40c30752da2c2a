"""What a user may say about a cache."""

import dataclasses

import pytest

from headrace.cache.cache_options import Cache, parse_size
from headrace.core.errors import CacheError


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (5, 5),
        ("8GiB", 8 << 30),
        ("500 MB", 500_000_000),
        ("1.5G", 1_500_000_000),
        ("64kib", 65536),
        ("2Ti", 2 << 40),
        ("7", 7),
    ],
)
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("wrong", [0, -1, "8XB", "", "GiB", True, 1.5, "0"])
def test_wrong_sizes(wrong):
    with pytest.raises(ValueError, match="a positive number of bytes or a text such as '8GiB'"):
        parse_size(wrong)


def test_is_a_value():
    assert Cache("shm://a", split=(40, 60, 0)) == Cache("shm://a", "8GiB", (40, 60, 0))
    assert Cache("shm://a").bytes == 8 << 30
    with pytest.raises(dataclasses.FrozenInstanceError):
        Cache("shm://a").size = 3


def test_does_not_print_secrets():
    shown = repr(Cache("rediss://me:hidden@host:7000/0"))
    assert "hidden" not in shown
    assert "rediss://host:7000" in shown


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"url": "http://u:hidden@host"}, "takes shm://name, redis://host:port"),
        ({"url": 3}, "takes shm://name"),
        ({"url": "redis://u:hidden/x@host"}, "written %2F"),
        ({"url": "rediss://"}, "takes redis://"),
        ({"url": "shm://a", "size": "1KiB"}, "at least 1 MiB"),
        ({"url": "shm://a", "split": (50, 50, 50)}, "add up to 100"),
        ({"url": "shm://a", "split": (50.0, 50.0, 0.0)}, "whole percentages"),
        ({"url": "shm://a", "split": "50-50-0"}, "whole percentages"),
        ({"url": "shm://a", "namespace": "a b"}, "namespace"),
        ({"url": "shm://a", "exchange": 0.5}, "a number from 1 on"),
        ({"url": "shm://a", "disk": "/tmp/x"}, "go together"),
        ({"url": "shm://a", "disk": "/tmp/x", "disk_size": 0}, "disk_size"),
    ],
)
def test_what_cannot_be_honoured_is_refused(arguments, said):
    with pytest.raises(ValueError, match=said) as caught:
        Cache(**arguments)
    assert "hidden" not in str(caught.value)


def test_names_are_checked():
    with pytest.raises(CacheError, match="the name of a cache has"):
        Cache("shm://a/b")
