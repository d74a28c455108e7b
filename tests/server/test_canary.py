"""Canaries: jobs of stepward's own, which the nodes' own agents work on, by the rules of any agent."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from stepward.server.canary_agent import WAIT_MS, CanaryAgent
from stepward.server.core import keys, system
from stepward.server.core.commands import ApplyDefinition, CancelJob, SubmitJob
from stepward.server.core.limits import Limits
from stepward.server.core.rejections import Reason, Refused, Rejection
from stepward.server.core.rows import DefinitionBody, Payload
from stepward.server.node import Node
from stepward.v1 import agent_service_pb2, common_pb2, definition_pb2, definition_service_pb2, job_service_pb2
from tests.core.world import World, step_spec
from tests.server import cluster as clusters
from tests.server import nodes
from tests.server.nodes import CALL_S_MAX, Stubs
from tests.server.unary_agent import UnaryAgent

LIMITS = Limits(session_ttl_ms=60_000)


def definition(name: str = "canary") -> definition_pb2.Definition:
    step = definition_pb2.Step(id="canary", action="canary", queue="stepward.canary")
    return definition_pb2.Definition(name=name, steps=[step])


async def apply(stubs: Stubs, name: str = "canary", namespace: str = "stepward.system") -> None:
    request = definition_service_pb2.ApplyDefinitionRequest(namespace=namespace, definition=definition(name))
    await stubs.definitions.ApplyDefinition(request, timeout=CALL_S_MAX)


async def send(stubs: Stubs, number: int) -> tuple[int, bytes]:
    """Run a canary; its state and output."""
    payload = common_pb2.Payload(encoding="json", data=b'{"at_ms":%d}' % number)
    job = job_service_pb2.JobSubmission(namespace="stepward.system", definition_name="canary", input=payload)
    run = await stubs.jobs.RunJob(job_service_pb2.RunJobRequest(job=job), timeout=CALL_S_MAX)
    return run.job.state, run.job.output.data


def sessions(node: Node) -> int:
    with node._shard.committed() as reader:
        return reader.count(keys.SESSION)


async def test_canary_goes_through_everything(tmp_path: Path) -> None:
    """And comes back with what it carried; when there is none any more nothing is left of the session."""
    async with nodes.running(tmp_path / "d", limits=LIMITS) as node, nodes.connected(node.address) as stubs:
        await apply(stubs)
        before = sessions(node)
        done = [await send(stubs, number) for number in range(3)]
        during = sessions(node)
        # Long before its lease would end.
        async with asyncio.timeout(WAIT_MS / 1_000 + 2.0):
            while sessions(node) or node._canary.is_at_work:  # noqa: ASYNC110 - the rows are asked, which wake nobody
                await asyncio.sleep(0.01)
        again = await send(stubs, 9)

        assert (before, during) == (0, 1)
        assert done == [(common_pb2.JOB_STATE_COMPLETED, b'{"at_ms":%d}' % number) for number in range(3)]
        assert again == (common_pb2.JOB_STATE_COMPLETED, b'{"at_ms":9}')
        assert node.counters.canaries >= 3


@pytest.mark.slow
async def test_canary_goes_through_any_node(tmp_path: Path) -> None:
    """Each node has such an agent, and a change of the leader costs no canary."""
    async with clusters.running(tmp_path) as cluster:
        for number, node_id in enumerate([*cluster.nodes, *cluster.nodes]):
            async with nodes.connected(cluster.addresses[node_id]) as stubs:
                await apply(stubs)
                assert await send(stubs, number) == (common_pb2.JOB_STATE_COMPLETED, b'{"at_ms":%d}' % number)
        await cluster.stop(cluster.leader_id)
        await cluster.led()
        async with nodes.connected(cluster.addresses[cluster.leader_id]) as stubs:
            assert (await send(stubs, 7))[0] == common_pb2.JOB_STATE_COMPLETED


async def test_canary_that_was_offered_as_the_session_ends_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be offered behind the last look; nobody else could do it before the lease has ended."""
    async with nodes.running(tmp_path / "d", limits=LIMITS) as node, nodes.connected(node.address) as stubs:
        await apply(stubs)
        calls = node._agent_calls
        lease_work, looks = calls.lease_work, 0

        async def a_moment_too_soon(
            request: agent_service_pb2.LeaseWorkRequest, *, wait_ms_max: int
        ) -> agent_service_pb2.LeaseWorkResponse:
            nonlocal looks
            looks += 1
            answer = await lease_work(request, wait_ms_max=wait_ms_max)
            return answer if looks > 1 else agent_service_pb2.LeaseWorkResponse(welcome=answer.welcome)

        monkeypatch.setattr(calls, "lease_work", a_moment_too_soon)
        done = await send(stubs, 1)

        assert done == (common_pb2.JOB_STATE_COMPLETED, b'{"at_ms":1}')
        assert looks >= 2


async def test_canary_that_becomes_ready_as_the_work_ends_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session is drained, so it is offered to nobody, and no batch will tell of it again."""
    drain, late = CanaryAgent._drain, list[asyncio.Task[tuple[int, bytes]]]()
    async with nodes.running(tmp_path / "d", limits=LIMITS) as node, nodes.connected(node.address) as stubs:

        async def drained(canary: CanaryAgent, session: object) -> None:
            await drain(canary, session)  # type: ignore[arg-type]  # the session that it was given
            if late:
                return
            late.append(asyncio.create_task(send(stubs, 2)))
            async with asyncio.timeout(CALL_S_MAX):
                while not is_ready(node):  # noqa: ASYNC110 - the rows are asked, which wake nobody
                    await asyncio.sleep(0.01)

        monkeypatch.setattr(CanaryAgent, "_drain", drained)
        await apply(stubs)
        first = await send(stubs, 1)
        async with asyncio.timeout(WAIT_MS / 1_000 + 2.0):
            while not late:  # noqa: ASYNC110 - what the agent does sets no event
                await asyncio.sleep(0.01)
        async with asyncio.timeout(2.0):
            second = await late[0]

        assert (first[0], second) == (common_pb2.JOB_STATE_COMPLETED, (common_pb2.JOB_STATE_COMPLETED, b'{"at_ms":2}'))


def is_ready(node: Node) -> bool:
    """Whether a canary waits for an agent."""
    with node._shard.committed() as reader:
        return next(iter(reader.scan(keys.READY)), None) is not None


async def test_other_jobs_wake_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is ready elsewhere is no canary, so that a cluster without a watchdog pays nothing."""
    begun: list[CanaryAgent] = []
    serve = CanaryAgent._serve

    async def noted(canary: CanaryAgent) -> None:
        begun.append(canary)
        await serve(canary)

    monkeypatch.setattr(CanaryAgent, "_serve", noted)
    async with nodes.running(tmp_path / "d") as node, nodes.connected(node.address) as stubs:
        await nodes.define(stubs, "one", definition_pb2.Step(id="one", queue="stepward.canary", action="canary"))
        request = job_service_pb2.SubmitJobRequest(job=nodes.submission("one"))
        await stubs.jobs.SubmitJob(request, timeout=CALL_S_MAX)

        assert begun == []


@pytest.mark.parametrize(
    ("namespace", "name", "refused"),
    [
        ("stepward.system", "canary", False),
        ("stepward.system", "other", True),
        ("stepward.mine", "canary", True),
        # A name that merely begins alike is anybody's.
        ("stepward", "other", False),
        ("stepwardly", "other", False),
        ("default", "canary", False),
    ],
)
async def test_reserved_namespaces(namespace: str, name: str, refused: bool, tmp_path: Path) -> None:
    """Only the canary is defined there."""
    async with nodes.running(tmp_path / "d") as node, nodes.connected(node.address) as stubs:
        if not refused:
            await apply(stubs, name, namespace)
            return
        request = definition_service_pb2.ApplyDefinitionRequest(namespace=namespace, definition=definition(name))
        refusal = await nodes.refused(stubs.definitions.ApplyDefinition(request, timeout=CALL_S_MAX))

    assert refusal.reason == "NOT_ALLOWED"
    assert "stepward.system" in refusal.message


async def test_no_other_agent_takes_canaries(tmp_path: Path) -> None:
    """With a stream or without: what is to be seen is whether the nodes' own path works."""
    async with nodes.running(tmp_path / "d") as node, nodes.connected(node.address) as stubs:
        unary = UnaryAgent(stubs, "canary")
        hello = unary.hello(namespace="stepward.system", queue="stepward.canary")
        call = stubs.agents.LeaseWork(agent_service_pb2.LeaseWorkRequest(hello=hello), timeout=CALL_S_MAX)
        refusal = await nodes.refused(call)

    assert refusal.reason == "NOT_ALLOWED"


def test_canaries_are_kept_for_an_hour() -> None:
    """They come every few seconds, for ever; what others submit is kept as long as it was asked for."""
    assert system.retention_ms("stepward.system", 7 * 86_400_000) == system.RETENTION_MS
    assert system.retention_ms("stepward.system", 1_000) == 1_000
    assert system.retention_ms("default", 7 * 86_400_000) == 7 * 86_400_000


def refusal_for(reason: Reason) -> Refused:
    return Refused(Rejection(reason, "as the test wants"))


@pytest.mark.parametrize("reason", [Reason.SESSION_ENDED, None])
async def test_canary_agent_gives_up_and_begins_anew(
    reason: Reason | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refusal that does not pass ends its session, and so does a mistake of ours; the canary gets another one."""
    async with nodes.running(tmp_path / "d") as node, nodes.connected(node.address) as stubs:
        await apply(stubs)
        calls = node._agent_calls
        lease_work = calls.lease_work
        refusals: list[Exception] = [refusal_for(Reason.NO_LEADER)]
        refusals.insert(0, ZeroDivisionError("as the test wants") if reason is None else refusal_for(reason))
        sessions_begun = set[str]()

        async def refusing(request: agent_service_pb2.LeaseWorkRequest, *, wait_ms_max: int) -> object:
            sessions_begun.add(request.hello.session_id)
            if refusals:
                raise refusals.pop()
            return await lease_work(request, wait_ms_max=wait_ms_max)

        monkeypatch.setattr(calls, "lease_work", refusing)
        monkeypatch.setattr("stepward.server.canary_agent.REFUSED_WAIT_S", 0.01)
        monkeypatch.setattr("stepward.server.canary_agent.TROUBLE_WAIT_S", 0.05)
        async with asyncio.timeout(CALL_S_MAX):
            done = await send(stubs, 1)

        assert done == (common_pb2.JOB_STATE_COMPLETED, b'{"at_ms":1}')
        assert len(sessions_begun) == 2
        assert node.counters.call_failures == (reason is None)


async def test_canary_agent_that_stops_begins_nothing_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even what it had put off."""
    async with nodes.running(tmp_path / "d") as node, nodes.connected(node.address) as stubs:
        await apply(stubs)

        async def refusing(_: object, *, wait_ms_max: int) -> object:
            del wait_ms_max
            raise refusal_for(Reason.SESSION_ENDED)

        monkeypatch.setattr(node._agent_calls, "lease_work", refusing)
        waiting = asyncio.create_task(send(stubs, 1))
        async with asyncio.timeout(CALL_S_MAX):
            while node._canary._again is None:  # noqa: ASYNC110 - what the agent does sets no event
                await asyncio.sleep(0.01)
        again = node._canary._again
        await node._canary.stop()

        assert again.cancelled()
        waiting.cancel()


def test_canary_of_the_core_is_purged_after_an_hour() -> None:
    """By the row that its end leaves, in whatever state it ended."""
    world = World()
    world.one(ApplyDefinition("stepward.system", b"c" * 32, DefinitionBody("canary", (step_spec("pay"),), b"", b"")))
    world.one(SubmitJob("j1", "stepward.system", "canary", 0, Payload(b"{}"), "", {}, "", b""))
    world.one(CancelJob("j1", "enough"))
    (purge,) = world.reader.scan(keys.PURGE)

    assert keys.parse_purge(purge) == (system.RETENTION_MS, "j1")
