"""Progress of one worker's stream, and so what it is taken up from."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple


class Note(NamedTuple):
    """A note that a lane left beside a batch, or where its stream ended: what can be said of it after that."""

    state: Any
    began: bytes | None
    random: bytes | None
    """All of them: see ``Resume``."""


class SlotContents(NamedTuple):
    """The contents of the memory of a slot that is ready, beside the batch."""

    fatal: bool = False
    """An error that took nothing of the stream: the same batch is still to come."""
    note: Note | None = None


@dataclass(frozen=True, slots=True)
class Resume:
    """The point that one worker's stream of an iterable dataset had come to."""

    batches: int = 0
    """Made and delivered before; made again and dropped unless there is a state."""
    state: Any = None
    """The state that the dataset's or its iterator's ``state_dict`` returned after those."""
    ended: bool = False
    """Nothing came after those."""
    began: bytes | None = None
    """The worker's random generators when its stream began, where they were not those of a new worker."""
    random: bytes | None = None
    """The generators after the batches, where they had been drawn from."""
    generation: int = 0
    """The epoch this is about; a worker that begins with a later one starts at the beginning."""

    def told(self) -> dict[str, Any]:
        """The part of it that a loader's state has."""
        return {name: getattr(self, name) for name in ("batches", "ended", "state", "began", "random")}

    def after(self, read: SlotContents, *, last: bool) -> "Resume":
        """The same, one batch later. ``last``: the stream ended with it."""
        if read.fatal:
            return self
        further = replace(self, batches=self.batches + 1, ended=last)
        if read.note is None:
            return further
        return replace(further, state=read.note.state, began=read.note.began, random=read.note.random)
