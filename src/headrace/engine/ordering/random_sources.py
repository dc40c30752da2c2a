"""Sources of a sampler's random numbers, so that it can be made to take the same ones again."""

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import BatchSampler, DistributedSampler, SequentialSampler

from headrace.core.errors import StateMismatch
from headrace.engine.worker.randomness import generators
from headrace.engine.worker.randomness.generators import packed, unpacked

_DRAW_NOTHING = (SequentialSampler, DistributedSampler, list, tuple, range)


@dataclass(frozen=True, slots=True)
class RandomSource:
    """The generators that one sampler uses."""

    read: Callable[[], str | None]
    """The state of the generators, as text; None when there are none."""
    write: Callable[[str], None]
    shared: bool
    """True if the generators are everybody's: they stand where they stood once the sampler has drawn."""
    at_iter: bool
    """The sampler may draw as soon as its iterator is made."""

    @contextmanager
    def set_to(self, state: str | None) -> Iterator[None]:
        """Let the sampler draw from ``state`` inside the block; from where they stand for None."""
        now = self.read() if state is not None else None
        if state is None or now is None:
            yield
            return
        try:
            self.write(state)
        except (RuntimeError, ValueError, struct.error) as error:
            raise StateMismatch(
                "load_state_dict(state): the sampler drew from other generators than it does in this loader"
            ) from error
        try:
            yield
        except BaseException:
            self.write(now)
            raise
        if self.shared:
            self.write(now)


def source(index_sampler: Any, inner: Any) -> RandomSource:
    """The random source of ``inner``, the sampler that draws, under ``index_sampler``."""
    if hasattr(inner, "generator"):
        own = inner.generator if isinstance(inner.generator, torch.Generator) else torch.default_generator
        return RandomSource(
            lambda: pack_random(own.get_state()),
            lambda state: _set(own, state),
            shared=own is torch.default_generator,
            at_iter=False,
        )
    if type(inner) in _DRAW_NOTHING:
        return RandomSource(lambda: None, lambda _: None, shared=True, at_iter=False)
    return RandomSource(
        lambda: packed(generators.captured()),
        lambda state: generators.restore(unpacked(state)),
        shared=True,
        at_iter=type(index_sampler) is not BatchSampler,
    )


def _set(generator: torch.Generator, state: str) -> None:
    generator.set_state(unpack_random(state))


def pack_random(state: torch.Tensor) -> str:
    """A generator's state as text."""
    return packed(state.numpy().tobytes())


def unpack_random(text: str) -> torch.Tensor:
    """The state from its text."""
    return torch.frombuffer(bytearray(unpacked(text)), dtype=torch.uint8)
