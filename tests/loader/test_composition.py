"""What users override of a staged dataset is called, with every option and kind of store, or refused by its name."""

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, StackDataset, Subset
from torchvision import datasets
from torchvision.transforms import v2

import headrace
from headrace.cache.backends import shm
from headrace.core.errors import CacheError
from headrace.ondevice.pixels.recipe import recipe
from headrace.staging.lists import steps
from headrace.staging.prefix import cut, is_deterministic
from headrace.store import Record
from headrace.testing.scripted import ScriptedStore
from tests.engine.pictures import encoded, picture
from tests.names import new_name
from tests.test_dataset import filled

COUNT = 12
REFUSED = (CacheError, headrace.NotOnDevice)


def transform():
    return v2.Compose([v2.Resize((20, 24)), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])


@pytest.fixture
def name():
    name = new_name()
    yield name
    shm.remove(name)


@pytest.fixture
def stores(tmp_path):
    """The same pictures near, and behind a network."""

    def payload(number):
        return encoded(picture(20, 24, number))

    def made(kind):
        if kind == "local":
            return filled(tmp_path / "local.db", COUNT, payload=payload)
        return ScriptedStore([Record(f"k{n:03d}", payload(n), n % 4, {}) for n in range(COUNT)])

    return made


class Counted(headrace.StoreDataset):
    """Counts calls of methods, whatever the process, in files."""

    def __init__(self, store, marks, **options):
        super().__init__(store, **{"transform": transform()} | options)
        self.marks = marks

    def called(self, name, times=1):
        with (self.marks / name).open("a") as file:
            file.write(times * ".")

    def calls(self, name):
        found = self.marks / name
        return found.stat().st_size if found.exists() else 0

    def cache_fingerprint(self):
        return super().cache_fingerprint()


class Getting(Counted):
    def __getitem__(self, index):
        self.called("__getitem__")
        data, label = super().__getitem__(index)
        return data * 2, label


class InBulk(Counted):
    def __getitems__(self, indices):
        self.called("__getitems__", len(indices))
        return [(data * 3, label) for data, label in map(self.__getitem__, indices)]


class Fetching(Counted):
    def fetch(self, index):
        self.called("fetch")
        payload, label = super().fetch(index)
        return payload, label + 100


class Encoding(Counted):
    def encoded_of(self, index, row):
        self.called("encoded_of")
        payload, label = super().encoded_of(index, row)
        return payload, label + 100


class Decoding(Counted):
    def decode(self, encoded):
        self.called("decode")
        data, label = super().decode(encoded)
        return data, label + 100


class Augmenting(Counted):
    def augment(self, decoded):
        self.called("augment")
        data, label = super().augment(decoded)
        return data + 5, label


class Mixed(Augmenting, Fetching):
    """Two of them, by more than one base class."""


def its_own(method):
    """A dataset whose method was replaced on the object."""

    def made(store, marks, **options):
        dataset = Counted(store, marks, **options)
        before = getattr(dataset, method)

        def own(given):
            dataset.called(method)
            made = before(given)
            return made[0], made[1] + 100

        setattr(dataset, method, own)
        return dataset

    return made


KINDS = {
    "__getitem__": (Getting, {"cache", "on_device"}),
    "__getitems__": (InBulk, {"cache", "on_device"}),
    "fetch": (Fetching, set()),
    "encoded_of": (Encoding, set()),
    "decode": (Decoding, {"on_device"}),
    "augment": (Augmenting, {"on_device"}),
    "fetch (own)": (its_own("fetch"), set()),
    "augment (own)": (its_own("augment"), {"on_device"}),
    "augment and fetch": (Mixed, {"on_device"}),
}
OPTIONS = {
    "none": {},
    "cache": {"split": (0, 100, 0)},
    "cache of encoded": {"split": (100, 0, 0)},
    "trace": {},
    "on_device": {"device": "cpu", "on_device": True},
}


def batches(loader):
    return [(data, labels.tolist()) for data, labels in loader]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("where", ["local", "remote"])
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_overridden_is_called(kind, option, where, workers, stores, name, tmp_path):
    make, refusing = KINDS[kind]
    dataset, methods = make(stores(where), tmp_path), kind.replace(" (own)", "").split(" and ")
    options = dict(OPTIONS[option])
    if "split" in options:
        options = {"cache": headrace.Cache(f"shm://{name}", size="8MiB", **options)}
    if option == "trace":
        options["trace"] = tmp_path / "trace"
    if option.partition(" ")[0] in refusing:
        with pytest.raises(REFUSED, match=f"`{methods[0]}`"):
            batches(headrace.DataLoader(dataset, 4, num_workers=workers, **options))
        assert not any(map(dataset.calls, methods))
        dataset.close()
        return
    wanted = batches(torch.utils.data.DataLoader(dataset, 4))
    for each in tmp_path.glob("*_*"):
        each.unlink()
    before = [dataset.calls(method) for method in methods]
    with headrace.DataLoader(dataset, 4, num_workers=workers, **options) as loader:
        found = batches(loader)
    most = 0.01 if option == "on_device" else 0
    assert [labels for _, labels in found] == [labels for _, labels in wanted]
    assert max((a - b).abs().max() for (a, _), (b, _) in zip(found, wanted, strict=True)) <= most
    assert [dataset.calls(method) - then for method, then in zip(methods, before, strict=True)] == [COUNT] * len(
        methods
    )
    dataset.close()


class Brighter(headrace.StoreDataset):
    """What it holds beside is part of what its samples are."""

    by = 1

    def augment(self, decoded):
        return super().augment(decoded)[0] + self.by


def test_what_a_derived_class_holds_tells_its_samples_apart(stores, name):
    cache = headrace.Cache(f"shm://{name}", size="8MiB", split=(0, 0, 100))
    with Brighter(stores("local"), transform=transform()) as dataset:
        with headrace.DataLoader(dataset, COUNT, num_workers=0, cache=cache) as loader:
            (first,) = loader
            dataset.by = 3
            (second,) = loader
        assert torch.allclose(first + 2, second)


class Own(Dataset):
    """Its composition in one's own words."""

    transform = None

    def __len__(self):
        return COUNT

    def fetch(self, index):
        return np.full(4, index, np.uint8)

    def decode(self, encoded):
        return torch.from_numpy(encoded)

    def augment(self, decoded):
        return decoded + 1

    def __getitem__(self, index):
        return self.augment(self.decode(self.fetch(index)))


class InSteps(Own):
    def __getitem__(self, index):
        stored = self.fetch(index)
        picture = self.decode(stored)
        return self.augment(picture)


class Documented(Own):
    def __getitem__(self, which):
        """What it is."""
        return self.augment(self.decode(self.fetch(which)))


class Unwritten(Own):
    __getitems__ = None


class Numbering(Own):
    def __getitem__(self, index):
        return self.augment(self.decode(self.fetch(index))), index


class Twice(Own):
    def __getitem__(self, index):
        return self.augment(self.augment(self.decode(self.fetch(index))))


class Shifted(Own):
    def __getitem__(self, index, by=1):
        return self.augment(self.decode(self.fetch(index)))


class Other(Own):
    def __getitem__(self, index):
        return self.augment(self.decode(self.get(index)))

    def get(self, index):
        return self.fetch(index) + 1


@pytest.mark.parametrize("kind", [Own, InSteps, Documented, Unwritten])
def test_a_composition_is_told_by_its_code(kind, name):
    wanted = [batch.tolist() for batch in torch.utils.data.DataLoader(kind(), 4)]
    options = {"num_workers": 0, "cache": headrace.Cache(f"shm://{name}", size="4MiB", split=(0, 100, 0))}
    with headrace.DataLoader(kind(), 4, **options) as loader:
        assert [batch.tolist() for _ in range(2) for batch in loader] == 2 * wanted
        assert loader.stats().cache.decoded == COUNT


@pytest.mark.parametrize("kind", [Numbering, Twice, Shifted, Other])
@pytest.mark.parametrize("around", [lambda dataset: dataset, lambda dataset: Subset(dataset, range(4))])
def test_another_getter_is_refused_by_its_name(kind, around, name):
    with pytest.raises(CacheError, match=rf"{kind.__name__} has a `__getitem__` that a cache would not call.*augment"):
        headrace.DataLoader(around(kind()), 4, num_workers=0, cache=headrace.Cache(f"shm://{name}", size="4MiB"))


def derived(base, method):
    def own(self, given):
        return getattr(super(kind, self), method)(given)

    kind = type("Derived", (base,), {method: own})
    return kind


@pytest.mark.parametrize("method", ["__getitem__", "__getitems__"])
def test_derived_from_what_torch_makes_of_several(method, name):
    cache = headrace.Cache(f"shm://{name}", size="4MiB")
    stacked = derived(StackDataset, method)(Own(), Own())
    part = derived(derived(Subset, "__getitems__"), method)(Own(), [1, 2])  # torch wants both, or this one
    for dataset in (stacked, part):
        with pytest.raises(CacheError, match="`__getitem__` or `__getitems__` of its own"):
            headrace.DataLoader(dataset, 2, num_workers=0, cache=cache)
    subset = Subset(Own(), [1, 2])
    subset.__getitems__ = lambda indices: [subset[index] for index in indices]
    with pytest.raises(CacheError, match="`__getitem__` or `__getitems__` of its own"):
        headrace.DataLoader(subset, 2, num_workers=0, cache=cache)
    with pytest.raises(CacheError, match="`__getitem__` or `__getitems__` of its own"):
        headrace.DataLoader(derived(ConcatDataset, "__getitem__")([Own()]), 2, num_workers=0, cache=cache)


@pytest.mark.parametrize("method", ["__getitem__", "__getitems__"])
def test_derived_from_a_folder(method, name, tmp_path):
    (tmp_path / "class").mkdir()
    (tmp_path / "class" / "0.jpg").write_bytes(encoded(picture(20, 24)))
    dataset = derived(datasets.ImageFolder, method)(tmp_path, transform())
    with pytest.raises(CacheError, match="`__getitem__` or `__getitems__` of its own"):
        headrace.DataLoader(dataset, 1, num_workers=0, cache=headrace.Cache(f"shm://{name}", size="4MiB"))
    with pytest.raises(headrace.NotOnDevice, match="Derived cannot be made on the device"):
        headrace.DataLoader(dataset, 1, num_workers=0, device="cpu", on_device=True)


class TestAssignedLater:
    """``transform`` as torchvision's datasets have it: it may be another one at any time."""

    @pytest.mark.parametrize("where", ["local", "remote"])
    @pytest.mark.parametrize("workers", [0, 2])
    @pytest.mark.parametrize("cached", [False, True])
    def test_between_epochs(self, where, workers, cached, stores, name):
        options = {"num_workers": workers}
        if cached:
            options["cache"] = headrace.Cache(f"shm://{name}", size="8MiB", split=(0, 100, 0))
        with headrace.StoreDataset(stores(where)) as dataset, headrace.DataLoader(dataset, 4, **options) as loader:
            for given in (None, transform(), v2.Compose([v2.CenterCrop(8), v2.ToImage()]), v2.ToImage(), transform()):
                dataset.transform = given
                wanted = batches(torch.utils.data.DataLoader(dataset, 4))
                for _ in range(2):
                    for (found, _), (expected, _) in zip(loader, wanted, strict=True):
                        assert found.dtype == expected.dtype
                        assert torch.equal(found, expected)

    @pytest.mark.parametrize("where", ["local", "remote"])
    def test_within_one(self, where, stores):
        with headrace.StoreDataset(stores(where), transform=v2.ToImage()) as dataset:
            loader = iter(headrace.DataLoader(dataset, 4, num_workers=0))
            assert next(loader)[0].shape == (4, 3, 20, 24)
            dataset.transform = v2.Compose([v2.CenterCrop(8), v2.ToImage()])
            assert next(loader)[0].shape == (4, 3, 8, 8)

    def test_a_random_step_is_never_kept(self, stores, name):
        """It took the place of a deterministic one, at which the list was cut."""
        with headrace.StoreDataset(stores("local"), transform=v2.Compose([v2.Resize(20), v2.ToImage()])) as dataset:
            dataset.transform = v2.Compose([v2.RandomCrop(4), v2.ToImage()])
            cache = headrace.Cache(f"shm://{name}", size="8MiB", split=(0, 100, 0))
            with headrace.DataLoader(dataset, COUNT, num_workers=0, cache=cache) as loader:
                first, second = (next(iter(loader))[0] for _ in range(2))
                assert loader.stats().cache.decoded == COUNT
            assert not torch.equal(first, second)

    def test_what_cannot_be_meant_together(self, stores):
        with headrace.StoreDataset(stores("local"), augment=v2.Identity()) as dataset:
            dataset.transform = v2.ToImage()
            with pytest.raises(TypeError, match="one of them is enough"):
                dataset[0]

    def test_on_the_device(self, stores):
        options = {"num_workers": 0, "device": "cpu", "on_device": True}
        with headrace.StoreDataset(stores("local"), transform=v2.Compose([v2.CenterCrop(8), v2.ToImage()])) as dataset:
            loader = headrace.DataLoader(dataset, 4, **options)
            assert next(iter(loader))[0].shape == (4, 3, 8, 8)
            dataset.transform = v2.Compose([v2.CenterCrop(10), v2.ToImage()])
            within = iter(loader)
            assert next(within)[0].shape == (4, 3, 10, 10)
            dataset.transform = v2.CenterCrop(8)
            with pytest.raises(headrace.NotOnDevice, match="assigned while an epoch was under way"):
                list(within)


def with_a_hook(operation):
    operation.register_forward_hook(lambda *_: None)
    return operation


def with_a_pre_hook(operation):
    operation.register_forward_pre_hook(lambda *_: None)
    return operation


def with_its_own(method):
    def made(operation):
        setattr(operation, method, getattr(operation, method))
        return operation

    return made


class TestTransformsWithSomethingOfTheirOwn:
    """One of torchvision's is known for what its class does."""

    @pytest.mark.parametrize(
        "changed", [with_a_hook, with_a_pre_hook, with_its_own("forward"), with_its_own("transform")]
    )
    def test_is_not_known(self, changed):
        assert is_deterministic(v2.Resize(4))
        assert not is_deterministic(changed(v2.Resize(4)))
        with pytest.raises(headrace.NotOnDevice, match=r"this Resize has a hook, or a method of its own"):
            recipe(changed(v2.Resize(4)), pillow=True)

    @pytest.mark.parametrize("make", [v2.Compose, lambda listed: torch.nn.Sequential(*listed)])
    @pytest.mark.parametrize("changed", [with_a_hook, with_a_pre_hook, with_its_own("forward")])
    def test_a_list_with_one_is_not_opened(self, changed, make):
        listed = make([v2.Resize(4), v2.ToImage()])
        assert [type(each) for each in steps(listed)] == [v2.Resize, v2.ToImage]
        assert list(steps(changed(listed))) == [listed]
        assert cut(listed).kept == ()

    def test_a_hook_on_every_module_counts_for_each(self):
        hook = torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
        try:
            assert not is_deterministic(v2.Resize(4))
        finally:
            hook.remove()
        assert is_deterministic(v2.Resize(4))

    def test_a_list_that_gives_others_each_time_is_not_opened(self):
        class Odd(list):
            def __iter__(self):
                return reversed(self)

        listed = v2.Compose(Odd([v2.Resize(4), v2.ToImage()]))
        assert list(steps(listed)) == [listed]

    def test_a_random_hook_is_not_kept(self, stores, name):
        """Its picture was kept as if it had been resized only."""
        resize = v2.Resize((20, 24))
        resize.register_forward_hook(lambda _module, _given, made: made.rotate(90 * int(torch.randint(4, ()))))
        with headrace.StoreDataset(
            stores("local"), transform=v2.Compose([resize, v2.Resize((8, 8)), v2.ToImage()])
        ) as it:
            cache = headrace.Cache(f"shm://{name}", size="8MiB", split=(0, 100, 0))
            with headrace.DataLoader(it, COUNT, num_workers=0, cache=cache) as loader:
                first, second = (next(iter(loader))[0] for _ in range(2))
                assert loader.stats().cache.decoded == COUNT
        assert not torch.equal(first, second)
