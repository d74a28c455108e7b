"""What the simulated network promises, and what it does not."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import pytest

from stepward.server.logbook import frames
from stepward.server.logbook.errors import FrameUnreadable
from tests.simulation.agenda import MS, SECOND, Agenda
from tests.simulation.network import MESSAGES_A_SECOND_MAX, QUEUED_MAX, Connection, Network
from tests.simulation.oracle import ViolationError


class End:
    """Somebody who writes down what comes."""

    def __init__(self, network: Network, name: str) -> None:
        self.name = name
        self.listening = True
        self.connections: list[Connection] = []
        self.heard: list[Any] = []
        self.closes = 0
        network.attach(self)

    def accept(self, connection: Connection, kind: str) -> None:
        self.connections.append(connection)

    def received(self, connection: Connection, message: Any) -> None:
        self.heard.append(message)

    def closed(self, connection: Connection) -> None:
        self.closes += 1


class Pair:
    """Two nodes and a connection between them."""

    def __init__(self, seed: int = 1, *, kind: str = "replicate n2") -> None:
        self.agenda = Agenda()
        self.network = Network(self.agenda, random.Random(seed))
        self.network.late_share = 0.0
        self.one, self.two = End(self.network, "n1"), End(self.network, "n2")
        self.network.connect(self.one, "n2", kind)
        self.run(1)
        self.connection = self.one.connections[0]

    def run(self, seconds: float) -> None:
        self.agenda.run_until(self.agenda.now_us + int(seconds * SECOND))

    def send(self, *messages: Any, size_bytes: int = 100) -> None:
        for message in messages:
            self.connection.send(self.one, message, size_bytes)


@pytest.mark.parametrize("seed", range(20))
def test_messages_arrive_in_order(seed: int) -> None:
    """However long each of them travels."""
    pair = Pair(seed)
    for number in range(100):
        pair.send(number)
        pair.run(0.002)
    pair.run(1)

    assert pair.two.heard == list(range(100))


def test_narrow_way_delays_what_is_behind_much() -> None:
    pair = Pair()
    pair.network.bytes_a_ms = 100
    pair.send("much", size_bytes=100_000)
    pair.send("little", size_bytes=1)

    pair.run(0.9)
    assert pair.two.heard == []
    pair.run(0.5)
    assert pair.two.heard == ["much", "little"]


def test_cut_that_is_mended_soon_loses_nothing() -> None:
    """As TCP, which sends again."""
    pair = Pair()
    pair.network.cut("n1", "n2")
    pair.send("a", "b")
    pair.run(0.5)
    assert pair.two.heard == []

    pair.network.mend("n1", "n2")
    pair.run(0.5)

    assert pair.two.heard == ["a", "b"]
    assert pair.connection.open


def test_cut_is_one_way() -> None:
    pair = Pair()
    pair.network.cut("n1", "n2")
    pair.connection.send(pair.two, "back", 100)
    pair.run(0.5)

    assert pair.one.heard == ["back"]


def test_two_cuts_need_two_mendings() -> None:
    pair = Pair()
    pair.network.cut("n1", "n2")
    pair.network.cut("n1", "n2")
    pair.network.mend("n1", "n2")
    pair.send("a")
    pair.run(0.5)

    assert pair.two.heard == []


def test_cut_that_lasts_ends_the_connection() -> None:
    """Both ends are told, and a new one cannot be made before it is mended."""
    pair = Pair()
    pair.network.cut("n2", "n1")
    pair.run(3)
    assert not pair.connection.open
    assert (pair.one.closes, pair.two.closes) == (1, 1)

    pair.network.connect(pair.one, "n2", "replicate")
    pair.run(1)
    assert pair.one.closes == 2
    pair.network.mend("n2", "n1")
    pair.network.connect(pair.one, "n2", "replicate")
    pair.run(1)

    assert len(pair.one.connections) == 2


def test_what_a_dead_connection_held_may_come_late() -> None:
    """So whoever receives must know which connection is the newest."""
    pair = Pair()
    pair.network.late_share = 1.0
    pair.network.cut("n1", "n2")
    pair.send("a", "b")
    pair.connection.close()
    pair.network.mend("n1", "n2")
    pair.run(2)

    assert pair.two.heard == ["a", "b"]


def test_garbled_messages_arrive_in_their_place_and_cannot_be_read() -> None:
    """As many as were asked for, of the logbook alone; whatever it is that arrives, it is no message."""
    pair = Pair()
    good = frames.encode(frames.PreVoteRequest(term=2, attempt=1, last_index=2, last_term=1))
    pair.network.garble("n1", "n2", 200)
    pair.send(good, *[good] * 200)
    pair.run(1)
    *garbled, last = pair.two.heard

    assert len(garbled) == pair.network.counts["garbled"] == 200
    assert last == good
    for message in garbled:
        with pytest.raises(FrameUnreadable):
            frames.decode(message)


def test_process_that_died_with_its_machine_is_missed_late() -> None:
    """Nobody tells that it is gone."""
    pair = Pair()
    pair.network.detach(pair.two, silently=True)
    pair.run(0.9)
    assert pair.one.closes == 0
    pair.run(3)

    assert pair.one.closes == 1


def test_process_that_was_killed_is_missed_at_once() -> None:
    pair = Pair()
    pair.network.detach(pair.two, silently=False)
    pair.run(0.1)

    assert pair.one.closes == 1


@pytest.mark.parametrize(("count", "stands"), [(QUEUED_MAX, True), (QUEUED_MAX + 1, False)])
def test_queue_is_bounded(count: int, stands: bool) -> None:
    """Whoever does not read loses the connection, not us our memory."""
    pair = Pair(kind="agent")
    pair.network.cut("n1", "n2")
    pair.send(*range(count))

    assert pair.connection.open is stands


@pytest.mark.parametrize(("count", "stands"), [(MESSAGES_A_SECOND_MAX + 1, True), (MESSAGES_A_SECOND_MAX + 2, False)])
def test_flood_is_noticed(count: int, stands: bool) -> None:
    """Two nodes that answer each other for ever make no progress, and no rule of theirs is broken."""
    pair = Pair()
    pair.run(1)
    with contextlib.nullcontext() if stands else pytest.raises(ViolationError, match="flood"):
        pair.send(*range(count))


def test_healing_mends_everything() -> None:
    pair = Pair()
    for way in (("n1", "n2"), ("n1", "n2"), ("n2", "n1")):
        pair.network.cut(*way)
    pair.network.slow_down("n1", "n2", 5 * SECOND)
    pair.network.bytes_a_ms = 1
    pair.network.heal()
    pair.send("a")
    pair.run(1)

    assert pair.two.heard == ["a"]
    assert pair.network.latency_us("n1", "n2") < 200 * MS
