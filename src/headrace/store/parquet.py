"""Parquet files: the only module of the stores that knows pyarrow."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.core.errors import MissingDriver
from headrace.store.files import replacing

BATCH = 8192
"""Rows of a file that are in memory at once while it is read in a stream."""


INFLATION, ROOM = 200, 1 << 28
"""Bytes that a file may become in memory, for each of its own, and beside those: more is no table but a trap."""


class Integers(list[int | None]):
    """A column of integers, also where none has a value."""


class NotParquet(Exception):
    """A file that cannot be read as Parquet; the message says why."""


def is_there() -> bool:
    """True if such files can be read and written here."""
    try:
        _pyarrow()
    except MissingDriver:
        return False
    return True


def write(path: Path, columns: Mapping[str, Sequence[Any] | npt.NDArray[Any]], facts: Mapping[str, str]) -> None:
    """A file with these columns and texts beside them. It is there whole or not at all; an older one is replaced.

    A categorical column is a pair of codes and the names they stand for.
    """
    arrow, parquet = _pyarrow()
    arrays = {}
    for name, values in columns.items():
        if isinstance(values, tuple):
            codes, names = values
            arrays[name] = arrow.DictionaryArray.from_arrays(arrow.array(codes, arrow.int32()), arrow.array(names))
        elif isinstance(values, Integers):
            arrays[name] = arrow.array(values, arrow.int64())
        else:
            arrays[name] = arrow.array(values)
    table = arrow.table(arrays).replace_schema_metadata({**facts})
    with replacing(path) as beside:
        parquet.write_table(table, beside, compression="zstd", write_page_checksum=True)


def facts(path: Path) -> dict[str, str]:
    """The texts beside the columns. Raises ``NotParquet`` or ``OSError``."""
    _, parquet = _pyarrow()
    with _translated():
        metadata = parquet.read_schema(path).metadata or {}
    return {key.decode(errors="replace"): value.decode(errors="replace") for key, value in metadata.items()}


def read(path: Path, columns: Sequence[str], unique: str) -> dict[str, list[Any]]:
    """The columns among these that are there, as Python values. Raises ``NotParquet`` or ``OSError``.

    Whatever is in the file, memory is bounded: it is read in parts, and given up at the first value of ``unique`` that
    is there for the second time.
    """
    _, parquet = _pyarrow()
    found: dict[str, list[Any]] = {}
    seen: set[Any] = set()
    with _translated(), parquet.ParquetFile(path, page_checksum_verification=True) as file:
        there = [name for name in columns if name in file.schema_arrow.names]
        _check_size(path, file.metadata)
        found = {name: [] for name in there}
        for batch in file.iter_batches(BATCH, columns=there):
            for name in there:
                found[name] += _listed(batch.column(name))
            if unique in found:
                added = found[unique][len(seen) :]
                seen.update(added)
                if len(seen) < len(found[unique]):
                    raise NotParquet(f"its column {unique} has a value twice")
    return found


def _check_size(path: Path, metadata: Any) -> None:
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    size = sum(group.column(number).total_uncompressed_size for group in groups for number in range(group.num_columns))
    if not 0 <= size <= ROOM + INFLATION * path.stat().st_size:
        raise NotParquet(f"it would take {size >> 20} MiB of memory")


def names(path: Path) -> list[str]:
    """The names of the columns. Raises ``NotParquet`` or ``OSError``."""
    _, parquet = _pyarrow()
    with _translated():
        return list(parquet.read_schema(path).names)


def rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield one row after the other, a few thousand in memory at once. Raises ``NotParquet`` or ``OSError``."""
    _, parquet = _pyarrow()
    with _translated(), parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(BATCH):
            yield from batch.to_pylist()


def _listed(column: Any) -> list[Any]:
    if column.null_count == 0 and str(column.type) in {"string", "int64", "int32", "large_string"}:
        values: list[Any] = np.asarray(column.to_numpy(zero_copy_only=False)).tolist()
        return values
    listed: list[Any] = column.to_pylist()
    return listed


@contextmanager
def _translated() -> Iterator[None]:
    arrow, _ = _pyarrow()
    try:
        yield
    except (arrow.ArrowException, ValueError, TypeError, KeyError, OverflowError, MemoryError) as error:
        raise NotParquet(str(error).partition("\n")[0]) from error


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow as pa  # noqa: PLC0415  (an extra)
        import pyarrow.parquet as pq  # noqa: PLC0415
    except ImportError:
        raise MissingDriver("Parquet files need pyarrow: pip install 'headrace[arrow]'") from None
    return pa, pq
