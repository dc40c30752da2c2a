"""The perf events that can be sampled, by the names ``perf`` gives them. Pure: knows no kernel."""

from dataclasses import dataclass

HARDWARE, SOFTWARE, CACHE, RAW = 0, 1, 3, 4  # perf_event_attr.type

_HARDWARE = (
    "cycles",
    "instructions",
    "cache-references",
    "cache-misses",
    "branches",
    "branch-misses",
    "bus-cycles",
    "stalled-cycles-frontend",
    "stalled-cycles-backend",
    "ref-cycles",
)
_SOFTWARE = (
    "cpu-clock",
    "task-clock",
    "page-faults",
    "context-switches",
    "cpu-migrations",
    "minor-faults",
    "major-faults",
)
_CACHES = {"L1-dcache": 0, "L1-icache": 1, "LLC": 2, "dTLB": 3, "iTLB": 4, "node": 6}
_ACCESSES = {"loads": (0, 0), "load-misses": (0, 1), "stores": (1, 0), "store-misses": (1, 1)}

TIME = "cpu-clock"
"""Always sampled: it exists everywhere, and its periods are nanoseconds of CPU time."""
USUAL = (
    "cycles",
    "instructions",
    "cache-misses",
    "branch-misses",
    "stalled-cycles-frontend",
    "stalled-cycles-backend",
    "page-faults",
)
"""Sampled beside it where the machine has them."""


@dataclass(frozen=True)
class Event:
    """An event that the kernel can count."""

    name: str
    type: int
    config: int


def event(name: str) -> Event:
    """The event of that name; ``rNNN`` is a raw one in hexadecimal. Raises ValueError for any other."""
    if name in _HARDWARE:
        return Event(name, HARDWARE, _HARDWARE.index(name))
    if name in _SOFTWARE:
        return Event(name, SOFTWARE, _SOFTWARE.index(name))
    for cache, number in _CACHES.items():
        access = _ACCESSES.get(name.removeprefix(f"{cache}-"))
        if name.startswith(f"{cache}-") and access:
            return Event(name, CACHE, number | access[0] << 8 | access[1] << 16)
    if name.startswith("r"):
        try:
            return Event(name, RAW, int(name[1:], 16))
        except ValueError:
            pass
    raise ValueError(
        f"no event named {name!r}; there are {', '.join((*_HARDWARE, *_SOFTWARE))}, "
        f"{{{','.join(_CACHES)}}}-{{{','.join(_ACCESSES)}}}, and rNNN for a raw event in hexadecimal"
    )


def pace(event: Event, frequency: int) -> tuple[int, bool]:
    """Sampling rate of an event: so many times a second (True), or once in so many events (False).

    Counters besides the clock need fewer samples, and each costs an interrupt. What the kernel counts itself comes in
    bursts, which a period follows and a frequency does not.
    """
    if event.type == SOFTWARE and event.name not in {TIME, "task-clock"}:
        return (31 if event.name in {"page-faults", "minor-faults"} else 1), False
    return (frequency if event.name in {TIME, "cycles"} else max(1, frequency // 4)), True
