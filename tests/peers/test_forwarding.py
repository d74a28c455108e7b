"""Every node serves every command: it goes to whoever decides, and its answer comes back, or why there is none."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from stepward.internal.v1 import peer_service_pb2 as pb
from stepward.server.core import keys
from stepward.server.core.commands import (
    CancelJob,
    CloseStream,
    JobSubmitted,
    StreamClosed,
    Sweep,
)
from stepward.server.core.rejections import Reason, Refused, Rejection
from stepward.server.peers import forwarding
from stepward.server.peers.errands import Errand, Errands
from stepward.server.peers.forwarding import HOPS_MAX
from stepward.server.session_binding import NobodyWaits
from tests.peers.twins import IDS, S, reason_of, twins, until


async def test_follower_hands_commands_to_the_leader() -> None:
    """Several that come together share a message, and each gets its own answer."""
    async with twins() as cluster, asyncio.timeout(S):
        node = cluster["n2"]
        answers = await asyncio.gather(*(node.gateway.submit(node.submission()) for _ in range(20)))

        assert len({answer.job_id for answer in answers}) == 20
        carrying = [len(request.commands) for pipe in node.pipes for request in pipe.requests if request.commands]
        assert carrying == [20]
        assert node.counters.forwarded == 20


async def test_answer_waits_until_this_node_shows_what_it_speaks_of() -> None:
    """Whoever was told that his job is stored finds it in the rows of the node that told him."""
    async with twins() as cluster, asyncio.timeout(S):
        node = cluster["n2"]
        node.replica.applies = False
        submitting = asyncio.ensure_future(node.gateway.submit(node.submission()))
        await until(lambda: not (cluster.log.head.sequence < 3))
        await asyncio.sleep(0.05)
        assert not submitting.done()
        node.replica.applies = True

        submitted = await submitting
        async with node.gateway.reading() as reader:
            assert reader.head().sequence >= submitted.revision


async def test_node_too_far_behind_says_so() -> None:
    """An answer that this node cannot show in time is no answer: the caller asks again, elsewhere."""
    async with twins(behind_ms_max=100) as cluster, asyncio.timeout(S):
        node = cluster["n2"]
        node.replica.applies = False
        with pytest.raises(Refused) as behind:
            await node.gateway.submit(node.submission())

        assert behind.value.rejection.reason is Reason.COMMIT_UNKNOWN
        assert "more than 100 ms behind" in behind.value.rejection.message


@pytest.mark.parametrize("node_id", IDS)
async def test_every_node_answers_the_same(node_id: str) -> None:
    """What the rules refuse is refused on every node with the same words."""
    async with twins() as cluster, asyncio.timeout(S):
        answer = await cluster[node_id].shard.call(CancelJob("0-" + "0" * 32, ""))

        assert reason_of(answer) is Reason.JOB_NOT_FOUND


async def test_h051_answer_that_was_lost_with_the_leader_is_found_by_the_next_one() -> None:
    """The job was stored, and nobody was told; with a key the node asks the next leader, and no caller sees it."""
    async with twins() as cluster, asyncio.timeout(S):
        node = cluster["n2"]
        cluster["n1"].replica.answers_lost = 1
        cluster["n1"].replica.hears = False
        submitting = asyncio.ensure_future(node.gateway.submit(node.submission(key="k")))
        await until(lambda: not (cluster.log.head.sequence < 3))
        await cluster.led_by("n3")

        first = await submitting
        again = await cluster["n3"].gateway.submit(node.submission(key="k"))
        assert (first.duplicate, again.duplicate, again.job_id) == (False, True, first.job_id)


@pytest.mark.parametrize("reason", [Reason.OVERLOADED, Reason.DISK_FULL, Reason.INTERNAL])
async def test_h051_second_try_that_meets_a_closed_door_says_nothing_of_the_first(
    reason: Reason, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job is stored. A caller who was told that it never was would submit it again under another key."""
    async with twins() as cluster, asyncio.timeout(S):
        node, heir = cluster["n2"], cluster["n3"]
        closed = Refused(Rejection(reason, "not now"))
        monkeypatch.setattr(heir.admission, "admit", lambda *_: _raise(closed))
        cluster["n1"].replica.answers_lost = 1
        cluster["n1"].replica.hears = False
        submitting = asyncio.ensure_future(node.gateway.submit(node.submission(key="k")))
        await until(lambda: cluster.log.head.sequence >= 3)
        await cluster.led_by("n3")
        with pytest.raises(Refused) as unknown:
            await submitting

        assert unknown.value.rejection.reason is Reason.COMMIT_UNKNOWN
        # What was sent once was refused, and that is all.
        with pytest.raises(Refused) as refused:
            await node.gateway.submit(node.submission(key="another"))
        assert refused.value.rejection.reason is reason


def _raise(error: Exception) -> None:
    raise error


async def test_submission_without_a_key_is_sent_once() -> None:
    """A second time it would be a second job; so its caller is told that nobody knows."""
    async with twins() as cluster, asyncio.timeout(S):
        node = cluster["n2"]
        cluster["n1"].replica.answers_lost = 1
        cluster["n1"].replica.hears = False
        with pytest.raises(Refused) as unknown:
            await node.gateway.submit(node.submission())

        assert unknown.value.rejection.reason is Reason.COMMIT_UNKNOWN


async def test_stream_that_breaks_after_sending_leaves_the_outcome_unknown() -> None:
    """Whether the leader has read it, this node cannot know."""
    async with twins() as cluster, asyncio.timeout(S):
        node = cluster["n2"]
        await node.shard.call(CloseStream("nobody", 1))
        node.pipes[-1].up.clear()
        submitting = asyncio.ensure_future(node.gateway.submit(node.submission()))
        await until(lambda: any(request.commands for request in node.pipes[-1].requests[2:]))
        node.pipes[-1].cancel()
        with pytest.raises(Refused) as unknown:
            await submitting

        assert unknown.value.rejection.reason is Reason.COMMIT_UNKNOWN
        # The next one goes over a stream of its own.
        assert isinstance(await node.gateway.submit(node.submission()), JobSubmitted)
        assert len(node.pipes) == 2


async def test_link_that_was_closed_takes_nothing_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be in the middle of writing, and in its last turn find what has just been taken back from it."""
    async with twins() as cluster, asyncio.timeout(S):
        node = cluster["n2"]
        await node.shard.call(CloseStream("nobody", 1))
        link, pipe = node.forwarding._link, node.pipes[-1]
        assert link is not None
        # Nothing else is in the middle of being written.
        await until(lambda: link.asked_at_ms and not link.asked)
        monkeypatch.setattr(forwarding, "FRESHNESS_MS", 60_000)
        pipe.writable.clear()
        first = asyncio.ensure_future(node.gateway.submit(node.submission(key="first")))
        await until(lambda: len(link.sent) == 1)
        second = asyncio.ensure_future(node.gateway.submit(node.submission(key="second")))
        await until(lambda: len(node.forwarding.errands) == 1)
        close = link.close

        def close_while_it_writes() -> None:
            pipe.writable.set()
            close()

        link.close = close_while_it_writes  # type: ignore[method-assign]  # both happen in one turn of the loop
        await cluster.led_by("n3")

        assert isinstance(await first, JobSubmitted)
        assert isinstance(await second, JobSubmitted)


async def test_link_that_fails_in_a_way_that_nobody_expected_is_made_anew() -> None:
    """What was sent on it is answered, and the next command goes over another one."""
    async with twins() as cluster, asyncio.timeout(S):
        node = cluster["n2"]
        await node.shard.call(CloseStream("nobody", 1))
        node.pipes[-1].up.clear()
        sent = asyncio.ensure_future(node.shard.call(CancelJob("0-" + "0" * 32, "")))
        await until(lambda: len(node.pipes[-1].requests) > 2)
        await node.pipes[-1]._down.put(cast("Any", pb.ForwardResponse(answers=[pb.ForwardedAnswer(id=0)])))
        node.forwarding.came = broken  # type: ignore[assignment]  # a rule of ours that is wrong
        assert reason_of(await sent) is Reason.COMMIT_UNKNOWN
        del node.forwarding.came

        assert isinstance(await node.shard.call(CloseStream("nobody", 1)), StreamClosed)


def broken(*_: object) -> None:
    raise ZeroDivisionError


async def test_without_a_leader_a_command_waits_for_one() -> None:
    """An election is shorter than the patience of a caller."""
    async with twins() as cluster, asyncio.timeout(S):
        cluster.elect("")
        node = cluster["n2"]
        await until(lambda: not (node.shard.standing.leader_id))
        submitting = asyncio.ensure_future(node.gateway.submit(node.submission()))
        await asyncio.sleep(0.1)
        cluster.elect("n3")

        assert isinstance(await submitting, JobSubmitted)


async def test_h108_without_a_leader_a_call_ends_in_time_and_the_hint_is_cleared() -> None:
    """NO_LEADER and when to come back, spread; no word of the old leader; after an election calls work."""
    async with twins(leader_wait_ms_max=200) as cluster, asyncio.timeout(S):
        cluster.elect("")
        node = cluster["n2"]
        await until(lambda: not (node.shard.standing.leader_id))
        began = asyncio.get_running_loop().time()
        refusals = await asyncio.gather(
            *(node.gateway.submit(node.submission()) for _ in range(20)), return_exceptions=True
        )
        took_s = asyncio.get_running_loop().time() - began
        rejections = [refused.rejection for refused in refusals if isinstance(refused, Refused)]

        assert [one.reason for one in rejections] == [Reason.NO_LEADER] * 20
        assert 0.2 <= took_s < 1.0
        assert len({one.retry_after_ms for one in rejections}) > 5
        assert all(one.metadata == {} for one in rejections)
        assert node.admission.waiting == 0
        cluster.elect("n3")
        began = asyncio.get_running_loop().time()
        submitted = None
        while submitted is None:
            try:
                submitted = await node.gateway.submit(node.submission())
            except Refused as refused:
                await asyncio.sleep(refused.rejection.retry_after_ms / 1_000)
        assert asyncio.get_running_loop().time() - began < 2.0


async def test_call_ends_in_time_although_the_replica_has_nothing_to_do() -> None:
    """It steps only when an election needs it."""
    async with twins(leader_wait_ms_max=200) as cluster, asyncio.timeout(S):
        cluster.elect("")
        node = cluster["n2"]
        node.replica.wakes_after_ms = 60_000
        await until(lambda: not node.shard.standing.leader_id)
        began = asyncio.get_running_loop().time()
        with pytest.raises(Refused):
            await node.gateway.submit(node.submission())

        assert asyncio.get_running_loop().time() - began < 1.0


async def test_h108_nodes_that_take_each_other_for_the_leader_ask_a_bounded_number_of_times() -> None:
    """Each says that it does not lead; the node that asked tries a few times, and gives up."""
    async with twins(leader_wait_ms_max=5_000) as cluster, asyncio.timeout(S):
        for node_id, other_id in (("n2", "n3"), ("n3", "n2")):
            replica = cluster[node_id].replica
            replica.hears, replica._leader_id = False, other_id
        node = cluster["n2"]
        await until(lambda: node.shard.standing.leader_id == "n3")
        with pytest.raises(Refused) as refused:
            await node.gateway.submit(node.submission())

        assert refused.value.rejection.reason is Reason.NO_LEADER
        sent = [command.hops for pipe in node.pipes for request in pipe.requests for command in request.commands]
        assert sent == list(range(HOPS_MAX))
        # The hint is the node's own, and still fresh.
        assert refused.value.rejection.metadata == {"leader_id": "n3", "leader_address": "n3.example:7654"}


async def test_h107_leader_that_steps_down_lets_nobody_hang() -> None:
    """Twenty commands wait for their commit; each is answered within a second, and nothing is done twice."""
    async with twins() as cluster, asyncio.timeout(S):
        node, leader = cluster["n2"], cluster["n1"]
        await node.shard.call(CloseStream("nobody", 1))
        keyed = [node.gateway.submit(node.submission(key=f"k{number}")) for number in range(10)]
        bare = [node.gateway.submit(node.submission()) for _ in range(10)]
        leader.replica.answers_lost, leader.replica.hears = 1, False
        calls = [asyncio.ensure_future(one) for one in (*keyed, *bare)]
        await until(lambda: not leader.replica.answers_lost)
        began = asyncio.get_running_loop().time()
        cluster.elect("n3")
        done = await asyncio.gather(*calls, return_exceptions=True)

        assert asyncio.get_running_loop().time() - began < 1.0
        assert all(isinstance(one, JobSubmitted) and not one.duplicate for one in done[:10])
        # What was in the batch that was lost has happened, and nobody knows; what came behind it was decided later.
        unknown = [one.rejection.reason for one in done[10:] if isinstance(one, Refused)]
        assert set(unknown) <= {Reason.COMMIT_UNKNOWN}
        async with node.gateway.reading() as reader:
            assert reader.count(keys.PROGRESS) == 20


async def test_commands_of_another_node_wait_for_the_epoch_of_a_new_leader() -> None:
    """It was elected, and has still to apply what others left: a moment later it decides."""
    async with twins() as cluster, asyncio.timeout(S):
        cluster["n3"].replica.applies = False
        node = cluster["n2"]
        await node.shard.call(CloseStream("nobody", 1))
        await node.gateway.submit(node.submission())
        cluster.elect("n3")
        await until(
            lambda: not (node.shard.standing.leader_id != "n3" or cluster["n3"].shard.standing.leader_id != "n3")
        )
        submitting = asyncio.ensure_future(node.gateway.submit(node.submission()))
        await until(lambda: node.pipes[-1].requests[1:])
        await asyncio.sleep(0.05)
        assert not submitting.done()
        cluster["n3"].replica.applies = True

        assert isinstance(await submitting, JobSubmitted)
        assert max(command.hops for request in node.pipes[-1].requests for command in request.commands) == 0


async def test_new_leader_decides_what_waited_here() -> None:
    """What this node's own callers asked while nobody led."""
    async with twins() as cluster, asyncio.timeout(S):
        cluster.elect("")
        node = cluster["n2"]
        await until(lambda: not (node.shard.standing.leader_id))
        submitting = asyncio.ensure_future(node.gateway.submit(node.submission()))
        await asyncio.sleep(0)
        cluster.elect("n2")

        assert isinstance(await submitting, JobSubmitted)
        assert not any(request.commands for pipe in node.pipes for request in pipe.requests)


async def test_deposed_leader_sends_on_what_it_did_not_decide() -> None:
    """Its own callers need not know that it led when they asked."""
    async with twins() as cluster, asyncio.timeout(S):
        node = cluster["n1"]
        cluster.elect("n3")
        submitted = await node.gateway.submit(node.submission())

        assert isinstance(submitted, JobSubmitted)
        assert cluster["n3"].shard.leads


async def test_supervisor_of_another_node_sweeps_nothing() -> None:
    """Sweeps are the leader's own; one that comes from elsewhere is of a node that thinks that it leads."""
    async with twins() as cluster, asyncio.timeout(S):
        assert reason_of(await cluster["n2"].shard.call(Sweep(1))) is Reason.NOT_ALLOWED
        assert reason_of(await cluster["n2"].shard.call_here(Sweep(1))) is Reason.NOT_LEADER


async def test_commands_that_wait_for_the_leader_are_bounded() -> None:
    """One too many is refused at once, and those that wait are still decided."""
    async with twins(forwarded_waiting_max=3) as cluster, asyncio.timeout(S):
        cluster.elect("")
        node = cluster["n2"]
        await until(lambda: not (node.shard.standing.leader_id))
        waiting = [asyncio.ensure_future(node.shard.call(CloseStream(f"s{number}", 1))) for number in range(3)]
        await asyncio.sleep(0)
        assert reason_of(await node.shard.call(CloseStream("s3", 1))) is Reason.OVERLOADED
        cluster.elect("n3")

        assert all(isinstance(answer, StreamClosed) for answer in await asyncio.gather(*waiting))


async def test_caller_who_has_gone_away_sends_nothing() -> None:
    """What nobody waits for any more and nobody has decided is dropped, with the room that it had."""
    async with twins(leader_wait_ms_max=60_000) as cluster, asyncio.timeout(S):
        cluster.elect("")
        node = cluster["n2"]
        await until(lambda: not (node.shard.standing.leader_id))
        submitting = asyncio.ensure_future(node.gateway.submit(node.submission()))
        await asyncio.sleep(0)
        assert node.admission.waiting == 1
        submitting.cancel()
        await until(lambda: not (node.admission.waiting))
        cluster.elect("n3")
        await node.shard.call(CloseStream("nobody", 1))

        sent = [len(request.commands) for pipe in node.pipes for request in pipe.requests]
        assert sum(sent) == 1


async def test_node_that_shuts_down_tells_everybody_what_it_knows() -> None:
    """What was not sent has not happened; of what was sent nobody knows."""
    async with twins() as cluster, asyncio.timeout(S):
        node = cluster["n2"]
        await node.shard.call(CloseStream("nobody", 1))
        node.pipes[-1].up.clear()
        sent = asyncio.ensure_future(node.gateway.submit(node.submission()))
        await until(lambda: any(request.commands for request in node.pipes[-1].requests[2:]))
        cluster["n3"].replica.hears = False
        unsent = asyncio.ensure_future(node.gateway.submit(node.submission()))
        await asyncio.sleep(0)
        node.shard.stop()
        done = await asyncio.gather(sent, unsent, return_exceptions=True)

        reasons = [one.rejection.reason for one in done if isinstance(one, Refused)]
        assert reasons == [Reason.COMMIT_UNKNOWN, Reason.NODE_DRAINING]


async def test_what_was_sent_before_the_leader_was_lost_stays_unknown() -> None:
    """It looks for another leader and finds none; that is not to say that nothing has happened."""
    async with twins(leader_wait_ms_max=300) as cluster, asyncio.timeout(S):
        node = cluster["n2"]
        cluster["n1"].replica.answers_lost = 1
        cluster["n1"].replica.hears = False
        submitting = asyncio.ensure_future(node.gateway.submit(node.submission(key="k")))
        await until(lambda: not cluster["n1"].replica.answers_lost)
        cluster.elect("")
        with pytest.raises(Refused) as unknown:
            await submitting

        assert unknown.value.rejection.reason is Reason.COMMIT_UNKNOWN


def test_errands_that_come_back_stand_where_they_stood() -> None:
    """What an agent reports must not overtake itself."""

    def errand(number: int, *, urgent: bool = False) -> Errand:
        command = CloseStream(f"s{number}", 1)
        return Errand(
            command, NobodyWaits(), lambda *_: None, number=number, urgent=urgent, share="", ends_at_ms=number
        )

    errands = Errands()
    for number in range(4):
        errands.push(errand(number))
    taken = errands.take()
    errands.push(errand(4))
    errands.push(errand(5, urgent=True))
    errands.put_back(taken[2:])
    errands.put_back(taken[:2])

    assert [one.number for one in errands.take()] == [5, 0, 1, 2, 3, 4]
    assert errands.size_bytes == 0
