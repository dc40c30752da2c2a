"""The way from what an epoch begins with to the run that delivers it, in an iteration's resources."""

from typing import Any

from headrace.core.options import Seeding
from headrace.engine import beginning
from headrace.engine.beginning import EpochBeginning
from headrace.engine.iteration_state import IterationState
from headrace.engine.plugs import EpochRecord
from headrace.engine.settings import Settings
from headrace.engine.trainer.counters import Errors
from headrace.engine.trainer.epochdriver import EpochDriver
from headrace.engine.trainer.epochloop import EpochLoop
from headrace.engine.trainer.inline import InlineRun
from headrace.engine.trainer.inlinestream import InlineStream
from headrace.engine.trainer.streamwork import StreamWork
from headrace.engine.trainer.watch import Staffing
from headrace.engine.worker import collation
from headrace.engine.worker.observer import Observer
from headrace.engine.worker.stateful import is_stateful
from headrace.plan.lookahead import Lookahead
from headrace.sched.epochs.streammachine import StreamRules
from headrace.sched.epochs.trainer_commands import Terms
from headrace.sched.hand import EpochRun
from headrace.sched.resume import Resume


def begin(resources: IterationState) -> None:
    """Put a new epoch's run into ``resources``."""
    saved = beginning.numbered(resources)
    begun = beginning.drawn(resources, saved)
    resources.counters.workers = resources.settings.workers
    _tell(resources, begun.saved)
    resources.trace = _traced(resources)
    run = _run(resources, begun)
    resources.counters.epochs += 1
    for part in resources.parts:
        run = part.run(run, resources.trace, resources.slab)
    resources.run = run
    if resources.pool is not None:
        resources.pool.start_forker()  # not before: the workers have something to do while it is forked
    for part in resources.parts:
        part.start()


def _tell(resources: IterationState, saved: dict[str, Any] | None) -> None:
    """Record the samples that the epoch still owes in the story, if one is kept."""
    if saved is not None and resources.settings.scheduling.story:
        owed = [index for group in saved.get("pending", []) for index in group]
        why = f"epoch {resources.epoch} goes on after {saved['yielded']} batches; it was drawn and not delivered"
        resources.counters.story.tell("loader", "resumed", why, owed)


def _run(resources: IterationState, begun: EpochBeginning) -> EpochRun:
    settings = resources.settings
    if settings.iterable:
        return _stream_run(resources, begun)
    if settings.workers > 0:
        return EpochLoop(_with_workers(resources, begun), settings.timeout)
    groups = beginning.groups(resources, begun)  # first: makers are told what brings their samples
    return InlineRun(
        settings,
        resources.making(),
        groups,
        seed=(begun.seed, begun.epoch) if settings.loading.seeding is Seeding.SAMPLE else None,
        errors=_errors(resources),
        observer=_observer(resources),
        step=resources.step,
    )


def _with_workers(resources: IterationState, begun: EpochBeginning) -> EpochDriver:
    settings, kept = resources.settings, resources.kept
    groups = beginning.groups(resources, begun)
    standard = settings.batched and collation.is_standard(settings.collate_fn)
    pool, slots = resources.workers(standard=standard, resumed=[])
    fixed = Lookahead(settings.prefetch, settings.prefetch)
    terms = Terms(
        arrangement=settings.arrangement,
        window=kept.lookahead(settings.prefetch) if settings.looks_ahead else fixed,
        collate=not standard,
        drop_last=settings.drop_last,
        displacement=settings.scheduling.max_displacement or 0,
    )
    staffing = Staffing(
        settings.scheduling.spares_for,
        kept.automatic(settings.dataset, settings.scheduling.lanes) if settings.adaptive else None,
        kept.stragglers if standard and not settings.bulk else None,
    )
    errors, counters = _errors(resources), resources.counters
    return EpochDriver(pool, slots, errors, counters, groups, terms, staffing, (begun.seed, begun.epoch))


def _stream_run(resources: IterationState, begun: EpochBeginning) -> EpochRun:
    settings, resumed = resources.settings, begun.streams
    if settings.workers == 0:
        return InlineStream(
            settings.dataset,
            settings.collate_fn,
            batch_size=settings.batch_size,
            drop_last=settings.drop_last,
            resumed=resumed[0] if resumed else Resume(),
            errors=_errors(resources),
            observer=_observer(resources),
            step=resources.step,
        )
    pool, slots = resources.workers(standard=False, resumed=resumed)
    left = resources.streams.left if resources.streams is not None else [None] * settings.workers
    work = StreamWork(
        pool,
        slots,
        _errors(resources),
        resources.counters,
        resumed or [Resume(began=began) for began in left],
        StreamRules(settings.in_order, settings.prefetch, is_stateful(settings.dataset), settings.loading.repeats),
        begun.saved["turn"] if begun.saved else 0,
    )
    resources.streams = work.machine
    return EpochLoop(work, settings.timeout)


def _errors(resources: IterationState) -> Errors:
    settings = resources.settings
    return Errors(
        settings.on_error, resources.counters, None if settings.iterable else settings.samples, settings.dataset
    )


def _traced(resources: IterationState) -> EpochRecord | None:
    """The epoch's record, if there is a trace."""
    number, facts = resources.first_run + resources.epoch, _facts(resources.settings, resources.epoch)
    return next(filter(None, (part.record(number, facts) for part in resources.parts)), None)


def _facts(settings: Settings, epoch: int) -> dict[str, object]:
    return {
        "epoch": epoch,
        "workers": settings.workers,
        "automatic": settings.adaptive,
        "batch_size": settings.batch_size,
        "prefetch": settings.prefetch,
        "in_order": settings.in_order,
        "arrangement": settings.arrangement.name.lower(),
        "persistent": settings.persistent,
        "device": None if settings.device is None else str(settings.device),
        "on_device": settings.on_device,
        "torch": False,
    }


def _observer(resources: IterationState) -> Observer | None:
    """The observer of samples that this process makes itself, if they are recorded."""
    return None if resources.trace is None else resources.trace.observer(resources.settings.dataset)
