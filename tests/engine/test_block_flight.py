"""So many blocks are under way as the path carries without making them queue."""

from headrace.fetching.block_flight import FIRST, BlockFlight


def flown(flight, rounds, took):
    """Rounds of as many blocks as may be under way, all of which then come after ``took`` seconds."""
    for _ in range(rounds):
        while flight.has_room:
            flight.asked()
        for _ in range(flight.flying):
            flight.ended(took)


def test_it_doubles_with_each_round_trip():
    flight = BlockFlight()
    flown(flight, 3, 0.15)
    assert flight.size == 8 * FIRST


def test_it_stays_where_nobody_asks_for_more():
    flight = BlockFlight()
    for _ in range(500):
        flight.asked()
        assert flight.has_room
        flight.ended(0.15)
    assert flight.size == FIRST


def test_blocks_that_queue_close_it_again():
    flight = BlockFlight()
    flown(flight, 3, 0.15)
    opened = flight.size
    flown(flight, 1, 0.4)
    assert FIRST <= flight.size < opened
    flown(flight, 30, 0.4)
    assert flight.size == FIRST


def test_a_late_answer_says_nothing_about_the_path():
    flight = BlockFlight()
    flown(flight, 2, 0.15)
    opened = flight.size
    for _ in range(10):
        flight.asked()
        flight.ended(2.0)
    assert flight.size == opened


def test_a_block_that_does_not_come_makes_room():
    flight = BlockFlight()
    while flight.has_room:
        flight.asked()
    flight.ended(None)
    assert flight.has_room
    assert flight.size == FIRST
