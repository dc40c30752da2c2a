"""Rules for what to change: one small rule per setting, each a pure function of the figures."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from headrace.trace.analysis.figures import FULL, Figures
from headrace.trace.analysis.number_format import part, seconds
from headrace.trace.analysis.verdict import BUSY, IN_TURN, INPUT, STARTUP, TRAINER, bottleneck

WORTH = 0.05
"""Share of the time that a change must promise to save."""
COMPUTING = 0.6
"""Samples whose CPU clock advances for at least this share of their time compute; others wait for something."""
H200 = "7,000 to 15,000"
"""JPEG pictures of 500 × 375 pixels on average that its decoders do in a second, as measured: see docs/on_device.md."""
SPARE = 0.2
"""Workers beyond those that would fill the cores if they took turns, at most."""
MOST = 64
"""Workers that are advised at once: each is a process, and what samples wait for has limits too."""
ROUND = 0.25
"""A part of a worker that is not worth another one."""

DECODING = frozenset({"Loader", "decode"})
MOVABLE = DECODING | {
    *("Resize", "CenterCrop", "RandomCrop", "RandomResizedCrop", "Pad", "RandomHorizontalFlip", "RandomVerticalFlip"),
    *("ColorJitter", "RandomGrayscale", "Grayscale", "ToTensor", "ToImage", "PILToTensor", "ToDtype"),
    *("ConvertImageDtype", "Normalize", "augment"),
}
"""Operations that ``on_device=`` moves, where they are pictures'."""


@dataclass(frozen=True)
class Advice:
    """A single recommended change."""

    setting: str
    """What to change, as it is written in the program where it is an argument."""
    text: str
    """Why, in figures, and what to expect."""


def advise(figures: Figures) -> tuple[Advice, ...]:
    """Every rule's advice, the most important first."""
    found = (rule(figures) for rule in RULES)
    return tuple(advice for advice in found if advice is not None)


def no_workers(figures: Figures) -> Advice | None:
    """Samples are made in the trainer's process while it waits."""
    if figures.workers or not figures.samples or figures.steady.wait_share <= WORTH:
        return None
    text = (
        f"Samples are made in the trainer's own process, {figures.steady.wait_share:.0%} of its time. "
        "Workers make them meanwhile."
    )
    return Advice("num_workers=None", text)


def needed_workers(figures: Figures) -> float:
    """Workers that would make batches as fast as the trainer takes them, at the pace of those that were recorded."""
    step = figures.steady.step.mean
    return 1.1 * figures.work.mean * _left(figures) / step if step else math.inf


def filling_workers(figures: Figures) -> float:
    """Workers that would keep the cores busy, as much as these used of them; with some to spare where samples wait."""
    if figures.cores is None:
        return 2 * figures.workers
    share = _computing(figures)
    if share is None:
        return figures.cores
    share = max(share, 1e-3)
    if figures.running >= FULL * figures.cores:
        return figures.workers
    return (1 + SPARE * (1 - share)) * figures.cores / share


def wanted_workers(figures: Figures) -> int:
    """Workers that the trainer needs, as far as cores allow; no more than ``MOST`` at once."""
    return max(1, math.ceil(min(needed_workers(figures), filling_workers(figures), MOST) - ROUND))


def more_workers(figures: Figures) -> Advice | None:
    """Workers are all busy, and there is room for more."""
    if bottleneck(figures) not in {INPUT, IN_TURN} or not figures.workers or figures.busy < BUSY:
        return None
    wanted, needed = wanted_workers(figures), needed_workers(figures)
    if wanted <= figures.workers or figures.facts.get("automatic"):
        return None
    reason = "there are cores left" if figures.cores else "there may be cores left"
    if _waiting(figures):
        others = "a lock" if figures.queued is not None else "other programs"
        reason = f"samples compute for {_computing(figures):.0%} of theirs (the rest is a disk, a network, {others})"
    enough = f", as {math.ceil(needed - ROUND)} make them" if needed <= 2 * MOST else ""
    limit = "" if wanted >= needed - 1 or wanted == MOST or not figures.cores else f"; {wanted} fill the cores"
    text = (
        f"The {figures.workers} workers are busy {figures.busy:.0%} of the time and {reason}: a batch takes "
        f"{seconds(figures.work.mean)} of work, the trainer needs one every {seconds(figures.steady.step.mean)}"
        f"{enough}{limit}.{_beside(figures)}"
    )
    return Advice(f"num_workers={wanted}", text)


def cheaper_operation(figures: Figures) -> Advice | None:
    """Cores are full: only less work helps, and there is one operation to begin with."""
    if bottleneck(figures) not in {INPUT, IN_TURN} or _waiting(figures) or not figures.operations:
        return None
    if not figures.workers or figures.busy < BUSY or wanted_workers(figures) > figures.workers:
        return None
    worst = max(figures.operations, key=lambda operation: operation.share)
    text = (
        f"The workers compute all the time. {worst.name!r} is {worst.share:.0%} of the work "
        f"({seconds(worst.time.mean)} a call): make it faster, do it once and store the result, or move it to "
        f"the device.{_beside(figures)}"
    )
    return Advice(f"operation {worst.name!r}", text)


def on_device(figures: Figures) -> Advice | None:
    """Advice to move decoding and pixel work to the device, whether or not there are cores left."""
    if bottleneck(figures) not in {INPUT, IN_TURN} or figures.facts.get("on_device") or _waiting(figures):
        return None
    if not figures.workers or figures.busy < BUSY:
        return None
    moved = [operation for operation in figures.operations if operation.name.split(" (")[0] in MOVABLE]
    share, step = min(1.0, sum(operation.share for operation in moved)), figures.steady.step.mean
    if share < 0.5 or not step or not any(operation.name.split(" (")[0] in DECODING for operation in moved):
        return None
    left = figures.work.mean * (1 - share) / figures.workers
    each, pace = figures.steady.samples / figures.steady.batches, max(left, step)
    gain = (
        f"it would not wait, which it does for {figures.steady.wait_share:.0%} of the time"
        if left <= step
        else f"{each / pace:,.0f} samples a second would come instead of {figures.steady.rate:,.0f}"
    )
    text = (
        f"{', '.join(repr(operation.name) for operation in moved)} are {share:.0%} of the work, and a GPU with JPEG "
        f"decoders can do them, if transforms and pictures are of the kind that it knows. The workers would then make "
        f"a batch every {seconds(left)}, and what reading headers and drawing takes, instead of "
        f"{seconds(figures.work.mean / figures.workers)}; the trainer needs one every {seconds(step)}. With a GPU "
        f"that decodes {each / pace:,.0f} pictures a second (an H200: {H200}) {gain}."
    )
    return Advice("device='cuda', on_device=True", text)


def other_hosts(figures: Figures) -> Advice | None:
    """Cores are full, and the trainer wants more of them than there are."""
    if cheaper_operation(figures) is None or figures.cores is None or figures.elsewhere:
        return None
    step = figures.steady.step.mean
    if not step:
        return None
    wants = figures.work.mean * (1.0 if figures.cpu is None else figures.cpu) / step
    short = math.ceil(1.1 * wants - figures.cores)
    if short < 1:
        return None
    text = (
        f"A batch takes {seconds(figures.work.mean)} of work and the trainer needs one every {seconds(step)}: your GPU "
        f"wants {short} core{'s' if short > 1 else ''} more than the {figures.cores:g} of this host. CPUs of other "
        "hosts in a Ray cluster can make what is short: the same samples, in the same order."
    )
    return Advice(f"remote=headrace.Ray(cpus={short})", text)


def cache(figures: Figures) -> Advice | None:
    """Epoch after epoch the same work is done again."""
    if cheaper_operation(figures) is None or len(figures.runs) < 2 or figures.cache:
        return None
    return Advice(
        "cache",
        f"{len(figures.runs)} epochs made every sample anew, and the workers have no time left: what does not change "
        "from epoch to epoch (reading, decoding) can be kept.",
    )


def prefetch(figures: Figures) -> Advice | None:
    """The trainer waits although workers have time: they may not run ahead far enough."""
    if bottleneck(figures) not in {INPUT, IN_TURN} or not figures.workers or figures.busy >= BUSY:
        return None
    now = figures.facts.get("prefetch")
    wanted = 2 * now if isinstance(now, int) and now > 0 else 4
    text = (
        f"The trainer waits {figures.steady.wait_share:.0%} of the time while workers are idle {1 - figures.busy:.0%} "
        "of it: more batches ahead even out samples that take longer."
    )
    return Advice(f"prefetch_factor={wanted}", text)


def free_order(figures: Figures) -> Advice | None:
    """The trainer waits for a batch while another one is there."""
    blocked = figures.steady.blocked_share
    if figures.facts.get("in_order") is False or blocked < WORTH:
        return None
    text = (
        f"For {blocked:.0%} of the time the trainer waited for the next batch in order while a later one was ready "
        f"({figures.out_of_order:.0%} of the batches were ready early)."
    )
    return Advice("in_order=False", text)


def keep_workers(figures: Figures) -> Advice | None:
    """Every epoch begins with a wait."""
    if len(figures.runs) < 2 or not figures.workers or figures.facts.get("persistent"):
        return None
    if figures.epoch_starts < 0.1 * figures.seconds:
        return None
    text = (
        f"First batches of epochs were waited for {seconds(figures.epoch_starts)}, "
        f"{part(figures.epoch_starts, figures.seconds)} of the time: workers that stay begin at once."
    )
    return Advice("persistent_workers=True", text)


def faster_start(figures: Figures) -> Advice | None:
    """The first batch takes long; either nobody works yet, or its samples take that long."""
    if bottleneck(figures) != STARTUP or not figures.workers or figures.startup < figures.epoch_starts:
        return None
    if figures.startup_store > 0.5 * figures.startup:
        text = (
            f"For {seconds(figures.startup_store)} of the first {seconds(figures.startup)} no row of the store was "
            "here: it was connected to and asked for the first ones. A loader connects when it is made: make it before "
            "whatever else the program prepares, keep it from epoch to epoch, or have the store nearer."
        )
        return Advice("the store", text)
    if figures.startup_first > 0.5 * figures.startup:
        text = (
            f"For {seconds(figures.startup_first)} of the first {seconds(figures.startup)} a worker made its first "
            "sample, and later ones are quick: something is opened or connected to then (a store, a large file, a "
            "library). Workers that stay do it once."
        )
        return Advice("persistent_workers=True", text)
    if figures.startup_idle > 0.5 * figures.startup:
        text = (
            f"For {seconds(figures.startup_idle)} of the first {seconds(figures.startup)} no sample was begun: that is "
            "the workers' start. Import less at the top of the program, keep the dataset small to pickle, or fork."
        )
        return Advice("multiprocessing_context='fork'", text)
    text = (
        f"The first batch itself took {seconds(figures.startup)} to make: "
        "smaller batches or cheaper samples begin sooner."
    )
    return Advice("batch_size", text)


def transfer(figures: Figures) -> Advice | None:
    """The trainer copies batches to a device, and does nothing else meanwhile."""
    if figures.transfer < WORTH:
        return None
    pinned = figures.facts.get("pin_memory")
    text = (
        f"The trainer waits {figures.transfer:.0%} of the time for copies to the device, "
        f"{seconds(figures.copies.mean)} each{', from page-locked memory' if pinned else ''}. From page-locked memory, "
        "and with non_blocking=True in .to(), they run beside the step. headrace's loader does both by itself with "
        "device='cuda'."
    )
    return Advice("non_blocking=True" if pinned else "pin_memory=True, non_blocking=True", text)


def fewer_workers(figures: Figures) -> Advice | None:
    """The trainer never waits and most of the workers' time is idle."""
    if bottleneck(figures) != TRAINER or figures.workers < 2 or figures.facts.get("automatic") or figures.busy > 0.4:
        return None
    wanted = max(1, math.ceil(figures.workers * figures.busy / 0.7))
    if wanted >= figures.workers:
        return None
    text = f"The workers are busy {figures.busy:.0%} of the time: fewer would do, and take less memory."
    return Advice(f"num_workers={wanted}", text)


def dying_workers(figures: Figures) -> Advice | None:
    """Workers died."""
    if not figures.deaths:
        return None
    died = "1 worker died and was" if figures.deaths == 1 else f"{figures.deaths} workers died and were"
    text = f"{died} replaced. That is mostly for want of memory: fewer workers take less."
    return Advice("num_workers", text)


def other_loader(figures: Figures) -> Advice | None:
    """Advice to use another loader: with torch's loader one worker makes a whole batch, and batches differ."""
    if not figures.facts.get("torch") or bottleneck(figures) not in {INPUT, IN_TURN}:
        return None
    if figures.workers < 2 or figures.work.variability < 0.1:
        return None
    text = (
        f"The work in a batch varies by {figures.work.variability:.0%} of its mean and one worker does all of it: "
        "a loader that hands out samples evens that out."
    )
    return Advice("headrace.DataLoader", text)


def _beside(figures: Figures) -> str:
    """A sentence on cores that others had meanwhile."""
    return " That is for cores that are its own; other programs had some of them meanwhile." if figures.taken else ""


def _computing(figures: Figures) -> float | None:
    """Share of their time that samples would compute if they had a core whenever they can run."""
    return None if figures.cpu is None else min(1.0, figures.cpu / max(_left(figures), 1e-9))


def _left(figures: Figures) -> float:
    """Share of the samples' time that would be left if they had a core whenever they can run."""
    return max(figures.cpu or 0.0, 1 - (figures.queued or 0.0))


def _waiting(figures: Figures) -> bool:
    """Samples wait for something else than a core: where the cores are full, that is what they wait for."""
    full = figures.cores is not None and figures.running >= FULL * figures.cores
    share = _computing(figures)
    return share is not None and share < COMPUTING and not full


RULES: tuple[Callable[[Figures], Advice | None], ...] = (
    no_workers,
    free_order,
    more_workers,
    cheaper_operation,
    on_device,
    cache,
    other_hosts,
    transfer,
    prefetch,
    other_loader,
    faster_start,
    keep_workers,
    dying_workers,
    fewer_workers,
)
