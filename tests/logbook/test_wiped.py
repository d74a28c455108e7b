"""A node that has lost its disk: it comes back by entries or by rows, and a person may do without the third one."""

from stepward.server.logbook.outbox import Recover, Recovered, ReplicaLimits
from stepward.server.store import facts
from tests.logbook.test_installing import SHORT, fetch, fetch_from
from tests.logbook.toy import Add
from tests.logbook.trio import IDS, Trio


def others(node_id: str) -> list[str]:
    return [one for one in IDS if one != node_id]


def wiped(limits: ReplicaLimits | None = None) -> tuple[Trio, str, str]:
    """A cluster in which a follower has just lost its disk and starts: its leader, and that follower."""
    trio = Trio(limits=limits)
    for _ in range(20):
        trio.write(Add(rows_written=1))
    leader = trio.lead()
    trio.settle()
    lost = others(leader)[0]
    trio.wipe(lost)
    trio.start(lost)
    return trio, leader, lost


def quarantined(trio: Trio, node_id: str) -> bool:
    return trio.replica(node_id).standing.quarantined


def test_wiped_node_takes_part_again() -> None:
    trio, leader, lost = wiped()
    assert quarantined(trio, lost)
    trio.run_until(lambda: not quarantined(trio, lost), within_ms=2_000)
    trio.settle()
    assert trio.counter(lost) == 20
    # The cluster can do with it and one other.
    trio.kill(leader)
    trio.write(Add())

    assert trio.counter(trio.lead()) == 21


def test_wiped_node_takes_over_rows_and_stays_in_quarantine_until_it_may_end() -> None:
    """Rows do not say what it had promised."""
    trio, leader, lost = wiped(SHORT)
    trio.run_until(lambda: fetch_from(trio, lost) == leader)
    assert trio.replica(lost).install(fetch(trio, leader, lost))
    assert trio.machines[lost].store.fact(facts.QUARANTINE)
    assert quarantined(trio, lost)
    trio.run_until(lambda: not quarantined(trio, lost), within_ms=2_000)
    trio.write(Add())
    trio.settle()

    assert trio.counter(lost) == 21


def test_nobody_leads_while_a_wiped_node_cannot_ask_the_third() -> None:
    """It may have promised something to the one that is away: only that one knows."""
    trio, leader, _ = wiped()
    trio.kill(leader)
    trio.run(5_000)

    assert trio.leading() == []
    trio.start(leader)
    assert trio.write(Add())


def test_a_person_may_say_that_the_third_is_gone_for_good() -> None:
    trio, leader, lost = wiped()
    trio.kill(leader)
    trio.run(1_000)
    survivor = next(one for one in others(leader) if one != lost)
    trio.machines[lost].inbox.append(Recover("recover", frozenset({leader})))
    trio.run_until(lambda: "recover" in trio.answers)
    assert trio.answers["recover"].answer == Recovered()
    trio.write(Add(), node_id=trio.lead(among=[lost, survivor]))

    assert trio.counter(survivor) == 21


def test_recovery_of_a_node_that_needs_none_is_refused() -> None:
    trio = Trio()
    leader = trio.lead()
    trio.machines[leader].inbox.append(Recover("recover", frozenset({others(leader)[0]})))
    trio.run(10)

    assert trio.reason("recover") == "NODE_STATE"
