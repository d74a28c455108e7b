"""Three engines in one thread, on stores in memory, with a clock and links that a test moves by hand.

A step delivers what is due, ticks each node, flushes it, and puts on the links what it says. What was acknowledged is
remembered, and held against what anybody applies and against every new leader.
"""

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from stepward.server.logbook import frames, quarantine
from stepward.server.logbook.engine import NO_OP, REGULAR, Engine
from stepward.server.logbook.journal import StoreJournal, found, foundation
from stepward.server.logbook.outbox import ReplicaLimits
from stepward.server.logbook.room import Room
from stepward.server.store import facts
from stepward.server.store.memory import MemoryStore
from tests.logbook import toy

IDS = ("n1", "n2", "n3")
STEP_MS = 10
BEGIN_MS = 10_000


class Violation(AssertionError):  # noqa: N818 - what happened, named as such
    """Something that must never happen has."""


class Acknowledged(NamedTuple):
    """A command that its leader has applied, and so told its caller of."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    term: int
    command: bytes


class Host:
    """One node: its store, which survives, and its engine, which does not."""

    def __init__(self, three: "Three", node_id: str) -> None:
        self.three = three
        self.node_id = node_id
        self.incarnation = 1
        self.store = self._empty_store()
        self.up = False
        self.paused = False
        self.inbox: deque[tuple[str, int, bytes]] = deque()
        self.proposed: list[bytes] = []
        self.applied: list[tuple[int, bytes]] = []
        self.engine: Engine
        self.journal: StoreJournal

    def _empty_store(self) -> MemoryStore:
        store = MemoryStore()
        found(store)
        store.commit()
        return store

    def start(self) -> None:
        self.journal = toy.journal(self.store, entries_max=self.three.entries_kept)
        self.inbox.clear()
        self.proposed = []
        self.up, self.paused = True, False
        self.engine = Engine(
            node_id=self.node_id,
            peers=[peer for peer in IDS if peer != self.node_id],
            journal=self.journal,
            apply=self._apply,
            now_ms=self.three.now_ms,
            rng=random.Random(f"{self.node_id} {self.three.seed} {self.three.now_ms}"),
            room=Room(self.store, ReplicaLimits(), now_ms=self.three.now_ms),
            incarnation=self.incarnation,
        )

    def kill(self) -> None:
        """End it; what no step has flushed is lost."""
        self.up = False
        self.store.lose_uncommitted()
        self.three.close_streams(self.node_id)

    def wipe(self) -> None:
        """End it, and lose its directory. It joins again as another incarnation, in quarantine."""
        self.kill()
        self.incarnation += 1
        self.store = self._empty_store()
        quarantine.begin(self.store)
        self.store.commit()
        self.applied = []

    @property
    def quarantined(self) -> bool:
        """Also while it is down."""
        return quarantine.read(self.store) is not None

    def install(self, leader: "Host") -> None:
        """Take over all rows of the leader: here, that everything up to there is applied."""
        index = leader.journal.applied
        term = leader.journal.term_of(index)
        assert term is not None
        self.applied = list(leader.applied)
        self.store.delete_entries(self.journal.first_index, self.journal.last_index)
        self.store.put_entry(*foundation(index, term))
        self.store.put_fact(facts.APPLIED, facts.encode_applied(index, term))
        self.journal.reload()
        self.engine.installed()

    def _apply(self, index: int, command: bytes) -> None:
        self.journal.mark_applied(index)
        self.applied.append((index, command))
        term = self.journal.term_of(index)
        assert term is not None
        self.three.is_applied(self, Acknowledged(index, term, command))

    def step(self, inbox: Iterable[tuple[str, int, bytes]]) -> None:
        """What a replica does with its engine in one step."""
        now_ms = self.three.now_ms
        for peer_id, connection, content in inbox:
            self.engine.receive(peer_id, connection, content, now_ms)
        self.engine.tick(now_ms)
        if self.engine.leads and not self.engine.transferring:
            for command in self.proposed:
                self.engine.propose(command)
        self.proposed = []
        self.engine.tick(now_ms)
        self.journal.compact()
        for frame in self.engine.release_appends():
            self.three.put(self.node_id, frame.peer_id, frame.content)
        self.store.commit()
        for frame in self.engine.release():
            self.three.put(self.node_id, frame.peer_id, frame.content)
        self.three.is_stepped(self)

    def entries(self) -> list[tuple[int, int]]:
        """Index and term of what its journal holds."""
        return [(entry.index, entry.term) for entry in self.journal[:]]


class _Stream:
    def __init__(self, connection: int) -> None:
        self.connection = connection
        self.queue: deque[tuple[int, bytes]] = deque()


class Three:
    """The cluster. `cut` holds pairs (from, to) whose frames wait; `delay_ms` by pair."""

    def __init__(self, seed: int = 1, *, entries_kept: int = 4_096) -> None:
        self.seed = seed
        self.entries_kept = entries_kept
        self.rng = random.Random(seed)
        self.now_ms = BEGIN_MS
        self.cut: set[tuple[str, str]] = set()
        self.delay_ms: dict[tuple[str, str], int] = {}
        # Says of a frame (from, to, message) whether it gets through; what does not is lost with its stream.
        self.passes: Callable[[str, str, frames.Message], bool] = lambda *_: True
        # Told of each frame (from, to, message) that leaves.
        self.watch: Callable[[str, str, frames.Message], None] = lambda *_: None
        self.acknowledged: list[Acknowledged] = []
        self.leaders: dict[int, str] = {}
        self._streams: dict[tuple[str, str], _Stream] = {}
        self._connection = 0
        self._by_index: dict[int, tuple[int, bytes]] = {}
        self._proposals = 0
        self.hosts = {node_id: Host(self, node_id) for node_id in IDS}

    def __getitem__(self, node_id: str) -> Host:
        return self.hosts[node_id]

    def start(self, *node_ids: str) -> "Three":
        for node_id in node_ids or IDS:
            self.hosts[node_id].start()
        return self

    # Time.

    def step(self) -> None:
        self.now_ms += STEP_MS
        self._connect()
        for host in self.hosts.values():
            self._deliver(host)
        for host in self.hosts.values():
            if host.up and not host.paused:
                inbox, host.inbox = host.inbox, deque()
                host.step(inbox)

    def run(self, ms: int) -> None:
        for _ in range(ms // STEP_MS):
            self.step()

    def until(self, condition: Callable[[], bool], *, ms: int = 5_000) -> int:
        """Let time pass until something is so; how long that took."""
        begin_ms = self.now_ms
        while not condition():
            if self.now_ms - begin_ms >= ms:
                raise AssertionError(f"not so after {ms} ms: {self.describe()}")
            self.step()
        return self.now_ms - begin_ms

    def describe(self) -> str:
        return ", ".join(
            f"{host.node_id} {'up' if host.up else 'down'} term {host.engine.term} "
            f"{'leads' if host.engine.leads else 'follows ' + host.engine.leader_id} last {host.journal.last}"
            for host in self.hosts.values()
        )

    # Nodes.

    @property
    def leader(self) -> Host | None:
        """The node that leads the highest term, if one leads."""
        leading = [host for host in self.hosts.values() if host.up and not host.paused and host.engine.leads]
        return max(leading, key=lambda host: host.engine.term, default=None)

    def settle(self) -> Host:
        """Let one node lead and have everything behind it."""
        self.until(lambda: self.leader is not None and self.leader.engine.settled)
        assert self.leader is not None
        return self.leader

    def others(self, host: Host) -> tuple[Host, Host]:
        first, second = (other for other in self.hosts.values() if other is not host)
        return first, second

    def elect(self, node_id: str) -> Host:
        """Let this node lead: the others do not stand before it."""
        elected = self.hosts[node_id]

        def leads() -> bool:
            for host in self.hosts.values():
                if host is not elected:
                    host.engine._elections._deadline_ms = self.now_ms + 1_000
            return self.leader is elected and elected.engine.settled

        self.until(leads)
        return elected

    def propose(self, host: Host, count: int = 1, *, size: int = 0) -> list[bytes]:
        """Give a leader commands, which it proposes in the next step."""
        commands = []
        for _ in range(count):
            self._proposals += 1
            commands.append(REGULAR + b"%08d" % self._proposals + bytes(size))
        host.proposed += commands
        return commands

    # Links.

    def isolate(self, host: Host) -> None:
        """Cut a node off in both directions."""
        for other in self.others(host):
            self.cut |= {(host.node_id, other.node_id), (other.node_id, host.node_id)}

    def heal(self) -> None:
        self.cut.clear()
        self.delay_ms.clear()
        self.passes = lambda *_: True

    def put(self, sender: str, receiver: str, content: bytes) -> None:
        stream = self._streams.get((sender, receiver))
        if stream is None:
            return
        self.watch(sender, receiver, frames.decode(content))
        if not self.passes(sender, receiver, frames.decode(content)):
            self.close(sender, receiver)
            return
        stream.queue.append((self.now_ms + self.delay_ms.get((sender, receiver), 0), content))

    def close(self, sender: str, receiver: str) -> list[tuple[int, bytes]]:
        """End a stream; what was on it, with the number of the stream."""
        stream = self._streams.pop((sender, receiver), None)
        if stream is None:
            return []
        if self.hosts[sender].up:
            self.hosts[sender].engine.unlinked(receiver)
        return [(stream.connection, content) for _, content in stream.queue]

    def close_streams(self, node_id: str) -> None:
        for sender, receiver in list(self._streams):
            if node_id in (sender, receiver):
                self.close(sender, receiver)

    def waiting(self, sender: str, receiver: str) -> list[frames.Message]:
        """What is on its way."""
        stream = self._streams.get((sender, receiver))
        return [] if stream is None else [frames.decode(content) for _, content in stream.queue]

    def _connect(self) -> None:
        for sender, receiver in self._pairs():
            if (sender, receiver) not in self._streams and (sender, receiver) not in self.cut:
                self._connection += 1
                self._streams[sender, receiver] = _Stream(self._connection)
                self.hosts[sender].engine.linked(receiver)

    def _pairs(self) -> Iterator[tuple[str, str]]:
        for sender in self.hosts.values():
            for receiver in self.hosts.values():
                if sender is not receiver and sender.up and receiver.up and not sender.paused:
                    yield sender.node_id, receiver.node_id

    def _deliver(self, host: Host) -> None:
        for sender in IDS:
            stream = self._streams.get((sender, host.node_id))
            if stream is None or (sender, host.node_id) in self.cut or not host.up:
                continue
            while stream.queue and stream.queue[0][0] < self.now_ms:
                host.inbox.append((sender, stream.connection, stream.queue.popleft()[1]))

    # What must hold.

    def is_applied(self, host: Host, entry: Acknowledged) -> None:
        known = self._by_index.setdefault(entry.index, (entry.term, entry.command))
        if known != (entry.term, entry.command):
            raise Violation(f"{host.node_id} applies {entry}, and {known} was applied elsewhere")
        if host.engine.leads and entry.term == host.engine.term and entry.command != NO_OP:
            self.acknowledged.append(entry)

    def is_stepped(self, host: Host) -> None:
        if not host.engine.leads:
            return
        term = host.engine.term
        new = term not in self.leaders
        leader = self.leaders.setdefault(term, host.node_id)
        if leader != host.node_id:
            raise Violation(f"{leader} and {host.node_id} both lead term {term}")
        # What its journal keeps no more is applied, and was held against the others then.
        for entry in self.acknowledged if new else ():
            if (
                entry.term < term
                and entry.index >= host.journal.first_index
                and host.journal.term_of(entry.index) != entry.term
            ):
                raise Violation(f"{host.node_id} leads term {term} and lacks {entry}")
        for other in self.hosts.values():
            if other.up and other.engine.term < term and other.engine.lease_until_ms(self.now_ms) > self.now_ms:
                raise Violation(f"{host.node_id} leads term {term} while {other.node_id} counts on its lease")

    def all_have(self, commands: list[bytes]) -> bool:
        """Whether every node has applied these."""
        return all(
            host.up and set(commands) <= {command for _, command in host.applied} for host in self.hosts.values()
        )
