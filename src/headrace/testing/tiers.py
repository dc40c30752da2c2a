"""What every tier of the cache must do: derive from ``TierSuite`` and say how to open one."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from headrace.cache.tier import Key, Tier

SCOPE, OTHER = "0123456789abcdef" * 2, "f" * 32


class TierSuite:
    """Tests for pytest, in a class of one's own: ``open`` gives a tier of ``self.limit`` bytes, empty at first."""

    limit = 4 << 20

    def open(self) -> Tier:
        """A tier; a second call gives another object for the same one."""
        raise AssertionError

    @contextmanager
    def opened(self) -> Iterator[Tier]:
        """One that is closed in the end."""
        tier = self.open()
        try:
            yield tier
        finally:
            tier.close()

    def test_what_is_put_is_read(self) -> None:
        """By another object too, and until it is deleted."""
        payload = os.urandom(5000)
        with self.opened() as tier, self.opened() as other:
            assert put(tier, 3, payload)
            for each in (tier, other):
                assert got(each, 3, 4) == [payload, None]
                assert got(each, 3, form=1) == [None]
                assert got(each, 3, scope=OTHER) == [None]
            other.delete([key(3), key(4)])
            assert got(tier, 3) == [None]

    def test_what_is_read_cannot_be_changed(self) -> None:
        """Views are read-only."""
        with self.opened() as tier:
            assert put(tier, 1, b"x" * 100)
            with tier.reading() as reading:
                (view,) = reading.get([key(1)])
                assert view is not None
                assert view.readonly
                view.release()

    def test_an_entry_takes_what_it_is_said_to_take(self) -> None:
        """Of the limit."""
        with self.opened() as tier:
            before = tier.usage().bytes
            for sample, size in enumerate((100, 5000, 100_000)):
                assert put(tier, sample, bytes(size))
                assert tier.usage().bytes - before == tier.footprint(size) >= size
                before = tier.usage().bytes

    def test_what_is_there_is_not_overwritten(self) -> None:
        """The second is refused."""
        with self.opened() as tier:
            assert put(tier, 1, b"first" * 30)
            assert not put(tier, 1, b"other" * 30)
            assert got(tier, 1) == [b"first" * 30]

    def test_sizes(self) -> None:
        """From one byte to a quarter of the limit."""
        sizes = [1, 63, 64, 1023, 1024, 1025, 70_000, 150_528, self.limit // 4]
        payloads = [os.urandom(size) for size in sizes]
        with self.opened() as tier:
            for sample, payload in enumerate(payloads):
                assert put(tier, sample, payload), len(payload)
            assert got(tier, *range(len(sizes))) == payloads

    def test_many_at_once(self) -> None:
        """In the order asked for."""
        with self.opened() as tier:
            payloads = {sample: os.urandom(2000 + sample) for sample in range(300)}
            assert all(put(tier, sample, payload) for sample, payload in payloads.items())
            asked = [*range(290, 310), 5, 5]
            assert got(tier, *asked) == [payloads.get(sample) for sample in asked]

    def test_the_limit_holds(self) -> None:
        """What does not fit is refused; room comes back with deletions."""
        size = self.limit // 20
        with self.opened() as tier:
            kept = [sample for sample in range(40) if put(tier, sample, bytes([sample]) * size)]
            assert 10 <= len(kept) <= 20
            assert tier.usage().bytes <= tier.usage().limit <= self.limit
            assert not put(tier, 50, bytes(size))
            tier.delete([key(sample) for sample in kept[:3]])
            assert put(tier, 50, b"n" * size)
            assert got(tier, 50, kept[3]) == [b"n" * size, bytes([kept[3]]) * size]
            assert not put(tier, 60, bytes(self.limit + 1))

    def test_space_serves_other_sizes_again(self) -> None:
        """Filled with small entries, emptied, filled with large ones."""
        with self.opened() as tier:
            for size in (3000, self.limit // 10, 8000, self.limit // 5):
                count = sum(put(tier, sample, bytes(size)) for sample in range(2 * self.limit // size))
                assert count * size >= self.limit * 0.6
                tier.clear()
                assert tier.usage().entries == 0

    def test_deletion_does_not_disturb_a_reader(self) -> None:
        """Nor does what is written after it."""
        size = self.limit // 20
        payload = os.urandom(size)
        with self.opened() as tier, self.opened() as other:
            assert put(tier, 0, payload)
            with tier.reading() as reading:
                (view,) = reading.get([key(0)])
                assert view is not None
                other.delete([key(0)])
                for sample in range(1, 60):
                    put(other, sample, b"z" * size)
                assert bytes(view) == payload
                view.release()
            assert got(tier, 0) == [None]

    def test_a_writer_that_fails_leaves_nothing(self) -> None:
        """Its error comes through."""

        def fails(target: memoryview) -> None:
            target[:1] = b"x"
            raise KeyError("writer")

        with self.opened() as tier:
            before = tier.usage()
            try:
                tier.put(key(1), 1000, fails)
            except KeyError:
                pass
            else:
                raise AssertionError
            assert got(tier, 1) == [None]
            assert tier.usage() == before
            assert put(tier, 1, b"y" * 1000)

    def test_what_is_there_can_be_listed(self) -> None:
        """With sizes; and counted."""
        with self.opened() as tier:
            for sample in range(5):
                assert put(tier, sample, bytes(100 + sample))
            assert put(tier, 7, bytes(50), scope=OTHER)
            expected = [(key(sample), 100 + sample) for sample in range(5)] + [(key(7, scope=OTHER), 50)]
            assert sorted(tier.listed()) == sorted(expected)
            assert tier.usage().entries == 6
            assert tier.usage().bytes >= 560

    def test_it_outlives_who_opened_it(self) -> None:
        """Closing keeps what is held; closing twice is allowed."""
        with self.opened() as keeper:
            tier = self.open()
            assert put(tier, 1, b"stays" * 40)
            tier.close()
            tier.close()
            assert got(keeper, 1) == [b"stays" * 40]

    def test_several_writers(self) -> None:
        """Each with an object of its own, all on the same samples: one of them wins each."""
        failures: list[BaseException] = []

        def work(number: int) -> None:
            try:
                with self.opened() as tier:
                    for sample in range(40):
                        put(tier, sample, bytes([number]) * 3000)
            except BaseException as error:  # noqa: BLE001  (told by the main thread)
                failures.append(error)

        with self.opened() as tier:
            threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 4)]
            for each in threads:
                each.start()
            for each in threads:
                each.join()
            assert not failures
            found = got(tier, *range(40))
            assert all(each is not None and len(each) == 3000 and len(set(each)) == 1 for each in found)


def key(sample: int, form: int = 2, scope: str = SCOPE) -> Key:
    """Of a test's entry."""
    return Key(scope, sample, form)


def put(tier: Tier, sample: int, payload: bytes, **where: Any) -> bool:
    """Some bytes under a test's key."""

    def write(target: memoryview) -> None:
        target[:] = payload

    return tier.put(key(sample, **where), len(payload), write)


def got(tier: Tier, *samples: int, **where: Any) -> list[bytes | None]:
    """Copies of what is there."""
    with tier.reading() as reading:
        views = reading.get([key(sample, **where) for sample in samples])
        found = [None if view is None else bytes(view) for view in views]
        for view in views:
            if view is not None:
                view.release()
    return found
