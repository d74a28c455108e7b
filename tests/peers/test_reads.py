"""Reads on any node hold everything that was acknowledged before, or are refused, or say how old they are."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from stepward.server.api.ends_watch import EndsWatch
from stepward.server.api.jobs import JobService
from stepward.server.api.watch import JobWatch
from stepward.server.core.rejections import Reason, Refused
from stepward.v1 import common_pb2, job_service_pb2
from tests.peers.twins import IDS, LIMITS, Node, S, twins, until

STALE = common_pb2.CONSISTENCY_STALE


def jobs(node: Node) -> JobService:
    return JobService(node.gateway, LIMITS, JobWatch(node.gateway, LIMITS), EndsWatch(node.gateway, LIMITS))


async def get(node: Node, job_id: str, consistency: int = 0) -> job_service_pb2.GetJobResponse:
    request: Any = job_service_pb2.GetJobRequest(job_id=job_id, consistency=consistency)  # type: ignore[arg-type]  # a number of the enum
    return await jobs(node).get_job(request, None)


async def head_on(node: Node) -> int:
    async with node.gateway.reading() as reader:
        return reader.head().sequence


def questions(node: Node) -> int:
    return sum(len(request.reads) for pipe in node.pipes for request in pipe.requests)


@pytest.mark.parametrize("node_id", IDS)
async def test_h106_job_that_was_acknowledged_is_found_on_every_node(node_id: str) -> None:
    """Also on one that has not heard of it yet: it asks the leader, and waits until it has."""
    async with twins() as cluster, asyncio.timeout(S):
        node = cluster[node_id]
        node.replica.applies = node_id == "n1"
        submitted = await cluster["n1"].gateway.submit(cluster["n1"].submission())
        getting = asyncio.ensure_future(get(node, submitted.job_id))
        await asyncio.sleep(0.05)
        assert getting.done() is (node_id == "n1")
        node.replica.applies = True

        assert (await getting).job.job_id == submitted.job_id


async def test_h106_node_that_stays_behind_never_says_that_there_is_no_such_job() -> None:
    """It says that it cannot tell, with which the caller goes to another node."""
    async with twins(leader_wait_ms_max=100) as cluster, asyncio.timeout(S):
        node = cluster["n2"]
        node.replica.applies = False
        submitted = await cluster["n1"].gateway.submit(cluster["n1"].submission())
        for consistency in (0, STALE):
            with pytest.raises(Refused) as refused:
                await get(node, submitted.job_id, consistency)
            assert refused.value.rejection.reason in {Reason.COMMIT_UNKNOWN, Reason.NO_LEADER}


async def test_what_there_is_not_is_not_found_on_any_node() -> None:
    """After the leader was asked."""
    async with twins() as cluster, asyncio.timeout(S):
        for node_id in IDS:
            with pytest.raises(Refused) as refused:
                await get(cluster[node_id], "0-" + "0" * 32, STALE)
            assert refused.value.rejection.reason is Reason.JOB_NOT_FOUND


async def test_readers_that_come_together_share_a_question() -> None:
    """A hundred of them cost the leader one answer."""
    async with twins() as cluster, asyncio.timeout(S):
        node = cluster["n2"]
        before = questions(node)
        await asyncio.gather(*(head_on(node) for _ in range(100)))

        assert questions(node) - before <= 2


async def test_reader_does_not_share_a_question_that_was_asked_before_he_came() -> None:
    """Its answer may lack what was acknowledged meanwhile."""
    async with twins() as cluster, asyncio.timeout(S):
        node = cluster["n2"]
        await head_on(node)
        node.pipes[-1].down.clear()
        first = asyncio.ensure_future(head_on(node))
        await until(lambda: node.pipes[-1].requests[-1].reads)
        asked = questions(node)
        submitted = await cluster["n1"].gateway.submit(cluster["n1"].submission())
        second = asyncio.ensure_future(head_on(node))
        await until(lambda: questions(node) > asked)
        node.pipes[-1].down.set()

        await first
        assert await second >= submitted.revision


async def test_leader_without_a_lease_asks_a_majority() -> None:
    """It answers when they have heard it since, and not before."""
    async with twins() as cluster, asyncio.timeout(S):
        leader = cluster["n1"]
        leader.replica.has_lease = leader.replica.majority = False
        await until(lambda: not leader.shard.holds_lease)
        reading = asyncio.ensure_future(head_on(leader))
        following = asyncio.ensure_future(head_on(cluster["n2"]))
        await asyncio.sleep(0.05)
        assert not reading.done()
        assert not following.done()
        leader.replica.majority = True

        assert await reading >= 2
        assert await following >= 2


async def test_leader_that_was_deposed_without_hearing_of_it_answers_nothing() -> None:
    """Another one has committed since; what it would read is old."""
    async with twins(leader_wait_ms_max=200) as cluster, asyncio.timeout(S):
        old = cluster["n1"]
        old.replica.has_lease = old.replica.majority = old.replica.hears = False
        await until(lambda: not old.shard.holds_lease)
        cluster.elect("n3")
        await until(lambda: cluster["n3"].shard.leads)
        submitted = await cluster["n3"].gateway.submit(cluster["n3"].submission())
        for consistency in (0, STALE):
            with pytest.raises(Refused) as refused:
                await get(old, submitted.job_id, consistency)
            assert refused.value.rejection.reason is Reason.NO_LEADER


async def test_leader_that_was_deposed_while_it_read_is_found_out() -> None:
    """What it has read under the old epoch is not made true by a new one."""
    async with twins() as cluster, asyncio.timeout(S):
        node = cluster["n1"]
        node.replica.has_lease = node.replica.majority = False
        await until(lambda: not node.shard.holds_lease)
        reading = asyncio.ensure_future(head_on(node))
        await asyncio.sleep(0.02)
        cluster.elect("n3")
        await until(lambda: cluster["n3"].shard.leads)
        node.replica.majority = True
        cluster.elect("n1")
        with pytest.raises(Refused) as refused:
            await reading

        assert refused.value.rejection.reason is Reason.NO_LEADER


async def test_stale_read_says_how_old_it_may_be() -> None:
    """Nothing on a leader with its lease; elsewhere since the leader was last asked, however busy the line."""
    async with twins() as cluster, asyncio.timeout(S):
        leader, node = cluster["n1"], cluster["n2"]
        submitted = await leader.gateway.submit(leader.submission())
        await head_on(node)

        assert (await get(leader, submitted.job_id, STALE)).staleness.ToMilliseconds() == 0
        assert (await get(node, submitted.job_id, STALE)).staleness.ToMilliseconds() < 1_000
        assert not (await get(node, submitted.job_id)).HasField("staleness")
        assert not (await get(leader, submitted.job_id)).HasField("staleness")
        # Batches reach this node no more, whatever it hears of its leader.
        node.replica.applies = False
        await leader.gateway.submit(leader.submission())
        await asyncio.sleep(1.5)
        assert (await get(node, submitted.job_id, STALE)).staleness.ToMilliseconds() >= 1_000


async def test_idle_node_stays_fresh() -> None:
    """It asks the leader once a second, so a stale reader is not told of an age that it does not have."""
    async with twins() as cluster, asyncio.timeout(S):
        node = cluster["n2"]
        await asyncio.sleep(2.5)

        assert node.gateway.staleness_ms < 1_500
        assert 1 <= questions(node) <= 4


async def test_node_that_has_lost_the_leader_ends_waits_and_names_the_job() -> None:
    """Within a third of a TTL; the job goes on, and its caller asks another node."""
    async with twins(session_ttl_ms=900) as cluster, asyncio.timeout(S):
        node = cluster["n2"]
        submitted = await node.gateway.submit(node.submission())
        waiter = node.gateway.register_waiter(submitted.job_id)
        watcher = node.gateway.watchers.of_job(submitted.job_id)
        of_caller = node.gateway.watchers.of_caller("ann")
        assert not node.contact.lost
        began = asyncio.get_running_loop().time()
        node.replica.hears = False
        with pytest.raises(Refused) as refused:
            await waiter
        took_s = asyncio.get_running_loop().time() - began

        assert 0.25 < took_s < 1.0
        rejection = refused.value.rejection
        assert (rejection.reason, rejection.metadata["job_id"]) == (Reason.NO_LEADER, submitted.job_id)
        assert submitted.job_id in rejection.message
        # The hint would name one of whom nothing is known any more.
        assert "leader_id" not in rejection.metadata
        assert watcher.closed is not None
        assert watcher.closed.reason is Reason.NO_LEADER
        assert of_caller.closed is not None
        assert "behind the last revisions seen" in of_caller.closed.message
        assert "job_id" not in of_caller.closed.metadata
        # And when it hears again, it serves again, and would tell again.
        node.replica.hears = True
        await until(lambda: not node.contact.lost)
        assert await head_on(node) >= submitted.revision


async def test_node_whose_disk_is_full_sends_everybody_elsewhere() -> None:
    """It hears of the leader and could forward, but of what is decided it would see nothing, for ever."""
    async with twins() as cluster, asyncio.timeout(S):
        node = cluster["n2"]
        submitted = await node.gateway.submit(node.submission())
        waiter = node.gateway.register_waiter(submitted.job_id)
        node.replica.takes_entries = node.replica.applies = False
        with pytest.raises(Refused) as refused:
            await waiter
        assert refused.value.rejection.reason is Reason.NO_LEADER
        assert "disk" in refused.value.rejection.message
        assert refused.value.rejection.metadata["leader_id"] == "n1"
        sent = node.counters.forwarded
        for call in (node.gateway.submit(node.submission()), head_on(node)):
            with pytest.raises(Refused) as refused:
                await call
            assert refused.value.rejection.reason is Reason.NO_LEADER
        # Nothing of it was decided.
        assert node.counters.forwarded == sent
        assert (await get(node, submitted.job_id, STALE)).job.job_id == submitted.job_id

        node.replica.takes_entries = node.replica.applies = True
        await until(lambda: not node.contact.lost)
        assert await head_on(node) >= submitted.revision


async def test_leader_that_reaches_nobody_has_lost_contact_with_itself() -> None:
    """It hears of its own leadership all the time, which says nothing."""
    async with twins(session_ttl_ms=900) as cluster, asyncio.timeout(S):
        node = cluster["n1"]
        node.replica.has_lease = False
        await until(lambda: node.contact.lost)

        assert node.shard.leads


async def test_node_that_was_just_elected_has_not_lost_contact() -> None:
    """It has no lease before a majority has answered it; its agents and waits stay."""
    async with twins(session_ttl_ms=3_000) as cluster, asyncio.timeout(S):
        node = cluster["n2"]
        waiter = node.gateway.register_waiter("0-" + "0" * 32)
        node.replica.has_lease = False
        await cluster.led_by("n2")
        await asyncio.sleep(0.2)
        assert not node.contact.lost
        assert not waiter.done()
        assert node.gateway.staleness_ms < 1_500
        node.replica.has_lease = True
        await until(lambda: node.shard.holds_lease)

        assert node.gateway.staleness_ms == 0


async def test_leader_that_failed_to_hand_over_has_not_lost_contact() -> None:
    """It counts its lease no more in this term, but hears a majority all the time: its agents and waits stay."""
    async with twins(session_ttl_ms=900) as cluster, asyncio.timeout(S):
        node = cluster["n1"]
        waiter = node.gateway.register_waiter("0-" + "0" * 32)
        node.replica.kept_leading = True
        await asyncio.sleep(0.6)

        assert not node.shard.holds_lease
        assert not node.contact.lost
        assert not waiter.done()


async def test_node_that_has_just_started_has_lost_nobody() -> None:
    """A leader may be found within the time that one may be missed."""
    async with twins("", session_ttl_ms=900) as cluster, asyncio.timeout(S):
        node = cluster["n2"]
        node.replica.hears = False
        node.replica._contact_at_ms = 0
        await until(lambda: node.replica.steps or node.shard.stepped_at_ms)
        await asyncio.sleep(0.1)
        assert not node.contact.lost

        await until(lambda: node.contact.lost)


async def test_reader_of_a_node_that_applies_nothing_leaves_nothing_behind() -> None:
    """Each answer of the leader is kept until it is applied here, or until that takes too long."""
    async with twins(behind_ms_max=100, leader_wait_ms_max=100) as cluster, asyncio.timeout(S):
        node = cluster["n2"]
        await head_on(node)
        await until(lambda: node.shard.standing.head.sequence == cluster.log.head.sequence)
        node.replica.applies = False
        await cluster["n1"].gateway.submit(cluster["n1"].submission())
        reading = asyncio.ensure_future(head_on(node))
        # The reader, and what his answer says of the age of these rows.
        await until(lambda: len(node.forwarding._ahead) == 2)
        with pytest.raises(Refused):
            await reading

        await until(lambda: not len(node.forwarding._ahead))


async def test_call_that_ends_before_its_wait_leaves_no_exception_behind(caplog: pytest.LogCaptureFixture) -> None:
    """Its submission has failed for the same reason, so nobody looks at why the wait was ended."""
    async with twins(session_ttl_ms=900) as cluster, asyncio.timeout(S):
        node = cluster["n2"]
        waiter = node.gateway.register_waiter("0-" + "0" * 32)
        node.replica.hears = False
        await until(waiter.done)
        node.gateway.forget_waiter("0-" + "0" * 32, waiter)
        del waiter
        gc.collect()

        assert not [record for record in caplog.records if record.name == "asyncio"]


async def test_leader_whose_lease_has_ended_grows_stale() -> None:
    """Another one may have committed since, without its hearing of it."""
    async with twins() as cluster, asyncio.timeout(S):
        node = cluster["n1"]
        node.replica.has_lease = False
        await until(lambda: not node.shard.holds_lease)
        await asyncio.sleep(0.3)

        assert 250 <= node.gateway.staleness_ms < 2_000
