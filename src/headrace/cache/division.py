"""How a cache's room is divided between the forms, and what that is planned from: facts that all its jobs share.

Workers measure, ranks report, and any rank may write a new division: it is numbered, and who planned from an older one
is refused. Pure; the caller holds the lock. Nothing here bears on which samples are served.
"""

from collections.abc import Sequence
from typing import NamedTuple

from headrace.cache import words as W
from headrace.cache.roster import Roster
from headrace.cache.words import Array, Dims, Words

Parts = tuple[int, int, int]
"""Percentages for encoded, decoded and augmented samples."""


class Sums(NamedTuple):
    """What making and reading samples took, in nanoseconds, with how often; bytes of entries in each form; CPU time."""

    fetch: int = 0
    fetched: int = 0
    decode: int = 0
    decoded: int = 0
    augment: int = 0
    augmented: int = 0
    read: int = 0
    reads: int = 0
    read_bytes: int = 0
    encoded_bytes: int = 0
    encoded_sized: int = 0
    decoded_bytes: int = 0
    decoded_sized: int = 0
    augmented_bytes: int = 0
    augmented_sized: int = 0
    fetch_cpu: int = 0
    decode_cpu: int = 0
    augment_cpu: int = 0
    read_cpu: int = 0
    other_cpu: int = 0
    """Of the processes that made samples and of those that took them, beside these stages."""
    made: int = 0
    """Samples."""
    queued: int = 0
    """That these processes waited for a core."""

    @property
    def cpu(self) -> int:
        """All CPU time of these processes."""
        return self.fetch_cpu + self.decode_cpu + self.augment_cpu + self.read_cpu + self.other_cpu


class Rank(NamedTuple):
    """What a rank says of itself: its lanes, and samples per second."""

    lanes: int = 0
    demand: float = 0.0
    """That it would take if it never waited."""
    speed: float = 0.0
    """That it takes."""
    storage: float = 0.0
    """That its store can give, where lanes do not read themselves; else 0."""
    cores: float = 0.0
    """That it may use; 0: not known."""
    host: int = 0
    """The same for all ranks that share cores."""

    def words(self) -> list[int]:
        """As whole numbers."""
        return [self.lanes, *(min(int(1000 * rate), 1 << 62) for rate in self[1:5]), self.host]

    @classmethod
    def of(cls, words: list[int]) -> "Rank":
        """From ``words``."""
        demand, speed, storage, cores = (word / 1000 for word in words[1:5])
        return cls(words[0], demand, speed, storage, cores, words[5])


class Division(NamedTuple):
    """How the room is divided."""

    number: int
    """Grows with every change."""
    parts: Parts
    fixed: bool
    """By a user: it is not planned."""
    before: Parts
    promised: int = 0
    """Samples per second that were predicted with it, and with the one before; 0 where nothing was planned."""
    promised_before: int = 0
    limit: int = 0
    """What is then predicted to set the pace, as the planner numbers it."""


class Facts(NamedTuple):
    """All that a division is planned from."""

    samples: int
    room: int
    sums: Sums
    ranks: list[tuple[int, Rank]]
    """Of those who live, with the job that each is a rank of."""
    division: Division


def budgets(room: int, parts: Parts) -> Parts:
    """Bytes for each form."""
    encoded, decoded = room * parts[0] // 100, room * parts[1] // 100
    return encoded, decoded, (room - encoded - decoded) if parts[2] else 0


def parts_of(budget: Parts) -> Parts:
    """About which percentages of the room these are."""
    room = max(1, sum(budget))
    encoded, augmented = round(100 * budget[0] / room), round(100 * budget[2] / room)
    return encoded, 100 - encoded - augmented, augmented


def pack(division: Division) -> list[int]:
    """As whole numbers; the first one says which division it is and how the room is divided."""
    number, parts, fixed, before, *rest = division
    first = number << 24 | parts[0] << 16 | parts[1] << 8 | parts[2]
    return [first, int(fixed), *before, *rest]


def unpack(words: list[int]) -> Division:
    """From ``pack``."""
    first, fixed, *rest = words
    parts = first >> 16 & 0xFF, first >> 8 & 0xFF, first & 0xFF
    return Division(first >> 24, parts, bool(fixed), (rest[0], rest[1], rest[2]), *rest[3:6])


PACKED = 8
"""Whole numbers in a packed division."""


def current(view: Array) -> Division:
    """The division that holds."""
    return unpack(view[W.DIVISION : W.DIVISION + PACKED].tolist())


def divide(words: Words, view: Array, division: Division, room: int) -> None:
    """Have it hold from now on. What is over its share gives way; see ``ledger.Seat.request``."""
    packed = pack(division)
    for at, word in enumerate(packed[1:], 1):
        words[W.DIVISION + at] = word
    words[W.ROOM] = room
    words[W.DIVISION] = packed[0]
    settle(words, view)


def agree(words: Words, view: Array, parts: Parts | None, room: int, *, alone: bool) -> None:
    """A rank comes with ``parts`` that its user fixed, or with none; ``alone``: no other is here.

    What a user fixed holds until another does, or until a rank comes that is alone and asks for nothing.
    """
    now = current(view)
    fixed = parts is not None or (now.fixed and not alone)
    if (parts or now.parts, fixed, room) != (now.parts, now.fixed, int(view[W.ROOM])):
        chosen = parts or now.parts
        divide(words, view, Division(now.number + 1, chosen, fixed, now.parts), room)


def settle(words: Words, view: Array) -> None:
    """Budgets follow from the division: also where somebody died before they did."""
    for form, size in enumerate(budgets(int(view[W.ROOM]), current(view).parts)):
        words[W.BUDGET + form] = size


def measure(words: Words, view: Array, sums: Sums) -> None:
    """Add what was measured."""
    for at, value in enumerate(sums):
        if value:
            words[W.MEASURED + at] = int(view[W.MEASURED + at]) + value


def fade(words: Words, view: Array) -> None:
    """What was measured so far counts half as much from now on."""
    for at in range(len(Sums._fields)):
        words[W.MEASURED + at] = int(view[W.MEASURED + at]) // 2


def typical(view: Array, form: int) -> int | None:
    """Bytes of an entry in a form, on average; None while none was measured."""
    size, count = view[W.MEASURED + 7 + 2 * form : W.MEASURED + 9 + 2 * form].tolist()
    return size // count if count else None


def facts(view: Array, dims: Dims, since: int) -> Facts:
    """What a division is planned from; of the ranks, those that were heard of ``since`` then."""
    live = Roster(view, dims).heard(since).tolist()
    return Facts(
        dims.samples,
        int(view[W.ROOM]),
        Sums(*view[W.MEASURED : W.MEASURED + len(Sums._fields)].tolist()),
        [(seat[W.J_GROUP], Rank.of(seat[W.J_RANK : W.J_RANK + W.J_FACTS])) for seat in live],
        current(view),
    )


def speeds_of(ranks: Sequence[tuple[int, Rank]]) -> list[float]:
    """Of the jobs that take samples, each with all its ranks."""
    jobs: dict[int, float] = {}
    for job, rank in ranks:
        jobs[job] = jobs.get(job, 0.0) + rank.speed
    return [speed for speed in jobs.values() if speed > 0]


def cores_of(ranks: Sequence[tuple[int, Rank]]) -> float:
    """Cores of all hosts: those that the ranks of one job may use on one, for all jobs there; 0: not known."""
    jobs: dict[tuple[int, int], float] = {}
    for job, rank in ranks:
        jobs[rank.host, job] = jobs.get((rank.host, job), 0.0) + rank.cores
    hosts: dict[int, float] = {}
    for (host, _), cores in jobs.items():
        hosts[host] = max(hosts.get(host, 0.0), cores)
    return sum(hosts.values())


def figures(facts: Facts) -> list[tuple[str, float]]:
    """What all jobs have measured so far, by name."""
    sums = facts.sums
    pairs = {
        "fetch_seconds": (sums.fetch / 1e9, sums.fetched),
        "decode_seconds": (sums.decode / 1e9, sums.decoded),
        "augment_seconds": (sums.augment / 1e9, sums.augmented),
        "read_seconds": (sums.read / 1e9, sums.reads),
        "cpu_seconds": (sums.cpu / 1e9, sums.made),
        "encoded_bytes": (sums.encoded_bytes, sums.encoded_sized),
        "decoded_bytes": (sums.decoded_bytes, sums.decoded_sized),
        "augmented_bytes": (sums.augmented_bytes, sums.augmented_sized),
    }
    found = [(name, total / count) for name, (total, count) in pairs.items() if count]
    speeds = speeds_of(facts.ranks)
    if speeds:
        found += [("jobs", sum(speeds) / max(speeds)), ("lanes", sum(rank.lanes for _, rank in facts.ranks))]
        found += [("demand", sum(rank.demand for _, rank in facts.ranks)), ("speed", sum(speeds))]
    return found
