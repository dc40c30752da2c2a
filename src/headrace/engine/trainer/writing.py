"""The indices of a group, where workers read them."""

import pickle
from array import array

from headrace.core.errors import SlabError
from headrace.engine.memory.reservation import BLOB, Reservation
from headrace.sched.epochs.publication import IndexKind
from headrace.sched.epochs.trainer_ledger import TrainerLedger
from headrace.sched.source import Group


def written(memory: Reservation, ledger: TrainerLedger, group: Group) -> tuple[IndexKind, int]:
    """Write its indices; how they are written now, and bytes that its blob begins with."""
    number, indices = group.number, group.indices
    if len(indices) > memory.dims.rows:
        raise SlabError(f"a batch of {len(indices)} samples is larger than the {memory.dims.rows} a batch may have")
    if number >= memory.dims.groups:
        raise SlabError(f"more than {memory.dims.groups} batches are outstanding; use a smaller prefetch_factor")
    if set(map(type, indices)) == {int}:
        try:
            integers = array("q", indices)
        except OverflowError:
            pass
        else:
            ledger.write_indices(number, integers)
            return (IndexKind.INTEGERS, 64) if group.pack is None else _noted(memory, group, IndexKind.INTEGERS, 0)
    packed = pickle.dumps(indices)
    size = -(-(8 + len(packed)) // 64) * 64
    if size > BLOB:
        raise SlabError(
            f"the indices of one batch take {size >> 20} MiB, more than the {BLOB >> 20} MiB there is room for"
        )
    memory.write_sized(memory.blob(number), packed)
    return _noted(memory, group, IndexKind.PICKLED, size)


def _noted(memory: Reservation, group: Group, kind: IndexKind, used: int) -> tuple[IndexKind, int]:
    """Write the group's notes behind the ``used`` bytes of its blob, if it has any."""
    packed = group.notes
    if not packed:
        return kind, max(64, used)
    at = memory.blob(group.number) + used
    if used + len(packed) > BLOB:
        raise SlabError(
            f"a batch of {len(group.indices)} samples is larger than a batch from a network or a cache may be"
        )
    memory.bytes[at : at + len(packed)] = packed
    return kind | IndexKind.PLANNED, max(64, -(-(used + len(packed)) // 64) * 64)
