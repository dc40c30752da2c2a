"""The process that forks lanes, and its lanes, without Ray: spoken to as an actor and a fetcher speak to it."""

import json
import os
import pickle
import signal
import socket
import sys
from contextlib import contextmanager

import psutil
import pytest
import torch

from headrace.cache.backends import entry_word as W
from headrace.engine.worker.randomness import seeding
from headrace.remote import messages
from headrace.remote.elsewhere import sample_entry, shipped
from headrace.remote.elsewhere.actor_orders import SIZE, HostOrders
from headrace.remote.elsewhere.lane_process import LaneWork, serve
from headrace.remote.messages import EntryKind, Head, Request, Subject
from headrace.store.reading.interpreter import started
from tests.remote.datasets import InStages, Noisy, Odd, Unfit

BOOT = "import sys; from headrace.remote.elsewhere.host_process import main; main(int(sys.argv[1]))"
SECONDS = 60.0


def seed_lane(number):
    torch.manual_seed(number)


def break_lane(number):
    raise OSError(f"lane {number} finds no disk")


class Spoken:
    """A stream to a lane."""

    def __init__(self, connection, token):
        self.socket = connection
        self.socket.settimeout(SECONDS)
        self.socket.sendall(token)

    @classmethod
    def at(cls, port, token):
        """To one that a host forks for it."""
        return cls(socket.create_connection(("127.0.0.1", port), SECONDS), token)

    def exactly(self, size):
        found = b""
        while len(found) < size:
            data = self.socket.recv(size - len(found))
            if not data:
                raise ConnectionResetError
            found += data
        return found

    def message(self, *kinds):
        """The next message that is no beat, and its body."""
        while True:
            head = Head.read(self.exactly(messages.HEAD.size))
            body = self.exactly(head.size)
            if head.kind != Subject.BEAT or Subject.BEAT in kinds:
                return head, body

    def made(self, wanted, number=1):
        self.socket.sendall(messages.request(number, wanted))
        head, body = self.message()
        assert (head.kind, head.number, head.samples) == (Subject.ANSWER, number, len(wanted.indices))
        begin, entries = messages.table_size(head.samples), []
        for kind, size in messages.read_table(body[:begin], head):
            entries.append((kind, body[begin : begin + size]))
            begin += size
        return entries


@contextmanager
def lane_of(dataset, init=None, pickled=None):
    """A stream to a lane that is forked from this process, which takes next to no time."""
    token, own = messages.new_token(), os.pidfd_open(os.getpid())
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if not pid:
        ours.close()
        serve(theirs, LaneWork(dataset, init, token, 3, 5, "127.0.0.1", pickled), 0, own)
    theirs.close()
    os.close(own)
    with ours:
        yield Spoken(ours, token)
    os.waitpid(pid, 0)


@contextmanager
def host(dataset, init=None, change=None):
    """Started and told; gives what it answered and its token."""
    made = shipped.packed(dataset, init, pickle.dumps)
    if change is not None:
        made = shipped.DatasetBundle(made.packed, change(made.facts))
    token = messages.new_token()
    orders = pickle.dumps(HostOrders(pickle.dumps(made), token, "127.0.0.1", lanes=2, first=3, total=5))
    ours, theirs = socket.socketpair()
    with theirs:
        process = started(BOOT, theirs.fileno())
    with ours, ours.makefile("rb") as file:
        ours.sendall(SIZE.pack(len(orders)) + orders)
        yield json.loads(file.readline()), token, process
    ours.close()
    process.wait(SECONDS)


def value(entry):
    layout, node, body = sample_entry.split(bytearray(entry))
    assert node == b"127.0.0.1"
    return sample_entry.codec().rebuild(layout, body)


def same(one, other):
    return torch.equal(one[0], other[0]) and one[1:] == other[1:]


def test_samples_are_those_of_the_trainer_and_strangers_get_none_and_lanes_end_with_their_host():
    data = Noisy(10)
    with host(data) as (told, token, process):
        lanes = [Spoken.at(told["port"], token) for _ in range(2)]
        for lane in lanes:
            assert lane.message()[0].kind == Subject.HELLO
            for kind, entry in lane.made(Request(5, 2, [1, 7])):
                assert kind == EntryKind.VALUE
                index = value(entry)[1]
                with seeding.untouched():
                    seeding.seed_sample(5, 2, index)
                    assert same(value(entry), data[index])
        stranger = Spoken.at(told["port"], messages.new_token())
        assert stranger.socket.recv(1) == b""
        stranger.socket.close()
        children = [child for child in psutil.Process(process.pid).children() if child.name() == "headrace-lane"]
        assert len(children) >= 2
    assert psutil.wait_procs(children, SECONDS)[1] == []
    for lane in lanes:
        lane.socket.close()


def test_a_lane_beats_while_it_works_and_is_replaced_when_it_is_gone():
    with host(Noisy(4, seconds=1.0)) as (told, token, process):
        lane = Spoken.at(told["port"], token)
        lane.message()
        lane.socket.sendall(messages.request(1, Request(0, 0, [1])))
        assert lane.message(Subject.BEAT)[0].kind == Subject.BEAT
        (pid,) = (child.pid for child in psutil.Process(process.pid).children())
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(ConnectionResetError):
            while True:
                lane.message()
        lane.socket.close()
        again = Spoken.at(told["port"], token)
        assert again.message()[0].kind == Subject.HELLO
        again.socket.close()


def test_what_fails_or_cannot_travel_is_said_in_words():
    with lane_of(Unfit(10)) as lane:
        lane.message()
        found = lane.made(Request(0, 0, [1, 3, 5]))
        assert [kind for kind, _ in found] == [EntryKind.VALUE, EntryKind.FAILED, EntryKind.UNFIT]
        assert found[1][1] == b"ValueError: sample 3 is broken"
        assert b"Odd" in found[2][1]


def test_what_no_entry_can_hold_is_pickled_where_the_user_says_so():
    with lane_of(Unfit(10), pickled=pickle.dumps) as lane:
        lane.message()
        ((kind, entry),) = lane.made(Request(0, 0, [5]))
        assert kind == EntryKind.PICKLED
        assert type(pickle.loads(entry)) is Odd


def test_the_form_that_a_cache_wants_is_made_with_the_state_of_its_file():
    with lane_of(InStages(10)) as lane:
        lane.message()
        whole, decoded = lane.made(Request(5, 0, [2, 2], [0, W.DECODED]))
        assert [kind for kind, _ in (whole, decoded)] == [EntryKind.VALUE, EntryKind.STAGE]
        stamp, found = value(decoded[1])
        assert stamp == [2]
        assert torch.equal(found, InStages(10).decode(2))
        with seeding.untouched():
            seeding.seed_sample(5, 0, 2)
            assert torch.equal(InStages(10).augment(found)[0], value(whole[1])[0])


@pytest.mark.parametrize(
    ("init", "says"), [(seed_lane, b"seeds random numbers"), (break_lane, b"lane 3 finds no disk")]
)
def test_lanes_that_would_make_other_samples_refuse(init, says):
    with lane_of(Noisy(4), init) as lane:
        head, words = lane.message()
        assert head.kind == Subject.REFUSAL
        assert says in words


def test_other_versions_and_other_code_are_named():
    facts = shipped.packed(Noisy(4), None, pickle.dumps).facts
    code = {"tests.remote.datasets:Noisy": "0" * 32, "tests.remote.gone:Dataset": "0" * 32}
    other, module, torchs = sorted(shipped.Facts(facts.versions | {"torch": "1.0"}, code).differences())
    assert other.startswith("the code of tests.remote.datasets:Noisy")
    assert module == "there is no tests.remote.gone:Dataset here"
    assert torchs.startswith("torch is 1.0 with the trainer")


def test_a_host_that_differs_makes_nothing():
    with host(Noisy(4), change=lambda facts: shipped.Facts(facts.versions | {"torch": "1.0"}, {})) as (told, _, _):
        assert "torch is 1.0 with the trainer" in told["error"]


def test_the_facts_name_what_the_dataset_is_made_of():
    facts = shipped.packed(Noisy(4), seed_lane, pickle.dumps).facts
    assert set(facts.code) == {"tests.remote.datasets:Noisy", "tests.remote.test_host:seed_lane"}
    assert facts.versions["python"] == "{}.{}".format(*sys.version_info)
    assert facts.differences() == []
