"""Where commands and readers of this node go while another node leads.

Whoever decides is found by this node alone: a node that does not lead says so, and does not send on. So two nodes that
take each other for the leader cost a few hops, never a loop.
"""

from __future__ import annotations

import asyncio
import itertools
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from stepward.server import observe
from stepward.server.core.commands import CloseStream, DrainSession, RenewSession, ReportAttempts
from stepward.server.core.rejections import Reason, Rejection
from stepward.server.peers import encoding
from stepward.server.peers.errands import Ahead, Errand, Errands
from stepward.server.peers.errors import MessageUnreadable
from stepward.server.peers.forward_link import ForwardLink
from stepward.server.peers.readers import Readers
from stepward.server.renewals import may_wait

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable

    from stepward.internal.v1 import peer_service_pb2 as pb
    from stepward.server.clock import Clock
    from stepward.server.config import NodeConfig
    from stepward.server.core.commands import Answer, AnyCommand
    from stepward.server.logbook.outbox import Standing
    from stepward.server.observe import Counters
    from stepward.server.peers.contact import Contact
    from stepward.server.peers.errands import Question
    from stepward.server.peers.forward_link import ForwardCall
    from stepward.server.tickets import ReaderTicket, Ticket

# How often one command may be sent to a node that turns out not to lead.
HOPS_MAX: Final = 3
# A node that says that it does not lead is asked again after this time, unless this node hears of another leader
# before: usually the answer is some milliseconds ahead of the news.
REFUSED_MS: Final = 250
# How often what has waited too long is looked for; all bounds are some hundreds of milliseconds.
LOOK_MS: Final = 100
# How long after a stream has failed the next one is tried; doubled with each failure, with jitter.
REOPEN_MS_MIN: Final = 50
REOPEN_MS_MAX: Final = 1_000
# At latest so long after the last question another one is asked, so that a stale reader can be told how stale.
FRESHNESS_MS: Final = 1_000

# Said by a node that has decided nothing, and that another one may decide.
_ELSEWHERE: Final = frozenset({Reason.NOT_LEADER, Reason.NO_LEADER, Reason.NODE_DRAINING})
# Said without a look at what was decided before: it tells nothing of the first time when it is said to the second.
_WITHOUT_A_LOOK: Final = _ELSEWHERE | {Reason.OVERLOADED, Reason.DISK_FULL, Reason.INTERNAL}
# What agents send may wait until their streams are ended for want of a leader; calls have callers who go elsewhere.
_OF_AGENTS: Final = (ReportAttempts, CloseStream, DrainSession)
# A renewal waits for less than the time to the next one, a sixth of a TTL, so that no two of a session can wait: what
# the list of an old one lacks would be taken for lost once a younger one is decided in front of it.
_RENEWAL_WAIT_DIVISOR: Final = 4

_log = observe.logger("forwarding")


class Host(Protocol):
    """The shard of this node, as far as forwarding needs it."""

    @property
    def leads(self) -> bool:
        """Whether this node decides now."""
        ...

    @property
    def standing(self) -> Standing:
        """What the replica was at the end of the last step."""
        ...

    def decide(self, command: AnyCommand, ticket: Ticket, *, urgent: bool, share: str) -> None:
        """Let this node's replica decide."""
        ...

    def confirm(self, ticket: ReaderTicket) -> None:
        """Ask whether this node leads, and which batches a reader must see."""
        ...

    def serves(self, peer_id: str, for_ms: int) -> None:
        """Clients or agents of another node wait for it to apply what is committed, and will for so long."""
        ...

    def hand_out(self, ticket: Ticket, answer: Answer) -> None:
        """Give an answer to the one who waits, whatever he does with it."""
        ...


class Forwarding:
    """The way of commands and readers to the leader. Lives on the event loop of its node."""

    def __init__(
        self,
        host: Host,
        *,
        node_id: str,
        hello: Callable[[str], pb.Hello],
        connect: Callable[[str], ForwardCall],
        contact: Contact,
        clock: Clock,
        config: NodeConfig,
        counters: Counters,
        rng: random.Random,
    ) -> None:
        """`hello` is the first word to a node, and `connect` opens the call to it."""
        self.errands = Errands()
        # Of other nodes, which take this one for the leader: they wait here, and go nowhere else.
        self._held: list[Errand] = []
        self._host = host
        self.node_id = node_id
        self._hello = hello
        self._connect = connect
        self.contact = contact
        self._clock = clock
        self._config = config
        self._counters = counters
        self._rng = rng
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count()
        self._ahead = Ahead()
        self.readers = Readers(
            host,
            self._ahead,
            clock=clock,
            config=config,
            no_leader=self.no_leader,
            shut=self._shut,
            behind=self._behind,
            wake=self._wake,
        )
        self._link: ForwardLink | None = None
        self._standing = host.standing
        # Who has said in which term that he does not lead, and until when that is taken for an answer.
        self._refused: tuple[str, int] | None = None
        self._refused_until_ms = 0
        self._reopen_at_ms = 0
        self._reopen_after_ms = REOPEN_MS_MIN
        self._timer: asyncio.TimerHandle | None = None
        # When heartbeats that wait for company leave, if nothing else does before.
        self._renewals_timer: asyncio.TimerHandle | None = None
        self._stopped = False

    # Callers of this node.

    def propose(self, command: AnyCommand, ticket: Ticket, *, urgent: bool, share: str) -> None:
        """Have a command decided, here or elsewhere."""
        if self.contact.is_shut:
            # It would be decided, and its answer wait for rows that do not come.
            self._host.hand_out(ticket, self.contact.shut())
            return
        now_ms = self._clock.steady_ms()
        if isinstance(command, RenewSession):
            wait_ms = self.contact.ms_max // _RENEWAL_WAIT_DIVISOR
        else:
            wait_ms = self.contact.ms_max if isinstance(command, _OF_AGENTS) else self._config.leader_wait_ms_max
        errand = Errand(
            command,
            ticket,
            self._came_here,
            number=next(self._numbers),
            urgent=urgent,
            share=share,
            ends_at_ms=now_ms + wait_ms,
        )
        self._route(errand)

    def hold(self, errand: Errand) -> None:
        """Let a command of another node wait until this one, which is about to lead, decides."""
        if len(self._held) >= self._config.forwarded_waiting_max:
            self._host.hand_out(errand.ticket, self._too_many())
        else:
            self._held.append(errand)

    def no_leader(self) -> Rejection:
        """This node has found nobody who decides; nothing has happened."""
        return self.contact.refusal(Reason.NO_LEADER, "no leader of the shard was found in time; nothing was decided")

    # What the shard tells.

    def stepped(self, standing: Standing) -> None:
        """The replica has made a step. Called before the batches of the step are told to anybody."""
        before, self._standing = self._standing, standing
        self._ahead.release(standing.head.sequence)
        now_ms = self._clock.steady_ms()
        self.readers.stepped(standing, now_ms)
        if (before.leads, before.leader_id, before.term) != (standing.leads, standing.leader_id, standing.term):
            self._follow()
        if self._timer is None and not self._stopped:
            self._look()

    def stop(self) -> None:
        """The node is ending: answer everybody who waits. Safe to repeat."""
        if self._stopped:
            return
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        if self._renewals_timer is not None:
            self._renewals_timer.cancel()
        self._drop_link()
        never = Rejection(Reason.NODE_DRAINING, "this node is shutting down; nothing was decided: ask another node")
        for errand in (*self.errands.take_all(), *self._take_held()):
            self._host.hand_out(errand.ticket, _unknown() if errand.unknown else never)
        self.readers.stop(never)
        self._ahead.drop_all()

    # What a link needs (`forward_link.Desk`).

    @property
    def questions(self) -> list[Question]:
        """See `Desk`."""
        return self.readers.waiting

    @property
    def may_send(self) -> bool:
        """See `Desk`."""
        return self._refused is None or self._clock.steady_ms() >= self._refused_until_ms

    def now_ms(self) -> int:
        """See `Desk`."""
        return self._clock.steady_ms()

    def sending(self, commands: int) -> None:
        """See `Desk`."""
        self._counters.forwarded += commands

    def welcomed(self, link: ForwardLink) -> None:
        """See `Desk`."""
        self._reopen_after_ms = REOPEN_MS_MIN
        _log.info("forwarding_to", node_id=link.peer_id)

    def came(self, link: ForwardLink, response: pb.ForwardResponse) -> None:
        """See `Desk`."""
        if link is not self._link:
            return
        again: list[Errand] = []
        for answered in response.answers:
            errand = link.sent.pop(answered.id, None)
            if errand is None:
                _log.error("answer_to_nothing", node_id=link.peer_id, id=answered.id)
                continue
            try:
                answer = encoding.decode_answer(answered.answer)
            except MessageUnreadable as error:
                _log.error("answer_unreadable", node_id=link.peer_id, message=str(error))
                answer = _unknown()
            if self._goes_on(errand, answer):
                again.append(errand)
            else:
                self._answer(errand, answer, answered.sequence)
        self._put_back(again)
        for read in response.reads:
            asked_at_ms, questions = link.asked.pop(read.id, (0, ()))
            if asked_at_ms:
                self._read_answered(read, asked_at_ms, questions)

    def ended(self, link: ForwardLink, why: str) -> None:
        """See `Desk`."""
        if link is not self._link:
            return
        _log.warning("forwarding_ended", node_id=link.peer_id, why=why)
        self._drop_link()
        self._reopen_at_ms = self._clock.steady_ms() + int(self._reopen_after_ms * self._rng.uniform(0.5, 1.5))
        self._reopen_after_ms = min(2 * self._reopen_after_ms, REOPEN_MS_MAX)

    # Routing.

    def _route(self, errand: Errand) -> None:
        if self._stopped:
            rejection = Rejection(Reason.NODE_DRAINING, "this node is shutting down; ask another node")
            self._host.hand_out(errand.ticket, rejection)
        elif self._host.leads:
            self._host.decide(errand.command, errand, urgent=errand.urgent, share=errand.share)
        elif len(self.errands) >= self._config.forwarded_waiting_max:
            self._host.hand_out(errand.ticket, self._too_many())
        else:
            self.errands.push(errand)
            if may_wait(errand.command):
                self._wake_later()
            else:
                self._wake()

    def _wake_later(self) -> None:
        if self._renewals_timer is None:
            self._renewals_timer = self._loop.call_later(self._config.gather_renewals_ms / 1_000, self._renewals_due)

    def _renewals_due(self) -> None:
        self._renewals_timer = None
        self._wake()

    def _wake(self) -> None:
        if self._link is not None and self._link.stands:
            self._link.wake()

    def _follow(self) -> None:
        """Leadership has changed, as far as this node knows."""
        standing = self._standing
        if self._refused != (standing.leader_id, standing.term):
            self._refused = None
        if self._link is not None and self._link.peer_id != self._target:
            self._drop_link()
        self._reopen_at_ms = 0
        if standing.leads:
            self.readers.ask_here()
            for errand in sorted((*self.errands.take_all(), *self._take_held()), key=lambda errand: errand.number):
                self._route(errand)
        elif standing.leader_id != self.node_id:
            for errand in self._take_held():
                self._host.hand_out(errand.ticket, self.not_leader())
        self._open_link(self._clock.steady_ms())
        self._wake()

    @property
    def _target(self) -> str:
        """The other node that leads; empty when none is known, or this one does."""
        leader_id = self._standing.leader_id
        return "" if self._standing.leads or leader_id == self.node_id else leader_id

    def _open_link(self, now_ms: int) -> None:
        target = self._target
        if self._stopped or self._link is not None or not target or now_ms < self._reopen_at_ms:
            return
        self._link = ForwardLink(target, self._connect(target), self._hello(target), self)

    def _drop_link(self) -> None:
        """Close the link. What was sent on it and may not be repeated has an unknown outcome."""
        link, self._link = self._link, None
        if link is None:
            return
        link.close()
        again: list[Errand] = []
        for errand in link.sent.values():
            if self._goes_on(errand, _unknown()):
                again.append(errand)
            else:
                self._host.hand_out(errand.ticket, _unknown())
        self._put_back(again)
        for _, questions in link.asked.values():
            self.readers.again(questions)

    def _put_back(self, errands: list[Errand]) -> None:
        """Let errands look for a leader again, in the order in which they came."""
        if not errands:
            return
        if self._stopped or self._host.leads:
            for errand in errands:
                self._route(errand)
        else:
            self.errands.put_back(errands)
            self._wake()

    # Answers.

    def _came_here(self, errand: Errand, answer: Answer) -> None:
        """The replica of this node has answered."""
        if self._goes_on(errand, answer):
            self._put_back([errand])
        else:
            errand.ticket.answered(self._last_word(errand, answer))

    def _goes_on(self, errand: Errand, answer: Answer) -> bool:
        """Whether an errand looks for a leader again. It does while that is safe, and there is time.

        A renewal never does: it speaks of the moment at which it was made, and the next one comes soon.
        """
        if self._stopped or not isinstance(answer, Rejection) or self._clock.steady_ms() >= errand.ends_at_ms:
            return False
        if answer.reason is Reason.COMMIT_UNKNOWN:
            errand.unknown = True
            return errand.may_repeat
        if answer.reason not in _ELSEWHERE:
            return False
        self._refused = (self._standing.leader_id, self._standing.term)
        self._refused_until_ms = self._clock.steady_ms() + REFUSED_MS
        errand.hops += 1
        return errand.hops < HOPS_MAX and not isinstance(errand.command, RenewSession)

    def _answer(self, errand: Errand, answer: Answer, sequence: int) -> None:
        """Hand out what the leader has said, when this node shows what it speaks of."""
        answer = self._last_word(errand, answer)
        if sequence <= self._standing.head.sequence:
            self._host.hand_out(errand.ticket, answer)
            return
        ends_at_ms = self._clock.steady_ms() + self._config.behind_ms_max
        late = answer if isinstance(answer, Rejection) else self._behind()
        self._ahead.hold(
            sequence,
            ends_at_ms,
            partial(self._host.hand_out, errand.ticket, answer),
            partial(self._host.hand_out, errand.ticket, late),
        )

    def _last_word(self, errand: Errand, answer: Answer) -> Answer:
        """What to tell of an errand that looks for a leader no longer.

        One that was sent twice may have happened the first time, whatever the second one met.
        """
        if not isinstance(answer, Rejection):
            return answer
        if errand.unknown and answer.reason in _WITHOUT_A_LOOK:
            return _unknown()
        return answer if self._stopped or answer.reason not in _ELSEWHERE else self.no_leader()

    def _read_answered(self, read: pb.ReadAnswer, asked_at_ms: int, questions: Iterable[Question]) -> None:
        if not read.rejection:
            self.readers.answered(questions, read.sequence, asked_at_ms)
            return
        self._refused = (self._standing.leader_id, self._standing.term)
        self._refused_until_ms = self._clock.steady_ms() + REFUSED_MS
        self.readers.again(questions)

    # Time.

    def _look(self) -> None:
        """Answer those who have waited too long, and try again what failed.

        By a timer of its own: while nothing is heard the replica steps no more often than its elections need.
        """
        self._timer = self._loop.call_later(LOOK_MS / 1_000, self._look)
        now_ms = self._clock.steady_ms()
        for errand in self.errands.take_over(now_ms):
            self._host.hand_out(errand.ticket, _unknown() if errand.unknown else self.no_leader())
        if self._held:
            over = [errand for errand in self._held if now_ms >= errand.ends_at_ms]
            self._held = [errand for errand in self._held if now_ms < errand.ends_at_ms]
            for errand in over:
                self._host.hand_out(errand.ticket, self.not_leader())
        self.readers.expire(now_ms)
        self._ahead.expire(now_ms)
        self._open_link(now_ms)
        link = self._link
        if link is not None and link.stands:
            if now_ms - link.asked_at_ms >= FRESHNESS_MS:
                link.ask()
            elif self._refused is not None:
                link.wake()
        self.contact.judge(self._standing, now_ms)

    # Refusals.

    def not_leader(self) -> Rejection:
        """What another node is told that takes this one for the leader."""
        return self.contact.refusal(Reason.NOT_LEADER, "this node does not lead the shard; nothing was decided")

    def _shut(self) -> Rejection | None:
        return self.contact.shut() if self.contact.is_shut else None

    def _too_many(self) -> Rejection:
        text = f"{self._config.forwarded_waiting_max} commands wait for the leader here, which is the most; come back"
        return Rejection(Reason.OVERLOADED, text, retry_after_ms=self._config.overload_retry_after_ms)

    def _behind(self) -> Rejection:
        return Rejection(
            Reason.COMMIT_UNKNOWN,
            f"this node is more than {self._config.behind_ms_max} ms behind the leader; ask again, or another node",
        )

    def _take_held(self) -> list[Errand]:
        held, self._held = self._held, []
        return held


def _unknown() -> Rejection:
    return Rejection(
        Reason.COMMIT_UNKNOWN,
        "the leader was lost before it answered; this may or may not have happened, ask again",
    )
