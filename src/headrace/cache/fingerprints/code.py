"""Functions, methods, classes and modules, told by what they say and by whatever they reach."""

import builtins
import enum
import functools
import importlib
import inspect
import sys
import types
from typing import TYPE_CHECKING, Any

from headrace.cache.fingerprints import bytecode, untraceable
from headrace.cache.fingerprints.bytecode import Named
from headrace.cache.fingerprints.code_owners import library
from headrace.cache.fingerprints.object_state import HOW, MARK
from headrace.core.errors import CacheError

if TYPE_CHECKING:
    from headrace.cache.fingerprints.fingerprint import Method, Reader

_FUNCTIONS = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.MethodDescriptorType)
_DESCRIPTORS = (types.WrapperDescriptorType, types.ClassMethodDescriptorType, types.MethodWrapperType)
_DATA = (types.GetSetDescriptorType, types.MemberDescriptorType)
_WRAPPED = (staticmethod, classmethod, functools.partialmethod, functools.cached_property, property)
_CACHED = type(functools.lru_cache(lambda: None))
_ASIDE = frozenset(
    {
        *("__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__annotations__", "__slots__"),
        *("__firstlineno__", "__static_attributes__", "__annotate__", "__annotate_func__", "__annotations_cache__"),
        *("__abstractmethods__", "_abc_impl", "__parameters__", "__orig_bases__", "__match_args__", "__type_params__"),
        "__slotnames__",  # which pickle leaves there
        *("__dataclass_fields__", "__dataclass_params__", "__classcell__", MARK),
    }
)
"""Of a class: what does not tell what its objects do."""
_UNASKED = frozenset({"__init__", "__new__", "__getitem__", "__getitems__", "__len__", "__repr__", "__str__"})
"""Of a dataset's class: what its stages do not call unless they say so."""
_MISSING = object()


def title(value: Any) -> str:
    """The full name of a thing, or of its class."""
    named = value if hasattr(value, "__qualname__") else type(value)
    module = getattr(named, "__module__", None) or ""
    return f"{'__main__' if module == '__mp_main__' else module}.{named.__qualname__}"


def _home(value: Any) -> str:
    """The module in which a function was written, whatever a decorator has made of its name."""
    if isinstance(value, types.FunctionType):
        return str(value.__globals__.get("__name__", ""))
    found = getattr(value, "__module__", None)
    return found if isinstance(found, str) and found else "builtins"  # compiled classes may have a descriptor there


def _found(value: Any) -> bool:
    """True if a thing's full name leads to it: such a thing there is once, and its name stands for it."""
    place: Any = sys.modules.get(getattr(value, "__module__", None) or "")
    for step in getattr(value, "__qualname__", "<>").split("."):
        place = getattr(place, step, None)
    return place is value


class CodeReader:
    """Reader of the code in one fingerprint: what has a name is digested once, and its name stands for it
    everywhere.
    """

    def __init__(self, reader: "Reader") -> None:
        self._reader = reader
        self._waiting: list[tuple[str, Any, str]] = []
        self._seen: set[int] = set()
        self._done: list[bytes] = []
        self._attributes: set[str] = set()
        self._any_member = False
        self._partial: dict[type, set[str]] = {}

    def knows(self, value: Any) -> bool:
        """True if a value is of a kind that ``digest`` reads."""
        kinds = (type, types.ModuleType, types.CodeType, *_FUNCTIONS, *_DESCRIPTORS, *_DATA, *_WRAPPED, _CACHED)
        return isinstance(value, kinds)

    def digest(self, value: Any, path: str) -> bytes:  # noqa: PLR0911  (one per kind)
        """The digest of a thing that ``knows`` accepts."""
        reader = self._reader
        self._goes(untraceable.way(value), path)
        if isinstance(value, types.ModuleType):
            return self._module(value, path)
        if isinstance(value, types.CodeType):
            return self._code(value, {}, path)
        if isinstance(value, types.MethodType):
            return reader.several("method", (value.__func__, value.__self__), path)
        if isinstance(value, property):
            return reader.several("property", (value.fget, value.fset, value.fdel), path)
        if isinstance(value, (staticmethod, classmethod, _CACHED)):
            return reader.several(type(value).__name__, (value.__wrapped__,), path)
        if isinstance(value, functools.cached_property):
            return reader.several("cached property", (value.func,), path)
        if isinstance(value, functools.partialmethod):
            return reader.several("partial method", (value.func, value.args, value.keywords), path)
        if isinstance(value, (type, types.FunctionType)):
            return self.named(value, path) if _found(value) or self._libraries(value) else self._content(value, path)
        bound = getattr(value, "__self__", None)
        owner = getattr(value, "__objclass__", None)
        reader.uses(_home(owner or value))
        parts = [] if bound is None or isinstance(bound, types.ModuleType) else [bound]
        return reader.several("builtin", (title(owner) if owner else _home(value), value.__name__, *parts), path)

    def named(self, value: Any, path: str) -> bytes:
        """The name stands for it; a library's is told by its version, what is the user's is read later."""
        name = title(value)
        self._goes(untraceable.way(value), path)
        if self._libraries(value):
            self._reader.uses(_home(value))
            return self._reader.hashed("library", name.encode())
        if not _found(value):
            return self._reader.digest(value, path)
        if id(value) not in self._seen:
            self._seen.add(id(value))
            self._waiting.append((name, value, path))
        return self._reader.hashed("name", name.encode())

    def _libraries(self, value: Any) -> bool:
        """True if a version tells all of it: a function that a library wrapped around the user's is the user's."""
        if library(_home(value)) is None:
            return False
        return isinstance(value, type) or (library(value.__module__ or "") is not None and _found(value))

    def reached(self) -> list[bytes]:
        """Digests of all that names stand for, in the order of the names."""
        # Each may reach further ones; their order does not count, for digests are sorted.
        while self._waiting or self._more():
            name, value, path = self._waiting.pop()
            self._done.append(self._reader.hashed("called", name.encode(), self._content(value, path)))
        return sorted(self._done)

    def _content(self, value: Any, path: str) -> bytes:
        if isinstance(value, type):
            return self._class(value, path)
        if value.__code__.co_name != "<lambda>":
            path = f"{path} -> {value.__qualname__}" if value.__qualname__ not in path else path
        return self._function(value, path)

    def _function(self, value: types.FunctionType, path: str) -> bytes:
        reader = self._reader
        more = {name: each for name, each in vars(value).items() if name != MARK}
        cells = self._cells(value)
        if reader.uses(_home(value)):  # a library's wrapper around something: its code is the version's
            inside = [getattr(value, "registry", None) or cells]
            return reader.several("wrapper", (value.__code__.co_qualname, *inside, value.__defaults__), path)
        held = (value.__defaults__, value.__kwdefaults__, cells, more)
        return reader.hashed(
            "function", self._code(value.__code__, value.__globals__, path), reader.several("held", held, path)
        )

    def _cells(self, value: types.FunctionType) -> dict[str, Any]:
        found = {}
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            if name == "__class__":
                continue  # for super(): the class this is read for
            try:
                found[name] = cell.cell_contents
            except ValueError:  # not assigned yet
                found[name] = None
        return found

    def _code(self, value: types.CodeType, names: dict[str, Any], path: str) -> bytes:
        """The digest of a function's code and that within it, with what its names stand for among these globals."""
        reader, found = self._reader, bytecode.read(value)
        reader.python()
        texts = {step[1].value for step in found.steps if _is_text(step)}  # a name that getattr is given, say
        self._goes(untraceable.way_of_names(found.attributes | texts | {each.name for each in found.names}), path)
        self._attributes |= found.attributes
        parts = [self._step(step, path) for step in found.steps]
        parts += [self._code(inner, names, path) for inner in found.inner]
        parts += [self._named_value(each, names, path) for each in found.names]
        return reader.hashed("code", *parts)

    def _step(self, step: Any, path: str) -> bytes:
        if _is_constant(step):
            return self._reader.hashed(step[0], self._reader.digest(step[1].value, f"{path} constant"))
        return repr(step).encode()

    def _named_value(self, named: Named, names: dict[str, Any], path: str) -> bytes:
        label = ".".join((named.name, *named.attributes))
        if named.level is None:
            value = names.get(named.name, getattr(builtins, named.name, _MISSING))
            self._goes(untraceable.way(value, named.attributes), path)
        else:
            value = self._imported(named, names, path)
        if value is _MISSING:
            return self._reader.hashed("missing", label.encode())
        digest = self._follow(value, named.attributes, f"{path} -> {named.name}")
        return self._reader.hashed("named", label.encode(), digest)

    def _goes(self, way: untraceable.Way | None, path: str) -> None:
        if way is not None and way.everywhere:
            raise CacheError(f"{path} uses {way.name}, and a cache cannot tell what that reaches: {HOW}")
        self._any_member |= way is not None

    def _imported(self, named: Named, names: dict[str, Any], path: str) -> Any:
        name = named.name
        if named.level:
            package = names.get("__package__") or str(names.get("__name__", "")).rpartition(".")[0]
            name = importlib.util.resolve_name("." * named.level + name, package)
        self._goes(untraceable.way_of_import(name, named.attributes), path)
        if self._reader.uses(name):
            return f"the library {name}"  # imported or not yet
        try:
            return importlib.import_module(name)
        except Exception as error:
            raise CacheError(f"{path} imports {name}, which fails: {type(error).__name__}: {error}") from error

    def _follow(self, value: Any, attributes: tuple[str, ...], path: str) -> bytes:
        """The digest of what a chain of attributes leads to, as far as modules and classes go."""
        for at, name in enumerate(attributes):
            if isinstance(value, types.ModuleType) and not self._reader.uses(value.__name__):
                inner = getattr(value, name, _MISSING)
                if inner is _MISSING or name == "__dict__":
                    break
                value, path = inner, f"{path}.{name}"
            elif isinstance(value, type) and not self._reader.uses(_home(value)) and not issubclass(value, enum.Enum):
                inner = inspect.getattr_static(value, name, _MISSING)
                if inner is _MISSING or self.knows(inner):
                    break  # what it calls may use any of the class
                value, path = inner, f"{path}.{name}"
            else:
                read = self._module if isinstance(value, types.ModuleType) else self._reader.digest
                return self._reader.hashed("of", ".".join(attributes[at:]).encode(), read(value, path))
        return self._reader.digest(value, path)

    def _class(self, value: type, path: str) -> bytes:
        """The digest of all of a class, and of the classes it is made of."""
        reader, parts = self._reader, []
        for base in value.__mro__:
            if reader.uses(_home(base)):
                parts.append(reader.hashed("base", title(base).encode()))
                continue
            members = {name: each for name, each in vars(base).items() if self._tells(name, each)}
            parts += [
                reader.hashed("member", name.encode(), self._member(each, f"{title(base)}.{name}"))
                for name, each in sorted(members.items())
            ]
        if type(value) is not type and not reader.uses(_home(type(value))):
            parts.append(self.named(type(value), f"{path} metaclass"))
        return reader.hashed("class", *parts)

    def _tells(self, name: str, member: Any) -> bool:
        return name not in _ASIDE and not isinstance(member, _DATA)

    def _member(self, value: Any, path: str) -> bytes:
        """The digest of a member of a class: the class's own functions are read here, not by their names."""
        if isinstance(value, types.FunctionType):
            return self._function(value, path)
        return self._reader.digest(value, path)

    def _module(self, value: types.ModuleType, path: str) -> bytes:
        """The digest of a module; where it is the user's, of the whole: nobody can say what is taken from it."""
        if self._reader.uses(value.__name__):
            return self._reader.hashed("library", value.__name__.encode())
        if id(value) in self._seen:
            return self._reader.hashed("module", value.__name__.encode())
        # Before its members, which may lead back to it.
        self._seen.add(id(value))
        members = {name: each for name, each in vars(value).items() if not name.startswith("__")}
        libraries = [name for name, each in members.items() if self._is_library(each)]
        members |= {name: f"the library {members[name].__name__}" for name in libraries}  # sys too: it is not handed on
        return self._reader.hashed(
            "module", value.__name__.encode(), self._reader.digest(members, f"{path} ({value.__name__})")
        )

    def _is_library(self, value: Any) -> bool:
        return isinstance(value, types.ModuleType) and self._reader.uses(value.__name__)

    def method(self, method: "Method", path: str) -> bytes:
        """The digest of a method of a class, and of those of the class's members that are named by any code that is
        reached.
        """
        self._partial.setdefault(method.kind, set()).add(method.name)
        return self._of_class(method.kind, method.name)

    def _of_class(self, kind: type, name: str) -> bytes:
        """The members of that name: of the class and of those it is made of, for they may call each other."""
        parts = []
        for base in kind.__mro__:
            if name in vars(base):
                member = vars(base)[name]
                if self._reader.uses(_home(base)):
                    if isinstance(member, types.FunctionType):
                        self._attributes |= _attributes(member.__code__)
                    parts.append(self._reader.hashed("library", title(base).encode(), name.encode()))
                    break
                parts.append(self._member(member, f"{kind.__name__}.{name}"))
        return self._reader.hashed("members", name.encode(), *parts)

    def _more(self) -> bool:
        """Take in members of the dataset's class that were named meanwhile; whether anything was."""
        for kind, taken in self._partial.items():
            names = {
                name for base in kind.__mro__ for name, each in vars(base).items() if self._wanted(base, name, each)
            }
            new = sorted(names - taken)
            if new:
                taken.update(new)
                self._done += [self._of_class(kind, name) for name in new]
                return bool(self._waiting) or self._more()
        return False

    def _wanted(self, base: type, name: str, member: Any) -> bool:
        if library(_home(base)) is not None and name not in self._attributes:
            return False
        special = name.startswith("__") and name.endswith("__") and name not in _UNASKED
        reached_by_name = name in self._attributes or self._any_member
        return self._tells(name, member) and (special or reached_by_name)


def _is_constant(step: Any) -> bool:
    return len(step) == 2 and isinstance(step[1], bytecode.Constant)


def _is_text(step: Any) -> bool:
    return _is_constant(step) and type(step[1].value) is str


def _attributes(value: types.CodeType) -> set[str]:
    found = bytecode.read(value)
    return set(found.attributes).union(*(_attributes(inner) for inner in found.inner))
