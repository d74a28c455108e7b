"""When a shard with peers steps: on a replica that only notes what it is asked."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from stepward.server.config import NodeConfig
from stepward.server.core.commands import Answer, AttemptRef, CloseStream, RenewSession, StreamClosed
from stepward.server.core.rejections import Reason, Rejection
from stepward.server.logbook import batch as batches
from stepward.server.logbook.outbox import (
    Answered,
    Arrived,
    Confirm,
    Fetched,
    Frame,
    Instant,
    Letter,
    Linked,
    Outbox,
    Proposal,
    Standing,
)
from stepward.server.observe import Counters
from stepward.server.shard import Shard
from stepward.server.store.errors import StoreFailed
from stepward.server.store.interface import Export
from stepward.server.store.memory import MemoryStore
from stepward.server.store.write_ahead import Apart
from tests.server.host import CLOCK, S
from tests.server.peer_host import MEMBERS

HEAD = batches.genesis("cluster", incarnation=1, wall_ms=CLOCK.wall_ms())
APPEND = Frame(MEMBERS[1], b"append")


class Noting:
    """A leader that never wakes by itself. `is_deciding`, `appends` and `flush` are what its next step gives."""

    standing = Standing(leads=True, epoch=1, term=1, head=HEAD, leader_id=MEMBERS[0])

    def __init__(self) -> None:
        self.inboxes: list[list[Letter]] = []
        self.is_deciding = False
        self.appends: list[Frame] = []
        self.told: list[str] = []
        self.flush: Apart | None = None
        self.waits = threading.Event()
        self.shown_sequence = HEAD.sequence

    def begin(self, _now: Instant, inbox: Sequence[Letter]) -> list[Frame]:
        self.inboxes.append(list(inbox))
        self.told.append("begun")
        return self.appends

    def flush_apart(self) -> Callable[[], None] | None:
        return None if self.flush is None else self.flush.run

    def finish(self) -> Outbox:
        flush, self.flush = self.flush, None
        if flush is not None:
            self.told.append("flushes")
            self.waits.set()
            flush.run()
        self.told.append("finished")
        proposals = [letter for letter in self.inboxes[-1] if isinstance(letter, Proposal)]
        answers = [] if self.is_deciding else [Answered(one.token, StreamClosed(), 1) for one in proposals]
        return Outbox(answers, [], self.standing, CLOCK.steady_ms() + 60_000, is_deciding=self.is_deciding)

    def install(self, _fetched: Fetched) -> bool:
        self.told.append("installed")
        return True

    @contextmanager
    def exporting(self, node_id: str) -> Iterator[Export]:
        self.told.append(f"exported for {node_id}")
        yield MemoryStore().export()  # type: ignore[misc]  # nobody looks at it

    def withdraw(self) -> list[Proposal]:
        return []

    def close(self) -> None:
        self.told.append("closed")


class Disk:
    """A disk whose one flush lasts until it is told otherwise; then it succeeds, or fails as `error` says."""

    def __init__(self, error: str = "") -> None:
        self._error = error
        self.reached = threading.Event()
        self._let_go = threading.Event()

    def let_go(self) -> None:
        """Whoever waits for the disk goes on."""
        self._let_go.set()

    def flush(self) -> None:
        """Wait."""
        self.reached.set()
        assert self._let_go.wait(S), "nobody let the disk go on"
        if self._error:
            raise StoreFailed(self._error)


class Waits:
    """Somebody who waits for an answer."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []

    def answered(self, answer: Answer) -> None:
        self.answers.append(answer)


class Asker(Waits):
    """Somebody who asks which batch is the newest."""

    def __init__(self) -> None:
        super().__init__()
        self.sequences: list[int] = []

    def confirmed(self, sequence: int) -> None:
        self.sequences.append(sequence)

    def refused(self, rejection: Rejection) -> None:
        self.answers.append(rejection)


def hosted(replica: Noting) -> Shard:
    config = NodeConfig(data=Path("data"))
    unused: Any = replica
    shard = Shard(unused, clock=CLOCK, config=config, counters=Counters(), on_fatal=replica.told.append)
    shard.on_frames(lambda frames: replica.told.extend(frame.content.decode() for frame in frames), lambda _: None)
    return shard


def propose(shard: Shard) -> Waits:
    ticket = Waits()
    shard.decide(CloseStream("session", 1), ticket, urgent=False, share="")
    return ticket


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def stepped(replica: Noting, count: int) -> None:
    async with asyncio.timeout(S):
        while len(replica.inboxes) < count:  # noqa: ASYNC110 - turns of the loop make it true, and no event
            await asyncio.sleep(0)


async def deciding(replica: Noting, shard: Shard, *, commands: int) -> None:
    """A batch of so many commands is on its way."""
    for _ in range(commands):
        propose(shard)
    replica.is_deciding = True
    await stepped(replica, 1)


async def test_commands_step_only_when_no_batch_is_on_its_way() -> None:
    """They are decided with the step that hears of it."""
    replica = Noting()
    shard = hosted(replica)
    await deciding(replica, shard, commands=1)
    for _ in range(3):
        propose(shard)
        await turns()
    assert len(replica.inboxes) == 1

    shard.arrived(MEMBERS[1], 1, [b"answer"])
    await stepped(replica, 2)
    shard.stop()

    assert [type(letter) for letter in replica.inboxes[1]] == [Arrived, Proposal, Proposal, Proposal]


async def test_answer_that_finds_nobody_waiting_is_heard_at_once() -> None:
    replica = Noting()
    shard = hosted(replica)
    await deciding(replica, shard, commands=1)
    shard.arrived(MEMBERS[1], 1, [b"answer"])
    await turns(1)
    shard.stop()

    assert len(replica.inboxes) == 2


async def test_under_load_the_next_batch_is_gathered_too() -> None:
    """What comes in the slice behind the answer shares its step."""
    replica = Noting()
    shard = hosted(replica)
    await deciding(replica, shard, commands=2)
    shard.arrived(MEMBERS[1], 1, [b"answer"])
    await turns()
    propose(shard)
    shard.arrived(MEMBERS[2], 1, [b"answer"])
    await stepped(replica, 2)
    shard.stop()

    assert [type(letter) for letter in replica.inboxes[1]] == [Arrived, Arrived, Proposal]


async def test_another_stream_waits_for_nobody() -> None:
    replica = Noting()
    shard = hosted(replica)
    await deciding(replica, shard, commands=2)
    shard.arrived(MEMBERS[1], 1, [b"answer"])
    shard.linked(MEMBERS[2])
    await turns(1)
    shard.stop()

    assert len(replica.inboxes) == 2


async def test_appends_leave_before_the_flush() -> None:
    """And the loop has a turn in which they do."""
    replica = Noting()
    replica.appends = [APPEND]
    shard = hosted(replica)
    propose(shard)
    await turns(1)
    assert replica.told == ["begun", "append"]
    await turns(1)
    shard.stop()

    assert replica.told == ["begun", "append", "finished", "closed"]


async def test_what_has_left_is_finished_before_the_end() -> None:
    """Its answers are known, so nobody is left in doubt."""
    replica = Noting()
    replica.appends = [APPEND]
    shard = hosted(replica)
    ticket = propose(shard)
    await turns(1)
    shard.stop()
    refused = propose(shard)

    assert replica.told == ["begun", "append", "finished", "closed"]
    assert ticket.answers == [StreamClosed()]
    assert [type(answer) for answer in refused.answers] == [Rejection]


# Renewals.


def renew(shard: Shard, *, number: int = 0, held: tuple[AttemptRef, ...] | None = None) -> Waits:
    ticket = Waits()
    shard.renew(RenewSession(f"session-{number}", 1, 0, held), ticket)
    return ticket


def taken(replica: Noting, step: int) -> list[str]:
    """Whose renewals, and what else, a step was given."""
    proposals = [letter for letter in replica.inboxes[step] if isinstance(letter, Proposal)]
    return [one.command.session_id if isinstance(one.command, RenewSession) else "other" for one in proposals]


async def test_heartbeats_gather() -> None:
    """Nobody waits for one, so frames that come meanwhile do not take it along: each of them would cause a batch."""
    replica = Noting()
    shard = hosted(replica)
    ticket = renew(shard, number=0)
    shard.arrived(MEMBERS[1], 1, [b"answer"])
    await turns()
    renew(shard, number=1)
    await turns()
    assert [taken(replica, step) for step in range(len(replica.inboxes))] == [[]]
    await stepped(replica, 2)
    shard.stop()

    assert taken(replica, 1) == ["session-0", "session-1"]
    assert ticket.answers == [StreamClosed()]


async def test_whatever_is_decided_takes_heartbeats_along() -> None:
    """In front of it."""
    replica = Noting()
    shard = hosted(replica)
    renew(shard)
    propose(shard)
    await turns()
    shard.stop()

    assert [taken(replica, step) for step in range(len(replica.inboxes))] == [["session-0", "other"]]


async def test_list_that_was_asked_for_waits_for_nobody() -> None:
    replica = Noting()
    shard = hosted(replica)
    renew(shard, number=0)
    renew(shard, number=1, held=())
    await turns()
    shard.stop()

    assert [taken(replica, step) for step in range(len(replica.inboxes))] == [["session-0", "session-1"]]


async def test_heartbeats_that_are_due_wait_for_the_batch_on_its_way() -> None:
    replica = Noting()
    shard = hosted(replica)
    await deciding(replica, shard, commands=1)
    renew(shard, held=())
    await turns()
    assert len(replica.inboxes) == 1
    shard.arrived(MEMBERS[1], 1, [b"answer"])
    await stepped(replica, 2)
    shard.stop()

    assert taken(replica, 1) == ["session-0"]


async def test_gathered_heartbeats_make_no_command_wait() -> None:
    """How many of them came together tells nothing of whether a command would find company."""
    replica = Noting()
    shard = hosted(replica)
    for number in range(20):
        renew(shard, number=number)
    await stepped(replica, 1)
    propose(shard)
    await turns(2)
    shard.stop()

    assert [len(taken(replica, step)) for step in range(len(replica.inboxes))] == [20, 1]


async def test_heartbeat_that_waits_is_answered_at_the_end() -> None:
    replica = Noting()
    shard = hosted(replica)
    ticket = renew(shard)
    shard.stop()

    assert [type(answer) for answer in ticket.answers] == [Rejection]


# While a flush goes on beside the loop.


async def flushing(replica: Noting, shard: Shard, disk: Disk) -> Waits:
    """A step is begun, and its flush has reached the disk."""
    replica.flush = Apart(disk.flush)
    ticket = propose(shard)
    await stepped(replica, 1)
    async with asyncio.timeout(S):
        while not disk.reached.is_set():  # noqa: ASYNC110 - a thread sets it, which no future of the loop shows
            await asyncio.sleep(0)
    return ticket


async def told(replica: Noting, last: str) -> None:
    async with asyncio.timeout(S):
        while last not in replica.told:  # noqa: ASYNC110 - turns of the loop make it true, and no event
            await asyncio.sleep(0)


def let_go_when_it_is_waited_for(replica: Noting, disk: Disk) -> threading.Thread:
    """Let the disk go on when the thread of the loop waits for it."""

    def watch() -> None:
        assert replica.waits.wait(S), "nobody waits for the disk"
        disk.let_go()

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


async def test_no_step_begins_while_a_flush_goes_on() -> None:
    """Whatever comes meanwhile, calls, frames, streams, questions, a wish to stand down, shares the next one."""
    replica, disk = Noting(), Disk()
    replica.appends = [APPEND]
    shard = hosted(replica)
    ticket = await flushing(replica, shard, disk)
    replica.appends = []

    propose(shard)
    shard.renew(CloseStream("session", 1), Waits())
    shard.arrived(MEMBERS[1], 1, [b"answer"])
    shard.linked(MEMBERS[2])
    question = asyncio.ensure_future(shard.ask(Confirm))
    await turns()
    shard.stand_down()
    await turns()
    assert replica.told == ["begun", "append"]
    assert ticket.answers == []
    disk.let_go()
    await stepped(replica, 2)
    shard.stop()
    await question

    assert ticket.answers == [StreamClosed()]
    assert replica.told[:5] == ["begun", "append", "flushes", "finished", "begun"]
    came = [type(letter) for letter in replica.inboxes[1]]
    assert came == [Arrived, Linked, Confirm, Proposal, Proposal]


async def test_node_that_stops_waits_for_the_flush() -> None:
    """What it decided may be on its way, and its answer is known when the disk has it."""
    replica, disk = Noting(), Disk()
    shard = hosted(replica)
    ticket = await flushing(replica, shard, disk)
    assert ticket.answers == []
    thread = let_go_when_it_is_waited_for(replica, disk)
    shard.stop()
    thread.join()
    await turns()

    assert replica.told == ["begun", "flushes", "finished", "closed"]
    assert ticket.answers == [StreamClosed()]


async def test_rows_of_another_node_wait_for_the_flush() -> None:
    """A step that is begun has written on top of the rows that they replace."""
    replica, disk = Noting(), Disk()
    shard = hosted(replica)
    await flushing(replica, shard, disk)
    thread = let_go_when_it_is_waited_for(replica, disk)
    assert shard.rows.install(Fetched(MemoryStore().incoming(), b"", 1, 1))
    thread.join()
    shard.stop()

    assert replica.told[:4] == ["begun", "flushes", "finished", "installed"]


async def test_rows_for_another_node_wait_for_the_flush() -> None:
    replica, disk = Noting(), Disk()
    shard = hosted(replica)
    await flushing(replica, shard, disk)
    thread = let_go_when_it_is_waited_for(replica, disk)
    with shard.rows.exporting(MEMBERS[1]):
        thread.join()
    shard.stop()

    assert replica.told[:4] == ["begun", "flushes", "finished", f"exported for {MEMBERS[1]}"]


@pytest.mark.parametrize("ends", ["by itself", "at the stop", "for rows"])
async def test_flush_that_fails_ends_the_node(ends: str) -> None:
    """Once, whoever meets it; who waits is told that nobody knows."""
    replica, disk = Noting(), Disk("the disk is gone")
    shard = hosted(replica)
    ticket = await flushing(replica, shard, disk)
    if ends == "by itself":
        disk.let_go()
        await told(replica, "closed")
    else:
        thread = let_go_when_it_is_waited_for(replica, disk)
        if ends == "at the stop":
            shard.stop()
        else:
            assert not shard.rows.install(Fetched(MemoryStore().incoming(), b"", 1, 1))
        thread.join()
    await turns()

    why = "the replica stopped: the disk is gone"
    assert replica.told == ["begun", "flushes", "closed", why]
    assert shard.stopped
    assert [answer.reason for answer in ticket.answers if isinstance(answer, Rejection)] == [Reason.COMMIT_UNKNOWN]


async def test_who_asks_which_batch_is_the_newest_is_told_the_one_that_is_shown() -> None:
    """Rows that a step has applied are shown before it is finished: nobody may then be shown less elsewhere."""
    replica, disk = Noting(), Disk()
    shard = hosted(replica)
    await flushing(replica, shard, disk)
    replica.shown_sequence = HEAD.sequence + 1
    asker = Asker()
    shard.confirm(asker)
    disk.let_go()
    shard.stop()

    assert asker.sequences == [HEAD.sequence + 1]
