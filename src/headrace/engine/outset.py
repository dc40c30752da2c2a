"""Where an epoch sets out from: its beginning, or a state; and what it draws there, its seed and its order."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from headrace.engine.consumer.ordering.order import Order
from headrace.engine.consumer.ordering.saved import is_over, pending
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
        """Number the epoch that begins now, in ``resources``, and count the batches it had.

        Gives the state that it goes on from, or comes after, if any.
        """
        self._resources.epoch, self._saved = self._course.begin()
        saved = self._saved
        self._resources.counted = None, saved["yielded"] if saved and not saved["finished"] else 0
        return saved

    def use_up(self) -> None:
        """A batch was delivered, or there was none: the state that the epoch goes on from is used up."""
        if self._saved is not None:
            self._course.use_up(self._saved)
            self._saved = None

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
        if going_on is not None and not settings.iterable and is_over(going_on, settings.index_sampler):
            self.use_up()  # no batch will do so; a trainer that begins an epoch only to find it over begins another
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
            self._draw_seed(saved)
            return None
        if going_on is None:
            order = Order(settings.index_sampler)
            self._draw_seed(saved)
        else:  # the seed comes first: what was drawn is drawn again from where the generator stood after the seed
            self._draw_seed(saved)
            order = Order(settings.index_sampler, going_on["order"], pending(going_on, drawn=True))
        if saved and "dataset" in saved:
            load(settings.dataset, saved["dataset"], "dataset")
            self._resources.end_workers()  # they have the dataset as it was
        return order

    def _draw_seed(self, saved: dict[str, Any] | None) -> None:
        """One draw per iteration, as torch makes it; a resumed epoch then uses its old seed.

        Persistent workers have one seed for all their epochs, so one that follows a finished epoch draws none.
        """
        finished = saved is not None and saved["finished"]
        kept = None if saved is None or (finished and not self._settings.persistent) else int(saved["base_seed"])
        if self._base_seed is None and not (finished and kept is not None):
            seed = torch.empty((), dtype=torch.int64).random_(generator=self._settings.generator)
            self._base_seed = int(seed.item())
        self._base_seed = self._base_seed if kept is None else kept
        assert self._base_seed is not None
        self._resources.base_seed = self._base_seed


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
