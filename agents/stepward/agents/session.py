"""What an agent promises to the cluster, as a pure state machine: no I/O, no clock, no chance.

Inputs are messages of the node, events of handlers, and time; each takes the present instant on the steady clock.
`take` gives what came of them: messages to send and directives for the runner. One object lives as long as the
process, over many streams and, if need be, several sessions. It must hear `tick` often, every 50 ms or so: all that is
due by time is done there.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from stepward.agents import stopping
from stepward.agents.attempts import Attempt, AttemptKey, held_digest
from stepward.agents.directives import ChangeNode, Directive, EndProcess, Finish, OpenedSession, Outputs
from stepward.agents.holdings import PAYLOAD_BYTES_MAX, Holdings
from stepward.agents.lease import HELLO, Lease
from stepward.agents.memory import Memory
from stepward.agents.outcomes import Outcome
from stepward.agents.stopping import ANSWERS_MS_MAX, Drain
from stepward.agents.stops import StopReason
from stepward.v1 import agent_service_pb2 as wire

PROTOCOL_VERSION: Final = 1

# How long the first node may take to welcome while no TTL is known; then it is a part of the TTL. Dead hosts must leave
# time for another node before the lease ends. After each hello in vain the next node is given twice as long, up to a
# bound: in a cluster that is slow, agents which only change nodes would never be welcomed.
WELCOME_MS_MAX: Final = 3_000
_TTL_PART: Final = 6
_DOUBLINGS_MAX: Final = 3

# What was on its way when the node heard of a drain has arrived after this long; then the node is asked whether it
# agrees that nothing is held, and again until it does.
DRAIN_SETTLE_MS: Final = 200

# The cluster's default, until a welcome says it.
KILL_GRACE_MS: Final = 2_000

# EX_SOFTWARE of BSD: the parent starts the worker again.
EXIT_KILLED: Final = 70
EXIT_UNDELIVERED: Final = 1

_log = logging.getLogger("stepward.agents.session")


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """What an agent says of itself in its hello."""

    namespace: str
    queue: str
    actions: tuple[str, ...]
    slots: int
    name: str
    library: str
    killable: tuple[str, ...] = ()
    """Actions whose handlers run in processes of their own. It says this to nobody but itself."""


class Session:
    """One agent process, as the cluster sees it."""

    def __init__(
        self, profile: Profile, session_id: str, *, drain_timeout_ms: int, memory: Memory | None = None
    ) -> None:
        self.session_id = session_id
        self.finished = False
        """Whether it has said `Finish` or `EndProcess`; nothing comes after."""
        self._profile = profile
        self._drain_timeout_ms = drain_timeout_ms
        self._lease = Lease()
        self._lease_over = False
        self._holdings = Holdings(
            actions=profile.actions, killable=profile.killable, slots=profile.slots, memory=memory
        )
        self._drain: Drain | None = None
        self._kill_grace_ms = KILL_GRACE_MS
        self._generation = 0
        # Of the present stream.
        self._connected = False
        self._welcomed = False
        self._leaving = False
        self._hello_at_ms = 0
        self._hellos_in_vain = 0
        self._heartbeat_interval_ms = 0
        self._heartbeat_number = HELLO
        self._heartbeat_due_at_ms = 0
        self._send_held = False
        self._messages: list[wire.WorkRequest] = []
        self._directives = self._holdings.directives

    @property
    def busy_slots(self) -> int:
        """Attempts that take a slot, those that the cluster no longer counts too."""
        return len(self._holdings.active)

    @property
    def held(self) -> list[AttemptKey]:
        """What was received and whose outcome is not yet acknowledged."""
        return self._holdings.held

    @property
    def ttl_ms(self) -> int:
        """How long the lease lasts. 0 before the first welcome."""
        return self._lease.ttl_ms

    def lease_runs(self, now_ms: int) -> bool:
        """Whether work may be started. Reads only, so it may be asked on any thread."""
        return self._lease.runs(now_ms)

    @property
    def draining(self) -> bool:
        return self._drain is not None

    @property
    def welcomed(self) -> bool:
        """Whether a node has welcomed the session on the present stream."""
        return self._welcomed

    def take(self) -> Outputs:
        """What came of the inputs since the last time. Reports that wait go together."""
        if self._welcomed:
            self._messages.extend(wire.WorkRequest(report=report) for report in self._holdings.outbox.take())
        directives: list[Directive] = list(self._directives)
        self._directives.clear()
        messages, self._messages = self._messages, []
        return Outputs(messages, directives)

    # The stream.

    def connected(self, now_ms: int) -> None:
        """A stream is open: say hello."""
        assert not self._connected
        self._connected = True
        profile = self._profile
        hello = wire.Hello(
            protocol_version=PROTOCOL_VERSION,
            session_id=self.session_id,
            namespace=profile.namespace,
            queue=profile.queue,
            actions=profile.actions,
            slots=profile.slots,
            held=[key.ref() for key in self.held],
            name=profile.name,
            library=profile.library,
            generation=self._generation,
            reads_together=True,
        )
        self._messages = [wire.WorkRequest(hello=hello)]
        self._hello_at_ms = now_ms
        self._lease.sent(HELLO, now_ms)

    def disconnected(self) -> None:
        """The stream is gone. The lease goes on, and so does the work."""
        self._hellos_in_vain = 0 if self._welcomed else self._hellos_in_vain + 1
        self._connected = self._welcomed = self._leaving = False
        self._messages = []
        self._send_held = False
        self._lease.stream_closed()
        self._holdings.outbox.stream_closed()
        if self._drain is not None:
            self._drain.told_at_ms = self._drain.probe_number = None

    def session_over(self, now_ms: int, new_session_id: str) -> None:
        """A node refuses the hello of this session: it has ended. The process goes on with a new one."""
        assert not self._connected
        _log.warning("session_ended session=%s next=%s", self.session_id, new_session_id)
        self._forsake(now_ms)
        self.session_id = new_session_id

    def _forsake(self, now_ms: int) -> None:
        """Nothing that is held belongs to the session any more that is opened next."""
        ends_at_ms, ttl_ms = self._lease.ends_at_ms, self._lease.ttl_ms
        self._holdings.forsake(now_ms if ends_at_ms is None else min(now_ms, ends_at_ms))
        self._lease = Lease()
        # Handlers of the old session keep to its TTL until a welcome says another.
        self._lease.ttl_ms = ttl_ms
        self._lease_over = False
        self._generation = 0
        self._holdings.stop_lost(now_ms, ttl_ms=ttl_ms)

    def received(self, now_ms: int, response: wire.WorkResponse) -> None:
        """A message of the node."""
        holdings, lease_runs = self._holdings, self._lease.runs(now_ms)
        match response.WhichOneof("message"):
            case "welcome":
                self._welcome(now_ms, response.welcome)
            case "offers":
                for offer in response.offers.offers:
                    holdings.offered(now_ms, offer, lease_runs=lease_runs)
            case "cancels":
                for cancel in response.cancels.cancels:
                    holdings.cancelled(now_ms, cancel)
            case "answers":
                for answer in response.answers.answers:
                    holdings.answered(now_ms, answer, lease_runs=lease_runs)
            case "heartbeat":
                self._heartbeat_answered(now_ms, response.heartbeat)
            case "redirect":
                self._change_node("the node is going down", tuple(response.redirect.addresses))
            case "together":
                for one in response.together.responses:
                    self.received(now_ms, one)
            case _:
                # Of a newer protocol, which must work without being understood.
                pass

    def _welcome(self, now_ms: int, welcome: wire.Welcome) -> None:
        if welcome.generation <= self._generation:
            # Against the contract: a hello that knows a generation is never answered by a session made anew. Should it
            # be, what the old one held is not the new one's.
            _log.error(
                "generation_not_risen session=%s generation=%s known=%s",
                self.session_id,
                welcome.generation,
                self._generation,
            )
            self._forsake(now_ms)
            self._lease.sent(HELLO, self._hello_at_ms)
        self._generation = welcome.generation
        self._lease.ttl_ms = welcome.ttl.ToMilliseconds()
        self._kill_grace_ms = welcome.kill_grace.ToMilliseconds() or KILL_GRACE_MS
        self._holdings.payload_bytes_max = welcome.payload_bytes_max or PAYLOAD_BYTES_MAX
        self._heartbeat_interval_ms = welcome.heartbeat_interval.ToMilliseconds() or self._lease.ttl_ms // 6
        self._lease.acknowledged(HELLO)
        self._welcomed = True
        addresses = tuple(welcome.node_addresses)
        self._directives.append(OpenedSession(self.session_id, welcome.node_id, welcome.generation, addresses))
        self._note_lease(now_ms)
        self._tell_drain(now_ms)
        self._heartbeat(now_ms)

    def _heartbeat(self, now_ms: int) -> None:
        """Prove that the agent lives, and show what it holds."""
        self._heartbeat_number += 1
        held = self.held
        heartbeat = wire.Heartbeat(
            number=self._heartbeat_number, held_digest=held_digest(held), busy_slots=self.busy_slots
        )
        if self._send_held:
            heartbeat.held.extend(key.ref() for key in held)
            heartbeat.held_is_complete = True
            self._send_held = False
        self._messages.append(wire.WorkRequest(heartbeat=heartbeat))
        self._lease.sent(self._heartbeat_number, now_ms)
        self._heartbeat_due_at_ms = now_ms + self._heartbeat_interval_ms

    def _heartbeat_answered(self, now_ms: int, answer: wire.HeartbeatAnswer) -> None:
        self._lease.acknowledged(answer.number)
        self._send_held = answer.send_held
        self._note_lease(now_ms)
        drain = self._drain
        if drain is not None and drain.probe_number is not None and answer.number >= drain.probe_number:
            drain.settled = not answer.send_held

    def _change_node(self, why: str, addresses: tuple[str, ...] = ()) -> None:
        if not self._leaving:
            self._leaving = True
            self._directives.append(ChangeNode(why, addresses))

    # Handlers.

    def handler_ended(self, key: AttemptKey, outcome: Outcome) -> None:
        """A handler has ended. What it gave is reported in any case; the token decides whether it counts."""
        self._holdings.handler_ended(key, outcome)

    def progressed(self, key: AttemptKey, details: bytes) -> None:
        """A handler says how far it is."""
        self._holdings.progressed(key, details)

    # Time.

    def tick(self, now_ms: int) -> None:
        """Do what is due by time."""
        if self.finished:
            return
        self._note_lease(now_ms)
        self._holdings.stop_lost(now_ms, ttl_ms=self._lease.ttl_ms)
        self._holdings.report_starts(now_ms)
        self._holdings.warn_of_silence(now_ms)
        self._holdings.outbox.wake(now_ms)
        if self._welcomed:
            progress = self._holdings.progress_reports(now_ms)
            if progress.attempts:
                self._messages.append(wire.WorkRequest(report=progress))
            if now_ms >= self._heartbeat_due_at_ms:
                self._heartbeat(now_ms)
        self._holdings.kill_deaf(now_ms, ttl_ms=self._lease.ttl_ms, kill_grace_ms=self._kill_grace_ms)
        self._leave_silent_node(now_ms)
        self._end_process_if_over(now_ms)
        if not self.finished:
            self._judge_drain(now_ms)

    def _note_lease(self, now_ms: int) -> None:
        """Notice that the lease has ended, or that it runs again."""
        ends_at_ms = self._lease.ends_at_ms
        if ends_at_ms is None:
            return
        if now_ms >= ends_at_ms and not self._lease_over:
            self._lease_over = True
            _log.warning("lease_ended session=%s busy_slots=%s", self.session_id, self.busy_slots)
            self._holdings.lose_lease(ends_at_ms)
            self._holdings.stop_lost(now_ms, ttl_ms=self._lease.ttl_ms)
        elif now_ms < ends_at_ms and self._lease_over:
            self._lease_over = False
            _log.info("lease_runs_again session=%s", self.session_id)
            self._holdings.regain_lease()
            self._holdings.start_granted(now_ms)

    def _leave_silent_node(self, now_ms: int) -> None:
        since_ms, ttl_ms = self._lease.silent_since_ms(), self._lease.ttl_ms
        if self._welcomed:
            silence_ms_max = ttl_ms // 3
        else:
            patience_ms = ttl_ms // _TTL_PART or WELCOME_MS_MAX
            silence_ms_max = patience_ms << min(self._hellos_in_vain, _DOUBLINGS_MAX)
        if self._connected and since_ms is not None and now_ms - since_ms >= silence_ms_max:
            self._change_node(f"it has not answered for {now_ms - since_ms} ms")

    def _end_process_if_over(self, now_ms: int) -> None:
        for attempt in self._holdings.active.values():
            if stopping.must_end_process(
                attempt, now_ms=now_ms, ttl_ms=self._lease.ttl_ms, kill_grace_ms=self._kill_grace_ms
            ):
                self._end_process(attempt, "its lease has ended")
                return

    def _end_process(self, attempt: Attempt, why: str) -> None:
        """The last resort: nothing else ends a thread."""
        self.finished = True
        text = f"the handler of {'/'.join(map(str, attempt.key))} ({attempt.offer.action}) does not stop: {why}"
        self._directives.append(EndProcess(EXIT_KILLED, text))

    # Drain.

    def drain(self, now_ms: int, *, exit_code: int = 0) -> None:
        """Take nothing more, hand back what has not started, and end when the rest has ended. May be repeated."""
        if self._drain is not None:
            return
        _log.info("draining session=%s busy_slots=%s", self.session_id, self.busy_slots)
        self._drain = Drain(now_ms + self._drain_timeout_ms, exit_code)
        self._holdings.draining = True
        # Goes out before the reports: what a draining agent hands back may be given to another at once.
        self._tell_drain(now_ms)
        self._holdings.hand_back()

    def _tell_drain(self, now_ms: int) -> None:
        if self._drain is not None and self._welcomed:
            self._messages.append(wire.WorkRequest(drain=wire.Drain()))
            self._drain.told_at_ms = now_ms

    def _judge_drain(self, now_ms: int) -> None:
        """Stop what may not go on, and end when nothing is left that could still end by itself."""
        active = self._holdings.active.values()
        deaf = [
            attempt
            for attempt in active
            if stopping.is_deaf(attempt, now_ms=now_ms, kill_grace_ms=self._kill_grace_ms, drain=self._drain)
        ]
        if deaf and self._drain is None:
            _log.error("handler_deaf job=%s step=%s token=%s; the process drains and ends", *deaf[0].key)
            self.drain(now_ms, exit_code=EXIT_KILLED)
        drain = self._drain
        if drain is None:
            return
        if now_ms >= drain.deadline_ms:
            self._holdings.stop_running(now_ms, StopReason.DRAINING)
        if len(deaf) < len(active):
            drain.idle_since_ms = drain.probe_number = None
            return
        if drain.idle_since_ms is None:
            drain.idle_since_ms = now_ms
        if self._is_settled(now_ms, drain) or now_ms - drain.idle_since_ms >= ANSWERS_MS_MAX:
            self._finish(drain, deaf)

    def _is_settled(self, now_ms: int, drain: Drain) -> bool:
        """Whether the cluster knows all that became of this session's work, and has nothing on its way to it.

        An offer may cross the drain. So when all is answered the node is asked, by a heartbeat, whether it too
        counts nothing as held here; what arrives meanwhile is still handed back.
        """
        if self._holdings.outbox or self._holdings.ended:
            drain.probe_number, drain.settled = None, False
            return False
        if not self._welcomed:
            return True
        assert drain.told_at_ms is not None
        if drain.settled or now_ms - max(drain.told_at_ms, drain.probed_at_ms) < DRAIN_SETTLE_MS:
            return drain.settled
        self._heartbeat(now_ms)
        drain.probe_number = drain.probe_number or self._heartbeat_number
        drain.probed_at_ms = now_ms
        return False

    def _finish(self, drain: Drain, deaf: list[Attempt]) -> None:
        if deaf:
            self._end_process(deaf[0], "it was cancelled, and its time is over")
            return
        self.finished = True
        undelivered = len(self._holdings.outbox)
        if undelivered:
            _log.warning("drain_incomplete session=%s reports_undelivered=%s", self.session_id, undelivered)
        self._directives.append(Finish(drain.exit_code or (EXIT_UNDELIVERED if undelivered else 0)))
