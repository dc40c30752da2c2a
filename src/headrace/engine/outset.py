"""Where an epoch sets out from: its beginning, or a state; and what it draws there, its seed and its order."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from headrace.engine.consumer.ordering.order import Order
from headrace.engine.consumer.ordering.saved import pending
from headrace.engine.consumer.ordering.sources import unpack_random
from headrace.engine.course import Course
from headrace.engine.resources import Resources
from headrace.engine.settings import Settings
from headrace.engine.worker.generators import unpacked
from headrace.engine.worker.stateful import load
from headrace.sched.resume import Resume


class Outset:
    """For the epochs of one iteration."""

    def __init__(self, settings: Settings, resources: Resources, course: Course) -> None:
        """``course``: the loader's, which has the state if there is one."""
        self._settings, self._resources, self._course = settings, resources, course
        self._base_seed: int | None = None
        self._saved: dict[str, Any] | None = None

    def number(self) -> dict[str, Any] | None:
        """Number the epoch that begins now, in ``resources``; the state it goes on from, or comes after, if any."""
        self._resources.epoch, self._saved = self._course.begin()
        return self._saved

    def use_up(self) -> None:
        """A batch was delivered, or there was none: the state that the epoch goes on from is used up."""
        if self._saved is not None:
            self._course.use_up(self._saved)
            self._saved = None

    @property
    def keeps_seed(self) -> bool:
        """Whether this epoch has the seed that the next one will have."""
        return self._resources.base_seed == self._base_seed

    def forget_seed(self) -> None:
        """The next epoch begins as if with a new iteration; persistent workers keep theirs."""
        if not self._settings.persistent:
            self._base_seed = None

    def draw(self, saved: dict[str, Any] | None) -> tuple[dict[str, Any] | None, Order | None]:
        """The state, if the epoch is to go on from the middle; the order, if the dataset is map-style.

        An epoch that cannot begin has drawn nothing.
        """
        settings = self._settings
        if saved:
            settings.facts.compare(saved)  # again: the dataset or the number of workers may have changed since
        going_on = saved if saved and not saved["finished"] else None
        with self._generator_kept():
            if saved and "generator" in saved and settings.generator is not None:
                settings.generator.set_state(unpack_random(saved["generator"]))
            order = self._drawn(saved, going_on)
        return going_on, order

    @contextmanager
    def _generator_kept(self) -> Iterator[None]:
        own = self._settings.generator or torch.default_generator
        state, seed = own.get_state(), self._base_seed
        try:
            yield
        except BaseException:
            own.set_state(state)
            self._base_seed = seed
            raise

    def _drawn(self, saved: dict[str, Any] | None, going_on: dict[str, Any] | None) -> Order | None:
        settings = self._settings
        if settings.iterable:
            self._draw_seed(going_on)
            return None
        if going_on is None:
            order = Order(settings.index_sampler)
            self._draw_seed(None)
        else:  # the seed comes first: what was drawn is drawn again from where the generator stood after the seed
            self._draw_seed(going_on)
            order = Order(settings.index_sampler, going_on["order"], pending(going_on, drawn=True))
        if saved and "dataset" in saved:
            load(settings.dataset, saved["dataset"], "dataset")
            self._resources.end_workers()  # they have the dataset as it was
        return order

    def _draw_seed(self, going_on: dict[str, Any] | None) -> None:
        """One draw per iteration, as torch makes it; a resumed epoch then uses its old seed."""
        if self._base_seed is None:
            seed = torch.empty((), dtype=torch.int64).random_(generator=self._settings.generator)
            self._base_seed = int(seed.item())
        self._resources.base_seed = going_on["base_seed"] if going_on else self._base_seed


def streams(saved: dict[str, Any] | None) -> list[Resume]:
    """How far each worker's stream had come; none at an epoch's beginning."""
    return [
        Resume(
            stream["batches"],
            stream.get("state"),
            ended=stream["ended"],
            began=None if stream.get("began") is None else unpacked(stream["began"]),
            random=None if stream.get("random") is None else unpacked(stream["random"]),
        )
        for stream in (saved["streams"] if saved else [])
    ]
