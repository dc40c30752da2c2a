"""What is edited between two runs is noticed: a cache must not serve what older code has made."""

import importlib
import os
import re
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch

import headrace
from headrace.core.errors import CacheError
from headrace.staging.stages import check_staged, staged

HELPERS = '''
    """Of the user's own."""
    import math
    LIMIT = 7
    TABLE = {"a": 1, "b": {1, 2, 3}}

    def limited(value):
        """Not more."""
        return min(value, LIMIT)

    class Config:
        SIZE = 3
        DEPTH = 9
'''
DATA = '''
    """A dataset."""
    import functools
    import torch
    import edited_helpers
    from edited_helpers import limited

    SIZE = 32
    NAMES = frozenset({"x", "y", "z"})

    def double(value, by=2, *, plus=0):
        return value * by + plus

    def closed(by):
        def inner(value):
            return value + by
        return inner

    add = closed(5)

    def noted(function):
        @functools.wraps(function)
        def wrapper(*args):
            return function(*args) + 100
        return wrapper

    @noted
    def wrapped(value):
        return value + 1

    @torch.no_grad()
    def quiet(value):
        return value - 1

    class Base:
        def shared(self, value):
            return value + 11

    class Slotted:
        __slots__ = ("factor",)

        def __init__(self):
            self.factor = 13

    class Pictures(Base, torch.utils.data.Dataset):
        DEPTH = 17
        half = functools.partial(double, by=19)

        def __init__(self):
            self.slotted = Slotted()
            self.names = ["a", "b"]

        def __len__(self):
            return 4

        @property
        def offset(self):
            return 23

        @classmethod
        def of_class(cls, value):
            return value + 29

        @staticmethod
        def static(value):
            return value + 31

        def fetch(self, index):
            return index

        def decode(self, encoded):
            """Decodes."""
            def nested(value):
                return value + 37
            # a comment
            self.step(encoded)
            many = [each + 41 for each in (1, 2)]
            late = lambda value: value + 43
            import edited_helpers as inside
            return (SIZE, NAMES, double(encoded), add(1), wrapped(1), quiet(1), limited(3), edited_helpers.LIMIT,
                    edited_helpers.Config.SIZE, inside.TABLE, self.shared(1), self.DEPTH, self.half(1), self.offset,
                    self.of_class(1), self.static(1), nested(1), many, late(1))

        def step(self, value):
            return value + 47

        def augment(self, decoded):
            return decoded + 53

        def __getitem__(self, index):
            return self.augment(self.decode(self.fetch(index)))
'''


@pytest.fixture
def written(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(data=DATA, helpers=HELPERS):
        for name, text in (("edited_helpers", helpers), ("edited_data", data)):
            (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        return importlib.import_module("edited_data")

    yield write
    for name in ("edited_helpers", "edited_data"):
        sys.modules.pop(name, None)


EDITS = {
    "a method's body": ("return value + 47", "return value + 48"),
    "a module's constant": ("SIZE = 32", "SIZE = 64"),
    "a module's set": ('"z"}', '"w"}'),
    "a class's constant": ("DEPTH = 17", "DEPTH = 18"),
    "a helper's body": ("value * by + plus", "value * by - plus"),
    "a default": ("by=2", "by=3"),
    "a default of a keyword": ("plus=0", "plus=1"),
    "a closure": ("closed(5)", "closed(6)"),
    "a base class": ("value + 11", "value + 12"),
    "a nested function": ("value + 37", "value + 38"),
    "a comprehension": ("each + 41", "each + 42"),
    "a lambda": ("value + 43", "value + 44"),
    "a slot": ("self.factor = 13", "self.factor = 14"),
    "an attribute": ('["a", "b"]', '["a", "c"]'),
    "a decorator": ("function(*args) + 100", "function(*args) + 101"),
    "what is decorated": ("return value + 1\n", "return value + 2\n"),
    "what a library has wrapped": ("return value - 1", "return value - 2"),
    "a partial": ("by=19", "by=20"),
    "a property": ("return 23", "return 24"),
    "a class method": ("value + 29", "value + 30"),
    "a static method": ("value + 31", "value + 32"),
}
HELPER_EDITS = {
    "a function of an imported module": ("min(value, LIMIT)", "max(value, LIMIT)"),
    "a constant of an imported module": ("LIMIT = 7", "LIMIT = 8"),
    "a class constant there": ("SIZE = 3", "SIZE = 4"),
    "a table there": ('"a": 1', '"a": 2'),
}


@pytest.mark.parametrize("edit", [*EDITS, *HELPER_EDITS])
def test_an_edit_is_noticed(written, edit):
    before = staged(written().Pictures()).scopes
    assert staged(written().Pictures()).scopes == before
    data = DATA.replace(*EDITS[edit]) if edit in EDITS else DATA
    helpers = HELPERS.replace(*HELPER_EDITS[edit]) if edit in HELPER_EDITS else HELPERS
    assert (data, helpers) != (DATA, HELPERS)
    after = staged(written(data, helpers).Pictures()).scopes
    assert after[1] != before[1]
    assert after[2] != before[2]
    assert (after[0] == before[0]) == (edit not in {"a slot", "an attribute"}), (
        "what is fetched depends on attributes only"
    )


def test_what_is_made_later_does_not_count_before(written):
    before = staged(written().Pictures()).scopes
    after = staged(written(DATA.replace("decoded + 53", "decoded + 54")).Pictures()).scopes
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, True, False]
    other = staged(written(helpers=HELPERS.replace("DEPTH = 9", "DEPTH = 10")).Pictures()).scopes
    assert other == before, "nobody names it"


@pytest.mark.parametrize(
    "edit",
    [
        ("# a comment", "# another comment\n\n\n"),
        ('"""Decodes."""', '"""Decodes more."""\n'),
        ('            """Decodes."""\n', ""),
        ("        def step(self", "        def step(self"),
        ('    """A dataset."""\n', '    """A dataset, of pictures."""\n\n\n'),
        ('{"x", "y", "z"}', '{"z", "y", "x"}'),
    ],
)
def test_what_changes_no_sample_changes_nothing(written, edit):
    before = staged(written().Pictures()).scopes
    assert staged(written(DATA.replace(*edit)).Pictures()).scopes == before


def test_a_docstring_where_none_was(written):
    before = staged(written().Pictures()).scopes
    documented = DATA.replace("def step(self, value):\n", 'def step(self, value):\n            """Steps."""\n')
    assert documented != DATA
    assert staged(written(documented).Pictures()).scopes == before


def test_the_same_in_another_process_and_folder(written, tmp_path):
    before = staged(written().Pictures()).scopes
    program = "import edited_data as d, headrace.staging.stages as s; print(s.staged(d.Pictures()).scopes)"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("edited_helpers", "edited_data"):
        (elsewhere / f"{name}.py").write_text((tmp_path / f"{name}.py").read_text())
    environment = {**os.environ, "PYTHONHASHSEED": "2", "PYTHONPATH": str(elsewhere)}
    found = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True, cwd=elsewhere
    )
    assert found.stdout.strip() == str(before)


def test_another_version_of_a_package_is_noticed(written, monkeypatch):
    from headrace.cache.fingerprints import code_owners

    before = staged(written().Pictures()).scopes
    monkeypatch.setattr(code_owners, "_installed", lambda name: "99.0")
    code_owners.library.cache_clear()
    try:
        assert staged(written().Pictures()).scopes[1] != before[1]
    finally:
        monkeypatch.undo()
        code_owners.library.cache_clear()


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (("NAMES = ", "import threading\n    HANDLE = threading.Lock()\n    NAMES = "), None),
        (
            ("SIZE = 32", "import threading\n    SIZE = threading.Lock()"),
            r"Pictures\.decode -> SIZE is a _thread.lock, .*version=",
        ),
        (('["a", "b"]', "open('/dev/null')"), r"Pictures\.names is a _io.TextIOWrapper"),
        (('["a", "b"]', "(each for each in 'ab')"), r"Pictures\.names is a builtins.generator"),
        (("self.factor = 13", "self.factor = memoryview"), None),
        (
            ("self.step(encoded)", "torch.importlib.import_module('os')"),
            r"Pictures\.decode uses importlib\.import_module, .*cache_fingerprint",
        ),
        (("self.step(encoded)", "exec('1')"), r"Pictures\.decode uses builtins\.exec, .*cache_fingerprint"),
    ],
)
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_what_cannot_be_told_is_refused_by_name_at_construction(written, edit, said):
    dataset = written(DATA.replace(*edit)).Pictures()
    cache = headrace.Cache("shm://never-made", size="1MiB")
    if said is None:
        headrace.DataLoader(dataset, num_workers=0, cache=cache).close()
        return
    with pytest.raises(CacheError, match=said):
        headrace.DataLoader(dataset, num_workers=0, cache=cache)
    with pytest.raises(CacheError, match="cache_fingerprint"):
        check_staged(torch.utils.data.Subset(dataset, [1]))


HIDDEN = {
    "sys.modules['edited_helpers']": "sys.modules",
    "modules_of['edited_helpers']": "sys.modules",
    "torch.sys.modules": "sys.modules",
    "getattr(sys, 'modules')": "the whole of sys",
    "sys._getframe(1)": "sys._getframe",
    "load('edited_helpers')": "importlib.import_module",
    "builtins.eval('1')": "builtins.eval",
    "evaluated('1')": "builtins.eval",
    "__builtins__['eval']('1')": "__builtins__",
    "globals()": "builtins.globals",
    "limited.__globals__": "__globals__",
    "Base.__subclasses__()": "__subclasses__",
    "type.__subclasses__(Base)": "__subclasses__",
    "getattr(Base, '__subclasses__')()": "__subclasses__",
    "gc.get_objects()": "gc.get_objects",
    "inspect.getmodule(limited)": "inspect.getmodule",
    "inspect.stack()": "inspect.stack",
    "pkgutil.resolve_name('edited_helpers.limited')": "pkgutil.resolve_name",
    "runpy.run_path('x.py')": "runpy.run_path",
}
IMPORTS = """
    import builtins, gc, inspect, operator, pkgutil, runpy, sys
    from importlib import import_module as load
    from operator import attrgetter as attribute
    from sys import modules as modules_of
    evaluated = eval
    read = getattr
    picked = operator.attrgetter("step")
    SIZE = 32
"""


@pytest.mark.parametrize("code", HIDDEN)
def test_what_no_name_leads_to_is_refused(written, code):
    data = DATA.replace("SIZE = 32", IMPORTS).replace("self.step(encoded)", f"[{code}]")
    with pytest.raises(CacheError, match=f"Pictures.decode uses {re.escape(HIDDEN[code])}, .*cache_fingerprint"):
        staged(written(data).Pictures())
    imports = IMPORTS.replace("\n", "\n        ")
    inside = DATA.replace("self.step(encoded)", f"[{code}]").replace('"""Decodes."""', imports)
    with pytest.raises(CacheError, match=r"Pictures.decode uses .*cache_fingerprint"):
        staged(written(inside).Pictures())


@pytest.mark.parametrize(
    "code",
    [
        "read(self, 'st' + 'ep')",
        "attribute('step')(self)",
        "picked(self)",
        "operator.methodcaller('step', 1)(self)",
        "dict(inspect.getmembers(self))",
        "object.__getattribute__(self, 'st' + 'ep')",
        "functools.reduce(getattr, ['step'], self)",
    ],
)
def test_members_that_are_reached_by_a_text_count(written, code):
    data = DATA.replace("SIZE = 32", IMPORTS).replace("self.step(encoded)", code)
    before = staged(written(data).Pictures()).scopes
    assert staged(written(data).Pictures()).scopes == before
    assert staged(written(data.replace("value + 47", "value + 48")).Pictures()).scopes[1] != before[1]


def test_what_such_modules_say_of_the_machine_is_no_way_to_code(written):
    code = "[sys.platform, inspect.signature(limited)]"
    data = DATA.replace("SIZE = 32", IMPORTS).replace("self.step(encoded)", code)
    whole = data.replace("edited_helpers.LIMIT", "getattr(edited_helpers, 'LIM' + 'IT')")
    helpers = HELPERS.replace("import math", "import math, sys")
    before = staged(written(whole, helpers).Pictures()).scopes
    assert staged(written(whole, helpers.replace("LIMIT = 7", "LIMIT = 8")).Pictures()).scopes != before


def test_what_is_wrapped_counts_where_the_wrapper_does_not_hold_it(written):
    wrapped = "@functools.wraps(limited)\n    def kept(value):\n        return 1\n\n    SIZE = 32"
    data = DATA.replace("SIZE = 32", wrapped).replace("limited(3)", "kept.__wrapped__(3)")
    before = staged(written(data).Pictures()).scopes
    helpers = HELPERS.replace("min(value, LIMIT)", "max(value, LIMIT)")
    assert staged(written(data, helpers).Pictures()).scopes != before


CONSTANTS = """
    import numpy as np
    import torch

    SIZE = 32

    class Squares(torch.utils.data.Dataset):
        def __len__(self):
            return 8

        def fetch(self, index):
            return bytes([index])

        def decode(self, encoded):
            return torch.full((SIZE, SIZE), encoded[0])

        def augment(self, decoded):
            return decoded

        def __getitem__(self, index):
            return self.augment(self.decode(self.fetch(index)))
"""


def test_an_edited_constant_gives_new_samples(written):
    from headrace.cache.backends.shm import remove

    name = f"edits-{os.getpid()}"
    cache = headrace.Cache(f"shm://{name}", size="4MiB", split=(0, 100, 0))

    def epoch(text):
        with headrace.DataLoader(written(text).Squares(), batch_size=4, num_workers=0, cache=cache) as loader:
            shapes = {tuple(batch.shape[1:]) for batch in loader}
            return shapes, loader.stats().cache.decoded

    try:
        assert epoch(CONSTANTS) == ({(32, 32)}, 0)
        assert epoch(CONSTANTS) == ({(32, 32)}, 8)
        assert epoch(CONSTANTS.replace("SIZE = 32", "SIZE = 64")) == ({(64, 64)}, 0)
    finally:
        remove(name)


def test_a_million_names_are_hashed_at_once():
    from headrace.cache.fingerprints.fingerprint import Reader

    names = [f"images/{number:07}.jpg" for number in range(1_000_000)]
    asked = []

    class Counting(Reader):
        def digest(self, value, path):
            asked.append(path)
            return super().digest(value, path)

    rows = list(zip(names, range(len(names)), strict=True))
    Counting().whole((names, rows, np.arange(1_000_000), dict.fromkeys(names, 1)))
    assert len(asked) < 100
