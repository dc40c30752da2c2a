"""Functions of a library: from its symbol tables, else from the ranges its unwind table knows."""

import struct
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from headrace.trace.hardware.unwind import ranges

Table = npt.NDArray[Any]

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SYMBOL = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"), ("size", "<u8")]
)
_SYMTAB, _DYNSYM, _LOAD = 2, 11, 1
_FUNCTION, _INDIRECT = 2, 10
_DEBUG = Path("/usr/lib/debug/.build-id")


@dataclass(frozen=True)
class _ElfSection:
    name: str
    type: int
    address: int
    offset: int
    size: int
    link: int


class ElfLibrary:
    """Symbols of an ELF file. Takes file offsets, as mappings have them; answers with names, which may be mangled."""

    def __init__(self, path: str) -> None:
        """Raises OSError, ValueError or struct.error when it cannot be read or is no 64-bit little-endian ELF file."""
        self._path = path
        with Path(path).open("rb") as file:
            header = _header(file)
            self._segments = [
                (offset, address, size)
                for kind, _, offset, address, _, size, _, _ in _SEGMENT.iter_unpack(
                    _piece(file, header[5], header[9] * header[10])
                )
                if kind == _LOAD
            ]
            self._sections = _sections(file, header)
            tables = _symbol_tables(file, self._sections)
            identity = next((part for part in self._sections if part.name == ".note.gnu.build-id"), None)
            name = _piece(file, identity.offset + 16, identity.size - 16).hex() if identity else ""
        if name and not any(section.type == _SYMTAB for section in self._sections):
            tables += _debug_tables(name)
        self._texts, self._starts, self._ends, self._names = _by_address(tables)
        self._frames: npt.NDArray[np.uint64] | None = None

    def function(self, offset: int) -> str:
        """The function at that place in the file: its symbol, else ``function@0x…`` by its start, else ``0x…``."""
        return self.at(self._address(offset))

    def at(self, address: int) -> str:
        """The function at that address of the library's own."""
        at = int(np.searchsorted(self._starts, address, side="right")) - 1
        if at >= 0 and address < self._ends[at]:
            text, name = self._names[at]
            table = self._texts[text]
            return bytes(table[name : table.find(b"\0", name)]).decode(errors="replace")
        frames = self._ranges()
        at = int(np.searchsorted(frames[:, 0], address, side="right")) - 1
        if at >= 0 and address < frames[at, 1]:
            return f"function@{int(frames[at, 0]):#x}"
        if at >= 0:  # hand-written code has no unwind entry; what lies between two entries belongs together
            return f"gap@{int(frames[at, 1]):#x}"
        return f"{address:#x}"

    def _address(self, offset: int) -> int:
        for start, address, size in self._segments:
            if start <= offset < start + size:
                return int(offset - start + address)
        return offset

    def _ranges(self) -> npt.NDArray[np.uint64]:
        if self._frames is None:
            section = next((section for section in self._sections if section.name == ".eh_frame"), None)
            self._frames = np.empty((0, 2), np.uint64)
            if section is not None:
                with Path(self._path).open("rb") as file:
                    self._frames = ranges(_piece(file, section.offset, section.size), section.address)
        return self._frames


@cache
def opened(path: str) -> ElfLibrary | None:
    """The library at that path, read once; None when it cannot be read."""
    try:
        return ElfLibrary(path)
    except (OSError, ValueError, struct.error, IndexError):
        return None


def _piece(file: IO[bytes], offset: int, size: int) -> bytes:
    file.seek(offset)
    return file.read(size)


def _header(file: IO[bytes]) -> tuple[Any, ...]:
    raw = _piece(file, 0, _HEADER.size)
    if raw[:6] != b"\x7fELF\x02\x01":
        raise ValueError("no 64-bit little-endian ELF file")
    return _HEADER.unpack(raw)


def _sections(file: IO[bytes], header: tuple[Any, ...]) -> list[_ElfSection]:
    found = list(_SECTION.iter_unpack(_piece(file, header[6], header[11] * header[12])))
    if not found:
        return []
    names = _piece(file, found[header[13]][4], found[header[13]][5])
    return [
        _ElfSection(names[name : names.find(b"\0", name)].decode(errors="replace"), kind, address, offset, size, link)
        for name, kind, _, address, offset, size, link, _, _, _ in found
    ]


def _symbol_tables(file: IO[bytes], sections: list[_ElfSection]) -> list[tuple[Table, bytes]]:
    """Symbols that are code, with the texts their names are in."""
    found = []
    for section in sections:
        if section.type in {_SYMTAB, _DYNSYM}:
            strings = sections[section.link]
            count = section.size // _SYMBOL.itemsize
            table = np.frombuffer(_piece(file, section.offset, count * _SYMBOL.itemsize), _SYMBOL)
            code = np.isin(table["info"] & 15, (_FUNCTION, _INDIRECT)) & (table["value"] > 0) & (table["section"] > 0)
            found.append((table[code], _piece(file, strings.offset, strings.size)))
    return found


def _debug_tables(identity: str) -> list[tuple[Table, bytes]]:
    """The symbols of a stripped library that the system has installed apart from it."""
    try:
        with (_DEBUG / identity[:2] / f"{identity[2:]}.debug").open("rb") as file:
            return _symbol_tables(file, _sections(file, _header(file)))
    except (OSError, ValueError, struct.error, IndexError):
        return []


def _by_address(tables: list[tuple[Table, bytes]]) -> tuple[list[bytes], Table, Table, Table]:
    """Texts, and by address: starts, ends, (text, position in it)."""
    parts = [
        np.stack([table["value"], table["size"], np.full(len(table), at, np.uint64), table["name"]])
        for at, (table, _) in enumerate(tables)
    ]
    if not sum(part.shape[1] for part in parts):
        none = np.empty(0, np.uint64)
        return [], none, none, np.empty((0, 2), np.int64)
    starts, sizes, text, name = np.concatenate(parts, axis=1).astype(np.uint64)
    order = np.lexsort((sizes, starts))
    starts, sizes, text, name = starts[order], sizes[order], text[order], name[order]
    last = np.append(starts[1:] != starts[:-1], True)  # the longest of those at one address
    starts, sizes, text, name = starts[last], sizes[last], text[last], name[last]
    following = np.append(starts[1:], starts[-1:] + np.uint64(4096))
    ends = np.where(sizes > 0, starts + sizes, following)  # assembly often gives no size
    return [texts for _, texts in tables], starts, ends, np.stack([text, name], axis=1).astype(np.int64)
