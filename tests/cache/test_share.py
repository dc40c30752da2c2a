"""Jobs that share a cache in shared memory: real processes, killed and started again."""

import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from headrace.cache import words as W
from headrace.cache.codec import Codec, Corrupt
from headrace.cache.ledger_files import ledgers
from headrace.cache.local_book import LocalBook
from headrace.cache.options import room_of
from headrace.cache.policies import Need
from headrace.cache.share import Share
from headrace.cache.shm import SharedMemoryTier

SAMPLES, ENTRY, LIMIT = 80, 3000, 2 << 20
SCOPES = ("a" * 32, "b" * 32, "c" * 32)
BUDGET = (20 * ENTRY, 40 * ENTRY, 0)


def opened(name, samples=SAMPLES, budget=BUDGET):
    tier = SharedMemoryTier(name, LIMIT)
    return tier, shared(name, tier, SCOPES, budget, samples)


def shared(name, tier, scopes, budget, samples=SAMPLES):
    book = LocalBook(name, samples=samples, scopes=scopes, budget=budget, policy=Need())
    return Share(tier, book, scopes)


def entry(sample, form):
    return Codec().encode((np.full(2000, sample, np.uint8), form))


class Both:
    """Two shares of a cache, and what they stand on."""

    def __init__(self, name):
        self.pairs = [opened(name) for _ in range(2)]
        self.tiers, self.shares = zip(*self.pairs, strict=True)
        for share in self.shares:
            share.begin(0)


@pytest.fixture
def both(name):
    found = Both(name)
    yield found
    for tier, share in found.pairs:
        share.close()
        tier.close()


def test_one_reads_and_the_other_has_it(both):
    first, second = both.shares
    read = first.request(np.arange(10)).servings
    assert {each.form for each in read} == {W.NOWHERE}
    assert all(first.keep(each.sample, each.keep, entry(each.sample, each.keep)) for each in read)
    served = second.request(np.arange(30, 40)).servings
    assert {each.sample for each in served} == set(range(10))
    with both.tiers[1].reading() as reading:
        for each, view in zip(served, second.read(reading, served), strict=True):
            pixels, form = Codec().decode(view)
            assert (set(pixels.tolist()), form) == ({each.sample}, each.form)
            del pixels
            view.release()
    counts = second.book.counts()
    assert (counts["misses"], counts["exchanged"], counts["admitted"]) == (10, 10, 10)
    assert counts["hits_decoded"] + counts["hits_encoded"] == 10


def test_an_entry_that_vanished_is_a_miss_for_everybody(both):
    first, second = both.shares
    (serving,) = first.request(np.array([5])).servings
    assert first.keep(5, W.DECODED, entry(5, W.DECODED))
    both.tiers[0].delete([first.key(5, W.DECODED)])
    (hit,) = second.request(np.array([5])).servings
    assert (serving.sample, hit.form) == (5, W.DECODED)
    with both.tiers[1].reading() as reading:
        assert second.read(reading, [hit]) == [None]
    assert first.book.counts()["lost"] == 1
    assert first.keep(5, W.DECODED, entry(5, W.DECODED))


def test_a_corrupt_entry_is_noticed_and_forgotten(both, name):
    first, second = both.shares
    first.request(np.array([5]))
    assert first.keep(5, W.DECODED, entry(5, W.DECODED))
    (hit,) = second.request(np.array([5])).servings
    with both.tiers[1].reading() as reading:
        (view,) = second.read(reading, [hit])
        memory = both.tiers[0]._here.memory
        at = memory.find(bytes(view[:2000]))
        memory[at + 500] ^= 0xFF
        with pytest.raises(Corrupt, match="checksum"):
            Codec().decode(view)
        view.release()
    second.lost(5, W.DECODED)
    assert first.keep(5, W.DECODED, entry(5, W.DECODED))


def test_a_rank_that_was_taken_for_dead_goes_on(both):
    """Its seat was given away during a long silence: it takes another, and is served nothing twice."""
    first, _ = both.shares
    served = [each.sample for each in first.request(np.arange(20)).servings]
    seat = first.book.seat
    seat.w[seat.dims.seat(seat.number) + W.J_NAME] = 0
    for at in range(20, 80, 10):
        served += [each.sample for each in first.request(np.arange(at, at + 10)).servings]
    assert sorted(served) == list(range(80))


def test_a_tier_without_room_costs_nothing_but_the_entry(name):
    tier, share = opened(name, budget=(0, 1 << 30, 0))
    share.begin(0)
    kept = 0
    for each in share.request(np.arange(SAMPLES)).servings:
        kept += share.keep(each.sample, W.DECODED, Codec().encode(np.zeros(60_000, np.uint8)))
    assert 0 < kept < SAMPLES
    assert share.book.counts()["bytes_decoded"] <= LIMIT
    share.close()
    tier.close()


def test_a_tier_that_outlived_its_ledger_is_taken_in(name):
    """But for augmentations, of which nobody knows who was served them."""
    tier, share = opened(name, budget=(20 * ENTRY, 40 * ENTRY, 40 * ENTRY))
    share.begin(0)
    share.request(np.arange(SAMPLES))
    for sample in range(15):
        assert share.keep(sample, 1 + sample % 3, entry(sample, 1 + sample % 3))
    share.close()
    for path in ledgers(name):
        path.unlink()
    again, other = opened(name)
    other.begin(0)
    servings = {each.sample: each.form for each in other.request(np.arange(SAMPLES)).servings}
    assert {sample for sample, form in servings.items() if form} == {0, 1, 3, 4, 6, 7, 9, 10, 12, 13}
    assert tier.usage().entries == 10
    other.close()
    again.close()
    tier.close()


def test_what_a_changed_transform_left_gives_way(name):
    """Its jobs are gone; those of another dataset that still run keep theirs."""
    tier = SharedMemoryTier(name, LIMIT)
    budget = (0, LIMIT, 0)
    scopes = [tuple(letter * 32 for letter in letters) for letters in ("123", "456", "789")]
    old, running, new = (shared(name, tier, each, budget) for each in scopes)
    large = Codec().encode(np.zeros(60_000, np.uint8))
    for share, count in ((old, 20), (running, 4)):
        share.begin(0)
        share.request(np.arange(count))
        kept = sum(share.keep(sample, W.DECODED, large) for sample in range(count))
        assert kept >= min(count, 4)
    old.close()
    new.begin(0)
    new.request(np.arange(20))
    assert sum(new.keep(sample, W.DECODED, large) for sample in range(20)) > 10
    left = {key.scope for key, _ in tier.listed()}
    assert left == {"5" * 32, "8" * 32}
    running.close()
    new.close()
    tier.close()


JOB = """
import json, os, random, sys
import numpy as np
from headrace.cache import words as W
from headrace.cache.codec import Codec
from tests.cache.test_share import opened, entry, SAMPLES
name, path, job, epochs, step = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5])
lines = [json.loads(line) for line in open(path)] if os.path.exists(path) else []
epoch = max((line["epoch"] for line in lines), default=0)
out = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
tier, share = opened(name)
rng = np.random.default_rng(os.getpid())
print("ready", flush=True)
while epoch < epochs:
    done = [sample for line in lines if line["epoch"] == epoch for sample in line["samples"]]
    share.begin(epoch, done=done)
    left = rng.permutation(sorted(set(range(SAMPLES)) - set(done)))
    for first in range(0, len(left), step):
        answer = share.request(left[first : first + step])
        hits = 0
        with tier.reading() as reading:
            for each, view in zip(answer.servings, share.read(reading, answer.servings)):
                if view is not None:
                    pixels, form = Codec().decode(view)
                    assert set(pixels.tolist()) == {each.sample} and form == each.form
                    hits += 1
                    del pixels
                    view.release()
                elif each.keep:
                    share.keep(each.sample, each.keep, entry(each.sample, each.keep))
        record = {"epoch": epoch, "samples": [int(each.sample) for each in answer.servings], "hits": hits}
        os.write(out, (json.dumps(record) + "\\n").encode())
    lines, epoch = [], epoch + 1
share.close()
tier.close()
"""


@pytest.mark.stress
@pytest.mark.timeout(400)
def test_every_job_sees_every_sample_once_per_epoch_whoever_is_killed(name, tmp_path):
    epochs, steps = 40, (4, 7)
    paths = [tmp_path / str(job) for job in range(2)]
    root = Path(__file__).resolve().parents[2]

    def start(job):
        command = [sys.executable, "-c", JOB, name, str(paths[job]), str(job), str(epochs), str(steps[job])]
        process = subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stdout.readline() == "ready\n", process.stderr.read()
        return process

    running = [start(job) for job in range(2)]
    rng = np.random.default_rng(11)
    for _ in range(4):
        job = int(rng.integers(2))
        time.sleep(float(rng.uniform(0.05, 0.4)))  # when it dies is the point
        running[job].kill()
        _, errors = running[job].communicate()
        assert errors == ""
        running[job] = start(job)
    for process in running:
        _, errors = process.communicate()
        assert (process.returncode, errors) == (0, "")
    hits = 0
    for path in paths:
        served = {epoch: Counter() for epoch in range(epochs)}
        for line in map(json.loads, path.read_text().splitlines()):
            served[line["epoch"]].update(line["samples"])
            hits += line["hits"]
        assert all(each == Counter(range(SAMPLES)) for each in served.values())
    assert hits > 0.6 * 2 * epochs * SAMPLES


def test_the_ledger_counts_what_the_tier_really_takes(name):
    """Entries that leave much of a page unused: what is granted finds room, and for more something else goes."""
    tier = SharedMemoryTier(name, LIMIT)
    large = Codec().encode(np.zeros(40_000, np.uint8))
    assert tier.footprint(large.size) > 1.5 * large.size
    jobs = [shared(name, tier, SCOPES, (0, room_of(tier), 0)) for _ in range(2)]
    for job in jobs:
        job.begin(0)
    for at in range(0, SAMPLES, 4):
        for job in jobs:
            for each in job.request(np.arange(at, at + 4)).servings:
                refused = job.book.counts()["refused"]
                if each.keep and not job.keep(each.sample, each.keep, large):
                    assert job.book.counts()["refused"] == refused + 1, "the ledger had room, and the tier had not"
    counts = jobs[0].book.counts()
    assert counts["evicted"] > 0
    assert counts["hits_decoded"] == SAMPLES
    for job in jobs:
        job.close()
    tier.close()
