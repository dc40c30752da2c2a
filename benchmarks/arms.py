"""The loaders that are compared, as values: which library, with which options."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

import headrace

# Both libraries load modules on first use; they are loaded here, so that no timer sees it.
for _name in ("headrace.loader", "multiprocessing.queues", "multiprocessing.popen_fork", "hmac"):
    importlib.import_module(_name)


@dataclass(frozen=True)
class Arm:
    """One contender. `open` builds its loader in the calling process and closes it at the end."""

    library: str
    """``torch`` or ``headrace``."""
    in_order: bool | None = True
    workers: int | None = 2
    sharing: str | None = None
    """torch only: the sharing strategy, a process-wide setting (hence isolated runs)."""
    per_sample_seeds: bool = True
    """headrace only: Seeding.SAMPLE, its default, or Seeding.WORKER."""
    scheduling: headrace.Scheduling | None = None
    """headrace only; no part of the name."""

    @property
    def name(self) -> str:
        """What tables call it."""
        words = [self.library]
        if self.sharing:
            words.append(self.sharing)
        if self.library == "headrace":
            words.append({True: "sampler order", False: "completion order", None: "auto order"}[self.in_order])
            words.append("sample seeds" if self.per_sample_seeds else "worker seeds")
        elif not self.in_order:
            words.append("in_order=False")
        if self.workers != 2:
            words.append("auto workers" if self.workers is None else f"{self.workers} workers")
        return ", ".join(words)

    @contextmanager
    def open(self, dataset: Dataset[Any], **options: Any) -> Iterator[Any]:
        """The loader over `dataset`; `options` are torch's arguments (and `device`)."""
        warnings.filterwarnings("ignore", "This DataLoader will create")
        if self.library == "torch":
            if self.sharing:
                torch.multiprocessing.set_sharing_strategy(self.sharing)  # type: ignore[no-untyped-call]
            loader = DataLoader(dataset, num_workers=self.workers or 0, in_order=bool(self.in_order), **options)
            try:
                yield loader
            finally:
                iterator = getattr(loader, "_iterator", None)
                if iterator is not None and hasattr(iterator, "_shutdown_workers"):
                    iterator._shutdown_workers()
            return
        seeding = headrace.Seeding.SAMPLE if self.per_sample_seeds else headrace.Seeding.WORKER
        ours = headrace.DataLoader(
            dataset,
            num_workers=self.workers,
            in_order=self.in_order,
            loading=headrace.Loading(seeding=seeding),
            scheduling=self.scheduling,
            **options,
        )
        try:
            yield ours
        finally:
            ours.close()


def torch_arms(**options: Any) -> list[Arm]:
    """torch with both sharing strategies."""
    return [Arm("torch", sharing=name, **options) for name in ("file_descriptor", "file_system")]


def headrace_arms(**options: Any) -> list[Arm]:
    """headrace in both orders."""
    return [Arm("headrace", in_order=order, **options) for order in (True, False)]
