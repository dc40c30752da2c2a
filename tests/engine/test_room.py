"""What may be asked for and kept: no more than the memory and two groups, and enough that nobody waits for ever."""

import random

from hypothesis import given
from hypothesis import strategies as st

from headrace.fetching.room import Room

GROUP, MEMORY = 4, 1000


@given(st.lists(st.integers(1, 400), min_size=40, max_size=40), st.integers(), st.integers(GROUP, 40))
def test_groups_complete_in_order_within_the_memory(sizes, seed, ahead):
    """Rows come in any order; a group is used when all of it is here, and it is the oldest."""
    draw = random.Random(seed)
    room, kept, waiting, flying, asked, first = Room(MEMORY), {}, [], [], 0, 0
    room.group = GROUP
    for _ in range(4000):
        while asked < min(40, first + ahead):
            room.add(asked)
            waiting.append(asked)
            asked += 1
        waiting.sort()
        used = sum(kept.values())
        while waiting and (len(flying) + len(kept) < GROUP or room.owes(waiting[0]) or room.allows(waiting[0], used)):
            flying.append(waiting.pop(0))
            room.asked(flying[-1])
        if flying:
            number = flying.pop(draw.randrange(len(flying)))
            if room.keeps(number, sizes[number], used):
                kept[number] = sizes[number]
                beyond = sum(kept[other] for other in kept if other < first + 2 * GROUP)
                assert sum(kept.values()) <= MEMORY + beyond
            else:
                waiting.append(number)
        while all(number in kept for number in range(first, first + GROUP)):
            for number in range(first, first + GROUP):
                del kept[number]
                room.end(number)
            first += GROUP
            if first == 40:
                return
    raise AssertionError(f"stands at {first}")
