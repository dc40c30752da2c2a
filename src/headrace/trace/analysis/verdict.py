"""Verdict on who waits for whom. Pure."""

from dataclasses import dataclass

from headrace.trace.analysis.figures import Figures
from headrace.trace.analysis.number_format import part, seconds, size

INPUT, TRAINER, TRANSFER, IN_TURN = "input", "trainer", "transfer", "in turn"
STARTUP, UNKNOWN = "start-up", "unknown"
NOTICEABLE = 0.1
"""The trainer may wait this share of the time before the input is called a bottleneck."""
BUSY = 0.85
"""Workers this busy never had to stop for want of room: whatever lay ready meanwhile, they are what is short."""
MOSTLY = 0.5
"""Waiting for more than this share of the time leaves nothing for the trainer to be a bottleneck in."""
STARTING = 0.25
"""Waiting for first batches is the matter when it takes this share of all the time, and more than the rest of it."""
MIXED = 0.2
"""Both are a bottleneck, in turn, when at least this share of the batches was not waited for, and as many lay ready."""
ENOUGH = 5
"""Batches below which nothing is said about the steady state."""

MEANING = {
    INPUT: "The input is the bottleneck: the trainer waits for batches.",
    TRAINER: "The trainer is the bottleneck: batches wait for it.",
    TRANSFER: "The transfer is the bottleneck: the trainer copies batches to the device for most of its time.",
    IN_TURN: "Both are the bottleneck, in turn: batches pile up, then the trainer waits.",
    STARTUP: "Start-up is the bottleneck: the time goes into waiting for the first batch.",
    UNKNOWN: "There are too few batches to tell.",
}


@dataclass(frozen=True)
class Verdict:
    """The bottleneck and what shows it."""

    bottleneck: str
    meaning: str
    evidence: tuple[str, ...]


def judge(figures: Figures) -> Verdict:
    """The bottleneck of a loader's runs."""
    which = bottleneck(figures)
    return Verdict(which, MEANING[which], tuple(_evidence(figures)))


def bottleneck(figures: Figures) -> str:
    """The bottleneck, as one of the six words."""
    steady = figures.steady
    starting = figures.startup + figures.epoch_starts
    if starting > STARTING * figures.seconds and starting > steady.wait.total:
        return STARTUP
    if steady.batches < ENOUGH:
        return UNKNOWN
    if steady.wait_share <= NOTICEABLE:
        return TRANSFER if figures.transfer > MOSTLY else TRAINER
    rested = figures.workers > 0 and figures.busy < BUSY and steady.wait_share <= MOSTLY
    if rested and steady.waited_for <= 1 - MIXED and steady.lay_ready >= MIXED:
        return IN_TURN
    return INPUT


def _evidence(figures: Figures) -> list[str]:
    steady, first = figures.steady, figures.startup
    found = [f"The first batch came after {seconds(first)}, {part(first, figures.seconds)} of all time."]
    if len(figures.runs) > 1:
        found.append(f"First batches of the other epochs took {seconds(figures.epoch_starts)} together.")
    if steady.batches:
        found.append(
            f"After that the trainer waited {steady.wait_share:.1%} of the time; "
            f"{steady.waited_for:.0%} of {steady.batches} batches kept it waiting."
        )
        found.append(
            f"Between two batches it worked {seconds(steady.step.p50)} (median) "
            f"and waited {seconds(steady.wait.p50)} (P90 {seconds(steady.wait.p90)})."
        )
    if figures.transfer:
        found.append(
            f"It copied to the device for {figures.transfer:.0%} of the time, "
            f"{size(figures.copied_bytes)} at {size(figures.copied_bytes / figures.copies.total)}/s."
        )
    if steady.delay.count:
        found.append(
            f"A batch lay ready for {seconds(steady.delay.p50)} (median, P90 {seconds(steady.delay.p90)}) "
            "before it was consumed."
        )
    if figures.workers:
        found.append(f"The {figures.workers} workers were busy {figures.busy:.0%} of the time.")
    if figures.taken:
        had = "" if figures.cores is None else f": the workers had {figures.running:.1f} of {figures.cores} cores"
        found.append(
            f"For {figures.queued:.0%} of their time samples could have run and no core was free{had}. Other programs, "
            "or the trainer, had the rest; advice is for a machine without other programs."
        )
    return found
