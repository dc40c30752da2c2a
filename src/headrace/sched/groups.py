"""The groups of indices that an epoch makes: what a resumed one still owes, then what its order gives.

A signal handler may raise, or ask for the state, between any two steps. So what was drawn and not handed out is one
value, which changes by one store: a group is in one place at any moment.
"""

from typing import Any, NamedTuple, Protocol


class Drawing(Protocol):
    """An order of indices, or of batches of them."""

    @property
    def first(self) -> int:
        """The number of the item that is drawn next."""

    def item(self, number: int) -> Any:
        """The item of that number; the same one when it is asked for again. Raises ``StopIteration`` at the end."""

    def state(self, number: int) -> dict[str, Any]:
        """Where it stands after that many items."""


class _At(NamedTuple):
    """What was drawn and not handed out: changed by one store."""

    head: list[Any] | None
    """The group that is handed out now."""
    kept: tuple[list[Any], ...]
    flat: tuple[Any, ...]
    drawn: int
    """Items taken from the order."""


class Groups:
    """Batches of indices to make: first what a resumed epoch had drawn and not delivered, then what the order gives."""

    def __init__(self, order: Drawing, pending: list[list[Any]], batch_size: int | None, *, batched: bool) -> None:
        """``batch_size``: pending samples are regrouped to it, since out of order they are parts of several batches."""
        self._order, self._batched = order, batched
        self._size = batch_size
        kept = tuple(list(group) for group in pending if group)
        flat = tuple(index for group in kept for index in group) if batch_size is not None else ()
        self._at = _At(None, kept if batch_size is None else (), flat, order.first - 1)

    def head(self) -> list[Any] | None:
        """The next group, or None at the end of the epoch; the same one until it was ``taken``."""
        if self._at.head is None:
            self._draw()
        return self._at.head

    @property
    def drawn(self) -> list[Any] | None:
        return self._at.head

    def waited_for(self) -> tuple[int, int]:
        """A descriptor, and events of it, by which more groups announce themselves; -1: none do."""
        return -1, 0

    def abandon(self) -> None:
        """Nothing more is needed."""

    def taken(self) -> None:
        """The head is in somebody else's care."""
        _, kept, flat, drawn = self._at
        self._at = _At(None, kept, flat, drawn)

    def _draw(self) -> None:
        at = self._at
        if at.kept:
            self._at = at._replace(head=at.kept[0], kept=at.kept[1:])
            return
        while at.flat and self._size is not None and len(at.flat) < self._size:
            try:
                item = self._order.item(at.drawn + 1)
            except StopIteration:
                break
            self._at = at = at._replace(flat=(*at.flat, *item), drawn=at.drawn + 1)
        if at.flat:
            self._at = at._replace(head=list(at.flat[: self._size]), flat=at.flat[self._size :])
            return
        try:
            item = self._order.item(at.drawn + 1)
        except StopIteration:
            return
        self._at = _At(list(item) if self._batched else [item], at.kept, at.flat, at.drawn + 1)

    def again(self, pending: list[list[Any]]) -> "Groups":
        """The same, but ``pending`` first."""
        groups = Groups(self._order, pending, self._size, batched=self._batched)
        groups._at = groups._at._replace(drawn=self._at.drawn)
        return groups

    def progress(self, held: list[list[Any]], besides: list[list[Any]] | None = None) -> dict[str, Any]:
        """For a resume: ``held``, drawn and not delivered, and what waits here; not the head if it is ``besides``."""
        at = self._at
        head = [list(at.head)] if at.head and not any(at.head is group for group in besides or ()) else []
        waiting = [list(group) for group in at.kept] + ([list(at.flat)] if at.flat else [])
        return {"pending": held + head + waiting, "order": self._order.state(at.drawn)}


class _AnsweredAt(NamedTuple):
    """Changed by one store."""

    head: list[Any] | None
    answered: list[Any] | None
    """The group of the order that the newest head stands for; it may still be the order's head."""
    served: int
    """Samples so far that were noted with their heads."""


class Answers:
    """Groups for each of which another one is handed out, which somebody answered it with.

    A group was answered from the store on that notes the head; until then it is the order's, and is answered again.
    """

    def __init__(self, groups: Groups) -> None:
        """``groups``: nobody else takes any of them."""
        self._groups = groups
        self.at = _AnsweredAt(None, None, 0)
        """As it is now; does not change any more."""

    def following(self) -> list[Any] | None:
        """The group to be answered next, None at the end of the epoch; once the head was ``taken``."""
        drawn = self._groups.head()
        if drawn is not None and drawn is self.at.answered:
            self._groups.taken()
            drawn = self._groups.head()
        return drawn

    def answer(self, drawn: list[Any], head: list[Any], served: int) -> None:
        """``head`` is handed out for ``drawn``, with so many samples that are noted."""
        self.at = _AnsweredAt(head, drawn, self.at.served + served)

    def taken(self) -> None:
        """The head is in somebody else's care."""
        self.at = self.at._replace(head=None)

    def progress(self, at: _AnsweredAt, held: list[list[Any]]) -> dict[str, Any]:
        """For a resume, as it was ``at`` a moment: ``held``, drawn and not delivered, and what waits here."""
        rest = self._groups.progress([], [] if at.answered is None else [at.answered])
        return rest | {"pending": held + rest["pending"]}

    def again(self, pending: list[list[Any]]) -> Groups:
        """What is drawn from, but ``pending`` first."""
        return self._groups.again(pending)
