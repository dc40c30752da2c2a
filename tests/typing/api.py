"""The public surface as a user types it. Checked by mypy in strict mode, never run."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, assert_type

import torch
import torch.utils.data
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, IterableDataset, RandomSampler

import headrace


class Pairs(Dataset[tuple[torch.Tensor, int]]):
    """A map-style dataset."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.ones(2), index


class Lines(IterableDataset[str]):
    """An iterable dataset."""

    def __iter__(self) -> Iterator[str]:
        return iter(["a", "b"])


def collate(samples: list[tuple[torch.Tensor, int]]) -> torch.Tensor:
    return torch.stack([tensor for tensor, _ in samples])


def init(worker: int) -> None:
    torch.manual_seed(worker)


def all_of_torch_s_arguments() -> headrace.DataLoader[tuple[torch.Tensor, int]]:
    return headrace.DataLoader(
        Pairs(),
        batch_size=4,
        shuffle=True,
        num_workers=2,
        collate_fn=collate,
        pin_memory=False,
        drop_last=True,
        timeout=1.5,
        worker_init_fn=init,
        multiprocessing_context="fork",
        generator=torch.Generator(),
        prefetch_factor=2,
        persistent_workers=True,
        in_order=False,
    )


def the_others() -> None:
    loader = headrace.DataLoader(
        Pairs(),
        sampler=RandomSampler(range(8)),
        batch_size=None,
        num_workers=None,
        in_order=None,
        device="cuda:1",
        on_error=headrace.Skip(max_fraction=0.1),
        loading=headrace.Loading(seeding=headrace.Seeding.WORKER, memory_limit=1 << 30),
    )
    assert_type(loader, headrace.DataLoader[tuple[torch.Tensor, int]])
    headrace.DataLoader(Pairs(), device=torch.device("cuda"), on_error=headrace.Raise(), loading=None)
    headrace.DataLoader(Pairs(), batch_sampler=[[0, 1], [2]])
    headrace.DataLoader(Lines(), batch_size=2)


def use(loader: headrace.DataLoader[tuple[torch.Tensor, int]]) -> None:
    for batch in loader:
        batch.sum()
    with contextlib.closing(loader), loader as same:
        assert_type(same, headrace.DataLoader[tuple[torch.Tensor, int]])
        assert_type(len(same), int)
    state: dict[str, Any] = loader.state_dict()
    loader.load_state_dict(state)
    loader.close()


def figures(loader: headrace.DataLoader[Any]) -> Mapping[str, object]:
    stats = loader.stats()
    assert_type(stats, headrace.Stats)
    assert_type(stats.batches, int)
    assert_type(stats.wait_seconds, float)
    for failure in stats.skipped:
        assert_type(failure, headrace.Failure)
        assert_type(failure.error, BaseException)
    return stats.as_dict()


def stores() -> None:
    splits = headrace.split({"key": ["a"], "label": [1]}, {"train": 0.8}, stratify="label", balance={"0": 1.0}, seed=7)
    assert_type(splits, headrace.Splits)
    assert_type(splits.keys("train"), list[str])
    splits.save("splits.parquet", force=True)
    dataset = headrace.StoreDataset("sqlite:///s.db", split="splits.parquet:train", decode=len, augment=abs)
    assert_type(len(dataset), int)
    headrace.DataLoader(dataset, batch_size=4)
    headrace.StoreDataset("sqlite:///s.db", ["a", "b"], augment_both=lambda data, mask: (data, mask)).close()


def takes_torch_s(loader: TorchDataLoader[Any]) -> int:
    return len(loader)


def errors(loader: headrace.DataLoader[Any]) -> int:
    takes_torch_s(loader)
    try:
        return sum(1 for _ in loader)
    except (headrace.WorkerDied, headrace.BatchNotSendable, headrace.TooManyErrors, headrace.SlabError):
        return -1
    except (headrace.DeviceUnavailable, headrace.StateMismatch) as error:
        raise headrace.HeadraceError from error


def refused() -> None:
    headrace.DataLoader(Pairs(), on_error="skip")  # type: ignore[arg-type]
    headrace.DataLoader(Pairs(), cache="shm://x")  # type: ignore[arg-type]
    headrace.Loading(seeding="worker")  # type: ignore[arg-type]
    headrace.Skip().max_fraction = 1.0  # type: ignore[misc]
