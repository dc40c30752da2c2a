"""What a lane gathers of a chunk: as it was when it was added, in its order, each once."""

import numpy as np
import pytest

from headrace.cache.backends import entry_word as W
from headrace.cache.entries.codec import Codec
from headrace.caching.write_buffer import LARGEST, MOST, ROOM, WriteBuffer


class Taken:
    """Stands for a share: it takes what it is given at once, as one does that writes it."""

    def __init__(self, fails=()):
        self.found, self._fails = [], set(fails)

    def hold(self, sample, form, described):
        if sample in self._fails:
            raise KeyboardInterrupt
        body = np.zeros(described.size, np.uint8)
        described.write(memoryview(body), but_last=False)
        value = Codec().rebuild(described.layout, memoryview(body))
        self.found.append((sample, form, value))


def added(gathered, sample, value):
    return gathered.add(sample, W.DECODED, Codec().describe(value))


def test_what_is_gathered_is_kept_as_it_was_in_its_order():
    gathered, share = WriteBuffer(), Taken()
    for turn in range(2):
        several = [[np.arange(5) + number, np.full(100, number, np.int16), str(number)] for number in range(4)]
        for number, value in enumerate(several):
            assert added(gathered, number, value)
            value[0][:], value[1] = -1, None
        assert len(share.found) == 4 * turn
        gathered.keep(share)
    gathered.keep(share)
    assert [sample for sample, _, _ in share.found] == 2 * [0, 1, 2, 3]
    for sample, form, (first, second, text) in share.found:
        assert form == W.DECODED
        assert (first == np.arange(5) + sample).all()
        assert (second == sample).all()
        assert text == str(sample)


def test_what_is_too_large_or_too_much_is_refused_until_the_rest_was_kept():
    gathered, share = WriteBuffer(), Taken()
    assert not added(gathered, 0, np.zeros(LARGEST, np.uint8)), "with its shape it is larger"
    quarter = np.zeros(LARGEST - 4096, np.uint8)
    fitting = [added(gathered, sample, quarter) for sample in range(2 * ROOM // LARGEST)]
    assert 0 < sum(fitting) < len(fitting)
    assert sum(fitting) * len(quarter) <= ROOM
    gathered.keep(share)
    assert len(share.found) == sum(fitting)
    assert [added(gathered, sample, b"x") for sample in range(MOST + 1)] == MOST * [True] + [False]


def test_an_interrupt_leaves_nothing_that_would_be_kept_later():
    gathered = WriteBuffer()
    assert all(added(gathered, sample, b"x") for sample in range(3))
    with pytest.raises(KeyboardInterrupt):
        gathered.keep(Taken(fails=[1]))
    share = Taken()
    gathered.keep(share)
    assert not share.found
