"""Counts of a loader while it runs."""

from collections.abc import Mapping
from dataclasses import FrozenInstanceError, asdict, dataclass

NAMES = "headrace: "
"""How the note of an error begins that says which sample it was."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A sample that was left out, and why."""

    index: object
    error: BaseException

    def __str__(self) -> str:
        """A line for people: the sample's index, its path or key where they are known, and the error."""
        notes = (note.removeprefix(NAMES) for note in getattr(self.error, "__notes__", ()) if note.startswith(NAMES))
        return f"{next(notes, f'sample {self.index!r}')}: {type(self.error).__name__}: {self.error}"


@dataclass(frozen=True, slots=True)
class Operation:
    """Cost so far of one of a dataset's operations: a transform, the loader of an image folder, a stage."""

    name: str
    count: int
    mean_seconds: float
    p50_seconds: float
    """Quantiles are known to within a factor: costs are counted by powers of two."""
    p90_seconds: float
    hand_offs: int
    """Times a worker gave its place away while it was in this operation."""


@dataclass(frozen=True, slots=True)
class Network:
    """Counts of reading from a store behind a network."""

    rows: int = 0
    bytes: int = 0
    seconds: float = 0.0
    """In the network, summed over requests: those in flight together count each."""
    retries: int = 0
    """Requests made again because they failed for a passing reason."""
    hedges: int = 0
    """Requests for shards made a second time because their answer was late."""
    failures: int = 0
    """Requests that gave no row."""
    connections: int = 0
    """Opened so far."""
    in_flight: int = 0
    """Requests at this moment, and the most rows that may be asked for and not delivered."""
    window: int = 0
    restarts: int = 0
    """Fetching processes that died and were replaced."""
    order: str = ""
    """How samples of shards are read, where the loader chose their order."""


@dataclass(frozen=True, slots=True)
class Division:
    """Division of a cache, and its reason."""

    split: tuple[int, int, int] = (0, 0, 0)
    """Percentages of the room for encoded, decoded and augmented samples."""
    why: str = ""
    measured: tuple[tuple[str, float], ...] = ()
    """What that is planned from, of all jobs together: mean seconds that a lane takes for each stage and to read an
    entry, mean bytes of entries, the jobs (those at half speed count half), their lanes, and samples per second that
    they take and would take if they never waited."""


@dataclass(frozen=True, slots=True)
class CacheUse:
    """Counts of a loader's cache: samples served, by what the cache had of them."""

    encoded: int = 0
    decoded: int = 0
    augmented: int = 0
    misses: int = 0
    """Samples that came from the store."""
    exchanged: int = 0
    """Samples served in place of others that were drawn; those come later in the epoch."""
    cheap: int = 0
    """Samples that were not kept because to make them takes less than to keep them and have them from here."""
    checked: int = 0
    """Hits that were made anew, to be compared with what the cache gave."""
    differing: int = 0
    """Of them, those that were not the same: all that was kept of this data is then dropped."""
    kept: int = 0
    """Entries that all jobs together have put into the cache, for this data, since it was made."""
    evicted: int = 0
    """Of them, those that gave way to others, or were of no further use."""
    lost: int = 0
    """Of them, those that were not there, or corrupt, when they were to be used."""
    bytes: int = 0
    """Held for this data now."""
    division: Division = Division()


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """Counts of the device's stages, with ``on_device=``."""

    batches: int = 0
    pictures: int = 0
    by_workers: int = 0
    """Of them, those that came as pixels: not of the kind that the device decodes, or decoded in a cache."""
    one_by_one: int = 0
    """Batches that the device refused and whose pictures were decoded one by one."""
    decode_seconds: float = 0.0
    """On the device, from asking for a batch's pictures to having them."""
    pixels_seconds: float = 0.0
    """On the device, from having them to the final batch, beside whatever else it is at."""
    peak_bytes: int = 0
    """Device memory for decoded pictures and what lies between them and the batch, at most so far."""

    def plus(self, other: "DeviceUse") -> "DeviceUse":
        sums = {name: getattr(self, name) + getattr(other, name) for name in self.__slots__}
        return DeviceUse(**sums | {"peak_bytes": max(self.peak_bytes, other.peak_bytes)})


@dataclass(frozen=True, slots=True)
class RemoteUse:
    """Counts of samples made on other hosts, with ``remote=``."""

    samples: int = 0
    """Made there and brought here."""
    given_back: int = 0
    """Samples asked for there and made here: they failed, ended their process twice, or nobody was there any more."""
    nodes: tuple[tuple[str, int], ...] = ()
    """How many came from each node, by its address."""
    lanes: int = 0
    """Processes that make samples there, now."""
    by_ray: bool = False
    """Whether Ray carries some of them, because no stream connects, or none may."""
    bytes: int = 0
    """Of what came."""
    sample_seconds: float = 0.0
    """In which one of those processes makes a sample, lately."""


Changes = tuple[tuple[float, float], ...]
"""(Seconds since the loader was made, the value from then on), oldest first; the last 64 changes."""


@dataclass(slots=True)
class Counters:
    """Plain counts since the loader was made."""

    epochs: int = 0
    """Iterations started."""
    batches: int = 0
    samples: int = 0
    """Samples delivered in those batches."""
    wait_seconds: float = 0.0
    """Time the caller spent blocked in ``next()``."""
    workers: int = 0
    """Worker processes of the newest iteration; 0 when samples are made in this process."""
    restarts: int = 0
    """Workers that died and were replaced."""
    repeats: int = 0
    """Samples run again because their worker died."""
    fast: int = 0
    """Samples that workers finished within the threshold in force then, or while there was none."""
    slow: int = 0
    """Samples that took longer than the threshold in force when they finished."""
    hand_offs: int = 0
    """Times a worker with a slow sample gave its place to another."""
    spares: int = 0
    """Processes started to take such places."""
    aside: int = 0
    """Workers that have given their places away, when the loader last looked."""
    operations: tuple[Operation, ...] = ()
    """Those that the dataset names, in the order in which they were found; made by workers, brought up to date now and
    then."""
    sample_bytes: float = 0.0
    """Size of a sample as it stands in a batch, on average; 0 without workers."""
    copied_out: int = 0
    """Batches copied to ordinary memory because ``memory_limit`` was reached."""
    slab_bytes: int = 0
    """Shared memory that batches have touched, at most so far."""
    network: Network = Network()
    """Of samples that came from a store behind a network."""
    cache: CacheUse = CacheUse()
    """Of samples asked of a cache."""
    device: DeviceUse = DeviceUse()
    """Of batches whose pixels the device does."""
    remote: RemoteUse = RemoteUse()
    """Of samples made on other hosts."""


@dataclass(unsafe_hash=True)
class Stats(Counters):
    """Counts since the loader was made; a snapshot that does not change any more."""

    lanes: int = 0
    """Of the workers, how many may work at once; changes with demand when ``num_workers`` is automatic."""
    lane_changes: Changes = ()
    """How the number of lanes changed."""
    threshold_seconds: float = 0.0
    """From which cost on a sample counts as slow, now; 0 while too few were seen."""
    thresholds: Changes = ()
    """How the threshold changed."""
    occupancy: float = 0.0
    """Mean share of the batches being made that were ready when one was asked for: 0, the caller waits; 1, he never."""
    failed: int = 0
    """Samples left out under ``Skip``."""
    skipped: tuple[Failure, ...] = ()
    """The newest of them: a thousand at most, and fewer where their exceptions are large."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_is_value", True)

    def __setattr__(self, name: str, value: object) -> None:
        if getattr(self, "_is_value", False):
            raise FrozenInstanceError(f"cannot assign to field {name!r}: a snapshot does not change")
        super().__setattr__(name, value)

    def as_dict(self) -> Mapping[str, object]:
        """The same figures under the same names, JSON-serialisable."""
        return asdict(self) | {"skipped": [[repr(f.index), repr(f.error)] for f in self.skipped]}
