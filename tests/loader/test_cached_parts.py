"""What torch makes of several datasets takes part in a cache: parts, one after the other, and side by side."""

import pytest
import torch
import torchvision
from torch.utils.data import ConcatDataset, StackDataset, Subset, random_split

import headrace
from headrace.cache.backends import shm
from headrace.core.errors import CacheError
from headrace.engine.members import key_of
from headrace.staging.stages import revision, staged
from tests.names import new_name


class Stages(torch.utils.data.Dataset):
    """Sample ``i`` is ``first + i``, and how often it was turned."""

    def __init__(self, samples, first):
        self.samples, self.first = samples, first

    def __len__(self):
        return self.samples

    def fetch(self, index):
        return self.first + range(self.samples)[index]

    def decode(self, encoded):
        return encoded

    def augment(self, decoded):
        return torch.tensor(decoded)

    def revision(self):
        return self.first

    def __getitem__(self, index):
        return self.augment(self.decode(self.fetch(index)))


ONE, TWO = Stages(10, 100), Stages(20, 200)
CASES = {
    "random split": (random_split(Stages(30, 0), [20, 10], torch.Generator().manual_seed(1))[0], 20),
    "concatenated": (ConcatDataset([ONE, Subset(TWO, range(19, 4, -1))]), 25),
    "concatenated twice": (ConcatDataset([ConcatDataset([ONE, TWO]), Subset(ONE, [3])]), 31),
    "a part of several": (Subset(ConcatDataset([ONE, TWO]), [3, 29, 10, 9]), 4),
    "from the end": (ConcatDataset([ONE, Subset(TWO, [-1, -2, 0])]), 13),
    "side by side from the end": (Subset(StackDataset(TWO, Stages(20, 300)), [-1, 2, -20]), 3),
    "side by side": (StackDataset(ONE, Subset(TWO, range(10))), 10),
    "side by side by name": (StackDataset(picture=Subset(TWO, range(9, -1, -1)), mask=ONE), 10),
}


@pytest.fixture
def cache():
    cache = headrace.Cache(f"shm://{new_name()}", size="8MiB", split=(0, 100, 0))
    yield cache
    shm.remove(cache.name)


def plain(sample):
    if isinstance(sample, dict):
        return tuple(sorted((name, int(value)) for name, value in sample.items()))
    return tuple(map(int, sample)) if isinstance(sample, (tuple, list)) else int(sample)


def test_an_index_that_a_dataset_has_not_is_no_others(cache):
    dataset = ConcatDataset([ONE, Subset(TWO, [0, -21])])
    with (
        headrace.DataLoader(dataset, None, num_workers=0, cache=cache) as loader,
        pytest.raises(IndexError, match="no sample -21: the dataset has 20"),
    ):
        list(loader)


@pytest.mark.parametrize("case", CASES)
def test_a_hit_is_what_a_miss_gives(cache, case):
    dataset, count = CASES[case]
    wanted = sorted(plain(dataset[index]) for index in range(count))
    with headrace.DataLoader(dataset, None, shuffle=True, num_workers=1, in_order=False, cache=cache) as loader:
        for _ in range(2):
            assert sorted(plain(sample) for sample in loader) == wanted
        assert (loader.stats().cache.misses, loader.stats().cache.decoded) == (count, count)


@pytest.mark.parametrize("case", CASES)
def test_the_stages_make_the_sample_from_any_form(case):
    dataset, count = CASES[case]
    stages = staged(dataset)
    origins = {stages.origin(index) for index in range(count)}
    assert len(origins) == count
    assert origins <= set(range(stages.samples))
    for index in [*range(count), -1]:
        value = index
        for stage in stages.steps:
            value = stage.run(value)
        assert plain(value) == plain(dataset[index])


def test_what_is_made_of_other_parts_or_in_another_order_is_another():
    turned = Subset(TWO, range(9, -1, -1))
    several = [
        *(ConcatDataset(parts) for parts in ([ONE, TWO], [TWO, ONE], [ONE, TWO, ONE], [ONE, Stages(20, 201)])),
        *(StackDataset(*parts) for parts in ([ONE, Subset(TWO, range(10))], [ONE, turned], [turned, ONE])),
        *(StackDataset(**{name: ONE, "b": turned}) for name in ("a", "c")),
    ]
    scopes = [scope for dataset in several for scope in staged(dataset).scopes]
    assert len(set(scopes)) == len(scopes)
    assert staged(ConcatDataset([ONE, TWO])).scopes == staged(ConcatDataset([Stages(10, 100), TWO])).scopes
    assert staged(Subset(several[0], [4])).scopes == staged(several[0]).scopes


def test_each_is_asked_for_the_state_of_its_data():
    assert revision(StackDataset(ONE, ConcatDataset([Subset(TWO, range(5)), Subset(ONE, range(5))]))) == (100, 200, 100)


class Named(Stages):
    keys = tuple(f"key-{number}" for number in range(10))


@pytest.mark.parametrize(
    ("dataset", "index", "key"),
    [
        (Named(10, 0), 3, "key-3"),
        (Subset(ConcatDataset([ONE, Named(10, 0)]), [5, 12]), 1, "key-2"),
        (Subset(ConcatDataset([ONE, Named(10, 0)]), [5, 12]), 0, None),
        (ConcatDataset([ONE, Named(10, 0)]), -1, "key-9"),
        (Named(10, 0), "three", None),
    ],
)
def test_a_sample_has_the_name_that_it_has_where_it_is_read(dataset, index, key):
    assert key_of(dataset, index) == key


def test_a_file_of_a_folder_has_its_path(tmp_path):
    (tmp_path / "cats").mkdir()
    (tmp_path / "cats" / "1.txt").touch()
    folder = torchvision.datasets.DatasetFolder(str(tmp_path), str, (".txt",))
    assert key_of(folder, 0) == str(tmp_path / "cats" / "1.txt")


def test_one_without_stages_is_refused_by_name(cache):
    with pytest.raises(CacheError, match="TensorDataset cannot be cached"):
        headrace.DataLoader(ConcatDataset([ONE, torch.utils.data.TensorDataset(torch.zeros(3))]), cache=cache)


class Own(ConcatDataset):
    def __getitem__(self, index):
        return -super().__getitem__(index)


def test_a_class_that_does_something_else_with_them_is_refused(cache):
    with pytest.raises(CacheError, match="Own cannot be cached"):
        headrace.DataLoader(Own([ONE, TWO]), cache=cache)
