"""Disks that are full: who leads, who takes what, and that everything goes on when there is room again."""

from __future__ import annotations

import pytest
from typing_extensions import override

from stepward.server.logbook import frames
from stepward.server.logbook import journal as journals
from stepward.server.logbook.outbox import Follower, ReplicaLimits
from stepward.server.logbook.raft import APPEND_PERIOD_MS
from stepward.server.store.memory import MemoryStore
from tests.logbook.hand import Hand, command
from tests.logbook.toy import Add, Counted
from tests.logbook.trio import IDS, Trio

LIMITS = ReplicaLimits(free_bytes_min=1_000, free_bytes_follower_min=500)


def others(node_id: str) -> list[str]:
    return [one for one in IDS if one != node_id]


class Disk(MemoryStore):
    """A disk on which as much is free as a test says."""

    free = 1_000

    @override
    def free_bytes(self) -> int:
        return self.free


def test_leader_whose_disk_is_full_leaves_it_to_one_with_room() -> None:
    """One full disk must not stop everybody."""
    disks = {node_id: Disk() for node_id in IDS}
    trio = Trio(stores=disks, limits=LIMITS)
    trio.write(Add())
    full = trio.lead()
    disks[full].free = 999
    trio.run(200)
    (token,) = trio.ask(full, Add())
    trio.run_until(lambda: token in trio.answers)
    assert trio.reason(token) == "DISK_FULL"

    assert trio.run_until(lambda: trio.leading(others(full)), within_ms=300)
    assert trio.write(Add()) == [Counted(2, 4)]


def test_when_all_disks_are_full_leadership_does_not_go_round_and_round() -> None:
    """Callers are told why; and once there is room, it goes on."""
    disks = {node_id: Disk() for node_id in IDS}
    trio = Trio(stores=disks, limits=LIMITS)
    trio.write(Add())
    for disk in disks.values():
        disk.free = 999
    tokens = []
    for _ in range(200):
        trio.run(50)
        tokens += trio.ask(trio.lead(), Add())
    trio.run(50)
    # Before it hands over it looks for one with room; what it knows of the others is a moment old.
    assert len(trio.leaders) <= 2
    assert [trio.reason(token) for token in tokens].count("DISK_FULL") >= 190
    for disk in disks.values():
        disk.free = 1_000

    trio.run(200)
    assert isinstance(trio.write(Add())[0], Counted)


def full_follower() -> tuple[Trio, dict[str, Disk], str, str]:
    """A cluster in which one follower has no room, and the leader has heard of it."""
    disks = {node_id: Disk() for node_id in IDS}
    trio = Trio(stores=disks, limits=LIMITS)
    trio.write(Add())
    trio.settle()
    leader = trio.lead()
    follower = others(leader)[0]
    disks[follower].free = 499
    trio.run(300)
    return trio, disks, leader, follower


def seen(trio: Trio, leader: str, follower: str) -> Follower:
    return next(one for one in trio.replica(leader).condition().followers if one.node_id == follower)


def test_follower_with_a_full_disk_stays_and_takes_nothing() -> None:
    """The others go on without it; it says so, and goes on itself as soon as there is room for a while."""
    trio, disks, leader, follower = full_follower()
    held = seen(trio, leader, follower).match_index
    for _ in range(50):
        trio.write(Add())

    assert not trio.replica(follower).standing.takes_entries
    assert seen(trio, leader, follower)[4:] == (499, False, False)
    assert (seen(trio, leader, follower).match_index, trio.counter(follower)) == (held, 1)
    assert trio.lead() == leader
    disks[follower].free = 999
    trio.run(300)
    assert trio.counter(follower) == 1
    disks[follower].free = 1_000
    trio.settle()
    assert trio.replica(follower).standing.takes_entries
    assert trio.counter(follower) == 51


def test_at_its_bound_a_follower_takes_entries() -> None:
    trio, disks, _, follower = full_follower()
    disks[follower].free = 1_000
    trio.run(300)
    disks[follower].free = 500
    trio.write(Add())
    trio.settle()

    assert trio.replica(follower).standing.takes_entries


def test_who_has_no_room_is_counted_for_no_new_entry() -> None:
    """With the third node away nothing is decided, and callers are told at once: a majority would have no room."""
    trio, disks, leader, follower = full_follower()
    third = next(one for one in others(leader) if one != follower)
    trio.kill(third)
    (token,) = trio.ask(leader, Add())
    trio.run(200)
    assert trio.reason(token) == "DISK_FULL"
    disks[follower].free = 1_000
    trio.run(300)

    assert trio.write(Add()) == [Counted(2, 3)]


def test_new_leader_learns_of_it() -> None:
    """It has heard of nobody yet, and must not wait for entries that the full one never takes."""
    trio, disks, leader, follower = full_follower()
    third = next(one for one in others(leader) if one != follower)
    for _ in range(20):
        trio.write(Add())
    trio.kill(leader)
    trio.run_until(lambda: trio.replica(third).elected)
    trio.run(300)
    assert trio.counter(follower) == 1
    disks[follower].free = 1_000
    trio.write(Add(), node_id=trio.lead(among=[third]))
    trio.settle()

    assert trio.counter(follower) == 22


def leading(**abilities: frames.Ability) -> Hand:
    """A leader whose followers both have its no-op, and have told what they can do."""
    hand = Hand()
    hand.lead()
    for peer in hand.peers:
        ability = abilities.get(peer, frames.Ability(1 << 40, takes_entries=True, may_lead=True))
        hand.answer(peer, next_index=3, ability=ability)
    hand.step()
    return hand


FULL = frames.Ability(free_bytes=10, takes_entries=False, may_lead=True)
EMPTY = frames.Ability(free_bytes=1 << 40, takes_entries=True, may_lead=False)


def test_who_takes_nothing_is_sent_signs_of_life_only() -> None:
    """Each period, and not as fast as it answers."""
    hand = leading(n2=FULL)
    sent = []
    for number in range(100):
        hand.engine.propose(command(f"{number}"))
        for message in hand.heard("n2"):
            assert isinstance(message, frames.Append)
            sent.append((message.prev_index, len(message.entries)))
            hand.answer("n2", next_index=3, ability=FULL)

    # A proposal is a sign of life, too.
    assert set(sent) == {(2, 0)}
    count = 0
    for _ in range(100):
        heard = hand.heard("n2")
        count += len(heard)
        for _ in heard:
            hand.answer("n2", next_index=3, ability=FULL)
    assert count <= 1_000 / APPEND_PERIOD_MS + 1
    hand.answer("n2", next_index=3)
    assert [len(message.entries) for message in hand.heard("n2") if isinstance(message, frames.Append)] == [100]


@pytest.mark.parametrize(
    ("n2", "n3", "target"),
    [
        (None, None, "n2"),
        (EMPTY, None, "n3"),
        (FULL, None, "n3"),
        (FULL, EMPTY, "n2"),
        (EMPTY, EMPTY, ""),
    ],
)
def test_leadership_is_handed_to_one_that_can_lead(
    n2: frames.Ability | None, n3: frames.Ability | None, target: str
) -> None:
    """When nobody is named. Without room is better than not at all."""
    hand = leading(**{name: ability for name, ability in (("n2", n2), ("n3", n3)) if ability is not None})
    reason = hand.engine.transfer("", hand.now_ms)
    asked = [said.peer_id for said in hand.step() if isinstance(said.message, frames.StandNow)]

    assert asked == ([target] if target else [])
    assert bool(reason) is not bool(target)


def test_leadership_is_not_handed_to_one_that_is_silent() -> None:
    """Its stream stands, as that of a process that was paused does."""
    hand = leading()
    hand.step(200)
    hand.answer("n3", next_index=3)
    hand.step(200)
    assert hand.engine.transfer("", hand.now_ms) == ""

    assert [said.peer_id for said in hand.step() if isinstance(said.message, frames.StandNow)] == ["n3"]


@pytest.mark.parametrize(("size", "target"), [(4 << 20, "n2"), ((4 << 20) + 1, "n3")])
def test_leadership_is_not_handed_to_one_that_lags(size: int, target: str) -> None:
    """It would not have everything in time, and meanwhile nobody decides. At the bound it would."""
    hand = leading()
    hand.engine.propose(b"\0" * size)
    hand.step()
    hand.answer("n2", next_index=3)
    hand.answer("n3", next_index=3 if target == "n2" else 4)
    assert hand.engine.transfer("", hand.now_ms) == ""
    hand.answer(target, next_index=4)

    assert [said.peer_id for said in hand.step() if isinstance(said.message, frames.StandNow)] == [target]


def test_full_follower_that_lacks_more_is_met_where_it_stands() -> None:
    """Or each sign of life would be refused, and it would never be known what it holds."""
    hand = Hand()
    hand.lead()
    for number in range(3):
        hand.engine.propose(command(f"{number}"))
    hand.step()
    hand.answer("n2", next_index=2, matches=False, ability=FULL)
    signs = [message for message in hand.heard("n2", ms=APPEND_PERIOD_MS + 2) if isinstance(message, frames.Append)]

    assert [(sign.prev_index, sign.entries) for sign in signs] == [(1, [])]


@pytest.mark.parametrize(("free", "is_full"), [(500, False), (499, True)])
def test_follower_takes_entries_while_there_is_room(free: int, is_full: bool) -> None:
    """What comes one byte below the bound is as if it had not come; what came before is committed and acknowledged."""
    disk = Disk()
    journals.found(disk)
    hand = Hand(store=disk, limits=LIMITS)
    hand.append("n2", term=1, previous=(1, 0), entries=[("a", 1)])
    hand.step()
    disk.free = free
    hand.step(LIMITS.free_bytes_age_ms)
    hand.append("n2", term=1, previous=(2, 1), entries=[("b", 1), ("c", 1)], commit_index=4)
    answers = [message for message in hand.heard("n2") if isinstance(message, frames.AppendAnswer)]

    assert hand.entries() == [("a", 1)] if is_full else [("a", 1), ("b", 1), ("c", 1)]
    assert hand.applied[0] == (2, command("a"))
    ability = frames.Ability(free, takes_entries=not is_full, may_lead=True)
    assert [(answer.matches, answer.next_index, answer.ability) for answer in answers] == [
        (True, 3 if is_full else 5, ability)
    ]


def test_named_node_in_quarantine_is_refused() -> None:
    hand = leading(n2=EMPTY)

    assert "n2 is in quarantine" in hand.engine.transfer("n2", hand.now_ms)
