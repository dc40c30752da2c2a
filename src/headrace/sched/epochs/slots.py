"""Facts of a slot, read by whoever holds it, without the lock."""

from headrace.sched import encoding as E
from headrace.sched import ledger_layout as W
from headrace.sched.ledger_layout import Dims, Words
from headrace.sched.ledger_story import Story


class SlotView:
    """All slots of a run."""

    def __init__(self, words: Words, dims: Dims) -> None:
        dims.check_words(words)
        self.w, self.dims = words, dims

    @property
    def epoch(self) -> int:
        """The number of the epoch."""
        return self.w[W.EPOCH]

    def expected(self, slot: int) -> int:
        return self.w[self.dims.slot(slot) + W.S_EXPECTED]

    def number(self, slot: int) -> int:
        """The batch's, among all that were opened."""
        return self.w[self.dims.slot(slot) + W.S_BATCH]

    def used(self, slot: int) -> int:
        """Bytes of it that are in use."""
        return self.w[self.dims.slot(slot) + W.S_BUMP]

    def layout(self, slot: int) -> int:
        """The number of its layout; -1 where its samples travel as objects, UNDECIDED while none is decided."""
        return E.layout_in(self.w[self.dims.slot(slot) + W.S_LAYOUT])

    def object_at(self, slot: int, row: int) -> int:
        """The offset in the slot of the sample of a row that holds one; -1 where it is in place."""
        state = self.w[self.dims.row_state(slot) + row]
        return E.offset(state) if E.kind(state) == W.AS_OBJECT else -1

    def present(self, slot: int) -> list[int]:
        """Rows of it that hold a sample."""
        first = self.dims.row_state(slot)
        states = self.w[first : first + self.expected(slot)].tolist()
        return [row for row, state in enumerate(states) if E.kind(state) in (W.IN_PLACE, W.AS_OBJECT)]

    def result(self, slot: int) -> int:
        """The offset of what was collated; -1 where nothing was."""
        at = self.dims.slot(slot)
        return self.w[at + W.S_RESULT] if self.w[at + W.S_RESULT_BYTES] else -1

    def is_error(self, slot: int) -> bool:
        """True if what was collated is an error."""
        return bool(self.w[self.dims.slot(slot) + W.S_FAILED])

    def is_ready(self, slot: int) -> bool:
        """True if the slot's batch can be taken."""
        return self.w[self.dims.slot(slot) + W.S_STATUS] == W.READY

    def is_filling(self, slot: int) -> bool:
        """True if the slot still wants rows."""
        return self.w[self.dims.slot(slot) + W.S_STATUS] == W.FILLING

    def is_kept(self, slot: int) -> bool:
        """True if a worker's user code refers to the slot's memory: it is not used again as long as it does."""
        return self.w[self.dims.slot(slot) + W.S_KEPT] != 0

    def keep(self, slot: int, lane: int) -> None:
        """The user code of this lane's worker does."""
        self.w[self.dims.slot(slot) + W.S_KEPT] = E.some(lane)

    def let_go(self, slot: int, lane: int | None = None) -> None:
        """Note that user code does not refer to the slot's memory any more. With ``lane``, only if it was that
        one's.
        """
        at = self.dims.slot(slot) + W.S_KEPT
        if lane is None or self.w[at] == E.some(lane):
            self.w[at] = 0


class TrainerView(SlotView):
    """The same, and who is told what the trainer does about tickets and lanes, if anybody is."""

    story: Story | None = None
