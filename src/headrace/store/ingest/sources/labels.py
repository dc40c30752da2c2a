"""Numbers for the names of classes, in agreement with those that a store already uses. Pure."""

from collections.abc import Collection, Mapping, Sequence

from headrace.core.errors import IngestError
from headrace.store.wording import is_text


def numbered(
    names: Collection[str], used: Mapping[str, int], order: Sequence[str] = (), own: Mapping[str, int] | None = None
) -> dict[str, int]:
    """The number of each class: the store's, that in ``order``, the source's own (``own``) if that is free, else
    free numbers in the order of the names.

    An ingest that was interrupted numbers the rest as it would have done: the free numbers are what was left over.
    """
    for name in names:
        if not is_text(name):
            raise IngestError(f"classes: {name!r} is no text: a folder whose name is not UTF-8 has to be renamed")
    known = dict(used)
    for number, name in enumerate(order):
        if known.setdefault(name, number) != number:
            raise IngestError(f"classes: {name} is number {known[name]} in the store, not {number}")
    taken: dict[int, str] = {}
    for name, number in known.items():
        if taken.setdefault(number, name) != name:
            raise IngestError(f"classes: {taken[number]} and {name} both have the number {number}")
    for name, number in ({} if order else own or {}).items():
        if name not in known and number not in taken:
            known[name], taken[number] = number, name
    free = (number for number in range(len(known) + 2**31) if number not in taken)
    for name in sorted(set(names) - set(known)):
        if order:
            raise IngestError(f"classes: {name} is not among those given ({', '.join(order)})")
        known[name] = next(free)
    return known
