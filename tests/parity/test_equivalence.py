"""Both classes side by side: the same arguments give the same batches."""

import torch.utils.data
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.parity.datasets import Squares
from tests.parity.support import assert_same, resolve, seeded
from tests.selection import examples


@settings(max_examples=examples(15))
@given(
    n=st.integers(1, 40),
    batch_size=st.none() | st.integers(1, 9),
    drop_last=st.booleans(),
    num_workers=st.integers(0, 2),
    shuffle=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_two_epochs_are_equal(n, batch_size, drop_last, num_workers, shuffle, seed):
    def epochs(loader_class: type[torch.utils.data.DataLoader]) -> list:
        loader = loader_class(
            Squares(n),
            batch_size=batch_size,
            drop_last=drop_last and batch_size is not None,
            shuffle=shuffle,
            generator=seeded(seed),
            num_workers=num_workers,
            in_order=True,
        )
        return [list(loader), list(loader)]

    assert_same(epochs(resolve("headrace")), epochs(resolve("torch")))
