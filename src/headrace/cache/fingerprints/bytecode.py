"""The effects and names of a function's code, read from its bytecode: neither lines, files nor docstrings count."""

import dis
import types
from typing import Any, NamedTuple

DOCSTRING = 0x4000000
"""A flag of code that has one, from Python 3.13 on."""


class Named(NamedTuple):
    """A name of a module's globals, or an import, and the attributes that are read of it at once."""

    name: str
    attributes: tuple[str, ...]
    level: int | None = None
    """Of an import: how many packages up it begins. None: a global."""


class Code(NamedTuple):
    """The code of one function alone, without the functions within it."""

    steps: tuple[Any, ...]
    """Instructions, with the constants they use."""
    names: tuple[Named, ...]
    attributes: frozenset[str]
    """Names of attributes of whatever object."""
    inner: tuple[types.CodeType, ...]


def read(code: types.CodeType) -> Code:
    """Read one code object, once in a process."""
    held = _READ.get(id(code))
    if held is None or held[0] is not code:
        if len(_READ) > 10_000:
            _READ.clear()
        held = _READ[id(code)] = (code, _read(code))
    return held[1]


_READ: dict[int, tuple[types.CodeType, Code]] = {}


def _read(code: types.CodeType) -> Code:
    steps: list[Any] = [_shape(code)]
    attributes: set[str] = set()
    names = _Names()
    inner: list[types.CodeType] = []
    for each in dis.get_instructions(code):
        if each.opname == "EXTENDED_ARG":
            continue
        constant = each.opcode in dis.hasconst
        if constant and isinstance(each.argval, types.CodeType):
            inner.append(each.argval)
            steps.append((each.opname, len(inner)))
        elif constant:
            steps.append((each.opname, Constant(each.argval)))
        else:
            steps.append((each.opname, each.argval if each.opcode in dis.hasname else each.arg))
        if each.opname in {"LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR", "DELETE_ATTR", "LOAD_SUPER_ATTR"}:
            attributes.add(str(each.argval))
        names.follow(each)
    return Code(tuple(steps), tuple(names.found()), frozenset(attributes), tuple(inner))


class Constant(NamedTuple):
    """A value that an instruction uses."""

    value: Any


def _shape(code: types.CodeType) -> tuple[Any, ...]:
    flags = code.co_flags & ~DOCSTRING
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, flags)
    return (*counts, code.co_varnames, code.co_freevars, code.co_cellvars, code.co_exceptiontable)


class _Names:
    """Follows loads of globals and imports through the attributes that are read of them right away."""

    def __init__(self) -> None:
        self._all: dict[Named, None] = {}
        self._chain: Named | None = None
        self._local: dict[str, Named] = {}
        self._constants: list[Any] = [0, None]
        self._imported: Named | None = None

    def follow(self, each: dis.Instruction) -> None:
        """Follow one instruction more."""
        if isinstance(each.argval, tuple) and "_FAST" in each.opname:  # two at once, from Python 3.13 on
            first = "STORE_FAST" if each.opname.startswith("STORE") else "LOAD_FAST"
            self._one(first, each.argval[0])
            self._one("STORE_FAST" if "_STORE" in each.opname else "LOAD_FAST", each.argval[1])
        else:
            self._one(each.opname, each.argval)

    def _one(self, kind: str, value: Any) -> None:
        if kind in {"LOAD_ATTR", "LOAD_METHOD"} and self._chain is not None:
            self._chain = self._chain._replace(attributes=(*self._chain.attributes, str(value)))
            return
        self._settle()
        if kind in {"LOAD_GLOBAL", "LOAD_NAME"}:
            self._chain = Named(str(value), ())
        elif kind.startswith("LOAD_FAST"):
            self._chain = self._local.get(str(value))
        elif kind in {"LOAD_CONST", "LOAD_SMALL_INT"}:  # the level of an import is one, from Python 3.14 on
            self._constants = [self._constants[-1], value]
        elif kind == "IMPORT_NAME" or self._imported is not None:
            self._import(kind, value)

    def _import(self, kind: str, value: Any) -> None:
        whole = self._constants[-1] is None  # import a.b, and not from a.b import c
        if kind == "IMPORT_NAME":
            level = self._constants[-2]
            first, *others = str(value).split(".") if whole else (str(value),)
            self._imported = Named(first, (), level)
            if others:
                self._note(Named(str(value), (), level))
        elif self._imported is None:
            return
        elif kind == "IMPORT_FROM":
            further = self._imported._replace(attributes=(*self._imported.attributes, str(value)))
            if whole:
                self._imported = further
            else:
                self._note(further)
        elif kind.startswith("STORE_"):
            if whole and kind == "STORE_FAST":
                self._local[str(value)] = self._imported
            elif whole:
                self._note(self._imported)
            self._imported = None if whole else self._imported
        elif kind == "POP_TOP" and not whole:
            self._imported = None

    def _settle(self) -> None:
        if self._chain is not None:
            self._note(self._chain)
            self._chain = None

    def _note(self, named: Named) -> None:
        self._all[named] = None

    def found(self) -> list[Named]:
        """The names of all instructions, each once."""
        self._settle()
        return list(self._all)
