"""ExplainJob: what a node says of a job that does not move, and that the contract has every kind of reason."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from stepward.client import AsyncClient, Definition
from stepward.client.errors import JobNotFound
from stepward.server.core.explaining import ReasonKind
from stepward.server.node import Node
from stepward.v1 import common_pb2, job_service_pb2
from tests.server import nodes
from tests.server.plain_agent import agent


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with nodes.running(tmp_path / "data") as node:
        yield node


def test_the_contract_has_every_kind() -> None:
    """Under the same number."""
    kinds = {f"WAIT_KIND_{kind.name}": int(kind) for kind in ReasonKind}

    assert {**kinds, "WAIT_KIND_UNSPECIFIED": 0} == dict(job_service_pb2.WaitKind.items())


async def test_it_says_what_is_missing_and_then_that_somebody_is_at_work(node: Node) -> None:
    """First nobody offers the action; with an agent it is offered."""
    definition = Definition("lonely")
    definition.step("pay")
    async with AsyncClient(node.address) as client, nodes.connected(node.address) as stubs:
        await client.apply_definition(definition)
        submitted = await client.submit("lonely")

        (reason,) = (await client.explain(submitted.job_id)).reasons

        assert (reason.kind, reason.step_ids) == ("NO_AGENT", ("pay",))
        assert reason.text == "no agent that is connected offers action 'pay' on queue 'default' in namespace 'default'"
        assert reason.fix == "start an agent with action 'pay' for queue 'default' in namespace 'default'"
        assert reason.at is not None
        async with agent(stubs, "pay", handler=lambda _offer: None):
            while (found := await client.explain(submitted.job_id)).reasons[0].kind == "NO_AGENT":
                pass
        assert found.reasons[0].kind in ("OFFERED", "AT_WORK", "TO_BE_OFFERED")
        assert found.summary == found.reasons[0].text


async def test_stale_rows_are_told_as_such(node: Node) -> None:
    """Whoever asks for them is told how old they may be."""
    definition = Definition("lonely")
    definition.step("pay")
    async with AsyncClient(node.address) as client, nodes.connected(node.address) as stubs:
        await client.apply_definition(definition)
        submitted = await client.submit("lonely")
        request = job_service_pb2.ExplainJobRequest(job_id=submitted.job_id, consistency=common_pb2.CONSISTENCY_STALE)

        answer = await stubs.jobs.ExplainJob(request)

    assert answer.HasField("staleness")
    assert answer.reasons[0].kind == job_service_pb2.WAIT_KIND_NO_AGENT


async def test_a_job_that_is_not_there(node: Node) -> None:
    """Neither by an id that could be one, nor by nonsense."""
    async with AsyncClient(node.address) as client:
        for job_id in ("0-" + "0" * 32, "nonsense"):
            with pytest.raises(JobNotFound):
                await client.explain(job_id)
