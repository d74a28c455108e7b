"""What every voter holds need not be kept: the log of a cluster at rest stays short, and nobody misses anything."""

from __future__ import annotations

import pytest

from stepward.server.logbook.outbox import ReplicaLimits
from tests.logbook.hand import Hand, command
from tests.logbook.toy import Add
from tests.logbook.trio import IDS, Trio

HELD_MAX = 16
LIMITS = ReplicaLimits(held_entries_max=HELD_MAX)
# One batch is on its way, and its commit is told with the next round.
ON_THEIR_WAY_MAX = 3


def kept(trio: Trio, node_id: str) -> int:
    return len(trio.replica(node_id)._journal)


def write_many(trio: Trio, *, node_id: str = "") -> None:
    for _ in range(5 * HELD_MAX):
        trio.write(Add(), node_id=node_id)


def others(node_id: str) -> list[str]:
    return [one for one in IDS if one != node_id]


def test_log_that_all_hold_stays_short() -> None:
    """On all nodes, since each of them may lead."""
    trio = Trio(limits=LIMITS)
    write_many(trio)
    trio.settle()

    assert max(kept(trio, node_id) for node_id in IDS) <= HELD_MAX + ON_THEIR_WAY_MAX


def test_log_that_one_lacks_is_kept() -> None:
    """It comes back and goes on with entries; nobody gives rows here, so it would never be level."""
    trio = Trio(limits=LIMITS)
    leader = trio.lead()
    away = others(leader)[0]
    trio.kill(away)
    write_many(trio)

    assert kept(trio, leader) > 5 * HELD_MAX
    trio.start(away)
    trio.settle()
    trio.write(Add())
    trio.settle()
    assert max(kept(trio, node_id) for node_id in IDS) <= HELD_MAX + ON_THEIR_WAY_MAX


@pytest.mark.parametrize("round_", range(6))
def test_new_leader_has_what_the_others_lack(round_: int) -> None:
    """Whoever starts again has applied less than it holds, and is sent that again by one that never led before."""
    trio = Trio(limits=LIMITS, seed=round_)
    write_many(trio)
    leader = trio.lead()
    started, survivor = others(leader)
    trio.ask(leader, Add())
    trio.run(5 * (round_ % 3))
    trio.kill(started)
    trio.start(started)
    trio.kill(leader)
    trio.write(Add(), node_id=trio.lead(among=(started, survivor)))
    trio.start(leader)
    trio.settle()

    assert trio.counter(started) == trio.counter(survivor) == trio.counter(leader)


def test_cluster_of_one_keeps_a_short_log() -> None:
    """There is nobody who could ask for it."""
    hand = Hand(peers=())
    hand.step()
    for number in range(300):
        hand.engine.propose(command(f"{number}"))
        hand.step()
        hand.journal.compact()

    assert len(hand.journal) <= 128


def test_leader_tells_the_least_that_was_acknowledged() -> None:
    """One that has said nothing yet holds nothing."""
    hand = Hand()
    hand.lead()

    def told() -> int:
        hand.engine.propose(command("x"))
        return max(said.message.held_index for said in hand.step() if hasattr(said.message, "held_index"))

    assert told() == 0
    hand.answer("n2", next_index=3)
    assert told() == 0
    hand.answer("n3", next_index=4)
    assert told() == 2


def test_follower_believes_its_leader() -> None:
    hand = Hand()
    hand.append("n2", term=1, previous=(1, 0), entries=[(f"{n}", 1) for n in range(200)], commit_index=201)
    hand.step()
    hand.journal.compact()
    assert hand.journal.first_index == 1
    hand.append("n2", term=1, previous=(201, 1), commit_index=201, held_index=201)
    hand.journal.compact()

    assert hand.journal.first_index == 201 - 112 + 1 - 1
