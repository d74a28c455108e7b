"""Three engines that elect, replicate and commit, and go on without one of them."""

from tests.logbook.three import Three


def test_one_leads_and_all_apply_the_same() -> None:
    three = Three().start()
    leader = three.settle()
    commands = three.propose(leader, 20)
    three.until(lambda: three.all_have(commands))

    assert [command for _, command in leader.applied if command in commands] == commands
    assert len({tuple(host.applied) for host in three.hosts.values()}) == 1
    assert {host.engine.leader_id for host in three.hosts.values()} == {leader.node_id}
    assert len(three.acknowledged) == 20


def test_the_others_go_on_when_the_leader_is_killed() -> None:
    three = Three().start()
    first = three.settle()
    commands = three.propose(first, 5)
    three.until(lambda: three.all_have(commands))
    first.kill()
    second = three.settle()
    assert second is not first
    more = three.propose(second, 5)
    three.until(lambda: len(three.acknowledged) == 10)
    first.start()
    three.until(lambda: three.all_have(commands + more))

    assert three.leader is second


def test_failover_takes_less_than_a_second() -> None:
    """From the kill of the leader to the first entry of the next one, over many starts."""
    gaps = []
    for seed in range(30):
        three = Three(seed).start()
        three.settle().kill()
        gaps.append(three.until(lambda: three.leader is not None and three.leader.engine.settled))  # noqa: B023 - called in this turn

    assert max(gaps) <= 1_000


def test_healthy_cluster_elects_once() -> None:
    three = Three().start()
    leader = three.settle()
    term = leader.engine.term
    for _ in range(60):
        three.propose(leader, 3)
        three.run(1_000)

    assert (leader.engine.term, sum(host.engine.elections for host in three.hosts.values())) == (term, 1)
