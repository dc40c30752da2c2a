"""The two classes every parity case runs against."""

import functools
from collections.abc import Callable

import pytest
import torch.utils.data

from tests.parity.support import resolve


@pytest.fixture(params=["torch", "headrace"])
def loader_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def loader_class(loader_name: str) -> type[torch.utils.data.DataLoader]:
    return resolve(loader_name)


@pytest.fixture
def make(loader_name: str) -> Callable[..., torch.utils.data.DataLoader]:
    """A factory of loaders that seed once per worker, as torch does."""
    if loader_name == "torch":
        return resolve(loader_name)
    import headrace

    return functools.partial(headrace.DataLoader, loading=headrace.Loading(seeding=headrace.Seeding.WORKER))
