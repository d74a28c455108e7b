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
from stepward.server.logbook.engine import Engine
from stepward.server.logbook.identity import found_cluster, open_identity
from stepward.server.logbook.journal import StoreJournal
from stepward.server.logbook.outbox import Answered, Instant, Outbox, Proposal
from stepward.server.logbook.replica import Replica
from stepward.server.store.interface import Rows, Store
from stepward.server.store.memory import MemoryStore

S = TypeVar("S", bound=MemoryStore)
COUNTER = keys.BEAT
BOOT = "boot-1"
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
    boot_id: str = BOOT,
) -> StoreJournal:
    """The journal in a store."""
    return StoreJournal(
        store,
        entries_max=entries_max,
        bytes_max=bytes_max,
        pinned_entries_max=pinned_entries_max,
        pinned_bytes_max=pinned_bytes_max,
        boot_id=boot_id,
    )


def start(
    store: Store, *, now: Instant = START, boot_id: str = BOOT, kind: type[Replica] = Replica, **more: Any
) -> Any:
    """A replica on a store that knows its cluster."""
    more = {"decider": decide, "on_failure": ignore} | more
    return kind(store=store, identity=open_identity(store), boot_id=boot_id, now=now, **more)


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

    `sent` are the messages that left.
    """

    def __init__(self, **more: Any) -> None:
        self.sent: list[Sent] = []
        super().__init__(**more)

    @override
    def _make_engine(self, now: Instant) -> Engine:
        engine = Engine(
            node_id=self._identity.node_id,
            peers=("n2",),
            journal=self._journal,
            apply=self._apply,
            now_ms=now.steady_ms,
            rng=random.Random(1),
        )
        self.peer = Peer(engine)
        return engine

    @override
    def step(self, now: Instant, inbox: Sequence[Any]) -> Outbox:
        outbox = super().step(now, inbox)
        for frame in outbox.frames:
            assert frame.peer_id == "n2"
            with self._store.snapshot() as snapshot:
                self.sent.append(Sent(frames.decode(frame.content), snapshot))
        return outbox

    def win(self, ms: int) -> None:
        """Let its election timer run out, and let the peer vote for it."""
        self.step(at(ms - 1), [])
        self.peer.grant()
        self.step(at(ms), [])
        self.peer.vote(self._engine.term)


class Peer:
    """What `n2` says, at the moment at which the engine last moved."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def connect(self) -> None:
        self._engine.linked("n2")

    def say(self, message: frames.Message) -> None:
        self._engine.receive("n2", 1, frames.encode(message), self._engine._raft.now_ms)

    def grant(self) -> None:
        """Would vote for the replica."""
        self.say(frames.PreVote(term=self._engine.term, attempt=self._engine._elections._attempt, granted=True))

    def vote(self, term: int) -> None:
        self.say(frames.Vote(term))

    def acknowledge(self) -> None:
        """Everything that the replica has."""
        engine = self._engine
        next_index = engine._journal.last_index + 1
        self.say(frames.AppendAnswer(engine.term, engine._sender.round, engine._raft.now_ms, True, next_index))

    def refuse(self, next_index: int) -> None:
        """What the replica has sent last; it should go on there."""
        engine = self._engine
        self.say(frames.AppendAnswer(engine.term, engine._sender.round, engine._raft.now_ms, False, next_index))

    def append(
        self, *, term: int, previous: tuple[int, int], entries: Sequence[tuple[bytes, int]], commit_index: int
    ) -> None:
        """Lead that term, and send entries: command and term each."""
        sent = [frames.FrameEntry(entry_term, 0, command) for command, entry_term in entries]
        self.say(frames.Append(term, *previous, commit_index, 1, 0, sent))

    def depose(self, term: int) -> None:
        """Tell of a later term."""
        self.say(frames.HigherTerm(term))


def seeds(count: int) -> Iterator[random.Random]:
    """So many sources of chance that differ and never change."""
    return (random.Random(seed) for seed in range(count))
