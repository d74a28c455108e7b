"""Supervisors of three real nodes are broken, on the leader or on all nodes, while steps hang and others go on."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc.aio
import pytest

from stepward.agents import Agent, Context
from stepward.client import AsyncClient, Definition, JobState, Retry, Timeouts
from stepward.client.incident_values import RemedyBy, Trouble
from stepward.v1 import cluster_service_pb2 as pb
from stepward.v1 import cluster_service_pb2_grpc
from tests.agents.test_agent_live import serving
from tests.cluster.nodes import NODE_IDS, Nodes
from tests.cluster.rig import until
from tests.cluster.supervisor_faults import FAULT_FILE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

STUCK = 50
# A stuck step's attempt is over after so long: when its supervisor is gone already.
STUCK_AFTER_S = 2.5
LOOK_S = 0.05
# What a look may come too late, beside a whole suite on two processors.
LATE_S = 1.5
WARNING_S = 3.0
CRITICAL_S = 8.0
NEXT_BEAT_S = 6.0
S_MAX = 40.0
# A healthy job takes milliseconds; while leadership moves, as long as that takes.
HEALTHY_S_MAX = 5.0


class Works:
    """One agent: the first attempt of each stuck step never ends by itself, everything else does at once."""

    def __init__(self) -> None:
        self.tries: Counter[str] = Counter()
        self.agent = Agent(queue="work", slots=3 * STUCK, name="works")
        self.agent.action("stuck")(self._stuck)
        self.agent.action("healthy")(self._healthy)

    async def _stuck(self, ctx: Context) -> None:
        self.tries[ctx.job_id] += 1
        if self.tries[ctx.job_id] == 1:
            await asyncio.Event().wait()

    async def _healthy(self, ctx: Context) -> None:
        return None


@dataclass
class Look:
    """What one node said at one time."""

    at_s: float
    node_id: str
    shard: pb.ShardStatus

    @property
    def supervision(self) -> pb.Supervision:
        return self.shard.supervision


@dataclass
class Sightings:
    """What all nodes said, all the time, and how long healthy jobs took meanwhile."""

    nodes: Nodes
    client: AsyncClient
    looks: list[Look] = field(default_factory=list)
    healthy_s: list[float] = field(default_factory=list)

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Look and submit until the end."""
        tasks = [asyncio.create_task(self._look()), asyncio.create_task(self._submit())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(one, asyncio.CancelledError) for one in ended), ended

    async def _look(self) -> None:
        while True:
            for node_id, shard in (await self.nodes.statuses()).items():
                self.looks.append(Look(time.monotonic(), node_id, shard))
            await asyncio.sleep(LOOK_S)

    async def _submit(self) -> None:
        while True:
            began = time.monotonic()
            result = await self.client.run("healthy", wait_max_s=S_MAX)
            assert result.state is JobState.COMPLETED
            self.healthy_s.append(time.monotonic() - began)
            await asyncio.sleep(LOOK_S)

    def first(self, node_id: str, health: pb.SupervisionHealth.ValueType, *, after_s: float) -> float | None:
        """How long after that instant a node first said so; None: not yet."""
        for look in self.looks:
            if look.node_id == node_id and look.at_s >= after_s and look.supervision.health == health:
                return look.at_s - after_s
        return None

    def beats_in_gap_s(self) -> float:
        """The longest that any node was without a beat, as it told it itself."""
        return max(look.supervision.beat_age.ToMilliseconds() for look in self.looks) / 1_000

    def epochs(self) -> set[int]:
        return {look.shard.epoch for look in self.looks}


@contextmanager
def breakable(folder: Path, fault: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Nodes, Path]]:
    """Three nodes whose supervisors break while a file is there."""
    path = folder / "fault"
    monkeypatch.setenv(FAULT_FILE, str(path))
    modules = dict.fromkeys(NODE_IDS, ("tests.cluster.supervisor_faults", fault))
    with Nodes(folder, modules=modules) as nodes:
        nodes.start_nodes()
        yield nodes, path


async def define(client: AsyncClient) -> None:
    stuck = Definition("stuck")
    stuck.step(
        "stuck",
        queue="work",
        retry=Retry(attempts_max=3, initial=0.1),
        timeouts=Timeouts(start_to_close=STUCK_AFTER_S),
    )
    healthy = Definition("healthy")
    healthy.step("healthy", queue="work")
    for definition in (stuck, healthy):
        await client.apply_definition(definition)


async def supervised(nodes: Nodes) -> None:
    """Wait until supervision of all nodes is well."""
    async with asyncio.timeout(S_MAX):
        while True:
            shards = await nodes.statuses()
            healths = [shard.supervision.health for shard in shards.values()]
            if healths == [pb.SUPERVISION_HEALTH_WELL] * len(NODE_IDS):
                return
            await asyncio.sleep(LOOK_S)


@pytest.mark.parametrize("fault", ["hangs", "raises-always"])
async def test_h086_steps_of_a_leader_without_a_supervisor_are_remediated_by_the_next(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H086: warning, step-down, the next beat within 6 s; fifty stuck steps are tried again, once each."""
    works = Works()
    with breakable(tmp_path, fault, monkeypatch) as (nodes, path):
        async with nodes.client() as client, serving(works.agent, *nodes.addresses.values()):
            await define(client)
            await nodes.whole()
            await supervised(nodes)
            sightings = Sightings(nodes, client)
            async with sightings.watching():
                leader = await nodes.leader()
                submitted = [(await client.submit("stuck")).job_id for _ in range(STUCK)]
                await until(lambda: len(works.tries) == STUCK, seconds_max=S_MAX, what="all are stuck")
                path.write_text(leader)
                broken_at_s = time.monotonic()
                results = [await client.wait(job_id, wait_max_s=S_MAX) for job_id in submitted]
            statuses = await nodes.statuses()
            events = [event async for event in _timeouts(client, submitted)]
            remedies = [
                entry async for entry in client.ledger(page_size=1_000) if entry.trouble is Trouble.START_TO_CLOSE
            ]

    others = [name for name in NODE_IDS if name != leader]
    # The last beat came within the second before.
    warnings = [sightings.first(name, pb.SUPERVISION_HEALTH_WARNING, after_s=broken_at_s) for name in others]
    assert all(warning is not None and warning <= WARNING_S + LATE_S for warning in warnings), warnings
    assert sightings.beats_in_gap_s() <= NEXT_BEAT_S
    assert all(look.supervision.health != pb.SUPERVISION_HEALTH_CRITICAL for look in sightings.looks)
    assert {status.leader_id for status in statuses.values()}.isdisjoint({leader})
    assert {status.supervision.epochs_lost for status in statuses.values()} == {1}
    assert [result.state for result in results] == [JobState.COMPLETED] * STUCK
    # Each attempt ran out of time once, and each step was tried once more.
    assert Counter(events) == Counter(submitted)
    # Each was remedied once, by the supervisor of a later leadership, no faster than the brake allows.
    assert Counter(entry.job_id for entry in remedies) == Counter(submitted)
    assert {entry.by for entry in remedies} == {RemedyBy.SUPERVISOR}
    assert min(entry.epoch for entry in remedies) > sightings.looks[0].shard.epoch
    assert len(remedies) <= statuses[NODE_IDS[0]].supervision.brake.per_minute
    assert set(works.tries.values()) == {2}
    assert max(sightings.healthy_s) <= HEALTHY_S_MAX
    print(
        f"{fault}: warnings after {warnings}, longest without a beat {sightings.beats_in_gap_s():.1f} s, "
        f"{len(sightings.healthy_s)} healthy jobs, the slowest in {max(sightings.healthy_s):.2f} s"
    )


async def _timeouts(client: AsyncClient, job_ids: list[str]) -> AsyncIterator[str]:
    """The jobs of all attempts that ran out of time."""
    for job_id in job_ids:
        async for event in client.history(job_id):
            if event.type == "StepAttemptTimedOut":
                yield job_id


@pytest.mark.parametrize("fault", ["not-started", "start-hangs"])
async def test_h087_node_whose_supervisor_cannot_start_leads_for_no_longer_than_it_must(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H087: it is elected, never says that it is the leader, and another one leads in time."""
    with breakable(tmp_path, fault, monkeypatch) as (nodes, path):
        async with nodes.client() as client, serving(Works().agent, *nodes.addresses.values()):
            await define(client)
            await nodes.whole()
            await supervised(nodes)
            sightings = Sightings(nodes, client)
            async with sightings.watching():
                unfit = nodes.others(await nodes.leader())[0]
                path.write_text(unfit)
                began_s = time.monotonic()
                await hand_over(nodes, unfit)
                await until(lambda: _led_after(sightings, unfit), seconds_max=S_MAX, what="another node leads")
                ended_s = time.monotonic() - began_s

    led = [look for look in sightings.looks if look.node_id == unfit and look.shard.leader_id == unfit]
    assert led
    assert not any(look.shard.leader for look in led)
    assert {look.supervision.supervisor_state for look in led} <= {"NOT_STARTED", "FAILING", "STALLED"}
    assert ended_s <= NEXT_BEAT_S + LATE_S
    assert max(sightings.healthy_s) <= HEALTHY_S_MAX
    print(f"{fault}: another node leads after {ended_s:.1f} s")


async def hand_over(nodes: Nodes, node_id: str) -> None:
    """Let a node lead, as an operator does."""
    async with grpc.aio.insecure_channel(nodes.addresses[node_id]) as channel:
        stub = cluster_service_pb2_grpc.ClusterServiceStub(channel)
        await stub.TransferLeader(pb.TransferLeaderRequest(node_id=node_id), timeout=S_MAX)


def _led_after(sightings: Sightings, unfit: str) -> bool:
    """Whether another node leads, after that one did."""
    epochs = [look.shard.epoch for look in sightings.looks if look.shard.leader_id == unfit]
    return bool(epochs) and any(look.shard.leader and look.shard.epoch > max(epochs) for look in sightings.looks)


async def test_h086_without_any_supervisor_everything_says_critical_and_healthy_jobs_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H086: critical within 10 s on every node; after three leaders the fourth stays; what needs no remedy goes on."""
    works = Works()
    with breakable(tmp_path, "not-started", monkeypatch) as (nodes, path):
        async with nodes.client() as client, serving(works.agent, *nodes.addresses.values()):
            await define(client)
            await nodes.whole()
            await supervised(nodes)
            sightings = Sightings(nodes, client)
            async with sightings.watching():
                path.write_text("")
                broken_at_s = time.monotonic()
                await until(lambda: all_stay(sightings), seconds_max=S_MAX, what="leadership stays")
                stays_at = len(sightings.looks)
                healthy_before = len(sightings.healthy_s)
                await asyncio.sleep(2 * CRITICAL_S / 2)
            staying = sightings.looks[stays_at:]
            path.unlink()
            beats = staying[-1].supervision.beats
            await until_beats(nodes, beats + 2)
            after = await nodes.statuses()

    criticals = [sightings.first(name, pb.SUPERVISION_HEALTH_CRITICAL, after_s=broken_at_s) for name in NODE_IDS]
    assert all(critical is not None and critical <= CRITICAL_S + LATE_S for critical in criticals), criticals
    # Leadership stays where it is, is led by nobody who supervises, and says so everywhere.
    assert len({look.shard.epoch for look in staying}) == 1
    assert not any(look.shard.leader for look in staying)
    assert {look.supervision.health for look in staying} == {pb.SUPERVISION_HEALTH_CRITICAL}
    assert len(sightings.healthy_s) > healthy_before + 5
    assert max(sightings.healthy_s) <= HEALTHY_S_MAX
    # A supervisor that was begun in place beats; it is not trusted yet.
    assert all(status.supervision.stays for status in after.values())
    print(f"critical after {criticals} s; {len(sightings.healthy_s)} healthy jobs, {sorted(sightings.epochs())}")


def all_stay(sightings: Sightings) -> bool:
    newest = {look.node_id: look.supervision.stays for look in sightings.looks[-len(NODE_IDS) :]}
    return len(newest) == len(NODE_IDS) and all(newest.values())


async def until_beats(nodes: Nodes, beats: int) -> None:
    async with asyncio.timeout(S_MAX):
        while True:
            shards = await nodes.statuses()
            if len(shards) == len(NODE_IDS) and all(one.supervision.beats >= beats for one in shards.values()):
                return
            await asyncio.sleep(LOOK_S)
