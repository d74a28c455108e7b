"""Led time and log time over failovers and reboots: no lease dies of a gap, and no gap is lost or made longer."""

import pytest

from stepward.server.core.leases import session_end_led_ms
from stepward.server.logbook.frames import UNKNOWN_AGE, AgeAnswer, AgeQuestion
from tests.logbook import test_leadership, toy
from tests.logbook.toy import Add, at
from tests.logbook.trio import IDS, Trio

HOUR_MS = 3_600_000


def others(node_id: str) -> list[str]:
    return [one for one in IDS if one != node_id]


def work(trio: Trio, ms: int) -> None:
    """A batch every half second, as the supervisor's beat is one, whatever becomes of it."""
    until_ms = trio.ms + ms
    while trio.ms < until_ms:
        for leader in trio.leading():
            trio.ask(leader, Add())
        trio.run(min(500, until_ms - trio.ms))


def test_H001_elections_do_not_make_a_lease_longer() -> None:
    """The leader dies every 6 s: led time goes on all the same, but for what each leaderless moment takes."""
    trio = Trio()
    trio.write(Add())
    renewed_led_ms, renewed_ms = trio.replica(trio.lead()).standing.head.led_ms, trio.ms
    ends_led_ms = session_end_led_ms(renewed_led_ms=renewed_led_ms, ttl_ms=10_000, kill_grace_ms=2_000)
    changes, leaderless_ms = 0, 0
    while trio.replica(trio.lead()).standing.head.led_ms < ends_led_ms:
        work(trio, 6_000)
        killed = trio.lead()
        trio.kill(killed)
        leaderless_ms += trio.run_until(lambda: trio.leading(others(killed)))  # noqa: B023 - called at once
        changes += 1
        trio.start(killed)

    assert changes >= 3
    # Half a second between two batches is all that a leader can take with it; two, with the way to the next round.
    assert trio.ms - renewed_ms <= ends_led_ms - renewed_led_ms + leaderless_ms + 6_000 + changes * 600


def test_H002_no_lease_dies_while_nobody_leads() -> None:
    trio = Trio()
    trio.write(Add())
    before = trio.replica(trio.lead()).standing.head
    decided_ms = trio.ms
    leader, *rest = trio.lead(), *others(trio.lead())
    for node_id in rest:
        trio.kill(node_id)
    trio.run(6_000)
    assert not trio.leading()
    for node_id in rest:
        trio.start(node_id)
    trio.write(Add())
    after = trio.replica(trio.lead()).standing.head
    led_ms = after.led_ms - before.led_ms

    assert led_ms <= 100
    # The clocks of the batches say exactly what has passed between them.
    assert after.log_ms - before.log_ms == pytest.approx(trio.ms - decided_ms, abs=30)
    assert leader in IDS


def test_H040_log_time_never_outruns_the_clock() -> None:
    """A timer fires when its time has come, whoever leads: what was due in a second is not due at once."""
    trio = Trio()
    trio.write(Add())
    head = first = trio.replica(trio.lead()).standing.head
    began_ms = trio.ms
    for _ in range(10):
        work(trio, 1_000)
        killed = trio.lead()
        trio.kill(killed)
        trio.lead(among=others(killed))
        trio.start(killed)
        trio.write(Add())
        head = trio.replica(trio.lead()).standing.head
        assert head.log_ms - first.log_ms <= trio.ms - began_ms + 10
        assert head.led_ms - first.led_ms <= head.log_ms - first.log_ms
    assert head.log_ms - first.log_ms == pytest.approx(trio.ms - began_ms, abs=60)


@pytest.mark.parametrize("rebooted", [False, True])
def test_H039_a_timer_that_fell_due_while_all_were_down_is_due(rebooted: bool) -> None:
    """Log time has made up for the hour when the epoch opens; after a reboot by the wall clocks."""
    trio = Trio()
    trio.write(Add())
    trio.settle()
    before, decided_ms = trio.replica(trio.lead()).standing.head, trio.ms
    for node_id in IDS:
        trio.kill(node_id)
    trio.ms += HOUR_MS
    for node_id in IDS:
        if rebooted:
            trio.reboot(node_id)
        trio.start(node_id)
    trio.lead()
    after = trio.replica(trio.lead()).standing.head

    assert after.log_ms - before.log_ms == pytest.approx(trio.ms - decided_ms, abs=60)
    assert after.led_ms == before.led_ms


def test_after_a_reboot_another_node_says_how_old_the_head_is() -> None:
    """Its wall clock is an hour ahead, and is not asked while one node knows better."""
    trio = Trio()
    trio.write(Add())
    trio.settle()
    old, decided_ms = trio.lead(), trio.ms
    before = trio.replica(old).standing.head
    rebooted, witness = others(old)
    trio.kill(old)
    trio.reboot(rebooted)
    trio.machines[rebooted].wall_offset_ms = HOUR_MS
    trio.run(4_000)
    trio.start(rebooted)
    # The witness may stand for election, too, but this is about the other one.
    trio.replica(witness)._engine._elections.rest()
    trio.lead(among=[rebooted])
    after = trio.replica(rebooted).standing.head

    assert after.log_ms - before.log_ms == pytest.approx(trio.ms - decided_ms, abs=60)


def test_follower_knows_how_old_the_head_is_from_when_it_came() -> None:
    """Its own steady clock, and the age that came with the entry: no question, and no wall clock."""
    trio = Trio()
    trio.write(Add())
    trio.settle()
    old, decided_ms = trio.lead(), trio.ms
    before = trio.replica(old).standing.head
    for node_id in others(old):
        trio.machines[node_id].wall_offset_ms = HOUR_MS
    trio.kill(old)
    trio.lead()
    after = trio.replica(trio.lead()).standing.head

    assert after.log_ms - before.log_ms == pytest.approx(trio.ms - decided_ms, abs=60)


@pytest.mark.parametrize(
    ("ahead_ms", "gap_ms"),
    [
        # Of a majority the smallest counts.
        ((0, 0, HOUR_MS), 10_000),
        ((HOUR_MS, 0, 0), 10_000),
        ((HOUR_MS, HOUR_MS, 0), 10_000),
        # Never negative.
        ((-HOUR_MS, 0, 0), 0),
    ],
)
def test_wall_clocks_when_nobody_knows(ahead_ms: tuple[int, int, int], gap_ms: int) -> None:
    trio = Trio()
    trio.write(Add())
    trio.settle()
    before = trio.replica(trio.lead()).standing.head
    for node_id, ms in zip(IDS, ahead_ms, strict=True):
        trio.reboot(node_id)
        trio.machines[node_id].wall_offset_ms = ms
    trio.ms += 10_000
    for node_id in IDS:
        trio.reboot(node_id)
        trio.start(node_id)
    trio.lead()
    after = trio.replica(trio.lead()).standing.head

    assert after.log_ms - before.log_ms == pytest.approx(gap_ms, abs=1_500 if gap_ms else 0)


def rebooted_pair() -> toy.PeeredReplica:
    """A replica that was elected and has its no-op applied, on a head of which it does not know how old it is."""
    replica = test_leadership.elected()
    test_leadership.overtake(replica, epoch=5)
    replica.peer.acknowledge()
    replica.step(at(710), [])
    return replica


def questions(replica: toy.PeeredReplica) -> int:
    return len(replica.said(AgeQuestion))


def test_no_epoch_before_the_age_of_the_head_is_known() -> None:
    """It is asked again in case the question was lost."""
    replica = rebooted_pair()
    for ms in range(720, 1_030, 10):
        outbox = replica.step(at(ms), [])
        replica.peer.acknowledge()
        assert not outbox.applied
    assert questions(replica) == 4
    replica.peer.tell_age(30)
    replica.step(at(1_030), [])
    replica.peer.acknowledge()
    head = replica.step(at(1_040), []).standing.head

    assert head.sequence == 2
    assert head.log_ms == 30


def test_age_grows_while_it_is_waited_for() -> None:
    replica = rebooted_pair()
    (question,) = replica.said(AgeQuestion)
    replica._head_age.hear("n2", AgeAnswer(question.head_hash, 30, 0), at(715))

    assert replica._head_age.gap_ms(replica.standing.head, at(725)) == 40


def test_answer_about_another_head_is_no_answer() -> None:
    replica = rebooted_pair()
    replica._head_age.hear("n2", AgeAnswer(b"x" * 32, 30, 0), at(715))

    assert replica._head_age.gap_ms(replica.standing.head, at(725)) is None


def test_node_that_does_not_know_says_so() -> None:
    replica = toy.pair()
    replica.peer.say(AgeQuestion(b"x" * 32))
    replica.step(at(0), [])

    assert replica.said(AgeAnswer) == [AgeAnswer(b"x" * 32, UNKNOWN_AGE, at(0).wall_ms)]


def test_node_that_knows_says_how_old_the_batch_is() -> None:
    """Its own head, or one that it has in its journal and has not applied."""
    replica = test_leadership.leading()
    decided_ms = 710
    replica.peer.say(AgeQuestion(replica.standing.head.hash))
    replica.step(at(decided_ms + 90), [])
    told = [message.age_ms for message in replica.said(AgeAnswer)]

    assert told == [90]


def test_quiet_third_node_is_waited_for_only_so_long() -> None:
    """It may know exactly; but a majority is enough to go on, a quarter of a second after it was asked."""
    trio = Trio()
    trio.write(Add())
    trio.settle()
    trio.kill(trio.lead())
    for node_id in IDS:
        trio.reboot(node_id)
    first, second = IDS[:2]
    trio.start(first)
    trio.start(second)
    engines = [trio.replica(one)._engine for one in (first, second)]
    trio.run_until(lambda: any(engine.settled and engine.leads for engine in engines))

    assert 250 <= trio.run_until(lambda: trio.leading([first, second])) <= 300
