"""One replica of one shard, as an actor: `step(now, inbox)` gives an outbox.

It owns the write transaction, the raft engine and the decisions, and has no thread, no clock and no socket of its own;
whoever hosts it calls `step` from the one thread on which it was made. Everything that the outbox holds is durable.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, assert_never

from stepward.server.core import clocks, epochs, keys
from stepward.server.core.rejections import Reason, Rejection
from stepward.server.logbook import batch as batches
from stepward.server.logbook import frames, installing
from stepward.server.logbook.batch import Batch, Verdict
from stepward.server.logbook.deciding import Author, Gatherer, Ground
from stepward.server.logbook.engine import Engine
from stepward.server.logbook.errors import AssertionsOff, BatchUnreadable, Diverged, ReplicaStopped
from stepward.server.logbook.gap import HeadAge
from stepward.server.logbook.journal import StoreJournal
from stepward.server.logbook.listening import Listener
from stepward.server.logbook.outbox import (
    Answered,
    Applied,
    Condition,
    Decider,
    Fetched,
    Instant,
    Letter,
    Outbox,
    Proposal,
    ReplicaLimits,
    Standing,
)
from stepward.server.logbook.questions import Questions, not_leader
from stepward.server.logbook.room import FullDisk, Room
from stepward.server.logbook.waiting import Waiting
from stepward.server.store import facts
from stepward.server.store.errors import IncomingFailed
from stepward.server.store.live import CommittedRows, LiveRows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from random import Random

    from stepward.server.core.rows import Row
    from stepward.server.logbook.identity import Identity
    from stepward.server.logbook.outbox import Frame
    from stepward.server.store.interface import Export, Incoming, Store

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
        identity: Who this node is, and who the others are; made by `create_cluster`, read by `open_identity`.
        decider: Called with committed rows while no batch is in flight.
        boot_id: Names the boot to which `steady_ms` belongs.
        now: The moment of the start.
        rng: Chance, for elections.
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
        rng: Random,
        on_failure: Callable[[object, BaseException], None],
        limits: ReplicaLimits | None = None,
    ) -> None:
        if not __debug__:
            raise AssertionsOff
        self._store = store
        self._peers = identity.peers
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
            held_entries_max=self._limits.held_entries_max,
            boot_id=boot_id,
        )
        room = Room(store, self._limits, now_ms=now.steady_ms)
        self._engine = Engine(
            node_id=identity.node_id,
            peers=identity.peers,
            journal=self._journal,
            apply=self._apply,
            now_ms=now.steady_ms,
            rng=rng,
            room=room,
            incarnation=identity.node_incarnation,
        )
        self._full_disk = FullDisk(room, self._engine, self._limits, now_ms=now.steady_ms)
        self._head_age = HeadAge(journal=self._journal, engine=self._engine, peers=identity.peers, boot_id=boot_id)
        # The term for which this replica has proposed an epoch; None while it leads none.
        self._epoch_term: int | None = None
        # There while that epoch is open; built from rows at its first batch, and thrown away with it.
        self._live: LiveRows | None = None
        self._in_flight: _InFlight | None = None
        self._waiting = Waiting()
        self._gatherer = Gatherer(decider=decider, author=self._author, waiting=self._waiting, limits=self._limits)
        self._questions = Questions(engine=self._engine, peers=identity.peers, limits=self._limits)
        self._listener = Listener(engine=self._engine, questions=self._questions, head_age=self._head_age)
        self._now = now
        self._flush_ms = 0.0
        # Set by the host: lead no more from the next step on, and leave it to others for a while.
        self.stands_down = False
        self._installed = self._unsound = False
        self._steps = 0
        self._answers: list[Answered] = []
        self._applied: list[Applied] = []

    def step(self, now: Instant, inbox: Sequence[Letter]) -> Outbox:
        """`begin` and `finish` in one, for a host that has nothing to gain from what may leave between them."""
        frames = self.begin(now, inbox)
        outbox = self.finish()
        return outbox._replace(frames=[*frames, *outbox.frames]) if frames else outbox

    def begin(self, now: Instant, inbox: Sequence[Letter]) -> list[Frame]:
        """Hear the peers, take in proposals, move the engine, decide at most one batch. `finish` has to follow.

        Cheap when there is nothing to do. `now` is read after the inbox was taken: whether this node still led when it
        was asked something is judged at that instant.

        Returns:
            Messages that promise nothing, and so may leave before the flush: the disks of the others then work beside
            the one here. They come before the frames of the outbox.

        Raises:
            Diverged: The logbook holds a batch that does not continue ours. Nothing more will be applied or served;
                the files are kept for a person.
            BatchUnreadable: The logbook holds an entry that this software cannot read.
            StoreFailed: The disk did not take a write.
            ReplicaStopped: An earlier step raised, or was not finished; the process has to end.
        """
        if self._unsound:
            raise ReplicaStopped
        # Until this step has ended well: if it does not, what is in memory may be ahead of the disk.
        self._unsound = True
        self._steps += 1
        self._now = now
        proposals = self._listener.hear(inbox, self._head, now)
        self._leave_leadership(now)
        self._engine.tick(now.steady_ms)
        self._follow_leadership(now)
        self._take_in(proposals)
        if self._questions:
            answers = self._questions.settled(now.steady_ms, self._head.sequence, epoch_open=self._live is not None)
            self._answers += answers
        self._decide(now)
        self._journal.compact()
        return self._engine.release_appends()

    def flush_apart(self) -> Callable[[], None] | None:
        """What of the step that is begun waits for the disk, for another thread; None: `finish` does all of it.

        Meanwhile callers are shown rows that this step has applied and this disk may not have. With peers that is
        right: a majority has flushed an entry before anybody applies it, and whoever loses it is sent it again. A node
        alone applies what it has just proposed, which only its own disk has; so there the flush stays in the step.
        """
        return self._store.commit_apart() if self._peers else None

    def finish(self) -> Outbox:
        """Flush, and say what came of the step. Waits for nothing but the disk.

        Raises:
            StoreFailed: The disk did not take it.
        """
        assert self._unsound, "no step was begun"
        self._flush_before_outbox()
        messages = self._engine.release()
        self._unsound = False
        outbox = Outbox(
            answers=self._answers,
            applied=self._applied,
            standing=self._stand(self._now.steady_ms),
            wake_at_ms=self._wake_at_ms(self._now.steady_ms),
            frames=messages,
            fetch_from=self._engine.behind,
            installed=self._installed,
            unreadable=self._listener.unreadable(),
            is_deciding=self._in_flight is not None,
        )
        self._answers, self._applied, self._installed = [], [], False
        return outbox

    @property
    def standing(self) -> Standing:
        """What this replica was at the end of the last step."""
        return self._stand(self._now.steady_ms)

    def condition(self) -> Condition:
        """What an operator asks for beside the standing."""
        return Condition(
            waiting=len(self._waiting),
            log_first_index=self._journal.first_index,
            log_last_index=self._journal.last_index,
            elections=self._engine.elections,
            followers=self._engine.followers(),
            majority_free_bytes=self._engine.majority_free_bytes(),
        )

    @contextmanager
    def committed(self) -> Iterator[CommittedRows]:
        """The rows as the last step left them, for calls that read, until the next one; see `flush_apart`."""
        steps = self._steps
        yield CommittedRows(self._store, self._live)
        assert self._steps == steps, "they were kept over a step"

    @property
    def shown_sequence(self) -> int:
        """The last batch that `committed` holds; while a step is begun newer than the standing, maybe."""
        return self._head.sequence

    @property
    def elected(self) -> bool:
        """Whether this node leads its term, be its epoch open or not."""
        return self._engine.leads

    @contextmanager
    def exporting(self, node_id: str) -> Iterator[Export]:
        """All rows as the last step left them. The log is kept from there on for that node, until `exported`."""
        with self._store.export() as export:
            self._journal.pin(node_id, export.applied_index)
            yield export

    def exported(self, node_id: str) -> None:
        """The log need not be kept for that node any more. Safe to repeat."""
        self._journal.unpin(node_id)

    @property
    def applied_index(self) -> int:
        """The last entry of the log that the rows hold."""
        return self._journal.applied

    def incoming(self, size_bytes: int) -> Incoming:
        """Begin to take in all rows of another node, for `install`. See `store.interface.Store`; any thread may."""
        return self._store.incoming(size_bytes)

    def withdraw(self) -> list[Proposal]:
        """Take back what waits and was in no batch: none of it has happened, or will. Nothing after a failed step."""
        if self._unsound:
            return []
        return [self._waiting.pop_first() for _ in range(len(self._waiting))]

    def note_flush(self, took_ms: float) -> None:
        """Say how long a flush has taken. A leader whose disk is slow holds up everybody, and gives up."""
        self._flush_ms = max(self._flush_ms, took_ms)

    def install(self, fetched: Fetched) -> bool:
        """Take over all rows of another node, durably, between two steps; False when they are no use (discard them).

        They are committed, so they are always right; but those that this node has passed meanwhile would take rows
        back. See `installing` for what stays.

        Raises:
            StoreCorrupt: The head of the rows cannot be read. Nothing has changed.
            IncomingFailed: The disk did not take it. Nothing has changed.
            StoreFailed, JournalCorrupt, ReplicaStopped: The process has to end.
        """
        head = facts.decode_head(fetched.head)
        # A leader's step may be begun and not finished.
        if fetched.applied_index <= self._journal.applied or self._engine.leads:
            return False
        if self._unsound:
            raise ReplicaStopped
        assert head.sequence >= self._head.sequence, (head, self._head)
        assert self._epoch_term is None, "who does not lead has closed its epoch"
        self._unsound = True
        try:
            installing.install(self._store, self._journal, fetched)
        except IncomingFailed:
            self._unsound = False
            raise
        self._engine.installed()
        self._head = head
        self._installed, self._unsound = True, False
        return True

    def close(self) -> None:
        """Let go of the files. What no step has flushed is lost, and was never answered. Safe to repeat."""
        self._unsound = True
        self._engine.close()
        self._store.close()

    def _stand(self, now_ms: int) -> Standing:
        return Standing(
            leads=self._live is not None,
            epoch=self._head.epoch,
            term=self._engine.term,
            head=self._head,
            leader_id=self._engine.leader_id,
            lease_until_ms=self._engine.lease_until_ms(now_ms),
            contact_at_ms=self._engine.contact_at_ms,
            quarantined=self._engine.quarantined,
            takes_entries=self._engine.takes_entries,
        )

    def _flush_before_outbox(self) -> None:
        # Messages promise things, too, and leave behind this. But a cluster of one sends none: without this line its
        # answers would leave before the disk has what they say.
        self._store.commit()

    def _wake_at_ms(self, now_ms: int) -> int:
        may_decide = self._live is not None and self._in_flight is None and not self._engine.transferring
        if may_decide and self._waiting:
            return now_ms
        if not self._peers:
            return now_ms + self._limits.idle_ms
        # An epoch that cannot be opened yet and a question that is open wait for several things, time among them.
        if self._questions or (self._live is None and self._engine.leads):
            return now_ms + self._limits.tick_ms
        return max(now_ms + 1, min(self._engine.due_at_ms(self._limits.tick_ms), now_ms + self._limits.idle_ms))

    def _leave_leadership(self, now: Instant) -> None:
        """Lead no more when the host wants that, or when the disk is slow."""
        leaves = self.stands_down or self._flush_ms > self._limits.flush_ms_max_leader
        self.stands_down, self._flush_ms = False, 0.0
        if leaves and self._peers and self._engine.leads:
            self._engine.step_down(now.steady_ms)

    # Epochs.

    def _follow_leadership(self, now: Instant) -> None:
        """Close an epoch whose term is over; open one when this node leads and has applied what others left."""
        leads, term = self._engine.leads, self._engine.term
        if self._epoch_term is not None and not (leads and term == self._epoch_term):
            self._close_epoch()
        if not leads:
            self._head_age.forget()
        elif self._epoch_term is None and self._engine.settled and not self._engine.transferring:
            self._open_epoch(now, term)

    def _open_epoch(self, now: Instant, term: int) -> None:
        """Propose the batch from which on this node decides. If it is skipped as stale, the next step tries again."""
        gap_ms = self._head_age.gap_ms(self._head, now)
        if gap_ms is None:
            return
        self._head_age.forget()
        self._epoch_term = term
        moved = clocks.reopen(self._head, gap_ms=gap_ms, wall_ms=now.wall_ms)
        epoch = self._head.epoch + 1
        opened = epochs.opened(CommittedRows(self._store), self._head, epoch=epoch, clocks=moved)
        puts = [(keys.EPOCH, keys.encode_row(opened))]
        batch = self._author.batch(Ground(self._head, now, moved), epoch=epoch, puts=puts, deletes=[])
        self._propose(now, batch, batches.encode(batch), changes={}, answers=())

    def _close_epoch(self) -> None:
        """Answer everybody who waits, and forget everything that was derived from rows."""
        if self._in_flight is not None:
            unknown = Rejection(
                Reason.COMMIT_UNKNOWN,
                "leadership was lost while this was being committed; it may or may not have happened, ask again",
            )
            self._answers += [Answered(answered.token, unknown, 0) for answered in self._in_flight.answers]
        self._answers += self._questions.close(self._head.sequence)
        self._refuse_waiting(not_leader(self._engine.leader_id))
        self._epoch_term, self._live, self._in_flight = None, None, None

    # Commands.

    def _take_in(self, proposals: Sequence[Proposal]) -> None:
        """Let proposals wait for the next batch, or refuse them. While an epoch opens they wait for that, too."""
        self._waiting.extend(proposals)
        if not self._engine.leads:
            self._refuse_waiting(not_leader(self._engine.leader_id))
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

        A decision that changes nothing was made on rows that are applied; its answers leave as reads do.
        """
        if self._live is None or self._in_flight is not None or not self._waiting or self._engine.transferring:
            return
        if full := self._full_disk.why(now.steady_ms):
            self._refuse_waiting(Rejection(Reason.DISK_FULL, full))
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
            self._answers += self._questions.cleared(answers, now.steady_ms)

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
        command = frames.REGULAR + encoded
        self._in_flight = _InFlight(command, batch, batches.hash_of(encoded), changes, answers)
        self._engine.propose(command)
        if not self._peers:
            # This commits and applies it. With peers it leaves with this step, and is applied when they have it.
            self._engine.tick(now.steady_ms)

    def _apply(self, index: int, command: bytes) -> None:
        """Write what an entry says. Called by the engine, in order; knows no rule and reads no clock."""
        with self._store.applying():
            if command.startswith(frames.REGULAR):
                self._apply_batch(index, command)
            elif command != frames.NO_OP:
                # pysyncobj would unpickle these.
                raise BatchUnreadable(index, f"its kind is {command[:1].hex()}")
            self._journal.mark_applied(index)

    def _apply_batch(self, index: int, command: bytes) -> None:
        flying = self._in_flight
        ours = flying if flying is not None and flying.command is command else None
        encoded = memoryview(command)[len(frames.REGULAR) :]
        batch, batch_hash = (ours.batch, ours.hash) if ours is not None else batches.read(index, encoded)
        match batches.judge(self._head, batch):
            case Verdict.DIVERGED:
                raise Diverged(index, self._head, batch)
            case Verdict.STALE:
                if ours is not None:
                    self._close_epoch()
            case Verdict.APPLY:
                self._store.apply(batch.puts, batch.deletes, entry=index)
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
