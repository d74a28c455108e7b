"""Three replicas in one thread, with a network and clocks that a test drives by hand."""

from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from random import Random
from typing import Any

from msgspec import structs

from stepward.server.core.commands import Command
from stepward.server.core.rejections import Rejection
from stepward.server.logbook.identity import found_cluster, join_cluster, open_identity
from stepward.server.logbook.outbox import (
    Answered,
    Applied,
    Arrived,
    Confirm,
    Decider,
    Instant,
    Letter,
    Linked,
    Outbox,
    Proposal,
    ReplicaLimits,
    Unlinked,
)
from stepward.server.logbook.replica import Replica
from stepward.server.store.interface import Store
from stepward.server.store.memory import MemoryStore
from tests.logbook import toy

IDS = ("n1", "n2", "n3")
# How far a step of the network's time goes, and how long a message takes.
TICK_MS = 5
DELAY_MS = 2


class Machine:
    """What one node runs on: its disk, its clocks, and what has come for it."""

    def __init__(self, node_id: str, store: Store) -> None:
        self.node_id = node_id
        self.store = store
        self.boots = 1
        # What the clocks of this machine say beyond the time of the test.
        self.steady_offset_ms = 1_000 * int(node_id[1:])
        self.wall_offset_ms = 0
        self.replica: Replica | None = None
        self.paused = False
        self.inbox: list[Letter] = []
        self.outbox: Outbox | None = None

    @property
    def boot_id(self) -> str:
        return f"{self.node_id}-boot-{self.boots}"

    def now(self, ms: int) -> Instant:
        return Instant(ms + self.steady_offset_ms, toy.START.wall_ms + ms + self.wall_offset_ms)


class Trio:
    """A cluster of three. Time begins at 10 s and moves with `run`; nothing moves by itself."""

    def __init__(
        self,
        *,
        limits: ReplicaLimits | None = None,
        seed: int = 1,
        decider: Decider = toy.decide,
        stores: Mapping[str, Store] | None = None,
    ) -> None:
        self.ms = 10_000
        self.limits = limits or ReplicaLimits()
        self.decider = decider
        self._rng = Random(seed)
        self._connections = 0
        # By sender and receiver: when each message arrives, and on which stream.
        self._wires: dict[tuple[str, str], deque[tuple[int, Arrived]]] = defaultdict(deque)
        self._streams: dict[tuple[str, str], int] = {}
        self.cut: set[tuple[str, str]] = set()
        self.answers: dict[object, Answered] = {}
        self.answered_ms: dict[object, int] = {}
        self.applied: dict[str, list[Applied]] = {node_id: [] for node_id in IDS}
        # How many of those each start found.
        self._starts: dict[str, list[int]] = {node_id: [] for node_id in IDS}
        # By epoch: which nodes ever said that they lead it.
        self.leaders: dict[int, set[str]] = defaultdict(set)
        self._asked = 0
        stores = stores or {node_id: MemoryStore() for node_id in IDS}
        self.machines = {node_id: Machine(node_id, stores[node_id]) for node_id in IDS}
        for node_id in IDS:
            found_cluster(stores[node_id], node_id, wall_ms=toy.START.wall_ms, members=IDS, cluster_id="trio")
            self.start(node_id)

    # Nodes.

    def start(self, node_id: str) -> None:
        """Let a node start on what its disk holds."""
        machine = self.machines[node_id]
        assert machine.replica is None
        self._starts[node_id].append(len(self.applied[node_id]))
        machine.replica = Replica(
            store=machine.store,
            identity=open_identity(machine.store),
            boot_id=machine.boot_id,
            now=machine.now(self.ms),
            rng=Random(self._rng.random()),
            decider=self.decider,
            on_failure=toy.ignore,
            limits=self.limits,
        )
        for peer in IDS:
            if peer != node_id:
                self._link(node_id, peer)
                self._link(peer, node_id)

    def kill(self, node_id: str) -> None:
        """What its disk has not flushed is lost."""
        machine = self.machines[node_id]
        machine.replica, machine.inbox, machine.paused = None, [], False
        machine.store.close()
        for peer in IDS:
            self._unlink(node_id, peer)
            self._unlink(peer, node_id)

    def wipe(self, node_id: str) -> None:
        """Kill a node and lose its disk; it begins anew in quarantine."""
        self.kill(node_id)
        machine = self.machines[node_id]
        before = open_identity(machine.store)
        machine.store = MemoryStore()
        join_cluster(machine.store, structs.replace(before, node_incarnation=before.node_incarnation + 1))

    def reboot(self, node_id: str) -> None:
        """Kill the machine, not only the process: its steady clock begins anew."""
        self.kill(node_id)
        machine = self.machines[node_id]
        machine.boots += 1
        machine.steady_offset_ms = -self.ms + 50

    def replica(self, node_id: str) -> Replica:
        replica = self.machines[node_id].replica
        assert replica is not None
        return replica

    def applied_by_life(self, node_id: str) -> list[list[Applied]]:
        """What a node has applied, from each of its starts to the next."""
        starts = self._starts[node_id]
        return [self.applied[node_id][begin:end] for begin, end in zip_longest(starts, starts[1:])]

    # Network.

    def isolate(self, node_id: str) -> None:
        """Cut a node off, in both directions."""
        for peer in IDS:
            if peer != node_id:
                self.cut_off(node_id, peer)
                self.cut_off(peer, node_id)

    def cut_off(self, sender: str, receiver: str) -> None:
        """Nothing gets from one to the other; its streams break."""
        self.cut.add((sender, receiver))
        self._unlink(sender, receiver)

    def heal(self) -> None:
        """Every node reaches every other one again."""
        healed, self.cut = self.cut, set()
        for sender, receiver in sorted(healed):
            self._link(sender, receiver)

    def _link(self, sender: str, receiver: str) -> None:
        here, there = self.machines[sender], self.machines[receiver]
        if here.replica is None or there.replica is None or (sender, receiver) in self.cut:
            return
        self._connections += 1
        self._streams[sender, receiver] = self._connections
        here.inbox.append(Linked(receiver))

    def _unlink(self, sender: str, receiver: str) -> None:
        self._wires[sender, receiver].clear()
        if self._streams.pop((sender, receiver), None) is not None and self.machines[sender].replica is not None:
            self.machines[sender].inbox.append(Unlinked(receiver))

    # Time.

    def run(self, ms: int) -> None:
        """Let time pass, with a step of every node that runs each tick."""
        until_ms = self.ms + ms
        while self.ms < until_ms:
            self.ms += TICK_MS
            self._deliver()
            for node_id, machine in self.machines.items():
                if machine.replica is not None and not machine.paused:
                    self.step(node_id)

    def run_until(self, condition: Callable[[], object], *, within_ms: int = 5_000) -> int:
        """Let time pass until the condition holds; says how long that took."""
        began_ms = self.ms
        while not condition():
            assert self.ms - began_ms < within_ms, f"not within {within_ms} ms: {self.standings()}"
            self.run(TICK_MS)
        return self.ms - began_ms

    def step(self, node_id: str) -> Outbox:
        """One step of one node, with what has come for it."""
        machine = self.machines[node_id]
        replica = self.replica(node_id)
        letters, machine.inbox = machine.inbox, []
        outbox = machine.outbox = replica.step(machine.now(self.ms), letters)
        for answered in outbox.answers:
            assert answered.token not in self.answers, answered
            self.answers[answered.token] = answered
            self.answered_ms[answered.token] = self.ms
        self.applied[node_id] += outbox.applied
        if outbox.standing.leads:
            self.leaders[outbox.standing.epoch].add(node_id)
        for frame in outbox.frames:
            self._send(node_id, frame.peer_id, frame.content)
        return outbox

    def _send(self, sender: str, receiver: str, content: bytes) -> None:
        stream = self._streams.get((sender, receiver))
        if stream is not None:
            self._wires[sender, receiver].append((self.ms + DELAY_MS, Arrived(sender, stream, content)))

    def _deliver(self) -> None:
        for (_, receiver), wire in self._wires.items():
            while wire and wire[0][0] <= self.ms:
                self.machines[receiver].inbox.append(wire.popleft()[1])

    # Work.

    def ask(self, node_id: str, *commands: Command, **more: Any) -> list[int]:
        """Give commands to a node; the tokens under which `answers` will have what came of them."""
        tokens = list(range(self._asked, self._asked + len(commands)))
        self._asked += len(commands)
        self.machines[node_id].inbox += [
            Proposal(token, command, **more) for token, command in zip(tokens, commands, strict=True)
        ]
        return tokens

    def confirm(self, node_id: str) -> int:
        """Ask a node which batches a reader must see."""
        self._asked += 1
        self.machines[node_id].inbox.append(Confirm(self._asked - 1))
        return self._asked - 1

    def write(self, *commands: Command, node_id: str = "") -> list[Any]:
        """Let commands be decided by whoever leads, and wait for the answers."""
        tokens = self.ask(node_id or self.lead(), *(commands or (toy.Add(),)))
        self.run_until(lambda: all(token in self.answers for token in tokens))
        return [self.answers[token].answer for token in tokens]

    def lead(self, *, among: Sequence[str] = IDS) -> str:
        """The node that leads, once one of these does."""
        self.run_until(lambda: self.leading(among))
        return self.leading(among)[0]

    def leading(self, among: Sequence[str] = IDS) -> list[str]:
        """Those that say that they lead, and run."""
        return [one for one in among if self.machines[one].replica and self.replica(one).standing.leads]

    def settle(self, *, within_ms: int = 5_000) -> None:
        """Wait until all nodes that run have the same head, and one of them leads."""

        def settled() -> bool:
            return bool(self.leading()) and len({one.replica.standing.head.hash for one in running}) == 1  # type: ignore[union-attr]  # they run

        running = [machine for machine in self.machines.values() if machine.replica is not None]
        self.run_until(settled, within_ms=within_ms)

    def reason(self, token: object) -> str:
        """Why it was refused; empty when it was not."""
        answer = self.answers[token].answer
        return answer.reason.name if isinstance(answer, Rejection) else ""

    def standings(self) -> dict[str, Any]:
        return {one: machine.replica and machine.replica.standing for one, machine in self.machines.items()}

    def rows(self, node_id: str) -> dict[bytes, bytes | None]:
        """All committed rows of a node."""
        with self.machines[node_id].store.snapshot() as snapshot:
            return {key: snapshot.get(key) for key in snapshot.scan(b"")}

    def counter(self, node_id: str) -> int:
        """The counter in the committed rows of a node."""
        with self.replica(node_id).committed() as committed:
            return toy.count(committed)
