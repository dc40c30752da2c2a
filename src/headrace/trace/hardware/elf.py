"""Functions of a library: from its symbol tables, else from the ranges its unwind table knows."""

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

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
class _Section:
    name: str
    type: int
    address: int
    offset: int
    size: int
    link: int


class Library:
    """One ELF file. Asked for file offsets, as mappings have them; answers with names, which may be mangled."""

    def __init__(self, path: str) -> None:
        """Raises OSError or ValueError when it cannot be read or is no 64-bit little-endian ELF file."""
        with Path(path).open("rb") as file:
            self._raw = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        if self._raw[:6] != b"\x7fELF\x02\x01":
            msg = f"{path}: no 64-bit ELF file"
            raise ValueError(msg)
        header = _HEADER.unpack_from(self._raw)
        self._segments = [
            (offset, address, size)
            for kind, _, offset, address, _, size, _, _ in (
                _SEGMENT.unpack_from(self._raw, header[5] + at * header[9]) for at in range(header[10])
            )
            if kind == _LOAD
        ]
        self._sections = list(_sections(self._raw, header))
        self._texts, self._starts, self._ends, self._names = self._symbols()
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

    def _symbols(self) -> tuple[list[bytes], Table, Table, Table]:
        """Texts, and by address: starts, ends, (text, position in it)."""
        texts: list[bytes] = []
        parts = []
        for raw, sections in self._tables():
            for section in sections:
                if section.type not in {_SYMTAB, _DYNSYM}:
                    continue
                strings = sections[section.link]
                texts.append(raw[strings.offset : strings.offset + strings.size])
                count = section.size // _SYMBOL.itemsize
                table = np.frombuffer(raw[section.offset : section.offset + count * _SYMBOL.itemsize], _SYMBOL)
                code = np.isin(table["info"] & 15, (_FUNCTION, _INDIRECT)) & (table["value"] > 0) & (table["section"] > 0)
                table = table[code]
                parts.append(np.stack([table["value"], table["size"], np.full(len(table), len(texts) - 1), table["name"]]))
        if not parts:
            none = np.empty(0, np.uint64)
            return [], none, none, np.empty((0, 2), np.int64)
        starts, sizes, text, name = np.concatenate(parts, axis=1).astype(np.uint64)
        order = np.lexsort((sizes, starts))
        starts, sizes, text, name = starts[order], sizes[order], text[order], name[order]
        last = np.append(starts[1:] != starts[:-1], True)  # the longest of those at one address
        starts, sizes, text, name = starts[last], sizes[last], text[last], name[last]
        following = np.append(starts[1:], starts[-1:] + np.uint64(4096))
        ends = np.where(sizes > 0, starts + sizes, following)  # assembly often gives no size
        return texts, starts, ends, np.stack([text, name], axis=1).astype(np.int64)

    def _tables(self) -> Iterator[tuple[Any, list[_Section]]]:
        """The file, and the one with its symbols where the system has it installed."""
        yield self._raw, self._sections
        identity = next((section for section in self._sections if section.name == ".note.gnu.build-id"), None)
        if identity is None or any(section.type == _SYMTAB for section in self._sections):
            return
        name = self._raw[identity.offset + 16 : identity.offset + identity.size].hex()
        try:
            raw = (_DEBUG / name[:2] / f"{name[2:]}.debug").read_bytes()
            yield raw, list(_sections(raw, _HEADER.unpack_from(raw)))
        except (OSError, struct.error):
            return

    def _ranges(self) -> npt.NDArray[np.uint64]:
        if self._frames is None:
            self._frames = np.empty((0, 2), np.uint64)
            for section in self._sections:
                if section.name == ".eh_frame":
                    body = bytes(self._raw[section.offset : section.offset + section.size])
                    self._frames = ranges(body, section.address)
        return self._frames


@cache
def opened(path: str) -> Library | None:
    """The library at that path, read once; None when it cannot be read."""
    try:
        return Library(path)
    except (OSError, ValueError, struct.error, IndexError):
        return None


def _sections(raw: Any, header: tuple[Any, ...]) -> Iterator[_Section]:
    found = [_SECTION.unpack_from(raw, header[6] + at * header[11]) for at in range(header[12])]
    names = found[header[13]] if found else None
    for name, kind, _, address, offset, size, link, _, _, _ in found:
        start = names[4] + name if names else 0
        text = raw[start : raw.find(b"\0", start)].decode(errors="replace")
        yield _Section(text, kind, address, offset, size, link)
