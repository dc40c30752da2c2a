"""The indices of a group, where workers read them."""

import pickle
from array import array

from headrace.core.errors import SlabError
from headrace.engine.consumer.supply.arriving import Planned
from headrace.engine.memory.reservation import BLOB, Reservation
from headrace.engine.staging.caching import Allotted
from headrace.sched.book import Group
from headrace.sched.consumer import ConsumerLedger
from headrace.sched.publication import IndexKind


def written(memory: Reservation, ledger: ConsumerLedger, group: Group) -> tuple[IndexKind, int]:
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
            plain = not isinstance(indices, (Planned, Allotted))
            return (IndexKind.INTEGERS, 64) if plain else _planned(memory, group, IndexKind.INTEGERS, 0)
    packed = pickle.dumps(list(indices))
    size = -(-(8 + len(packed)) // 64) * 64
    if size > BLOB:
        raise SlabError(
            f"the indices of one batch take {size >> 20} MiB, more than the {BLOB >> 20} MiB there is room for"
        )
    memory.write_sized(memory.blob(number), packed)
    return _planned(memory, group, IndexKind.PICKLED, size)


def _planned(memory: Reservation, group: Group, kind: IndexKind, used: int) -> tuple[IndexKind, int]:
    """Behind the ``used`` bytes of the blob, what the group's samples are made of: rows brought, or a cache's."""
    if not isinstance(group.indices, (Planned, Allotted)):
        return kind, max(64, used)
    packed = group.indices.packed()
    at = memory.blob(group.number) + used
    if used + len(packed) > BLOB:
        raise SlabError(
            f"a batch of {len(group.indices)} samples is larger than a batch from a network or a cache may be"
        )
    memory.bytes[at : at + len(packed)] = packed
    return kind | IndexKind.PLANNED, max(64, -(-(used + len(packed)) // 64) * 64)
