"""What a replica is asked beside commands: which batches a reader must see, to hand over leadership, to recover."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, assert_never

from stepward.server.core.rejections import Reason, Rejection
from stepward.server.logbook.handover import Handover
from stepward.server.logbook.outbox import Answered, Confirm, Confirmed, Recover, Recovered, Transfer
from stepward.server.logbook.reads import Reads

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stepward.server.logbook.engine import Engine
    from stepward.server.logbook.outbox import ReplicaLimits

Question = Confirm | Transfer | Recover


def not_leader(leader_id: str) -> Rejection:
    """This node decides nothing; `leader_id` may, if it is known."""
    message = "this node does not lead the shard; nothing was proposed, ask its leader"
    return Rejection(Reason.NOT_LEADER, message, {"leader_id": leader_id} if leader_id else {})


class Questions:
    """Answers what can be answered in a step, and keeps the rest for a later one. Each is answered once."""

    def __init__(self, *, engine: Engine, peers: Sequence[str], limits: ReplicaLimits) -> None:
        self._engine = engine
        self._peers = frozenset(peers)
        self._limits = limits
        self._reads = Reads(engine)
        self._handover = Handover(engine)
        # They wait for this node's epoch.
        self._confirms: deque[Confirm] = deque()
        self._others: deque[Transfer | Recover] = deque()

    def __bool__(self) -> bool:
        """Whether anything waits for an answer."""
        return bool(self._confirms or self._others or len(self._reads) or self._handover)

    def ask(self, question: Question) -> None:
        """Note a question; `settled` has its answer, in this step or a later one."""
        if isinstance(question, Confirm):
            self._confirms.append(question)
        else:
            self._others.append(question)

    def cleared(self, answers: Sequence[Answered], now_ms: int) -> Sequence[Answered]:
        """Those of the answers that may leave at once. None of them has changed a row; see `Reads`."""
        room = self._limits.waiting_max - len(self._reads)
        if len(answers) <= room:
            return self._reads.cleared(answers, now_ms)
        return [Answered(answered.token, self._overloaded(), answered.sequence) for answered in answers]

    def settled(self, now_ms: int, sequence: int, *, epoch_open: bool) -> list[Answered]:
        """The answers that are known by now. `sequence` is the head's."""
        found = self._reads.confirmed()
        found += self._handover.ended(now_ms, sequence)
        while self._others:
            found += self._act(self._others.popleft(), now_ms, sequence)
        found += self._confirm(now_ms, sequence, epoch_open=epoch_open)
        return found

    def close(self, sequence: int) -> list[Answered]:
        """The epoch is over: what waited for a confirmation will not get one, and nothing has come of it."""
        refused = not_leader(self._engine.leader_id)
        return [Answered(answered.token, refused, sequence) for answered in self._reads.drain()]

    def _confirm(self, now_ms: int, sequence: int, *, epoch_open: bool) -> Iterator[Answered]:
        if not self._confirms:
            return
        if not self._engine.leads:
            refused = not_leader(self._engine.leader_id)
            yield from (Answered(confirm.token, refused, sequence) for confirm in self._confirms)
            self._confirms.clear()
        elif epoch_open:
            # All of them share the round that the last one needs.
            yield from self.cleared([Answered(one.token, Confirmed(), sequence) for one in self._confirms], now_ms)
            self._confirms.clear()
        while len(self._confirms) > self._limits.waiting_max:
            yield Answered(self._confirms.pop().token, self._overloaded(), sequence)

    def _act(self, question: Transfer | Recover, now_ms: int, sequence: int) -> Iterator[Answered]:
        match question:
            case Transfer():
                refused = self._hand_over(question, now_ms)
                if refused is not None:
                    yield Answered(question.token, refused, sequence)
            case Recover():
                yield Answered(question.token, self._recover(question, now_ms), sequence)
            case never:
                assert_never(never)

    def _hand_over(self, question: Transfer, now_ms: int) -> Rejection | None:
        if not self._engine.leads:
            return not_leader(self._engine.leader_id)
        if question.target_id and question.target_id not in self._peers:
            message = (
                f"target_id is {question.target_id!r}; it must be one of {', '.join(sorted(self._peers)) or 'none'}"
            )
            return Rejection(Reason.INVALID_ARGUMENT, message)
        return self._handover.begin(question, now_ms)

    def _recover(self, question: Recover, now_ms: int) -> Recovered | Rejection:
        reason = self._engine.recover(question.gone_ids, now_ms)
        return Rejection(Reason.NODE_STATE, f"nothing was changed: {reason}") if reason else Recovered()

    def _overloaded(self) -> Rejection:
        message = f"{self._limits.waiting_max} questions wait already; try again later"
        return Rejection(Reason.OVERLOADED, message, retry_after_ms=self._limits.overloaded_retry_after_ms)
