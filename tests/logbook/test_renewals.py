"""Renewals with the real rules on three nodes: one leader at a time acknowledges a lease (rule a of `core.leases`)."""

from collections.abc import Sequence
from random import Random
from typing import cast

import pytest

from stepward.server.core.commands import AnyCommand, Command, OpenSession, RenewSession, SessionOpened, SessionRenewed
from stepward.server.core.decide import Decision, Moment, decide
from stepward.server.core.leases import record_age_ms
from stepward.server.core.limits import Limits
from stepward.server.core.reader import Reader
from stepward.server.core.sessions import held_digest
from tests.logbook.trio import IDS, Trio

OPEN = OpenSession("agent", "default", "q", ("act",), 4, "agent", "test", "n1")
RENEW = RenewSession("agent", 1, held_digest(()))


def real_rules(reader: Reader, commands: Sequence[Command], moment: Moment, /) -> Decision:
    """What a node decides with."""
    return decide(reader, cast("Sequence[AnyCommand]", commands), moment, Limits(), Random(1))


def others(node_id: str) -> list[str]:
    return [one for one in IDS if one != node_id]


def with_session() -> tuple[Trio, str, int]:
    """A cluster with a session that was renewed just now, its leader, and the TTL."""
    trio = Trio(decider=real_rules)
    (opened,) = trio.write(OPEN)
    assert isinstance(opened, SessionOpened)
    leader = trio.lead()
    trio.settle()
    assert trio.write(RENEW, node_id=leader) == [SessionRenewed(send_held=False)]
    return trio, leader, opened.ttl_ms


def test_young_renewal_costs_no_batch_and_leaves_at_once() -> None:
    trio, leader, _ = with_session()
    before = trio.replica(leader).standing.head.sequence
    (token,) = trio.ask(leader, RENEW, urgent=True)
    trio.run(5)

    assert trio.answers[token].answer == SessionRenewed(send_held=False)
    assert trio.replica(leader).standing.head.sequence == before


@pytest.mark.parametrize("pause_ms", [200, 900, 3_000])
def test_leader_that_was_paused_renews_nothing(pause_ms: int) -> None:
    """Its rows say that it may, and its successor counts the session's silence: only the leader's lease tells."""
    trio, zombie, ttl_ms = with_session()
    trio.machines[zombie].paused = True
    trio.run(pause_ms)
    late, trio.machines[zombie].inbox = trio.machines[zombie].inbox, []
    (token,) = trio.ask(zombie, RENEW, urgent=True)
    trio.step(zombie)
    assert pause_ms <= ttl_ms // 3
    assert not isinstance(trio.answers.get(token, None), SessionRenewed)
    assert token not in trio.answers or trio.reason(token) == "NOT_LEADER"

    trio.machines[zombie].inbox += late
    trio.machines[zombie].paused = False
    trio.run_until(lambda: token in trio.answers)
    # Nobody else led while it was away for less than an election: then a round of messages says so.
    assert trio.reason(token) == ("" if pause_ms < 300 else "NOT_LEADER")


def test_leader_that_is_cut_off_renews_nothing_after_its_lease() -> None:
    trio, leader, _ = with_session()
    trio.isolate(leader)
    cut_ms = trio.ms
    granted_ms = []
    for _ in range(300):
        (token,) = trio.ask(leader, RENEW, urgent=True)
        trio.run(5)
        if token in trio.answers and not trio.reason(token):
            granted_ms.append(trio.ms)

    # Half of the shortest election, counted from when the last message left that was answered.
    assert max(granted_ms, default=cut_ms) - cut_ms <= 150
    assert trio.lead(among=others(leader))


def test_successor_records_a_renewal_before_it_acknowledges_it() -> None:
    """What the one before has acknowledged is in no row, so the first heartbeat of an epoch is a batch."""
    trio, leader, ttl_ms = with_session()
    trio.run(record_age_ms(ttl_ms) // 2)
    trio.kill(leader)
    successor = trio.lead()
    before = trio.replica(successor).standing.head.sequence
    answer = trio.write(RENEW, node_id=successor)

    assert answer == [SessionRenewed(send_held=False)]
    assert trio.replica(successor).standing.head.sequence == before + 1
