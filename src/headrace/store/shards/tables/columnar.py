"""Pieces of Parquet files as arrays: the only module of the shards that knows their insides, through pyarrow."""

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from headrace.core.errors import MissingDriver
from headrace.store.base import Kind
from headrace.store.shards.codecs import DENSEST, INFLATION, ROOM
from headrace.store.shards.npy import npy_of
from headrace.store.shards.shard import DamagedShard
from headrace.store.shards.tables.pages import PagedColumn, without_statistics

MAGIC = b"PAR1"
PADDING = 100
"""Bytes that are read behind a column of old writers, which understated its size; no value is in them."""


class Footer:
    """A file's description of itself: its columns, and where each row group's part of each lies."""

    def __init__(self, raw: bytes, size: int) -> None:
        """``raw``: the end of a file of ``size`` bytes, from where its metadata begin. Raises ``DamagedShard``."""
        arrow, parquet = _pyarrow()
        plain = without_statistics(raw[:-8])
        with _translated():
            self.metadata = parquet.read_metadata(
                arrow.BufferReader(b"".join([MAGIC, plain, len(plain).to_bytes(4, "little"), MAGIC]))
            )
            self.schema = self.metadata.schema.to_arrow_schema()
            self._paths = [self.metadata.schema.column(at).path for at in range(self.metadata.num_columns)]
        self._size, self._raw = size, raw[:-8]
        self._paged: dict[str, PagedColumn] = {}

    def groups(self) -> list[int]:
        """The rows of each row group."""
        with _translated():
            counts = [self.metadata.row_group(number).num_rows for number in range(self.metadata.num_row_groups)]
        # Whatever a damaged footer says: to each row belongs a part of some page.
        if any(count < 0 for count in counts) or sum(counts) > DENSEST * self._size:
            raise DamagedShard(f"it is to have {sum(counts)} rows")
        return counts

    def kinds(self) -> dict[str, Kind | None]:
        """The kind of each column; None where that is no metadata."""
        return {field.name: _kind(field.type) for field in self.schema}

    def blobs(self) -> Iterator[str]:
        """Columns that may be payloads: bytes, or Hugging Face's bytes beside a path; then lists of numbers."""
        found = [(field.name, _is_bytes(field.type), _is_numbers(field.type)) for field in self.schema]
        yield from (name for name, is_bytes, _ in found if is_bytes)
        yield from (name for name, _, is_numbers in found if is_numbers)

    def leaves(self, column: str) -> list[int]:
        """The numbers of the parts that a column's values are read from: of bytes beside a path only the bytes."""
        kind = self.schema.field(column).type
        path = f"{column}.bytes" if _arrow_types().is_struct(kind) and _is_bytes(kind) else column
        return [at for at, each in enumerate(self._paths) if each == path or each.startswith(f"{path}.")]

    def range(self, group: int, columns: Sequence[str]) -> list[tuple[int, int]]:
        """The ranges in which the columns of a row group lie, one for each part. Raises ``DamagedShard``."""
        ranges = []
        with _translated():
            of = self.metadata.row_group(group)
            for leaf in [leaf for name in columns for leaf in self.leaves(name)]:
                part = of.column(leaf)
                first = part.data_page_offset
                if part.has_dictionary_page and part.dictionary_page_offset:
                    first = min(first, part.dictionary_page_offset)
                ranges.append((first, first + part.total_compressed_size))
                if not 0 <= first <= ranges[-1][1] <= self._size:
                    raise DamagedShard(
                        f"row group {group} is to lie from {first} to {ranges[-1][1]} of {self._size} bytes"
                    )
                if not 0 <= part.total_uncompressed_size <= ROOM + INFLATION * part.total_compressed_size:
                    raise DamagedShard(
                        f"row group {group} would take {part.total_uncompressed_size >> 20} MiB of memory"
                    )
        return ranges

    def paged(self, group: int, column: str) -> PagedColumn | None:
        """The pages of a column, where the file has an index of them."""
        leaves = self.leaves(column)
        if len(leaves) != 1:
            return None
        with _translated():
            if not self.metadata.row_group(group).column(leaves[0]).has_offset_index:
                return None
        if column not in self._paged:
            self._paged[column] = PagedColumn(self._raw, self._paths[leaves[0]])
        return self._paged[column]

    def read(self, group: int, columns: Sequence[str], pieces: Mapping[int, bytes | memoryview]) -> dict[str, Any]:
        """The columns of a row group as Arrow's arrays, of pieces by their offset. Raises ``DamagedShard``."""
        arrow, parquet = _pyarrow()
        names = [self._paths[leaf] for name in columns for leaf in self.leaves(name)]
        with _translated():
            source = arrow.PythonFile(_Sparse(pieces, self._size), mode="r")
            with parquet.ParquetFile(
                source, metadata=self.metadata, pre_buffer=False, page_checksum_verification=True
            ) as file:
                table = file.read_row_group(group, columns=names, use_threads=False)
            table.validate(full=True)
            found = {name: table.column(name).combine_chunks() for name in columns}
        if any(len(each) != self.metadata.row_group(group).num_rows for each in found.values()):
            raise DamagedShard(f"row group {group} has other rows than its file says")
        return found


def page_of(content: bytes, column: str, rows: int) -> Any:
    """The one column of a small file as Arrow's array. Raises ``DamagedShard``."""
    arrow, parquet = _pyarrow()
    with _translated():
        with parquet.ParquetFile(arrow.BufferReader(content), page_checksum_verification=True) as file:
            table = file.read(use_threads=False)
        table.validate(full=True)
        found = table.column(column).combine_chunks()
    if len(found) != rows:
        raise DamagedShard(f"a page of {rows} rows has {len(found)}")
    return found


def payload_at(array: Any, row: int) -> bytes | memoryview:
    """A value as a payload: bytes as they are, texts in UTF-8, numbers and lists of them as NPY files."""
    value = array[row]
    if _arrow_types().is_struct(array.type) and "bytes" in {field.name for field in array.type}:
        value = value["bytes"] if value.is_valid else value
    if not value.is_valid:
        raise DamagedShard("its payload or label is missing")
    if hasattr(value, "as_buffer"):
        buffer = value.as_buffer()
        return b"" if buffer is None else memoryview(buffer)
    try:
        made = np.asarray(value.as_py())
    except ValueError as error:
        raise DamagedShard(f"its list is no array: {error}") from None
    if made.dtype.kind not in "biuf":
        raise DamagedShard("its list is no array of numbers")
    return npy_of(made.astype(_numpy_type(array.type)))


def listed(array: Any) -> list[Any]:
    """The values of a column of metadata."""
    with _translated():
        if _arrow_types().is_dictionary(array.type):
            array = array.dictionary_decode()
        values: list[Any] = array.to_pylist()
    if _arrow_types().is_integer(array.type) and any(value is not None and value >= 1 << 63 for value in values):
        raise DamagedShard("a column has numbers of more than 63 bits")
    return values


def size_of(arrays: Mapping[str, Any]) -> int:
    """Bytes of memory that they take."""
    return sum(each.nbytes for each in arrays.values())


class _Sparse(io.RawIOBase):
    """A file of which some pieces are there."""

    def __init__(self, pieces: Mapping[int, bytes | memoryview], size: int) -> None:
        super().__init__()
        self._pieces, self._size, self._at = pieces, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        for begin, piece in self._pieces.items():
            if begin <= self._at < begin + len(piece) and 0 <= size <= begin + len(piece) - self._at + PADDING:
                found = bytes(piece[self._at - begin : self._at - begin + size]).ljust(size, b"\0")
                self._at += size
                return found
        if not size:
            return b""
        raise OSError(f"a page reaches beyond its column, to {self._at + size}")


def _kind(kind: Any) -> Kind | None:
    types = _arrow_types()
    if types.is_dictionary(kind):
        kind = kind.value_type
    if types.is_boolean(kind):
        return Kind.TRUTH
    if types.is_integer(kind):
        return Kind.INTEGER
    if types.is_floating(kind):
        return Kind.NUMBER
    return Kind.TEXT if types.is_string(kind) or types.is_large_string(kind) else None


def _is_bytes(kind: Any) -> bool:
    types = _arrow_types()
    if types.is_struct(kind):
        return any(field.name == "bytes" and _is_bytes(field.type) for field in kind)
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind))


def _is_numbers(kind: Any) -> bool:
    types = _arrow_types()
    while types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        kind = kind.value_type
        if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
            return True
    return False


def _numpy_type(kind: Any) -> Any:
    types = _arrow_types()
    while types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        kind = kind.value_type
    return kind.to_pandas_dtype()


@contextmanager
def _translated() -> Iterator[None]:
    arrow, _ = _pyarrow()
    try:
        yield
    except (
        arrow.ArrowException,
        OSError,
        TypeError,
        LookupError,
        OverflowError,
        MemoryError,
        UnicodeDecodeError,
    ) as error:
        raise DamagedShard(f"it is no Parquet that can be read: {' '.join(str(error).split())[:300]}") from error


def _arrow_types() -> Any:
    return _pyarrow()[0].types


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow as pa  # noqa: PLC0415  (an extra)
        import pyarrow.parquet as pq  # noqa: PLC0415
    except ImportError:
        raise MissingDriver("Parquet files need pyarrow: pip install 'headrace[arrow]'") from None
    return pa, pq
