"""When a shard with peers steps: on a replica that only notes what it is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stepward.server.config import NodeConfig
from stepward.server.core.commands import Answer, CloseStream, StreamClosed
from stepward.server.core.rejections import Rejection
from stepward.server.logbook import batch as batches
from stepward.server.logbook.outbox import Answered, Arrived, Frame, Instant, Letter, Outbox, Proposal, Standing
from stepward.server.observe import Counters
from stepward.server.shard import Shard
from tests.server.host import CLOCK, S
from tests.server.peer_host import MEMBERS

HEAD = batches.genesis("cluster", incarnation=1, wall_ms=CLOCK.wall_ms())
APPEND = Frame(MEMBERS[1], b"append")


class Noting:
    """A leader that never wakes by itself. `is_deciding` and `appends` are what its next step gives."""

    standing = Standing(leads=True, epoch=1, term=1, head=HEAD, leader_id=MEMBERS[0])

    def __init__(self) -> None:
        self.inboxes: list[list[Letter]] = []
        self.is_deciding = False
        self.appends: list[Frame] = []
        self.told: list[str] = []

    def begin(self, _now: Instant, inbox: Sequence[Letter]) -> list[Frame]:
        self.inboxes.append(list(inbox))
        self.told.append("begun")
        return self.appends

    def finish(self) -> Outbox:
        self.told.append("finished")
        proposals = [letter for letter in self.inboxes[-1] if isinstance(letter, Proposal)]
        answers = [] if self.is_deciding else [Answered(one.token, StreamClosed(), 1) for one in proposals]
        return Outbox(answers, [], self.standing, CLOCK.steady_ms() + 60_000, is_deciding=self.is_deciding)

    def withdraw(self) -> list[Proposal]:
        return []

    def close(self) -> None:
        self.told.append("closed")


class Waits:
    """Somebody who waits for an answer."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []

    def answered(self, answer: Answer) -> None:
        self.answers.append(answer)


def hosted(replica: Noting) -> Shard:
    config = NodeConfig(data=Path("data"))
    unused: Any = replica
    shard = Shard(unused, clock=CLOCK, config=config, counters=Counters(), on_fatal=lambda _: None)
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
