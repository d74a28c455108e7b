"""Rules of a toy, to try a replica without the real ones: a counter, and what can go wrong with a command."""

import random
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from msgspec import Struct
from typing_extensions import override

from stepward.server.core import keys, rows
from stepward.server.core.commands import Command
from stepward.server.core.decide import Decision, Moment
from stepward.server.core.reader import Reader
from stepward.server.core.rejections import Reason, Rejection
from stepward.server.logbook import frames
from stepward.server.logbook.frames import (
    UNKNOWN_AGE,
    AgeAnswer,
    AgeQuestion,
    Append,
    AppendAnswer,
    FrameEntry,
    HigherTerm,
    PreVote,
    PreVoteRequest,
    Vote,
    VoteRequest,
)
from stepward.server.logbook.identity import found_cluster, open_identity
from stepward.server.logbook.journal import StoreJournal
from stepward.server.logbook.outbox import Answered, Arrived, Instant, Letter, Linked, Outbox, Proposal
from stepward.server.logbook.replica import Replica
from stepward.server.store.interface import Rows, Store
from stepward.server.store.memory import MemoryStore

S = TypeVar("S", bound=MemoryStore)
M = TypeVar("M", bound=frames.Message)
COUNTER = keys.BEAT
BOOT = "boot-1"
# What a follower tells that can be relied on, and one that has begun with an empty directory.
ABLE = frames.Ability(free_bytes=1 << 40, takes_entries=True, may_lead=True)
IN_QUARANTINE = frames.Ability(free_bytes=1 << 40, takes_entries=True, may_lead=False)
START = Instant(steady_ms=1_000, wall_ms=1_700_000_000_000)


class Add(Command, frozen=True):
    """Raise the counter by one and write `rows_written` rows beside it, of `row_bytes` each."""

    rows_written: int = 0
    row_bytes: int = 10


class Ask(Command, frozen=True):
    """Answer the counter, change nothing."""


class Name(Command, frozen=True):
    """Write a row under a key of so many bytes."""

    key_bytes: int


class Fail(Command, frozen=True):
    """A rule that raises."""


class Counted(Struct, frozen=True):
    """Answer: the counter, as the batch of that sequence left it."""

    counter: int
    sequence: int


def count(reader: Reader) -> int:
    """The committed counter."""
    row = reader.get(COUNTER)
    assert row is None or isinstance(row, rows.Beat)
    return 0 if row is None else row.beats


def counted(answer: object) -> Counted:
    """An answer of this toy, to one who does not care that it is none of the real rules' answers."""
    assert isinstance(answer, Counted), answer
    return answer


def decide(reader: Reader, commands: Sequence[Command], moment: Moment, /) -> Decision:
    """The toy's rules, in the shape of the real ones."""
    counter = count(reader)
    changes: dict[bytes, rows.Row | None] = {}
    answers: list[Any] = []
    failures: list[tuple[object, BaseException]] = []
    for command in commands:
        match command:
            case Add():
                counter += 1
                changes |= written(counter, command)
                changes[COUNTER] = rows.Beat(moment.epoch, counter, moment.wall_ms, moment.led_ms, moment.log_ms, 0, 0)
                answers.append(Counted(counter, moment.sequence))
            case Name(key_bytes=length):
                changes[keys.OUTPUT.ljust(length, b"n")] = rows.Output(rows.Payload())
                answers.append(Counted(counter, moment.sequence))
            case Fail():
                failures.append((command, ValueError("a rule raised")))
                answers.append(Rejection(Reason.INTERNAL, "a rule raised"))
            case _:
                answers.append(Counted(counter, moment.sequence))
    return Decision(changes, answers, failures)


def written(counter: int, command: Add) -> dict[bytes, rows.Row | None]:
    """The rows beside the counter; the first says which count it belongs to."""
    payload = rows.Payload(counter.to_bytes(8, "big").ljust(command.row_bytes, b"."))
    return {keys.output(f"1-{counter:016x}", ordinal): rows.Output(payload) for ordinal in range(command.rows_written)}


def ignore(command: object, error: BaseException) -> None:
    """Nobody reads the log of this toy."""


def founded(store: S) -> S:
    """The store, with a cluster of one made in it."""
    found_cluster(store, "n1", wall_ms=START.wall_ms)
    return store


def new_store() -> MemoryStore:
    """A store in memory in which a cluster of one was made."""
    return founded(MemoryStore())


def journal(
    store: Store,
    *,
    entries_max: int = 4_096,
    bytes_max: int = 64 << 20,
    pinned_entries_max: int = 65_536,
    pinned_bytes_max: int = 128 << 20,
    held_entries_max: int = 128,
    boot_id: str = BOOT,
) -> StoreJournal:
    """The journal in a store."""
    return StoreJournal(
        store,
        entries_max=entries_max,
        bytes_max=bytes_max,
        pinned_entries_max=pinned_entries_max,
        pinned_bytes_max=pinned_bytes_max,
        held_entries_max=held_entries_max,
        boot_id=boot_id,
    )


def start(
    store: Store, *, now: Instant = START, boot_id: str = BOOT, kind: type[Replica] = Replica, **more: Any
) -> Any:
    """A replica on a store that knows its cluster."""
    usual: dict[str, Any] = {"decider": decide, "on_failure": ignore, "rng": random.Random(1)}
    return kind(store=store, identity=open_identity(store), boot_id=boot_id, now=now, **(usual | more))


def at(ms: int) -> Instant:
    """So many milliseconds after the start, by both clocks."""
    return Instant(START.steady_ms + ms, START.wall_ms + ms)


def proposals(*commands: Command) -> list[Proposal]:
    """Commands with their place as token."""
    return [Proposal(place, command) for place, command in enumerate(commands)]


def answers(outbox: Outbox) -> dict[object, Any]:
    """Answers by token; no token twice."""
    found = {answered.token: answered.answer for answered in outbox.answers}
    assert len(found) == len(outbox.answers), outbox.answers
    return found


def reasons(found: Sequence[Answered]) -> dict[object, str]:
    """Names of the rejections by token."""
    return {one.token: one.answer.reason.name for one in found if isinstance(one.answer, Rejection)}


class Sent(NamedTuple):
    """A message that left, and what the store would keep in a power cut at that moment."""

    message: frames.Message
    durable: Rows


class PeeredReplica(Replica):
    """A replica with a peer `n2` that a test speaks for: nothing is committed before the test says so.

    `sent` are the messages that left. What the peer says is heard in the next step.
    """

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.sent: list[Sent] = []
        self.peer = Peer(self)

    @override
    def step(self, now: Instant, inbox: Sequence[Letter]) -> Outbox:
        letters, self.peer.letters = self.peer.letters, []
        outbox = super().step(now, [*letters, *inbox])
        for frame in outbox.frames:
            assert frame.peer_id == "n2"
            with self._store.snapshot() as snapshot:
                self.sent.append(Sent(frames.decode(frame.content), snapshot))
        return outbox

    def said(self, kind: type[M]) -> list[M]:
        """The messages of a kind that left."""
        return [sent.message for sent in self.sent if isinstance(sent.message, kind)]

    def entries_sent(self) -> list[bytes]:
        """The commands of all entries that left."""
        return [entry.command for message in self.said(Append) for entry in message.entries]

    def win(self, ms: int) -> None:
        """Let its election timer run out, and let the peer vote for it; the no-op has left at `ms`."""
        self.step(at(ms - 4), [])
        self.peer.grant()
        self.step(at(ms - 2), [])
        self.peer.vote()
        self.step(at(ms), [])


class Peer:
    """What `n2` says."""

    def __init__(self, replica: PeeredReplica) -> None:
        self._replica = replica
        self.letters: list[Letter] = [Linked("n2")]

    def say(self, message: frames.Message) -> None:
        self.letters.append(Arrived("n2", 1, frames.encode(message)))

    def grant(self) -> None:
        """Would vote for the replica."""
        asked = self._last(PreVoteRequest)
        self.say(PreVote(asked.term - 1, asked.attempt, granted=True))

    def vote(self) -> None:
        self.say(Vote(self._last(VoteRequest).term))

    def acknowledge(self) -> None:
        """Everything that was sent."""
        last = self._last(Append)
        next_index = last.prev_index + len(last.entries) + 1
        self.say(AppendAnswer(last.term, last.round, last.sent_ms, matches=True, next_index=next_index, ability=ABLE))

    def tell_age(self, age_ms: int) -> None:
        """The batch that the replica asked about was decided so long ago."""
        self.say(AgeAnswer(self._last(AgeQuestion).head_hash, age_ms, START.wall_ms))

    def append(
        self, *, term: int, previous: tuple[int, int], entries: Sequence[tuple[bytes, int]], commit_index: int
    ) -> None:
        """Lead that term, and send entries: command and term each."""
        sent = [FrameEntry(entry_term, UNKNOWN_AGE, command) for command, entry_term in entries]
        self.say(Append(term, *previous, commit_index, 1, 0, sent, 0))

    def depose(self, term: int) -> None:
        """There is a later term."""
        self.say(HigherTerm(term))

    def _last(self, kind: type[M]) -> M:
        return self._replica.said(kind)[-1]


def pair(store: Store | None = None, **more: Any) -> PeeredReplica:
    """A replica that has a peer, on a new store."""
    store = store or MemoryStore()
    found_cluster(store, "n1", wall_ms=START.wall_ms, members=("n1", "n2"), cluster_id="pair")
    replica: PeeredReplica = start(store, kind=PeeredReplica, **more)
    return replica


def seeds(count: int) -> Iterator[random.Random]:
    """So many sources of chance that differ and never change."""
    return (random.Random(seed) for seed in range(count))
