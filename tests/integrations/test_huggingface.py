"""Hugging Face's iterable datasets: stopped and taken up again, with and without workers."""

import json
from functools import partial
from itertools import chain, islice

import pytest

import headrace

datasets = pytest.importorskip("datasets")

pytestmark = pytest.mark.integration

N, SHARDS = 40, 4


def rows(shards):
    for shard in shards:
        for row in range(N // SHARDS):
            yield {"a": shard * (N // SHARDS) + row}


def doubled(row):
    return {"b": 2 * row["a"]}


def sharded():
    return datasets.Dataset.from_dict({"a": list(range(N))}).to_iterable_dataset(num_shards=SHARDS)


DATASETS = {
    "sharded": sharded,
    "mapped": lambda: sharded().map(doubled),
    "filtered": lambda: sharded().filter(lambda row: row["a"] % 3),
    "generated": lambda: datasets.IterableDataset.from_generator(rows, gen_kwargs={"shards": list(range(SHARDS))}),
    "as tensors": lambda: sharded().with_format("torch"),
    "more than one": lambda: datasets.concatenate_datasets([sharded(), sharded()]),
}


def values(batches):
    return [batch["a"].tolist() for batch in batches]


@pytest.mark.parametrize(("num_workers", "persistent"), [(0, False), (1, False), (2, False), (2, True)])
@pytest.mark.parametrize("make", DATASETS.values(), ids=DATASETS)
@pytest.mark.sampled
def test_the_rest_of_the_epoch_then_whole_ones(make, num_workers, persistent):
    loader = partial(headrace.DataLoader, batch_size=4, num_workers=num_workers, persistent_workers=persistent)
    with loader(make()) as whole:
        expected = values(whole)
    for taken in (0, 3, 5):
        with loader(make()) as first:
            found = values(islice(iter(first), taken))
            state = json.loads(json.dumps(first.state_dict()))
        with loader(make()) as resumed:
            resumed.load_state_dict(state)
            assert found + values(resumed) == expected
            assert values(resumed) == expected, "a whole epoch follows"


def test_resumed_again_and_left_in_the_middle():
    dataset = sharded()
    loader = headrace.DataLoader(dataset, 4, num_workers=0)
    found = values(islice(iter(loader), 2))
    for _ in range(3):
        loader.load_state_dict(json.loads(json.dumps(loader.state_dict())))
        found += values(islice(iter(loader), 2))
    assert found == [list(range(at, at + 4)) for at in range(0, 32, 4)]
    assert values(loader) == [list(range(at, at + 4)) for at in range(0, N, 4)]


def test_epochs_are_set_as_usual():
    """``set_epoch`` reaches persistent workers through memory the dataset shares with them."""

    def loader(dataset):
        return headrace.DataLoader(dataset, 4, num_workers=1, persistent_workers=True)

    def shuffled():
        return sharded().shuffle(seed=3, buffer_size=10)

    epochs = []
    with loader(shuffled()) as whole:
        for epoch in range(2):
            whole.dataset.set_epoch(epoch)
            epochs.append(values(whole))
    assert epochs[0] != epochs[1]
    for batches in epochs:
        assert sorted(chain.from_iterable(batches)) == list(range(N))


BUFFERED = {
    "plain": lambda seed=7: sharded().shuffle(buffer_size=8, seed=seed),
    "mapped": lambda seed=7: sharded().shuffle(buffer_size=8, seed=seed).map(doubled),
    "within others": lambda seed=7: datasets.concatenate_datasets(
        [sharded().shuffle(buffer_size=8, seed=seed), sharded()]
    ),
}


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("make", BUFFERED.values(), ids=BUFFERED)
def test_what_a_shuffle_buffer_held_is_not_lost(make, num_workers):
    loader = partial(headrace.DataLoader, batch_size=4, num_workers=num_workers)
    with loader(make()) as whole:
        expected = values(whole)
    with loader(make()) as first:
        found = values(islice(iter(first), 3))
        state = json.loads(json.dumps(first.state_dict()))
    with loader(make()) as resumed:
        resumed.load_state_dict(state)
        assert found + values(resumed) == expected
        assert values(resumed) == expected, "a whole epoch follows"


def test_a_shuffle_buffer_of_another_seed_is_refused():
    with headrace.DataLoader(BUFFERED["mapped"](None), batch_size=4, num_workers=0) as first:
        next(iter(first))
        state = first.state_dict()
    with (
        headrace.DataLoader(BUFFERED["mapped"](None), batch_size=4, num_workers=0) as other,
        pytest.raises(headrace.StateMismatch, match="another sampler, or shuffle buffer, draws another order"),
    ):
        other.load_state_dict(state)
