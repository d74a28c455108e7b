"""Agents without streaming: they ask for work, renew and report by calls, under the rules of a stream."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest
import pytest_asyncio
from google.protobuf.duration_pb2 import Duration

from stepward.server.core.limits import Limits
from stepward.server.node import Node
from stepward.v1 import agent_service_pb2 as pb
from stepward.v1 import common_pb2, definition_pb2, job_service_pb2
from tests.server import nodes
from tests.server.nodes import CALL_S_MAX, Stubs, json_payload, refused, submission
from tests.server.plain_agent import agent, failed, named, succeeded, succeeds
from tests.server.unary_agent import NO_WAIT, UnaryAgent, cancel, listed, listens, state, submit

S = CALL_S_MAX
SESSION = "session-of-the-test-1"
TTL_MS = 3_000
LONG_WAIT = Duration(seconds=8)
RECORDED = pb.REPORT_RESULT_RECORDED


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    """A node that was never wrong."""
    async with nodes.running(tmp_path / "data") as node:
        yield node
        assert node.counters.call_failures == node.counters.rule_failures == node.counters.delivery_failures == 0


@pytest_asyncio.fixture
async def stubs(node: Node) -> AsyncIterator[Stubs]:
    """A connection to it; it knows the definition `one`."""
    async with nodes.connected(node.address) as stubs:
        await nodes.define(stubs, "one", definition_pb2.Step(id="one"))
        yield stubs


@pytest_asyncio.fixture
async def patient(tmp_path: Path) -> AsyncIterator[Stubs]:
    """The same on a node whose sessions are so long that a wait which is not ended is noticed."""
    limits = Limits(session_ttl_ms=60_000)
    async with nodes.running(tmp_path / "patient", limits=limits) as node, nodes.connected(node.address) as stubs:
        await nodes.define(stubs, "one", definition_pb2.Step(id="one"))
        yield stubs


async def test_offer_that_is_there_is_told_at_once(stubs: Stubs, node: Node) -> None:
    """The answer says how to stay, too."""
    job_id = await submit(stubs)
    worker = UnaryAgent(stubs, "one", session_id=SESSION)

    answer = await worker.lease(NO_WAIT)

    welcome = answer.welcome
    assert (welcome.session_id, welcome.generation, welcome.node_id) == (SESSION, 1, node.identity.node_id)
    assert (welcome.ttl.ToMilliseconds(), welcome.heartbeat_interval.ToMilliseconds()) == (TTL_MS, TTL_MS // 6)
    assert [(offer.attempt.job_id, offer.action) for offer in answer.offers] == [(job_id, "one")]


async def test_wait_ends_when_there_is_work(patient: Stubs) -> None:
    """And not before: the session listens as long as the call waits."""
    worker = UnaryAgent(patient, "one")
    asking = asyncio.ensure_future(worker.lease(LONG_WAIT))
    await listens(patient)
    assert not asking.done()

    async with asyncio.timeout(LONG_WAIT.seconds / 2):
        job_id = await submit(patient)
        answer = await asking

    assert [offer.attempt.job_id for offer in answer.offers] == [job_id]
    # Nobody listens now.
    await listens(patient, 0)


async def test_wait_is_no_longer_than_the_session_may_be_offered_work(stubs: Stubs) -> None:
    """A third of the TTL, whatever was asked for; the generation stays."""
    worker = UnaryAgent(stubs, "one")
    began = time.monotonic()
    first = await worker.lease(Duration(seconds=3_600))
    took_s = time.monotonic() - began
    second = await worker.lease(NO_WAIT)

    assert (list(first.offers), list(first.cancels)) == ([], [])
    assert TTL_MS / 3_000 <= took_s < TTL_MS / 1_000
    assert first.welcome.generation == second.welcome.generation == 1


async def test_wait_ends_before_the_deadline_of_its_call(stubs: Stubs) -> None:
    """Otherwise the caller would not hear what it was told."""
    request = pb.LeaseWorkRequest(hello=UnaryAgent(stubs, "one").hello(), wait_max=Duration(seconds=5))

    answer = await stubs.agents.LeaseWork(request, timeout=0.5)

    assert answer.welcome.generation == 1


async def test_nothing_is_offered_to_one_who_does_not_ask(stubs: Stubs) -> None:
    """A renewal says that the agent lives, not that it wants work."""
    worker = UnaryAgent(stubs, "one")
    await worker.lease(NO_WAIT)
    await listens(stubs, 0)
    await submit(stubs)
    for number in range(3):
        await worker.renew(number)

    (there,) = await listed(stubs)
    assert (there.connected, list(there.held)) == (False, [])


async def test_call_whose_agent_has_gone_listens_no_more(patient: Stubs) -> None:
    """What nobody would hear is not offered."""
    worker = UnaryAgent(patient, "one")
    asking = asyncio.ensure_future(worker.lease(LONG_WAIT))
    await listens(patient)
    asking.cancel()

    await listens(patient, 0)


async def test_lost_answer_is_told_again(stubs: Stubs) -> None:
    """With the same token, whichever generation the agent knows; and nothing that it says it holds."""
    await submit(stubs)
    worker = UnaryAgent(stubs, "one", session_id=SESSION)
    lost = await worker.lease(NO_WAIT)
    offered = list(worker.held.values())
    worker.held.clear()
    again = await worker.lease(NO_WAIT)
    worker.held.clear()
    anew = await worker.lease(NO_WAIT, generation=0)
    known = await worker.lease(NO_WAIT)

    assert list(lost.offers) == list(again.offers) == list(anew.offers) == offered
    assert [answer.welcome.generation for answer in (lost, again, anew, known)] == [1, 1, 2, 2]
    assert list(known.offers) == []


async def test_held_offer_does_not_end_the_wait(patient: Stubs) -> None:
    """An agent with a free slot waits for other work than it has."""
    await submit(patient)
    worker = UnaryAgent(patient, "one")
    await worker.lease(NO_WAIT)
    asking = asyncio.ensure_future(worker.lease(LONG_WAIT))
    await listens(patient)
    assert not asking.done()

    other = await submit(patient)

    assert [offer.attempt.job_id for offer in (await asking).offers] == [other]


async def test_two_waiting_calls_are_told_the_same(patient: Stubs) -> None:
    """Neither supersedes the other, and the end of one does not make the session deaf for the other."""
    worker, twin = UnaryAgent(patient, "one", session_id=SESSION), UnaryAgent(patient, "one", session_id=SESSION)
    await worker.lease(NO_WAIT)
    twin.generation = worker.generation
    gone, one, two = (asyncio.ensure_future(each.lease(LONG_WAIT)) for each in (worker, worker, twin))
    await listens(patient)
    # Over before the work comes.
    gone.cancel()
    await asyncio.wait((gone,))
    await submit(patient)
    told = [list(answer.offers) for answer in await asyncio.gather(one, two)]

    assert told[0] == told[1]
    assert len(told[0]) == 1


@pytest.mark.parametrize("by", ["call", "stream"])
async def test_newer_generation_ends_the_wait_of_the_older(patient: Stubs, by: str) -> None:
    """At once, whether it was opened by a call or by a stream."""
    worker = UnaryAgent(patient, "one", session_id=SESSION)
    waiting = asyncio.ensure_future(worker.lease(LONG_WAIT))
    await listens(patient)
    async with asyncio.timeout(LONG_WAIT.seconds / 2):
        if by == "call":
            await UnaryAgent(patient, "one", session_id=SESSION).lease(NO_WAIT)
        else:
            async with agent(patient, "one", session_id=SESSION):
                await asyncio.wait((waiting,))
        answer = await refused(waiting)

    assert answer.reason == "SESSION_ENDED"


async def test_newest_generation_is_the_one_that_is_closed(patient: Stubs) -> None:
    """When the call that opened it goes, too."""
    older, newer = (UnaryAgent(patient, "one", session_id=SESSION) for _ in range(2))
    waits = [asyncio.ensure_future(older.lease(LONG_WAIT))]
    await listens(patient)
    waits.append(asyncio.ensure_future(newer.lease(LONG_WAIT)))
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    await listens(patient)
    waits[1].cancel()

    assert (await refused(waits[0])).reason == "SESSION_ENDED"
    await listens(patient, 0)


async def test_call_ends_the_stream_of_its_session(stubs: Stubs) -> None:
    """A session that goes on without a stream has a newer generation."""
    async with agent(stubs, "one", session_id=SESSION) as streaming:
        answer = await UnaryAgent(stubs, "one", session_id=SESSION).lease(NO_WAIT)
        async with asyncio.timeout(S):
            error = await asyncio.shield(streaming.ended)

    assert answer.welcome.generation == 2
    assert error is not None
    assert nodes.refusal(error).reason == "SESSION_ENDED"


async def test_cancel_is_told_once_at_once(stubs: Stubs) -> None:
    """It ends the wait; a call that knows it waits on, and hears of it all the same."""
    job_id = await submit(stubs)
    worker = UnaryAgent(stubs, "one")
    await worker.lease(NO_WAIT)
    asking = asyncio.ensure_future(worker.lease())
    await listens(stubs)
    await cancel(stubs, job_id)
    told = await asking
    renewed = await worker.renew()
    began = time.monotonic()
    known = await worker.lease()
    took_s = time.monotonic() - began
    (attempt,) = [one.attempt for one in told.cancels]
    (answer,) = await worker.report(pb.AttemptReport(attempt=attempt, refused=pb.Refused()))

    assert told.cancels[0].reason == pb.CANCEL_REASON_JOB_ENDING
    assert list(told.offers) == []
    assert list(renewed.cancels) == list(known.cancels) == list(told.cancels)
    assert took_s >= TTL_MS / 3_000
    assert answer.result == RECORDED
    assert await state(stubs, job_id) == common_pb2.JOB_STATE_CANCELLED


async def test_what_no_row_knows_is_cancelled(stubs: Stubs) -> None:
    """An agent that shows what it holds is told what of it nobody knows, by either call."""
    worker = UnaryAgent(stubs, "one")
    stranger = pb.AttemptRef(job_id="0-" + "0" * 32, step_id="one", token=1)
    answer = await worker.lease(held=[stranger])
    asked = await worker.renew(7, held=None)
    worker.held[named(stranger)] = pb.Offer(attempt=stranger)
    differs = await worker.renew(8)
    renewed = await worker.renew(9, held=[stranger])

    assert [(one.attempt, one.reason) for one in answer.cancels] == [(stranger, pb.CANCEL_REASON_STALE)]
    assert [(one.attempt, one.reason) for one in renewed.cancels] == [(stranger, pb.CANCEL_REASON_STALE)]
    assert (asked.heartbeat.number, asked.heartbeat.send_held) == (7, False)
    assert (differs.heartbeat.number, differs.heartbeat.send_held) == (8, True)


async def test_large_offers_come_in_parts_that_a_client_takes(stubs: Stubs, node: Node) -> None:
    """The rest comes with the next call, which need not wait."""
    for _ in range(30):
        await submit(stubs, data=b'"' + b"x" * 200_000 + b'"')
    async with nodes.connected(node.address, ("grpc.max_receive_message_length", 4 * 1024 * 1024)) as plain:
        worker = UnaryAgent(plain, "one", slots=30)
        calls = 0
        while len(worker.held) < 30:
            await worker.lease(NO_WAIT)
            calls += 1
            assert calls <= 30

    assert calls > 1
    assert worker.again == 0


def trip() -> list[definition_pb2.Step]:
    """Three steps in a row, each with an undo."""
    return [
        definition_pb2.Step(id=id_, needs=needs, undo=definition_pb2.Undo(action=f"undo-{id_}"))
        for id_, needs in (("flight", []), ("hotel", ["flight"]), ("car", ["hotel"]))
    ]


ACTIONS = ("flight", "hotel", "car", "undo-flight", "undo-hotel", "undo-car")


async def test_trip_to_its_end(stubs: Stubs) -> None:
    """With a failure that is tried again; and one that undoes everything, in reverse order."""
    await nodes.define(stubs, "trip", *trip())
    begun: list[str] = []

    def handler(offer: pb.Offer) -> pb.AttemptReport:
        begun.append(offer.action)
        if offer.action == "hotel" and offer.attempt_number == 1:
            return failed(offer, retryable=True)
        return failed(offer) if offer.action == "car" and b"none" in offer.input.data else succeeds(offer)

    ended = asyncio.Event()
    serving = asyncio.ensure_future(UnaryAgent(stubs, *ACTIONS).serve(handler, until=ended.is_set))
    jobs = []
    for data in (b'{"car":"small"}', b'{"car":"none"}'):
        request = job_service_pb2.RunJobRequest(job=submission("trip", data))
        jobs.append((await stubs.jobs.RunJob(request, timeout=S)).job)
    ended.set()
    await serving

    assert [job.state for job in jobs] == [common_pb2.JOB_STATE_COMPLETED, common_pb2.JOB_STATE_COMPENSATED]
    assert begun[:4] == ["flight", "hotel", "hotel", "car"]
    assert begun[4:] == ["flight", "hotel", "hotel", "car", "undo-hotel", "undo-flight"]


async def test_reports_are_answered_in_their_order(stubs: Stubs) -> None:
    """More than one command carries, and such as cannot be looked up among them; progress is not answered."""
    worker = UnaryAgent(stubs, "one")
    await worker.lease(NO_WAIT)
    ids = [f"0-{number:032x}" if number % 3 else f"nonsense-{number}" for number in range(100)]
    refs = [pb.AttemptRef(job_id=id_, step_id="one", token=number + 1) for number, id_ in enumerate(ids)]
    reports = [
        pb.AttemptReport(attempt=ref, progress=pb.Progress())
        if number % 10 == 0
        else pb.AttemptReport(attempt=ref, started=pb.Started())
        for number, ref in enumerate(refs)
    ]

    answers = await worker.report(*reports)

    assert [one.attempt.token for one in answers] == [ref.token for n, ref in enumerate(refs) if n % 10]
    assert {one.result for one in answers} == {pb.REPORT_RESULT_NOT_FOUND}


async def test_report_counts_by_its_token(stubs: Stubs) -> None:
    """Of another's session, of a token that never was, twice: each is answered as on a stream."""
    await submit(stubs)
    worker, other = UnaryAgent(stubs, "one"), UnaryAgent(stubs, "two")
    await worker.lease(NO_WAIT)
    await other.lease(NO_WAIT)
    (offer,) = worker.held.values()
    wrong = pb.Offer(attempt=pb.AttemptRef(job_id=offer.attempt.job_id, step_id="one", token=offer.attempt.token + 1))

    (foreign,) = await other.report(succeeds(offer))
    (never,) = await worker.report(succeeds(wrong))
    (first,) = await worker.report(succeeds(offer))
    (repeated,) = await worker.report(succeeds(offer))

    assert [one.result for one in (foreign, never)] == [pb.REPORT_RESULT_STALE_TOKEN] * 2
    assert [one.result for one in (first, repeated)] == [RECORDED] * 2


async def test_accept_comes_before_the_start(stubs: Stubs) -> None:
    """An offer that asks for it is started when its accept is recorded."""
    await nodes.define(stubs, "once", definition_pb2.Step(id="once", effect=definition_pb2.EFFECT_NON_IDEMPOTENT))
    job_id = await submit(stubs, "once")
    worker = UnaryAgent(stubs, "once")
    await worker.lease(NO_WAIT)
    (offer,) = worker.held.values()
    (accepted,) = await worker.report(pb.AttemptReport(attempt=offer.attempt, accepted=pb.Accepted()))
    (done,) = await worker.report(succeeds(offer))

    assert offer.start == pb.OFFER_START_ON_ACCEPT
    assert (accepted.result, done.result) == (RECORDED, RECORDED)
    assert await state(stubs, job_id) == common_pb2.JOB_STATE_COMPLETED


async def test_lost_agent_is_replaced(tmp_path: Path) -> None:
    """One that calls no more loses its work to another; its late report is refused, and kept as an observation."""
    limits = Limits(session_ttl_ms=1_000, kill_grace_ms=0)
    async with nodes.running(tmp_path / "data", limits=limits) as node, nodes.connected(node.address) as stubs:
        await nodes.define(stubs, "one", definition_pb2.Step(id="one"))
        job_id = await submit(stubs)
        lost, other = UnaryAgent(stubs, "one"), UnaryAgent(stubs, "one")
        await lost.lease(NO_WAIT)
        (first,) = lost.held.values()
        taken: list[pb.Offer] = []
        await other.serve(taken.append, until=lambda: bool(taken))
        (late,) = await lost.report(succeeds(first))
        answers = await other.report(succeeded(taken[0], json_payload(b'"other"')))
        job = (await stubs.jobs.GetJob(job_service_pb2.GetJobRequest(job_id=job_id), timeout=S)).job

    assert (late.result, answers[0].result) == (pb.REPORT_RESULT_STALE_TOKEN, RECORDED)
    assert "observation" in late.message
    assert taken[0].attempt.token > first.attempt.token
    assert taken[0].idempotency_key == first.idempotency_key
    assert job.steps[0].output.data == b'"other"'


async def test_renewals_keep_a_busy_agent_alive(tmp_path: Path) -> None:
    """Longer than its session would live without them, although it asks for no work."""
    limits = Limits(session_ttl_ms=1_000, kill_grace_ms=0)
    async with nodes.running(tmp_path / "data", limits=limits) as node, nodes.connected(node.address) as stubs:
        await nodes.define(stubs, "one", definition_pb2.Step(id="one"))
        job_id = await submit(stubs)
        worker = UnaryAgent(stubs, "one")
        await worker.lease(NO_WAIT)
        (offer,) = worker.held.values()
        await worker.report(pb.AttemptReport(attempt=offer.attempt, started=pb.Started()))
        ends_at = time.monotonic() + 3 * (1_000 + 334 + 510) / 1_000
        number = 0
        while time.monotonic() < ends_at:
            number += 1
            try:
                renewed = await worker.renew(number)
            except grpc.aio.AioRpcError as late:
                # A busy machine answers too late to promise a lease as short as this.
                if nodes.refusal(late).reason != "NO_LEADER":
                    raise
            else:
                assert (renewed.heartbeat.number, list(renewed.cancels)) == (number, [])
            await asyncio.sleep(0.16)
        (answer,) = await worker.report(succeeds(offer))

        assert answer.result == RECORDED
        assert await state(stubs, job_id) == common_pb2.JOB_STATE_COMPLETED


async def test_handed_back_work_waits_until_there_is_room(stubs: Stubs) -> None:
    """An agent that asks for work again says that it has room."""
    job_id = await submit(stubs)
    worker = UnaryAgent(stubs, "one")
    await worker.lease(NO_WAIT)
    (offer,) = worker.held.values()
    await worker.report(pb.AttemptReport(attempt=offer.attempt, refused=pb.Refused(handed_back=True)))
    again = await worker.lease()

    assert [one.attempt.job_id for one in again.offers] == [job_id]
    assert again.offers[0].attempt.token > offer.attempt.token


async def test_stopping_node_ends_the_waits(tmp_path: Path) -> None:
    """With a reason to go elsewhere; the session stays, and its reports are recorded to the last."""
    async with nodes.running(tmp_path / "data") as node, nodes.connected(node.address) as stubs:
        await nodes.define(stubs, "one", definition_pb2.Step(id="one"))
        worker = UnaryAgent(stubs, "one")
        waiting = asyncio.ensure_future(worker.lease())
        await listens(stubs)
        stopping = asyncio.create_task(node.stop())
        answer = await refused(waiting)
        await stopping

    assert (answer.code, answer.reason) == (grpc.StatusCode.UNAVAILABLE, "NODE_DRAINING")


async def test_agents_of_both_kinds_share_the_work(stubs: Stubs) -> None:
    """Nothing is offered to two of them."""
    ended = asyncio.Event()
    begun: list[tuple[str, str, int]] = []

    def handler(offer: pb.Offer) -> pb.AttemptReport:
        begun.append(named(offer.attempt))
        return succeeds(offer)

    async with agent(stubs, "one", handler=handler, slots=2):
        workers = [UnaryAgent(stubs, "one", slots=2) for _ in range(2)]
        serving = [asyncio.ensure_future(each.serve(handler, until=ended.is_set)) for each in workers]
        runs = [stubs.jobs.RunJob(job_service_pb2.RunJobRequest(job=submission("one")), timeout=S) for _ in range(60)]
        jobs = [answer.job for answer in await asyncio.gather(*runs)]
        ended.set()
        await asyncio.gather(*serving)

    assert {job.state for job in jobs} == {common_pb2.JOB_STATE_COMPLETED}
    assert len(begun) == len(set(begun)) == 60
