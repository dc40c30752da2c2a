"""Batches for JAX, TensorFlow and numpy, in the memory that the workers wrote them to: nothing is copied.

Run it with ``python examples/arrays.py``. It tries whichever of the three is installed, changes the batch, and looks
whether the other library sees the change: only then do they share memory.

- A batch's memory is not used again while an array made of it lives.
- JAX has no 64-bit integers unless ``jax_enable_x64`` is set: int64 labels are copied to int32, pictures are not.
- JAX and TensorFlow run threads, and warn of forks: hence ``multiprocessing_context="spawn"``.
"""

import importlib.util

import numpy as np
import torch
from torch.utils.data import TensorDataset

import headrace


def to_numpy(batch):
    return np.from_dlpack(batch)


def to_jax(batch):
    import jax.numpy as jnp  # noqa: PLC0415  (where it is installed)

    return jnp.from_dlpack(batch)


def to_tensorflow(batch):
    import tensorflow as tf  # noqa: PLC0415

    return tf.experimental.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(batch))


LIBRARIES = {"numpy": to_numpy, "jax": to_jax, "tensorflow": to_tensorflow}


def main() -> None:
    data = TensorDataset(torch.zeros(64, 3, 16, 16), torch.arange(64))
    for name, taken in LIBRARIES.items():
        if importlib.util.find_spec(name) is None:
            print(f"{name}: not installed")
            continue
        start = "fork" if name == "numpy" else "spawn"
        with headrace.DataLoader(data, 16, shuffle=True, num_workers=1, multiprocessing_context=start) as loader:
            for pictures, _ in loader:
                array = taken(pictures)
                pictures[0, 0, 0, 0] = 7.0
                assert float(array[0, 0, 0, 0]) == 7.0, f"{name} has a copy"
        print(f"{name}: no copy")


if __name__ == "__main__":
    main()
