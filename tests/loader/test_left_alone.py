"""Transforms that look at themselves and at who holds them give what they give with torch, traced or not."""

from itertools import chain

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import Dataset, Subset
from torchvision import transforms as v1
from torchvision.transforms import v2

import headrace
from tests.selection import examples


class ExactType:
    """Does its work only as itself."""

    def __call__(self, value):
        return value + 1 if type(self) is ExactType else value - 1000


class ExactModule(nn.Module):
    def forward(self, value):
        return value + 2 if type(self) is ExactModule else value - 1000


class ByTable:
    def __call__(self, value):
        return value + TABLE.get(type(self), -1000)


TABLE = {ByTable: 3}


class Equal:
    """Equal to another by type."""

    def __eq__(self, other):
        return type(other) is Equal

    def __hash__(self):
        return 7

    def __call__(self, value):
        return value + (4 if self == Equal() and type(self)() == self else -1000)


class Slotted:
    __slots__ = ("by",)

    def __init__(self):
        self.by = 5

    def __call__(self, value):
        return value + (self.by if not hasattr(self, "__dict__") else -1000)


class Dynamic:
    """Answers to every name."""

    def __getattr__(self, name):
        return lambda *_: name

    def __call__(self, value):
        return value + (6 if self.anything() == "anything" else -1000)


class Final:
    def __init_subclass__(cls):
        raise TypeError("nobody derives from this")

    def __call__(self, value):
        return value + 7


class Frozen:
    def __setattr__(self, name, value):
        raise AttributeError(name)

    def __call__(self, value):
        return value + (8 if not vars(self) else -1000)


class Meta(type):
    def __instancecheck__(cls, instance):
        return False


class Odd(metaclass=Meta):
    def __call__(self, value):
        return value + (9 if type(self).__mro__ == (Odd, object) else -1000)


def attributed(value):
    attributed.calls = getattr(attributed, "calls", 0) + 1
    return value + (10 if attributed.__name__ == "attributed" else -1000)


def counting(value):
    """Its state is in a function of its own name, which others look at."""
    return value + counting.by


counting.by = 11


def hooked():
    module = nn.Identity()
    module.register_forward_hook(lambda _module, _given, made: made + 12)
    return module


MAKE = {
    "type(self) is": ExactType,
    "a module's": ExactModule,
    "TABLE[type(self)]": ByTable,
    "equality by type": Equal,
    "__slots__": Slotted,
    "__getattr__": Dynamic,
    "cannot be derived from": Final,
    "cannot be assigned to": Frozen,
    "a metaclass": Odd,
    "a function with attributes": lambda: attributed,
    "a function's own attribute": lambda: counting,
    "a built-in": lambda: torch.clone,
    "a lambda": lambda: lambda value: value * 2,
    "a hook": hooked,
    "torchvision's": lambda: v2.Lambda(attributed),
}
LISTS = {
    "v1": v1.Compose,
    "v2": v2.Compose,
    "sequential": lambda listed: nn.Sequential(
        *(each for each in listed if isinstance(each, nn.Module)), ExactModule()
    ),
    "in a list": lambda listed: v2.Compose([v1.Compose(listed), *listed]),
    "alone": lambda listed: listed[0],
}
DATASETS = {}


def dataset(kind):
    DATASETS[kind.__name__] = kind
    return kind


@dataset
class Plain(Dataset):
    """Looks whether what it was given is what it has."""

    def __init__(self, transform):
        self.transform, self.given = transform, transform
        self.listed = getattr(transform, "transforms", None)

    def __len__(self):
        return 6

    def __getitem__(self, index):
        same = self.transform is self.given and getattr(self.transform, "transforms", None) is self.listed
        kinds = type(self) in DATASETS.values() and (self.listed is None or type(self.listed) is list)
        return self.transform(torch.tensor([index])) - (0 if same and kinds else 5000)


@dataset
class Property(Plain):
    """Its transform is a property, which may be set."""

    @property
    def transform(self):
        return self.__dict__["kept"]

    @transform.setter
    def transform(self, value):
        self.__dict__["kept"] = value


@dataset
class Staged(Plain):
    def fetch(self, index):
        return torch.tensor([index]) - (0 if type(self) is Staged else 5000)

    def decode(self, encoded):
        return encoded

    def augment(self, decoded):
        return self.transform(decoded) - (0 if self.transform is self.given else 5000)

    def __getitem__(self, index):
        return self.augment(self.decode(self.fetch(index)))


@dataset
class Bulk(Plain):
    def __getitems__(self, indices):
        return [self[index] - (0 if type(indices) is list else 5000) for index in indices]


def values(loader):
    return [batch.tolist() for batch in loader]


def compared(transform, kind, where, workers):
    for given_to in (DATASETS[kind](transform), Subset(DATASETS[kind](transform), [4, 1, 3])):
        wanted = values(torch.utils.data.DataLoader(given_to, 2))
        assert min(map(min, chain.from_iterable(wanted)), default=0) > -1000
        for trace in (None, where / "trace"):
            with headrace.DataLoader(given_to, 2, num_workers=workers, trace=trace) as loader:
                assert values(loader) == wanted
        torchs = torch.utils.data.DataLoader(given_to, 2, num_workers=workers)
        assert values(headrace.traced(torchs, where / "trace")) == wanted


@settings(max_examples=examples(60), deadline=None)
@given(
    names=st.lists(st.sampled_from(sorted(MAKE)), min_size=1, max_size=5),
    listed=st.sampled_from(sorted(LISTS)),
    kind=st.sampled_from(sorted(DATASETS)),
)
def test_transforms_are_left_alone(names, listed, kind, tmp_path_factory):
    compared(LISTS[listed]([MAKE[name]() for name in names]), kind, tmp_path_factory.mktemp("trace"), 0)


def test_transforms_are_left_alone_in_workers(tmp_path):
    """All of them at once."""
    compared(v2.Compose([make() for make in MAKE.values()]), "Staged", tmp_path, 1)
