"""Memory that is used again when nothing refers to it, and never before."""

import numpy as np
import torch

from headrace.cache.entries import reuse
from headrace.cache.entries.reuse import LEAST, Blocks


def place(block):
    return block.ctypes.data


def test_a_block_is_used_again_when_nothing_refers_to_it():
    blocks = Blocks()
    first = place(blocks.take(LEAST))
    assert [place(blocks.take(LEAST)) for _ in range(3)] == [first] * 3


def test_whatever_is_made_of_a_block_keeps_it():
    blocks = Blocks()
    holders = [
        blocks.take(LEAST),
        memoryview(blocks.take(LEAST))[5:9],
        np.ndarray((4,), np.int64, memoryview(blocks.take(LEAST))[8:40]),
        torch.from_numpy(blocks.take(LEAST)).view(2, -1)[1],
        torch.frombuffer(memoryview(blocks.take(LEAST))[64:], dtype=torch.int32)[3:],
    ]
    spans = [place(holders[0])]
    spans += [place(np.frombuffer(each, np.uint8)) for each in holders[1:3]]
    spans += [each.data_ptr() for each in holders[3:]]
    for _ in range(3):
        taken = place(blocks.take(LEAST))
        assert not [span for span in spans if taken <= span < taken + LEAST]


def test_blocks_of_another_size_are_let_go():
    blocks = Blocks()
    small = blocks.take(LEAST)
    del small
    large = blocks.take(3 * LEAST)
    assert len(large) == 3 * LEAST
    assert len(blocks.take(LEAST)) == LEAST
    del large
    assert len(blocks.take(2 * LEAST)) == 2 * LEAST


def test_no_more_is_kept_than_said(monkeypatch):
    monkeypatch.setattr(reuse, "MOST", 3 * LEAST)
    blocks = Blocks()
    taken = [blocks.take(LEAST) for _ in range(5)]
    kept = {place(block) for block in taken[:3]}
    del taken
    again = [blocks.take(LEAST) for _ in range(3)]
    assert {place(block) for block in again} == kept
