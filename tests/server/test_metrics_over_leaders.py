"""What nodes tell while leadership moves: what is the leader's is gone with it, and sums are the truth."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from stepward.server.core import keys
from stepward.server.core.ledger_rows import LedgerEntry
from stepward.server.logbook.outbox import Transfer
from stepward.server.metrics import METRICS, PREFIX
from stepward.v1 import agent_service_pb2, common_pb2, definition_pb2, job_service_pb2, operator_service_pb2
from tests.server import cluster as clusters
from tests.server import nodes
from tests.server.cluster import Cluster
from tests.server.nodes import CALL_S_MAX, Stubs, submission
from tests.server.plain_agent import agent
from tests.server.test_metrics import Samples, scrape

pytestmark = pytest.mark.timeout(90)

LEADER_ONLY: Final = {PREFIX + one.name for one in METRICS if one.help.startswith("On the leader")}
CHANGES: Final = 4
RUNNING: Final = (f"{PREFIX}jobs", (("state", "RUNNING"),))
LEADER: Final = (f"{PREFIX}leader", ())


async def submit(stubs: Stubs, definition: str, count: int) -> None:
    for _ in range(count):
        request = job_service_pb2.SubmitJobRequest(job=submission(definition))
        await stubs.jobs.SubmitJob(request, timeout=CALL_S_MAX)


async def scrape_all(cluster: Cluster) -> dict[str, Samples]:
    """What each node tells."""
    return {node_id: await scrape(node) for node_id, node in cluster.nodes.items()}


async def hand_over(cluster: Cluster, to: str) -> None:
    """Let another node lead."""
    old = cluster.nodes[cluster.leader_id]
    await old._shard.ask(partial(Transfer, target_id=to))
    await cluster.led()


def leaders_told(told: dict[str, Samples]) -> list[str]:
    return [node_id for node_id, samples in told.items() if samples[LEADER] == 1]


def test_there_are_metrics_of_the_leader() -> None:
    """The rule below is about something, and the page tells which these are."""
    assert {"stepward_jobs", "stepward_follower_connected", "stepward_supervisor_running"} <= LEADER_ONLY


@contextlib.asynccontextmanager
async def scraping(cluster: Cluster) -> AsyncIterator[list[Samples]]:
    """Scrape all nodes all the time."""
    seen: list[Samples] = []

    async def scrape_on() -> None:
        while True:
            seen.extend((await scrape_all(cluster)).values())

    task = asyncio.create_task(scrape_on())
    try:
        yield seen
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@pytest.mark.slow
async def test_h089_what_is_the_leaders_is_gone_with_leadership(tmp_path: Path) -> None:
    """H089: in every scrape around four changes; sums are the truth; one node leads, and no other says so."""
    async with clusters.running(tmp_path) as cluster, nodes.connected(cluster.addresses["n1"]) as stubs:
        await nodes.define(stubs, "waits", definition_pb2.Step(id="waits", action="nobody"))
        await submit(stubs, "waits", 7)

        async def summed() -> bool:
            told = await scrape_all(cluster)
            sums = sum(samples.get(RUNNING, 0) for samples in told.values())
            leading = leaders_told(told)
            # How the others are is noted once a second.
            return len(leading) == 1 and sums == 7 and {name for name, _ in told[leading[0]]} >= LEADER_ONLY

        await nodes.eventually(summed)
        async with scraping(cluster) as seen:
            for number in range(CHANGES):
                to = cluster.followers()[number % 2]
                await hand_over(cluster, to)
                await nodes.eventually(summed)
                assert leaders_told(await scrape_all(cluster)) == [to]
        others = [samples for samples in seen if samples[LEADER] == 0]

        assert len(others) > CHANGES
        for samples in others:
            assert LEADER_ONLY.isdisjoint(name for name, _ in samples)
        # Never a second truth: whoever tells the number of jobs tells the same.
        assert {samples[RUNNING] for samples in seen if RUNNING in samples} == {7}


def _cannot_tell(offer: agent_service_pb2.Offer) -> agent_service_pb2.AttemptReport:
    unknown = agent_service_pb2.Unknown(kind="NoAnswer", message="after sending")
    return agent_service_pb2.AttemptReport(attempt=offer.attempt, unknown=unknown)


async def _decide_by_hand(stubs: Stubs) -> None:
    """A step of which nobody knows whether it happened waits for a person, who passes over it."""
    request = job_service_pb2.SubmitJobRequest(job=submission("unsure"))
    job_id = (await stubs.jobs.SubmitJob(request, timeout=CALL_S_MAX)).job_id

    async def waits() -> bool:
        read = await stubs.jobs.GetJob(job_service_pb2.GetJobRequest(job_id=job_id), timeout=CALL_S_MAX)
        return read.job.state == common_pb2.JOB_STATE_ESCALATED

    await nodes.eventually(waits)
    skip = operator_service_pb2.SkipStepRequest(job_id=job_id, step_id="unsure", reason="it happened", actor="ada")
    await stubs.operators.SkipStep(skip, timeout=CALL_S_MAX)


@pytest.mark.slow
async def test_h089_remediations_go_on_over_leaders(tmp_path: Path) -> None:
    """H089: every node has counted what any leader has done, so a new one goes on where the old one was.

    And the counts are those of the ledger.
    """
    async with clusters.running(tmp_path) as cluster, nodes.connected(cluster.addresses["n1"]) as stubs:
        step = definition_pb2.Step(id="unsure", effect=definition_pb2.EFFECT_NON_IDEMPOTENT)
        await nodes.define(stubs, "unsure", step)
        async with agent(stubs, "unsure", handler=_cannot_tell):
            for number in range(3):
                await _decide_by_hand(stubs)
                await hand_over(cluster, cluster.followers()[number % 2])

        def counted(samples: Samples) -> dict[tuple[tuple[str, str], ...], float]:
            return {labels: value for (name, labels), value in samples.items() if name.endswith("remediations_total")}

        told = await scrape_all(cluster)
        with cluster.nodes["n1"]._shard.committed() as reader:
            entries = [reader.get(key) for key in reader.scan(keys.LEDGER)]

    counts = [counted(samples) for samples in told.values()]
    assert counts[0] == counts[1] == counts[2]
    assert sum(counts[0].values()) == len(entries) >= 3
    first = entries[0]
    assert isinstance(first, LedgerEntry)
    assert (("by", first.by.name), ("remedy", first.remedy.name), ("trouble", first.trouble.name)) in counts[0]
