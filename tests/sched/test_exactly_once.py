"""Whatever dies, in whatever order things happen: every index comes out once, and the run ends."""

import random
from itertools import count

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from headrace.sched import ledger_layout as W
from headrace.sched import native_ledger
from headrace.sched.epochs.trainer_commands import Arrangement
from tests.sched.epochs import DIMS, Plan
from tests.sched.model import World
from tests.selection import examples, scaled

ARRANGEMENTS = list(Arrangement)
each_arrangement = pytest.mark.parametrize("arrangement", ARRANGEMENTS, ids=lambda a: a.name.lower())
QUICKLY = settings(
    max_examples=examples(100),
    phases=(Phase.generate, Phase.shrink),  # explaining takes minutes
    suppress_health_check=list(HealthCheck),
)
BEHAVIOURS = ["row"] * 8 + ["other", "object", "raises", "kills once", "kills", "misfit", "unsendable", "too large"]


@st.composite
def plans(draw: st.DrawFn, arrangement: Arrangement, first: int) -> Plan:
    indices = count(first)
    sizes = draw(st.lists(st.integers(1, 8), min_size=1, max_size=7))
    if arrangement is not Arrangement.FREE and draw(st.integers(0, 4)) == 0:
        sizes[draw(st.integers(0, len(sizes) - 1))] = 0
    displacement = draw(st.sampled_from([0, 1, 2, 5])) if arrangement is Arrangement.FREE else 0
    if displacement:  # batches are cut by size
        sizes = [sizes[0]] * (len(sizes) - 1) + [min(sizes[0], sizes[-1])]
    batches = tuple(tuple(next(indices) for _ in range(size)) for size in sizes)
    odd = draw(st.booleans())
    drawn = [index for batch in batches for index in batch]
    collate = draw(st.booleans())
    fatal = draw(st.sampled_from(batches)) if collate and draw(st.integers(0, 3)) == 0 else ()
    return Plan(
        arrangement,
        batches,
        behaviour={index: draw(st.sampled_from(BEHAVIOURS)) for index in drawn if odd},
        chunks=draw(st.tuples(*[st.integers(1, 8)] * 3)),
        window=draw(st.integers(1, 4)),
        collate=collate,
        whole=collate and draw(st.booleans()),
        drop_last=arrangement is Arrangement.FREE and draw(st.booleans()),
        collate_deaths={fatal: draw(st.integers(1, 2))} if fatal else {},
        limits=tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))),
        threshold=draw(st.sampled_from([0, 1, 5, 20])),
        spares=draw(st.integers(0, 2)),
        displacement=displacement,
        ahead=frozenset(draw(st.lists(st.sampled_from(drawn), max_size=5)) if drawn else ()),
        held=draw(st.integers(0, 2)),
    )


@st.composite
def worlds(draw: st.DrawFn, arrangement: Arrangement, native: bool) -> World:
    """A world after a while: an unlucky one."""
    epochs = draw(st.integers(1, 3))
    plan = [draw(plans(arrangement, 1000 * epoch)) for epoch in range(epochs)]
    kills = draw(st.dictionaries(st.integers(0, 250), st.integers(0, 30), max_size=6))
    stops = draw(st.sets(st.integers(0, 300), max_size=30)) if epochs > 1 else set()
    laziness = draw(st.sampled_from([0.0, 0.9, 1.0]))
    world = World(plan, native=native)
    world.shuffle(random.Random(draw(st.integers(0, 1 << 32))), kills, stops, laziness, 400)
    return world


@each_arrangement
@QUICKLY
@given(data=st.data())
def test_any_schedule(arrangement: Arrangement, native: bool, data: st.DataObject) -> None:
    world = data.draw(worlds(arrangement, native))
    world.finish(early=data.draw(st.booleans()))
    world.verify()


def mixed(arrangement: Arrangement, **options) -> Plan:
    """Five small batches with a bit of everything."""
    behaviour = {2: "raises", 5: "object", 7: "other", 8: "raises"}
    options = {"window": 1} | options
    return Plan(arrangement, ((0, 1, 2), (3, 4, 5, 6), (7,), (8, 9), (20,)), behaviour, (1, 2, 4), **options)


SCENES = {
    "plain": {},
    "collated": {"collate": True},
    "whole": {"collate": True, "whole": True},
    "last dropped": {"drop_last": True},
    "ahead": {"window": 4, "ahead": frozenset({1, 4, 9})},
}
STAGED = [
    (arrangement, scene)
    for arrangement in ARRANGEMENTS
    for scene in SCENES
    if scene not in (("whole",) if arrangement is Arrangement.FREE else ("last dropped",))  # the same as another
]


each_scene = pytest.mark.parametrize(("arrangement", "scene"), STAGED, ids=lambda value: getattr(value, "name", value))


@pytest.mark.scaled
@pytest.mark.parametrize("laziness", [0.0, 1.0], ids=["noticed at once", "noticed last"])
@each_scene
def test_a_death_at_any_store(arrangement: Arrangement, scene: str, laziness: float, native: bool) -> None:
    _strike_everywhere([mixed(arrangement, **SCENES[scene])], native, laziness)


@each_arrangement
def test_a_sample_queued_ahead_kills_no_third_worker(arrangement: Arrangement, native: bool) -> None:
    """It has failed by the time that its turn comes, and is passed over then."""
    plan = Plan(arrangement, ((0, 1), (2, 3)), {3: "kills"}, window=2, limits=(1,), ahead=frozenset({3}))
    world = World([plan], native=native)
    world.finish(early=True)
    world.verify()
    assert world.run.failed == [3]
    assert world.deaths == 2


def _kill(world: World, rng: random.Random, fuse: int) -> None:
    lanes = [actor for actor in world.movable() if actor >= 0]
    if lanes:
        world.kill(rng.choice(lanes), fuse)


def _strike_everywhere(plans: list[Plan], native: bool, laziness: float) -> None:
    """At every store of every step; in `make test` at some stores of some steps, which differ from step to step."""
    for tick in count(0, scaled(15, 1)):
        stores = _struck(World(plans, native=native), tick, 1 << 20, laziness)
        if stores is None:
            break
        for fuse in range(tick % scaled(3, 1), stores, scaled(3, 1)):
            _struck(World(plans, native=native), tick, fuse, laziness)


def _struck(world: World, tick: int, fuse: int, laziness: float) -> int | None:
    """Strike at ``tick``; how many stores the step could make, None when the run is over by then."""
    rng, epochs = random.Random(tick), len(world.plans)
    world.shuffle(rng, {}, set(), laziness, tick)
    if world.run.finished and len(world.runs) == epochs:
        return None
    before = world.words.stores
    _kill(world, rng, fuse)
    stores = world.words.stores - before
    world.shuffle(rng, {}, set(), laziness, 10_000)
    assert world.run.finished
    assert len(world.runs) == epochs
    world.verify()
    return stores


@each_arrangement
@settings(QUICKLY, max_examples=examples(120))
@given(data=st.data())
@pytest.mark.skipif(native_ledger.module is None, reason="needs the native module: make native")
def test_the_twins_make_the_same_stores(arrangement: Arrangement, data: st.DataObject) -> None:
    """Over two epochs, with lanes that take as many tickets as chance has it, and samples of any cost."""
    plan = [data.draw(plans(arrangement, first)) for first in (0, 1000)]
    kills = data.draw(st.dictionaries(st.integers(0, 300), st.integers(0, 30), max_size=4))
    stops = data.draw(st.sets(st.integers(0, 150), max_size=5))
    seed, threshold = data.draw(st.integers(0, 1 << 32)), data.draw(st.sampled_from([0, 500, 2_000_000]))
    worlds = [World(plan, native=native, paces=seed) for native in (False, True)]
    for world in worlds:
        world.words[W.THRESHOLD] = threshold
        world.shuffle(random.Random(seed), kills, stops, 0.5, 400)
    assert worlds[0].words[0 : DIMS.words] == worlds[1].words[0 : DIMS.words]
    assert worlds[0].words.stores == worlds[1].words.stores
