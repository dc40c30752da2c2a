"""The ledgers of a cache in this host's shared memory, as files: their names, and what can be seen from outside."""

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from headrace.cache import division
from headrace.cache import words as W
from headrace.cache.book import title
from headrace.cache.division import Facts
from headrace.cache.memory_file import ROOT, Format, checked, peek
from headrace.cache.roster import Roster
from headrace.cache.words import Array, Dims

MAGIC, VERSION = 0x68726C6564676572, 3
PREFIX = "headrace-ledger-"
SILENCE = 60 * 10**9
"""Nanoseconds after which a rank that asks for nothing does not count any more."""


def path_of(name: str, scopes: tuple[str, str, str], samples: int) -> Path:
    """The ledger of one dataset in a cache; ``CacheError`` for a name that cannot be one."""
    return ROOT / f"{PREFIX}{checked(name)}.{title(scopes, samples)}"


def form_of(name: str, dims: Dims) -> Format:
    """What such a file says of itself."""
    return Format(MAGIC, VERSION, 8 * dims.words, 8 * dims.words, f"shm://{name}")


def packed(scopes: tuple[str, str, str]) -> Array:
    """As a ledger has them in its words."""
    return np.frombuffer(bytes.fromhex("".join(scope.rjust(32, "0") for scope in scopes)), np.int64)


def lately() -> int:
    """Whoever was not heard of since then is silent."""
    return time.monotonic_ns() - SILENCE


def ledgers(name: str) -> list[Path]:
    """The ledgers of a cache, one for each dataset it serves."""
    return sorted(ROOT.glob(f"{PREFIX}{checked(name)}.*"))


def _heads(name: str) -> Iterator[Array]:
    """What each begins with, its seats included. Without the lock: a beat is one word, and scopes never change."""
    size = W.HEADER + W.SEATS * W.SEAT
    for path in ledgers(name):
        words = np.frombuffer(peek(path, 8 * size), np.int64)
        if len(words) == size:
            yield words


def described(name: str) -> list[Facts]:
    """What is known of each dataset that a cache serves: for people to look at."""
    found = [words for words in _heads(name) if words[W.VERSION] == VERSION]
    return [division.facts(words, Dims(int(words[W.SAMPLES])), lately()) for words in found]


def living_scopes(name: str) -> set[str]:
    """The scopes of all ledgers of a cache with a rank that is not silent."""
    found: set[str] = set()
    for words in _heads(name):
        if len(Roster(words, Dims(int(words[W.SAMPLES]))).heard(lately())):
            text = words[W.SCOPES : W.SCOPES + 6].tobytes().hex()
            found |= {text[at : at + 32] for at in range(0, 96, 32)}
    return found
