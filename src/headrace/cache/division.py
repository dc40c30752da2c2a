"""The division of a cache's room between the forms, and what it is planned from: facts that all its jobs share.

Workers measure, ranks report, and any rank may write a new division: it is numbered, and who planned from an older one
is refused. Pure. Nothing here bears on which samples are served.
"""

from collections.abc import Sequence
from typing import NamedTuple

Parts = tuple[int, int, int]
"""Percentages for encoded, decoded and augmented samples."""


class Sums(NamedTuple):
    """Nanoseconds that making and reading samples took, with how often; bytes of entries in each form; CPU time."""

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
    """A rank's facts about itself: its lanes, and samples per second."""

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
    decoding: float = 0.0
    """Seconds that its device decodes a picture, where one does; else 0."""
    pixels: float = 0.0
    """And that it takes for the pixels of one."""

    def words(self) -> list[int]:
        """Give the same as whole numbers."""
        rates = (min(int(1000 * rate), 1 << 62) for rate in self[1:5])
        return [self.lanes, *rates, self.host, *(min(int(1e9 * each), 1 << 62) for each in self[6:])]

    @classmethod
    def of(cls, words: list[int]) -> "Rank":
        """The rank that ``words`` made numbers of."""
        demand, speed, storage, cores = (word / 1000 for word in words[1:5])
        return cls(words[0], demand, speed, storage, cores, words[5], words[6] / 1e9, words[7] / 1e9)


class DivisionRecord(NamedTuple):
    """A division of the room, with its number and what was predicted."""

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


class DivisionFacts(NamedTuple):
    """All that a division is planned from."""

    samples: int
    room: int
    sums: Sums
    ranks: list[tuple[str, Rank]]
    """Of those who live, with the job that each is a rank of."""
    division: DivisionRecord


def budgets(room: int, parts: Parts) -> Parts:
    """Bytes for each form."""
    encoded, decoded = room * parts[0] // 100, room * parts[1] // 100
    return encoded, decoded, (room - encoded - decoded) if parts[2] else 0


def pack(division: DivisionRecord) -> list[int]:
    """Give a division as whole numbers; the first one says which division it is and how the room is divided."""
    number, parts, fixed, before, *rest = division
    first = number << 24 | parts[0] << 16 | parts[1] << 8 | parts[2]
    return [first, int(fixed), *before, *rest]


def unpack(words: list[int]) -> DivisionRecord | None:
    """The division that ``pack`` made numbers of; None for what makes no sense."""
    if len(words) != PACKED:
        return None
    first, fixed, *rest = words
    parts, before = (first >> 16 & 0xFF, first >> 8 & 0xFF, first & 0xFF), (rest[0], rest[1], rest[2])
    sound = first >= 0 and fixed in {0, 1} and sum(parts) == sum(before) == 100 and min(before) >= 0
    return DivisionRecord(first >> 24, parts, bool(fixed), before, *rest[3:6]) if sound and 0 <= rest[5] < 5 else None


PACKED = 8
"""Whole numbers in a packed division."""


def agreed(now: DivisionRecord | None, parts: Parts | None, start: Parts, *, alone: bool) -> DivisionRecord | None:
    """The division that is to hold when a rank comes with ``parts`` that its user fixed, or with none; None: that
    which holds. ``start``: where there is none. ``alone``: no other rank is here.

    What a user fixed holds until another does, or until a rank comes that is alone and asks for nothing.
    """
    if now is None:
        return DivisionRecord(0, parts or start, parts is not None, parts or start)
    fixed = parts is not None or (now.fixed and not alone)
    chosen = parts or now.parts
    return (
        None if (chosen, fixed) == (now.parts, now.fixed) else DivisionRecord(now.number + 1, chosen, fixed, now.parts)
    )


def typical(sums: Sums) -> Parts:
    """Bytes of an entry in each form, on average; 0 while none was measured."""
    return (
        sums.encoded_bytes // max(1, sums.encoded_sized),
        sums.decoded_bytes // max(1, sums.decoded_sized),
        sums.augmented_bytes // max(1, sums.augmented_sized),
    )


def speeds_of(ranks: Sequence[tuple[str, Rank]]) -> list[float]:
    """The speeds of the jobs that take samples, each with all its ranks."""
    jobs: dict[str, float] = {}
    for job, rank in ranks:
        jobs[job] = jobs.get(job, 0.0) + rank.speed
    return [speed for speed in jobs.values() if speed > 0]


def cores_of(ranks: Sequence[tuple[str, Rank]]) -> float:
    """Cores of all hosts: those that the ranks of one job may use on one, for all jobs there; 0: not known."""
    jobs: dict[tuple[int, str], float] = {}
    for job, rank in ranks:
        jobs[rank.host, job] = jobs.get((rank.host, job), 0.0) + rank.cores
    hosts: dict[int, float] = {}
    for (host, _), cores in jobs.items():
        hosts[host] = max(hosts.get(host, 0.0), cores)
    return sum(hosts.values())


def figures(facts: DivisionFacts) -> list[tuple[str, float]]:
    """The measurements of all jobs so far, by name."""
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
