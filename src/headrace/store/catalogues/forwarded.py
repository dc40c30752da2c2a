"""Another store's catalogue, passed on: what every store around a store has in common."""

from collections.abc import Sequence

from headrace.core.errors import StoreError
from headrace.store.base import Columns, Info, Store
from headrace.store.catalogues.provenance import Identified, Provenance
from headrace.store.shards.formats import PreparedStore


class Forwarded:
    """Stands before the kind of store it is in a class's bases, whose methods it is the implementation of."""

    _store: Store

    @property
    def name(self) -> str:
        return self._store.name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._store!r})"

    def keys(self) -> list[str]:
        return self._store.keys()

    def columns(self, names: Sequence[str] | None = None) -> Columns:
        return self._store.columns(names)

    def info(self) -> Info:
        return self._store.info()

    def provenance(self) -> Provenance:
        """Raises ``StoreError`` where the store within does not know."""
        if not isinstance(self._store, Identified):
            raise StoreError(f"{self.name} does not say which store it is: it has no provenance()", server=self.name)
        return self._store.provenance()

    def prepare(self) -> None:
        """Reads the index of a store that has one, before anything that has to end in time begins."""
        if isinstance(self._store, PreparedStore):
            self._store.prepare()

    def close(self) -> None:
        self._store.close()
