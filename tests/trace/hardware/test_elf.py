"""Functions of libraries, with and without symbols."""

import ctypes
import math
import struct
from pathlib import Path

import pytest

from headrace.trace.hardware import elf
from headrace.trace.hardware.elf import ElfLibrary, opened
from headrace.trace.hardware.symbols import Function, demangled, part
from headrace.trace.hardware.unwind import ranges


def place(function: object) -> tuple[str, int]:
    """The file a function of this process is in, and where."""
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, _, offset, _, _, *path = line.split(maxsplit=5)
        start, end = (int(word, 16) for word in span.split("-"))
        if start <= address < end:
            return path[0], address - start + int(offset, 16)
    pytest.fail("not mapped")


@pytest.mark.parametrize("name", ["PyLong_AsLong", "PyDict_GetItem", "PyObject_Repr"])
def test_a_function_has_its_symbol(name):
    path, offset = place(getattr(ctypes.pythonapi, name))
    library = ElfLibrary(path)
    assert library.function(offset) == name
    assert library.function(offset + 3) == name


def test_a_stripped_library_has_ranges(monkeypatch):
    path, offset = place(ctypes.pythonapi.PyDict_GetItem)
    monkeypatch.setattr(elf, "_symbol_tables", lambda *_: [])
    monkeypatch.setattr(elf, "_debug_tables", lambda *_: [])
    library = ElfLibrary(path)
    name = library.function(offset)
    kind, _, start = name.partition("@")
    assert kind == "function"
    assert int(start, 16) == library._address(offset)
    assert library.function(offset + 3) == name


def test_ranges_are_known_up_to_what_is_damaged():
    common = struct.pack("<II", 13, 0) + b"\1zR\0\1\1\1\1\0"  # pointers as they are, of eight bytes
    entry = struct.pack("<IIQQ", 20, len(common) + 4, 4096, 16)
    for damaged in (b"", struct.pack("<II", 4, 0), struct.pack("<IIB", 20, len(common) + len(entry) + 4, 1)):
        assert ranges(common + entry + damaged, 0).tolist() == [[4096, 4112]]


def test_what_is_no_library_has_no_functions(tmp_path):
    for at, raw in enumerate((b"", b"#!/bin/sh", b"\x7fELF\x02\x01" + bytes(40), b"\x7fELF\x01\x01" + bytes(60))):
        path = tmp_path / str(at)
        path.write_bytes(raw)
        assert opened(str(path)) is None
    assert opened(str(tmp_path / "none")) is None


def test_the_interpreter_is_told_from_its_extensions():
    assert part("/usr/bin/python3.11") == part("/opt/lib/libpython3.13t.so.1.0") == "python"
    assert part(math.__file__ if hasattr(math, "__file__") else "/x/math.cpython-311.so") == "native"
    assert part("/usr/lib/libz.so.1") == "native"


def test_cpp_names_are_readable(monkeypatch):
    names = [Function("_ZN3foo3barEi", "libfoo.so", "native"), Function("plain", "libc.so", "native")]
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert demangled(names) == names
    monkeypatch.undo()
    found = demangled(names)
    assert found[1] == names[1]
    assert found[0].name in {"foo::bar(int)", "_ZN3foo3barEi"}


def library(symbols: list[tuple[str, int, int]], segment: tuple[int, int, int]) -> bytes:
    """An ELF file with functions (name, address, size) and one segment (offset, address, size)."""
    names, entries = b"\0", bytes(24)
    for name, address, size in symbols:
        entries += struct.pack("<IBBHQQ", len(names), 2, 0, 1, address, size)
        names += name.encode() + b"\0"
    sections = b"\0.symtab\0.strtab\0"
    offset, address, size = segment
    body = struct.pack("<IIQQQQQQ", 1, 5, offset, address, address, size, size, 4096)
    where = {}
    for key, piece in (("symbols", entries), ("names", names), ("sections", sections)):
        where[key] = 64 + len(body), len(piece)
        body += piece
    table = 64 + len(body)
    body += bytes(64)
    body += struct.pack("<IIQQQQIIQQ", 1, 2, 0, 0, *where["symbols"], 2, 0, 8, 24)
    body += struct.pack("<IIQQQQIIQQ", 9, 3, 0, 0, *where["names"], 0, 0, 1, 0)
    body += struct.pack("<IIQQQQIIQQ", 0, 3, 0, 0, *where["sections"], 0, 0, 1, 0)
    head = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 3, 62, 1, 0, 64, table, 0, 64, 56, 1, 64, 4, 3)
    return head + body


def test_places_in_the_file_are_not_addresses(tmp_path):
    path = tmp_path / "lib.so"
    symbols = [
        ("sized", 0x401000, 0x20),
        ("assembly", 0x401100, 0),
        ("next", 0x401200, 0x10),
        ("alias", 0x401000, 0x10),
    ]
    path.write_bytes(library(symbols, (0x1000, 0x401000, 0x1000)))
    found = ElfLibrary(str(path))
    assert found.function(0x1000) == found.function(0x101F) == "sized"  # the longer of two at one address
    assert found.function(0x1020) == "0x401020"
    assert found.function(0x11FF) == "assembly"  # as far as the next: it says no size
    assert found.function(0x1200) == "next"
    assert found.at(0x401200) == "next"
