"""What ranks are served and what is kept, on both kinds of backend, with everything shared being damaged meanwhile."""

import math
import random
from collections import Counter, deque
from contextlib import suppress

import numpy as np
import pytest

from headrace.cache import peers, serving
from headrace.cache.backends import entry_word as W
from headrace.cache.backends import local_tables, redis_tables, shm, victims
from headrace.cache.backends.backend import Entry
from headrace.cache.backends.disk import Disk
from headrace.cache.division import DivisionRecord, Sums
from headrace.cache.remaining import Remaining
from headrace.cache.serving import Serving
from tests.cache.places import CODEC, Place, described, opened, place, unit, value

__all__ = ["place"]
SAMPLES, SIZE = 48, 1 << 20
FILLER = 12_000
"""Numbers in a sample: a page or so more than 48 KB, so that a third of the samples fill the cache."""


class Job:
    """Of one rank: asks, reads, makes and keeps, and checks what it gets."""

    def __init__(self, place, number, *, parts=(0, 100, 0), size=SIZE, samples=SAMPLES, most=math.inf):
        self.share = place.share(unit(number), samples, size, parts=parts)
        self.serving = Serving(self.share, most)
        self.number, self.samples = number, samples
        self.hits = self.made = 0
        self.marks = Counter()
        self.begin()

    def begin(self):
        self.rng = np.random.default_rng(self.number)
        self.remaining = Remaining(self.samples, None, np.empty(0, np.int64), self.rng)
        self.order = self.rng.permutation(self.samples)
        self.at, self.served = 0, []
        self.serving.begin()

    def step(self, count):
        """A batch; whether it was the last."""
        asked = self.order[self.at : self.at + count]
        self.at += len(asked)
        answer = self.serving.request(asked, self.remaining)
        assert len(answer.samples) == len(asked)
        self.remaining.take(answer.samples)
        self.serving.saw(answer.samples)
        for sample, word, keep in zip(*(each.tolist() for each in answer), strict=True):
            self._make(sample, word, keep)
        return self.at == self.samples

    def _make(self, sample, word, keep):
        self.served.append(sample)
        if word == W.LOOK:
            word = self.share.word(sample)
            word = 0 if W.form_of(word) == W.AUGMENTED else word
        found = self.share.read(Entry(sample, word)) if word else None
        self.hits += found is not None
        self.made += 1
        if W.form_of(word) == W.AUGMENTED and found is not None:
            index, mark = CODEC.rebuild(*found)[:2].tolist()
            assert index == sample
            self.marks[mark] += 1
            return
        if found is not None:
            assert value(found) == sample
        if keep == W.AUGMENTED:
            mark = random.getrandbits(60)
            self.marks[mark] += 1
            content = np.full(FILLER // 2, sample, np.int64)
            content[1] = mark
            self.share.keep(sample, keep, CODEC.describe(content))
        elif keep:
            self.share.keep(sample, keep, described(sample, FILLER))

    def check(self):
        assert sorted(self.served) == list(range(self.samples)), "each sample once"
        assert max(self.marks.values(), default=1) == 1, "no augmentation twice"


def run(place, rng, *, parts, epochs, damage=lambda: None, size=SIZE):
    """Three jobs in any order, some of which begin anew."""
    jobs = [Job(place, number, parts=parts, size=size) for number in (1, 2, 3)]
    ended = 0
    while ended < epochs:
        job = rng.choice(jobs)
        if job.step(rng.randint(1, 9)):
            job.check()
            job.begin()
            ended += 1
        if rng.random() < 0.3:
            damage()
    return jobs


@pytest.mark.parametrize("parts", [(0, 100, 0), (50, 50, 0), (0, 0, 100), (0, 60, 40)])
def test_every_sample_comes_once_and_no_augmentation_twice(place, parts):
    jobs = run(place, random.Random(str(parts)), parts=parts, epochs=9)
    room = jobs[0].share.backend.room()
    assert sum(room.held) + room.others <= SIZE
    assert sum(job.hits for job in jobs) > 0
    held = np.zeros(4, np.int64) + W.sums(jobs[0].share.backend.block(0, SAMPLES))
    assert held.tolist() == list(room.held)


def damaged_files(place, rng):
    """Bytes changed, cleared, swapped or cut in any file of a cache."""
    files = [path for path in shm.path_of(place.namespace).rglob("*") if path.is_file() and path.name != "lock"]
    with suppress(OSError, ValueError):
        path = rng.choice(files)
        size = path.stat().st_size
        how = rng.randrange(5)
        if how == 0:
            with path.open("r+b") as file:
                file.truncate(rng.randrange(size + 1))
        elif how == 1:
            content = path.read_bytes()
            other = rng.choice(files)
            with path.open("r+b") as file:
                file.write(other.read_bytes())
            with other.open("r+b") as file:
                file.write(content)
        elif how == 2:
            path.unlink()
        else:
            with path.open("r+b") as file:
                file.seek(rng.randrange(max(1, size)))
                file.write(bytes(rng.randint(1, 64)) if how == 3 else rng.randbytes(rng.randint(1, 64)))


def damaged_keys(client, rng):
    """The same, of keys on a server."""
    keys = sorted(client.scan_iter())
    if not keys:
        return
    key, how = rng.choice(keys), rng.randrange(4)
    kind = client.type(key)
    if how == 0:
        client.unlink(key)
    elif how == 1:
        client.unlink(key)
        client.rpush(key, b"garbage")
    elif kind == b"string":
        size = max(1, client.strlen(key))
        client.setrange(key, rng.randrange(size), rng.randbytes(rng.randint(1, 20)))
    elif kind == b"hash":
        client.hset(key, rng.choice(client.hkeys(key)), rng.choice([b"x", b"-5", b"99999999999999999"]))


def damage_of(place, rng):
    if place.url is None:
        return lambda: damaged_files(place, rng)
    backend = place.backend()
    return lambda: damaged_keys(backend.server.client, rng)


SEEDS = [*range(4), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(4, 400))]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", ["shm", "redis"])
def test_damage_costs_time_and_nothing_else(kind, tmp_path, seed):
    rng = random.Random(seed)
    with opened(kind, tmp_path) as place:
        run(place, rng, parts=rng.choice([(0, 100, 0), (0, 60, 40)]), epochs=6, damage=damage_of(place, rng))


def test_what_is_counted_is_put_right(place):
    job = Job(place, 1)
    while not job.step(8):
        pass
    held = job.share.backend.room().held
    job.share.backend.correct([0, 100 * 512, 0, 0])
    job.serving.recount()
    assert job.share.backend.room().held != held, "what is on its way is not taken for lost"
    job.serving.recount()
    assert job.share.backend.room().held == held


def test_two_jobs_hand_each_other_what_they_read(place):
    one, two = Job(place, 1, size=8 << 20), Job(place, 2, size=8 << 20)
    one.serving.begin()
    done = False
    while not done:
        done = one.step(6)
        two.step(6)
    assert one.hits + two.hits >= SAMPLES - 12, "what one reads the other has not to"


def test_what_is_cached_comes_first_only_as_far_as_it_may(place):
    first, count = Job(place, 1, size=8 << 20, samples=400), 80
    for sample in range(count):
        assert first.share.keep(sample, W.DECODED, described(sample, 50))
    found = {}
    for number, most in enumerate((math.inf, 2.0, 1.0), 2):
        job = Job(place, number, size=8 << 20, samples=400, most=most)
        for _ in range(5):
            job.step(10)
        found[most] = job.hits
        job.serving.end()
    assert found[math.inf] == 50
    assert 15 <= found[2.0] <= 28, "twice a fifth of 50, as what is read meanwhile is counted too"
    assert 5 <= found[1.0] <= 22


def test_a_job_alone_keeps_no_augmented_samples(place):
    job = Job(place, 1, parts=(0, 0, 100))
    while not job.step(8):
        pass
    assert job.share.backend.room().kept == 0


def test_what_a_rank_has_still_to_read_counts_as_needed_by_it(place, monkeypatch):
    monkeypatch.setattr(serving, "LITTLE", math.inf)  # a busy server is asked no less often
    other, one = Job(place, 1), Job(place, 2)
    other.step(8)
    one.share.peers.look(now=True)
    asked = np.array([other.served[0], *set(range(SAMPLES)) - set(other.served)][:8])
    answer = one.serving.request(asked, None)
    assert np.count_nonzero(answer.words) == 1

    def told():
        (seen,) = one.share.backend.seen([f"{unit(2)}.0"], 0, SAMPLES)
        return set(np.flatnonzero(np.unpackbits(seen, bitorder="little")).tolist())

    one.serving.saw(answer.samples, made=0)
    assert told() == set(asked[1:].tolist())
    one.serving.request(asked[:0], None)
    one.serving.saw(asked[:0], made=7)
    assert told() == set(asked[1:].tolist())
    one.serving.request(asked[:0], None)
    one.serving.saw(asked[:0], made=8)
    assert told() == set(asked.tolist())


def always_looking(monkeypatch, period=0.0):
    """What others do is looked at with every request, whatever that takes."""
    monkeypatch.setattr(peers, "PERIOD", period)
    monkeypatch.setattr(peers, "SHARE", 0)
    monkeypatch.setattr(peers, "REMOTE_SHARE", 0)
    monkeypatch.setattr(serving, "LITTLE", math.inf)
    monkeypatch.setattr(victims, "MOMENT", period)
    monkeypatch.setattr(victims, "REMOTE_MOMENT", period)


def test_what_another_has_taken_on_is_looked_for(place, monkeypatch):
    always_looking(monkeypatch)
    other, one = Job(place, 1), Job(place, 2)
    other.share.peers.look(now=True)
    theirs = other.serving.request(other.order[:4], None)
    other.serving.saw(theirs.samples, made=0)
    assert not theirs.words.any(), "nobody brings them to it"
    asked = np.array([*other.order[:4], other.order[-1]])
    answer = one.serving.request(asked, None)
    assert (answer.words == W.LOOK).tolist() == [True] * 4 + [False]
    one.serving.saw(answer.samples, made=0)
    assert other.share.peers.need(asked).tolist() == [1] * 4 + [0], "it hopes to be given them"
    one.serving.request(asked[:0], None)
    one.serving.saw(asked[:0], made=5)
    assert not other.share.peers.need(asked).any()


def test_that_an_epoch_is_over_is_seen_by_what_was_published_of_it(place, monkeypatch):
    always_looking(monkeypatch, period=math.inf)
    other, one = Job(place, 1), Job(place, 2)
    other.share.peers.look(now=True)
    other.step(8)
    asked = np.array(other.served)
    assert not one.share.peers.need(asked).any()
    other.begin()
    assert one.share.peers.need(asked).all()
    other.step(8)
    one.serving.request(asked[:0], None)
    assert not one.share.peers.need(np.array(other.served)).any()


class Ahead(Job):
    """Asks for as many batches as are in ``queue`` at most before it makes the first of them."""

    def begin(self):
        super().begin()
        self.queue, self.done = deque(), 0

    def plan(self, count, most):
        """Ask for batches while there is room in the queue for one."""
        while self.at < self.samples and len(self.queue) <= (most - 1) * count:
            asked = self.order[self.at : self.at + count]
            self.at += len(asked)
            answer = self.serving.request(asked, self.remaining)
            self.remaining.take(answer.samples)
            self.serving.saw(answer.samples, self.done)
            self.queue += zip(*(each.tolist() for each in answer), strict=True)

    def make(self):
        """One sample; whether it was the last of the epoch."""
        self._make(*self.queue.popleft())
        self.done += 1
        return self.done == self.samples


@pytest.mark.parametrize("most", [1, 6])
def test_jobs_that_plan_ahead_find_what_the_bound_says(place, most, monkeypatch):
    always_looking(monkeypatch)
    samples, held, before = 160, 112, 0
    size = (held + 1) * max(local_tables.footprint(4 * FILLER), 4 * FILLER + redis_tables.OVERHEAD)
    jobs = [Ahead(place, number, samples=samples, size=size) for number in (1, 2)]
    jobs[0].share.peers.look(now=True)
    for epoch in range(4):
        over = False
        while not over:
            for job in jobs:
                job.plan(8, most)
                over = job.make()
        hits = sum(job.hits for job in jobs)
        bound = samples + held if epoch else samples
        assert hits - before >= 0.96 * bound, f"epoch {epoch}"
        before = hits
        for job in jobs:
            job.check()
            job.begin()


def test_one_look_finds_places_for_many(place, monkeypatch):
    always_looking(monkeypatch, math.inf)
    room = 12
    size = (room + 0.5) * max(local_tables.footprint(4 * FILLER), 4 * FILLER + redis_tables.OVERHEAD)
    one, other = (Job(place, number, size=int(size)) for number in (1, 2))
    for sample in range(room):
        assert one.share.keep(sample, W.DECODED, described(sample, FILLER))
    for job in (one, other):
        job.share.peers.look(now=True)
        job.serving.request(job.order[:0], None)
        job.serving.saw(np.arange(room))
    looks = []
    block = type(one.share.backend).block
    monkeypatch.setattr(
        one.share.backend, "block", lambda *asked: looks.append(asked) or block(one.share.backend, *asked)
    )
    fresh = range(room, room + 8)
    held = [one.share.hold(sample, W.DECODED, described(sample, FILLER)) for sample in fresh]
    assert all(held)
    one.share.settle()
    assert len(looks) == 1
    assert [value(other.share.read(entry)) for entry in held] == list(fresh)
    words = one.share.backend.block(0, SAMPLES)
    assert np.count_nonzero(words) == room
    assert list(one.share.backend.room().held) == np.asarray(W.sums(words)).tolist()
    assert one.share.room().held == one.share.backend.room().held, "what is remembered is what there is"


def test_nothing_gives_way_to_what_is_worth_no_more(place, monkeypatch):
    always_looking(monkeypatch, math.inf)
    one, other = Job(place, 1), Job(place, 2)
    held = [sample for sample in range(SAMPLES) if one.share.keep(sample, W.DECODED, described(sample, FILLER))]
    assert 0 < len(held) < SAMPLES
    one.share.peers.look(now=True)
    missing = sorted(set(range(SAMPLES)) - set(held))
    assert not any(one.share.keep(sample, W.DECODED, described(sample, FILLER)) for sample in missing)
    assert np.flatnonzero(other.share.backend.block(0, SAMPLES)).tolist() == held


def test_what_is_held_is_found_once_it_is_settled(place):
    share, other = place.share(unit(1)), place.share(unit(2))
    held = [share.hold(sample, W.DECODED, described(sample)) for sample in (1, 2, 2, 3)]
    assert not np.count_nonzero(other.backend.block(0, 64)), "nobody knows of it yet"
    first = other.hold(3, W.DECODED, described(3))
    other.settle()
    share.settle()
    assert value(other.read(held[0])) == 1
    assert value(other.read(held[1])) == 2
    assert other.read(held[2]) is None, "a sample is held once"
    assert share.word(3) == first.word
    assert share.backend.room().kept == 3
    share.settle()
    share.hold(4, W.DECODED, described(4))
    share.close()
    assert not other.word(4), "who ends before leaves nothing"


def test_who_dies_before_naming_leaves_words_that_readers_take_back(place, monkeypatch):
    share, other = place.share(unit(1)), place.share(unit(2))
    held = [share.hold(sample, W.DECODED, described(sample)) for sample in (1, 2)]
    monkeypatch.setattr(share, "_erase", lambda _: 1 / 0)  # between the table and the names
    with pytest.raises(ZeroDivisionError):
        share.settle()
    assert [other.word(entry.sample) for entry in held] == [entry.word for entry in held]
    assert [other.read(entry) for entry in held] == [None, None]
    assert [other.word(entry.sample) for entry in held] == [0, 0]
    assert other.keep(1, W.DECODED, described(1))


def test_a_job_alone_with_a_full_cache_seeks_nothing_that_may_give_way(place, monkeypatch):
    share = place.share(unit(1), SAMPLES)
    blocks = []
    monkeypatch.setattr(share.backend, "block", lambda *given: blocks.append(given))
    kept = [share.keep(sample, W.DECODED, described(sample, FILLER)) for sample in range(SAMPLES)]
    assert kept[0]
    assert not kept[-1]
    assert not blocks


def test_a_second_dataset_gets_its_share(place):
    one = Job(place, 1)
    while not one.step(8):
        pass
    full = sum(one.share.backend.room().held)
    other = place.share(unit(2), SAMPLES, title="e" * 16)
    Serving(other).begin()
    kept = [other.keep(sample, W.DECODED, described(sample, FILLER)) for sample in range(SAMPLES)]
    assert sum(kept) >= SAMPLES // 8
    assert sum(one.share.backend.room().held) >= full // 3, "and no more"


def test_what_nobody_uses_gives_way(place):
    gone = Job(place, 1)
    while not gone.step(8):
        pass
    gone.serving.end()
    other = place.share(unit(2), SAMPLES, title="e" * 16)
    Serving(other).begin()
    kept = [other.keep(sample, W.DECODED, described(sample, FILLER)) for sample in range(SAMPLES)]
    assert sum(kept) >= SAMPLES // 4
    assert other.backend.siblings() == []


def test_a_disk_takes_what_memory_has_no_room_for(place, tmp_path):
    disk = Disk(tmp_path / "disk", "0" * 16, 8 << 20)
    share = place.share(unit(1), SAMPLES, disk=disk)
    kept = [share.keep(sample, W.DECODED, described(sample, FILLER)) for sample in range(SAMPLES)]
    assert all(kept)
    assert share.backend.room().held[3] > 0
    words = share.backend.block(0, SAMPLES).tolist()
    assert [value(share.read(Entry(sample, word))) for sample, word in enumerate(words)] == list(range(SAMPLES))


def test_a_disk_outlives_the_table(tmp_path):
    for round_ in range(2):
        place, disk = Place(None), Disk(tmp_path / "disk", "0" * 16, 8 << 20)
        try:
            share = place.share(unit(1), SAMPLES, disk=disk)
            share.adopt()
            held = np.count_nonzero(share.backend.block(0, SAMPLES))
            assert (held > 0) == (round_ > 0)
            for sample in range(SAMPLES):
                share.keep(sample, W.DECODED, described(sample, FILLER))
        finally:
            place.close()


def test_what_has_no_room_for_one_of_its_size_leaves_it_to_another_form(place):
    job = Job(place, 1, parts=(40, 60, 0))
    backend = job.share.backend
    size = job.share.footprint(described(0, FILLER))
    backend.measure(Sums(encoded_bytes=5120, encoded_sized=1, decoded_bytes=size, decoded_sized=1))
    kept = []
    while not kept or kept[-1] == W.DECODED:
        answer = job.serving.request(np.array([len(kept)]), None)
        kept.append(int(answer.keep[0]))
        assert job.share.keep(len(kept) - 1, kept[-1], described(len(kept) - 1, FILLER))
    assert kept[-1] == W.ENCODED
    assert len(kept) > 5


def test_a_move_of_the_division_is_followed(place):
    job = Job(place, 1)
    while not job.step(8):
        pass
    held = job.share.backend.room().held[1]
    assert job.share.backend.divide(DivisionRecord(1, (90, 10, 0), fixed=False, before=(0, 100, 0)), 0)
    job.share._terms = None
    job.begin()
    while not job.step(8):
        pass
    room = job.share.backend.room()
    assert room.held[1] < held
    assert room.held[0] > 0


def test_what_is_spoilt_is_used_by_nobody(place):
    shares = [place.share(unit(number), SAMPLES, SIZE, parts=(0, 100, 0)) for number in range(2)]
    one, other = shares
    assert all(one.keep(sample, W.DECODED, described(sample, 20)) for sample in range(8))
    entry = Entry(3, other.word(3))
    assert other.read(entry) is not None
    other.hold(9, W.DECODED, described(9, 20))
    one.spoil()
    assert one.read(entry) is None
    assert not any(one.backend.block(0, SAMPLES))
    assert sum(one.backend.room().held) == 0
    other._terms = None  # the next look, which is a moment later
    other.settle()
    assert other.is_left
    assert other.read(entry) is None
    assert not other.keep(9, W.DECODED, described(9, 20))
    late = place.share(unit(2), SAMPLES, SIZE, parts=(0, 100, 0))
    assert late.is_left
    late.use(lambda: True)
    assert late.is_left
    one.backend.remove()
    late.use(lambda: True)
    assert not late.is_spoilt()


def test_what_does_not_hold_any_more_is_not_kept(place):
    share = place.share(unit(1), SAMPLES, SIZE, parts=(0, 100, 0))
    holds = [True]
    share.use(lambda: holds[0])
    assert share.keep(1, W.DECODED, described(1, 20))
    share.hold(2, W.DECODED, described(2, 20))
    holds[0] = False
    share.settle()
    assert share.is_left
    assert not share.word(2)
    assert share.word(1)
    assert share.read(Entry(1, share.word(1))) is None
    holds[0] = True
    share.use(lambda: holds[0])  # the next epoch
    assert share.read(Entry(1, share.word(1))) is not None
    assert share.keep(2, W.DECODED, described(2, 20))


@pytest.mark.parametrize(
    ("mine", "maker", "served"), [(5, 5, False), (5, 6, True), (None, None, True), (None, 5, True)]
)
def test_no_augmentation_with_numbers_of_the_own_seed_is_served(place, mine, maker, served):
    maker, mine = unit(1)._replace(seed=maker), unit(2)._replace(seed=mine)
    one = place.share(maker, SAMPLES, SIZE, parts=(0, 0, 100))
    other = place.share(mine, SAMPLES, SIZE, parts=(0, 0, 100))
    assert one.keep(3, W.AUGMENTED, described(3, 20))
    assert (other.read(Entry(3, other.word(3))) is not None) is served
    assert one.read(Entry(3, one.word(3))) is None


def test_a_job_whose_run_shall_be_the_same_is_served_nothing_augmented(place):
    one = place.share(unit(1), SAMPLES, SIZE, parts=(0, 50, 50))
    one.keep(3, W.AUGMENTED, described(3, 20))
    one.keep(4, W.DECODED, described(4, 20))
    for takes in (False, True):
        share = place.share(unit(2), SAMPLES, SIZE, parts=(0, 50, 50))
        serving = Serving(share, takes_augmented=takes)
        serving.begin()
        words = serving.request(np.array([3, 4]), None).words
        assert (W.form_of(int(words[0])), W.form_of(int(words[1]))) == (W.AUGMENTED if takes else 0, W.DECODED)
