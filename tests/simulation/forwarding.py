"""How commands and questions find the leader, and answers the way back.

A command waits a little for a leader, is handed on at most a few times, and is answered COMMIT_UNKNOWN when the stream
on which it was sent is lost. An answer waits until the node that was asked has applied what the answer speaks of.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any, Final

from stepward.server.core import keys, rows
from stepward.server.core.rejections import Reason, Rejection
from stepward.server.logbook.outbox import Confirmed, Serves
from stepward.server.peers.forwarded import SERVES_MS, SERVES_READERS_MS
from tests.simulation.agenda import MS

if TYPE_CHECKING:
    from stepward.server.core.commands import AnyCommand
    from stepward.server.core.reader import Reader
    from tests.simulation.network import Connection
    from tests.simulation.process import Process
    from tests.simulation.tickets import Ticket

LEADER_WAIT_US: Final = 1_500 * MS
HOPS_MAX: Final = 3
# Before a command that came to the wrong node is tried again.
_HOP_US: Final = 30 * MS
_COMMAND_BYTES: Final = 300


class _Errand:
    """A command (or, without one, a question) that looks for the leader."""

    __slots__ = ("asked_at_ms", "command", "floor", "hops", "routing", "ticket", "until_us", "urgent")

    def __init__(
        self, routing: Forwarding, command: AnyCommand | None, ticket: Ticket, *, urgent: bool, until_us: int
    ) -> None:
        self.routing = routing
        self.command = command
        self.ticket = ticket
        self.urgent = urgent
        self.until_us = until_us
        self.hops = 0
        self.floor = 0
        self.asked_at_ms = 0

    def answered(self, answer: Any, sequence: int) -> None:
        """The leader, here or elsewhere, has answered."""
        if isinstance(answer, Confirmed):
            self.routing.process.freshness.told(sequence, self.asked_at_ms)
        if isinstance(answer, Rejection) and answer.reason is Reason.NOT_LEADER:
            self.hops += 1
            self.routing.again(self)
        else:
            self.routing.settle(self.ticket, answer, sequence)


class _FromElsewhere:
    """A command of a caller of another node."""

    __slots__ = ("connection", "floor", "number", "process")

    def __init__(self, process: Process, connection: Connection, number: int) -> None:
        self.process = process
        self.connection = connection
        self.number = number
        self.floor = 0

    def answered(self, answer: Any, sequence: int) -> None:
        """Send it back."""
        self.connection.send(self.process, ("answer", self.number, answer, sequence), _COMMAND_BYTES)


class Forwarding:
    """The errands of one process."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self._looking: list[_Errand] = []
        self._sent: dict[Connection, dict[int, _Errand]] = {}
        self._links: dict[str, Connection] = {}
        self._connecting: set[str] = set()
        self._count = 0
        # Answers that wait for this node's own rows.
        self._waiting: list[tuple[int, int, Ticket, Any]] = []

    def propose(self, command: AnyCommand, ticket: Ticket, *, urgent: bool) -> None:
        """Find a leader for a command."""
        self._begin(command, ticket, urgent=urgent)

    def read(self, job_id: str, ticket: Ticket) -> None:
        """Find out what a job is, linearizably."""
        process = self.process
        if not process.leads:
            self._begin(None, _Reading(process, job_id, ticket), urgent=False)
            return
        floor = process.oracle.acknowledged
        with process.committed() as reader:
            found, sequence = job_of(reader, job_id), process.standing.head.sequence

        def look_at_lease() -> None:
            """After the rows were read: whoever stood still in between may lead no more."""
            if process.clock.steady_ms() < process.standing.lease_until_ms:
                process.oracle.counts["reads_under_lease"] += 1
                process.oracle.answered(process.name, found, sequence, floor=floor)
                ticket.answered(found, sequence)
            else:
                self._begin(None, _Reading(process, job_id, ticket), urgent=False)

        process.agenda.after(process.rng.uniform(0, 1 * MS), process.when_awake, look_at_lease)

    def ask(self) -> None:
        """Ask what the newest batch is, for nobody but whoever looks at these rows."""
        self._begin(None, _Nobody(), urgent=False)

    def _begin(self, command: AnyCommand | None, ticket: Ticket, *, urgent: bool) -> None:
        until_us = self.process.agenda.now_us + LEADER_WAIT_US
        errand = _Errand(self, command, ticket, urgent=urgent, until_us=until_us)
        if not self._go(errand):
            self._look_for(errand)

    def _look_for(self, errand: _Errand) -> None:
        self._looking.append(errand)
        wait_us = errand.until_us - self.process.agenda.now_us
        self.process.agenda.after(wait_us, self.process.when_awake, self._give_up, errand)

    def again(self, errand: _Errand) -> None:
        """The node that was asked does not lead."""
        if errand.hops > HOPS_MAX:
            self._no_leader(errand)
        else:
            self.process.agenda.after(_HOP_US, self.process.when_awake, self._retry, errand)

    def _retry(self, errand: _Errand) -> None:
        if not self._go(errand):
            self._look_for(errand)

    def _give_up(self, errand: _Errand) -> None:
        if errand in self._looking:
            self._looking.remove(errand)
            self._no_leader(errand)

    def _no_leader(self, errand: _Errand) -> None:
        errand.ticket.answered(Rejection(Reason.NO_LEADER, "no node leads; try again", retry_after_ms=200), 0)

    def _go(self, errand: _Errand) -> bool:
        """Take an errand to the leader, if there is a way to it."""
        process, leader_id = self.process, self.process.standing.leader_id
        errand.asked_at_ms = process.clock.steady_ms()
        if process.leads:
            if errand.command is None:
                process.confirm_here(errand)
            else:
                process.propose_here(errand.command, errand, urgent=errand.urgent)
            return True
        if leader_id in ("", process.name):
            return False
        link = self._links.get(leader_id)
        if link is None:
            if leader_id not in self._connecting:
                self._connecting.add(leader_id)
                process.world.network.connect(process, leader_id, f"forward {leader_id}")
            return False
        self._count += 1
        self._sent[link][self._count] = errand
        link.send(process, ("ask", self._count, errand.command, errand.urgent), _COMMAND_BYTES)
        return True

    # Links.

    def follow(self) -> None:
        """Leadership has changed: what was sent to another node than the leader may not be waited for.

        Or it would come back much later, and be decided behind what the same agent said after it.
        """
        leader_id = self.process.standing.leader_id
        for peer_id, link in list(self._links.items()):
            if peer_id != leader_id:
                link.close(by=self.process)
                self.closed(link)

    def connected(self, connection: Connection) -> None:
        """The stream to a leader stands."""
        self._connecting.discard(connection.server.name)
        self._links[connection.server.name] = connection
        self._sent[connection] = {}
        self.follow()
        self._look_again()

    def closed(self, connection: Connection) -> None:
        """A stream is gone: what was sent on it and not answered has an unknown outcome."""
        leader_id = connection.kind.partition(" ")[2]
        if connection.client is not self.process:
            return
        self._connecting.discard(leader_id)
        if self._links.get(leader_id) is connection:
            del self._links[leader_id]
        unknown = Rejection(Reason.COMMIT_UNKNOWN, "the leader went away; it may or may not have happened")
        for errand in self._sent.pop(connection, {}).values():
            errand.ticket.answered(unknown, 0)
        self._look_again()

    def received(self, connection: Connection, message: Any) -> None:
        """A command of a caller of another node, or an answer to one of ours."""
        process = self.process
        if message[0] == "answer":
            _, number, answer, sequence = message
            errand = self._sent.get(connection, {}).pop(number, None)
            if errand is not None:
                errand.answered(answer, sequence)
            return
        _, number, command, urgent = message
        # Whoever is not told so is told a little later what is committed, which is as right.
        if process.rng.random() < 0.5:
            process.deliver(Serves(connection.client.name, SERVES_READERS_MS if command is None else SERVES_MS))
        ticket = _FromElsewhere(process, connection, number)
        if not process.leads:
            ticket.answered(Rejection(Reason.NOT_LEADER, "this node does not lead"), 0)
        elif command is None:
            process.confirm_here(ticket)
        else:
            process.propose_here(command, ticket, urgent=urgent)

    # Answers.

    def settle(self, ticket: Ticket, answer: Any, sequence: int) -> None:
        """Hand an answer over once this node has applied what it speaks of."""
        if sequence <= self.process.standing.head.sequence:
            ticket.answered(answer, sequence)
        else:
            self._count += 1
            heapq.heappush(self._waiting, (sequence, self._count, ticket, answer))

    def head_moved(self) -> None:
        """A step is over."""
        while self._waiting and self._waiting[0][0] <= self.process.standing.head.sequence:
            sequence, _, ticket, answer = heapq.heappop(self._waiting)
            ticket.answered(answer, sequence)
        self._look_again()

    def _look_again(self) -> None:
        if self._looking:
            self._looking = [errand for errand in self._looking if not self._go(errand)]


class _Nobody:
    """The ticket of a question that was asked for the age of the rows alone."""

    floor = 0

    def answered(self, answer: Any, sequence: int) -> None:
        """See `tickets.Ticket`."""


class _Reading:
    """A reader that waits to be told what it must see, and then reads this node's rows."""

    def __init__(self, process: Process, job_id: str, ticket: Ticket) -> None:
        self._process = process
        self._job_id = job_id
        self._ticket = ticket
        self.floor = 0

    def answered(self, answer: Any, sequence: int) -> None:
        """This node has applied the batch that must be seen."""
        if not isinstance(answer, Confirmed):
            self._ticket.answered(answer, sequence)
            return
        process = self._process
        assert process.standing.head.sequence >= sequence
        with process.committed() as reader:
            self._ticket.answered(job_of(reader, self._job_id), process.standing.head.sequence)


def job_of(reader: Reader, job_id: str) -> tuple[str, str]:
    """A job's id, and its state; empty when there is no such job."""
    progress = reader.get(keys.progress(job_id))
    assert progress is None or isinstance(progress, rows.Progress)
    return job_id, "" if progress is None else progress.state.name
