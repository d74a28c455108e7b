"""The host of one replica: gives it time and commands on the event loop, and hands out what came of them.

The replica runs on the loop's own thread: a thread of its own lost more to hand-offs between threads than it won. So
a step must be short, and the only thing that it ever waits for is the disk. With peers it does that on another thread
(`flushing`), and the loop serves calls meanwhile; no other step begins before it is over.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from stepward.server import observe
from stepward.server.core.rejections import Reason, Rejection
from stepward.server.flushing import Flusher
from stepward.server.gathering import INTAKE_SLICES, SLICE_MS, Gathering
from stepward.server.logbook.outbox import Arrived, Confirm, Instant, Linked, Proposal, Serves, Unlinked
from stepward.server.reading import Reading
from stepward.server.renewals import Renewals
from stepward.server.row_passing import RowPassing
from stepward.server.tickets import FutureTicket, ReaderPlace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from stepward.server.clock import Clock
    from stepward.server.config import NodeConfig
    from stepward.server.core.commands import Answer, AnyCommand
    from stepward.server.core.rows import Row
    from stepward.server.logbook.outbox import Applied, Condition, Frame, Letter, Outbox, Standing
    from stepward.server.logbook.replica import Replica
    from stepward.server.observe import Counters
    from stepward.server.peers.forwarding import Forwarding
    from stepward.server.tickets import ReaderTicket, Ticket

# Commands at which gathering ends: about as many as the replica decides in one batch.
GATHERED_MAX: Final = 2_000
_log = observe.logger("shard")


class _Step(NamedTuple):
    """A step that is begun."""

    has_heard: bool
    commands: int
    took_s: float


class Shard:
    """Hosts a replica. Belongs to the thread of the event loop."""

    def __init__(
        self,
        replica: Replica,
        *,
        clock: Clock,
        config: NodeConfig,
        counters: Counters,
        on_fatal: Callable[[str], None],
    ) -> None:
        """`on_fatal` is told, once, why this replica can never step again; the process has to end."""
        self._replica = replica
        self._clock = clock
        self._config = config
        self._counters = counters
        self._on_fatal = on_fatal
        self._loop = asyncio.get_running_loop()
        # What came since the last step; the rest waits in the replica, which knows whose turn it is.
        self._letters: list[Letter] = []
        self._renewals = Renewals(config.gather_renewals_ms, self._wake)
        self._commands: list[Proposal] = []
        self._proposed: set[Ticket] = set()
        # The way to the leader while another node leads. None in a cluster of one.
        self._forwarding: Forwarding | None = None
        self._definitions: dict[bytes, Row] = {}
        self._timer: asyncio.Handle | None = None
        self._timer_is_tick = False
        # Whether the next turn of the loop steps.
        self._is_soon = False
        # The step that is begun and not flushed, and whether the last one left a batch on its way to the others.
        self._open_step: _Step | None = None
        self._flusher = Flusher(self._loop.call_soon_threadsafe)
        self._is_deciding = False
        self._gathering = Gathering(config.gather_ms_max, config.gather_ms_max_slow)
        self._listeners: list[Callable[[Applied], None]] = []
        self._standing_listeners: list[Callable[[Standing], None]] = []
        self._send: Callable[[Sequence[Frame]], None] = _nobody
        self._break_off: Callable[[str], None] = _nobody
        self._standing = replica.standing
        self._leader_seen = ""
        self._stepped_at_ms = clock.steady_ms()
        self._stopped = False
        # Rows that come and go as a whole.
        self.rows = RowPassing(
            replica,
            standing=lambda: None if self._stopped else self._standing,
            step_soon=self._hurry,
            on_failure=partial(self._fail, "the replica stopped"),
            settle=self._settle,
        )

    @property
    def standing(self) -> Standing:
        """What the replica was at the end of the last step."""
        return self._standing

    @property
    def leads(self) -> bool:
        """Whether this node decides now."""
        return self._standing.leads and not self._stopped

    @property
    def stepped_at_ms(self) -> int:
        """When the last step began, on the steady clock; before the first one, when this was made."""
        return self._stepped_at_ms

    @property
    def stopped(self) -> bool:
        """Whether it steps no more."""
        return self._stopped

    def condition(self) -> Condition:
        """What operators ask for, as it is now. Belongs to the loop; not after `stop`."""
        condition = self._replica.condition()
        return condition._replace(waiting=condition.waiting + len(self._commands) + len(self._renewals))

    @contextmanager
    def committed(self) -> Iterator[Reading]:
        """The rows as the last step left them, until the next turn of the loop."""
        with self._replica.committed() as committed:
            yield Reading(committed, self._definitions)

    def on_applied(self, listener: Callable[[Applied], None]) -> None:
        """Tell `listener` of every batch, in order, when it is durable, and after the answers that came of it.

        So on an agent's stream the answer that frees a slot stands before the offer that takes it.
        """
        self._listeners.append(listener)

    def forward_by(self, forwarding: Forwarding) -> None:
        """Let what this node cannot decide be decided elsewhere. Called once, before anything is proposed."""
        self._forwarding = forwarding

    @property
    def forwarding(self) -> Forwarding | None:
        """The way to the leader; None in a cluster of one."""
        return self._forwarding

    @property
    def holds_lease(self) -> bool:
        """Whether nobody else can decide at this moment, so that the rows here are the newest."""
        if self._forwarding is None:
            return self.leads
        return self.leads and self._clock.steady_ms() < self._standing.lease_until_ms

    def on_standing(self, listener: Callable[[Standing], None]) -> None:
        """Tell `listener` whenever it has changed who leads, in which epoch, or whether this node takes part."""
        self._standing_listeners.append(listener)

    def on_frames(self, send: Callable[[Sequence[Frame]], None], break_off: Callable[[str], None]) -> None:
        """Let `send` put the frames of each step on their streams, before anybody is told of anything else.

        `break_off` ends the stream of another node, of which something could not be read.
        """
        self._send, self._break_off = send, break_off

    def start(self) -> None:
        """Begin to step."""
        self._schedule(0, is_tick=True)

    # Other nodes.

    def arrived(self, peer_id: str, connection: int, contents: Sequence[bytes]) -> None:
        """Frames of another node. They share a step with what else has come in the same turn of the loop."""
        self._letters += [Arrived(peer_id, connection, content) for content in contents]
        if self._open_step is not None:
            # Its end looks at what has come.
            return
        if not self._is_deciding or self._gathering.first_ms <= 0:
            self._hurry()
        elif self._timer is None or self._timer_is_tick:
            # Most likely the answer to the batch on its way, with which the next one is decided: as large as it can be.
            self._gather(0.0, self._gathering.first_ms)

    def linked(self, peer_id: str) -> None:
        """A new stream to another node stands."""
        self._letters.append(Linked(peer_id))
        self._hurry()

    def unlinked(self, peer_id: str) -> None:
        """The stream to another node is gone."""
        self._letters.append(Unlinked(peer_id))
        self._hurry()

    def serves(self, peer_id: str, for_ms: int) -> None:
        """Another node has clients or agents of its own; see `Serves`."""
        self._letters.append(Serves(peer_id, for_ms))
        self._hurry()

    def _hurry(self) -> None:
        """Step in the next turn of the loop, whoever gathers: another node waits, and for it everybody here."""
        if not self._stopped and not self._is_soon and self._open_step is None:
            self._schedule(0, is_tick=False)

    def stop(self) -> None:
        """Let go of the replica. Who still waits is told what is known of the command. Safe to repeat."""
        self._settle()
        if self._stopped:
            return
        self._stopped = True
        self._flusher.stop()
        if self._timer is not None:
            self._timer.cancel()
        never = Rejection(Reason.NODE_DRAINING, "this node is shutting down; nothing was proposed: ask another node")
        if self._forwarding is not None:
            self._forwarding.stop()
        for proposal in (*self._renewals.take(), *self._commands, *self._replica.withdraw()):
            self._proposed.discard(proposal.token)
            self._answer(proposal.token, never)
        unknown = Rejection(Reason.COMMIT_UNKNOWN, "this node stopped before the command was known to be committed")
        for ticket in list(self._proposed):
            self._answer(ticket, unknown)
        self._commands.clear()
        self._replica.close()

    async def call(self, command: AnyCommand) -> Answer:
        """The answer to a command, after everything that it speaks of is durable, and applied here."""
        future: asyncio.Future[Answer] = self._loop.create_future()
        self.propose(command, FutureTicket(future))
        return await future

    async def ask(self, question: Callable[[Ticket], Letter]) -> object:
        """The answer to a question that is no command: `question` makes the letter for whoever waits for it."""
        if self._stopped:
            return Rejection(Reason.NODE_DRAINING, "this node is shutting down; ask another node")
        future: asyncio.Future[Answer] = self._loop.create_future()
        ticket = FutureTicket(future)
        self._proposed.add(ticket)
        self._letters.append(question(ticket))
        self._hurry()
        return await future

    def stand_down(self) -> None:
        """Lead no more, and leave it to the other nodes for a while."""
        self._replica.stands_down = True
        self._hurry()

    async def call_here(self, command: AnyCommand) -> Answer:
        """As `call`, of this node's own replica, whoever leads."""
        future: asyncio.Future[Answer] = self._loop.create_future()
        self.decide(command, FutureTicket(future), urgent=False, share="")
        return await future

    def propose(self, command: AnyCommand, ticket: Ticket, *, share: str = "") -> None:
        """Let a command be decided. `share`: of new work its namespace, with whose others it takes turns."""
        if self._forwarding is not None:
            self._forwarding.propose(command, ticket, urgent=False, share=share)
        else:
            self.decide(command, ticket, urgent=False, share=share)

    def renew(self, command: AnyCommand, ticket: Ticket) -> None:
        """As `propose`, for renewals: decided before anything else, but not at once; nobody waits for a heartbeat."""
        if self._forwarding is not None:
            self._forwarding.propose(command, ticket, urgent=True, share="")
        else:
            self.decide(command, ticket, urgent=True, share="")

    def decide(self, command: AnyCommand, ticket: Ticket, *, urgent: bool, share: str) -> None:
        """Let this node's own replica decide a command; answered NOT_LEADER when it does not lead."""
        if self._stopped:
            self._answer(ticket, Rejection(Reason.NODE_DRAINING, "this node is shutting down; ask another node"))
            return
        proposal = Proposal(ticket, command, urgent=urgent, share=share)
        if urgent:
            self._renewals.add(proposal)
        else:
            self._commands.append(proposal)
            self._wake()

    def confirm(self, ticket: ReaderTicket) -> None:
        """Tell a reader which batches he must see, if this node leads: under its lease at once, or when it is sure."""
        if self.holds_lease:
            # Of what is shown here by now: others must not be shown less from here on.
            ticket.confirmed(self._replica.shown_sequence)
        elif self._stopped:
            ticket.refused(Rejection(Reason.NODE_DRAINING, "this node is shutting down; ask another node"))
        else:
            reader = ReaderPlace(ticket, lambda: self._replica.shown_sequence)
            self._proposed.add(reader)
            self._letters.append(Confirm(reader))
            self._hurry()

    def hand_out(self, ticket: Ticket, answer: Answer) -> None:
        """Give an answer to the one who waits, whatever he does with it."""
        self._answer(ticket, answer)

    def _wake(self) -> None:
        """Step soon; under load after the gathering delay, so that what arrives meanwhile shares the flush.

        While a batch is on its way there is nothing that a step could do: what brings it on steps anyway.
        """
        if self._is_deciding or self._open_step is not None or (self._timer is not None and not self._timer_is_tick):
            return
        wait_ms = self._gathering.first_ms
        if wait_ms > 0:
            self._gather(0.0, wait_ms)
        else:
            self._schedule(0, is_tick=False)

    def _gather(self, waited_ms: float, slice_ms: float) -> None:
        """Let commands come for one more slice."""
        self._step_after(slice_ms, partial(self._look, waited_ms + slice_ms, len(self._commands)))

    def _look(self, waited_ms: float, before: int) -> None:
        """Step, unless the last slice has shown that more is coming."""
        count = len(self._commands)
        if count < GATHERED_MAX and self._gathering.goes_on(waited_ms, came=count - before):
            self._gather(waited_ms, SLICE_MS)
        else:
            self._step()

    def _take_in(self, slice_ms: float, slices: int) -> None:
        """Let the loop take in calls, of any kind, for as long as each slice brings one; then step."""
        before = self._counters.calls

        def look() -> None:
            if slices > 1 and self._counters.calls > before:
                self._take_in(slice_ms, slices - 1)
            else:
                self._step()

        self._step_after(slice_ms, look)

    def _step_after(self, slice_ms: float, look: Callable[[], None]) -> None:
        self._timer_is_tick = self._is_soon = False
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(slice_ms / 1_000, look)

    def _schedule(self, delay_ms: float, *, is_tick: bool) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_is_tick, self._is_soon = is_tick, delay_ms <= 0
        if delay_ms <= 0:
            self._timer = self._loop.call_soon(self._step)
        else:
            self._timer = self._loop.call_later(delay_ms / 1_000, self._step)

    def _step(self) -> None:
        self._timer, self._is_soon = None, False
        if self._stopped:
            return
        began = time.perf_counter()
        # Renewals gather by themselves: how many came tells nothing of whether a command would find company.
        commands = len(self._commands)
        inbox = self._take()
        now = Instant(self._clock.steady_ms(), self._clock.wall_ms())
        try:
            frames = self._replica.begin(now, inbox)
            flush = self._replica.flush_apart()
        except Exception as error:  # noqa: BLE001 - whatever it was, a replica that raised may never be asked again
            self._fail("the replica stopped", error)
            return
        self._stepped_at_ms = now.steady_ms
        step = _Step(bool(inbox), commands, time.perf_counter() - began)
        if frames:
            # They are on their way in the next turn of the loop, while this node flushes.
            self._send(frames)
        if flush is None and not frames:
            self._finish(step)
            return
        self._open_step = step
        if flush is None:
            self._loop.call_soon(self._settle, step)
        else:
            self._flusher.flush(flush, partial(self._settle, step))

    def _settle(self, begun: _Step | None = None) -> None:
        """Finish the step that is begun, if one is; where `begun` is given, if it is that one."""
        step = self._open_step
        if step is not None and (begun is None or begun is step):
            self._finish(step)

    def _finish(self, step: _Step) -> None:
        """Flush what the step has written, if that was not done, and hand out what came of it."""
        self._timer, self._is_soon, self._open_step = None, False, None
        began = time.perf_counter()
        try:
            outbox = self._replica.finish()
        except Exception as error:  # noqa: BLE001 - as above
            self._fail("the replica stopped", error)
            return
        self._learn(step, step.took_s + time.perf_counter() - began)
        try:
            self._tell(outbox)
        except Exception as error:  # noqa: BLE001 - without this no step would follow, and the node would only look alive
            self._fail("what came of a step could not be told", error)
            return
        self._schedule_next(outbox.wake_at_ms)

    def _learn(self, step: _Step, took_s: float) -> None:
        self._counters.steps += 1
        if step.has_heard:
            self._counters.step_s.note(took_s)
        if step.commands:
            self._gathering.learn(step.commands, took_s * 1_000)

    def _tell(self, outbox: Outbox) -> None:
        """Tell what came of a step, each part before those that it must not come behind."""
        self._is_deciding = outbox.is_deciding
        self._standing, before = outbox.standing, self._standing
        if self._standing.leader_id not in ("", self._leader_seen):
            self._leader_seen = self._standing.leader_id
            self._counters.leader_changes += 1
        if outbox.frames:
            self._send(outbox.frames)
        for peer_id in outbox.unreadable:
            self._break_off(peer_id)
        self.rows.stepped(outbox)
        for answered in outbox.answers:
            self._proposed.discard(answered.token)
            self._answer(answered.token, answered.answer)
        if self._forwarding is not None:
            # Answers of another leader, too, leave before the offers of the same batch.
            self._forwarding.stepped(self._standing)
        for applied in outbox.applied:
            self._publish(applied)
        if before.told != self._standing.told:
            self._tell_standing()

    def _fail(self, what: str, error: Exception) -> None:
        _log.critical("replica_stopped", what=what, exc_info=error)
        try:
            self.stop()
        finally:
            self._on_fatal(f"{what}: {error}")

    def _take(self) -> list[Letter]:
        """What the next step is given; what other nodes say first, since it may decide what becomes of the rest."""
        renewals = self._renewals.take() if self._commands or self._renewals.are_due else ()
        proposals = [*renewals, *self._commands]
        self._commands.clear()
        self._proposed.update(proposal.token for proposal in proposals)
        self._counters.commands += len(proposals)
        inbox: list[Letter] = [*self._letters, *proposals]
        self._letters.clear()
        return inbox

    def _schedule_next(self, wake_at_ms: int) -> None:
        if self._stopped or (self._timer is not None and not self._timer_is_tick):
            return
        if self._letters or ((self._commands or self._renewals.are_due) and not self._is_deciding):
            self._schedule(0, is_tick=False)
            return
        wait_ms, slice_ms = wake_at_ms - self._clock.steady_ms(), self._gathering.intake_ms / INTAKE_SLICES
        # While commands wait in the replica the next step is due at once; company is no reason to put it off.
        if wait_ms <= 0 and slice_ms >= SLICE_MS:
            self._take_in(slice_ms, INTAKE_SLICES)
        else:
            self._schedule(wait_ms, is_tick=wait_ms > 0)

    def _publish(self, applied: Applied) -> None:
        self._counters.batches += 1
        self._counters.puts += len(applied.puts)
        for listener in self._listeners:
            try:
                listener(applied)
            except Exception:  # noqa: BLE001 - the batch stands; one listener must not hide it from the others
                self._counters.delivery_failures += 1
                _log.exception("delivery_failed", sequence=applied.sequence)

    def _answer(self, ticket: object, answer: object) -> None:
        if type(answer) is Rejection:
            reason, rejections = answer.reason.value, self._counters.rejections
            rejections[reason] = rejections.get(reason, 0) + 1
        try:
            ticket.answered(answer)  # type: ignore[attr-defined]  # tokens are the tickets that went in
        except Exception:  # noqa: BLE001 - the answer stands; one who waits must not take the others with him
            self._counters.delivery_failures += 1
            _log.exception("answer_failed", answer=type(answer).__name__)

    def _tell_standing(self) -> None:
        standing = self._standing
        _log.info(
            "standing_changed",
            leads=standing.leads,
            epoch=standing.epoch,
            term=standing.term,
            leader_id=standing.leader_id,
            quarantined=standing.quarantined,
        )
        for listener in self._standing_listeners:
            listener(standing)


def _nobody(said: object) -> None:
    raise AssertionError(f"a node without peers has to do with one: {said}")
