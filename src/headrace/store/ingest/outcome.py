"""The outcome of an ingest, part by part and in all. Values."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple

MOST_EXAMPLES = 3


class IngestFailure(NamedTuple):
    """An item that was not stored, and why."""

    item: str
    error: str


@dataclass
class Noted:
    """The number of times that something was seen, and examples of it."""

    count: int = 0
    examples: list[str] = field(default_factory=list)

    def told(self) -> str:
        """The examples, in words."""
        return ", ".join(self.examples) + (", ..." if self.count > len(self.examples) else "")


class Notes(dict[str, Noted]):
    """Things seen, by name."""

    def note(self, what: str, example: str) -> None:
        self.add({what: Noted(1, [example])})

    def add(self, other: Mapping[str, Noted]) -> None:
        for what, noted in other.items():
            mine = self.setdefault(what, Noted())
            mine.count += noted.count
            mine.examples = [*mine.examples, *noted.examples][:MOST_EXAMPLES]

    def data(self) -> dict[str, Any]:
        return {what: asdict(noted) for what, noted in self.items()}


@dataclass
class IngestTally:
    """Numbers of items, and the failures among them; parts add up."""

    written: int = 0
    present: int = 0
    """Already stored, and the same as far as was seen."""
    unseen: int = 0
    """Of these, the ones of which only the key was compared, since the store does not say more."""
    repeated: int = 0
    """There more than once in the source, and the same each time."""
    replaced: int = 0
    """Of several with one key, all but the last, which counts."""
    payload_bytes: int = 0
    """Of what was written."""
    derived: int = 0
    """Items whose keys were made of their content and place."""
    failures: list[IngestFailure] = field(default_factory=list)
    differ: int = 0
    """Already stored, and left as they are there, though the source has them otherwise."""
    differing: Notes = field(default_factory=Notes)
    """The same, by what differs; one row may differ in several ways."""
    doubled: Notes = field(default_factory=Notes)
    """Written, though the store has them under another key: by what has changed since."""
    forms: Notes = field(default_factory=Notes)
    """Written, by what they are: pictures, arrays, others."""

    @property
    def items(self) -> int:
        return self.written + self.present + self.repeated + len(self.failures) + self.differ

    def add(self, other: "IngestTally") -> None:
        for each in fields(self):
            mine, more = getattr(self, each.name), getattr(other, each.name)
            if isinstance(mine, Notes):
                mine.add(more)
            else:
                mine += more
                setattr(self, each.name, mine)


_DOUBLED = {
    "encoding": "are stored twice under other keys: they were there with another --resize or --encode",
    "content": "are stored twice under other keys: their files were replaced since; headrace store prune removes the "
    "older ones, and with --key path they would have kept their keys",
    "place": "are stored twice under other keys: an earlier ingest stored the same content from another place",
}


@dataclass(frozen=True)
class Outcome:
    """An ingest that came to its end. ``failures`` are in no order."""

    source: str
    store: str
    tally: IngestTally
    left_out: tuple[str, ...]
    """Files of a folder that are no samples by their names, or no files."""
    superseded: int
    """Rows in the store, of this ingest or earlier ones, whose files were replaced and are stored anew."""
    settled: bool
    """Whether all rows are in the store's own file, where it is one."""
    seconds: float

    @property
    def written(self) -> int:
        return self.tally.written

    @property
    def present(self) -> int:
        return self.tally.present

    @property
    def payload_bytes(self) -> int:
        return self.tally.payload_bytes

    @property
    def failures(self) -> tuple[IngestFailure, ...]:
        return tuple(self.tally.failures)

    @property
    def differing(self) -> Mapping[str, int]:
        """Rows that the source has otherwise than the store, by what differs; they were left as they are."""
        return {what: noted.count for what, noted in self.tally.differing.items()}

    @property
    def whole(self) -> bool:
        """True if the store now has every sample of the source as the source has it."""
        return not self.tally.failures and not self.tally.differ

    def concerns(self) -> Iterator[str]:
        """Yield what the numbers alone do not say, in sentences."""
        for what, noted in self.tally.differing.items():
            yield f"{noted.count} differ in {what} from what is stored, and were left: --rewrite ({noted.told()})"
        for what, noted in self.tally.doubled.items():
            yield f"{noted.count} {_DOUBLED[what]} ({noted.told()})"
        if self.superseded > self.tally.doubled.get("content", Noted()).count:
            told = "rows in the store are superseded: their files were replaced, and are stored anew"
            yield f"{self.superseded} {told}; headrace store prune removes them"
        forms = self.tally.forms
        if len(forms) > 1:
            most = max(forms, key=lambda form: forms[form].count)
            for form, noted in forms.items():
                if form != most:
                    told = "neither pictures nor arrays" if form == "other" else f"{form}s"
                    yield f"{noted.count} are {told}, as the others are {most}s ({noted.told()})"
        if self.left_out:
            shown = Noted(len(self.left_out), list(self.left_out[:MOST_EXAMPLES]))
            yield f"{shown.count} files are no samples by their names or kinds, and were left out ({shown.told()})"
        if self.tally.repeated:
            yield f"{self.tally.repeated} are there twice in the source, and the same: stored once"
        if self.tally.replaced:
            yield f"{self.tally.replaced} have the key of a later one in the source: of each key the last one counts"
        if self.tally.unseen:
            yield f"{self.tally.unseen} were there by their keys; this store tells no labels or metadata: --rewrite"
        if not self.settled:
            yield f"others use {self.store}: until they are done, its newest rows lie in the file beside it, -wal"

    def data(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "store": self.store,
            "samples": self.written + self.present,
            "written": self.written,
            "present": self.present,
            "repeated": self.tally.repeated,
            "replaced": self.tally.replaced,
            "payload_bytes": self.payload_bytes,
            "failed": [failure._asdict() for failure in self.failures],
            "differ": self.tally.differ,
            "differ_in": self.tally.differing.data(),
            "stored_twice": self.tally.doubled.data(),
            "superseded": self.superseded,
            "keys_made": self.tally.derived,
            "left_out": list(self.left_out),
            "settled": self.settled,
            "seconds": round(self.seconds, 3),
        }


Progress = Callable[[IngestTally, int | None], None]
"""Told of the tally so far and the number of items, where that is known."""
