"""A server process: what the host of a replica does, in simulated time.

It gives the replica letters and time, lets nothing out before the step that made it is over and flushed, carries frames
to the other nodes, and serves callers and agents: commands go to the leader, answers wait for this node's own rows.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from stepward.server.core.decide import Decision, decide
from stepward.server.logbook import batch as batches
from stepward.server.logbook.frames import REGULAR
from stepward.server.logbook.identity import open_identity
from stepward.server.logbook.outbox import (
    Applied,
    Arrived,
    Confirm,
    Instant,
    Linked,
    Outbox,
    Proposal,
    Recover,
    Transfer,
    Unlinked,
)
from stepward.server.logbook.replica import Replica
from stepward.server.store.live import CommittedRows
from tests.simulation.agenda import MS
from tests.simulation.agent_streams import AgentStreams
from tests.simulation.disk import PageStore
from tests.simulation.fetching import Fetching
from tests.simulation.forwarding import Forwarding
from tests.simulation.freshness import Freshness
from tests.simulation.network import KEEPALIVE_US
from tests.simulation.oracle import short
from tests.simulation.supervision import Supervision

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from stepward.server.core.commands import AnyCommand, Command
    from stepward.server.core.decide import Moment
    from stepward.server.core.reader import Reader
    from stepward.server.logbook.outbox import Frame, Letter, Standing
    from tests.simulation.clocks import MachineClock
    from tests.simulation.machine import Machine
    from tests.simulation.network import Connection
    from tests.simulation.tickets import Ticket

# What a step costs beside its flush.
_STEP_US: Final = (50, 400)
# What a frame takes on its way beside its content.
_FRAME_BYTES: Final = 60
_RECONNECT_US: Final = (5 * MS, 400 * MS)


class Process:
    """One server process, from its start to its end."""

    def __init__(self, machine: Machine) -> None:
        world = machine.world
        self.machine = machine
        self.world = world
        self.agenda = world.agenda
        self.rng = world.process_rng
        self.clock: MachineClock = machine.clock
        self.oracle = world.oracle
        self.dead = False
        self.paused = False
        self._pauses = 0
        # Set from without: the replica believes that its read lease runs, whatever the others do. Nobody hears then
        # what it answers, and what stands around it does not rely on that lease.
        self.lease_is_held: bool = False
        self._deferred: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self.store = PageStore(machine.device)
        self.identity = open_identity(self.store)
        # Streams are numbered by the process that takes them: a newer one counts, whatever clocks say.
        self._taken: dict[Connection, int] = {}
        self.replica = Replica(
            store=self.store,
            identity=self.identity,
            decider=self._decide,
            boot_id=self.clock.boot_id,
            now=self._now(),
            rng=self.rng,
            on_failure=self._rule_failed,
            limits=world.replica_limits,
        )
        self.standing: Standing = self.replica.standing
        self._letters: list[Letter] = []
        self._busy = False
        self._step_number = 0
        self._step_at_us: int | None = None
        # Outgoing streams to the other nodes, once they stand.
        self._streams: dict[str, Connection] = {}
        self._connecting: set[str] = set()
        self.forwarding = Forwarding(self)
        self.freshness = Freshness(self)
        self.agent_streams = AgentStreams(self)
        self.supervision = Supervision(self)
        self.fetching = Fetching(self)
        self.oracle.started(self.name, self.standing, self._unapplied())
        with self.committed() as reader:
            self.oracle.found(reader)
        world.network.attach(self)
        for peer_id in self.peers:
            self.agenda.after(self.rng.uniform(0, 20 * MS), self.when_awake, self._connect, peer_id)
        self._wake(0)

    @property
    def name(self) -> str:
        """The node."""
        return self.machine.name

    @property
    def peers(self) -> list[str]:
        """The other nodes."""
        return [node_id for node_id in self.world.node_ids if node_id != self.name]

    @property
    def listening(self) -> bool:
        """Whether it takes connections now."""
        return not (self.dead or self.paused)

    @property
    def leads(self) -> bool:
        """Whether it decides now."""
        return self.standing.leads

    def _now(self) -> Instant:
        return Instant(self.clock.steady_ms(), self.clock.wall_ms())

    def _unapplied(self) -> dict[int, bytes]:
        """Hashes of the batches that its journal holds behind its rows, by sequence."""
        journal = self.replica._journal
        commands = [entry.command for entry in journal.between(journal.applied + 1, journal.last_index + 1)]
        encoded = [command[len(REGULAR) :] for command in commands if command.startswith(REGULAR)]
        return {batches.decode(content).sequence: batches.hash_of(content) for content in encoded}

    # Life.

    def when_awake(self, act: Callable[..., None], *arguments: Any) -> None:
        """Let this process do something now, or when it goes on; never when it is dead."""
        if self.dead:
            return
        if self.paused:
            self._deferred.append((act, arguments))
        else:
            act(*arguments)

    def pause(self) -> None:
        """It stands still, between any two of its instructions. Others give it up after a while."""
        self.paused = True
        self._pauses += 1
        self.agenda.after(self.rng.uniform(*KEEPALIVE_US), self._give_up, self._pauses)

    def _give_up(self, pause: int) -> None:
        if self.paused and pause == self._pauses:
            self.world.network.give_up(self)

    def resume(self) -> None:
        """It goes on, and finds everything that has happened since."""
        if not self.paused:
            return
        self.paused = False
        deferred, self._deferred = self._deferred, []
        for place, (act, arguments) in enumerate(deferred):
            if self.paused:
                self._deferred = deferred[place:]
                return
            if not self.dead:
                act(*arguments)

    def end(self, *, silently: bool) -> None:
        """It is gone; `silently`: with its machine."""
        self.dead = True
        self.world.network.detach(self, silently=silently)

    # Steps.

    def deliver(self, letter: Letter) -> None:
        """A letter for the replica; it is stepped soon."""
        self._letters.append(letter)
        self._wake(self.rng.uniform(0, 100))

    def wake(self) -> None:
        """Something waits for a step."""
        self._wake(0)

    def _wake(self, delay_us: float) -> None:
        """Step after so long, at the latest."""
        at_us = self.agenda.now_us + int(delay_us)
        if self._busy or (self._step_at_us is not None and self._step_at_us <= at_us):
            return
        self._step_at_us = at_us
        self._step_number += 1
        self.agenda.after(delay_us, self.when_awake, self._step, self._step_number)

    def _step(self, number: int) -> None:
        if number != self._step_number or self._busy:
            return
        self._busy, self._step_at_us = True, None
        self.fetching.install_if_ready()
        letters, self._letters = self._letters, []
        believed = self.lease_is_held
        # As a node does: what promises nothing is on its way while the disk works, also when that takes it all away.
        self._send(self.replica.begin(self._now(), letters))
        outbox = self.replica.finish()
        device = self.machine.device
        took_us = device.take_took_us()
        self.replica.note_flush(took_us / MS)
        took_us += int(self.rng.uniform(*_STEP_US))
        self.agenda.after(took_us, self.when_awake, self._release, outbox, believed or self.lease_is_held)

    def _send(self, frames: Sequence[Frame]) -> None:
        for frame in frames:
            stream = self._streams.get(frame.peer_id)
            if stream is not None:
                stream.send(self, frame.content, len(frame.content) + _FRAME_BYTES)

    def _release(self, outbox: Outbox, lease_was_held: bool) -> None:
        """The step is over and flushed: let out what it gave."""
        self.machine.device.settle()
        before, self.standing = self.standing, outbox.standing
        if lease_was_held:
            self.standing = self.standing._replace(lease_until_ms=0)
        self.oracle.stepped(self.name, self.standing)
        if before.leader_id != self.standing.leader_id:
            self.forwarding.follow()
        self._send(outbox.frames)
        for peer_id in outbox.unreadable:
            self._break_off(peer_id)
        for answered in outbox.answers:
            ticket: Ticket = answered.token  # type: ignore[assignment]  # tokens are the tickets that went in
            if not lease_was_held:
                self.oracle.answered(self.name, answered.answer, answered.sequence, floor=ticket.floor)
            ticket.answered(answered.answer, answered.sequence)
        if outbox.applied:
            self._publish(outbox.applied)
        if outbox.installed:
            with self.committed() as reader:
                self.oracle.found(reader)
            self.agent_streams.start_over()
        if (before.leads, before.epoch) != (self.standing.leads, self.standing.epoch):
            self.world.trace(self.name, "leads" if self.leads else "follows", short(self.standing))
            self.supervision.follow()
        self.forwarding.head_moved()
        self.freshness.stepped()
        self.fetching.follow(outbox)
        self.world.stepped()
        self._busy = False
        self._wake(0 if self._letters else self.clock.until_us(outbox.wake_at_ms))

    def _publish(self, applied: Sequence[Applied]) -> None:
        """What a step applied; its rows are those of the last batch of it."""
        with self.committed() as reader:
            for one in applied:
                self.oracle.applied(one, self.standing.head)
                self.agent_streams.applied(one, reader)
            if self.rng.random() < self.world.recount_share:
                self.oracle.recount(self.name, reader, led_ms=self.standing.head.led_ms)

    @contextmanager
    def committed(self) -> Iterator[CommittedRows]:
        """The rows as the last step left them. Nothing is written while they are read, so no snapshot is made."""
        yield CommittedRows(self.store)

    def _decide(self, reader: Reader, commands: Sequence[Command], moment: Moment) -> Decision:
        decision = decide(reader, commands, moment, self.world.limits, self.rng)  # type: ignore[arg-type]  # all are known
        self.world.beliefs.decided(self, decision.changes)
        return decision

    def _rule_failed(self, command: object, error: BaseException) -> None:
        raise AssertionError(f"the rule of {command} raised") from error

    # The other nodes.

    def _connect(self, peer_id: str) -> None:
        if peer_id not in self._streams and peer_id not in self._connecting:
            self._connecting.add(peer_id)
            self.world.network.connect(self, peer_id, f"replicate {peer_id}")

    def _break_off(self, peer_id: str) -> None:
        """End the streams of a node of which something could not be read; it makes a new one."""
        self.oracle.counts["unreadable"] += 1
        for connection in [one for one in self._taken if one.client.name == peer_id and one.open]:
            connection.close(by=self)

    def accept(self, connection: Connection, kind: str) -> None:
        """Somebody has connected, or a connection of ours stands."""
        ours = connection.client is self
        match kind.partition(" ")[0]:
            case "replicate" if ours:
                self._connecting.discard(connection.server.name)
                self._streams[connection.server.name] = connection
                self.deliver(Linked(connection.server.name))
            case "replicate":
                self._taken[connection] = len(self._taken) + 1
            case "forward" if ours:
                self.forwarding.connected(connection)
            case "export" if ours:
                self.fetching.connected(connection)
            case _:
                pass

    def received(self, connection: Connection, message: Any) -> None:
        """A message has arrived at this machine."""
        self.when_awake(self._received, connection, message)

    def _received(self, connection: Connection, message: Any) -> None:
        match connection.kind.partition(" ")[0]:
            case "replicate":
                self.deliver(Arrived(connection.client.name, self._taken[connection], message))
            case "forward":
                self.forwarding.received(connection, message)
            case "export":
                self.fetching.received(connection, message)
            case "agent":
                self.agent_streams.received(connection, message)
            case _:
                self._serve(connection, message)

    def closed(self, connection: Connection) -> None:
        """A connection is gone."""
        self.when_awake(self._closed, connection)

    def _closed(self, connection: Connection) -> None:
        kind, _, peer_id = connection.kind.partition(" ")
        ours = connection.client is self
        if kind == "replicate" and ours:
            self._connecting.discard(peer_id)
            if self._streams.get(peer_id) is connection:
                del self._streams[peer_id]
                self.deliver(Unlinked(peer_id))
            wait_us = self.rng.choice((1 * MS, self.rng.uniform(*_RECONNECT_US)))
            self.agenda.after(wait_us, self.when_awake, self._connect, peer_id)
        elif kind == "forward":
            self.forwarding.closed(connection)
        elif kind == "export":
            self.fetching.closed(connection)
        elif kind == "agent":
            self.agent_streams.closed(connection)

    # Callers.

    def propose(self, command: AnyCommand, ticket: Ticket, *, share: str = "") -> None:
        """Let a command be decided, here or where the leader is."""
        self.forwarding.propose(command, ticket, urgent=False)

    def renew(self, command: AnyCommand, ticket: Ticket) -> None:
        """As `propose`, for renewals."""
        self.forwarding.propose(command, ticket, urgent=True)

    def propose_here(self, command: AnyCommand, ticket: Ticket, *, urgent: bool) -> None:
        """Hand a command to the replica of this node."""
        ticket.floor = self.oracle.acknowledged
        self.deliver(Proposal(ticket, command, urgent=urgent))

    def transfer(self, target_id: str) -> None:
        """Ask the replica of this node to hand leadership on."""
        self.deliver(Transfer(_Transferring(), target_id))

    def recover(self, ticket: Ticket, gone_ids: frozenset[str]) -> None:
        """Tell the replica of this node that others are gone for good."""
        self.deliver(Recover(ticket, gone_ids))

    def confirm_here(self, ticket: Ticket) -> None:
        """Ask the replica of this node which batches a reader must see."""
        ticket.floor = self.oracle.acknowledged
        self.deliver(Confirm(ticket))

    def _serve(self, connection: Connection, message: Any) -> None:
        """A call of a client: its number, what it asks, and the command or the job."""
        number, asks, what = message
        reply = _Reply(self, connection, number)
        if asks == "command":
            self.propose(what, reply)
        elif asks == "look" and (found := self.freshness.look(what)) is not None:
            reply.answered(found, self.standing.head.sequence)
        else:
            self.forwarding.read(what, reply)


class _Reply:
    """A client that waits for an answer."""

    def __init__(self, process: Process, connection: Connection, number: int) -> None:
        self._process = process
        self._connection = connection
        self._number = number
        self.floor = 0

    def answered(self, answer: Any, sequence: int) -> None:
        """See `tickets.Ticket`."""
        self._connection.send(self._process, (self._number, answer, sequence), 200)


class _Transferring:
    """Nobody waits for a transfer but the faults, which go on."""

    floor = 0

    def answered(self, answer: Any, sequence: int) -> None:
        """See `tickets.Ticket`."""
