"""One replica of one shard, as an actor: `step(now, inbox)` gives an outbox.

It owns the write transaction, the raft engine and the decisions, and has no thread, no clock and no socket of its own;
whoever hosts it calls `step` from the one thread on which it was made. Everything that the outbox holds is durable.
"""

from __future__ import annotations

from contextlib import contextmanager
from random import Random
from typing import TYPE_CHECKING, NamedTuple, assert_never

import msgspec

from stepward.server.core import clocks, epoch_rows, keys
from stepward.server.core.rejections import Reason, Rejection
from stepward.server.logbook import batch as batches
from stepward.server.logbook import engine
from stepward.server.logbook.batch import Batch, Verdict
from stepward.server.logbook.deciding import Author, Gatherer, Ground
from stepward.server.logbook.engine import Engine
from stepward.server.logbook.errors import AssertionsOff, BatchUnreadable, Diverged, ReplicaStopped
from stepward.server.logbook.journal import StoreJournal
from stepward.server.logbook.outbox import (
    Answered,
    Applied,
    Condition,
    Decider,
    Instant,
    Outbox,
    Proposal,
    ReplicaLimits,
    Standing,
)
from stepward.server.logbook.waiting import Waiting
from stepward.server.store import facts
from stepward.server.store.live import CommittedRows, LiveRows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from stepward.server.core.rows import Row
    from stepward.server.logbook.identity import Identity
    from stepward.server.store.interface import Store

__all__ = ["Answered", "Applied", "Decider", "Instant", "Outbox", "Proposal", "Replica", "ReplicaLimits", "Standing"]


class _InFlight(NamedTuple):
    """A batch that this leader decided and nobody has applied yet."""

    command: bytes
    batch: Batch
    hash: bytes
    changes: Mapping[bytes, Row | None]
    answers: Sequence[Answered]


class Replica:
    """The replica of one node in one shard.

    Args:
        store: Opened by the caller, on this thread; closed by `close`.
        identity: Who this node is; made by `create_cluster`, read by `open_identity`.
        decider: Called with committed rows while no batch is in flight.
        boot_id: Names the boot to which `steady_ms` belongs.
        now: The moment of the start.
        on_failure: Told of each command whose rule raised, for the log.
        limits: Bounds; the defaults are those of a node.

    Raises:
        AssertionsOff: Python runs with -O.
        JournalCorrupt: The journal cannot have been written by us.
        StoreCorrupt: The head cannot be read.
    """

    def __init__(
        self,
        *,
        store: Store,
        identity: Identity,
        decider: Decider,
        boot_id: str,
        now: Instant,
        on_failure: Callable[[object, BaseException], None],
        limits: ReplicaLimits | None = None,
    ) -> None:
        if not __debug__:
            raise AssertionsOff
        self._store = store
        self._identity = identity
        self._boot_id = boot_id
        self._author = Author(identity.incarnation, boot_id)
        self._on_failure = on_failure
        self._limits = limits or ReplicaLimits()
        self._head = facts.read_head(store)
        self._journal = StoreJournal(
            store,
            entries_max=self._limits.journal_entries_max,
            bytes_max=self._limits.journal_bytes_max,
            pinned_entries_max=self._limits.pinned_entries_max,
            pinned_bytes_max=self._limits.pinned_bytes_max,
            boot_id=boot_id,
        )
        self._engine = self._make_engine(now)
        # The term for which this replica has proposed an epoch; None while it leads none.
        self._epoch_term: int | None = None
        # There while that epoch is open; built from rows at its first batch, and thrown away with it.
        self._live: LiveRows | None = None
        self._in_flight: _InFlight | None = None
        self._waiting = Waiting()
        self._gatherer = Gatherer(decider=decider, author=self._author, waiting=self._waiting, limits=self._limits)
        self._free_bytes, self._free_bytes_at_ms = store.free_bytes(), now.steady_ms
        self._unsound = False
        self._answers: list[Answered] = []
        self._applied: list[Applied] = []

    def _make_engine(self, now: Instant) -> Engine:
        return Engine(
            node_id=self._identity.node_id,
            peers=self._identity.peers,
            journal=self._journal,
            apply=self._apply,
            now_ms=now.steady_ms,
            # Nothing hangs on chance here but that no two nodes, and no two starts, wait for the same time.
            rng=Random(f"{self._identity.node_id} {self._boot_id} {now.steady_ms}"),
            incarnation=self._identity.node_incarnation,
        )

    def step(self, now: Instant, inbox: Sequence[Proposal]) -> Outbox:
        """Take in proposals, move the engine, decide at most one batch, flush, and say what came of it.

        Never waits for anything but the disk. Cheap when there is nothing to do.

        Raises:
            Diverged: The logbook holds a batch that does not continue ours. Nothing more will be applied or served;
                the files are kept for a person.
            BatchUnreadable: The logbook holds an entry that this software cannot read.
            StoreFailed: The disk did not take a write.
            ReplicaStopped: An earlier step raised; the process has to end.
        """
        if self._unsound:
            raise ReplicaStopped
        # Until this step has ended well: if it does not, what is in memory may be ahead of the disk.
        self._unsound = True
        self._answers, self._applied = [], []
        self._engine.tick(now.steady_ms)
        self._follow_leadership(now)
        self._take_in(inbox)
        self._decide(now)
        self._journal.compact()
        self._flush_before_outbox()
        self._unsound = False
        frames = self._engine.release()
        return Outbox(self._answers, self._applied, self.standing, self._wake_at_ms(now), frames)

    @property
    def standing(self) -> Standing:
        """What this replica was at the end of the last step."""
        return Standing(self._live is not None, self._head.epoch, self._engine.term, self._head)

    def condition(self) -> Condition:
        """What an operator asks for beside the standing."""
        first, last = self._journal[0][1], self._journal[-1][1]
        return Condition(waiting=len(self._waiting), log_first_index=first, log_last_index=last)

    @contextmanager
    def committed(self) -> Iterator[CommittedRows]:
        """The rows as the last step left them, for calls that read. Any thread may ask."""
        with self._store.snapshot() as snapshot:
            yield CommittedRows(snapshot)

    def withdraw(self) -> list[Proposal]:
        """Take back what waits and was in no batch: none of it has happened, or will. Nothing after a failed step."""
        if self._unsound:
            return []
        return [self._waiting.pop_first() for _ in range(len(self._waiting))]

    def close(self) -> None:
        """Let go of the files. What no step has flushed is lost, and was never answered. Safe to repeat."""
        self._unsound = True
        self._engine.close()
        self._store.close()

    def _flush_before_outbox(self) -> None:
        # Answers say what the rows hold, and messages to peers promise votes and entries: no restart may forget these.
        self._store.commit()

    def _wake_at_ms(self, now: Instant) -> int:
        if self._live is not None and self._in_flight is None and self._waiting:
            return now.steady_ms
        return now.steady_ms + self._limits.idle_ms

    # Epochs.

    def _follow_leadership(self, now: Instant) -> None:
        """Close an epoch whose term is over; open one when this node leads and has applied what others left."""
        leads, term = self._engine.leads, self._engine.term
        if self._epoch_term is not None and not (leads and term == self._epoch_term):
            self._close_epoch()
        if self._epoch_term is None and leads and self._engine.settled:
            self._epoch_term = term
            self._open_epoch(now)

    def _open_epoch(self, now: Instant) -> None:
        """Propose the batch from which on this node decides. If it is skipped as stale, the next step tries again."""
        moved = clocks.reopen(self._head, steady_ms=now.steady_ms, wall_ms=now.wall_ms, boot_id=self._boot_id)
        epoch = self._head.epoch + 1
        opened = (keys.EPOCH, keys.encode_row(epoch_rows.Epoch(epoch, moved.log_ms)))
        batch = self._author.batch(Ground(self._head, now, moved), epoch=epoch, puts=[opened], deletes=[])
        self._propose(now, batch, batches.encode(batch), changes={}, answers=())

    def _close_epoch(self) -> None:
        """Answer everybody who waits, and forget everything that was derived from rows."""
        if self._in_flight is not None:
            unknown = Rejection(
                Reason.COMMIT_UNKNOWN,
                "leadership was lost while this was being committed; it may or may not have happened, ask again",
            )
            self._answers += [Answered(answered.token, unknown, 0) for answered in self._in_flight.answers]
        self._refuse_waiting(_not_leader())
        self._epoch_term, self._live, self._in_flight = None, None, None

    # Commands.

    def _take_in(self, inbox: Sequence[Proposal]) -> None:
        """Let proposals wait for the next batch, or refuse them."""
        self._waiting.extend(inbox)
        if self._epoch_term is None:
            self._refuse_waiting(_not_leader())
        while len(self._waiting) > self._limits.waiting_max:
            message = f"{self._limits.waiting_max} commands wait already; try again later"
            overloaded = Rejection(Reason.OVERLOADED, message, retry_after_ms=self._limits.overloaded_retry_after_ms)
            self._refuse(self._waiting.pop_last(), overloaded)

    def _refuse_waiting(self, rejection: Rejection) -> None:
        while self._waiting:
            self._refuse(self._waiting.pop_first(), rejection)

    def _refuse(self, proposal: Proposal, rejection: Rejection) -> None:
        self._answers.append(Answered(proposal.token, rejection, self._head.sequence))

    def _decide(self, now: Instant) -> None:
        """Decide one batch from what waits, and propose it. Its answers leave when it is applied.

        A decision that changes nothing was made on rows that are applied, so its answers leave at once.
        """
        if self._live is None or self._in_flight is not None or not self._waiting:
            return
        if self._disk_is_full(now):
            free, least = self._free_bytes / 2**20, self._limits.free_bytes_min / 2**20
            message = f"{free:g} MiB of disk are free; {least:g} MiB are needed to go on: free some"
            self._refuse_waiting(Rejection(Reason.DISK_FULL, message))
            return
        moved = clocks.advance(self._head, steady_ms=now.steady_ms, wall_ms=now.wall_ms)
        gathered = self._gatherer.gather(self._live, Ground(self._head, now, moved))
        decision = gathered.decision
        for command, error in decision.failures:
            self._on_failure(command, error)
        if gathered.misfit is not None:
            assert len(gathered.proposals) == 1, "fewer commands were not tried"
            self._refuse(gathered.proposals[0], gathered.misfit)
            return
        sequence = gathered.batch.sequence if decision.changes else self._head.sequence
        answers = [
            Answered(proposal.token, answer, sequence)
            for proposal, answer in zip(gathered.proposals, decision.answers, strict=True)
        ]
        if decision.changes:
            self._propose(now, gathered.batch, gathered.encoded, changes=decision.changes, answers=answers)
        else:
            self._answers += answers

    def _disk_is_full(self, now: Instant) -> bool:
        if now.steady_ms - self._free_bytes_at_ms >= self._limits.free_bytes_age_ms:
            self._free_bytes, self._free_bytes_at_ms = self._store.free_bytes(), now.steady_ms
        return self._free_bytes < self._limits.free_bytes_min

    # Batches.

    def _propose(
        self,
        now: Instant,
        batch: Batch,
        encoded: bytes,
        *,
        changes: Mapping[bytes, Row | None],
        answers: Sequence[Answered],
    ) -> None:
        assert self._in_flight is None, "one batch is in flight already"
        assert batches.judge(self._head, batch) is Verdict.APPLY, (self._head, batch.sequence)
        command = engine.REGULAR + encoded
        self._in_flight = _InFlight(command, batch, batches.hash_of(encoded), changes, answers)
        self._engine.propose(command)
        # In a cluster of one this commits and applies it; with peers it is on its way to them.
        self._engine.tick(now.steady_ms)

    def _apply(self, index: int, command: bytes) -> None:
        """Write what an entry says. Called by the engine, in order; knows no rule and reads no clock."""
        match command[:1]:
            case engine.REGULAR:
                self._apply_batch(index, command)
            case engine.NO_OP:
                pass
            case kind:
                # pysyncobj would unpickle these.
                raise BatchUnreadable(index, f"its kind is {kind.hex()}")
        self._journal.mark_applied(index)

    def _apply_batch(self, index: int, command: bytes) -> None:
        flying = self._in_flight
        ours = flying if flying is not None and flying.command is command else None
        batch, batch_hash = (ours.batch, ours.hash) if ours is not None else _read(index, command)
        match batches.judge(self._head, batch):
            case Verdict.DIVERGED:
                raise Diverged(index, self._head, batch)
            case Verdict.STALE:
                if ours is not None:
                    self._close_epoch()
            case Verdict.APPLY:
                self._store.apply(batch.puts, batch.deletes)
                self._head = batches.head_after(batch, batch_hash)
                self._store.put_fact(facts.HEAD, facts.encode_head(self._head))
                changes = None if ours is None else ours.changes
                self._applied.append(Applied(batch.sequence, batch.epoch, changes, batch.puts, batch.deletes))
                if ours is not None:
                    self._land(ours)
            case verdict:
                assert_never(verdict)

    def _land(self, ours: _InFlight) -> None:
        """Our batch is applied: let its answers go, and take its rows over into memory."""
        self._in_flight = None
        self._answers += ours.answers
        if self._live is None:
            self._live = LiveRows(self._store)
        else:
            self._live.applied(ours.changes)


def _read(index: int, command: bytes) -> tuple[Batch, bytes]:
    """A batch that came from elsewhere, and its hash."""
    encoded = memoryview(command)[len(engine.REGULAR) :]
    try:
        return batches.decode(encoded), batches.hash_of(encoded)
    except msgspec.DecodeError as error:
        raise BatchUnreadable(index, str(error)) from error


def _not_leader() -> Rejection:
    return Rejection(Reason.NOT_LEADER, "this node does not lead the shard; nothing was proposed, ask its leader")
