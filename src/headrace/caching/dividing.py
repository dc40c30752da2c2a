"""A rank's part in dividing a cache: it reports what it is, and moves the division when another is predicted to pay."""

import hashlib
import logging
import socket
import time
from collections.abc import Sequence
from typing import NamedTuple

from headrace.cache.division import DivisionFacts, DivisionRecord, Rank, Sums, cores_of, figures, speeds_of
from headrace.cache.serving import Serving
from headrace.cache.share import START
from headrace.core.stats import DeviceUse
from headrace.core.stats import Division as Shown
from headrace.engine.trainer.cores import machine, own_cores
from headrace.engine.trainer.counters import LoaderCounters
from headrace.plan import splitting
from headrace.plan.partition import Split
from headrace.plan.splitting import Compute, DeviceStages, Measured

log = logging.getLogger("headrace.cache")
LOOK, LONGEST = 2.0, 20.0
"""Seconds between two looks at what is measured, and at most: whoever is not heard of for a minute counts as gone."""
REST = 20.0
"""Seconds that a new division is left alone."""
RECOUNT, SELDOM = 30.0, 100
"""Seconds between two looks at whether what is counted is there, and times what such a look took, at least."""
ENOUGH, SIZED = 64, 4
"""Samples that must have been made, and measured in all their forms, before anything is planned."""


class Speed(NamedTuple):
    """Seconds for an entry, however small, and for each of its bytes, where nobody else reads."""

    entry: float
    byte: float


LOCAL, REMOTE = Speed(3e-5, 1e-10), Speed(3e-4, 1e-9)
"""Speeds until enough was read to know: of shared memory, and of a server."""


def pause(ranks: int) -> float:
    """Seconds between two looks, with so many ranks: the work of a server grows with their number and no faster."""
    return min(LONGEST, LOOK * (1 + ranks / 32))


class Divider:
    """Looks now and then, when the rank asks for samples. Takes a millisecond then."""

    def __init__(self, serving: Serving, counters: LoaderCounters, *, plans: bool, on_device: bool = False) -> None:
        """``plans``: the user has not fixed the division. ``on_device``: a device decodes and augments."""
        self._serving, self._backend, self._counters, self._plans = serving, serving.share.backend, counters, plans
        self._next = time.monotonic() + LOOK
        self._recount, self._number, self._rest = self._next + RECOUNT, -1, 0.0
        self._before = time.monotonic(), counters.samples, counters.wait_seconds
        self._used = time.process_time_ns()
        self._spare, self._host = Spare(own_cores()), _host()
        self._on_device = on_device

    def look(self) -> bool:
        """Report, plan and move, if it is time to; whether it was."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + pause(len(self._serving.share.peers.ranks))
        if self._backend.rests:
            return True
        if now >= self._recount:
            self._serving.recount()
            done = time.monotonic()
            self._recount = done + max(RECOUNT, SELDOM * (done - now))
        self._spare.look(now, machine(), self._backend.measured())
        if self._counters.samples > self._before[1]:  # a batch may take longer than it is from look to look
            self._serving.report(self._rank(now))
        used, self._used = self._used, time.process_time_ns()
        if self._counters.lanes:  # else samples are made here, and what is done beside that is counted there
            self._backend.measure(Sums(other_cpu=self._used - used))
        if self._plans:
            self._plan(now)
        return True

    def facts(self) -> DivisionFacts:
        """The facts that a division is planned from."""
        share = self._serving.share
        share.peers.look()
        division = self._backend.division() or DivisionRecord(0, START, fixed=False, before=START)
        return DivisionFacts(
            self._backend.samples, share.terms().limit, self._backend.measured(), share.peers.ranks, division
        )

    def _rank(self, now: float) -> Rank:
        counters, (then, samples, waited) = self._counters, self._before
        self._before = now, counters.samples, counters.wait_seconds
        taken, passed = counters.samples - samples, now - then
        busy = max(1e-6, passed - (counters.wait_seconds - waited))
        network = counters.network
        storage = network.window * network.rows / network.seconds if network.seconds else 0.0
        decoding, pixels = of_device(counters.device)
        return Rank(
            max(1, counters.lanes),
            taken / busy,
            taken / passed,
            storage,
            self._spare.cores,
            self._host,
            decoding,
            pixels,
        )

    def _plan(self, now: float) -> None:
        facts = self.facts()
        if facts.division.number != self._number:  # another rank has moved it, or this one: let it work
            self._number, self._rest = facts.division.number, now + REST if self._number >= 0 else 0.0
        if facts.division.fixed or now < self._rest or not _suffices(facts.sums):
            return
        if self._on_device and not any(of_device(self._counters.device)):  # it has decoded nothing: at what cost?
            return
        given = measured(facts, REMOTE if self._backend.slow else LOCAL)
        move = None if given is None else splitting.move(given, Split(*facts.division.parts))
        if move is None:
            return
        new = DivisionRecord(
            facts.division.number + 1,
            move.after.split,
            fixed=False,
            before=facts.division.parts,
            promised=round(move.after.throughput),
            promised_before=round(move.before.throughput),
            limit=splitting.LIMITS.index(move.after.limit),
        )
        # Another rank may have planned from the same figures: one of the two is refused, and looks again.
        if self._backend.divide(new, facts.division.number):
            self._backend.fade()
            log.info("the cache is divided anew: %s", told(new))


class Spare:
    """Cores that are left to the jobs of a cache by all else that runs on this machine."""

    LEAST = 0.1
    PERIOD = 1.5
    """Seconds between two looks, at least: the kernel counts in hundredths, and workers tell once in a second."""

    def __init__(self, own: float) -> None:
        """``own``: cores that this process may use."""
        self.cores = self._own = own
        self._before: tuple[float, float, int] | None = None

    def look(self, now: float, busy: tuple[float, int], sums: Sums) -> None:
        """``busy``: core seconds so far, and the machine's cores. What jobs used themselves they have measured."""
        before = self._before
        if before is not None and now - before[0] < self.PERIOD:
            return
        self._before = now, busy[0], sums.cpu
        if before is None:
            return
        passed, used = now - before[0], max(0, self._before[2] - before[2]) / 1e9  # less: they were halved
        # All that kept cores busy, less what the cache's jobs used.
        others = max(0.0, busy[0] - before[1] - used) / passed
        left = min(self._own, max(self.LEAST, busy[1] - others))
        self.cores += (left - self.cores) / 2  # of several looks: what is used is told later than it is


def _suffices(sums: Sums) -> bool:
    made, sized = min(sums.fetched, sums.decoded, sums.augmented), (sums.encoded_sized, sums.decoded_sized)
    return made >= ENOUGH and min(*sized, sums.augmented_sized) >= SIZED


def of_device(use: DeviceUse) -> tuple[float, float]:
    """Seconds that decoding a picture takes a device, and its pixels; nothing while none came to it encoded."""
    encoded = use.pictures - use.by_workers
    return (use.decode_seconds / encoded, use.pixels_seconds / use.pictures) if encoded else (0.0, 0.0)


def device_stages(ranks: Sequence[tuple[str, Rank]]) -> DeviceStages | None:
    """The times that the busiest device takes for a sample, of those that all jobs are served. None where no device
    does pixels.

    Each rank has one, which is busy for the rank's part of the samples.
    """
    total = sum(speeds_of(ranks))
    found = [(rank.speed / total * rank.decoding, rank.speed / total * rank.pixels) for _, rank in ranks if total]
    busiest = max(found, key=sum, default=(0.0, 0.0))
    return DeviceStages(*busiest) if any(busiest) else None


def measured(facts: DivisionFacts, speed: Speed) -> Measured | None:
    """The figures that the planner is given; None while too little is known. ``speed``: of a tier that nobody else
    uses.
    """
    sums, speeds = facts.sums, speeds_of(facts.ranks)
    if not _suffices(sums) or not speeds or facts.room <= 0:
        return None
    alone = sums.reads * speed.entry + sums.read_bytes * speed.byte
    load = max(1.0, _unqueued(sums, sums.read, sums.read_cpu) / alone) if sums.reads >= ENOUGH else 1.0  # with others
    storage = sum(rank.storage for _, rank in facts.ranks)
    return Measured(
        samples=facts.samples,
        room=facts.room,
        sizes=(
            sums.encoded_bytes / sums.encoded_sized,
            sums.decoded_bytes / sums.decoded_sized,
            sums.augmented_bytes / sums.augmented_sized,
        ),
        fetch=_unqueued(sums, sums.fetch, sums.fetch_cpu) / sums.fetched,
        decode=_unqueued(sums, sums.decode, sums.decode_cpu) / sums.decoded,
        augment=_unqueued(sums, sums.augment, sums.augment_cpu) / sums.augmented,
        read=load * speed.entry,
        read_byte=load * speed.byte,
        lanes=max(1, sum(rank.lanes for _, rank in facts.ranks)),
        jobs=max(1.0, sum(speeds) / max(speeds)),
        demand=max(1e-3, sum(rank.demand for _, rank in facts.ranks)),
        storage=storage or float("inf"),
        cpu=_compute(sums, cores_of(facts.ranks), speed, alone),
        device=device_stages(facts.ranks),
    )


def _unqueued(sums: Sums, took: int, used: int) -> float:
    """Seconds of ``took`` nanoseconds, without what was waited for a core: as much more as CPU time was ``used``.

    How many lanes a division will have wait for cores follows from the cores; what lanes wait for besides is theirs.
    """
    return max(used, took - used * sums.queued / max(1, sums.cpu)) / 1e9


def _compute(sums: Sums, cores: float, speed: Speed, alone: float) -> Compute | None:
    """``alone``: seconds that reading would have taken at ``speed``; until some was read, all of it is computing."""
    if sums.made < ENOUGH or not cores:
        return None
    load = sums.read_cpu / 1e9 / alone if sums.reads >= ENOUGH else 1.0
    return Compute(
        fetch=sums.fetch_cpu / sums.fetched / 1e9,
        decode=sums.decode_cpu / sums.decoded / 1e9,
        augment=sums.augment_cpu / sums.augmented / 1e9,
        read=load * speed.entry,
        read_byte=load * speed.byte,
        besides=sums.other_cpu / sums.made / 1e9,
        cores=cores,
    )


def _host() -> int:
    """A number for what shares this process's cores."""
    return int.from_bytes(hashlib.blake2b(socket.gethostname().encode(), digest_size=7).digest(), "big")


def told(division: DivisionRecord) -> str:
    """The reason why a cache is divided as it is, in a sentence."""
    if division.fixed:
        return "fixed by the user"
    if not division.promised:
        return "to begin with, until enough is measured or another pays"
    return (
        f"{division.promised:,} samples/s predicted, with {splitting.LIMITS[division.limit]} to set the pace, "
        f"against {division.promised_before:,} with {Split(*division.before)}"
    )


def shown(facts: DivisionFacts) -> Shown:
    """A division for people, with what was measured."""
    return Shown(facts.division.parts, told(facts.division), tuple(figures(facts)))
