"""The network: connections that carry messages in order, slowly, or not at all.

Each direction of a connection is first in, first out, as TCP is. A cut direction keeps what is on its way, until it is
mended or the connection is given up; half of the time both ends know of that at different moments. What a kernel still
holds of a connection that was given up may be read late, behind the messages of its successor.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, Any, Final, Protocol

from tests.simulation.agenda import MS, SECOND
from tests.simulation.oracle import ViolationError

if TYPE_CHECKING:
    import random

    from tests.simulation.agenda import Agenda

# A connection on which nothing is acknowledged for so long is given up.
KEEPALIVE_US: Final = (1_000 * MS, 2_500 * MS)
_CONNECT_TIMEOUT_US: Final = 500 * MS
# Messages that may wait on one connection; above that whoever sends gives it up.
QUEUED_MAX: Final = 2_000
_LATE_MAX: Final = 20
# What one node says to another: three hundred at the most, when all is well.
MESSAGES_A_SECOND_MAX: Final = 1_000


class Party(Protocol):
    """Somebody at one end of connections: a process. It hears nothing while it is paused, and all of it afterwards."""

    @property
    def name(self) -> str:
        """The machine on which it runs."""
        ...

    @property
    def listening(self) -> bool:
        """Whether it lives and takes connections now."""
        ...

    def accept(self, connection: Connection, kind: str) -> None:
        """Somebody has connected."""
        ...

    def received(self, connection: Connection, message: Any) -> None:
        """A message of the other end."""
        ...

    def closed(self, connection: Connection) -> None:
        """The connection is gone, as far as this end knows."""
        ...


class _Way:
    """One direction of a connection."""

    __slots__ = ("arrives_us", "blocked", "free_us", "queue")

    def __init__(self) -> None:
        self.queue: deque[tuple[int, Any]] = deque()
        self.arrives_us = 0
        self.free_us = 0
        self.blocked = False


class Connection:
    """One connection between two parties."""

    def __init__(self, network: Network, client: Party, server: Party, kind: str) -> None:
        self.network = network
        self.kind = kind
        self.client = client
        self.server = server
        self.open = True
        self._ways = {client: _Way(), server: _Way()}

    def other(self, party: Party) -> Party:
        """The party at the other end."""
        return self.server if party is self.client else self.client

    def send(self, sender: Party, message: Any, size_bytes: int) -> None:
        """Put a message behind those before; it is lost if the connection is gone."""
        if not self.open:
            return
        way, network = self._ways[sender], self.network
        to = self.other(sender)
        if self.kind.startswith("replicate"):
            message = network.carried(sender.name, to.name, message)
        now_us = network.agenda.now_us
        way.free_us = max(way.free_us, now_us) + network.sending_us(sender.name, to.name, size_bytes)
        way.arrives_us = max(way.arrives_us, way.free_us + network.latency_us(sender.name, to.name))
        way.queue.append((way.arrives_us, message))
        network.messages += 1
        if self.kind.startswith("replicate"):
            network.judge_rate(sender.name, to.name)
        if len(way.queue) > QUEUED_MAX:
            network.counts["queue_full"] += 1
            self.close()
        elif len(way.queue) == 1 and not way.blocked:
            network.agenda.after(way.arrives_us - now_us, self.pump, sender)

    def pump(self, sender: Party) -> None:
        """Hand over what has arrived."""
        way, to = self._ways[sender], self.other(sender)
        agenda = self.network.agenda
        while self.open and way.queue and way.queue[0][0] <= agenda.now_us:
            if self.network.is_cut(sender.name, to.name):
                way.blocked = True
                return
            to.received(self, way.queue.popleft()[1])
        if self.open and way.queue:
            agenda.after(way.queue[0][0] - agenda.now_us, self.pump, sender)

    def mended(self, sender_name: str, delay_us: float) -> None:
        """A direction carries again: what waited is sent again after a while."""
        for sender, way in self._ways.items():
            if sender.name == sender_name and way.blocked:
                way.blocked = False
                self.network.agenda.after(delay_us, self.pump, sender)

    def close(self, by: Party | None = None) -> None:
        """End it for both ends. The one that ends it, if it is one of them, is not told."""
        if not self.open:
            return
        self.open = False
        network, rng = self.network, self.network.rng
        network.forget(self)
        for sender, way in self._ways.items():
            to = self.other(sender)
            late = [message for _, message in way.queue][:_LATE_MAX]
            if late and self.kind.startswith("replicate") and rng.random() < network.late_share:
                network.agenda.after(rng.uniform(50 * MS, 1_000 * MS), self._arrive_late, to, late)
            if sender is not by:
                network.agenda.after(rng.choice((0, rng.uniform(0, 3 * MS))), sender.closed, self)

    def _arrive_late(self, to: Party, late: list[Any]) -> None:
        self.network.counts["late"] += len(late)
        for message in late:
            to.received(self, message)


class Network:
    """All connections of the world."""

    def __init__(self, agenda: Agenda, rng: random.Random) -> None:
        self.agenda = agenda
        self.rng = rng
        self.messages = 0
        self.counts: Counter[str] = Counter()
        self.late_share = 0.3
        # Bytes a millisecond in each direction of a pair; 0: more than anybody sends.
        self.bytes_a_ms = 0
        self._connections: list[Connection] = []
        # By direction: a second, and how many messages of the logbook were sent in it.
        self._rates: dict[tuple[str, str], tuple[int, int]] = {}
        self._parties: dict[str, Party] = {}
        self._cuts: Counter[tuple[str, str]] = Counter()
        self._cut_since: dict[tuple[str, str], int] = {}
        # Directions that are cut until whoever did it says otherwise, whatever else is cut and mended.
        self._parted: set[tuple[str, str]] = set()
        self._slow_us: dict[tuple[str, str], int] = {}
        # By direction: how many of the next messages of the logbook arrive as something else.
        self._to_garble: Counter[tuple[str, str]] = Counter()

    def judge_rate(self, sender: str, to: str) -> None:
        """Nodes that answer each other without end say so much that nobody gets anything done."""
        second = self.agenda.now_us // SECOND
        before, count = self._rates.get((sender, to), (second, 0))
        self._rates[sender, to] = (second, count + 1 if before == second else 1)
        if count > MESSAGES_A_SECOND_MAX:
            raise ViolationError("flood", f"{sender} has sent {to} {count} messages in one second")

    def attach(self, party: Party) -> None:
        """From now on this is the process that runs on its machine."""
        self._parties[party.name] = party

    def detach(self, party: Party, *, silently: bool) -> None:
        """A process has ended; `silently`: its machine has, too, so nobody is told but by the silence."""
        for connection in self._connections_of(party):
            if silently:
                self.agenda.after(self.rng.uniform(*KEEPALIVE_US), connection.close)
            else:
                connection.close()

    def give_up(self, party: Party) -> None:
        """A process has not answered for too long; what has reached its machine it will read when it goes on."""
        for connection in self._connections_of(party):
            self.counts["given_up"] += 1
            connection.close()

    def _connections_of(self, party: Party) -> list[Connection]:
        return [one for one in self._connections if party in (one.client, one.server)]

    def connect(self, client: Party, to_name: str, kind: str) -> None:
        """Connect: `client` is told by `accept`, or by `closed` with a connection that did not come to be."""
        agenda, rng = self.agenda, self.rng
        trip_us = self.latency_us(client.name, to_name) + self.latency_us(to_name, client.name)
        server = self._parties.get(to_name)
        reachable = not self.is_cut(client.name, to_name) and not self.is_cut(to_name, client.name)
        if server is None or not (reachable and server.listening):
            refused = reachable and server is not None and not server.listening
            wait_us = trip_us if refused and rng.random() < 0.5 else _CONNECT_TIMEOUT_US
            agenda.after(wait_us, self._fail, client, kind)
            return
        agenda.after(trip_us, self._establish, client, server, kind)

    def _establish(self, client: Party, server: Party, kind: str) -> None:
        if not (server.listening and client.listening) or self.is_cut(client.name, server.name):
            self._fail(client, kind)
            return
        connection = Connection(self, client, server, kind)
        self._connections.append(connection)
        server.accept(connection, kind)
        client.accept(connection, kind)

    def _fail(self, client: Party, kind: str) -> None:
        failed = Connection(self, client, client, kind)
        failed.open = False
        client.closed(failed)

    def forget(self, connection: Connection) -> None:
        """It is closed."""
        if connection in self._connections:
            self._connections.remove(connection)

    def connections(self, first: str, second: str, kind: str = "") -> list[Connection]:
        """The open ones between two machines."""
        return [
            one
            for one in self._connections
            if {one.client.name, one.server.name} == {first, second} and kind in ("", one.kind)
        ]

    # What may be wrong with it.

    def is_cut(self, sender: str, to: str) -> bool:
        """Whether nothing gets through in this direction."""
        return self._cuts[sender, to] > 0

    def cut(self, sender: str, to: str) -> None:
        """Let nothing through in one direction; may be done several times over."""
        self._cuts[sender, to] += 1
        if self._cuts[sender, to] == 1:
            since = self._cut_since[sender, to] = self.agenda.now_us
            for connection in self.connections(sender, to):
                self._judge_later(connection, (sender, to), since)

    def _judge_later(self, connection: Connection, way: tuple[str, str], since: int) -> None:
        self.agenda.after(self.rng.uniform(*KEEPALIVE_US), self._judge, connection, way, since)

    def _judge(self, connection: Connection, way: tuple[str, str], since: int) -> None:
        """Give a connection up on which a direction was cut all the time: its other end cannot be heard."""
        if self.is_cut(*way) and self._cut_since[way] == since and connection.open:
            self.counts["given_up"] += 1
            connection.close()

    def mend(self, sender: str, to: str) -> None:
        """Undo one cut."""
        if self._cuts[sender, to] == 0:
            return
        self._cuts[sender, to] -= 1
        if self._cuts[sender, to] == 0:
            for connection in self.connections(sender, to):
                connection.mended(sender, self.rng.uniform(0, 200 * MS))

    def part(self, sender: str, to: str) -> None:
        """Cut one direction, so that nothing but `join` of the same makes it whole. Safe to repeat."""
        if (sender, to) not in self._parted:
            self._parted.add((sender, to))
            self.cut(sender, to)

    def join(self, sender: str, to: str) -> None:
        """Undo `part`. Safe to repeat."""
        if (sender, to) in self._parted:
            self._parted.discard((sender, to))
            self.mend(sender, to)

    def slow_down(self, sender: str, to: str, delay_us: int) -> None:
        """Add to the latency of one direction; 0 takes it away."""
        self._slow_us[sender, to] = delay_us

    def garble(self, sender: str, to: str, count: int) -> None:
        """Let the next messages of the logbook in one direction arrive so that nobody can read them."""
        self._to_garble[sender, to] += count

    def carried(self, sender: str, to: str, message: bytes) -> bytes:
        """What arrives of a message of the logbook."""
        if not self._to_garble[sender, to]:
            return message
        self._to_garble[sender, to] -= 1
        self.counts["garbled"] += 1
        rng = self.rng
        cut = message[: rng.randrange(len(message))]
        return rng.choice((cut, message + cut + b"\0", rng.randbytes(rng.randrange(1, 200)), b""))

    def heal(self) -> None:
        """Everything works again."""
        self._to_garble.clear()
        self._slow_us.clear()
        self.bytes_a_ms = 0
        for sender, to in [way for way, count in self._cuts.items() if count]:
            self._cuts[sender, to] = 1
            self.mend(sender, to)

    def latency_us(self, sender: str, to: str) -> int:
        """How long a message travels, at the moment."""
        usual = self.rng.uniform(0.1 * MS, 2 * MS) if self.rng.random() > 0.03 else self.rng.uniform(10 * MS, 150 * MS)
        return int(usual) + self._slow_us.get((sender, to), 0)

    def sending_us(self, sender: str, to: str, size_bytes: int) -> int:
        """How long a message takes up its direction."""
        return size_bytes * MS // self.bytes_a_ms if self.bytes_a_ms and sender[0] == to[0] == "n" else 0
